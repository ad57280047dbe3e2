//! Joins this replica's sessions to the fleet: attached gateways go into the directory, changes at other
//! replicas come back.
//!
//! A session that was replaced by a newer one at another replica lingers for its streams, as one replaced
//! here does; when another process of the gateway holds the newer one, it ends at once. Edges are told where
//! the other replicas are, so that they know where to go when this one is gone.

use std::sync::Arc;
use std::time::Duration;

use causeway_api::GatewayStats;
use causeway_apicache::upstream::Upstream;
use causeway_channel::PeerId;
use causeway_channel::link::{Link, ResetCode, Stream, StreamHeader, StreamOrigin, StreamPurpose};
use causeway_channel::port::HandshakeSlot;
use causeway_gateway::Gateway;
use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::{Fleet, LocalSessions, SessionDirectory, SessionKey};
use crate::bootstrap::CLOUD;
use crate::channel::LinkHandler;
use crate::sessions::{EdgeStreamHandler, SessionFuture, Sessions};

/// Changes within this time are handled together: a fleet that reconnects makes twenty thousand changes.
const CHANGE_BATCH_DELAY: Duration = Duration::from_millis(20);
/// Added to `CHANGE_BATCH_DELAY` for each session: every look goes over all sessions, so a large fleet is looked at less
/// often.
const BATCH_DELAY_PER_CHANGE: Duration = Duration::from_micros(10);
/// Interval at which the list of other replicas is checked: no message reports a change of it.
const RECHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Number of looks after which all sessions are compared although none began or ended, in case a change was
/// missed.
const LOOKS_EACH: u32 = 20;

impl LocalSessions for Sessions {
    fn link(&self, gateway: &str) -> Option<Link> {
        Sessions::link(self, gateway)
    }

    fn is_attached(&self, gateway: &str) -> bool {
        self.session(gateway).is_some()
    }

    fn stats(&self) -> Vec<(String, GatewayStats)> {
        let attached = self.attached();
        let names = attached.iter().map(|session| session.peer.gateway());
        names.filter_map(|name| Some((name.to_owned(), self.gateway_stats(name)?))).collect()
    }
}

/// Keeps sessions and directory in step until told to stop.
pub async fn follow(sessions: &Sessions, directory: &SessionDirectory, stop: CancellationToken) {
    let (mut changes, mut replaced) = (sessions.changes(), directory.replaced());
    let (mut attached, mut looks) = (Vec::new(), LOOKS_EACH);
    loop {
        // Twenty thousand names twice a second would be a hundredth of a core, for nothing.
        if looks >= LOOKS_EACH {
            attached = names(sessions);
            directory.set_attached(&attached);
            looks = 0;
        }
        sessions.set_neighbours(directory.other_endpoints());
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            superseded = replaced.recv() => match superseded {
                Ok(superseded) => sessions.handle_replaced(&superseded.gateway, superseded.by),
                // Too many at once: all are compared.
                Err(RecvError::Lagged(_)) => for (gateway, key) in &attached {
                    if let Some(newer) = directory.newest(gateway).filter(|newer| newer.epoch > key.epoch) {
                        sessions.handle_replaced(gateway, newer);
                    }
                },
                Err(RecvError::Closed) => return stop.cancelled().await,
            },
            _ = changes.changed() => {
                tokio::time::sleep(CHANGE_BATCH_DELAY + BATCH_DELAY_PER_CHANGE * attached.len() as u32).await;
                // Changes during the sleep are looked at now.
                changes.mark_unchanged();
                looks = LOOKS_EACH;
            }
            () = tokio::time::sleep(RECHECK_INTERVAL) => looks += 1,
        }
    }
}

fn names(sessions: &Sessions) -> Vec<(String, SessionKey)> {
    let attached = sessions.attached();
    attached.iter().map(|session| (session.peer.gateway().to_owned(), session.key_of_session())).collect()
}

