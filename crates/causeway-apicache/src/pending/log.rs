//! The durable log of pending writes: one row per status, event, and change of an event.
//!
//! A write is answered after it is on disk. The file is readable by its owner only. A damaged file is put aside under another name, and a
//! new log begins.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use causeway_daemon::sync::MutexExt;
use rusqlite::{Connection, params};
use tokio::sync::watch;

use super::identity::is_usable;
use super::token_cipher::TokenCipher;
use crate::copy::CopyError;
use crate::copy::tables::is_damage;
use crate::resource::ResourceName;

/// The kind of a pending write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PendingKind {
    /// The status of a node or a pod.
    Status,
    /// A new event.
    Event,
    /// A change of an event.
    EventPatch,
    /// An object of a resource that the operator lists. Without a base it is new, without a body it is deleted.
    Object,
}

const KINDS: [(PendingKind, &str); 4] = [
    (PendingKind::Status, "status"),
    (PendingKind::Event, "event"),
    (PendingKind::EventPatch, "event-patch"),
    (PendingKind::Object, "object"),
];

impl PendingKind {
    pub fn as_str(self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, text)| text)
    }

    fn parse(text: &str) -> Option<PendingKind> {
        KINDS.iter().find(|(_, name)| *name == text).map(|(kind, _)| *kind)
    }
}

/// One write that waits for the API server.
#[derive(Clone, PartialEq, Eq)]
pub struct PendingWrite {
    /// Rises with each write; 0 for one that is not in the log yet.
    pub sequence: i64,
    pub kind: PendingKind,
    /// The node in whose name it was written; empty for other callers.
    pub node: String,
    pub resource: ResourceName,
    /// `NAMESPACE/NAME` or `NAME`.
    pub key: String,
    /// The path of the object, without the subresource.
    pub path: String,
    pub content_type: String,
    /// A status: the object after the change, as JSON. Otherwise the body of the request.
    pub body: Bytes,
    /// A status: the object of the API server on which the first change stood, as JSON.
    pub base: Bytes,
    /// Unix seconds.
    pub at: i64,
    /// An object: the key of the caller (`LocalCaller::key`).
    pub caller: String,
    /// An object: the token of a caller that is no node, until it expires.
    pub token: String,
}

/// Without the token and the object, which may be a secret.
impl std::fmt::Debug for PendingWrite {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let PendingWrite { sequence, kind, resource, key, .. } = self;
        write!(formatter, "PendingWrite({sequence} {kind:?} {resource} {key})")
    }
}

/// A handle; clones share the log.
#[derive(Clone)]
pub struct PendingLog(Arc<SharedLog>);

struct SharedLog {
    connection: Mutex<Connection>,
    cipher: TokenCipher,
    /// The same as on disk.
    writes: Mutex<BTreeMap<(PendingKind, String), PendingWrite>>,
    /// Changes with every write; counts nothing.
    changed: watch::Sender<u64>,
    /// The sequence of the write that is under way to the API server.
    sending: Mutex<Option<i64>>,
}

/// A write that is under way; dropping it ends that.
pub struct SendingWrite(Arc<SharedLog>);

impl Drop for SendingWrite {
    fn drop(&mut self) {
        *self.0.sending.lock_ignoring_poison() = None;
    }
}

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS writes (
    sequence INTEGER PRIMARY KEY AUTOINCREMENT,
    kind     TEXT NOT NULL,
    node     TEXT NOT NULL,
    resource TEXT NOT NULL,
    key      TEXT NOT NULL,
    path     TEXT NOT NULL,
    content  TEXT NOT NULL,                  -- Content-Type
    body     BLOB NOT NULL,
    base     BLOB NOT NULL,
    at       INTEGER NOT NULL,
    caller   TEXT NOT NULL DEFAULT '',
    token    TEXT NOT NULL DEFAULT '',
    UNIQUE (kind, path)
);
";
// Columns that a log of an earlier version lacks.
const COLUMNS: [&str; 2] = [
    "ALTER TABLE writes ADD COLUMN caller TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE writes ADD COLUMN token TEXT NOT NULL DEFAULT ''",
];
/// Events beyond this number push out the oldest ones: the API server itself keeps them for an hour.
pub const EVENTS_MAX: usize = 1_000;
/// Writes of listed resources; further ones are refused, so that none is lost.
pub const OBJECTS_MAX: usize = 1_000;
const OBJECTS_BYTES_MAX: usize = 64 << 20;

