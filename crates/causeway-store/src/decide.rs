//! Decides whether an operation may happen, from the record under its key.
//!
//! Pure, and shared: SQLite calls it before it writes, etcd calls it to find the reason of a refused
//! transaction.

use crate::{Op, Revision, StoreError, StoreRecord};

/// Returns whether `op` is allowed when its key has the record `current`.
pub(crate) fn decide(op: &Op, current: Option<&StoreRecord>) -> Result<(), StoreError> {
    let key = op.key();
    match (op, current) {
        (Op::Put { .. }, _) | (Op::Create { .. }, None) => Ok(()),
        (Op::Create { .. }, Some(_)) => Err(StoreError::AlreadyExists { key: key.into() }),
        (Op::Update { .. } | Op::Delete { .. }, None) => Err(StoreError::NotFound { key: key.into() }),
        (Op::Update { expected, .. }, Some(record)) => same_revision(key, *expected, record.revision),
        (Op::Delete { expected: Some(expected), .. }, Some(record)) => {
            same_revision(key, *expected, record.revision)
        }
        (Op::Delete { expected: None, .. }, Some(_)) => Ok(()),
    }
}

fn same_revision(key: &str, expected: Revision, actual: Revision) -> Result<(), StoreError> {
    if expected == actual { Ok(()) } else { Err(StoreError::Conflict { key: key.into(), expected, actual }) }
}
