//! A thousand histories of a fleet hold the rules; broken drivers do not.
//!
//! `SIM_SEED=n cargo nextest run -p sim` replays one history. `CAUSEWAY_SOAK=1` plays twenty thousand.

use sim::fleet::{Broken, RunStats, run};

use crate::number;

const SEEDS: u64 = 1_000;
const SEEDS_SOAK: u64 = 20_000;

// Four tests, so that two cores share them and a busy machine has time for each.
#[test]
fn every_history_holds_the_rules_first_quarter() {
    quarter(0);
}

#[test]
fn every_history_holds_the_rules_second_quarter() {
    quarter(1);
}

#[test]
fn every_history_holds_the_rules_third_quarter() {
    quarter(2);
}

#[test]
fn every_history_holds_the_rules_fourth_quarter() {
    quarter(3);
}

fn quarter(which: u64) {
    let is_soak = std::env::var_os("CAUSEWAY_SOAK").is_some();
    let all = number("SIM_SEEDS").unwrap_or(if is_soak { SEEDS_SOAK } else { SEEDS });
    let seeds = match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => all * which / 4..all * (which + 1) / 4,
    };
    let count = seeds.end - seeds.start;
    let mut all = RunStats::default();
    for seed in seeds {
        match run(seed, Broken::Nothing) {
            Ok(stats) => all.add(&stats),
            Err(violation) => panic!("SIM_SEED={seed}: {violation}"),
        }
    }
    println!("{count} histories: {all:?}");
    // Histories in which nothing happens prove nothing.
    if count > 1 {
        let netmaps = all.netmaps / count;
        assert!(netmaps > 20 && all.deltas > 0 && all.refusals > 0 && all.sessions_ended > count, "{all:?}");
    }
}

#[test]
fn the_same_seed_is_the_same_history() {
    let play = |seed| format!("{:?}", run(seed, Broken::Nothing));
    for seed in 0..5 {
        assert_eq!(play(seed), play(seed));
    }
    assert_ne!(play(1), play(2));
}

#[test]
fn an_edge_that_acknowledges_too_early_is_found() {
    found(Broken::AcknowledgeBeforeDisk, "is not on disk");
}

#[test]
fn an_edge_that_takes_any_generation_is_found() {
    found(Broken::TakeAnyGeneration, "went back");
}

#[test]
fn a_cloud_that_ends_the_wrong_session_is_found() {
    found(Broken::RemoveByName, "was forgotten");
}

#[test]
fn a_cloud_that_forgets_the_newest_is_found() {
    found(Broken::ForgetNewest, "did not come to rest");
}

#[track_caller]
fn found(broken: Broken, text: &str) {
    let violations =
        (0..300).filter_map(|seed| run(seed, broken).err()).map(|violation| violation.to_string());
    assert!(violations.into_iter().any(|violation| violation.contains(text)), "{broken:?} was not found");
}
