//! What a fleet does to a cloud that can serve only a part of it at a time.

use std::time::Duration;

use sim::storm::{Outcome, Storm};

fn storm(edges: usize, handshakes_per_second: u32, has_pace: bool) -> Outcome {
    let time_max = Duration::from_secs(120);
    let outcome = Storm { edges, handshakes_per_second, told_per_second: 750, has_pace, time_max }.run(7);
    println!("{edges} edges, {handshakes_per_second} a second, pace {has_pace}: {outcome:?}");
    outcome
}

#[test]
fn a_cloud_that_keeps_its_word_refuses_nobody() {
    let outcome = storm(10_000, 750, true);
    assert_eq!((outcome.back, outcome.wasted, outcome.refused_more_than_once), (10_000, 0, 0));
    assert!(outcome.last <= Duration::from_secs(20), "{:?}", outcome.last);
}

#[test]
fn at_a_cloud_that_is_slower_than_it_said_everybody_is_sent_away_once_at_most() {
    for (edges, handshakes_per_second) in [(10_000, 600), (10_000, 300), (20_000, 500), (20_000, 250)] {
        let outcome = storm(edges, handshakes_per_second, true);
        let least = Duration::from_secs(edges as u64 / u64::from(handshakes_per_second));
        assert_eq!(outcome.back, edges);
        assert!(outcome.last <= least * 3 / 2, "{:?} where {least:?} must be", outcome.last);
        assert_eq!(outcome.wasted, 0, "what is begun is finished");
        assert_eq!(outcome.refused_more_than_once, 0);
    }
}

/// Edges were told to spread over a time that follows what the cloud does, within bounds: see its sessions.
#[test]
fn a_cloud_that_is_very_slow_serves_one_after_the_other() {
    let time_max = Duration::from_secs(300);
    for handshakes_per_second in [20, 60] {
        let told_per_second = (2 * handshakes_per_second).max(750 / 8);
        let storm = Storm { edges: 1500, handshakes_per_second, told_per_second, has_pace: true, time_max };
        let outcome = storm.run(7);
        println!("{handshakes_per_second} a second: {outcome:?}");
        let least = Duration::from_secs(1500 / u64::from(handshakes_per_second));
        assert_eq!((outcome.back, outcome.wasted, outcome.refused_more_than_once), (1500, 0, 0));
        assert!(outcome.last <= least * 2, "{:?} where {least:?} must be", outcome.last);
    }
}

#[test]
fn without_a_bound_the_same_fleet_would_take_longer() {
    let (with, without) = (storm(20_000, 500, true), storm(20_000, 500, false));
    assert!(without.last > with.last * 5 / 4, "{without:?} {with:?}");
}
