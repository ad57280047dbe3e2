//! The network namespace in which presences listen, and the veth that joins it to the host.
//!
//! Inside, the gateway's networks for presences are local as a whole; outside, one route per network leads there. So no
//! listener of the host is in the way, no unused address leads to the host, clients keep their addresses, and there is not
//! one firewall rule. The namespace has no name: it goes with the process, however that ends, and takes veth and routes along.
//! Made when the netmap has the first presence for it. Who listens here is not known here.

mod plan;

mod firewall;
mod forwarding;
mod namespace;
mod veth;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use causeway_netmap::NetmapView;
use ipnet::IpNet;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::peers::BoxedFuture;
use crate::socket_binder::{BinderError, BinderState, SocketBinder, in_words};

pub use forwarding::{Forwarding, judge};
pub use namespace::leave_host;

use namespace::AnonymousNamespace;
use plan::NamespacePlan;
use veth::Veth;

/// A cheap handle; clones are the same room.
#[derive(Clone)]
pub struct PresenceNamespace {
    shared: Arc<Shared>,
}

struct Shared {
    state: watch::Sender<BinderState>,
    /// What can be bound now: the namespace, and the networks that are local in it.
    open: ArcSwapOption<Open>,
    /// Somebody wants to know how it is now.
    look: Notify,
    /// Counts the looks at both ends.
    looks: watch::Sender<u64>,
    /// The veth, and the interface by which other hosts come.
    interfaces: Mutex<Option<(String, Option<String>)>>,
}

struct Open {
    namespace: AnonymousNamespace,
    plan: NamespacePlan,
}

/// What was made so far.
#[derive(Default)]
struct Standing {
    namespace: Option<AnonymousNamespace>,
    veth: Option<Veth>,
}

/// What a look at both ends found: what stands in the way of single networks, and what the operator may want to know.
#[derive(Default)]
struct Found {
    troubles: Vec<String>,
    hints: Vec<String>,
}

