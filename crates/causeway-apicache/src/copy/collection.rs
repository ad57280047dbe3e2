//! One subscription at the edge: its objects on disk, its revision, its newest changes, and its watchers.
//!
//! Changes are published after they are on disk, in order. The history in memory serves watchers that resume, and lists
//! at an earlier revision: changes are undone from the newest back.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use causeway_api::selector::Selector;
use causeway_api::{Revision, Status};
use causeway_daemon::sync::MutexExt;
use causeway_watch::{ChangeSignal, CollectionReaders, ObjectChange};
use tokio::sync::{mpsc, watch};

use super::local::{LocalObjects, counts};
use super::source::CollectionSource;
use super::tables::{self, AppliedChange, CopyStats};
use super::{CopyDatabase, CopyError, DiskShare};
use crate::facets::ObjectFacets;
use crate::kube_object::KubeObject;
use crate::resource::{ResourceDescription, SubscriptionScope};
use crate::sync::deletions::deletion_revisions;
use crate::sync::wire::ChangeEntry;

/// The state of one subscription.
pub struct Collection {
    pub scope: SubscriptionScope,
    pub id: i64,
    resource: String,
    database: CopyDatabase,
    description: ArcSwapOption<ResourceDescription>,
    /// The revision that watchers have been told. 0: not complete.
    revision: watch::Sender<Revision>,
    history: Mutex<ChangeHistory>,
    readers: std::sync::OnceLock<CollectionReaders<CollectionSource>>,
    /// Unix seconds of the last use by a client, to be shown.
    pub used: AtomicI64,
    /// The same by a clock that is never set.
    used_at: Mutex<Instant>,
    pub watchers: AtomicUsize,
    /// The cloud or the configuration of the edge names the scope.
    pub is_pinned: AtomicBool,
    stats: Mutex<CopyStats>,
    /// True while a stream to the cloud keeps the copy current.
    is_live: watch::Sender<bool>,
    /// Changes of the site that the API server does not know; shared by all collections of the resource.
    local: Arc<LocalObjects>,
    /// Held while a change is put in force and published, so that watchers see changes in the order in which the copy took them.
    order: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct ChangeHistory {
    changes: VecDeque<(String, ObjectChange)>,
    bytes: usize,
    /// Every change later than this revision is here.
    floor: Revision,
    feeds: Vec<mpsc::Sender<ChangeSignal>>,
    /// The newest local change of each key, with the revision of the copy at that time. Readers that begin at that revision or before
    /// get it again.
    locals: BTreeMap<String, (Revision, ObjectChange)>,
}

const CHANGES_MAX: usize = 4_096;
// The pods of a site, its slices and its newest events; what is more is not sent again to readers that resume.
const LOCALS_MAX: usize = 1_000;
const CHANGES_BYTES_MAX: usize = 4 << 20;
// Messages that a reader may leave unread: it moves them into a ring without waiting for watchers.
const FEED_MESSAGES_MAX: usize = CHANGES_MAX + 1_024;

impl Collection {
    pub fn new(
        database: CopyDatabase,
        stored: tables::StoredSubscription,
        local: Arc<LocalObjects>,
    ) -> Arc<Collection> {
        let collection = Arc::new(Collection {
            resource: stored.scope.resource.to_string(),
            scope: stored.scope,
            id: stored.id,
            database,
            description: ArcSwapOption::from(stored.description.map(Arc::new)),
            revision: watch::Sender::new(stored.revision),
            history: Mutex::new(ChangeHistory { floor: stored.revision, ..ChangeHistory::default() }),
            readers: std::sync::OnceLock::new(),
            used: AtomicI64::new(unix_now()),
            used_at: Mutex::new(Instant::now()),
            watchers: AtomicUsize::new(0),
            is_pinned: AtomicBool::new(false),
            stats: Mutex::new(stored.stats),
            is_live: watch::Sender::new(false),
            local,
            order: tokio::sync::Mutex::default(),
        });
        let source = CollectionSource(Arc::downgrade(&collection));
        let _ = collection.readers.set(CollectionReaders::new(source));
        collection
    }

