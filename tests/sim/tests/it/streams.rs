//! Streams over two transports, through seeds. `SIM_SEED=N` replays one; the long form is `SIM_STREAM_SEEDS=1000`.

use sim::streams::{Seen, StreamsWorld};

use crate::number;

#[test]
fn streams_over_two_transports_come_once_in_order_and_end_with_their_session() {
    let seeds = match number("SIM_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("SIM_STREAM_SEEDS").unwrap_or(24),
    };
    let mut all = Seen::default();
    let mut failed = Vec::new();
    for seed in seeds.clone() {
        match StreamsWorld::new(seed).run() {
            Ok(seen) => {
                all.sessions += seen.sessions;
                all.streams_on_quic += seen.streams_on_quic;
                all.streams_on_tcp += seen.streams_on_tcp;
                all.bytes += seen.bytes;
                all.moves += seen.moves;
                all.tcp_links += seen.tcp_links;
            }
            Err(why) => failed.push(format!("SIM_SEED={seed}: {why}")),
        }
    }
    let count = seeds.end - seeds.start;
    println!("{count} seeds: {all:?}");
    assert!(
        failed.is_empty(),
        "{} of {count} seeds:\n{}",
        failed.len(),
        failed[..failed.len().min(10)].join("\n")
    );
    // Otherwise nothing was shown.
    assert!(count < 10 || all.streams_on_quic > 100 && all.streams_on_tcp > 100 && all.moves > 10, "{all:?}");
}
