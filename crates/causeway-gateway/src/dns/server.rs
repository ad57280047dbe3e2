//! Serves one address over UDP and TCP.
//!
//! Input: bytes of clients. Output: replies. Names of the netmap are answered at once; a forwarded query
//! waits in a task of its own, so that an unreachable upstream does not delay other queries. Forwarded
//! queries and connections are bounded and shared between clients (`slots`), with a lower bound for far
//! clients; idle connections are closed.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use causeway_daemon::ACCEPT_PAUSE;
use causeway_netmap::NetmapView;
use hickory_proto::op::ResponseCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::answer::{DnsAnswer, DnsClient, answer, awaited_site, client_location};
use super::forward::Forwarder;
use super::host_networks::HostNetworks;
use super::message::{DnsQuery, DnsTransport, ParsedMessage, read};
use super::metrics::{DnsMetrics, QueryOutcome};
use crate::peer_requests::{PeerQuestion, PeerRequests};
use crate::slots::{ClientSlot, ClientSlots};

/// Queries are short; a longer message is not a query.
const QUERY_BYTES_MAX: usize = 4096;
/// The maximum number of TCP connections, on all addresses; one client gets at most half. A further
/// connection is closed, and its client retries.
const CONNECTIONS_MAX: usize = 256;
/// Far clients get only a refusal and must not use up the connections of near clients.
const FAR_CONNECTIONS_MAX: usize = 16;
/// RFC 7766 recommends a few seconds.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The write timeout, for a client that does not read its reply.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// The state that all listeners share.
pub struct DnsFrontend {
    netmaps: watch::Receiver<Arc<NetmapView>>,
    host_networks: watch::Receiver<HostNetworks>,
    forwarder: Forwarder,
    metrics: DnsMetrics,
    peer_requests: Arc<PeerRequests>,
    connections: ClientSlots,
    far_connections: ClientSlots,
}

/// The action for one received message.
enum MessageAction {
    Reply(Vec<u8>),
    Forward(Box<DnsQuery>),
    Nothing,
}

impl DnsFrontend {
    pub fn new(
        netmaps: watch::Receiver<Arc<NetmapView>>,
        host_networks: watch::Receiver<HostNetworks>,
        forwarder: Forwarder,
        metrics: DnsMetrics,
        peer_requests: Arc<PeerRequests>,
    ) -> DnsFrontend {
        DnsFrontend {
            netmaps,
            host_networks,
            forwarder,
            metrics,
            peer_requests,
            connections: ClientSlots::new(CONNECTIONS_MAX),
            far_connections: ClientSlots::new(FAR_CONNECTIONS_MAX),
        }
    }

    fn handle_message(&self, bytes: &[u8], client: SocketAddr, over: DnsTransport) -> MessageAction {
        let query = match read(bytes) {
            ParsedMessage::Query(query) => query,
            ParsedMessage::Reply(reply) => {
                self.metrics.count(over, QueryOutcome::Malformed);
                return MessageAction::Reply(reply);
            }
            ParsedMessage::Nothing => return MessageAction::Nothing,
        };
        let view = self.netmaps.borrow().clone();
        let mut answer = answer(&view, self.client_location(&view, client), query.name(), query.kind());
        if let DnsAnswer::NoName { .. } = &answer
            && let Some(site) = awaited_site(&view, query.name())
        {
            self.peer_requests.ask_for(client.ip().to_canonical(), PeerQuestion::Site(site));
            answer = DnsAnswer::NotYet;
        }
        self.metrics.count(over, QueryOutcome::of(&answer));
        tracing::debug!(%client, name = %query.name(), kind = %query.kind(), outcome = ?QueryOutcome::of(&answer), "answered a DNS query");
        match answer {
            DnsAnswer::Forward => MessageAction::Forward(query),
            answer => MessageAction::Reply(query.answered(answer, over)),
        }
    }

    fn client_location(&self, view: &NetmapView, client: SocketAddr) -> DnsClient {
        client_location(view, &self.host_networks.borrow().connected, client.ip())
    }

    async fn forward(&self, query: &DnsQuery, over: DnsTransport) -> Vec<u8> {
        match self.forwarder.ask(query, over).await {
            Ok(returned) if returned.bytes.len() > query.reply_bytes_max(over) => query.truncated(),
            Ok(returned) => returned.bytes,
            Err(error) => {
                tracing::debug!(name = %query.name(), %error, "cannot forward the DNS query");
                self.metrics.count_failed(error.word());
                query.failed(ResponseCode::ServFail)
            }
        }
    }

