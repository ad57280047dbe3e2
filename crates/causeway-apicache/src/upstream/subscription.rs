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
use tokio::time::{Instant, MissedTickBehavior, interval_at, timeout};

use super::Upstream;
use super::access::AccessQuestion;
use super::cluster::UpstreamIdentity;
use super::feed::{FeedChange, FeedStart, ResourceFeed};
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
// The rights of the caller are checked again at this interval; a lost right ends the subscription.
const RECHECK: Duration = Duration::from_secs(60);
// Progress without changes is told at most this often: idle links stay quiet.
const PROGRESS: Duration = Duration::from_secs(5);
// Digests and keys of an edge.
const EDGE_FRAME_BYTES_MAX: usize = 1 << 20;
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
}

/// Serves a subscription until it ends.
pub async fn serve<S>(upstream: &Upstream, site: &str, stream: S) -> Result<(), SubscriptionError>
where
    S: AsyncRead + AsyncWrite + Send,
{
    let (recv, mut send) = tokio::io::split(stream);
    let mut reader = MessageReader::new(recv, EDGE_FRAME_BYTES_MAX);
    let first = timeout(SUBSCRIBE_DEADLINE, reader.next::<EdgeSyncMessage>()).await;
    let Ok(Ok(Some(EdgeSyncMessage { body: Some(EdgeSyncBody::Subscribe(subscribe)) }))) = first else {
        return Err(SubscriptionError::Silent);
    };
    let session = match admit(upstream, site, subscribe).await {
        Ok(session) => session,
        Err(status) => return refuse(&mut send, &status).await,
    };
    let Some(lease) = upstream.feeds.lease(&session.scope.resource) else {
        return refuse(&mut send, &Status::unavailable("the cloud follows too many resources", 60)).await;
    };
    session.run(upstream, &lease.feed, &mut reader, &mut send).await
}

async fn refuse<W: AsyncWrite + Unpin>(send: &mut W, status: &Status) -> Result<(), SubscriptionError> {
    let refused = Refused { code: status.code.into(), message: status.message.clone() };
    frames::write(send, &CloudSyncMessage::from(CloudSyncBody::Refused(refused))).await?;
    Ok(tokio::io::AsyncWriteExt::shutdown(send).await.map_err(SyncFrameError::from)?)
}

/// A subscription whose caller is known.
struct SubscriptionSession {
    subscribe: Subscribe,
    scope: SubscriptionScope,
    /// `None`: the operator pinned the scope for this site.
    identity: Option<UpstreamIdentity>,
}

async fn admit(
    upstream: &Upstream,
    site: &str,
    mut subscribe: Subscribe,
) -> Result<SubscriptionSession, Status> {
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
        _ if upstream.sites.pins(site).await.contains(&scope) => None,
        _ => {
            return Err(Status::unauthorized(
                "the subscription names no caller, and the site has no such pin",
            ));
        }
    };
    let session = SubscriptionSession { subscribe, scope, identity };
    session.check(upstream).await?;
    Ok(session)
}

impl SubscriptionSession {
    async fn check(&self, upstream: &Upstream) -> Result<(), Status> {
        let Some(identity) = &self.identity else { return Ok(()) };
        // A node may get its lease and its CSINode, and not list them. The edge checks each read by its own verb.
        let get = AccessQuestion::about("get", &self.scope);
        if self.scope.only_name().is_some() && upstream.access.check(identity, &get).await.is_ok() {
            return Ok(());
        }
        for verb in ["list", "watch"] {
            upstream.access.check(identity, &AccessQuestion::about(verb, &self.scope)).await?;
        }
        Ok(())
    }

    async fn run<S: AsyncRead + AsyncWrite + Send>(
        &self,
        upstream: &Upstream,
        feed: &ResourceFeed,
        reader: &mut MessageReader<ReadHalf<S>>,
        send: &mut WriteHalf<S>,
    ) -> Result<(), SubscriptionError> {
        let (sender, follower, selector) = match self.open(feed).await {
            Ok(opened) => opened,
            Err(status) => {
                return refuse(send, &status).await;
            }
        };
        let mut driver = SubscriptionDriver { sender, follower, selector, feed };
        driver.drive(self, upstream, reader, send).await
    }

    /// Waits for the feed and decides where the copy continues.
    async fn open(
        &self,
        feed: &ResourceFeed,
    ) -> Result<(SyncSender, Follower<FeedChange>, Selector), Status> {
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
        let start = feed.start(&selector, Revision(self.subscribe.revision));
        let start = start.ok_or_else(|| Status::unavailable("the resource is not listed yet", 1))?;
        Ok(match start {
            FeedStart::Resumed(follower) => {
                (SyncSender::resume(text, Revision(self.subscribe.revision)), follower, selector)
            }
            FeedStart::Snapshot(target, follower) => {
                (SyncSender::compare(text, &self.subscribe, target), follower, selector)
            }
        })
    }
}

struct SubscriptionDriver<'a> {
    sender: SyncSender,
    follower: Follower<FeedChange>,
    selector: Selector,
    feed: &'a ResourceFeed,
}

impl SubscriptionDriver<'_> {
    async fn drive<S: AsyncRead + AsyncWrite + Send>(
        &mut self,
        session: &SubscriptionSession,
        upstream: &Upstream,
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
                frames::write(send, &CloudSyncMessage::from(message)).await?;
            }
            let has_room = self.sender.has_room();
            tokio::select! {
                message = reader.next::<EdgeSyncMessage>() => match message? {
                    None => return Ok(()),
                    Some(EdgeSyncMessage { body: Some(body) }) => self.sender.handle(body)?,
                    // A message of a newer edge.
                    Some(EdgeSyncMessage { body: None }) => {}
                },
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
                _ = recheck.tick() => match session.check(upstream).await {
                    Err(status) if matches!(status.code, 401 | 403) => {
                        return refuse(send, &status).await;
                    }
                    // Without an answer the last decision stays.
                    _ => {}
                },
            }
        }
    }

    fn offer(&mut self, changes: &[Arc<FeedChange>]) {
        let scoped: Vec<_> = changes.iter().filter_map(|change| change.scoped(&self.selector)).collect();
        let Some(last) = changes.last().map(|change| causeway_watch::ring::RingEntry::revision(&**change))
        else {
            return;
        };
        if !scoped.is_empty() {
            self.sender.offer(scoped, last);
        }
    }
}

async fn next_changes(follower: &mut Follower<FeedChange>) -> Option<Vec<Arc<FeedChange>>> {
    let mut entries = Vec::new();
    let result =
        poll_fn(|context| follower.poll_entries(context, CHANGES_MAX, CHANGES_BYTES_MAX, &mut entries));
    match result.await {
        FollowResult::Some => Some(entries),
        FollowResult::Lagged | FollowResult::Closed => None,
    }
}
