//! Measures the selected path to a peer: the largest packet it carries, its round-trip time, its loss, whether it works at all.
//!
//! Probes (`peer_message`) are sealed like packets and padded to the size under test (RFC 8899). `path_selector`
//! selects the path. Time is an argument.

use std::time::{Duration, Instant};

use super::probe_history::ProbeHistory;
use super::probe_ids::ProbeIds;

/// The smallest MTU of IPv6, below which there is nothing to measure.
pub const MTU_MIN: usize = 1280;
/// Sizes between: common paths with PPPoE, tunnels and mobile networks.
const SIZES: [usize; 8] = [MTU_MIN, 1300, 1340, 1360, 1380, 1400, 1412, 1420];
const SIZES_MAX: usize = SIZES.len() + 1;
/// Number of repetitions of a probe, and their interval.
const TRIES: u32 = 3;
const PROBE_TIMEOUT: Duration = Duration::from_millis(300);
/// Checks because of a suspicion are at least this far apart.
const SUSPECT_PERIOD: Duration = Duration::from_millis(500);
/// The interval of checks while packets are sent.
const CHECK_PERIOD: Duration = Duration::from_secs(15);
/// The interval of checks of a path that does not work.
const DEAD_PERIOD: Duration = Duration::from_secs(2);
/// RFC 8899, 5.1.1: PMTU_RAISE_TIMER.
const RAISE_PERIOD: Duration = Duration::from_secs(600);

/// A path is in use for this time after a packet.
pub const USED_FOR: Duration = Duration::from_secs(20);
/// The longest probe: jumbo frames.
pub const PROBE_SIZE_MAX: usize = 9216;

/// A probe to send, padded to `size` bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PathProbe {
    pub id: u32,
    pub size: usize,
}

#[derive(Debug)]
pub struct PathMonitor {
    sizes: [usize; SIZES_MAX],
    /// The index of the largest size.
    top: usize,
    /// The index of the size in use.
    level: usize,
    test: Option<ProbeTest>,
    next_test: Instant,
    raise_after: Instant,
    ids: ProbeIds,
    is_dead: bool,
    round_trip: Option<Duration>,
    /// The time of the last check that `suspect` began.
    suspected: Option<Instant>,
    history: ProbeHistory,
}

#[derive(Debug)]
struct ProbeTest {
    index: usize,
    id: u32,
    tries: u32,
    sent: Instant,
}

impl PathMonitor {
    /// Begins with the largest size: it is right nearly always, and a wrong one is found out in a second.
    pub fn new(mtu_max: usize, now: Instant) -> PathMonitor {
        let mut sizes = [MTU_MIN; SIZES_MAX];
        let mut count = 0;
        for size in SIZES.into_iter().filter(|size| *size < mtu_max).chain([mtu_max.max(MTU_MIN)]) {
            sizes[count] = size;
            count += 1;
        }
        let top = count - 1;
        PathMonitor {
            sizes,
            top,
            level: top,
            test: None,
            next_test: now,
            raise_after: now,
            ids: ProbeIds::default(),
            is_dead: false,
            round_trip: None,
            suspected: None,
            history: ProbeHistory::default(),
        }
    }

    /// Begins anew on another path: its size is measured at once.
    pub fn handle_new_path(&mut self, mtu_max: usize, now: Instant) {
        *self = PathMonitor { ids: std::mem::take(&mut self.ids), ..PathMonitor::new(mtu_max, now) };
    }

    /// Returns the length of the longest packet that the path carries.
    pub fn mtu(&self) -> usize {
        self.sizes[self.level]
    }

    pub fn round_trip(&self) -> Option<Duration> {
        self.round_trip
    }

    /// Returns the lost probes in per cent. Probes of sizes that the path has not carried yet do not count.
    pub fn loss(&self) -> Option<u32> {
        self.history.loss()
    }

    /// Tells whether probes of the smallest size get no reply.
    pub fn is_dead(&self) -> bool {
        self.is_dead
    }

    /// Tells whether a probe is overdue: packets should take another path as well.
    pub fn is_doubtful(&self) -> bool {
        self.is_dead || self.test.as_ref().is_some_and(|test| test.tries > 1 && test.index <= self.level)
    }

    /// Checks at once whether the path works: packets got no answer for a while, or came by another path.
    pub fn suspect(&mut self, now: Instant) {
        let is_early = self.suspected.is_some_and(|last| now.duration_since(last) < SUSPECT_PERIOD);
        if self.test.is_none() && !self.is_dead && !is_early {
            self.suspected = Some(now);
            self.begin(0, now);
        }
    }

    /// Lowers the size after the kernel has refused a datagram.
    pub fn refused(&mut self, now: Instant) {
        if self.level > 0 {
            self.level -= 1;
            self.raise_after = now + RAISE_PERIOD;
        }
    }

