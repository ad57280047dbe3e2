//! Carries connections by name and by policy: from local clients to other sites, and from other sites to local backends.
//!
//! `Proxy` is one plane of a gateway: `run` listens and serves, `state` reports the listeners. `outbound` and `inbound` are
//! the two ends of a crossing; each reads what is requested and selects the protocol. `copy` moves bytes, `udp` carries
//! datagrams, `kafka` rewrites broker addresses, `backends` selects backends, `listeners` binds the presences.

pub mod outbound;

pub mod inbound;

mod stream_opener;

mod end_reason;

pub mod copy;

pub mod connect;

pub mod http;

pub mod entry;

pub mod sni;

pub mod backends;

pub mod listeners;

pub mod kafka;

pub mod udp;

use std::sync::Arc;

use causeway_channel::link::{Stream, StreamHeader};
use causeway_netmap::{ServiceName, SiteName};
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::dial::BackendDialer;
use crate::gateway::{GatewayContext, GatewayOptions, PresenceMode};
use crate::presence_namespace::PresenceNamespace;
use crate::slots::ClientSlots;
use crate::socket_binder::SocketBinder;
use backends::BackendSelector;
use connect::{ConnectTlsListener, ConnectUnixListener, listener};
use entry::EntryProtocol;
use http::HttpConnections;
use listeners::{ListenPolicy, ListenersReport, PresenceEvent, PresenceListeners, StartLimit};
use stream_opener::StreamShares;
use udp::{UdpBackends, UdpSessions};

/// The proxy plane of a gateway.
pub struct Proxy {
    pub context: Arc<GatewayContext>,
    pub options: GatewayOptions,
    /// The only way to backends and nodes: it enforces the dial rules.
    pub dialer: BackendDialer,
    pub backends: BackendSelector,
    pub udp_sessions: UdpSessions,
    pub udp_backends: UdpBackends,
    /// Streams to other sites, by client.
    pub(crate) streams: StreamShares,
    pub http: HttpConnections,
    pub kafka: kafka::BrokerNames,
    /// Slots for connections at a TLS entry whose ClientHello is not complete.
    pub(crate) hellos: ClientSlots,
    /// Permits for CONNECT clients.
    connects: Arc<Semaphore>,
    /// None: presences listen in the network namespace of the host.
    namespace: Option<PresenceNamespace>,
    listeners: watch::Sender<ListenersReport>,
}

impl Proxy {
    pub(crate) fn new(context: Arc<GatewayContext>, options: GatewayOptions) -> Proxy {
        let dialer = BackendDialer::new(options.dial_rules.clone(), options.own_listeners.clone())
            .switched_off(options.services_off);
        let wants_namespace = options.listen && options.presence_mode != PresenceMode::Host;
        Proxy {
            context,
            backends: BackendSelector::new(&options, dialer.clone()),
            udp_sessions: UdpSessions::new(&options.udp),
            udp_backends: UdpBackends::new(dialer.clone()),
            dialer,
            streams: StreamShares::new(options.client_streams_max),
            http: HttpConnections::default(),
            kafka: kafka::BrokerNames::default(),
            hellos: ClientSlots::new(entry::HELLOS_MAX),
            connects: Arc::new(Semaphore::new(options.connects_max)),
            namespace: wants_namespace.then(PresenceNamespace::default),
            listeners: watch::Sender::default(),
            options,
        }
    }

    /// Returns the state of the listeners of presences, as it changes.
    pub fn state(&self) -> watch::Receiver<ListenersReport> {
        self.listeners.subscribe()
    }

    pub(crate) fn namespace(&self) -> Option<&PresenceNamespace> {
        self.namespace.as_ref()
    }

    /// Listens at presences and entries until `stop`. Backends and the presence namespace are kept until `end`: connections
    /// that finish between the two use them.
    pub(crate) async fn run(self: Arc<Self>, stop: CancellationToken, end: CancellationToken) {
        let mut running = JoinSet::new();
        if let Some(namespace) = self.namespace.clone() {
            running.spawn(namespace.run(self.context.netmaps(), end.clone()));
        }
        let (proxy, until) = (self.clone(), end.clone());
        running.spawn(async move { proxy.backends.run(until).await });
        running.spawn(self.clone().follow_netmaps(end.clone()));
        for (address, protocol) in
            [(self.options.entry_http, EntryProtocol::Http), (self.options.entry_tls, EntryProtocol::Tls)]
        {
            let Some(address) = address else { continue };
            let tasks = &self.context.tasks;
            tasks.spawn(entry::keep(self.clone(), address, protocol, tasks.clone(), stop.clone()));
        }
        if self.options.listen {
            self.accept(&stop).await;
        }
        while running.join_next().await.is_some() {}
    }

