//! The live table of requests: client, service, outcome and the policy that decided.
//!
//! Outcomes come from the clients, permissions from the audit records that the gateways have delivered. Values only; `demo`
//! prints what is rendered here.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;

use super::plan::{DemoCrossing, DemoNetwork, DemoOutcome, ExpectedOutcome};
use crate::output::TextTable;

pub struct DemoTable {
    stage: DemoNetwork,
    rows: Vec<Row>,
    /// Everything was as promised once. A row that differs afterwards was changed from outside, as the hints suggest.
    has_settled: bool,
}

struct Row {
    crossing: DemoCrossing,
    address: Option<IpAddr>,
    outcome: Option<DemoOutcome>,
    took: Duration,
    tries: u64,
    kept: u64,
    /// The newest audit record: the policy that allowed it, or why it was refused.
    permission: Option<Permission>,
}

struct Permission {
    is_allowed: bool,
    text: String,
}

impl DemoTable {
    pub fn new(stage: DemoNetwork, crossings: &[DemoCrossing]) -> DemoTable {
        let row = |crossing: &DemoCrossing| Row {
            crossing: *crossing,
            address: None,
            outcome: None,
            took: Duration::ZERO,
            tries: 0,
            kept: 0,
            permission: None,
        };
        DemoTable { stage, rows: crossings.iter().map(row).collect(), has_settled: false }
    }

    pub fn note(&mut self, index: usize, outcome: DemoOutcome, address: Option<IpAddr>, took: Duration) {
        let row = &mut self.rows[index];
        row.tries += 1;
        row.kept += u64::from(row.crossing.holds(&outcome));
        (row.outcome, row.took) = (Some(outcome), took);
        row.address = address.or(row.address);
    }

    /// Takes a record of the audit, if it is about one of the rows: made by the gateway of the client.
    pub fn take(&mut self, record: &Value) {
        let text = |field: &str| record[field].as_str().unwrap_or_default();
        let client = text("client").rsplit_once(':').map_or("", |(ip, _)| ip);
        let stage = self.stage;
        let about = |row: &&mut Row| {
            let crossing = &row.crossing;
            let request = match record["method"].as_str() {
                Some(method) => method == crossing.protocol() && path(crossing) == record["path"].as_str(),
                None => path(crossing).is_none(),
            };
            text("gateway") == crossing.site.gateway()
                && text("service") == crossing.service
                && crossing.source(stage).to_string() == client
                && request
        };
        if let Some(row) = self.rows.iter_mut().find(about) {
            let is_allowed = text("decision") == "allow";
            let said = if is_allowed { text("rule") } else { text("reason") };
            row.permission = Some(Permission { is_allowed, text: said.to_owned() });
        }
    }

    /// Returns true if the last try of every row had the expected result.
    pub fn holds(&self) -> bool {
        self.rows.iter().all(Row::holds)
    }

    /// Returns true if every row has its audit record, with the policy or the refusal. Names that do not exist leave no record.
    pub fn is_audited(&self) -> bool {
        self.rows.iter().all(|row| match (row.crossing.expected, row.permission()) {
            (ExpectedOutcome::Passes(policy), permission) => permission == Some(policy),
            (ExpectedOutcome::Refused, permission) => {
                permission.is_some() || row.crossing.protocol() == "DNS"
            }
        })
    }

    /// From now on a row that differs is shown as changed, not as a broken promise.
    pub fn mark_settled(&mut self) {
        self.has_settled = true;
    }

    /// `width`: of the terminal, if it is one; a line that is longer would not be drawn over. A narrow terminal gets fewer columns.
    pub fn render(&self, colours: bool, width: Option<usize>) -> String {
        let is_narrow = width.is_some_and(|width| width < WIDE_COLUMNS);
        let mut table = match is_narrow {
            true => TextTable::new(&["CLIENT", "ASKS", "RESULT", "BY", ""]),
            false => TextTable::new(&["FROM", "CLIENT", "ASKS", "AT", "RESULT", "BY", "TRIES", "MS", ""]),
        };
        for row in &self.rows {
            table.row(if is_narrow { self.narrow(row) } else { self.wide(row) });
        }
        if let Some(width) = width {
            table.fit(width);
        }
        table.render(colours)
    }

    fn narrow(&self, row: &Row) -> Vec<String> {
        // The names of the demo's services are distinguished by their first label.
        let crossing = &row.crossing;
        let service = crossing.name.split('.').next().unwrap_or(crossing.name);
        let asks = format!("{} {service}{}", crossing.protocol(), path(crossing).unwrap_or_default());
        let verdict = if row.holds() { "ok" } else { self.verdict(row) };
        vec![crossing.client.to_owned(), asks, row.result(), row.by(), verdict.to_owned()]
    }

