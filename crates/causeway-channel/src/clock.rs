//! Time as an argument, and the comparison of the clocks of two ends.
//!
//! Certificates are only as good as the clock that checks them, and edges often start with a wrong one. Both
//! times are therefore compared before anything else is exchanged, and a wrong clock is named.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Certificates begin this long before they are issued, so that an edge whose clock is a little behind can
/// use them at once. Ten minutes: far more than drift without NTP in a week, far less than a time zone.
pub const BACKDATE: Duration = Duration::from_secs(10 * 60);

/// An edge this far ahead would take fresh certificates for old ones. A day leaves a margin below the
/// ten days in which a certificate of thirty is renewed.
pub const AHEAD_MAX: Duration = Duration::from_secs(24 * 3600);

/// Differences above this are logged: more than any link delays, and a reason to check NTP.
pub const MENTION: Duration = Duration::from_secs(30);

/// Source of the time. Tests bring their own.
#[derive(Clone)]
pub struct Clock(Arc<dyn Fn() -> SystemTime + Send + Sync>);

impl Clock {
    pub fn system() -> Clock {
        Clock(Arc::new(SystemTime::now))
    }

    pub fn from_fn(now: impl Fn() -> SystemTime + Send + Sync + 'static) -> Clock {
        Clock(Arc::new(now))
    }

    pub fn now(&self) -> SystemTime {
        (self.0)()
    }
}

impl fmt::Debug for Clock {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Clock({})", UtcTimestamp(self.now()))
    }
}

/// Result of comparing the edge's clock with the cloud's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockSkew {
    Fine,
    /// Works, but an operator should check the clock.
    Noticeable,
    /// Certificates would not work: the edge must not continue before its clock is set.
    Unusable,
}

/// Compares the two clocks. The cloud's is taken as right, because it issues the certificates.
pub fn compare(edge: SystemTime, cloud: SystemTime) -> ClockSkew {
    let (distance, usable_max) = match edge.duration_since(cloud) {
        Ok(ahead) => (ahead, AHEAD_MAX),
        Err(behind) => (behind.duration(), BACKDATE),
    };
    if distance > usable_max {
        ClockSkew::Unusable
    } else if distance > MENTION {
        ClockSkew::Noticeable
    } else {
        ClockSkew::Fine
    }
}

/// Shows a moment as RFC 3339 in UTC, to the second.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct UtcTimestamp(pub SystemTime);

impl fmt::Display for UtcTimestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let second = jiff::Timestamp::from_second(unix_seconds(self.0)).unwrap_or(jiff::Timestamp::MAX);
        write!(formatter, "{second}")
    }
}

impl fmt::Debug for UtcTimestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

/// Returns whole seconds since 1970, as messages and records carry them. Times before that count as 1970.
pub fn unix_seconds(time: SystemTime) -> i64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs().min(i64::MAX as u64) as i64)
}

/// The reverse of `unix_seconds`. Numbers from a peer are bounded to the year 9999, where calendars end.
pub fn from_unix_seconds(seconds: i64) -> SystemTime {
    const YEAR_9999: i64 = 253_402_300_799;
    UNIX_EPOCH + Duration::from_secs(seconds.clamp(0, YEAR_9999) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_are_compared_by_what_certificates_can_bear() {
        let cloud = from_unix_seconds(1_800_000_000);
        let check = |edge: SystemTime, skew: ClockSkew| {
            assert_eq!(compare(edge, cloud), skew, "{}", UtcTimestamp(edge))
        };
        check(cloud, ClockSkew::Fine);
        check(cloud + MENTION, ClockSkew::Fine);
        check(cloud - MENTION, ClockSkew::Fine);
        check(cloud + Duration::from_secs(31), ClockSkew::Noticeable);
        check(cloud - BACKDATE, ClockSkew::Noticeable);
        check(cloud - BACKDATE - Duration::from_secs(1), ClockSkew::Unusable);
        check(cloud + AHEAD_MAX, ClockSkew::Noticeable);
        check(cloud + AHEAD_MAX + Duration::from_secs(1), ClockSkew::Unusable);
        check(UNIX_EPOCH, ClockSkew::Unusable);
    }

    #[test]
    fn times_of_a_peer_are_bounded() {
        for seconds in [i64::MIN, -1, 0, 1, i64::MAX] {
            let text = UtcTimestamp(from_unix_seconds(seconds)).to_string();
            assert!(text.ends_with('Z'), "{text}");
        }
        assert_eq!(unix_seconds(from_unix_seconds(1_800_000_000)), 1_800_000_000);
    }
}
