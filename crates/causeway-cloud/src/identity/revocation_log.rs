//! The revocation log: a file beside the store that survives the store.
//!
//! `DATA_DIR/revocations.jsonl` has one line for every key that was revoked, every join token that was used or closed and every API token
//! that was deleted. A restored backup does not know of them; `replay` applies them again. Every replica writes its own
//! log: what it does itself before it acknowledges it, what others do when its watch brings it.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use causeway_channel::clock::{from_unix_seconds, unix_seconds};
use causeway_daemon::data_dir::write_atomic;
use causeway_store::StoreRecord;
use serde::{Deserialize, Serialize};

use super::revocation::{self, RevocationRecord};
use super::tokens::{self, DeletedApiToken, JoinTokenRecord, Redeemed};

/// In the data dir.
pub const FILE: &str = "revocations.jsonl";
/// A file of fewer lines is not worth writing anew.
const COMPACT_LINES_MIN: usize = 1000;
/// Lines stay this long after they have lost their effect, whatever the clocks say: a year and a day.
const KEPT_AFTER_END: Duration = Duration::from_secs(366 * 24 * 3600);

/// One thing that must not come back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Entry {
    Key {
        key: String,
        record: RevocationRecord,
    },
    JoinToken {
        id: String,
        expires: i64,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deleted: Option<i64>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        redeemed: Vec<Redeemed>,
    },
    ApiToken {
        id: String,
        expires: i64,
    },
}

#[derive(Serialize, Deserialize)]
struct Line {
    /// When it was written here; for people.
    time: String,
    #[serde(flatten)]
    entry: Entry,
}

impl Entry {
    /// What a record of the store says, if it is something that must not come back.
    pub fn of(store_key: &str, value: &[u8]) -> Option<Entry> {
        if let Some(key) = store_key.strip_prefix(revocation::PREFIX) {
            return Some(Entry::Key { key: key.to_owned(), record: serde_json::from_slice(value).ok()? });
        }
        if let Some(id) = store_key.strip_prefix(tokens::JOIN_PREFIX) {
            return Entry::of_join_token(id, &serde_json::from_slice(value).ok()?);
        }
        let id = store_key.strip_prefix(tokens::DELETED_PREFIX)?;
        let deleted: DeletedApiToken = serde_json::from_slice(value).ok()?;
        Some(Entry::ApiToken { id: id.to_owned(), expires: deleted.expires })
    }

    pub fn of_join_token(id: &str, record: &JoinTokenRecord) -> Option<Entry> {
        (record.deleted.is_some() || !record.redeemed.is_empty()).then(|| Entry::JoinToken {
            id: id.to_owned(),
            expires: record.expires,
            deleted: record.deleted,
            redeemed: record.redeemed.clone(),
        })
    }

    /// When it would have ended by itself.
    fn end(&self) -> SystemTime {
        from_unix_seconds(match self {
            Entry::Key { record, .. } => record.until,
            Entry::JoinToken { expires, .. } | Entry::ApiToken { expires, .. } => *expires,
        })
    }

    /// Two lines with the same fingerprint have the same effect.
    fn fingerprint(&self) -> String {
        match self {
            Entry::Key { key, .. } => format!("key {key}"),
            Entry::JoinToken { id, deleted, redeemed, .. } => {
                format!("join {id} {} {}", redeemed.len(), deleted.is_some())
            }
            Entry::ApiToken { id, .. } => format!("api {id}"),
        }
    }
}

/// What a log holds, oldest first.
#[derive(Debug, Default)]
pub struct LogContent {
    pub entries: Vec<Entry>,
    /// Lines that cannot be read: the last one after a crash, or somebody edited the file.
    pub damaged: usize,
}

/// Reads a log. `None`: there is no such file.
pub fn read(path: &Path) -> io::Result<Option<LogContent>> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut content = LogContent::default();
    for line in bytes.split(|byte| *byte == b'\n').filter(|line| !line.trim_ascii().is_empty()) {
        match serde_json::from_slice::<Line>(line) {
            Ok(line) => content.entries.push(line.entry),
            Err(_) => content.damaged += 1,
        }
    }
    Ok(Some(content))
}

/// The log of this data dir. Clones share it.
#[derive(Debug, Clone)]
pub struct RevocationLog {
    path: Arc<PathBuf>,
    /// As many fingerprints as there are lines; those who add one are administrators and holders of tokens that
    /// administrators made. Held while lines are written.
    written: Arc<Mutex<HashSet<String>>>,
}

