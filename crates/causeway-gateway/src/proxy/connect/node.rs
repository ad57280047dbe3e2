//! Both ends of a connection to a node: opened for a client of our own site, and served at the site of the
//! node.
//!
//! The opening end knows when the node has been reached: its gateway sends one byte (`peers::NODE_READY`).
//! Each listener reports a refusal to its client in its own way. Both ends check the policies, and check
//! again with every netmap.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use causeway_channel::link::{ResetCode, Stream, StreamHeader};
use causeway_netmap::{NodeEntry, ServerName, SiteName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::allow::ConnectHost;
use crate::audit::ConnectionEnd;
use crate::connection_record::{AdmittedAccess, ConnectionRecord, CrossingDirection};
use crate::dial::{Denied, prepare};
use crate::live::{AccessRequest, CutReason, LiveConnection};
use crate::peers::{CrossingHeader, NODE_READY, StreamContent};
use crate::policy::{MalformedPart, PolicyRefusal, Principal};
use crate::proxy::Proxy;
use crate::proxy::copy::any::any_side;
use crate::proxy::copy::{ByteSink, ByteSource, CopyEnd, CopySide, SplitSocket, cross, stream_side};
use crate::proxy::end_reason::{self, code_for_cut};

/// The protocol of a node is opaque here: mostly it is TLS.
const PROTOCOL: &str = "tcp";

/// An open connection to a node that has accepted it.
pub struct NodeConnection {
    pub record: ConnectionRecord,
    /// Tells the owner when the connection is closed by a policy.
    pub entry: Arc<LiveConnection>,
    pub way: NodeTransport,
}

pub enum NodeTransport {
    /// The node is at our own site.
    Here(TcpStream),
    Far {
        stream: Stream,
        site: SiteName,
    },
}

/// The reason why a node cannot be reached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodeUnreachable {
    #[error(transparent)]
    Refused(#[from] PolicyRefusal),
    #[error("the gateway of site {site} refuses: {code}")]
    Far { site: SiteName, code: ResetCode },
    #[error("the link to site {site} was lost")]
    Lost { site: SiteName },
    #[error("{target} does not answer in time")]
    Late { target: String },
    #[error("{target} does not answer: {why}")]
    Down { target: String, why: String },
    #[error("a policy does not allow it any more, or this gateway stops")]
    Cut(CutReason),
}

impl NodeUnreachable {
    /// One word, for metrics.
    pub fn word(&self) -> &'static str {
        match self {
            NodeUnreachable::Refused(refusal) => refusal.word(),
            NodeUnreachable::Far { code: ResetCode::NotAllowed | ResetCode::Revoked, .. } => "not-allowed",
            NodeUnreachable::Far { code: ResetCode::BackendDown, .. } | NodeUnreachable::Down { .. } => {
                "backend-down"
            }
            NodeUnreachable::Far { code: ResetCode::Timeout, .. } | NodeUnreachable::Late { .. } => "timeout",
            NodeUnreachable::Far { code: ResetCode::Limit, .. } => "limit",
            NodeUnreachable::Far { .. } => "refused-there",
            NodeUnreachable::Lost { .. } => "site-away",
            NodeUnreachable::Cut(_) => "cut",
        }
    }

    /// The end of the connection, in the terms of the audit.
    fn end(&self) -> ConnectionEnd {
        match self {
            NodeUnreachable::Far { code: ResetCode::BackendDown, .. } | NodeUnreachable::Down { .. } => {
                ConnectionEnd::BackendDown
            }
            NodeUnreachable::Far { code: ResetCode::Timeout, .. } | NodeUnreachable::Late { .. } => {
                ConnectionEnd::Timeout
            }
            NodeUnreachable::Far { code: ResetCode::Limit, .. } => ConnectionEnd::Limit,
            NodeUnreachable::Lost { .. } => ConnectionEnd::LinkLost,
            NodeUnreachable::Refused(_) | NodeUnreachable::Far { .. } => ConnectionEnd::Refused,
            NodeUnreachable::Cut(cut) => cut.end(),
        }
    }

    /// Records what became of it.
    fn record(self, proxy: &Proxy, record: ConnectionRecord) -> NodeUnreachable {
        match &self {
            NodeUnreachable::Refused(refusal) => record.refuse(refusal),
            NodeUnreachable::Cut(cut) => record.cut(cut),
            other => {
                proxy.context.metrics.refused(other.word());
                record.end(other.end(), Some(other.to_string()));
            }
        }
        self
    }
}

