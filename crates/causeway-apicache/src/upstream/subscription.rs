//! Serves one subscription of a site: checks the caller's rights, then sends the copy and its changes.
//!
//! Decisions are in `sync::sender`; this driver reads the stream and the feed. It ends when the edge ends the stream, when
//! the feed ends, or when the caller loses the right; the edge subscribes again.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use causeway_api::selector::Selector;
use causeway_api::{Revision, Status};
use causeway_watch::ring::{FollowResult, Follower};
use tokio::io::{AsyncRead, AsyncWrite, ReadHalf, WriteHalf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use super::Upstream;
use super::access::{AccessQuestion, HeldDecision, any_changed};
use super::cluster::UpstreamIdentity;
use super::feed::{FeedChange, FeedStart, ResourceFeed};
use super::site_streams::{SNAPSHOT_BYTES_MAX, SiteMemory};
use crate::resource::{ResourceDescription, ResourceName, SubscriptionScope};
use crate::sync::frames::{self, MessageReader, SyncFrameError};
use crate::sync::sender::SyncSender;
use crate::sync::wire::{
    CloudSyncBody, CloudSyncMessage, EdgeSyncBody, EdgeSyncMessage, PROTOCOL_VERSION, Refused, Subscribe,
};

// The first message is on the way already when the stream arrives.
const SUBSCRIBE_DEADLINE: Duration = Duration::from_secs(10);
// The first list of a large resource.
const READY_DEADLINE: Duration = Duration::from_secs(60);
// A snapshot keeps old versions of objects in memory. An edge that takes it in answers each message within a round trip and a commit to its disk.
// Over a slow link the first part of a large copy takes minutes, beside other copies.
const SNAPSHOT_SILENCE_MAX: Duration = Duration::from_secs(600);
// A copy of 50 MB over a link of 125 kbit/s.
const SNAPSHOT_TIME_MAX: Duration = Duration::from_secs(3_600);
// Between attempts to find room for a snapshot.
const ROOM_CHECK_INTERVAL: Duration = Duration::from_millis(250);
// Pins and nodes of the site are checked again at this interval; decisions of the API server are held.
const RECHECK: Duration = Duration::from_secs(60);
// Progress without changes is told at most this often: idle links stay quiet.
const PROGRESS: Duration = Duration::from_secs(5);
// The first message of an edge: names, selectors and a token. Its caller is not checked yet.
const FIRST_FRAME_BYTES_MAX: usize = 32 << 10;
// Digests and keys of an edge: 4,096 keys.
const EDGE_FRAME_BYTES_MAX: usize = 1 << 20;
const EDGE_CONTENT_BYTES_MAX: usize = 3 << 20;
// An entry of a described copy beside its key: two maps hold it.
const KEY_OVERHEAD_BYTES: usize = 64;
// Changes taken from the feed at once.
const CHANGES_MAX: usize = 256;
const CHANGES_BYTES_MAX: usize = 256 << 10;

#[derive(Debug, thiserror::Error)]
pub enum SubscriptionError {
    #[error(transparent)]
    Frame(#[from] SyncFrameError),
    #[error(transparent)]
    Unexpected(#[from] crate::sync::sender::UnexpectedMessage),
    #[error("the edge did not subscribe")]
    Silent,
    #[error("the edge has not taken in the snapshot of its subscription in time")]
    Slow,
    #[error(
        "the subscriptions of the site describe more objects at the same time than the cloud holds for one site"
    )]
    NoMemory,
}

/// Serves a subscription until it ends.
pub async fn serve<S>(
    upstream: &Upstream,
    site: &str,
    (memory, snapshots): (&SiteMemory, &SiteMemory),
    stream: S,
) -> Result<(), SubscriptionError>
where
    S: AsyncRead + AsyncWrite + Send,
{
    let (recv, mut send) = tokio::io::split(stream);
    let mut reader =
        MessageReader::limited(recv, FIRST_FRAME_BYTES_MAX, FIRST_FRAME_BYTES_MAX, memory.clone());
    let first = timeout(SUBSCRIBE_DEADLINE, reader.next::<EdgeSyncMessage>()).await;
    let Ok(Ok(Some(EdgeSyncMessage { body: Some(EdgeSyncBody::Subscribe(subscribe)) }))) = first else {
        return Err(SubscriptionError::Silent);
    };
    let (session, mut held) = match admit(upstream, site, subscribe).await {
        Ok(admitted) => admitted,
        Err(status) => return refuse(&mut send, &status).await,
    };
    reader.set_limits(EDGE_FRAME_BYTES_MAX, EDGE_CONTENT_BYTES_MAX);
    let Some(lease) = upstream.feeds.lease(site, &session.scope.resource) else {
        return refuse(&mut send, &Status::unavailable("the cloud follows too many resources", 60)).await;
    };
    let memory = (memory, snapshots);
    session.run((upstream, &mut held), (&lease.feed, memory), &mut reader, &mut send).await
}

async fn refuse<W: AsyncWrite + Unpin>(send: &mut W, status: &Status) -> Result<(), SubscriptionError> {
    let refused = Refused { code: status.code.into(), message: status.message.clone() };
    frames::write(send, &CloudSyncMessage::from(CloudSyncBody::Refused(refused))).await?;
    Ok(tokio::io::AsyncWriteExt::shutdown(send).await.map_err(SyncFrameError::from)?)
}

/// A subscription whose caller is known.
struct SubscriptionSession {
    site: String,
    subscribe: Subscribe,
    scope: SubscriptionScope,
    /// `None`: the operator pinned the scope for this site.
    identity: Option<UpstreamIdentity>,
}

async fn admit(
    upstream: &Upstream,
    site: &str,
    mut subscribe: Subscribe,
) -> Result<(SubscriptionSession, Vec<HeldDecision>), Status> {
    if subscribe.protocol != PROTOCOL_VERSION {
        let message = format!("the cloud speaks version {PROTOCOL_VERSION} of the protocol of the API cache");
        return Err(Status { code: 505, ..Status::unavailable(message, 60) });
    }
    let scope = SubscriptionScope {
        resource: ResourceName::new(&subscribe.group, &subscribe.version, &subscribe.plural),
        namespace: subscribe.namespace.clone(),
        label_selector: subscribe.label_selector.clone(),
        field_selector: subscribe.field_selector.clone(),
    };
    if !scope.is_valid() {
        return Err(Status::bad_request("the subscription names no resource"));
    }
    let identity = match (std::mem::take(&mut subscribe.token), std::mem::take(&mut subscribe.node)) {
        (token, _) if !token.is_empty() => Some(UpstreamIdentity::Token(token)),
        (_, node) if !node.is_empty() => Some(upstream.node_identity(site, &node).await?),
        _ => None,
    };
    let session = SubscriptionSession { site: site.to_owned(), subscribe, scope, identity };
    let held = session.check(upstream).await?;
    Ok((session, held))
}

impl SubscriptionSession {
    /// Checks the rights of the caller. They may change while the subscription lasts: a pin is removed, a node is moved to
    /// another site, a right is taken away. The decisions stay current while they are held.
    async fn check(&self, upstream: &Upstream) -> Result<Vec<HeldDecision>, Status> {
        let pins = async || {
            let pins = upstream.sites.pins(&self.site).await;
            pins.ok_or_else(|| Status::unavailable("the cloud cannot read the pins of the site", 5))
        };
        // A caller that may list all Secrets of a namespace does not make a site hold them.
        if self.scope.requires_pin() && !self.scope.is_allowed(&pins().await?) {
            let rule =
                "a site holds Secrets and ConfigMaps by name; name the scope in ESite.cache to allow more";
            return Err(Status::forbidden(&self.site, format!("hold {}", self.scope), rule));
        }
        let identity = match &self.identity {
            None if pins().await?.contains(&self.scope) => return Ok(Vec::new()),
            None => {
                return Err(Status::unauthorized(
                    "the subscription names no caller, and the site has no such pin",
                ));
            }
            Some(UpstreamIdentity::Node(node)) => &upstream.node_identity(&self.site, node).await?,
            Some(identity) => identity,
        };
        // A node may get its lease and its CSINode, and not list them. The edge checks each read by its own verb.
        let get = AccessQuestion::about("get", &self.scope);
        if self.scope.only_name().is_some()
            && let Ok(held) = upstream.access.check(&self.site, identity, &get).await
        {
            return Ok(vec![held]);
        }
        let mut held = Vec::new();
        for verb in ["list", "watch"] {
            held.push(
                upstream
                    .access
                    .check(&self.site, identity, &AccessQuestion::about(verb, &self.scope))
                    .await?,
            );
        }
        Ok(held)
    }

    async fn run<S: AsyncRead + AsyncWrite + Send>(
        &self,
        decisions: (&Upstream, &mut Vec<HeldDecision>),
        (feed, (memory, snapshots)): (&ResourceFeed, (&SiteMemory, &SiteMemory)),
        reader: &mut MessageReader<ReadHalf<S>>,
        send: &mut WriteHalf<S>,
    ) -> Result<(), SubscriptionError> {
        let (sender, follower, selector, snapshot) = match self.open(feed, snapshots).await {
            Ok(opened) => opened,
            Err(status) => {
                return refuse(send, &status).await;
            }
        };
        let deltas = self.subscribe.deltas;
        let snapshot = snapshot.map(HeldSnapshot::new);
        let held = Vec::new();
        let mut driver =
            SubscriptionDriver { sender, follower, selector, deltas, feed, memory, held, snapshot };
        driver.drive(self, decisions, reader, send).await
    }

    /// Waits for the feed and decides where the copy continues.
    async fn open(
        &self,
        feed: &ResourceFeed,
        snapshots: &SiteMemory,
    ) -> Result<(SyncSender, Follower<FeedChange>, Selector, Option<OwnedSemaphorePermit>), Status> {
        let ready = timeout(READY_DEADLINE, feed.ready()).await;
        let description: Arc<ResourceDescription> =
            ready.map_err(|_| Status::timeout("the resource is not listed yet", 5))??;
        let mut fields = self.scope.field_selector.clone();
        if !self.scope.namespace.is_empty() {
            let comma = if fields.is_empty() { "" } else { "," };
            fields.push_str(&format!("{comma}metadata.namespace={}", self.scope.namespace));
        }
        let selector = Selector::parse(description.definition(), &self.scope.label_selector, &fields)
            .map_err(Status::bad_request)?;
        let text = serde_json::to_vec(&*description).map_err(Status::internal)?.into();
        let revision = Revision(self.subscribe.revision);
        let started = timeout(READY_DEADLINE, counted_start(feed, snapshots, (&selector, revision))).await;
        let full =
            "the snapshots of the site's subscriptions take more memory than the cloud holds for one site";
        Ok(match started.map_err(|_| Status::unavailable(full, 5))?? {
            (FeedStart::Resumed(follower), _) => {
                (SyncSender::resume(text, revision), follower, selector, None)
            }
            (FeedStart::Snapshot(target, follower), held) => {
                (SyncSender::compare(text, &self.subscribe, target), follower, selector, held)
            }
        })
    }
}

/// Begins a subscription; a snapshot counts as memory of its site. Without room nothing is held while it is waited for.
async fn counted_start(
    feed: &ResourceFeed,
    snapshots: &SiteMemory,
    (selector, revision): (&Selector, Revision),
) -> Result<(FeedStart, Option<OwnedSemaphorePermit>), Status> {
    loop {
        let start = feed.start(selector, revision);
        let start = start.ok_or_else(|| Status::unavailable("the resource is not listed yet", 1))?;
        let FeedStart::Snapshot(target, _) = &start else { return Ok((start, None)) };
        let bytes = target.held_bytes();
        if bytes > SNAPSHOT_BYTES_MAX {
            let why = "the copy is larger than the cloud can compare for one site; subscribe to a part of the resource";
            return Err(Status::unavailable(why, 600));
        }
        if let Some(held) = snapshots.try_take(bytes) {
            return Ok((start, Some(held)));
        }
        // One that queued would take all room that becomes free, and keep small ones from it.
        drop(start);
        tokio::time::sleep(ROOM_CHECK_INTERVAL).await;
    }
}

/// The snapshot with which a copy is compared, until the copy has all of it.
struct HeldSnapshot {
    _memory: OwnedSemaphorePermit,
    ends_at: Instant,
    silent_at: Instant,
}

impl HeldSnapshot {
    fn new(memory: OwnedSemaphorePermit) -> HeldSnapshot {
        let now = Instant::now();
        HeldSnapshot {
            _memory: memory,
            ends_at: now + SNAPSHOT_TIME_MAX,
            silent_at: now + SNAPSHOT_SILENCE_MAX,
        }
    }
}

struct SubscriptionDriver<'a> {
    sender: SyncSender,
    follower: Follower<FeedChange>,
    selector: Selector,
    /// The edge applies differences.
    deltas: bool,
    feed: &'a ResourceFeed,
    memory: &'a SiteMemory,
    /// The part of the memory that the described copy takes.
    held: Vec<OwnedSemaphorePermit>,
    snapshot: Option<HeldSnapshot>,
}

