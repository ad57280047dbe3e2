//! Coalesces repeated records: the first ones pass, further ones are counted and reported once per window.
//!
//! Pure: time is an argument. Input: records with a key that says which of them are alike. Output: records to write now,
//! and, when a window ends, one record that stands for all that were held back. Nothing is dropped without being counted.
//! The state is bounded: records whose key does not fit into the table are counted in one common entry.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant, SystemTime};

/// Bounds on the records that pass and on the keys that are remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoalesceLimits {
    /// Records of one key that pass at once before further ones are held back.
    pub singles_per_key: u32,
    /// Records of all keys that pass at once; refilled with `singles_per_second`.
    pub singles_burst: u32,
    pub singles_per_second: u32,
    /// Records that were held back are reported after this time. It doubles while a key repeats, up to
    /// `window_max`.
    pub window: Duration,
    pub window_max: Duration,
    /// Keys remembered at a time.
    pub keys_max: usize,
}

impl Default for CoalesceLimits {
    /// A source that repeats itself writes five lines, then one a minute, later one in ten minutes. A source that invents
    /// new keys writes 500 lines, then one a second and 256 a minute: some 20 MB a day, where it could write as many in a minute.
    fn default() -> CoalesceLimits {
        CoalesceLimits {
            singles_per_key: 5,
            singles_burst: 500,
            singles_per_second: 1,
            window: Duration::from_secs(60),
            window_max: Duration::from_secs(600),
            keys_max: 256,
        }
    }
}

/// A record that can stand for several.
pub trait Absorb {
    /// Takes a later record of the same key in; afterwards it stands for both.
    fn absorb(&mut self, later: Self);
}

/// Stands for `count` records that were held back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coalesced<R> {
    pub record: R,
    pub count: u64,
    pub first: SystemTime,
    pub last: SystemTime,
    /// Of several keys that did not fit into the table.
    pub is_mixed: bool,
}

/// The records of one key since its window began.
#[derive(Debug)]
struct Run<R> {
    passed: u32,
    held: Option<Coalesced<R>>,
    window: Duration,
    ends: Instant,
}

#[derive(Debug)]
pub struct Coalescer<K, R> {
    limits: CoalesceLimits,
    runs: HashMap<K, Run<R>>,
    /// Records whose key does not fit into `runs`.
    mixed: Option<Run<R>>,
    /// Singles that may pass now, in thousandths.
    tokens: u64,
    refilled: Option<Instant>,
}

const THOUSANDTHS: u64 = 1000;

impl<K: Eq + Hash + Clone, R: Absorb> Coalescer<K, R> {
    pub fn new(limits: CoalesceLimits) -> Coalescer<K, R> {
        let tokens = u64::from(limits.singles_burst) * THOUSANDTHS;
        Coalescer { limits, runs: HashMap::new(), mixed: None, tokens, refilled: None }
    }

    /// Takes a record that happened at `time`. `Some`: write it now. `None`: it is held back and counted.
    pub fn handle(&mut self, key: K, record: R, time: SystemTime, now: Instant) -> Option<R> {
        self.refill(now);
        self.make_room(&key);
        let is_known = self.runs.contains_key(&key);
        if !is_known && self.runs.len() >= self.limits.keys_max {
            let run = self.mixed.get_or_insert_with(|| Run::new(&self.limits, now));
            run.hold(record, time, true);
            return None;
        }
        let run = self.runs.entry(key).or_insert_with(|| Run::new(&self.limits, now));
        let has_token = self.tokens >= THOUSANDTHS;
        if run.held.is_none() && run.passed < self.limits.singles_per_key && has_token {
            run.passed += 1;
            self.tokens -= THOUSANDTHS;
            return Some(record);
        }
        run.hold(record, time, false);
        None
    }

    /// Takes a record that must not pass on its own, whatever was before: its source is over its quota.
    pub fn hold(&mut self, key: K, record: R, time: SystemTime, now: Instant) {
        self.make_room(&key);
        let is_known = self.runs.contains_key(&key);
        if !is_known && self.runs.len() >= self.limits.keys_max {
            self.mixed.get_or_insert_with(|| Run::new(&self.limits, now)).hold(record, time, true);
            return;
        }
        self.runs.entry(key).or_insert_with(|| Run::new(&self.limits, now)).hold(record, time, false);
    }

    /// Returns the records that ended windows held back. Keys without a record for a whole window are
    /// removed.
    pub fn due(&mut self, now: Instant) -> Vec<Coalesced<R>> {
        let mut due = Vec::new();
        let window_max = self.limits.window_max;
        let mut ended = |run: &mut Run<R>| {
            if now < run.ends {
                return true;
            }
            let Some(held) = run.held.take() else { return false };
            due.push(held);
            // It goes on: nothing passes singly any more, and the next window is longer.
            run.passed = u32::MAX;
            run.window = (run.window * 2).min(window_max);
            run.ends = now + run.window;
            true
        };
        self.runs.retain(|_, run| ended(run));
        if let Some(run) = &mut self.mixed
            && !ended(run)
        {
            self.mixed = None;
        }
        due.sort_by_key(|held| held.first);
        due
    }

    /// Everything that is held back, at the end.
    pub fn drain(&mut self) -> Vec<Coalesced<R>> {
        let runs = self.runs.drain().map(|(_, run)| run).chain(self.mixed.take());
        let mut held: Vec<Coalesced<R>> = runs.filter_map(|run| run.held).collect();
        held.sort_by_key(|held| held.first);
        held
    }

