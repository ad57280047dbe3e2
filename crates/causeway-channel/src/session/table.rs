//! Table of connected gateways: at most one current session per gateway, and old ones that may finish.
//!
//! A session with a higher epoch becomes the current one; the previous session lingers for its open streams,
//! and becomes current again when the newer one ends first: an edge that tries another transport and gives it
//! up continues with the old session. Removing a session by its number never affects another one. Sessions of
//! an earlier process of the gateway do not linger: that process is gone, so nothing can finish there. Links
//! are kept by the driver.

use std::collections::HashMap;
use std::hash::Hash;

/// An edge that changes sessions faster than its old links end is bounded: the oldest is closed first.
const LINGERING_MAX: usize = 4;

/// The sessions of one replica. `K` identifies a gateway, `S` is the driver's data of a session.
#[derive(Debug)]
pub struct SessionTable<K, S> {
    gateways: HashMap<K, Gateway<S>>,
    next: u64,
    sessions: usize,
    sessions_max: usize,
}

/// Identifies one process of a gateway; see `Hello::instance`.
pub type Instance = u128;

/// One session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionEntry<S> {
    /// Unique in this replica since it started.
    pub number: u64,
    pub epoch: u64,
    /// The process that holds it; `None` when the edge does not name it.
    pub instance: Option<Instance>,
    pub session: S,
}

/// Returns whether two sessions of one gateway are known to belong to different processes.
pub fn is_other_process(old: Option<Instance>, new: Option<Instance>) -> bool {
    old.zip(new).is_some_and(|(old, new)| old != new)
}

#[derive(Debug)]
struct Gateway<S> {
    current: Option<SessionEntry<S>>,
    /// Oldest first.
    lingering: Vec<SessionEntry<S>>,
    /// Highest epoch of all sessions still in the table.
    highest_epoch: u64,
}

/// Result of admitting a session.
#[derive(Debug, PartialEq, Eq)]
pub enum SessionAdmission<S> {
    Taken {
        number: u64,
        /// Was the current session; lingers now, until the driver removes it.
        superseded: Option<SessionEntry<S>>,
        /// Removed because too many linger: close it.
        evicted: Option<SessionEntry<S>>,
        /// Held by an earlier process of the gateway and removed: reset their streams at once. None of them
        /// is in `superseded` or `evicted`.
        orphaned: Vec<SessionEntry<S>>,
    },
    /// The gateway has a session with this epoch or a higher one.
    Older {
        current_epoch: u64,
    },
    Full,
}

/// Result of removing a session.
#[derive(Debug, PartialEq, Eq)]
pub enum RemovedSession<S> {
    /// It was the current session. `heir` is current now, and lingers no more; `None`: the gateway has no
    /// session.
    Current {
        session: S,
        heir: Option<SessionEntry<S>>,
    },
    Lingering(S),
    Unknown,
}

impl<K: Clone + Eq + Hash, S: Clone> SessionTable<K, S> {
    pub fn new(sessions_max: usize) -> SessionTable<K, S> {
        SessionTable { gateways: HashMap::new(), next: 1, sessions: 0, sessions_max }
    }

    /// Admits a session. `session` is called with its number.
    pub fn admit(
        &mut self,
        gateway: &K,
        epoch: u64,
        instance: Option<Instance>,
        session: impl FnOnce(u64) -> S,
    ) -> SessionAdmission<S> {
        let known = self.gateways.get(gateway);
        if let Some(current_epoch) =
            known.map(|known| known.highest_epoch).filter(|highest| *highest >= epoch)
        {
            return SessionAdmission::Older { current_epoch };
        }
        // A gateway with a session may always move to another link: it will close the old one.
        if self.sessions >= self.sessions_max && known.is_none() {
            return SessionAdmission::Full;
        }
        let number = self.next;
        self.next += 1;
        self.sessions += 1;
        let entry = SessionEntry { number, epoch, instance, session: session(number) };
        let gateway = self.gateways.entry(gateway.clone()).or_insert_with(Gateway::empty);
        gateway.highest_epoch = epoch;
        let orphaned = gateway.take_orphans(instance);
        let superseded = gateway.current.replace(entry);
        gateway.lingering.extend(superseded.clone());
        let evicted = (gateway.lingering.len() > LINGERING_MAX).then(|| gateway.lingering.remove(0));
        self.sessions -= usize::from(evicted.is_some()) + orphaned.len();
        SessionAdmission::Taken { number, superseded, evicted, orphaned }
    }