    pub fn description(&self) -> Option<Arc<ResourceDescription>> {
        self.description.load_full()
    }

    pub fn revision(&self) -> Revision {
        *self.revision.borrow()
    }

    pub fn revisions(&self) -> watch::Receiver<Revision> {
        self.revision.subscribe()
    }

    /// Returns true if the copy is complete at some revision.
    pub fn is_complete(&self) -> bool {
        self.revision().0 > 0 && self.description.load().is_some()
    }

    pub fn is_live(&self) -> bool {
        *self.is_live.borrow()
    }

    /// Waits until the copy is current, for a bounded time.
    pub async fn wait_live(&self, time: std::time::Duration) {
        let mut is_live = self.is_live.subscribe();
        let _ = tokio::time::timeout(time, is_live.wait_for(|is_live| *is_live)).await;
    }

    /// Waits until the copy has reached a revision, for a bounded time.
    pub async fn wait_revision(&self, wanted: Revision, time: std::time::Duration) -> bool {
        let mut revisions = self.revisions();
        let reached = tokio::time::timeout(time, revisions.wait_for(|revision| *revision >= wanted)).await;
        matches!(reached, Ok(Ok(_)))
    }

    pub fn set_live(&self, is_live: bool) {
        self.is_live.send_replace(is_live);
    }

    pub fn touch(&self) {
        self.used.store(unix_now(), Ordering::Relaxed);
        *self.used_at.lock_ignoring_poison() = Instant::now();
    }

    /// The time since the last use by a client.
    pub fn unused_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(*self.used_at.lock_ignoring_poison())
    }

    fn disk_share(&self) -> DiskShare {
        match self.is_complete() || self.is_pinned.load(Ordering::Relaxed) {
            true => DiskShare::Kept,
            false => DiskShare::New,
        }
    }

    /// Takes back what has come of a comparison.
    pub async fn drop_staged(&self) -> Result<(), CopyError> {
        let id = self.id;
        self.database.write(move |connection| tables::drop_staged(connection, id)).await
    }

    pub(crate) fn readers(&self) -> &CollectionReaders<CollectionSource> {
        self.readers.get_or_init(|| CollectionReaders::new(CollectionSource(std::sync::Weak::new())))
    }

    pub async fn describe(&self, description: ResourceDescription) -> Result<(), CopyError> {
        let (id, stored) = (self.id, description.clone());
        self.database.write(move |connection| tables::describe(connection, id, &stored)).await?;
        self.description.store(Some(Arc::new(description)));
        Ok(())
    }

    pub async fn entries(&self) -> Result<Vec<(String, String, Revision)>, CopyError> {
        let id = self.id;
        self.database.read(move |connection| tables::entries(connection, id)).await
    }

    pub async fn stage(&self, changes: Vec<ChangeEntry>) -> Result<(), CopyError> {
        let (id, resource) = (self.id, self.resource.clone());
        let share = self.disk_share();
        self.database
            .write_within(share, move |connection| tables::stage(connection, id, &resource, &changes))
            .await
    }

    /// Puts changes in force, on disk first, then for watchers.
    pub async fn complete(&self, changes: Vec<ChangeEntry>, revision: Revision) -> Result<(), CopyError> {
        let (id, resource) = (self.id, self.resource.clone());
        let _ordered = self.order.lock().await;
        let is_smaller = changes.iter().all(|change| change.deleted);
        let work = move |connection: &rusqlite::Connection| {
            tables::complete(connection, id, &resource, &changes, (revision, unix_now()))
        };
        let applied = match is_smaller {
            // Deletions make room.
            true => self.database.write(work).await?,
            false => self.database.write_within(self.disk_share(), work).await?,
        };
        self.count(&applied);
        self.publish(applied, revision);
        Ok(())
    }

    pub async fn advance(&self, revision: Revision) -> Result<(), CopyError> {
        let id = self.id;
        self.database.write(move |connection| tables::advance(connection, id, revision, unix_now())).await?;
        self.count(&[]);
        self.publish(Vec::new(), revision);
        Ok(())
    }

