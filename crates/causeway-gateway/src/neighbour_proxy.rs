//! Answers ARP and neighbour solicitations of a LAN for addresses of this gateway, so that hosts need no route to them.
//!
//! A presence range or a network of another site inside a network that the host is connected to is taken by the hosts of
//! the LAN for a part of it: they ask for hardware addresses. The active gateway answers with its own, and the routes of
//! `presence_namespace` and `tun` lead the packets on. `message` reads and writes messages, `plan` decides where which
//! addresses are answered, `claims` keeps their state, `packet_socket` sends and receives messages. Nothing is configured in
//! the kernel, so nothing is left behind by a process that is killed.

pub mod message;

pub mod plan;

pub mod claims;

mod packet_socket;

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use causeway_daemon::sync::MutexExt;
use causeway_netmap::NetmapView;
use getifaddrs::InterfaceFlags;
use ipnet::IpNet;
use prometheus_client::metrics::counter::Counter;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use crate::presence_namespace::PresenceNamespace;
use crate::socket_binder::{BinderState, SocketBinder};
use crate::tun::TunnelState;
use claims::NeighbourClaims;
use message::{HardwareAddress, NeighbourFamily};
use packet_socket::{PAYLOAD_BYTES_MAX, PacketSocket};
use plan::{AnsweredAddresses, LanInterface, NeededRoute, NeighbourPlan, PacketSinks};

/// The interval of checks of the host's interfaces, and of attempts after a socket failed.
const CHECK_PERIOD: Duration = Duration::from_secs(5);
/// Addresses named in a problem; the rest is counted.
const TAKEN_NAMED_MAX: usize = 4;

/// The state of the answers, for the admin dump and `causeway doctor`.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NeighbourState {
    /// The interfaces at which questions are answered. Empty at a standby gateway.
    pub interfaces: BTreeMap<String, AnsweredCount>,
    /// Networks in no network that the host is connected to: other hosts need a route to them.
    pub routed: Vec<NeededRoute>,
    /// Problems, as sentences.
    pub troubles: Vec<String>,
}

/// The number of addresses and whole networks that are answered.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct AnsweredCount {
    pub addresses: usize,
    pub networks: usize,
}

/// Keeps the answers in step with the netmap. Clones share all state.
#[derive(Clone)]
pub struct NeighbourProxy {
    shared: Arc<Shared>,
}

struct Shared {
    answers: Counter,
    state: watch::Sender<NeighbourState>,
    /// Reports of the tasks, by interface and family.
    reports: Mutex<BTreeMap<SocketKey, SocketReport>>,
    routed: Mutex<Vec<NeededRoute>>,
}

type SocketKey = (u32, NeighbourFamily);

#[derive(Default)]
struct SocketReport {
    interface: String,
    count: AnsweredCount,
    troubles: Vec<String>,
}

/// The task of one socket. It ends when this is dropped.
struct SocketTask {
    hardware: HardwareAddress,
    plan: watch::Sender<AnsweredAddresses>,
    task: AbortOnDropHandle<()>,
}

impl NeighbourProxy {
    pub fn new(answers: Counter) -> NeighbourProxy {
        NeighbourProxy {
            shared: Arc::new(Shared {
                answers,
                state: watch::Sender::default(),
                reports: Mutex::default(),
                routed: Mutex::default(),
            }),
        }
    }

    pub fn state(&self) -> watch::Receiver<NeighbourState> {
        self.shared.state.subscribe()
    }

