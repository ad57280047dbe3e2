//! The state between one load of the store and the next: the objects, the pending decisions, and the writes in flight.
//!
//! Input: events of the store and results of writes. Output: the next writes. `Reconciler` loads the state, waits, and gives
//! a `Round` its turns.

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use causeway_api::allocate::{AllocationStep, FreedAddresses};
use causeway_api::sync::MutexExt;
use causeway_api::{Kind, Object, ObjectSet, Status, conditions, presence};
use causeway_apiserver::{Registry, RegistryError};
use causeway_store::{StoreError, StoreEvent};
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;

use super::affected::{self, ConditionChanges};
use super::presences::{self, PresenceWork};
use super::{MANAGER, PAUSE_FIRST, PAUSE_MAX, Reconciler, lean};
use crate::bootstrap::{self, CLOUD};
use crate::replicas::{decode_active, site_of_active};
use crate::tunnels::{self, Layer3Change, RangeWork, RangeWrite, TUNNELS};

/// Changes within this time are looked at together.
const BATCH_DELAY: Duration = Duration::from_millis(10);
/// The same for gateways that connect or disconnect. Longer, because one exposure may depend on a thousand
/// gateways.
const LINK_BATCH_DELAY: Duration = Duration::from_secs(1);
/// Enough to fill a group commit; each holds one object.
const WRITES_MAX: usize = 64;

pub(super) type ObjectKey = (Kind, String);
pub(super) type Write = Pin<Box<dyn Future<Output = (WriteSubject, Result<(), RegistryError>)> + Send>>;

/// The subject of a write.
pub(super) enum WriteSubject {
    /// The cloud's own objects.
    Own,
    Object(ObjectKey),
    Presence(String, AllocationStep),
    /// The mapped networks of a community.
    Ranges(String),
    /// The tunnel of a gateway that was deleted.
    Tunnel,
}

/// The state between one load and the next.
pub(super) struct Round<'a> {
    reconciler: &'a Reconciler,
    pub(super) objects: Arc<Mutex<ObjectSet>>,
    changes: ConditionChanges,
    /// Gateways that were connected or lost, until `links_at`.
    links: ConditionChanges,
    presences: PresenceWork,
    ranges: RangeWork,
    /// Records of tunnels whose gateways were deleted.
    orphans: BTreeSet<String>,
    /// One of the cloud's own objects is missing.
    own_missing: bool,
    pending: BTreeSet<ObjectKey>,
    in_flight: BTreeSet<ObjectKey>,
    pub(super) writes: FuturesUnordered<Write>,
    /// When changes are looked at.
    look_at: Option<Instant>,
    links_at: Option<Instant>,
    /// Writes wait until then, because one failed.
    pub(super) paused: Option<Instant>,
    /// The pause after the next failure.
    pub(super) pause: Duration,
}

impl<'a> Round<'a> {
    pub(super) fn new(reconciler: &'a Reconciler, objects: ObjectSet, freed: FreedAddresses) -> Round<'a> {
        let pending = objects.objects().map(|object| (object.kind(), object.name().to_owned())).collect();
        let is_there = |kind| objects.get(kind, CLOUD).is_some();
        let own_missing = reconciler.keeps_own && !(is_there(Kind::ESite) && is_there(Kind::EGateway));
        Round {
            reconciler,
            own_missing,
            presences: PresenceWork::new(&objects, freed),
            ranges: RangeWork::new(&objects),
            orphans: orphans(&objects),
            objects: Arc::new(Mutex::new(objects)),
            changes: ConditionChanges::default(),
            links: ConditionChanges::default(),
            pending,
            in_flight: BTreeSet::new(),
            writes: FuturesUnordered::new(),
            look_at: Some(Instant::now()),
            links_at: None,
            paused: None,
            pause: PAUSE_FIRST,
        }
    }

    pub(super) fn objects(&self) -> MutexGuard<'_, ObjectSet> {
        self.objects.lock_ignoring_poison()
    }

