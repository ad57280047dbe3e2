//! One connection that carries requests, at either end of a crossing: what is on its way on it, and when it must end.
//!
//! Requests are judged when they come. When a netmap arrives, those on their way are judged again, and one that may not go
//! on takes its connection with it. A connection on which nothing moves is closed. Limits of connections are `counting`'s matter.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use causeway_channel::link::ResetCode;
use causeway_netmap::NetmapView;
use tokio::task::JoinSet;

use super::channel_io::StreamEndNote;
use super::counting::ConnectionCount;
use super::route;
use crate::connection_record::AdmittedAccess;
use crate::limits::LimitTable;
use crate::live::{AccessRequest, CutReason, LiveConnection};
use crate::peers::BoxedFuture;
use crate::policy::PolicyRefusal;
use crate::proxy::Proxy;

/// Ends the tunnels of a connection when its task is dropped.
struct Tunnels<'a>(&'a HttpConnection);

impl Drop for Tunnels<'_> {
    fn drop(&mut self) {
        let tunnels = self.0.tunnels.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(tunnels);
    }
}

/// Shared by the connection's task, its socket and its requests.
pub struct HttpConnection {
    begun: Instant,
    /// In milliseconds since the beginning.
    moved: AtomicU64,
    flights: Mutex<RequestsInFlight>,
    tunnel: Mutex<Option<BoxedFuture<'static, ()>>>,
    /// Streams of HTTP/2 that became tunnels, beside the requests. Made with the first.
    tunnels: Mutex<Option<JoinSet<()>>>,
    /// Several requests at once: HTTP/2.
    multiplexed: AtomicBool,
    /// The head that was read last has a length and a transfer encoding.
    two_lengths: AtomicBool,
    origin: ConnectionOrigin,
}

/// Whose connection it is.
pub enum ConnectionOrigin {
    /// A client's, under the limits of connections.
    Client(ConnectionCount),
    /// Another gateway's, over a stream: a cut is told with its reason.
    Gateway(Arc<StreamEndNote>),
}

#[derive(Default)]
struct RequestsInFlight {
    next: u64,
    all: HashMap<u64, RequestInFlight>,
}

/// A request on its way.
struct RequestInFlight {
    entry: Arc<LiveConnection>,
    method: String,
    path: String,
}

/// Takes the request off its connection when it is dropped.
pub struct RequestGuard {
    connection: Arc<HttpConnection>,
    id: u64,
}

impl RequestGuard {
    /// What the other gateway gave as its reason, when its stream was given up.
    pub fn heard(&self) -> Option<ResetCode> {
        match &self.connection.origin {
            ConnectionOrigin::Gateway(note) => note.heard(),
            ConnectionOrigin::Client(_) => None,
        }
    }

    /// What the other gateway is told when its stream is dropped.
    pub fn say(&self, code: ResetCode) {
        if let ConnectionOrigin::Gateway(note) = &self.connection.origin {
            note.say(code);
        }
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.connection.flights().all.remove(&self.id);
        self.connection.touch();
    }
}

impl HttpConnection {
    pub fn new(origin: ConnectionOrigin) -> Arc<HttpConnection> {
        Arc::new(HttpConnection {
            begun: Instant::now(),
            moved: AtomicU64::new(0),
            flights: Mutex::default(),
            tunnel: Mutex::default(),
            tunnels: Mutex::default(),
            multiplexed: AtomicBool::new(false),
            two_lengths: AtomicBool::new(false),
            origin,
        })
    }

    /// A request sets out. From now on it is judged with every netmap.
    pub fn board(self: &Arc<Self>, entry: Arc<LiveConnection>, method: &str, path: &str) -> RequestGuard {
        let mut flights = self.flights();
        let id = flights.next;
        flights.next += 1;
        flights.all.insert(id, RequestInFlight { entry, method: method.to_owned(), path: path.to_owned() });
        RequestGuard { connection: self.clone(), id }
    }

