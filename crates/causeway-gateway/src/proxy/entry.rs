//! Shared entries: one address for many services, selected by the Host of a request or by the SNI of TLS.
//!
//! Only the service is determined here; access is decided as at a presence. TLS is not terminated: its first
//! message is peeked at and left in the socket.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use causeway_daemon::ACCEPT_PAUSE;
use causeway_netmap::{DnsNameTarget, NetmapView, NodeEntry, ServerName, ServiceName, ServiceProtocol};
use rustix::net::RecvFlags;
use tokio::io::{AsyncWriteExt, Interest};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connect::open_node;
use super::http::{self, ClientEntry};
use super::listeners::AcceptedClient;
use super::sni::{self, ClientHello};
use super::{copy, outbound};
use crate::dial::SocketProtocol;
use crate::policy::{self, PolicyRefusal};
use crate::proxy::Proxy;

/// The protocol of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryProtocol {
    /// HTTP/1.1 or HTTP/2 in plain text.
    Http,
    Tls,
}

/// A bound entry.
pub struct SharedEntry {
    listener: TcpListener,
    protocol: EntryProtocol,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} as a shared entry")]
pub struct SharedEntryError {
    pub address: SocketAddr,
    pub source: io::Error,
}

impl SharedEntry {
    pub async fn bind(address: SocketAddr, protocol: EntryProtocol) -> Result<SharedEntry, SharedEntryError> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| SharedEntryError { address, source })?;
        Ok(SharedEntry { listener, protocol })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts until told to stop; connections are tasks of `tasks`.
    pub async fn run(self, proxy: Arc<Proxy>, tasks: TaskTracker, stop: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, client)) => {
                    tasks.spawn(Box::pin(serve(proxy.clone(), self.protocol, stream, client)));
                }
                Err(error) => {
                    // Most likely no file descriptor is free; another connection must close first.
                    tracing::warn!(%error, "shared entry cannot accept a connection; retrying");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Listens at an entry until told to stop. Binding is retried, because an address may become local or free,
/// and the failure is logged once.
pub async fn keep(
    proxy: Arc<Proxy>,
    address: SocketAddr,
    protocol: EntryProtocol,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let mut is_reported = false;
    loop {
        match SharedEntry::bind(address, protocol).await {
            Ok(entry) => {
                tracing::info!(%address, ?protocol, "shared entry listens");
                let bound = entry.local_addr().unwrap_or(address);
                let _own = proxy.options.own_listeners.register("entry", SocketProtocol::Tcp, bound);
                return entry.run(proxy, tasks, stop).await;
            }
            Err(error) if !is_reported => {
                is_reported = true;
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "shared entry cannot listen; retrying"
                );
            }
            Err(_) => {}
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(BIND_RETRY_DELAY) => {}
        }
    }
}

const BIND_RETRY_DELAY: Duration = Duration::from_secs(2);
/// Time limit for the ClientHello.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections without a complete ClientHello, at all entries; one client has at most half.
pub const HELLOS_MAX: usize = 1024;
/// Times that a ClientHello is parsed from its beginning: once for each segment in which it arrives.
const HELLO_READS_MAX: usize = 1024;

/// Serves one client at an entry.
pub async fn serve(proxy: Arc<Proxy>, protocol: EntryProtocol, stream: TcpStream, client: SocketAddr) {
    match protocol {
        EntryProtocol::Http => http::serve_client(proxy, stream, client, ClientEntry::Entry).await,
        EntryProtocol::Tls => tls(proxy, stream, client).await,
    }
}

