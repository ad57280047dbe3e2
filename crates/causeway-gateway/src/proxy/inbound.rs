//! From another site to a local backend: who says the certificate it is, may they, and a connection to the backend.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use causeway_channel::link::{Purpose, ResetCode, Stream, StreamHeader};
use causeway_netmap::{Protocol, Service, ServiceName, SiteName};
use tokio::net::TcpStream;

use super::backends::Dialled;
use super::connect;
use super::http;
use super::kafka::{self, Guide};
use super::outbound::{KEEPALIVE, code_for, code_for_cut, forget_netmap, judge_end};
use super::pump::{Ended, Side, Sink, Socket, Source, cross, stream_side};
use super::udp;
use crate::gateway::Shared;
use crate::live::Claim;
use crate::passage::{Direction, Meter, Passage, protocol_word};
use crate::peers::{Content, Crossing, Later};
use crate::policy::Refusal;

/// Serves one stream of another site. The box holds what its protocol needs and no more: idle connections come by the thousand.
pub fn serve(
    shared: Arc<Shared>,
    origin: SiteName,
    header: StreamHeader,
    stream: Stream,
) -> Later<'static, ()> {
    match header.purpose() {
        Some(Purpose::Service) => service(shared, origin, &header, stream),
        Some(Purpose::Node) => Box::pin(connect::node::serve(shared, origin, header, stream)),
        _ => {
            stream.refuse(ResetCode::Refused);
            done()
        }
    }
}

fn done() -> Later<'static, ()> {
    Box::pin(std::future::ready(()))
}

fn service(
    shared: Arc<Shared>,
    origin: SiteName,
    header: &StreamHeader,
    stream: Stream,
) -> Later<'static, ()> {
    let name = ServiceName::from(header.target.as_str());
    let protocol = shared.view().services.get(&name).map(|service| service.protocol);
    let claim = Claim::Reach { service: name, origin, subject: header.subject.clone() };
    let crossing = Crossing::of(header);
    let client = crossing.as_ref().ok().and_then(Crossing::client);
    let word = protocol.map_or("unknown", protocol_word);
    let brokers = crossing.as_ref().ok().filter(|_| protocol == Some(Protocol::Kafka)).cloned();
    let content = crossing.and_then(|crossing| crossing.content());
    if let (Some(Protocol::Http | Protocol::Grpc), Ok(Content::Requests | Content::Upgrade)) =
        (protocol, &content)
        && claim.judge(&shared.view()).is_ok()
    {
        // Every request has a passage of its own.
        let multiplexed = content == Ok(Content::Requests);
        return Box::pin(http::inbound::serve(shared, claim, client, multiplexed, stream));
    }
    let mut passage = Passage::begin(&shared, Direction::Inbound, word, claim, client);
    let content = match content {
        Ok(content) if protocol.is_none_or(|protocol| carries(content, protocol)) => content,
        Ok(_) => {
            refuse(passage, &Refusal::Malformed { why: "not what the service speaks" }, stream);
            return done();
        }
        Err(refusal) => {
            refuse(passage, &refusal, stream);
            return done();
        }
    };
    match content {
        Content::Bytes => Box::pin(tcp(shared, passage, stream, brokers)),
        Content::Datagrams => Box::pin(udp::serve_inbound(shared, passage, stream)),
        Content::Requests | Content::Upgrade => {
            let refusal = passage.admit().err();
            let refusal = refusal.unwrap_or(Refusal::Malformed { why: "not what the service speaks" });
            refuse(passage, &refusal, stream);
            done()
        }
    }
}

/// What may come in for a service. Its requests are read here, so they must come as requests: bytes would slip past the rules.
fn carries(content: Content, protocol: Protocol) -> bool {
    match protocol {
        Protocol::Tcp | Protocol::Https | Protocol::Kafka => content == Content::Bytes,
        Protocol::Udp => content == Content::Datagrams,
        Protocol::Http | Protocol::Grpc => matches!(content, Content::Requests | Content::Upgrade),
    }
}