    /// Counts a client's connection for what a request wants.
    pub fn count(
        &self,
        proxy: &Proxy,
        claim: &AccessRequest,
        admitted: &AdmittedAccess,
    ) -> Result<(), PolicyRefusal> {
        match &self.origin {
            ConnectionOrigin::Client(counting) => {
                counting.count(&proxy.context.limits, claim, &admitted.who, &admitted.permit)
            }
            // It carries the requests of many connections, which were counted where they came in.
            ConnectionOrigin::Gateway(_) => Ok(()),
        }
    }

    /// What the connection becomes after its last response.
    pub fn become_tunnel(&self, tunnel: BoxedFuture<'static, ()>) {
        *self.tunnel.lock().unwrap_or_else(PoisonError::into_inner) = Some(tunnel);
    }

    /// What one stream of the connection becomes. It ends with the connection.
    pub fn carry_tunnel(&self, tunnel: BoxedFuture<'static, ()>) {
        let mut tunnels = self.tunnels.lock().unwrap_or_else(PoisonError::into_inner);
        let tunnels = tunnels.get_or_insert_default();
        while tunnels.try_join_next().is_some() {}
        tunnels.spawn(tunnel);
    }

    /// Bytes moved on the socket.
    pub fn touch(&self) {
        self.moved.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    pub fn is_waiting(&self) -> bool {
        !self.multiplexed.load(Ordering::Relaxed) && self.flights().all.is_empty()
    }

    pub fn set_multiplexed(&self) {
        self.multiplexed.store(true, Ordering::Relaxed);
    }

    pub fn set_two_lengths(&self) {
        self.two_lengths.store(true, Ordering::Relaxed);
    }

    pub fn take_two_lengths(&self) -> bool {
        self.two_lengths.swap(false, Ordering::Relaxed)
    }

    /// Drives the connection, then what it became, until it ends, may not go on, or is idle for too long.
    pub async fn hold(&self, proxy: &Proxy, keep_alive: Duration, serving: impl Future<Output = ()>) {
        // They hold the connection, and it holds them: they go whatever happens to this task.
        let _tunnels = Tunnels(self);
        let mut whole = pin!(async {
            serving.await;
            let tunnel = self.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(tunnel) = tunnel {
                tunnel.await;
            }
        });
        let mut netmaps = proxy.context.netmaps();
        let mut follows = true;
        let mut idle = pin!(tokio::time::sleep(keep_alive));
        loop {
            tokio::select! {
                biased;
                changed = netmaps.changed(), if follows => {
                    follows = changed.is_ok();
                    let view = netmaps.borrow_and_update().clone();
                    if self.judge(&view, &proxy.context.limits) {
                        return;
                    }
                }
                () = &mut whole => return,
                () = &mut idle => {
                    let patience = match self.flights().all.is_empty() {
                        true => keep_alive,
                        false => proxy.options.idle_timeout,
                    };
                    let quiet = self.begun.elapsed().saturating_sub(self.moved());
                    if quiet >= patience {
                        return;
                    }
                    // Looked at again when the shorter of the two could have passed.
                    let wait = patience.min(keep_alive).saturating_sub(quiet).max(Duration::from_secs(1));
                    idle.as_mut().reset(tokio::time::Instant::now() + wait);
                }
            }
        }
    }

    /// Judges what is on its way. True: something may not go on.
    fn judge(&self, view: &NetmapView, limits: &LimitTable) -> bool {
        let mut cut = match &self.origin {
            ConnectionOrigin::Client(counting) => counting.renew(limits, view).is_err(),
            // Whoever was cut before we looked has left the flights, and the word why.
            ConnectionOrigin::Gateway(note) => note.is_saying(),
        };
        for flight in self.flights().all.values() {
            if let Err(refusal) = route::holds(view, &flight.entry.claim, &flight.method, &flight.path) {
                if let ConnectionOrigin::Gateway(note) = &self.origin {
                    note.say(ResetCode::Revoked);
                }
                flight.entry.end(CutReason::Revoked(refusal));
                cut = true;
            }
        }
        cut
    }

    fn moved(&self) -> Duration {
        Duration::from_millis(self.moved.load(Ordering::Relaxed))
    }

    fn flights(&self) -> MutexGuard<'_, RequestsInFlight> {
        self.flights.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