async fn tls(proxy: Arc<Proxy>, stream: TcpStream, client: SocketAddr) {
    let Some(slot) = proxy.hellos.take(client.ip()) else {
        proxy
            .context
            .metrics
            .refused(PolicyRefusal::Full { what: "incomplete TLS ClientHello messages" }.word());
        return copy::reset(stream);
    };
    let mut reads = 0;
    let hello = tokio::select! {
        biased;
        () = proxy.context.stopping.cancelled() => return,
        hello = tokio::time::timeout(HELLO_TIMEOUT, peek(&stream, &mut reads)) => hello,
    };
    drop(slot);
    let hello = match hello {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => {
            proxy.context.metrics.refused("malformed");
            tracing::debug!(%client, %error, "client of a TLS entry sent no valid ClientHello");
            return copy::reset(stream);
        }
        Err(_) => {
            proxy.context.metrics.refused("timeout");
            return copy::reset(stream);
        }
    };
    let port = stream.local_addr().map_or(0, |address| address.port());
    match target(&proxy.context.view(), &hello, port) {
        // From here on the client is judged, carried and recorded as one at that presence.
        Ok(EntryTarget::Service(service)) => {
            outbound::serve(proxy, AcceptedClient { stream, client, service, broker: None }).await;
        }
        Ok(EntryTarget::Node { node, port }) => node_of(proxy, &node, port, stream, client).await,
        Err(why) => unrecognized(&proxy, stream, client, why).await,
    }
}

/// Carries a client of this site to a node; a refusal is recorded by `open_node`.
async fn node_of(proxy: Arc<Proxy>, node: &ServerName, port: u16, stream: TcpStream, client: SocketAddr) {
    let Ok(who) = policy::principal_at(&proxy.context.view(), client.ip()) else {
        return copy::reset(stream);
    };
    match open_node(&proxy, node, port, who, Some(client)).await {
        Ok(opened) => opened.carry_socket(&proxy, stream).await,
        Err(_) => copy::reset(stream),
    }
}

/// Waits for the whole ClientHello, and leaves it in the socket. Counts the reads.
///
/// Tokio watches sockets edge-triggered: after `WouldBlock` it calls again when more bytes have arrived,
/// although some are unread (epoll(7), "Level-triggered and edge-triggered"). So nothing is polled, and the
/// buffer exists only during a read.
async fn peek(stream: &TcpStream, reads: &mut usize) -> io::Result<ClientHello> {
    let look = || {
        *reads += 1;
        let mut buffer = [0; sni::HELLO_BYTES_MAX];
        let (bytes, _) = rustix::net::recv(stream, &mut buffer[..], RecvFlags::PEEK)?;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let hello = sni::read(&buffer[..bytes]);
        match hello.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
            Some(hello) => Ok(hello),
            // A half-closed client wakes this task without new bytes, until this ends it.
            None if *reads >= HELLO_READS_MAX => Err(io::ErrorKind::InvalidData.into()),
            None => Err(io::ErrorKind::WouldBlock.into()),
        }
    };
    stream.async_io(Interest::READABLE, look).await
}

/// Sends the TLS alert for an unknown name.
async fn unrecognized(proxy: &Proxy, mut stream: TcpStream, client: SocketAddr, why: &'static str) {
    proxy.context.metrics.refused("unknown-name");
    tracing::debug!(%client, why, "refused a TLS client: unknown server name");
    // The ClientHello is read first: closing a socket with unread bytes sends a reset, and the alert would be
    // lost.
    let mut unread = vec![0; sni::HELLO_BYTES_MAX];
    let _ = stream.try_read(&mut unread);
    let _ = stream.write_all(&sni::UNRECOGNIZED_NAME).await;
    let _ = stream.shutdown().await;
}

/// The target of a name at an entry.
#[derive(Debug, PartialEq, Eq)]
enum EntryTarget {
    Service(ServiceName),
    Node { node: ServerName, port: u16 },
}

/// Decides by the netmap alone, which has only objects that this site may see.
fn target(view: &NetmapView, hello: &ClientHello, entry_port: u16) -> Result<EntryTarget, &'static str> {
    let ClientHello::Named(name) = hello else { return Err("the ClientHello has no server name") };
    match view.named(name) {
        None | Some(DnsNameTarget::Host(_) | DnsNameTarget::TranslatedPresence(_)) => {
            Err("no service or node has this name")
        }
        Some(DnsNameTarget::Presence(service)) => {
            let presence = view.presences.get(service).ok_or("no service or node has this name")?;
            match presence.protocol {
                ServiceProtocol::Https | ServiceProtocol::Tcp => Ok(EntryTarget::Service(service.clone())),
                // The gateway parses these protocols, and cannot do so through TLS.
                _ => Err("the service does not speak TLS"),
            }
        }
        Some(DnsNameTarget::Node(node)) => {
            let found = view.nodes.get(node).ok_or("no service or node has this name")?;
            let port = node_port(found, entry_port)
                .ok_or("the node has several ports, and none is the port of the entry")?;
            Ok(EntryTarget::Node { node: node.clone(), port })
        }
    }
}

