//! Records the events of the edges of a fleet: attached since, failed, and refused.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use causeway_api::sync::MutexExt;
use causeway_channel::Link;
use causeway_channel::session::AttemptFailure;

/// The number of links whose bytes are measured; all are alike.
const WITNESSES: usize = 100;
/// The number of missing edges that are described.
const MISSING_SHOWN: usize = 10;

pub struct EdgeEvents {
    begin: Instant,
    pub idle: Idle,
    edges: Vec<EdgeState>,
    attached: AtomicUsize,
    netmaps: AtomicUsize,
    netmaps_refused: AtomicUsize,
    failures: Mutex<BTreeMap<String, usize>>,
    witnesses: Mutex<BTreeMap<usize, Link>>,
}

#[derive(Default)]
struct EdgeState {
    /// Microseconds after `begin`; zero while disconnected.
    since: AtomicU64,
    attempts: AtomicU32,
    refusals: AtomicU32,
    plan: Mutex<Option<Plan>>,
}

/// The retry plan of an edge after its last failure.
struct Plan {
    at: Instant,
    failure: AttemptFailure,
    next: Option<Instant>,
}

/// Counts of events at idle edges, since the beginning.
#[derive(Default)]
pub struct Idle {
    pings: AtomicU64,
    heard: AtomicU64,
    lost: AtomicU64,
}

/// The recovery of a fleet.
#[derive(Debug, Clone)]
pub struct Return {
    /// Sorted.
    pub times: Vec<Duration>,
    pub refused_once: usize,
    pub refused_more: usize,
    pub attempts: usize,
    pub failures: BTreeMap<String, usize>,
}

impl EdgeEvents {
    pub fn new(edges: usize) -> EdgeEvents {
        EdgeEvents {
            begin: Instant::now(),
            idle: Idle::default(),
            edges: (0..edges).map(|_| EdgeState::default()).collect(),
            attached: AtomicUsize::default(),
            netmaps: AtomicUsize::default(),
            netmaps_refused: AtomicUsize::default(),
            failures: Mutex::default(),
            witnesses: Mutex::default(),
        }
    }

    pub fn note_attempt(&self, number: usize) {
        self.edges[number].attempts.fetch_add(1, Ordering::Relaxed);
    }

    pub fn note_failed(&self, number: usize, word: &str, is_refusal: bool) {
        self.edges[number].refusals.fetch_add(is_refusal.into(), Ordering::Relaxed);
        *self.failures.lock_ignoring_poison().entry(word.to_owned()).or_default() += 1;
    }

    pub fn note_attached(&self, number: usize, link: &Link) {
        let now = self.begin.elapsed().as_micros().max(1) as u64;
        if self.edges[number].since.swap(now, Ordering::Relaxed) == 0 {
            self.attached.fetch_add(1, Ordering::Relaxed);
        }
        if number < WITNESSES {
            self.witnesses.lock_ignoring_poison().insert(number, link.clone());
        }
    }

    pub fn note_left(&self, number: usize) {
        if self.edges[number].since.swap(0, Ordering::Relaxed) != 0 {
            self.attached.fetch_sub(1, Ordering::Relaxed);
        }
        self.witnesses.lock_ignoring_poison().remove(&number);
    }

    /// Records when the edge tries again after a failure.
    pub fn note_plan(&self, number: usize, failure: AttemptFailure, next: Option<Instant>) {
        *self.edges[number].plan.lock_ignoring_poison() = Some(Plan { at: Instant::now(), failure, next });
    }

    pub fn note_netmap(&self, is_taken: bool) {
        let count = if is_taken { &self.netmaps } else { &self.netmaps_refused };
        count.fetch_add(1, Ordering::Relaxed);
    }

    pub fn attached(&self) -> usize {
        self.attached.load(Ordering::Relaxed)
    }

    /// The number of edges whose session began after `moment`.
    pub fn attached_since(&self, moment: Instant) -> usize {
        let least = moment.saturating_duration_since(self.begin).as_micros().max(1) as u64;
        self.edges.iter().filter(|edge| edge.since.load(Ordering::Relaxed) >= least).count()
    }

    /// Netmaps that were accepted, and refused.
    pub fn netmaps(&self) -> (usize, usize) {
        (self.netmaps.load(Ordering::Relaxed), self.netmaps_refused.load(Ordering::Relaxed))
    }

    /// Some of the first `count` edges that are not attached, with the reason.
    pub fn missing(&self, count: usize, moment: Instant) -> Vec<String> {
        let away = self.edges.iter().take(count).enumerate();
        let away = away.filter(|(_, edge)| edge.since.load(Ordering::Relaxed) == 0);
        let tell = |(number, edge): (usize, &EdgeState)| {
            let attempts = edge.attempts.load(Ordering::Relaxed);
            let plan = edge.plan.lock_ignoring_poison();
            let Some(Plan { at, failure, next }) = &*plan else {
                return format!("edge {number}: {attempts} attempts, none failed");
            };
            let (failed, next) = (
                at.saturating_duration_since(moment),
                next.map(|next| next.saturating_duration_since(moment)),
            );
            format!(
                "edge {number}: {attempts} attempts, the last failed after {failed:.1?} ({failure:?}), next after {next:.1?}"
            )
        };
        away.map(tell).take(MISSING_SHOWN).collect()
    }

    /// Bytes of both directions over the measured links, and the number of these links.
    pub fn witnessed(&self) -> (u64, usize) {
        let witnesses = self.witnesses.lock_ignoring_poison();
        let bytes = witnesses.values().map(|link| {
            let figures = link.stats();
            figures.sent_bytes + figures.received_bytes
        });
        (bytes.sum(), witnesses.len())
    }

    /// Resets the counts of attempts and refusals.
    pub fn forget(&self) {
        for edge in &self.edges {
            edge.attempts.store(0, Ordering::Relaxed);
            edge.refusals.store(0, Ordering::Relaxed);
        }
        self.failures.lock_ignoring_poison().clear();
    }

    /// The recovery after `moment`. Edges that have not lost their session yet are left out.
    pub fn returned(&self, moment: Instant) -> Return {
        let away = moment.saturating_duration_since(self.begin);
        let since = self.edges.iter().map(|edge| Duration::from_micros(edge.since.load(Ordering::Relaxed)));
        let mut times: Vec<Duration> = since.filter_map(|since| since.checked_sub(away)).collect();
        times.sort_unstable();
        let refusals = self.edges.iter().map(|edge| edge.refusals.load(Ordering::Relaxed));
        let (mut refused_once, mut refused_more) = (0, 0);
        for count in refusals {
            refused_once += usize::from(count == 1);
            refused_more += usize::from(count > 1);
        }
        let attempts = self.edges.iter().map(|edge| edge.attempts.load(Ordering::Relaxed) as usize).sum();
        Return {
            times,
            refused_once,
            refused_more,
            attempts,
            failures: self.failures.lock_ignoring_poison().clone(),
        }
    }
}

impl Idle {
    pub fn note_ping(&self) {
        self.pings.fetch_add(1, Ordering::Relaxed);
    }

    /// Records a message of the cloud.
    pub fn note_heard(&self) {
        self.heard.fetch_add(1, Ordering::Relaxed);
    }

    pub fn note_lost(&self) {
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Pings, messages of the cloud, and lost sessions.
    pub fn counts(&self) -> [u64; 3] {
        [&self.pings, &self.heard, &self.lost].map(|count| count.load(Ordering::Relaxed))
    }
}
