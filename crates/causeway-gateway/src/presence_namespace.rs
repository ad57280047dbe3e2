//! The network namespace in which presences listen, and the veth that connects it to the host.
//!
//! Inside, the gateway's presence networks are local as a whole; on the host, one route per network leads
//! into the namespace. Therefore listeners of the host do not conflict with presences, unused presence
//! addresses do not reach the host, clients keep their source addresses, and no firewall rule is needed. The
//! namespace has no name: the kernel removes it with the process, however that ends, together with the veth
//! and the routes. It is created when the netmap has the first presence for it. The users of its sockets are
//! unknown to this module.

mod plan;

mod firewall;
mod forwarding;
mod namespace;
mod veth;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use causeway_daemon::error_chain;
use causeway_daemon::sync::MutexExt;
use causeway_netmap::NetmapView;
use ipnet::IpNet;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::peers::BoxedFuture;
use crate::socket_binder::{BinderError, BinderState, SocketBinder};

pub use forwarding::{Forwarding, obstacles};
pub use namespace::leave_host;

use namespace::AnonymousNamespace;
use plan::NamespacePlan;
use veth::Veth;

/// A cheap handle; clones share one namespace.
#[derive(Clone)]
pub struct PresenceNamespace {
    shared: Arc<Shared>,
}

struct Shared {
    state: watch::Sender<BinderState>,
    /// The namespace and the networks that are local in it, while sockets can be bound.
    open: ArcSwapOption<Open>,
    /// Requests an immediate check.
    check_now: Notify,
    /// Counts the checks of both ends.
    checks: watch::Sender<u64>,
    /// The veth, and the interface by which packets of other hosts arrive.
    interfaces: Mutex<Option<(String, Option<String>)>>,
}

struct Open {
    namespace: AnonymousNamespace,
    plan: NamespacePlan,
}

/// The resources created so far.
#[derive(Default)]
struct NamespaceResources {
    namespace: Option<AnonymousNamespace>,
    veth: Option<Veth>,
}

/// The result of a check of both ends: problems with single networks, and hints for the operator.
#[derive(Default)]
struct CheckResult {
    troubles: Vec<String>,
    hints: Vec<String>,
}