    /// Takes a slot for a TCP client. None: the client has used its share, or all slots are taken.
    fn slot(&self, client: SocketAddr) -> Option<ClientSlot> {
        let client_location = self.client_location(&self.netmaps.borrow(), client);
        let slots = match client_location {
            DnsClient::Near => &self.connections,
            DnsClient::Far => &self.far_connections,
        };
        let slot = slots.take(client.ip());
        if slot.is_none() {
            self.metrics.connections_refused.inc();
        }
        slot
    }
}

pub async fn serve_datagrams(frontend: Arc<DnsFrontend>, socket: UdpSocket, stop: CancellationToken) {
    let socket = Arc::new(socket);
    let mut buffer = vec![0; QUERY_BYTES_MAX];
    // Bounded by the slots of the forwarder.
    let mut forwarded = JoinSet::new();
    loop {
        let (length, client) = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some(_) = forwarded.join_next() => continue,
            received = socket.recv_from(&mut buffer) => match received {
                Ok(received) => received,
                // An ICMP error about an earlier reply, or a temporary condition.
                Err(error) => {
                    tracing::debug!(%error, "no datagram");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        match frontend.handle_message(&buffer[..length], client, DnsTransport::Udp) {
            MessageAction::Reply(reply) => send(&socket, &reply, client).await,
            MessageAction::Forward(query) => {
                let Some(slot) = frontend.forwarder.slot(client.ip()) else {
                    // The source of a datagram may be forged, and many forged ones can take all slots. Over
                    // TCP the source is verified and the slots are separate, so the client is told to retry
                    // over TCP instead of receiving a failure.
                    frontend.metrics.count_failed("busy");
                    send(&socket, &query.truncated(), client).await;
                    continue;
                };
                let (frontend, socket) = (frontend.clone(), socket.clone());
                forwarded.spawn(async move {
                    let _slot = slot;
                    let reply = frontend.forward(&query, DnsTransport::Udp).await;
                    send(&socket, &reply, client).await;
                });
            }
            MessageAction::Nothing => {}
        }
    }
}

async fn send(socket: &UdpSocket, reply: &[u8], client: SocketAddr) {
    if reply.is_empty() {
        return;
    }
    // A client that is gone needs no reply; one that is still there asks again.
    if let Err(error) = socket.send_to(reply, client).await {
        tracing::debug!(%client, %error, "cannot send a DNS reply");
    }
}

pub async fn serve_connections(frontend: Arc<DnsFrontend>, listener: TcpListener, stop: CancellationToken) {
    let mut clients = JoinSet::new();
    loop {
        let (stream, client) = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            Some(_) = clients.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!(%error, "no connection");
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        let Some(slot) = frontend.slot(client) else { continue };
        let frontend = frontend.clone();
        clients.spawn(async move {
            let _slot = slot;
            frontend.metrics.connections.inc();
            if let Err(error) = serve_queries(&frontend, stream, client).await {
                tracing::debug!(%client, %error, "DNS connection failed");
            }
            frontend.metrics.connections.dec();
        });
    }
}

/// Answers the queries of one connection, one after the other, in order.
async fn serve_queries(
    frontend: &DnsFrontend,
    mut stream: TcpStream,
    client: SocketAddr,
) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut message = Vec::new();
    loop {
        match timeout(IDLE_TIMEOUT, receive(&mut stream, &mut message)).await {
            Ok(Ok(())) => {}
            // The client closed the connection or was idle: the usual ends.
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(_) => return Ok(()),
            Ok(Err(error)) => return Err(error),
        }
        let reply = match frontend.handle_message(&message, client, DnsTransport::Tcp) {
            MessageAction::Reply(reply) => reply,
            MessageAction::Forward(query) => frontend.forward(&query, DnsTransport::Tcp).await,
            MessageAction::Nothing => return Ok(()),
        };
        let length = u16::try_from(reply.len()).map_err(std::io::Error::other)?;
        let framed = [&length.to_be_bytes(), &reply[..]].concat();
        timeout(WRITE_TIMEOUT, stream.write_all(&framed)).await??;
    }
}

async fn receive(stream: &mut TcpStream, message: &mut Vec<u8>) -> std::io::Result<()> {
    let length = usize::from(stream.read_u16().await?);
    if length > QUERY_BYTES_MAX {
        return Err(std::io::Error::other("the length of the DNS query is out of range"));
    }
    message.resize(length, 0);
    stream.read_exact(message).await.map(drop)
}
