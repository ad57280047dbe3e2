//! Updates of an edge: changes cross bad lines, and cost little.

use std::time::{Duration, Instant};

use serde_json::Value;
use testlab::relay::Faults;

use crate::nat_fleet::{EDGE, Fleet, PATIENCE, QUIET, exposed, soak};

/// The bound for one changed object.
const BYTES_PER_CHANGE_MAX: u64 = 2048;

#[test]
fn changes_are_acknowledged_over_a_line_with_loss_and_delay() {
    let Some((mut fleet, relay)) =
        Fleet::start_behind_relay("changes_are_acknowledged_over_a_line_with_loss_and_delay")
    else {
        return;
    };
    relay.set_both(&Faults { delay: Duration::from_millis(50), loss: 0.05, ..Faults::default() });
    fleet.join(&[]);
    for round in 0..5 {
        let before = fleet.settle();
        fleet.change();
        let (_, took) = fleet.await_change(&before, PATIENCE);
        println!("5 % loss, 100 ms: change {round} acknowledged after {took:?}");
    }
}

#[test]
fn one_change_in_a_site_of_many_exposures_costs_less_than_two_kilobytes() {
    let test = "one_change_in_a_site_of_many_exposures_costs_less_than_two_kilobytes";
    let Some(mut fleet) = Fleet::connected(test) else { return };
    let count = if soak() { 2000 } else { 200 };
    fleet.fill(count);
    let before = fleet.settle();
    let crossed = fleet.crossed();
    fleet.change();
    fleet.await_change(&before, PATIENCE);
    fleet.settle();
    let bytes = fleet.crossed().since(crossed).bytes();
    println!("one more of {count} exposures: {bytes} bytes of IP, both directions, keepalives included");
    assert!(bytes < BYTES_PER_CHANGE_MAX, "{bytes} bytes");
}

impl Fleet {
    /// Exposes this number of services of the edge, at one stroke, and waits until it knows them.
    pub fn fill(&mut self, count: usize) {
        let before = self.settle();
        let objects: Vec<String> = (0..count)
            .flat_map(|number| exposed(&format!("many-{number}")))
            .map(|object| object.to_string())
            .collect();
        self.cloud.apply(&objects.join("\n---\n")).unwrap();
        self.await_change(&before, PATIENCE);
    }

    /// Waits until the edge has acknowledged all that it was sent. Returns its status.
    pub fn settle(&self) -> Value {
        let (mut last, mut since) = (Value::Null, Instant::now());
        let settled = |gateway: &Value| {
            if gateway["generation"] != last {
                (last, since) = (gateway["generation"].clone(), Instant::now());
            }
            !last.is_null() && since.elapsed() >= QUIET
        };
        self.cloud.wait_gateway(EDGE, "acknowledges a netmap and settles", PATIENCE, settled).unwrap().0
    }

    /// Waits until the edge has acknowledged another netmap than that of `before`.
    pub fn await_change(&self, before: &Value, within: Duration) -> (Value, Duration) {
        let newer =
            |gateway: &Value| gateway["connected"] == true && gateway["generation"] != before["generation"];
        self.cloud.wait_gateway(EDGE, "acknowledges a newer netmap", within, newer).unwrap()
    }
}
