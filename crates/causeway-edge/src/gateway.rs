//! Connects the gateway to this edge: other sites are reached over the link, audit records go into the spool.
//!
//! The origin of a stream is in its header, set by the cloud; a stream of the cloud itself has none.

use std::collections::BTreeSet;
use std::net::{IpAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causeway_channel::link::{Stream, StreamError, StreamHeader};
use causeway_channel::wire::control::{
    NEIGHBOUR_NAMES_BYTES_MAX, NEIGHBOURS_MAX, NeighbourQuery, TunnelReport,
};
use causeway_gateway::audit::{AuditRecord, AuditSink};
use causeway_gateway::peer_requests::PeerQuestion;
use causeway_gateway::peers::{GatewayPeers, PeerError};
use causeway_gateway::{Gateway, GatewayOptions, GatewayParts, RoleFacts};
use causeway_netmap::{NetmapView, SiteName};
use tokio::runtime::Handle;

use crate::link::{CloudStreamHandler, CurrentLink, LinkFuture, NeighbourAsker};
use crate::netmap::NetmapKeeper;
use crate::spool::{Spool, SpoolRecordKind};

/// The site of the cloud itself.
const CLOUD: &str = "cloud";
/// The deadline for opening a stream. It takes no round trip; it blocks only while the link grants no more streams,
/// which a healthy link does within this time.
const OPEN: Duration = Duration::from_secs(3);

/// The gateway of an edge.
pub fn gateway(
    netmaps: &NetmapKeeper,
    current_link: CurrentLink,
    spool: Option<Spool>,
    options: GatewayOptions,
    role_facts: RoleFacts,
) -> Gateway {
    Gateway::new(GatewayParts {
        netmaps: netmaps.views(),
        peers: Arc::new(CloudPeers { current_link }),
        audit: Arc::new(SpoolAuditSink { spool }),
        options,
        role_facts: Some(role_facts),
    })
}

/// Asks the cloud for the members of large communities with which the gateway exchanges packets.
pub struct GatewayNeighbours(pub Gateway);

impl NeighbourAsker for GatewayNeighbours {
    fn neighbours(&self) -> Vec<String> {
        neighbours(&self.0.context().view())
    }

    fn next(&self) -> LinkFuture<'_, NeighbourQuery> {
        Box::pin(async { query(self.0.context().peer_requests.next().await) })
    }
}

/// Returns the sites of the peers of a netmap with on-demand networks, as many as a hello may have.
fn neighbours(view: &NetmapView) -> Vec<String> {
    if view.on_demand.is_none() {
        return Vec::new();
    }
    let sites: BTreeSet<&str> = view.tunnel_peers.values().map(|peer| peer.site.as_str()).collect();
    let mut bytes = 0;
    let fitting = sites.into_iter().take(NEIGHBOURS_MAX).take_while(|site| {
        // A tag and a length precede each name.
        bytes += site.len() + 3;
        bytes <= NEIGHBOUR_NAMES_BYTES_MAX
    });
    fitting.map(str::to_owned).collect()
}

fn query(questions: Vec<PeerQuestion>) -> NeighbourQuery {
    let mut query = NeighbourQuery::default();
    for question in questions {
        match question {
            PeerQuestion::Address(IpAddr::V4(address)) => {
                query.addresses.push(Bytes::copy_from_slice(&address.octets()));
            }
            PeerQuestion::Address(IpAddr::V6(address)) => {
                query.addresses.push(Bytes::copy_from_slice(&address.octets()));
            }
            PeerQuestion::Site(site) => query.sites.push(site),
            PeerQuestion::Silent(site) => query.silent.push(site),
        }
    }
    query
}

/// The tunnel of this gateway, for hello. None: it is switched off.
pub fn tunnel_report(gateway: &Gateway, port: u16) -> Option<TunnelReport> {
    let tunnel = gateway.tunnel()?;
    let bytes = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => Bytes::copy_from_slice(&ip.octets()),
        IpAddr::V6(ip) => Bytes::copy_from_slice(&ip.octets()),
    };
    Some(TunnelReport {
        public_key: Bytes::copy_from_slice(&tunnel.public_key()?.0),
        port: port.into(),
        aes: tunnel.has_aes(),
        addresses: outward_addresses().into_iter().map(bytes).collect(),
    })
}

/// The addresses of this host that other hosts see, one per address family. Nothing is sent.
fn outward_addresses() -> Vec<IpAddr> {
    // Documentation addresses (RFC 5737, RFC 3849): routed like any foreign host, and assigned to no host.
    let probes = [("0.0.0.0:0", "192.0.2.1:9"), ("[::]:0", "[2001:db8::1]:9")];
    let outward = |(local, remote)| {
        let socket = UdpSocket::bind(local).ok()?;
        socket.connect(remote).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    probes.into_iter().filter_map(outward).filter(|ip| !ip.is_unspecified() && !ip.is_loopback()).collect()
}

/// Opens streams to other sites through the cloud.
struct CloudPeers {
    current_link: CurrentLink,
}

impl GatewayPeers for CloudPeers {
    fn link_to(&self, _: &SiteName) -> SiteName {
        SiteName::from("cloud")
    }

    fn open_stream(
        &self,
        header: StreamHeader,
    ) -> causeway_gateway::peers::BoxedFuture<'_, Result<Stream, PeerError>> {
        Box::pin(async move {
            let site = SiteName::from(header.site.as_str());
            let away = |why: String| PeerError::Away { site: site.clone(), why };
            let Some(link) = self.current_link.link() else {
                return Err(away("there is no link to the cloud".to_owned()));
            };
            match tokio::time::timeout(OPEN, link.open_stream(header)).await {
                Ok(Ok(stream)) => Ok(stream),
                Ok(Err(StreamError::Refused(reset))) => Err(PeerError::Refused { site, code: reset.0 }),
                Ok(Err(error)) => {
                    self.current_link.suspect();
                    Err(away(error.to_string()))
                }
                Err(_) => {
                    self.current_link.suspect();
                    Err(away("the link accepts no stream".to_owned()))
                }
            }
        })
    }

    fn runtime(&self, _site: &SiteName) -> Option<Handle> {
        self.current_link.link()?.runtime()
    }

    fn suspect(&self, _: &SiteName) {
        self.current_link.suspect();
    }
}

/// Appends audit records to the spool, which keeps them until the cloud has them.
struct SpoolAuditSink {
    spool: Option<Spool>,
}

impl AuditSink for SpoolAuditSink {
    fn record(&self, record: AuditRecord) {
        let Some(spool) = &self.spool else { return };
        match serde_json::to_vec(&record) {
            Ok(record) => spool.append(SpoolRecordKind::Audit, record),
            Err(error) => tracing::error!(%error, "an audit record cannot be encoded"),
        }
    }

    fn is_pressed(&self) -> bool {
        self.spool.as_ref().is_some_and(Spool::is_pressed)
    }
}

/// Hands the streams that the cloud opens to the gateway.
pub struct CloudStreamServer(pub Gateway);

impl CloudStreamHandler for CloudStreamServer {
    fn serve(&self, header: StreamHeader, stream: Stream) {
        let origin = header.origin.as_ref().map_or(CLOUD, |origin| origin.site.as_str()).into();
        self.0.serve(origin, header, stream);
    }
}
