//! An edge of the simulation: the real supervisor, the real receiver of netmaps, and a disk that outlives it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use causeway_channel::session::{AllowedTransports, LinkId, Supervisor};
use causeway_netmap::Netmap;
use causeway_netmap::sync::NetmapReceiver;

#[derive(Debug)]
pub struct Edge {
    /// Counts its starts.
    pub life: u64,
    pub is_up: bool,
    pub machine: Supervisor,
    pub receiver: NetmapReceiver,
    /// The netmap that a restart finds.
    pub disk: Option<Arc<Netmap>>,
    /// Its links in this life, by the supervisor's number: where they are in the simulation.
    pub links: HashMap<LinkId, usize>,
    /// Nothing at all passes before this moment.
    pub cut_until: Instant,
    /// UDP does not pass before this moment.
    pub udp_cut_until: Instant,
}

impl Edge {
    pub fn new(now: Instant, epoch: u64) -> Edge {
        Edge {
            life: 0,
            is_up: true,
            machine: Supervisor::new(epoch, AllowedTransports::Both, now),
            receiver: NetmapReceiver::new(None),
            disk: None,
            links: HashMap::new(),
            cut_until: now,
            udp_cut_until: now,
        }
    }

    pub fn kill(&mut self) {
        self.is_up = false;
        self.life += 1;
        self.links.clear();
    }

    /// Its clock may have been set back meanwhile, so `epoch` may be lower than before.
    pub fn start(&mut self, now: Instant, epoch: u64) {
        self.is_up = true;
        self.machine = Supervisor::new(epoch, AllowedTransports::Both, now);
        self.receiver = NetmapReceiver::new(self.disk.clone());
    }
}
