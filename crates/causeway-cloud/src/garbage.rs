//! Collects objects whose owners are gone, and finishes deletions that wait for dependents.
//!
//! Level-triggered: looks at the state, at the start and after every change that concerns owners; running in several replicas
//! changes nothing. `causeway_api::garbage` decides, `graph` holds the dependencies, this file follows the store and writes
//! through the `Registry`. Events of all kinds come in one order, so a dependent that was created before its owner was deleted
//! is always known.

mod graph;

use std::collections::BTreeSet;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use causeway_api::garbage::{
    self, DependentStep, Dependents, FOREGROUND, ORPHAN, OwnerState, OwnerStep, Propagation,
};
use causeway_api::{Kind, Object, ObjectMeta};
use causeway_apiserver::registry::prefix;
use causeway_apiserver::request::options::DeleteOptions;
use causeway_apiserver::{Registry, RegistryError};
use causeway_store::{FollowBackoff, Followed, ListRange, Revision, StoreError, StoreEvent, StoreFollower};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use graph::{Dependent, Graph, Key};

/// The field manager of the writes of this module.
const MANAGER: &str = "causeway-garbage-collector";
/// Pause after the store failed.
const BACKOFF: FollowBackoff = FollowBackoff::constant(Duration::from_secs(1));
/// An object that could not be collected is tried again after this time.
const RETRY: Duration = Duration::from_secs(10);
/// Objects in work at once: enough to fill a group commit.
const IN_WORK_MAX: usize = 32;

pub struct GarbageCollector {
    registry: Arc<Registry>,
}

type Work = Pin<Box<dyn Future<Output = (Key, Result<(), RegistryError>)> + Send>>;

impl GarbageCollector {
    pub fn new(registry: Arc<Registry>) -> GarbageCollector {
        GarbageCollector { registry }
    }

    pub async fn run(self, stop: CancellationToken) {
        stop.run_until_cancelled(self.follow()).await;
    }

    /// Follows the objects until the store is closed.
    async fn follow(&self) {
        let store = self.registry.store();
        let mut follower = StoreFollower::new(store, "", BACKOFF, || Box::pin(self.load()));
        // Empty until the first load.
        let mut round = Round::default();
        loop {
            round.start_work(&self.registry);
            tokio::select! {
                biased;
                step = follower.next() => match step {
                    None => return,
                    Some(Followed::Loaded { state: graph, .. }) => round = Round { graph, ..Round::default() },
                    Some(Followed::Event(event)) => take(&mut round.graph, &event),
                    Some(Followed::Progress(revision)) => {
                        round.graph.revision = round.graph.revision.max(revision);
                    }
                    Some(Followed::Failed(_)) => round = Round::default(),
                },
                Some((key, done)) = round.working.next() => round.finish(key, done),
                () = until(round.retry) => {
                    round.retry = None;
                    round.graph.queue.append(&mut round.failed);
                }
            }
        }
    }

    /// Everything that has owners or waits for dependents, as it stood at one revision.
    async fn load(&self) -> Result<(Graph, Revision), StoreError> {
        let mut graph = Graph::default();
        let mut at = None;
        for kind in Kind::ALL {
            let page = ListRange { at, ..ListRange::default() };
            let listing = self.registry.store().list(&prefix(kind), page).await?;
            at = Some(listing.revision);
            for record in &listing.records {
                if let Some(name) = record.key.strip_prefix(&prefix(kind)) {
                    graph.note((kind, name.to_owned()), Some(&record.value), None);
                }
            }
        }
        graph.revision = at.unwrap_or_default();
        let revision = graph.revision;
        Ok((graph, revision))
    }
}

/// The state between one load and the next.
#[derive(Default)]
struct Round {
    graph: Graph,
    working: FuturesUnordered<Work>,
    in_work: BTreeSet<Key>,
    /// Objects that could not be finished, until `retry`.
    failed: BTreeSet<Key>,
    retry: Option<Instant>,
}

impl Round {
    fn start_work(&mut self, registry: &Arc<Registry>) {
        let is_free = |key: &&Key| !self.in_work.contains(*key);
        let ready: Vec<Key> = self.graph.queue.iter().filter(is_free).cloned().collect();
        for key in ready.into_iter().take(IN_WORK_MAX.saturating_sub(self.working.len())) {
            self.graph.queue.remove(&key);
            self.in_work.insert(key.clone());
            let (registry, seen) = (registry.clone(), self.graph.revision);
            let (dependents, in_circle) = (self.graph.dependents_of(&key), self.graph.is_in_circle(&key));
            self.working.push(Box::pin(async move {
                let done = collect(&registry, &key, seen, (&dependents, in_circle)).await;
                (key, done)
            }));
        }
    }

    fn finish(&mut self, key: Key, done: Result<(), RegistryError>) {
        self.in_work.remove(&key);
        if let Err(error) = done {
            tracing::info!(
                kind = key.0.name(),
                name = key.1,
                reason = %error,
                "garbage collection could not finish an object; it is tried again"
            );
            self.failed.insert(key);
            self.retry.get_or_insert_with(|| Instant::now() + RETRY);
        }
    }
}

fn take(graph: &mut Graph, event: &StoreEvent) {
    graph.revision = graph.revision.max(event.revision);
    let Some((kind, name)) =
        event.key.split_once('/').and_then(|(plural, name)| Some((Kind::from_plural(plural)?, name)))
    else {
        return;
    };
    graph.note((kind, name.to_owned()), event.value.as_deref(), event.previous.as_deref());
}

