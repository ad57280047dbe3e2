//! Keeps the newest netmap of every attached gateway, and hands it to their sessions.
//!
//! The reconciler follows the store and hands over changes; this finds the gateways they affect, compiles
//! their netmaps and publishes those that differ. Only gateways with a session here are compiled for. A
//! session takes a `NetmapFeed`, which gives it updates to send and takes the replies. The last acknowledged
//! netmaps are remembered for a while, so that a session that comes back gets a delta.

mod acknowledged;
mod feed;
mod metrics;
mod neighbours;
mod report;
mod session_feed;
mod sites;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use causeway_api::sync::MutexExt;
use causeway_api::{EGateway, ESite, Object, ObjectSet};
use causeway_channel::wire::control::NeighbourQuery;
use causeway_daemon::Metrics;
use causeway_netmap::sync::TargetNetmap;
use causeway_netmap::{Generation, Netmap, NetmapStamp, NetmapView};
use causeway_store::Revision;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::compile::affected::{AffectedGateways, NetmapChanges};
use crate::compile::{PeerScope, compile, compile_for};
use crate::replicas::ActiveGateways;
use crate::reports::{Report, ReportInbox};
use acknowledged::AcknowledgedNetmaps;
use metrics::NetmapMetrics;
use neighbours::NeighbourSet;

pub use feed::{NetmapFeed, stamp};
pub use sites::SiteGateways;

/// Changes within this time are compiled together: an apply of many objects is one netmap.
const BATCH_DELAY: Duration = Duration::from_millis(50);

/// Members of a community that are peers of each other without being asked for. Netmaps of 64 members have 7 KB of peers
/// each.
pub const COMMUNITY_PEERS_MAX: usize = 64;

/// The one place netmaps come from. Clones share it.
#[derive(Clone)]
pub struct NetmapPublisher {
    shared: Arc<Shared>,
}

struct Shared {
    // Taken after the lock of the objects, never before it.
    state: Mutex<PublisherState>,
    /// There is something to compile.
    wake: Notify,
    /// Every attached gateway has been compiled for, as the store was then.
    compiled: watch::Sender<Generation>,
    sites: watch::Sender<Arc<SiteGateways>>,
    metrics: NetmapMetrics,
    /// Receives the reports on netmaps.
    reports: Arc<ReportInbox>,
    /// A community with more members is large: gateways ask for the members with which they exchange packets.
    community_peers_max: usize,
}

#[derive(Default)]
struct PublisherState {
    /// The reconciler's picture; none until it has loaded the store once.
    objects: Option<Arc<Mutex<ObjectSet>>>,
    seen: Generation,
    changes: NetmapChanges,
    active: ActiveGateways,
    /// Something was seen, if only a status: the generation moves.
    moved: bool,
    /// The objects were loaded anew: all gateways are compiled for, whatever the changes.
    everything: bool,
    /// Gateways that were attached since the last look.
    fresh: BTreeSet<String>,
    attached: HashMap<String, Attached>,
    remembered: AcknowledgedNetmaps,
}

/// A gateway with a session here, or with a local reader.
struct Attached {
    readers: usize,
    target: watch::Sender<Option<TargetNetmap>>,
    held: Option<NetmapStamp>,
    /// The site in the certificate of its newest session. None: a reader in this process.
    certificate_site: Option<String>,
    /// Time of the last change of the target.
    published: Instant,
    reported: Option<Report>,
    /// None: the gateway does not ask, and every member of its communities is a peer.
    neighbours: Option<NeighbourSet>,
    /// Rises with the neighbours, so that a netmap with other ones is newer (`NetmapStamp::turn`).
    turn: u64,
}

impl NetmapPublisher {
    pub fn new(metrics: &Metrics, reports: Arc<ReportInbox>) -> NetmapPublisher {
        let (compiled, _) = watch::channel(Generation::default());
        let shared = Shared {
            state: Mutex::default(),
            wake: Notify::new(),
            compiled,
            sites: watch::channel(Arc::default()).0,
            metrics: NetmapMetrics::register(metrics),
            reports,
            community_peers_max: COMMUNITY_PEERS_MAX,
        };
        NetmapPublisher { shared: Arc::new(shared) }
    }

