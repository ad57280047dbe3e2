//! The cursor of a gateway's records, and the effect of a batch on it. Values only.

use std::time::SystemTime;

use bytes::Bytes;
use causeway_channel::clock::UtcTimestamp;
use causeway_channel::wire::control::SpoolBatch;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Twice the number that an edge sends at a time.
const RECORDS_MAX: usize = 10_000;

/// The kind of a record, by its first byte. Kinds of a newer edge are skipped and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReceivedRecordKind {
    Status,
    Audit,
    Unknown,
}

/// Records from an edge's queue: the first has the number `first`, and none is missing in between.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedBatch {
    pub queue: [u8; 16],
    pub first: u64,
    /// Each begins with the number of its kind.
    pub records: Vec<Bytes>,
    /// Records the queue has lost since it began.
    pub lost: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedBatch {
    #[error("the id of a queue has 16 bytes")]
    QueueId,
    #[error("records are numbered from 1")]
    Numbers,
    #[error("{0} records in one batch")]
    TooMany(usize),
}

impl ReceivedBatch {
    pub fn from_message(message: SpoolBatch) -> Result<ReceivedBatch, MalformedBatch> {
        ReceivedBatch::new(&message.queue_id, message.first_seq, message.records, message.dropped)
    }

    /// Checks a batch of an edge.
    pub fn new(
        queue: &[u8],
        first: u64,
        records: Vec<Bytes>,
        lost: u64,
    ) -> Result<ReceivedBatch, MalformedBatch> {
        let queue = queue.try_into().map_err(|_| MalformedBatch::QueueId)?;
        if records.len() > RECORDS_MAX {
            return Err(MalformedBatch::TooMany(records.len()));
        }
        if first == 0 || first.checked_add(records.len() as u64).is_none() {
            return Err(MalformedBatch::Numbers);
        }
        Ok(ReceivedBatch { queue, first, records, lost })
    }

    /// The number of the last record; of the one before `first` when there are none.
    pub fn last(&self) -> u64 {
        self.first + self.records.len() as u64 - 1
    }

    /// The records behind the first `skip`: number, kind, content.
    pub fn records_after(
        &self,
        skip: usize,
    ) -> impl DoubleEndedIterator<Item = (u64, ReceivedRecordKind, &[u8])> {
        self.records.iter().enumerate().skip(skip).map(|(place, record)| {
            let (kind, content) = match record.split_first() {
                Some((1, content)) => (ReceivedRecordKind::Status, content),
                Some((2, content)) => (ReceivedRecordKind::Audit, content),
                _ => (ReceivedRecordKind::Unknown, &record[..]),
            };
            (self.first + place as u64, kind, content)
        })
    }
}

/// `upstream/GATEWAY` in the store.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoolCursor {
    /// The queue's id, in hex.
    pub queue: String,
    /// The highest number that was taken.
    pub seq: u64,
    pub lost: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<LatestStatus>,
}

/// The newest status record of a gateway.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatestStatus {
    pub seq: u64,
    /// By the cloud's clock, for people.
    pub received: String,
    pub record: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CursorStep {
    /// Everything in it was taken before.
    Known,
    /// The first `skip` records were taken before; when the rest is on disk, `cursor` includes it.
    Take { skip: usize, cursor: SpoolCursor, newly_lost: u64 },
}

/// Decides what a batch adds to the cursor.
pub fn decide(cursor: Option<&SpoolCursor>, batch: &ReceivedBatch) -> CursorStep {
    let queue = hex(&batch.queue);
    // Another queue counts from anew; the status stays until there is a newer one.
    let same = cursor.filter(|cursor| cursor.queue == queue);
    let (seq, lost) = same.map_or((0, 0), |cursor| (cursor.seq, cursor.lost));
    let skip = (seq + 1).saturating_sub(batch.first).min(batch.records.len() as u64);
    let newly_lost = batch.lost.saturating_sub(lost);
    if same.is_some() && batch.last() <= seq && newly_lost == 0 {
        return CursorStep::Known;
    }
    let cursor = SpoolCursor {
        queue,
        seq: batch.last().max(seq),
        lost: batch.lost.max(lost),
        status: cursor.and_then(|cursor| cursor.status.clone()),
    };
    CursorStep::Take { skip: usize::try_from(skip).unwrap_or(usize::MAX), cursor, newly_lost }
}

