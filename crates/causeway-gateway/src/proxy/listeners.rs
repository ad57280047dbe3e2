//! Binds a socket for every presence of the netmap, and delivers the clients that connect.
//!
//! Presences listen in the presence namespace where there is one; on the host where the address is one of the
//! host's own; and on ports that the configuration names, which needs no privileges. An address that cannot
//! be bound is reported and retried; it affects no other presence. `wanted` decides, the rest follows.

mod wanted;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use causeway_daemon::error_chain;
use causeway_netmap::{NetmapView, ServiceName};
use serde::Serialize;
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use crate::dial::{self, OwnListener, OwnListeners};
use crate::metrics::GatewayMetrics;
use crate::socket_binder::{BinderError, BinderState, HostBinder, SocketBinder};
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
    /// `namespace` (the presence namespace) or `host`: then only the host's own addresses can be used.
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
        let keeper = ListenerKeeper {
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

struct ListenerKeeper {
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

impl ListenerKeeper {
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
        let bound_at = |found: io::Result<SocketAddr>| found.unwrap_or(address);
        let (task, bound) = match key.transport {
            ListenTransport::Tcp => {
                let listener = TcpListener::from_std(binder.listen(address).await?);
                let listener = listener.map_err(|source| BinderError::of(address, source))?;
                let bound = bound_at(listener.local_addr());
                let (arriving, metrics) = (self.arriving.clone(), self.metrics.clone());
                let accepting = accept_clients(listener, owner.clone(), arriving, metrics, closed.clone());
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
            ListenTransport::Tcp => dial::SocketProtocol::Tcp,
            ListenTransport::Udp => dial::SocketProtocol::Udp,
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
        let mut why = error_chain(error);
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

/// Pause after a failed accept. When the process has no free file descriptor, another connection must close
/// first; the kernel keeps waiting clients in the backlog.
const ACCEPT_PAUSE_MIN: Duration = Duration::from_millis(20);
const ACCEPT_PAUSE_MAX: Duration = Duration::from_secs(1);

/// Accepts the clients of one presence until it is gone.
async fn accept_clients(
    listener: TcpListener,
    owner: ListenerOwner,
    arriving: mpsc::Sender<PresenceEvent>,
    metrics: GatewayMetrics,
    closed: CancellationToken,
) {
    let ListenerOwner { service, broker } = owner;
    let accepting = async {
        let mut pause = ACCEPT_PAUSE_MIN;
        loop {
            match listener.accept().await {
                Ok((stream, client)) => {
                    pause = ACCEPT_PAUSE_MIN;
                    let accepted = AcceptedClient { stream, client, service: service.clone(), broker };
                    if arriving.send(PresenceEvent::Connection(accepted)).await.is_err() {
                        return;
                    }
                }
                // The client closed the connection in the backlog; accept(2) reports it here.
                Err(error) if concerns_one_client(&error) => {
                    metrics.accept_failures.inc();
                }
                Err(error) => {
                    metrics.accept_failures.inc();
                    if pause == ACCEPT_PAUSE_MIN {
                        tracing::warn!(%service, %error, "cannot accept clients of the presence; retrying");
                    }
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(ACCEPT_PAUSE_MAX);
                }
            }
        }
    };
    tokio::select! {
        biased;
        () = closed.cancelled() => {}
        () = accepting => {}
    }
}

fn concerns_one_client(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionReset
            | ErrorKind::Interrupted
            | ErrorKind::TimedOut
            | ErrorKind::HostUnreachable
            | ErrorKind::NetworkUnreachable
    )
}

/// At 0.2 ms each in a debug build, other tasks wait for 13 ms.
const STARTING_MAX: usize = 64;

/// Limits the number of new connections that wait for their first poll on a thread.
///
/// A connection is a task, and one thread runs a link and all connections on it. A client that opens ten
/// thousand connections at once would queue ten thousand tasks before those of the link: for seconds the link
/// would neither read nor answer, and its peer would consider it dead. Therefore the next connection is
/// accepted when an earlier one has been polled once. Time that a connection spends afterwards, for example
/// on a slow backend, does not count.
#[derive(Clone, Debug)]
pub struct StartLimit(Arc<Semaphore>);

impl Default for StartLimit {
    fn default() -> StartLimit {
        StartLimit(Arc::new(Semaphore::new(STARTING_MAX)))
    }
}

impl StartLimit {
    /// Waits until a connection may be started. Cancel safe.
    pub async fn permit(&self) -> StartPermit {
        // The semaphore is never closed, so a permit is always granted.
        StartPermit(self.0.clone().acquire_owned().await.ok())
    }
}

/// A permit to start one connection.
#[derive(Debug)]
pub struct StartPermit(Option<OwnedSemaphorePermit>);

impl StartPermit {
    /// Runs `future`, which holds the permit until it has been polled once.
    pub fn start<F>(self, future: F) -> Starting<F> {
        Starting { future, permit: self }
    }
}

#[derive(Debug)]
pub struct Starting<F> {
    future: F,
    permit: StartPermit,
}

impl<F: Future + Unpin> Future for Starting<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let polled = Pin::new(&mut self.future).poll(context);
        self.permit.0 = None;
        polled
    }
}

#[cfg(test)]
mod tests;
