//! Seeds through the simulation. A failing one is printed; `SIM_SEED=N` replays it alone, `SIM_SEEDS=N` runs N of them.

#![allow(clippy::unwrap_used, clippy::panic)]

mod fleet;
mod storm;
mod streams;

use sim::{Plan, Simulation};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

#[test]
fn sessions_and_netmaps_survive_any_trouble() {
    let plan = Plan::default();
    let seeds = match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIM_SEEDS").unwrap_or(1000),
    };
    let failed: Vec<String> = seeds
        .clone()
        .filter_map(|seed| {
            Simulation::new(seed, &plan).run(&plan).err().map(|why| format!("SIM_SEED={seed}: {why}"))
        })
        .collect();
    assert!(
        failed.is_empty(),
        "{} of {} seeds:\n{}",
        failed.len(),
        seeds.count(),
        failed[..failed.len().min(10)].join("\n")
    );
}

#[test]
fn the_same_seed_gives_the_same_run() {
    // Too little calm for any edge to come back: the run ends with a complaint, and always the same.
    let plan = Plan { calm: std::time::Duration::ZERO, faults: 60, ..Plan::default() };
    let ends = |seed| Simulation::new(seed, &plan).run(&plan);
    for seed in 0..20 {
        assert_eq!(ends(seed), ends(seed), "seed {seed}");
    }
}