    /// A session has ended. Other sessions of the gateway stay.
    pub fn remove(&mut self, gateway: &K, number: u64) -> RemovedSession<S> {
        let Some(known) = self.gateways.get_mut(gateway) else { return RemovedSession::Unknown };
        let removed = known.remove(number);
        if !matches!(removed, RemovedSession::Unknown) {
            self.sessions -= 1;
        }
        if known.current.is_none() && known.lingering.is_empty() {
            self.gateways.remove(gateway);
        }
        removed
    }

    /// Returns the session that new streams to this gateway use.
    pub fn current(&self, gateway: &K) -> Option<&SessionEntry<S>> {
        self.gateways.get(gateway)?.current.as_ref()
    }

    /// Returns every gateway that has a session, with its current one.
    pub fn all_current(&self) -> impl Iterator<Item = (&K, &SessionEntry<S>)> {
        self.gateways.iter().filter_map(|(name, gateway)| Some((name, gateway.current.as_ref()?)))
    }

    /// Returns every session, lingering ones included.
    pub fn all(&self) -> impl Iterator<Item = (&K, &SessionEntry<S>)> {
        self.gateways.iter().flat_map(|(name, gateway)| gateway.entries().map(move |entry| (name, entry)))
    }

    /// Returns every session of one gateway, lingering ones included.
    pub fn all_of(&self, gateway: &K) -> impl Iterator<Item = &SessionEntry<S>> {
        self.gateways.get(gateway).into_iter().flat_map(Gateway::entries)
    }

    /// Returns the number of sessions, lingering ones included.
    pub fn len(&self) -> usize {
        self.sessions
    }

    pub fn is_empty(&self) -> bool {
        self.sessions == 0
    }
}

impl<S: Clone> Gateway<S> {
    fn empty() -> Gateway<S> {
        Gateway { current: None, lingering: Vec::new(), highest_epoch: 0 }
    }

    fn entries(&self) -> impl Iterator<Item = &SessionEntry<S>> {
        self.current.iter().chain(&self.lingering)
    }

    /// Removes the sessions of other processes than `instance`.
    fn take_orphans(&mut self, instance: Option<Instance>) -> Vec<SessionEntry<S>> {
        let is_orphan = |entry: &mut SessionEntry<S>| is_other_process(entry.instance, instance);
        let mut orphaned: Vec<SessionEntry<S>> = self.lingering.extract_if(.., is_orphan).collect();
        orphaned.extend(self.current.take_if(is_orphan));
        orphaned
    }

