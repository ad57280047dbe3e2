//! Keeps a socket bound for every presence, in step with the netmap, and hands over who comes.
//!
//! Presences listen in the room where there is one; on the host where the address is the host's own; and on ports that the
//! configuration names, which needs no rights at all. What cannot be bound is said in a report and tried again: it is never
//! the end of anything else. `wanted` decides, the rest follows.

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

/// A client at a presence. The socket's own address is the presence's.
pub struct AcceptedClient {
    pub stream: TcpStream,
    pub client: SocketAddr,
    pub service: ServiceName,
    /// The broker of Kafka whose port this is.
    pub broker: Option<u16>,
}

impl AcceptedClient {
    /// Watched from there. None: it is broken already.
    pub fn bring(self, home: &Handle) -> Option<AcceptedClient> {
        let stream = causeway_channel::io_thread::bring(self.stream, home).ok()?;
        Some(AcceptedClient { stream, ..self })
    }
}

/// A presence that takes datagrams.
pub struct UdpPresence {
    pub socket: Arc<UdpSocket>,
    pub service: ServiceName,
    /// Cancelled when the presence is gone. The address is free for others when the socket is dropped.
    pub closed: CancellationToken,
}

pub enum PresenceEvent {
    Connection(AcceptedClient),
    Datagrams(UdpPresence),
}

/// Where presences may listen.
#[derive(Clone, Default)]
pub struct ListenPolicy {
    /// None: only the host's own addresses.
    pub room: Option<Arc<dyn SocketBinder>>,
    /// Listen on the host where no room can be made, instead of not at all.
    pub host_instead: bool,
    /// More addresses, by service; where there is no room, in place of the presence's own.
    pub ports: BTreeMap<ServiceName, SocketAddr>,
    /// Where presences that listen are registered: they are never dialled as backends.
    pub own_listeners: OwnListeners,
}

/// How it stands with the listeners.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ListenersReport {
    /// `room`, or `host`: then only the host's own addresses can be used.
    pub place: &'static str,
    pub listening: usize,
    pub troubles: Vec<ListenerProblem>,
    /// What does not keep anything from working here, but may keep other hosts away.
    pub hints: Vec<String>,
}

#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ListenerProblem {
    /// None: it concerns all of them.
    pub service: Option<String>,
    pub why: String,
}

/// Accepted and not yet taken; the kernel keeps the rest waiting.
const PENDING_MAX: usize = 256;
/// An address may become local, or free. Restarts are to be over in three seconds.
const RETRY: Duration = Duration::from_secs(1);

/// Everything that listens. Dropped, nothing does any more.
pub struct PresenceListeners {
    arrivals: mpsc::Receiver<PresenceEvent>,
    _keeper: AbortOnDropHandle<()>,
}

impl PresenceListeners {
    /// How it stands with them is said through `reporting`, as it changes.
    pub fn start(
        netmaps: watch::Receiver<Arc<NetmapView>>,
        places: ListenPolicy,
        figures: GatewayMetrics,
        reporting: watch::Sender<ListenersReport>,
    ) -> PresenceListeners {
        let (arriving, arrivals) = mpsc::channel(PENDING_MAX);
        let keeper = Keeper {
            places,
            host: HostBinder::default(),
            figures,
            arriving,
            reporting,
            bound: BTreeMap::new(),
        };
        let keeper = AbortOnDropHandle::new(tokio::spawn(keeper.run(netmaps)));
        PresenceListeners { arrivals, _keeper: keeper }
    }

    /// The next client, or the next presence for datagrams. May be cancelled.
    pub async fn next(&mut self) -> PresenceEvent {
        match self.arrivals.recv().await {
            Some(arrival) => arrival,
            // No netmap will ever come again: the role ends.
            None => std::future::pending().await,
        }
    }
}

struct Keeper {
    places: ListenPolicy,
    host: HostBinder,
    figures: GatewayMetrics,
    arriving: mpsc::Sender<PresenceEvent>,
    reporting: watch::Sender<ListenersReport>,
    bound: BTreeMap<ListenSocket, Bound>,
}

/// What is bound, until the guard is dropped.
struct Bound {
    tenant: ListenerOwner,
    guard: DropGuard,
    /// Who accepts its clients; for datagrams nobody here does.
    task: Option<JoinHandle<()>>,
    _own: OwnListener,
}

impl Bound {
    /// Returns when the address is free.
    async fn close(self) {
        drop(self.guard);
        if let Some(task) = self.task {
            let _ = task.await;
        }
    }
}

