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

pub mod traffic_class;

pub mod offload;

pub mod join;

pub mod reply;

pub mod noise;

pub mod cipher;

pub mod replay;

pub mod session;

pub mod peer_message;

pub mod relay_frame;

pub mod probe_history;

pub mod probe_ids;

pub mod path_monitor;

pub mod path_selector;

pub mod relay_permit;

pub mod address_rates;

pub mod admission;

pub mod shares;

pub mod flow;

pub mod fragments;

pub mod client_numbers;

pub mod client_addresses;

pub mod service_plan;

pub mod plan;

pub mod endpoint_names;

pub mod pending_frames;

pub mod early_packets;

pub mod carried_queue;

pub mod route_table;

pub mod counters;

pub mod busy_poll;

pub mod lan_frame;

pub mod lan_neighbours;

pub mod ovs;

mod device;

mod tap_device;

mod packet_device;

mod socket;

mod interface;

mod attachment;

mod key_file;

mod wake_event;

mod worker;

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use causeway_daemon::sync::MutexExt;
use causeway_netmap::{GatewayName, NetmapView, TunnelKey};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::dial::{OwnListeners, SharedDialRules};
use crate::gateway::GatewayContext;
use crate::packet_carrier::PacketCarrier;
use admission::OwnSockets;
use attachment::Attachment;
use carried_queue::CarriedQueue;
use counters::{PacketCount, TunnelMetrics};
use endpoint_names::EndpointNames;
use noise::StaticKeys;
use ovs::OvsBridge;
use plan::ForwardPlan;
use socket::TunnelSocket;
use wake_event::WakeEvent;
use worker::Worker;

pub use attachment::Datapath;
pub use cipher::has_aes;
pub use worker::peers::PeerPath;

/// Settings of the tunnel, from the configuration.
#[derive(Clone, Debug)]
pub struct TunnelOptions {
    pub off: bool,
    /// The UDP address for sealed packets.
    pub listen: SocketAddr,
    pub datapath: Datapath,
    /// The private key, made on the first start.
    pub key_file: PathBuf,
    /// The kernel replaces `%d` by a free number.
    pub device_name: String,
    /// The longest packet that crosses. None: what an Ethernet path carries.
    pub mtu: Option<u16>,
    /// Bytes per second that this gateway forwards as a relay, for all senders together.
    pub relay_bytes_per_second: u64,
    /// Listeners of this process, which are not reached through the tunnel.
    pub own_listeners: OwnListeners,
    /// Addresses to which packets of translated services may go.
    pub dial_rules: SharedDialRules,
}

/// A path of 1500 bytes, less IPv6, UDP and the form of WireGuard: 40 + 8 + 32.
const MTU_DEFAULT: u16 = 1420;
/// Four senders at their full rate (`relay_permit`).
pub const RELAY_BYTES_PER_SECOND: u64 = 4 * relay_permit::SENDER_BYTES_PER_SECOND;
/// The port that documents use.
pub const TUNNEL_PORT: u16 = 7446;
/// Time between attempts after the device could not be opened, and between checks of addresses and names.
const RETRY_PERIOD: Duration = Duration::from_secs(5);
const CHECK_PERIOD: Duration = Duration::from_secs(30);
/// Names of endpoints that are looked up at the same time, and the time that one may take.
const LOOKUPS_MAX: usize = 16;
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

