//! From another site to a local backend: who says the certificate it is, may they, and a connection to the backend.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use causeway_channel::link::{ResetCode, Stream, StreamHeader, StreamPurpose};
use causeway_netmap::{ServiceEntry, ServiceName, ServiceProtocol, SiteName};
use tokio::net::TcpStream;

use super::backends::BackendConnection;
use super::connect;
use super::copy::{ByteSink, ByteSource, CopyEnd, CopySide, SplitSocket, cross, stream_side};
use super::http;
use super::kafka::{self, KafkaRewriter};
use super::outbound::{KEEPALIVE, code_for, code_for_cut, forget_netmap, judge_end};
use super::udp;
use crate::connection_record::{ByteMeter, ConnectionRecord, CrossingDirection, protocol_word};
use crate::live::AccessRequest;
use crate::peers::{BoxedFuture, CrossingHeader, StreamContent};
use crate::policy::PolicyRefusal;
use crate::proxy::Proxy;

/// Serves one stream of another site. The box holds what its protocol needs and no more: idle connections come by the thousand.
pub fn serve(
    proxy: Arc<Proxy>,
    origin: SiteName,
    header: StreamHeader,
    stream: Stream,
) -> BoxedFuture<'static, ()> {
    match header.purpose() {
        Some(StreamPurpose::Service) => service(proxy, origin, &header, stream),
        Some(StreamPurpose::Node) => Box::pin(connect::node::serve(proxy, origin, header, stream)),
        _ => {
            stream.refuse(ResetCode::Refused);
            done()
        }
    }
}

fn done() -> BoxedFuture<'static, ()> {
    Box::pin(std::future::ready(()))
}

fn service(
    proxy: Arc<Proxy>,
    origin: SiteName,
    header: &StreamHeader,
    stream: Stream,
) -> BoxedFuture<'static, ()> {
    let name = ServiceName::from(header.target.as_str());
    let protocol = proxy.context.view().services.get(&name).map(|service| service.protocol);
    let claim = AccessRequest::Reach { service: name, origin, subject: header.subject.clone() };
    let crossing = CrossingHeader::of(header);
    let client = crossing.as_ref().ok().and_then(CrossingHeader::client);
    let word = protocol.map_or("unknown", protocol_word);
    let brokers = crossing.as_ref().ok().filter(|_| protocol == Some(ServiceProtocol::Kafka)).cloned();
    let content = crossing.and_then(|crossing| crossing.content());
    if let (
        Some(ServiceProtocol::Http | ServiceProtocol::Grpc),
        Ok(StreamContent::Requests | StreamContent::Upgrade),
    ) = (protocol, &content)
        && claim.judge(&proxy.context.view()).is_ok()
    {
        // Every request has a passage of its own.
        let multiplexed = content == Ok(StreamContent::Requests);
        return Box::pin(http::inbound::serve(proxy, claim, client, multiplexed, stream));
    }
    let mut passage =
        ConnectionRecord::begin(&proxy.context, CrossingDirection::Inbound, word, claim, client);
    let content = match content {
        Ok(content) if protocol.is_none_or(|protocol| carries(content, protocol)) => content,
        Ok(_) => {
            refuse(passage, &PolicyRefusal::Malformed { why: "not what the service speaks" }, stream);
            return done();
        }
        Err(refusal) => {
            refuse(passage, &refusal, stream);
            return done();
        }
    };
    match content {
        StreamContent::Bytes => Box::pin(tcp(proxy, passage, stream, brokers)),
        StreamContent::Datagrams => Box::pin(udp::serve_inbound(proxy, passage, stream)),
        StreamContent::Requests | StreamContent::Upgrade => {
            let refusal = passage.admit().err();
            let refusal = refusal.unwrap_or(PolicyRefusal::Malformed { why: "not what the service speaks" });
            refuse(passage, &refusal, stream);
            done()
        }
    }
}

