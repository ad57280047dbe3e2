//! The netmap of this edge: received from the cloud, published to the gateway, persisted.
//!
//! An update is applied in memory, published, written whole, then acknowledged: a change that takes access away holds at once, also when
//! the disk refuses it. Then the acknowledgement says that it is not persisted, and the write is tried again until it succeeds.
//! An edge that starts without the cloud runs on what it finds, unless that was withdrawn (`disk`).

mod disk;
mod metrics;

use std::path::Path;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use causeway_channel::clock::UtcTimestamp;
use causeway_channel::session::TransportPreference;
use causeway_channel::wire::control::{EdgeMessage, EdgeMessageBody, HeldNetmap, NetmapAck, NetmapRefused};
use causeway_daemon::{Metrics, ReadinessCheck};
use causeway_netmap::sync::{NetmapReceiver, NetmapRefusal, NetmapReply, ReceiverStep};
use causeway_netmap::{CarriagePreference, Netmap, NetmapStamp, NetmapView};
use tokio::sync::{Mutex, watch};
use tokio::task::JoinHandle;

use crate::link::{LinkFuture, NetmapHandler};
use disk::{Found, NetmapFiles};
use metrics::NetmapKeeperMetrics;

pub use disk::{FOLDER, NetmapFileError, persisted};

const NONE_YET: &str = "the cloud has sent no netmap yet";
const WITHDRAWN: &str = "the netmap on the disk is withdrawn, because a later one could not be written: the cloud must be reached";
/// A disk that was cleared is noticed within this; the first tries are sooner.
const RETRY_MAX: Duration = Duration::from_secs(30);
const RETRY_FIRST: Duration = Duration::from_secs(1);

/// Keeps the netmap of one edge. Clones share it.
#[derive(Clone)]
pub struct NetmapKeeper {
    shared: Arc<Shared>,
}

struct Shared {
    // Held while an update is taken in: the next one waits, in order.
    receiver: Mutex<NetmapReceiver>,
    disk: NetmapFiles,
    in_force: watch::Sender<Option<Arc<CurrentNetmap>>>,
    /// The netmap in force as the gateway reads it; empty while there is none.
    views: watch::Sender<Arc<NetmapView>>,
    check: Option<ReadinessCheck>,
    metrics: NetmapKeeperMetrics,
    /// Reports to sessions about the disk, beside the responses to updates.
    later_acks: watch::Sender<Option<NetmapAck>>,
    retrying: OnceLock<JoinHandle<()>>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(retrying) = self.retrying.get() {
            retrying.abort();
        }
    }
}

/// The netmap in force, and the form in which a gateway reads it.
#[derive(Debug)]
pub struct CurrentNetmap {
    pub netmap: Arc<Netmap>,
    pub view: Arc<NetmapView>,
    /// When it was taken in.
    pub since: SystemTime,
}

impl CurrentNetmap {
    fn of(netmap: Arc<Netmap>, since: SystemTime) -> CurrentNetmap {
        let view = NetmapView::decode(&netmap);
        for error in &view.damaged {
            tracing::warn!(%error, "a part of the netmap is left out");
        }
        CurrentNetmap { netmap, view: Arc::new(view), since }
    }
}

impl NetmapKeeper {
    /// Reads the newest persisted netmap that is whole. `check` reports the state to `/readyz`.
    pub fn open(data_dir: &Path, check: Option<ReadinessCheck>) -> Result<NetmapKeeper, NetmapFileError> {
        let (disk, found) = NetmapFiles::open(&data_dir.join(FOLDER))?;
        if let Some(check) = &check {
            match &found {
                Found::Netmap(_) => drop(check.ready()),
                Found::Nothing => drop(check.failing(NONE_YET)),
                Found::Withdrawn(_) => drop(check.failing(WITHDRAWN)),
            }
        }
        let (netmap, in_force) = match found {
            Found::Nothing => (None, None),
            Found::Netmap(netmap) => {
                tracing::info!(generation = %netmap.generation(), entries = netmap.len(), "runs on the netmap it persisted");
                (Some(netmap.clone()), Some(netmap))
            }
            Found::Withdrawn(netmap) => {
                tracing::error!(generation = %netmap.generation(), reason = WITHDRAWN, "nothing is forwarded");
                (Some(netmap), None)
            }
        };
        let in_force =
            in_force.map(|netmap| Arc::new(CurrentNetmap::of(netmap, written(&data_dir.join(FOLDER)))));
        let (views, _) =
            watch::channel(in_force.as_ref().map(|found| found.view.clone()).unwrap_or_default());
        let (in_force, _) = watch::channel(in_force);
        let receiver = Mutex::new(NetmapReceiver::new(netmap));
        let shared = Shared {
            receiver,
            disk,
            in_force,
            views,
            check,
            metrics: NetmapKeeperMetrics::default(),
            later_acks: watch::channel(None).0,
            retrying: OnceLock::new(),
        };
        let keeper = NetmapKeeper { shared: Arc::new(shared) };
        keeper.count();
        Ok(keeper)
    }