/// A write with its object. etcd takes 1.5 MiB, so the API server takes no larger one.
pub const WRITE_BYTES_MAX: usize = 2 << 20;
// The statuses of one node: 500 pods of 64 KiB, each before and after its change. A node that is broken into leaves disk to the rest of the site.
const NODE_STATUS_BYTES_MAX: usize = 64 << 20;
/// Events of one node beyond these bytes push out its oldest ones.
const NODE_EVENT_BYTES_MAX: usize = 8 << 20;

fn size(write: &PendingWrite) -> usize {
    write.body.len() + write.base.len()
}

/// Decides whether the log takes a status in the name of a node. An earlier status of the same object gives way to it.
pub fn has_room_for_status(writes: &[PendingWrite], write: &PendingWrite) -> bool {
    let own = writes.iter().filter(|other| other.kind == PendingKind::Status && other.node == write.node);
    let held: usize = own.filter(|other| other.path != write.path).map(size).sum();
    held + size(write) <= NODE_STATUS_BYTES_MAX
}

// One caller takes a quarter of the log at most, so that it keeps no other caller out.
const CALLER_SHARE: usize = 4;

/// Decides whether the log takes another write of a listed resource.
pub fn has_room(writes: &[PendingWrite], caller: &str, bytes: usize) -> bool {
    let objects = || writes.iter().filter(|write| write.kind == PendingKind::Object);
    let own = || objects().filter(|write| write.caller == caller);
    let (held, own_held): (usize, usize) = (objects().map(size).sum(), own().map(size).sum());
    objects().count() < OBJECTS_MAX
        && held + bytes <= OBJECTS_BYTES_MAX
        && own().count() < OBJECTS_MAX / CALLER_SHARE
        && own_held + bytes <= OBJECTS_BYTES_MAX / CALLER_SHARE
}

impl PendingLog {
    pub fn open(path: &Path) -> Result<PendingLog, CopyError> {
        let cipher = TokenCipher::open(path)?;
        let opened = match read(path, &cipher) {
            Ok(opened) => (opened, cipher),
            // A full disk and the like pass. The writes stay where they are.
            Err(error) if !is_damage(&error) => return Err(error.into()),
            Err(error) => {
                let aside = PathBuf::from(format!("{}.damaged", path.display()));
                tracing::warn!(%error, aside = %aside.display(),
                    "the log of pending writes cannot be read; it is put aside and a new one begins");
                // Before the log: the tokens in it cannot be found, and are not readable without the key.
                std::fs::remove_file(TokenCipher::key_path(path))?;
                put_aside(path, &aside)?;
                let cipher = TokenCipher::open(path)?;
                (read(path, &cipher)?, cipher)
            }
        };
        let ((connection, writes), cipher) = opened;
        let writes = writes.into_iter().map(|write| ((write.kind, write.path.clone()), write)).collect();
        let shared = SharedLog {
            connection: Mutex::new(connection),
            cipher,
            writes: Mutex::new(writes),
            changed: watch::Sender::new(0),
            sending: Mutex::new(None),
        };
        Ok(PendingLog(Arc::new(shared)))
    }

    /// All writes in order.
    pub fn all(&self) -> Vec<PendingWrite> {
        let mut all: Vec<PendingWrite> = self.lock().values().cloned().collect();
        all.sort_by_key(|write| write.sequence);
        all
    }

    pub fn len(&self) -> usize {
        self.lock().len()
    }

    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub fn find(&self, kind: PendingKind, path: &str) -> Option<PendingWrite> {
        self.lock().get(&(kind, path.to_owned())).cloned()
    }

    /// Resolves after each change.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// Takes a write in, in place of an earlier one of the same kind and path. On disk when it returns. Returns the events that were
    /// pushed out.
    pub async fn append(&self, write: PendingWrite) -> Result<Vec<PendingWrite>, CopyError> {
        Ok(self.put(write, None).await?.unwrap_or_default())
    }

