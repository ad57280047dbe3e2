//! Two selectors behind simulated NATs, and a clock that the test moves.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

fn socket(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn at(text: &str) -> PathTarget {
    socket(text).into()
}

fn relay(number: u8) -> PathTarget {
    RelayId::of(&[number; 32]).into()
}

/// Runs a selector for a time; addresses in `answers` reply after their round trip.
fn run(selector: &mut PathSelector, now: &mut Instant, millis: u64, answers: &[(PathTarget, u64)]) -> usize {
    let mut sent = 0;
    for _ in 0..millis / 50 {
        while let Some(probe) = selector.next_probe(*now, true) {
            sent += 1;
            if let Some((_, time)) = answers.iter().find(|(target, _)| *target == probe.target) {
                selector.handle_reply(probe.id, *now + Duration::from_millis(*time));
            }
        }
        *now += Duration::from_millis(50);
    }
    sent
}

#[test]
fn an_address_that_answers_is_selected_and_one_that_is_lost_is_replaced() {
    let (mut now, [one, other]) = (Instant::now(), [at("192.0.2.1:1"), at("192.0.2.2:2")]);
    let mut selector = PathSelector::new(now);
    assert_eq!(selector.not_direct(), Some(NotDirect::NoAddress));
    selector.follow(CandidateSource::Planned, [one, other], now);
    assert_eq!(selector.not_direct(), Some(NotDirect::Searching));
    run(&mut selector, &mut now, 100, &[(other, 20)]);
    assert_eq!((selector.selected(), selector.not_direct()), (Some(other), None));
    assert_eq!(selector.round_trip(), Some(Duration::from_millis(20)));
    selector.handle_lost(now);
    assert_eq!(selector.selected(), None);
    run(&mut selector, &mut now, 100, &[(one, 30)]);
    assert_eq!(selector.selected(), Some(one));
}

#[test]
fn a_search_in_vain_slows_down_and_says_so_and_a_new_address_begins_it_anew() {
    let (mut now, nowhere) = (Instant::now(), at("192.0.2.1:1"));
    let mut selector = PathSelector::new(now);
    selector.follow(CandidateSource::Planned, [nowhere], now);
    let first = run(&mut selector, &mut now, 10_000, &[]);
    assert!((4..9).contains(&first), "{first} probes in ten seconds");
    assert_eq!(selector.not_direct(), Some(NotDirect::NoReply { addresses: 1 }));
    assert!(run(&mut selector, &mut now, 60_000, &[]) <= 5);
    let somewhere = at("198.51.100.7:9");
    selector.follow(CandidateSource::Told, [somewhere], now);
    run(&mut selector, &mut now, 50, &[(somewhere, 5)]);
    assert_eq!(selector.selected(), Some(somewhere));
    // The same list is no news.
    let before = selector.next_round;
    selector.follow(CandidateSource::Told, [somewhere], now);
    assert_eq!(selector.next_round, before);
}

#[test]
fn an_unused_peer_is_not_probed() {
    let now = Instant::now();
    let mut selector = PathSelector::new(now);
    selector.follow(CandidateSource::Planned, [at("192.0.2.1:1")], now);
    assert_eq!(selector.next_probe(now + Duration::from_secs(100), false), None);
    assert!(!selector.is_round_due(now, false) && selector.is_round_due(now, true));
}

#[test]
fn a_better_path_wins_after_three_rounds_and_a_slightly_better_one_never() {
    let (mut now, [slow, fast]) = (Instant::now(), [at("192.0.2.1:1"), at("192.0.2.2:2")]);
    let mut selector = PathSelector::new(now);
    selector.follow(CandidateSource::Planned, [slow, fast], now);
    run(&mut selector, &mut now, 100, &[(slow, 40)]);
    assert_eq!(selector.selected(), Some(slow));
    run(&mut selector, &mut now, 300_000, &[(slow, 40), (fast, 32)]);
    assert_eq!(selector.selected(), Some(slow), "a fifth is within the margin");
    let sent = run(&mut selector, &mut now, 70_000, &[(slow, 40), (fast, 10)]);
    assert_eq!(selector.selected(), Some(fast));
    assert!(sent <= 20, "{sent} probes for a change of the path");
}

#[test]
fn a_handshake_selects_the_first_address_and_changes_no_other() {
    let now = Instant::now();
    let mut selector = PathSelector::new(now);
    assert!(selector.handle_confirmed(at("192.0.2.1:1"), now));
    assert!(!selector.handle_confirmed(at("192.0.2.2:2"), now));
    assert_eq!(selector.selected(), Some(at("192.0.2.1:1")));
    assert!(selector.next_probe(now, true).is_some_and(|probe| probe.target == at("192.0.2.2:2")));
}

#[test]
fn a_silent_path_is_stale_until_the_peer_is_heard_from_it() {
    let (now, address) = (Instant::now(), at("192.0.2.1:1"));
    let mut selector = PathSelector::new(now);
    selector.handle_confirmed(address, now);
    let later = now + Duration::from_secs(21);
    assert!(!selector.is_stale(now + Duration::from_secs(19)) && selector.is_stale(later));
    selector.handle_seen(at("192.0.2.9:9"), later);
    assert!(selector.is_stale(later), "another address says nothing about this one");
    selector.handle_seen(address, later);
    assert!(!selector.is_stale(later));
}

#[test]
fn a_direct_path_replaces_a_relay_and_a_relay_stands_in_for_a_direct_path_that_is_lost() {
    let (mut now, address) = (Instant::now(), at("192.0.2.1:1"));
    let mut selector = PathSelector::new(now);
    selector.follow(CandidateSource::Planned, [address], now);
    selector.follow(CandidateSource::Relay, [relay(1), relay(2)], now);
    run(&mut selector, &mut now, 100, &[(relay(1), 30)]);
    assert_eq!(selector.selected(), Some(relay(1)));
    run(&mut selector, &mut now, 20_000, &[(relay(1), 30)]);
    assert_eq!(selector.not_direct(), Some(NotDirect::NoReply { addresses: 1 }), "the search goes on");
    run(&mut selector, &mut now, 60_000, &[(relay(1), 30), (relay(2), 5)]);
    assert_eq!(selector.selected(), Some(relay(2)), "the faster of two relays");
    // Even a slower direct path is chosen, after its second reply.
    run(&mut selector, &mut now, 20_000, &[(relay(2), 5), (address, 80)]);
    assert_eq!((selector.selected(), selector.not_direct()), (Some(address), None));
    run(&mut selector, &mut now, 300_000, &[(relay(2), 5), (address, 80)]);
    assert_eq!(selector.selected(), Some(address), "no relay replaces a direct path that works");
    selector.handle_lost(now);
    run(&mut selector, &mut now, 100, &[(relay(2), 5)]);
    assert_eq!(selector.selected(), Some(relay(2)));
    // A gateway that is no relay any more, or no peer, is left at once.
    selector.follow(CandidateSource::Relay, [relay(1)], now);
    assert_eq!(selector.selected(), None);
    assert!(!selector.handle_confirmed(relay(2), now), "an unknown relay is not selected");
}

#[test]
fn a_direct_path_that_answers_once_replaces_no_relay() {
    let (mut now, address) = (Instant::now(), at("192.0.2.1:1"));
    let mut selector = PathSelector::new(now);
    selector.follow(CandidateSource::Planned, [address], now);
    selector.follow(CandidateSource::Relay, [relay(1)], now);
    run(&mut selector, &mut now, 100, &[(relay(1), 30)]);
    for _ in 0..4 {
        let mut answered = false;
        for _ in 0..400 {
            while let Some(probe) = selector.next_probe(now, true) {
                // Every second probe of the address is lost.
                if probe.target == relay(1) || !std::mem::replace(&mut answered, true) {
                    selector.handle_reply(probe.id, now + Duration::from_millis(30));
                } else {
                    answered = false;
                }
            }
            now += Duration::from_millis(50);
        }
        assert_eq!(selector.selected(), Some(relay(1)));
    }
}

#[test]
fn a_faster_relay_that_loses_probes_is_not_better() {
    let mut now = Instant::now();
    let mut selector = PathSelector::new(now);
    selector.follow(CandidateSource::Relay, [relay(1), relay(2)], now);
    run(&mut selector, &mut now, 100, &[(relay(1), 60)]);
    run(&mut selector, &mut now, 20_000, &[(relay(1), 60), (relay(2), 60)]);
    run(&mut selector, &mut now, 120_000, &[(relay(1), 60)]);
    // The other one answers again, and faster, after its last probes were lost.
    run(&mut selector, &mut now, 50_000, &[(relay(1), 60), (relay(2), 5)]);
    assert_eq!(selector.selected(), Some(relay(1)));
    run(&mut selector, &mut now, 600_000, &[(relay(1), 60), (relay(2), 5)]);
    assert_eq!(selector.selected(), Some(relay(2)));
}

/// A NAT: its outside address, whether each destination gets a port of its own, and which senders pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Nat {
    FullCone,
    PortRestricted,
    Symmetric,
}

