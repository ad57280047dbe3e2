//! The layer 3 paths of the fleet, for `causeway status`: asks the gateways of communities, and makes rows of their answers.

use std::collections::BTreeSet;

use causeway_api::management::{DiagnoseRequest, FleetStatus, GatewayFacts, TunnelFacts, paths};
use futures_util::{StreamExt, stream};
use serde::Serialize;

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
    /// `direct`, `relayed`, `channel`, or `none` while no packet was sent.
    pub path: String,
    pub endpoint: Option<String>,
    /// The gateway that forwards packets of a path that is `relayed`.
    pub relay: Option<String>,
    pub rtt_us: Option<u64>,
    pub loss_percent: Option<u64>,
    pub mtu: Option<u64>,
    pub not_direct: Option<String>,
}

/// Asks the connected gateways of communities. One that does not answer has no rows: the table of gateways has it.
pub async fn ask(api: &ApiClient, status: &FleetStatus) -> Vec<TunnelPathRow> {
    let answers = stream::iter(to_ask(status)).map(|gateway| async move {
        let request = DiagnoseRequest { gateway: gateway.clone(), service: None };
        let answer = api.post(paths::DIAGNOSE, &request).await.ok();
        let facts = answer.and_then(|answer| serde_json::from_value::<GatewayFacts>(answer).ok());
        facts.and_then(|facts| facts.tunnel).map(|tunnel| rows(&gateway, tunnel)).unwrap_or_default()
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
fn rows(gateway: &str, tunnel: TunnelFacts) -> Vec<TunnelPathRow> {
    let peers = tunnel.peers.into_iter().filter(|(_, peer)| peer.carries_networks);
    peers
        .map(|(name, peer)| TunnelPathRow {
            gateway: gateway.to_owned(),
            peer: name,
            path: peer.path,
            endpoint: peer.endpoint,
            relay: peer.relay,
            rtt_us: peer.rtt_us,
            loss_percent: peer.loss_percent,
            mtu: peer.mtu,
            not_direct: peer.not_direct,
        })
        .collect()
}

/// The rows as a table.
pub fn table(rows: &[TunnelPathRow]) -> TextTable {
    let mut table = TextTable::new(&["FROM", "TO", "PATH", "RTT", "LOSS", "MTU", "WHY NOT DIRECT"]);
    for row in rows {
        let path = match (row.path.as_str(), &row.endpoint, &row.relay) {
            ("direct", Some(endpoint), _) => format!("direct {endpoint}"),
            ("relayed", _, Some(relay)) => format!("relayed by {relay}"),
            (path, ..) => path.to_owned(),
        };
        table.row([
            row.gateway.clone(),
            row.peer.clone(),
            path,
            row.rtt_us.map_or_else(|| "-".to_owned(), |rtt| format!("{:.1}ms", rtt as f64 / 1e3)),
            row.loss_percent.map_or_else(|| "-".to_owned(), |loss| format!("{loss}%")),
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
            "bern-1": {"path": "direct", "endpoint": "192.0.2.1:7446", "rttUs": 900, "mtu": 1400, "lossPercent": 6},
            "paris-1": {"path": "relayed", "relay": "cloud", "rttUs": 2000, "mtu": 1376, "lossPercent": 0},
        }});
        let text = table(&rows("oslo-1", serde_json::from_value(tunnel).unwrap())).render(false);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["oslo-1", "bern-1", "direct", "192.0.2.1:7446", "0.9ms", "6%", "1400", "-"]);
        assert_eq!(lines[2][..8], ["oslo-1", "paris-1", "relayed", "by", "cloud", "2.0ms", "0%", "1376"]);
        assert_eq!(lines[3][..7], ["oslo-1", "rome-1", "channel", "12.3ms", "-", "1420", "none"]);
        assert_eq!(lines.len(), 4);
        assert_eq!(rows("oslo-1", TunnelFacts::default()), []);
    }
}