    fn publish(&self, applied: Vec<AppliedChange>, revision: Revision) {
        let mut history = self.lock();
        // The first complete state is no change for watchers: they begin with it. So is a state that leads back.
        let is_first = self.revision().0 == 0 || revision < self.revision();
        if is_first {
            *history = ChangeHistory { floor: revision, ..ChangeHistory::default() };
        } else {
            for (key, change) in object_changes(applied, self.revision()) {
                history.push(key, change);
            }
        }
        history.send(&ChangeSignal::Progress(revision));
        self.revision.send_replace(revision);
    }

    fn lock(&self) -> MutexGuard<'_, ChangeHistory> {
        self.history.lock_ignoring_poison()
    }

    /// Returns the changes after a revision, and all that follow; `None` when some of them are gone.
    pub(crate) fn follow(&self, after: Revision) -> Option<mpsc::Receiver<ChangeSignal>> {
        let mut history = self.lock();
        if after < history.floor {
            return None;
        }
        let (sender, receiver) = mpsc::channel(FEED_MESSAGES_MAX);
        let missed = history.changes.iter().filter(|(_, change)| change.revision > after);
        for (_, change) in missed {
            sender.try_send(ChangeSignal::Change(change.clone())).ok()?;
        }
        let local = history.locals.iter().filter(|(_, (at, _))| *at >= after);
        for (key, (at, change)) in local {
            let (at, key, change) = (*at, key.clone(), change.clone());
            sender.try_send(ChangeSignal::Local { at, key, change }).ok()?;
        }
        sender.try_send(ChangeSignal::Progress(self.revision())).ok()?;
        history.feeds.push(sender);
        Some(receiver)
    }

    /// Reads the objects at the newest revision, as clients of the site see them.
    pub async fn list(&self, prefix: &str) -> Result<(Revision, Vec<KubeObject>), CopyError> {
        let (revision, listed) = self.list_copied(prefix).await?;
        Ok((revision, self.local.lay_over(prefix, listed, |object| self.selects(object))))
    }

    /// Reads the objects as the API server has them.
    pub async fn list_copied(&self, prefix: &str) -> Result<(Revision, Vec<KubeObject>), CopyError> {
        let (id, prefix) = (self.id, prefix.to_owned());
        self.database.read(move |connection| tables::list(connection, id, &prefix)).await
    }

    /// Reads an object as clients of the site see it.
    pub async fn get(&self, key: &str) -> Result<(Revision, Option<KubeObject>), CopyError> {
        let (revision, same) = self.get_copied(key).await?;
        let Some(local) = self.local.find(key) else { return Ok((revision, same)) };
        let base = match &local.stands_on {
            Some((base, _)) if base != key => self.get_copied(base).await?.1,
            _ => same.clone(),
        };
        match counts(&local, base.as_ref(), same.as_ref(), |object| self.selects(object)) {
            true => Ok((revision, local.object)),
            false => Ok((revision, same)),
        }
    }

    /// Reads an object as the API server has it.
    pub async fn get_copied(&self, key: &str) -> Result<(Revision, Option<KubeObject>), CopyError> {
        let (id, key) = (self.id, key.to_owned());
        self.database.read(move |connection| tables::get(connection, id, &key)).await
    }

    /// Returns true if an object of the resource is in the scope of this collection.
    fn selects(&self, object: &KubeObject) -> bool {
        let scope = &self.scope;
        let is_inside = scope.namespace.is_empty()
            || object.key.split_once('/').is_some_and(|(namespace, _)| namespace == scope.namespace);
        let Some(description) = self.description() else { return false };
        let selector =
            Selector::parse(description.definition(), &scope.label_selector, &scope.field_selector);
        let facets = || ObjectFacets::read(&scope.resource, &object.body);
        is_inside && selector.is_ok_and(|selector| selector.is_empty() || selector.matches(&facets()))
    }

    /// Begins a local change: no other change is put in force until the guard is dropped.
    pub(crate) async fn order(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.order.lock().await
    }

    /// Tells watchers of a local change. The caller holds `order`.
    pub(crate) fn publish_local(&self, key: &str, before: Option<&KubeObject>, now: Option<&KubeObject>) {
        if before == now || !self.is_complete() {
            return;
        }
        let at = self.revision();
        let revision = now.map_or(at, |now| now.revision);
        let created = if before.is_none() { revision } else { Revision(u64::MAX) };
        let (value, previous) = (now.map(KubeObject::pack), before.map(KubeObject::pack));
        let change = ObjectChange { revision, value, previous, created };
        let mut history = self.lock();
        history.send(&ChangeSignal::Local { at, key: key.to_owned(), change: change.clone() });
        history.send(&ChangeSignal::Progress(at));
        let floor = history.floor;
        history.locals.retain(|_, (at, _)| *at >= floor);
        if history.locals.len() < LOCALS_MAX {
            history.locals.insert(key.to_owned(), (at, change));
        }
    }

    /// Remembers the local objects of a start: a reader that resumes gets them.
    pub(crate) fn remember_local(&self, key: &str, now: &KubeObject) {
        let (at, revision) = (self.revision(), now.revision);
        let change = ObjectChange { revision, value: Some(now.pack()), previous: None, created: revision };
        self.lock().locals.insert(key.to_owned(), (at, change));
    }

    pub fn stats(&self) -> CopyStats {
        *self.stats.lock_ignoring_poison()
    }

    fn count(&self, applied: &[AppliedChange]) {
        let mut stats = self.stats.lock_ignoring_poison();
        let size =
            |side: &Option<KubeObject>| side.as_ref().map_or((0, 0), |object| (1, object.body.len() as u64));
        for change in applied {
            let (before, now) = (size(&change.before), size(&change.now));
            stats.objects = (stats.objects + now.0).saturating_sub(before.0);
            stats.bytes = (stats.bytes + now.1).saturating_sub(before.1);
        }
        stats.synced = unix_now();
    }

    /// Reads the objects as they were at `revision`. 410 when the changes since then are gone.
    pub async fn list_at(&self, prefix: &str, revision: Revision) -> Result<Vec<KubeObject>, ListError> {
        let (read_at, objects) = self.list_copied(prefix).await?;
        // The changes up to the state that was read are published a moment after they are on disk.
        let mut revisions = self.revisions();
        let _ = revisions.wait_for(|published| *published >= read_at).await;
        let history = self.lock();
        if revision < history.floor {
            let message = format!(
                "The provided continue parameter or resource version {revision} is too old to display a consistent list result."
            );
            return Err(ListError::Refused(Box::new(Status::expired(message))));
        }
        let mut all: BTreeMap<String, KubeObject> =
            objects.into_iter().map(|object| (object.key.clone(), object)).collect();
        let later = history.changes.iter().rev().take_while(|(_, change)| change.revision > revision);
        for (key, change) in
            later.filter(|(key, change)| key.starts_with(prefix) && change.revision <= read_at)
        {
            match change.previous.as_ref() {
                Some(previous) => drop(all.insert(key.clone(), unpacked(key, previous))),
                None => drop(all.remove(key)),
            }
        }
        let listed = all.into_values().collect();
        Ok(self.local.lay_over(prefix, listed, |object| self.selects(object)))
    }
}

