//! Serves one address over UDP and TCP.
//!
//! Bytes of clients come in, replies go out. What is ours is answered on the spot; what is forwarded waits in a task of its own, so
//! that an upstream that is away delays nobody else. Forwarded questions and connections are bounded, shared between clients
//! (`slots`), strangers more tightly, and nobody may sit there idle.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use causeway_netmap::NetmapView;
use hickory_proto::op::ResponseCode;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::answer::{DnsAnswer, DnsClient, answer, asker};
use super::forward::Forwarder;
use super::host_networks::HostNetworks;
use super::message::{DnsQuery, DnsTransport, ParsedMessage, read};
use super::metrics::{DnsMetrics, QueryOutcome};
use crate::slots::{ClientSlot, ClientSlots};

/// Questions are short; what is longer than this is none.
const QUERY_BYTES_MAX: usize = 4096;
/// Connections over TCP, on all addresses; one client gets at most half. One more is closed: its client asks again.
const CONNECTIONS_MAX: usize = 256;
/// Strangers hear a refusal and shall not take the places of others.
const STRANGERS_MAX: usize = 16;
/// RFC 7766 asks for some seconds.
const IDLE: Duration = Duration::from_secs(10);
/// A client that does not read its answer.
const WRITE: Duration = Duration::from_secs(5);
/// Out of files, or something as temporary.
const AFTER_ERROR: Duration = Duration::from_millis(100);

/// What all listeners share.
pub struct DnsFrontend {
    netmaps: watch::Receiver<Arc<NetmapView>>,
    surroundings: watch::Receiver<HostNetworks>,
    forwarder: Forwarder,
    figures: DnsMetrics,
    connections: ClientSlots,
    strangers: ClientSlots,
}

/// What to do about some bytes.
enum Step {
    Reply(Vec<u8>),
    Forward(Box<DnsQuery>),
    Nothing,
}

impl DnsFrontend {
    pub fn new(
        netmaps: watch::Receiver<Arc<NetmapView>>,
        surroundings: watch::Receiver<HostNetworks>,
        forwarder: Forwarder,
        figures: DnsMetrics,
    ) -> DnsFrontend {
        DnsFrontend {
            netmaps,
            surroundings,
            forwarder,
            figures,
            connections: ClientSlots::new(CONNECTIONS_MAX),
            strangers: ClientSlots::new(STRANGERS_MAX),
        }
    }

    fn consider(&self, bytes: &[u8], client: SocketAddr, over: DnsTransport) -> Step {
        let query = match read(bytes) {
            ParsedMessage::Query(query) => query,
            ParsedMessage::Reply(reply) => {
                self.figures.count(over, QueryOutcome::Malformed);
                return Step::Reply(reply);
            }
            ParsedMessage::Nothing => return Step::Nothing,
        };
        let view = self.netmaps.borrow().clone();
        let answer = answer(&view, self.asker(&view, client), query.name(), query.kind());
        self.figures.count(over, QueryOutcome::of(&answer));
        tracing::debug!(%client, name = %query.name(), kind = %query.kind(), outcome = ?QueryOutcome::of(&answer), "asked");
        match answer {
            DnsAnswer::Forward => Step::Forward(query),
            answer => Step::Reply(query.answered(answer, over)),
        }
    }

    fn asker(&self, view: &NetmapView, client: SocketAddr) -> DnsClient {
        asker(view, &self.surroundings.borrow().connected, client.ip())
    }

    async fn forward(&self, query: &DnsQuery, over: DnsTransport) -> Vec<u8> {
        match self.forwarder.ask(query, over).await {
            Ok(returned) if returned.bytes.len() > query.reply_bytes_max(over) => query.truncated(),
            Ok(returned) => returned.bytes,
            Err(error) => {
                tracing::debug!(name = %query.name(), %error, "not forwarded");
                self.figures.count_failed(error.word());
                query.failed(ResponseCode::ServFail)
            }
        }
    }