    /// As `append`, if the write that waits is still the one with the sequence `after` (0: none), and is not under way to the API
    /// server. Returns false otherwise: `write` was made from another state.
    pub async fn append_after(&self, after: i64, write: PendingWrite) -> Result<bool, CopyError> {
        Ok(self.put(write, Some(after)).await?.is_some())
    }

    async fn put(
        &self,
        write: PendingWrite,
        after: Option<i64>,
    ) -> Result<Option<Vec<PendingWrite>>, CopyError> {
        let shared = self.0.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut write = write;
            let mut connection = shared.connection.lock_ignoring_poison();
            if after.is_some_and(|after| !shared.is_at_rest(after, &(write.kind, write.path.clone()))) {
                return Ok(None);
            }
            let transaction = connection.transaction()?;
            transaction.execute(
                "DELETE FROM writes WHERE kind = ?1 AND path = ?2",
                [write.kind.as_str(), &write.path],
            )?;
            transaction.execute(
                "INSERT INTO writes (kind, node, resource, key, path, content, body, base, at, caller, token) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)",
                params![
                    write.kind.as_str(),
                    write.node,
                    write.resource.to_string(),
                    write.key,
                    write.path,
                    write.content_type,
                    &write.body[..],
                    &write.base[..],
                    write.at,
                    write.caller,
                    shared.cipher.seal(&write.token)
                ],
            )?;
            write.sequence = transaction.last_insert_rowid();
            let pushed_out = {
                let held = shared.writes.lock_ignoring_poison();
                surplus(&held, &write)
            };
            for out in &pushed_out {
                transaction.execute("DELETE FROM writes WHERE sequence = ?1", [out.sequence])?;
            }
            transaction.commit()?;
            let mut held = shared.writes.lock_ignoring_poison();
            for out in &pushed_out {
                held.remove(&(out.kind, out.path.clone()));
            }
            held.insert((write.kind, write.path.clone()), write);
            Ok::<_, CopyError>(Some(pushed_out))
        });
        let pushed_out = done.await.map_err(|_| CopyError::Ended)??;
        self.0.changed.send_modify(|count| *count += 1);
        Ok(pushed_out)
    }

    /// Marks a write as under way to the API server. `None`: it was replaced or removed since it was read.
    pub async fn begin_sending(&self, write: &PendingWrite) -> Result<Option<SendingWrite>, CopyError> {
        let (shared, sequence, key) = (self.0.clone(), write.sequence, (write.kind, write.path.clone()));
        let done = tokio::task::spawn_blocking(move || {
            // No write is put or removed meanwhile.
            let _connection = shared.connection.lock_ignoring_poison();
            if !shared.is_at_rest(sequence, &key) {
                return None;
            }
            *shared.sending.lock_ignoring_poison() = Some(sequence);
            Some(SendingWrite(shared.clone()))
        });
        done.await.map_err(|_| CopyError::Ended)
    }

    /// Removes a write that was sent or dropped; one that replaced it meanwhile stays.
    pub async fn remove(&self, write: &PendingWrite) -> Result<(), CopyError> {
        self.take_out(write, false).await.map(drop)
    }

    /// Removes a write that its caller takes back. Returns false when it was replaced, sent, or is under way to the API server.
    pub async fn remove_unsent(&self, write: &PendingWrite) -> Result<bool, CopyError> {
        self.take_out(write, true).await
    }

    async fn take_out(&self, write: &PendingWrite, is_taken_back: bool) -> Result<bool, CopyError> {
        let (shared, sequence, key) = (self.0.clone(), write.sequence, (write.kind, write.path.clone()));
        let has_token = !write.token.is_empty();
        let done = tokio::task::spawn_blocking(move || {
            let connection = shared.connection.lock_ignoring_poison();
            if is_taken_back && !shared.is_at_rest(sequence, &key) {
                return Ok(false);
            }
            connection.execute("DELETE FROM writes WHERE sequence = ?1", [sequence])?;
            if has_token {
                empty_journal(&connection)?;
            }
            let mut held = shared.writes.lock_ignoring_poison();
            if held.get(&key).is_some_and(|held| held.sequence == sequence) {
                held.remove(&key);
            }
            Ok::<_, CopyError>(true)
        });
        let is_removed = done.await.map_err(|_| CopyError::Ended)??;
        self.0.changed.send_modify(|count| *count += 1);
        Ok(is_removed)
    }

    /// Erases tokens that have expired, from disk too.
    pub async fn erase_expired_tokens(&self, now: i64) -> Result<(), CopyError> {
        let is_expired =
            |write: &PendingWrite| !write.token.is_empty() && !is_usable(&write.token, write.at, now);
        let expired: Vec<i64> =
            self.lock().values().filter(|write| is_expired(write)).map(|write| write.sequence).collect();
        if expired.is_empty() {
            return Ok(());
        }
        let shared = self.0.clone();
        let done = tokio::task::spawn_blocking(move || {
            let connection = shared.connection.lock_ignoring_poison();
            for sequence in &expired {
                connection.execute("UPDATE writes SET token = '' WHERE sequence = ?1", [sequence])?;
            }
            empty_journal(&connection)?;
            let mut held = shared.writes.lock_ignoring_poison();
            held.values_mut()
                .filter(|write| expired.contains(&write.sequence))
                .for_each(|write| write.token.clear());
            Ok::<_, CopyError>(())
        });
        done.await.map_err(|_| CopyError::Ended)?
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(PendingKind, String), PendingWrite>> {
        self.0.writes.lock_ignoring_poison()
    }
}

