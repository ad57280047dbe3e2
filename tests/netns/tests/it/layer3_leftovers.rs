//! A gateway that is killed leaves nothing behind, and neither does its next life.

use std::time::Instant;

use serde_json::json;
use testlab::causeway::wait_for;

use crate::layer3_lab::Layer3;

#[test]
fn layer3_a_killed_edge_leaves_nothing_behind_and_its_next_life_neither() {
    let test = "layer3_a_killed_edge_leaves_nothing_behind_and_its_next_life_neither";
    let Some(mut lab) = Layer3::start(test) else { return };
    // Everything that a gateway adds to its host: networks of other sites, a mapped network of its own, a translated service of each
    // side, the namespace of a proxied one, DNS, and addresses that it answers in its LAN.
    for (edge, ip, range) in
        [("edge-a", "10.1.0.1", "10.1.0.128/25"), ("edge-b", "10.2.0.1", "198.18.0.0/16")]
    {
        lab.apply(json!({"kind": "EGateway", "metadata": {"name": edge}, "eSiteName": edge, "ip": ip,
            "virtualPresenceIPcidr": range}));
    }
    lab.apply(
        json!({"kind": "ESite", "metadata": {"name": "edge-a"}, "subnets": ["10.1.0.0/24", "fd00:a::/64"],
        "mappedSubnets": [{"subnet": "fd00:a::/64", "as": "fd99:a::/64"}]}),
    );
    lab.policy(json!({"allowedSites": ["edge-a", "edge-b"]}));
    for (name, site, host, to, mode) in [
        ("plc-a", "edge-a", "host-a", "edge-b", "translate"),
        ("plc-b", "edge-b", "host-b", "edge-a", "translate"),
        ("web-b", "edge-b", "host-b", "edge-a", "proxy"),
    ] {
        let ip = lab.address(host, false);
        lab.apply(json!({"kind": "EService", "metadata": {"name": name}, "eSiteName": site, "ip": ip, "port": 7000}));
        lab.apply(
            json!({"kind": "ServiceExpose", "metadata": {"name": name}, "eServiceName": name, "eSites": [to],
            "ePolicys": ["narrow"], "mode": mode}),
        );
    }
    lab.community(&["cloud", "edge-a", "edge-b"], None);
    let check = |lab: &Layer3| {
        lab.await_crossing("host-a", "host-b", false);
        lab.await_crossing("host-b", "host-a", false);
        for (service, from, site) in [("plc-b", "host-a", "edge-a"), ("plc-a", "host-b", "edge-b")] {
            let presence = lab.presence(service, site);
            wait_for(&format!("{service} answers at {presence}"), || lab.pings(from, presence).then_some(()))
                .unwrap();
        }
        assert!(!lab.is_as_before("edge-a"), "there is something to be left");
    };
    check(&lab);
    for life in 1..=2 {
        lab.edges[0].unit.kill().unwrap();
        let begin = Instant::now();
        wait_for("nothing is left of the edge", || lab.is_as_before("edge-a").then_some(())).unwrap();
        println!("life {life}: nothing was left {:?} after kill -9", begin.elapsed());
        lab.edges[0].restart().unwrap();
        check(&lab);
    }
    lab.end();
}
