//! Stores what gateways and replicas report, and writes the conditions that follow from it into EGateways and
//! EServices.
//!
//! Input: the problems of gateways, the state of their netmaps, and the sessions of this replica. Reports are
//! records in the store (`record`); conditions are computed from them (`computed`) and from the sessions
//! (`sessions::report`), and written when they differ. A replica stores only what it was told itself, and
//! every replica computes from all records, so no replica takes back what another one reports. Records go
//! with the EGateway or the replica that they are of.

mod computed;
mod inbox;
mod record;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use causeway_api::conditions::BACKENDS_ANSWER;
use causeway_api::meta::set_condition;
use causeway_api::sync::MutexExt;
use causeway_api::{Kind, Object, ObjectSet};
use causeway_apiserver::{Registry, RegistryError};
use causeway_gateway::problems::ProblemReporter;
use causeway_store::{OPS_MAX, Op, Revision, StoreError};
use futures_util::StreamExt;
use futures_util::stream;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::bootstrap::CLOUD;
use crate::reconcile::MANAGER;
use crate::replicas::SessionDirectory;
use crate::sessions::{ConnectionChange, ConnectionWatch};
use computed::{ComputedCondition, LiveReplicas};
use inbox::{ChangedObjects, ReportedFacts};
use record::{ReportTable, Reporter, report_key};

pub use inbox::{ReportInbox, ReportedState};
pub use record::{REPORTS, Report};

/// Changes within this time are handled together. It also lets the replica that stored a report write the
/// condition.
const CHANGE_BATCH_DELAY: Duration = Duration::from_millis(50);
/// The same for sessions: each look goes over all of them, and a fleet that comes back is twenty thousand
/// changes.
const CONNECTION_BATCH_DELAY: Duration = Duration::from_millis(200);
/// Interval at which live replicas are checked and failed writes are retried.
const RECHECK_INTERVAL: Duration = Duration::from_secs(15);
/// Enough to fill a group commit; each holds one object.
const WRITES_MAX: usize = 64;

/// The loop that stores reports and writes conditions.
pub struct ReportWriter {
    pub registry: Arc<Registry>,
    /// Tells which replicas of the cloud are alive.
    pub directory: Arc<SessionDirectory>,
    pub inbox: Arc<ReportInbox>,
    pub state: Arc<ReportedState>,
    /// None: whether gateways are connected is not written.
    pub connections: Option<ConnectionWatch>,
}

/// The work for the next round.
#[derive(Default)]
struct Pending {
    changed: ChangedObjects,
    /// Conditions of the cloud's own gateway and services that changed. With several replicas they are put
    /// right at the next look only: replicas that do not agree which of them are alive would write over each
    /// other without end.
    deferred: ChangedObjects,
    /// Replicas that were gone at the last look.
    gone: BTreeSet<String>,
}

/// One object whose conditions must be written.
struct ConditionWrite {
    kind: Kind,
    name: String,
    conditions: Vec<ComputedCondition>,
    connection: Option<ConnectionChange>,
}

