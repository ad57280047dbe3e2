//! From a local client to another site: who is it, may it, and a stream to the gateway of the service.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use causeway_channel::link::{ResetCode, Stream};
use causeway_netmap::{PresenceEntry, ServiceEntry, ServiceProtocol, SiteName};
use tokio::net::TcpStream;

use super::backends::BackendConnection;
use super::copy::{CopyEnd, SplitSocket, cross, reset, stream_side};
use super::http;
use super::inbound::{dial, guided, prepare};
use super::kafka::KafkaRewriter;
use super::listeners::AcceptedClient;
use crate::audit::ConnectionEnd;
use crate::connection_record::{AdmittedAccess, ConnectionRecord, CrossingDirection, protocol_word};
use crate::live::{AccessRequest, LiveConnection};
use crate::peers::{BoxedFuture, CrossingHeader, StreamContent};
use crate::policy::PolicyRefusal;
use crate::proxy::Proxy;

/// Serves one client at a presence. The box holds what its protocol needs and no more: idle connections come by the thousand.
pub fn serve(proxy: Arc<Proxy>, accepted: AcceptedClient) -> BoxedFuture<'static, ()> {
    let protocol = proxy.context.view().presences.get(&accepted.service).map(|presence| presence.protocol);
    match protocol {
        Some(protocol @ (ServiceProtocol::Tcp | ServiceProtocol::Https | ServiceProtocol::Kafka)) => {
            Box::pin(tcp(proxy, accepted, protocol))
        }
        Some(ServiceProtocol::Http | ServiceProtocol::Grpc) => {
            let AcceptedClient { stream, client, service, broker: _ } = accepted;
            Box::pin(http::outbound::serve(proxy, stream, client, http::ClientEntry::Presence(service)))
        }
        // UDP has no connections; of what is unknown the presence went away in this moment.
        Some(ServiceProtocol::Udp) | None => {
            reset(accepted.stream);
            Box::pin(std::future::ready(()))
        }
    }
}

/// The bytes of one connection.
async fn tcp(proxy: Arc<Proxy>, accepted: AcceptedClient, protocol: ServiceProtocol) {
    let AcceptedClient { stream, client, service, broker } = accepted;
    let claim = AccessRequest::Use { service: service.clone(), client: client.ip() };
    let word = protocol_word(protocol);
    let mut passage =
        ConnectionRecord::begin(&proxy.context, CrossingDirection::Outbound, word, claim, Some(client));
    let admitted = match passage.admit_connection() {
        Ok(admitted) => admitted,
        Err(refusal) => return refuse(passage, &refusal, stream),
    };
    if let Err(error) = prepare(&stream) {
        return passage.end(ConnectionEnd::ClientReset, Some(error.to_string()));
    }
    let Some(presence) = admitted.view.presences.get(&service) else { return reset(stream) };
    // Who is not told of brokers has no use for their addresses.
    let seen = (presence.brokers > 0).then(|| seen_at(&stream, broker)).flatten();
    if let Some(here) = at_home(&admitted, presence) {
        let dialled = tokio::select! {
            biased;
            cut = admitted.entry.cut() => return passage.cut(&cut),
            dialled = dial(&proxy, here, Some(client), broker.map(usize::from)) => dialled,
        };
        let guide = seen.map(|seen| KafkaRewriter::new(&proxy, service, seen));
        return match dialled {
            Ok(backend) => {
                let entry = forget_netmap(admitted);
                between_sockets(&proxy, passage, &entry, stream, backend, guide.as_ref()).await;
            }
            Err(refusal) => refuse(passage, &refusal, stream),
        };
    }
    let crossing = CrossingHeader::new(StreamContent::Bytes, client);
    let crossing = match seen {
        Some(seen) => crossing.with_brokers(seen, broker),
        None => crossing,
    };
    match open(&proxy, &admitted, presence, crossing).await {
        Ok(far) => {
            let home = presence.home.clone();
            let entry = forget_netmap(admitted);
            carry(&proxy, passage, &entry, stream, far, &home).await;
        }
        Err(refusal) => refuse(passage, &refusal, stream),
    }
}

/// What lasts as long as its connection. The netmap does not: it may be large, and the next one comes soon.
pub(crate) fn forget_netmap(admitted: AdmittedAccess) -> Arc<LiveConnection> {
    admitted.entry
}

/// Where the client of a cluster of Kafka sees its service: it came to the service's own port, or to that of a broker behind it.
fn seen_at(stream: &TcpStream, broker: Option<u16>) -> Option<SocketAddr> {
    let at = stream.local_addr().ok()?;
    let offset = broker.map_or(0, |broker| broker.saturating_add(1));
    Some(SocketAddr::new(at.ip().to_canonical(), at.port().checked_sub(offset)?))
}