/// The bytes of one connection. `brokers`: what was said of the crossing, when they are of Kafka.
async fn tcp(shared: Arc<Shared>, mut passage: Passage, stream: Stream, brokers: Option<Crossing>) {
    let admitted = match passage.admit_connection() {
        Ok(admitted) => admitted,
        Err(refusal) => return refuse(passage, &refusal, stream),
    };
    let Claim::Reach { service, .. } = &admitted.entry.claim else { return };
    let Some(service) = admitted.view.services.get(service) else { return };
    let dialling = dial(&shared, service, passage.client(), brokers.as_ref().and_then(Crossing::broker));
    let seen = brokers.as_ref().and_then(Crossing::seen);
    let guide = seen.map(|seen| Guide::new(&shared, service.name.clone(), seen));
    let dialled = tokio::select! {
        biased;
        cut = admitted.entry.cut() => {
            stream.refuse(code_for_cut(&cut));
            return passage.cut(&cut);
        }
        dialled = dialling => dialled,
    };
    let (mut backend, _lease) = match dialled {
        Ok(Dialled { stream, lease }) => (Socket::new(stream), lease),
        Err(refusal) => return refuse(passage, &refusal, stream),
    };
    let entry = forget_netmap(admitted);
    let mut far = stream_side(stream, || ());
    let mut near = backend.side();
    let meter = passage.meter().clone();
    let ended = tokio::select! {
        biased;
        cut = entry.cut() => Err(cut),
        ended = guided(&mut far, &mut near, &meter, shared.options.idle_timeout, guide.as_ref()) => Ok(ended),
    };
    passage.set_client_id(guide.as_ref().and_then(Guide::name));
    match ended {
        Ok(ended) => {
            far.give_up(code_for(&ended));
            let (end, reason) = judge_end(&ended, None);
            passage.end(end, reason);
        }
        Err(cut) => {
            far.give_up(code_for_cut(&cut));
            passage.cut(&cut);
        }
    }
    backend.close();
}

/// A backend of the service: this one, or whichever is best.
pub(crate) async fn dial(
    shared: &Shared,
    service: &Service,
    client: Option<SocketAddr>,
    place: Option<usize>,
) -> Result<Dialled, Refusal> {
    match place {
        Some(place) => shared.backends.dial_one(service, place, client).await,
        None => shared.backends.dial_for(service, client).await,
    }
}

/// Moves everything, with a guide through answers that say where to go next.
pub(crate) async fn guided<R: Source, W: Sink, S: Source, V: Sink>(
    client: &mut Side<R, W>,
    backend: &mut Side<S, V>,
    meter: &Meter,
    idle: Duration,
    guide: Option<&Guide>,
) -> Ended {
    match guide {
        // On the heap: connections without a guide do not carry its state.
        Some(guide) => Box::pin(kafka::cross(client, backend, meter, idle, guide)).await,
        None => cross(client, backend, meter, idle).await,
    }
}

/// Small things at once, and the dead are found out.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // A kernel without it has no pacing to be spared.
    let _ = causeway_channel::tcp::unpace(stream);
    let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

pub(crate) fn refuse(passage: Passage, refusal: &Refusal, stream: Stream) {
    stream.refuse(refusal.code());
    passage.refuse(refusal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_is_what_the_service_speaks() {
        let bytes = [Protocol::Tcp, Protocol::Https, Protocol::Kafka];
        let requests = [Protocol::Http, Protocol::Grpc];
        for protocol in bytes {
            assert!(carries(Content::Bytes, protocol) && !carries(Content::Requests, protocol));
        }
        for protocol in requests {
            assert!(carries(Content::Requests, protocol) && carries(Content::Upgrade, protocol));
            assert!(!carries(Content::Bytes, protocol), "bytes would slip past the rules of requests");
        }
        assert!(carries(Content::Datagrams, Protocol::Udp) && !carries(Content::Bytes, Protocol::Udp));
    }
}
