//! The edge's end of a subscription: decides what to write and what to answer.
//!
//! Input: the messages of the cloud, and the entries of the copy when they are asked for. Output: one `SyncStep` per
//! message. The driver does the steps in order and acknowledges a batch after it is on disk.

use std::collections::BTreeSet;

use causeway_api::{Revision, Status};

use super::digest::{BUCKETS_MAX, bucket_digests, bucket_of, entry_digest};
use super::wire::{
    BucketDigests, BucketKeys, ChangeAck, ChangeEntry, CloudSyncBody, EdgeSyncBody, KeyEntry,
    PROTOCOL_VERSION, Subscribe,
};
use crate::resource::{ResourceDescription, SubscriptionScope};

/// The work that a message asks for.
#[derive(Debug, PartialEq)]
pub enum SyncStep {
    /// The cloud serves the subscription.
    Describe(ResourceDescription),
    /// Answer with the digests of the copy (`digest_answer`).
    SendDigests { buckets: u32 },
    /// Answer with the keys in these buckets (`key_answers`).
    SendKeys { wanted: BTreeSet<u32>, of: u32 },
    /// Keep changes aside: the comparison is not complete.
    Stage { changes: Vec<ChangeEntry>, sequence: u64 },
    /// Put the staged changes and these in force at once, then the copy is complete at `revision`.
    Complete { changes: Vec<ChangeEntry>, sequence: u64, revision: Revision },
    /// There was no change up to `revision`.
    Advance(Revision),
    /// The cloud does not serve the subscription.
    Refused(Status),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SyncViolation {
    #[error("the cloud sent {0} where it is not expected")]
    Unexpected(&'static str),
    #[error("the cloud sent a description that cannot be read")]
    Description,
    #[error("the cloud sent changes out of order")]
    Order,
}

/// The state of one session of a subscription.
#[derive(Debug, Default)]
pub struct SyncReceiver {
    stage: ReceiverStage,
    sequence: u64,
    /// The revision at which the copy is complete.
    revision: Revision,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum ReceiverStage {
    #[default]
    Subscribed,
    Comparing,
    Live,
}

// Entries of one message of keys.
const KEYS_MAX: usize = 4_096;

impl SyncReceiver {
    /// Begins a session for a copy that is complete at `revision`; 0: there is none.
    pub fn new(revision: Revision) -> SyncReceiver {
        SyncReceiver { revision, ..SyncReceiver::default() }
    }

    /// Returns true when the copy follows the cluster.
    pub fn is_live(&self) -> bool {
        self.stage == ReceiverStage::Live
    }

    pub fn handle(&mut self, message: CloudSyncBody) -> Result<SyncStep, SyncViolation> {
        let is_begun = self.stage != ReceiverStage::Subscribed;
        match message {
            CloudSyncBody::Refused(refused) => {
                let code = u16::try_from(refused.code).unwrap_or(500);
                let status = Status::unavailable(refused.message, 1);
                Ok(SyncStep::Refused(Status { code, ..status }))
            }
            CloudSyncBody::Accepted(_) if is_begun => Err(SyncViolation::Unexpected("a second acceptance")),
            CloudSyncBody::Accepted(accepted) => {
                let description =
                    serde_json::from_slice(&accepted.description).map_err(|_| SyncViolation::Description)?;
                self.stage = if accepted.resumed { ReceiverStage::Live } else { ReceiverStage::Comparing };
                Ok(SyncStep::Describe(description))
            }
            _ if !is_begun => Err(SyncViolation::Unexpected("a message before its acceptance")),
            CloudSyncBody::DigestsWanted(wanted) if self.stage == ReceiverStage::Comparing => {
                Ok(SyncStep::SendDigests { buckets: wanted.buckets.clamp(1, BUCKETS_MAX) })
            }
            CloudSyncBody::KeysWanted(wanted) if self.stage == ReceiverStage::Comparing => {
                Ok(SyncStep::SendKeys {
                    wanted: wanted.buckets.into_iter().collect(),
                    of: wanted.of.clamp(1, BUCKETS_MAX),
                })
            }
            CloudSyncBody::DigestsWanted(_) | CloudSyncBody::KeysWanted(_) => {
                Err(SyncViolation::Unexpected("a comparison"))
            }
            CloudSyncBody::Progress(progress) if self.is_live() => {
                self.revision = self.revision.max(Revision(progress.revision));
                Ok(SyncStep::Advance(self.revision))
            }
            CloudSyncBody::Progress(_) => Err(SyncViolation::Unexpected("progress")),
            CloudSyncBody::Changes(batch) => {
                if batch.sequence != self.sequence + 1 {
                    return Err(SyncViolation::Order);
                }
                self.sequence = batch.sequence;
                match (batch.complete_at, self.is_live()) {
                    (0, true) => Err(SyncViolation::Unexpected("an open batch")),
                    (0, false) => Ok(SyncStep::Stage { changes: batch.changes, sequence: batch.sequence }),
                    (revision, is_live) => {
                        let revision = Revision(revision);
                        // Live changes are later than the copy; a comparison may lead back after a restore of etcd.
                        if is_live && (revision < self.revision || !is_ordered(&batch.changes, self.revision))
                        {
                            return Err(SyncViolation::Order);
                        }
                        (self.stage, self.revision) = (ReceiverStage::Live, revision);
                        Ok(SyncStep::Complete { changes: batch.changes, sequence: batch.sequence, revision })
                    }
                }
            }
        }
    }
}

fn is_ordered(changes: &[ChangeEntry], after: Revision) -> bool {
    let later = changes.iter().all(|change| change.revision > after.0);
    later && changes.is_sorted_by_key(|change| change.revision)
}

/// The first message of a session. The caller adds the credential.
pub fn subscribe(scope: &SubscriptionScope, revision: Revision, objects: u64) -> Subscribe {
    let resource = scope.resource.clone();
    Subscribe {
        protocol: PROTOCOL_VERSION,
        group: resource.group,
        version: resource.version,
        plural: resource.plural,
        namespace: scope.namespace.clone(),
        label_selector: scope.label_selector.clone(),
        field_selector: scope.field_selector.clone(),
        token: String::new(),
        node: String::new(),
        revision: revision.0,
        objects,
        deltas: false,
    }
}

/// The answer to `SyncStep::SendDigests`.
pub fn digest_answer(entries: &[(String, String, Revision)], buckets: u32) -> EdgeSyncBody {
    let entries = entries.iter().map(|(key, uid, revision)| (key.as_str(), uid.as_str(), *revision));
    EdgeSyncBody::Digests(BucketDigests { digests: bucket_digests(entries, buckets) })
}

/// The answers to `SyncStep::SendKeys`; none when no bucket differs.
pub fn key_answers(
    entries: &[(String, String, Revision)],
    wanted: &BTreeSet<u32>,
    of: u32,
) -> Vec<EdgeSyncBody> {
    if wanted.is_empty() {
        return Vec::new();
    }
    let selected = entries.iter().filter(|(key, _, _)| wanted.contains(&bucket_of(key, of)));
    let found: Vec<KeyEntry> = selected
        .map(|(key, uid, revision)| KeyEntry { key: key.clone(), digest: entry_digest(key, uid, *revision) })
        .collect();
    let chunks: Vec<&[KeyEntry]> =
        if found.is_empty() { vec![&[]] } else { found.chunks(KEYS_MAX).collect() };
    let last = chunks.len() - 1;
    let answer = |(number, chunk): (usize, &&[KeyEntry])| {
        EdgeSyncBody::Keys(BucketKeys { entries: chunk.to_vec(), more: number < last })
    };
    chunks.iter().enumerate().map(answer).collect()
}

/// The acknowledgement of a batch that is on disk.
pub fn acknowledge(sequence: u64) -> EdgeSyncBody {
    EdgeSyncBody::Ack(ChangeAck { sequence })
}
