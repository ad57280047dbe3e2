//! One resource of the cluster, followed once for all sites: its objects, and its newest changes.
//!
//! The objects are shared, not copied, by every subscription. A change that falls out of the ring is found again by
//! comparing digests. After a lost watch the list is compared with the objects, and the difference becomes changes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use causeway_api::selector::Selector;
use causeway_api::{Revision, Status, error_chain};
use causeway_daemon::sync::MutexExt;
use causeway_watch::ring::{Follower, Ring, RingEntry};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::cluster::ClusterClient;
use super::list_watch::{self, ListWatchError, UpstreamEvent};
use crate::facets::ObjectFacets;
use crate::kube_object::KubeObject;
use crate::resource::{ResourceDescription, ResourceName};
use crate::sync::deletions::deletion_revisions;
use crate::sync::delta;
use crate::sync::sender::{ScopedChange, SyncTarget};

/// An object with the values that selectors look at.
pub struct FeedObject {
    pub object: Arc<KubeObject>,
    facets: ObjectFacets,
}

impl FeedObject {
    fn new(resource: &ResourceName, object: KubeObject) -> Arc<FeedObject> {
        let facets = ObjectFacets::read(resource, &object.body);
        Arc::new(FeedObject { object: Arc::new(object), facets })
    }
}

/// One change of the resource.
pub struct FeedChange {
    revision: Revision,
    key: String,
    before: Option<Arc<FeedObject>>,
    now: Option<Arc<FeedObject>>,
    /// The difference of the two, made for the first site that takes it; `None` when it saves nothing.
    delta: OnceLock<Option<Bytes>>,
}

impl FeedChange {
    /// The change as a subscription with this selector sees it. An object that enters the selection is written, one that
    /// leaves it is deleted.
    /// With `deltas`, a change of an object that the site has is its difference.
    pub fn scoped(&self, selector: &Selector, deltas: bool) -> Option<ScopedChange> {
        let selects =
            |side: &Option<Arc<FeedObject>>| side.as_ref().is_some_and(|side| selector.matches(&side.facets));
        let (was, is) = (selects(&self.before), selects(&self.now));
        let side = if is { &self.now } else { &self.before };
        let side = side.as_ref().filter(|_| was || is)?;
        let object = is.then(|| side.object.clone());
        let delta = if deltas && was && is { self.delta() } else { None };
        Some(ScopedChange {
            key: self.key.clone(),
            uid: side.object.uid.clone(),
            revision: self.revision,
            object,
            delta,
        })
    }

    fn delta(&self) -> Option<(Revision, Bytes)> {
        let (before, now) = (&self.before.as_ref()?.object, &self.now.as_ref()?.object);
        let delta = self.delta.get_or_init(|| delta::encode(&before.pack(), &now.pack()));
        Some((before.revision, delta.clone()?))
    }
}

impl FeedChange {
    pub fn key(&self) -> &str {
        &self.key
    }

    /// The object before and after the change.
    pub fn bodies(&self) -> (Option<&[u8]>, Option<&[u8]>) {
        fn body(side: &Option<Arc<FeedObject>>) -> Option<&[u8]> {
            side.as_ref().map(|side| &side.object.body[..])
        }
        (body(&self.before), body(&self.now))
    }
}

impl RingEntry for FeedChange {
    fn revision(&self) -> Revision {
        self.revision
    }

    fn size_bytes(&self) -> usize {
        let size =
            |side: &Option<Arc<FeedObject>>| side.as_ref().map_or(0, |side| side.object.body.len() + 256);
        size(&self.before) + size(&self.now) + 256
    }
}

// History for sites that return: a few minutes of a busy resource.
const CHANGES_MAX: usize = 16_384;
const CHANGES_BYTES_MAX: usize = 32 << 20;

/// A followed resource.
pub struct ResourceFeed {
    name: ResourceName,
    state: Mutex<FeedState>,
    /// Raised by changes and by bookmarks.
    revision: watch::Sender<Revision>,
    readiness: watch::Sender<FeedReadiness>,
}

#[derive(Default)]
struct FeedState {
    objects: BTreeMap<String, Arc<FeedObject>>,
    revision: Revision,
    /// Made with the first list.
    ring: Option<Arc<Ring<FeedChange>>>,
}

#[derive(Clone, Debug)]
pub enum FeedReadiness {
    Starting,
    Ready(Arc<ResourceDescription>),
    /// The API server does not let us read the resource, or does not have it.
    Failed(Box<Status>),
}

/// The start of a subscription: the changes after the copy's revision, or the objects to compare it with.
pub enum FeedStart {
    Resumed(Follower<FeedChange>),
    Snapshot(SyncTarget, Follower<FeedChange>),
}