/// The reason why there is no namespace, or why it is not connected to the host.
#[derive(Debug, thiserror::Error)]
pub enum PresenceNamespaceError {
    #[error("the network namespace for presences needs {capability}, which this process does not have")]
    NotPermitted { capability: &'static str },
    #[error("this kernel has no support for the network namespace for presences: {what}")]
    NoSuchKernel { what: &'static str },
    #[error("{what} failed")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

/// Short enough for an operator who waits, and for the case that the previous process was killed a moment
/// ago: the kernel removes its namespace with a delay.
const RETRY_PERIOD: Duration = Duration::from_secs(1);
/// The interval of checks for foreign changes: network managers remove routes that they do not know.
const CHECK_PERIOD: Duration = Duration::from_secs(10);
/// The maximum wait for a check. It takes milliseconds; an older result is better than none.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

impl Default for PresenceNamespace {
    fn default() -> PresenceNamespace {
        let state = watch::Sender::new(BinderState::Closed);
        PresenceNamespace {
            shared: Arc::new(Shared {
                state,
                open: ArcSwapOption::empty(),
                check_now: Notify::new(),
                checks: watch::Sender::default(),
                interfaces: Mutex::default(),
            }),
        }
    }
}

impl PresenceNamespace {
    /// Keeps the namespace in step with the netmap until told to stop. After that nothing of it is left,
    /// except what open sockets hold.
    pub async fn run(self, mut netmaps: watch::Receiver<Arc<NetmapView>>, stop: CancellationToken) {
        let mut resources = NamespaceResources::default();
        loop {
            let plan = NamespacePlan::of(&netmaps.borrow_and_update());
            let followed = match plan.is_empty() && self.shared.open.load().is_none() {
                true => Ok(CheckResult::default()),
                false => self.follow(plan, &mut resources).await,
            };
            let pause = self.report(followed);
            self.shared.checks.send_modify(|checks| *checks = checks.wrapping_add(1));
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.shared.check_now.notified() => {}
                changed = netmaps.changed() => if changed.is_err() { break },
                () = pause_for(pause) => {}
            }
        }
        self.shared.open.store(None);
        self.shared.state.send_replace(BinderState::Closed);
        if let Some(veth) = resources.veth {
            veth.remove().await;
        }
    }

    /// Returns the obstacles between other hosts of the site and the presences at this moment, as sentences
    /// with the remedy.
    pub async fn examine(&self) -> Vec<String> {
        let mut checks = self.shared.checks.subscribe();
        if self.shared.open.load().is_none() {
            return Vec::new();
        }
        let before = *checks.borrow_and_update();
        self.shared.check_now.notify_one();
        let _ = tokio::time::timeout(CHECK_TIMEOUT, checks.wait_for(|checks| *checks != before)).await;
        let (networks, mut found) = match &*self.shared.state.borrow() {
            BinderState::Open { networks, hints, .. } => (networks.clone(), hints.clone()),
            _ => return Vec::new(),
        };
        let interfaces = self.shared.interfaces.lock_ignoring_poison().clone();
        if let Some((veth, entrance)) = interfaces
            && let Some(chains) = firewall::read().await
        {
            let way = |network: &IpNet| firewall::PresencePath {
                entrance: entrance.clone(),
                veth: veth.clone(),
                network: *network,
            };
            found
                .extend(networks.iter().flat_map(|network| firewall::blocking_rules(&chains, &way(network))));
        }
        found
    }

    /// Creates missing resources and removes surplus ones. Idempotent.
    async fn follow(
        &self,
        plan: NamespacePlan,
        resources: &mut NamespaceResources,
    ) -> Result<CheckResult, PresenceNamespaceError> {
        let namespace = match &resources.namespace {
            Some(namespace) => namespace,
            None => resources.namespace.insert(AnonymousNamespace::open().await?),
        };
        // A network manager may have removed our end. The namespace stays, and with it every listener.
        let veth = match resources.veth.take() {
            Some(veth) if veth.exists().await => resources.veth.insert(veth),
            _ => resources.veth.insert(Veth::create(namespace).await?),
        };
        let troubles = veth.follow(&plan).await?;
        let entrance = veth.entrance(&plan).await;
        let hints = obstacles(&Forwarding::read(), entrance.as_deref(), plan.networks());
        *self.shared.interfaces.lock_ignoring_poison() = Some((veth.name().to_owned(), entrance));
        if self.shared.open.load().as_ref().is_none_or(|open| !open.plan.is_like(&plan)) {
            self.shared.open.store(Some(Arc::new(Open { namespace: namespace.clone(), plan })));
        }
        Ok(CheckResult { troubles, hints })
    }

    /// Publishes and logs the state, once per change, and returns the time of the next check. None: when the
    /// netmap changes.
    fn report(&self, followed: Result<CheckResult, PresenceNamespaceError>) -> Option<Duration> {
        let networks = self.shared.open.load().as_ref().map(|open| open.plan.networks().to_vec());
        let is_open = networks.is_some();
        let (state, pause) = match followed {
            Ok(_) if !is_open => (BinderState::Closed, None),
            Ok(CheckResult { troubles, hints }) => {
                let pause = if troubles.is_empty() { CHECK_PERIOD } else { RETRY_PERIOD };
                (BinderState::Open { networks: networks.unwrap_or_default(), troubles, hints }, Some(pause))
            }
            Err(
                error @ (PresenceNamespaceError::NotPermitted { .. }
                | PresenceNamespaceError::NoSuchKernel { .. }),
            ) if !is_open => (BinderState::Impossible { why: error.to_string() }, None),
            Err(error) => {
                let why = error_chain(&error);
                (BinderState::Troubled { why }, Some(RETRY_PERIOD))
            }
        };
        self.shared.state.send_if_modified(|known| {
            if *known == state {
                return false;
            }
            log(&state);
            *known = state;
            true
        });
        pause
    }
}

impl SocketBinder for PresenceNamespace {
    fn listen(&self, address: SocketAddr) -> BoxedFuture<'_, Result<std::net::TcpListener, BinderError>> {
        Box::pin(async move {
            let open = self.shared.open_for(address)?;
            open.namespace.listen(address).await.map_err(|error| BinderError::of(address, error))
        })
    }

    fn bind_udp(&self, address: SocketAddr) -> BoxedFuture<'_, Result<std::net::UdpSocket, BinderError>> {
        Box::pin(async move {
            let open = self.shared.open_for(address)?;
            open.namespace.bind_udp(address).await.map_err(|error| BinderError::of(address, error))
        })
    }

    fn state(&self) -> watch::Receiver<BinderState> {
        self.shared.state.subscribe()
    }
}

impl Shared {
    fn open_for(&self, address: SocketAddr) -> Result<Arc<Open>, BinderError> {
        let open = self.open.load_full().ok_or(BinderError::NotOpen)?;
        match open.plan.holds(address.ip()) {
            true => Ok(open),
            false => Err(BinderError::Outside { address }),
        }
    }
}

fn log(state: &BinderState) {
    match state {
        BinderState::Closed => tracing::debug!("network namespace for presences closed"),
        BinderState::Open { troubles, hints, .. } => {
            if troubles.is_empty() {
                tracing::info!("network namespace for presences open");
            } else {
                let troubles = troubles.join("; ");
                tracing::warn!(troubles, "cannot route all presence networks to the gateway; trying again");
            }
            for hint in hints {
                tracing::warn!("{hint}");
            }
        }
        BinderState::Troubled { why } => {
            tracing::warn!(why, "cannot create the network namespace for presences; trying again");
        }
        BinderState::Impossible { why } => tracing::warn!(why, "no network namespace for presences"),
    }
}

async fn pause_for(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}
