//! The format of a backup: one line of JSON each for the header, every record, and a trailer with count and
//! digest.
//!
//! Pure: encodes records as lines and decodes them. A truncated or changed backup is detected before its last
//! line is accepted. `store` and the engines read and write the lines.

use aws_lc_rs::digest::{Context, SHA256};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::{BufMut, Bytes, BytesMut};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::model::{check_key, check_limits};
use crate::{Op, Revision, StoreError, StoreRecord};

const FORMAT: &str = "causeway-backup";
const VERSION: u64 = 1;
/// The largest value in base64, its key with every byte escaped, and the JSON syntax.
pub(crate) const LINE_BYTES_MAX: usize = 2 << 20;
/// Distance by which a restored store continues above the backup's revision, so that no revision that its
/// clients remember is used again: eleven days of a thousand writes a second between backup and loss.
pub(crate) const REVISION_GAP: u64 = 1_000_000_000;

/// SQLite counts to 2^63; the revision of a store after any number of restores must stay below.
const COUNTER_MAX: u64 = 1 << 62;

/// The result of an import.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImportResult {
    pub records: u64,
    pub revision: Revision,
    pub epoch: u64,
    /// The time of the backup, in seconds since 1970. `None`: the backup was made by a program that did not
    /// record it.
    pub time: Option<i64>,
}

/// The first line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct BackupHeader {
    format: String,
    version: u64,
    pub epoch: u64,
    pub revision: u64,
    /// Added after version 1; a program that does not know it restores the backup all the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<i64>,
}

/// One record for a store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackupRow {
    pub key: String,
    pub value: Bytes,
}

/// A part of a backup, passed from the reader to the engine. Without `End` the engine keeps nothing.
pub(crate) enum BackupChunk {
    Rows(Vec<BackupRow>),
    End,
}

#[derive(Serialize, Deserialize)]
struct RowLine<'a> {
    key: std::borrow::Cow<'a, str>,
    revision: u64,
    created: u64,
    /// The value itself when it is JSON in one line, as nearly all values are.
    #[serde(borrow, skip_serializing_if = "Option::is_none", default)]
    value: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    base64: Option<String>,
}

#[derive(Serialize, Deserialize)]
struct Trailer {
    count: u64,
    sha256: String,
}

/// Encodes the lines.
pub(crate) struct BackupEncoder {
    digest: Context,
    count: u64,
}

impl BackupEncoder {
    pub fn new() -> BackupEncoder {
        BackupEncoder { digest: Context::new(&SHA256), count: 0 }
    }

    pub fn header(&mut self, epoch: u64, revision: Revision, time: Option<i64>) -> Bytes {
        self.line(&BackupHeader {
            format: FORMAT.into(),
            version: VERSION,
            epoch,
            revision: revision.0,
            time,
        })
    }

    pub fn records(&mut self, records: &[StoreRecord]) -> Bytes {
        self.count += records.len() as u64;
        let mut lines = BytesMut::new();
        for record in records {
            let value = as_json(&record.value);
            lines.extend_from_slice(&self.line(&RowLine {
                key: (&*record.key).into(),
                revision: record.revision.0,
                created: record.created.0,
                value,
                base64: value.is_none().then(|| BASE64_STANDARD.encode(&record.value)),
            }));
        }
        lines.freeze()
    }

    pub fn trailer(&mut self) -> Bytes {
        let sha256 = hex(self.digest.clone());
        self.line(&Trailer { count: self.count, sha256 })
    }

    fn line(&mut self, line: &impl Serialize) -> Bytes {
        let mut text = BytesMut::new().writer();
        serde_json::to_writer(&mut text, line)
            .expect("these structs have string keys, and memory does not fail");
        let mut text = text.into_inner();
        text.put_u8(b'\n');
        self.digest.update(&text);
        text.freeze()
    }
}

/// Decodes the lines, each without its line end.
pub(crate) struct BackupDecoder {
    digest: Context,
    count: u64,
    ended: bool,
}

pub(crate) enum BackupLine {
    Row(BackupRow),
    End,
}

impl BackupDecoder {
    pub fn begin(line: &[u8]) -> Result<(BackupDecoder, BackupHeader), StoreError> {
        let header: BackupHeader =
            serde_json::from_slice(line).map_err(|_| StoreError::corrupt("this is no Causeway backup"))?;
        if header.format != FORMAT {
            return Err(StoreError::corrupt("this is no Causeway backup"));
        }
        if header.version > VERSION {
            return Err(StoreError::TooNew { found: header.version, supported: VERSION });
        }
        if header.epoch.max(header.revision) > COUNTER_MAX {
            return Err(StoreError::corrupt("the backup's header counts further than any store"));
        }
        let mut decoder = BackupDecoder { digest: Context::new(&SHA256), count: 0, ended: false };
        decoder.digest_line(line);
        Ok((decoder, header))
    }

