//! Joins the gateway to this edge: other sites are behind the one link, records go into the upstream queue.
//!
//! Where a stream comes from stands in its header, stamped by the cloud; the cloud itself stamps nothing.

use std::sync::Arc;
use std::time::Duration;

use causeway_channel::link::{Stream, StreamError, StreamHeader};
use causeway_gateway::audit::{AuditRecord, AuditSink};
use causeway_gateway::peers::{GatewayPeers, PeerError};
use causeway_gateway::{Gateway, GatewayOptions, GatewayParts, RoleFacts};
use causeway_netmap::SiteName;
use tokio::runtime::Handle;

use crate::link::{CloudStreamHandler, CurrentLink, LinkFuture};
use crate::netmap::NetmapKeeper;
use crate::spool::{Spool, SpoolRecordKind};

/// The site of the cloud itself.
const CLOUD: &str = "cloud";
/// A stream opens without a round trip; one that cannot, waits for room that a living link would have made.
const OPEN: Duration = Duration::from_secs(3);

/// The gateway of an edge.
pub fn gateway(
    netmaps: &NetmapKeeper,
    uplink: CurrentLink,
    upstream: Option<Spool>,
    options: GatewayOptions,
    role_facts: RoleFacts,
) -> Gateway {
    Gateway::new(GatewayParts {
        netmaps: netmaps.views(),
        peers: Arc::new(ThroughCloud { uplink }),
        audit: Arc::new(ToCloud { upstream }),
        options,
        role_facts: Some(role_facts),
    })
}

/// Every other site is behind the cloud.
struct ThroughCloud {
    uplink: CurrentLink,
}

impl GatewayPeers for ThroughCloud {
    fn open_stream(
        &self,
        header: StreamHeader,
    ) -> causeway_gateway::peers::BoxedFuture<'_, Result<Stream, PeerError>> {
        Box::pin(async move {
            let site = SiteName::from(header.site.as_str());
            let away = |why: String| PeerError::Away { site: site.clone(), why };
            let Some(link) = self.uplink.link() else {
                return Err(away("there is no link to the cloud".to_owned()));
            };
            match tokio::time::timeout(OPEN, link.open_stream(header)).await {
                Ok(Ok(stream)) => Ok(stream),
                Ok(Err(StreamError::Refused(reset))) => Err(PeerError::Refused { site, code: reset.0 }),
                Ok(Err(error)) => {
                    self.uplink.suspect();
                    Err(away(error.to_string()))
                }
                Err(_) => {
                    self.uplink.suspect();
                    Err(away("the link takes no stream".to_owned()))
                }
            }
        })
    }

    fn home(&self, _site: &SiteName) -> Option<Handle> {
        self.uplink.link()?.home().cloned()
    }

    fn suspect(&self, _: &SiteName) {
        self.uplink.suspect();
    }
}

/// Records wait in the queue until the cloud has them.
struct ToCloud {
    upstream: Option<Spool>,
}

impl AuditSink for ToCloud {
    fn record(&self, record: AuditRecord) {
        let Some(upstream) = &self.upstream else { return };
        match serde_json::to_vec(&record) {
            Ok(record) => upstream.append(SpoolRecordKind::Audit, record),
            Err(error) => tracing::error!(%error, "a record cannot be written"),
        }
    }

    fn is_pressed(&self) -> bool {
        self.upstream.as_ref().is_some_and(Spool::is_pressed)
    }
}

/// Hands the streams that the cloud opens to the gateway.
pub struct CloudStreamServer(pub Gateway);

impl CloudStreamHandler for CloudStreamServer {
    fn serve(&self, header: StreamHeader, stream: Stream) -> LinkFuture<'static, ()> {
        let origin = header.origin.as_ref().map_or(CLOUD, |origin| origin.site.as_str()).into();
        self.0.serve(origin, header, stream);
        Box::pin(std::future::ready(()))
    }
}
