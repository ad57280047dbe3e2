//! Answers the names of this site's netmap over DNS, and forwards the rest.
//!
//! Netmaps come in; listening addresses and what is wrong with them can be watched. `answer` decides, `message` reads and writes the
//! wire, `server` moves bytes, `forward` asks upstream. Nothing here asks the cloud: names are served offline.
//!
//! Of hickory only the wire format is used. Its server hands out records of zones; ours are computed from the netmap at each
//! question and depend on who asks, and its resolver would bring a cache, a connection pool and a second TLS stack to pass on one datagram.

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
pub use forward::ForwardTimeouts;
use forward::{Forwarder, without_ourselves};
use host_networks::{HostNetworks, RESOLV_CONF};
use listeners::DnsListeners;
pub use listeners::ListenProblem;
use metrics::DnsMetrics;
use server::DnsFrontend;

/// How often sockets that could not be opened are tried again, and the host's networks and resolvers are read.
const LOOK_EVERY: Duration = Duration::from_secs(3);

#[derive(Clone, Debug)]
pub struct DnsOptions {
    /// No names are served at all.
    pub off: bool,
    /// None: port 53 of loopback and of the gateway's `ip`, as the netmap says.
    pub listen: Option<Vec<SocketAddr>>,
    /// Whom to ask for other names. None: whom this host asks.
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

/// What can be seen of it from outside.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DnsState {
    /// Where names are answered.
    pub listening: Vec<SocketAddr>,
    /// Where they should be and are not.
    pub findings: Vec<ListenProblem>,
    /// Who is asked for other names.
    pub upstreams: Vec<SocketAddr>,
}

/// The DNS of one gateway.
pub struct DnsServer {
    netmaps: watch::Receiver<Arc<NetmapView>>,
    options: DnsOptions,
    figures: DnsMetrics,
    state: watch::Sender<DnsState>,
    own_listeners: OwnListeners,
}

impl DnsServer {
    pub fn new(netmaps: watch::Receiver<Arc<NetmapView>>, options: DnsOptions) -> DnsServer {
        DnsServer {
            netmaps,
            options,
            figures: DnsMetrics::default(),
            state: watch::Sender::default(),
            own_listeners: OwnListeners::default(),
        }
    }

    /// Registers its listeners there.
    pub fn registering(self, own_listeners: OwnListeners) -> DnsServer {
        DnsServer { own_listeners, ..self }
    }

    /// Shows its figures in `/metrics`.
    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.figures.register(registry);
    }

    /// Where names are answered, and where not, as it changes.
    pub fn state(&self) -> watch::Receiver<DnsState> {
        self.state.subscribe()
    }

    /// Answers until told to stop. Addresses that cannot be listened on are tried again.
    pub async fn run(&self, stop: CancellationToken) {
        if self.options.off {
            return stop.cancelled().await;
        }
        let surroundings = watch::Sender::new(self.look().await);
        let upstreams = watch::Sender::new(Vec::new());
        let forwarder = Forwarder::new(upstreams.subscribe(), self.options.patience);
        let desk =
            DnsFrontend::new(self.netmaps.clone(), surroundings.subscribe(), forwarder, self.figures.clone());
        let mut listeners = DnsListeners::new(Arc::new(desk), self.own_listeners.clone());
        let mut netmaps = self.netmaps.clone();
        let mut netmaps_end = false;
        loop {
            let wanted =
                listeners::wanted(self.options.listen.as_deref(), &netmaps.borrow_and_update().clone());
            listeners.follow(&wanted).await;
            let asked = self.upstreams(&surroundings.borrow(), &listeners.bound());
            upstreams.send_if_modified(|known| replace(known, asked.clone()));
            self.publish(&listeners, asked);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = netmaps.changed(), if !netmaps_end => netmaps_end = changed.is_err(),
                () = tokio::time::sleep(LOOK_EVERY) => {
                    let seen = self.look().await;
                    surroundings.send_if_modified(|known| replace(known, seen));
                }
            }
        }
        listeners.follow(&[]).await;
        self.state.send_replace(DnsState::default());
    }

    async fn look(&self) -> HostNetworks {
        let resolv_conf = self.options.resolv_conf.clone();
        tokio::task::spawn_blocking(move || HostNetworks::look(&resolv_conf)).await.unwrap_or_default()
    }

    /// Never ourselves, also when the host's resolver file names us, as it should.
    fn upstreams(&self, surroundings: &HostNetworks, listening: &[SocketAddr]) -> Vec<SocketAddr> {
        let known = self.options.upstreams.as_ref().unwrap_or(&surroundings.resolvers);
        without_ourselves(known, listening, &surroundings.addresses)
    }

    fn publish(&self, listeners: &DnsListeners, upstreams: Vec<SocketAddr>) {
        let findings = listeners.findings().to_vec();
        self.figures.unbound.set(i64::try_from(findings.len()).unwrap_or(i64::MAX));
        let state = DnsState { listening: listeners.bound(), findings, upstreams };
        self.state.send_if_modified(|known| replace(known, state));
    }
}

/// Was it different?
fn replace<T: PartialEq>(known: &mut T, new: T) -> bool {
    let differs = *known != new;
    *known = new;
    differs
}