/// One gateway of a pair behind NATs.
struct End {
    selector: PathSelector,
    nat: Nat,
    /// The address of the gateway as the relay sees it.
    reflexive: SocketAddr,
    /// The destinations to which it has sent, in order: mappings of the NAT.
    sent_to: Vec<SocketAddr>,
}

impl End {
    fn new(nat: Nat, reflexive: &str, now: Instant) -> End {
        End { selector: PathSelector::new(now), nat, reflexive: socket(reflexive), sent_to: Vec::new() }
    }

    /// Sends through the NAT, and returns the source address on the way.
    fn send(&mut self, to: SocketAddr) -> SocketAddr {
        if !self.sent_to.contains(&to) {
            self.sent_to.push(to);
        }
        match self.nat {
            Nat::Symmetric => {
                let index = self.sent_to.iter().position(|known| *known == to).unwrap();
                SocketAddr::new(self.reflexive.ip(), 40_000 + index as u16)
            }
            _ => self.reflexive,
        }
    }

    /// Tells whether a message to an outside address passes the NAT.
    fn takes(&self, from: SocketAddr, to: SocketAddr) -> bool {
        match self.nat {
            Nat::FullCone => to == self.reflexive,
            Nat::PortRestricted => to == self.reflexive && self.sent_to.contains(&from),
            Nat::Symmetric => self
                .sent_to
                .iter()
                .position(|known| *known == from)
                .is_some_and(|index| to == SocketAddr::new(self.reflexive.ip(), 40_000 + index as u16)),
        }
    }
}