impl Keeper {
    async fn run(mut self, mut netmaps: watch::Receiver<Arc<NetmapView>>) {
        let mut room = self.places.room.as_ref().map(|room| room.state());
        loop {
            let view = netmaps.borrow_and_update().clone();
            let state = room.as_mut().map(|room| room.borrow_and_update().clone());
            let is_well = self.follow(&view, state).await;
            tokio::select! {
                biased;
                () = self.arriving.closed() => return,
                changed = netmaps.changed() => if changed.is_err() { return },
                () = changed(room.as_mut()) => {}
                () = tokio::time::sleep(RETRY), if !is_well => {}
            }
        }
    }

    /// Binds what is wanted and not bound. Running it twice changes nothing. Returns whether all that is wanted is there.
    async fn follow(&mut self, view: &NetmapView, room: Option<BinderState>) -> bool {
        let place = match &room {
            Some(BinderState::Impossible { .. }) if self.places.host_instead => ListenScope::Host,
            Some(_) => ListenScope::Room,
            None => ListenScope::Host,
        };
        let wanted = wanted(view, place, &self.places.ports);
        let gone = self.bound.extract_if(.., |spot, bound| wanted.get(spot) != Some(&bound.tenant));
        for (_, bound) in gone.collect::<Vec<_>>() {
            bound.close().await;
        }
        let mut report = ListenersReport { place: place.word(), ..ListenersReport::default() };
        report.take(room.as_ref());
        for (spot, tenant) in &wanted {
            if self.bound.contains_key(spot) {
                continue;
            }
            let service = &tenant.service;
            match self.bind(spot, tenant).await {
                Ok(bound) => {
                    tracing::info!(%service, address = %spot.address, place = spot.door.word(), "a presence listens");
                    self.bound.insert(*spot, bound);
                }
                // The room's own report says why.
                Err(BinderError::NotOpen) => {}
                Err(error) => report.add(service, &error, place),
            }
        }
        report.listening = self.bound.len();
        self.figures.unbound.set((wanted.len() - self.bound.len()) as i64);
        let is_well = report.listening == wanted.len();
        self.publish(report);
        is_well
    }

    async fn bind(&self, spot: &ListenSocket, tenant: &ListenerOwner) -> Result<Bound, BinderError> {
        let place: &dyn SocketBinder = match (spot.door, &self.places.room) {
            (ListenScope::Room, Some(room)) => room.as_ref(),
            _ => &self.host,
        };
        let address = spot.address;
        let closed = CancellationToken::new();
        let bound_at = |found: std::io::Result<SocketAddr>| found.unwrap_or(address);
        let (task, bound) = match spot.transport {
            ListenTransport::Tcp => {
                let listener = TcpListener::from_std(place.listen(address).await?);
                let listener = listener.map_err(|source| BinderError::of(address, source))?;
                let bound = bound_at(listener.local_addr());
                let (arriving, figures) = (self.arriving.clone(), self.figures.clone());
                let accepting = accept::run(listener, tenant.clone(), arriving, figures, closed.clone());
                (Some(tokio::spawn(accepting)), bound)
            }
            ListenTransport::Udp => {
                let socket = UdpSocket::from_std(place.bind_udp(address).await?);
                let socket = Arc::new(socket.map_err(|source| BinderError::of(address, source))?);
                let bound = bound_at(socket.local_addr());
                let opened = UdpPresence { socket, service: tenant.service.clone(), closed: closed.clone() };
                // It fails only when nobody listens any more.
                let _ = self.arriving.send(PresenceEvent::Datagrams(opened)).await;
                (None, bound)
            }
        };
        let transport = match spot.transport {
            ListenTransport::Tcp => dial::Transport::Tcp,
            ListenTransport::Udp => dial::Transport::Udp,
        };
        let own = self.places.own_listeners.register("presence", transport, bound);
        Ok(Bound { tenant: tenant.clone(), guard: closed.drop_guard(), task, _own: own })
    }

    /// Says what is new, once.
    fn publish(&self, report: ListenersReport) {
        self.reporting.send_if_modified(|known| {
            for ListenerProblem { service, why } in
                report.troubles.iter().filter(|it| !known.troubles.contains(it))
            {
                // What concerns all was said by the place.
                if let Some(service) = service {
                    tracing::warn!(%service, why, "a presence cannot listen; it is tried again");
                }
            }
            let is_new = *known != report;
            *known = report;
            is_new
        });
    }
}

impl ListenersReport {
    fn take(&mut self, room: Option<&BinderState>) {
        match room {
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

    fn add(&mut self, service: &ServiceName, error: &BinderError, place: ListenScope) {
        let mut why = in_words(error);
        if let (BinderError::NotLocal { .. }, ListenScope::Host) = (error, place) {
            why.push_str(
                "; give the host this address, name a port for the service, or let this program make a room",
            );
        }
        self.troubles.push(ListenerProblem { service: Some(service.to_string()), why });
    }
}

async fn changed(room: Option<&mut watch::Receiver<BinderState>>) {
    if let Some(room) = room
        && room.changed().await.is_ok()
    {
        return;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests;
