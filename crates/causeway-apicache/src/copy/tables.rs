//! The tables of the copy, and the statements on them.
//!
//! `bodies` has each version of an object once; `members` tells which subscription holds which. A comparison collects in
//! `staged` and takes effect in one transaction, so a crash leaves the old state or the new one.

use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use causeway_api::Revision;
use rusqlite::{Connection, OptionalExtension, params};

use crate::kube_object::KubeObject;
use crate::resource::{ResourceDescription, SubscriptionScope};
use crate::sync::wire::ChangeEntry;

/// Raised by a change that an older program would misread; such a file is made anew.
const FORMAT: u32 = 1;

const TABLES: &str = "
CREATE TABLE subscriptions (
    id          INTEGER PRIMARY KEY,
    scope       TEXT NOT NULL UNIQUE,        -- SubscriptionScope as JSON
    description TEXT NOT NULL DEFAULT '',    -- ResourceDescription as JSON
    revision    INTEGER NOT NULL DEFAULT 0,  -- 0: not complete
    synced      INTEGER NOT NULL DEFAULT 0,  -- unix seconds
    used        INTEGER NOT NULL DEFAULT 0,
    node        TEXT NOT NULL DEFAULT ''     -- the node in whose name it is held
);
CREATE TABLE bodies (
    id       INTEGER PRIMARY KEY,
    resource TEXT NOT NULL,
    key      TEXT NOT NULL,
    revision INTEGER NOT NULL,
    uid      TEXT NOT NULL,
    body     BLOB NOT NULL,
    cells    BLOB NOT NULL,
    UNIQUE (resource, key, revision, uid)
);
CREATE TABLE members (
    subscription INTEGER NOT NULL,
    key          TEXT NOT NULL,
    body         INTEGER NOT NULL,
    PRIMARY KEY (subscription, key)
) WITHOUT ROWID;
CREATE INDEX members_by_body ON members (body);
CREATE TABLE staged (
    subscription INTEGER NOT NULL,
    number       INTEGER NOT NULL,
    key          TEXT NOT NULL,
    revision     INTEGER NOT NULL,
    body         INTEGER,                    -- NULL: deleted
    PRIMARY KEY (subscription, number)
) WITHOUT ROWID;
CREATE INDEX staged_by_body ON staged (body);
CREATE TABLE documents (
    key     TEXT PRIMARY KEY,
    content TEXT NOT NULL,                   -- Content-Type
    fetched INTEGER NOT NULL,
    body    BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE grants (
    caller   TEXT NOT NULL,
    question TEXT NOT NULL,
    allowed  INTEGER NOT NULL,               -- unix seconds of the answer
    PRIMARY KEY (caller, question)
) WITHOUT ROWID;
CREATE TABLE callers (
    token TEXT PRIMARY KEY,                  -- keyed hash
    user  TEXT NOT NULL,                     -- UserInfo as JSON
    seen  INTEGER NOT NULL
) WITHOUT ROWID;
";

// Added after the first version of the format, which ignores it.
const TOKENS: &str = "
CREATE TABLE IF NOT EXISTS tokens (
    request TEXT PRIMARY KEY,                -- caller, account and audiences
    pod     TEXT NOT NULL,                   -- the UID of the pod that the token is bound to
    expires INTEGER NOT NULL,                -- the `exp` inside the token
    content TEXT NOT NULL,                   -- Content-Type
    body    BLOB NOT NULL                    -- the answer of the API server
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS tokens_by_pod ON tokens (pod);
";

pub fn open(path: &Path) -> rusqlite::Result<Connection> {
    // SQLite gives its other files the mode of this one.
    let _ = OpenOptions::new().create(true).append(true).mode(0o600).open(path);
    let connection = open_reader(path)?;
    let format: u32 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    match format {
        0 => {
            connection.pragma_update(None, "page_size", 8192)?;
            connection.pragma_update(None, "journal_mode", "WAL")?;
            connection.execute_batch(TABLES)?;
            connection.pragma_update(None, "user_version", FORMAT)?;
        }
        FORMAT => {}
        other => return Err(rusqlite::Error::IntegralValueOutOfRange(0, i64::from(other))),
    }
    connection.execute_batch(TOKENS)?;
    // The cloud sends again what was not acknowledged, so a commit that a power loss takes back is no loss.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    // A comparison that a crash ended begins anew.
    connection.execute("DELETE FROM staged", [])?;
    drop_unused_bodies(&connection)?;
    Ok(connection)
}

/// Returns true if a database file cannot be used any more: it is damaged, or has another format. A full disk, a file in use and the like
/// pass: the file must stay.
pub fn is_damage(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode;
    // SQLite has one code for tables and columns that are missing; a value of an unexpected type has none.
    error.sqlite_error_code().is_none_or(|code| {
        matches!(code, ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase | ErrorCode::Unknown)
    })
}

/// The bytes of the file that hold something.
pub fn used_bytes(connection: &Connection) -> rusqlite::Result<u64> {
    let number = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
    Ok((number("page_count")? - number("freelist_count")?) * number("page_size")?)
}

pub fn open_reader(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(5))?;
    Ok(connection)
}

fn drop_unused_bodies(connection: &Connection) -> rusqlite::Result<usize> {
    let unused = "DELETE FROM bodies WHERE NOT EXISTS (SELECT 1 FROM members WHERE members.body = bodies.id)
        AND NOT EXISTS (SELECT 1 FROM staged WHERE staged.body = bodies.id)";
    connection.execute(unused, [])
}

/// A subscription as it is stored.
pub struct StoredSubscription {
    pub id: i64,
    pub scope: SubscriptionScope,
    pub description: Option<ResourceDescription>,
    pub revision: Revision,
    pub node: String,
    pub stats: CopyStats,
}

/// The size of a copy, and the unix seconds of its last sync.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CopyStats {
    pub objects: u64,
    pub bytes: u64,
    pub synced: i64,
}

