//! Access to other sites: the trait that roles implement, and the header that two gateways exchange.
//!
//! An edge opens every stream through the cloud, which knows where each gateway is attached. The cloud stamps
//! the origin of a stream from the certificate of the session; no other source is trusted.

use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use causeway_channel::link::{ResetCode, Stream, StreamHeader, StreamPurpose};
use causeway_netmap::{ServerName, ServiceName, SiteName};
use prost::Message;
use tokio::runtime::Handle;

use crate::policy::{MalformedPart, PolicyRefusal, Principal};

pub type BoxedFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Opens streams to the gateways of other sites. Implemented by the role.
pub trait GatewayPeers: Send + Sync + 'static {
    /// Opens a stream to the active gateway of `header.site`. Resolves without a round trip; a refusal of the
    /// other end arrives as a reset.
    fn open_stream(&self, header: StreamHeader) -> BoxedFuture<'_, Result<Stream, PeerError>>;

    /// Returns the runtime of the link to that site, from the channel: tasks of its clients should run there.
    fn runtime(&self, _site: &SiteName) -> Option<Handle> {
        None
    }

    /// Returns the link that carries the streams to a site, named by the site at its other end. Streams to
    /// different sites may share one: an edge has a single link, to the cloud.
    fn link_to(&self, site: &SiteName) -> SiteName {
        site.clone()
    }

    /// Reports that a stream to that site makes no progress. The link may be dead; its keeper checks it.
    fn suspect(&self, _site: &SiteName) {}
}

/// Why a stream could not be opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerError {
    #[error("site {site} is away: {why}")]
    Away { site: SiteName, why: String },
    #[error("site {site} refused the stream: {code}")]
    Refused { site: SiteName, code: ResetCode },
}

impl From<PeerError> for PolicyRefusal {
    fn from(error: PeerError) -> PolicyRefusal {
        match error {
            PeerError::Away { site, .. } => PolicyRefusal::SiteAway { site },
            PeerError::Refused { site, code } => PolicyRefusal::SiteRefused { site, code },
        }
    }
}

/// The content of a stream between gateways.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StreamContent {
    /// The bytes of one connection.
    Bytes,
    /// The datagrams of one client: a `Flow`.
    Datagrams,
    /// Requests over HTTP/2, from one client after the other.
    Requests,
    /// One request over HTTP/1.1 that may be upgraded.
    Upgrade,
}

/// The first byte on a stream to a node, from its gateway: the node is connected, and its bytes follow. Only
/// then does a CONNECT client get its 200. If the node cannot be reached, the stream is reset with the reason
/// as its code.
pub const NODE_READY: u8 = 0;

/// The details of a stream to a service or node. Unknown fields are ignored; an unknown content is refused.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct CrossingHeader {
    #[prost(uint32, tag = "1")]
    content: u32,
    /// Four or sixteen bytes: the client, for the audit, the PROXY protocol and X-Forwarded-For.
    #[prost(bytes = "bytes", tag = "2")]
    client_ip: Bytes,
    #[prost(uint32, tag = "3")]
    client_port: u32,
    /// The port of a node.
    #[prost(uint32, tag = "4")]
    port: u32,
    /// The index of the wanted Kafka broker among the backends of the service, from 1. 0: any broker.
    #[prost(uint32, tag = "5")]
    broker: u32,
    /// The address at which the client sees the service, if responses must contain broker addresses. An older
    /// gateway ignores this and the broker, and forwards responses unchanged.
    #[prost(bytes = "bytes", tag = "6")]
    seen_ip: Bytes,
    #[prost(uint32, tag = "7")]
    seen_port: u32,
    /// The context of the trace, in 25 bytes (`trace::context`), if the opening gateway exports traces. An older gateway
    /// ignores it, and a cloud that forwards the stream passes it on with the other details.
    #[prost(bytes = "bytes", tag = "8")]
    trace: Bytes,
}

impl CrossingHeader {
    /// Creates the details. `client` is None if the client has no address, as on a Unix socket.
    pub fn new(content: StreamContent, client: impl Into<Option<SocketAddr>>) -> CrossingHeader {
        let client = client.into();
        let client_ip = client.map(|client| ip_bytes(client.ip())).unwrap_or_default();
        let content = match content {
            StreamContent::Bytes => 0,
            StreamContent::Datagrams => 1,
            StreamContent::Requests => 2,
            StreamContent::Upgrade => 3,
        };
        let client_port = client.map_or(0, |client| client.port().into());
        CrossingHeader { content, client_ip, client_port, ..CrossingHeader::default() }
    }

    /// Adds the fields for a Kafka cluster: the address at which the client sees it, and the wanted broker.
    pub fn with_brokers(mut self, seen: SocketAddr, broker: Option<u16>) -> CrossingHeader {
        self.seen_ip = ip_bytes(seen.ip());
        self.seen_port = seen.port().into();
        self.broker = broker.map_or(0, |broker| u32::from(broker) + 1);
        self
    }

    /// Adds the context of the trace; empty: none.
    pub fn with_trace(mut self, context: Bytes) -> CrossingHeader {
        self.trace = context;
        self
    }

    /// The context of the trace. It is untrusted, and empty without one.
    pub fn trace(&self) -> &Bytes {
        &self.trace
    }

    /// Decodes the details of a header. They are untrusted.
    pub fn of(header: &StreamHeader) -> Result<CrossingHeader, PolicyRefusal> {
        CrossingHeader::decode(header.details.clone())
            .map_err(|_| PolicyRefusal::Malformed { why: MalformedPart::Details })
    }

