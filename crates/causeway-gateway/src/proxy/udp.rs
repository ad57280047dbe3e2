//! Forwards datagrams: a session for each client at a presence, over a stream of its own to the gateway of
//! the service.
//!
//! A session begins with a client's first datagram and ends when it was idle for a while: UDP has no other
//! end. The policies are checked as for connections, at the start and later. A full queue or table drops and
//! counts, as is usual for UDP; a refused client gets no reply. `table` and `refusals` decide from values,
//! `carry` forwards; the channel (`Flow`) carries datagrams over a link.

mod backend;
mod carry;
mod inbound;
mod outbound;
mod refusals;
mod table;

use std::time::Duration;

pub use backend::UdpBackends;
pub use inbound::serve as serve_inbound;
pub use outbound::serve as serve_outbound;
pub use table::UdpSessions;

/// Bounds on sessions.
#[derive(Clone, Debug)]
pub struct UdpOptions {
    /// The maximum number of sessions, over all presences. Each may hold a queue and a stream.
    pub sessions_max: usize,
    /// The idle timeout of a session without a reply.
    pub idle_timeout: Duration,
    /// The idle timeout of a session with traffic in both directions.
    pub settled_timeout: Duration,
    /// Datagrams of one client that wait for the stream to the service; further ones are dropped.
    pub queue_max: usize,
    pub queue_bytes_max: usize,
}

impl Default for UdpOptions {
    /// The timeouts are those of Linux connection tracking, 60 and 180 seconds, without its heuristic for
    /// streams: a client that works behind a NAT works here. A queue holds one burst of a few round trips.
    fn default() -> UdpOptions {
        UdpOptions {
            sessions_max: 16_384,
            idle_timeout: Duration::from_secs(60),
            settled_timeout: Duration::from_secs(180),
            queue_max: 64,
            queue_bytes_max: 128 * 1024,
        }
    }
}
