//! Audit records: one per connection or request, written at each end of a crossing.
//!
//! The field names are those of `causeway audit --json`. Records go to the sink of the role, which never
//! waits and never fails: it counts the records that it cannot keep. `coalescing` comes before the sink.

mod coalescing;

pub use coalescing::Coalescing;

use std::time::{Duration, SystemTime};

use serde::Serialize;

/// A connection or request that was carried or refused.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct AuditRecord {
    /// The time of its beginning, as RFC 3339 in UTC with milliseconds.
    pub time: String,
    pub gateway: String,
    /// The site of the client. In the cloud's journal `site` is that of the gateway that wrote the record.
    #[serde(rename = "clientSite")]
    pub site: String,
    /// The EServer of the client. None: no EServer has its address.
    pub subject: Option<String>,
    /// The host that the other gateway names and that this gateway's netmap does not know: a claim, not a
    /// fact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claimed_subject: Option<String>,
    pub client: Option<String>,
    /// A service, or `node/NAME:PORT`.
    pub service: String,
    pub protocol: &'static str,
    pub decision: AuditDecision,
    /// The policy that allowed it.
    pub rule: Option<String>,
    /// The reason of a refusal.
    pub reason: Option<String>,
    /// The reason in one word that the client does not choose. Refusals with equal words are coalesced.
    #[serde(skip)]
    pub cause: &'static str,
    pub method: Option<String>,
    pub path: Option<String>,
    /// The status of an HTTP response.
    pub status: Option<u16>,
    /// The client id of a Kafka client; known where requests are read, at the gateway of the brokers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// From the client to the backend.
    pub sent_bytes: u64,
    /// From the backend to the client.
    pub received_bytes: u64,
    /// Packets in both directions, of a flow at layer 3.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packets: Option<u64>,
    pub duration_ms: u64,
    pub end: ConnectionEnd,
    /// The number of equal records that it stands for. The other fields are those of the last one, the bytes
    /// those of all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The times at which the first and the last of them ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_time: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_time: Option<String>,
    /// They belong to several clients or services: the table was too full to count them separately.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub mixed: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum AuditDecision {
    Allow,
    Deny,
}

/// The end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConnectionEnd {
    /// Both directions ended.
    Done,
    /// It was refused before it began.
    Refused,
    ClientReset,
    BackendReset,
    /// No byte was carried for the idle timeout.
    Idle,
    /// A new netmap no longer allows it.
    Revoked,
    LinkLost,
    BackendDown,
    Timeout,
    Limit,
    /// The gateway stopped.
    Stopped,
}

/// A destination of audit records, from the role.
pub trait AuditSink: Send + Sync + 'static {
    fn record(&self, record: AuditRecord);

    /// Returns whether it is nearly full, so that clients must share what is left.
    fn is_pressed(&self) -> bool {
        false
    }
}

/// A sink that discards all records, for tests and for roles without an audit.
pub struct NullAuditSink;

impl AuditSink for NullAuditSink {
    fn record(&self, _: AuditRecord) {}
}

/// Formats a time as records contain it.
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
