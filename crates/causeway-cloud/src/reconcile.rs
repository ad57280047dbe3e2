//! Gives exposures their presences, and keeps the conditions of all objects true.
//!
//! Level-triggered: looks at the state, not at the event that woke it; running twice, or in two replicas,
//! changes nothing. `affected` decides what must be looked at again, `causeway_api::conditions` what it
//! should say, `presences` which addresses are missing; this file follows the store and writes through the
//! `Registry`, only what differs.

mod affected;
mod metrics;
mod presences;
mod round;

use std::sync::Arc;
use std::time::Duration;

use causeway_api::allocate::{FreedAddresses, MADE_LABEL};
use causeway_api::{Kind, Object, ObjectMeta, ObjectSet};
use causeway_apiserver::registry::address;
use causeway_apiserver::{Registry, RegistryError};
use causeway_daemon::{Metrics, ReadinessCheck};
use causeway_store::{
    FollowBackoff, Followed, ListRange, Op, Revision, StoreError, StoreFollower, StoreRecord,
};
use futures_util::StreamExt;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::netmaps::NetmapPublisher;
use crate::replicas::{ACTIVE_GATEWAYS, ActiveGateways, decode_active, site_of_active};
use crate::reports::{REPORTS, ReportedState};
use crate::tunnels::{self, MAPPED_RANGES, TUNNELS};
use metrics::ReconcileMetrics;
use round::{Round, WriteSubject};

/// The field manager of everything that the cloud writes.
pub const MANAGER: &str = "causeway-cloud";
const PAUSE_FIRST: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(15);

/// The loop that keeps conditions true.
pub struct Reconciler {
    registry: Arc<Registry>,
    check: ReadinessCheck,
    metrics: ReconcileMetrics,
    publisher: Option<NetmapPublisher>,
    reports: Option<Arc<ReportedState>>,
    keeps_own: bool,
}

impl Reconciler {
    pub fn new(registry: Arc<Registry>, check: ReadinessCheck, metrics: &Metrics) -> Reconciler {
        Reconciler {
            registry,
            check,
            metrics: ReconcileMetrics::register(metrics),
            publisher: None,
            reports: None,
            keeps_own: false,
        }
    }

    /// Lets the compiler of netmaps look at the same picture of the store.
    pub fn with_netmaps(self, publisher: NetmapPublisher) -> Reconciler {
        Reconciler { publisher: Some(publisher), ..self }
    }

    /// Lets the writer of reports look at the same picture of the store.
    pub fn with_reports(self, reports: Arc<ReportedState>) -> Reconciler {
        Reconciler { reports: Some(reports), ..self }
    }

    /// Creates the cloud's own objects again when a client deletes them.
    pub fn keeping_own_objects(self) -> Reconciler {
        Reconciler { keeps_own: true, ..self }
    }

    /// Reconciles until told to stop. A store that is away is waited for.
    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    /// Follows the objects until the store is closed.
    async fn follow(&self) {
        let backoff = FollowBackoff { first: PAUSE_FIRST, max: PAUSE_MAX };
        let mut follower = StoreFollower::new(self.registry.store(), "", backoff, || Box::pin(self.load()));
        // `None` before the first load, and from a failure to the next load.
        let mut round: Option<Round<'_>> = None;
        loop {
            let due = round.as_ref().and_then(Round::due);
            tokio::select! {
                biased;
                step = follower.next() => match (step, &mut round) {
                    (None, _) => return,
                    (Some(Followed::Loaded { state, revision }), round) => {
                        *round = Some(self.begin(state, revision).await);
                    }
                    (Some(Followed::Event(event)), Some(round)) => round.take(&event),
                    (Some(Followed::Progress(revision)), Some(_)) => self.handle_revision(revision),
                    (Some(Followed::Event(_) | Followed::Progress(_)), None) => {}
                    (Some(Followed::Failed(error)), round) => {
                        *round = None;
                        let reason = error.to_string();
                        if self.check.failing(&reason) {
                            tracing::error!(reason, "reconcile cannot follow the store; trying again");
                        }
                    }
                },
                Some((work, written)) = next_write(&mut round) => {
                    if let Some(round) = &mut round {
                        round.finish(work, written);
                    }
                }
                () = sleep_until(due) => {
                    if let Some(round) = &mut round {
                        round.collect_pending();
                    }
                }
            }
            if let Some(round) = &mut round {
                round.start_writes();
            }
        }
    }

