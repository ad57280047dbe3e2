//! The cloud's own gateway, `cloud` of site `cloud`: other sites are behind the sessions of the fleet.
//!
//! Its netmap comes from the publisher without a link in between; its records go into the same journal as those of
//! the edges.

use std::sync::{Arc, Weak};

use causeway_channel::link::{ResetCode, Stream, StreamHeader};
use causeway_gateway::audit::{AuditRecord, AuditSink};
use causeway_gateway::peers::{BoxedFuture, GatewayPeers, PeerError};
use causeway_gateway::{Gateway, GatewayOptions, GatewayParts};
use causeway_netmap::sync::TargetNetmap;
use causeway_netmap::{NetmapView, SiteName};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::bootstrap::CLOUD;
use crate::netmaps::NetmapPublisher;
use crate::replicas::{Fleet, FleetError};
use crate::spool_intake::CloudRecordQueue;
use crate::tunnels::{TunnelLease, without_layer3};

/// Returns the gateway and the task that keeps its netmap up to date.
pub fn gateway(
    publisher: &NetmapPublisher,
    fleet: &Arc<Fleet>,
    records: CloudRecordQueue,
    options: GatewayOptions,
    lease: TunnelLease,
) -> (Gateway, NetmapFollower) {
    let (views, netmaps) = watch::channel(Arc::default());
    let gateway = Gateway::new(GatewayParts {
        netmaps,
        peers: Arc::new(EdgePeers { fleet: Arc::downgrade(fleet) }),
        audit: Arc::new(ToJournal { records }),
        options,
        role_facts: None,
    });
    (gateway, NetmapFollower { targets: publisher.follow(CLOUD), views, lease })
}

/// Reads every netmap of the cloud's gateway once.
pub struct NetmapFollower {
    targets: watch::Receiver<Option<TargetNetmap>>,
    views: watch::Sender<Arc<NetmapView>>,
    /// Another replica may hold the tunnel of the cloud.
    lease: TunnelLease,
}

impl NetmapFollower {
    pub async fn run(mut self, stop: CancellationToken) {
        loop {
            let target = self.targets.borrow_and_update().clone();
            let holds = *self.lease.borrow_and_update();
            if let Some(target) = target {
                let view = NetmapView::decode(&target.netmap);
                for error in &view.damaged {
                    tracing::warn!(%error, "a part of the cloud's own netmap is left out");
                }
                self.views.send_replace(Arc::new(if holds { view } else { without_layer3(view) }));
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = self.targets.changed() => if changed.is_err() {
                    return stop.cancelled().await;
                },
                Ok(()) = self.lease.changed() => {}
            }
        }
    }
}

/// Sites are reached through the sessions of their gateways. Weak: the sessions hold the gateway.
struct EdgePeers {
    fleet: Weak<Fleet>,
}

impl GatewayPeers for EdgePeers {
    fn open_stream(&self, header: StreamHeader) -> BoxedFuture<'_, Result<Stream, PeerError>> {
        Box::pin(async move {
            let site = SiteName::from(header.site.as_str());
            let Some(fleet) = self.fleet.upgrade() else {
                return Err(PeerError::Away { site, why: "the cloud stops".to_owned() });
            };
            // No origin: that is how an edge knows the cloud itself.
            let header = StreamHeader { origin: None, ..header };
            fleet.open_stream_to(header).await.map_err(|error| match error {
                FleetError::Stream { .. } if error.code() != ResetCode::NoRoute => {
                    PeerError::Refused { site, code: error.code() }
                }
                error => PeerError::Away { site, why: error.to_string() },
            })
        })
    }

    fn runtime(&self, site: &SiteName) -> Option<Handle> {
        self.fleet.upgrade()?.runtime(site.as_str())
    }
}

struct ToJournal {
    records: CloudRecordQueue,
}

impl AuditSink for ToJournal {
    fn record(&self, record: AuditRecord) {
        match serde_json::to_vec(&record) {
            Ok(record) => self.records.append(&record),
            Err(error) => tracing::error!(%error, "cannot encode an audit record: it is lost"),
        }
    }

    fn is_pressed(&self) -> bool {
        self.records.is_pressed()
    }
}