impl CopyStats {
    /// The memory that the objects have when all of them are read, with keys and cells.
    pub fn held_bytes(&self) -> usize {
        usize::try_from(self.bytes + self.objects * OBJECT_OVERHEAD_BYTES).unwrap_or(usize::MAX)
    }
}

// The key, the UID and the cells of an object, and its place in a list.
const OBJECT_OVERHEAD_BYTES: u64 = 512;

pub fn subscriptions(connection: &Connection) -> rusqlite::Result<Vec<StoredSubscription>> {
    let mut statement =
        connection.prepare("SELECT id, scope, description, revision, node FROM subscriptions")?;
    let rows = statement.query_map([], |row| {
        Ok((
            row.get(0)?,
            row.get::<_, String>(1)?,
            row.get::<_, String>(2)?,
            row.get::<_, u64>(3)?,
            row.get(4)?,
        ))
    })?;
    let mut found = Vec::new();
    for row in rows {
        let (id, scope, description, revision, node) = row?;
        // A scope that this version cannot read is left alone; it is dropped when it was not used for long.
        let Ok(scope) = serde_json::from_str(&scope) else { continue };
        let description = serde_json::from_str(&description).ok();
        let stats = stats(connection, id)?;
        found.push(StoredSubscription { id, scope, description, revision: Revision(revision), node, stats });
    }
    Ok(found)
}

pub fn create_subscription(
    connection: &Connection,
    scope: &SubscriptionScope,
    node: &str,
) -> rusqlite::Result<i64> {
    let text = serde_json::to_string(scope).unwrap_or_default();
    connection.execute("INSERT OR IGNORE INTO subscriptions (scope) VALUES (?1)", [&text])?;
    connection.execute("UPDATE subscriptions SET node = ?2 WHERE scope = ?1 AND ?2 <> ''", [&text, node])?;
    connection.query_row("SELECT id FROM subscriptions WHERE scope = ?1", [&text], |row| row.get(0))
}

pub fn drop_subscription(connection: &Connection, id: i64) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM members WHERE subscription = ?1", [id])?;
    connection.execute("DELETE FROM staged WHERE subscription = ?1", [id])?;
    connection.execute("DELETE FROM subscriptions WHERE id = ?1", [id])?;
    drop_unused_bodies(connection).map(drop)
}

/// Removes the part of a comparison that has come.
pub fn drop_staged(connection: &Connection, id: i64) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM staged WHERE subscription = ?1", [id])?;
    drop_unused_bodies(connection).map(drop)
}

pub fn describe(connection: &Connection, id: i64, description: &ResourceDescription) -> rusqlite::Result<()> {
    let text = serde_json::to_string(description).unwrap_or_default();
    connection.execute("UPDATE subscriptions SET description = ?2 WHERE id = ?1", params![id, text])?;
    // A new session begins without the comparison of the one before.
    connection.execute("DELETE FROM staged WHERE subscription = ?1", [id])?;
    Ok(())
}

