//! Shared entries: one address for many names, told apart by the host of a request or by the name TLS asks for.
//!
//! Which service is meant is all that is found out here; who may use it is decided on the same path as at a presence. TLS is
//! not opened: its first message is looked at and left where it is.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use causeway_netmap::{Named, Node, Protocol, ServerName, ServiceName, View};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::connect::open_node;
use super::http::{self, Door};
use super::listeners::Accepted;
use super::sni::{self, Hello};
use super::{outbound, pump};
use crate::gateway::Shared;
use crate::policy;

/// What is spoken at an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speech {
    /// HTTP/1.1 or HTTP/2 in plain text.
    Http,
    Tls,
}

/// A bound address.
pub struct Entry {
    listener: TcpListener,
    speech: Speech,
}

#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for many names")]
pub struct EntryError {
    pub address: SocketAddr,
    pub source: io::Error,
}

impl Entry {
    pub async fn bind(address: SocketAddr, speech: Speech) -> Result<Entry, EntryError> {
        let listener = TcpListener::bind(address).await;
        let listener = listener.map_err(|source| EntryError { address, source })?;
        Ok(Entry { listener, speech })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts until told to stop; connections go on in `tasks`.
    pub async fn run(self, shared: Arc<Shared>, tasks: TaskTracker, stop: CancellationToken) {
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                accepted = self.listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, client)) => {
                    tasks.spawn(Box::pin(serve(shared.clone(), self.speech, stream, client)));
                }
                Err(error) => {
                    // Out of files, most likely; others must close theirs first.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
}

/// Listens at an entry until told to stop. An address may become local, or free: it is tried again, and reported once.
pub async fn keep(
    shared: Arc<Shared>,
    address: SocketAddr,
    speech: Speech,
    tasks: TaskTracker,
    stop: CancellationToken,
) {
    let mut complained = false;
    loop {
        match Entry::bind(address, speech).await {
            Ok(entry) => {
                tracing::info!(%address, ?speech, "an entry for many names is open");
                return entry.run(shared, tasks, stop).await;
            }
            Err(error) if !complained => {
                complained = true;
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "an entry is not open; it is tried again"
                );
            }
            Err(_) => {}
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(BIND_PAUSE) => {}
        }
    }
}

const BIND_PAUSE: Duration = Duration::from_secs(2);
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// How long a client may take over its first message.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// A message that has come in part is looked at again after this: the socket keeps it, so it cannot tell when more is there.
const HELLO_PAUSE: Duration = Duration::from_millis(5);

/// Serves one client at an entry.
pub async fn serve(shared: Arc<Shared>, speech: Speech, stream: TcpStream, client: SocketAddr) {
    match speech {
        Speech::Http => http::outbound::serve(shared, stream, client, Door::Entry).await,
        Speech::Tls => tls(shared, stream, client).await,
    }
}

async fn tls(shared: Arc<Shared>, stream: TcpStream, client: SocketAddr) {
    let hello = tokio::select! {
        biased;
        () = shared.stopping.cancelled() => return,
        hello = tokio::time::timeout(HELLO_TIMEOUT, peek(&stream)) => hello,
    };
    let hello = match hello {
        Ok(Ok(hello)) => hello,
        Ok(Err(error)) => {
            shared.figures.refused("malformed");
            tracing::debug!(%client, %error, "a client of an entry speaks no TLS");
            return pump::reset(stream);
        }
        Err(_) => {
            shared.figures.refused("timeout");
            return pump::reset(stream);
        }
    };
    let port = stream.local_addr().map_or(0, |address| address.port());
    match target(&shared.view(), &hello, port) {
        // From here on it is a client at that presence: judged, carried and recorded as one.
        Ok(Target::Service(service)) => {
            outbound::serve(shared, Accepted { stream, client, service, broker: None }).await;
        }
        Ok(Target::Node { node, port }) => node_of(shared, &node, port, stream, client).await,
        Err(why) => unrecognized(&shared, stream, client, why).await,
    }
}

/// A client of our own site at a node; its refusal is recorded there.
async fn node_of(shared: Arc<Shared>, node: &ServerName, port: u16, stream: TcpStream, client: SocketAddr) {
    let Ok(who) = policy::who_at(&shared.view(), client.ip()) else { return pump::reset(stream) };
    match open_node(&shared, node, port, who, Some(client)).await {
        Ok(opened) => opened.carry_socket(&shared, stream).await,
        Err(_) => pump::reset(stream),
    }
}

