//! The durable log of pending writes: one row per status, event, and change of an event.
//!
//! A write is answered after it is on disk. The file is readable by its owner only. A damaged file is put aside under another name, and a
//! new log begins.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use rusqlite::{Connection, params};
use tokio::sync::watch;

use crate::copy::CopyError;
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
}

const KINDS: [(PendingKind, &str); 3] = [
    (PendingKind::Status, "status"),
    (PendingKind::Event, "event"),
    (PendingKind::EventPatch, "event-patch"),
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
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PendingWrite {
    /// Rises with each write; 0 for one that is not in the log yet.
    pub sequence: i64,
    pub kind: PendingKind,
    /// The node in whose name it was written.
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
}

/// A handle; clones share the log.
#[derive(Clone)]
pub struct PendingLog(Arc<SharedLog>);

struct SharedLog {
    connection: Mutex<Connection>,
    /// The same as on disk.
    writes: Mutex<BTreeMap<(PendingKind, String), PendingWrite>>,
    /// Changes with every write; counts nothing.
    changed: watch::Sender<u64>,
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
    UNIQUE (kind, path)
);
";
/// Events beyond this number push out the oldest ones: the API server itself keeps them for an hour.
pub const EVENTS_MAX: usize = 1_000;

impl PendingLog {
    pub fn open(path: &Path) -> Result<PendingLog, CopyError> {
        let opened = match read(path) {
            Ok(opened) => opened,
            Err(error) => {
                let aside = PathBuf::from(format!("{}.damaged", path.display()));
                tracing::warn!(%error, aside = %aside.display(),
                    "the log of pending writes cannot be read; it is put aside and a new one begins");
                std::fs::rename(path, &aside)?;
                for ending in ["-wal", "-shm"] {
                    let _ = std::fs::remove_file(format!("{}{ending}", path.display()));
                }
                read(path)?
            }
        };
        let (connection, writes) = opened;
        let writes = writes.into_iter().map(|write| ((write.kind, write.path.clone()), write)).collect();
        let shared = SharedLog {
            connection: Mutex::new(connection),
            writes: Mutex::new(writes),
            changed: watch::Sender::new(0),
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
        let shared = self.0.clone();
        let done = tokio::task::spawn_blocking(move || {
            let mut write = write;
            let mut connection = shared.connection.lock().unwrap_or_else(PoisonError::into_inner);
            let transaction = connection.transaction()?;
            transaction.execute(
                "DELETE FROM writes WHERE kind = ?1 AND path = ?2",
                [write.kind.as_str(), &write.path],
            )?;
            transaction.execute(
                "INSERT INTO writes (kind, node, resource, key, path, content, body, base, at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
                params![
                    write.kind.as_str(),
                    write.node,
                    write.resource.to_string(),
                    write.key,
                    write.path,
                    write.content_type,
                    &write.body[..],
                    &write.base[..],
                    write.at
                ],
            )?;
            write.sequence = transaction.last_insert_rowid();
            let pushed_out = {
                let held = shared.writes.lock().unwrap_or_else(PoisonError::into_inner);
                surplus(&held)
            };
            for out in &pushed_out {
                transaction.execute("DELETE FROM writes WHERE sequence = ?1", [out.sequence])?;
            }
            transaction.commit()?;
            let mut held = shared.writes.lock().unwrap_or_else(PoisonError::into_inner);
            for out in &pushed_out {
                held.remove(&(out.kind, out.path.clone()));
            }
            held.insert((write.kind, write.path.clone()), write);
            Ok::<_, CopyError>(pushed_out)
        });
        let pushed_out = done.await.map_err(|_| CopyError::Ended)??;
        self.0.changed.send_modify(|count| *count += 1);
        Ok(pushed_out)
    }

    /// Removes a write that was sent or dropped; one that replaced it meanwhile stays.
    pub async fn remove(&self, write: &PendingWrite) -> Result<(), CopyError> {
        let (shared, sequence, key) = (self.0.clone(), write.sequence, (write.kind, write.path.clone()));
        let done = tokio::task::spawn_blocking(move || {
            let connection = shared.connection.lock().unwrap_or_else(PoisonError::into_inner);
            connection.execute("DELETE FROM writes WHERE sequence = ?1", [sequence])?;
            let mut held = shared.writes.lock().unwrap_or_else(PoisonError::into_inner);
            if held.get(&key).is_some_and(|held| held.sequence == sequence) {
                held.remove(&key);
            }
            Ok::<_, CopyError>(())
        });
        done.await.map_err(|_| CopyError::Ended)??;
        self.0.changed.send_modify(|count| *count += 1);
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(PendingKind, String), PendingWrite>> {
        self.0.writes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The oldest events, when there are too many.
fn surplus(held: &BTreeMap<(PendingKind, String), PendingWrite>) -> Vec<PendingWrite> {
    let mut events: Vec<&PendingWrite> =
        held.values().filter(|write| write.kind != PendingKind::Status).collect();
    if events.len() < EVENTS_MAX {
        return Vec::new();
    }
    events.sort_by_key(|write| write.sequence);
    events[..=events.len() - EVENTS_MAX].iter().map(|write| (*write).clone()).collect()
}

fn read(path: &Path) -> rusqlite::Result<(Connection, Vec<PendingWrite>)> {
    // SQLite gives its other files the mode of this one.
    let _ = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    let connection = Connection::open(path)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // An answered write survives a power loss.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.execute_batch(TABLES)?;
    let mut statement = connection.prepare(
        "SELECT sequence, kind, node, resource, key, path, content, body, base, at FROM writes ORDER BY sequence",
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
        held.insert((status.kind, status.path.clone()), status);
        assert!(surplus(&held).is_empty(), "a status is not counted");
        held.extend([event(EVENTS_MAX)]);
        let out = surplus(&held);
        assert_eq!(out.iter().map(|write| write.key.as_str()).collect::<Vec<_>>(), ["default/e1"]);
    }
}
