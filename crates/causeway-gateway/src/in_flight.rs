//! Waits for the connections in flight of a gateway that stops.
//!
//! Input: the live connections at the time of the stop. A request is waited for until it has its response;
//! other connections only while bytes move, because a tunnel does not know when its client's work is
//! complete. Listeners are not affected.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::live::{LiveConnection, LiveConnections};

/// Time without a byte after which a connection is idle. Longer than a round trip between sites.
const QUIET: Duration = Duration::from_millis(500);
/// Interval of the check.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Returns whether to wait for a connection. `is_answered`: the head of the response is sent; `None` if it is
/// not a request.
pub fn is_in_flight(is_answered: Option<bool>, quiet: Duration) -> bool {
    is_answered == Some(false) || quiet < QUIET
}

/// Waits until the connections that are live now have finished or are idle, at most until `end`. Connections
/// that begin meanwhile are not waited for.
pub async fn finish(live: &LiveConnections, end: Instant) {
    let mut waited_for = live.all();
    loop {
        let is_busy =
            |entry: &Arc<LiveConnection>| is_in_flight(entry.is_answered(), entry.meter.moved().elapsed());
        waited_for = live.still_live(waited_for).into_iter().filter(is_busy).collect();
        if waited_for.is_empty() || Instant::now() >= end {
            return;
        }
        sleep(CHECK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_waited_for_and_tunnels_while_they_move() {
        let check = |is_answered, quiet_ms, expected| {
            let quiet = Duration::from_millis(quiet_ms);
            assert_eq!(is_in_flight(is_answered, quiet), expected, "{is_answered:?} {quiet_ms}");
        };
        // A slow backend.
        check(Some(false), 5_000, true);
        // A body in transfer, and an event stream without events.
        check(Some(true), 10, true);
        check(Some(true), 5_000, false);
        // A tunnel with traffic, and one that is idle.
        check(None, 10, true);
        check(None, 5_000, false);
    }
}