impl SharedLog {
    /// Returns true if the write of this sequence (0: none) waits under `key`, and is not under way. Its caller holds the connection.
    fn is_at_rest(&self, sequence: i64, key: &(PendingKind, String)) -> bool {
        let waiting = self.writes.lock_ignoring_poison().get(key).map_or(0, |held| held.sequence);
        waiting == sequence && *self.sending.lock_ignoring_poison() != Some(sequence)
    }
}

fn is_event(write: &PendingWrite) -> bool {
    matches!(write.kind, PendingKind::Event | PendingKind::EventPatch)
}

/// The oldest events that give way to a new write: when there are too many, and when those of its node have too many bytes.
fn surplus(held: &BTreeMap<(PendingKind, String), PendingWrite>, new: &PendingWrite) -> Vec<PendingWrite> {
    let mut events: Vec<&PendingWrite> = held.values().filter(|write| is_event(write)).collect();
    events.sort_by_key(|write| write.sequence);
    let too_many = (events.len() + 1).saturating_sub(EVENTS_MAX);
    let mut bytes = if is_event(new) { size(new) } else { 0 };
    let mut out = Vec::new();
    // From the newest back, so that the newest stay.
    for (number, write) in events.into_iter().enumerate().rev() {
        let is_own =
            is_event(new) && write.node == new.node && (write.kind, &write.path) != (new.kind, &new.path);
        bytes += if is_own { size(write) } else { 0 };
        if number < too_many || is_own && bytes > NODE_EVENT_BYTES_MAX {
            out.push(write.clone());
        }
    }
    out.reverse();
    out
}

/// Writes the journal into the database and truncates it: pages of before would keep erased tokens.
fn empty_journal(connection: &Connection) -> rusqlite::Result<()> {
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}

/// Renames the database and its journal, which may have the newest writes. SQLite looks for the journal under the name of its database.
fn put_aside(path: &Path, aside: &Path) -> std::io::Result<()> {
    std::fs::rename(path, aside)?;
    let with = |path: &Path, ending: &str| PathBuf::from(format!("{}{ending}", path.display()));
    // Made anew from the journal.
    let _ = std::fs::remove_file(with(path, "-shm"));
    match std::fs::rename(with(path, "-wal"), with(aside, "-wal")) {
        // The journal of an earlier damaged file does not belong to this one.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let _ = std::fs::remove_file(with(aside, "-wal"));
            Ok(())
        }
        other => other,
    }
}

