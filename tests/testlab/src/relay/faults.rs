//! Decides the fate of a datagram or a piece of a stream: when it arrives, how often, or never. Time is passed in.

use std::time::{Duration, Instant};

use crate::random::SeededRandom;

/// The time for which a datagram is held back so that later ones overtake it.
const HELD_BACK: Duration = Duration::from_millis(30);
/// The delay of a lost piece of a TCP connection: the least time after which Linux sends again.
const SENT_AGAIN_AFTER: Duration = Duration::from_millis(200);
/// The queue of a throttled line before it drops, in time: as the buffer of a common home router.
pub const QUEUE_MAX: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From those who dial us to the target.
    Up,
    Down,
}

/// Shares are from 0.0, never, to 1.0, always.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Faults {
    pub delay: Duration,
    /// Up to so much more delay. It does not change the order.
    pub jitter: Duration,
    pub loss: f64,
    pub duplicate: f64,
    pub reorder: f64,
    pub bytes_per_second: Option<u64>,
    /// Everything is swallowed. Streams wait; when the hole closes, they go on.
    pub black_hole: bool,
}

/// One direction of the line.
#[derive(Debug)]
pub struct Line {
    faults: Faults,
    random: SeededRandom,
    /// When a throttled line has sent all that waits.
    free_at: Option<Instant>,
    /// The last arrival that was promised; later datagrams do not arrive before it.
    last: Option<Instant>,
    /// Bytes that were put on the line and not lost.
    carried_bytes: u64,
}

impl Line {
    pub fn new(seed: u64) -> Line {
        Line {
            faults: Faults::default(),
            random: SeededRandom::new(seed),
            free_at: None,
            last: None,
            carried_bytes: 0,
        }
    }

    pub fn carried_bytes(&self) -> u64 {
        self.carried_bytes
    }

    pub fn set(&mut self, faults: Faults) {
        // A line that was slow owes nothing once it is fast.
        self.free_at = None;
        self.last = None;
        self.faults = faults;
    }

    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// When the copies of a datagram arrive: none when it is lost.
    pub fn datagram(&mut self, now: Instant, size_bytes: usize) -> Vec<Instant> {
        if self.faults.black_hole || self.random.chance(self.faults.loss) {
            return Vec::new();
        }
        let sent = match self.transmit(now, size_bytes) {
            sent if sent - now > QUEUE_MAX => {
                // A full buffer drops what comes last; the datagram took no time on the line after all.
                self.refund(size_bytes);
                return Vec::new();
            }
            sent => sent,
        };
        self.carried_bytes += size_bytes as u64;
        let arrives = sent + self.travel();
        if self.random.chance(self.faults.reorder) {
            return vec![arrives + HELD_BACK];
        }
        let arrives = self.last.map_or(arrives, |last| arrives.max(last));
        self.last = Some(arrives);
        let copies = if self.random.chance(self.faults.duplicate) { 2 } else { 1 };
        vec![arrives; copies]
    }

    /// When a piece of a stream arrives. The caller keeps the order, and stops reading while the line is behind.
    pub fn piece(&mut self, now: Instant, size_bytes: usize) -> Instant {
        self.carried_bytes += size_bytes as u64;
        let again = if self.random.chance(self.faults.loss) {
            SENT_AGAIN_AFTER + self.faults.delay
        } else {
            Duration::ZERO
        };
        self.transmit(now, size_bytes) + self.travel() + again
    }

    /// Returns the time that the queue needs to be sent.
    pub fn behind(&self, now: Instant) -> Duration {
        self.free_at.map_or(Duration::ZERO, |free| free.saturating_duration_since(now))
    }

    /// The moment at which the last byte has been put on the line.
    fn transmit(&mut self, now: Instant, size_bytes: usize) -> Instant {
        let Some(time) = self.time_for(size_bytes) else { return now };
        let begins = self.free_at.map_or(now, |free| free.max(now));
        self.free_at = Some(begins + time);
        begins + time
    }

    fn refund(&mut self, size_bytes: usize) {
        if let (Some(free), Some(time)) = (self.free_at, self.time_for(size_bytes)) {
            self.free_at = free.checked_sub(time);
        }
    }

    fn time_for(&self, size_bytes: usize) -> Option<Duration> {
        let speed = self.faults.bytes_per_second?.max(1);
        Some(Duration::from_secs_f64(size_bytes as f64 / speed as f64))
    }

    fn travel(&mut self) -> Duration {
        let jitter = u64::try_from(self.faults.jitter.as_micros()).unwrap_or(u64::MAX);
        match jitter {
            0 => self.faults.delay,
            most => self.faults.delay + Duration::from_micros(self.random.below(most)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn line(faults: Faults) -> (Line, Instant) {
        let mut line = Line::new(7);
        line.set(faults);
        (line, Instant::now())
    }

    #[test]
    fn a_good_line_delivers_at_once() {
        let (mut line, now) = line(Faults::default());
        assert_eq!(line.datagram(now, 1000), [now]);
        assert_eq!(line.piece(now, 1000), now);
    }

    #[test]
    fn loss_and_duplication_meet_their_share() {
        let (mut lossy, now) = line(Faults { loss: 0.05, ..Faults::default() });
        let lost = (0..10_000).filter(|_| lossy.datagram(now, 100).is_empty()).count();
        assert!((400..600).contains(&lost), "{lost} of 10000");
        let (mut double, now) = line(Faults { duplicate: 0.5, ..Faults::default() });
        let twice = (0..10_000).filter(|_| double.datagram(now, 100).len() == 2).count();
        assert!((4700..5300).contains(&twice), "{twice} of 10000");
    }

    #[test]
    fn jitter_keeps_the_order_and_reordering_breaks_it() {
        let arrivals = |faults: Faults| -> Vec<Instant> {
            let (mut line, now) = line(faults);
            (0..1000).flat_map(|n| line.datagram(now + n * MS, 100)).collect()
        };
        let jitter = Faults { delay: 50 * MS, jitter: 20 * MS, ..Faults::default() };
        assert!(arrivals(jitter.clone()).is_sorted());
        assert!(!arrivals(Faults { reorder: 0.01, ..jitter }).is_sorted());
    }

    #[test]
    fn the_same_seed_gives_the_same_fate() {
        let fate = |seed| -> Vec<usize> {
            let mut line = Line::new(seed);
            line.set(Faults { loss: 0.3, duplicate: 0.3, ..Faults::default() });
            let now = Instant::now();
            (0..100).map(|_| line.datagram(now, 100).len()).collect()
        };
        assert_eq!(fate(1), fate(1));
        assert_ne!(fate(1), fate(2));
    }

    #[test]
    fn a_throttled_line_spreads_what_it_takes_and_drops_what_its_buffer_cannot_hold() {
        let (mut line, now) = line(Faults { bytes_per_second: Some(10_000), ..Faults::default() });
        let arrivals: Vec<Instant> = (0..10).flat_map(|_| line.datagram(now, 1000)).collect();
        // A hundred milliseconds each, and half a second of buffer.
        assert_eq!(arrivals, (1..=5).map(|n| now + n * 100 * MS).collect::<Vec<_>>());
        assert_eq!(line.behind(now), 500 * MS);
        assert_eq!(line.behind(now + 600 * MS), Duration::ZERO);
    }

    #[test]
    fn a_lost_piece_of_a_stream_comes_late() {
        let (mut line, now) = line(Faults { loss: 1.0, delay: 100 * MS, ..Faults::default() });
        assert_eq!(line.piece(now, 1000), now + 400 * MS);
    }
}