/// What may come in for a service. Its requests are read here, so they must come as requests: bytes would slip past the rules.
fn carries(content: StreamContent, protocol: ServiceProtocol) -> bool {
    match protocol {
        ServiceProtocol::Tcp | ServiceProtocol::Https | ServiceProtocol::Kafka => {
            content == StreamContent::Bytes
        }
        ServiceProtocol::Udp => content == StreamContent::Datagrams,
        ServiceProtocol::Http | ServiceProtocol::Grpc => {
            matches!(content, StreamContent::Requests | StreamContent::Upgrade)
        }
    }
}

/// The bytes of one connection. `brokers`: what was said of the crossing, when they are of Kafka.
async fn tcp(
    proxy: Arc<Proxy>,
    mut passage: ConnectionRecord,
    stream: Stream,
    brokers: Option<CrossingHeader>,
) {
    let admitted = match passage.admit_connection() {
        Ok(admitted) => admitted,
        Err(refusal) => return refuse(passage, &refusal, stream),
    };
    let AccessRequest::Reach { service, .. } = &admitted.entry.claim else { return };
    let Some(service) = admitted.view.services.get(service) else { return };
    let dialling = dial(&proxy, service, passage.client(), brokers.as_ref().and_then(CrossingHeader::broker));
    let seen = brokers.as_ref().and_then(CrossingHeader::seen);
    let guide = seen.map(|seen| KafkaRewriter::new(&proxy, service.name.clone(), seen));
    let dialled = tokio::select! {
        biased;
        cut = admitted.entry.cut() => {
            stream.refuse(code_for_cut(&cut));
            return passage.cut(&cut);
        }
        dialled = dialling => dialled,
    };
    let (mut backend, _lease) = match dialled {
        Ok(BackendConnection { stream, lease }) => (SplitSocket::new(stream), lease),
        Err(refusal) => return refuse(passage, &refusal, stream),
    };
    let entry = forget_netmap(admitted);
    let mut far = stream_side(stream, || ());
    let mut near = backend.side();
    let meter = passage.meter().clone();
    let ended = tokio::select! {
        biased;
        cut = entry.cut() => Err(cut),
        ended = guided(&mut far, &mut near, &meter, proxy.options.idle_timeout, guide.as_ref()) => Ok(ended),
    };
    passage.set_client_id(guide.as_ref().and_then(KafkaRewriter::name));
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
    proxy: &Proxy,
    service: &ServiceEntry,
    client: Option<SocketAddr>,
    place: Option<usize>,
) -> Result<BackendConnection, PolicyRefusal> {
    match place {
        Some(place) => proxy.backends.dial_one(service, place, client).await,
        None => proxy.backends.dial_for(service, client).await,
    }
}

/// Moves everything, with a guide through answers that say where to go next.
pub(crate) async fn guided<R: ByteSource, W: ByteSink, S: ByteSource, V: ByteSink>(
    client: &mut CopySide<R, W>,
    backend: &mut CopySide<S, V>,
    meter: &ByteMeter,
    idle: Duration,
    guide: Option<&KafkaRewriter>,
) -> CopyEnd {
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

pub(crate) fn refuse(passage: ConnectionRecord, refusal: &PolicyRefusal, stream: Stream) {
    stream.refuse(refusal.code());
    passage.refuse(refusal);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_in_is_what_the_service_speaks() {
        let bytes = [ServiceProtocol::Tcp, ServiceProtocol::Https, ServiceProtocol::Kafka];
        let requests = [ServiceProtocol::Http, ServiceProtocol::Grpc];
        for protocol in bytes {
            assert!(carries(StreamContent::Bytes, protocol) && !carries(StreamContent::Requests, protocol));
        }
        for protocol in requests {
            assert!(carries(StreamContent::Requests, protocol) && carries(StreamContent::Upgrade, protocol));
            assert!(!carries(StreamContent::Bytes, protocol), "bytes would slip past the rules of requests");
        }
        assert!(
            carries(StreamContent::Datagrams, ServiceProtocol::Udp)
                && !carries(StreamContent::Bytes, ServiceProtocol::Udp)
        );
    }
}
