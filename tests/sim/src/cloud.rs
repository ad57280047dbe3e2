//! The cloud of the simulation: the real session table, the real senders of netmaps, and a store that outlives it.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use causeway_channel::session::SessionTable;
use causeway_netmap::sync::{NetmapSendState, TargetNetmap};
use causeway_netmap::{EntryKey, Generation, Netmap};

pub struct Cloud {
    /// Counts its starts.
    pub life: u64,
    pub is_up: bool,
    /// A gateway's session is where its link is in the simulation.
    pub sessions: SessionTable<usize, usize>,
    /// By link.
    pub senders: HashMap<usize, NetmapSendState>,
    /// The number of a link's session.
    pub numbers: HashMap<usize, u64>,
    /// The store.
    pub store_epoch: u64,
    pub revision: u64,
    pub netmap: Arc<Netmap>,
}

impl Cloud {
    pub fn new() -> Cloud {
        Cloud {
            life: 0,
            is_up: true,
            sessions: SessionTable::new(1000),
            senders: HashMap::new(),
            numbers: HashMap::new(),
            store_epoch: 1,
            revision: 1,
            netmap: Arc::new(build(1, 1)),
        }
    }

    pub fn kill(&mut self) {
        self.is_up = false;
        self.life += 1;
        self.sessions = SessionTable::new(1000);
        self.senders.clear();
        self.numbers.clear();
    }

    pub fn change(&mut self) {
        self.revision += 1;
        self.netmap = Arc::new(build(self.store_epoch, self.revision));
    }

    /// An older state comes back, under a higher epoch.
    pub fn restore(&mut self) {
        self.store_epoch += 1;
        self.revision = (self.revision / 2).max(1);
        self.netmap = Arc::new(build(self.store_epoch, self.revision));
    }

    pub fn target(&self) -> TargetNetmap {
        TargetNetmap {
            netmap: self.netmap.clone(),
            seen: Generation { epoch: self.store_epoch, revision: self.revision },
        }
    }
}

/// Twenty entries of which a change touches one, so that deltas are deltas.
fn build(epoch: u64, revision: u64) -> Netmap {
    let entry = |number: u64| {
        let version = (revision + 20 - number) / 20;
        (EntryKey::of("service", &number.to_string()), Bytes::from(format!("{epoch} {version}")))
    };
    let entries = (0..20).map(entry).collect();
    Netmap::build(Generation { epoch, revision }, entries, None).expect("twenty small entries fit")
}
