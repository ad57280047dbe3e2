//! The bytes of a site on the wire when nothing happens.

use std::time::Duration;

use crate::nat_fleet::{Fleet, soak};

/// The goal for an idle site, from the design: all IP packets, both directions. Held over ten minutes, in the long form.
const BYTES_PER_DAY_GOAL: f64 = 5e6;
/// In a minute on a busy machine, acknowledgements that come late and pings that are repeated weigh too much to hold the goal;
/// what must be found even there is chatter: a session that sends more than its keepalive.
const BYTES_PER_DAY_CHATTER: f64 = 10e6;

#[test]
fn an_idle_edge_sends_its_keepalive_and_little_else() {
    let Some(fleet) = Fleet::connected("an_idle_edge_sends_its_keepalive_and_little_else") else { return };
    let time = Duration::from_secs(if soak() { 600 } else { 60 });
    let before = fleet.crossed();
    // Not to wait for something: what happens in this time is measured.
    std::thread::sleep(time);
    let crossed = fleet.crossed().since(before);
    let (packets, bytes) = (crossed.packets, crossed.bytes());
    let per_day = bytes as f64 * 86_400.0 / time.as_secs_f64();
    println!("idle: {packets} packets and {bytes} bytes of IP in {time:?}, {:.2} MB a day", per_day / 1e6);
    assert!(bytes > 0, "not even a keepalive");
    let most = if soak() { BYTES_PER_DAY_GOAL } else { BYTES_PER_DAY_CHATTER };
    assert!(per_day < most, "{per_day} bytes a day");
}
