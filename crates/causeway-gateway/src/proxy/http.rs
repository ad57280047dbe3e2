//! Services whose requests are read: HTTP and gRPC, from a client's connection to a backend's and back.
//!
//! A client's request is judged at both ends by method and path. Between gateways, requests of one subject share streams as
//! HTTP/2; what may become something else (WebSocket) has a stream of its own. The order below is the way of a request.

pub mod outbound;

pub mod inbound;

mod exchange;

mod extended;

mod connection;

mod counting;

mod client_socket;

mod channel_io;

mod route;

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

/// The connections of one gateway that wait for their next request.
#[derive(Default)]
pub struct HttpConnections {
    routes: channel::ChannelPools,
    yards: backend::BackendPools,
    /// Clients' connections, whether a request is on them or not.
    connections: Arc<AtomicUsize>,
    /// Those of them that are over a limit and wait to be told so.
    refused: Arc<AtomicUsize>,
}

/// So many at once are told in words that they are over a limit; more of them are reset.
const REFUSED_MAX: usize = 256;

/// Room for one client's connection, until it is dropped.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn among(taken: &Arc<AtomicUsize>, max: usize) -> Option<Place> {
        let place = Place(taken.clone());
        (place.0.fetch_add(1, Ordering::Relaxed) < max).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl HttpConnections {
    /// How often `tidy` is to be called.
    pub const TIDY_PERIOD: Duration = Duration::from_secs(15);

    fn place(&self, max: usize) -> Option<Place> {
        Place::among(&self.connections, max)
    }

    fn refused_place(&self) -> Option<Place> {
        Place::among(&self.refused, REFUSED_MAX)
    }

    /// Closes idle streams to other sites, and busy ones with their last request.
    pub fn retire(&self) {
        self.routes.retire();
    }

    /// Closes connections that were not used for a while, or whose service is gone.
    pub fn tidy(&self, view: &NetmapView) {
        self.routes.tidy();
        self.yards.tidy(|service| view.services.contains_key(service));
    }
}
