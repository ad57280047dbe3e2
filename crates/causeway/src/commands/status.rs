//! `causeway status`: sites, gateways and exposures at a glance.

mod tunnel_paths;

use std::process::ExitCode;

use anyhow::Context;
use causeway_api::conditions::READY;
use causeway_api::management::{ExposureOverview, FleetStatus, GatewayOverview, PresenceAddresses, paths};
use causeway_api::{Condition, ConditionStatus, GatewayStats};

use super::doctor::switched_off as describe_off;
use crate::client::ApiConnectionArgs;
use crate::output::{self, TextTable};

const EXAMPLES: &str = "\
Examples:
  causeway status
  causeway status --json | jq '.gateways[] | select(.connected | not) | .name'";

/// Show sites, gateways with their channels, exposures, and the paths of packets between sites
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// As JSON, for scripts
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: ApiConnectionArgs,
}

pub async fn run(arguments: Args) -> anyhow::Result<ExitCode> {
    let api = arguments.connection.connect().await?;
    let mut answer = api.get(paths::STATUS).await?;
    let status: FleetStatus = serde_json::from_value(answer.clone())
        .with_context(|| format!("{} did not send the status of the fleet", api.server()))?;
    let rows = tunnel_paths::ask(&api).await;
    if arguments.json {
        // As the cloud sent it, with fields of later versions.
        if let (Some(answer), false) = (answer.as_object_mut(), rows.is_empty()) {
            answer.insert("tunnelPaths".to_owned(), serde_json::to_value(&rows)?);
        }
        output::print(&output::json(&answer))?;
    } else {
        let mut text = render(&status, output::colours());
        if !rows.is_empty() {
            text = format!("{text}\n{}", tunnel_paths::table(&rows).render(output::colours()));
        }
        output::print(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The status as text: a table each, and under it what is wrong.
pub fn render(status: &FleetStatus, colours: bool) -> String {
    let mut sites = TextTable::new(&["SITE", "SUBNETS", "GATEWAYS", "READY"]);
    for site in &status.sites {
        let subnets = or_none(&site.subnets.join(","));
        sites.row([or_none(&site.name), subnets, site.gateways.to_string(), ready(&site.conditions)]);
    }
    let head = [
        "GATEWAY",
        "SITE",
        "CONNECTED",
        "SINCE/LAST SEEN",
        "TRANSPORT",
        "RTT",
        "SENT",
        "RECEIVED",
        "VERSION",
        "READY",
    ];
    let mut gateways = TextTable::new(&head);
    for gateway in &status.gateways {
        let stats = &gateway.stats;
        gateways.row([
            or_none(&gateway.name),
            or_none(&gateway.site),
            match (stats.connected, gateway.draining) {
                (true, true) => "draining",
                (true, false) => "yes",
                (false, _) => "no",
            }
            .to_owned(),
            since(gateway),
            transports(stats),
            stats.rtt_ms.map_or_else(|| "-".to_owned(), |rtt| format!("{rtt:.1}ms")),
            size(Some(stats.sent_bytes)),
            size(Some(stats.received_bytes)),
            stats.version().unwrap_or("-").to_owned(),
            ready_gateway(gateway),
        ]);
    }
    let mut exposures = TextTable::new(&["EXPOSURE", "SERVICE", "DNS NAME", "SITES", "READY"]);
    for expose in &status.exposures {
        exposures.row([
            or_none(&expose.name),
            or_none(&expose.service),
            or_none(&expose.dns_name),
            or_none(&presences(expose)),
            ready(&expose.conditions),
        ]);
    }
    let mut communities = TextTable::new(&["COMMUNITY", "MEMBERS", "POLICIES", "READY"]);
    for community in &status.communities {
        let policies = match &community.policies {
            None => "everything".to_owned(),
            Some(policies) => or_none(&policies.join(",")),
        };
        communities.row([
            or_none(&community.name),
            or_none(&community.members.join(",")),
            policies,
            ready(&community.conditions),
        ]);
    }
    let of_sites = status.sites.iter().map(|site| complaints(&site.name, &site.conditions));
    let of_gateways = status
        .gateways
        .iter()
        .map(|gateway| complaints(&gateway.name, &gateway.conditions) + &switched_off(gateway));
    let of_exposures = status.exposures.iter().map(|expose| complaints(&expose.name, &expose.conditions));
    let of_communities = status.communities.iter().map(|found| complaints(&found.name, &found.conditions));
    let mut parts: Vec<(&str, TextTable, String)> = vec![
        ("sites", sites, of_sites.collect()),
        ("gateways", gateways, of_gateways.collect()),
        ("exposures", exposures, of_exposures.collect()),
    ];
    // A fleet without layer 3 is not told that it has none.
    if !communities.rows.is_empty() {
        parts.push(("communities", communities, of_communities.collect()));
    }
    let rendered = parts.into_iter().map(|(title, table, complaints)| match table.rows.is_empty() {
        true => format!("no {title}\n{complaints}"),
        false => table.render(colours) + &complaints,
    });
    rendered.collect::<Vec<_>>().join("\n")
}

/// The sites of an exposure, each with its addresses there.
fn presences(expose: &ExposureOverview) -> String {
    let at = |place: &PresenceAddresses| match place.addresses.is_empty() {
        true => format!("{}=?", place.site),
        false => format!("{}={}", place.site, Vec::from_iter(place.addresses.iter().cloned()).join("+")),
    };
    // A cloud from before there were addresses names the sites only.
    match expose.presences.is_empty() {
        true => expose.sites.join(","),
        false => expose.presences.iter().map(at).collect::<Vec<_>>().join(","),
    }
}

/// The transport of the control link, and the one beside it while it carries streams: `quic+tcp`.
fn transports(stats: &GatewayStats) -> String {
    let control = stats.transport.as_deref().unwrap_or("-");
    let beside = stats.carries.iter().filter(|row| row.transport != control && row.streams > 0);
    let names: Vec<&str> = std::iter::once(control).chain(beside.map(|row| row.transport.as_str())).collect();
    names.join("+")
}

fn ready(conditions: &[Condition]) -> String {
    let ready = conditions.iter().find(|condition| condition.kind == READY);
    ready.map_or(ConditionStatus::Unknown, |condition| condition.status).as_str().to_owned()
}

/// When a session began, or the last one ended. The live stats know nothing of what was before the cloud's start.
fn since(gateway: &GatewayOverview) -> String {
    gateway.stats.since.or(gateway.last_seen).map_or_else(|| "-".to_owned(), |time| time.to_string())
}

/// A gateway without a session is not ready, whatever was written before it went.
fn ready_gateway(gateway: &GatewayOverview) -> String {
    match gateway.stats.connected {
        true => ready(&gateway.conditions),
        false => "False".to_owned(),
    }
}

/// Conditions that are false, one line each. Ready is left out if another one is false, because it only
/// summarises them.
fn complaints(name: &str, conditions: &[Condition]) -> String {
    let bad: Vec<&Condition> =
        conditions.iter().filter(|condition| condition.status == ConditionStatus::False).collect();
    let summed_up = bad.len() > 1;
    let told = bad.into_iter().filter(|condition| !summed_up || condition.kind != READY);
    told.map(|condition| {
        let line = format!("{name}: {} ({})", or_none(&condition.message), or_none(&condition.reason));
        format!("  ! {}\n", output::plain(&line))
    })
    .collect()
}

/// Planes that are off because a gateway is configured so, one line each. Nothing is broken.
fn switched_off(gateway: &GatewayOverview) -> String {
    let planes = gateway.stats.switched_off.iter();
    planes
        .map(|plane| {
            format!("  - {}\n", output::plain(&format!("{}: {}", gateway.name, describe_off(plane))))
        })
        .collect()
}

fn or_none(text: &str) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text.to_owned() }
}

pub fn size(bytes: Option<u64>) -> String {
    let Some(bytes) = bytes else { return "-".to_owned() };
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes as f64, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0}{}", units[0]) } else { format!("{value:.1}{}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn what_is_wrong_is_said_under_its_table() {
        let status = json!({
            "sites": [{"name": "Tokyo", "subnets": ["10.0.0.0/8"], "gateways": 1, "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": "2026-11-16T04:00:00Z"}]}],
            "gateways": [{"name": "tokyo", "site": "Tokyo", "connected": false, "since": "2026-11-16T04:16:46Z", "transport": null, "rttMs": null, "sentBytes": 0, "receivedBytes": 5000, "software": "causeway 0.1.0"}],
            "exposures": [{"name": "web", "service": "web", "dnsName": "web.test", "sites": ["Tokyo"],
                "conditions": [{"type": "Ready", "status": "False", "reason": "PolicyMissing", "message": "Policy2 does not exist", "lastTransitionTime": "2026-11-16T04:00:00Z"}]}],
        });
        let render = |status: Value| super::render(&serde_json::from_value(status).unwrap(), false);
        let text = render(status);
        assert!(text.contains("Tokyo   10.0.0.0/8   1          True\n"), "{text}");
        assert!(
            text.contains("tokyo     Tokyo   no          2026-11-16T04:16:46Z   -           -     0B     4.9KiB     0.1.0     False\n"),
            "{text}"
        );
        // Away since before the cloud was restarted: what was stored counts.
        let stored = json!({"gateways": [{"name": "oslo", "site": "Oslo", "connected": false, "lastSeen": "2026-11-15T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "lastTransitionTime": "2026-11-16T04:00:00Z"}]}]});
        let shown = render(stored);
        assert!(
            shown.lines().any(|row| row.contains("2026-11-15T00:00:00Z") && row.ends_with("False")),
            "{shown}"
        );
        let draining =
            json!({"gateways": [{"name": "oslo", "site": "Oslo", "connected": true, "draining": true}]});
        assert!(render(draining).contains("oslo      Oslo   draining  "));
        let off = json!({"gateways": [{"name": "oslo", "site": "Oslo", "connected": true, "switchedOff": ["services"]}]});
        let shown = render(off);
        assert!(shown.contains("  - oslo: services are switched off in its configuration"), "{shown}");
        let expose = json!({"presences": [{"site": "a", "addresses": ["10.0.0.1", "fd00::1"]}, {"site": "b", "addresses": []}]});
        assert_eq!(presences(&serde_json::from_value(expose).unwrap()), "a=10.0.0.1+fd00::1,b=?");
        assert!(text.ends_with("  ! web: Policy2 does not exist (PolicyMissing)\n"), "{text}");
        assert_eq!(render(json!({})), "no sites\n\nno gateways\n\nno exposures\n");
    }
}