/// The service, when it runs at our own site: then nothing crosses.
pub(crate) fn at_home<'a>(
    admitted: &'a AdmittedAccess,
    presence: &PresenceEntry,
) -> Option<&'a ServiceEntry> {
    let home = (presence.home == admitted.who.site).then_some(&presence.service)?;
    admitted.view.services.get(home)
}

/// A stream to the gateway of a service.
pub(crate) async fn open(
    proxy: &Proxy,
    admitted: &AdmittedAccess,
    presence: &PresenceEntry,
    crossing: CrossingHeader,
) -> Result<Stream, PolicyRefusal> {
    let header = crossing.to_service(&presence.service, &presence.home, &admitted.who);
    let away = || PolicyRefusal::SiteAway { site: presence.home.clone() };
    match tokio::time::timeout(proxy.options.connect_timeout, proxy.context.peers.open_stream(header)).await {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "no stream to another site");
            Err(away())
        }
        Err(_) => {
            proxy.context.peers.suspect(&presence.home);
            Err(away())
        }
    }
}

/// Carries a connection over a stream until one of them ends.
async fn carry(
    proxy: &Proxy,
    passage: ConnectionRecord,
    entry: &LiveConnection,
    stream: TcpStream,
    far: Stream,
    home: &SiteName,
) {
    let mut socket = SplitSocket::new(stream);
    let mut far = stream_side(far, || proxy.context.peers.suspect(home));
    let mut near = socket.side();
    let meter = passage.meter().clone();
    let ended = tokio::select! {
        biased;
        cut = entry.cut() => Err(cut),
        ended = cross(&mut near, &mut far, &meter, proxy.options.idle_timeout) => Ok(ended),
    };
    match ended {
        Ok(ended) => {
            far.give_up(code_for(&ended));
            let (end, reason) = judge_end(&ended, Some(meter.received()));
            passage.end(end, reason);
        }
        Err(cut) => {
            far.give_up(code_for_cut(&cut));
            passage.cut(&cut);
        }
    }
    socket.close();
}

/// Client and backend are both here.
async fn between_sockets(
    proxy: &Proxy,
    mut passage: ConnectionRecord,
    entry: &LiveConnection,
    stream: TcpStream,
    backend: BackendConnection,
    guide: Option<&KafkaRewriter>,
) {
    let BackendConnection { stream: backend, lease: _lease } = backend;
    let (mut client, mut backend) = (SplitSocket::new(stream), SplitSocket::new(backend));
    let (mut near, mut far) = (client.side(), backend.side());
    let meter = passage.meter().clone();
    let ended = tokio::select! {
        biased;
        cut = entry.cut() => Err(cut),
        ended = guided(&mut near, &mut far, &meter, proxy.options.idle_timeout, guide) => Ok(ended),
    };
    passage.set_client_id(guide.and_then(KafkaRewriter::name));
    match ended {
        Ok(ended) => {
            let (end, reason) = judge_end(&ended, None);
            passage.end(end, reason);
        }
        Err(cut) => passage.cut(&cut),
    }
    client.close();
    backend.close();
}

fn refuse(passage: ConnectionRecord, refusal: &PolicyRefusal, stream: TcpStream) {
    reset(stream);
    passage.refuse(refusal);
}

/// What the other gateway is told when a crossing ended here.
pub(crate) fn code_for(ended: &CopyEnd) -> ResetCode {
    match ended {
        CopyEnd::Idle => ResetCode::Timeout,
        _ => ResetCode::Abandoned,
    }
}

pub(crate) fn code_for_cut(cut: &crate::live::CutReason) -> ResetCode {
    match cut {
        crate::live::CutReason::Revoked(_) => ResetCode::Revoked,
        crate::live::CutReason::Limit(_) => ResetCode::Limit,
        crate::live::CutReason::Stopped => ResetCode::Draining,
    }
}

/// In the words of the audit. `received`: the backend is behind another gateway, and so much came from it.
pub(crate) fn judge_end(ended: &CopyEnd, received: Option<u64>) -> (ConnectionEnd, Option<String>) {
    match ended {
        CopyEnd::Done => (ConnectionEnd::Done, None),
        CopyEnd::Idle => (ConnectionEnd::Idle, None),
        CopyEnd::Client(error) => (client_end(error), Some(error.to_string())),
        CopyEnd::Backend(error) => (backend_end(error, received), Some(error.to_string())),
    }
}