impl SubscriptionDriver<'_> {
    async fn drive<S: AsyncRead + AsyncWrite + Send>(
        &mut self,
        session: &SubscriptionSession,
        (upstream, held): (&Upstream, &mut Vec<HeldDecision>),
        reader: &mut MessageReader<ReadHalf<S>>,
        send: &mut WriteHalf<S>,
    ) -> Result<(), SubscriptionError> {
        let mut recheck = interval_at(Instant::now() + RECHECK, RECHECK);
        recheck.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut progress = interval_at(Instant::now(), PROGRESS);
        progress.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut revisions = self.feed.revisions();
        revisions.mark_changed();
        loop {
            while let Some(message) = self.sender.next_message() {
                let message = CloudSyncMessage::from(message);
                tokio::select! {
                    written = frames::write(send, &message) => written?,
                    () = until_slow(self.snapshot.as_ref()) => return Err(SubscriptionError::Slow),
                }
            }
            if !self.sender.has_target() {
                self.snapshot = None;
            }
            let has_room = self.sender.has_room();
            tokio::select! {
                message = reader.next::<EdgeSyncMessage>() => match message? {
                    None => return Ok(()),
                    Some(EdgeSyncMessage { body: Some(body) }) => self.handle(body)?,
                    // A message of a newer edge.
                    Some(EdgeSyncMessage { body: None }) => {}
                },
                () = until_slow(self.snapshot.as_ref()) => return Err(SubscriptionError::Slow),
                changes = next_changes(&mut self.follower), if has_room => match changes {
                    Some(changes) => self.offer(&changes),
                    // The subscription was too slow, or the feed began anew: the edge compares its copy.
                    None => return Ok(()),
                },
                _ = progress.tick(), if has_room && revisions.has_changed().unwrap_or(false) => {
                    revisions.mark_unchanged();
                    if let Some(revision) = self.follower.seen() {
                        self.sender.progress(revision);
                    }
                }
                () = rights_may_differ(&mut recheck, held) => match session.check(upstream).await {
                    Ok(current) => *held = current,
                    Err(status) if matches!(status.code, 401 | 403) => {
                        return refuse(send, &status).await;
                    }
                    // Without an answer the last decision stays.
                    Err(_) => {}
                },
            }
        }
    }

    fn handle(&mut self, body: EdgeSyncBody) -> Result<(), SubscriptionError> {
        if let EdgeSyncBody::Keys(keys) = &body {
            let bytes = keys.entries.iter().map(|entry| entry.key.len() + KEY_OVERHEAD_BYTES).sum();
            self.held.push(self.memory.try_take(bytes).ok_or(SubscriptionError::NoMemory)?);
        }
        self.sender.handle(body)?;
        if let Some(snapshot) = &mut self.snapshot {
            snapshot.silent_at = Instant::now() + SNAPSHOT_SILENCE_MAX;
        }
        if !self.sender.is_described() {
            self.held.clear();
        }
        Ok(())
    }

    fn offer(&mut self, changes: &[Arc<FeedChange>]) {
        let scoped: Vec<_> =
            changes.iter().filter_map(|change| change.scoped(&self.selector, self.deltas)).collect();
        let Some(last) = changes.last().map(|change| causeway_watch::ring::RingEntry::revision(&**change))
        else {
            return;
        };
        if !scoped.is_empty() {
            self.sender.offer(scoped, last);
        }
    }
}

