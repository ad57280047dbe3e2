//! Packets between sites: the third plane beside `proxy` and `dns`.
//!
//! Input: packets of this site from a TUN device, sealed packets of other gateways from a UDP socket or the channel.
//! Output: the reverse. The modules are in reading order: headers and changes of packets, offloads, the WireGuard
//! protocol, decisions, then what touches the kernel and the thread that moves packets. The netmap, policies and the
//! audit are those of the other planes.

pub mod packet;

pub mod checksum;

pub mod translate;

pub mod rewrite;

pub mod mss;

pub mod offload;

pub mod join;

pub mod reply;

pub mod noise;

pub mod cipher;

pub mod replay;

pub mod session;

pub mod peer_message;

pub mod path_monitor;

pub mod path_selector;

pub mod admission;

pub mod shares;

pub mod flow;

pub mod client_numbers;

pub mod client_addresses;

pub mod service_plan;

pub mod plan;

pub mod route_table;

pub mod counters;

mod device;

mod socket;

mod interface;

mod key_file;

mod wake_event;

mod worker;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use causeway_netmap::{GatewayName, NetmapView, TunnelKey};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::dial::{OwnListeners, SharedDialRules};
use crate::gateway::GatewayContext;
use admission::OwnSockets;
use counters::{PacketCount, TunnelMetrics};
use device::TunDevice;
use interface::TunInterface;
use noise::StaticKeys;
use plan::{ForwardPlan, PlannedPeer};
use socket::TunnelSocket;
use wake_event::WakeEvent;
use worker::Worker;

pub use cipher::has_aes;
pub use worker::peers::PeerPath;

/// Settings of the tunnel, from the configuration.
#[derive(Clone, Debug)]
pub struct TunnelOptions {
    pub off: bool,
    /// The UDP address for sealed packets.
    pub listen: SocketAddr,
    /// The private key, made on the first start.
    pub key_file: PathBuf,
    /// The kernel replaces `%d` by a free number.
    pub device_name: String,
    /// The longest packet that crosses. None: what an Ethernet path carries.
    pub mtu: Option<u16>,
    /// Listeners of this process, which are not reached through the tunnel.
    pub own_listeners: OwnListeners,
    /// Addresses to which packets of translated services may go.
    pub dial_rules: SharedDialRules,
}

/// A path of 1500 bytes, less IPv6, UDP and the form of WireGuard: 40 + 8 + 32.
const MTU_DEFAULT: u16 = 1420;
/// The port that documents use.
pub const TUNNEL_PORT: u16 = 7446;
/// Packets that came over the channel and wait for the worker; the newest is dropped.
const CARRIED_MAX: usize = 1024;
/// Time between attempts after the device could not be opened, and between checks of addresses and names.
const RETRY_PERIOD: Duration = Duration::from_secs(5);
const CHECK_PERIOD: Duration = Duration::from_secs(30);

impl Default for TunnelOptions {
    fn default() -> TunnelOptions {
        TunnelOptions {
            off: true,
            listen: SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), TUNNEL_PORT),
            key_file: PathBuf::from("tunnel.key"),
            device_name: "causeway-l3-%d".to_owned(),
            mtu: None,
            own_listeners: OwnListeners::default(),
            dial_rules: SharedDialRules::default(),
        }
    }
}

/// The state of the tunnel, for `status` and `doctor`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TunnelState {
    /// The name of the device. None: there is none, because the netmap has no networks or the kernel refused it.
    pub device: Option<String>,
    pub listen: Option<SocketAddr>,
    pub peers: BTreeMap<String, TunnelPeerState>,
    pub flows: usize,
    /// Packets that were dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Problems of the tunnel, as sentences.
    pub troubles: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TunnelPeerState {
    pub endpoint: Option<SocketAddr>,
    pub path: PeerPath,
    /// Packets of networks or translated services cross. False: the peer only tells this gateway its address.
    pub carries_networks: bool,
    /// The reason for which packets take no direct path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_direct: Option<String>,
    /// RFC 3339.
    pub last_handshake: Option<String>,
    pub rtt_us: Option<u64>,
    pub mtu: usize,
    pub sent: PacketCount,
    pub received: PacketCount,
}

/// Sends sealed packets over the channel, where UDP does not work.
pub trait PacketCarrier: Send + Sync + 'static {
    /// Never waits. False: the packet is lost.
    fn try_send(&self, to: &GatewayName, packet: &[u8]) -> bool;
}

/// For a gateway without a channel.
pub struct NoCarrier;

impl PacketCarrier for NoCarrier {
    fn try_send(&self, _: &GatewayName, _: &[u8]) -> bool {
        false
    }
}