    async fn begin(&self, state: LoadedState, revision: Revision) -> Round<'_> {
        self.metrics.loads.inc();
        let round = Round::new(self, state.objects, state.freed);
        if let Some(reports) = &self.reports {
            reports.reset(round.objects.clone(), state.active.clone(), &state.reports, revision);
        }
        if let Some(publisher) = &self.publisher {
            publisher.reset(
                round.objects.clone(),
                state.active,
                self.registry.store().epoch().await,
                revision,
            );
        }
        if self.check.ready() {
            tracing::info!(%revision, objects = round.objects().objects().count(), "reconcile follows the store");
        }
        round
    }

    /// All objects as they stood at one revision: a netmap is named by it, and two replicas must mean the same.
    async fn load(&self) -> Result<(LoadedState, Revision), StoreError> {
        let mut objects = ObjectSet::default();
        let mut at = None;
        for kind in Kind::ALL {
            let listed = self.registry.objects_at(kind, at).await;
            let (listed, revision) = listed
                .map_err(|error| StoreError::Unavailable { reason: error.to_string(), source: None })?;
            listed.into_iter().for_each(|loaded| objects.insert(lean(loaded.object)));
            at = Some(revision);
        }
        let freed = self.load_freed(&objects, at).await?;
        let reports = match &self.reports {
            Some(_) => {
                let range = ListRange { at, ..ListRange::default() };
                self.registry.store().list(REPORTS, range).await?.records
            }
            None => Vec::new(),
        };
        let range = ListRange { at, ..ListRange::default() };
        let records = self.registry.store().list(ACTIVE_GATEWAYS, range).await?.records;
        let active = |record: &StoreRecord| {
            Some((site_of_active(&record.key)?.to_owned(), decode_active(&record.value)?))
        };
        let active = records.iter().filter_map(active).collect();
        for prefix in [TUNNELS, MAPPED_RANGES] {
            let range = ListRange { at, ..ListRange::default() };
            for record in self.registry.store().list(prefix, range).await?.records {
                tunnels::take_record(&mut objects, &record.key, Some(&record.value));
            }
        }
        Ok((LoadedState { objects, freed, reports, active }, at.unwrap_or_default()))
    }

    /// Loads the order in which addresses were given back, and removes the records that are no longer needed.
    async fn load_freed(
        &self,
        objects: &ObjectSet,
        at: Option<Revision>,
    ) -> Result<FreedAddresses, StoreError> {
        let store = self.registry.store();
        let mut freed = FreedAddresses::default();
        for record in store.list(address::FREED, ListRange { at, ..ListRange::default() }).await?.records {
            if let Some((site, ip)) = address::freed(&record.key) {
                freed.note(site, ip, record.revision.0);
            }
        }
        let is_site =
            |site: &str| objects.gateways_at(site).next().is_some() || objects.presence_count(site) > 0;
        for (site, ip) in freed.superfluous(is_site) {
            let key = format!("{}{site}/{ip}", address::FREED);
            match store.commit(vec![Op::Delete { key, expected: None }]).await {
                Ok(_) | Err(StoreError::NotFound { .. }) => freed.forget(&site, ip),
                Err(error) => return Err(error),
            }
        }
        Ok(freed)
    }

    fn handle_revision(&self, revision: Revision) {
        if let Some(publisher) = &self.publisher {
            publisher.handle_revision(revision);
        }
        if let Some(reports) = &self.reports {
            reports.handle_revision(revision);
        }
    }
}

/// The part of the store that is reconciled, as it stood at one revision.
struct LoadedState {
    objects: ObjectSet,
    freed: FreedAddresses,
    /// Records of reports. Empty when reports are not reconciled.
    reports: Vec<StoreRecord>,
    active: ActiveGateways,
}

/// Drops the fields that no condition depends on, so that the picture of ten thousand objects stays small. Labels of sites stay, for
/// `site_metrics`.
fn lean(mut object: Object) -> Object {
    let is_site = matches!(object, Object::ESite(_));
    let mut full = std::mem::take(object.metadata_mut());
    full.labels.retain(|label, _| is_site || label == MADE_LABEL);
    *object.metadata_mut() = ObjectMeta {
        name: full.name,
        labels: full.labels,
        generation: full.generation,
        creation_timestamp: full.creation_timestamp,
        deletion_timestamp: full.deletion_timestamp,
        owner_references: full.owner_references,
        finalizers: full.finalizers,
        ..ObjectMeta::default()
    };
    object
}

/// The next write that finishes; `None` when none is under way.
async fn next_write(round: &mut Option<Round<'_>>) -> Option<(WriteSubject, Result<(), RegistryError>)> {
    round.as_mut()?.writes.next().await
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
