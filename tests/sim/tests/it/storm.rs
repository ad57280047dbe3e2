//! Effects of a fleet on a cloud that can serve only a part of it at a time.

use std::time::Duration;

use sim::storm::{Outcome, Storm};
use testlab::random::SeededRandom;

fn storm(edges: usize, handshakes_per_second: u32, has_pace: bool) -> Outcome {
    let outcome = Storm { edges, handshakes_per_second, has_pace, ..Storm::default() }.run(7);
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
        let storm =
            Storm { edges: 1500, handshakes_per_second, told_per_second, time_max, ..Storm::default() };
        let outcome = storm.run(7);
        println!("{handshakes_per_second} a second: {outcome:?}");
        let least = Duration::from_secs(1500 / u64::from(handshakes_per_second));
        assert_eq!((outcome.back, outcome.wasted), (1500, 0));
        assert!(outcome.last <= least * 3 / 2, "{:?} where {least:?} must be", outcome.last);
        // For some seconds it looks like one that has just been started, and is believed to become quicker.
        assert!(outcome.refused_more_than_once < 750, "{}", outcome.refused_more_than_once);
    }
}

#[test]
fn without_a_bound_the_same_fleet_would_take_longer() {
    let (with, without) = (storm(20_000, 500, true), storm(20_000, 500, false));
    assert!(without.last > with.last * 5 / 4, "{without:?} {with:?}");
}

/// Time on top of the work itself and of the spread, for every second in which the cloud was busy with itself: that
/// second, and the trust in it of those who were sent away then.
const SLOW_COSTS: u32 = 4;
const NOTICED: Duration = Duration::from_secs(5);
const LUCK: Duration = Duration::from_secs(5);

/// After the last kill all must be back in a time that follows from the fleet and the cloud, whatever came before.
fn check_bound(storm: &Storm, seed: u64) {
    let outcome = storm.run(seed);
    let seconds = |rate: u32| Duration::from_secs_f64(storm.edges as f64 / f64::from(rate));
    let least = seconds(storm.handshakes_per_second).max(seconds(storm.told_per_second) + NOTICED);
    let bound = least + SLOW_COSTS * (storm.slow.end - storm.slow.start) + LUCK;
    println!("{storm:?}, seed {seed}: {outcome:?}, bound {bound:?}");
    assert_eq!(outcome.back, storm.edges, "{storm:?}, seed {seed}");
    assert!(outcome.last <= bound, "{storm:?}, seed {seed}: {:?} where {bound:?} is enough", outcome.last);
}

#[test]
fn a_cloud_that_is_busy_with_itself_for_seconds_has_all_back_soon_after() {
    let check = |edges, handshakes_per_second, slow: std::ops::Range<u64>, lives: &[u64]| {
        let slow = Duration::from_secs(slow.start)..Duration::from_secs(slow.end);
        let lives = lives.iter().copied().map(Duration::from_secs).collect();
        check_bound(&Storm { edges, handshakes_per_second, slow, lives, ..Storm::default() }, 7);
    };
    check(10_000, 500, 0..5, &[]);
    check(10_000, 500, 0..5, &[120]);
    check(10_000, 750, 0..5, &[10]);
    check(10_000, 500, 10..18, &[]);
    check(20_000, 500, 0..3, &[60, 60]);
}

#[test]
fn all_are_back_soon_after_the_last_fault_whatever_came_before() {
    for seed in 0..60 {
        let mut random = SeededRandom::new(seed);
        let slow_from = random.millis(0, 3000);
        let storm = Storm {
            edges: 1500,
            handshakes_per_second: 60 + random.below(700) as u32,
            // The number of edges is that of a crowd.
            told_per_second: 200,
            slow: slow_from..slow_from + random.millis(0, 6000),
            lives: (0..random.below(4)).map(|_| random.millis(1, 60_000)).collect(),
            time_max: Duration::from_secs(300),
            ..Storm::default()
        };
        check_bound(&storm, seed);
    }
}
