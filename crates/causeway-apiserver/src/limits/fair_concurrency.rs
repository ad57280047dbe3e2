//! Shares a fixed number of permits among callers, in turn.
//!
//! Pure: tracks which callers hold a permit, which wait, and which is next; the waiting itself is done in
//! `limits`. A caller with a thousand requests delays only itself: free permits go round the callers. The
//! code calls a permit a seat, as API Priority and Fairness of Kubernetes does.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;

#[derive(Debug, Clone)]
pub struct ConcurrencyLimits {
    pub seats_max: usize,
    pub seats_per_caller_max: usize,
    pub waiting_per_caller_max: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub enum QueueEntry {
    Seated,
    /// The request waits under this ticket.
    Waiting(u64),
    /// The queue of this caller is full.
    Full,
}

/// The state of all callers. `C` identifies a caller.
#[derive(Debug)]
pub struct FairConcurrency<C> {
    limits: ConcurrencyLimits,
    taken: usize,
    next_ticket: u64,
    callers: HashMap<C, Caller>,
    /// Callers with waiting requests, in the order of their turn.
    turns: VecDeque<C>,
}

#[derive(Debug, Default)]
struct Caller {
    seated: usize,
    waiting: VecDeque<u64>,
}

impl<C: Clone + Eq + Hash> FairConcurrency<C> {
    pub fn new(limits: ConcurrencyLimits) -> FairConcurrency<C> {
        FairConcurrency { limits, taken: 0, next_ticket: 0, callers: HashMap::new(), turns: VecDeque::new() }
    }

    pub fn enter(&mut self, caller: &C) -> QueueEntry {
        let entry = self.callers.entry(caller.clone()).or_default();
        let room = self.taken < self.limits.seats_max && entry.seated < self.limits.seats_per_caller_max;
        if room && entry.waiting.is_empty() {
            entry.seated += 1;
            self.taken += 1;
            return QueueEntry::Seated;
        }
        if entry.waiting.len() >= self.limits.waiting_per_caller_max {
            return QueueEntry::Full;
        }
        self.next_ticket += 1;
        if entry.waiting.is_empty() {
            self.turns.push_back(caller.clone());
        }
        entry.waiting.push_back(self.next_ticket);
        QueueEntry::Waiting(self.next_ticket)
    }

    /// Releases a permit of `caller`. Returns the tickets that have one now.
    pub fn release(&mut self, caller: &C) -> Vec<u64> {
        if let Some(entry) = self.callers.get_mut(caller) {
            entry.seated = entry.seated.saturating_sub(1);
            self.taken = self.taken.saturating_sub(1);
            self.forget_if_idle(caller);
        }
        let mut called = Vec::new();
        while let Some(ticket) = self.seat_next() {
            called.push(ticket);
        }
        called
    }

    /// Removes a waiting ticket. False when the ticket was given a permit in the meantime.
    pub fn give_up(&mut self, caller: &C, ticket: u64) -> bool {
        let Some(entry) = self.callers.get_mut(caller) else { return false };
        let Some(place) = entry.waiting.iter().position(|waiting| *waiting == ticket) else { return false };
        entry.waiting.remove(place);
        if entry.waiting.is_empty() {
            self.turns.retain(|turn| turn != caller);
        }
        self.forget_if_idle(caller);
        true
    }

    fn seat_next(&mut self) -> Option<u64> {
        if self.taken >= self.limits.seats_max {
            return None;
        }
        let limit = self.limits.seats_per_caller_max;
        let place =
            self.turns.iter().position(|turn| self.callers.get(turn).is_some_and(|c| c.seated < limit))?;
        let turn = self.turns.remove(place)?;
        let caller = self.callers.get_mut(&turn)?;
        let ticket = caller.waiting.pop_front()?;
        caller.seated += 1;
        self.taken += 1;
        if !caller.waiting.is_empty() {
            self.turns.push_back(turn);
        }
        Some(ticket)
    }

    // The map holds only callers with a permit or a waiting request, so unknown callers cannot make it grow.
    fn forget_if_idle(&mut self, caller: &C) {
        if self.callers.get(caller).is_some_and(|entry| entry.seated == 0 && entry.waiting.is_empty()) {
            self.callers.remove(caller);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seats(
        seats_max: usize,
        seats_per_caller_max: usize,
        waiting_per_caller_max: usize,
    ) -> FairConcurrency<&'static str> {
        FairConcurrency::new(ConcurrencyLimits { seats_max, seats_per_caller_max, waiting_per_caller_max })
    }

    #[test]
    fn free_seats_go_round_the_callers() {
        let mut seats = seats(2, 2, 10);
        assert_eq!(seats.enter(&"greedy"), QueueEntry::Seated);
        assert_eq!(seats.enter(&"greedy"), QueueEntry::Seated);
        let greedy: Vec<_> = (0..4).map(|_| seats.enter(&"greedy")).collect();
        let QueueEntry::Waiting(first) = greedy[0] else { panic!("{greedy:?}") };
        let QueueEntry::Waiting(second) = greedy[1] else { panic!("{greedy:?}") };
        let QueueEntry::Waiting(modest) = seats.enter(&"modest") else { panic!() };
        assert_eq!(seats.release(&"greedy"), [first]);
        assert_eq!(seats.release(&"greedy"), [modest]);
        assert_eq!(seats.release(&"modest"), [second]);
    }

    #[test]
    fn one_caller_never_takes_all_seats_and_its_line_ends() {
        let mut seats = seats(4, 2, 1);
        assert_eq!(seats.enter(&"greedy"), QueueEntry::Seated);
        assert_eq!(seats.enter(&"greedy"), QueueEntry::Seated);
        let QueueEntry::Waiting(ticket) = seats.enter(&"greedy") else { panic!() };
        assert_eq!(seats.enter(&"greedy"), QueueEntry::Full);
        assert_eq!(seats.enter(&"modest"), QueueEntry::Seated);
        assert!(seats.release(&"modest").is_empty(), "greedy is at its own limit");
        assert_eq!(seats.release(&"greedy"), [ticket]);
        assert!(!seats.give_up(&"greedy", ticket), "it sits already");
    }

    #[test]
    fn who_gives_up_is_not_called_and_leaves_no_trace() {
        let mut seats = seats(1, 1, 5);
        assert_eq!(seats.enter(&"a"), QueueEntry::Seated);
        let QueueEntry::Waiting(ticket) = seats.enter(&"b") else { panic!() };
        assert!(seats.give_up(&"b", ticket));
        assert!(seats.release(&"a").is_empty());
        assert!(seats.callers.is_empty() && seats.turns.is_empty());
        assert_eq!(seats.enter(&"b"), QueueEntry::Seated);
    }
}