    /// Applies an event of the store to the picture. Other records than objects are handed on.
    pub(super) fn take(&mut self, event: &StoreEvent) {
        let Some((kind, name)) =
            event.key.split_once('/').and_then(|(plural, name)| Some((Kind::from_plural(plural)?, name)))
        else {
            self.presences.note_freed(&event.key, event.value.as_ref().map(|_| event.revision.0));
            if let Some(reports) = &self.reconciler.reports {
                reports.note_record(&event.key, event.value.as_deref(), event.revision);
            }
            if self.take_layer3(event) {
                return;
            }
            if let (Some(publisher), Some(site)) = (&self.reconciler.publisher, site_of_active(&event.key)) {
                let active = event.value.as_deref().and_then(decode_active);
                return publisher.note_active(event.revision, site, active);
            }
            return self.reconciler.handle_revision(event.revision);
        };
        let new = match event.value.as_ref().map(|value| Object::from_stored(kind, value)) {
            Some(Ok(object)) => Some(lean(object)),
            Some(Err(error)) => {
                tracing::error!(key = %event.key, %error, "a stored object cannot be read");
                None
            }
            None => None,
        };
        self.own_missing |=
            self.reconciler.keeps_own && event.value.is_none() && bootstrap::is_own(kind, name);
        let mut objects = self.objects.lock_ignoring_poison();
        let old = objects.remove(kind, name);
        let link = old.as_ref().zip(new.as_ref()).and_then(|(old, new)| affected::changed_link(old, new));
        match link {
            Some(_) => self.links.note(old.as_ref(), new.as_ref()),
            None => self.changes.note(old.as_ref(), new.as_ref()),
        }
        let is_link = link.is_some();
        self.presences.note(old.as_ref(), new.as_ref(), &objects);
        self.ranges.note(old.as_ref(), new.as_ref(), &objects);
        if kind == Kind::EGateway && new.is_none() && objects.layer3.tunnels.contains_key(name) {
            self.orphans.insert(name.to_owned());
        }
        if let Some(publisher) = &self.reconciler.publisher {
            publisher.note(event.revision, old.as_ref(), new.as_ref());
        }
        if let Some(reports) = &self.reconciler.reports {
            reports.note(event.revision, old.as_ref(), new.as_ref());
        }
        if let Some(new) = new {
            objects.insert(new);
        }
        drop(objects);
        match is_link {
            true => self.links_at.get_or_insert_with(|| Instant::now() + LINK_BATCH_DELAY),
            false => self.look_at.get_or_insert_with(|| Instant::now() + BATCH_DELAY),
        };
    }

    /// Puts a record of layer 3 into the picture. False: the event is about something else, or changes nothing.
    fn take_layer3(&mut self, event: &StoreEvent) -> bool {
        let mut objects = self.objects.lock_ignoring_poison();
        let Some(change) = tunnels::take_record(&mut objects, &event.key, event.value.as_deref()) else {
            return false;
        };
        let publisher = self.reconciler.publisher.as_ref();
        match change {
            Layer3Change::Tunnel { gateway, keys } => {
                let site = objects.gateway(&gateway).map(|gateway| gateway.e_site_name.as_str());
                self.changes.note_tunnel(&gateway, site, &keys);
                if let Some(publisher) = publisher {
                    publisher.note_tunnel(event.revision, &gateway, keys);
                }
            }
            Layer3Change::Mapped { community, sites } => {
                self.changes.note_mapped(&community, &sites);
                self.ranges.note_mapped(&community, &sites, &objects);
                if let Some(publisher) = publisher {
                    publisher.note_mapped(event.revision, sites.iter().map(String::as_str));
                }
            }
        }
        drop(objects);
        if let Some(reports) = &self.reconciler.reports {
            reports.handle_revision(event.revision);
        }
        self.look_at.get_or_insert_with(|| Instant::now() + BATCH_DELAY);
        true
    }

    /// When something is to be done without a new event.
    pub(super) fn due(&self) -> Option<Instant> {
        let has_work = !self.pending.is_empty()
            || self.presences.has_work()
            || self.ranges.has_work()
            || !self.orphans.is_empty()
            || self.own_missing;
        let resume = self.paused.filter(|_| has_work);
        self.look_at.into_iter().chain(self.links_at).chain(resume).min()
    }