fn read(path: &Path, cipher: &TokenCipher) -> rusqlite::Result<(Connection, Vec<PendingWrite>)> {
    // SQLite gives its other files the mode of this one.
    let _ = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // An answered write survives a power loss.
    connection.pragma_update(None, "synchronous", "FULL")?;
    // An erased token leaves no bytes in the file.
    connection.pragma_update(None, "secure_delete", "ON")?;
    connection.execute_batch(TABLES)?;
    let has_token = connection.prepare("SELECT token FROM writes LIMIT 0").is_ok();
    if !has_token {
        // Together: a log with one of the columns would be taken for a damaged one.
        connection.execute_batch(&format!("BEGIN; {}; {}; COMMIT", COLUMNS[0], COLUMNS[1]))?;
    }
    let mut statement = connection.prepare(
        "SELECT sequence, kind, node, resource, key, path, content, body, base, at, caller, token FROM writes ORDER BY sequence",
    )?;
    let rows = statement.query_map([], |row| {
        let bytes = |column| Ok::<_, rusqlite::Error>(Bytes::from(row.get::<_, Vec<u8>>(column)?));
        let (kind, resource): (String, String) = (row.get(1)?, row.get(3)?);
        let (Some(kind), Some(resource)) = (PendingKind::parse(&kind), ResourceName::parse(&resource)) else {
            // A row of a newer version stays on disk.
            return Ok(None);
        };
        Ok(Some(PendingWrite {
            sequence: row.get(0)?,
            kind,
            node: row.get(2)?,
            resource,
            key: row.get(4)?,
            path: row.get(5)?,
            content_type: row.get(6)?,
            body: bytes(7)?,
            base: bytes(8)?,
            at: row.get(9)?,
            caller: row.get(10)?,
            token: cipher.unseal(&row.get::<_, String>(11)?),
        }))
    })?;
    let writes = rows.collect::<rusqlite::Result<Vec<_>>>()?.into_iter().flatten().collect();
    drop(statement);
    Ok((connection, writes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(kind: PendingKind, name: &str, body: &str) -> PendingWrite {
        PendingWrite {
            sequence: 0,
            kind,
            node: "n1".into(),
            resource: ResourceName::new("", "v1", "pods"),
            key: format!("default/{name}"),
            path: format!("/api/v1/namespaces/default/pods/{name}"),
            content_type: "application/json".into(),
            body: Bytes::from(body.to_owned()),
            base: Bytes::from_static(b"{}"),
            at: 7,
            caller: String::new(),
            token: String::new(),
        }
    }

    #[tokio::test]
    async fn the_last_write_of_an_object_is_kept_in_order_and_survives_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pending.db");
        let log = PendingLog::open(&path).unwrap();
        let first = write(PendingKind::Status, "a", "1");
        log.append(first.clone()).await.unwrap();
        log.append(write(PendingKind::Status, "b", "2")).await.unwrap();
        let old = log.all()[0].clone();
        log.append(write(PendingKind::Status, "a", "3")).await.unwrap();
        log.append(write(PendingKind::Event, "a", "4")).await.unwrap();
        // The answer to an earlier write does not remove the one that came meanwhile.
        log.remove(&old).await.unwrap();
        drop(log);
        let log = PendingLog::open(&path).unwrap();
        let bodies: Vec<_> = log.all().iter().map(|write| write.body.clone()).collect();
        assert_eq!(bodies, ["2", "3", "4"]);
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
        for write in log.all() {
            log.remove(&write).await.unwrap();
        }
        assert!(log.is_empty() && PendingLog::open(&path).unwrap().is_empty());
    }

    #[tokio::test]
    async fn the_oldest_events_make_room_and_a_damaged_file_is_put_aside() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pending.db");
        std::fs::write(&path, vec![b'x'; 8_192]).unwrap();
        let log = PendingLog::open(&path).unwrap();
        assert!(folder.path().join("pending.db.damaged").exists());
        assert!(log.is_empty());
        let event = |number: usize| {
            let sequence = i64::try_from(number).unwrap();
            let write = PendingWrite { sequence, ..write(PendingKind::Event, &format!("e{number}"), "") };
            ((write.kind, write.path.clone()), write)
        };
        let mut held: BTreeMap<_, _> = (1..EVENTS_MAX).map(event).collect();
        let status = write(PendingKind::Status, "pod", "");
        held.insert((status.kind, status.path.clone()), status.clone());
        assert!(surplus(&held, &status).is_empty(), "a status is not counted");
        held.extend([event(EVENTS_MAX)]);
        let out = surplus(&held, &status);
        assert_eq!(out.iter().map(|write| write.key.as_str()).collect::<Vec<_>>(), ["default/e1"]);
    }

    #[tokio::test]
    async fn a_node_has_a_share_of_the_bytes_and_pushes_out_its_own_events() {
        let folder = tempfile::tempdir().unwrap();
        let log = PendingLog::open(&folder.path().join("pending.db")).unwrap();
        let event = |node: &str, number: usize| PendingWrite {
            node: node.into(),
            body: Bytes::from(vec![b'x'; WRITE_BYTES_MAX]),
            ..write(PendingKind::Event, &format!("{node}-{number}"), "")
        };
        assert!(log.append(event("n1", 0)).await.unwrap().is_empty());
        let mut out = Vec::new();
        for number in 0..6 {
            out.extend(log.append(event("n2", number)).await.unwrap());
        }
        assert_eq!(
            out.iter().map(|write| write.key.as_str()).collect::<Vec<_>>(),
            ["default/n2-0", "default/n2-1", "default/n2-2"]
        );
        assert_eq!(log.len(), 4, "and the event of the other node");
        assert!(log.append(event("n2", 5)).await.unwrap().is_empty(), "it takes its own place");
        let status = |node: &str, number: usize| PendingWrite {
            node: node.into(),
            base: Bytes::from(vec![b'x'; WRITE_BYTES_MAX]),
            body: Bytes::from(vec![b'x'; WRITE_BYTES_MAX]),
            ..write(PendingKind::Status, &format!("{node}-{number}"), "")
        };
        let held: Vec<PendingWrite> = (0..16).map(|number| status("n1", number)).collect();
        assert!(has_room_for_status(&held[1..], &held[0]) && !has_room_for_status(&held, &status("n1", 16)));
        assert!(has_room_for_status(&held, &held[0]), "it takes its own place");
        assert!(has_room_for_status(&held, &status("n2", 0)), "another node");
    }

    #[tokio::test]
    async fn a_log_that_cannot_be_opened_now_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pending.db");
        // SQLite reports this as it reports a full disk at the start: the file cannot be opened.
        std::fs::create_dir(&path).unwrap();
        assert!(PendingLog::open(&path).is_err());
        assert!(path.exists() && !folder.path().join("pending.db.damaged").exists());
    }

    #[tokio::test]
    async fn a_damaged_log_keeps_no_token_readable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pending.db");
        let secret = "an-opaque-token-of-a-caller";
        let log = PendingLog::open(&path).unwrap();
        log.append(PendingWrite { token: secret.into(), ..write(PendingKind::Object, "o", "{}") })
            .await
            .unwrap();
        let key = std::fs::read(TokenCipher::key_path(&path)).unwrap();
        drop(log);
        assert_eq!(PendingLog::open(&path).unwrap().all()[0].token, secret, "after a restart");
        // The pages of the table stay as they are.
        let mut damaged = std::fs::read(&path).unwrap();
        damaged[..16].fill(b'x');
        std::fs::write(&path, damaged).unwrap();
        assert!(PendingLog::open(&path).unwrap().is_empty());
        assert!(folder.path().join("pending.db.damaged").exists());
        for file in std::fs::read_dir(folder.path()).unwrap() {
            let file = std::fs::read(file.unwrap().path()).unwrap();
            let has = |text: &[u8]| file.windows(text.len()).any(|part| part == text);
            assert!(!has(secret.as_bytes()) && !has(&key));
        }
    }

    #[test]
    fn a_damaged_log_is_put_aside_with_its_journal() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str| folder.path().join(name);
        let (path, aside) = (file("pending.db"), file("pending.db.damaged"));
        // After kill -9 the newest writes are in the journal alone.
        std::fs::write(&path, b"first").unwrap();
        std::fs::write(file("pending.db-wal"), b"journal").unwrap();
        put_aside(&path, &aside).unwrap();
        assert!(!path.exists() && !file("pending.db-wal").exists());
        assert_eq!(std::fs::read(file("pending.db.damaged-wal")).unwrap(), b"journal");
        // The next damaged file has no journal, and does not get that one.
        std::fs::write(&path, b"second").unwrap();
        put_aside(&path, &aside).unwrap();
        assert_eq!(std::fs::read(&aside).unwrap(), b"second");
        assert!(!file("pending.db.damaged-wal").exists());
    }

    #[tokio::test]
    async fn a_write_is_made_from_the_newest_state_and_not_while_that_is_under_way() {
        let folder = tempfile::tempdir().unwrap();
        let log = PendingLog::open(&folder.path().join("pending.db")).unwrap();
        let object = |body: &str| write(PendingKind::Object, "o", body);
        assert!(log.append_after(0, object("1")).await.unwrap());
        let first = log.all()[0].clone();
        assert!(!log.append_after(0, object("2")).await.unwrap(), "made from no write");
        assert!(log.append_after(first.sequence, object("2")).await.unwrap());
        assert!(log.begin_sending(&first).await.unwrap().is_none(), "it was replaced");
        assert!(!log.remove_unsent(&first).await.unwrap());
        let second = log.all()[0].clone();
        let sending = log.begin_sending(&second).await.unwrap().expect("it waits");
        assert!(!log.append_after(second.sequence, object("3")).await.unwrap());
        assert!(!log.remove_unsent(&second).await.unwrap());
        drop(sending);
        assert!(log.remove_unsent(&second).await.unwrap() && log.is_empty());
    }

    #[tokio::test]
    async fn tokens_are_erased_when_they_expire_and_an_older_log_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pending.db");
        let old = Connection::open(&path).unwrap();
        let table = TABLES
            .replace("    caller   TEXT NOT NULL DEFAULT '',\n    token    TEXT NOT NULL DEFAULT '',\n", "");
        old.execute_batch(&table).unwrap();
        let row = "INSERT INTO writes (kind, node, resource, key, path, content, body, base, at) \
                   VALUES ('status', 'n1', 'v1/pods', 'a', '/a', '', x'', x'', 1)";
        old.execute(row, []).unwrap();
        drop(old);
        let log = PendingLog::open(&path).unwrap();
        assert_eq!(log.len(), 1, "the write of an earlier version");
        let secret = "an-opaque-token-of-a-caller";
        let kept = PendingWrite { token: secret.into(), at: 100, ..write(PendingKind::Object, "o", "{}") };
        log.append(kept).await.unwrap();
        let token = |log: &PendingLog| log.all().last().unwrap().token.clone();
        log.erase_expired_tokens(200).await.unwrap();
        assert_eq!(token(&log), secret);
        log.erase_expired_tokens(100 + 24 * 3_600).await.unwrap();
        assert_eq!(token(&log), "");
        drop(log);
        assert_eq!(token(&PendingLog::open(&path).unwrap()), "");
    }

    #[test]
    fn writes_of_listed_resources_are_bounded_and_push_out_nothing() {
        let object = |bytes: usize| PendingWrite {
            body: Bytes::from(vec![b'x'; bytes]),
            ..write(PendingKind::Object, "o", "")
        };
        assert!(
            has_room(&vec![object(1); OBJECTS_MAX - 1], "a", 1)
                && !has_room(&vec![object(1); OBJECTS_MAX], "a", 1)
        );
        assert!(
            !has_room(&[object(OBJECTS_BYTES_MAX)], "a", 1)
                && has_room(&[write(PendingKind::Event, "e", "x")], "a", 1)
        );
        let own = |bytes: usize| PendingWrite { caller: "a".into(), ..object(bytes) };
        let share = vec![own(1); OBJECTS_MAX / CALLER_SHARE];
        assert!(!has_room(&share, "a", 1) && has_room(&share, "b", 1), "the share of one caller");
        let large = [own(OBJECTS_BYTES_MAX / CALLER_SHARE)];
        assert!(!has_room(&large, "a", 1) && has_room(&large, "b", 1));
        let numbered = |number: i64| {
            let write = PendingWrite { sequence: number, path: number.to_string(), ..object(1) };
            ((write.kind, write.path.clone()), write)
        };
        assert_eq!(surplus(&(0..2_000).map(numbered).collect(), &object(1)), []);
    }
}