pub fn advance(connection: &Connection, id: i64, revision: Revision, now: i64) -> rusqlite::Result<()> {
    let update = "UPDATE subscriptions SET revision = ?2, synced = ?3 WHERE id = ?1";
    connection.execute(update, params![id, revision.0, now]).map(drop)
}

/// The keys, UIDs and revisions of a copy.
pub fn entries(connection: &Connection, id: i64) -> rusqlite::Result<Vec<(String, String, Revision)>> {
    let query = "SELECT members.key, bodies.uid, bodies.revision FROM members
        JOIN bodies ON bodies.id = members.body WHERE members.subscription = ?1 ORDER BY members.key";
    let mut statement = connection.prepare_cached(query)?;
    let rows = statement.query_map([id], |row| Ok((row.get(0)?, row.get(1)?, Revision(row.get(2)?))))?;
    rows.collect()
}

pub fn stage(
    connection: &Connection,
    id: i64,
    resource: &str,
    changes: &[ChangeEntry],
) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached(
        "INSERT INTO staged SELECT ?1, coalesce(max(number), 0) + 1, ?2, ?3, ?4 FROM staged WHERE subscription = ?1",
    )?;
    for change in changes {
        let body = (!change.deleted).then(|| keep_body(connection, resource, change)).transpose()?;
        statement.execute(params![id, change.key, change.revision, body])?;
    }
    Ok(())
}

/// One change of a copy, with the objects before and after it.
pub struct AppliedChange {
    pub revision: Revision,
    pub before: Option<KubeObject>,
    pub now: Option<KubeObject>,
}

/// Puts staged changes and `changes` in force; the copy is complete at `revision`. Returns the changes in order.
pub fn complete(
    connection: &Connection,
    id: i64,
    resource: &str,
    changes: &[ChangeEntry],
    (revision, now): (Revision, i64),
) -> rusqlite::Result<Vec<AppliedChange>> {
    stage(connection, id, resource, changes)?;
    let mut statement = connection
        .prepare_cached("SELECT key, revision, body FROM staged WHERE subscription = ?1 ORDER BY number")?;
    let staged: Vec<(String, u64, Option<i64>)> = statement
        .query_map([id], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<Result<_, _>>()?;
    let mut applied = Vec::with_capacity(staged.len());
    for (key, at, body) in staged {
        let before = member_body(connection, id, &key)?;
        let before_object = before.map(|before| read_body(connection, before)).transpose()?;
        let now_object = body.map(|body| read_body(connection, body)).transpose()?;
        match body {
            Some(body) => connection
                .prepare_cached("INSERT OR REPLACE INTO members VALUES (?1, ?2, ?3)")?
                .execute(params![id, key, body])?,
            None => connection
                .prepare_cached("DELETE FROM members WHERE subscription = ?1 AND key = ?2")?
                .execute(params![id, key])?,
        };
        if let Some(before) = before_object.as_ref().filter(|_| resource == PODS)
            && now_object.as_ref().is_none_or(|now| now.uid != before.uid)
        {
            drop_tokens(connection, &before.uid)?;
        }
        if before_object.is_some() || now_object.is_some() {
            applied.push(AppliedChange { revision: Revision(at), before: before_object, now: now_object });
        }
        if let Some(before) = before.filter(|before| Some(*before) != body) {
            drop_body(connection, before)?;
        }
    }
    connection.prepare_cached("DELETE FROM staged WHERE subscription = ?1")?.execute([id])?;
    advance(connection, id, revision, now)?;
    Ok(applied)
}

/// The resource whose objects tokens are bound to.
const PODS: &str = "v1/pods";
// A site has a few hundred pods with a token or two each.
const TOKENS_MAX: u32 = 10_000;
// A token of Kubernetes has about a thousand bytes.
const TOKEN_ANSWER_BYTES_MAX: usize = 64 << 10;

/// An answer to a TokenRequest: its type and its bytes.
pub fn token(connection: &Connection, request: &str, now: i64) -> rusqlite::Result<Option<(String, Bytes)>> {
    let query = "SELECT content, body FROM tokens WHERE request = ?1 AND expires > ?2";
    let found = connection.query_row(query, params![request, now], |row| {
        Ok((row.get(0)?, Bytes::from(row.get::<_, Vec<u8>>(1)?)))
    });
    found.optional()
}

/// Keeps an answer until its token expires or its pod goes.
pub fn keep_token(
    connection: &Connection,
    request: &str,
    (pod, expires): (&str, i64),
    (content, body): (&str, &[u8]),
    now: i64,
) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM tokens WHERE expires <= ?1", [now])?;
    if request.len() + body.len() > TOKEN_ANSWER_BYTES_MAX {
        return Ok(());
    }
    let insert = "INSERT OR REPLACE INTO tokens VALUES (?1, ?2, ?3, ?4, ?5)";
    connection.execute(insert, params![request, pod, expires, content, body])?;
    drop_surplus_tokens(connection, request, TOKENS_MAX)
}

