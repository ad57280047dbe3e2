//! Translates a commit to an etcd transaction, and etcd's response to the result. Pure.
//!
//! Every precondition becomes a comparison. When one fails, etcd reads all keys in the same transaction, and
//! the function `decide`, which SQLite uses too, finds the one that failed.

use etcd_client::{Compare, CompareOp, DeleteOptions, PutOptions, Txn, TxnOp, TxnOpResponse, TxnResponse};

use super::keys::EtcdKeys;
use super::members;
use crate::decide::decide;
use crate::{Committed, Op, StoreError, StoreRecord};

pub(super) fn build(keys: &EtcdKeys, ops: &[Op]) -> Txn {
    // No write is accepted while a restore is in progress.
    let importing = keys.meta("importing");
    let mut conditions = vec![Compare::version(importing, CompareOp::Equal, 0)];
    let (mut changes, mut questions) = (Vec::new(), Vec::new());
    for op in ops {
        let name = keys.object(op.key());
        conditions.extend(condition(&name, op));
        questions.push(TxnOp::get(name.clone(), None));
        changes.push(match op.value() {
            Some(value) => TxnOp::put(name, value.to_vec(), Some(PutOptions::new().with_prev_key())),
            None => TxnOp::delete(name, Some(DeleteOptions::new().with_prev_key())),
        });
    }
    Txn::new().when(conditions).and_then(changes).or_else(questions)
}

fn condition(name: &str, op: &Op) -> Option<Compare> {
    let at = |revision: u64| Compare::mod_revision(name, CompareOp::Equal, revision as i64);
    match op {
        Op::Create { .. } => Some(at(0)),
        Op::Update { expected, .. } | Op::Delete { expected: Some(expected), .. } => Some(at(expected.0)),
        Op::Delete { expected: None, .. } => Some(Compare::mod_revision(name, CompareOp::Greater, 0)),
        Op::Put { .. } => None,
    }
}

pub(super) fn explain(keys: &EtcdKeys, ops: &[Op], answer: TxnResponse) -> Result<Committed, StoreError> {
    let revision = members::revision(answer.header())?;
    let found = answer
        .op_responses()
        .into_iter()
        .map(|response| record(keys, response))
        .collect::<Result<Vec<_>, _>>()?;
    if answer.succeeded() {
        return Ok(Committed { revision, previous: found });
    }
    for (op, current) in ops.iter().zip(&found) {
        decide(op, current.as_ref())?;
    }
    Err(StoreError::unavailable("a restore is under way, or was broken off: run it again"))
}

/// Returns the record of the key.
fn record(keys: &EtcdKeys, response: TxnOpResponse) -> Result<Option<StoreRecord>, StoreError> {
    let found = match response {
        TxnOpResponse::Put(mut put) => put.take_prev_key(),
        TxnOpResponse::Delete(mut delete) => delete.take_prev_kvs().into_iter().next(),
        TxnOpResponse::Get(mut get) => get.take_kvs().into_iter().next(),
        TxnOpResponse::Txn(_) => None,
    };
    found.map(|found| keys.record(found)).transpose()
}
