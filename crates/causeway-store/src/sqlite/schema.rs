//! The tables, and the opening of a database: locked, private, checked, durable.
//!
//! A file of a newer format or of another program is refused before it is changed.

use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rusqlite::{Connection, OpenFlags, params};

use super::{translate, translate_write};
use crate::{Revision, StoreError};

/// The format this program writes. A change that older programs would misread raises it.
const FORMAT: u64 = 1;
/// "Cswy": identifies the file as Causeway's, for `file(1)` and for `open`.
const APPLICATION_ID: i64 = 0x4373_7779;
/// Rows of up to two kilobytes stay inside their page, so that a list is one scan of the pages.
const PAGE_BYTES: u32 = 8192;

const TABLES: &str = "
CREATE TABLE meta (
    name  TEXT PRIMARY KEY,
    value INTEGER NOT NULL
) WITHOUT ROWID;

-- What stands now.
CREATE TABLE objects (
    key      TEXT PRIMARY KEY,
    value    TEXT NOT NULL,      -- JSON
    revision INTEGER NOT NULL,   -- last written
    created  INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX objects_by_revision ON objects (revision);
-- Names alone, to count without reading values.
CREATE INDEX objects_by_key ON objects (key);

-- What stood from revision until (not including) `until`, and was then replaced or deleted.
CREATE TABLE history (
    until    INTEGER NOT NULL,
    key      TEXT NOT NULL,
    value    TEXT NOT NULL,
    revision INTEGER NOT NULL,
    created  INTEGER NOT NULL,
    deleted  INTEGER NOT NULL,
    PRIMARY KEY (until, key)
) WITHOUT ROWID;
CREATE INDEX history_by_revision ON history (revision);

-- Which revision stood at which time, to know the age of history.
CREATE TABLE moments (
    revision     INTEGER PRIMARY KEY,
    unix_seconds INTEGER NOT NULL
);
";

/// The counters of the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoreMeta {
    pub revision: Revision,
    pub compacted: Revision,
    pub epoch: u64,
}

/// A store begins at revision 1, because 0 means "any" to Kubernetes clients.
const NEW: StoreMeta = StoreMeta { revision: Revision(1), compacted: Revision(1), epoch: 1 };

/// Opens the file for writing, and creates it when it is absent. The lock must live as long as the
/// connection.
pub(super) fn open(path: &Path) -> Result<(Connection, File, StoreMeta), StoreError> {
    let lock = lock(path)?;
    // SQLite gives its side files the mode of the main one, so the mode is set only here.
    private(path)?;
    let connection = Connection::open_with_flags(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX,
    )
    .map_err(translate_write)?;
    check_ours(&connection, path)?;
    configure(&connection).map_err(translate_write)?;
    create(&connection).map_err(translate_write)?;
    let meta = load(&connection)?;
    Ok((connection, lock, meta))
}

/// Opens a read-only connection. The writer must have opened the file before.
pub(super) fn open_reader(path: &Path) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(translate)?;
    connection.busy_timeout(std::time::Duration::from_secs(5)).map_err(translate)?;
    // In kibibytes. The system caches the file anyway; this is for the inner pages of the trees, once per
    // connection.
    connection.pragma_update(None, "cache_size", -1024).map_err(translate)?;
    connection.pragma_update(None, "temp_store", "MEMORY").map_err(translate)?;
    Ok(connection)
}

pub(super) fn load(connection: &Connection) -> Result<StoreMeta, StoreError> {
    let number = |name: &str| -> Result<u64, StoreError> {
        connection
            .prepare_cached("SELECT value FROM meta WHERE name = ?1")
            .and_then(|mut statement| statement.query_row([name], |row| row.get(0)))
            .map_err(translate)
    };
    Ok(StoreMeta {
        revision: Revision(number("revision")?),
        compacted: Revision(number("compacted")?),
        epoch: number("epoch")?,
    })
}

pub(super) fn save(connection: &Connection, name: &str, value: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE meta SET value = ?2 WHERE name = ?1")?
        .execute(params![name, value])
        .map(drop)
}

fn lock(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push("-lock");
    let name = PathBuf::from(name);
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&name)
        .map_err(|e| io(&name, e))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(StoreError::unavailable(format!("{} is in use by another process", path.display())))
        }
        Err(TryLockError::Error(error)) => Err(io(&name, error)),
    }
}

fn private(path: &Path) -> Result<(), StoreError> {
    let file = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)
        .map_err(|e| io(path, e))?;
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).map_err(|e| io(path, e))
}

fn io(path: &Path, error: std::io::Error) -> StoreError {
    let full =
        error.kind() == std::io::ErrorKind::StorageFull || error.kind() == std::io::ErrorKind::QuotaExceeded;
    if full {
        return StoreError::Full { source: Arc::new(error) };
    }
    StoreError::Unavailable {
        reason: format!("cannot open {}", path.display()),
        source: Some(Arc::new(error)),
    }
}

fn check_ours(connection: &Connection, path: &Path) -> Result<(), StoreError> {
    let pragma = |name: &str| {
        connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(translate_write)
    };
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(translate_write)?;
    if tables == 0 {
        return Ok(());
    }
    if pragma("application_id")? != APPLICATION_ID {
        return Err(StoreError::corrupt(format!("{} is a database of another program", path.display())));
    }
    let found = u64::try_from(pragma("user_version")?).unwrap_or(u64::MAX);
    if found > FORMAT { Err(StoreError::TooNew { found, supported: FORMAT }) } else { Ok(()) }
}

fn configure(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(std::time::Duration::from_secs(5))?;
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    // An acknowledged commit survives a loss of power: the log is synced at every transaction.
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "cache_size", -4096)?;
    // A log that once grew large is truncated, so that it does not keep the space.
    connection.pragma_update(None, "journal_size_limit", 16 << 20)
}

fn create(connection: &Connection) -> rusqlite::Result<()> {
    let transaction = connection.unchecked_transaction()?;
    let tables: i64 = transaction.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables > 0 {
        return Ok(());
    }
    transaction.execute_batch(TABLES)?;
    let rows = [("revision", NEW.revision.0), ("compacted", NEW.compacted.0), ("epoch", NEW.epoch)];
    for (name, value) in rows {
        transaction.execute("INSERT INTO meta (name, value) VALUES (?1, ?2)", params![name, value])?;
    }
    transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
    transaction.pragma_update(None, "user_version", FORMAT)?;
    transaction.commit()
}
