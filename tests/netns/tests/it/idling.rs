//! What a site costs on the wire when nothing happens.

use std::time::Duration;

use crate::world::{World, soak};

/// The goal for an idle site, from the design: all IP packets, both directions.
const BYTES_PER_DAY_MAX: f64 = 5e6;

#[test]
fn an_idle_edge_costs_less_than_five_megabytes_a_day() {
    let Some(world) = World::connected("an_idle_edge_costs_less_than_five_megabytes_a_day") else { return };
    let time = Duration::from_secs(if soak() { 600 } else { 60 });
    let before = world.crossed();
    // Not to wait for something: what happens in this time is measured.
    std::thread::sleep(time);
    let crossed = world.crossed().since(before);
    let (packets, bytes) = (crossed.packets, crossed.bytes());
    let per_day = bytes as f64 * 86_400.0 / time.as_secs_f64();
    println!("idle: {packets} packets and {bytes} bytes of IP in {time:?}, {:.2} MB a day", per_day / 1e6);
    assert!(bytes > 0, "not even a keepalive");
    assert!(per_day < BYTES_PER_DAY_MAX, "{per_day} bytes a day");
}
