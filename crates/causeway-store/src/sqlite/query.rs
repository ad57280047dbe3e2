//! Queries: one record, a current list, a list at an old revision, events after a revision.
//!
//! Each function expects a connection inside a read transaction. The fast case, a current list, is one scan
//! over a range.

use std::ops::Range;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};

use super::remaining::Remaining;
use super::schema::{StoreMeta, load};
use super::translate;
use crate::model::prefix_end;
use crate::{ListRange, Listing, Revision, StoreError, StoreEvent, StoreRecord};

/// Sorts after every key: keys must not contain the last code point.
const LAST: &str = "\u{10FFFF}";

pub(super) fn record(connection: &Connection, key: &str) -> Result<Option<StoreRecord>, StoreError> {
    connection
        .prepare_cached("SELECT key, value, revision, created FROM objects WHERE key = ?1")
        .and_then(|mut statement| statement.query_row([key], to_record).optional())
        .map_err(translate)
}

pub(super) fn list(
    connection: &Connection,
    prefix: &str,
    page: &ListRange,
    pages: &Remaining,
) -> Result<Listing, StoreError> {
    let meta = load(connection)?;
    let at = page.at.unwrap_or(meta.revision);
    check_kept(at, meta)?;
    let range = range(prefix, page.after.as_deref());
    let limit = page.limit.unwrap_or(usize::MAX);
    // One record more than requested tells whether any remain.
    let wanted = i64::try_from(limit.saturating_add(1)).unwrap_or(i64::MAX);
    let now = at == meta.revision;
    let mut records =
        if now { now_in(connection, &range, wanted) } else { then_in(connection, &range, at, wanted) }
            .map_err(translate)?;
    let mut remaining = 0;
    if records.len() > limit {
        records.truncate(limit);
        let before = page.after.as_deref().and_then(|after| pages.behind(prefix, after, at));
        let last = records.last().map(|last| &*last.key);
        remaining = match before.and_then(|before| before.checked_sub(limit as u64)) {
            Some(remaining) => remaining,
            None => {
                let behind = last.map_or(range.start.clone(), behind)..range.end;
                if now { count_now(connection, &behind) } else { count_then(connection, &behind, at) }
                    .map_err(translate)?
            }
        };
        if let Some(last) = last {
            pages.note(prefix, last, at, remaining);
        }
    }
    Ok(Listing { records, revision: at, remaining })
}

/// The position of a reader of events: after this key of this revision.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct EventCursor {
    pub revision: Revision,
    pub key: Arc<str>,
}

impl EventCursor {
    /// Returns the position after all events of `revision`.
    pub fn after(revision: Revision) -> EventCursor {
        EventCursor { revision, key: LAST.into() }
    }
}

/// Events in order, and the position after them.
pub(super) struct EventPage {
    pub events: Vec<Arc<StoreEvent>>,
    pub cursor: EventCursor,
    /// There are no further events up to the bound, or up to now.
    pub complete: bool,
}

/// Returns the next events after `cursor`, not beyond `upto`.
pub(super) fn events(
    connection: &Connection,
    prefix: &str,
    cursor: &EventCursor,
    upto: Option<Revision>,
    limit: usize,
) -> Result<EventPage, StoreError> {
    let meta = load(connection)?;
    check_kept(cursor.revision, meta)?;
    let upto = upto.unwrap_or(meta.revision);
    let events = read_events(connection, &range(prefix, None), cursor, upto, limit).map_err(translate)?;
    let complete = events.len() < limit;
    let cursor = match events.last() {
        Some(last) if !complete => EventCursor { revision: last.revision, key: Arc::clone(&last.key) },
        _ => cursor.clone().max(EventCursor::after(upto)),
    };
    Ok(EventPage { events, cursor, complete })
}

fn check_kept(revision: Revision, meta: StoreMeta) -> Result<(), StoreError> {
    if revision > meta.revision {
        return Err(StoreError::Future { requested: revision, current: meta.revision });
    }
    if revision < meta.compacted {
        return Err(StoreError::Compacted { requested: revision, oldest: meta.compacted });
    }
    Ok(())
}

fn range(prefix: &str, after: Option<&str>) -> Range<String> {
    let start = match after {
        Some(after) if after >= prefix => behind(after),
        _ => prefix.to_owned(),
    };
    start..prefix_end(prefix).unwrap_or_else(|| LAST.into())
}

/// Returns the first possible key after this one.
fn behind(key: &str) -> String {
    format!("{key}\0")
}

fn now_in(connection: &Connection, range: &Range<String>, wanted: i64) -> rusqlite::Result<Vec<StoreRecord>> {
    connection
        .prepare_cached(
            "SELECT key, value, revision, created FROM objects
             WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3",
        )?
        .query_map(params![range.start, range.end, wanted], in_slabs())?
        .collect()
}

/// Returns the records at revision `at`: current records that are not newer, and records that were replaced
/// or deleted only later.
fn then_in(
    connection: &Connection,
    range: &Range<String>,
    at: Revision,
    wanted: i64,
) -> rusqlite::Result<Vec<StoreRecord>> {
    connection
        .prepare_cached(
            "SELECT key, value, revision, created FROM objects
             WHERE key >= ?1 AND key < ?2 AND revision <= ?3
             UNION ALL
             SELECT key, value, revision, created FROM history
             WHERE key >= ?1 AND key < ?2 AND until > ?3 AND revision <= ?3
             ORDER BY key LIMIT ?4",
        )?
        .query_map(params![range.start, range.end, at.0, wanted], in_slabs())?
        .collect()
}