/// The newest status among the records behind `skip`.
pub fn latest_status(batch: &ReceivedBatch, skip: usize, now: SystemTime) -> Option<LatestStatus> {
    let (seq, _, content) =
        batch.records_after(skip).rev().find(|(_, kind, _)| *kind == ReceivedRecordKind::Status)?;
    let text = || Value::String(String::from_utf8_lossy(content).into_owned());
    let record = serde_json::from_slice(content).unwrap_or_else(|_| text());
    Some(LatestStatus { seq, received: UtcTimestamp(now).to_string(), record })
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(queue: u8, first: u64, records: usize, lost: u64) -> ReceivedBatch {
        ReceivedBatch::new(&[queue; 16], first, vec![Bytes::from_static(b"\x02{}"); records], lost).unwrap()
    }

    fn cursor(queue: u8, seq: u64, lost: u64) -> SpoolCursor {
        SpoolCursor { queue: hex(&[queue; 16]), seq, lost, status: None }
    }

    #[test]
    fn a_batch_adds_what_was_not_taken_before() {
        let check =
            |cursor: Option<SpoolCursor>, batch: ReceivedBatch, expected: Option<(usize, u64, u64)>| {
                let step = match decide(cursor.as_ref(), &batch) {
                    CursorStep::Known => None,
                    CursorStep::Take { skip, cursor, newly_lost } => Some((skip, cursor.seq, newly_lost)),
                };
                assert_eq!(step, expected, "{cursor:?} {batch:?}");
            };
        check(None, batch(1, 1, 5, 0), Some((0, 5, 0)));
        check(Some(cursor(1, 5, 0)), batch(1, 6, 5, 0), Some((0, 10, 0)));
        check(Some(cursor(1, 5, 0)), batch(1, 1, 5, 0), None);
        check(Some(cursor(1, 5, 0)), batch(1, 4, 5, 0), Some((2, 8, 0)));
        check(Some(cursor(1, 50, 0)), batch(1, 4, 5, 0), None);
        // A gap is the number of records that the edge lost and reports.
        check(Some(cursor(1, 5, 0)), batch(1, 9, 1, 3), Some((0, 9, 3)));
        check(Some(cursor(1, 9, 3)), batch(1, 10, 0, 7), Some((0, 9, 4)));
        check(Some(cursor(1, 9, 7)), batch(1, 10, 0, 7), None);
        // Another queue begins anew.
        check(Some(cursor(1, 50, 7)), batch(2, 1, 3, 1), Some((0, 3, 1)));
    }

    #[test]
    fn nonsense_is_refused() {
        assert_eq!(ReceivedBatch::new(&[1; 15], 1, Vec::new(), 0), Err(MalformedBatch::QueueId));
        assert_eq!(ReceivedBatch::new(&[1; 16], 0, Vec::new(), 0), Err(MalformedBatch::Numbers));
        assert_eq!(
            ReceivedBatch::new(&[1; 16], u64::MAX, vec![Bytes::new()], 0),
            Err(MalformedBatch::Numbers)
        );
        let many = vec![Bytes::new(); RECORDS_MAX + 1];
        assert_eq!(ReceivedBatch::new(&[1; 16], 1, many, 0), Err(MalformedBatch::TooMany(RECORDS_MAX + 1)));
    }

    #[test]
    fn the_newest_status_counts() {
        let records = [&b"\x01{\"n\":1}"[..], b"\x02{}", b"\x01{\"n\":2}", b"\x63?", b""];
        let records = records.into_iter().map(Bytes::copy_from_slice).collect();
        let batch = ReceivedBatch::new(&[1; 16], 10, records, 0).unwrap();
        let status = latest_status(&batch, 0, SystemTime::UNIX_EPOCH).unwrap();
        assert_eq!((status.seq, &status.record["n"]), (12, &Value::from(2)));
        assert_eq!(latest_status(&batch, 3, SystemTime::UNIX_EPOCH), None);
    }
}