/// Opens a connection to a port of a node for a client of our own site. Refusals are already recorded.
pub async fn open_node(
    proxy: &Arc<Proxy>,
    node: &ServerName,
    port: u16,
    who: Principal,
    client: Option<SocketAddr>,
) -> Result<NodeConnection, NodeUnreachable> {
    let claim = AccessRequest::UseNode { node: node.clone(), port, who };
    let mut record =
        ConnectionRecord::begin(&proxy.context, CrossingDirection::Outbound, PROTOCOL, claim, client);
    let admitted = match record.admit_connection() {
        Ok(admitted) => admitted,
        Err(refusal) => return Err(NodeUnreachable::Refused(refusal).record(proxy, record)),
    };
    let crossing =
        CrossingHeader::new(StreamContent::Bytes, client).with_trace(record.span().stream_context());
    let reaching = async {
        let found = admitted.view.nodes.get(node);
        let found = found.ok_or_else(|| PolicyRefusal::NoNode { node: node.clone() })?;
        match found.site == admitted.who.site {
            true => Ok(NodeTransport::Here(dial_node(proxy, found, port).await?)),
            false => reach(proxy, &admitted, found, port, crossing).await,
        }
    };
    conclude(proxy, record, &admitted.entry, reaching).await
}

/// Opens a connection to a target that is not a node; the caller has checked the allow-list.
pub async fn open_direct(
    proxy: &Arc<Proxy>,
    host: &ConnectHost,
    port: u16,
    who: Principal,
    client: Option<SocketAddr>,
) -> Result<NodeConnection, NodeUnreachable> {
    let claim = AccessRequest::Direct { target: format!("{host}:{port}"), who };
    let mut record =
        ConnectionRecord::begin(&proxy.context, CrossingDirection::Outbound, PROTOCOL, claim, client);
    let admitted = match record.admit() {
        Ok(admitted) => admitted,
        Err(refusal) => return Err(NodeUnreachable::Refused(refusal).record(proxy, record)),
    };
    let target = format!("{host}:{port}");
    let reaching = async {
        let connecting = async {
            match host {
                ConnectHost::Name(name) => {
                    let found = tokio::net::lookup_host((name.as_str(), port)).await?;
                    proxy.dialer.connect_first(found).await
                }
                ConnectHost::Address(address) => proxy.dialer.connect_tcp((*address, port).into()).await,
            }
        };
        Ok(NodeTransport::Here(connect(proxy, target, connecting).await?))
    };
    conclude(proxy, record, &admitted.entry, reaching).await
}

/// Records that a name is not a node.
pub fn note_unknown(
    proxy: &Arc<Proxy>,
    host: &ConnectHost,
    port: u16,
    who: Principal,
    client: Option<SocketAddr>,
) {
    let node = ServerName::from(host.to_string());
    let claim = AccessRequest::UseNode { node: node.clone(), port, who };
    ConnectionRecord::begin(&proxy.context, CrossingDirection::Outbound, PROTOCOL, claim, client)
        .refuse(&PolicyRefusal::NoNode { node });
}

async fn conclude(
    proxy: &Proxy,
    record: ConnectionRecord,
    entry: &Arc<LiveConnection>,
    reaching: impl Future<Output = Result<NodeTransport, NodeUnreachable>>,
) -> Result<NodeConnection, NodeUnreachable> {
    match entry.until_cut(pin!(reaching)).await.unwrap_or_else(|cut| Err(NodeUnreachable::Cut(cut))) {
        Ok(way) => Ok(NodeConnection { record, entry: entry.clone(), way }),
        Err(why) => Err(why.record(proxy, record)),
    }
}

