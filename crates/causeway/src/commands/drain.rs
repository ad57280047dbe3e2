//! `causeway drain`: takes a gateway out of service without ending its connections, and puts it back.
//!
//! The field `drain` of the EGateway is the whole state: the cloud acts on it. `--wait` asks the gateway itself how many
//! connections are left.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use causeway_api::management::{DiagnoseRequest, FleetStatus, GatewayFacts, GatewayOverview, paths};
use causeway_api::{ApiVersion, Kind};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::client::{self, ApiClient, ApiConnectionArgs};
use crate::duration::HumanDuration;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway drain tokyo-1                  new connections use another gateway of its site
  causeway drain tokyo-1 --wait 10m       returns when its connections have ended; exit code 1 if some are left
  causeway drain tokyo-1 --undo           it gets new connections again
  causeway drain tokyo --force            although its site has no other gateway";

/// Interval at which the gateway is asked for its connections.
const ASK: Duration = Duration::from_millis(500);

/// Drain a gateway: it gets no new connections, and those that are open go on until they end
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the EGateway
    gateway: String,
    /// End the drain
    #[arg(long, conflicts_with_all = ["wait", "force"])]
    undo: bool,
    /// Wait until the connections to services of the site have ended, at most for this time
    #[arg(long, value_name = "DURATION")]
    wait: Option<HumanDuration>,
    /// Drain although no other gateway of the site is connected: its services cannot be reached until the drain ends
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let api = arguments.connection.connect().await?;
    let name = arguments.gateway.as_str();
    if !arguments.undo && !arguments.force {
        let status = api.get(&format!("{}?show=gateways", paths::STATUS)).await?;
        let status: FleetStatus = serde_json::from_value(status)
            .with_context(|| format!("{} did not send the status of the fleet", api.server()))?;
        if let Some(why) = objection(&status.gateways, name) {
            anyhow::bail!("egateway/{name} is not drained: {why}");
        }
    }
    let path = client::object(ApiVersion::Group, Kind::EGateway, name);
    // Null removes the field, so that the object is as it was before.
    let drain = if arguments.undo { Value::Null } else { true.into() };
    api.merge(&path, &json!({"drain": drain})).await?;
    let done = if arguments.undo { "in service" } else { "draining" };
    output::print(&format!("egateway/{name} {done}\n"))?;
    match arguments.wait {
        Some(time) => wait(&api, name, Instant::now() + time.0).await,
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Returns the reason not to drain a gateway: its site would have none left that takes connections. A gateway that does
/// not exist is left to the API, which says so.
fn objection(gateways: &[GatewayOverview], name: &str) -> Option<String> {
    let gateway = gateways.iter().find(|gateway| gateway.name == name)?;
    let others = gateways.iter().filter(|other| other.site == gateway.site && other.name != name);
    let takes_over = |other: &GatewayOverview| other.stats.connected && !other.draining;
    (!others.clone().any(takes_over)).then(|| {
        let site = &gateway.site;
        format!(
            "site {site} has no other gateway that is connected and not draining, so its services could not be reached. \
             Connect one (causeway token create --site {site} --gateway NAME), or use --force"
        )
    })
}

async fn wait(api: &ApiClient, name: &str, end: Instant) -> anyhow::Result<ExitCode> {
    let mut said = None;
    loop {
        let request = DiagnoseRequest { gateway: name.to_owned(), service: None };
        let facts = api.post(paths::DIAGNOSE, &request).await;
        let unknown = || format!("the connections of {name} are not known");
        let facts: GatewayFacts =
            serde_json::from_value(facts.with_context(unknown)?).with_context(unknown)?;
        let Some(left) = facts.connections.map(|connections| connections.inbound) else {
            anyhow::bail!(
                "the program of gateway {name} is too old to say how many connections it has; `causeway status` shows its streams"
            );
        };
        if left == 0 {
            output::print(&format!("egateway/{name} has no connections left\n"))?;
            return Ok(ExitCode::SUCCESS);
        }
        if Instant::now() >= end {
            anyhow::bail!("{left} connections are still open; they go on, and the gateway goes on draining");
        }
        if said != Some(left) {
            output::note(&format!("{left} connections are open"));
            said = Some(left);
        }
        sleep(ASK).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_gateway_of_a_site_is_not_drained_by_mistake() {
        let gateway = |name: &str, site: &str, connected: bool, draining: bool| -> GatewayOverview {
            let value = json!({"name": name, "site": site, "connected": connected, "draining": draining});
            serde_json::from_value(value).unwrap()
        };
        let check = |others: &[(bool, bool)], is_allowed: bool| {
            let mut gateways =
                vec![gateway("oslo-1", "oslo", true, false), gateway("rome", "rome", true, false)];
            let others = others.iter().enumerate();
            gateways.extend(
                others.map(|(at, other)| gateway(&format!("oslo-{}", at + 2), "oslo", other.0, other.1)),
            );
            assert_eq!(objection(&gateways, "oslo-1").is_none(), is_allowed, "{gateways:?}");
        };
        check(&[], false);
        check(&[(false, false)], false);
        check(&[(true, true)], false);
        check(&[(true, true), (true, false)], true);
        assert_eq!(objection(&[], "unknown"), None);
    }
}
