//! Delivers batches as OTLP logs over HTTP, in the JSON encoding (OTLP 1.0, "OTLP/HTTP"): one log record for each audit record.
//!
//! The body of a log record is the whole line; fields that queries filter by are attributes. Records that the collector rejects in a
//! partial success are not sent again, as the specification says; they are logged.

use causeway_daemon::collector::{CollectorError, HttpTarget};
use serde::Deserialize;
use serde_json::{Value, json};

use super::ExportBatch;

/// SeverityNumber of OTLP: INFO, and WARN for a refusal.
const INFO: u32 = 9;
const WARN: u32 = 13;

/// Fields of a line that become attributes.
const ATTRIBUTES: [&str; 12] = [
    "source", "journal", "gateway", "site", "subject", "service", "decision", "rule", "reason", "user",
    "verb", "kind",
];

pub struct OtlpSender {
    target: HttpTarget,
    source: String,
}

impl OtlpSender {
    pub fn new(target: HttpTarget, source: String) -> OtlpSender {
        OtlpSender { target, source }
    }

    pub async fn send(&mut self, batch: &ExportBatch) -> Result<(), CollectorError> {
        let answer = self.target.post(&[], request(&self.source, batch).to_string().into_bytes()).await?;
        let rejected = rejected(&answer);
        if rejected > 0 {
            tracing::error!(rejected, "the OTLP collector rejected audit records");
        }
        Ok(())
    }
}

fn request(source: &str, batch: &ExportBatch) -> Value {
    let records: Vec<Value> = batch.lines.iter().map(|line| log_record(line)).collect();
    let resource = json!({"attributes": [
        attribute("service.name", "causeway"),
        attribute("service.version", env!("CARGO_PKG_VERSION")),
        attribute("service.instance.id", source),
    ]});
    let logs = json!({"scope": {"name": "causeway.audit"}, "logRecords": records});
    json!({"resourceLogs": [{"resource": resource, "scopeLogs": [logs]}]})
}

fn log_record(line: &[u8]) -> Value {
    let text = String::from_utf8_lossy(line);
    let fields: Value = serde_json::from_slice(line).unwrap_or_default();
    let shown = |name: &str| Some(attribute(name, fields[name].as_str()?));
    let mut attributes: Vec<Value> = ATTRIBUTES.iter().filter_map(|name| shown(name)).collect();
    if let Some(sequence) = fields["sequence"].as_u64() {
        // 64-bit numbers are strings in the JSON encoding of protobuf.
        attributes.push(json!({"key": "sequence", "value": {"intValue": sequence.to_string()}}));
    }
    let is_refusal = fields["decision"] == "deny";
    let received = fields.get("received").unwrap_or(&fields["time"]);
    json!({
        "timeUnixNano": nanoseconds(&fields["time"]),
        "observedTimeUnixNano": nanoseconds(received),
        "severityNumber": if is_refusal { WARN } else { INFO },
        "severityText": if is_refusal { "WARN" } else { "INFO" },
        "body": {"stringValue": text},
        "attributes": attributes,
    })
}

fn attribute(name: &str, value: &str) -> Value {
    json!({"key": name, "value": {"stringValue": value}})
}

/// Zero means unknown.
fn nanoseconds(time: &Value) -> String {
    let time = time.as_str().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    time.map_or(0, jiff::Timestamp::as_nanosecond).max(0).to_string()
}

/// The number of records that an answer says were rejected.
fn rejected(answer: &[u8]) -> u64 {
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Answer {
        partial_success: Partial,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase", default)]
    struct Partial {
        rejected_log_records: Value,
    }
    let answer: Answer = serde_json::from_slice(answer).unwrap_or_default();
    let rejected = answer.partial_success.rejected_log_records;
    rejected.as_u64().or_else(|| rejected.as_str()?.parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_has_its_times_its_severity_and_its_attributes() {
        let line = json!({"source": "ab", "sequence": 5, "journal": "traffic", "time": "2026-11-18T00:00:01Z",
            "received": "2026-11-18T00:00:02.5Z", "gateway": "oslo-1", "decision": "deny"});
        let batch = ExportBatch { first: 5, lines: vec![line.to_string().into()] };
        let request = request("ab", &batch);
        let record = &request["resourceLogs"][0]["scopeLogs"][0]["logRecords"][0];
        assert_eq!(record["timeUnixNano"], "1794960001000000000");
        assert_eq!(record["observedTimeUnixNano"], "1794960002500000000");
        assert_eq!((&record["severityNumber"], &record["severityText"]), (&json!(13), &json!("WARN")));
        let attributes = record["attributes"].as_array().unwrap();
        assert!(attributes.contains(&attribute("gateway", "oslo-1")), "{attributes:?}");
        assert!(attributes.contains(&json!({"key": "sequence", "value": {"intValue": "5"}})));
        let body: Value = serde_json::from_str(record["body"]["stringValue"].as_str().unwrap()).unwrap();
        assert_eq!(body, line);
    }

    #[test]
    fn rejected_records_are_read_from_numbers_and_from_text() {
        assert_eq!(rejected(b"{}"), 0);
        assert_eq!(rejected(b""), 0);
        assert_eq!(rejected(br#"{"partialSuccess":{"rejectedLogRecords":"3"}}"#), 3);
        assert_eq!(rejected(br#"{"partialSuccess":{"rejectedLogRecords":2,"errorMessage":"x"}}"#), 2);
    }
}