impl ReportWriter {
    /// Runs until told to stop. `own` tells the problems of the gateway in this process.
    pub async fn run(self, own: Option<ProblemReporter>, stop: CancellationToken) {
        let inbox = self.inbox.clone();
        // Beside the loop, because a report waits for a while before it is made, and must not start anew at
        // every change.
        let reporting = async move {
            let Some(mut own) = own else { return std::future::pending().await };
            loop {
                inbox.put_problems(CLOUD, CLOUD, own.next().await);
            }
        };
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = reporting => {}
            () = self.keep() => {}
        }
    }

    async fn keep(mut self) {
        let mut pending = Pending::default();
        let mut own = BTreeMap::new();
        let (mut look_at, mut connections_at) = (Instant::now() + RECHECK_INTERVAL, Instant::now());
        let mut sessions = self.connections.as_ref().map(ConnectionWatch::changes);
        loop {
            let is_look = look_at <= Instant::now();
            if is_look {
                look_at = Instant::now() + RECHECK_INTERVAL;
                self.repeat(&own);
            }
            self.store_reports(&mut own).await;
            let is_changed = self.round(&mut pending, is_look, connections_at <= Instant::now()).await;
            if connections_at <= Instant::now() {
                let every = self.connections.as_ref().map_or(RECHECK_INTERVAL, ConnectionWatch::look_every);
                connections_at = Instant::now() + every;
            }
            if is_changed {
                connections_at = connections_at.min(Instant::now() + CONNECTION_BATCH_DELAY);
            }
            tokio::select! {
                () = self.inbox.wake.notified() => {}
                () = self.state.wake.notified() => tokio::time::sleep(CHANGE_BATCH_DELAY).await,
                () = changed(&mut sessions) => {
                    connections_at = connections_at.min(Instant::now() + CONNECTION_BATCH_DELAY);
                }
                () = tokio::time::sleep_until(look_at.min(connections_at)) => {}
            }
        }
    }

    /// Reports of this replica are stored again where they were removed, as by a replica that took this one
    /// for gone.
    fn repeat(&self, own: &BTreeMap<String, Report>) {
        own.values().for_each(|report| self.inbox.put_back(CLOUD, report.clone()));
    }

    /// Stores what arrived and differs from what the store holds. `own` keeps what this replica itself
    /// reported last.
    async fn store_reports(&self, own: &mut BTreeMap<String, Report>) {
        let mut new = Vec::new();
        for (gateway, report) in self.inbox.take() {
            let replica = self.directory.label().filter(|_| gateway == CLOUD).map(|_| self.directory.id());
            let reporter = Reporter { gateway, replica };
            let key = report_key(&reporter, report.subject());
            if reporter.gateway == CLOUD {
                own.insert(key.clone(), report.clone());
            }
            let is_news = match self.state.lock().table.get(&reporter, report.subject()) {
                Some(known) => *known != report,
                None => !report.says_nothing(),
            };
            if is_news {
                new.push((reporter.gateway, key, report));
            }
        }
        for batch in new.chunks(OPS_MAX / 2) {
            let op = |(_, key, report): &(String, String, Report)| {
                let value = serde_json::to_vec(report).unwrap_or_default().into();
                Op::Put { key: key.clone(), value }
            };
            // One record may have tens of kilobytes, a commit may not have all of them.
            for ops in split(batch.iter().map(op).collect()) {
                match self.registry.store().commit(ops.clone()).await {
                    Ok(committed) => self.note_stored(&ops, committed.revision),
                    Err(error) => {
                        // The store logs its outages itself.
                        tracing::debug!(%error, "cannot store reports of gateways; trying again");
                        let is_meant = |key: &String| ops.iter().any(|op| op.key() == key);
                        let failed = batch.iter().filter(|(_, key, _)| is_meant(key));
                        failed.for_each(|(gateway, _, report)| self.inbox.put_back(gateway, report.clone()));
                    }
                }
            }
        }
    }

    /// The store's own event comes later and changes nothing.
    fn note_stored(&self, ops: &[Op], revision: Revision) {
        for op in ops {
            if let Op::Put { key, value } = op {
                self.state.lock().note_report(key, value, revision);
            }
        }
    }

    /// Writes every condition that differs. True: an EGateway changed, so connections must be looked at.
    async fn round(&mut self, pending: &mut Pending, is_look: bool, with_connections: bool) -> bool {
        let Some(objects) = self.state.objects() else { return false };
        let live = self.directory.live_replicas();
        let (writes, removals, is_changed) = {
            let objects = objects.lock_ignoring_poison();
            let mut facts = self.state.lock();
            let changed = std::mem::take(&mut facts.changed);
            let is_changed = changed.everything || !changed.gateways.is_empty();
            if let Some(connections) = &mut self.connections {
                let all = changed.everything.then(|| objects.all().map(gateway_name));
                match all {
                    Some(all) => connections.reset(&objects, all),
                    None => connections.refresh(&objects, changed.gateways.iter().map(String::as_str)),
                }
            }
            pending.take(changed, &objects, &live, is_look);
            let connections = match &mut self.connections {
                Some(connections) if with_connections => connections.changes_to_write(),
                _ => Vec::new(),
            };
            let Decision { writes, mut removals, undecided } =
                decide(&objects, &facts, pending, connections, &live);
            facts.undecided.extend(undecided);
            if is_look {
                removals.extend(pending.gone_replicas(&facts.table, &live));
            }
            pending.changed = ChangedObjects::default();
            (writes, removals, is_changed)
        };
        for (key, revision) in removals {
            self.remove(&key, revision).await;
        }
        let mut written = stream::iter(writes).map(|write| self.write(write)).buffer_unordered(WRITES_MAX);
        let mut done = Vec::new();
        while let Some((write, is_written)) = written.next().await {
            match (is_written, write.kind) {
                (true, _) => done.push(write),
                (false, Kind::EGateway) => drop(pending.deferred.gateways.insert(write.name)),
                (false, _) => drop(pending.deferred.services.insert(write.name)),
            }
        }
        drop(written);
        if let Some(connections) = &mut self.connections {
            for write in done {
                if let Some(change) = write.connection {
                    connections.handle_written(&write.name, change);
                }
            }
        }
        is_changed
    }

    async fn remove(&self, key: &str, revision: Revision) {
        match self.registry.store().delete(key, Some(revision)).await {
            Ok(removed) => self.state.lock().note_removed(key, removed),
            // Another replica was faster, or there is a newer report.
            Err(StoreError::NotFound { .. } | StoreError::Conflict { .. }) => {}
            Err(error) => tracing::debug!(key, %error, "cannot remove the report of a gateway that is gone"),
        }
    }

    async fn write(&self, write: ConditionWrite) -> (ConditionWrite, bool) {
        let now = self.registry.now();
        let edit = |object: &mut Object| {
            let generation = object.metadata().generation;
            let conditions = &mut object.status_mut().conditions;
            for computed in &write.conditions {
                let ComputedCondition { kind, status, reason, message } = computed;
                set_condition(conditions, kind, *status, reason, message, now, generation);
            }
            if let Some(change) = &write.connection {
                change.apply(object, now);
            }
        };
        match self.registry.edit_status(MANAGER, write.kind, &write.name, edit).await {
            Ok(_) => (write, true),
            // Deleted meanwhile: there is no status to write.
            Err(RegistryError::NotFound(_)) => (write, true),
            Err(error) => {
                let mut kinds: Vec<&str> = write.conditions.iter().map(|computed| computed.kind).collect();
                kinds.extend(write.connection.as_ref().map(|_| crate::sessions::CONNECTED));
                tracing::warn!(
                    kind = write.kind.name(),
                    name = write.name,
                    conditions = kinds.join(", "),
                    reason = %error,
                    "cannot update the conditions of the object; trying again"
                );
                (write, false)
            }
        }
    }
}