/// Resolves when an edge has not taken in its snapshot in time; never without a snapshot.
async fn until_slow(snapshot: Option<&HeldSnapshot>) {
    match snapshot {
        Some(snapshot) => tokio::time::sleep_until(snapshot.silent_at.min(snapshot.ends_at)).await,
        None => std::future::pending().await,
    }
}

/// Resolves when a decision about the caller changed, and now and then: pins and nodes of a site change without a decision.
async fn rights_may_differ(recheck: &mut Interval, held: &mut [HeldDecision]) {
    tokio::select! {
        _ = recheck.tick() => {}
        () = any_changed(held) => {}
    }
}

pub(super) async fn next_changes(follower: &mut Follower<FeedChange>) -> Option<Vec<Arc<FeedChange>>> {
    let mut entries = Vec::new();
    let result =
        poll_fn(|context| follower.poll_entries(context, CHANGES_MAX, CHANGES_BYTES_MAX, &mut entries));
    match result.await {
        FollowResult::Some => Some(entries),
        FollowResult::Lagged | FollowResult::Closed => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_subscription_loses_its_right_with_its_pin_or_its_node() {
        let (upstream, facts) = Upstream::for_tests().await;
        let subscribe = |node: &str| Subscribe {
            protocol: PROTOCOL_VERSION,
            version: "v1".into(),
            plural: "nodes".into(),
            node: node.into(),
            ..Subscribe::default()
        };
        let pinned = admit(&upstream, "oslo", subscribe("")).await.map_err(|status| status.code);
        let (pinned, _) = pinned.unwrap_or_else(|code| panic!("refused: {code}"));
        // The cluster cannot be asked, so this is as far as a node comes.
        let of_node = admit(&upstream, "oslo", subscribe("n1")).await.err().map(|status| status.code);
        assert_eq!(of_node, Some(503));
        let elsewhere = admit(&upstream, "berlin", subscribe("n1")).await.err().map(|status| status.code);
        assert_eq!(elsewhere, Some(403), "a node of another site");
        let scope = pinned.scope.clone();
        let identity = Some(UpstreamIdentity::Node("n1".into()));
        let of_node =
            SubscriptionSession { site: "oslo".into(), subscribe: subscribe("n1"), scope, identity };

        facts.revoke();
        let refused = async |session: SubscriptionSession| {
            session.check(&upstream).await.err().map(|status| status.code)
        };
        assert_eq!(refused(pinned).await, Some(401), "the pin was removed");
        assert_eq!(refused(of_node).await, Some(403), "the node was moved");
    }

    #[tokio::test]
    async fn secrets_and_config_maps_of_many_names_need_a_pin() {
        let (upstream, facts) = Upstream::for_tests().await;
        let check = async |plural: &str, namespace: &str, fields: &str, expected: u16| {
            let subscribe = Subscribe {
                protocol: PROTOCOL_VERSION,
                version: "v1".into(),
                plural: plural.into(),
                namespace: namespace.into(),
                field_selector: fields.into(),
                token: "t".into(),
                ..Subscribe::default()
            };
            let refused = admit(&upstream, "oslo", subscribe).await.err();
            assert_eq!(
                refused.as_ref().map(|status| status.code),
                Some(expected),
                "{plural} {namespace} {fields}"
            );
            let is_rule = refused.is_some_and(|status| status.message.contains("by name"));
            assert_eq!(is_rule, expected == 403, "{plural} {namespace} {fields}");
        };
        // The API server of this test cannot be reached: 503 is the question about the caller's own rights.
        check("secrets", "", "", 403).await;
        check("secrets", "shop", "", 403).await;
        check("secrets", "shop", "type=Opaque", 403).await;
        check("secrets", "shop", "metadata.name=a", 503).await;
        check("configmaps", "other", "", 403).await;
        check("configmaps", "shop", "", 503).await;
        check("pods", "", "", 503).await;
        facts.revoke();
        check("configmaps", "shop", "", 403).await;
    }

    #[tokio::test]
    async fn a_described_copy_takes_the_memory_of_its_site() {
        use crate::sync::sender::SyncTarget;
        use crate::sync::wire::{BucketDigests, BucketKeys, KeyEntry};
        let feed = ResourceFeed::new(ResourceName::new("", "v1", "nodes"));
        let memory = SiteMemory::new(64);
        let ring = Arc::new(causeway_watch::ring::Ring::new(Revision(1), 16, 1 << 10));
        let described = || {
            let subscribe = Subscribe { objects: 1, ..Subscribe::default() };
            let target = SyncTarget { revision: Revision(1), ..SyncTarget::default() };
            let mut sender = SyncSender::compare(bytes::Bytes::new(), &subscribe, target);
            while sender.next_message().is_some() {}
            let digests = vec![7; crate::sync::digest::bucket_count(1) as usize];
            sender.handle(EdgeSyncBody::Digests(BucketDigests { digests })).unwrap();
            let follower = ring.follow(Revision(1)).expect("the ring begins there");
            let selector = Selector::parse(causeway_api::Kind::ESite, "", "").unwrap();
            SubscriptionDriver {
                sender,
                follower,
                selector,
                deltas: false,
                feed: &feed,
                memory: &memory,
                held: Vec::new(),
                snapshot: None,
            }
        };
        let keys = |count: usize, more: bool| {
            let entry = |number| KeyEntry { key: format!("{number:0>100}"), digest: 1 };
            EdgeSyncBody::Keys(BucketKeys { entries: (0..count).map(entry).collect(), more })
        };
        let mut first = described();
        first.handle(keys(300, true)).unwrap();
        let mut second = described();
        assert!(matches!(second.handle(keys(300, true)), Err(SubscriptionError::NoMemory)));
        // The first is compared, so its entries are not held any more.
        first.handle(keys(1, false)).unwrap();
        let mut third = described();
        third.handle(keys(300, true)).unwrap();
        let long = KeyEntry { key: "x".repeat(10_000), digest: 1 };
        let long = EdgeSyncBody::Keys(BucketKeys { entries: vec![long], more: true });
        assert!(third.handle(long).is_err(), "no object has such a key");
    }

    fn nodes(keys: &[&str]) -> ResourceFeed {
        let description = ResourceDescription {
            name: ResourceName::new("", "v1", "nodes"),
            kind: "Node".into(),
            list_kind: "NodeList".into(),
            is_namespaced: false,
            columns: "[]".into(),
        };
        ResourceFeed::listed(description, keys)
    }

    /// A session of a site that has no copy.
    fn pinned_session() -> SubscriptionSession {
        let scope = SubscriptionScope::all(ResourceName::new("", "v1", "nodes"));
        let subscribe = Subscribe { version: "v1".into(), plural: "nodes".into(), ..Subscribe::default() };
        SubscriptionSession { site: "oslo".into(), subscribe, scope, identity: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_takes_the_memory_of_its_site() {
        let key = "n".repeat(400);
        let (feed, snapshots, session) = (nodes(&[&key]), SiteMemory::new(3), pinned_session());
        let open = async || session.open(&feed, &snapshots).await.map_err(|status| status.code);
        let first = open().await.unwrap_or_else(|code| panic!("refused: {code}"));
        assert!(first.3.is_some());
        assert_eq!(open().await.err(), Some(503), "there is no room for another one");
        drop(first);
        assert!(open().await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn an_edge_that_leaves_a_snapshot_is_cut_off() {
        let (upstream, _) = Upstream::for_tests().await;
        let (feed, memory, snapshots, session) =
            (nodes(&["n1"]), SiteMemory::new(64), SiteMemory::new(64), pinned_session());
        // One that reads nothing, and one that reads and answers nothing.
        for bytes in [1, 64 << 10] {
            let (near, far) = tokio::io::duplex(bytes);
            let mut subscribe = pinned_session();
            subscribe.subscribe.objects = 10;
            let session = if bytes == 1 { &session } else { &subscribe };
            let (recv, mut send) = tokio::io::split(far);
            let mut reader = MessageReader::new(recv, 1 << 20);
            let mut held = Vec::new();
            let memory = (&memory, &snapshots);
            let ended = timeout(
                SNAPSHOT_SILENCE_MAX * 2,
                session.run((&upstream, &mut held), (&feed, memory), &mut reader, &mut send),
            );
            assert!(matches!(ended.await, Ok(Err(SubscriptionError::Slow))), "{bytes}");
            assert!(snapshots.try_take(64 << 10).is_some(), "the memory is free again");
            drop(near);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_copy_that_is_complete_may_be_silent() {
        let (upstream, _) = Upstream::for_tests().await;
        let (feed, memory, snapshots, session) =
            (nodes(&["n1"]), SiteMemory::new(64), SiteMemory::new(64), pinned_session());
        let (_near, far) = tokio::io::duplex(64 << 10);
        let (recv, mut send) = tokio::io::split(far);
        let mut reader = MessageReader::new(recv, 1 << 20);
        let mut held = Vec::new();
        // The whole copy is on its way at once, so nothing is held for it.
        let running =
            session.run((&upstream, &mut held), (&feed, (&memory, &snapshots)), &mut reader, &mut send);
        assert!(timeout(SNAPSHOT_SILENCE_MAX * 3, running).await.is_err());
    }
}