    pub fn content(&self) -> Result<StreamContent, PolicyRefusal> {
        Ok(match self.content {
            0 => StreamContent::Bytes,
            1 => StreamContent::Datagrams,
            2 => StreamContent::Requests,
            3 => StreamContent::Upgrade,
            _ => return Err(PolicyRefusal::Malformed { why: MalformedPart::Content }),
        })
    }

    /// Returns the client that the other gateway names, if it does.
    pub fn client(&self) -> Option<SocketAddr> {
        address(&self.client_ip, self.client_port)
    }

    /// Returns the address at which the client sees the service, if it needs broker addresses.
    pub fn seen(&self) -> Option<SocketAddr> {
        address(&self.seen_ip, self.seen_port)
    }

    /// Returns the index of the wanted broker among the backends. None: any.
    pub fn broker(&self) -> Option<usize> {
        self.broker.checked_sub(1).and_then(|broker| usize::try_from(broker).ok())
    }

    pub fn node_port(&self) -> Result<u16, PolicyRefusal> {
        u16::try_from(self.port)
            .ok()
            .filter(|port| *port != 0)
            .ok_or(PolicyRefusal::Malformed { why: MalformedPart::NoPort })
    }

    /// Returns the header of a stream to a service at `site`.
    pub fn to_service(self, service: &ServiceName, site: &SiteName, who: &Principal) -> StreamHeader {
        self.header(StreamPurpose::Service, site, who).target(service.as_str())
    }

    /// Returns the header of a stream to a port of a node at `site`.
    pub fn to_node(mut self, node: &ServerName, port: u16, site: &SiteName, who: &Principal) -> StreamHeader {
        self.port = port.into();
        self.header(StreamPurpose::Node, site, who).target(node.as_str())
    }

    fn header(self, purpose: StreamPurpose, site: &SiteName, who: &Principal) -> StreamHeader {
        let subject = who.server.as_ref().map_or("", |server| server.as_str());
        let header = StreamHeader::new(purpose).to(site.as_str(), "").subject(subject);
        let datagrams = self.content() == Ok(StreamContent::Datagrams);
        StreamHeader { datagrams, ..header.details(self.encode_to_vec()) }
    }
}

fn ip_bytes(ip: IpAddr) -> Bytes {
    match ip.to_canonical() {
        IpAddr::V4(ip) => Bytes::copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => Bytes::copy_from_slice(&ip.octets()),
    }
}

fn address(ip: &[u8], port: u32) -> Option<SocketAddr> {
    let ip = match <[u8; 4]>::try_from(ip) {
        Ok(octets) => IpAddr::from(octets),
        Err(_) => IpAddr::from(<[u8; 16]>::try_from(ip).ok()?),
    };
    Some(SocketAddr::new(ip, u16::try_from(port).ok()?))
}

/// Opens a stream to the active gateway of a site, within `connect_timeout`. A link that takes no stream is suspected.
pub(crate) async fn open_within(
    peers: &dyn GatewayPeers,
    connect_timeout: Duration,
    site: &SiteName,
    header: StreamHeader,
) -> Result<Stream, PeerError> {
    let opened = match tokio::time::timeout(connect_timeout, peers.open_stream(header)).await {
        Ok(opened) => opened,
        Err(_) => {
            peers.suspect(site);
            let seconds = connect_timeout.as_secs_f64();
            Err(PeerError::Away { site: site.clone(), why: format!("no stream opened within {seconds} s") })
        }
    };
    if let Err(error) = &opened {
        tracing::debug!(%site, error = error as &dyn std::error::Error, "cannot open a stream to another site");
    }
    opened
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_crossing_is_heard() {
        let who = Principal { site: "oslo".into(), server: Some("shop".into()) };
        for client in ["10.0.0.7:4321", "[fd00::7]:4321"] {
            let client: SocketAddr = client.parse().unwrap();
            let crossing = CrossingHeader::new(StreamContent::Datagrams, client);
            let header = crossing.clone().to_node(&"node-1".into(), 10250, &"berlin".into(), &who);
            assert_eq!(
                (header.site.as_str(), header.target.as_str(), header.subject.as_str()),
                ("berlin", "node-1", "shop")
            );
            let heard = CrossingHeader::of(&header).unwrap();
            assert!(header.datagrams);
            assert_eq!((heard.client(), heard.content()), (Some(client), Ok(StreamContent::Datagrams)));
            assert_eq!(heard.node_port(), Ok(10250));
            assert!(crossing.node_port().is_err());
            assert_eq!((crossing.seen(), crossing.broker()), (None, None));
            for broker in [None, Some(0), Some(2)] {
                let header = crossing.clone().with_brokers(client, broker);
                let heard =
                    CrossingHeader::of(&header.to_service(&"kafka".into(), &"berlin".into(), &who)).unwrap();
                assert_eq!((heard.seen(), heard.broker()), (Some(client), broker.map(usize::from)));
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let header = StreamHeader::new(StreamPurpose::Service).details(&b"\xff\xff"[..]);
        assert!(matches!(CrossingHeader::of(&header), Err(PolicyRefusal::Malformed { .. })));
        let unknown =
            CrossingHeader { content: 9, client_ip: Bytes::from_static(b"abc"), ..CrossingHeader::default() };
        assert!(unknown.content().is_err() && unknown.client().is_none());
    }
}
