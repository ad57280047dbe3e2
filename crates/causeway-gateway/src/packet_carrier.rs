//! Carries sealed packets over the channel, for peers that UDP does not reach.
//!
//! Input: packets of the tunnel, and streams of purpose `Packets` from other gateways. Output: a stream per peer
//! with packets as datagrams, and received packets to a `PacketHandler`. An edge's streams go through the cloud, which
//! stamps their origin from the certificate and cannot read the packets. Each stream carries one direction; the other
//! gateway opens its own. A full queue drops the packet and counts it, as a full network does.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use causeway_channel::link::{DatagramFlow, ResetCode, Stream, StreamHeader, StreamPurpose};
use causeway_channel::wire::datagrams::FramedDatagram;
use causeway_daemon::sync::MutexExt;
use causeway_netmap::{GatewayName, NetmapView, SiteName};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::gateway::GatewayContext;
use crate::peer_requests::PeerQuestion;

/// Packets that wait for one peer: about 350 KB, a tenth of a second at 30 Mbit/s.
const QUEUE_MAX: usize = 256;
/// A stream without a packet for this long is closed: the peer is reached by UDP again, or is silent.
const IDLE: Duration = Duration::from_secs(60);
/// Packets are dropped for this long after a stream could not be opened, so that a peer that is away costs no attempt
/// for every packet.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Time that a stream of an unknown member has to become one of a peer, and after which it is asked for again.
const AWAIT_PEER: Duration = Duration::from_secs(5);
const ASK_AGAIN: Duration = Duration::from_millis(1100);
/// Streams of unknown members that wait at the same time, in all and of one gateway; a further one is refused, and its
/// gateway tries again. Any gateway of the fleet can open such a stream: one that was taken over leaves places to the
/// other ones. A gateway whose link was replaced has two for a moment.
const AWAITED_MAX: usize = 64;
const AWAITED_OF_ONE_MAX: usize = 2;

/// Takes a packet that another gateway sent over the channel. Must not block.
pub type PacketHandler = Arc<dyn Fn(&GatewayName, Bytes) + Send + Sync>;

/// Sends packets to other gateways over the channel. One that was not started drops every packet.
pub struct PacketCarrier {
    context: Arc<GatewayContext>,
    /// Set when the gateway runs: the threads of the tunnel have no runtime.
    runtime: OnceLock<Handle>,
    /// One queue per peer of the netmap.
    queues: Mutex<HashMap<GatewayName, mpsc::Sender<FramedDatagram>>>,
}

impl PacketCarrier {
    pub fn new(context: Arc<GatewayContext>) -> Arc<PacketCarrier> {
        Arc::new(PacketCarrier { context, runtime: OnceLock::new(), queues: Mutex::default() })
    }

    /// Lets streams be opened, on the runtime of the caller.
    pub fn start(&self) {
        let _ = self.runtime.set(Handle::current());
    }

    /// Queues a packet. False: it was dropped. Never blocks.
    pub fn send(self: &Arc<PacketCarrier>, to: &GatewayName, packet: &[u8]) -> bool {
        let queue = self.queue(to);
        let sent = queue
            .zip(FramedDatagram::new(packet))
            .is_some_and(|(queue, packet)| queue.try_send(packet).is_ok());
        if !sent {
            self.context.metrics.datagrams_dropped.inc();
        }
        sent
    }

    fn queue(self: &Arc<PacketCarrier>, to: &GatewayName) -> Option<mpsc::Sender<FramedDatagram>> {
        let mut queues = self.queues();
        if let Some(queue) = queues.get(to).filter(|queue| !queue.is_closed()) {
            return Some(queue.clone());
        }
        let site = carried_site(&self.context.view(), to)?;
        let runtime = self.runtime.get().filter(|_| !self.context.stopping.is_cancelled())?;
        let (queue, packets) = mpsc::channel(QUEUE_MAX);
        queues.insert(to.clone(), queue.clone());
        // Bounded by the peers of the netmap; those that are gone leave their queues.
        queues.retain(|_, queue| !queue.is_closed());
        let (carrier, to) = (self.clone(), to.clone());
        self.context.tasks.spawn_on(async move { carrier.carry(site, to, packets).await }, runtime);
        Some(queue)
    }