    /// Sets the number of members above which a community is large. Called before the publisher is shared.
    pub fn with_community_peers_max(mut self, members: usize) -> NetmapPublisher {
        if let Some(shared) = Arc::get_mut(&mut self.shared) {
            shared.community_peers_max = members;
        }
        self
    }

    /// A session begins; `held` names the netmap that the gateway has on disk.
    pub fn attach(&self, gateway: &str, held: Option<NetmapStamp>) -> NetmapFeed {
        self.attach_from(gateway, None, held)
    }

    /// The same for a gateway whose certificate names `site`: while its EGateway is at another one, its
    /// netmap is empty.
    pub fn attach_from(&self, gateway: &str, site: Option<&str>, held: Option<NetmapStamp>) -> NetmapFeed {
        if let Some(site) = site {
            let mut state = self.lock();
            let attached = state.attached.entry(gateway.to_owned()).or_insert_with(Attached::new);
            if attached.certificate_site.as_deref() != Some(site) {
                attached.certificate_site = Some(site.to_owned());
                state.fresh.insert(gateway.to_owned());
            }
        }
        let targets = self.enter(gateway, Some(held));
        let known = {
            let state = self.lock();
            let target = state.attached.get(gateway).and_then(|attached| attached.target.borrow().clone());
            let target = target.map(|target| target.netmap);
            state.remembered.get(gateway).into_iter().chain(target).collect::<Vec<_>>()
        };
        NetmapFeed::new(self.clone(), gateway, held, known, targets)
    }

    /// Takes the neighbours of a gateway whose session begins: the sites of the peers in the netmap that it holds. None: the
    /// gateway does not ask for neighbours. Called before `attach_from`.
    pub fn restore_neighbours(&self, gateway: &str, held: Option<NetmapStamp>, sites: Option<&[String]>) {
        let mut state = self.lock();
        let attached = state.attached.entry(gateway.to_owned()).or_insert_with(Attached::new);
        let is_changed = match sites {
            None => attached.neighbours.take().is_some(),
            Some(sites) => {
                let is_new = attached.neighbours.is_none();
                attached.neighbours.get_or_insert_default().restore(sites) || is_new
            }
        };
        // Another replica, or this one before a restart, may have compiled under a higher turn.
        let turn = held.map_or(0, |held| held.turn.saturating_add(1)).max(attached.turn);
        if is_changed || (sites.is_some() && turn != attached.turn) {
            attached.turn = turn.saturating_add(u64::from(turn == attached.turn));
            state.fresh.insert(gateway.to_owned());
        }
    }

    /// Takes questions of an attached gateway. Its name comes from its certificate; sites that share no community with
    /// its own are not found.
    pub(crate) fn ask_neighbours(&self, gateway: &str, query: &NeighbourQuery) {
        let Some(objects) = self.lock().objects.clone() else { return };
        let picture = objects.lock_ignoring_poison();
        let mut state = self.lock();
        let Some(object) = picture.gateway(gateway) else { return };
        let Some(attached) = state.attached.get_mut(gateway) else { return };
        let is_moved = attached.certificate_site.as_ref().is_some_and(|site| *site != object.e_site_name);
        let Some(neighbours) = attached.neighbours.as_mut().filter(|_| !is_moved) else { return };
        if neighbours.ask(&picture, &object.e_site_name, query, Instant::now()) {
            attached.turn = attached.turn.saturating_add(1);
            state.fresh.insert(gateway.to_owned());
            drop(state);
            self.shared.wake.notify_one();
        }
    }

    /// The netmap of a gateway that is in this process, as it changes.
    pub fn follow(&self, gateway: &str) -> watch::Receiver<Option<TargetNetmap>> {
        self.enter(gateway, None)
    }

    /// Returns the gateways of each site, as they change.
    pub fn sites(&self) -> watch::Receiver<Arc<SiteGateways>> {
        self.shared.sites.subscribe()
    }

    /// Returns the netmap that an attached gateway holds.
    pub fn held(&self, gateway: &str) -> Option<NetmapStamp> {
        self.lock().attached.get(gateway)?.held
    }