    /// Serves a stream of another site. Returns at once.
    pub(crate) fn serve(self: &Arc<Self>, origin: SiteName, header: StreamHeader, stream: Stream) {
        let runtime = stream.runtime().cloned();
        self.spawn_on(runtime, inbound::serve(self.clone(), origin, header, stream));
    }

    pub(crate) async fn run_connect_unix(
        self: &Arc<Self>,
        listener: ConnectUnixListener,
        stop: CancellationToken,
    ) {
        listener::run_unix(self.connect_context(stop), listener).await;
    }

    pub(crate) async fn run_connect_tls(
        self: &Arc<Self>,
        listener: ConnectTlsListener,
        stop: CancellationToken,
    ) {
        listener::run_tls(self.connect_context(stop), listener).await;
    }

    /// Sends no more requests over the streams to other sites that are open now.
    pub(crate) fn retire_streams(&self) {
        self.http.retire();
    }

    fn connect_context(self: &Arc<Self>, stop: CancellationToken) -> listener::ConnectContext {
        let (tasks, places) = (self.context.tasks.clone(), self.connects.clone());
        listener::ConnectContext { proxy: self.clone(), tasks, places, stop }
    }

    /// Applies new netmaps to the backends, and closes pooled connections that are idle.
    async fn follow_netmaps(self: Arc<Self>, end: CancellationToken) {
        let mut netmaps = self.context.netmaps();
        let mut tidying = tokio::time::interval(HttpConnections::TIDY_PERIOD);
        loop {
            tokio::select! {
                biased;
                () = end.cancelled() => return,
                _ = tidying.tick() => self.http.tidy(&self.context.view()),
                changed = netmaps.changed() => match changed {
                    Ok(()) => self.backends.follow(&netmaps.borrow_and_update().clone()),
                    Err(_) => return end.cancelled().await,
                },
            }
        }
    }

    /// Starts a task on the runtime of the link that it will use: a request then wakes no other thread.
    fn spawn_on(&self, runtime: Option<Handle>, serving: impl Future<Output = ()> + Send + 'static) {
        match runtime {
            Some(runtime) => self.context.tasks.spawn_on(serving, &runtime),
            None => self.context.tasks.spawn(serving),
        };
    }

    /// Returns the runtime of the link to the site of a service.
    fn runtime_for(&self, service: &ServiceName) -> Option<Handle> {
        let view = self.context.view();
        self.context.peers.runtime(&view.presences.get(service)?.service_site)
    }

    async fn accept(self: &Arc<Self>, stop: &CancellationToken) {
        let options = &self.options;
        let policy = ListenPolicy {
            namespace: self.namespace.clone().map(|namespace| Arc::new(namespace) as Arc<dyn SocketBinder>),
            host_instead: options.presence_mode == PresenceMode::Auto,
            ports: options.ports.clone(),
            own_listeners: options.own_listeners.clone(),
        };
        let mut listeners = PresenceListeners::start(
            self.context.netmaps(),
            policy,
            self.context.metrics.clone(),
            self.listeners.clone(),
        );
        let starts = StartLimit::default();
        loop {
            let arrival = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                arrival = listeners.next() => arrival,
            };
            match arrival {
                PresenceEvent::Connection(accepted) => {
                    let runtime = self.runtime_for(&accepted.service);
                    let accepted = match &runtime {
                        Some(runtime) => accepted.bring(runtime),
                        None => Some(accepted),
                    };
                    let Some(accepted) = accepted else { continue };
                    let permit = tokio::select! {
                        biased;
                        () = stop.cancelled() => return,
                        permit = starts.permit() => permit,
                    };
                    self.spawn_on(runtime, permit.start(outbound::serve(self.clone(), accepted)));
                }
                PresenceEvent::Datagrams(opened) => {
                    let tasks = &self.context.tasks;
                    tasks.spawn(Box::pin(udp::serve_outbound(self.clone(), opened, tasks.clone())));
                }
            }
        }
    }
}
