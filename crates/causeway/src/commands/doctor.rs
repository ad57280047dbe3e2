//! `causeway doctor GATEWAY`: walks from here to an edge, hop by hop, and says where it breaks.
//!
//! `examine` is pure: it looks at what was gathered. Every hop is said in one line; after the first that fails, those
//! behind it cannot be judged and are not guessed at.

use std::process::ExitCode;

use serde_json::{Value, json};

use crate::client::Connection;
use crate::output;

const EXAMPLES: &str = "\
Examples:
  causeway doctor tokyo
  causeway doctor tokyo || echo broken";

/// Find out why a gateway does not work: walks the path hop by hop; exit code 1 when one fails
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Name of the EGateway
    gateway: String,
    #[command(flatten)]
    connection: Connection,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let api = arguments.connection.connect().await?;
    let status = api.get("/causeway/v1/status").await?;
    let gateway = find(&status, &arguments.gateway);
    let is_connected = gateway.is_some_and(|gateway| gateway["connected"] == true);
    let probe = match is_connected && !is_cloud(gateway) {
        true => {
            let asked = json!({"gateway": arguments.gateway});
            Some(api.post("/causeway/v1/probe", &asked).await.map_err(|error| error.to_string()))
        }
        false => None,
    };
    let hops = examine(&arguments.gateway, gateway, probe.as_ref());
    for hop in &hops {
        let mark = if hop.is_fine { "ok" } else { "!!" };
        output::print_line(&output::plain(&format!("{mark}  {}", hop.text)))?;
    }
    Ok(if hops.iter().all(|hop| hop.is_fine) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

struct Hop {
    is_fine: bool,
    text: String,
}

fn fine(text: String) -> Hop {
    Hop { is_fine: true, text }
}

fn broken(text: String) -> Hop {
    Hop { is_fine: false, text }
}

fn find<'a>(status: &'a Value, name: &str) -> Option<&'a Value> {
    status["gateways"].as_array()?.iter().find(|gateway| gateway["name"] == name)
}

/// The cloud's own gateway has no channel: it is where we are.
fn is_cloud(gateway: Option<&Value>) -> bool {
    gateway.is_some_and(|gateway| gateway["name"] == "cloud")
}

fn examine(name: &str, gateway: Option<&Value>, probe: Option<&Result<Value, String>>) -> Vec<Hop> {
    let mut hops = vec![fine("the API answers".to_owned())];
    let Some(gateway) = gateway else {
        hops.push(broken(format!(
            "there is no EGateway {name}: `causeway token create --site SITE --gateway {name}` makes it"
        )));
        return hops;
    };
    let text = |key: &str| gateway[key].as_str().unwrap_or("?").to_owned();
    hops.push(fine(format!("EGateway {name} exists, at the site {}", text("site"))));
    if is_cloud(Some(gateway)) {
        return hops;
    }
    if gateway["connected"] != true {
        hops.push(broken(match gateway["since"].as_str() {
            Some(since) => format!(
                "not connected since {since}: look at the edge's log, and at UDP and TCP on the channel port between"
            ),
            None => "never connected to this cloud: start `causeway edge --join TOKEN` at the site".to_owned(),
        }));
        return hops;
    }
    let rtt = gateway["rttMs"].as_f64().map_or_else(|| "unknown".to_owned(), |rtt| format!("{rtt:.1} ms"));
    hops.push(fine(format!(
        "connected over {} since {}, round trip {rtt}",
        text("transport"),
        text("since")
    )));
    hops.push(match gateway["generation"].as_str() {
        Some(generation) => fine(format!("netmap {generation} is in force at the edge")),
        None => broken("the edge has no netmap yet".to_owned()),
    });
    hops.extend(probe.map(|probe| match probe {
        Ok(found) => {
            let (took, bytes) = (found["milliseconds"].as_f64().unwrap_or(0.0), &found["bytes"]);
            fine(format!("{bytes} bytes went there and back in {took:.1} ms"))
        }
        Err(why) => broken(format!("nothing comes back from the edge: {why}")),
    }));
    hops
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(gateway: Option<Value>, probe: Option<Result<Value, String>>, expected: &[(bool, &str)]) {
        let hops = examine("tokyo", gateway.as_ref(), probe.as_ref());
        assert_eq!(hops.len(), expected.len());
        for (hop, (is_fine, part)) in hops.iter().zip(expected) {
            assert!(hop.is_fine == *is_fine && hop.text.contains(part), "{}", hop.text);
        }
    }

    #[test]
    fn the_first_hop_that_breaks_is_named() {
        check(None, None, &[(true, "API"), (false, "no EGateway tokyo")]);
        let mut gateway = json!({"name": "tokyo", "site": "Tokyo", "connected": false});
        check(
            Some(gateway.clone()),
            None,
            &[(true, ""), (true, "at the site Tokyo"), (false, "never connected")],
        );
        gateway["since"] = "2026-01-01T00:00:00Z".into();
        check(Some(gateway), None, &[(true, ""), (true, ""), (false, "since 2026-01-01")]);
        let mut gateway =
            json!({"name": "tokyo", "connected": true, "transport": "quic", "since": "now", "rttMs": 3.0});
        let echo = Ok(json!({"milliseconds": 4.0, "bytes": 1000}));
        let ways = [(true, ""), (true, ""), (true, "over quic")];
        let rows = [&ways[..], &[(false, "no netmap"), (true, "1000 bytes")]].concat();
        check(Some(gateway.clone()), Some(echo), &rows);
        gateway["generation"] = "1.7".into();
        let rows = [&ways[..], &[(true, "netmap 1.7"), (false, "nothing comes back")]].concat();
        check(Some(gateway), Some(Err("reset".to_owned())), &rows);
        check(
            Some(json!({"name": "cloud", "site": "cloud", "connected": true})),
            None,
            &[(true, ""), (true, "")],
        );
    }
}