/// Drops the tokens that expire first. Many may expire at the same time.
fn drop_surplus_tokens(connection: &Connection, newest: &str, tokens_max: u32) -> rusqlite::Result<()> {
    let surplus = "DELETE FROM tokens WHERE request IN (SELECT request FROM tokens
        ORDER BY request = ?1 DESC, expires DESC, request LIMIT -1 OFFSET ?2)";
    connection.execute(surplus, params![newest, tokens_max]).map(drop)
}

/// Removes the tokens of a pod that is gone.
fn drop_tokens(connection: &Connection, pod: &str) -> rusqlite::Result<()> {
    connection.prepare_cached("DELETE FROM tokens WHERE pod = ?1")?.execute([pod]).map(drop)
}

/// The pods with a token that expires later than `now`, by UID.
pub fn token_pods(connection: &Connection, now: i64) -> rusqlite::Result<Vec<String>> {
    let mut statement = connection.prepare("SELECT DISTINCT pod FROM tokens WHERE expires > ?1")?;
    let rows = statement.query_map([now], |row| row.get(0))?;
    rows.collect()
}

fn keep_body(connection: &Connection, resource: &str, change: &ChangeEntry) -> rusqlite::Result<i64> {
    let find = "SELECT id FROM bodies WHERE resource = ?1 AND key = ?2 AND revision = ?3 AND uid = ?4";
    let key = params![resource, change.key, change.revision, change.uid];
    let known = connection.prepare_cached(find)?.query_row(key, |row| row.get(0)).optional()?;
    if let Some(known) = known {
        return Ok(known);
    }
    let insert =
        "INSERT INTO bodies (resource, key, revision, uid, body, cells) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    let row = params![resource, change.key, change.revision, change.uid, &change.body[..], &change.cells[..]];
    connection.prepare_cached(insert)?.execute(row)?;
    Ok(connection.last_insert_rowid())
}

fn member_body(connection: &Connection, id: i64, key: &str) -> rusqlite::Result<Option<i64>> {
    let query = "SELECT body FROM members WHERE subscription = ?1 AND key = ?2";
    connection.prepare_cached(query)?.query_row(params![id, key], |row| row.get(0)).optional()
}

fn drop_body(connection: &Connection, body: i64) -> rusqlite::Result<()> {
    let unused = "DELETE FROM bodies WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM members WHERE body = ?1)
        AND NOT EXISTS (SELECT 1 FROM staged WHERE body = ?1)";
    connection.prepare_cached(unused)?.execute([body]).map(drop)
}

const OBJECT: &str = "SELECT bodies.key, bodies.uid, bodies.revision, bodies.body, bodies.cells FROM bodies";

fn object(row: &rusqlite::Row<'_>) -> rusqlite::Result<KubeObject> {
    let bytes = |column| Ok::<_, rusqlite::Error>(Bytes::from(row.get::<_, Vec<u8>>(column)?));
    Ok(KubeObject {
        key: row.get(0)?,
        uid: row.get(1)?,
        revision: Revision(row.get(2)?),
        body: bytes(3)?,
        cells: bytes(4)?,
    })
}

fn read_body(connection: &Connection, body: i64) -> rusqlite::Result<KubeObject> {
    connection.prepare_cached(&format!("{OBJECT} WHERE id = ?1"))?.query_row([body], object)
}

/// The revision of a copy, and its objects in the order of their keys. `prefix` limits it to a namespace (`NAMESPACE/`).
pub fn list(connection: &Connection, id: i64, prefix: &str) -> rusqlite::Result<(Revision, Vec<KubeObject>)> {
    let revision = revision(connection, id)?;
    let query = format!(
        "{OBJECT} JOIN members ON members.body = bodies.id
         WHERE members.subscription = ?1 AND members.key >= ?2 AND substr(members.key, 1, ?3) = ?2 ORDER BY members.key"
    );
    let mut statement = connection.prepare_cached(&query)?;
    let rows = statement.query_map(params![id, prefix, prefix.chars().count()], object)?;
    Ok((revision, rows.collect::<Result<_, _>>()?))
}

