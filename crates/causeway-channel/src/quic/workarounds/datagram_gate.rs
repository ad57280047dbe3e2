//! Decides whether a datagram is sent as a QUIC datagram or on its stream.
//!
//! Works around: quinn sends every queued datagram before any stream data (quinn-rs/quinn#1773). A sender of
//! more datagrams than the link can carry would stop all streams, the control stream included. When datagrams
//! have been queued for long, or too many are queued, the gate closes until the queue is empty, and then for
//! as long again: streams get half of the time. Datagrams that find the gate closed are sent on the stream,
//! where scheduling is fair. Pure: the time and the queue length are arguments.
//!
//! Delete when quinn schedules datagrams and streams fairly, or has priorities for datagrams.

use std::time::{Duration, Instant};

/// Bound of queued bytes: 2 ms at 1 Gbit/s, a fifth of a second at 10 Mbit/s, as in a good router.
const WAITING_BYTES_MAX: usize = 256 * 1024;
/// Bound of the time during which the queue is never empty. A ping may take this much longer.
const WAITING_MAX: Duration = Duration::from_millis(100);
/// Bound of the closed time: a link that was down for a while must not block datagrams for as long.
const CLOSED_MAX: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::quic) enum DatagramGate {
    /// The queue is not empty since this time, if it is not empty.
    Open(Option<Instant>),
    /// Closed until the queue is empty; holds the time since which it was not.
    Emptying(Instant),
    Closed(Instant),
}

impl DatagramGate {
    /// Returns whether a datagram of `bytes` may be sent now, while `waiting` bytes are queued.
    pub(in crate::quic) fn admits(&mut self, bytes: usize, waiting: usize, now: Instant) -> bool {
        match *self {
            DatagramGate::Closed(until) if now < until => return false,
            DatagramGate::Emptying(_) if waiting > 0 => return false,
            DatagramGate::Emptying(since) => {
                let took = now.saturating_duration_since(since);
                *self = DatagramGate::Closed(now + took.min(CLOSED_MAX));
                return false;
            }
            DatagramGate::Closed(_) => *self = DatagramGate::Open(None),
            DatagramGate::Open(_) if waiting == 0 => *self = DatagramGate::Open(None),
            DatagramGate::Open(_) => {}
        }
        let since = match *self {
            DatagramGate::Open(Some(since)) => since,
            _ => now,
        };
        let is_too_much = waiting + bytes > WAITING_BYTES_MAX;
        if is_too_much || now.saturating_duration_since(since) > WAITING_MAX {
            *self = DatagramGate::Emptying(since);
            return false;
        }
        *self = DatagramGate::Open(Some(since));
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    #[test]
    fn whoever_floods_the_link_leaves_half_of_the_time_to_streams() {
        // A link that carries 1,250 bytes per millisecond, and a sender of ten datagrams of 1,250 bytes in
        // each.
        let (mut gate, start) = (DatagramGate::Open(None), Instant::now());
        let (mut waiting, mut for_streams, mut beside) = (0usize, 0, 0);
        for millisecond in 0..10_000u32 {
            for _ in 0..10 {
                if gate.admits(1250, waiting, start + millisecond * MILLISECOND) {
                    waiting += 1250;
                    beside += 1;
                }
            }
            assert!(waiting <= WAITING_BYTES_MAX);
            for_streams += u32::from(waiting == 0);
            waiting = waiting.saturating_sub(1250);
        }
        assert!((4_500..6_000).contains(&for_streams), "{for_streams}");
        assert!(beside > 3_500, "{beside}");
    }

    #[test]
    fn a_little_more_than_the_line_carries_does_not_silence_streams_for_long() {
        let (mut gate, start) = (DatagramGate::Open(None), Instant::now());
        let (mut waiting, mut silent, mut longest) = (0usize, 0, 0);
        for millisecond in 0..10_000u32 {
            if gate.admits(1260, waiting, start + millisecond * MILLISECOND) {
                waiting += 1260;
            }
            silent = if waiting == 0 { 0 } else { silent + 1 };
            longest = longest.max(silent);
            waiting = waiting.saturating_sub(1250);
        }
        assert!(longest < 120, "streams were silent for {longest} ms");
    }

    #[test]
    fn who_sends_less_than_the_line_carries_is_never_held_up() {
        let (mut gate, start) = (DatagramGate::Open(None), Instant::now());
        for burst in 0..100u32 {
            let now = start + burst * 50 * MILLISECOND;
            assert!((0..100).all(|sent| gate.admits(1250, sent * 1250, now)), "burst {burst}");
        }
    }
}
