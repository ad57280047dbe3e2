//! The two ends of a way to a node: opened for somebody of our own site, and served where the node is.
//!
//! Whoever opens it knows that the node has been reached: its gateway says so with the first byte (`peers::NODE_READY`). How a
//! client hears of a refusal is left to the door it came through. Both ends judge, and judge again with every netmap.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use causeway_channel::link::{ResetCode, Stream, StreamHeader};
use causeway_netmap::{Node, ServerName, SiteName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::allow::Host;
use crate::audit::End;
use crate::dial::Denied;
use crate::gateway::Shared;
use crate::live::{Claim, Cut, Entry};
use crate::passage::{Admitted, Direction, Passage};
use crate::peers::{Content, Crossing, NODE_READY};
use crate::policy::{Refusal, Who};
use crate::proxy::inbound::prepare;
use crate::proxy::outbound::{code_for, code_for_cut, judge_end};
use crate::proxy::pump::any::any_side;
use crate::proxy::pump::{Ended, Side, Sink, Socket, Source, cross, stream_side};

/// What a node speaks is its own matter: most of it is TLS.
const PROTOCOL: &str = "tcp";

/// A way that is open: somebody listens at its end.
pub struct Opened {
    pub passage: Passage,
    /// For whoever must notice that it is cut.
    pub entry: Arc<Entry>,
    pub way: Way,
}

pub enum Way {
    /// The node is at our own site.
    Here(TcpStream),
    Far {
        stream: Stream,
        home: SiteName,
    },
}

/// Why there is no way.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotReached {
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error("site {site} says: {code}")]
    Far { site: SiteName, code: ResetCode },
    #[error("the link to site {site} was lost")]
    Lost { site: SiteName },
    #[error("{target} does not answer in time")]
    Late { target: String },
    #[error("{target} does not answer: {why}")]
    Down { target: String, why: String },
    #[error("it is no longer allowed, or this gateway stops")]
    Cut(Cut),
}

impl NotReached {
    /// One word, for metrics.
    pub fn word(&self) -> &'static str {
        match self {
            NotReached::Refused(refusal) => refusal.word(),
            NotReached::Far { code: ResetCode::NotAllowed | ResetCode::Revoked, .. } => "not-allowed",
            NotReached::Far { code: ResetCode::BackendDown, .. } | NotReached::Down { .. } => "backend-down",
            NotReached::Far { code: ResetCode::Timeout, .. } | NotReached::Late { .. } => "timeout",
            NotReached::Far { code: ResetCode::Limit, .. } => "limit",
            NotReached::Far { .. } => "refused-there",
            NotReached::Lost { .. } => "site-away",
            NotReached::Cut(_) => "cut",
        }
    }

    /// In the words of the audit.
    fn end(&self) -> End {
        match self {
            NotReached::Far { code: ResetCode::BackendDown, .. } | NotReached::Down { .. } => {
                End::BackendDown
            }
            NotReached::Far { code: ResetCode::Timeout, .. } | NotReached::Late { .. } => End::Timeout,
            NotReached::Far { code: ResetCode::Limit, .. } => End::Limit,
            NotReached::Lost { .. } => End::LinkLost,
            NotReached::Refused(_) | NotReached::Far { .. } => End::Refused,
            NotReached::Cut(cut) => cut.end(),
        }
    }

    /// Records what became of it.
    fn record(self, shared: &Shared, passage: Passage) -> NotReached {
        match &self {
            NotReached::Refused(refusal) => passage.refuse(refusal),
            NotReached::Cut(cut) => passage.cut(cut),
            other => {
                shared.figures.refused(other.word());
                passage.end(other.end(), Some(other.to_string()));
            }
        }
        self
    }
}

/// Opens a way to a port of a node for somebody of our own site. Refusals are recorded already.
pub async fn open_node(
    shared: &Arc<Shared>,
    node: &ServerName,
    port: u16,
    who: Who,
    client: Option<SocketAddr>,
) -> Result<Opened, NotReached> {
    let claim = Claim::UseNode { node: node.clone(), port, who };
    let mut passage = Passage::begin(shared, Direction::Outbound, PROTOCOL, claim, client);
    let admitted = match passage.admit_connection() {
        Ok(admitted) => admitted,
        Err(refusal) => return Err(NotReached::Refused(refusal).record(shared, passage)),
    };
    let reaching = async {
        let found = admitted.view.nodes.get(node);
        let found = found.ok_or_else(|| Refusal::NoNode { node: node.clone() })?;
        match found.site == admitted.who.site {
            true => Ok(Way::Here(dial_node(shared, found, port).await?)),
            false => reach(shared, &admitted, found, port, client).await,
        }
    };
    conclude(shared, passage, &admitted.entry, reaching).await
}

