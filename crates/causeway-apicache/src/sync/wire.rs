//! Messages of a subscription.
//!
//! Protobuf, so a field that a peer does not know is ignored. The edge names the protocol version in `Subscribe`; a cloud
//! that does not speak it answers `Refused` with code 505, and the edge reports the resource as not cached. A cloud that
//! is older than this protocol does not know the purpose of the stream and resets it, with the same effect.

use bytes::Bytes;
use prost::{Message, Oneof};

/// The version that this program speaks.
pub const PROTOCOL_VERSION: u32 = 1;

/// A message of the edge.
#[derive(Clone, PartialEq, Message)]
pub struct EdgeSyncMessage {
    #[prost(oneof = "EdgeSyncBody", tags = "1, 2, 3, 4")]
    pub body: Option<EdgeSyncBody>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum EdgeSyncBody {
    #[prost(message, tag = "1")]
    Subscribe(Subscribe),
    #[prost(message, tag = "2")]
    Digests(BucketDigests),
    #[prost(message, tag = "3")]
    Keys(BucketKeys),
    #[prost(message, tag = "4")]
    Ack(ChangeAck),
}

/// The first message: the wanted objects, the caller in whose name they are wanted, and the copy that the edge has.
#[derive(Clone, PartialEq, Message)]
pub struct Subscribe {
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    #[prost(string, tag = "2")]
    pub group: String,
    #[prost(string, tag = "3")]
    pub version: String,
    #[prost(string, tag = "4")]
    pub plural: String,
    #[prost(string, tag = "5")]
    pub namespace: String,
    #[prost(string, tag = "6")]
    pub label_selector: String,
    #[prost(string, tag = "7")]
    pub field_selector: String,
    /// The bearer token of the caller; verified by the cloud.
    #[prost(string, tag = "8")]
    pub token: String,
    /// The node that the caller proved to be; believed for nodes of the edge's own site.
    #[prost(string, tag = "9")]
    pub node: String,
    /// The revision of the copy; 0: the edge has none.
    #[prost(uint64, tag = "10")]
    pub revision: u64,
    /// The number of objects in the copy, from which the cloud chooses the number of buckets.
    #[prost(uint64, tag = "11")]
    pub objects: u64,
    /// The edge applies differences (`ChangeEntry::base_revision`). An older edge does not.
    #[prost(bool, tag = "12")]
    pub deltas: bool,
}

/// The digests of all buckets, in their order.
#[derive(Clone, PartialEq, Message)]
pub struct BucketDigests {
    #[prost(fixed64, repeated, tag = "1")]
    pub digests: Vec<u64>,
}

/// The entries of the buckets that differ.
#[derive(Clone, PartialEq, Message)]
pub struct BucketKeys {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<KeyEntry>,
    /// More entries follow in another message.
    #[prost(bool, tag = "2")]
    pub more: bool,
}

#[derive(Clone, PartialEq, Eq, Message)]
pub struct KeyEntry {
    #[prost(string, tag = "1")]
    pub key: String,
    /// The digest of key, UID and revision.
    #[prost(fixed64, tag = "2")]
    pub digest: u64,
}

/// All messages up to this sequence number are on the edge's disk.
#[derive(Clone, PartialEq, Message)]
pub struct ChangeAck {
    #[prost(uint64, tag = "1")]
    pub sequence: u64,
}

/// A message of the cloud.
#[derive(Clone, PartialEq, Message)]
pub struct CloudSyncMessage {
    #[prost(oneof = "CloudSyncBody", tags = "1, 2, 3, 4, 5, 6")]
    pub body: Option<CloudSyncBody>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum CloudSyncBody {
    #[prost(message, tag = "1")]
    Refused(Refused),
    #[prost(message, tag = "2")]
    Accepted(Accepted),
    #[prost(message, tag = "3")]
    DigestsWanted(DigestsWanted),
    #[prost(message, tag = "4")]
    KeysWanted(KeysWanted),
    #[prost(message, tag = "5")]
    Changes(ChangeBatch),
    #[prost(message, tag = "6")]
    Progress(SyncProgress),
}

/// The subscription is not served, or no longer; the stream ends.
#[derive(Clone, PartialEq, Message)]
pub struct Refused {
    /// An HTTP status code.
    #[prost(uint32, tag = "1")]
    pub code: u32,
    #[prost(string, tag = "2")]
    pub message: String,
}

/// The subscription is served.
#[derive(Clone, PartialEq, Message)]
pub struct Accepted {
    /// A `ResourceDescription` as JSON.
    #[prost(bytes = "bytes", tag = "1")]
    pub description: Bytes,
    /// Changes continue after the revision of the copy. Otherwise the copy is compared first, or replaced when it is empty.
    #[prost(bool, tag = "2")]
    pub resumed: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct DigestsWanted {
    #[prost(uint32, tag = "1")]
    pub buckets: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct KeysWanted {
    /// The buckets that differ. Empty: the copy is equal.
    #[prost(uint32, repeated, tag = "1")]
    pub buckets: Vec<u32>,
    /// The number of buckets.
    #[prost(uint32, tag = "2")]
    pub of: u32,
}

/// Changes in the order of their revisions.
#[derive(Clone, PartialEq, Message)]
pub struct ChangeBatch {
    #[prost(message, repeated, tag = "1")]
    pub changes: Vec<ChangeEntry>,
    #[prost(uint64, tag = "2")]
    pub sequence: u64,
    /// The copy is complete at this revision when the batch is applied; 0: more batches of the same comparison follow.
    #[prost(uint64, tag = "3")]
    pub complete_at: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct ChangeEntry {
    #[prost(string, tag = "1")]
    pub key: String,
    #[prost(string, tag = "2")]
    pub uid: String,
    #[prost(uint64, tag = "3")]
    pub revision: u64,
    #[prost(bool, tag = "4")]
    pub deleted: bool,
    /// The kept form of the object; empty when it is deleted.
    #[prost(bytes = "bytes", tag = "5")]
    pub body: Bytes,
    #[prost(bytes = "bytes", tag = "6")]
    pub cells: Bytes,
    /// Not 0: `body` is the difference to the packed object (cells and body) that the copy has under this key at this revision.
    #[prost(uint64, tag = "7")]
    pub base_revision: u64,
}

/// No change of the subscription lies between the last one and this revision.
#[derive(Clone, PartialEq, Message)]
pub struct SyncProgress {
    #[prost(uint64, tag = "1")]
    pub revision: u64,
}

impl From<EdgeSyncBody> for EdgeSyncMessage {
    fn from(body: EdgeSyncBody) -> EdgeSyncMessage {
        EdgeSyncMessage { body: Some(body) }
    }
}

impl From<CloudSyncBody> for CloudSyncMessage {
    fn from(body: CloudSyncBody) -> CloudSyncMessage {
        CloudSyncMessage { body: Some(body) }
    }
}
