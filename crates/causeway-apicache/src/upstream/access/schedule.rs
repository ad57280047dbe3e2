//! Decides which answers about access are asked again, and when.
//!
//! Values only; times are arguments. Answers that a change of RBAC may have changed go first. Old answers are asked again in the order
//! of their delay, at a rate that does not depend on the number of sites. Sites take turns, so that one with many answers delays no other.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

use super::sharing::DecisionKey;
use crate::upstream::cluster::UpstreamIdentity;

/// The state of one decision that the schedule looks at.
#[derive(Clone, Copy, Debug)]
pub struct DecisionTimes {
    pub asked: Instant,
    /// The time after which it is asked again.
    pub period: Duration,
    /// The end of the caller's token.
    pub expires: Option<Instant>,
    /// An RBAC object that decides about it has changed since it was asked.
    pub is_affected: bool,
}

impl DecisionTimes {
    /// The time for which it is overdue; `None` when it is not.
    fn overdue(&self, now: Instant) -> Option<Duration> {
        let due = self.asked + self.period;
        // An expired token is asked about once.
        let expires = self.expires.filter(|end| *end > self.asked);
        // It goes before answers that only grow old.
        if expires.is_some_and(|end| end <= now) {
            return Some(Duration::MAX);
        }
        now.checked_duration_since(due)
    }
}

/// Chooses the decisions to ask again: all that are affected, up to `affected_max`, and up to `due_max` that are overdue. Each comes
/// with the site whose turn it takes.
pub fn choose<K, S: Copy + Eq + Hash>(
    decisions: impl Iterator<Item = (K, S, DecisionTimes)>,
    now: Instant,
    (affected_max, due_max): (usize, usize),
) -> Vec<K> {
    let (mut affected, mut due) = (Vec::new(), Vec::new());
    for (key, site, times) in decisions {
        if times.is_affected {
            affected.push((times.asked, site, key));
        } else if let Some(overdue) = times.overdue(now) {
            due.push((overdue, site, key));
        }
    }
    affected.sort_by_key(|(asked, ..)| *asked);
    due.sort_by_key(|(overdue, ..)| std::cmp::Reverse(*overdue));
    let affected = in_turns(affected.into_iter().map(|(_, site, key)| (site, key)), affected_max);
    affected.into_iter().chain(in_turns(due.into_iter().map(|(_, site, key)| (site, key)), due_max)).collect()
}

/// Returns the first one of each site, then the second ones, up to `max`.
fn in_turns<K, S: Copy + Eq + Hash>(ordered: impl Iterator<Item = (S, K)>, max: usize) -> Vec<K> {
    let mut before: HashMap<S, usize> = HashMap::new();
    let mut ranked: Vec<(usize, K)> = ordered
        .map(|(site, key)| {
            let rank = before.entry(site).or_default();
            *rank += 1;
            (*rank, key)
        })
        .collect();
    // Stable: those of one rank stay in their order.
    ranked.sort_by_key(|(rank, _)| *rank);
    ranked.into_iter().take(max).map(|(_, key)| key).collect()
}

// Turns in which every answer is asked again: five minutes with the pace of `access::REFRESH`.
const TURNS: usize = 600;
const DUE_MAX: usize = 50;

/// The overdue answers that are asked again in one turn, so that a lost right is noticed in time however many answers are held.
pub fn due_max(held: usize) -> usize {
    (held / TURNS).clamp(1, DUE_MAX)
}

// Without RBAC events an answer is as old as this at most, while the rate allows it.
const UNFOLLOWED: Duration = Duration::from_secs(60);
// A token may be revoked, and a node loses a Secret with the last pod that uses it: no RBAC object changes.
const PERSONAL: Duration = Duration::from_secs(300);
// An answer for all nodes changes with RBAC objects alone; a webhook that decides may change its mind.
const SHARED: Duration = Duration::from_secs(3_600);

/// The period of a decision. `is_followed`: RBAC objects are watched.
pub fn period(key: &DecisionKey, is_followed: bool) -> Duration {
    match key {
        _ if !is_followed => UNFOLLOWED,
        DecisionKey::AnyNode(_) => SHARED,
        DecisionKey::Caller(UpstreamIdentity::Node(_), question) if question.name.is_empty() => SHARED,
        DecisionKey::Caller(..) => PERSONAL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn affected_answers_go_first_and_the_rest_by_delay_within_the_rate() {
        let now = Instant::now() + SECOND * 10_000;
        let times = |age: u32, is_affected: bool| DecisionTimes {
            asked: now - SECOND * age,
            period: SECOND * 100,
            expires: None,
            is_affected,
        };
        let decisions = [
            ("young", times(99, false)),
            ("due", times(150, false)),
            ("overdue", times(300, false)),
            ("affected", times(1, true)),
            ("affected before", times(2, true)),
        ];
        let of_one_site = decisions.into_iter().map(|(key, times)| (key, "", times));
        let chosen = |bounds| choose(of_one_site.clone(), now, bounds);
        assert_eq!(chosen((10, 10)), ["affected before", "affected", "overdue", "due"]);
        assert_eq!(chosen((1, 1)), ["affected before", "overdue"]);
        assert_eq!(chosen((0, 0)), [""; 0]);
        // The number of requests does not depend on the number of decisions.
        let many = (0..10_000).map(|number| (number, number, times(200, false)));
        assert_eq!(choose(many, now, (50, 1)).len(), 1);
    }

    #[test]
    fn a_site_with_many_answers_makes_no_other_wait() {
        let now = Instant::now() + SECOND * 10_000;
        for is_affected in [true, false] {
            let times = |age: u32| DecisionTimes {
                asked: now - SECOND * age,
                period: SECOND * 100,
                expires: None,
                is_affected,
            };
            let greedy = (0..5_000).map(|number| (number, "greedy", times(3_000)));
            let others = [(9_000, "oslo", times(200)), (9_001, "oslo", times(300)), (9_002, "", times(150))];
            let chosen = choose(greedy.chain(others), now, (50, 50));
            assert_eq!(chosen[..5], [0, 9_001, 9_002, 1, 9_000], "{is_affected}");
            assert_eq!(chosen.len(), 50, "what others do not need is its own");
        }
    }

    #[test]
    fn the_end_of_a_token_is_noticed_once() {
        let now = Instant::now() + SECOND * 10_000;
        let times = |asked: Instant| DecisionTimes {
            asked,
            period: SECOND * 300,
            expires: Some(now),
            is_affected: false,
        };
        let chosen = |asked: Instant, at: Instant| choose([("a", "", times(asked))].into_iter(), at, (1, 1));
        assert_eq!(chosen(now - SECOND, now - SECOND), [""; 0]);
        assert_eq!(chosen(now - SECOND, now), ["a"]);
        assert_eq!(chosen(now, now + SECOND), [""; 0]);
        let old = DecisionTimes { expires: None, ..times(now - SECOND * 3_000) };
        let both = [("old", "", old), ("expired", "", times(now - SECOND))];
        assert_eq!(choose(both.into_iter(), now, (0, 1)), ["expired"], "before answers that only grow old");
    }

    #[test]
    fn more_answers_are_asked_again_at_a_higher_rate_within_a_bound() {
        assert_eq!([0, 600, 6_000, 1_000_000].map(due_max), [1, 1, 10, 50]);
    }
}