    /// A slot for a client over TCP. None: it has its share, or all are taken.
    fn place(&self, client: SocketAddr) -> Option<ClientSlot> {
        let asker = self.asker(&self.netmaps.borrow(), client);
        let places = match asker {
            DnsClient::Near => &self.connections,
            DnsClient::Far => &self.strangers,
        };
        let place = places.take(client.ip());
        if place.is_none() {
            self.figures.connections_refused.inc();
        }
        place
    }
}

pub async fn serve_datagrams(desk: Arc<DnsFrontend>, socket: UdpSocket, stop: CancellationToken) {
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
                // What another system says of an earlier reply; or something that will pass.
                Err(error) => {
                    tracing::debug!(%error, "no datagram");
                    sleep(AFTER_ERROR).await;
                    continue;
                }
            },
        };
        match desk.consider(&buffer[..length], client, DnsTransport::Udp) {
            Step::Reply(reply) => send(&socket, &reply, client).await,
            Step::Forward(query) => {
                let Some(slot) = desk.forwarder.slot(client.ip()) else {
                    // The source of a datagram may be forged, and many forged ones can take all slots. Over TCP it is proven, and
                    // the slots are others: so the client is told to ask there, instead of that its question failed.
                    desk.figures.count_failed("busy");
                    send(&socket, &query.truncated(), client).await;
                    continue;
                };
                let (desk, socket) = (desk.clone(), socket.clone());
                forwarded.spawn(async move {
                    let _slot = slot;
                    let reply = desk.forward(&query, DnsTransport::Udp).await;
                    send(&socket, &reply, client).await;
                });
            }
            Step::Nothing => {}
        }
    }
}

async fn send(socket: &UdpSocket, reply: &[u8], client: SocketAddr) {
    if reply.is_empty() {
        return;
    }
    // A client that is gone asks no more; one that is there asks again.
    if let Err(error) = socket.send_to(reply, client).await {
        tracing::debug!(%client, %error, "a reply was not sent");
    }
}

pub async fn serve_connections(desk: Arc<DnsFrontend>, listener: TcpListener, stop: CancellationToken) {
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
                    sleep(AFTER_ERROR).await;
                    continue;
                }
            },
        };
        let Some(place) = desk.place(client) else { continue };
        let desk = desk.clone();
        clients.spawn(async move {
            let _place = place;
            desk.figures.connections.inc();
            if let Err(error) = converse(&desk, stream, client).await {
                tracing::debug!(%client, %error, "a connection ended");
            }
            desk.figures.connections.dec();
        });
    }
}

/// One question after the other, answered in their order.
async fn converse(desk: &DnsFrontend, mut stream: TcpStream, client: SocketAddr) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut message = Vec::new();
    loop {
        match timeout(IDLE, receive(&mut stream, &mut message)).await {
            Ok(Ok(())) => {}
            // It went, or fell silent: the usual ends.
            Ok(Err(error)) if error.kind() == std::io::ErrorKind::UnexpectedEof => return Ok(()),
            Err(_) => return Ok(()),
            Ok(Err(error)) => return Err(error),
        }
        let reply = match desk.consider(&message, client, DnsTransport::Tcp) {
            Step::Reply(reply) => reply,
            Step::Forward(query) => desk.forward(&query, DnsTransport::Tcp).await,
            Step::Nothing => return Ok(()),
        };
        let length = u16::try_from(reply.len()).map_err(std::io::Error::other)?;
        let framed = [&length.to_be_bytes(), &reply[..]].concat();
        timeout(WRITE, stream.write_all(&framed)).await??;
    }
}

async fn receive(stream: &mut TcpStream, message: &mut Vec<u8>) -> std::io::Result<()> {
    let length = usize::from(stream.read_u16().await?);
    if length > QUERY_BYTES_MAX {
        return Err(std::io::Error::other("a question of this length is none"));
    }
    message.resize(length, 0);
    stream.read_exact(message).await.map(drop)
}
