//! One record per connection or request, made at each end of a crossing.
//!
//! The words are those of `causeway audit --json`. Records go to the sink that the role gives; it never waits and never
//! fails: what it cannot keep it counts. `coalescing` stands before the sink.

mod coalescing;

pub use coalescing::Coalescing;

use std::time::{Duration, SystemTime};

use serde::Serialize;

/// What crossed, or was refused.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditRecord {
    /// When it began, as RFC 3339 in UTC with milliseconds.
    pub time: String,
    pub gateway: String,
    /// Where the client is. In the cloud's journal `site` is that of the gateway that made the record.
    #[serde(rename = "clientSite")]
    pub site: String,
    /// The EServer on whose behalf. None: an address that no EServer has.
    pub subject: Option<String>,
    /// The host that the other gateway names and this one's netmap does not know: a claim, not a fact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_subject: Option<String>,
    pub client: Option<String>,
    /// A service, or `node/NAME:PORT`.
    pub service: String,
    pub protocol: &'static str,
    pub decision: AuditDecision,
    /// The policy that allowed it.
    pub rule: Option<String>,
    /// Why it was refused.
    pub reason: Option<String>,
    /// The same in one word that the client does not choose; says which refusals are alike.
    #[serde(skip)]
    pub cause: &'static str,
    pub method: Option<String>,
    pub path: Option<String>,
    /// Of a response over HTTP.
    pub status: Option<u16>,
    /// What a client of Kafka calls itself; known where its requests are read, at the gateway of the brokers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// From the client to the backend.
    pub sent_bytes: u64,
    /// From the backend to the client.
    pub received_bytes: u64,
    pub duration_ms: u64,
    pub end: ConnectionEnd,
    /// It stands for so many that were alike; the other fields are those of the last one, the bytes those of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// When the first and the last of them ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_time: Option<String>,
    /// They were of several clients or services: there was no room to count them apart.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditDecision {
    Allow,
    Deny,
}

/// How it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionEnd {
    /// Both directions came to their end.
    Done,
    /// It never began.
    Refused,
    ClientReset,
    BackendReset,
    /// Nothing moved for too long.
    Idle,
    /// No policy allows it any more.
    Revoked,
    LinkLost,
    BackendDown,
    Timeout,
    Limit,
    /// This gateway stops.
    Stopped,
}

/// Keeps records. Given by the role.
pub trait AuditSink: Send + Sync + 'static {
    fn record(&self, record: AuditRecord);

    /// Has it so little room that clients must share what is left?
    fn is_pressed(&self) -> bool {
        false
    }
}

/// For tests, and for roles that keep none.
pub struct NullAuditSink;

impl AuditSink for NullAuditSink {
    fn record(&self, _: AuditRecord) {}
}

/// A moment as records write it.
pub fn timestamp(moment: SystemTime) -> String {
    let since_1970 = moment.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
    let nanoseconds = i128::try_from(since_1970.as_millis()).unwrap_or_default() * 1_000_000;
    let moment = jiff::Timestamp::from_nanosecond(nanoseconds).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    format!("{moment:.3}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_in_utc_with_milliseconds() {
        let moment = SystemTime::UNIX_EPOCH + Duration::from_millis(1_700_000_000_120);
        assert_eq!(timestamp(moment), "2023-11-14T22:13:20.120Z");
    }
}
