//! The subscriptions of an edge: finds the one that covers a request, begins new ones, and keeps all of them current.
//!
//! Each subscription has a task that holds a stream to the cloud while there is a link. Decisions of the protocol are in
//! `sync::receiver`; the objects are in `copy`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use causeway_api::{Status, error_chain};
use tokio::sync::watch;
use tokio::task::AbortHandle;

use crate::connector::{BoxedStream, CloudAway, CloudConnector};
use crate::copy::collection::{Collection, unix_now};
use crate::copy::local::{LocalObject, LocalObjects};
use crate::copy::tables::{self, StoredSubscription};
use crate::copy::{CopyDatabase, CopyError};
use crate::kube_object::KubeObject;
use crate::resource::{ResourceName, SubscriptionScope};
use crate::sync::frames::{self, MESSAGE_BYTES_MAX, MessageReader, SyncFrameError};
use crate::sync::receiver::{
    SyncReceiver, SyncStep, SyncViolation, acknowledge, digest_answer, key_answers, subscribe,
};
use crate::sync::wire::{CloudSyncMessage, EdgeSyncBody, EdgeSyncMessage};
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
    held: Mutex<BTreeMap<SubscriptionScope, HeldSubscription>>,
    /// The local objects of each resource that a collection or a local change named; at most as many as there were subscriptions.
    locals: Mutex<BTreeMap<ResourceName, Arc<LocalObjects>>>,
}

struct HeldSubscription {
    collection: Arc<Collection>,
    credential: watch::Sender<Option<SubscriptionCredential>>,
    /// The refusal of the cloud, until a new credential is tried.
    refused: Arc<Mutex<Option<Status>>>,
    task: AbortHandle,
}

impl Drop for HeldSubscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}

// A site holds a few dozen resources, and one subscription per ConfigMap and Secret that its pods use.
const SUBSCRIPTIONS_MAX: usize = 4_096;
const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
// A refusal is not asked again at once; a new credential is.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

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
    #[error("the cloud refused: {}", .0.message)]
    Refused(Box<Status>),
}