fn count_now(connection: &Connection, range: &Range<String>) -> rusqlite::Result<u64> {
    connection
        .prepare_cached(
            "SELECT count(*) FROM objects INDEXED BY objects_by_key WHERE key >= ?1 AND key < ?2",
        )?
        .query_row(params![range.start, range.end], |row| row.get(0))
}

/// Counts the current records, without later writes, plus the records that were replaced or deleted since.
fn count_then(connection: &Connection, range: &Range<String>, at: Revision) -> rusqlite::Result<u64> {
    let now = count_now(connection, range)?;
    let (written, replaced): (u64, u64) = connection
        .prepare_cached(
            "SELECT (SELECT count(*) FROM objects INDEXED BY objects_by_revision
                     WHERE revision > ?3 AND key >= ?1 AND key < ?2),
                    (SELECT count(*) FROM history
                     WHERE until > ?3 AND revision <= ?3 AND key >= ?1 AND key < ?2)",
        )?
        .query_row(params![range.start, range.end, at.0], |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(now - written + replaced)
}

/// Reads events: a value was written (it is current, or was replaced later), or a key was deleted. The value
/// before an event is the row of history that ends with it.
fn read_events(
    connection: &Connection,
    range: &Range<String>,
    cursor: &EventCursor,
    upto: Revision,
    limit: usize,
) -> rusqlite::Result<Vec<Arc<StoreEvent>>> {
    let mut previous =
        connection.prepare_cached("SELECT value FROM history WHERE until = ?1 AND key = ?2")?;
    connection
        .prepare_cached(
            "SELECT revision AS happened, key AS name, value, created, 0 FROM objects
             WHERE (revision, key) > (?1, ?2) AND revision <= ?3 AND key >= ?4 AND key < ?5
             UNION ALL
             SELECT revision AS happened, key AS name, value, created, 0 FROM history
             WHERE (revision, key) > (?1, ?2) AND revision <= ?3 AND key >= ?4 AND key < ?5
             UNION ALL
             SELECT until AS happened, key AS name, value, created, 1 FROM history
             WHERE (until, key) > (?1, ?2) AND until <= ?3 AND key >= ?4 AND key < ?5 AND deleted
             ORDER BY happened, name LIMIT ?6",
        )?
        .query_map(
            params![
                cursor.revision.0,
                &*cursor.key,
                upto.0,
                range.start,
                range.end,
                i64::try_from(limit).unwrap_or(i64::MAX)
            ],
            |row| {
                let (revision, key) = (Revision(row.get(0)?), text(row, 1)?);
                let (value, created) = (bytes(row, 2)?, Revision(row.get(3)?));
                if row.get::<_, bool>(4)? {
                    return Ok(StoreEvent { revision, key, value: None, previous: Some(value), created });
                }
                let before =
                    previous.query_row(params![revision.0, &*key], |row| bytes(row, 0)).optional()?;
                // A key that was deleted and created again in between has no predecessor here: its row ended
                // earlier.
                Ok(StoreEvent { revision, key, value: Some(value), previous: before, created })
            },
        )?
        .map(|event| event.map(Arc::new))
        .collect()
}

pub(super) fn to_record(row: &Row<'_>) -> rusqlite::Result<StoreRecord> {
    record_of(row, Bytes::copy_from_slice)
}

/// Values of a list share buffers of this many bytes: ten thousand small allocations would cost more than the
/// list itself.
const SLAB_BYTES: usize = 64 << 10;

fn in_slabs() -> impl FnMut(&Row<'_>) -> rusqlite::Result<StoreRecord> {
    let mut slab = BytesMut::new();
    move |row| {
        record_of(row, |value| {
            if slab.capacity() < value.len() {
                slab = BytesMut::with_capacity(SLAB_BYTES.max(value.len()));
            }
            slab.extend_from_slice(value);
            slab.split().freeze()
        })
    }
}

fn record_of(row: &Row<'_>, keep: impl FnOnce(&[u8]) -> Bytes) -> rusqlite::Result<StoreRecord> {
    Ok(StoreRecord {
        key: text(row, 0)?,
        value: keep(value(row, 1)?),
        revision: Revision(row.get(2)?),
        created: Revision(row.get(3)?),
    })
}

fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<Arc<str>> {
    Ok(row.get_ref(column)?.as_str()?.into())
}

fn bytes(row: &Row<'_>, column: usize) -> rusqlite::Result<Bytes> {
    value(row, column).map(Bytes::copy_from_slice)
}

/// Returns a value. Values are text when they are valid UTF-8, so that people can read them, and blobs
/// otherwise.
fn value<'a>(row: &'a Row<'_>, column: usize) -> rusqlite::Result<&'a [u8]> {
    match row.get_ref(column)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Ok(bytes),
        other => Err(rusqlite::Error::InvalidColumnType(column, "value".into(), other.data_type())),
    }
}