/// Why there is no room, or why it is not joined to the host as it should be.
#[derive(Debug, thiserror::Error)]
pub enum PresenceNamespaceError {
    #[error("a room for presences needs {capability}, which this process does not have")]
    NotPermitted { capability: &'static str },
    #[error("this kernel cannot do it: {what}")]
    NoSuchKernel { what: &'static str },
    #[error("{what} failed")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

/// Soon enough for people, and for a room whose predecessor was killed a moment ago: the kernel takes it down by and by.
const RETRY: Duration = Duration::from_secs(1);
/// How often somebody else's hand is looked for: programs that manage networks remove routes which they do not know.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// A look takes milliseconds; an answer that is older than the question is better than none.
const EXAMINE: Duration = Duration::from_secs(2);

impl Default for PresenceNamespace {
    fn default() -> PresenceNamespace {
        let state = watch::Sender::new(BinderState::Closed);
        PresenceNamespace {
            shared: Arc::new(Shared {
                state,
                open: ArcSwapOption::empty(),
                look: Notify::new(),
                looks: watch::Sender::default(),
                interfaces: Mutex::default(),
            }),
        }
    }
}

impl PresenceNamespace {
    /// Keeps the room in step with the netmap until told to stop. Then nothing of it is left, apart from what sockets hold.
    pub async fn run(self, mut netmaps: watch::Receiver<Arc<NetmapView>>, stop: CancellationToken) {
        let mut standing = Standing::default();
        loop {
            let plan = NamespacePlan::of(&netmaps.borrow_and_update());
            let followed = match plan.is_empty() && self.shared.open.load().is_none() {
                true => Ok(Found::default()),
                false => self.follow(plan, &mut standing).await,
            };
            let pause = self.report(followed);
            self.shared.looks.send_modify(|looks| *looks = looks.wrapping_add(1));
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.shared.look.notified() => {}
                changed = netmaps.changed() => if changed.is_err() { break },
                () = pause_for(pause) => {}
            }
        }
        self.shared.open.store(None);
        self.shared.state.send_replace(BinderState::Closed);
        if let Some(veth) = standing.veth {
            veth.remove().await;
        }
    }

    /// What keeps other hosts of the site away from presences at this moment, in sentences with the remedy.
    pub async fn examine(&self) -> Vec<String> {
        let mut looks = self.shared.looks.subscribe();
        if self.shared.open.load().is_none() {
            return Vec::new();
        }
        let before = *looks.borrow_and_update();
        self.shared.look.notify_one();
        let _ = tokio::time::timeout(EXAMINE, looks.wait_for(|looks| *looks != before)).await;
        let (networks, mut found) = match &*self.shared.state.borrow() {
            BinderState::Open { networks, hints, .. } => (networks.clone(), hints.clone()),
            _ => return Vec::new(),
        };
        let interfaces = self.shared.interfaces.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some((veth, entrance)) = interfaces
            && let Some(chains) = firewall::read().await
        {
            let way = |network: &IpNet| firewall::Way {
                entrance: entrance.clone(),
                veth: veth.clone(),
                network: *network,
            };
            found.extend(networks.iter().flat_map(|network| firewall::judge(&chains, &way(network))));
        }
        found
    }

    /// Makes what is missing and removes what is too much. Running it twice changes nothing.
    async fn follow(
        &self,
        plan: NamespacePlan,
        standing: &mut Standing,
    ) -> Result<Found, PresenceNamespaceError> {
        let namespace = match &standing.namespace {
            Some(namespace) => namespace,
            None => standing.namespace.insert(AnonymousNamespace::open().await?),
        };
        // Somebody may have removed our end. The namespace stays, and with it every listener.
        let veth = match standing.veth.take() {
            Some(veth) if veth.is_there().await => standing.veth.insert(veth),
            _ => standing.veth.insert(Veth::lay(namespace).await?),
        };
        let troubles = veth.follow(&plan).await?;
        let entrance = veth.entrance(&plan).await;
        let hints = judge(&Forwarding::read(), entrance.as_deref(), plan.networks());
        *self.shared.interfaces.lock().unwrap_or_else(PoisonError::into_inner) =
            Some((veth.name().to_owned(), entrance));
        if self.shared.open.load().as_ref().is_none_or(|open| !open.plan.is_like(&plan)) {
            self.shared.open.store(Some(Arc::new(Open { namespace: namespace.clone(), plan })));
        }
        Ok(Found { troubles, hints })
    }

    /// Says how it went, once per change, and when to look again. None: not before the netmap changes.
    fn report(&self, followed: Result<Found, PresenceNamespaceError>) -> Option<Duration> {
        let networks = self.shared.open.load().as_ref().map(|open| open.plan.networks().to_vec());
        let is_open = networks.is_some();
        let (state, pause) = match followed {
            Ok(_) if !is_open => (BinderState::Closed, None),
            Ok(Found { troubles, hints }) => {
                let pause = if troubles.is_empty() { LOOK_AGAIN } else { RETRY };
                (BinderState::Open { networks: networks.unwrap_or_default(), troubles, hints }, Some(pause))
            }
            Err(
                error @ (PresenceNamespaceError::NotPermitted { .. }
                | PresenceNamespaceError::NoSuchKernel { .. }),
            ) if !is_open => (BinderState::Impossible { why: error.to_string() }, None),
            Err(error) => {
                let why = in_words(&error);
                (BinderState::Troubled { why }, Some(RETRY))
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
        BinderState::Closed => tracing::debug!("the room for presences is closed"),
        BinderState::Open { troubles, hints, .. } => {
            if troubles.is_empty() {
                tracing::info!("the room for presences is open");
            } else {
                let troubles = troubles.join("; ");
                tracing::warn!(troubles, "presences cannot all be reached; trying again");
            }
            for hint in hints {
                tracing::warn!("{hint}");
            }
        }
        BinderState::Troubled { why } => {
            tracing::warn!(why, "the room for presences cannot be made; trying again");
        }
        BinderState::Impossible { why } => tracing::warn!(why, "there is no room for presences"),
    }
}

async fn pause_for(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}