    /// Answers until told to stop. `namespace` and `tunnel` take the packets; addresses of one that is not there are not
    /// answered.
    pub async fn run(
        &self,
        mut netmaps: watch::Receiver<Arc<NetmapView>>,
        namespace: Option<PresenceNamespace>,
        mut tunnel: Option<watch::Receiver<TunnelState>>,
        stop: CancellationToken,
    ) {
        let mut namespace = namespace.map(|namespace| namespace.state());
        let mut tasks = BTreeMap::new();
        loop {
            let sinks = PacketSinks {
                presence_networks: match namespace.as_mut().map(|state| state.borrow_and_update().clone()) {
                    Some(BinderState::Open { networks, .. }) => networks,
                    _ => Vec::new(),
                },
                tunnel: tunnel.as_mut().is_some_and(|state| is_routed(&state.borrow_and_update())),
            };
            let view = netmaps.borrow_and_update().clone();
            self.follow(&view, &sinks, &mut tasks);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                changed = netmaps.changed() => if changed.is_err() { break },
                () = binder_changed(&mut namespace) => {}
                () = device_changed(&mut tunnel, sinks.tunnel) => {}
                () = tokio::time::sleep(CHECK_PERIOD) => {}
            }
        }
        tasks.clear();
        self.shared.reports.lock_ignoring_poison().clear();
        self.shared.publish();
    }

    /// Opens missing sockets and closes surplus ones. Idempotent.
    fn follow(&self, view: &NetmapView, sinks: &PacketSinks, tasks: &mut BTreeMap<SocketKey, SocketTask>) {
        let interfaces = interfaces();
        let plan = NeighbourPlan::new(view, &interfaces, sinks);
        let hardware =
            |index: u32| interfaces.iter().find(|found| found.index == index).map(|found| found.hardware);
        tasks.retain(|key, task| {
            let is_wanted = plan.interfaces.contains_key(key) && hardware(key.0) == Some(task.hardware);
            let is_kept = is_wanted && !task.task.is_finished();
            if !is_kept && let Some(report) = self.shared.reports.lock_ignoring_poison().remove(key) {
                let (interface, family) = (report.interface, key.1.protocol());
                tracing::info!(
                    interface,
                    protocol = family,
                    "the neighbour proxy no longer answers on this interface"
                );
            }
            is_kept
        });
        // A report without a task is the failure of an earlier attempt.
        self.shared.reports.lock_ignoring_poison().retain(|key, _| tasks.contains_key(key));
        for (key, answered) in plan.interfaces {
            if let Some(task) = tasks.get(&key) {
                task.plan.send_if_modified(|known| {
                    let is_new = *known != answered;
                    *known = answered;
                    is_new
                });
                continue;
            }
            let Some(interface) = interfaces.iter().find(|found| found.index == key.0) else { continue };
            match self.start(interface, key.1, answered) {
                Ok(task) => drop(tasks.insert(key, task)),
                Err(error) => self.report_failure(key, interface, &error),
            }
        }
        *self.shared.routed.lock_ignoring_poison() = plan.routed;
        self.shared.publish();
    }

    fn start(
        &self,
        interface: &LanInterface,
        family: NeighbourFamily,
        answered: AnsweredAddresses,
    ) -> io::Result<SocketTask> {
        let socket = PacketSocket::open(interface.index, family)?;
        let (plan, receiver) = watch::channel(answered);
        let key = (interface.index, family);
        let report = SocketReport { interface: interface.name.clone(), ..SocketReport::default() };
        self.shared.reports.lock_ignoring_poison().insert(key, report);
        let claims = NeighbourClaims::new(interface.hardware);
        let task = tokio::spawn(serve(self.shared.clone(), key, socket, claims, receiver));
        let (name, protocol) = (&interface.name, family.protocol());
        tracing::info!(
            interface = name,
            protocol,
            "the neighbour proxy answers for presences on this interface"
        );
        Ok(SocketTask { hardware: interface.hardware, plan, task: AbortOnDropHandle::new(task) })
    }

    fn report_failure(&self, key: SocketKey, interface: &LanInterface, error: &io::Error) {
        let (name, protocol) = (&interface.name, key.1.protocol());
        let why = match error.kind() {
            io::ErrorKind::PermissionDenied => {
                "it needs CAP_NET_RAW, which this process does not have; grant it, or give the hosts a route"
                    .to_owned()
            }
            _ => error.to_string(),
        };
        let trouble = format!(
            "hosts at {name} find no presences in their own network: cannot answer {protocol}: {why}"
        );
        let is_new = !self.shared.state.borrow().troubles.contains(&trouble);
        if is_new {
            tracing::warn!("{trouble}");
        }
        let report = SocketReport { troubles: vec![trouble], ..SocketReport::default() };
        self.shared.reports.lock_ignoring_poison().insert(key, report);
    }
}

impl NeighbourFamily {
    fn protocol(self) -> &'static str {
        match self {
            NeighbourFamily::V4 => "ARP",
            NeighbourFamily::V6 => "NDP",
        }
    }
}

impl Shared {
    fn publish(&self) {
        let mut state = NeighbourState::default();
        for report in self.reports.lock_ignoring_poison().values() {
            state.troubles.extend(report.troubles.iter().cloned());
            if report.interface.is_empty() {
                continue;
            }
            let count = state.interfaces.entry(report.interface.clone()).or_default();
            count.addresses += report.count.addresses;
            count.networks += report.count.networks;
        }
        state.routed.clone_from(&self.routed.lock_ignoring_poison());
        self.state.send_if_modified(|known| {
            let is_new = *known != state;
            *known = state;
            is_new
        });
    }

    /// Updates the report of one socket. A report that was removed meanwhile stays away.
    fn report(&self, key: SocketKey, claims: &NeighbourClaims) {
        let (addresses, networks) = claims.held();
        let taken: Vec<String> =
            claims.conflicts().map(|(address, by)| format!("{address} ({})", in_hex(by))).collect();
        if let Some(report) = self.reports.lock_ignoring_poison().get_mut(&key) {
            report.count = AnsweredCount { addresses, networks };
            let troubles = describe_taken(&report.interface, &taken);
            if let Some(trouble) = troubles.as_ref().filter(|trouble| !report.troubles.contains(*trouble)) {
                tracing::warn!("{trouble}");
            }
            report.troubles = troubles.into_iter().collect();
        }
        self.publish();
    }
}

