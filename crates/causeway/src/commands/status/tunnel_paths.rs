//! The layer 3 paths of the fleet, for `causeway status`: asks the gateways of communities, and makes rows of their answers.

use std::collections::BTreeSet;

use causeway_api::management::{DiagnoseRequest, FleetStatus, paths};
use futures_util::{StreamExt, stream};
use serde::Serialize;
use serde_json::Value;

use crate::client::ApiClient;
use crate::output::TextTable;

/// Gateways that are asked; `causeway doctor SITE SITE` asks those of two sites, however many there are.
const GATEWAYS_MAX: usize = 64;
const AT_ONCE: usize = 16;

/// The path that packets take from one gateway to another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct TunnelPathRow {
    pub gateway: String,
    pub peer: String,
    /// `direct`, `channel`, or `none` while no packet was sent.
    pub path: String,
    pub endpoint: Option<String>,
    pub rtt_us: Option<u64>,
    pub mtu: Option<u64>,
    pub not_direct: Option<String>,
}

/// Asks the connected gateways of communities. One that does not answer has no rows: the table of gateways has it.
pub async fn ask(api: &ApiClient, status: &FleetStatus) -> Vec<TunnelPathRow> {
    let answers = stream::iter(to_ask(status)).map(|gateway| async move {
        let request = DiagnoseRequest { gateway: gateway.clone(), service: None };
        let answer = api.post(paths::DIAGNOSE, &request).await;
        answer.map(|facts: Value| rows(&gateway, &facts["tunnel"])).unwrap_or_default()
    });
    answers.buffered(AT_ONCE).concat().await
}

/// Returns the gateways whose site is a member of a community.
fn to_ask(status: &FleetStatus) -> Vec<String> {
    let members: BTreeSet<&String> = status.communities.iter().flat_map(|found| &found.members).collect();
    let connected = status.gateways.iter().filter(|gateway| {
        members.contains(&gateway.site) && (gateway.stats.connected || gateway.site == "cloud")
    });
    connected.map(|gateway| gateway.name.clone()).take(GATEWAYS_MAX).collect()
}

/// Makes rows of the tunnel's state as a gateway describes it. A peer without networks and traffic, as the cloud is for
/// gateways that only ask it for their address, has none.
fn rows(gateway: &str, tunnel: &Value) -> Vec<TunnelPathRow> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let peers = tunnel["peers"].as_object().into_iter().flatten();
    let peers = peers.filter(|(_, peer)| peer["carriesNetworks"] != false);
    peers
        .map(|(name, peer)| TunnelPathRow {
            gateway: gateway.to_owned(),
            peer: name.clone(),
            path: text(&peer["path"]).unwrap_or_else(|| "none".to_owned()),
            endpoint: text(&peer["endpoint"]),
            rtt_us: peer["rttUs"].as_u64(),
            mtu: peer["mtu"].as_u64(),
            not_direct: text(&peer["notDirect"]),
        })
        .collect()
}

/// The rows as a table.
pub fn table(rows: &[TunnelPathRow]) -> TextTable {
    let mut table = TextTable::new(&["FROM", "TO", "PATH", "RTT", "MTU", "WHY NOT DIRECT"]);
    for row in rows {
        let path = match &row.endpoint {
            Some(endpoint) if row.path == "direct" => format!("direct {endpoint}"),
            _ => row.path.clone(),
        };
        table.row([
            row.gateway.clone(),
            row.peer.clone(),
            path,
            row.rtt_us.map_or_else(|| "-".to_owned(), |rtt| format!("{:.1}ms", rtt as f64 / 1e3)),
            row.mtu.map_or_else(|| "-".to_owned(), |mtu| mtu.to_string()),
            row.not_direct.clone().unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn members_are_asked_and_their_paths_are_rows() {
        let status = json!({
            "gateways": [
                {"name": "oslo-1", "site": "oslo", "connected": true},
                {"name": "rome-1", "site": "rome", "connected": false},
                {"name": "bonn-1", "site": "bonn", "connected": true},
                {"name": "cloud", "site": "cloud", "connected": false},
            ],
            "communities": [{"name": "all", "members": ["oslo", "rome", "cloud"]}],
        });
        assert_eq!(to_ask(&serde_json::from_value(status).unwrap()), ["oslo-1", "cloud"]);
        let tunnel = json!({"peers": {
            "cloud": {"path": "direct", "carriesNetworks": false},
            "rome-1": {"path": "channel", "rttUs": 12_340, "mtu": 1420, "notDirect": "none of 3 addresses answers"},
            "bern-1": {"path": "direct", "endpoint": "192.0.2.1:7446", "rttUs": 900, "mtu": 1400},
        }});
        let text = table(&rows("oslo-1", &tunnel)).render(false);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["oslo-1", "bern-1", "direct", "192.0.2.1:7446", "0.9ms", "1400", "-"]);
        assert_eq!(lines[2][..6], ["oslo-1", "rome-1", "channel", "12.3ms", "1420", "none"]);
        assert_eq!(lines.len(), 3);
        assert_eq!(rows("oslo-1", &Value::Null), []);
    }
}