impl ResourceFeed {
    pub fn new(name: ResourceName) -> ResourceFeed {
        ResourceFeed {
            name,
            state: Mutex::default(),
            revision: watch::Sender::new(Revision(0)),
            readiness: watch::Sender::new(FeedReadiness::Starting),
        }
    }

    pub fn name(&self) -> &ResourceName {
        &self.name
    }

    /// A feed that was listed, with the objects of these keys.
    #[cfg(test)]
    pub(crate) fn listed(description: ResourceDescription, keys: &[&str]) -> ResourceFeed {
        let feed = ResourceFeed::new(description.name.clone());
        let object = |key: &&str| KubeObject {
            key: (*key).to_owned(),
            uid: "u".into(),
            revision: Revision(5),
            body: Bytes::from_static(br#"{"metadata":{}}"#),
            cells: Bytes::new(),
        };
        feed.take_list(Revision(7), keys.iter().map(object).collect());
        feed.readiness.send_replace(FeedReadiness::Ready(Arc::new(description)));
        feed
    }

    /// Waits until the resource was listed once, or cannot be.
    pub async fn ready(&self) -> Result<Arc<ResourceDescription>, Status> {
        let mut readiness = self.readiness.subscribe();
        let found = readiness.wait_for(|readiness| !matches!(readiness, FeedReadiness::Starting)).await;
        match found.as_deref() {
            Ok(FeedReadiness::Ready(description)) => Ok(description.clone()),
            Ok(FeedReadiness::Failed(status)) => Err((**status).clone()),
            _ => Err(Status::unavailable("the resource is not followed any more", 1)),
        }
    }

    /// Returns true if the resource was listed once.
    pub fn is_ready(&self) -> bool {
        matches!(*self.readiness.borrow(), FeedReadiness::Ready(_))
    }

    /// Returns true if the resource could not be listed, so that no site has anything of it.
    pub fn has_failed(&self) -> bool {
        matches!(*self.readiness.borrow(), FeedReadiness::Failed(_))
    }

    pub fn revisions(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }

    /// Returns the number of objects, their bytes and the revision, for status.
    pub fn stats(&self) -> (usize, usize, Revision) {
        let state = self.lock();
        let bytes = state.objects.values().map(|object| object.object.body.len()).sum();
        (state.objects.len(), bytes, state.revision)
    }

    /// Begins a subscription of a copy at `revision`; `None` before the first list.
    pub fn start(&self, selector: &Selector, revision: Revision) -> Option<FeedStart> {
        let state = self.lock();
        let ring = state.ring.as_ref()?;
        if revision.0 > 0
            && revision <= state.revision
            && let Some(follower) = ring.follow(revision)
        {
            return Some(FeedStart::Resumed(follower));
        }
        let selected = state.objects.iter().filter(|(_, object)| selector.matches(&object.facets));
        let objects = selected.map(|(key, object)| (key.clone(), object.object.clone())).collect();
        // The ring holds every change after the state, since both change under this lock.
        let follower = ring.follow(state.revision)?;
        Some(FeedStart::Snapshot(SyncTarget { revision: state.revision, objects }, follower))
    }

    // A panic while the lock is held leaves a whole state: changes are applied one by one.
    fn lock(&self) -> MutexGuard<'_, FeedState> {
        self.state.lock_ignoring_poison()
    }

