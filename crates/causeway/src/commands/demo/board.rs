//! The live table: who asks for what, what comes of it, and by whose permission.
//!
//! Outcomes come from the clients, permissions from the audit records that the gateways have delivered. Values only; `demo`
//! prints what is rendered here.

use std::net::IpAddr;
use std::time::Duration;

use serde_json::Value;

use super::plan::{Crossing, Expected, Outcome, Stage};
use crate::output::Table;

pub struct Board {
    stage: Stage,
    rows: Vec<Row>,
}

struct Row {
    crossing: Crossing,
    address: Option<IpAddr>,
    outcome: Option<Outcome>,
    took: Duration,
    tries: u64,
    kept: u64,
    /// What the audit says: the policy that allowed it, or why it was refused.
    permission: Option<String>,
}

impl Board {
    pub fn new(stage: Stage, crossings: &[Crossing]) -> Board {
        let row = |crossing: &Crossing| Row {
            crossing: *crossing,
            address: None,
            outcome: None,
            took: Duration::ZERO,
            tries: 0,
            kept: 0,
            permission: None,
        };
        Board { stage, rows: crossings.iter().map(row).collect() }
    }

    pub fn note(&mut self, index: usize, outcome: Outcome, address: Option<IpAddr>, took: Duration) {
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
            let said = if text("decision") == "allow" { text("rule") } else { text("reason") };
            row.permission = Some(said.to_owned());
        }
    }

    /// Is everything as promised, at the last try?
    pub fn holds(&self) -> bool {
        self.rows.iter().all(Row::holds)
    }

    /// Has the audit said of every row by which policy it passed, or why not? Names that do not exist leave no record.
    pub fn is_audited(&self) -> bool {
        self.rows.iter().all(|row| match (row.crossing.expected, &row.permission) {
            (Expected::Passes(policy), permission) => permission.as_deref() == Some(policy),
            (Expected::Refused, permission) => permission.is_some() || row.crossing.protocol() == "DNS",
        })
    }

    /// `width`: of the terminal, if it is one; a line that is longer would not be drawn over.
    pub fn render(&self, colours: bool, width: Option<usize>) -> String {
        let mut table = Table::new(&["FROM", "CLIENT", "ASKS", "AT", "RESULT", "BY", "TRIES", "MS", ""]);
        for row in &self.rows {
            let crossing = &row.crossing;
            let asks =
                format!("{} {}{}", crossing.protocol(), crossing.name, path(crossing).unwrap_or_default());
            let address = row.address.map(|address| format!("{address}:{}", self.stage.port(crossing.port)));
            table.row([
                crossing.site.name().to_owned(),
                crossing.client.to_owned(),
                asks,
                address.unwrap_or_else(|| "-".to_owned()),
                row.outcome.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
                row.permission.clone().unwrap_or_else(|| "-".to_owned()),
                row.tries.to_string(),
                format!("{:.1}", row.took.as_secs_f64() * 1000.0),
                if row.holds() { "as promised".to_owned() } else { "NOT AS PROMISED".to_owned() },
            ]);
        }
        if let Some(width) = width {
            table.fit(width);
        }
        table.render(colours)
    }
}

impl Row {
    fn holds(&self) -> bool {
        self.outcome.as_ref().is_some_and(|outcome| self.crossing.holds(outcome))
    }
}

fn path(crossing: &Crossing) -> Option<&'static str> {
    match crossing.deed {
        super::plan::Deed::Get(path) | super::plan::Deed::Post(path) => Some(path),
        _ => None,
    }
}