fn describe_taken(interface: &str, taken: &[String]) -> Option<String> {
    let rest = taken.len().saturating_sub(TAKEN_NAMED_MAX);
    let named = taken.iter().take(TAKEN_NAMED_MAX).cloned().collect::<Vec<_>>().join(", ");
    let more = if rest > 0 { format!(" and {rest} more") } else { String::new() };
    (!taken.is_empty()).then(|| {
        format!(
            "another host at {interface} has the address of a presence: {named}{more}; \
             give that host another address, or the gateway another virtualPresenceIPcidr"
        )
    })
}

fn in_hex(hardware: HardwareAddress) -> String {
    hardware.map(|byte| format!("{byte:02x}")).join(":")
}

/// Serves one socket until it fails or the task is dropped.
async fn serve(
    shared: Arc<Shared>,
    key: SocketKey,
    socket: PacketSocket,
    mut claims: NeighbourClaims,
    mut plan: watch::Receiver<AnsweredAddresses>,
) {
    let mut payload = [0; PAYLOAD_BYTES_MAX];
    let answered = plan.borrow_and_update().clone();
    claims.follow(answered, Instant::now());
    loop {
        for frame in claims.due(Instant::now()) {
            if let Err(error) = socket.send(&frame) {
                tracing::debug!(%error, "a probe or announcement is lost");
            }
        }
        if claims.take_change() {
            shared.report(key, &claims);
        }
        tokio::select! {
            biased;
            changed = plan.changed() => match changed {
                Ok(()) => {
                    let answered = plan.borrow_and_update().clone();
                    claims.follow(answered, Instant::now());
                }
                Err(_) => return,
            },
            () = sleep_until(claims.next_due()) => {}
            received = socket.receive(&mut payload) => match received {
                Ok((length, from)) => {
                    let bytes = payload.get(..length).unwrap_or_default();
                    let answer = message::read(key.1, from, bytes)
                        .and_then(|message| claims.handle(&message, Instant::now()));
                    if let Some(answer) = answer && socket.send(&answer).is_ok() {
                        shared.answers.inc();
                    }
                }
                // The interface is down or gone. The socket is opened again when it is back.
                Err(error) => return tracing::debug!(%error, "a packet socket has failed"),
            },
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

async fn binder_changed(state: &mut Option<watch::Receiver<BinderState>>) {
    let Some(state) = state else { return std::future::pending().await };
    if state.changed().await.is_err() {
        std::future::pending().await
    }
}

/// Waits until the device comes or goes. The counters of the tunnel change all the time.
async fn device_changed(tunnel: &mut Option<watch::Receiver<TunnelState>>, is_there: bool) {
    let Some(state) = tunnel else { return std::future::pending().await };
    if state.wait_for(|state| is_routed(state) != is_there).await.is_err() {
        std::future::pending().await
    }
}

/// Tells whether routes of the host lead to the tunnel. At a bridge, its flows answer the questions of hosts.
fn is_routed(tunnel: &TunnelState) -> bool {
    tunnel.device.is_some() && tunnel.bridge.is_none()
}

/// Reads the Ethernet interfaces of the host that are up and have addresses.
fn interfaces() -> Vec<LanInterface> {
    let mut found: BTreeMap<u32, LanInterface> = BTreeMap::new();
    for entry in getifaddrs::getifaddrs().into_iter().flatten() {
        let is_lan = entry.flags.contains(InterfaceFlags::UP | InterfaceFlags::BROADCAST)
            && !entry.flags.intersects(InterfaceFlags::LOOPBACK | InterfaceFlags::POINTTOPOINT);
        let Some(index) = entry.index.filter(|_| is_lan) else { continue };
        let interface = found.entry(index).or_insert_with(|| LanInterface {
            index,
            name: entry.name.clone(),
            hardware: HardwareAddress::default(),
            addresses: Vec::new(),
        });
        if let Some(hardware) = entry.address.mac_addr() {
            interface.hardware = hardware;
        } else if let (Some(address), Some(mask)) = (entry.address.ip_addr(), entry.address.netmask()) {
            let network = IpNet::with_netmask(address, mask).ok();
            // A prefix of length zero would make every address a neighbour.
            interface.addresses.extend(network.filter(|network| network.prefix_len() > 0));
        }
    }
    let has_both = |found: &LanInterface| found.hardware != [0; 6] && !found.addresses.is_empty();
    found.into_values().filter(has_both).collect()
}