/// A list that fails, or is refused.
#[derive(Debug, thiserror::Error)]
pub enum ListError {
    #[error(transparent)]
    Copy(#[from] CopyError),
    #[error("{}", .0.message)]
    Refused(Box<Status>),
}

fn unpacked(key: &str, packed: &bytes::Bytes) -> KubeObject {
    let (body, cells) = crate::kube_object::unpack(packed);
    let (body, cells) = (packed.slice_ref(body), packed.slice_ref(cells));
    // Lists show the body as it is; the revision and UID stand in it.
    KubeObject { key: key.to_owned(), uid: String::new(), revision: Revision(0), body, cells }
}

/// The changes after the revision `after` as watchers see them. An object that was replaced by another one of the same name is deleted first,
/// at a revision of its own: a watcher that resumes between the two events gets the second one.
fn object_changes(applied: Vec<AppliedChange>, after: Revision) -> Vec<(String, ObjectChange)> {
    let mut used: BTreeSet<Revision> = applied.iter().map(|change| change.revision).collect();
    let mut changes = Vec::with_capacity(applied.len());
    for AppliedChange { revision, before, now } in applied {
        let key = now.as_ref().or(before.as_ref()).map(|object| object.key.clone()).unwrap_or_default();
        let is_replaced = matches!((&before, &now), (Some(before), Some(now)) if before.uid != now.uid);
        let (value, mut previous) =
            (now.as_ref().map(KubeObject::pack), before.as_ref().map(KubeObject::pack));
        if is_replaced {
            let until = Revision(revision.0.saturating_sub(1));
            let at = deletion_revisions((after, until), &used, 1).into_iter().max().unwrap_or(until);
            used.insert(at);
            let previous = previous.take();
            changes.push((
                key.clone(),
                ObjectChange { revision: at, value: None, previous, created: Revision(0) },
            ));
        }
        let created = if previous.is_none() { revision } else { Revision(0) };
        changes.push((key, ObjectChange { revision, value, previous, created }));
    }
    changes.sort_by_key(|(_, change)| change.revision);
    changes
}

impl ChangeHistory {
    fn push(&mut self, key: String, change: ObjectChange) {
        self.send(&ChangeSignal::Change(change.clone()));
        self.bytes += change_bytes(&change);
        self.changes.push_back((key, change));
        while self.changes.len() > CHANGES_MAX || self.bytes > CHANGES_BYTES_MAX && self.changes.len() > 1 {
            let Some((_, oldest)) = self.changes.pop_front() else { break };
            self.bytes -= change_bytes(&oldest);
            self.floor = oldest.revision;
        }
    }