/// The revision of a copy, and one of its objects.
pub fn get(connection: &Connection, id: i64, key: &str) -> rusqlite::Result<(Revision, Option<KubeObject>)> {
    let revision = revision(connection, id)?;
    let found = member_body(connection, id, key)?.map(|body| read_body(connection, body)).transpose()?;
    Ok((revision, found))
}

/// The subscriptions that hold an object.
pub fn holders(connection: &Connection, resource: &str, key: &str) -> rusqlite::Result<Vec<i64>> {
    let query = "SELECT DISTINCT members.subscription FROM bodies JOIN members ON members.body = bodies.id
        WHERE bodies.resource = ?1 AND bodies.key = ?2";
    let mut statement = connection.prepare_cached(query)?;
    let rows = statement.query_map([resource, key], |row| row.get(0))?;
    rows.collect()
}

fn revision(connection: &Connection, id: i64) -> rusqlite::Result<Revision> {
    let query = "SELECT revision FROM subscriptions WHERE id = ?1";
    let revision = connection.prepare_cached(query)?.query_row([id], |row| row.get(0)).optional()?;
    Ok(Revision(revision.unwrap_or(0)))
}

fn stats(connection: &Connection, id: i64) -> rusqlite::Result<CopyStats> {
    let query = "SELECT count(*), coalesce(sum(length(bodies.body)), 0) FROM bodies
        JOIN members ON members.body = bodies.id WHERE members.subscription = ?1";
    let (objects, bytes) = connection.query_row(query, [id], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let synced =
        connection.query_row("SELECT synced FROM subscriptions WHERE id = ?1", [id], |row| row.get(0))?;
    Ok(CopyStats { objects, bytes, synced })
}

/// A document of the API server: its type, the time it was fetched, and its bytes.
pub fn document(connection: &Connection, key: &str) -> rusqlite::Result<Option<(String, i64, Bytes)>> {
    let query = "SELECT content, fetched, body FROM documents WHERE key = ?1";
    let found = connection.query_row(query, [key], |row| {
        Ok((row.get(0)?, row.get(1)?, Bytes::from(row.get::<_, Vec<u8>>(2)?)))
    });
    found.optional()
}

/// The time at which a document was fetched, and its length.
pub fn document_head(connection: &Connection, key: &str) -> rusqlite::Result<Option<(i64, usize)>> {
    let query = "SELECT fetched, length(body) FROM documents WHERE key = ?1";
    connection.query_row(query, [key], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}

pub fn keep_document(
    connection: &Connection,
    key: &str,
    content: &str,
    now: i64,
    body: &[u8],
) -> rusqlite::Result<()> {
    let insert = "INSERT OR REPLACE INTO documents VALUES (?1, ?2, ?3, ?4)";
    connection.execute(insert, params![key, content, now, body])?;
    drop_surplus_documents(connection, key, (DOCUMENTS_MAX, DOCUMENTS_BYTES_MAX))
}

/// Drops the documents that were fetched longest ago. Callers choose the keys of documents; those of the edge itself are few and stay.
fn drop_surplus_documents(
    connection: &Connection,
    newest: &str,
    (count_max, bytes_max): (u32, u32),
) -> rusqlite::Result<()> {
    let surplus = "DELETE FROM documents WHERE key IN (SELECT key FROM (
        SELECT key, SUM(length(body)) OVER newest AS bytes, ROW_NUMBER() OVER newest AS number
        FROM documents WHERE substr(key, 1, 9) <> 'causeway/' WINDOW newest AS (ORDER BY fetched DESC, key = ?3 DESC, key))
        WHERE bytes > ?1 OR number > ?2)";
    connection.execute(surplus, params![bytes_max, count_max, newest]).map(drop)
}

// A cluster has a hundred groups, each with a discovery and an OpenAPI document in two or three forms.
const DOCUMENTS_MAX: u32 = 1_000;
const DOCUMENTS_BYTES_MAX: u32 = 96 << 20;

/// Returns true if the copy has this object.
pub fn holds(connection: &Connection, resource: &str, key: &str, uid: &str) -> rusqlite::Result<bool> {
    let query = "SELECT EXISTS (SELECT 1 FROM members JOIN bodies ON bodies.id = members.body \
                 WHERE bodies.resource = ?1 AND bodies.key = ?2 AND bodies.uid = ?3)";
    connection.query_row(query, [resource, key, uid], |row| row.get(0))
}

