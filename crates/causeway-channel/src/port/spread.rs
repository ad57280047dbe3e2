//! Computes the time over which a fleet should reconnect after all sessions were lost at once.
//!
//! Edges are told while they are attached, because afterwards there is no connection. Too short a time costs
//! refusals, which are cheap (`admission_backlog`); too long a time keeps edges away from an idle cloud.

use std::time::Duration;

/// A reconnect is cheaper than a first connection, on which the measured rate is mostly based: it writes
/// nothing to the store.
const RETURN_EASE: u32 = 2;
/// Bound of the slowdown: clients that delay handshakes on purpose must not keep a fleet away for long.
const RETURN_SLOW_MAX: u32 = 8;

/// Returns the time for `sessions`, at a port that is configured to take `returns_per_second` and was
/// measured to serve `served_per_second` new clients.
pub fn spread(sessions: usize, returns_per_second: u32, served_per_second: u32) -> Duration {
    let seen = served_per_second.saturating_mul(RETURN_EASE).max(returns_per_second / RETURN_SLOW_MAX);
    let rate = returns_per_second.min(seen);
    Duration::from_millis(sessions as u64 * 1000 / u64::from(rate.max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_spread_follows_what_is_served_within_bounds() {
        let check = |served, expected_ms| {
            assert_eq!(spread(7500, 750, served).as_millis(), expected_ms, "{served} a second were served");
        };
        check(2000, 10_000);
        check(375, 10_000);
        check(150, 25_000);
        check(1, 80_645);
    }
}
