//! The subscriptions of an edge: finds the one that covers a request, begins new ones, and keeps all of them current.
//!
//! Each subscription has a task that holds a stream to the cloud while there is a link. Decisions of the protocol are in
//! `sync::receiver`; the objects are in `copy`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use bytes::Bytes;
use causeway_api::{Status, error_chain};
use causeway_daemon::sync::MutexExt;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use crate::connector::{BoxedStream, CloudAway, CloudConnector};
use crate::copy::collection::Collection;
use crate::copy::local::{LocalObject, LocalObjects};
use crate::copy::tables::{self, StoredSubscription};
use crate::copy::{CopyDatabase, CopyError, DiskShare};
use crate::kube_object::{self, KubeObject};
use crate::resource::{ResourceName, SubscriptionScope};
use crate::sync::delta::{self, DeltaError};
use crate::sync::frames::{self, MESSAGE_BYTES_MAX, MessageReader, SyncFrameError};
use crate::sync::receiver::{
    SyncReceiver, SyncStep, SyncViolation, acknowledge, digest_answer, key_answers, subscribe,
};
use crate::sync::wire::{ChangeEntry, CloudSyncMessage, EdgeSyncBody, EdgeSyncMessage};
use crate::traffic::{self, CountedStream, LinkTraffic, TrafficCause};
use crate::upstream::SYNC_TARGET;

/// The caller in whose name a subscription is held.
#[derive(Clone, PartialEq, Eq)]
pub enum SubscriptionCredential {
    Token(String),
    /// A node of this site; not secret, so it is remembered on disk.
    Node(String),
    /// The operator pinned the scope.
    Pin,
}

/// All subscriptions. A handle; clones share them.
#[derive(Clone)]
pub struct Subscriptions(Arc<Shared>);

struct Shared {
    database: CopyDatabase,
    connector: Arc<dyn CloudConnector>,
    traffic: LinkTraffic,
    held: Mutex<BTreeMap<SubscriptionScope, HeldSubscription>>,
    /// Held while a subscription is made, so that requests at the same time keep the bounds.
    creating: tokio::sync::Mutex<()>,
    /// The local objects of each resource that a collection or a local change named; at most as many as there were subscriptions.
    locals: Mutex<BTreeMap<ResourceName, Arc<LocalObjects>>>,
    /// Ends the watches of all subscriptions.
    stop: CancellationToken,
}

struct HeldSubscription {
    collection: Arc<Collection>,
    credential: watch::Sender<Option<SubscriptionCredential>>,
    /// The refusal of the cloud, until a new credential is tried.
    refused: Arc<Mutex<Option<Status>>>,
    /// The caller whose token began it; empty for nodes and pins, and after a restart.
    owner: String,
    task: AbortHandle,
    /// Ends the watches of this subscription.
    stop: CancellationToken,
}

impl Drop for HeldSubscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// A site holds a few dozen resources, and one subscription per ConfigMap and Secret that its pods use.
const SUBSCRIPTIONS_MAX: usize = 4_096;
/// Callers with tokens choose selectors, each of which is a subscription; a part is left to nodes and pins.
const TOKEN_SUBSCRIPTIONS_MAX: usize = 3_072;
// One caller with a token may hold a half of what is free: 1,024 alone. A caller that takes its whole share leaves as much to further callers.
const TOKEN_PART_OF_FREE: usize = 2;
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
// A watch that begins while the budget is spent waits this long for its copy to be followed again.
const BUDGET_CHECK_INTERVAL: Duration = Duration::from_secs(1);
// Room on the disk comes when copies are dropped (`unused`), and a first copy costs the link.
const FULL_RETRY_DELAY: Duration = Duration::from_secs(600);
// A refusal is not asked again at once; a new credential is.
const REFUSED_RETRY_DELAY: Duration = Duration::from_secs(30);

/// The copy cannot tell whether an object exists.
#[derive(Debug, PartialEq, Eq)]
pub struct NotHeld;