    /// Returns the netmap that an attached gateway should hold.
    pub fn target(&self, gateway: &str) -> Option<NetmapStamp> {
        let state = self.lock();
        let target = state.attached.get(gateway)?.target.borrow();
        target.as_ref().map(|target| target.netmap.stamp())
    }

    /// Compiles the netmap of a gateway as the objects are now, whether the gateway is attached or not. `None`: there is no
    /// such gateway, or the store is not loaded yet.
    pub fn view_of(&self, gateway: &str) -> Option<NetmapView> {
        let (objects, active, seen) = {
            let state = self.lock();
            (state.objects.clone()?, state.active.clone(), state.seen)
        };
        let entries = {
            let objects = objects.lock_ignoring_poison();
            compile(&objects, &active, gateway)?
        };
        Netmap::build(seen, entries, None).ok().map(|netmap| NetmapView::decode(&netmap))
    }

    /// Returns the site of a service. `None`: there is no such service.
    pub fn site_of_service(&self, service: &str) -> Option<String> {
        let objects = self.lock().objects.clone()?;
        let objects = objects.lock_ignoring_poison();
        objects.service(service).map(|service| service.e_site_name.clone())
    }

    /// Returns the values of some labels of every site, in the order of `keys`.
    pub fn site_labels(&self, keys: &[String]) -> Vec<(String, Vec<Option<String>>)> {
        let Some(objects) = self.lock().objects.clone() else { return Vec::new() };
        let objects = objects.lock_ignoring_poison();
        let values =
            |site: &ESite| keys.iter().map(|key| site.metadata.labels.get(key).cloned()).collect::<Vec<_>>();
        objects.all::<ESite>().map(|site| (site.metadata.name.clone(), values(site))).collect()
    }

    /// Returns how long an attached gateway has not applied its newest netmap; zero when it has applied it.
    pub fn lag(&self, gateway: &str) -> Option<Duration> {
        let state = self.lock();
        let attached = state.attached.get(gateway)?;
        let target = attached.target.borrow().as_ref().map(|target| target.netmap.stamp())?;
        let is_held = attached.held.is_some_and(|held| held.digest == target.digest);
        Some(if is_held { Duration::ZERO } else { attached.published.elapsed() })
    }

    /// For the admin dump: the target and the held netmap of every attached gateway.
    pub fn dump(&self) -> serde_json::Value {
        let shown = |stamp: Option<NetmapStamp>| {
            stamp.map(|stamp| {
                let (generation, digest) = (stamp.generation.to_string(), stamp.digest.to_string());
                serde_json::json!({"generation": generation, "digest": digest})
            })
        };
        let state = self.lock();
        let gateways = state.attached.iter().map(|(gateway, attached)| {
            let target = attached.target.borrow().as_ref().map(|target| target.netmap.stamp());
            (gateway.clone(), serde_json::json!({"target": shown(target), "held": shown(attached.held)}))
        });
        let gateways: serde_json::Map<String, serde_json::Value> = gateways.collect();
        serde_json::json!({"seen": state.seen.to_string(), "gateways": gateways})
    }

    /// The reconciler has loaded everything. Called with the objects unlocked.
    pub(crate) fn reset(
        &self,
        objects: Arc<Mutex<ObjectSet>>,
        active: ActiveGateways,
        epoch: u64,
        revision: Revision,
    ) {
        let mut state = self.lock();
        state.objects = Some(objects);
        state.active = active;
        state.seen = Generation { epoch, revision: revision.0 };
        state.changes = NetmapChanges::default();
        state.everything = true;
        drop(state);
        self.shared.wake.notify_one();
    }