/// The time at which the API server allowed this to the caller.
pub fn grant(connection: &Connection, caller: &str, question: &str) -> rusqlite::Result<Option<i64>> {
    let query = "SELECT allowed FROM grants WHERE caller = ?1 AND question = ?2";
    connection.query_row(query, [caller, question], |row| row.get(0)).optional()
}

// Decisions on disk; the oldest go first.
const GRANTS_MAX: u32 = 50_000;
// Those of one caller: a kubelet has three for each of the 1,300 ConfigMaps and Secrets of its pods.
const CALLER_GRANTS_MAX: u32 = 6_000;

/// Remembers a decision: the time of a grant, or `None` for a denial.
pub fn keep_grant(
    connection: &Connection,
    caller: &str,
    question: &str,
    allowed: Option<i64>,
) -> rusqlite::Result<()> {
    let replaced =
        connection.execute("DELETE FROM grants WHERE caller = ?1 AND question = ?2", [caller, question])?;
    if let Some(allowed) = allowed {
        connection.execute("INSERT INTO grants VALUES (?1, ?2, ?3)", params![caller, question, allowed])?;
        // A grant that was there already adds no row. A kubelet renews thousands of them.
        if replaced == 0 {
            drop_surplus_grants(connection, caller, (CALLER_GRANTS_MAX, GRANTS_MAX))?;
        }
    }
    Ok(())
}

/// Drops the oldest grants of a caller beyond its share, and the oldest of all.
fn drop_surplus_grants(
    connection: &Connection,
    caller: &str,
    (caller_max, all_max): (u32, u32),
) -> rusqlite::Result<()> {
    // Counting is quick, sorting is not: all other writes of the copy wait for it.
    let count = |query: &str, caller: &[&str]| {
        connection.query_row(query, rusqlite::params_from_iter(caller), |row| row.get::<_, u32>(0))
    };
    if count("SELECT count(*) FROM grants WHERE caller = ?1", &[caller])? > caller_max {
        let own =
            "DELETE FROM grants WHERE caller = ?1 AND question IN (SELECT question FROM grants WHERE caller = ?1
            ORDER BY allowed DESC, question LIMIT -1 OFFSET ?2)";
        connection.execute(own, params![caller, caller_max])?;
    }
    if count("SELECT count(*) FROM grants", &[])? <= all_max {
        return Ok(());
    }
    let all = "DELETE FROM grants WHERE (caller, question) IN (SELECT caller, question FROM grants
        ORDER BY allowed DESC, caller, question LIMIT -1 OFFSET ?1)";
    connection.execute(all, [all_max]).map(drop)
}

pub fn caller(connection: &Connection, token: &str) -> rusqlite::Result<Option<(String, i64)>> {
    let query = "SELECT user, seen FROM callers WHERE token = ?1";
    connection.query_row(query, [token], |row| Ok((row.get(0)?, row.get(1)?))).optional()
}

pub fn keep_caller(
    connection: &Connection,
    token: &str,
    user: Option<&str>,
    now: i64,
    oldest: i64,
) -> rusqlite::Result<()> {
    connection.execute("DELETE FROM callers WHERE token = ?1 OR seen < ?2", params![token, oldest])?;
    if let Some(user) = user {
        connection.execute("INSERT INTO callers VALUES (?1, ?2, ?3)", params![token, user, now])?;
        drop_surplus_callers(connection, (token, user), (USER_TOKENS_MAX, CALLERS_MAX))?;
    }
    Ok(())
}

// Reviewed tokens of all users, and of one: a user may ask the API server for any number of tokens.
const CALLERS_MAX: u32 = 4_096;
const USER_TOKENS_MAX: u32 = 256;

