//! Serves streams from other sites: authenticates the origin, checks the policy, connects to the backend.

use std::pin::pin;
use std::sync::Arc;

use causeway_channel::link::{ResetCode, Stream, StreamHeader, StreamPurpose};
use causeway_netmap::{ServiceName, ServiceProtocol, SiteName};

use super::backends::BackendConnection;
use super::connect;
use super::copy::{SplitSocket, stream_side};
use super::end_reason;
use super::http;
use super::kafka::{self, KafkaRewriter};
use super::udp;
use crate::connection_record::{ConnectionRecord, CrossingDirection, protocol_word};
use crate::live::AccessRequest;
use crate::peers::{BoxedFuture, CrossingHeader, StreamContent};
use crate::policy::{MalformedPart, PolicyRefusal};
use crate::proxy::Proxy;

/// Serves one stream of another site. The box holds what its protocol needs and no more: there are thousands
/// of idle connections.
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
    let claim =
        AccessRequest::Reach { service: name, origin, subject: header.subject.clone(), request: None };
    let crossing = CrossingHeader::of(header);
    let client = crossing.as_ref().ok().and_then(CrossingHeader::client);
    let word = protocol.map_or("unknown", protocol_word);
    let trace = crossing.as_ref().map(|crossing| crossing.trace().clone()).unwrap_or_default();
    let brokers = crossing.as_ref().ok().filter(|_| protocol == Some(ServiceProtocol::Kafka)).cloned();
    let content = crossing.and_then(|crossing| crossing.content());
    if let (
        Some(ServiceProtocol::Http | ServiceProtocol::Grpc),
        Ok(StreamContent::Requests | StreamContent::Upgrade),
    ) = (protocol, &content)
        && claim.judge(&proxy.context.view()).is_ok()
    {
        // Every request has its own record.
        let multiplexed = content == Ok(StreamContent::Requests);
        return Box::pin(http::serve_stream(proxy, claim, client, multiplexed, stream));
    }
    let mut record = ConnectionRecord::begin(&proxy.context, CrossingDirection::Inbound, word, claim, client);
    record.continue_stream(&trace);
    let content = match content {
        Ok(content) if protocol.is_none_or(|protocol| carries(content, protocol)) => content,
        Ok(_) => {
            refuse(record, &PolicyRefusal::Malformed { why: MalformedPart::ServiceProtocol }, stream);
            return done();
        }
        Err(refusal) => {
            refuse(record, &refusal, stream);
            return done();
        }
    };
    match content {
        StreamContent::Bytes => Box::pin(tcp(proxy, record, stream, brokers)),
        StreamContent::Datagrams => Box::pin(udp::serve_inbound(proxy, record, stream)),
        StreamContent::Requests | StreamContent::Upgrade => {
            let refusal = record.admit().err();
            let refusal = refusal.unwrap_or(PolicyRefusal::Malformed { why: MalformedPart::ServiceProtocol });
            refuse(record, &refusal, stream);
            done()
        }
    }
}

/// Returns whether a service accepts the content. HTTP must arrive as requests: bytes would bypass the rules.
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

/// Carries the bytes of one connection. `brokers`: the details of the stream, for Kafka.
async fn tcp(
    proxy: Arc<Proxy>,
    mut record: ConnectionRecord,
    stream: Stream,
    brokers: Option<CrossingHeader>,
) {
    let admitted = match record.admit_connection() {
        Ok(admitted) => admitted,
        Err(refusal) => return refuse(record, &refusal, stream),
    };
    let AccessRequest::Reach { service, .. } = &admitted.entry.claim else { return };
    let Some(service) = admitted.view.services.get(service) else { return };
    let dialling =
        proxy.backends.dial_at(service, brokers.as_ref().and_then(CrossingHeader::broker), record.client());
    let seen = brokers.as_ref().and_then(CrossingHeader::seen);
    let rewriter = seen.map(|seen| KafkaRewriter::new(&proxy, service.name.clone(), seen));
    let dialled = match admitted.entry.until_cut(pin!(dialling)).await {
        Ok(dialled) => dialled,
        Err(cut) => {
            stream.refuse(end_reason::code_for_cut(&cut));
            return record.cut(&cut);
        }
    };
    let (mut backend, _lease) = match dialled {
        Ok(BackendConnection { stream, lease }) => (SplitSocket::new(stream), lease),
        Err(refusal) => return refuse(record, &refusal, stream),
    };
    let entry = admitted.into_entry();
    let mut far = stream_side(stream, || ());
    let mut near = backend.side();
    let meter = record.meter().clone();
    let idle = proxy.options.idle_timeout;
    let copying = kafka::copy(&mut far, &mut near, &meter, idle, rewriter.as_ref());
    let ended = entry.until_cut(pin!(copying)).await;
    record.set_client_id(rewriter.as_ref().and_then(KafkaRewriter::name));
    far.give_up(end_reason::reset_code(&ended));
    end_reason::close_record(record, &ended, None);
    backend.close();
}

pub(crate) fn refuse(record: ConnectionRecord, refusal: &PolicyRefusal, stream: Stream) {
    stream.refuse(refusal.code());
    record.refuse(refusal);
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
