//! Broken set-ups that need a network of their own, and what `causeway doctor` says to each: rows through one check.
//!
//! The remaining cases are rows of `tests/system` (`doctor.rs`).

use testlab::causeway::wait_for;
use testlab::net::Echo;

use crate::nat_fleet::{EDGE, Fleet, NAT, PATIENCE};

/// `doctor` says all of these parts, and none of those.
#[track_caller]
fn check(fleet: &Fleet, set_up: &str, arguments: &[&str], code: i32, parts: &[&str], not: &[&str]) {
    let mut last = None;
    let said = wait_for(set_up, || {
        let ran = fleet.cloud.run(&[&["doctor"], arguments].concat()).ok()?;
        let is_said = ran.code == code
            && parts.iter().all(|part| ran.stdout.contains(part))
            && !not.iter().any(|part| ran.stdout.contains(part));
        last = Some(ran);
        is_said.then_some(())
    });
    match (said, last) {
        (Ok(()), Some(ran)) => {
            let first = ran.stdout.lines().find(|line| parts.first().is_some_and(|part| line.contains(part)));
            println!("{set_up}\n    {}", first.unwrap_or("nothing fails"));
        }
        (error, last) => {
            panic!("{set_up}: {error:?}\nwanted {code} {parts:?} without {not:?}, got {last:#?}")
        }
    }
}

/// Runs a program on the host of the edge.
fn on_edge(fleet: &Fleet, command: &str) {
    let mut words = command.split_whitespace();
    let output = fleet.net.host(EDGE).unwrap().command(words.next().unwrap()).args(words).output().unwrap();
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn doctor_sees_forwarding_firewalls_routes_and_blocked_udp() {
    let Some(mut fleet) = Fleet::connected("doctor_sees_forwarding_firewalls_routes_and_blocked_udp") else {
        return;
    };
    let ip = fleet.net.ipv4(EDGE).unwrap();
    let _backend = Echo::start(&fleet.net.host("cloud").unwrap(), "0.0.0.0:7000".parse().unwrap()).unwrap();
    // A service of the cloud, presented at the edge's site; that site has a router: the edge's host.
    let objects = format!(
        "---\n{{apiVersion: causeway.io/v1, kind: EGateway, metadata: {{name: {EDGE}}}, eSiteName: {EDGE}, ip: {ip}}}\n\
         ---\n{{apiVersion: causeway.io/v1, kind: EService, metadata: {{name: web}}, eSiteName: cloud, ip: 127.0.0.1, port: 7000, protocol: TCP}}\n\
         ---\n{{apiVersion: causeway.io/v1, kind: EPolicy, metadata: {{name: all}}, allowedSites: [{EDGE}]}}\n\
         ---\n{{apiVersion: causeway.io/v1, kind: ServiceExpose, metadata: {{name: web}}, eServiceName: web, dnsName: web.test, eSites: [{EDGE}], ePolicys: [all]}}\n"
    );
    fleet.cloud.apply(&objects).unwrap();

    let gateway = format!("gateway/{EDGE}");
    let gateway = gateway.as_str();
    on_edge(&fleet, "sysctl -q -w net.ipv4.conf.eth0.forwarding=0");
    let off = ["does not forward IPv4", "fix: sysctl -w net.ipv4.conf.eth0.forwarding=1"];
    check(&fleet, "forwarding is off", &[gateway], 1, &off, &[]);
    check(&fleet, "forwarding is off, seen from the fleet", &[], 1, &off, &[]);
    on_edge(&fleet, "sysctl -q -w net.ipv4.conf.eth0.forwarding=1");
    check(&fleet, "forwarding is on again", &["web"], 0, &["a question went from"], &["forward IPv4"]);

    on_edge(&fleet, "nft add table inet guard");
    on_edge(
        &fleet,
        "nft add chain inet guard forward { type filter hook forward priority 0 ; policy drop ; }",
    );
    let dropped =
        ["chain inet guard forward has policy drop", "fix: nft insert rule inet guard forward oifname"];
    check(&fleet, "a firewall drops what is forwarded", &[gateway], 1, &dropped, &[]);
    on_edge(&fleet, "nft add rule inet guard forward oifname causeway* accept");
    check(&fleet, "a rule lets it through", &[gateway], 0, &[], &["policy drop"]);
    on_edge(&fleet, "nft insert rule inet guard forward meta l4proto tcp drop");
    check(&fleet, "a rule drops it", &[gateway], 1, &["a rule of chain inet guard forward does"], &[]);
    on_edge(&fleet, "nft delete table inet guard");
    check(&fleet, "the firewall is gone", &[gateway], 0, &[], &["firewall"]);

    let list = fleet.cloud.call(|api| api.get("/apis/causeway.io/v1/virtualpresences")?.success()).unwrap();
    let items = list["items"].as_array().unwrap().iter();
    let address =
        items.filter(|item| item["eSiteName"] == EDGE).find_map(|item| item["virtualIp"].as_str()).unwrap();
    on_edge(&fleet, &format!("ip route add {address}/32 dev eth0"));
    let hidden = format!("the host has a more specific route to {address}/32 by eth0");
    check(
        &fleet,
        "a more specific route hides the presence",
        &["web"],
        1,
        &[&hidden, "fix: ip route del"],
        &[],
    );
    on_edge(&fleet, &format!("ip route del {address}/32 dev eth0"));
    check(&fleet, "the route is gone", &["web"], 0, &[], &["more specific route"]);

    fleet.net.block(NAT, testlab::net::Traffic::Udp).unwrap();
    fleet.await_transport("tcp", PATIENCE);
    let fell_back = ["it fell back to TCP: ", "let UDP of the channel port through"];
    check(&fleet, "UDP is blocked", &[gateway], 0, &fell_back, &[]);
    fleet.net.allow(NAT, testlab::net::Traffic::Udp).unwrap();
    fleet.await_transport("quic", PATIENCE);
    check(&fleet, "UDP passes again", &[gateway], 0, &["connected over quic"], &["fell back"]);
}
