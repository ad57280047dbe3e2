//! The netmap this edge runs on: taken in from the cloud, persisted, published to whoever forwards by it.
//!
//! The order is what makes a crash harmless: an update is applied in memory, written whole, then published and acknowledged. When
//! the disk refuses, the old netmap goes on and the cloud is told why. An edge that starts without the cloud runs on what it finds.

mod disk;
mod figures;

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use causeway_channel::wire::control::{EdgeMessage, EdgeSays, Held, NetmapAck, NetmapRefused};
use causeway_daemon::{Check, Metrics};
use causeway_netmap::sync::{Receiver, Refusal, Reply, Step};
use causeway_netmap::{Netmap, Stamp, View};
use tokio::sync::{Mutex, watch};

use crate::link::{Later, Netmaps};
use disk::Disk;
use figures::Figures;

pub use disk::{FOLDER, NetmapFileError, persisted};

const NONE_YET: &str = "the cloud has sent no netmap yet";

/// Keeps the netmap of one edge. Clones share it.
#[derive(Clone)]
pub struct NetmapKeeper {
    shared: Arc<Shared>,
}

struct Shared {
    // Held while an update is taken in: the next one waits, in order.
    receiver: Mutex<Receiver>,
    disk: Disk,
    in_force: watch::Sender<Option<Arc<InForce>>>,
    /// How a gateway reads what is in force; empty while nothing is.
    views: watch::Sender<Arc<View>>,
    check: Option<Check>,
    figures: Figures,
}

/// What is in force now: the value, and how a gateway reads it.
#[derive(Debug)]
pub struct InForce {
    pub netmap: Arc<Netmap>,
    pub view: Arc<View>,
}

impl InForce {
    fn of(netmap: Arc<Netmap>) -> InForce {
        let view = View::decode(&netmap);
        for error in &view.damaged {
            tracing::warn!(%error, "a part of the netmap is left out");
        }
        InForce { netmap, view: Arc::new(view) }
    }
}

impl NetmapKeeper {
    /// Finds what was persisted, the newest that is whole. `check` tells `/readyz` how it stands.
    pub fn open(data_dir: &Path, check: Option<Check>) -> Result<NetmapKeeper, NetmapFileError> {
        let (disk, found) = Disk::open(&data_dir.join(FOLDER))?;
        let netmap = found.map(Arc::new);
        match (&check, &netmap) {
            (Some(check), Some(_)) => drop(check.ready()),
            (Some(check), None) => drop(check.failing(NONE_YET)),
            (None, _) => {}
        }
        if let Some(netmap) = &netmap {
            tracing::info!(generation = %netmap.generation(), entries = netmap.len(), "runs on the netmap it persisted");
        }
        let in_force = netmap.clone().map(|netmap| Arc::new(InForce::of(netmap)));
        let (views, _) =
            watch::channel(in_force.as_ref().map(|found| found.view.clone()).unwrap_or_default());
        let (in_force, _) = watch::channel(in_force);
        let receiver = Mutex::new(Receiver::new(netmap));
        let shared = Shared { receiver, disk, in_force, views, check, figures: Figures::default() };
        let keeper = NetmapKeeper { shared: Arc::new(shared) };
        keeper.count();
        Ok(keeper)
    }

    /// Shows its figures in `/metrics`.
    pub fn register(&self, metrics: &Metrics) {
        self.shared.figures.register(metrics);
    }

    /// What is on disk and in force, for the first word of a session.
    pub fn held(&self) -> Option<Held> {
        self.stamp().map(held_message)
    }

    pub fn stamp(&self) -> Option<Stamp> {
        self.shared.in_force.borrow().as_ref().map(|in_force| in_force.netmap.stamp())
    }

