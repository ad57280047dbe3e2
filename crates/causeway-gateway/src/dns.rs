//! Answers the names of this site's netmap over DNS, and forwards other names to upstream resolvers.
//!
//! Input: netmaps. Output: replies, and a watchable state with listening addresses and bind problems.
//! `answer` decides, `message` reads and writes the wire format, `server` moves bytes, `forward` asks
//! upstream. Nothing here waits for the cloud: names are served offline. A name of a member of a large community that is no
//! peer yet fails, and the cloud is asked for the member.
//!
//! Of hickory only the wire format is used. Its server serves records of stored zones; here records are
//! computed from the netmap for each query and depend on the client. Its resolver would add a cache, a
//! connection pool and a second TLS stack to forward a single datagram.

pub mod answer;
mod forward;
mod host_networks;
mod listeners;
pub mod message;
mod metrics;
mod server;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use causeway_netmap::NetmapView;
use serde::Serialize;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::dial::OwnListeners;
use crate::peer_requests::PeerRequests;
pub use forward::ForwardTimeouts;
use forward::{Forwarder, without_ourselves};
use host_networks::{HostNetworks, RESOLV_CONF};
use listeners::DnsListeners;
pub use listeners::ListenProblem;
use metrics::DnsMetrics;
use server::DnsFrontend;

/// The interval at which failed sockets are opened again, and the host's networks and resolvers are read.
const REFRESH_PERIOD: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct DnsOptions {
    /// Turns DNS off: no names are served.
    pub off: bool,
    /// None: port 53 on loopback and on the gateway's `ip` in the netmap.
    pub listen: Option<Vec<SocketAddr>>,
    /// Resolvers for other names. None: the resolvers of this host.
    pub upstreams: Option<Vec<SocketAddr>>,
    pub resolv_conf: PathBuf,
    pub patience: ForwardTimeouts,
}

impl Default for DnsOptions {
    fn default() -> DnsOptions {
        DnsOptions {
            off: false,
            listen: None,
            upstreams: None,
            resolv_conf: RESOLV_CONF.into(),
            patience: ForwardTimeouts::default(),
        }
    }
}

/// The observable state of the DNS server.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsState {
    /// Addresses on which names are answered.
    pub listening: Vec<SocketAddr>,
    /// Addresses that should be bound and are not.
    pub findings: Vec<ListenProblem>,
    /// Resolvers that are asked for other names.
    pub upstreams: Vec<SocketAddr>,
}

/// The DNS server of one gateway.
pub struct DnsServer {
    netmaps: watch::Receiver<Arc<NetmapView>>,
    options: DnsOptions,
    metrics: DnsMetrics,
    state: watch::Sender<DnsState>,
    own_listeners: OwnListeners,
    /// Takes the members of large communities whose hosts are looked up.
    peer_requests: Arc<PeerRequests>,
}

impl DnsServer {
    pub fn new(netmaps: watch::Receiver<Arc<NetmapView>>, options: DnsOptions) -> DnsServer {
        DnsServer {
            netmaps,
            options,
            metrics: DnsMetrics::default(),
            state: watch::Sender::default(),
            own_listeners: OwnListeners::default(),
            peer_requests: Arc::default(),
        }
    }

    /// Asks for members of large communities there.
    pub fn with_peer_requests(self, peer_requests: Arc<PeerRequests>) -> DnsServer {
        DnsServer { peer_requests, ..self }
    }

    /// Registers its listeners in `own_listeners`.
    pub fn with_own_listeners(self, own_listeners: OwnListeners) -> DnsServer {
        DnsServer { own_listeners, ..self }
    }

    /// Registers its metrics.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.metrics.register(registry);
    }

    /// Returns the listening addresses and bind problems, as they change.
    pub fn state(&self) -> watch::Receiver<DnsState> {
        self.state.subscribe()
    }

    /// Serves until told to stop. Addresses that cannot be bound are tried again.
    pub async fn run(&self, stop: CancellationToken) {
        if self.options.off {
            return stop.cancelled().await;
        }
        let host_networks = watch::Sender::new(self.read_host_networks().await);
        let upstreams = watch::Sender::new(Vec::new());
        let forwarder = Forwarder::new(upstreams.subscribe(), self.options.patience);
        let frontend = DnsFrontend::new(
            self.netmaps.clone(),
            host_networks.subscribe(),
            forwarder,
            self.metrics.clone(),
            self.peer_requests.clone(),
        );
        let mut listeners = DnsListeners::new(Arc::new(frontend), self.own_listeners.clone());
        let mut netmaps = self.netmaps.clone();
        let mut netmaps_end = false;
        loop {
            let wanted =
                listeners::wanted(self.options.listen.as_deref(), &netmaps.borrow_and_update().clone());
            listeners.follow(&wanted).await;
            let asked = self.upstreams(&host_networks.borrow(), &listeners.bound());
            upstreams.send_if_modified(|known| replace(known, asked.clone()));
            self.publish(&listeners, asked);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = netmaps.changed(), if !netmaps_end => netmaps_end = changed.is_err(),
                () = tokio::time::sleep(REFRESH_PERIOD) => {
                    let seen = self.read_host_networks().await;
                    host_networks.send_if_modified(|known| replace(known, seen));
                }
            }
        }
        listeners.follow(&[]).await;
        self.state.send_replace(DnsState::default());
    }

    async fn read_host_networks(&self) -> HostNetworks {
        let resolv_conf = self.options.resolv_conf.clone();
        tokio::task::spawn_blocking(move || HostNetworks::read(&resolv_conf)).await.unwrap_or_default()
    }

    /// Never contains an address of this server, even if the host's resolver file names it, as it should.
    fn upstreams(&self, host_networks: &HostNetworks, listening: &[SocketAddr]) -> Vec<SocketAddr> {
        let known = self.options.upstreams.as_ref().unwrap_or(&host_networks.resolvers);
        without_ourselves(known, listening, &host_networks.addresses)
    }

    fn publish(&self, listeners: &DnsListeners, upstreams: Vec<SocketAddr>) {
        let findings = listeners.findings().to_vec();
        self.metrics.unbound.set(i64::try_from(findings.len()).unwrap_or(i64::MAX));
        let state = DnsState { listening: listeners.bound(), findings, upstreams };
        self.state.send_if_modified(|known| replace(known, state));
    }
}

/// Replaces the value and tells whether it was different.
fn replace<T: PartialEq>(known: &mut T, new: T) -> bool {
    let differs = *known != new;
    *known = new;
    differs
}
