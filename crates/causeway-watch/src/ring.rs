//! The newest events of one collection, shared by all its watchers.
//!
//! One writer pushes, any number of readers follow, each with its own position. The writer never waits: a
//! reader whose position has been overwritten gets `Lagged` and must start again. A waiting reader costs one
//! slot with a waker.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use causeway_api::Revision;
use causeway_api::sync::MutexExt;

/// The properties of an entry that the ring uses.
pub trait RingEntry {
    fn revision(&self) -> Revision;
    /// The key of an entry that has no revision of its own: it stands behind the entries of `revision`, every reader that starts
    /// at `revision` gets it, and a later one of the same key replaces it.
    fn local_key(&self) -> Option<&str> {
        None
    }
    /// Approximate memory of the entry.
    fn size_bytes(&self) -> usize;
}

pub struct Ring<T> {
    state: Mutex<State<T>>,
    entries_max: usize,
    bytes_max: usize,
}

struct State<T> {
    entries: VecDeque<Arc<T>>,
    bytes: usize,
    /// The position of the first entry; positions count up and are never reused.
    first: u64,
    /// All entries later than this revision are in the ring; a reader that starts earlier must catch up
    /// elsewhere.
    floor: Revision,
    /// All entries up to this revision have been pushed.
    progress: Revision,
    /// The position of the newest local entry of each key, and the positions of older ones. Both have at most as many entries as the ring.
    locals: HashMap<String, u64>,
    superseded: BTreeSet<u64>,
    closed: bool,
    wakers: Vec<Option<Waker>>,
    free_slots: Vec<usize>,
}

/// A reader with its position. Dropping it frees its slot.
pub struct Follower<T> {
    ring: Arc<Ring<T>>,
    next: u64,
    after: Revision,
    slot: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub enum FollowResult {
    /// Entries were moved to the reader.
    Some,
    /// The reader was too slow; the entries that it missed are gone.
    Lagged,
    /// The writer has ended.
    Closed,
}

impl<T: RingEntry> Ring<T> {
    /// Makes a ring for the entries after `start`.
    pub fn new(start: Revision, entries_max: usize, bytes_max: usize) -> Ring<T> {
        let state = State {
            entries: VecDeque::new(),
            bytes: 0,
            first: 0,
            floor: start,
            progress: start,
            locals: HashMap::new(),
            superseded: BTreeSet::new(),
            closed: false,
            wakers: Vec::new(),
            free_slots: Vec::new(),
        };
        Ring { state: Mutex::new(state), entries_max, bytes_max }
    }

    /// Appends entries in the order of their revisions, and wakes all readers once.
    pub fn push(&self, entries: impl IntoIterator<Item = Arc<T>>) {
        let mut state = self.lock();
        for entry in entries {
            state.progress = state.progress.max(entry.revision());
            state.supersede(&entry);
            state.bytes += entry.size_bytes();
            state.entries.push_back(entry);
            while state.entries.len() > self.entries_max
                || (state.bytes > self.bytes_max && state.entries.len() > 1)
            {
                state.drop_first();
            }
        }
        wake_all(state);
    }

    /// Marks everything up to `revision` as pushed, also when there were no entries.
    pub fn advance(&self, revision: Revision) {
        let mut state = self.lock();
        state.progress = state.progress.max(revision);
    }

    /// Ends the ring: no more entries follow, and readers end.
    pub fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        wake_all(state);
    }

    pub fn is_closed(&self) -> bool {
        self.lock().closed
    }

    pub fn floor(&self) -> Revision {
        self.lock().floor
    }

    /// Returns a reader of all entries later than `after`; `None` when the ring no longer holds all of them.
    pub fn follow(self: &Arc<Self>, after: Revision) -> Option<Follower<T>> {
        let mut state = self.lock();
        if after < state.floor {
            return None;
        }
        let skipped = state.entries.partition_point(|entry| match entry.local_key() {
            Some(_) => entry.revision() < after,
            None => entry.revision() <= after,
        });
        let next = state.first + skipped as u64;
        let slot = state.take_slot();
        drop(state);
        Some(Follower { ring: self.clone(), next, after, slot })
    }

    // A panic while the lock is held leaves a consistent state: every change is a few plain steps.
    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock_ignoring_poison()
    }
}