    /// An object changed. Called with the objects locked, so that the change is not compiled under an earlier
    /// revision.
    pub(crate) fn note(&self, revision: Revision, old: Option<&Object>, new: Option<&Object>) {
        let mut state = self.lock();
        state.changes.note(old, new);
        state.see(revision);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// The active gateway of a site was stored, or its record removed.
    pub(crate) fn note_active(&self, revision: Revision, site: &str, gateway: Option<String>) {
        let mut state = self.lock();
        match gateway {
            Some(gateway) => state.active.insert(site.to_owned(), gateway),
            None => state.active.remove(site),
        };
        state.changes.note_active(site);
        state.see(revision);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// The tunnel of a gateway changed; `keys` are its keys before and after. Called with the objects locked.
    pub(crate) fn note_tunnel(
        &self,
        revision: Revision,
        gateway: &str,
        keys: impl IntoIterator<Item = String>,
    ) {
        let mut state = self.lock();
        state.changes.note_tunnel(gateway, keys);
        state.see(revision);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// Networks of these sites were mapped, or are no longer. Called with the objects locked.
    pub(crate) fn note_mapped<'a>(&self, revision: Revision, sites: impl IntoIterator<Item = &'a str>) {
        let mut state = self.lock();
        sites.into_iter().for_each(|site| state.changes.note_mapped(site));
        state.see(revision);
        drop(state);
        self.shared.wake.notify_one();
    }

    /// The store has moved without a change of an object.
    pub(crate) fn handle_revision(&self, revision: Revision) {
        self.lock().see(revision);
        self.shared.wake.notify_one();
    }

    /// Compiles until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.shared.wake.notified() => {}
            }
            // A new session does not wait; an object that has just changed may change again within this time.
            if self.lock().moved {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => return,
                    () = tokio::time::sleep(BATCH_DELAY) => {}
                }
            }
            self.round().await;
        }
    }

    async fn round(&self) {
        let Some(Round { objects, gateways, seen }) = self.begin() else { return };
        for gateway in gateways {
            self.compile_one(&objects, &gateway);
            // Twenty thousand gateways take seconds; other tasks of this thread must run in between.
            tokio::task::yield_now().await;
        }
        self.shared.compiled.send_if_modified(|compiled| {
            let is_new = *compiled != seen;
            *compiled = seen;
            is_new
        });
    }

    /// Takes the changes and returns the gateways to compile for.
    fn begin(&self) -> Option<Round> {
        let objects = self.lock().objects.clone()?;
        let picture = objects.lock_ignoring_poison();
        let mut state = self.lock();
        // Loaded anew in between; that has woken us once more.
        if !state.objects.as_ref().is_some_and(|newest| Arc::ptr_eq(newest, &objects)) {
            return None;
        }
        state.moved = false;
        let everything = std::mem::take(&mut state.everything);
        if everything || state.changes.concern_gateways() {
            self.shared.sites.send_replace(Arc::new(SiteGateways::of(&picture, &state.active)));
        }
        let affected = std::mem::take(&mut state.changes).affected(&picture);
        let mut gateways = std::mem::take(&mut state.fresh);
        if everything {
            gateways.extend(state.attached.keys().cloned());
        } else {
            gateways.extend(affected.named(&picture).map(str::to_owned));
            gateways.extend(state.holders_of(&affected));
        }
        gateways.retain(|gateway| state.attached.contains_key(gateway));
        let seen = state.seen;
        drop(state);
        drop(picture);
        Some(Round { objects, gateways, seen })
    }

    fn compile_one(&self, objects: &Arc<Mutex<ObjectSet>>, gateway: &str) {
        let (entries, seen, turn) = {
            let picture = objects.lock_ignoring_poison();
            let state = self.lock();
            // Loaded anew since the round began: everything will be compiled from that, under its own
            // revision.
            if !state.objects.as_ref().is_some_and(|newest| Arc::ptr_eq(newest, objects)) {
                return;
            }
            let object = picture.gateway(gateway);
            let active = object.map(|object| state.active_near(&picture, object)).unwrap_or_default();
            let seen = state.seen;
            let attached = state.attached.get(gateway);
            let certificate_site = attached.and_then(|attached| attached.certificate_site.clone());
            let neighbours = attached.and_then(|attached| attached.neighbours.as_ref());
            let neighbours = neighbours.map(|neighbours| neighbours.sites().clone());
            // A gateway that does not ask does not know turns: it acknowledges turn 0.
            let turn = attached.filter(|_| neighbours.is_some()).map_or(0, |attached| attached.turn);
            drop(state);
            let members_max = self.shared.community_peers_max;
            let scope = neighbours
                .as_ref()
                .map_or(PeerScope::Everyone, |neighbours| PeerScope::Neighbours { members_max, neighbours });
            // A gateway is never told the netmap of another site than its certificate names.
            let is_moved = certificate_site
                .zip(picture.gateway(gateway))
                .is_some_and(|(site, object)| site != object.e_site_name);
            (if is_moved { None } else { compile_for(&picture, &active, gateway, scope) }, seen, turn)
        };
        self.shared.metrics.compiles.inc();
        let mut state = self.lock();
        let Some(attached) = state.attached.get(gateway) else { return };
        let previous = attached.target.borrow().as_ref().map(|target| target.netmap.clone());
        let previous = previous.or_else(|| state.remembered.get(gateway));
        // Without its object a gateway forwards nothing.
        let netmap = match Netmap::build(seen, entries.unwrap_or_default(), previous.as_deref()) {
            Ok(netmap) => netmap.at_turn(turn),
            Err(error) => {
                self.shared.metrics.failures.inc();
                tracing::error!(gateway, %error, "no netmap can be made; the gateway keeps the one it has");
                return;
            }
        };
        if let Some(attached) = state.attached.get_mut(gateway) {
            attached.publish(Arc::new(netmap), seen);
        }
    }

    fn enter(
        &self,
        gateway: &str,
        held: Option<Option<NetmapStamp>>,
    ) -> watch::Receiver<Option<TargetNetmap>> {
        let mut state = self.lock();
        let attached = state.attached.entry(gateway.to_owned()).or_insert_with(Attached::new);
        attached.readers += 1;
        if let Some(held) = held {
            attached.held = held;
        }
        let targets = attached.target.subscribe();
        if targets.borrow().is_none() {
            state.fresh.insert(gateway.to_owned());
        }
        drop(state);
        self.shared.wake.notify_one();
        targets
    }

    fn detach(&self, gateway: &str) {
        let mut state = self.lock();
        if let Some(attached) = state.attached.get_mut(gateway) {
            attached.readers -= 1;
            if attached.readers == 0 {
                state.attached.remove(gateway);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, PublisherState> {
        self.shared.state.lock_ignoring_poison()
    }
}

struct Round {
    objects: Arc<Mutex<ObjectSet>>,
    gateways: BTreeSet<String>,
    seen: Generation,
}

impl PublisherState {
    /// The stored active gateways of the site of a gateway, and of the sites that share a community with it.
    fn active_near(&self, objects: &ObjectSet, gateway: &EGateway) -> ActiveGateways {
        let site = gateway.e_site_name.as_str();
        let sites = objects.neighbours(site).into_iter().chain([site]);
        let stored = sites.filter_map(|site| self.active.get_key_value(site));
        stored.map(|(site, active)| (site.clone(), active.clone())).collect()
    }

    /// A walk over all attached gateways, so only when there is something to look for.
    fn holders_of(&self, affected: &AffectedGateways) -> Vec<String> {
        if affected.has_no_keys() {
            return Vec::new();
        }
        let holds = |attached: &Attached| {
            attached.target.borrow().as_ref().is_some_and(|target| affected.touches(&target.netmap))
        };
        self.attached.iter().filter(|(_, attached)| holds(attached)).map(|(name, _)| name.clone()).collect()
    }

    fn see(&mut self, revision: Revision) {
        self.moved = true;
        self.seen.revision = self.seen.revision.max(revision.0);
    }
}

impl Attached {
    fn new() -> Attached {
        Attached {
            readers: 0,
            target: watch::channel(None).0,
            held: None,
            certificate_site: None,
            published: Instant::now(),
            reported: None,
            neighbours: None,
            turn: 0,
        }
    }

    /// An unchanged netmap keeps its generation and wakes no session.
    fn publish(&mut self, netmap: Arc<Netmap>, seen: Generation) {
        let is_published = self.target.send_if_modified(|target| {
            let is_new = target.as_ref().is_none_or(|target| {
                target.netmap.digest() != netmap.digest()
                    || target.netmap.generation().epoch != seen.epoch
                    || target.netmap.stamp().turn != netmap.stamp().turn
            });
            if is_new {
                *target = Some(TargetNetmap { netmap, seen });
            }
            is_new
        });
        if is_published {
            self.published = Instant::now();
        }
    }
}

#[cfg(test)]
mod tests;
