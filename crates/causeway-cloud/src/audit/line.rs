//! What a line of the journal says, and how it is told.
//!
//! The fields told are those of `causeway audit --json`, all of them in every line, in this order. What else a journal keeps
//! (queue, number, when it was received) is for us.

use std::time::SystemTime;

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Line {
    pub time: String,
    pub gateway: String,
    pub site: String,
    /// Where the client is: at the gateway of the service another site than `site`.
    pub client_site: Option<String>,
    pub subject: Option<String>,
    pub client: Option<String>,
    pub service: Option<String>,
    pub protocol: Option<String>,
    pub decision: Option<String>,
    pub rule: Option<String>,
    pub reason: Option<String>,
    pub method: Option<String>,
    pub path: Option<String>,
    pub status: Option<u16>,
    pub client_id: Option<String>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    pub duration_ms: u64,
    pub end: Option<String>,

    #[serde(skip_serializing)]
    pub queue: Option<String>,
    #[serde(skip_serializing)]
    pub seq: Option<u64>,
    /// When the cloud had it.
    #[serde(skip_serializing)]
    pub received: Option<String>,
    /// No record: something happened to records.
    #[serde(skip_serializing)]
    pub event: Option<String>,
    #[serde(skip_serializing)]
    pub lost: u64,
}

impl Line {
    pub fn parse(text: &[u8]) -> Option<Line> {
        serde_json::from_slice(text).ok()
    }

    /// When it began.
    pub fn moment(&self) -> Option<SystemTime> {
        moment(&self.time)
    }

    /// How long after its end the cloud had it, in milliseconds.
    pub fn lag_ms(&self) -> Option<u64> {
        let received = moment(self.received.as_deref()?)?;
        let ended = self.moment()? + std::time::Duration::from_millis(self.duration_ms);
        // Clocks differ: what arrived before it ended arrived at once.
        let lag = received.duration_since(ended).unwrap_or_default();
        Some(u64::try_from(lag.as_millis()).unwrap_or(u64::MAX))
    }

    /// As it is told, with its end of line.
    pub fn told(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).expect("strings and numbers are always JSON");
        text.push(b'\n');
        text
    }
}

fn moment(text: &str) -> Option<SystemTime> {
    text.parse::<jiff::Timestamp>().ok().map(SystemTime::from)
}
