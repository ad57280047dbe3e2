//! Turns records into the lines of the journal, stamped with who they are from. Pure.

use std::time::SystemTime;

use causeway_channel::PeerId;
use causeway_channel::clock::Moment;
use serde_json::{Map, Value, json};

use super::cursor::{Batch, Kind, hex};

/// The audit records behind the first `skip`, one JSON object per line, and a line for what was lost.
pub fn render(peer: &PeerId, batch: &Batch, skip: usize, newly_lost: u64, now: SystemTime) -> Vec<u8> {
    let queue = hex(&batch.queue);
    // How long records were on their way can be told only if somebody writes down when they came.
    let received = jiff::Timestamp::try_from(now).map(|now| format!("{now:.3}")).unwrap_or_default();
    let mut lines = Vec::new();
    if newly_lost > 0 {
        let mut line = event("edge-records-lost", now);
        line.insert("lost".into(), newly_lost.into());
        stamp(&mut line, peer);
        push(&mut lines, &line);
    }
    for (seq, kind, content) in batch.records_after(skip) {
        if kind != Kind::Audit {
            continue;
        }
        let mut line = match serde_json::from_slice(content) {
            Ok(Value::Object(line)) => line,
            // What an edge of ours never sends is worth a line, not a refusal: the batch would come back for ever.
            _ => {
                let mut line = event("edge-record-unreadable", now);
                line.insert("bytes".into(), content.len().into());
                line
            }
        };
        stamp(&mut line, peer);
        line.insert("received".into(), received.as_str().into());
        line.insert("queue".into(), queue.as_str().into());
        line.insert("seq".into(), seq.into());
        push(&mut lines, &line);
    }
    lines
}

fn event(name: &str, now: SystemTime) -> Map<String, Value> {
    let line = json!({"time": Moment(now).to_string(), "event": name});
    line.as_object().cloned().unwrap_or_default()
}

// Last, so that nothing a record says about itself survives.
fn stamp(line: &mut Map<String, Value>, peer: &PeerId) {
    line.insert("site".into(), peer.site().into());
    line.insert("gateway".into(), peer.gateway().into());
    line.remove("queue");
    line.remove("seq");
}

fn push(lines: &mut Vec<u8>, line: &Map<String, Value>) {
    serde_json::to_writer(&mut *lines, line).expect("a JSON object is always written to memory");
    lines.push(b'\n');
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    #[test]
    fn a_record_cannot_say_who_it_is_from() {
        let peer = PeerId::new("oslo", "oslo-1").unwrap();
        let records = [
            &b"\x02{\"site\":\"cloud\",\"gateway\":\"cloud\",\"seq\":1,\"queue\":\"x\",\"subject\":\"camera\"}"[..],
            b"\x01{\"n\":1}",
            b"\x02[not an object",
        ];
        let records = records.into_iter().map(Bytes::copy_from_slice).collect();
        let batch = Batch::new(&[7; 16], 5, records, 3).unwrap();
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
