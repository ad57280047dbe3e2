//! The addresses on which this gateway's process listens, each registered while it is bound.
//!
//! One registry per gateway, shared with its role. The role registers admin, API, channel and CONNECT; the
//! gateway registers names, presences and entries.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use super::Transport;
use causeway_daemon::sync::MutexExt;

/// Clones share the registry.
#[derive(Clone, Default, Debug)]
pub struct OwnListeners {
    known: Arc<Mutex<Known>>,
}

#[derive(Default, Debug)]
struct Known {
    next: u64,
    /// Replaced on change: readers take the current value without a copy.
    listeners: Arc<Vec<Registered>>,
}

/// One listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Registered {
    id: u64,
    pub name: &'static str,
    pub transport: Transport,
    /// The address as bound: port 0 is never registered.
    pub address: SocketAddr,
}

/// Keeps a listener registered until it is dropped.
#[derive(Debug)]
#[must_use = "the listener is registered as long as this lives"]
pub struct OwnListener {
    listeners: OwnListeners,
    id: u64,
}

impl OwnListeners {
    /// `name` is the operator's term for the listener: `admin`, `presence`.
    pub fn register(&self, name: &'static str, transport: Transport, address: SocketAddr) -> OwnListener {
        OwnListener { listeners: self.clone(), id: self.keep(name, transport, address) }
    }

    /// Registers a listener that lives as long as the process.
    pub fn keep(&self, name: &'static str, transport: Transport, address: SocketAddr) -> u64 {
        let mut known = self.lock();
        let id = known.next;
        known.next += 1;
        Arc::make_mut(&mut known.listeners).push(Registered { id, name, transport, address });
        id
    }

    pub fn registered(&self) -> Arc<Vec<Registered>> {
        self.lock().listeners.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock_ignoring_poison()
    }
}

impl Drop for OwnListener {
    fn drop(&mut self) {
        Arc::make_mut(&mut self.listeners.lock().listeners).retain(|known| known.id != self.id);
    }
}
