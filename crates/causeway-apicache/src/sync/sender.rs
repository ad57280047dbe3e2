//! The cloud's end of a subscription: decides which messages bring the copy of a site to the state of the cluster.
//!
//! Input: the messages of the edge, the objects of the subscription at one revision (`SyncTarget`), then their changes in
//! order. Output: messages. At most `UNACKNOWLEDGED_BYTES_MAX` wait for an acknowledgement, so a slow edge holds little
//! memory here; its driver stops reading changes until there is room.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use causeway_api::Revision;

use super::deletions::deletion_revisions;
use super::digest::{bucket_count, bucket_digests, bucket_of, entry_digest};
use super::wire::{
    Accepted, BucketKeys, ChangeBatch, ChangeEntry, CloudSyncBody, DigestsWanted, EdgeSyncBody, KeysWanted,
    Subscribe, SyncProgress,
};
use crate::kube_object::KubeObject;

/// The objects of a subscription at one revision.
#[derive(Clone, Debug, Default)]
pub struct SyncTarget {
    pub revision: Revision,
    pub objects: BTreeMap<String, Arc<KubeObject>>,
}

/// One change of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopedChange {
    pub key: String,
    pub uid: String,
    pub revision: Revision,
    /// `None`: deleted, or no longer selected.
    pub object: Option<Arc<KubeObject>>,
    /// The difference to the object that the site has at this revision, when it is smaller.
    pub delta: Option<(Revision, Bytes)>,
}