fn wake_all<T>(mut state: MutexGuard<'_, State<T>>) {
    let woken: Vec<Waker> = state.wakers.iter_mut().filter_map(Option::take).collect();
    // Woken readers take the lock at once; they should not queue for it while further readers are woken.
    drop(state);
    woken.into_iter().for_each(Waker::wake);
}

impl<T: RingEntry> State<T> {
    fn drop_first(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= entry.size_bytes();
            self.superseded.remove(&self.first);
            if let Some(key) = entry.local_key()
                && self.locals.get(key) == Some(&self.first)
            {
                self.locals.remove(key);
            }
            self.first += 1;
            self.floor = entry.revision();
        }
    }

    /// Marks earlier local entries of the same key, so that no reader sees an older state after a newer one.
    fn supersede(&mut self, entry: &Arc<T>) {
        let Some(key) = entry.local_key() else { return };
        let position = self.first + self.entries.len() as u64;
        if let Some(earlier) = self.locals.insert(key.to_owned(), position) {
            self.superseded.insert(earlier);
        }
    }

    fn take_slot(&mut self) -> usize {
        self.free_slots.pop().unwrap_or_else(|| {
            self.wakers.push(None);
            self.wakers.len() - 1
        })
    }
}

impl<T: RingEntry> Follower<T> {
    /// Moves new entries to `out`, up to `count_max` or until they hold `bytes_max`; waits when there are
    /// none.
    pub fn poll_entries(
        &mut self,
        context: &mut Context<'_>,
        count_max: usize,
        bytes_max: usize,
        out: &mut Vec<Arc<T>>,
    ) -> Poll<FollowResult> {
        let mut state = self.ring.lock();
        if self.next < state.first {
            return Poll::Ready(FollowResult::Lagged);
        }
        let skip = usize::try_from(self.next - state.first).unwrap_or(usize::MAX);
        // Entries up to `after` can still arrive when the reader's list was newer than the writer's last
        // push.
        let before = out.len();
        let (mut seen, mut bytes) = (0u64, 0);
        for entry in state.entries.iter().skip(skip) {
            let is_superseded = state.superseded.contains(&(self.next + seen));
            seen += 1;
            let is_later = match entry.local_key() {
                Some(_) => entry.revision() >= self.after && !is_superseded,
                None => entry.revision() > self.after,
            };
            if is_later {
                out.push(entry.clone());
                bytes += entry.size_bytes();
                if bytes >= bytes_max || out.len() - before >= count_max {
                    break;
                }
            }
        }
        self.next += seen;
        if out.len() > before {
            return Poll::Ready(FollowResult::Some);
        }
        if state.closed {
            return Poll::Ready(FollowResult::Closed);
        }
        match &mut state.wakers[self.slot] {
            Some(waker) if waker.will_wake(context.waker()) => {}
            slot => *slot = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Returns the revision up to which this reader has seen everything; `None` while entries wait for it.
    pub fn seen(&self) -> Option<Revision> {
        let state = self.ring.lock();
        (self.next == state.first + state.entries.len() as u64).then(|| state.progress.max(self.after))
    }
}

impl<T> Drop for Follower<T> {
    fn drop(&mut self) {
        let mut state = self.ring.state.lock_ignoring_poison();
        let waker = state.wakers[self.slot].take();
        state.free_slots.push(self.slot);
        drop(state);
        // Dropping a waker may drop its task, so it is done without the lock.
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    struct Number(u64);

    impl RingEntry for Number {
        fn revision(&self) -> Revision {
            Revision(self.0)
        }
        fn size_bytes(&self) -> usize {
            10
        }
    }

    #[derive(Default)]
    struct Counter(AtomicUsize);

    impl std::task::Wake for Counter {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn push(ring: &Ring<Number>, revisions: &[u64]) {
        ring.push(revisions.iter().map(|revision| Arc::new(Number(*revision))));
    }

    fn read(follower: &mut Follower<Number>) -> Result<Vec<u64>, Option<FollowResult>> {
        let mut out = Vec::new();
        match follower.poll_entries(&mut Context::from_waker(Waker::noop()), 100, 10_000, &mut out) {
            Poll::Ready(FollowResult::Some) => Ok(out.iter().map(|number| number.0).collect()),
            Poll::Ready(end) => Err(Some(end)),
            Poll::Pending => Err(None),
        }
    }

    #[test]
    fn a_reader_starts_where_it_left_off_and_misses_nothing() {
        let ring = Arc::new(Ring::new(Revision(10), 4, 1_000));
        push(&ring, &[11, 13, 13, 15]);
        let mut early = ring.follow(Revision(10)).unwrap();
        let mut late = ring.follow(Revision(13)).unwrap();
        let mut ahead = ring.follow(Revision(16)).unwrap();
        assert!(ring.follow(Revision(9)).is_none());
        assert_eq!(read(&mut early), Ok(vec![11, 13, 13, 15]));
        assert_eq!(read(&mut late), Ok(vec![15]));
        assert_eq!(late.seen(), Some(Revision(15)));
        push(&ring, &[16]);
        assert_eq!(read(&mut ahead), Err(None), "16 was already in its list");
        push(&ring, &[17]);
        assert_eq!(read(&mut ahead), Ok(vec![17]));
        assert_eq!(late.seen(), None);
        assert_eq!(read(&mut late), Ok(vec![16, 17]));
        ring.advance(Revision(20));
        assert_eq!(late.seen(), Some(Revision(20)));
    }

    struct Local(u64, &'static str, u64);

    impl RingEntry for Local {
        fn revision(&self) -> Revision {
            Revision(self.0)
        }
        fn local_key(&self) -> Option<&str> {
            (!self.1.is_empty()).then_some(self.1)
        }
        fn size_bytes(&self) -> usize {
            10
        }
    }

    #[test]
    fn a_local_entry_reaches_readers_of_its_revision_and_only_the_newest_of_a_key() {
        let ring = Arc::new(Ring::new(Revision(10), 5, 1_000));
        let push = |entry: Local| ring.push([Arc::new(entry)]);
        let read = |follower: &mut Follower<Local>| {
            let mut out = Vec::new();
            let _ = follower.poll_entries(&mut Context::from_waker(Waker::noop()), 100, 10_000, &mut out);
            out.iter().map(|entry| entry.2).collect::<Vec<_>>()
        };
        push(Local(11, "", 1));
        let mut early = ring.follow(Revision(11)).unwrap();
        push(Local(11, "a", 2));
        assert_eq!(read(&mut early), [2], "an entry without a revision of its own is seen");
        push(Local(11, "a", 3));
        push(Local(11, "b", 4));
        assert_eq!(read(&mut ring.follow(Revision(11)).unwrap()), [3, 4], "only the newest of a key");
        assert_eq!(read(&mut ring.follow(Revision(10)).unwrap()), [1, 3, 4]);
        push(Local(12, "", 5));
        assert_eq!(read(&mut early), [3, 4, 5]);
        assert_eq!(read(&mut ring.follow(Revision(12)).unwrap()), [0u64; 0]);
        for number in 6..12 {
            push(Local(12, "a", number));
        }
        let state = ring.lock();
        assert!(state.locals.len() <= 5 && state.superseded.len() <= 5, "bounded with the ring");
    }

    #[test]
    fn a_slow_reader_is_told_and_the_ring_stays_small() {
        let ring = Arc::new(Ring::new(Revision(0), 100, 45));
        let mut slow = ring.follow(Revision(0)).unwrap();
        push(&ring, &[1, 2, 3, 4]);
        let mut quick = ring.follow(Revision(3)).unwrap();
        push(&ring, &[5]);
        assert_eq!(read(&mut slow), Err(Some(FollowResult::Lagged)));
        assert_eq!(ring.floor(), Revision(1));
        assert_eq!(read(&mut quick), Ok(vec![4, 5]));
        ring.close();
        assert_eq!(read(&mut quick), Err(Some(FollowResult::Closed)));
    }

    #[test]
    fn a_push_wakes_everyone_who_waits_once() {
        let ring = Arc::new(Ring::new(Revision(0), 10, 1_000));
        let counter = Arc::new(Counter::default());
        let waker = Waker::from(counter.clone());
        let mut followers: Vec<_> = (0..5).map(|_| ring.follow(Revision(0)).unwrap()).collect();
        for follower in &mut followers {
            for _ in 0..3 {
                let polled =
                    follower.poll_entries(&mut Context::from_waker(&waker), 10, 10_000, &mut Vec::new());
                assert!(polled.is_pending());
            }
        }
        followers.truncate(3);
        push(&ring, &[1, 2]);
        assert_eq!(counter.0.load(Ordering::Relaxed), 3);
        assert_eq!(ring.lock().free_slots.len(), 2);
    }
}