impl Pending {
    /// Adds what changed. With several replicas, changes of the cloud's own objects wait for the next look;
    /// new reports do not.
    fn take(&mut self, mut changed: ChangedObjects, objects: &ObjectSet, live: &LiveReplicas, is_look: bool) {
        let reporters = std::mem::take(&mut changed.reporters);
        if live.is_some() {
            if changed.gateways.remove(CLOUD) {
                self.deferred.gateways.insert(CLOUD.to_owned());
            }
            if changed.sites.remove(CLOUD) {
                self.deferred.sites.insert(CLOUD.to_owned());
            }
            let is_own =
                |name: &String| objects.service(name).is_some_and(|found| found.e_site_name == CLOUD);
            self.deferred.services.extend(changed.services.extract_if(.., is_own));
        }
        self.changed.extend(changed);
        self.changed.reporters.extend(reporters);
        if is_look {
            let deferred = std::mem::take(&mut self.deferred);
            self.changed.extend(deferred);
            if live.is_some() {
                self.changed.reporters.insert(CLOUD.to_owned());
            }
        }
    }

    /// Returns the records of replicas that were gone at the last look already.
    fn gone_replicas(&mut self, table: &ReportTable, live: &LiveReplicas) -> Vec<(String, Revision)> {
        let is_gone = |reporter: &Reporter| match (&reporter.replica, live) {
            (Some(replica), Some(live)) => !live.contains_key(replica),
            (Some(_), None) => true,
            (None, live) => reporter.gateway == CLOUD && live.is_some(),
        };
        let gone = table.reporters().filter(|(reporter, _)| is_gone(reporter));
        let gone: Vec<(String, Revision)> = gone.flat_map(|(_, keys)| keys).collect();
        let before = std::mem::replace(&mut self.gone, gone.iter().map(|(key, _)| key.clone()).collect());
        gone.into_iter().filter(|(key, _)| before.contains(key)).collect()
    }
}