/// A message that the protocol does not allow now.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the edge sent {0} where it is not expected")]
pub struct UnexpectedMessage(&'static str);

pub struct SyncSender {
    stage: SenderStage,
    outgoing: VecDeque<CloudSyncBody>,
    sequence: u64,
    acknowledged: u64,
    /// Batches that wait for their acknowledgement, with their sizes.
    unacknowledged: VecDeque<(u64, usize)>,
    unacknowledged_bytes: usize,
    /// The revision that the edge has, or will have when all messages have arrived.
    sent_revision: Revision,
    /// The revision of the copy when the session began.
    copy_revision: Revision,
}

enum SenderStage {
    Digests {
        target: SyncTarget,
        buckets: u32,
    },
    Keys {
        target: SyncTarget,
        buckets: u32,
        wanted: BTreeSet<u32>,
        entries: BTreeMap<String, u64>,
    },
    /// The difference, in the order of revisions.
    Difference {
        changes: VecDeque<ChangeEntry>,
        revision: Revision,
    },
    Live,
}

/// Bytes that may wait for an acknowledgement. Two of a link's stream windows: the link is kept busy.
pub const UNACKNOWLEDGED_BYTES_MAX: usize = 2 << 20;
// Changes that are sent together; a batch is one transaction at the edge.
const BATCH_BYTES: usize = 256 << 10;
const BATCH_CHANGES: usize = 512;
// Entries of a copy that an edge may describe: more than any site holds of one resource.
const ENTRIES_MAX: usize = 1_000_000;
// A namespace, a name, and what is between them.
const KEY_BYTES_MAX: usize = 600;

// An object in the map of the target and in the difference, beside its body, which all subscriptions share.
const OBJECT_OVERHEAD_BYTES: usize = 256;

impl SyncTarget {
    /// The memory that the target takes until the copy has all of it.
    pub fn held_bytes(&self) -> usize {
        self.objects
            .iter()
            .map(|(key, object)| 2 * key.len() + object.uid.len() + OBJECT_OVERHEAD_BYTES)
            .sum()
    }
}

impl SyncSender {
    /// Continues after the revision of the copy; its changes are offered next.
    pub fn resume(description: Bytes, revision: Revision) -> SyncSender {
        SyncSender::new(description, true, SenderStage::Live, (revision, revision))
    }

    /// Brings the copy that `subscribe` describes to `target`.
    pub fn compare(description: Bytes, subscribe: &Subscribe, target: SyncTarget) -> SyncSender {
        let revisions = (Revision(subscribe.revision), target.revision);
        if subscribe.objects == 0 {
            let stage = difference(target, Revision(0), None);
            return SyncSender::new(description, false, stage, revisions);
        }
        let buckets = bucket_count(subscribe.objects);
        let mut sender =
            SyncSender::new(description, false, SenderStage::Digests { target, buckets }, revisions);
        sender.outgoing.push_back(CloudSyncBody::DigestsWanted(DigestsWanted { buckets }));
        sender
    }

    fn new(
        description: Bytes,
        resumed: bool,
        stage: SenderStage,
        (copy_revision, sent_revision): (Revision, Revision),
    ) -> SyncSender {
        let accepted = CloudSyncBody::Accepted(Accepted { description, resumed });
        SyncSender {
            stage,
            outgoing: VecDeque::from([accepted]),
            sequence: 0,
            acknowledged: 0,
            unacknowledged: VecDeque::new(),
            unacknowledged_bytes: 0,
            sent_revision,
            copy_revision,
        }
    }

    pub fn handle(&mut self, message: EdgeSyncBody) -> Result<(), UnexpectedMessage> {
        match message {
            EdgeSyncBody::Subscribe(_) => Err(UnexpectedMessage("a second subscription")),
            EdgeSyncBody::Digests(digests) => self.handle_digests(&digests.digests),
            EdgeSyncBody::Keys(keys) => self.handle_keys(keys),
            EdgeSyncBody::Ack(ack) if ack.sequence > self.sequence => {
                Err(UnexpectedMessage("an acknowledgement of the future"))
            }
            EdgeSyncBody::Ack(ack) => {
                self.acknowledged = self.acknowledged.max(ack.sequence);
                while let Some((_, bytes)) =
                    self.unacknowledged.pop_front_if(|(sequence, _)| *sequence <= self.acknowledged)
                {
                    self.unacknowledged_bytes -= bytes;
                }
                Ok(())
            }
        }
    }

    fn handle_digests(&mut self, digests: &[u64]) -> Result<(), UnexpectedMessage> {
        let SenderStage::Digests { target, buckets } = &mut self.stage else {
            return Err(UnexpectedMessage("digests"));
        };
        let (target, of) = (std::mem::take(target), *buckets);
        if digests.len() != of as usize {
            return Err(UnexpectedMessage("another number of digests"));
        }
        let own = bucket_digests(entries(&target), of);
        let wanted: BTreeSet<u32> =
            (0..of).filter(|&bucket| own[bucket as usize] != digests[bucket as usize]).collect();
        let buckets = wanted.iter().copied().collect();
        self.outgoing.push_back(CloudSyncBody::KeysWanted(KeysWanted { buckets, of }));
        self.stage = match wanted.is_empty() {
            true => difference(target, self.copy_revision, Some((&wanted, of, &BTreeMap::new()))),
            false => SenderStage::Keys { target, buckets: of, wanted, entries: BTreeMap::new() },
        };
        Ok(())
    }

    fn handle_keys(&mut self, keys: BucketKeys) -> Result<(), UnexpectedMessage> {
        let SenderStage::Keys { target, buckets, wanted, entries } = &mut self.stage else {
            return Err(UnexpectedMessage("keys"));
        };
        if entries.len() + keys.entries.len() > ENTRIES_MAX {
            return Err(UnexpectedMessage("more keys than a copy may have"));
        }
        if keys.entries.iter().any(|entry| entry.key.len() > KEY_BYTES_MAX) {
            return Err(UnexpectedMessage("a key that no object can have"));
        }
        entries.extend(keys.entries.into_iter().map(|entry| (entry.key, entry.digest)));
        if !keys.more {
            let (target, of) = (std::mem::take(target), *buckets);
            let (wanted, entries) = (std::mem::take(wanted), std::mem::take(entries));
            self.stage = difference(target, self.copy_revision, Some((&wanted, of, &entries)));
        }
        Ok(())
    }

    /// Returns true while the entries of a copy are held.
    pub fn is_described(&self) -> bool {
        matches!(self.stage, SenderStage::Keys { .. })
    }

    /// Returns true while objects of the cluster are held for the copy.
    pub fn has_target(&self) -> bool {
        !matches!(self.stage, SenderStage::Live)
    }

    /// Returns true if live changes can be offered now.
    pub fn has_room(&self) -> bool {
        matches!(self.stage, SenderStage::Live) && self.unacknowledged_bytes < UNACKNOWLEDGED_BYTES_MAX
    }

    /// Sends live changes. `revision` is complete when they are applied.
    pub fn offer(&mut self, changes: Vec<ScopedChange>, revision: Revision) {
        debug_assert!(matches!(self.stage, SenderStage::Live));
        if !changes.is_empty() {
            let entries = changes.into_iter().map(ChangeEntry::from).collect();
            self.push_batch(entries, revision);
        }
        self.sent_revision = self.sent_revision.max(revision);
    }

    /// Tells the edge that there was no change up to `revision`.
    pub fn progress(&mut self, revision: Revision) {
        if matches!(self.stage, SenderStage::Live) && revision > self.sent_revision {
            self.sent_revision = revision;
            self.outgoing.push_back(CloudSyncBody::Progress(SyncProgress { revision: revision.0 }));
        }
    }

    /// The next message to send; `None` when the edge has to answer first, or nothing changed.
    pub fn next_message(&mut self) -> Option<CloudSyncBody> {
        if self.outgoing.is_empty() && self.unacknowledged_bytes < UNACKNOWLEDGED_BYTES_MAX {
            self.next_difference();
        }
        self.outgoing.pop_front()
    }

    fn next_difference(&mut self) {
        let SenderStage::Difference { changes, revision } = &mut self.stage else { return };
        let revision = *revision;
        let (mut batch, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH_BYTES
            && batch.len() < BATCH_CHANGES
            && let Some(change) = changes.pop_front()
        {
            bytes += entry_bytes(&change);
            batch.push(change);
        }
        let is_last = changes.is_empty();
        if is_last {
            self.stage = SenderStage::Live;
        }
        self.push_batch(batch, if is_last { revision } else { Revision(0) });
    }

    fn push_batch(&mut self, changes: Vec<ChangeEntry>, complete_at: Revision) {
        self.sequence += 1;
        let bytes = changes.iter().map(entry_bytes).sum();
        self.unacknowledged.push_back((self.sequence, bytes));
        self.unacknowledged_bytes += bytes;
        let batch = ChangeBatch { changes, sequence: self.sequence, complete_at: complete_at.0 };
        self.outgoing.push_back(CloudSyncBody::Changes(batch));
    }
}

fn entries(target: &SyncTarget) -> impl Iterator<Item = (&str, &str, Revision)> {
    target.objects.iter().map(|(key, object)| (key.as_str(), object.uid.as_str(), object.revision))
}

// Around the body: key, UID, numbers, and what an allocator adds.
const ENTRY_OVERHEAD_BYTES: usize = 128;

fn entry_bytes(entry: &ChangeEntry) -> usize {
    entry.body.len() + entry.cells.len() + entry.key.len() + ENTRY_OVERHEAD_BYTES
}

/// Returns the changes that lead from a copy at the revision `after` to `target`. `copy` has the buckets that differ, and the entries of the
/// copy in them; `None` is an empty copy. Changes are in the order of their revisions.
fn difference(
    target: SyncTarget,
    after: Revision,
    copy: Option<(&BTreeSet<u32>, u32, &BTreeMap<String, u64>)>,
) -> SenderStage {
    let is_new = |key: &str, object: &KubeObject| match copy {
        None => true,
        Some((wanted, of, held)) => {
            wanted.contains(&bucket_of(key, of))
                && held.get(key) != Some(&entry_digest(key, &object.uid, object.revision))
        }
    };
    let changed = target.objects.iter().filter(|(key, object)| is_new(key, object)).map(|(_, object)| object);
    let mut changes: Vec<ChangeEntry> = changed
        .map(|object| {
            let (key, uid, revision) = (object.key.clone(), object.uid.clone(), object.revision);
            ScopedChange { key, uid, revision, object: Some(object.clone()), delta: None }.into()
        })
        .collect();
    let held = copy.into_iter().flat_map(|(_, _, held)| held.keys());
    let gone: Vec<&String> = held.filter(|key| !target.objects.contains_key(*key)).collect();
    let used = changes.iter().map(|change| Revision(change.revision)).collect();
    let revisions = deletion_revisions((after, target.revision), &used, gone.len());
    changes.extend(gone.into_iter().zip(revisions).map(|(key, revision)| ChangeEntry {
        key: key.clone(),
        revision: revision.0,
        deleted: true,
        ..ChangeEntry::default()
    }));
    changes.sort_by_key(|change| change.revision);
    SenderStage::Difference { changes: changes.into(), revision: target.revision }
}

impl From<ScopedChange> for ChangeEntry {
    fn from(change: ScopedChange) -> ChangeEntry {
        let (base_revision, body, cells) = match (change.delta, &change.object) {
            (Some((base, delta)), Some(_)) => (base.0, delta, Bytes::new()),
            (None, Some(object)) => (0, object.body.clone(), object.cells.clone()),
            (_, None) => (0, Bytes::new(), Bytes::new()),
        };
        ChangeEntry {
            key: change.key,
            uid: change.uid,
            revision: change.revision.0,
            deleted: change.object.is_none(),
            body,
            cells,
            base_revision,
        }
    }
}