    /// Shows its metrics in `/metrics`.
    pub fn register(&self, metrics: &Metrics) {
        self.shared.metrics.register(metrics);
    }

    /// The stamp of the netmap in force, for hello. `None` makes the cloud send the whole netmap.
    pub fn held(&self) -> Option<HeldNetmap> {
        self.stamp().map(held_message)
    }

    pub fn stamp(&self) -> Option<NetmapStamp> {
        self.shared.in_force.borrow().as_ref().map(|in_force| in_force.netmap.stamp())
    }

    /// The netmap as it changes.
    pub fn subscribe(&self) -> watch::Receiver<Option<Arc<CurrentNetmap>>> {
        self.shared.in_force.subscribe()
    }

    /// The form in which a gateway reads it, as it changes.
    pub fn views(&self) -> watch::Receiver<Arc<NetmapView>> {
        self.shared.views.subscribe()
    }

    /// Forgets the netmap. For an edge that has enrolled anew: its new cloud may count generations from one.
    pub async fn forget(&self) {
        let mut receiver = self.shared.receiver.lock().await;
        let shared = self.shared.clone();
        let cleared = tokio::task::spawn_blocking(move || shared.disk.clear()).await;
        if let Ok(Err(error)) = cleared {
            tracing::warn!(%error, "the netmap of an earlier enrolment cannot be removed");
        }
        *receiver = NetmapReceiver::default();
        self.shared.later_acks.send_replace(None);
        self.shared.metrics.unpersisted.set(0);
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
                "since": UtcTimestamp(in_force.since).to_string(),
                "notUnderstood": in_force.view.unknown,
                "damaged": in_force.view.damaged.len(),
                "notPersisted": self.not_persisted(),
            })
        })
    }

    fn not_persisted(&self) -> Option<String> {
        let said = self.shared.later_acks.borrow();
        said.as_ref().map(|ack| ack.not_persisted.clone()).filter(|reason| !reason.is_empty())
    }

    /// Applies an update of the cloud and returns the response. An acknowledged netmap is in force; the
    /// response says whether it is on disk.
    pub async fn handle(&self, update: Bytes) -> EdgeMessageBody {
        // In a task of its own: a session that ends meanwhile must not leave the disk and the memory apart.
        let keeper = self.clone();
        let taken = tokio::spawn(async move { keeper.take_in(&update).await }).await;
        let reply = taken.unwrap_or_else(|_| {
            let reason = "the edge failed while it took the netmap in".to_owned();
            NetmapReply::Refused(NetmapRefusal { offered: None, reason, want_whole: true })
        });
        self.message(reply)
    }

    async fn take_in(&self, update: &[u8]) -> NetmapReply {
        let mut receiver = self.shared.receiver.lock().await;
        let netmap = match (receiver.handle_bytes(update), receiver.held()) {
            (ReceiverStep::Persist(netmap), _) => netmap,
            // It was withdrawn; according to the cloud it is the newest after all.
            (ReceiverStep::Reply(NetmapReply::Acknowledged(stamp)), Some(held))
                if self.stamp() != Some(stamp) =>
            {
                held.clone()
            }
            (ReceiverStep::Reply(reply), _) => return reply,
        };
        self.publish(netmap.clone());
        let written = self.persist(netmap.clone()).await;
        self.report_disk_state(netmap.stamp(), &written);
        receiver.handle_persisted(netmap, written)
    }

    fn publish(&self, netmap: Arc<Netmap>) {
        tracing::info!(generation = %netmap.generation(), entries = netmap.len(), "a new netmap is in force");
        let in_force = Arc::new(CurrentNetmap::of(netmap, SystemTime::now()));
        self.shared.views.send_replace(in_force.view.clone());
        self.shared.in_force.send_replace(Some(in_force));
        self.shared.metrics.taken.inc();
        self.count();
    }

    async fn persist(&self, netmap: Arc<Netmap>) -> Result<(), String> {
        let shared = self.shared.clone();
        let written = tokio::task::spawn_blocking(move || shared.disk.write(&netmap)).await;
        written.unwrap_or_else(|_| Err("the netmap in force cannot be written: the writer failed".to_owned()))
    }

    /// Writes what is in force, if it is not on the disk.
    async fn persist_again(&self) {
        // Updates wait meanwhile, so that an older netmap is never written after a newer one.
        let mut receiver = self.shared.receiver.lock().await;
        let in_force = self.shared.in_force.borrow().clone();
        let Some(in_force) = in_force.filter(|_| self.not_persisted().is_some()) else { return };
        let written = self.persist(in_force.netmap.clone()).await;
        self.report_disk_state(in_force.netmap.stamp(), &written);
        receiver.handle_persisted(in_force.netmap.clone(), written);
    }

    fn count(&self) {
        if let Some(in_force) = &*self.shared.in_force.borrow() {
            self.shared.metrics.entries.set(in_force.netmap.len() as i64);
            self.shared.metrics.bytes.set(in_force.netmap.size_bytes() as i64);
        }
    }

    /// Reports the state of the disk: to `/readyz`, to the log when it changes, and to the cloud.
    fn report_disk_state(&self, stamp: NetmapStamp, written: &Result<(), String>) {
        let was_unpersisted = self.not_persisted().is_some();
        self.shared.metrics.unpersisted.set(i64::from(written.is_err()));
        let not_persisted = written.as_ref().err().cloned().unwrap_or_default();
        if let Some(check) = &self.shared.check {
            match written {
                Ok(()) => check.ready(),
                Err(reason) => check.failing(reason),
            };
        }
        match written {
            Ok(()) if was_unpersisted => {
                tracing::info!(generation = %stamp.generation, "the netmap in force is on the disk again");
            }
            Ok(()) => return,
            Err(reason) => {
                self.shared.metrics.write_failures.inc();
                if !was_unpersisted {
                    tracing::error!(generation = %stamp.generation, reason, "the netmap is in force and not persisted");
                }
                self.shared.retrying.get_or_init(|| tokio::spawn(retry(Arc::downgrade(&self.shared))));
            }
        }
        let ack = NetmapAck { held: Some(held_message(stamp)), not_persisted };
        self.shared.later_acks.send_if_modified(|said| {
            let is_new = said.as_ref() != Some(&ack);
            *said = Some(ack);
            is_new
        });
    }

    fn message(&self, reply: NetmapReply) -> EdgeMessageBody {
        match reply {
            NetmapReply::Acknowledged(stamp) => EdgeMessageBody::NetmapAck(NetmapAck {
                held: Some(held_message(stamp)),
                not_persisted: String::new(),
            }),
            NetmapReply::InForce { stamp, not_persisted } => {
                EdgeMessageBody::NetmapAck(NetmapAck { held: Some(held_message(stamp)), not_persisted })
            }
            NetmapReply::Refused(NetmapRefusal { offered, reason, want_whole }) => {
                self.shared.metrics.refused.inc();
                tracing::warn!(reason, want_whole, "a netmap is refused");
                let target = offered.map(held_message);
                EdgeMessageBody::NetmapRefused(NetmapRefused {
                    target,
                    reason,
                    want_whole,
                    held: self.held(),
                })
            }
        }
    }
}

