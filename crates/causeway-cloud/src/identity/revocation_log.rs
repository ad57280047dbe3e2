//! The revocation log: a file beside the store that survives the loss of the store.
//!
//! `DATA_DIR/revocations.jsonl` has one line for every revoked key, every redeemed or deleted join token and every
//! deleted API token. A restored backup does not contain the later ones; `replay` applies them again. Every replica
//! writes its own log: its own revocations before it acknowledges them, those of other replicas when its watch on the
//! store reports them. A line that cannot be read is an error; only an incomplete last line is dropped.

use std::collections::HashSet;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use causeway_api::sync::MutexExt;
use causeway_channel::clock::{from_unix_seconds, unix_seconds};
use causeway_daemon::data_dir::write_atomic;
use causeway_store::StoreRecord;
use serde::{Deserialize, Serialize};

use super::revocation::{self, RevocationRecord};
use super::tokens::{self, DeletedApiToken, JoinTokenRecord, Redeemed};

/// File name in the data dir.
pub const FILE: &str = "revocations.jsonl";
/// A file with fewer lines is not compacted.
const COMPACT_LINES_MIN: usize = 1000;
/// Lines are kept this long after they have lost their effect, a year and a day, so that a wrong clock drops none early.
const KEPT_AFTER_END: Duration = Duration::from_secs(366 * 24 * 3600);

/// One revocation that a restored store must not lose.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum RevocationEntry {
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
    /// The time of writing. Informational; the program does not read it.
    time: String,
    #[serde(flatten)]
    entry: RevocationEntry,
}

impl RevocationEntry {
    /// Returns the entry for a record of the store, if the record revokes, redeems or deletes something.
    pub fn of(store_key: &str, value: &[u8]) -> Option<RevocationEntry> {
        if let Some(key) = store_key.strip_prefix(revocation::PREFIX) {
            return Some(RevocationEntry::Key {
                key: key.to_owned(),
                record: serde_json::from_slice(value).ok()?,
            });
        }
        if let Some(id) = store_key.strip_prefix(tokens::JOIN_PREFIX) {
            return RevocationEntry::of_join_token(id, &serde_json::from_slice(value).ok()?);
        }
        let id = store_key.strip_prefix(tokens::DELETED_PREFIX)?;
        let deleted: DeletedApiToken = serde_json::from_slice(value).ok()?;
        Some(RevocationEntry::ApiToken { id: id.to_owned(), expires: deleted.expires })
    }

    pub fn of_join_token(id: &str, record: &JoinTokenRecord) -> Option<RevocationEntry> {
        (record.deleted.is_some() || !record.redeemed.is_empty()).then(|| RevocationEntry::JoinToken {
            id: id.to_owned(),
            expires: record.expires,
            deleted: record.deleted,
            redeemed: record.redeemed.clone(),
        })
    }

    /// The time at which the key or token expires by itself.
    fn end(&self) -> SystemTime {
        from_unix_seconds(match self {
            RevocationEntry::Key { record, .. } => record.until,
            RevocationEntry::JoinToken { expires, .. } | RevocationEntry::ApiToken { expires, .. } => {
                *expires
            }
        })
    }

    /// Two lines with the same fingerprint have the same effect.
    fn fingerprint(&self) -> String {
        match self {
            RevocationEntry::Key { key, .. } => format!("key {key}"),
            RevocationEntry::JoinToken { id, deleted, redeemed, .. } => {
                let mut keys: Vec<&str> = redeemed.iter().map(|redeemed| redeemed.key.as_str()).collect();
                keys.sort_unstable();
                format!("join {id} {} {}", deleted.is_some(), keys.join(" "))
            }
            RevocationEntry::ApiToken { id, .. } => format!("api {id}"),
        }
    }
}

/// The entries of a log, oldest first.
#[derive(Debug, Default)]
pub struct LogContent {
    pub entries: Vec<RevocationEntry>,
    /// The last line is incomplete: the process or the machine stopped while it was written.
    pub is_torn: bool,
}

/// A revocation log that cannot be used as it is.
#[derive(Debug, thiserror::Error)]
pub enum RevocationLogError {
    #[error("the revocation log {} cannot be read or written", path.display())]
    Io { path: PathBuf, source: io::Error },
    #[error(
        "line {line} of the revocation log {} is not a revocation entry, so what it revokes is unknown. Copy the line from a backup of the file \
         or from another replica's {FILE}. If there is no copy, delete the line: revocations that the store still holds are written again at \
         the next start, one that only this line holds is lost",
        path.display()
    )]
    Line { path: PathBuf, line: usize, source: serde_json::Error },
}

/// Reads a log. `None`: there is no such file.
pub fn read(path: &Path) -> Result<Option<LogContent>, RevocationLogError> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(RevocationLogError::Io { path: path.to_owned(), source }),
    };
    let mut content = LogContent::default();
    for (index, line) in bytes.split_inclusive(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        match serde_json::from_slice::<Line>(line) {
            Ok(line) => content.entries.push(line.entry),
            // Only the last line has no line end.
            Err(_) if !line.ends_with(b"\n") => content.is_torn = true,
            Err(source) => {
                return Err(RevocationLogError::Line { path: path.to_owned(), line: index + 1, source });
            }
        }
    }
    Ok(Some(content))
}