#[derive(Debug, thiserror::Error)]
enum SessionError {
    #[error(transparent)]
    Away(#[from] CloudAway),
    #[error(transparent)]
    Frame(#[from] SyncFrameError),
    #[error(transparent)]
    Violation(#[from] SyncViolation),
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error(transparent)]
    Delta(#[from] DeltaError),
    #[error("the cloud refused: {}", .0.message)]
    Refused(Box<Status>),
}

/// Returns true if one more subscription may begin with this credential. `own`: those that the caller began, `held`: all of them.
fn may_begin(credential: &SubscriptionCredential, own: usize, held: usize) -> bool {
    match credential {
        SubscriptionCredential::Token(_) => {
            own < TOKEN_SUBSCRIPTIONS_MAX.saturating_sub(held) / TOKEN_PART_OF_FREE
        }
        SubscriptionCredential::Node(_) | SubscriptionCredential::Pin => held < SUBSCRIPTIONS_MAX,
    }
}

impl Subscriptions {
    /// Takes up the subscriptions that are on disk.
    pub async fn open(
        database: CopyDatabase,
        connector: Arc<dyn CloudConnector>,
        traffic: LinkTraffic,
    ) -> Result<Subscriptions, CopyError> {
        let stored = database.read(tables::subscriptions).await?;
        let held = Mutex::default();
        let subscriptions = Subscriptions(Arc::new(Shared {
            database,
            connector,
            traffic,
            held,
            creating: tokio::sync::Mutex::default(),
            locals: Mutex::default(),
            stop: CancellationToken::new(),
        }));
        for stored in stored {
            let credential =
                (!stored.node.is_empty()).then(|| SubscriptionCredential::Node(stored.node.clone()));
            subscriptions.hold(stored, credential, String::new());
        }
        Ok(subscriptions)
    }

    /// Returns a collection that covers `wanted` and is complete; the narrowest one.
    pub fn find(&self, wanted: &SubscriptionScope) -> Option<Arc<Collection>> {
        let held = self.lock();
        if let Some(exact) = held.get(wanted).filter(|held| held.collection.is_complete()) {
            return Some(exact.collection.clone());
        }
        let covering =
            held.iter().filter(|(scope, held)| scope.covers(wanted) && held.collection.is_complete());
        covering.map(|(_, held)| held.collection.clone()).next_back()
    }

    /// Returns the collection of a scope, and begins it when there is none. `owner` is the name of the caller. `None`: the edge, or this
    /// caller, holds too many. `CopyError::Full`: the disk has no room for a new one.
    pub async fn ensure(
        &self,
        scope: &SubscriptionScope,
        credential: SubscriptionCredential,
        (owner, is_pinned): (&str, bool),
    ) -> Result<Option<Arc<Collection>>, CopyError> {
        let _alone = self.0.creating.lock().await;
        if let Some(held) = self.lock().get(scope) {
            held.offer(credential);
            return Ok(Some(held.collection.clone()));
        }
        let owner = match &credential {
            SubscriptionCredential::Token(_) => owner.to_owned(),
            SubscriptionCredential::Node(_) | SubscriptionCredential::Pin => String::new(),
        };
        let (own, all) = {
            let held = self.lock();
            (held.values().filter(|held| held.owner == owner).count(), held.len())
        };
        if !may_begin(&credential, own, all) {
            return Ok(None);
        }
        let share = if is_pinned { DiskShare::Kept } else { DiskShare::New };
        let node = match &credential {
            SubscriptionCredential::Node(node) => node.clone(),
            _ => String::new(),
        };
        let (stored_scope, stored_node) = (scope.clone(), node.clone());
        let created = self.0.database.write_within(share, move |connection| {
            tables::create_subscription(connection, &stored_scope, &stored_node)
        });
        let id = created.await?;
        let stored = StoredSubscription {
            id,
            scope: scope.clone(),
            description: None,
            revision: causeway_api::Revision(0),
            node,
            stats: tables::CopyStats::default(),
        };
        let collection = self.hold(stored, Some(credential), owner);
        collection.is_pinned.store(is_pinned, Ordering::Relaxed);
        Ok(Some(collection))
    }

    /// The token that ends the watches of all subscriptions.
    pub fn stop(&self) -> &CancellationToken {
        &self.0.stop
    }

    /// The token that ends the watches of a collection; `None` when it is not held any more.
    pub fn watch_end(&self, collection: &Collection) -> Option<CancellationToken> {
        let held = self.lock();
        held.get(&collection.scope)
            .filter(|held| held.collection.id == collection.id)
            .map(|held| held.stop.clone())
    }

    /// Offers a caller's credential to a subscription that is not followed, for example after a restart.
    pub fn offer(&self, scope: &SubscriptionScope, credential: SubscriptionCredential) {
        if let Some(held) = self.lock().get(scope).filter(|held| !held.collection.is_live()) {
            held.offer(credential);
        }
    }

    /// The refusal of the cloud for a scope.
    pub fn refusal(&self, scope: &SubscriptionScope) -> Option<Status> {
        let held = self.lock();
        held.get(scope)?.refused.lock_ignoring_poison().clone()
    }

    /// The collections of one resource that are complete.
    pub fn of_resource(&self, resource: &ResourceName) -> Vec<Arc<Collection>> {
        let held = self.lock();
        let of = held.values().filter(|held| held.collection.scope.resource == *resource);
        of.map(|held| held.collection.clone()).filter(|collection| collection.is_complete()).collect()
    }

    /// Returns a complete collection that holds an object, whatever else it selects.
    pub async fn holding(&self, resource: &ResourceName, key: &str) -> Option<Arc<Collection>> {
        let (name, key) = (resource.to_string(), key.to_owned());
        let holders =
            self.0.database.read(move |connection| tables::holders(connection, &name, &key)).await.ok()?;
        self.of_resource(resource).into_iter().find(|collection| holders.contains(&collection.id))
    }

    /// Returns an object as the API server has it. `Ok(None)`: a collection covers the name, and it is not there. `NotHeld`: no collection
    /// tells.
    pub async fn copied(&self, resource: &ResourceName, key: &str) -> Result<Option<KubeObject>, NotHeld> {
        if let Some(collection) = self.holding(resource, key).await
            && let Ok((_, Some(object))) = collection.get_copied(key).await
        {
            return Ok(Some(object));
        }
        let (namespace, name) = key.split_once('/').unwrap_or(("", key));
        match self.find(&SubscriptionScope::one(resource.clone(), namespace, name)) {
            Some(_) => Ok(None),
            None => Err(NotHeld),
        }
    }

    /// Puts local objects of a resource in force, or takes them away, and tells watchers.
    pub async fn set_local(
        &self,
        resource: &ResourceName,
        changes: Vec<(String, Option<LocalObject>)>,
    ) -> Result<(), CopyError> {
        let locals = self.locals(resource);
        let collections = self.of_resource(resource);
        // In one order everywhere; a collection is locked by one change at a time.
        let mut ordered = Vec::with_capacity(collections.len());
        for collection in &collections {
            ordered.push(collection.order().await);
        }
        let mut before = Vec::new();
        for collection in &collections {
            for (key, _) in &changes {
                before.push(collection.get(key).await?.1);
            }
        }
        for (key, local) in &changes {
            locals.set(key, local.clone());
        }
        let mut before = before.into_iter();
        for collection in &collections {
            for (key, _) in &changes {
                let now = collection.get(key).await?.1;
                collection.publish_local(key, before.next().flatten().as_ref(), now.as_ref());
            }
        }
        drop(ordered);
        Ok(())
    }

    /// Takes up a local object of an earlier start. Watchers that resume get it.
    pub async fn restore_local(
        &self,
        resource: &ResourceName,
        key: &str,
        local: LocalObject,
    ) -> Result<(), CopyError> {
        self.locals(resource).set(key, Some(local));
        for collection in self.of_resource(resource) {
            if let Some(now) = collection.get(key).await?.1 {
                collection.remember_local(key, &now);
            }
        }
        Ok(())
    }

    fn locals(&self, resource: &ResourceName) -> Arc<LocalObjects> {
        let mut locals = self.0.locals.lock_ignoring_poison();
        locals.entry(resource.clone()).or_default().clone()
    }

    /// Notes which scopes are pinned.
    pub fn set_pinned(&self, pins: &[SubscriptionScope]) {
        for (scope, held) in self.lock().iter() {
            held.collection.is_pinned.store(pins.contains(scope), Ordering::Relaxed);
        }
    }

    pub fn all(&self) -> Vec<Arc<Collection>> {
        self.lock().values().map(|held| held.collection.clone()).collect()
    }

    /// Drops subscriptions that need a pin and have none: the cloud does not keep them current. Their watches end.
    pub async fn withdraw(&self, pins: &[SubscriptionScope]) -> Result<(), CopyError> {
        let withdrawn: Vec<HeldSubscription> = {
            let mut held = self.lock();
            let scopes: Vec<SubscriptionScope> =
                held.keys().filter(|scope| !scope.is_allowed(pins)).cloned().collect();
            scopes.iter().filter_map(|scope| held.remove(scope)).collect()
        };
        for subscription in withdrawn {
            let id = subscription.collection.id;
            subscription.stop.cancel();
            tracing::info!(scope = %subscription.collection.scope, "a resource that is not pinned any more is dropped");
            drop(subscription);
            self.0.database.write(move |connection| tables::drop_subscription(connection, id)).await?;
        }
        Ok(())
    }

    /// Drops subscriptions that no client has used for `unused`, unless they are in `pins` or being watched.
    pub async fn drop_unused(
        &self,
        (unused, now): (Duration, Instant),
        pins: &[SubscriptionScope],
    ) -> Result<(), CopyError> {
        let is_unused = |scope: &SubscriptionScope, collection: &Collection| {
            use Ordering::Relaxed;
            collection.unused_for(now) > unused
                && collection.watchers.load(Relaxed) == 0
                && !pins.contains(scope)
        };
        let dropped: Vec<i64> = {
            let mut held = self.lock();
            let unused: Vec<_> = held
                .iter()
                .filter(|(scope, held)| is_unused(scope, &held.collection))
                .map(|(scope, held)| (scope.clone(), held.collection.id))
                .collect();
            unused.iter().for_each(|(scope, _)| drop(held.remove(scope)));
            unused.into_iter().map(|(_, id)| id).collect()
        };
        for id in dropped {
            self.0.database.write(move |connection| tables::drop_subscription(connection, id)).await?;
        }
        Ok(())
    }

    fn hold(
        &self,
        stored: StoredSubscription,
        credential: Option<SubscriptionCredential>,
        owner: String,
    ) -> Arc<Collection> {
        let mut held = self.lock();
        // Two requests may have created it at the same time.
        if let Some(known) = held.get(&stored.scope) {
            return known.collection.clone();
        }
        let scope = stored.scope.clone();
        let local = self.locals(&scope.resource);
        let collection = Collection::new(self.0.database.clone(), stored, local);
        let credential = watch::Sender::new(credential);
        let refused = Arc::new(Mutex::new(None));
        let task = SubscriptionTask {
            collection: collection.clone(),
            connector: self.0.connector.clone(),
            traffic: self.0.traffic.clone(),
            credential: credential.subscribe(),
            refused: refused.clone(),
            takes_whole: false,
        };
        let task = tokio::spawn(task.run()).abort_handle();
        let stop = self.0.stop.child_token();
        let subscription =
            HeldSubscription { collection: collection.clone(), credential, refused, owner, task, stop };
        held.insert(scope, subscription);
        collection
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SubscriptionScope, HeldSubscription>> {
        self.0.held.lock_ignoring_poison()
    }
}

impl HeldSubscription {
    /// Takes a credential when there is none, or the one there is was refused. A pin stays.
    fn offer(&self, credential: SubscriptionCredential) {
        let mut refused = self.refused.lock_ignoring_poison();
        let is_refused = refused.is_some();
        self.credential.send_if_modified(|held| {
            let is_taken = match held {
                None => true,
                Some(held) => {
                    *held != credential && (is_refused || credential == SubscriptionCredential::Pin)
                }
            };
            if is_taken {
                *held = Some(credential);
                *refused = None;
            }
            is_taken
        });
    }
}

/// The answer to a caller whose subscription has no room on the disk.
pub fn full_status(full: &CopyError) -> Status {
    Status::unavailable(format!("{}; nothing new is held", error_chain(full)), 60)
}

/// Keeps one subscription current.
struct SubscriptionTask {
    collection: Arc<Collection>,
    connector: Arc<dyn CloudConnector>,
    traffic: LinkTraffic,
    credential: watch::Receiver<Option<SubscriptionCredential>>,
    refused: Arc<Mutex<Option<Status>>>,
    /// Differences did not fit the copy: the next session asks for whole objects.
    takes_whole: bool,
}

impl SubscriptionTask {
    async fn run(mut self) {
        let mut backoff = BACKOFF_MIN;
        loop {
            let credential = match self.credential.wait_for(Option::is_some).await {
                Ok(credential) => credential.clone(),
                Err(_) => return,
            };
            let Some(credential) = credential else { continue };
            self.until_affordable(true).await;
            self.connector.connected().await;
            let ended = tokio::select! {
                ended = self.session(credential) => ended,
                () = self.until_affordable(false) => Ok(()),
            };
            let was_live = self.collection.is_live();
            self.collection.set_live(false);
            let scope = &self.collection.scope;
            let mut pause = backoff.mul_f64(0.5 + causeway_watch::random_fraction());
            backoff = if was_live { BACKOFF_MIN } else { (backoff * 2).min(BACKOFF_MAX) };
            self.takes_whole = matches!(ended, Err(SessionError::Delta(_)));
            match ended {
                Ok(()) => {}
                Err(SessionError::Refused(status)) => {
                    tracing::warn!(%scope, reason = status.message, "the cloud refused a subscription");
                    *self.refused.lock_ignoring_poison() = Some(*status);
                    pause = REFUSED_RETRY_DELAY;
                }
                Err(SessionError::Copy(error @ CopyError::Full(_))) => {
                    self.stop_at_full_disk(&error).await;
                    continue;
                }
                Err(error) => {
                    tracing::debug!(%scope, error = error_chain(&error), "a subscription was interrupted")
                }
            }
            self.credential.mark_unchanged();
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                Ok(()) = self.credential.changed() => {}
            }
        }
    }

    /// Drops the begun part of a copy that does not fit, says so, and waits. A complete copy stays and answers reads.
    async fn stop_at_full_disk(&self, full: &CopyError) {
        let scope = &self.collection.scope;
        tracing::warn!(%scope, error = error_chain(full), "a copy of the API is not kept current");
        if let Err(error) = self.collection.drop_staged().await {
            tracing::debug!(%scope, error = error_chain(&error), "a part of a copy cannot be removed");
        }
        *self.refused.lock_ignoring_poison() = Some(full_status(full));
        tokio::time::sleep(FULL_RETRY_DELAY).await;
        *self.refused.lock_ignoring_poison() = None;
    }

    /// Resolves when the subscription may be kept current within the budget of the day, or, with `false`, when it may not.
    async fn until_affordable(&self, wanted: bool) {
        let mut spending = self.traffic.spending();
        loop {
            let collection = &self.collection;
            let is_affordable = traffic::goes_on(
                spending.borrow_and_update().is_some(),
                collection.is_pinned.load(Ordering::Relaxed),
                collection.watchers.load(Ordering::Relaxed),
                collection.is_complete(),
            );
            if is_affordable == wanted {
                return;
            }
            // Watchers come and go without a signal; without a spent budget they do not matter.
            let is_spent = spending.borrow().is_some();
            tokio::select! {
                _ = spending.changed() => {}
                () = tokio::time::sleep(BUDGET_CHECK_INTERVAL), if is_spent => {}
            }
        }
    }

    async fn session(&self, credential: SubscriptionCredential) -> Result<(), SessionError> {
        let stream = self.connector.open(SYNC_TARGET).await?;
        let resource = self.collection.scope.resource.to_string();
        let stream = CountedStream::wrap(stream, &self.traffic, TrafficCause::Sync, resource);
        let (recv, mut send) = tokio::io::split(stream);
        // The cloud compresses; a frame is never longer than its content.
        let mut reader = MessageReader::new(recv, MESSAGE_BYTES_MAX + 1);
        let collection = &self.collection;
        let revision = collection.revision();
        let objects = match revision.0 {
            0 => 0,
            _ => collection.stats().objects,
        };
        let mut first = subscribe(&collection.scope, revision, objects);
        match credential {
            SubscriptionCredential::Token(token) => first.token = token,
            SubscriptionCredential::Node(node) => first.node = node,
            SubscriptionCredential::Pin => {}
        }
        first.deltas = !self.takes_whole;
        send_message(&mut send, EdgeSyncBody::Subscribe(first)).await?;
        let mut receiver = SyncReceiver::new(revision);
        while let Some(message) = reader.next::<CloudSyncMessage>().await? {
            // A message of a newer cloud has no body that we know.
            let Some(body) = message.body else { continue };
            let step = receiver.handle(body)?;
            self.take(step, &mut send).await?;
            if receiver.is_live() != collection.is_live() {
                collection.set_live(receiver.is_live());
            }
        }
        Ok(())
    }

    /// Replaces differences by the objects that they make, each from the version before it in the batch or in the copy.
    async fn whole(&self, mut changes: Vec<ChangeEntry>) -> Result<Vec<ChangeEntry>, SessionError> {
        let mut newest: BTreeMap<String, (u64, Bytes)> = BTreeMap::new();
        let is_delta = |change: &ChangeEntry| change.base_revision != 0 && !change.deleted;
        let several: BTreeSet<String> =
            changes.iter().filter(|change| is_delta(change)).map(|change| change.key.clone()).collect();
        for change in changes.iter_mut().filter(|change| several.contains(&change.key)) {
            if is_delta(change) {
                let base = match newest.get(&change.key) {
                    Some(base) => Some(base.clone()),
                    None => {
                        let (_, copied) = self.collection.get_copied(&change.key).await?;
                        copied.map(|copied| (copied.revision.0, copied.pack()))
                    }
                };
                let base =
                    base.filter(|(revision, _)| *revision == change.base_revision).ok_or(DeltaError)?;
                let packed = delta::apply(&base.1, &change.body, MESSAGE_BYTES_MAX)?;
                let (body, cells) = kube_object::unpack(&packed);
                (change.body, change.cells) = (packed.slice_ref(body), packed.slice_ref(cells));
                change.base_revision = 0;
                newest.insert(change.key.clone(), (change.revision, packed));
            } else if change.deleted {
                newest.remove(&change.key);
            } else {
                let object = KubeObject {
                    key: change.key.clone(),
                    uid: change.uid.clone(),
                    revision: causeway_api::Revision(change.revision),
                    body: change.body.clone(),
                    cells: change.cells.clone(),
                };
                newest.insert(change.key.clone(), (change.revision, object.pack()));
            }
        }
        Ok(changes)
    }

    async fn take(
        &self,
        step: SyncStep,
        send: &mut tokio::io::WriteHalf<BoxedStream>,
    ) -> Result<(), SessionError> {
        let collection = &self.collection;
        match step {
            SyncStep::Describe(description) => collection.describe(description).await?,
            SyncStep::SendDigests { buckets } => {
                send_message(send, digest_answer(&collection.entries().await?, buckets)).await?;
            }
            SyncStep::SendKeys { wanted, of } => {
                for answer in key_answers(&collection.entries().await?, &wanted, of) {
                    send_message(send, answer).await?;
                }
            }
            SyncStep::Stage { changes, sequence } => {
                collection.stage(changes).await?;
                send_message(send, acknowledge(sequence)).await?;
            }
            SyncStep::Complete { changes, sequence, revision } => {
                let changes = self.whole(changes).await?;
                collection.complete(changes, revision).await?;
                send_message(send, acknowledge(sequence)).await?;
            }
            SyncStep::Advance(revision) => collection.advance(revision).await?,
            SyncStep::Refused(status) => return Err(SessionError::Refused(Box::new(status))),
        }
        Ok(())
    }
}

async fn send_message(
    send: &mut tokio::io::WriteHalf<BoxedStream>,
    body: EdgeSyncBody,
) -> Result<(), SyncFrameError> {
    frames::write(send, &EdgeSyncMessage::from(body)).await
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connector::TestCloud;
    use crate::resource::ResourceName;
    use crate::sync::wire::ChangeEntry;

    async fn open(folder: &std::path::Path) -> (Subscriptions, CopyDatabase) {
        let database = CopyDatabase::open(&folder.join("copy.db")).unwrap();
        let traffic = LinkTraffic::new(None, crate::traffic::DayUse::default());
        let cloud = TestCloud::new(|_, _| Box::pin(async { (503, String::new()) }));
        (Subscriptions::open(database.clone(), Arc::new(cloud), traffic).await.unwrap(), database)
    }

    fn secret(name: &str) -> SubscriptionScope {
        SubscriptionScope::one(ResourceName::new("", "v1", "secrets"), "shop", name)
    }

    fn token() -> SubscriptionCredential {
        SubscriptionCredential::Token("t".into())
    }

    #[test]
    fn a_caller_with_a_token_leaves_subscriptions_to_others() {
        let mut held = 0;
        let mut take_all = |credential: &SubscriptionCredential| {
            let mut own = 0;
            while may_begin(credential, own, held) {
                (own, held) = (own + 1, held + 1);
            }
            own
        };
        assert_eq!([(); 3].map(|()| take_all(&token())), [1_024, 683, 455]);
        assert_eq!(
            take_all(&SubscriptionCredential::Node("n1".into())),
            1_934,
            "the rest, with a part of its own"
        );
    }

    #[tokio::test]
    async fn subscriptions_count_for_the_caller_who_began_them() {
        let folder = tempfile::tempdir().unwrap();
        let (subscriptions, _) = open(folder.path()).await;
        for number in 0..3 {
            let begun = subscriptions.ensure(&secret(&number.to_string()), token(), ("till", false)).await;
            assert!(begun.unwrap().is_some());
        }
        let node = SubscriptionCredential::Node("n1".into());
        subscriptions.ensure(&secret("n"), node, ("system:node:n1", false)).await.unwrap();
        let owners: Vec<String> = subscriptions.lock().values().map(|held| held.owner.clone()).collect();
        assert_eq!(owners, ["till", "till", "till", ""]);
    }

    #[tokio::test]
    async fn a_clock_that_is_set_forward_drops_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (subscriptions, _) = open(folder.path()).await;
        let begun = subscriptions.ensure(&secret("a"), token(), ("till", false)).await.unwrap().unwrap();
        let (day, now) = (Duration::from_secs(86_400), Instant::now());
        // The last use seems to be decades ago.
        begun.used.store(0, Ordering::Relaxed);
        subscriptions.drop_unused((day, now), &[]).await.unwrap();
        assert_eq!(subscriptions.all().len(), 1);
        subscriptions.drop_unused((day, now + day * 2), &[secret("a")]).await.unwrap();
        assert_eq!(subscriptions.all().len(), 1, "pinned");
        subscriptions.drop_unused((day, now + day * 2), &[]).await.unwrap();
        assert_eq!(subscriptions.all().len(), 0);
    }

    #[tokio::test]
    async fn a_full_disk_keeps_what_is_there_and_begins_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let (subscriptions, database) = open(folder.path()).await;
        let change = |revision: u64, deleted: bool, bytes: usize| ChangeEntry {
            key: "shop/a".into(),
            uid: "u".into(),
            revision,
            deleted,
            body: Bytes::from(vec![b'x'; bytes]),
            ..ChangeEntry::default()
        };
        let at = causeway_api::Revision;
        let begun = subscriptions.ensure(&secret("a"), token(), ("till", false)).await.unwrap().unwrap();
        begun.complete(vec![change(1, false, 400_000)], at(1)).await.unwrap();
        let used = database.read(tables::used_bytes).await.unwrap();
        database.set_bytes_max(used);
        let refused = subscriptions.ensure(&secret("b"), token(), ("till", false)).await.err().unwrap();
        assert!(full_status(&refused).message.contains("bytes-max"), "{refused}");
        assert_eq!(full_status(&refused).code, 503);
        let larger = begun.complete(vec![change(2, false, 800_000)], at(2)).await;
        assert!(matches!(larger, Err(CopyError::Full(_))));
        assert_eq!(begun.get("shop/a").await.unwrap().1.unwrap().revision, at(1), "it stays as it was");
        // Room for pins, and none for callers.
        database.set_bytes_max(used + used / 10);
        assert!(subscriptions.ensure(&secret("b"), token(), ("till", false)).await.is_err());
        let pin = SubscriptionCredential::Pin;
        let pinned = subscriptions.ensure(&secret("c"), pin, ("", true)).await.unwrap().unwrap();
        pinned.stage(vec![change(1, false, 10)]).await.unwrap();
        pinned.drop_staged().await.unwrap();
        database.set_bytes_max(used);
        begun.complete(vec![change(3, true, 0)], at(3)).await.unwrap();
        assert!(
            subscriptions.ensure(&secret("b"), token(), ("till", false)).await.unwrap().is_some(),
            "there is room"
        );
    }

    #[tokio::test]
    async fn a_copy_of_many_secrets_goes_with_its_pin_and_its_watches_end() {
        let folder = tempfile::tempdir().unwrap();
        let open = async || {
            let database = CopyDatabase::open(&folder.path().join("copy.db")).unwrap();
            let cloud = Arc::new(TestCloud::new(|_, _| Box::pin(async { (200, String::new()) })));
            Subscriptions::open(database, cloud, LinkTraffic::new(None, crate::traffic::DayUse::default()))
                .await
                .unwrap()
        };
        let subscriptions = open().await;
        let of = |plural: &str| SubscriptionScope::all(ResourceName::new("", "v1", plural));
        let one = SubscriptionScope::one(ResourceName::new("", "v1", "secrets"), "shop", "a");
        let (all, pods) = (of("secrets"), of("pods"));
        for scope in [&all, &one, &pods] {
            subscriptions.ensure(scope, SubscriptionCredential::Pin, ("", true)).await.unwrap().unwrap();
        }
        let held = |subscriptions: &Subscriptions| -> Vec<SubscriptionScope> {
            subscriptions.all().iter().map(|collection| collection.scope.clone()).collect()
        };
        subscriptions.withdraw(std::slice::from_ref(&all)).await.unwrap();
        assert_eq!(held(&subscriptions).len(), 3, "the pin is there");
        let wide = subscriptions.all().into_iter().find(|collection| collection.scope == all).unwrap();
        let end = subscriptions.watch_end(&wide).unwrap();
        subscriptions.withdraw(&[]).await.unwrap();
        assert!(end.is_cancelled() && subscriptions.watch_end(&wide).is_none());
        let left = held(&subscriptions);
        assert!(left.len() == 2 && left.contains(&one) && left.contains(&pods), "{left:?}");
        drop(subscriptions);
        assert_eq!(held(&open().await), left, "nor does it come again with a start");
    }
}