impl Default for TunnelOptions {
    fn default() -> TunnelOptions {
        TunnelOptions {
            off: true,
            listen: SocketAddr::new(IpAddr::V6(std::net::Ipv6Addr::UNSPECIFIED), TUNNEL_PORT),
            datapath: Datapath::default(),
            key_file: PathBuf::from("tunnel.key"),
            device_name: "causeway-l3-%d".to_owned(),
            mtu: None,
            relay_bytes_per_second: RELAY_BYTES_PER_SECOND,
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
    /// The Open vSwitch bridge of which the device is a port. None: routes of the host lead to the device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bridge: Option<String>,
    pub listen: Option<SocketAddr>,
    pub peers: BTreeMap<String, TunnelPeerState>,
    pub flows: usize,
    /// Packets that were dropped, by reason.
    pub dropped: BTreeMap<String, u64>,
    /// Members of large communities become peers when packets are exchanged with them; those that did not are no peers.
    pub on_demand: bool,
    /// Sealed packets that were forwarded between other gateways, as a relay.
    pub relayed: PacketCount,
    /// Problems of the tunnel, as sentences.
    pub troubles: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TunnelPeerState {
    pub endpoint: Option<SocketAddr>,
    pub path: PeerPath,
    /// The relay of a relayed path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub relay: Option<String>,
    /// Packets of networks or translated services cross. False: the peer only tells this gateway its address.
    pub carries_networks: bool,
    /// The reason for which packets take no direct path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_direct: Option<String>,
    /// RFC 3339.
    pub last_handshake: Option<String>,
    pub rtt_us: Option<u64>,
    /// Lost probes of the path, in per cent of the last ones.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_percent: Option<u32>,
    pub mtu: usize,
    pub sent: PacketCount,
    pub received: PacketCount,
}

/// State that the worker shares with the rest of the gateway.
pub(crate) struct TunnelShared {
    context: Arc<GatewayContext>,
    plan: ArcSwap<ForwardPlan>,
    bridge: Option<String>,
    carrier: Arc<PacketCarrier>,
    carried: Mutex<CarriedQueue>,
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
        lock(&self.carried).pop()
    }

    fn publish(&self, mut state: TunnelState) {
        state.bridge = self.bridge.clone().filter(|_| state.device.is_some());
        state.troubles = lock(&self.troubles).clone();
        self.state.send_if_modified(|known| {
            let changed = *known != state;
            *known = state;
            changed
        });
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock_ignoring_poison()
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
    pub fn new(context: Arc<GatewayContext>, options: TunnelOptions, carrier: Arc<PacketCarrier>) -> Tunnel {
        let shared = TunnelShared {
            context,
            plan: ArcSwap::default(),
            bridge: match &options.datapath {
                Datapath::Tun => None,
                Datapath::Ovs { bridge } => Some(bridge.clone()),
            },
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
        let is_kept = lock(&self.shared.carried).push(from, packet);
        if is_kept {
            self.shared.wake();
        }
    }

    /// Forwards packets by the netmap until told to stop. The device exists while the netmap has peers.
    pub async fn run(&self, stop: CancellationToken) {
        let clear = async {
            tokio::select! {
                biased;
                () = stop.cancelled() => {}
                () = self.clear_bridges() => {}
            }
        };
        tokio::join!(clear, self.run_forwarding(stop.clone()));
    }

    /// Removes what a run with Open vSwitch has left, when it was killed and this one uses none: its flows would lead packets to
    /// a port without a device. Nothing waits for it, and a host without Open vSwitch needs nothing.
    async fn clear_bridges(&self) {
        let Some(keys) = self.keys.as_ref().filter(|_| self.shared.bridge.is_none()) else { return };
        match OvsBridge::remove_from_all(keys.public()).await {
            Ok(()) | Err(ovs::command::OvsError::Missing(_)) => {}
            Err(error) => tracing::debug!(%error, "cannot look for flows of an earlier run at Open vSwitch"),
        }
    }

    async fn run_forwarding(&self, stop: CancellationToken) {
        let mut netmaps = self.shared.context.netmaps();
        let (mut bridge, mut is_clear) = (self.bridge(), false);
        while !self.options.off && self.keys.is_some() {
            if !is_clear && !self.clear(&mut bridge, &stop).await {
                return;
            }
            let has_peers = !netmaps.borrow_and_update().tunnel_peers.is_empty();
            is_clear = !has_peers;
            let pause = match has_peers {
                true => match self.forward(&mut netmaps, bridge.as_mut(), &stop).await {
                    Ok(()) => Duration::ZERO,
                    Err(error) => {
                        self.report(vec![format!("the layer 3 tunnel does not run: {error}{}", fix(&error))]);
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

    /// Returns the bridge that the configuration names.
    fn bridge(&self) -> Option<OvsBridge> {
        let (name, keys) = (self.shared.bridge.as_ref()?, self.keys.as_ref()?);
        Some(OvsBridge::new(name, keys.public()))
    }

    /// Removes what an earlier run has left at the bridge, as soon as Open vSwitch can be reached. Returns false when told to stop.
    async fn clear(&self, bridge: &mut Option<OvsBridge>, stop: &CancellationToken) -> bool {
        let Some(bridge) = bridge else { return true };
        let mut told = None;
        loop {
            let cleared = tokio::select! {
                biased;
                () = stop.cancelled() => return false,
                cleared = bridge.clear() => cleared,
            };
            let Err(error) = cleared else {
                self.report(Vec::new());
                return true;
            };
            let trouble = attachment::trouble(bridge, &error);
            if told.as_ref() != Some(&trouble) {
                tracing::warn!("{trouble}; trying again");
                self.report(vec![trouble.clone()]);
                told = Some(trouble);
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return false,
                () = tokio::time::sleep(RETRY_PERIOD) => {}
            }
        }
    }

    /// Opens device and socket, and keeps routes or flows in step with the netmap while it has peers.
    async fn forward(
        &self,
        netmaps: &mut watch::Receiver<Arc<NetmapView>>,
        bridge: Option<&mut OvsBridge>,
        stop: &CancellationToken,
    ) -> io::Result<()> {
        let mtu = self.options.mtu.unwrap_or(MTU_DEFAULT);
        let socket = TunnelSocket::bind(self.options.listen)?;
        let listen = socket.local_addr()?;
        let Some(keys) = self.keys.clone() else { return Ok(()) };
        let has_networks = has_networks(&netmaps.borrow());
        let (device, mut attachment) = match has_networks {
            true => Attachment::open(&self.options, mtu, bridge)
                .await
                .map(|(device, at)| (Some(device), Some(at)))?,
            false => (None, None),
        };
        let _listener =
            self.options.own_listeners.register("tunnel", crate::dial::SocketProtocol::Udp, listen);
        let name = device.as_ref().map(|device| device.name().to_owned());
        tracing::info!(device = name.as_deref().unwrap_or("none"), %listen, mtu, "layer 3 tunnel open");
        // The last run may have ended with a plan whose peers have no access any more.
        self.shared.plan.store(Arc::default());
        let (shared, rate) = (self.shared.clone(), self.options.relay_bytes_per_second);
        let worker = Worker::new(shared, device, socket, keys, usize::from(mtu), rate);
        self.shared.stopping.store(false, Ordering::Relaxed);
        let mut thread = WorkerThread::start(worker, self.shared.clone())?;
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => None,
            ended = thread.ended() => Some(ended),
            () = self.follow(netmaps, &mut attachment, name.as_deref()) => None,
        };
        if self.shared.bridge.is_some() && !stop.is_cancelled() {
            // The commands of Open vSwitch take a while: no packet crosses by the old plan meanwhile.
            self.shared.plan.store(Arc::default());
            self.shared.wake();
        }
        // Flows go before the port, and the port before its device.
        if let Some(attachment) = attachment {
            attachment.close().await;
        }
        match ended {
            Some(ended) => ended,
            None => thread.stop().await,
        }
    }

    /// Keeps the plan, and routes or flows, in step with the netmap, until another device is needed or none. Neither waits
    /// for the other: the commands of Open vSwitch take a while.
    async fn follow(
        &self,
        netmaps: &mut watch::Receiver<Arc<NetmapView>>,
        attachment: &mut Option<Attachment<'_>>,
        device: Option<&str>,
    ) {
        let (plans, plan) = watch::channel(Arc::default());
        let has_device = attachment.is_some();
        tokio::select! {
            () = self.follow_netmaps(netmaps, has_device, &plans, look_up) => {}
            () = self.follow_plans(plan, attachment, device) => {}
        }
        self.report(Vec::new());
    }

    /// Puts a plan in force for every netmap, and again when names of endpoints have other addresses. Returns when another
    /// device is needed or none.
    async fn follow_netmaps<F: Future<Output = Option<Vec<SocketAddr>>>>(
        &self,
        netmaps: &mut watch::Receiver<Arc<NetmapView>>,
        has_device: bool,
        plans: &watch::Sender<Arc<ForwardPlan>>,
        look_up: impl Fn(String) -> F,
    ) {
        let (mut names, mut queue) = (EndpointNames::default(), VecDeque::new());
        // Lookups outlive a netmap: in a busy fleet netmaps come more often than answers of a slow name server.
        let mut lookups = FuturesUnordered::new();
        loop {
            let view = netmaps.borrow_and_update().clone();
            // The device comes and goes with the networks of this gateway.
            if view.tunnel_peers.is_empty() || has_networks(&view) != has_device {
                return;
            }
            // Access that was taken away ends now, whatever a name server does.
            queue.extend(names.follow(&view));
            self.put_in_force(ForwardPlan::new(view.clone(), self.own_sockets(), names.peers(&view)), plans);
            let mut check = tokio::time::Instant::now() + CHECK_PERIOD;
            loop {
                while lookups.len() < LOOKUPS_MAX
                    && let Some(name) = queue.pop_front()
                {
                    let found = look_up(name.clone());
                    lookups.push(async move { (name, found.await) });
                }
                let is_changed = tokio::select! {
                    biased;
                    changed = netmaps.changed() => match changed {
                        Ok(()) => break,
                        Err(_) => return,
                    },
                    Some(first) = lookups.next() => {
                        let more = std::iter::from_fn(|| lookups.next().now_or_never().flatten());
                        names.note(std::iter::once(first).chain(more).collect())
                    }
                    () = tokio::time::sleep_until(check) => {
                        check += CHECK_PERIOD;
                        // Names that wait for silent servers are not overtaken by those that were looked up already.
                        if queue.is_empty() {
                            queue.extend(names.to_look_up());
                        }
                        // Addresses of this host may have changed.
                        true
                    }
                };
                if is_changed {
                    let peers = names.peers(&view);
                    self.put_in_force(ForwardPlan::new(view.clone(), self.own_sockets(), peers), plans);
                }
            }
        }
    }

    /// Keeps routes or flows in step with the plans, and checks them.
    async fn follow_plans(
        &self,
        mut plans: watch::Receiver<Arc<ForwardPlan>>,
        attachment: &mut Option<Attachment<'_>>,
        device: Option<&str>,
    ) {
        let mut is_open = plans.changed().await.is_ok();
        while is_open {
            let plan = plans.borrow_and_update().clone();
            self.report(match attachment {
                Some(attachment) => attachment.follow(&plan, &addresses_except(device)).await,
                None => Vec::new(),
            });
            is_open = tokio::select! {
                biased;
                changed = plans.changed() => changed.is_ok(),
                () = check_due(attachment) => true,
            };
        }
    }

    fn put_in_force(&self, plan: ForwardPlan, plans: &watch::Sender<Arc<ForwardPlan>>) {
        let plan = Arc::new(plan);
        self.shared.plan.store(plan.clone());
        self.shared.wake();
        plans.send_replace(plan);
    }

    fn own_sockets(&self) -> OwnSockets {
        OwnSockets {
            listeners: self.options.own_listeners.registered(),
            addresses: addresses_except(None).into_iter().collect(),
            rules: self.options.dial_rules.current(),
        }
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

/// The remedy for an error that an operator can act on.
fn fix(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; it needs CAP_NET_ADMIN: run the gateway as root, or set `off = true` in `[tunnel]`"
        }
        io::ErrorKind::NotFound => {
            "; /dev/net/tun is missing: load the module `tun`, or set `off = true` in `[tunnel]`"
        }
        io::ErrorKind::AddrInUse => "; its port is taken: set `listen` in `[tunnel]`",
        _ => "",
    }
}

async fn check_due(attachment: &Option<Attachment<'_>>) {
    match attachment {
        Some(attachment) => attachment.check_due().await,
        None => std::future::pending().await,
    }
}

/// None: the name server has not answered.
async fn look_up(endpoint: String) -> Option<Vec<SocketAddr>> {
    match tokio::time::timeout(LOOKUP_TIMEOUT, tokio::net::lookup_host(&endpoint)).await {
        Ok(Ok(found)) => Some(found.collect()),
        _ => {
            tracing::debug!(endpoint, "the endpoint has no address");
            None
        }
    }
}

/// Returns the addresses of this host, without those of one device.
fn addresses_except(device: Option<&str>) -> Vec<IpAddr> {
    let interfaces = getifaddrs::getifaddrs().into_iter().flatten();
    let others = interfaces.filter(|interface| device.is_none_or(|device| interface.name != device));
    others.filter_map(|interface| interface.address.ip_addr()).map(|ip| ip.to_canonical()).collect()
}

/// Tells whether packets of hosts cross here. The gateway of the cloud is a peer of every member of a community, and a
/// member only if an ECommunity names it.
fn has_networks(view: &NetmapView) -> bool {
    let peers = || view.tunnel_peers.values().any(|peer| !peer.networks.is_empty());
    let has_services = !view.translated_presences.is_empty() || !view.translated_services.is_empty();
    view.gateway.as_ref().is_some_and(|gateway| !gateway.tunnel_networks.is_empty())
        || has_services
        || view.on_demand.is_some()
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

#[cfg(test)]
mod tests;
