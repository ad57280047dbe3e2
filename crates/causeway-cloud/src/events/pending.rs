//! Occurrences that are not written yet: joins repetitions, and bounds how often the store is written to.
//!
//! Pure; the time is an argument. Each object may write a few events at once and then one in a while; all objects together have
//! a rate as well. Events that wait are joined with their repetitions, so a gateway that flaps costs one write in a while, with the
//! right count.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant};

use causeway_api::Time;
use causeway_api::events::Occurrence;

/// Events that wait. The next ones of other names are dropped.
const WAITING_MAX: usize = 1_024;
/// Of one object: this many at once, then one per period. client-go allows 25, then one in five minutes.
const OBJECT_BURST: f64 = 10.0;
const OBJECT_PERIOD: Duration = Duration::from_secs(15);
/// Of all objects. A fleet that connects is told by its first hundred gateways and by metrics.
const TOTAL_BURST: f64 = 100.0;
const TOTAL_PERIOD: Duration = Duration::from_millis(100);

/// Something that is to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Due {
    pub occurrence: Occurrence,
    pub first: Time,
    pub last: Time,
    pub count: i64,
}

#[derive(Default)]
pub struct Pending {
    /// By name, with the order in which they began to wait.
    waiting: BTreeMap<String, (u64, Due)>,
    began: u64,
    objects: HashMap<String, Bucket>,
    total: Option<Bucket>,
}

impl Pending {
    /// Adds an occurrence; false when there is no room.
    pub fn note(&mut self, occurrence: Occurrence, now: Time) -> bool {
        let name = occurrence.event_name();
        if let Some((_, due)) = self.waiting.get_mut(&name) {
            (due.count, due.last, due.occurrence) = (due.count.saturating_add(1), now, occurrence);
            return true;
        }
        if self.waiting.len() >= WAITING_MAX {
            return false;
        }
        self.began += 1;
        self.waiting.insert(name, (self.began, Due { occurrence, first: now, last: now, count: 1 }));
        true
    }

    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next that may be written now: of those the one that waits longest.
    pub fn next(&mut self, now: Instant) -> Option<Due> {
        let total = self.total.get_or_insert(Bucket::full(TOTAL_BURST, now));
        total.fill(TOTAL_BURST, TOTAL_PERIOD, now);
        if total.tokens < 1.0 {
            return None;
        }
        // A bucket that is full again is as good as none: only objects of the last minutes take room.
        self.objects.retain(|_, bucket| {
            bucket.fill(OBJECT_BURST, OBJECT_PERIOD, now);
            bucket.tokens < OBJECT_BURST
        });
        let may = |due: &Due| {
            self.objects.get(&due.occurrence.involved.uid).is_none_or(|bucket| bucket.tokens >= 1.0)
        };
        let ready = self.waiting.iter().filter(|(_, (_, due))| may(due));
        let name = ready.min_by_key(|(_, (began, _))| *began).map(|(name, _)| name.clone())?;
        let (_, due) = self.waiting.remove(&name)?;
        let uid = due.occurrence.involved.uid.clone();
        self.objects.entry(uid).or_insert(Bucket::full(OBJECT_BURST, now)).tokens -= 1.0;
        total.tokens -= 1.0;
        Some(due)
    }
}

/// A token bucket.
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    fn full(burst: f64, now: Instant) -> Bucket {
        Bucket { tokens: burst, at: now }
    }

    fn fill(&mut self, burst: f64, period: Duration, now: Instant) {
        let gained = now.saturating_duration_since(self.at).as_secs_f64() / period.as_secs_f64();
        (self.tokens, self.at) = ((self.tokens + gained).min(burst), now);
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::kinds::{EventType, ObjectReference};

    use super::*;

    fn occurrence(object: &str, reason: &str) -> Occurrence {
        Occurrence {
            involved: ObjectReference {
                uid: object.into(),
                name: object.into(),
                ..ObjectReference::default()
            },
            kind: EventType::Warning,
            reason: reason.into(),
            message: String::new(),
            action: "Connected".into(),
        }
    }

    fn written(pending: &mut Pending, now: Instant) -> Vec<(String, i64)> {
        let next = || pending.next(now).map(|due| (due.occurrence.involved.name, due.count));
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_gateway_that_flaps_is_counted_and_seldom_written() {
        let (mut pending, start) = (Pending::default(), Instant::now());
        let (mut writes, mut counted) = (0, 0);
        // Ten changes a second, for ten minutes.
        for tick in 0..6_000u32 {
            let now = start + Duration::from_millis(100) * tick;
            let reason = if tick % 2 == 0 { "Connected" } else { "Disconnected" };
            assert!(pending.note(occurrence("oslo", reason), Time::from_second(i64::from(tick) / 10)));
            for (_, count) in written(&mut pending, now) {
                (writes, counted) = (writes + 1, counted + count);
            }
        }
        assert!((40..=52).contains(&writes), "{writes} writes in 600 s");
        assert!(counted > 5_700, "{counted} of 6000 are told");
        let last: i64 =
            written(&mut pending, start + Duration::from_secs(3_600)).iter().map(|due| due.1).sum();
        assert_eq!(counted + last, 6_000, "and the rest when it is quiet");
    }

    #[test]
    fn a_noisy_object_does_not_hold_up_another() {
        let (mut pending, now) = (Pending::default(), Instant::now());
        for number in 0..50 {
            pending.note(occurrence("noisy", &format!("A{number:02}")), Time::from_second(0));
        }
        pending.note(occurrence("quiet", "Z"), Time::from_second(0));
        let names = written(&mut pending, now);
        assert!(names.contains(&("quiet".into(), 1)), "{names:?}");
        assert_eq!(names.len(), 11);
    }

    #[test]
    fn a_fleet_is_bounded_as_a_whole() {
        let (mut pending, now) = (Pending::default(), Instant::now());
        let taken = (0..20_000).filter(|number| {
            pending.note(occurrence(&format!("g{number}"), "Connected"), Time::from_second(0))
        });
        assert_eq!(taken.count(), WAITING_MAX);
        assert_eq!(written(&mut pending, now).len(), 100);
        assert_eq!(written(&mut pending, now).len(), 0);
        assert_eq!(written(&mut pending, now + Duration::from_secs(1)).len(), 10);
        assert_eq!(pending.objects.len(), 110);
        assert_eq!(written(&mut pending, now + Duration::from_secs(3_600)).len(), 100);
        assert_eq!(pending.objects.len(), 100, "of the others nothing is kept");
    }
}