/// Streams of other replicas have this long after the sessions have ended: their last bytes are on the way.
const REPLICAS_END: Duration = Duration::from_secs(1);

/// Takes the links of the channel port: edges to the sessions, replicas to the fleet.
pub struct LinkDispatcher {
    sessions: Sessions,
    fleet: Arc<Fleet>,
    streams: Arc<EdgeStreamServer>,
    replicas: TaskTracker,
    stop: CancellationToken,
}

impl LinkDispatcher {
    /// `gateway` is the cloud's own, for streams that edges open to it; `kubernetes` is the cluster behind this cloud.
    pub fn new(
        sessions: Sessions,
        fleet: Arc<Fleet>,
        gateway: Gateway,
        kubernetes: Option<Arc<Upstream>>,
    ) -> LinkDispatcher {
        let streams = Arc::new(EdgeStreamServer { fleet: fleet.clone(), gateway, kubernetes });
        let (replicas, stop) = (TaskTracker::new(), CancellationToken::new());
        LinkDispatcher { sessions, fleet, streams, replicas, stop }
    }
}

impl LinkHandler for LinkDispatcher {
    fn handle_channel(&self, link: Link, turn: HandshakeSlot) {
        self.sessions.accept(link, turn, self.streams.clone());
    }

    fn handle_replica(&self, link: Link) {
        self.replicas.spawn(Box::pin(self.fleet.clone().serve(link, self.stop.clone())));
    }

    fn drain(&self) -> SessionFuture<'_, ()> {
        Box::pin(async {
            self.sessions.close_all().await;
            self.stop.cancel();
            self.replicas.close();
            let _ = tokio::time::timeout(REPLICAS_END, self.replicas.wait()).await;
        })
    }
}

/// Serves streams that edges open: those to the cloud's own gateway, and those to gateways of other sites.
pub struct EdgeStreamServer {
    pub fleet: Arc<Fleet>,
    pub gateway: Gateway,
    pub kubernetes: Option<Arc<Upstream>>,
}

impl EdgeStreamHandler for EdgeStreamServer {
    fn serve(&self, peer: &PeerId, header: StreamHeader, stream: Stream) -> SessionFuture<'static, ()> {
        if let (Some(StreamPurpose::Kubernetes), Some(upstream)) = (header.purpose(), &self.kubernetes) {
            // The certificate of the session tells which site asks.
            let (upstream, site) = (upstream.clone(), peer.site().to_owned());
            return Box::pin(async move { upstream.serve(site, &header.target, stream).await });
        }
        if !is_for_a_gateway(&header) {
            stream.refuse(ResetCode::NotAllowed);
            return Box::pin(std::future::ready(()));
        }
        if is_for_us(&header) {
            // The certificate of the session tells where the stream comes from.
            let origin = StreamOrigin { site: peer.site().to_owned(), gateway: peer.gateway().to_owned() };
            let header = StreamHeader { origin: Some(origin), ..header };
            self.gateway.serve(peer.site().into(), header, stream);
            return Box::pin(std::future::ready(()));
        }
        let (fleet, peer) = (self.fleet.clone(), peer.clone());
        Box::pin(async move { fleet.carry(&peer, header, stream).await })
    }
}

// Streams that the receiving gateway judges by its own policies. Probes, which it answers without one, are
// the cloud's alone, and so are questions about a gateway itself.
fn is_for_a_gateway(header: &StreamHeader) -> bool {
    let is_addressed = !header.gateway.is_empty() || !header.site.is_empty();
    is_addressed
        && match header.purpose() {
            Some(StreamPurpose::Service | StreamPurpose::Node | StreamPurpose::Packets) => true,
            Some(StreamPurpose::Diagnose) => causeway_gateway::diagnose::is_carried(header),
            _ => false,
        }
}

/// Returns true if the stream is for the cloud's own gateway, which every replica serves to its edges.
fn is_for_us(header: &StreamHeader) -> bool {
    header.gateway == CLOUD || header.gateway.is_empty() && header.site == CLOUD
}