    /// Follows the resource until `stop`.
    pub async fn run(&self, cluster: ClusterClient, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.follow(&cluster) => {}
        }
        if let Some(ring) = &self.lock().ring {
            ring.close();
        }
    }

    async fn follow(&self, cluster: &ClusterClient) {
        let (mut backoff, mut revision) = (BACKOFF_MIN, Revision(0));
        let mut must_list = true;
        loop {
            let followed = self.list_and_watch(cluster, must_list).await;
            let reached = self.lock().revision;
            if reached > revision {
                (backoff, revision) = (BACKOFF_MIN, reached);
            }
            must_list = self.lock().ring.is_none();
            match followed {
                Ok(never) => match never {},
                Err(error) if error.is_expired() => {
                    must_list = true;
                    tracing::info!(resource = %self.name, "the history of the API server is over; the resource is listed again");
                }
                Err(error) => {
                    let failure = FeedReadiness::Failed(Box::new(error.status()));
                    // A feed that was ready goes on from its state; one that never was tells its subscribers.
                    self.readiness.send_if_modified(|readiness| {
                        let is_first = !matches!(readiness, FeedReadiness::Ready(_));
                        if is_first {
                            *readiness = failure;
                        }
                        is_first
                    });
                    tracing::warn!(resource = %self.name, error = error_chain(&error), "cannot follow a resource of the cluster");
                }
            }
            tokio::time::sleep(backoff.mul_f64(0.5 + causeway_watch::random_fraction())).await;
            backoff = (backoff * 2).min(BACKOFF_MAX);
        }
    }

    /// Follows the resource until an error. A watch that breaks is resumed without a list while the history lasts.
    async fn list_and_watch(
        &self,
        cluster: &ClusterClient,
        must_list: bool,
    ) -> Result<Infallible, ListWatchError> {
        let known = match &*self.readiness.borrow() {
            FeedReadiness::Ready(description) => Some((**description).clone()),
            _ => None,
        };
        let mut description = match known {
            Some(description) => description,
            None => list_watch::describe(cluster, &self.name).await?,
        };
        if must_list {
            let (revision, objects) = list_watch::list(cluster, &mut description).await?;
            self.take_list(revision, objects);
            self.readiness.send_replace(FeedReadiness::Ready(Arc::new(description.clone())));
        }
        loop {
            let from = self.lock().revision;
            let mut watch = list_watch::watch(cluster, &description, from).await?;
            while let Some(event) = watch.next().await? {
                self.take_event(event);
            }
        }
    }

    fn take_event(&self, event: UpstreamEvent) {
        let mut state = self.lock();
        let revision = match event {
            UpstreamEvent::Bookmark(revision) => {
                if let Some(ring) = &state.ring {
                    ring.advance(revision);
                }
                revision
            }
            UpstreamEvent::Written(object) => {
                let object = FeedObject::new(&self.name, object);
                let (key, revision) = (object.object.key.clone(), object.object.revision);
                state.apply(key, revision, Some(object));
                revision
            }
            UpstreamEvent::Deleted(object) => {
                state.apply(object.key.clone(), object.revision, None);
                object.revision
            }
        };
        state.revision = state.revision.max(revision);
        self.revision.send_replace(state.revision);
    }

    /// Takes a whole list: what differs from the objects becomes changes, in the order of revisions.
    fn take_list(&self, revision: Revision, listed: Vec<KubeObject>) {
        let mut state = self.lock();
        let state = &mut *state;
        let listed: BTreeMap<String, KubeObject> =
            listed.into_iter().map(|object| (object.key.clone(), object)).collect();
        let is_first = state.ring.is_none();
        // A list that is older than our state comes from a restored etcd: sites compare anew with the whole state.
        if is_first || revision < state.revision {
            if let Some(ring) = &state.ring {
                ring.close();
            }
            let feed_object = |(key, object)| (key, FeedObject::new(&self.name, object));
            state.objects = listed.into_iter().map(feed_object).collect();
            state.ring = Some(Arc::new(Ring::new(revision, CHANGES_MAX, CHANGES_BYTES_MAX)));
            state.revision = revision;
            self.revision.send_replace(revision);
            return;
        }
        let gone: Vec<String> =
            state.objects.keys().filter(|key| !listed.contains_key(*key)).cloned().collect();
        let is_new = |object: &KubeObject| {
            let known = state.objects.get(&object.key);
            known.is_none_or(|known| {
                known.object.revision != object.revision || known.object.uid != object.uid
            })
        };
        let changed: Vec<KubeObject> = listed.into_values().filter(is_new).collect();
        let used = changed.iter().map(|object| object.revision).collect();
        let deleted = deletion_revisions((state.revision, revision), &used, gone.len());
        let mut changes: Vec<(Revision, String, Option<KubeObject>)> =
            changed.into_iter().map(|object| (object.revision, object.key.clone(), Some(object))).collect();
        changes.extend(gone.into_iter().zip(deleted).map(|(key, at)| (at, key, None)));
        changes.sort_by_key(|(at, ..)| *at);
        for (at, key, object) in changes {
            state.apply(key, at, object.map(|object| FeedObject::new(&self.name, object)));
        }
        state.revision = revision;
        if let Some(ring) = &state.ring {
            ring.advance(revision);
        }
        self.revision.send_replace(revision);
    }
}

const BACKOFF_MIN: Duration = Duration::from_millis(200);
const BACKOFF_MAX: Duration = Duration::from_secs(30);

impl FeedState {
    fn apply(&mut self, key: String, revision: Revision, now: Option<Arc<FeedObject>>) {
        let before = match &now {
            Some(object) => self.objects.insert(key.clone(), object.clone()),
            None => self.objects.remove(&key),
        };
        if before.is_none() && now.is_none() {
            return;
        }
        if let Some(ring) = &self.ring {
            ring.push([Arc::new(FeedChange { revision, key, before, now, delta: OnceLock::new() })]);
        }
        self.revision = self.revision.max(revision);
    }
}