    /// Turns changes into objects to look at.
    pub(super) fn collect_pending(&mut self) {
        self.paused = self.paused.filter(|until| *until > Instant::now());
        self.look_at = None;
        let objects = self.objects.lock_ignoring_poison();
        self.presences.replan(&objects);
        self.pending.extend(std::mem::take(&mut self.changes).affected(&objects));
        if self.links_at.is_some_and(|at| at <= Instant::now()) {
            self.links_at = None;
            self.pending.extend(std::mem::take(&mut self.links).affected(&objects));
        }
        drop(objects);
        self.reconciler.metrics.pending.set(self.pending.len() as i64);
    }

    pub(super) fn start_writes(&mut self) {
        let now = Instant::now();
        if self.look_at.is_some_and(|at| at > now) || self.paused.is_some_and(|until| until > now) {
            return;
        }
        if std::mem::take(&mut self.own_missing) {
            let registry = self.reconciler.registry.clone();
            self.writes
                .push(Box::pin(async move { (WriteSubject::Own, bootstrap::ensure(&registry).await) }));
        }
        for write in self.ranges.records_to_write(&self.objects.lock_ignoring_poison()) {
            self.writes.push(store_ranges(&self.reconciler.registry, write));
        }
        for gateway in std::mem::take(&mut self.orphans) {
            self.writes.push(forget_tunnel(&self.reconciler.registry, &gateway));
        }
        // Addresses first: a condition that waits tells more.
        while self.writes.len() < WRITES_MAX {
            let Some((site, step)) = self.presences.next() else { break };
            self.writes.push(carry_out(&self.reconciler.registry, site, step));
        }
        let mut later = BTreeSet::new();
        while self.writes.len() < WRITES_MAX {
            let Some(key) = self.pending.pop_first() else { break };
            if self.in_flight.contains(&key) {
                later.insert(key);
            } else if let Some(write) = self.decide(&key) {
                self.in_flight.insert(key);
                self.writes.push(write);
            }
        }
        self.pending.append(&mut later);
        let pending = self.pending.len() + self.in_flight.len() + self.presences.len();
        self.reconciler.metrics.pending.set(pending as i64);
    }

    /// Returns the write that an object needs. None: its status is right.
    fn decide(&self, key: &ObjectKey) -> Option<Write> {
        let (kind, name) = key.clone();
        let objects = self.objects();
        let object = objects.get(kind, &name)?;
        let registry = self.reconciler.registry.clone();
        if let Some(site) = implied_site(object, &objects) {
            return Some(Box::pin(async move {
                let edit = |live: &mut Object| set_site(live, &site);
                let written = registry.edit(MANAGER, kind, &name, edit).await;
                (WriteSubject::Object((kind, name)), written.map(drop))
            }));
        }
        let now = registry.now();
        if conditions::status(object, &objects, now) == *object.status() {
            return None;
        }
        // Decided anew where it is written, with the picture as it is then. A live object that differs from
        // the picture was written by a part that may know more, such as another replica: it stays as it is,
        // and its event brings us here again.
        let shared = self.objects.clone();
        Some(Box::pin(async move {
            let edit = |live: &mut Object| {
                let objects = shared.lock_ignoring_poison();
                if objects.get(kind, &name).is_some_and(|known| is_same(known, live)) {
                    let status = conditions::status(live, &objects, now);
                    *live.status_mut() = status;
                }
            };
            let written = registry.edit_status(MANAGER, kind, &name, edit).await;
            (WriteSubject::Object((kind, name)), written.map(drop))
        }))
    }

    pub(super) fn finish(&mut self, work: WriteSubject, written: Result<(), RegistryError>) {
        match work {
            WriteSubject::Own => self.finish_own(written),
            WriteSubject::Object(key) => self.finish_object(key, written),
            WriteSubject::Presence(site, step) => self.finish_presence(site, &step, written),
            WriteSubject::Ranges(community) => match written {
                Ok(()) => self.succeeded(),
                Err(error) => {
                    self.ranges.again(community);
                    self.failed(&error);
                }
            },
            // A record that stays names no gateway, and the next load tries again.
            WriteSubject::Tunnel => {}
        }
    }

    fn finish_own(&mut self, written: Result<(), RegistryError>) {
        match written {
            Ok(()) => self.succeeded(),
            Err(status) => {
                self.own_missing = true;
                self.failed(&status);
            }
        }
    }

