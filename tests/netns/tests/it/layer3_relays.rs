//! Relays over UDP between two edges whose NATs let no direct path pass: the cloud, and a gateway with `relay: true`.

use std::collections::HashSet;
use std::time::Instant;

use serde_json::Value;
use testlab::causeway::wait_for;

use crate::layer3_connection::{BULK, Flow, MARK, count_bytes, counted};
use crate::layer3_lab::Layer3;
use crate::layer3_paths::{Nat, path, set_nat};

/// Loses packets for the tunnel at a node.
fn block_tunnel(lab: &Layer3, node: &str) {
    let chain = "chain in { type filter hook input priority 0;\nudp dport 7446 drop\n}\n";
    lab.nft(node, &format!("table inet lab_block {{\n{chain}}}\n"));
}

/// Tells whether the memory of a process that can be written holds a part of the bulk, which repeats `MARK`.
fn holds_bulk(pid: u32) -> bool {
    use std::os::unix::fs::FileExt;
    let twice = [MARK, MARK].concat();
    let rotations: HashSet<&[u8]> = twice.windows(MARK.len()).collect();
    let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let ranges = maps.lines().filter(|line| line.contains(" rw")).filter_map(|line| {
        let (from, to) = line.split_whitespace().next()?.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    });
    ranges.into_iter().any(|(from, to)| {
        let mut part = vec![0; (to - from) as usize];
        // A part that was given back meanwhile cannot be read. A packet of the bulk is longer than the step.
        memory.read_exact_at(&mut part, from).is_ok()
            && part
                .chunks(256)
                .any(|chunk| chunk.get(..MARK.len()).is_some_and(|part| rotations.contains(part)))
    })
}

fn started(test: &str, has_open_site: bool) -> Option<Layer3> {
    let lab = Layer3::start_with(test, has_open_site, &[])?;
    set_nat(&lab, "nat-a", Nat::Symmetric);
    set_nat(&lab, "nat-b", Nat::Symmetric);
    Some(lab)
}

#[test]
fn layer3_the_cloud_relays_over_udp_and_the_channel_stands_in() {
    let test = "layer3_the_cloud_relays_over_udp_and_the_channel_stands_in";
    let Some(mut lab) = started(test, false) else { return };
    lab.community(&["edge-a", "edge-b"], None);
    lab.await_crossing("host-a", "host-b", false);
    let (mut flow, cloud) = (Flow::open(&lab, "host-a", "host-b"), Value::from("cloud"));
    let (after, longest) = flow.echo_until(&lab, "relayed", &cloud);
    println!("two symmetric NATs: relayed by the cloud after {after:?}, longest pause {longest:?}");
    count_bytes(&lab, "cloud");
    let begin = Instant::now();
    flow.bulk();
    let (channel, tunnel) = counted(&lab, "cloud");
    println!(
        "{} MiB there and back in {:?}: {tunnel} bytes to the tunnel port, {channel} to the channel",
        BULK >> 20,
        begin.elapsed()
    );
    assert!(tunnel > 2 * BULK as u64 && channel < tunnel / 2, "{tunnel} {channel}");
    let end = path(&lab, 0, "edge-b");
    assert_eq!(end["mtu"], 1376, "{end}");
    let shown = lab.cloud.run(&["status"]).unwrap();
    assert!(shown.stdout.contains("relayed by cloud"), "{}", shown.stdout);
    let told = lab.cloud.run(&["doctor", "edge-a", "edge-b"]).unwrap();
    assert!(told.stdout.contains("relayed by cloud"), "{}", told.stdout);
    let [edge, relay] =
        [&mut lab.edges[0].unit, &mut lab.cloud.unit].map(|unit| unit.process().unwrap().pid());
    assert!(holds_bulk(edge), "the edge has opened packets of the bulk");
    assert!(!holds_bulk(relay), "the memory of the relay shows a payload");
    assert!(!lab.cloud.unit.log().contains("no relay can read"));
    // The relay's UDP is blocked in mid-connection, and comes back.
    block_tunnel(&lab, "cloud");
    let (after, longest) = flow.echo_until(&lab, "channel", &Value::Null);
    println!("the relay is blocked: over the channel after {after:?}, longest pause {longest:?}");
    flow.bulk();
    lab.nft("cloud", "delete table inet lab_block\n");
    let (after, longest) = flow.echo_until(&lab, "relayed", &cloud);
    println!("the relay is back: relayed after {after:?}, longest pause {longest:?}");
    flow.bulk();
    lab.end();
}

#[test]
fn layer3_a_gateway_of_a_third_site_relays() {
    let test = "layer3_a_gateway_of_a_third_site_relays";
    let Some(mut lab) = started(test, true) else { return };
    // The tunnel of the cloud is out of reach.
    block_tunnel(&lab, "cloud");
    lab.cloud
        .apply("apiVersion: causeway.io/v1\nkind: EGateway\nmetadata: {name: edge-r}\neSiteName: edge-r\nrelay: true\n")
        .unwrap();
    lab.community(&["edge-a", "edge-b", "edge-r"], None);
    lab.await_crossing("host-a", "host-b", false);
    let mut flow = Flow::open(&lab, "host-a", "host-b");
    let (after, longest) = flow.echo_until(&lab, "relayed", &"edge-r".into());
    println!("relayed by edge-r after {after:?}, longest pause {longest:?}");
    count_bytes(&lab, "edge-r");
    flow.bulk();
    let (_, tunnel) = counted(&lab, "edge-r");
    assert!(tunnel > 2 * BULK as u64, "{tunnel}");
    let state = lab.edges[2].debug().unwrap()["tunnel"].clone();
    wait_for("the relay counts what it forwards", || {
        let state = lab.edges[2].debug().ok()?;
        (state["tunnel"]["relayed"]["bytes"].as_u64()? > 2 * BULK as u64).then_some(())
    })
    .unwrap();
    assert_eq!(state["flows"], 0, "no flow of the relay's own site: {state}");
    let pid = lab.edges[2].unit.process().unwrap().pid();
    assert!(!holds_bulk(pid), "the memory of the relay shows a payload");
    // A site that leaves the community of the relay is forwarded to no more.
    lab.community(&["edge-a", "edge-b"], None);
    let (after, longest) = flow.echo_until(&lab, "channel", &Value::Null);
    println!("edge-r is no member any more: over the channel after {after:?}, longest pause {longest:?}");
    lab.end();
}