#[cfg(test)]
mod tests {
    use std::task::Context;

    use causeway_watch::ring::FollowResult;

    use super::*;

    fn object(name: &str, tier: &str, revision: u64) -> KubeObject {
        let body = format!(r#"{{"metadata":{{"name":"{name}","labels":{{"tier":"{tier}"}}}}}}"#);
        KubeObject {
            key: name.into(),
            uid: "u".into(),
            revision: Revision(revision),
            body: body.into(),
            cells: Bytes::new(),
        }
    }

    fn followed(follower: &mut Follower<FeedChange>, selector: &Selector) -> Vec<(String, u64, bool)> {
        let mut entries = Vec::new();
        let mut context = Context::from_waker(std::task::Waker::noop());
        while follower.poll_entries(&mut context, 100, 1 << 20, &mut entries)
            == std::task::Poll::Ready(FollowResult::Some)
        {}
        let scoped = entries.iter().filter_map(|change| change.scoped(selector, false));
        scoped.map(|change| (change.key, change.revision.0, change.object.is_some())).collect()
    }

    #[test]
    fn entering_and_leaving_a_selector_and_a_new_list_become_changes_in_order() {
        let feed = ResourceFeed::new(ResourceName::new("", "v1", "nodes"));
        let selector = Selector::parse(causeway_api::Kind::ESite, "tier=a", "").unwrap();
        assert!(feed.start(&selector, Revision(0)).is_none());
        feed.take_list(Revision(10), vec![object("x", "a", 3), object("y", "b", 4)]);
        let Some(FeedStart::Snapshot(target, mut follower)) = feed.start(&selector, Revision(0)) else {
            panic!()
        };
        assert_eq!((target.revision, target.objects.len()), (Revision(10), 1));
        feed.take_event(UpstreamEvent::Written(object("y", "a", 11)));
        feed.take_event(UpstreamEvent::Written(object("x", "b", 12)));
        feed.take_event(UpstreamEvent::Written(object("x", "c", 13)));
        feed.take_event(UpstreamEvent::Bookmark(Revision(20)));
        let expected = [("y".to_owned(), 11, true), ("x".to_owned(), 12, false)];
        assert_eq!(followed(&mut follower, &selector), expected);
        // The watch was lost: y is gone, z came, and w came before z.
        feed.take_list(Revision(30), vec![object("x", "c", 13), object("z", "a", 29), object("w", "a", 25)]);
        let expected = [("w".to_owned(), 25, true), ("z".to_owned(), 29, true), ("y".to_owned(), 30, false)];
        assert_eq!(followed(&mut follower, &selector), expected);
        assert!(matches!(feed.start(&selector, Revision(10)), Some(FeedStart::Resumed(_))));
        assert!(matches!(feed.start(&selector, Revision(9)), Some(FeedStart::Snapshot(..))));
        assert!(matches!(feed.start(&selector, Revision(31)), Some(FeedStart::Snapshot(..))));
    }

    #[test]
    fn a_site_that_is_cut_between_deletions_of_one_list_gets_the_rest_of_them() {
        let feed = ResourceFeed::new(ResourceName::new("", "v1", "nodes"));
        let all = Selector::parse(causeway_api::Kind::ESite, "", "").unwrap();
        let name = |number: u64| format!("node-{number:04}");
        feed.take_list(
            Revision(600),
            (0..600).map(|number| object(&name(number), "a", number + 1)).collect(),
        );
        let Some(FeedStart::Resumed(mut follower)) = feed.start(&all, Revision(600)) else { panic!() };
        // The watch was lost: 500 nodes were deleted meanwhile, one was written.
        let mut listed: Vec<_> = (500..600).map(|number| object(&name(number), "a", number + 1)).collect();
        listed[0] = object(&name(500), "b", 900);
        feed.take_list(Revision(1_101), listed);
        let mut context = Context::from_waker(std::task::Waker::noop());
        let (mut at, mut seen) = (Revision(600), Vec::new());
        while {
            let mut batch = Vec::new();
            let polled = follower.poll_entries(&mut context, 256, 256 << 10, &mut batch);
            at = batch.last().map_or(at, |change| change.revision);
            seen.extend(batch);
            polled == std::task::Poll::Ready(FollowResult::Some)
        } {
            // Cut after every batch; the site names the revision of its copy.
            let Some(FeedStart::Resumed(resumed)) = feed.start(&all, at) else { panic!() };
            follower = resumed;
        }
        assert_eq!(seen.iter().filter(|change| change.now.is_none()).count(), 500);
        assert_eq!(seen.len(), 501);
        assert!(seen.is_sorted_by(|one, next| one.revision < next.revision));
    }
}
