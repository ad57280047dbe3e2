//! Binds a socket for every presence of the netmap, and delivers the clients that connect.
//!
//! Presences listen in the presence namespace where there is one; on the host where the address is one of the
//! host's own; and on ports that the configuration names, which needs no privileges. An address that cannot
//! be bound is reported and retried; it affects no other presence. `wanted` decides, the rest follows.

mod accept;
mod wanted;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use causeway_netmap::{NetmapView, ServiceName};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use crate::dial::{self, OwnListener, OwnListeners};
use crate::metrics::GatewayMetrics;
use crate::socket_binder::{BinderError, BinderState, HostBinder, SocketBinder, in_words};
pub(crate) use wanted::broker_address;
use wanted::{ListenScope, ListenSocket, ListenTransport, ListenerOwner, wanted};

/// A client at a presence. The local address of the socket is that of the presence.
pub struct AcceptedClient {
    pub stream: TcpStream,
    pub client: SocketAddr,
    pub service: ServiceName,
    /// The Kafka broker whose port this is.
    pub broker: Option<u16>,
}

impl AcceptedClient {
    /// Moves the socket to that runtime. None: the connection has failed.
    pub fn bring(self, runtime: &Handle) -> Option<AcceptedClient> {
        let stream = causeway_channel::io_thread::bring(self.stream, runtime).ok()?;
        Some(AcceptedClient { stream, ..self })
    }
}

/// A presence for UDP.
pub struct UdpPresence {
    pub socket: Arc<UdpSocket>,
    pub service: ServiceName,
    /// Cancelled when the presence is gone. The address is free when the socket is dropped.
    pub closed: CancellationToken,
}

pub enum PresenceEvent {
    Connection(AcceptedClient),
    Datagrams(UdpPresence),
}

/// Settings of the listeners of presences.
#[derive(Clone, Default)]
pub struct ListenPolicy {
    /// The presence namespace. None: only the host's own addresses.
    pub namespace: Option<Arc<dyn SocketBinder>>,
    /// True: listen on the host if no namespace can be created. False: do not listen in that case.
    pub host_instead: bool,
    /// Additional addresses by service; without a namespace they replace those of the presence.
    pub ports: BTreeMap<ServiceName, SocketAddr>,
    /// Registry of listening presences: they are never dialled as backends.
    pub own_listeners: OwnListeners,
}

/// The state of all listeners.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenersReport {
    /// `room` (the presence namespace) or `host`: then only the host's own addresses can be used.
    pub place: &'static str,
    pub listening: usize,
    pub troubles: Vec<ListenerProblem>,
    /// Problems that do not affect this host, but may affect other hosts of the site.
    pub hints: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ListenerProblem {
    /// None: it affects all presences.
    pub service: Option<String>,
    pub why: String,
}

/// Accepted connections that are not served yet; the kernel keeps the rest in the backlog.
const PENDING_MAX: usize = 256;
/// Interval of retries: an address may become local, or free. Restarts are to complete within three seconds.
const RETRY: Duration = Duration::from_secs(1);

/// All listeners. Dropping it closes them.
pub struct PresenceListeners {
    arrivals: mpsc::Receiver<PresenceEvent>,
    _keeper: AbortOnDropHandle<()>,
}

impl PresenceListeners {
    /// Starts listening. The state is published through `reporting` as it changes.
    pub fn start(
        netmaps: watch::Receiver<Arc<NetmapView>>,
        policy: ListenPolicy,
        metrics: GatewayMetrics,
        reporting: watch::Sender<ListenersReport>,
    ) -> PresenceListeners {
        let (arriving, arrivals) = mpsc::channel(PENDING_MAX);
        let keeper = Keeper {
            policy,
            host: HostBinder::default(),
            metrics,
            arriving,
            reporting,
            bound: BTreeMap::new(),
        };
        let keeper = AbortOnDropHandle::new(tokio::spawn(keeper.run(netmaps)));
        PresenceListeners { arrivals, _keeper: keeper }
    }

    /// Returns the next client, or the next presence for UDP. Cancel safe.
    pub async fn next(&mut self) -> PresenceEvent {
        match self.arrivals.recv().await {
            Some(arrival) => arrival,
            // No netmap can arrive any more: the role ends.
            None => std::future::pending().await,
        }
    }
}

struct Keeper {
    policy: ListenPolicy,
    host: HostBinder,
    metrics: GatewayMetrics,
    arriving: mpsc::Sender<PresenceEvent>,
    reporting: watch::Sender<ListenersReport>,
    bound: BTreeMap<ListenSocket, Bound>,
}

/// A bound socket, until the guard is dropped.
struct Bound {
    owner: ListenerOwner,
    guard: DropGuard,
    /// The task that accepts its clients; None for UDP.
    task: Option<JoinHandle<()>>,
    _own: OwnListener,
}

impl Bound {
    /// Closes the socket. Returns when the address is free.
    async fn close(self) {
        drop(self.guard);
        if let Some(task) = self.task {
            let _ = task.await;
        }
    }
}