/// Waits for the whole first message, and leaves it in the socket for whoever reads next.
async fn peek(stream: &TcpStream) -> io::Result<Hello> {
    let mut buffer = vec![0; sni::HELLO_BYTES_MAX];
    loop {
        let bytes = stream.peek(&mut buffer).await?;
        if bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let hello = sni::read(&buffer[..bytes]);
        if let Some(hello) = hello.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))? {
            return Ok(hello);
        }
        tokio::time::sleep(HELLO_PAUSE).await;
    }
}

/// Tells the client in its own protocol that the name is not known here.
async fn unrecognized(shared: &Shared, mut stream: TcpStream, client: SocketAddr, why: &'static str) {
    shared.figures.refused("unknown-name");
    tracing::debug!(%client, why, "a name is not known at this entry");
    // What it said is read first: closing over unread bytes would be a reset, and the alert be lost.
    let mut unread = vec![0; sni::HELLO_BYTES_MAX];
    let _ = stream.try_read(&mut unread);
    let _ = stream.write_all(&sni::UNRECOGNIZED_NAME).await;
    let _ = stream.shutdown().await;
}

/// What a name stands for at an entry.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Service(ServiceName),
    Node { node: ServerName, port: u16 },
}

/// Decides by the netmap alone, which has only what this site may see.
fn target(view: &View, hello: &Hello, entry_port: u16) -> Result<Target, &'static str> {
    let Hello::Named(name) = hello else { return Err("no name is asked for") };
    match view.named(name) {
        None => Err("nothing has this name"),
        Some(Named::Presence(service)) => {
            let presence = view.presences.get(service).ok_or("nothing has this name")?;
            match presence.protocol {
                Protocol::Https | Protocol::Tcp => Ok(Target::Service(service.clone())),
                // The gateway reads what these say, and cannot through TLS.
                _ => Err("the service does not speak TLS"),
            }
        }
        Some(Named::Node(node)) => {
            let found = view.nodes.get(node).ok_or("nothing has this name")?;
            let port =
                node_port(found, entry_port).ok_or("the node has several ports, and none is this one")?;
            Ok(Target::Node { node: node.clone(), port })
        }
    }
}

/// The entry's own port if the node offers it, else the only one it has.
fn node_port(node: &Node, entry_port: u16) -> Option<u16> {
    match node.ports.as_slice() {
        ports if ports.contains(&entry_port) => Some(entry_port),
        [only] => Some(*only),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use causeway_netmap::{DnsName, Fact, Generation, Netmap, Presence};

    use super::*;

    fn view() -> View {
        let presence = |service: &str, protocol: Protocol| {
            Fact::Presence(Presence {
                service: service.into(),
                addresses: vec![],
                port: 443,
                protocol,
                brokers: 0,
                names: vec![DnsName::new(service)],
                home: "berlin".into(),
                policies: vec![],
            })
        };
        let node = |name: &str, ports: &[u16]| {
            Fact::Node(Node {
                server: name.into(),
                site: "berlin".into(),
                ip: None,
                ports: ports.to_vec(),
                names: vec![DnsName::new(name)],
                policies: vec![],
            })
        };
        let facts = [
            presence("shop", Protocol::Https),
            presence("mail", Protocol::Tcp),
            presence("web", Protocol::Http),
            node("n1", &[10250]),
            node("n2", &[22, 443]),
            node("n3", &[22, 80]),
        ];
        let entries = facts.iter().map(Fact::encode).collect();
        View::decode(&Netmap::build(Generation { epoch: 1, revision: 1 }, entries, None).unwrap())
    }

    #[test]
    fn a_name_leads_to_what_speaks_tls() {
        let view = view();
        let check = |name: &str, expected: Result<Target, ()>| {
            assert_eq!(target(&view, &Hello::Named(name.into()), 443).map_err(drop), expected, "{name}");
        };
        check("shop", Ok(Target::Service("shop".into())));
        check("mail", Ok(Target::Service("mail".into())));
        check("web", Err(()));
        check("other", Err(()));
        check("n1", Ok(Target::Node { node: "n1".into(), port: 10250 }));
        check("n2", Ok(Target::Node { node: "n2".into(), port: 443 }));
        check("n3", Err(()));
        assert!(target(&view, &Hello::Nameless, 443).is_err());
    }
}
