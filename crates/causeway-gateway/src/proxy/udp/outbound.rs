//! Forwards datagrams from clients at a presence to the gateway of the service.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use causeway_channel::link::ResetCode;
use causeway_channel::wire::datagrams::FramedDatagram;
use causeway_daemon::sync::MutexExt;
use causeway_netmap::{ServiceName, ServiceProtocol};
use tokio::net::UdpSocket;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::carry::{DatagramSide, carry, receive_from};
use super::inbound::{SessionCancellation, carry_to_backend};
use super::refusals::{FAILED, REFUSED, RecentRefusals};
use super::table::{FeedResult, UdpSessionKey, UdpSessionQueue, UdpSessionSlot};
use crate::audit::ConnectionEnd;
use crate::connection_record::{ConnectionRecord, CrossingDirection, protocol_word};
use crate::live::AccessRequest;
use crate::peers::{CrossingHeader, StreamContent};
use crate::policy::PolicyRefusal;
use crate::proxy::Proxy;
use crate::proxy::copy::CopyEnd;
use crate::proxy::end_reason::{self, code_for_cut};
use crate::proxy::listeners::UdpPresence;
use crate::proxy::outbound::local_service;
use crate::proxy::stream_opener::{ClientStream, open_for_service};

/// The pause after an error of the socket itself, so that a permanent error does not spin.
const ERROR_DELAY: Duration = Duration::from_millis(20);

/// Serves the clients of one presence until it is gone. The sessions are tasks of `tasks`.
pub async fn serve(proxy: Arc<Proxy>, opened: UdpPresence, tasks: TaskTracker) {
    let UdpPresence { socket, service, closed } = opened;
    let Ok(presence) = socket.local_addr() else { return };
    let demux = UdpDemux { proxy, socket, service, presence, closed, tasks, refusals: Arc::default() };
    loop {
        let received = tokio::select! {
            biased;
            () = demux.closed.cancelled() => return,
            received = receive_from(&demux.socket) => received,
        };
        match received {
            Ok((datagram, client)) => demux.take(client, datagram),
            Err(error) => {
                tracing::debug!(service = %demux.service, %error, "cannot receive a datagram");
                tokio::time::sleep(ERROR_DELAY).await;
            }
        }
    }
}

/// Distributes the datagrams of one presence to its sessions.
struct UdpDemux {
    proxy: Arc<Proxy>,
    socket: Arc<UdpSocket>,
    service: ServiceName,
    presence: SocketAddr,
    closed: CancellationToken,
    tasks: TaskTracker,
    refusals: Arc<Mutex<RecentRefusals>>,
}

impl UdpDemux {
    fn take(&self, client: SocketAddr, datagram: FramedDatagram) {
        let client = SocketAddr::new(client.ip().to_canonical(), client.port());
        let key = UdpSessionKey { client, presence: self.presence };
        let datagram = match self.proxy.udp_sessions.find(&key) {
            Some(slot) => match slot.feed(datagram.clone()) {
                FeedResult::Queued => return,
                FeedResult::Dropped => {
                    self.proxy.context.metrics.datagrams_dropped.inc();
                    return;
                }
                // The session has just ended: the datagram begins another one.
                FeedResult::Gone => datagram,
            },
            None => datagram,
        };
        if let Some((slot, session)) = self.begin(key) {
            slot.feed(datagram);
            self.tasks.spawn(Box::pin(session));
        }
    }

    /// Creates a session for a new client, unless it is refused. The policy is checked first, so that refused
    /// clients do not fill the table of sessions.
    fn begin(&self, key: UdpSessionKey) -> Option<(Arc<UdpSessionSlot>, impl Future<Output = ()> + use<>)> {
        let (proxy, now) = (&self.proxy, Instant::now());
        let view = proxy.context.view();
        let ip = key.client.ip();
        if self.refusals.lock_ignoring_poison().holds(ip, view.generation, now) {
            proxy.context.metrics.datagrams_dropped.inc();
            return None;
        }
        let claim = AccessRequest::Use { service: self.service.clone(), client: ip, request: None };
        if let Err(refusal) = claim.judge(&view) {
            match self.refusals.lock_ignoring_poison().add(ip, now, REFUSED) {
                true => self.record(claim, key.client).refuse(&refusal),
                false => proxy.context.metrics.refused(refusal.word()),
            }
            return None;
        }
        let (slot, queue, is_evicting) = proxy.udp_sessions.begin(key);
        if is_evicting {
            proxy.context.metrics.udp_sessions_evicted.inc();
        }
        let session = Session {
            record: self.record(claim, key.client),
            place: InTable { proxy: proxy.clone(), key, slot: slot.clone() },
            socket: self.socket.clone(),
            closed: self.closed.clone(),
            refusals: self.refusals.clone(),
        };
        Some((slot, session.run(queue)))
    }