/// Returns the port of the entry if the node offers it, else the node's only port.
fn node_port(node: &NodeEntry, entry_port: u16) -> Option<u16> {
    match node.ports.as_slice() {
        ports if ports.contains(&entry_port) => Some(entry_port),
        [only] => Some(*only),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use causeway_netmap::{DnsName, Generation, NetmapEntry, PresenceEntry};

    use super::*;
    use crate::gateway::GatewayContext;

    fn view() -> NetmapView {
        let presence = |service: &str, protocol: ServiceProtocol| {
            NetmapEntry::Presence(PresenceEntry {
                service: service.into(),
                addresses: vec![],
                port: 443,
                protocol,
                brokers: 0,
                names: vec![DnsName::new(service)],
                service_site: "berlin".into(),
                policies: vec![],
            })
        };
        let node = |name: &str, ports: &[u16]| {
            NetmapEntry::Node(NodeEntry {
                server: name.into(),
                site: "berlin".into(),
                ip: None,
                ports: ports.to_vec(),
                names: vec![DnsName::new(name)],
                policies: vec![],
            })
        };
        let facts = [
            presence("shop", ServiceProtocol::Https),
            presence("mail", ServiceProtocol::Tcp),
            presence("web", ServiceProtocol::Http),
            node("n1", &[10250]),
            node("n2", &[22, 443]),
            node("n3", &[22, 80]),
        ];
        NetmapView::of_entries(Generation { epoch: 1, revision: 1 }, &facts).unwrap()
    }

    #[test]
    fn a_name_leads_to_what_speaks_tls() {
        let view = view();
        let check = |name: &str, expected: Result<EntryTarget, ()>| {
            assert_eq!(
                target(&view, &ClientHello::Named(name.into()), 443).map_err(drop),
                expected,
                "{name}"
            );
        };
        check("shop", Ok(EntryTarget::Service("shop".into())));
        check("mail", Ok(EntryTarget::Service("mail".into())));
        check("web", Err(()));
        check("other", Err(()));
        check("n1", Ok(EntryTarget::Node { node: "n1".into(), port: 10250 }));
        check("n2", Ok(EntryTarget::Node { node: "n2".into(), port: 443 }));
        check("n3", Err(()));
        assert!(target(&view, &ClientHello::Nameless, 443).is_err());
    }

    /// A ClientHello for `name`, as far as `sni` reads it.
    fn client_hello(name: &str) -> Vec<u8> {
        let list = |length_bytes: usize, content: &[u8]| {
            let length = (content.len() as u32).to_be_bytes();
            [&length[4 - length_bytes..], content].concat()
        };
        let host = list(2, &[&[0], &list(2, name.as_bytes())[..]].concat());
        let extensions = list(2, &[&[0, 0], &list(2, &host)[..]].concat());
        let body = [&[3, 3][..], &[7; 32], &[0], &list(2, &[0x13, 1]), &[1, 0], &extensions].concat();
        let message = [&[1][..], &list(3, &body)].concat();
        [&[22, 3, 1][..], &list(2, &message)].concat()
    }

    async fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, listener.accept().await.unwrap().0)
    }

    /// Time is paused but for timers: polling would take two thousand reads here.
    #[tokio::test(start_paused = true)]
    async fn half_a_first_message_is_waited_for_without_polling() {
        let (mut client, stream) = pair().await;
        let hello = client_hello("shop");
        client.write_all(&hello[..40]).await.unwrap();
        stream.readable().await.unwrap();
        let mut reads = 0;
        let read = tokio::time::timeout(HELLO_TIMEOUT, peek(&stream, &mut reads)).await;
        assert!(read.is_err() && reads <= 2, "{reads} reads");
    }

    #[tokio::test]
    async fn a_first_message_in_pieces_is_read_and_left_in_the_socket() {
        let (mut client, stream) = pair().await;
        let hello = client_hello("shop");
        let mut reads = 0;
        let sending = async {
            for piece in hello.chunks(7) {
                client.set_nodelay(true).unwrap();
                client.write_all(piece).await.unwrap();
                tokio::task::yield_now().await;
            }
        };
        let (read, ()) = tokio::join!(peek(&stream, &mut reads), sending);
        assert_eq!(read.unwrap(), ClientHello::Named("shop".into()));
        let mut left = vec![0; hello.len()];
        tokio::io::AsyncReadExt::read_exact(&mut { stream }, &mut left).await.unwrap();
        assert_eq!(left, hello);
    }

    #[tokio::test]
    async fn a_client_that_closes_in_the_middle_is_noticed() {
        for bytes in [0, 1, 40] {
            let (mut client, stream) = pair().await;
            client.write_all(&client_hello("shop")[..bytes]).await.unwrap();
            client.shutdown().await.unwrap();
            let mut reads = 0;
            let read = tokio::time::timeout(Duration::from_secs(60), peek(&stream, &mut reads)).await;
            assert!(read.expect("it ends").is_err(), "{bytes}");
        }
    }

    struct Nobody;

    impl crate::peers::GatewayPeers for Nobody {
        fn open_stream(
            &self,
            header: causeway_channel::link::StreamHeader,
        ) -> crate::peers::BoxedFuture<'_, Result<causeway_channel::link::Stream, crate::peers::PeerError>>
        {
            let site = header.site.as_str().into();
            let away = crate::peers::PeerError::Away { site, why: "nobody is there".to_owned() };
            Box::pin(std::future::ready(Err(away)))
        }
    }

    impl crate::audit::AuditSink for Nobody {
        fn record(&self, _: crate::audit::AuditRecord) {}
    }

    #[tokio::test]
    async fn a_client_with_many_half_messages_keeps_no_other_out() {
        let (_netmaps, views) = tokio::sync::watch::channel(Arc::new(view()));
        let options = crate::GatewayOptions::default();
        let context = GatewayContext::new(views, Arc::new(Nobody), Arc::new(Nobody), &options);
        let mut proxy = Proxy::new(context, options);
        proxy.hellos = crate::slots::ClientSlots::new(4);
        let proxy = Arc::new(proxy);
        let entry = SharedEntry::bind("127.0.0.1:0".parse().unwrap(), EntryProtocol::Tls).await.unwrap();
        let address = entry.local_addr().unwrap();
        let stop = CancellationToken::new();
        let running = tokio::spawn(entry.run(proxy.clone(), TaskTracker::new(), stop.clone()));
        let connect = async |from: &str| {
            let socket = tokio::net::TcpSocket::new_v4().unwrap();
            socket.bind(format!("{from}:0").parse().unwrap()).unwrap();
            socket.connect(address).await.unwrap()
        };
        let hello = client_hello("nothing-has-this-name");
        let (mut one, mut two) = (connect("127.0.0.1").await, connect("127.0.0.1").await);
        for half in [&mut one, &mut two] {
            half.write_all(&hello[..40]).await.unwrap();
        }
        let has_its_share = async {
            while proxy.hellos.take([127, 0, 0, 1].into()).is_some() {
                tokio::task::yield_now().await;
            }
        };
        let patience = Duration::from_secs(60);
        tokio::time::timeout(patience, has_its_share).await.expect("half messages are counted");
        // The third connection is closed at once; another client is served.
        let heard = async |mut stream: TcpStream| {
            let mut heard = Vec::new();
            let reading = tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut heard);
            let read = tokio::time::timeout(patience, reading).await.expect("it ends");
            read.map(|_| heard)
        };
        let third = heard(connect("127.0.0.1").await).await;
        assert!(third.is_err() || third.is_ok_and(|heard| heard.is_empty()));
        let mut other = connect("127.0.0.2").await;
        other.write_all(&hello).await.unwrap();
        assert_eq!(heard(other).await.unwrap(), sni::UNRECOGNIZED_NAME);
        // The first client completes its message.
        one.write_all(&hello[40..]).await.unwrap();
        assert_eq!(heard(one).await.unwrap(), sni::UNRECOGNIZED_NAME);
        stop.cancel();
        running.await.unwrap();
    }
}
