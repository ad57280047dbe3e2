//! Services whose requests are parsed: HTTP and gRPC, from the connection of a client to that of a backend
//! and back.
//!
//! A request is judged at both ends by method and path. Between gateways, requests of one subject share
//! streams as HTTP/2; a request that may be upgraded (WebSocket) has a stream of its own. The modules are in
//! the order in which a request passes them.

pub mod outbound;

pub mod inbound;

mod exchange;

mod extended;

mod connection;

mod counting;

mod client_socket;

pub(crate) mod headers;

mod forwarded;

mod upgrade;

mod request_target;

mod error_response;

mod body;

mod channel;

mod backend;

pub(crate) mod tls;

mod pool;

mod tunnel;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use causeway_netmap::NetmapView;

pub use exchange::ClientEntry;

/// The HTTP connections of one gateway: pools, and counts of client connections.
#[derive(Default)]
pub struct HttpConnections {
    channels: channel::ChannelPools,
    backends: backend::BackendPools,
    /// Client connections, idle or not.
    connections: Arc<AtomicUsize>,
    /// Client connections over a limit that wait for their response.
    refused: Arc<AtomicUsize>,
}

/// Connections over a limit that get a response at the same time; further ones are reset.
const REFUSED_MAX: usize = 256;

/// Counts one client connection until it is dropped.
struct ConnectionPermit(Arc<AtomicUsize>);

impl ConnectionPermit {
    fn take(taken: &Arc<AtomicUsize>, max: usize) -> Option<ConnectionPermit> {
        let permit = ConnectionPermit(taken.clone());
        (permit.0.fetch_add(1, Ordering::Relaxed) < max).then_some(permit)
    }
}

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HttpConnections {
    /// Interval of `tidy`.
    pub const TIDY_PERIOD: Duration = Duration::from_secs(15);

    fn permit(&self, max: usize) -> Option<ConnectionPermit> {
        ConnectionPermit::take(&self.connections, max)
    }

    fn refused_permit(&self) -> Option<ConnectionPermit> {
        ConnectionPermit::take(&self.refused, REFUSED_MAX)
    }

    /// Closes idle streams to other sites, and busy ones with their last request.
    pub fn retire(&self) {
        self.channels.retire();
    }

    /// Closes idle connections, and those of services that no longer exist.
    pub fn tidy(&self, view: &NetmapView) {
        self.channels.tidy();
        self.backends.tidy(|service| view.services.contains_key(service));
    }
}