/// The log of this data dir. Clones share it.
#[derive(Debug, Clone)]
pub struct RevocationLog {
    path: Arc<PathBuf>,
    /// The fingerprints of all lines. Only administrators, and holders of tokens that administrators made, add lines.
    /// Locked while lines are written.
    written: Arc<Mutex<HashSet<String>>>,
}

impl RevocationLog {
    /// Reads the log and truncates an incomplete last line. The file is created with its first line. A file whose lines
    /// are mostly out of date is rewritten without them.
    pub fn open(
        path: PathBuf,
        now: SystemTime,
    ) -> Result<(RevocationLog, Vec<RevocationEntry>), RevocationLogError> {
        let content = read(&path)?.unwrap_or_default();
        if content.is_torn {
            tracing::warn!(
                path = %path.display(),
                "removing the incomplete last line of the revocation log; its revocation was not acknowledged"
            );
            repair(&path).map_err(|source| RevocationLogError::Io { path: path.clone(), source })?;
        }
        let mut entries = content.entries;
        let is_kept = |entry: &RevocationEntry| now <= entry.end() + KEPT_AFTER_END;
        let kept = entries.iter().filter(|entry| is_kept(entry)).count();
        if entries.len() >= COMPACT_LINES_MIN && kept < entries.len() / 2 {
            entries.retain(is_kept);
            // A full disk leaves the long file in place, which does no harm.
            if let Err(error) = write_atomic(&path, &lines(&entries, now)) {
                tracing::warn!(%error, path = %path.display(), "cannot compact the revocation log");
            }
        }
        let written = entries.iter().map(RevocationEntry::fingerprint).collect();
        Ok((RevocationLog { path: Arc::new(path), written: Arc::new(Mutex::new(written)) }, entries))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Appends the entries that are not in the log yet. They are on disk when this returns.
    pub async fn append(&self, entries: Vec<RevocationEntry>, now: SystemTime) -> io::Result<()> {
        let log = self.clone();
        let appended = tokio::task::spawn_blocking(move || log.append_blocking(&entries, now));
        appended.await.map_err(io::Error::other)?
    }

    fn append_blocking(&self, entries: &[RevocationEntry], now: SystemTime) -> io::Result<()> {
        let mut written = self.written.lock_ignoring_poison();
        let fresh: Vec<RevocationEntry> =
            entries.iter().filter(|entry| !written.contains(&entry.fingerprint())).cloned().collect();
        if fresh.is_empty() {
            return Ok(());
        }
        // Opened for each append, so that nothing is written to a file that was moved away.
        let mut file = open(&self.path)?;
        let length = complete_last_line(&mut file)?;
        if let Err(error) = file.write_all(&lines(&fresh, now)) {
            // A full disk may have taken a part of it.
            let _ = file.set_len(length);
            return Err(error);
        }
        file.sync_data()?;
        written.extend(fresh.iter().map(RevocationEntry::fingerprint));
        Ok(())
    }
}

fn open(path: &Path) -> io::Result<File> {
    let is_new = !path.exists();
    let file = OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)?;
    if is_new && let Some(folder) = path.parent() {
        File::open(folder)?.sync_all()?;
    }
    Ok(file)
}

fn repair(path: &Path) -> io::Result<()> {
    let mut file = OpenOptions::new().read(true).append(true).open(path)?;
    complete_last_line(&mut file)?;
    file.sync_data()
}

/// Makes the file end with a complete line and returns its length. A last line without a line end is truncated when it
/// is not a whole entry, so that it never ends up in the middle of the file.
fn complete_last_line(file: &mut File) -> io::Result<u64> {
    let length = file.seek(SeekFrom::End(0))?;
    if length == 0 {
        return Ok(0);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    if last == *b"\n" {
        return Ok(length);
    }
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0))?;
    file.read_to_end(&mut bytes)?;
    let begin = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    if serde_json::from_slice::<Line>(&bytes[begin..]).is_ok() {
        file.write_all(b"\n")?;
        return Ok(length + 1);
    }
    file.set_len(begin as u64)?;
    Ok(begin as u64)
}

fn lines(entries: &[RevocationEntry], now: SystemTime) -> Vec<u8> {
    let time = causeway_channel::clock::UtcTimestamp(from_unix_seconds(unix_seconds(now))).to_string();
    let mut text = Vec::new();
    for entry in entries {
        let line = Line { time: time.clone(), entry: entry.clone() };
        serde_json::to_writer(&mut text, &line).expect("strings and numbers are always JSON");
        text.push(b'\n');
    }
    text
}