    /// Keys that are remembered.
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.mixed.is_none()
    }

    /// A key without held records may be removed early: its next record passes singly again.
    fn make_room(&mut self, key: &K) {
        if self.runs.len() < self.limits.keys_max || self.runs.contains_key(key) {
            return;
        }
        // Keys with records held back stay. Of the idle ones, the key whose window ends first is removed: it
        // loses least.
        let quiet = self.runs.iter().filter(|(_, run)| run.held.is_none());
        let first = quiet.min_by_key(|(_, run)| run.ends).map(|(key, _)| key.clone());
        if let Some(first) = first {
            self.runs.remove(&first);
        }
    }

    fn refill(&mut self, now: Instant) {
        let since = now.saturating_duration_since(*self.refilled.get_or_insert(now));
        let gained = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
        let gained = gained.saturating_mul(u64::from(self.limits.singles_per_second));
        if gained > 0 {
            self.refilled = Some(now);
            let most = u64::from(self.limits.singles_burst) * THOUSANDTHS;
            self.tokens = self.tokens.saturating_add(gained).min(most);
        }
    }
}

impl<R: Absorb> Run<R> {
    fn new(limits: &CoalesceLimits, now: Instant) -> Run<R> {
        Run { passed: 0, held: None, window: limits.window, ends: now + limits.window }
    }

    fn hold(&mut self, record: R, time: SystemTime, is_mixed: bool) {
        match &mut self.held {
            Some(held) => {
                held.record.absorb(record);
                held.count += 1;
                held.last = held.last.max(time);
                held.first = held.first.min(time);
            }
            None => self.held = Some(Coalesced { record, count: 1, first: time, last: time, is_mixed }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of what a record stands for.
    #[derive(Clone, Debug, PartialEq, Eq)]
    struct Sum(u64);

    impl Absorb for Sum {
        fn absorb(&mut self, later: Sum) {
            self.0 += later.0;
        }
    }

    struct Lab {
        coalescer: Coalescer<String, Sum>,
        start: Instant,
    }

    impl Lab {
        fn new(limits: CoalesceLimits) -> Lab {
            Lab { coalescer: Coalescer::new(limits), start: Instant::now() }
        }

        fn handle(&mut self, key: &str, seconds: u64) -> bool {
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
            let now = self.start + Duration::from_secs(seconds);
            self.coalescer.handle(key.to_owned(), Sum(1), time, now).is_some()
        }

        fn due(&mut self, seconds: u64) -> Vec<(u64, u64, u64, u64)> {
            let seconds_of =
                |time: SystemTime| time.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
            let due = self.coalescer.due(self.start + Duration::from_secs(seconds));
            due.iter()
                .map(|held| (held.count, held.record.0, seconds_of(held.first), seconds_of(held.last)))
                .collect()
        }
    }

    #[test]
    fn the_first_pass_and_the_rest_is_told_as_a_count() {
        let mut lab = Lab::new(CoalesceLimits { singles_per_key: 2, ..CoalesceLimits::default() });
        let passed = (0..10).filter(|second| lab.handle("a", *second)).count();
        assert_eq!(passed, 2);
        assert!(lab.handle("b", 5), "another key is not concerned");
        assert_eq!(lab.due(59), []);
        assert_eq!(lab.due(60), [(8, 8, 2, 9)]);
        // It goes on: nothing passes singly, and the next window is twice as long.
        assert!(!lab.handle("a", 61));
        assert_eq!(lab.due(120), []);
        assert_eq!(lab.due(180), [(1, 1, 61, 61)]);
        // A whole window of silence: the next one is a first again.
        assert_eq!(lab.due(1000), []);
        assert!(lab.coalescer.is_empty());
        assert!(lab.handle("a", 1001));
    }

    #[test]
    fn a_source_that_invents_keys_is_bounded_and_every_record_is_counted() {
        let limits = CoalesceLimits { singles_burst: 100, keys_max: 50, ..CoalesceLimits::default() };
        let mut lab = Lab::new(limits);
        let (mut passed, mut lines, mut told) = (0, 0, 0);
        for second in 0..600u64 {
            for number in 0..100 {
                passed += u64::from(lab.handle(&format!("{second}.{number}"), second));
            }
            assert!(lab.coalescer.len() <= 50);
            for (count, sum, ..) in lab.due(second) {
                assert_eq!(count, sum);
                (lines, told) = (lines + 1, told + count);
            }
        }
        told += lab.coalescer.drain().iter().map(|held| held.count).sum::<u64>();
        assert_eq!(passed + told, 60_000, "nothing is dropped without being counted");
        assert!(passed + lines < 1500, "{passed} passed, {lines} were told");
        assert!(lab.coalescer.is_empty());
    }

    #[test]
    fn whoever_is_over_a_quota_passes_nothing_singly() {
        let mut lab = Lab::new(CoalesceLimits::default());
        let now = lab.start;
        for _ in 0..3 {
            lab.coalescer.hold("a".to_owned(), Sum(2), SystemTime::UNIX_EPOCH, now);
        }
        assert!(!lab.handle("a", 1));
        assert_eq!(lab.due(60), [(4, 7, 0, 1)]);
    }

    #[test]
    fn many_quiet_keys_do_not_hide_the_next_one() {
        let limits = CoalesceLimits { keys_max: 2, ..CoalesceLimits::default() };
        let mut lab = Lab::new(limits);
        assert!(["a", "b", "c", "d"].into_iter().all(|key| lab.handle(key, 0)), "each is a first");
        assert_eq!(lab.coalescer.len(), 2);
    }
}