/// Opens a way to something that is no node; the allow-list was asked before.
pub async fn open_direct(
    shared: &Arc<Shared>,
    host: &Host,
    port: u16,
    who: Who,
    client: Option<SocketAddr>,
) -> Result<Opened, NotReached> {
    let claim = Claim::Direct { target: format!("{host}:{port}"), who };
    let mut passage = Passage::begin(shared, Direction::Outbound, PROTOCOL, claim, client);
    let admitted = match passage.admit() {
        Ok(admitted) => admitted,
        Err(refusal) => return Err(NotReached::Refused(refusal).record(shared, passage)),
    };
    let target = format!("{host}:{port}");
    let reaching = async {
        let connecting = async {
            match host {
                Host::Name(name) => {
                    let found = tokio::net::lookup_host((name.as_str(), port)).await?;
                    shared.dialer.connect_first(found).await
                }
                Host::Address(address) => shared.dialer.connect_tcp((*address, port).into()).await,
            }
        };
        Ok(Way::Here(connect(shared, target, connecting).await?))
    };
    conclude(shared, passage, &admitted.entry, reaching).await
}

/// Records that a name is no node.
pub fn note_unknown(shared: &Arc<Shared>, host: &Host, port: u16, who: Who, client: Option<SocketAddr>) {
    let node = ServerName::from(host.to_string());
    let claim = Claim::UseNode { node: node.clone(), port, who };
    Passage::begin(shared, Direction::Outbound, PROTOCOL, claim, client).refuse(&Refusal::NoNode { node });
}

async fn conclude(
    shared: &Shared,
    passage: Passage,
    entry: &Arc<Entry>,
    reaching: impl Future<Output = Result<Way, NotReached>>,
) -> Result<Opened, NotReached> {
    let reached = tokio::select! {
        biased;
        cut = entry.cut() => Err(NotReached::Cut(cut)),
        reached = reaching => reached,
    };
    match reached {
        Ok(way) => Ok(Opened { passage, entry: entry.clone(), way }),
        Err(why) => Err(why.record(shared, passage)),
    }
}

/// A stream to the gateway of the node, and its word that the node is there.
async fn reach(
    shared: &Shared,
    admitted: &Admitted,
    node: &Node,
    port: u16,
    client: Option<SocketAddr>,
) -> Result<Way, NotReached> {
    let home = node.site.clone();
    let header = Crossing::new(Content::Bytes, client).to_node(&node.server, port, &home, &admitted.who);
    let patience = shared.options.connect_timeout;
    let mut stream = match tokio::time::timeout(patience, shared.peers.open_stream(header)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(error = &error as &dyn std::error::Error, "no stream to the site of a node");
            return Err(Refusal::SiteAway { site: home }.into());
        }
        Err(_) => {
            shared.peers.suspect(&home);
            return Err(Refusal::SiteAway { site: home }.into());
        }
    };
    // The other gateway gives the node as much time as we would; the rest is for the way there and back.
    match tokio::time::timeout(patience * 2, stream.recv.read_chunk(1)).await {
        Ok(Ok(Some(word))) if word[..] == [NODE_READY] => Ok(Way::Far { stream, home }),
        Ok(Ok(_)) => {
            stream.refuse(ResetCode::Malformed);
            Err(NotReached::Far { site: home, code: ResetCode::Malformed })
        }
        Ok(Err(error)) => match ResetCode::of(&error) {
            None | Some(ResetCode::Abandoned) => Err(NotReached::Lost { site: home }),
            Some(code) => Err(NotReached::Far { site: home, code }),
        },
        Err(_) => {
            stream.refuse(ResetCode::Timeout);
            shared.peers.suspect(&home);
            Err(NotReached::Late { target: target(&node.server, port) })
        }
    }
}

impl Opened {
    /// Carries a connection until one of its ends has had enough.
    pub async fn carry<T: AsyncRead + AsyncWrite>(self, shared: &Shared, client: T) {
        self.carry_side(shared, &mut any_side(client)).await;
    }

    /// The same for a socket that nobody has spoken to, or only peeked into.
    pub async fn carry_socket(self, shared: &Shared, client: TcpStream) {
        if let Err(error) = prepare(&client) {
            return self.passage.end(End::ClientReset, Some(error.to_string()));
        }
        let mut client = Socket::new(client);
        self.carry_side(shared, &mut client.side()).await;
        client.close();
    }

    async fn carry_side<R: Source, W: Sink>(self, shared: &Shared, near: &mut Side<R, W>) {
        let Opened { passage, entry, way } = self;
        match way {
            Way::Far { stream, home } => {
                let mut far = stream_side(stream, || shared.peers.suspect(&home));
                let ended = between(shared, &passage, &entry, near, &mut far).await;
                far.give_up(code(&ended));
                let received = passage.meter().received();
                record(passage, &ended, Some(received));
            }
            Way::Here(socket) => {
                let mut socket = Socket::new(socket);
                let ended = between(shared, &passage, &entry, near, &mut socket.side()).await;
                record(passage, &ended, None);
                socket.close();
            }
        }
    }
}