/// Opens a stream to the gateway of the node, and waits until that gateway has reached the node.
async fn reach(
    proxy: &Proxy,
    admitted: &AdmittedAccess,
    node: &NodeEntry,
    port: u16,
    crossing: CrossingHeader,
) -> Result<NodeTransport, NodeUnreachable> {
    let site = node.site.clone();
    let header = crossing.to_node(&node.server, port, &site, &admitted.who);
    let patience = proxy.options.connect_timeout;
    let mut stream = proxy.context.open_stream(&site, header).await.map_err(PolicyRefusal::from)?;
    // The other gateway gives the node as much time as we would; the rest is for the way there and back.
    match tokio::time::timeout(patience * 2, stream.recv.read_chunk(1)).await {
        Ok(Ok(Some(word))) if word[..] == [NODE_READY] => Ok(NodeTransport::Far { stream, site }),
        Ok(Ok(_)) => {
            stream.refuse(ResetCode::Malformed);
            Err(NodeUnreachable::Far { site, code: ResetCode::Malformed })
        }
        Ok(Err(error)) => match ResetCode::of(&error) {
            None | Some(ResetCode::Abandoned) => Err(NodeUnreachable::Lost { site }),
            Some(code) => Err(NodeUnreachable::Far { site, code }),
        },
        Err(_) => {
            stream.refuse(ResetCode::Timeout);
            proxy.context.peers.suspect(&site);
            Err(NodeUnreachable::Late { target: target(&node.server, port) })
        }
    }
}

impl NodeConnection {
    /// Carries a connection until one of its ends has had enough.
    pub async fn carry<T: AsyncRead + AsyncWrite>(self, proxy: &Proxy, client: T) {
        self.carry_side(proxy, &mut any_side(client)).await;
    }

    /// The same for a socket from which no bytes were read; they may have been peeked.
    pub async fn carry_socket(self, proxy: &Proxy, client: TcpStream) {
        if let Err(error) = prepare(&client) {
            return self.record.end(ConnectionEnd::ClientReset, Some(error.to_string()));
        }
        let mut client = SplitSocket::new(client);
        self.carry_side(proxy, &mut client.side()).await;
        client.close();
    }

    async fn carry_side<R: ByteSource, W: ByteSink>(self, proxy: &Proxy, near: &mut CopySide<R, W>) {
        let NodeConnection { record, entry, way } = self;
        match way {
            NodeTransport::Far { stream, site } => {
                let mut far = stream_side(stream, || proxy.context.peers.suspect(&site));
                let ended = between(proxy, &record, &entry, near, &mut far).await;
                far.give_up(end_reason::reset_code(&ended));
                let received = record.meter().received();
                end_reason::close_record(record, &ended, Some(received));
            }
            NodeTransport::Here(socket) => {
                let mut socket = SplitSocket::new(socket);
                let ended = between(proxy, &record, &entry, near, &mut socket.side()).await;
                end_reason::close_record(record, &ended, None);
                socket.close();
            }
        }
    }
}