    /// Returns the probe that is due. `is_used`: packets were exchanged lately, so that the path matters.
    pub fn handle_time(&mut self, now: Instant, is_used: bool) -> Option<PathProbe> {
        if let Some(test) = &mut self.test {
            if test.tries > 0 && now.duration_since(test.sent) < PROBE_TIMEOUT {
                return None;
            }
            if test.tries > 0 && test.index <= self.level {
                self.history.note(false);
            }
            if test.tries < TRIES {
                (test.tries, test.sent) = (test.tries + 1, now);
                let (id, size) = (test.id, self.sizes[test.index]);
                return Some(PathProbe { id, size });
            }
            let index = test.index;
            self.fail(index, now);
        }
        if self.test.is_none() && now >= self.next_test && (is_used || self.is_dead) {
            let index = match (self.is_dead, self.level < self.top && now >= self.raise_after) {
                (true, _) => 0,
                (false, true) => self.level + 1,
                (false, false) => self.level,
            };
            self.begin(index, now);
        }
        let test = self.test.as_mut().filter(|test| test.tries == 0)?;
        (test.tries, test.sent) = (1, now);
        Some(PathProbe { id: test.id, size: self.sizes[test.index] })
    }

    /// Takes a reply that came over the direct path.
    pub fn handle_reply(&mut self, id: u32, now: Instant) {
        let Some(test) = self.test.take_if(|test| test.id == id) else { return };
        if test.tries == 1 {
            self.round_trip = Some(now.duration_since(test.sent));
        }
        self.history.note(true);
        let was_dead = std::mem::take(&mut self.is_dead);
        self.level = self.level.max(test.index);
        let raises = self.level < self.top && now >= self.raise_after;
        self.next_test = if raises || was_dead { now } else { now + CHECK_PERIOD };
    }

    fn begin(&mut self, index: usize, now: Instant) {
        self.test = Some(ProbeTest { index, id: self.ids.next_id(), tries: 0, sent: now });
    }

    fn fail(&mut self, index: usize, now: Instant) {
        self.test = None;
        if index == 0 {
            self.is_dead = true;
            self.next_test = now + DEAD_PERIOD;
        } else if index > self.level {
            self.raise_after = now + RAISE_PERIOD;
            self.next_test = now + CHECK_PERIOD;
        } else {
            // The size in use no longer passes, or nothing does.
            self.level = 0;
            self.begin(0, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Runs a monitor on a path that carries packets up to a size, for a time.
    fn run(monitor: &mut PathMonitor, now: &mut Instant, seconds: u64, carries: usize) -> usize {
        let mut sent = 0;
        for _ in 0..seconds * 20 {
            if let Some(probe) = monitor.handle_time(*now, true) {
                sent += 1;
                if probe.size <= carries {
                    monitor.handle_reply(probe.id, *now + Duration::from_millis(7));
                }
            }
            *now += Duration::from_millis(50);
        }
        sent
    }

    #[test]
    fn the_size_follows_the_path_down_and_up() {
        let mut now = Instant::now();
        let mut monitor = PathMonitor::new(1420, now);
        run(&mut monitor, &mut now, 5, 1420);
        assert_eq!((monitor.mtu(), monitor.round_trip()), (1420, Some(Duration::from_millis(7))));
        run(&mut monitor, &mut now, 30, 1350);
        assert_eq!((monitor.mtu(), monitor.is_dead()), (1340, false));
        run(&mut monitor, &mut now, 300, 1420);
        assert_eq!(monitor.mtu(), 1340, "it is not tried again at once");
        run(&mut monitor, &mut now, 400, 1420);
        assert_eq!(monitor.mtu(), 1420);
    }

    #[test]
    fn a_path_that_carries_nothing_is_found_in_a_second_and_its_return_too() {
        let mut now = Instant::now();
        let mut monitor = PathMonitor::new(1420, now);
        run(&mut monitor, &mut now, 5, 1420);
        monitor.suspect(now);
        assert_eq!(monitor.loss(), Some(0));
        run(&mut monitor, &mut now, 1, 0);
        assert!(monitor.is_dead() && monitor.loss() > Some(0));
        run(&mut monitor, &mut now, 3, 1420);
        assert_eq!((monitor.is_dead(), monitor.mtu()), (false, 1420));
    }

    #[test]
    fn a_path_is_doubtful_after_the_first_probe_without_a_reply() {
        let mut now = Instant::now();
        let mut monitor = PathMonitor::new(1420, now);
        run(&mut monitor, &mut now, 5, 1420);
        monitor.suspect(now);
        assert!(monitor.handle_time(now, true).is_some() && !monitor.is_doubtful());
        now += PROBE_TIMEOUT;
        assert!(monitor.handle_time(now, true).is_some() && monitor.is_doubtful() && !monitor.is_dead());
        monitor.handle_new_path(1376, now);
        assert!(!monitor.is_doubtful());
        let probe = monitor.handle_time(now, true).unwrap();
        assert_eq!(probe.size, 1376, "the new path is measured at once");
    }

    #[test]
    fn an_unused_path_is_not_probed() {
        let now = Instant::now();
        let mut monitor = PathMonitor::new(1420, now);
        assert_eq!(monitor.handle_time(now + Duration::from_secs(100), false), None);
    }

    proptest! {
        #[test]
        fn every_path_above_the_minimum_ends_in_a_size_that_it_carries(carries in 1280_usize..1500, top in 1280_usize..9000) {
            let mut now = Instant::now();
            let mut monitor = PathMonitor::new(top, now);
            run(&mut monitor, &mut now, 60, carries);
            prop_assert!(monitor.mtu() <= carries && monitor.mtu() <= top && !monitor.is_dead());
        }
    }
}