/// Serves a stream of another site to a node here.
pub async fn serve(shared: Arc<Shared>, origin: SiteName, header: StreamHeader, stream: Stream) {
    let crossing = Crossing::of(&header);
    let client = crossing.as_ref().ok().and_then(Crossing::client);
    let port = crossing.and_then(|crossing| match crossing.content()? {
        Content::Bytes => crossing.node_port(),
        _ => Err(Refusal::Malformed { why: "a node speaks bytes" }),
    });
    let node = ServerName::from(header.target.as_str());
    let number = port.as_ref().copied().unwrap_or_default();
    let claim =
        Claim::ReachNode { node: node.clone(), port: number, origin, subject: header.subject.clone() };
    let mut passage = Passage::begin(&shared, Direction::Inbound, PROTOCOL, claim, client);
    let admitted = match port.and_then(|_| passage.admit_connection()) {
        Ok(admitted) => admitted,
        Err(refusal) => {
            stream.refuse(refusal.code());
            passage.refuse(&refusal);
            return;
        }
    };
    let dialling = async {
        let found = admitted.view.nodes.get(&node);
        // One of another site is known here too, when somebody here may reach it; but nothing is handed on.
        let found = found.filter(|found| found.ip.is_some());
        let found = found.ok_or_else(|| Refusal::NoNode { node: node.clone() })?;
        dial_node(&shared, found, number).await
    };
    let dialled = tokio::select! {
        biased;
        cut = admitted.entry.cut() => Err(NotReached::Cut(cut)),
        dialled = dialling => dialled,
    };
    match dialled {
        Ok(socket) => answer(&shared, passage, &admitted.entry, Socket::new(socket), stream).await,
        Err(why) => {
            stream.refuse(reset_code(&why));
            why.record(&shared, passage);
        }
    }
}

async fn answer(shared: &Shared, passage: Passage, entry: &Entry, mut node: Socket, mut stream: Stream) {
    if let Err(error) = stream.send.write_chunk(Bytes::from_static(&[NODE_READY])).await {
        return passage.end(End::ClientReset, Some(error.to_string()));
    }
    let mut far = stream_side(stream, || ());
    let ended = between(shared, &passage, entry, &mut far, &mut node.side()).await;
    far.give_up(code(&ended));
    record(passage, &ended, None);
    node.close();
}

async fn dial_node(shared: &Shared, node: &Node, port: u16) -> Result<TcpStream, NotReached> {
    let ip = node.ip.ok_or_else(|| Refusal::NoNode { node: node.server.clone() })?;
    connect(shared, target(&node.server, port), shared.dialer.connect_tcp((ip, port).into())).await
}

async fn connect(
    shared: &Shared,
    target: String,
    connecting: impl Future<Output = io::Result<TcpStream>>,
) -> Result<TcpStream, NotReached> {
    let connected = tokio::time::timeout(shared.options.connect_timeout, connecting).await;
    let Ok(connected) = connected else { return Err(NotReached::Late { target }) };
    let prepared = connected.and_then(|stream| prepare(&stream).map(|()| stream));
    prepared.map_err(|error| match (error.kind(), Denied::of(&error)) {
        (_, Some(why)) => Refusal::BackendDenied { what: target, why: why.clone() }.into(),
        (io::ErrorKind::TimedOut, _) => NotReached::Late { target },
        _ => NotReached::Down { target, why: error.to_string() },
    })
}

fn target(node: &ServerName, port: u16) -> String {
    format!("port {port} of node {node}")
}

/// What the other gateway is told.
fn reset_code(why: &NotReached) -> ResetCode {
    match why {
        NotReached::Refused(refusal) => refusal.code(),
        NotReached::Late { .. } => ResetCode::Timeout,
        NotReached::Cut(cut) => code_for_cut(cut),
        NotReached::Down { .. } | NotReached::Far { .. } | NotReached::Lost { .. } => ResetCode::BackendDown,
    }
}

async fn between<R: Source, W: Sink, S: Source, V: Sink>(
    shared: &Shared,
    passage: &Passage,
    entry: &Entry,
    client: &mut Side<R, W>,
    node: &mut Side<S, V>,
) -> Result<Ended, Cut> {
    let meter = passage.meter().clone();
    tokio::select! {
        biased;
        cut = entry.cut() => Err(cut),
        ended = cross(client, node, &meter, shared.options.idle_timeout) => Ok(ended),
    }
}

fn code(ended: &Result<Ended, Cut>) -> ResetCode {
    match ended {
        Ok(ended) => code_for(ended),
        Err(cut) => code_for_cut(cut),
    }
}

fn record(passage: Passage, ended: &Result<Ended, Cut>, received: Option<u64>) {
    match ended {
        Ok(ended) => {
            let (end, reason) = judge_end(ended, received);
            passage.end(end, reason);
        }
        Err(cut) => passage.cut(cut),
    }
}
