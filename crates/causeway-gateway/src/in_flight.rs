//! Decides what a gateway that stops still waits for, and waits for it.
//!
//! Input: the crossings that are live when the stop is told. A request is waited for until it is answered; everything else
//! only while bytes move, because a tunnel does not know where its clients' work ends. Listeners are not touched here.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::live::{LiveConnection, LiveConnections};

/// A crossing on which nothing moved for this long is idle. Longer than a round trip between sites.
const QUIET: Duration = Duration::from_millis(500);
/// How often the crossings are looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Is there something to wait for? `is_answered`: the head of the response is out; `None` for what is no request.
pub fn is_in_flight(is_answered: Option<bool>, quiet: Duration) -> bool {
    is_answered == Some(false) || quiet < QUIET
}

/// Waits until what is live now has finished or is idle, at most until `end`. What begins meanwhile is not waited for.
pub async fn finish(live: &LiveConnections, end: Instant) {
    let mut waited_for = live.all();
    loop {
        let is_busy =
            |entry: &Arc<LiveConnection>| is_in_flight(entry.is_answered(), entry.meter.moved().elapsed());
        waited_for = live.still_live(waited_for).into_iter().filter(is_busy).collect();
        if waited_for.is_empty() || Instant::now() >= end {
            return;
        }
        sleep(LOOK).await;
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
        // A backend that thinks.
        check(Some(false), 5_000, true);
        // A body on its way, and a stream of events in which nothing happens.
        check(Some(true), 10, true);
        check(Some(true), 5_000, false);
        // A tunnel that moves, and one that is idle.
        check(None, 10, true);
        check(None, 5_000, false);
    }
}