/// State that the worker shares with the rest of the gateway.
pub(crate) struct TunnelShared {
    context: Arc<GatewayContext>,
    plan: ArcSwap<ForwardPlan>,
    carrier: Arc<dyn PacketCarrier>,
    carried: Mutex<VecDeque<(GatewayName, Bytes)>>,
    wake: WakeEvent,
    /// Set after the event, so that the worker reads the event only then.
    woken: AtomicBool,
    stopping: AtomicBool,
    state: watch::Sender<TunnelState>,
    troubles: Mutex<Vec<String>>,
    metrics: TunnelMetrics,
}

impl TunnelShared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    fn wake(&self) {
        self.wake.set();
        self.woken.store(true, Ordering::Release);
    }

    fn take_wake(&self) -> bool {
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::AcqRel)
    }

    fn next_carried(&self) -> Option<(GatewayName, Bytes)> {
        lock(&self.carried).pop_front()
    }

    fn publish(&self, mut state: TunnelState) {
        state.troubles = lock(&self.troubles).clone();
        self.state.send_if_modified(|known| {
            let changed = *known != state;
            *known = state;
            changed
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The plane of packets. Clones share all state.
#[derive(Clone)]
pub struct Tunnel {
    shared: Arc<TunnelShared>,
    options: TunnelOptions,
    /// None: it could not be read or made, and nothing crosses.
    keys: Option<StaticKeys>,
}

impl Tunnel {
    /// Reads the key of this gateway, or makes it; opens nothing else. Without a key the state says why.
    pub fn new(
        context: Arc<GatewayContext>,
        options: TunnelOptions,
        carrier: Arc<dyn PacketCarrier>,
    ) -> Tunnel {
        let shared = TunnelShared {
            context,
            plan: ArcSwap::default(),
            carrier,
            carried: Mutex::default(),
            wake: WakeEvent::default(),
            woken: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
            state: watch::Sender::default(),
            troubles: Mutex::default(),
            metrics: TunnelMetrics::default(),
        };
        let mut tunnel = Tunnel { shared: Arc::new(shared), options, keys: None };
        if !tunnel.options.off {
            match key_file::load_or_create(&tunnel.options.key_file) {
                Ok(keys) => tunnel.keys = Some(keys),
                Err(error) => tunnel.report(vec![format!("the layer 3 tunnel has no key: {error}")]),
            }
        }
        tunnel
    }

    /// Returns the key of this gateway. None: the tunnel is off, or has no key.
    pub fn public_key(&self) -> Option<TunnelKey> {
        self.keys.as_ref().filter(|_| !self.options.off).map(|keys| TunnelKey(*keys.public()))
    }

    /// Returns the UDP port for sealed packets.
    pub fn port(&self) -> u16 {
        self.options.listen.port()
    }

    pub fn has_aes(&self) -> bool {
        has_aes()
    }

    pub fn state(&self) -> watch::Receiver<TunnelState> {
        self.shared.state.subscribe()
    }

    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.shared.metrics.register(registry);
    }

    /// Takes a sealed packet that came over the channel. `from` is the gateway in the certificate of the sender.
    pub fn handle_carried(&self, from: &GatewayName, packet: Bytes) {
        let mut carried = lock(&self.shared.carried);
        if carried.len() < CARRIED_MAX {
            carried.push_back((from.clone(), packet));
            drop(carried);
            self.shared.wake();
        }
    }

    /// Forwards packets by the netmap until told to stop. The device exists while the netmap has peers.
    pub async fn run(&self, stop: CancellationToken) {
        let mut netmaps = self.shared.context.netmaps();
        while !self.options.off && self.keys.is_some() {
            let has_peers = !netmaps.borrow_and_update().tunnel_peers.is_empty();
            let pause = match has_peers {
                true => match self.forward(&mut netmaps, &stop).await {
                    Ok(()) => Duration::ZERO,
                    Err(error) => {
                        self.report(vec![format!("the layer 3 tunnel does not run: {error}")]);
                        tracing::warn!(%error, "cannot run the layer 3 tunnel; trying again");
                        RETRY_PERIOD
                    }
                },
                false => Duration::MAX,
            };
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = netmaps.changed(), if !has_peers => if changed.is_err() { break },
                () = tokio::time::sleep(pause.min(Duration::from_secs(86_400))), if has_peers => {}
            }
        }
        stop.cancelled().await;
    }

    /// Opens device, interface and socket, and keeps them in step with the netmap while it has peers.
    async fn forward(
        &self,
        netmaps: &mut watch::Receiver<Arc<NetmapView>>,
        stop: &CancellationToken,
    ) -> io::Result<()> {
        let mtu = self.options.mtu.unwrap_or(MTU_DEFAULT);
        let socket = TunnelSocket::bind(self.options.listen)?;
        let listen = socket.local_addr()?;
        let has_networks = has_networks(&netmaps.borrow());
        let (device, mut interface) = match has_networks {
            true => {
                let device = TunDevice::open(&self.options.device_name)?;
                let interface = TunInterface::open(device.name(), u32::from(mtu)).await?;
                (Some(device), Some(interface))
            }
            false => (None, None),
        };
        let _listener = self.options.own_listeners.register("tunnel", crate::dial::Transport::Udp, listen);
        let name = device.as_ref().map_or("none", TunDevice::name);
        tracing::info!(device = name, %listen, mtu, "layer 3 tunnel open");
        let Some(keys) = self.keys.clone() else { return Ok(()) };
        let worker = Worker::new(self.shared.clone(), device, socket, keys, usize::from(mtu));
        self.shared.stopping.store(false, Ordering::Relaxed);
        let mut thread = WorkerThread::start(worker, self.shared.clone())?;
        loop {
            let view = netmaps.borrow_and_update().clone();
            // The device comes and goes with the networks of this gateway.
            if view.tunnel_peers.is_empty() || self::has_networks(&view) != has_networks {
                self.report(Vec::new());
                return thread.stop().await;
            }
            let plan = self.plan(view).await;
            let source =
                plan.view.gateway.as_ref().and_then(|gateway| gateway.ip).filter(|ip| plan.is_own(*ip));
            let routes = plan.routes();
            self.shared.plan.store(Arc::new(plan));
            self.shared.wake();
            self.report(match &mut interface {
                Some(interface) => interface.follow(&routes, source).await,
                None => Vec::new(),
            });
            tokio::select! {
                biased;
                () = stop.cancelled() => return thread.stop().await,
                ended = thread.ended() => return ended,
                changed = netmaps.changed() => if changed.is_err() { return thread.stop().await },
                () = tokio::time::sleep(CHECK_PERIOD) => {}
            }
        }
    }

    async fn plan(&self, view: Arc<NetmapView>) -> ForwardPlan {
        let mut peers = Vec::new();
        for entry in view.tunnel_peers.values() {
            let mut endpoints = Vec::new();
            for endpoint in &entry.endpoints {
                match endpoint.parse() {
                    Ok(address) => endpoints.push(address),
                    Err(_) => {
                        match tokio::time::timeout(RETRY_PERIOD, tokio::net::lookup_host(endpoint)).await {
                            Ok(Ok(found)) => endpoints.extend(found),
                            _ => {
                                tracing::debug!(endpoint, gateway = %entry.gateway, "the endpoint has no address")
                            }
                        }
                    }
                }
            }
            peers.push(PlannedPeer { entry: entry.clone(), endpoints });
        }
        let addresses = getifaddrs::getifaddrs().into_iter().flatten();
        let addresses =
            addresses.filter_map(|interface| interface.address.ip_addr()).map(|ip| ip.to_canonical());
        let own = OwnSockets {
            listeners: self.options.own_listeners.registered(),
            addresses: addresses.collect(),
            rules: self.options.dial_rules.current(),
        };
        ForwardPlan::new(view, own, peers)
    }

    fn report(&self, troubles: Vec<String>) {
        lock(&self.shared.troubles).clone_from(&troubles);
        self.shared.state.send_if_modified(|state| {
            let changed = state.troubles != troubles;
            state.troubles = troubles;
            changed
        });
    }
}

/// Tells whether packets of hosts cross here. The gateway of the cloud is a peer of every member of a community, and a
/// member only if an ECommunity names it.
fn has_networks(view: &NetmapView) -> bool {
    let peers = || view.tunnel_peers.values().any(|peer| !peer.networks.is_empty());
    let has_services = !view.translated_presences.is_empty() || !view.translated_services.is_empty();
    view.gateway.as_ref().is_some_and(|gateway| !gateway.tunnel_networks.is_empty())
        || has_services
        || peers()
}

/// The thread of a worker. It is stopped when this is dropped.
struct WorkerThread {
    shared: Arc<TunnelShared>,
    ended: tokio::sync::oneshot::Receiver<io::Result<()>>,
}

impl WorkerThread {
    fn start(worker: Worker, shared: Arc<TunnelShared>) -> io::Result<WorkerThread> {
        let (end, ended) = tokio::sync::oneshot::channel();
        std::thread::Builder::new().name("tunnel".to_owned()).spawn(move || end.send(worker.run()))?;
        Ok(WorkerThread { shared, ended })
    }

    async fn ended(&mut self) -> io::Result<()> {
        (&mut self.ended)
            .await
            .unwrap_or_else(|_| Err(io::Error::other("the thread of the tunnel has panicked")))
    }

    async fn stop(&mut self) -> io::Result<()> {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.wake();
        let ended = self.ended().await;
        self.shared.publish(TunnelState::default());
        ended
    }
}

impl Drop for WorkerThread {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        self.shared.wake();
    }
}