/// Serves a stream of another site to a node here.
pub async fn serve(proxy: Arc<Proxy>, origin: SiteName, header: StreamHeader, stream: Stream) {
    let crossing = CrossingHeader::of(&header);
    let client = crossing.as_ref().ok().and_then(CrossingHeader::client);
    let trace = crossing.as_ref().map(|crossing| crossing.trace().clone()).unwrap_or_default();
    let port = crossing.and_then(|crossing| match crossing.content()? {
        StreamContent::Bytes => crossing.node_port(),
        _ => Err(PolicyRefusal::Malformed { why: MalformedPart::NodeProtocol }),
    });
    let node = ServerName::from(header.target.as_str());
    let number = port.as_ref().copied().unwrap_or_default();
    let claim = AccessRequest::ReachNode {
        node: node.clone(),
        port: number,
        origin,
        subject: header.subject.clone(),
    };
    let mut record =
        ConnectionRecord::begin(&proxy.context, CrossingDirection::Inbound, PROTOCOL, claim, client);
    record.continue_stream(&trace);
    let admitted = match port.and_then(|_| record.admit_connection()) {
        Ok(admitted) => admitted,
        Err(refusal) => {
            stream.refuse(refusal.code());
            record.refuse(&refusal);
            return;
        }
    };
    let dialling = async {
        let found = admitted.view.nodes.get(&node);
        // A node of another site is known here too, if a client here may reach it; but streams are not
        // relayed to a third site.
        let found = found.filter(|found| found.ip.is_some());
        let found = found.ok_or_else(|| PolicyRefusal::NoNode { node: node.clone() })?;
        dial_node(&proxy, found, number).await
    };
    let dialled = admitted.entry.until_cut(pin!(dialling)).await;
    match dialled.unwrap_or_else(|cut| Err(NodeUnreachable::Cut(cut))) {
        Ok(socket) => answer(&proxy, record, &admitted.entry, SplitSocket::new(socket), stream).await,
        Err(why) => {
            stream.refuse(reset_code(&why));
            why.record(&proxy, record);
        }
    }
}

async fn answer(
    proxy: &Proxy,
    record: ConnectionRecord,
    entry: &LiveConnection,
    mut node: SplitSocket,
    mut stream: Stream,
) {
    if let Err(error) = stream.send.write_chunk(Bytes::from_static(&[NODE_READY])).await {
        return record.end(ConnectionEnd::ClientReset, Some(error.to_string()));
    }
    let mut far = stream_side(stream, || ());
    let ended = between(proxy, &record, entry, &mut far, &mut node.side()).await;
    far.give_up(end_reason::reset_code(&ended));
    end_reason::close_record(record, &ended, None);
    node.close();
}

async fn dial_node(proxy: &Proxy, node: &NodeEntry, port: u16) -> Result<TcpStream, NodeUnreachable> {
    let ip = node.ip.ok_or_else(|| PolicyRefusal::NoNode { node: node.server.clone() })?;
    connect(proxy, target(&node.server, port), proxy.dialer.connect_tcp((ip, port).into())).await
}

async fn connect(
    proxy: &Proxy,
    target: String,
    connecting: impl Future<Output = io::Result<TcpStream>>,
) -> Result<TcpStream, NodeUnreachable> {
    let connected = tokio::time::timeout(proxy.options.connect_timeout, connecting).await;
    let Ok(connected) = connected else { return Err(NodeUnreachable::Late { target }) };
    let prepared = connected.and_then(|stream| prepare(&stream).map(|()| stream));
    prepared.map_err(|error| match (error.kind(), Denied::of(&error)) {
        (_, Some(why)) => PolicyRefusal::BackendDenied { what: target, why: why.clone() }.into(),
        (io::ErrorKind::TimedOut, _) => NodeUnreachable::Late { target },
        _ => NodeUnreachable::Down { target, why: error.to_string() },
    })
}

fn target(node: &ServerName, port: u16) -> String {
    format!("port {port} of node {node}")
}

/// Returns the reset code for the other gateway.
fn reset_code(why: &NodeUnreachable) -> ResetCode {
    match why {
        NodeUnreachable::Refused(refusal) => refusal.code(),
        NodeUnreachable::Late { .. } => ResetCode::Timeout,
        NodeUnreachable::Cut(cut) => code_for_cut(cut),
        NodeUnreachable::Down { .. } | NodeUnreachable::Far { .. } | NodeUnreachable::Lost { .. } => {
            ResetCode::BackendDown
        }
    }
}

async fn between<R: ByteSource, W: ByteSink, S: ByteSource, V: ByteSink>(
    proxy: &Proxy,
    record: &ConnectionRecord,
    entry: &LiveConnection,
    client: &mut CopySide<R, W>,
    node: &mut CopySide<S, V>,
) -> Result<CopyEnd, CutReason> {
    let meter = record.meter().clone();
    entry.until_cut(pin!(cross(client, node, &meter, proxy.options.idle_timeout))).await
}