/// Writes what is in force again and again, while it is not on the disk. Ends with the keeper.
async fn retry(shared: Weak<Shared>) {
    let mut pause = RETRY_FIRST;
    loop {
        tokio::time::sleep(pause).await;
        let Some(shared) = shared.upgrade() else { return };
        let keeper = NetmapKeeper { shared };
        keeper.persist_again().await;
        pause = match keeper.not_persisted() {
            Some(_) => (pause * 2).min(RETRY_MAX),
            None => {
                // Not the keeper itself: it must not be held while there is nothing to do.
                let waiting = keeper.shared.later_acks.subscribe();
                drop(keeper);
                if until_unpersisted(waiting).await.is_err() {
                    return;
                }
                RETRY_FIRST
            }
        };
    }
}

/// Fails when the keeper is gone.
async fn until_unpersisted(
    mut acks: watch::Receiver<Option<NetmapAck>>,
) -> Result<(), watch::error::RecvError> {
    let is_unpersisted =
        |ack: &Option<NetmapAck>| ack.as_ref().is_some_and(|ack| !ack.not_persisted.is_empty());
    acks.wait_for(is_unpersisted).await.map(drop)
}

/// As the link sees it.
impl NetmapHandler for NetmapKeeper {
    fn later_acks(&self) -> watch::Receiver<Option<NetmapAck>> {
        self.shared.later_acks.subscribe()
    }

    fn held(&self) -> Option<HeldNetmap> {
        NetmapKeeper::held(self)
    }

    fn preference(&self) -> Option<TransportPreference> {
        let view = self.shared.views.borrow().clone();
        Some(match view.gateway.as_ref()?.prefer {
            CarriagePreference::Auto => TransportPreference::Auto,
            CarriagePreference::Speed => TransportPreference::Speed,
            CarriagePreference::Survival => TransportPreference::Survival,
        })
    }

    fn take(&self, update: Bytes) -> LinkFuture<'static, EdgeMessage> {
        let keeper = self.clone();
        Box::pin(async move { EdgeMessage { body: Some(keeper.handle(update).await) } })
    }
}

/// When the newest file of a folder was written.
fn written(folder: &Path) -> SystemTime {
    let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let times = files.filter_map(|file| file.metadata().ok()?.modified().ok());
    times.max().unwrap_or_else(SystemTime::now)
}

fn held_message(stamp: NetmapStamp) -> HeldNetmap {
    let NetmapStamp { generation, digest, turn } = stamp;
    HeldNetmap {
        epoch: generation.epoch,
        revision: generation.revision,
        digest: digest.0.to_vec().into(),
        turn,
    }
}

#[cfg(test)]
mod tests;