    fn wide(&self, row: &Row) -> Vec<String> {
        let crossing = &row.crossing;
        let asks = format!("{} {}{}", crossing.protocol(), crossing.name, path(crossing).unwrap_or_default());
        let address = row.address.map(|address| format!("{address}:{}", self.stage.port(crossing.port)));
        vec![
            crossing.site.name().to_owned(),
            crossing.client.to_owned(),
            asks,
            address.unwrap_or_else(|| "-".to_owned()),
            row.result(),
            row.by(),
            row.tries.to_string(),
            format!("{:.1}", row.took.as_secs_f64() * 1000.0),
            self.verdict(row).to_owned(),
        ]
    }

    fn verdict(&self, row: &Row) -> &'static str {
        match (row.holds(), self.has_settled) {
            (true, _) => "as promised",
            (false, true) => "changed",
            (false, false) => "NOT AS PROMISED",
        }
    }
}

/// The columns that the wide table needs for the objects of `examples/`.
const WIDE_COLUMNS: usize = 130;

impl Row {
    fn holds(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| self.crossing.holds(outcome))
    }

    /// The permission, if it belongs to the last outcome: the record of a request that was just refused is still on its way.
    fn permission(&self) -> Option<&str> {
        let has_passed = self.outcome.as_ref().is_some_and(DemoOutcome::has_passed);
        self.permission
            .as_ref()
            .filter(|found| found.is_allowed == has_passed)
            .map(|found| found.text.as_str())
    }

    fn result(&self) -> String {
        self.outcome.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)
    }

    fn by(&self) -> String {
        self.permission().unwrap_or("-").to_owned()
    }
}

fn path(crossing: &DemoCrossing) -> Option<&'static str> {
    match crossing.deed {
        super::plan::DemoRequest::Get(path) | super::plan::DemoRequest::Post(path) => Some(path),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::commands::demo::plan::crossings;

    /// A table in which every row is as promised and audited.
    fn settled() -> DemoTable {
        let crossings = crossings();
        let mut table = DemoTable::new(DemoNetwork::Networks, &crossings);
        for (index, crossing) in crossings.iter().enumerate() {
            let outcome = [
                DemoOutcome::Answered,
                DemoOutcome::Status(200),
                DemoOutcome::Status(403),
                DemoOutcome::Reset,
                DemoOutcome::Silence,
                DemoOutcome::NoSuchName,
            ]
            .into_iter()
            .find(|outcome| crossing.holds(outcome))
            .expect("each promise has an outcome");
            table.note(index, outcome, Some("198.18.0.1".parse().unwrap()), Duration::from_millis(3));
            table.take(&record(crossing, matches!(crossing.expected, ExpectedOutcome::Passes(_))));
        }
        table
    }

    fn record(crossing: &DemoCrossing, is_allowed: bool) -> Value {
        let rule = match crossing.expected {
            ExpectedOutcome::Passes(policy) => policy,
            ExpectedOutcome::Refused => "",
        };
        let mut record = json!({
            "gateway": crossing.site.gateway(), "service": crossing.service, "rule": rule, "reason": "no policy allows it",
            "client": format!("{}:4711", crossing.source(DemoNetwork::Networks)),
            "decision": if is_allowed { "allow" } else { "deny" },
        });
        if let Some(path) = path(crossing) {
            record["method"] = json!(crossing.protocol());
            record["path"] = json!(path);
        }
        record
    }

    #[test]
    fn the_table_fits_a_terminal_and_stays_readable() {
        let table = settled();
        assert!(table.holds() && table.is_audited());
        for width in [80, 100, 140] {
            let text = table.render(false, Some(width));
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}:\n{text}");
            for row in &table.rows {
                assert!(
                    text.contains(row.crossing.client),
                    "{width}: {} is cut:\n{text}",
                    row.crossing.client
                );
            }
        }
    }

    #[test]
    fn a_row_that_the_user_changed_is_called_so_and_shows_no_old_policy() {
        let mut table = settled();
        table.mark_settled();
        let passes = |row: &Row| {
            matches!(row.crossing.expected, ExpectedOutcome::Passes(_)) && path(&row.crossing).is_some()
        };
        let index = table.rows.iter().position(passes).expect("the demo has a request that passes");
        table.note(index, DemoOutcome::Status(403), None, Duration::from_millis(1));
        assert_eq!(table.verdict(&table.rows[index]), "changed");
        assert_eq!(table.rows[index].by(), "-", "the record of the refusal has not come yet");
        let crossing = table.rows[index].crossing;
        table.take(&record(&crossing, false));
        assert_eq!(table.rows[index].by(), "no policy allows it");
        assert!(!table.render(false, Some(80)).contains("NOT AS PROMISED"));
    }
}