impl Keeper {
    async fn run(mut self, mut netmaps: watch::Receiver<Arc<NetmapView>>) {
        let mut namespace = self.policy.namespace.as_ref().map(|namespace| namespace.state());
        loop {
            let view = netmaps.borrow_and_update().clone();
            let state = namespace.as_mut().map(|namespace| namespace.borrow_and_update().clone());
            let is_well = self.follow(&view, state).await;
            tokio::select! {
                biased;
                () = self.arriving.closed() => return,
                changed = netmaps.changed() => if changed.is_err() { return },
                () = changed(namespace.as_mut()) => {}
                () = tokio::time::sleep(RETRY), if !is_well => {}
            }
        }
    }

    /// Binds the wanted sockets that are not bound. Idempotent. Returns whether all wanted sockets are bound.
    async fn follow(&mut self, view: &NetmapView, namespace: Option<BinderState>) -> bool {
        let place = match &namespace {
            Some(BinderState::Impossible { .. }) if self.policy.host_instead => ListenScope::Host,
            Some(_) => ListenScope::Namespace,
            None => ListenScope::Host,
        };
        let wanted = wanted(view, place, &self.policy.ports);
        let gone = self.bound.extract_if(.., |key, bound| wanted.get(key) != Some(&bound.owner));
        for (_, bound) in gone.collect::<Vec<_>>() {
            bound.close().await;
        }
        let mut report = ListenersReport { place: place.word(), ..ListenersReport::default() };
        report.take(namespace.as_ref());
        for (key, owner) in &wanted {
            if self.bound.contains_key(key) {
                continue;
            }
            let service = &owner.service;
            match self.bind(key, owner).await {
                Ok(bound) => {
                    tracing::info!(%service, address = %key.address, place = key.scope.word(), "presence listens");
                    self.bound.insert(*key, bound);
                }
                // The report of the namespace has the reason.
                Err(BinderError::NotOpen) => {}
                Err(error) => report.add(service, &error, place),
            }
        }
        report.listening = self.bound.len();
        self.metrics.unbound.set((wanted.len() - self.bound.len()) as i64);
        let is_well = report.listening == wanted.len();
        self.publish(report);
        is_well
    }

    async fn bind(&self, key: &ListenSocket, owner: &ListenerOwner) -> Result<Bound, BinderError> {
        let binder: &dyn SocketBinder = match (key.scope, &self.policy.namespace) {
            (ListenScope::Namespace, Some(namespace)) => namespace.as_ref(),
            _ => &self.host,
        };
        let address = key.address;
        let closed = CancellationToken::new();
        let bound_at = |found: std::io::Result<SocketAddr>| found.unwrap_or(address);
        let (task, bound) = match key.transport {
            ListenTransport::Tcp => {
                let listener = TcpListener::from_std(binder.listen(address).await?);
                let listener = listener.map_err(|source| BinderError::of(address, source))?;
                let bound = bound_at(listener.local_addr());
                let (arriving, metrics) = (self.arriving.clone(), self.metrics.clone());
                let accepting = accept::run(listener, owner.clone(), arriving, metrics, closed.clone());
                (Some(tokio::spawn(accepting)), bound)
            }
            ListenTransport::Udp => {
                let socket = UdpSocket::from_std(binder.bind_udp(address).await?);
                let socket = Arc::new(socket.map_err(|source| BinderError::of(address, source))?);
                let bound = bound_at(socket.local_addr());
                let opened = UdpPresence { socket, service: owner.service.clone(), closed: closed.clone() };
                // Fails only when the receiver is gone.
                let _ = self.arriving.send(PresenceEvent::Datagrams(opened)).await;
                (None, bound)
            }
        };
        let transport = match key.transport {
            ListenTransport::Tcp => dial::Transport::Tcp,
            ListenTransport::Udp => dial::Transport::Udp,
        };
        let own = self.policy.own_listeners.register("presence", transport, bound);
        Ok(Bound { owner: owner.clone(), guard: closed.drop_guard(), task, _own: own })
    }

    /// Logs new problems, once.
    fn publish(&self, report: ListenersReport) {
        self.reporting.send_if_modified(|known| {
            for ListenerProblem { service, why } in
                report.troubles.iter().filter(|it| !known.troubles.contains(it))
            {
                // Problems that affect all presences are logged by the namespace.
                if let Some(service) = service {
                    tracing::warn!(%service, why, "presence cannot listen; retrying");
                }
            }
            let is_new = *known != report;
            *known = report;
            is_new
        });
    }
}

impl ListenersReport {
    fn take(&mut self, namespace: Option<&BinderState>) {
        match namespace {
            None | Some(BinderState::Closed) => {}
            Some(BinderState::Open { troubles, hints, .. }) => {
                self.troubles
                    .extend(troubles.iter().map(|why| ListenerProblem { service: None, why: why.clone() }));
                self.hints.clone_from(hints);
            }
            Some(BinderState::Troubled { why } | BinderState::Impossible { why }) => {
                self.troubles.push(ListenerProblem { service: None, why: why.clone() });
            }
        }
    }

    fn add(&mut self, service: &ServiceName, error: &BinderError, scope: ListenScope) {
        let mut why = in_words(error);
        if let (BinderError::NotLocal { .. }, ListenScope::Host) = (error, scope) {
            why.push_str(
                "; give the host this address, name a port for the service, or run this program with the privileges to make a network namespace",
            );
        }
        self.troubles.push(ListenerProblem { service: Some(service.to_string()), why });
    }
}

async fn changed(namespace: Option<&mut watch::Receiver<BinderState>>) {
    if let Some(namespace) = namespace
        && namespace.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests;