impl RevocationLog {
    /// Reads what is there; the file is made with its first line. A file that is mostly old is written anew without it.
    pub fn open(path: PathBuf, now: SystemTime) -> io::Result<(RevocationLog, Vec<Entry>)> {
        let content = read(&path)?.unwrap_or_default();
        if content.damaged > 0 {
            tracing::warn!(
                path = %path.display(), lines = content.damaged,
                "the revocation log has lines that cannot be read; they are passed over"
            );
        }
        let mut entries = content.entries;
        let is_kept = |entry: &Entry| now <= entry.end() + KEPT_AFTER_END;
        let kept = entries.iter().filter(|entry| is_kept(entry)).count();
        if entries.len() >= COMPACT_LINES_MIN && kept < entries.len() / 2 {
            entries.retain(is_kept);
            // A full disk leaves the long file in place, which does no harm.
            if let Err(error) = write_atomic(&path, &lines(&entries, now)) {
                tracing::warn!(%error, path = %path.display(), "the revocation log cannot be shortened");
            }
        }
        let written = entries.iter().map(Entry::fingerprint).collect();
        Ok((RevocationLog { path: Arc::new(path), written: Arc::new(Mutex::new(written)) }, entries))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Adds what is not there yet. When this returns, it is on disk. Waits for the disk.
    pub async fn append(&self, entries: Vec<Entry>, now: SystemTime) -> io::Result<()> {
        let log = self.clone();
        let appended = tokio::task::spawn_blocking(move || log.append_blocking(&entries, now));
        appended.await.map_err(io::Error::other)?
    }

    fn append_blocking(&self, entries: &[Entry], now: SystemTime) -> io::Result<()> {
        let mut written = self.written.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh: Vec<Entry> =
            entries.iter().filter(|entry| !written.contains(&entry.fingerprint())).cloned().collect();
        if fresh.is_empty() {
            return Ok(());
        }
        // Opened each time: nothing is written to a file that somebody has moved away.
        let mut file = open(&self.path)?;
        file.write_all(&lines(&fresh, now))?;
        file.sync_data()?;
        written.extend(fresh.iter().map(Entry::fingerprint));
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let is_new = !path.exists();
    let mut file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    if is_new && let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    // A crash in the middle of a line must not spoil the next one.
    if file.seek(SeekFrom::End(0))? > 0 {
        file.seek(SeekFrom::End(-1))?;
        let mut last = [0];
        file.read_exact(&mut last)?;
        if last != *b"\n" {
            file.write_all(b"\n")?;
        }
    }
    Ok(file)
}

fn lines(entries: &[Entry], now: SystemTime) -> Vec<u8> {
    let time = causeway_channel::clock::UtcTimestamp(from_unix_seconds(unix_seconds(now))).to_string();
    let mut text = Vec::new();
    for entry in entries {
        let line = Line { time: time.clone(), entry: entry.clone() };
        serde_json::to_writer(&mut text, &line).expect("strings and numbers are always JSON");
        text.push(b'\n');
    }
    text
}

/// What the records of a snapshot say.
pub fn entries_of(records: &[StoreRecord]) -> Vec<Entry> {
    records.iter().filter_map(|record| Entry::of(&record.key, &record.value)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::identity::revocation::RevocationReason;

    fn now() -> SystemTime {
        from_unix_seconds(1_800_000_000)
    }

    fn key(name: &str, until: SystemTime) -> Entry {
        let record = RevocationRecord::new("g", RevocationReason::Revoked, now(), unix_seconds(until));
        Entry::Key { key: name.into(), record }
    }

    fn token(id: &str, redeemed: usize, deleted: Option<i64>) -> Entry {
        let redeemed = (0..redeemed).map(|number| Redeemed { key: number.to_string(), at: 1 }).collect();
        Entry::JoinToken { id: id.into(), expires: unix_seconds(now()), deleted, redeemed }
    }

    #[tokio::test]
    async fn a_line_is_written_once_and_read_back_also_after_half_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        assert!(read(&path).unwrap().is_none());
        let (log, entries) = RevocationLog::open(path.clone(), now()).unwrap();
        assert!(entries.is_empty() && !path.exists());
        let all = vec![key("a", now()), token("t", 1, None), Entry::ApiToken { id: "x".into(), expires: 5 }];
        log.append(all.clone(), now()).await.unwrap();
        log.append(all.clone(), now()).await.unwrap();
        log.append(vec![token("t", 1, Some(7))], now()).await.unwrap();
        let content = read(&path).unwrap().unwrap();
        assert_eq!((content.entries.len(), content.damaged), (4, 0), "{content:?}");
        assert_eq!(content.entries[..3], all);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

        // The machine stopped in the middle of a line.
        let mut torn = std::fs::read(&path).unwrap();
        torn.extend_from_slice(b"{\"time\":\"2027");
        std::fs::write(&path, torn).unwrap();
        let (log, entries) = RevocationLog::open(path.clone(), now()).unwrap();
        assert_eq!(entries.len(), 4);
        log.append(vec![key("b", now()), key("a", now())], now()).await.unwrap();
        let content = read(&path).unwrap().unwrap();
        assert_eq!((content.entries.len(), content.damaged), (5, 1));
        assert_eq!(content.entries[4], key("b", now()));
    }

    #[tokio::test]
    async fn a_log_of_mostly_old_lines_is_shortened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let (log, _) = RevocationLog::open(path.clone(), now()).unwrap();
        let later = now() + KEPT_AFTER_END + Duration::from_secs(10);
        let mut entries: Vec<Entry> = (0..1000).map(|number| key(&number.to_string(), now())).collect();
        entries.push(key("fresh", later));
        log.append(entries, now()).await.unwrap();
        let count = |now| RevocationLog::open(path.clone(), now).unwrap().1.len();
        assert_eq!(
            count(now() + KEPT_AFTER_END),
            1001,
            "a year and a day after their end they are still there"
        );
        assert_eq!(count(later), 1);
        assert_eq!(read(&path).unwrap().unwrap().entries, [key("fresh", later)]);
    }
}
