//! Over which time a fleet should come back that lost its sessions all at once.
//!
//! Edges are told while they are attached, because later nobody can tell them. Too short a time costs refusals, which
//! are cheap (`line`); too long a one keeps edges away from a cloud that has nothing to do.

use std::time::Duration;

/// A return is easier than a first visit, which is mostly what was seen: nothing has to be written for it.
const RETURN_EASE: u32 = 2;
/// Who holds up handshakes on purpose shall not send a fleet away for long.
const RETURN_SLOW_MAX: u32 = 8;

/// For so many sessions, at a port that is glad to take so many back in a second, and was seen to serve so many
/// newcomers a second.
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
