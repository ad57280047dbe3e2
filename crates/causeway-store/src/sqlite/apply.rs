//! Executes one commit inside the writer's transaction: checks every key first, then writes.
//!
//! A refused commit has written nothing, so the other commits of its group are not affected.

use std::sync::Arc;

use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, OptionalExtension, ToSql, params};

use super::query::to_record;
use crate::decide::decide;
use crate::{Committed, Op, Revision, StoreError, StoreEvent, StoreRecord};

/// The result of one commit, for its caller and for the watchers.
pub(super) struct AppliedCommit {
    pub committed: Committed,
    pub events: Vec<Arc<StoreEvent>>,
}

/// Executes a commit. The outer result is an error of the database and ends the whole group; the inner one is
/// the refusal of this commit.
pub(super) fn apply(
    connection: &Connection,
    revision: Revision,
    ops: &[Op],
) -> rusqlite::Result<Result<AppliedCommit, StoreError>> {
    let mut previous = Vec::with_capacity(ops.len());
    for op in ops {
        let current = record(connection, op.key())?;
        if let Err(refusal) = decide(op, current.as_ref()) {
            return Ok(Err(refusal));
        }
        previous.push(current);
    }
    let mut events = Vec::with_capacity(ops.len());
    for (op, before) in ops.iter().zip(&previous) {
        events.extend(write(connection, revision, op, before.as_ref())?);
    }
    // Watchers that replay history see the keys of one revision in this order; live ones must too.
    events.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(Ok(AppliedCommit { committed: Committed { revision, previous }, events }))
}

fn write(
    connection: &Connection,
    revision: Revision,
    op: &Op,
    before: Option<&StoreRecord>,
) -> rusqlite::Result<Option<Arc<StoreEvent>>> {
    if let Some(before) = before {
        connection
            .prepare_cached(
                "INSERT INTO history (until, key, value, revision, created, deleted) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
            )?
            .execute(params![
                revision.0,
                op.key(),
                TextOrBlob(&before.value),
                before.revision.0,
                before.created.0,
                op.value().is_none()
            ])?;
    }
    let created = before.map_or(revision, |before| before.created);
    match op.value() {
        Some(value) => connection
            .prepare_cached(
                "INSERT INTO objects (key, value, revision, created) VALUES (?1, ?2, ?3, ?4)
                 ON CONFLICT (key) DO UPDATE SET value = excluded.value, revision = excluded.revision",
            )?
            .execute(params![op.key(), TextOrBlob(value), revision.0, created.0])?,
        None => connection.prepare_cached("DELETE FROM objects WHERE key = ?1")?.execute([op.key()])?,
    };
    Ok(Some(Arc::new(StoreEvent {
        revision,
        key: before.map_or_else(|| op.key().into(), |before| Arc::clone(&before.key)),
        value: op.value().cloned(),
        previous: before.map(|before| before.value.clone()),
        created,
    })))
}

fn record(connection: &Connection, key: &str) -> rusqlite::Result<Option<StoreRecord>> {
    connection
        .prepare_cached("SELECT key, value, revision, created FROM objects WHERE key = ?1")?
        .query_row([key], to_record)
        .optional()
}

/// Bytes that are stored as text when they are valid UTF-8, so that people can read them.
pub(super) struct TextOrBlob<'a>(pub &'a [u8]);

impl ToSql for TextOrBlob<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let value =
            if std::str::from_utf8(self.0).is_ok() { ValueRef::Text(self.0) } else { ValueRef::Blob(self.0) };
        Ok(ToSqlOutput::Borrowed(value))
    }
}