struct Decision {
    /// The conditions that must be written.
    writes: Vec<ConditionWrite>,
    /// The records of gateways that were deleted.
    removals: Vec<(String, Revision)>,
    /// Gateways that are not in the picture and have records newer than it.
    undecided: BTreeSet<String>,
}

fn decide(
    objects: &ObjectSet,
    facts: &ReportedFacts,
    pending: &Pending,
    connections: Vec<(String, ConnectionChange)>,
    live: &LiveReplicas,
) -> Decision {
    let ReportedFacts { table, active, seen, .. } = facts;
    let changed = &pending.changed;
    let mut connections: BTreeMap<String, ConnectionChange> = connections.into_iter().collect();
    let mut gateways: BTreeSet<String> = changed.gateways.union(&changed.reporters).cloned().collect();
    gateways.extend(connections.keys().cloned());
    let mut services: BTreeSet<String> = changed.services.clone();
    let mut sites: BTreeSet<&str> = changed.sites.iter().map(String::as_str).collect();
    let reporting = changed.reporters.iter().filter_map(|gateway| objects.gateway(gateway));
    sites.extend(reporting.map(|gateway| gateway.e_site_name.as_str()));
    for site in sites {
        services.extend(objects.services_at(site).map(|service| service.metadata.name.clone()));
    }
    let (mut removals, mut undecided) = (Vec::new(), BTreeSet::new());
    if changed.everything {
        gateways.extend(objects.all().map(|gateway| gateway_name(gateway).to_owned()));
        gateways.extend(table.reporters().map(|(reporter, _)| reporter.gateway.clone()));
        services.extend(objects.all().map(|service: &causeway_api::EService| service.metadata.name.clone()));
    }
    let mut writes = Vec::new();
    for name in gateways {
        let Some(gateway) = objects.gateway(&name) else {
            let of_gateway = table.reporters().filter(|(reporter, _)| reporter.gateway == name);
            // A report that is newer than the picture may be of a gateway that is not in it yet.
            let (old, new): (Vec<_>, Vec<_>) =
                of_gateway.flat_map(|(_, keys)| keys).partition(|(_, revision)| revision <= seen);
            removals.extend(old);
            if !new.is_empty() {
                undecided.insert(name);
            }
            continue;
        };
        let mut conditions = computed::of_gateway(gateway, table, live);
        conditions.retain(|computed| !computed.is_shown(gateway.status.condition(computed.kind)));
        let connection = connections.remove(&name);
        if !conditions.is_empty() || connection.is_some() {
            writes.push(ConditionWrite { kind: Kind::EGateway, name, conditions, connection });
        }
    }
    for name in services {
        let shown = objects.service(&name).and_then(|service| service.status.condition(BACKENDS_ANSWER));
        let computed = computed::of_service(&name, objects, active, table, live);
        if let Some(computed) = computed.filter(|computed| !computed.is_shown(shown)) {
            let conditions = vec![computed];
            writes.push(ConditionWrite { kind: Kind::EService, name, conditions, connection: None });
        }
    }
    Decision { writes, removals, undecided }
}

fn gateway_name(gateway: &causeway_api::EGateway) -> &str {
    &gateway.metadata.name
}

/// Splits operations into commits of half a mebibyte at most.
fn split(ops: Vec<Op>) -> Vec<Vec<Op>> {
    const BATCH_BYTES_MAX: usize = 1 << 19;
    let (mut commits, mut size) = (Vec::<Vec<Op>>::new(), usize::MAX);
    for op in ops {
        let bytes = if let Op::Put { value, .. } = &op { value.len() } else { 0 };
        match commits.last_mut() {
            Some(last) if size + bytes <= BATCH_BYTES_MAX => {
                last.push(op);
                size += bytes;
            }
            _ => {
                commits.push(vec![op]);
                size = bytes;
            }
        }
    }
    commits
}

async fn changed(sessions: &mut Option<tokio::sync::watch::Receiver<u64>>) {
    let is_open = match sessions {
        Some(sessions) => sessions.changed().await.is_ok(),
        None => false,
    };
    if !is_open {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests;
