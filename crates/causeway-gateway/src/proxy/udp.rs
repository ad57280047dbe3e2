//! Carries datagrams: a session for each client at a presence, over a stream of its own to the gateway of the service.
//!
//! A session begins with a client's first datagram and ends when nothing was said for a while: UDP has no other end. Who may
//! begin one, and go on, is decided as for connections. Whatever is full drops and counts, as UDP does everywhere; who is
//! refused hears nothing. `table` and `refusals` decide from values, `carry` moves; how datagrams cross a link is the channel's
//! business (`Flow`).

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
    /// Clients that have a session, over all presences. Each may hold a queue and a stream.
    pub sessions_max: usize,
    /// How long a client may wait for its first answer, or say nothing when nobody answers.
    pub idle_timeout: Duration,
    /// How long nothing may be said once both sides have spoken.
    pub settled_timeout: Duration,
    /// Datagrams of one client that wait for the way to the service; the next is dropped.
    pub queue_max: usize,
    pub queue_bytes_max: usize,
}

impl Default for UdpOptions {
    /// The times are those of Linux' own connection tracking, of 60 and 180 seconds less its guess at what is a stream: who
    /// lives with a NAT lives with us. A queue holds one burst of a few round trips.
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