/// The side of the client broke: a socket here, or the stream of the gateway it is behind.
fn client_end(error: &std::io::Error) -> ConnectionEnd {
    match ResetCode::of(error) {
        Some(ResetCode::Revoked | ResetCode::NotAllowed) => ConnectionEnd::Revoked,
        Some(ResetCode::Timeout) => ConnectionEnd::Idle,
        Some(ResetCode::Draining) => ConnectionEnd::Stopped,
        Some(ResetCode::Limit) => ConnectionEnd::Limit,
        None if error.kind() == std::io::ErrorKind::NotConnected => ConnectionEnd::LinkLost,
        _ => ConnectionEnd::ClientReset,
    }
}

fn backend_end(error: &std::io::Error, received: Option<u64>) -> ConnectionEnd {
    let is_begun = received.is_some_and(|bytes| bytes > 0);
    match ResetCode::of(error) {
        Some(ResetCode::Revoked) => ConnectionEnd::Revoked,
        // An older gateway has one word for both: what was allowed a moment ago, and is not now.
        Some(ResetCode::NotAllowed) if is_begun => ConnectionEnd::Revoked,
        Some(ResetCode::NotAllowed | ResetCode::NoRoute | ResetCode::Refused | ResetCode::Malformed) => {
            ConnectionEnd::Refused
        }
        Some(ResetCode::BackendDown) => ConnectionEnd::BackendDown,
        Some(ResetCode::Timeout) if is_begun => ConnectionEnd::Idle,
        Some(ResetCode::Timeout) => ConnectionEnd::Timeout,
        Some(ResetCode::Limit) => ConnectionEnd::Limit,
        Some(ResetCode::Draining) => ConnectionEnd::Stopped,
        None if error.kind() == std::io::ErrorKind::NotConnected => ConnectionEnd::LinkLost,
        _ => ConnectionEnd::BackendReset,
    }
}

// Kept alive through the kernel; the idle timeout is for those whose kernels answer and who say nothing.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use std::io;

    use causeway_channel::link::Reset;

    use super::*;

    #[test]
    fn how_a_crossing_ended_is_told_from_what_broke_and_how() {
        let check = |ended: CopyEnd, received: Option<u64>, expected: ConnectionEnd| {
            assert_eq!(judge_end(&ended, received).0, expected, "{ended:?} after {received:?}");
        };
        let reset = |code| Reset::reading(code);
        let socket = || io::Error::from(io::ErrorKind::ConnectionReset);
        let link = || io::Error::from(io::ErrorKind::NotConnected);
        check(CopyEnd::Done, Some(1), ConnectionEnd::Done);
        check(CopyEnd::Idle, None, ConnectionEnd::Idle);
        check(CopyEnd::Client(socket()), None, ConnectionEnd::ClientReset);
        check(CopyEnd::Client(reset(ResetCode::Abandoned)), None, ConnectionEnd::ClientReset);
        check(CopyEnd::Client(reset(ResetCode::NotAllowed)), None, ConnectionEnd::Revoked);
        check(CopyEnd::Client(reset(ResetCode::Timeout)), None, ConnectionEnd::Idle);
        check(CopyEnd::Client(reset(ResetCode::Draining)), None, ConnectionEnd::Stopped);
        check(CopyEnd::Client(link()), None, ConnectionEnd::LinkLost);
        check(CopyEnd::Backend(socket()), None, ConnectionEnd::BackendReset);
        check(CopyEnd::Backend(reset(ResetCode::Abandoned)), Some(0), ConnectionEnd::BackendReset);
        check(CopyEnd::Backend(reset(ResetCode::BackendDown)), Some(0), ConnectionEnd::BackendDown);
        check(CopyEnd::Backend(reset(ResetCode::NoRoute)), Some(0), ConnectionEnd::Refused);
        // The other gateway refuses what has not begun, and revokes what has, also before it said anything.
        check(CopyEnd::Backend(reset(ResetCode::Revoked)), Some(0), ConnectionEnd::Revoked);
        check(CopyEnd::Client(reset(ResetCode::Revoked)), None, ConnectionEnd::Revoked);
        check(CopyEnd::Backend(reset(ResetCode::NotAllowed)), Some(0), ConnectionEnd::Refused);
        check(CopyEnd::Backend(reset(ResetCode::NotAllowed)), Some(9), ConnectionEnd::Revoked);
        check(CopyEnd::Backend(reset(ResetCode::Timeout)), Some(0), ConnectionEnd::Timeout);
        check(CopyEnd::Backend(reset(ResetCode::Limit)), Some(0), ConnectionEnd::Limit);
        check(CopyEnd::Backend(link()), Some(9), ConnectionEnd::LinkLost);
    }
}
