//! `causeway status`: sites, gateways and exposures at a glance.

use std::process::ExitCode;

use causeway_api::management::paths;
use serde_json::Value;

use crate::client::ApiConnectionArgs;
use crate::output::{self, TextTable, cell};

const EXAMPLES: &str = "\
Examples:
  causeway status
  causeway status --json | jq '.gateways[] | select(.connected | not) | .name'";

/// Show sites, gateways with their channels, and exposures
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
    let status = api.get(paths::STATUS).await?;
    if arguments.json {
        output::print(&output::json(&status))?;
    } else {
        output::print(&render(&status, output::colours()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The status as text: a table each, and under it what is wrong.
pub fn render(status: &Value, colours: bool) -> String {
    let mut text = String::new();
    let empty = Vec::new();
    let list = |key: &str| status[key].as_array().unwrap_or(&empty);

    let mut sites = TextTable::new(&["SITE", "SUBNETS", "GATEWAYS", "READY"]);
    for site in list("sites") {
        let subnets: Vec<String> = site["subnets"].as_array().unwrap_or(&empty).iter().map(cell).collect();
        sites.row([cell(&site["name"]), or_none(subnets.join(",")), cell(&site["gateways"]), ready(site)]);
    }
    let head =
        ["GATEWAY", "SITE", "CONNECTED", "SINCE/LAST SEEN", "TRANSPORT", "RTT", "SENT", "RECEIVED", "READY"];
    let mut gateways = TextTable::new(&head);
    for gateway in list("gateways") {
        let connected = if gateway["connected"] == true { "yes" } else { "no" };
        let rtt = gateway["rttMs"].as_f64().map_or_else(|| "-".to_owned(), |rtt| format!("{rtt:.1}ms"));
        gateways.row([
            cell(&gateway["name"]),
            cell(&gateway["site"]),
            connected.to_owned(),
            since(gateway),
            transports(gateway),
            rtt,
            size(&gateway["sentBytes"]),
            size(&gateway["receivedBytes"]),
            ready_gateway(gateway),
        ]);
    }
    let mut exposures = TextTable::new(&["EXPOSURE", "SERVICE", "DNS NAME", "SITES", "READY"]);
    for expose in list("exposures") {
        let sites = presences(expose);
        exposures.row([
            cell(&expose["name"]),
            cell(&expose["service"]),
            cell(&expose["dnsName"]),
            or_none(sites),
            ready(expose),
        ]);
    }
    for (title, table) in [("sites", sites), ("gateways", gateways), ("exposures", exposures)] {
        if !text.is_empty() {
            text.push('\n');
        }
        match table.rows.is_empty() {
            true => text.push_str(&format!("no {title}\n")),
            false => text.push_str(&table.render(colours)),
        }
        for object in list(title) {
            text.push_str(&complaints(object));
        }
    }
    text
}

/// The sites of an exposure, each with its addresses there.
fn presences(expose: &Value) -> String {
    let at = |place: &Value| {
        let addresses: Vec<String> = place["addresses"].as_array().into_iter().flatten().map(cell).collect();
        match addresses.is_empty() {
            true => format!("{}=?", cell(&place["site"])),
            false => format!("{}={}", cell(&place["site"]), addresses.join("+")),
        }
    };
    // A cloud from before there were addresses names the sites only.
    let sites = expose["presences"].as_array().map(|places| places.iter().map(at).collect::<Vec<_>>());
    let named = || expose["sites"].as_array().into_iter().flatten().map(cell).collect();
    sites.unwrap_or_else(named).join(",")
}

/// The transport of the control link, and the one beside it while it carries streams: `quic+tcp`.
fn transports(gateway: &Value) -> String {
    let control = gateway["transport"].as_str().unwrap_or("-");
    let carries = gateway["carries"].as_array().into_iter().flatten();
    let beside = carries.filter(|row| row["transport"] != control && row["streams"].as_u64() > Some(0));
    let names: Vec<String> =
        std::iter::once(control.to_owned()).chain(beside.map(|row| cell(&row["transport"]))).collect();
    names.join("+")
}

fn ready(object: &Value) -> String {
    let conditions = object["conditions"].as_array();
    let ready = conditions.and_then(|all| all.iter().find(|condition| condition["type"] == "Ready"));
    ready.and_then(|condition| condition["status"].as_str()).unwrap_or("Unknown").to_owned()
}

/// When a session began, or the last one ended. The live figures know nothing of what was before the cloud's start.
fn since(gateway: &Value) -> String {
    let known = gateway["since"].as_str().or_else(|| gateway["lastSeen"].as_str());
    known.unwrap_or("-").to_owned()
}

/// A gateway without a session is not ready, whatever was written before it went.
fn ready_gateway(gateway: &Value) -> String {
    match gateway["connected"] == true {
        true => ready(gateway),
        false => "False".to_owned(),
    }
}

/// Conditions that are false, one line each. Ready is left out if another one is false, because it only
/// summarises them.
fn complaints(object: &Value) -> String {
    let conditions = object["conditions"].as_array().into_iter().flatten();
    let bad: Vec<&Value> = conditions.filter(|condition| condition["status"] == "False").collect();
    let summed_up = bad.len() > 1;
    let told = bad.into_iter().filter(|condition| !summed_up || condition["type"] != "Ready");
    told.map(|condition| {
        let line = format!(
            "{}: {} ({})",
            cell(&object["name"]),
            cell(&condition["message"]),
            cell(&condition["reason"])
        );
        format!("  ! {}\n", output::plain(&line))
    })
    .collect()
}

fn or_none(text: String) -> String {
    if text.is_empty() { "<none>".to_owned() } else { text }
}

pub fn size(bytes: &Value) -> String {
    let Some(bytes) = bytes.as_f64() else { return "-".to_owned() };
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let (mut value, mut unit) = (bytes, 0);
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{value:.0}{}", units[0]) } else { format!("{value:.1}{}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_wrong_is_said_under_its_table() {
        let status = json!({
            "sites": [{"name": "Tokyo", "subnets": ["10.0.0.0/8"], "gateways": 1, "conditions": [{"type": "Ready", "status": "True"}]}],
            "gateways": [{"name": "tokyo", "site": "Tokyo", "connected": false, "since": "2026-11-16T04:16:46Z", "transport": null, "rttMs": null, "sentBytes": 0, "receivedBytes": 5000}],
            "exposures": [{"name": "web", "service": "web", "dnsName": "web.test", "sites": ["Tokyo"],
                "conditions": [{"type": "Ready", "status": "False", "reason": "PolicyMissing", "message": "Policy2 does not exist"}]}],
        });
        let text = render(&status, false);
        assert!(text.contains("Tokyo   10.0.0.0/8   1          True\n"), "{text}");
        assert!(
            text.contains("tokyo     Tokyo   no          2026-11-16T04:16:46Z   -           -     0B     4.9KiB     False\n"),
            "{text}"
        );
        // Away since before the cloud was restarted: what was stored counts.
        let stored = json!({"gateways": [{"name": "oslo", "site": "Oslo", "connected": false, "lastSeen": "2026-11-15T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}]}]});
        let shown = render(&stored, false);
        assert!(
            shown.lines().any(|row| row.contains("2026-11-15T00:00:00Z") && row.ends_with("False")),
            "{shown}"
        );
        let expose = json!({"presences": [{"site": "a", "addresses": ["10.0.0.1", "fd00::1"]}, {"site": "b", "addresses": []}]});
        assert_eq!(presences(&expose), "a=10.0.0.1+fd00::1,b=?");
        assert!(text.ends_with("  ! web: Policy2 does not exist (PolicyMissing)\n"), "{text}");
        assert_eq!(render(&json!({}), false), "no sites\n\nno gateways\n\nno exposures\n");
    }
}
