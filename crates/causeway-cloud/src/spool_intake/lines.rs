//! Turns records into the lines of the journal, stamped with their gateway. Pure.
//!
//! Fields of an edge pass the strict form of `record`; the cloud's own fields are set here alone.

use std::time::SystemTime;

use causeway_channel::PeerId;
use causeway_channel::clock::UtcTimestamp;
use serde::Serialize;

use super::cursor::{ReceivedBatch, ReceivedRecordKind, hex};
use super::record::{self, EdgeRecord, ParsedLine, Text};

/// A line of the journal: the fields of the cloud, and those of the edge. No name is in both.
#[derive(Serialize)]
struct Line<'a> {
    gateway: &'a str,
    site: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    time: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    event: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    software: Option<&'a str>,
    received: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    queue: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    #[serde(flatten)]
    record: Option<&'a EdgeRecord>,
}

/// The audit records behind the first `skip`, one JSON object per line, and a line for the lost records.
pub fn render(
    peer: &PeerId,
    batch: &ReceivedBatch,
    skip: usize,
    newly_lost: u64,
    now: SystemTime,
) -> Vec<u8> {
    let queue = hex(&batch.queue);
    // The delivery time of records is known only if the time of arrival is written.
    let received = jiff::Timestamp::try_from(now).map(|now| format!("{now:.3}")).unwrap_or_default();
    let own_time = UtcTimestamp(now).to_string();
    let line = Line {
        gateway: peer.gateway(),
        site: peer.site(),
        time: None,
        event: None,
        lost: None,
        bytes: None,
        software: None,
        received: &received,
        queue: None,
        seq: None,
        record: None,
    };
    let mut lines = Vec::new();
    if newly_lost > 0 {
        let (event, lost) = (Some("edge-records-lost"), Some(newly_lost));
        push(&mut lines, &Line { time: Some(&own_time), event, lost, ..line });
    }
    for (seq, kind, content) in batch.records_after(skip) {
        if kind != ReceivedRecordKind::Audit {
            continue;
        }
        let line = Line { queue: Some(&queue), seq: Some(seq), ..line };
        match record::read(content) {
            ParsedLine::Record(mut record) => {
                // A record without a time that can be read has that of its receipt.
                record.time.get_or_insert_with(|| Text(received.clone()));
                push(&mut lines, &Line { record: Some(&record), ..line });
            }
            ParsedLine::Started { time, software } => {
                let time = time.map_or(own_time.clone(), |time| time.0);
                let (event, software) = (Some("edge-started"), Some(software.0.as_str()));
                push(&mut lines, &Line { time: Some(&time), event, software, ..line });
            }
            // A record that no edge of ours sends is counted in a line, not refused: the batch would be sent again for ever.
            ParsedLine::Unreadable => {
                let (event, bytes) = (Some("edge-record-unreadable"), Some(content.len()));
                push(&mut lines, &Line { time: Some(&own_time), event, bytes, ..line });
            }
        }
    }
    lines
}

fn push(lines: &mut Vec<u8>, line: &Line<'_>) {
    serde_json::to_writer(&mut *lines, line).expect("strings and numbers are always JSON");
    lines.push(b'\n');
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_record_cannot_use_the_words_of_the_cloud() {
        let peer = PeerId::new("oslo", "oslo-1").unwrap();
        let forged = json!({"event": "edge-records-lost", "lost": 1_000_000});
        let dated = json!({"service": "web", "received": "1999-01-01T00:00:00Z", "lost": 5, "time": "never"});
        let started = json!({"event": "edge-started", "software": "1", "lost": 9, "site": "cloud"});
        let records = [forged, dated, started].map(|record| Bytes::from(format!("\u{2}{record}"))).to_vec();
        let batch = ReceivedBatch::new(&[7; 16], 1, records, 0).unwrap();
        let text = String::from_utf8(render(&peer, &batch, 0, 0, SystemTime::UNIX_EPOCH)).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines[0]["event"], "edge-record-unreadable");
        assert_eq!((&lines[1]["service"], &lines[1]["event"]), (&json!("web"), &Value::Null));
        assert_eq!(lines[1]["time"], lines[1]["received"], "a time that is none is that of the receipt");
        assert_eq!((&lines[2]["event"], &lines[2]["site"]), (&json!("edge-started"), &json!("oslo")));
        for line in &lines {
            assert_eq!(
                (&line["lost"], &line["received"]),
                (&Value::Null, &json!("1970-01-01T00:00:00.000Z"))
            );
        }
    }

    #[test]
    fn a_record_cannot_say_who_it_is_from() {
        let peer = PeerId::new("oslo", "oslo-1").unwrap();
        let records = [
            &b"\x02{\"site\":\"cloud\",\"gateway\":\"cloud\",\"seq\":1,\"queue\":\"x\",\"subject\":\"camera\"}"[..],
            b"\x01{\"n\":1}",
            b"\x02[not an object",
        ];
        let records = records.into_iter().map(Bytes::copy_from_slice).collect();
        let batch = ReceivedBatch::new(&[7; 16], 5, records, 3).unwrap();
        let text = String::from_utf8(render(&peer, &batch, 0, 3, SystemTime::UNIX_EPOCH)).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(lines.len(), 3);
        assert_eq!((&lines[0]["event"], &lines[0]["lost"]), (&json!("edge-records-lost"), &json!(3)));
        assert_eq!((&lines[1]["subject"], &lines[1]["seq"]), (&json!("camera"), &json!(5)));
        assert_eq!((&lines[2]["event"], &lines[2]["bytes"]), (&json!("edge-record-unreadable"), &json!(14)));
        for line in &lines {
            assert_eq!((&line["site"], &line["gateway"]), (&json!("oslo"), &json!("oslo-1")));
        }
        assert_eq!(lines[1]["queue"], "07".repeat(16));
    }
}