/// Exchanges addresses through a relay and probes for five seconds. Returns whether each end has a direct path, and the
/// time at which both had one.
fn punch(nats: [Nat; 2], seed: u64) -> ([bool; 2], Option<Duration>) {
    let begin = Instant::now();
    let mut ends =
        [End::new(nats[0], "198.51.100.1:7446", begin), End::new(nats[1], "192.0.2.1:7446", begin)];
    let mut direct_after = None;
    let mut now = begin;
    for step in 0..100_u64 {
        // Each end learns of the other at another time.
        for (index, delay) in [(0, seed % 7), (1, seed % 5)] {
            if step == delay {
                let told = ends[1 - index].reflexive;
                ends[index].selector.follow(CandidateSource::Told, [told], now);
            }
        }
        for index in 0..2 {
            while let Some(probe) = ends[index].selector.next_probe(now, true) {
                let PathTarget::Direct(address) = probe.target else { continue };
                let from = ends[index].send(address);
                if !ends[1 - index].takes(from, address) {
                    continue;
                }
                ends[1 - index].selector.handle_seen(from, now);
                // The reply goes back by the way the request came.
                let back = ends[1 - index].send(from);
                if ends[index].takes(back, from) {
                    ends[index].selector.handle_seen(back, now);
                    ends[index].selector.handle_reply(probe.id, now + Duration::from_millis(10));
                }
            }
        }
        let both = ends.iter().all(|end| end.selector.selected().is_some());
        direct_after = direct_after.or(both.then(|| now.duration_since(begin)));
        now += Duration::from_millis(50);
    }
    (ends.map(|end| end.selector.selected().is_some()), direct_after)
}

#[test]
fn which_pairs_of_nats_become_direct() {
    use Nat::{FullCone, PortRestricted, Symmetric};
    let check = |nats: [Nat; 2], direct: bool| {
        for seed in 0..35 {
            for pair in [nats, [nats[1], nats[0]]] {
                let (found, after) = punch(pair, seed);
                assert_eq!(found, [direct; 2], "{pair:?}, seed {seed}");
                assert!(!direct || after.is_some_and(|after| after <= Duration::from_secs(1)), "{after:?}");
            }
        }
    };
    check([FullCone, FullCone], true);
    check([FullCone, PortRestricted], true);
    check([FullCone, Symmetric], true);
    check([PortRestricted, PortRestricted], true);
    check([PortRestricted, Symmetric], false);
    check([Symmetric, Symmetric], false);
}

proptest! {
    #[test]
    fn the_selected_address_is_one_that_answered_and_the_list_is_bounded(
        events in proptest::collection::vec((0_u8..6, 0_u16..40), 0..400),
    ) {
        let mut now = Instant::now();
        let mut selector = PathSelector::new(now);
        let mut answered = HashSet::new();
        let mut probes: Vec<TargetProbe> = Vec::new();
        for (kind, port) in events {
            let address = PathTarget::from(SocketAddr::from(([192, 0, 2, 1], 1 + port)));
            match kind {
                0 => selector.follow(CandidateSource::Told, [address], now),
                1 => selector.handle_seen(address, now),
                2 => selector.handle_lost(now),
                3 => if let Some(probe) = probes.pop() && selector.handle_reply(probe.id, now) {
                    answered.insert(probe.target);
                },
                4 => probes.extend(std::iter::from_fn(|| selector.next_probe(now, true))),
                _ => now += Duration::from_millis(u64::from(port) * 100),
            }
            prop_assert!(selector.candidates.len() <= CANDIDATES_MAX);
            prop_assert!(selector.selected().is_none_or(|selected| answered.contains(&selected)));
        }
    }
}