    pub fn line(&mut self, line: &[u8]) -> Result<BackupLine, StoreError> {
        if self.ended {
            return Err(StoreError::corrupt("the backup goes on behind its end"));
        }
        if let Ok(row) = serde_json::from_slice::<RowLine<'_>>(line) {
            self.digest_line(line);
            self.count += 1;
            return Ok(BackupLine::Row(self.row(row)?));
        }
        let trailer: Trailer = serde_json::from_slice(line).map_err(|_| {
            StoreError::corrupt(format!("line {} of the backup cannot be read", self.count + 2))
        })?;
        let sha256 = hex(self.digest.clone());
        if (trailer.count, &trailer.sha256) != (self.count, &sha256) {
            return Err(StoreError::corrupt("the backup was changed: its digest does not match"));
        }
        self.ended = true;
        Ok(BackupLine::End)
    }

    /// Checks that the backup is complete. Called at the end of the file.
    pub fn finish(&self) -> Result<(), StoreError> {
        if self.ended {
            Ok(())
        } else {
            Err(StoreError::corrupt("the backup is cut short: its last line is missing"))
        }
    }

    fn row(&self, row: RowLine<'_>) -> Result<BackupRow, StoreError> {
        let bad = || StoreError::corrupt(format!("line {} of the backup holds no value", self.count + 1));
        let value = match (row.value, row.base64) {
            (Some(value), None) => Bytes::copy_from_slice(value.get().as_bytes()),
            (None, Some(base64)) => BASE64_STANDARD.decode(base64).map_err(|_| bad())?.into(),
            _ => return Err(bad()),
        };
        let key = row.key.into_owned();
        check_key(&key)?;
        let op = Op::Put { key, value };
        check_limits(std::slice::from_ref(&op))?;
        let Op::Put { key, value } = op else { return Err(bad()) };
        Ok(BackupRow { key, value })
    }

    fn digest_line(&mut self, line: &[u8]) {
        self.digest.update(line);
        self.digest.update(b"\n");
    }
}

/// Returns the value as JSON if encoding and decoding it gives the same bytes.
fn as_json(value: &[u8]) -> Option<&RawValue> {
    let text = std::str::from_utf8(value).ok().filter(|text| !text.contains(['\n', '\r']))?;
    let raw: &RawValue = serde_json::from_str(text).ok()?;
    // A null would be decoded as an absent value.
    (raw.get() == text && text != "null").then_some(raw)
}

fn hex(digest: Context) -> String {
    digest.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backup() -> Vec<u8> {
        let mut encoder = BackupEncoder::new();
        let mut text = encoder.header(3, Revision(42), Some(1_800_000_000)).to_vec();
        let values: [&'static [u8]; 5] = [b"{\"a\":1}", b"{ \"a\" :\n1}", b" 1 ", b"\xff\x00", b""];
        let records: Vec<StoreRecord> = values
            .iter()
            .enumerate()
            .map(|(place, value)| StoreRecord {
                key: format!("things/\"{place}\"").into(),
                value: Bytes::from_static(value),
                revision: Revision(7),
                created: Revision(6),
            })
            .collect();
        text.extend_from_slice(&encoder.records(&records));
        text.extend_from_slice(&encoder.trailer());
        text
    }

    fn read(text: &[u8]) -> Result<(BackupHeader, Vec<BackupRow>), StoreError> {
        let mut lines =
            text.split_inclusive(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\n").unwrap_or(line));
        let (mut decoder, header) = BackupDecoder::begin(lines.next().unwrap_or_default())?;
        let mut rows = Vec::new();
        for line in lines {
            match decoder.line(line)? {
                BackupLine::Row(row) => rows.push(row),
                BackupLine::End => {}
            }
        }
        decoder.finish()?;
        Ok((header, rows))
    }

    #[test]
    fn every_value_comes_back_byte_for_byte() {
        let (header, rows) = read(&backup()).unwrap();
        assert_eq!((header.epoch, header.revision, header.time), (3, 42, Some(1_800_000_000)));
        let values: Vec<&[u8]> = rows.iter().map(|row| &row.value[..]).collect();
        assert_eq!(values, [&b"{\"a\":1}"[..], b"{ \"a\" :\n1}", b" 1 ", b"\xff\x00", b""]);
        assert_eq!(rows[0].key, "things/\"0\"");
    }

    #[test]
    fn a_value_that_is_the_word_null_comes_back() {
        let mut encoder = BackupEncoder::new();
        let record = StoreRecord {
            key: "things/null".into(),
            value: Bytes::from_static(b"null"),
            revision: Revision(7),
            created: Revision(7),
        };
        let mut text = encoder.header(3, Revision(42), None).to_vec();
        text.extend_from_slice(&encoder.records(&[record]));
        text.extend_from_slice(&encoder.trailer());
        let (_, rows) = read(&text).unwrap();
        assert_eq!(&rows[0].value[..], b"null");
    }

    #[test]
    fn a_header_with_numbers_that_no_store_reaches_is_refused() {
        for (epoch, revision) in [(u64::MAX, 1), (1, u64::MAX), (1, u64::MAX - REVISION_GAP + 1)] {
            let header = BackupEncoder::new().header(epoch, Revision(revision), None);
            let line = header.strip_suffix(b"\n").unwrap();
            assert!(BackupDecoder::begin(line).is_err(), "{epoch} {revision}");
        }
    }

    #[test]
    fn a_backup_cut_anywhere_is_refused() {
        let text = backup();
        // Only the very last line end may be missing.
        for length in 0..text.len() - 1 {
            assert!(read(&text[..length]).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn a_backup_with_any_byte_changed_is_refused() {
        let text = backup();
        for place in 0..text.len() - 1 {
            let mut changed = text.clone();
            changed[place] ^= 1;
            assert!(read(&changed).is_err(), "byte {place}: {:?}", text[place] as char);
        }
    }
}
