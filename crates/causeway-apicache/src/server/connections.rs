//! Bounds the connections of local callers: those that have not proved a caller yet, and those of one caller.
//!
//! `ConnectionTable` decides; the listener closes a connection when its token is cancelled. A client without a credential can take no
//! place that a kubelet needs: the oldest unproved connection gives way to a new one, and each has a deadline.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use causeway_daemon::sync::MutexExt;
use tokio_util::sync::CancellationToken;

/// The time within which the first request of a connection must name a caller.
pub const UNPROVED_TIME_MAX: Duration = Duration::from_secs(30);
const LAST_ANSWER_TIME: Duration = Duration::from_millis(200);
// Every pod of a node may connect at the same moment.
const UNPROVED_MAX: usize = 1_024;
// A quarter of all connections, so that one caller keeps no other out.
const PER_CALLER_MAX: usize = 1_024;

/// A handle; clones share the table.
#[derive(Clone, Default)]
pub struct ConnectionTable(Arc<Mutex<TableState>>);

#[derive(Default)]
struct TableState {
    next_id: u64,
    /// In the order in which they came.
    unproved: BTreeMap<u64, CancellationToken>,
    callers: HashMap<String, usize>,
}

/// One connection; dropping it frees its place.
pub struct OpenConnection {
    id: u64,
    table: ConnectionTable,
    /// The first caller, when one was proved.
    caller: OnceLock<String>,
    /// Cancelled when the connection must close.
    pub closed: CancellationToken,
}

impl ConnectionTable {
    /// Takes a connection in. When too many have not proved a caller, the oldest of them closes.
    pub fn admit(&self) -> Arc<OpenConnection> {
        let mut state = self.0.lock_ignoring_poison();
        state.next_id += 1;
        let (id, closed) = (state.next_id, CancellationToken::new());
        if state.unproved.len() >= UNPROVED_MAX
            && let Some((_, oldest)) = state.unproved.pop_first()
        {
            oldest.cancel();
        }
        state.unproved.insert(id, closed.clone());
        Arc::new(OpenConnection { id, table: self.clone(), caller: OnceLock::new(), closed })
    }
}

impl OpenConnection {
    /// Notes that a request proved its caller. Returns false when the caller has too many connections.
    pub fn prove(&self, username: &str) -> bool {
        if self.caller.get().is_some() {
            return true;
        }
        let mut state = self.table.0.lock_ignoring_poison();
        let count = state.callers.entry(username.to_owned()).or_default();
        if *count >= PER_CALLER_MAX {
            return false;
        }
        if self.caller.set(username.to_owned()).is_ok() {
            *count += 1;
            state.unproved.remove(&self.id);
        }
        true
    }

    /// Closes the connection when the answer to its last request has had the time to leave.
    pub fn close_soon(&self) {
        let closed = self.closed.clone();
        tokio::spawn(async move {
            tokio::time::sleep(LAST_ANSWER_TIME).await;
            closed.cancel();
        });
    }

    pub fn is_proved(&self) -> bool {
        self.caller.get().is_some()
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let mut state = self.table.0.lock_ignoring_poison();
        state.unproved.remove(&self.id);
        let Some(caller) = self.caller.get() else { return };
        let left = state.callers.get_mut(caller).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            state.callers.remove(caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_without_a_caller_give_way_to_new_ones() {
        let table = ConnectionTable::default();
        let kubelet = table.admit();
        assert!(kubelet.prove("system:node:n1") && kubelet.is_proved());
        let silent: Vec<_> = (0..UNPROVED_MAX).map(|_| table.admit()).collect();
        assert!(silent.iter().all(|connection| !connection.closed.is_cancelled()));
        let new = table.admit();
        assert!(silent[0].closed.is_cancelled() && !silent[1].closed.is_cancelled());
        assert!(!kubelet.closed.is_cancelled() && !new.closed.is_cancelled());
        drop((silent, new, kubelet));
        let state = table.0.lock().unwrap();
        assert!(state.unproved.is_empty() && state.callers.is_empty());
    }

    #[test]
    fn a_caller_keeps_no_other_caller_out() {
        let table = ConnectionTable::default();
        let held: Vec<_> = (0..PER_CALLER_MAX).map(|_| table.admit()).collect();
        assert!(held.iter().all(|connection| connection.prove("till")));
        assert!(held[0].prove("till"), "the next request of a connection");
        let (one_more, other) = (table.admit(), table.admit());
        assert!(!one_more.prove("till") && other.prove("kubelet"));
        drop(held);
        assert!(one_more.prove("till"));
    }
}
