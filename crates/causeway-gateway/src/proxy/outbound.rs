//! Serves local clients at presences: identifies the client, checks the policy, opens a stream to the gateway
//! of the service.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use causeway_channel::link::Stream;
use causeway_netmap::{PresenceEntry, ServiceEntry, ServiceProtocol, SiteName};
use tokio::net::TcpStream;

use super::backends::BackendConnection;
use super::copy::{SplitSocket, cross, reset, stream_side};
use super::end_reason;
use super::http;
use super::kafka::{self, KafkaRewriter};
use super::listeners::AcceptedClient;
use super::stream_opener::{ClientStream, open_for_service};
use crate::audit::ConnectionEnd;
use crate::connection_record::{AdmittedAccess, ConnectionRecord, CrossingDirection, protocol_word};
use crate::dial::prepare;
use crate::live::{AccessRequest, LiveConnection};
use crate::peers::{BoxedFuture, CrossingHeader, StreamContent};
use crate::policy::PolicyRefusal;
use crate::proxy::Proxy;

/// Serves one client at a presence. The box holds what its protocol needs and no more: there are thousands of
/// idle connections.
pub fn serve(proxy: Arc<Proxy>, accepted: AcceptedClient) -> BoxedFuture<'static, ()> {
    let protocol = proxy.context.view().presences.get(&accepted.service).map(|presence| presence.protocol);
    match protocol {
        Some(protocol @ (ServiceProtocol::Tcp | ServiceProtocol::Https | ServiceProtocol::Kafka)) => {
            Box::pin(tcp(proxy, accepted, protocol))
        }
        Some(ServiceProtocol::Http | ServiceProtocol::Grpc) => {
            let AcceptedClient { stream, client, service, broker: _ } = accepted;
            Box::pin(http::serve_client(proxy, stream, client, http::ClientEntry::Presence(service)))
        }
        // UDP has no connections; without a protocol, the presence was removed at this moment.
        Some(ServiceProtocol::Udp) | None => {
            reset(accepted.stream);
            Box::pin(std::future::ready(()))
        }
    }
}

/// Carries the bytes of one connection.
async fn tcp(proxy: Arc<Proxy>, accepted: AcceptedClient, protocol: ServiceProtocol) {
    let AcceptedClient { stream, client, service, broker } = accepted;
    let claim = AccessRequest::Use { service: service.clone(), client: client.ip(), request: None };
    let word = protocol_word(protocol);
    let mut record =
        ConnectionRecord::begin(&proxy.context, CrossingDirection::Outbound, word, claim, Some(client));
    let admitted = match record.admit_connection() {
        Ok(admitted) => admitted,
        Err(refusal) => return refuse(record, &refusal, stream),
    };
    if let Err(error) = prepare(&stream) {
        return record.end(ConnectionEnd::ClientReset, Some(error.to_string()));
    }
    let Some(presence) = admitted.view.presences.get(&service) else { return reset(stream) };
    // Without broker addresses in responses, the address of the service is not needed.
    let seen = (presence.brokers > 0).then(|| seen_at(&stream, broker)).flatten();
    if let Some(here) = local_service(&admitted, presence) {
        let index = broker.map(usize::from);
        let dialled =
            match admitted.entry.until_cut(pin!(proxy.backends.dial_at(here, index, Some(client)))).await {
                Ok(dialled) => dialled,
                Err(cut) => return record.cut(&cut),
            };
        let rewriter = seen.map(|seen| KafkaRewriter::new(&proxy, service, seen));
        return match dialled {
            Ok(backend) => {
                let entry = admitted.into_entry();
                between_sockets(&proxy, record, &entry, stream, backend, rewriter.as_ref()).await;
            }
            Err(refusal) => refuse(record, &refusal, stream),
        };
    }
    let crossing =
        CrossingHeader::new(StreamContent::Bytes, client).with_trace(record.span().stream_context());
    let crossing = match seen {
        Some(seen) => crossing.with_brokers(seen, broker),
        None => crossing,
    };
    match open_for_service(&proxy, &admitted, presence, crossing).await {
        Ok(ClientStream { stream: far, slot: _slot }) => {
            let service_site = presence.service_site.clone();
            let entry = admitted.into_entry();
            carry(&proxy, record, &entry, stream, far, &service_site).await;
        }
        Err(refusal) => refuse(record, &refusal, stream),
    }
}

/// Returns the address at which the client of a Kafka cluster sees the service: it connected to the port of
/// the service, or to that of a broker, which follows it.
fn seen_at(stream: &TcpStream, broker: Option<u16>) -> Option<SocketAddr> {
    let at = stream.local_addr().ok()?;
    let offset = broker.map_or(0, |broker| broker.saturating_add(1));
    Some(SocketAddr::new(at.ip().to_canonical(), at.port().checked_sub(offset)?))
}

/// Returns the service if it runs at this site: then no stream is needed.
pub(crate) fn local_service<'a>(
    admitted: &'a AdmittedAccess,
    presence: &PresenceEntry,
) -> Option<&'a ServiceEntry> {
    let service_site = (presence.service_site == admitted.who.site).then_some(&presence.service)?;
    admitted.view.services.get(service_site)
}

/// Carries a connection over a stream until one of them ends.
async fn carry(
    proxy: &Proxy,
    record: ConnectionRecord,
    entry: &LiveConnection,
    stream: TcpStream,
    far: Stream,
    service_site: &SiteName,
) {
    let mut socket = SplitSocket::new(stream);
    let mut far = stream_side(far, || proxy.context.peers.suspect(service_site));
    let mut near = socket.side();
    let meter = record.meter().clone();
    let ended = entry.until_cut(pin!(cross(&mut near, &mut far, &meter, proxy.options.idle_timeout))).await;
    far.give_up(end_reason::reset_code(&ended));
    end_reason::close_record(record, &ended, Some(meter.received()));
    socket.close();
}

/// Copies between a local client and a local backend.
async fn between_sockets(
    proxy: &Proxy,
    mut record: ConnectionRecord,
    entry: &LiveConnection,
    stream: TcpStream,
    backend: BackendConnection,
    rewriter: Option<&KafkaRewriter>,
) {
    let BackendConnection { stream: backend, lease: _lease } = backend;
    let (mut client, mut backend) = (SplitSocket::new(stream), SplitSocket::new(backend));
    let (mut near, mut far) = (client.side(), backend.side());
    let meter = record.meter().clone();
    let copying = kafka::copy(&mut near, &mut far, &meter, proxy.options.idle_timeout, rewriter);
    let ended = entry.until_cut(pin!(copying)).await;
    record.set_client_id(rewriter.and_then(KafkaRewriter::name));
    end_reason::close_record(record, &ended, None);
    client.close();
    backend.close();
}

fn refuse(record: ConnectionRecord, refusal: &PolicyRefusal, stream: TcpStream) {
    reset(stream);
    record.refuse(refusal);
}