    fn remove(&mut self, number: u64) -> RemovedSession<S> {
        if let Some(entry) = self.current.take_if(|entry| entry.number == number) {
            self.current = self.lingering.pop();
            return RemovedSession::Current { session: entry.session, heir: self.current.clone() };
        }
        match self.lingering.iter().position(|entry| entry.number == number) {
            Some(place) => RemovedSession::Lingering(self.lingering.remove(place).session),
            None => RemovedSession::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Admits under an epoch; the session is called by its epoch, so that rows read well.
    fn admit(
        table: &mut SessionTable<&'static str, u64>,
        name: &'static str,
        epoch: u64,
    ) -> SessionAdmission<u64> {
        table.admit(&name, epoch, None, |_| epoch)
    }

    fn number(admission: &SessionAdmission<u64>) -> u64 {
        match admission {
            SessionAdmission::Taken { number, .. } => *number,
            other => unreachable!("{other:?}"),
        }
    }

    #[test]
    fn the_higher_epoch_has_the_seat() {
        let mut table = SessionTable::new(10);
        let first = admit(&mut table, "a", 5);
        let none = Vec::new();
        assert_eq!(
            first,
            SessionAdmission::Taken { number: 1, superseded: None, evicted: None, orphaned: none }
        );
        assert_eq!(admit(&mut table, "a", 4), SessionAdmission::Older { current_epoch: 5 });
        assert_eq!(admit(&mut table, "a", 5), SessionAdmission::Older { current_epoch: 5 });
        let second = admit(&mut table, "a", 6);
        let superseded = Some(SessionEntry { number: 1, epoch: 5, instance: None, session: 5 });
        assert_eq!(
            second,
            SessionAdmission::Taken { number: 2, superseded, evicted: None, orphaned: Vec::new() }
        );
        assert_eq!(table.current(&"a").unwrap().session, 6);
        assert_eq!(table.len(), 2, "the old one lingers");
        assert_eq!(table.all_current().count(), 1);
    }

    #[test]
    fn closing_an_old_session_never_disturbs_the_new_one() {
        let mut table = SessionTable::new(10);
        let old = number(&admit(&mut table, "a", 1));
        let new = number(&admit(&mut table, "a", 2));
        assert_eq!(table.remove(&"a", old), RemovedSession::Lingering(1));
        assert_eq!(table.remove(&"a", old), RemovedSession::Unknown, "twice is once");
        assert_eq!(table.remove(&"b", new), RemovedSession::Unknown, "of another gateway");
        assert_eq!(table.current(&"a").unwrap().number, new);
        assert_eq!(table.remove(&"a", new), RemovedSession::Current { session: 2, heir: None });
        assert!(table.is_empty() && table.current(&"a").is_none());
    }

    #[test]
    fn a_newer_session_that_ends_first_gives_the_seat_back() {
        let mut table = SessionTable::new(10);
        let old = number(&admit(&mut table, "a", 1));
        let new = number(&admit(&mut table, "a", 2));
        let heir = Some(SessionEntry { number: old, epoch: 1, instance: None, session: 1 });
        assert_eq!(table.remove(&"a", new), RemovedSession::Current { session: 2, heir: heir.clone() });
        assert_eq!(table.current(&"a"), heir.as_ref());
        assert_eq!(table.len(), 1);
        assert_eq!(table.remove(&"a", old), RemovedSession::Current { session: 1, heir: None });
        assert!(table.is_empty());
    }

    #[test]
    fn while_an_old_link_lingers_its_epoch_is_not_forgotten() {
        let mut table = SessionTable::new(10);
        admit(&mut table, "a", 1);
        let new = number(&admit(&mut table, "a", 9));
        table.remove(&"a", new);
        assert_eq!(admit(&mut table, "a", 5), SessionAdmission::Older { current_epoch: 9 });
        assert!(matches!(admit(&mut table, "a", 10), SessionAdmission::Taken { superseded: Some(_), .. }));
    }

    #[test]
    fn a_full_replica_takes_no_new_gateway_and_lets_the_old_ones_move() {
        let mut table = SessionTable::new(2);
        let first = number(&admit(&mut table, "a", 1));
        admit(&mut table, "b", 1);
        assert_eq!(admit(&mut table, "c", 1), SessionAdmission::Full);
        assert!(matches!(admit(&mut table, "a", 2), SessionAdmission::Taken { .. }));
        table.remove(&"a", first);
        assert_eq!(admit(&mut table, "c", 1), SessionAdmission::Full);
    }

    #[test]
    fn an_edge_that_moves_all_the_time_keeps_few_old_links() {
        let mut table = SessionTable::new(10);
        let evicted = |admission| match admission {
            SessionAdmission::Taken { evicted, .. } => evicted.map(|entry: SessionEntry<u64>| entry.session),
            other => unreachable!("{other:?}"),
        };
        for epoch in 1..=5 {
            assert_eq!(evicted(admit(&mut table, "a", epoch)), None);
        }
        assert_eq!(evicted(admit(&mut table, "a", 6)), Some(1));
        assert_eq!(evicted(admit(&mut table, "a", 7)), Some(2));
        assert_eq!(table.len(), 1 + LINGERING_MAX);
    }

    #[test]
    fn sessions_of_an_earlier_process_do_not_linger() {
        // Sessions as (instance, epoch); the last one is admitted after the rest. 0: the edge does not name
        // its process.
        let check = |before: &[u8], new: u8, lingers: &[u64], orphaned: &[u64]| {
            let named = |instance: u8| (instance > 0).then_some(Instance::from(instance));
            let mut table = SessionTable::new(10);
            for (index, instance) in before.iter().enumerate() {
                let epoch = index as u64 + 1;
                table.admit(&"a", epoch, named(*instance), |_| epoch);
            }
            let admission = table.admit(&"a", 9, named(new), |_| 9);
            let SessionAdmission::Taken { superseded, orphaned: ended, .. } = admission else {
                unreachable!()
            };
            let mut ended: Vec<u64> = ended.iter().map(|entry| entry.session).collect();
            ended.sort_unstable();
            let mut left: Vec<u64> = table.all().map(|(_, entry)| entry.session).collect();
            left.sort_unstable();
            let expected: Vec<u64> = lingers.iter().copied().chain([9]).collect();
            assert_eq!((left, ended), (expected, orphaned.to_vec()), "{before:?} then {new}");
            assert_eq!(superseded.map(|entry| entry.session), lingers.iter().copied().max());
            assert_eq!(table.len(), lingers.len() + 1);
        };
        check(&[], 1, &[], &[]);
        // A change of transport of one process.
        check(&[1], 1, &[1], &[]);
        check(&[1, 1], 1, &[1, 2], &[]);
        // A restart.
        check(&[1], 2, &[], &[1]);
        check(&[1, 1], 2, &[], &[1, 2]);
        // Edges that do not name their process: nothing is known.
        check(&[0], 2, &[1], &[]);
        check(&[1], 0, &[1], &[]);
        check(&[1, 0], 2, &[2], &[1]);
    }

    proptest! {
        #[test]
        fn counts_agree_and_the_seat_belongs_to_the_highest(
            steps in proptest::collection::vec((0..3usize, 0..12u64, any::<bool>()), 0..60),
        ) {
            let mut table = SessionTable::new(usize::MAX);
            let mut taken: Vec<(usize, u64)> = Vec::new();
            for (gateway, value, admits) in steps {
                let name = ["a", "b", "c"][gateway];
                if admits {
                    let before = table.current(&name).map(|entry| entry.epoch);
                    match admit(&mut table, name, value) {
                        SessionAdmission::Taken { number, .. } => {
                            prop_assert!(before.is_none_or(|epoch| epoch < value));
                            taken.push((gateway, number));
                        }
                        SessionAdmission::Older { current_epoch } => prop_assert!(current_epoch >= value),
                        SessionAdmission::Full => prop_assert!(false),
                    }
                } else if let Some((gateway, number)) = taken.get(value as usize).copied() {
                    let name = ["a", "b", "c"][gateway];
                    let before = table.current(&name).map(|entry| entry.number);
                    table.remove(&name, number);
                    let after = table.current(&name).map(|entry| entry.number);
                    match before == Some(number) {
                        true => prop_assert!(after.is_none_or(|heir| heir < number)),
                        false => prop_assert_eq!(after, before),
                    }
                }
                prop_assert_eq!(table.all().count(), table.len());
                for (peer, entry) in table.all() {
                    let current = table.current(peer);
                    prop_assert!(current.is_none_or(|current| current.epoch >= entry.epoch));
                }
            }
        }
    }
}
