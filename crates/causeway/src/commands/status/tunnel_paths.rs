//! The layer 3 paths of the fleet, for `causeway status`: asks the cloud for them and makes rows.

use causeway_api::management::{GatewayPath, PathList, UnansweredGateway, paths};

use crate::client::ApiClient;
use crate::output::{self, TextTable};

/// Asks for the paths. A cloud from before there was such a call tells none: the reason is a note on standard error.
pub async fn ask(api: &ApiClient) -> Vec<GatewayPath> {
    let answer = api.get(paths::PATHS).await.map_err(|error| error.to_string());
    let list = answer
        .and_then(|answer| serde_json::from_value::<PathList>(answer).map_err(|error| error.to_string()));
    match list {
        Ok(list) => {
            notes(&list).iter().for_each(|note| output::note(note));
            list.paths
        }
        Err(why) => {
            output::note(&format!("the paths of packets are not shown: {}", output::plain(&why)));
            Vec::new()
        }
    }
}

/// The gateways and paths that have no row, as sentences.
fn notes(list: &PathList) -> Vec<String> {
    let line = |one: &UnansweredGateway| {
        format!(
            "gateway {} did not tell its paths: {}",
            output::plain(&one.gateway),
            output::plain(&one.reason)
        )
    };
    let mut notes: Vec<String> = list.unanswered.iter().map(line).collect();
    if list.not_asked > 0 {
        notes.push(format!("{} more gateways were not asked for their paths", list.not_asked));
    }
    if list.not_shown > 0 {
        notes.push(format!("{} more paths are not shown", list.not_shown));
    }
    notes
}

/// The rows as a table.
pub fn table(rows: &[GatewayPath]) -> TextTable {
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
    fn paths_are_rows_and_what_is_missing_is_told() {
        let list: PathList = serde_json::from_value(json!({
            "paths": [
                {"gateway": "oslo-1", "peer": "bern-1", "path": "direct", "endpoint": "192.0.2.1:7446", "rttUs": 900, "mtu": 1400, "lossPercent": 6},
                {"gateway": "oslo-1", "peer": "paris-1", "path": "relayed", "relay": "cloud", "rttUs": 2000, "mtu": 1376, "lossPercent": 0},
                {"gateway": "oslo-1", "peer": "rome-1", "path": "channel", "rttUs": 12_340, "mtu": 1420, "notDirect": "none of 3 addresses answers"},
            ],
            "unanswered": [{"gateway": "bonn-1", "reason": "no answer yet"}], "notAsked": 3,
        }))
        .unwrap();
        let text = table(&list.paths).render(false);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1], ["oslo-1", "bern-1", "direct", "192.0.2.1:7446", "0.9ms", "6%", "1400", "-"]);
        assert_eq!(lines[2][..8], ["oslo-1", "paris-1", "relayed", "by", "cloud", "2.0ms", "0%", "1376"]);
        assert_eq!(lines[3][..7], ["oslo-1", "rome-1", "channel", "12.3ms", "-", "1420", "none"]);
        assert_eq!(lines.len(), 4);
        assert_eq!(
            notes(&list),
            [
                "gateway bonn-1 did not tell its paths: no answer yet",
                "3 more gateways were not asked for their paths"
            ]
        );
    }
}