impl Subscriptions {
    /// Takes up the subscriptions that are on disk.
    pub async fn open(
        database: CopyDatabase,
        connector: Arc<dyn CloudConnector>,
    ) -> Result<Subscriptions, CopyError> {
        let stored = database.read(tables::subscriptions).await?;
        let held = Mutex::default();
        let subscriptions =
            Subscriptions(Arc::new(Shared { database, connector, held, locals: Mutex::default() }));
        for stored in stored {
            let credential =
                (!stored.node.is_empty()).then(|| SubscriptionCredential::Node(stored.node.clone()));
            subscriptions.hold(stored, credential);
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

    /// Returns the collection of a scope, and begins it when there is none. `None`: the edge holds too many.
    pub async fn ensure(
        &self,
        scope: &SubscriptionScope,
        credential: SubscriptionCredential,
    ) -> Result<Option<Arc<Collection>>, CopyError> {
        if let Some(held) = self.lock().get(scope) {
            held.offer(credential);
            return Ok(Some(held.collection.clone()));
        }
        if self.lock().len() >= SUBSCRIPTIONS_MAX {
            return Ok(None);
        }
        let node = match &credential {
            SubscriptionCredential::Node(node) => node.clone(),
            _ => String::new(),
        };
        let (stored_scope, stored_node) = (scope.clone(), node.clone());
        let created = self
            .0
            .database
            .write(move |connection| tables::create_subscription(connection, &stored_scope, &stored_node));
        let id = created.await?;
        let stored = StoredSubscription {
            id,
            scope: scope.clone(),
            description: None,
            revision: causeway_api::Revision(0),
            node,
            figures: tables::CopyFigures::default(),
        };
        Ok(Some(self.hold(stored, Some(credential))))
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
        held.get(scope)?.refused.lock().unwrap_or_else(PoisonError::into_inner).clone()
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
        let mut locals = self.0.locals.lock().unwrap_or_else(PoisonError::into_inner);
        locals.entry(resource.clone()).or_default().clone()
    }

    pub fn all(&self) -> Vec<Arc<Collection>> {
        self.lock().values().map(|held| held.collection.clone()).collect()
    }

    /// Drops subscriptions that no client has used for `unused`, unless they are in `pins` or being watched.
    pub async fn drop_unused(&self, unused: Duration, pins: &[SubscriptionScope]) -> Result<(), CopyError> {
        let oldest = unix_now() - i64::try_from(unused.as_secs()).unwrap_or(i64::MAX);
        let is_unused = |scope: &SubscriptionScope, collection: &Collection| {
            use std::sync::atomic::Ordering::Relaxed;
            collection.used.load(Relaxed) < oldest
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
            credential: credential.subscribe(),
            refused: refused.clone(),
        };
        let task = tokio::spawn(task.run()).abort_handle();
        held.insert(scope, HeldSubscription { collection: collection.clone(), credential, refused, task });
        collection
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<SubscriptionScope, HeldSubscription>> {
        self.0.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldSubscription {
    /// Takes a credential when there is none, or the one there is was refused. A pin stays.
    fn offer(&self, credential: SubscriptionCredential) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Keeps one subscription current.
struct SubscriptionTask {
    collection: Arc<Collection>,
    connector: Arc<dyn CloudConnector>,
    credential: watch::Receiver<Option<SubscriptionCredential>>,
    refused: Arc<Mutex<Option<Status>>>,
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
            self.connector.connected().await;
            let ended = self.session(credential).await;
            let was_live = self.collection.is_live();
            self.collection.set_live(false);
            let scope = &self.collection.scope;
            let mut pause = backoff.mul_f64(0.5 + causeway_watch::random_fraction());
            backoff = if was_live { BACKOFF_MIN } else { (backoff * 2).min(BACKOFF_MAX) };
            match ended {
                Ok(()) => {}
                Err(SessionError::Refused(status)) => {
                    tracing::warn!(%scope, reason = status.message, "the cloud refused a subscription");
                    *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(*status);
                    pause = REFUSED_PAUSE;
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

    async fn session(&self, credential: SubscriptionCredential) -> Result<(), SessionError> {
        let stream = self.connector.open(SYNC_TARGET).await?;
        let (recv, mut send) = tokio::io::split(stream);
        // The cloud compresses; a frame is never longer than its content.
        let mut reader = MessageReader::new(recv, MESSAGE_BYTES_MAX + 1);
        let collection = &self.collection;
        let revision = collection.revision();
        let objects = match revision.0 {
            0 => 0,
            _ => collection.figures().objects,
        };
        let mut first = subscribe(&collection.scope, revision, objects);
        match credential {
            SubscriptionCredential::Token(token) => first.token = token,
            SubscriptionCredential::Node(node) => first.node = node,
            SubscriptionCredential::Pin => {}
        }
        say(&mut send, EdgeSyncBody::Subscribe(first)).await?;
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

    async fn take(
        &self,
        step: SyncStep,
        send: &mut tokio::io::WriteHalf<BoxedStream>,
    ) -> Result<(), SessionError> {
        let collection = &self.collection;
        match step {
            SyncStep::Describe(description) => collection.describe(description).await?,
            SyncStep::SendDigests { buckets } => {
                say(send, digest_answer(&collection.entries().await?, buckets)).await?;
            }
            SyncStep::SendKeys { wanted, of } => {
                for answer in key_answers(&collection.entries().await?, &wanted, of) {
                    say(send, answer).await?;
                }
            }
            SyncStep::Stage { changes, sequence } => {
                collection.stage(changes).await?;
                say(send, acknowledge(sequence)).await?;
            }
            SyncStep::Complete { changes, sequence, revision } => {
                collection.complete(changes, revision).await?;
                say(send, acknowledge(sequence)).await?;
            }
            SyncStep::Advance(revision) => collection.advance(revision).await?,
            SyncStep::Refused(status) => return Err(SessionError::Refused(Box::new(status))),
        }
        Ok(())
    }
}

async fn say(send: &mut tokio::io::WriteHalf<BoxedStream>, body: EdgeSyncBody) -> Result<(), SyncFrameError> {
    frames::write(send, &EdgeSyncMessage::from(body)).await
}