    fn finish_presence(&mut self, site: String, step: &AllocationStep, written: Result<(), RegistryError>) {
        let again = self.presences.finish(site, step, &written);
        match written {
            Ok(()) => self.succeeded(),
            Err(error) if again => self.failed(&error),
            // Another replica was faster; the remaining work shows at the next look.
            Err(_) => {}
        }
        if self.presences.is_dirty() {
            self.look_at.get_or_insert_with(|| Instant::now() + BATCH_DELAY);
        }
    }

    fn finish_object(&mut self, key: ObjectKey, written: Result<(), RegistryError>) {
        self.in_flight.remove(&key);
        let metrics = &self.reconciler.metrics;
        match written {
            Ok(()) => self.succeeded(),
            // Deleted in between; its event is on the way.
            Err(RegistryError::NotFound(_)) => {}
            // Will not get better by trying again; a change of the object will bring it back.
            Err(RegistryError::Invalid(status)) => {
                metrics.failures.inc();
                tracing::warn!(
                    kind = key.0.name(),
                    name = key.1,
                    reason = status.message,
                    "conditions cannot be written"
                );
            }
            Err(status) => {
                self.pending.insert(key);
                self.failed(&status);
            }
        }
    }

    fn succeeded(&mut self) {
        self.reconciler.metrics.writes.inc();
        self.paused = None;
        self.pause = PAUSE_FIRST;
        if self.reconciler.check.ready() {
            tracing::info!("reconcile writes again");
        }
    }

    fn failed(&mut self, error: &RegistryError) {
        self.reconciler.metrics.failures.inc();
        if self.reconciler.check.failing(error.to_string()) {
            tracing::error!(reason = %error, "reconcile cannot write; trying again");
        }
        // Those that failed together pause together.
        if self.paused.is_none() {
            self.paused = Some(Instant::now() + self.pause);
            self.pause = (self.pause * 2).min(PAUSE_MAX);
        }
    }
}

fn carry_out(registry: &Arc<Registry>, site: String, step: AllocationStep) -> Write {
    let registry = registry.clone();
    Box::pin(async move {
        let done = presences::carry_out(&registry, &step).await;
        (WriteSubject::Presence(site, step), done)
    })
}

fn store_ranges(registry: &Arc<Registry>, write: RangeWrite) -> Write {
    let registry = registry.clone();
    Box::pin(async move {
        let stored = write.store(registry.store()).await;
        let done: Result<(), RegistryError> =
            stored.map_err(|error| Status::unavailable(error.to_string(), 1).into());
        (WriteSubject::Ranges(write.community), done)
    })
}

fn forget_tunnel(registry: &Arc<Registry>, gateway: &str) -> Write {
    let (registry, key) = (registry.clone(), format!("{TUNNELS}{gateway}"));
    Box::pin(async move {
        match registry.store().delete(&key, None).await {
            Ok(_) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => tracing::debug!(key, %error, "cannot remove the tunnel of a deleted gateway"),
        }
        (WriteSubject::Tunnel, Ok(()))
    })
}

/// Returns the gateways that have a tunnel and no object.
fn orphans(objects: &ObjectSet) -> BTreeSet<String> {
    let gone = objects.layer3.tunnels.keys().filter(|gateway| objects.gateway(gateway).is_none());
    gone.cloned().collect()
}

/// Tells whether the picture of an object equals the stored object.
fn is_same(known: &Object, live: &Object) -> bool {
    known.metadata().generation == live.metadata().generation && known.status() == live.status()
}

/// The site of a presence that does not name one: the only site whose gateway's range holds its address.
fn implied_site(object: &Object, objects: &ObjectSet) -> Option<String> {
    let Object::VirtualPresence(presence) = object else { return None };
    if !presence.e_site_name.is_empty() {
        return None;
    }
    let gateways: Vec<_> = objects.all().cloned().collect();
    let site = presence::site_for(presence.ip_addr()?, &gateways).ok()??;
    Some(site.0)
}

fn set_site(object: &mut Object, site: &str) {
    if let Object::VirtualPresence(presence) = object
        && presence.e_site_name.is_empty()
    {
        presence.e_site_name = site.to_owned();
    }
}