    /// The netmap as it changes, for whoever forwards by it.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<InForce>>> {
        self.shared.in_force.subscribe()
    }

    /// How a gateway reads it, as it changes.
    pub fn views(&self) -> watch::Receiver<Arc<View>> {
        self.shared.views.subscribe()
    }

    /// Forgets the netmap. For an edge that has enrolled anew: its new cloud may count generations from one.
    pub async fn forget(&self) {
        let mut receiver = self.shared.receiver.lock().await;
        let shared = self.shared.clone();
        let cleared = tokio::task::spawn_blocking(move || shared.disk.clear()).await;
        if let Ok(Err(error)) = cleared {
            tracing::warn!(%error, "the netmap of an earlier life cannot be removed");
        }
        *receiver = Receiver::default();
        self.shared.in_force.send_replace(None);
        self.shared.views.send_replace(Arc::default());
        if let Some(check) = &self.shared.check {
            check.failing(NONE_YET);
        }
    }

    /// For the admin dump.
    pub fn dump(&self) -> serde_json::Value {
        let in_force = self.shared.in_force.borrow();
        in_force.as_ref().map_or(serde_json::Value::Null, |in_force| {
            serde_json::json!({
                "generation": in_force.netmap.generation().to_string(),
                "digest": in_force.netmap.digest().to_string(),
                "entries": in_force.netmap.len(),
                "notUnderstood": in_force.view.unknown,
                "damaged": in_force.view.damaged.len(),
            })
        })
    }

    /// Takes in an update of the cloud and returns the answer. What is acknowledged is on disk.
    pub async fn handle(&self, update: Bytes) -> EdgeSays {
        // In a task of its own: a session that ends meanwhile must not leave the disk and the memory apart.
        let keeper = self.clone();
        let taken = tokio::spawn(async move { keeper.take_in(&update).await }).await;
        let reply = taken.unwrap_or_else(|_| {
            let reason = "the edge failed while it took the netmap in".to_owned();
            Reply::Refused(Refusal { offered: None, reason, want_whole: true })
        });
        self.message(reply)
    }

    async fn take_in(&self, update: &[u8]) -> Reply {
        let mut receiver = self.shared.receiver.lock().await;
        let netmap = match receiver.handle_bytes(update) {
            Step::Persist(netmap) => netmap,
            Step::Reply(reply) => return reply,
        };
        let written = self.persist(netmap.clone()).await;
        self.tell(&written);
        let reply = receiver.handle_persisted(netmap.clone(), written);
        if let Reply::Acknowledged(_) = reply {
            tracing::info!(generation = %netmap.generation(), entries = netmap.len(), "a new netmap is in force");
            let in_force = Arc::new(InForce::of(netmap));
            self.shared.views.send_replace(in_force.view.clone());
            self.shared.in_force.send_replace(Some(in_force));
            self.shared.figures.taken.inc();
            self.count();
        }
        reply
    }

    async fn persist(&self, netmap: Arc<Netmap>) -> Result<(), String> {
        let shared = self.shared.clone();
        let written = tokio::task::spawn_blocking(move || shared.disk.write(&netmap)).await;
        match written {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(format!("the netmap cannot be written: {error}")),
            Err(_) => Err("the netmap cannot be written: the writer failed".to_owned()),
        }
    }

    fn count(&self) {
        if let Some(in_force) = &*self.shared.in_force.borrow() {
            self.shared.figures.entries.set(in_force.netmap.len() as i64);
            self.shared.figures.bytes.set(in_force.netmap.size_bytes() as i64);
        }
    }

    fn tell(&self, written: &Result<(), String>) {
        if written.is_err() {
            self.shared.figures.write_failures.inc();
        }
        let Some(check) = &self.shared.check else { return };
        match written {
            Ok(()) => drop(check.ready()),
            Err(reason) => {
                if check.failing(reason) {
                    tracing::error!(reason, "the old netmap goes on");
                }
            }
        }
    }

    fn message(&self, reply: Reply) -> EdgeSays {
        match reply {
            Reply::Acknowledged(stamp) => EdgeSays::NetmapAck(NetmapAck { held: Some(held_message(stamp)) }),
            Reply::Refused(Refusal { offered, reason, want_whole }) => {
                self.shared.figures.refused.inc();
                tracing::warn!(reason, want_whole, "a netmap is refused");
                let target = offered.map(held_message);
                EdgeSays::NetmapRefused(NetmapRefused { target, reason, want_whole, held: self.held() })
            }
        }
    }
}

/// As the link sees it.
impl Netmaps for NetmapKeeper {
    fn held(&self) -> Option<Held> {
        NetmapKeeper::held(self)
    }

    fn take(&self, update: Bytes) -> Later<'static, EdgeMessage> {
        let keeper = self.clone();
        Box::pin(async move { EdgeMessage { says: Some(keeper.handle(update).await) } })
    }
}

fn held_message(stamp: Stamp) -> Held {
    let Stamp { generation, digest } = stamp;
    Held { epoch: generation.epoch, revision: generation.revision, digest: digest.0.to_vec().into() }
}

#[cfg(test)]
mod tests;