    /// A reader that does not read is dropped; its watchers resume with a new one.
    fn send(&mut self, signal: &ChangeSignal) {
        self.feeds.retain(|feed| feed.try_send(signal.clone()).is_ok());
    }
}

fn change_bytes(change: &ObjectChange) -> usize {
    let size = |side: &Option<bytes::Bytes>| side.as_ref().map_or(0, bytes::Bytes::len);
    size(&change.value) + size(&change.previous) + 128
}

pub fn unix_now() -> i64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.ok().and_then(|now| i64::try_from(now.as_secs()).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::resource::ResourceName;

    fn change(key: &str, uid: &str, revision: u64, deleted: bool) -> ChangeEntry {
        let body = if deleted { Bytes::new() } else { Bytes::from(format!("{key}@{revision}")) };
        ChangeEntry { key: key.into(), uid: uid.into(), revision, deleted, body, ..ChangeEntry::default() }
    }

    async fn collection(folder: &std::path::Path) -> Arc<Collection> {
        let database = CopyDatabase::open(&folder.join("copy.db")).unwrap();
        let scope = SubscriptionScope::all(ResourceName::new("", "v1", "things"));
        let created = scope.clone();
        let id = database
            .write(move |connection| tables::create_subscription(connection, &created, ""))
            .await
            .unwrap();
        let (revision, stats) = (Revision(0), CopyStats::default());
        let stored =
            tables::StoredSubscription { id, scope, description: None, revision, node: String::new(), stats };
        Collection::new(database, stored, Arc::default())
    }

    #[tokio::test]
    async fn a_list_at_an_earlier_revision_undoes_later_changes() {
        let folder = tempfile::tempdir().unwrap();
        let collection = collection(folder.path()).await;
        collection
            .complete(vec![change("a", "1", 3, false), change("b", "1", 4, false)], Revision(10))
            .await
            .unwrap();
        collection.complete(vec![change("a", "1", 11, false)], Revision(11)).await.unwrap();
        collection
            .complete(vec![change("b", "1", 12, true), change("c", "1", 13, false)], Revision(13))
            .await
            .unwrap();
        let at = async |revision: u64| {
            let listed = collection.list_at("", Revision(revision)).await.map_err(|_| ())?;
            Ok(listed
                .iter()
                .map(|object| String::from_utf8_lossy(&object.body).into_owned())
                .collect::<Vec<_>>())
        };
        assert_eq!(at(13).await, Ok(vec!["a@11".to_owned(), "c@13".to_owned()]));
        assert_eq!(at(12).await, Ok(vec!["a@11".to_owned()]));
        assert_eq!(at(11).await, Ok(vec!["a@11".to_owned(), "b@4".to_owned()]));
        assert_eq!(at(10).await, Ok(vec!["a@3".to_owned(), "b@4".to_owned()]));
        assert_eq!(at(9).await, Err(()));
        assert_eq!(collection.stats().objects, 2);
    }

    #[tokio::test]
    async fn a_reader_gets_what_it_missed_then_every_change_once() {
        let folder = tempfile::tempdir().unwrap();
        let collection = collection(folder.path()).await;
        collection.complete(vec![change("a", "1", 3, false)], Revision(10)).await.unwrap();
        collection.complete(vec![change("a", "1", 11, false)], Revision(11)).await.unwrap();
        let mut feed = collection.follow(Revision(10)).unwrap();
        assert!(collection.follow(Revision(9)).is_none());
        // Another object of the same name: the old one is deleted first, at a revision of its own.
        let changes = vec![change("b", "1", 14, false), change("a", "2", 15, false)];
        collection.complete(changes, Revision(15)).await.unwrap();
        collection.advance(Revision(20)).await.unwrap();
        let mut seen = Vec::new();
        while let Ok(signal) = feed.try_recv() {
            match signal {
                ChangeSignal::Change(change) => {
                    seen.push((change.revision.0, change.previous.is_some(), change.value.is_some()));
                }
                ChangeSignal::Progress(revision) => seen.push((revision.0, false, false)),
                ChangeSignal::Local { .. } => unreachable!("nothing is local"),
            }
        }
        let expected = [
            (11, true, true),
            (11, false, false),
            (13, true, false),
            (14, false, true),
            (15, false, true),
            (15, false, false),
            (20, false, false),
        ];
        assert_eq!(seen, expected);
    }

    #[tokio::test]
    async fn a_local_change_is_seen_until_the_api_server_has_a_newer_object() {
        let folder = tempfile::tempdir().unwrap();
        let collection = collection(folder.path()).await;
        let description = ResourceDescription {
            name: collection.scope.resource.clone(),
            kind: "Thing".into(),
            list_kind: "ThingList".into(),
            is_namespaced: false,
            columns: "[]".into(),
        };
        collection.describe(description).await.unwrap();
        collection.complete(vec![change("a", "1", 3, false)], Revision(10)).await.unwrap();
        let (_, before) = collection.get("a").await.unwrap();
        let mine = before.clone().map(|before| KubeObject { body: Bytes::from_static(b"mine"), ..before });
        let stands_on = Some(("a".to_owned(), Revision(3)));
        collection.local.set("a", Some(super::super::local::LocalObject { stands_on, object: mine.clone() }));
        collection.publish_local("a", before.as_ref(), mine.as_ref());
        assert_eq!(collection.get("a").await.unwrap(), (Revision(10), mine.clone()));
        assert_eq!(collection.list("").await.unwrap().1, [mine.clone().unwrap()]);
        assert_eq!(collection.get_copied("a").await.unwrap().1, before, "the copy itself is as before");
        // A reader that begins at this revision gets the change, one that begins later does not.
        let local = |after: u64| {
            let mut feed = collection.follow(Revision(after))?;
            let mut seen = Vec::new();
            while let Ok(signal) = feed.try_recv() {
                if let ChangeSignal::Local { at, change, .. } = signal {
                    seen.push((at.0, change.revision.0, change.value));
                }
            }
            Some(seen)
        };
        let packed = mine.as_ref().map(KubeObject::pack);
        assert_eq!(local(10), Some(vec![(10, 3, packed)]));
        assert_eq!(local(11), Some(vec![]));
        collection.complete(vec![change("a", "1", 11, false)], Revision(11)).await.unwrap();
        assert_eq!(collection.get("a").await.unwrap().1.unwrap().revision, Revision(11));
    }
}