/// Looks at one object as it is now, and takes the next step. An object that is newer than `seen` comes again with
/// its own event, when its dependents are known.
async fn collect(
    registry: &Registry,
    (kind, name): &Key,
    seen: Revision,
    (dependents, in_circle): (&[Dependent], bool),
) -> Result<(), RegistryError> {
    let Some(loaded) = registry.object(*kind, name).await? else { return Ok(()) };
    if loaded.revision > seen {
        return Ok(());
    }
    let meta = loaded.object.metadata();
    let of_owner = dependents.iter().filter(|dependent| dependent.names(&meta.uid));
    let references = of_owner.clone().map(|dependent| dependent.owners.as_slice());
    match garbage::owner(meta, references, in_circle) {
        OwnerStep::Nothing | OwnerStep::Wait => {}
        OwnerStep::Orphan => {
            for dependent in of_owner.clone() {
                release(registry, &dependent.key, std::slice::from_ref(&meta.uid)).await?;
            }
            return drop_finalizer(registry, (*kind, name), &meta.uid, ORPHAN).await;
        }
        OwnerStep::Unblock => return unblock_owners(registry, (*kind, name), &meta.uid).await,
        OwnerStep::Finish => return drop_finalizer(registry, (*kind, name), &meta.uid, FOREGROUND).await,
    }
    if meta.owner_references.is_empty() {
        return Ok(());
    }
    let Some(owners) = owner_states(registry, meta, seen).await? else { return Ok(()) };
    let own = match of_owner.count() {
        0 => Dependents::None,
        _ if in_circle => Dependents::InCircle,
        _ => Dependents::Some,
    };
    match garbage::dependent(meta, &owners, own) {
        DependentStep::Keep => Ok(()),
        DependentStep::Release(uids) => release(registry, &(*kind, name.clone()), &uids).await,
        DependentStep::Delete { policy, unblock } => {
            if unblock {
                unblock_owners(registry, (*kind, name), &meta.uid).await?;
            }
            let revision = (!unblock).then_some(loaded.revision);
            delete(registry, (*kind, name), meta, policy, revision).await
        }
    }
}

/// Returns the state of each owner. None: an owner waits for its dependents since a revision after `seen`. Dependents of the
/// object itself may be unknown then, and the event of the owner brings the object here again.
async fn owner_states(
    registry: &Registry,
    meta: &ObjectMeta,
    seen: Revision,
) -> Result<Option<Vec<OwnerState>>, RegistryError> {
    let mut states = Vec::with_capacity(meta.owner_references.len());
    for reference in &meta.owner_references {
        let Some(kind) = garbage::owner_kind(reference) else {
            states.push(OwnerState::Unknown);
            continue;
        };
        let found = registry.object(kind, &reference.name).await?;
        let state = garbage::owner_state(reference, found.as_ref().map(|found| found.object.metadata()));
        let is_newer = found.is_some_and(|found| found.revision > seen);
        if state == OwnerState::WaitsForDependents && is_newer {
            return Ok(None);
        }
        states.push(state);
    }
    Ok(Some(states))
}

/// Removes references to owners.
async fn release(registry: &Registry, (kind, name): &Key, uids: &[String]) -> Result<(), RegistryError> {
    let edit = |live: &mut Object| {
        live.metadata_mut().owner_references.retain(|reference| !uids.contains(&reference.uid));
    };
    gone_is_done(registry.edit(MANAGER, *kind, name, edit).await.map(drop))
}

async fn drop_finalizer(
    registry: &Registry,
    (kind, name): (Kind, &str),
    uid: &str,
    finalizer: &str,
) -> Result<(), RegistryError> {
    let edit = |live: &mut Object| {
        let meta = live.metadata_mut();
        // Another object under this name is none of ours.
        if meta.uid == uid && meta.deletion_timestamp.is_some() {
            meta.finalizers.retain(|name| name != finalizer);
        }
    };
    gone_is_done(registry.edit(MANAGER, kind, name, edit).await.map(drop))
}

async fn unblock_owners(
    registry: &Registry,
    (kind, name): (Kind, &str),
    uid: &str,
) -> Result<(), RegistryError> {
    let edit = |live: &mut Object| {
        let meta = live.metadata_mut();
        if meta.uid == uid {
            meta.owner_references.iter_mut().for_each(|owner| owner.block_owner_deletion = Some(false));
        }
    };
    gone_is_done(registry.edit(MANAGER, kind, name, edit).await.map(drop))
}

async fn delete(
    registry: &Registry,
    (kind, name): (Kind, &str),
    meta: &ObjectMeta,
    policy: Propagation,
    revision: Option<Revision>,
) -> Result<(), RegistryError> {
    let options = DeleteOptions {
        propagation: Some(policy),
        uid: Some(meta.uid.clone()),
        resource_version: revision,
        ..DeleteOptions::default()
    };
    let owners: Vec<&str> = meta.owner_references.iter().map(|owner| owner.name.as_str()).collect();
    tracing::info!(
        kind = kind.name(),
        name,
        ?owners,
        policy = policy.as_str(),
        "garbage collection deletes an object whose owners are gone"
    );
    match registry.delete_object_if(MANAGER, kind, name, &options).await {
        // It changed meanwhile: its event brings it here again.
        Err(RegistryError::AlreadyExists(_) | RegistryError::Conflict(_)) => Ok(()),
        done => gone_is_done(done),
    }
}

fn gone_is_done(done: Result<(), RegistryError>) -> Result<(), RegistryError> {
    match done {
        Err(RegistryError::NotFound(_)) => Ok(()),
        done => done,
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
