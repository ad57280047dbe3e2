//! A line of the journal, and the form in which it is shown.
//!
//! The fields told are those of `causeway audit --json`, in this order; those that stand for several records only where there
//! are several. The other fields of a journal (queue, number) are internal. Order and `since` follow the time of receipt, which is
//! the cloud's own: an edge's clock may be wrong, or lie.

use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

/// Clocks that are kept by NTP differ by less.
const CLOCK_TOLERANCE: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuditJournalLine {
    /// By the clock of the gateway.
    pub time: String,
    /// By the clock of the cloud, when it had the record. Journals from before hold it, too.
    #[serde(rename(deserialize = "received", serialize = "receivedTime"))]
    pub received: Option<String>,
    pub gateway: String,
    pub site: String,
    /// The site of the client: in records of the service's gateway another site than `site`.
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
    /// The host that the other gateway named, where the netmap of this one does not know it: a claim, not a fact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_subject: Option<String>,
    /// Packets in both directions, of a flow at layer 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    /// The number of equal records that this record stands for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_time: Option<String>,
    /// Those were of several clients or services.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,

    #[serde(skip_serializing)]
    pub queue: Option<String>,
    #[serde(skip_serializing)]
    pub seq: Option<u64>,
    /// No record: something happened to records.
    #[serde(skip_serializing)]
    pub event: Option<String>,
    #[serde(skip_serializing)]
    pub lost: u64,
}

impl AuditJournalLine {
    pub fn parse(text: &[u8]) -> Option<AuditJournalLine> {
        serde_json::from_slice(text).ok()
    }

    /// Lines are in the order of this: when the cloud had it, or, for lines of its own, when it wrote them.
    pub fn order(&self) -> &str {
        self.received.as_deref().unwrap_or(&self.time)
    }

    /// As `order`, as a moment.
    pub fn known_since(&self) -> Option<SystemTime> {
        moment(self.order())
    }

    /// Returns true if the record ends after it was received: the clock of its gateway is ahead of the cloud's.
    pub fn is_from_the_future(&self) -> bool {
        let Some(received) = self.received.as_deref().and_then(moment) else { return false };
        self.ended().is_some_and(|ended| ended > received + CLOCK_TOLERANCE)
    }

    fn ended(&self) -> Option<SystemTime> {
        self.moment()?.checked_add(Duration::from_millis(self.duration_ms))
    }

    /// When it began.
    pub fn moment(&self) -> Option<SystemTime> {
        moment(&self.time)
    }

    /// Returns the time from the end of the connection until the cloud received the record, in milliseconds.
    pub fn lag_ms(&self) -> Option<u64> {
        let received = moment(self.received.as_deref()?)?;
        let ended = self.ended()?;
        // Clocks differ: a record that arrived before it ended counts as arrived at once.
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