    fn record(&self, claim: AccessRequest, client: SocketAddr) -> ConnectionRecord {
        let word = protocol_word(ServiceProtocol::Udp);
        ConnectionRecord::begin(&self.proxy.context, CrossingDirection::Outbound, word, claim, Some(client))
    }
}

/// Removes the session from the table when dropped, however the task ends.
struct InTable {
    proxy: Arc<Proxy>,
    key: UdpSessionKey,
    slot: Arc<UdpSessionSlot>,
}

impl Drop for InTable {
    fn drop(&mut self) {
        self.proxy.udp_sessions.end(&self.key, &self.slot);
    }
}

struct Session {
    record: ConnectionRecord,
    place: InTable,
    socket: Arc<UdpSocket>,
    closed: CancellationToken,
    refusals: Arc<Mutex<RecentRefusals>>,
}

impl Session {
    async fn run(self, queue: UdpSessionQueue) {
        let Session { record, place, socket, closed, refusals } = self;
        let meter = record.meter().clone();
        let near = DatagramSide::client(socket, place.key.client, queue);
        let obstacles = SessionCancellation { slot: Some(&place.slot), closed: Some(&closed) };
        let is_over_in_order = cross(&place.proxy, record, place.key.client, near, obstacles).await;
        // A client that continues to send must not create a record with every datagram.
        if !is_over_in_order && meter.received() == 0 {
            refusals.lock_ignoring_poison().add(place.key.client.ip(), Instant::now(), FAILED);
        }
    }
}

/// Serves a session from its first datagram to its end. Returns false when it was refused or failed.
async fn cross(
    proxy: &Arc<Proxy>,
    mut record: ConnectionRecord,
    client: SocketAddr,
    mut near: DatagramSide,
    obstacles: SessionCancellation<'_>,
) -> bool {
    // Limits may refuse where the policy allows. UDP has no reply for that: the datagram is dropped.
    let admitted = match record.admit_connection() {
        Ok(admitted) => admitted,
        Err(refusal) => return refused(record, &refusal),
    };
    let AccessRequest::Use { service, .. } = &admitted.entry.claim else { return false };
    let Some(presence) = admitted.view.presences.get(service) else { return false };
    if let Some(here) = local_service(&admitted, presence) {
        let service = here.name.clone();
        return carry_to_backend(proxy, record, admitted, service, &mut near, obstacles).await;
    }
    let crossing =
        CrossingHeader::new(StreamContent::Datagrams, client).with_trace(record.span().stream_context());
    let opened =
        match admitted.entry.until_cut(pin!(open_for_service(proxy, &admitted, presence, crossing))).await {
            Ok(opened) => opened,
            Err(cut) => {
                record.cut(&cut);
                return true;
            }
        };
    let (mut far, _slot) = match opened {
        Ok(ClientStream { stream, slot }) => (DatagramSide::stream(stream), slot),
        Err(refusal) => return refused(record, &refusal),
    };
    let entry = admitted.into_entry();
    let meter = record.meter().clone();
    tokio::select! {
        biased;
        cut = entry.cut() => {
            far.give_up(code_for_cut(&cut));
            record.cut(&cut);
            true
        }
        (end, why) = obstacles.met() => {
            far.give_up(ResetCode::Abandoned);
            record.end(end, Some(why.to_owned()));
            true
        }
        ended = carry(&mut near, &mut far, &meter, &proxy.options.udp, &proxy.context.metrics) => {
            let is_over_in_order = matches!(ended, CopyEnd::Idle | CopyEnd::Done);
            let ended = Ok(ended);
            far.give_up(end_reason::reset_code(&ended));
            end_reason::close_record(record, &ended, Some(meter.received()));
            is_over_in_order
        }
    }
}

fn refused(record: ConnectionRecord, refusal: &PolicyRefusal) -> bool {
    record.refuse(refusal);
    false
}

impl SessionCancellation<'_> {
    /// Resolves when the session must end: it was evicted, or the presence is gone.
    pub async fn met(&self) -> (ConnectionEnd, &'static str) {
        let evicted = async {
            match self.slot {
                Some(slot) => slot.evicted.cancelled().await,
                None => std::future::pending().await,
            }
        };
        let closed = async {
            match self.closed {
                Some(closed) => closed.cancelled().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = evicted => (ConnectionEnd::Limit, "the table of UDP sessions is full"),
            () = closed => (ConnectionEnd::Stopped, "the presence was removed from its address"),
        }
    }
}