    /// Sends the packets of one queue until it is idle, the peer is gone, or the gateway stops.
    async fn carry(&self, site: SiteName, to: GatewayName, mut packets: mpsc::Receiver<FramedDatagram>) {
        let header = StreamHeader::new(StreamPurpose::Packets).to(site.as_str(), to.as_str());
        let header = StreamHeader { datagrams: true, ..header };
        let opened = self.context.open_stream(&site, header).await;
        let mut flow = match opened {
            Ok(stream) => DatagramFlow::from(stream),
            Err(error) => {
                tracing::debug!(gateway = %to, %error, "packets cannot cross over the channel");
                // The queue stays, and its packets are dropped when it is full.
                tokio::select! {
                    () = self.context.stopping.cancelled() => {}
                    () = tokio::time::sleep(RETRY_DELAY) => {}
                }
                return;
            }
        };
        let mut netmaps = self.context.netmaps();
        loop {
            let packet = tokio::select! {
                biased;
                () = self.context.stopping.cancelled() => break,
                _ = flow.send.stopped() => return,
                Ok(()) = netmaps.changed() => match carried_site(&netmaps.borrow_and_update(), &to) {
                    Some(_) => continue,
                    None => break,
                },
                packet = tokio::time::timeout(IDLE, packets.recv()) => packet,
            };
            let Ok(Some(packet)) = packet else { break };
            if flow.send.send(packet).await.is_err() {
                return;
            }
        }
        let _ = flow.send.finish().await;
    }

    fn queues(&self) -> MutexGuard<'_, HashMap<GatewayName, mpsc::Sender<FramedDatagram>>> {
        self.queues.lock_ignoring_poison()
    }
}

/// Receives the packets of one stream from `from` at `site`, which its certificate or the cloud's stamp names.
pub async fn receive(
    context: Arc<GatewayContext>,
    (site, from): (SiteName, GatewayName),
    stream: Stream,
    handle: PacketHandler,
) {
    let is_peer = |view: &NetmapView| carried_site(view, &from).is_some_and(|found| found == site);
    if !is_peer(&context.view()) && !becomes_peer(&context, (&site, &from), is_peer).await {
        return stream.refuse(ResetCode::NotAllowed);
    }
    let (mut flow, mut netmaps) = (DatagramFlow::from(stream), context.netmaps());
    loop {
        tokio::select! {
            biased;
            () = context.stopping.cancelled() => return,
            Ok(()) = netmaps.changed() => if !is_peer(&netmaps.borrow_and_update()) {
                return flow.recv.stop(ResetCode::NotAllowed);
            },
            packet = flow.recv.recv() => match packet {
                Ok(Some(packet)) => handle(&from, Bytes::copy_from_slice(packet.payload())),
                Ok(None) | Err(_) => return,
            },
        }
    }
}

/// Asks the cloud for a member of a large community that sends packets, and waits for the netmap that makes it a peer. The
/// packets wait in the stream meanwhile.
async fn becomes_peer(
    context: &GatewayContext,
    (site, from): (&SiteName, &GatewayName),
    is_peer: impl Fn(&NetmapView) -> bool,
) -> bool {
    if context.view().on_demand.is_none() {
        return false;
    }
    let Some(_place) = context.peers_awaited.enter(from) else { return false };
    let mut netmaps = context.netmaps();
    let is_asked = async {
        loop {
            context.peer_requests.ask(PeerQuestion::Site(site.to_string()));
            // The question is repeated: above its rate the cloud drops it.
            let changed = tokio::time::timeout(ASK_AGAIN, netmaps.wait_for(|view| is_peer(view)));
            match changed.await {
                Ok(found) => return found.is_ok(),
                Err(_) => continue,
            }
        }
    };
    tokio::select! {
        biased;
        () = context.stopping.cancelled() => false,
        found = tokio::time::timeout(AWAIT_PEER, is_asked) => found.unwrap_or(false),
    }
}

/// The gateways whose streams wait until they are peers.
#[derive(Default, Debug)]
pub(crate) struct AwaitedPeers(Mutex<Vec<GatewayName>>);

/// The place of one stream. It is free again when this is dropped.
#[derive(Debug)]
pub(crate) struct AwaitedPeer<'a> {
    peers: &'a AwaitedPeers,
    gateway: GatewayName,
}

impl AwaitedPeers {
    /// None: too many streams wait, in all or of this gateway.
    fn enter(&self, gateway: &GatewayName) -> Option<AwaitedPeer<'_>> {
        let mut waiting = self.0.lock_ignoring_poison();
        let of_this = waiting.iter().filter(|known| *known == gateway).count();
        if waiting.len() >= AWAITED_MAX || of_this >= AWAITED_OF_ONE_MAX {
            return None;
        }
        waiting.push(gateway.clone());
        Some(AwaitedPeer { peers: self, gateway: gateway.clone() })
    }
}

impl Drop for AwaitedPeer<'_> {
    fn drop(&mut self) {
        let mut waiting = self.peers.0.lock_ignoring_poison();
        if let Some(place) = waiting.iter().position(|known| *known == self.gateway) {
            waiting.swap_remove(place);
        }
    }
}

/// Returns the site of a peer that packets may be carried to. A plain WireGuard peer has no channel.
fn carried_site(view: &NetmapView, gateway: &GatewayName) -> Option<SiteName> {
    let peer = view.tunnel_peers.get(gateway)?;
    (!peer.plain_wireguard).then(|| peer.site.clone())
}