/// Returns the entries for the records of a snapshot.
pub fn entries_of(records: &[StoreRecord]) -> Vec<RevocationEntry> {
    records.iter().filter_map(|record| RevocationEntry::of(&record.key, &record.value)).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::identity::revocation::RevocationReason;

    fn now() -> SystemTime {
        from_unix_seconds(1_800_000_000)
    }

    fn key(name: &str, until: SystemTime) -> RevocationEntry {
        let record = RevocationRecord::new("g", RevocationReason::Revoked, now(), unix_seconds(until));
        RevocationEntry::Key { key: name.into(), record }
    }

    fn token(id: &str, redeemed: usize, deleted: Option<i64>) -> RevocationEntry {
        let redeemed = (0..redeemed).map(|number| Redeemed { key: number.to_string(), at: 1 }).collect();
        RevocationEntry::JoinToken { id: id.into(), expires: unix_seconds(now()), deleted, redeemed }
    }

    #[tokio::test]
    async fn redemptions_by_different_keys_are_different_lines() {
        let folder = tempfile::tempdir().unwrap();
        let (log, _) = RevocationLog::open(folder.path().join(FILE), now()).unwrap();
        let by = |key: &str| {
            let redeemed = vec![Redeemed { key: key.into(), at: 1 }];
            let expires = unix_seconds(now());
            RevocationEntry::JoinToken { id: "t".into(), expires, deleted: None, redeemed }
        };
        // The second key comes from another replica's log or from a restored store.
        log.append(vec![by("a")], now()).await.unwrap();
        log.append(vec![by("b"), by("a")], now()).await.unwrap();
        assert_eq!(read(log.path()).unwrap().unwrap().entries, [by("a"), by("b")]);
    }

    #[tokio::test]
    async fn a_line_is_written_once_and_read_back_also_after_half_a_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        assert!(read(&path).unwrap().is_none());
        let (log, entries) = RevocationLog::open(path.clone(), now()).unwrap();
        assert!(entries.is_empty() && !path.exists());
        let all = vec![
            key("a", now()),
            token("t", 1, None),
            RevocationEntry::ApiToken { id: "x".into(), expires: 5 },
        ];
        log.append(all.clone(), now()).await.unwrap();
        log.append(all.clone(), now()).await.unwrap();
        log.append(vec![token("t", 1, Some(7))], now()).await.unwrap();
        let content = read(&path).unwrap().unwrap();
        assert_eq!((content.entries.len(), content.is_torn), (4, false), "{content:?}");
        assert_eq!(content.entries[..3], all);
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

        // The machine stopped in the middle of a line.
        let mut torn = std::fs::read(&path).unwrap();
        torn.extend_from_slice(b"{\"time\":\"2027");
        std::fs::write(&path, torn).unwrap();
        assert!(read(&path).unwrap().unwrap().is_torn);
        let (log, entries) = RevocationLog::open(path.clone(), now()).unwrap();
        assert_eq!(entries.len(), 4);
        log.append(vec![key("b", now()), key("a", now())], now()).await.unwrap();
        let content = read(&path).unwrap().unwrap();
        assert_eq!((content.entries.len(), content.is_torn), (5, false));
        assert_eq!(content.entries[4], key("b", now()));
        assert!(!std::fs::read_to_string(&path).unwrap().contains("\"2027\n"), "the torn line is gone");

        // The same while the process runs: a write that a full disk cut off.
        let mut torn = std::fs::read(&path).unwrap();
        torn.extend_from_slice(b"{\"time\":\"2028");
        std::fs::write(&path, torn).unwrap();
        log.append(vec![key("c", now())], now()).await.unwrap();
        // A whole entry without its line end counts.
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, whole.trim_ascii_end()).unwrap();
        log.append(vec![key("d", now())], now()).await.unwrap();
        let (_, entries) = RevocationLog::open(path, now()).unwrap();
        assert_eq!((entries.len(), &entries[6]), (7, &key("d", now())));
    }

    #[tokio::test]
    async fn a_complete_line_that_cannot_be_read_is_an_error_that_names_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let (log, _) = RevocationLog::open(path.clone(), now()).unwrap();
        log.append(vec![key("a", now()), key("b", now()), key("c", now())], now()).await.unwrap();
        let whole = std::fs::read_to_string(&path).unwrap();
        let unknown_kind = whole.replacen("\"kind\":\"key\"", "\"kind\":\"newer\"", 1);
        let cut = whole.replacen("{\"time\"", "{\"ti", 1);
        for (text, line) in
            [(unknown_kind, "line 1 of"), (cut, "line 1 of"), (format!("{whole}\nxyz\n"), "line 5 of")]
        {
            std::fs::write(&path, &text).unwrap();
            let error = RevocationLog::open(path.clone(), now()).unwrap_err().to_string();
            for part in [line, path.to_str().unwrap(), "delete the line", "another replica"] {
                assert!(error.contains(part), "{part} is missing in {error}");
            }
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text, "the file stays as it is");
        }
    }

    #[tokio::test]
    async fn a_log_of_mostly_old_lines_is_shortened() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE);
        let (log, _) = RevocationLog::open(path.clone(), now()).unwrap();
        let later = now() + KEPT_AFTER_END + Duration::from_secs(10);
        let mut entries: Vec<RevocationEntry> =
            (0..1000).map(|number| key(&number.to_string(), now())).collect();
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