/// Forgets the tokens of a user beyond its share that were reviewed longest ago, and those of all users. The newest one stays, also when a
/// clock that was ahead has left later times.
fn drop_surplus_callers(
    connection: &Connection,
    (newest, user): (&str, &str),
    (user_max, all_max): (u32, u32),
) -> rusqlite::Result<()> {
    let own = "DELETE FROM callers WHERE token IN (SELECT token FROM callers
        WHERE json_extract(user, '$.username') = json_extract(?1, '$.username') ORDER BY token = ?3 DESC, seen DESC, token LIMIT -1 OFFSET ?2)";
    connection.execute(own, params![user, user_max, newest])?;
    let all = "DELETE FROM callers WHERE token IN (SELECT token FROM callers ORDER BY token = ?2 DESC, seen DESC, token LIMIT -1 OFFSET ?1)";
    connection.execute(all, params![all_max, newest]).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::ResourceName;

    #[test]
    fn a_full_disk_and_a_file_in_use_are_no_damage() {
        use rusqlite::ffi;
        let check = |code: std::ffi::c_int, expected: bool| {
            let error = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            assert_eq!(is_damage(&error), expected, "{error}");
        };
        for code in [
            ffi::SQLITE_FULL,
            ffi::SQLITE_IOERR,
            ffi::SQLITE_BUSY,
            ffi::SQLITE_CANTOPEN,
            ffi::SQLITE_READONLY,
            ffi::SQLITE_NOMEM,
        ] {
            check(code, false);
        }
        for code in [ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB, ffi::SQLITE_ERROR] {
            check(code, true);
        }
        assert!(is_damage(&rusqlite::Error::IntegralValueOutOfRange(0, 7)), "another format");
    }

    #[test]
    fn documents_that_callers_ask_for_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let connection = open(&folder.path().join("copy.db")).unwrap();
        let keep = |key: &str, now: i64, bytes: usize| {
            keep_document(&connection, key, "application/json", now, &vec![7; bytes]).unwrap();
            drop_surplus_documents(&connection, key, (5, 1_000)).unwrap();
        };
        let is_kept = |key: &str| document(&connection, key).unwrap().is_some();
        keep("causeway/site", 0, 10);
        for number in 0..=5 {
            keep(&format!("/apis/{number}"), number, 1);
        }
        assert!(is_kept("causeway/site") && !is_kept("/apis/0") && is_kept("/apis/1"), "by number");
        keep("/openapi/v2", 50, 600);
        keep("/openapi/v2?hash=1", 50, 600);
        assert!(is_kept("/openapi/v2?hash=1") && !is_kept("/openapi/v2") && !is_kept("/apis/5"), "by bytes");
        assert!(is_kept("causeway/site"));
    }

    #[test]
    fn a_caller_pushes_out_its_own_grants_first() {
        let folder = tempfile::tempdir().unwrap();
        let connection = open(&folder.path().join("copy.db")).unwrap();
        let keep = |caller: &str, question: &str, at: i64| {
            keep_grant(&connection, caller, question, Some(at)).unwrap();
            drop_surplus_grants(&connection, caller, (3, 5)).unwrap();
        };
        let is_kept = |caller: &str, question: &str| grant(&connection, caller, question).unwrap().is_some();
        keep("kubelet", "list pods", 1);
        for number in 0..10 {
            keep("pod", &number.to_string(), 2 + number);
        }
        assert!(is_kept("kubelet", "list pods") && is_kept("pod", "9") && !is_kept("pod", "6"));
        for number in 0..10 {
            // All within one second.
            keep(&format!("pod{}", number % 2), &number.to_string(), 50);
        }
        let count = "SELECT count(*) FROM grants";
        assert_eq!(connection.query_row(count, [], |row| row.get::<_, u64>(0)).unwrap(), 5);
    }

    #[test]
    fn reviewed_and_kept_tokens_are_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let connection = open(&folder.path().join("copy.db")).unwrap();
        let count = |table: &str| {
            let count = format!("SELECT count(*) FROM {table}");
            connection.query_row(&count, [], |row| row.get::<_, u64>(0)).unwrap()
        };
        let review = |user: &str, number: i64| {
            // Users differ in what the API server says about each token.
            let user = format!(r#"{{"username":"{user}","extra":{{"id":["{number}"]}}}}"#);
            let token = format!("{user}{number}");
            keep_caller(&connection, &token, Some(&user), 7, 0).unwrap();
            drop_surplus_callers(&connection, (&token, &user), (3, 5)).unwrap();
        };
        review("ann", 0);
        (0..10).for_each(|number| review("pod", number));
        assert_eq!(count("callers"), 4, "ann, and the share of the pod");
        (0..10).for_each(|number| review(&format!("pod{number}"), number));
        assert_eq!(count("callers"), 5);
        for number in 0..10 {
            keep_token(&connection, &number.to_string(), ("u", 100), ("text", b"x"), 1).unwrap();
            drop_surplus_tokens(&connection, &number.to_string(), 3).unwrap();
        }
        assert_eq!(count("tokens"), 3, "all of them expire at the same time");
        assert!(token(&connection, "9", 1).unwrap().is_some(), "the newest stays");
        let long = vec![b'x'; TOKEN_ANSWER_BYTES_MAX];
        keep_token(&connection, "long", ("u", 200), ("text", &long), 1).unwrap();
        assert_eq!(token(&connection, "long", 1).unwrap(), None);
    }

    #[test]
    fn a_token_is_given_until_it_expires_or_its_pod_goes() {
        let folder = tempfile::tempdir().unwrap();
        let connection = open(&folder.path().join("copy.db")).unwrap();
        let scope = SubscriptionScope::all(ResourceName::new("", "v1", "pods"));
        let pods = create_subscription(&connection, &scope, "n1").unwrap();
        complete(&connection, pods, PODS, &[change("shop/a", 3, false)], (Revision(3), 1)).unwrap();
        keep_token(&connection, "one", ("u", 100), ("text", b"1"), 1).unwrap();
        keep_token(&connection, "other", ("v", 100), ("text", b"2"), 1).unwrap();
        assert_eq!(
            token(&connection, "one", 99).unwrap(),
            Some(("text".to_owned(), Bytes::from_static(b"1")))
        );
        assert_eq!(token(&connection, "one", 100).unwrap(), None, "expired");
        assert_eq!(token_pods(&connection, 99).unwrap().len(), 2);
        complete(&connection, pods, PODS, &[change("shop/a", 4, false)], (Revision(4), 1)).unwrap();
        assert!(token(&connection, "one", 99).unwrap().is_some(), "the pod changed and is still there");
        complete(&connection, pods, PODS, &[change("shop/a", 5, true)], (Revision(5), 1)).unwrap();
        assert_eq!(token(&connection, "one", 99).unwrap(), None, "the pod is gone");
        assert!(token(&connection, "other", 99).unwrap().is_some());
        keep_token(&connection, "new", ("w", 300), ("text", b"3"), 200).unwrap();
        assert_eq!(token_pods(&connection, 0).unwrap(), ["w"], "expired tokens are removed");
    }

    fn change(key: &str, revision: u64, deleted: bool) -> ChangeEntry {
        let body = if deleted { Bytes::new() } else { Bytes::from(format!("{key}@{revision}")) };
        ChangeEntry { key: key.into(), uid: "u".into(), revision, deleted, body, ..ChangeEntry::default() }
    }

    #[test]
    fn an_object_is_stored_once_and_goes_with_its_last_subscription() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("copy.db");
        let connection = open(&path).unwrap();
        let scope = |namespace: &str| SubscriptionScope {
            namespace: namespace.into(),
            ..SubscriptionScope::all(ResourceName::new("", "v1", "things"))
        };
        let all = create_subscription(&connection, &scope(""), "").unwrap();
        let shop = create_subscription(&connection, &scope("shop"), "n1").unwrap();
        assert_eq!(create_subscription(&connection, &scope(""), "").unwrap(), all);
        let bodies =
            || connection.query_row("SELECT count(*) FROM bodies", [], |row| row.get::<_, u64>(0)).unwrap();
        stage(&connection, all, "things", &[change("shop/a", 3, false)]).unwrap();
        assert_eq!(list(&connection, all, "").unwrap().1.len(), 0, "staged objects are not seen");
        let applied =
            complete(&connection, all, "things", &[change("web/b", 4, false)], (Revision(9), 1)).unwrap();
        assert_eq!(applied.len(), 2);
        complete(&connection, shop, "things", &[change("shop/a", 3, false)], (Revision(9), 1)).unwrap();
        assert_eq!(bodies(), 2);
        assert_eq!(holders(&connection, "things", "shop/a").unwrap(), [all, shop]);
        assert_eq!(holders(&connection, "things", "shop/b").unwrap(), [0i64; 0]);
        let applied =
            complete(&connection, all, "things", &[change("shop/a", 10, true)], (Revision(10), 1)).unwrap();
        assert!(applied[0].now.is_none() && applied[0].before.as_ref().unwrap().revision == Revision(3));
        assert_eq!(bodies(), 2, "the other subscription holds it");
        assert_eq!(list(&connection, all, "shop/").unwrap(), (Revision(10), vec![]));
        assert_eq!(list(&connection, all, "web/").unwrap().1.len(), 1);
        drop_subscription(&connection, shop).unwrap();
        assert_eq!(bodies(), 1);
        drop(connection);
        let connection = open(&path).unwrap();
        let stored = subscriptions(&connection).unwrap();
        assert_eq!((stored.len(), stored[0].revision), (1, Revision(10)));
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
}
