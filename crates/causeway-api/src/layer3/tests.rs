//! Collisions, mappings and allocations, as rows.

use ipnet::IpNet;
use serde_json::{Value, json};

use super::*;
use crate::{Kind, Object, ObjectSet};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

/// Sites with their networks, oldest first, and the community `all` of all of them.
fn objects(sites: &[(&str, &[&str])], map_from: &str) -> ObjectSet {
    let mut objects = ObjectSet::default();
    for (age, (name, subnets)) in sites.iter().enumerate() {
        let created = format!("2026-01-{:02}T00:00:00Z", age + 1);
        let metadata = json!({"name": name, "creationTimestamp": created});
        insert(&mut objects, Kind::ESite, json!({"metadata": metadata, "subnets": subnets}));
    }
    let members: Vec<&str> = sites.iter().map(|(name, _)| *name).collect();
    let community = json!({"metadata": {"name": "all"}, "members": members, "mapFrom": map_from});
    insert(&mut objects, Kind::ECommunity, community);
    objects
}

fn insert(objects: &mut ObjectSet, kind: Kind, value: Value) {
    objects.insert(Object::decode(kind, value).unwrap().object);
}

fn routes(objects: &ObjectSet, site: &str) -> Vec<String> {
    let found = routable(objects, site, objects.neighbours(site));
    found.iter().map(|network| format!("{} {}", network.site, network.wire)).collect()
}

#[test]
fn of_two_networks_that_overlap_the_older_site_keeps_its_route() {
    let check = |sites: &[(&str, &[&str])], viewer: &str, expected: &[&str]| {
        assert_eq!(routes(&objects(sites, ""), viewer), expected, "{sites:?} at {viewer}");
    };
    let apart: &[(&str, &[&str])] = &[("a", &["10.1.0.0/16"]), ("b", &["10.2.0.0/16", "fd00:2::/64"])];
    check(apart, "a", &["b 10.2.0.0/16", "b fd00:2::/64"]);
    check(apart, "b", &["a 10.1.0.0/16"]);
    let equal: &[(&str, &[&str])] =
        &[("b", &["10.0.0.0/24"]), ("a", &["10.0.0.0/24"]), ("c", &["10.9.0.0/24"])];
    check(equal, "c", &["b 10.0.0.0/24"]);
    check(equal, "b", &["c 10.9.0.0/24"]);
    check(equal, "a", &["c 10.9.0.0/24"]);
    let nested: &[(&str, &[&str])] =
        &[("old", &["10.1.1.0/24"]), ("wide", &["10.1.0.0/16"]), ("young", &["10.1.2.0/24"]), ("me", &[])];
    check(nested, "me", &["old 10.1.1.0/24", "young 10.1.2.0/24"]);
    let own: &[(&str, &[&str])] = &[("a", &["10.0.0.0/24", "10.0.0.0/25"]), ("b", &[])];
    check(own, "b", &["a 10.0.0.0/24", "a 10.0.0.0/25"]);
}

#[test]
fn both_sites_of_an_overlap_are_named() {
    let objects = objects(&[("b", &["10.0.0.0/16"]), ("a", &["10.0.1.0/24"]), ("c", &["10.9.0.0/24"])], "");
    let expected =
        NetworkOverlap { keeps: ("b".into(), net("10.0.0.0/16")), loses: ("a".into(), net("10.0.1.0/24")) };
    let found = |site: &str| overlaps_of(&objects, site).into_iter().collect::<Vec<_>>();
    assert_eq!(found("a"), std::slice::from_ref(&expected));
    assert_eq!(found("b"), std::slice::from_ref(&expected));
    assert_eq!(found("c"), []);
    assert_eq!(overlaps_in(&objects, ["a", "b", "c"]).into_iter().collect::<Vec<_>>(), [expected]);
}

#[test]
fn a_mapped_network_has_its_other_addresses_on_the_wire() {
    let mut objects = objects(&[("a", &["10.0.0.0/24"]), ("b", &["10.0.0.0/24"])], "");
    let created = "2026-01-02T00:00:00Z";
    let mapped = json!([{"subnet": "10.0.0.0/16", "as": "100.64.0.0/16"}]);
    let site = json!({
        "metadata": {"name": "b", "creationTimestamp": created}, "subnets": ["10.0.0.0/24"], "mappedSubnets": mapped
    });
    insert(&mut objects, Kind::ESite, site);
    assert_eq!(routes(&objects, "a"), ["b 100.64.0.0/24", "b 100.64.0.0/16"]);
    // The real network of b covers the wire addresses of a: its gateway cannot tell them apart.
    assert_eq!(routes(&objects, "b"), [""; 0]);
    assert_eq!(overlaps_of(&objects, "a").len(), 2);
    let ip = |text: &str| text.parse().unwrap();
    assert_eq!(wire_address(&objects, "b", ip("10.0.0.7")), Some(ip("100.64.0.7")));
    assert_eq!(wire_address(&objects, "b", ip("10.0.9.7")), Some(ip("100.64.9.7")));
    assert_eq!(wire_address(&objects, "a", ip("10.0.0.7")), Some(ip("10.0.0.7")));
    assert_eq!(wire_address(&objects, "a", ip("10.0.1.7")), None);
}

#[test]
fn an_address_keeps_its_host_bits() {
    let ip = |text: &str| text.parse().unwrap();
    let map = |address, from, to| map_address(ip(address), (net(from), net(to))).to_string();
    assert_eq!(map("10.0.0.7", "10.0.0.0/24", "100.64.7.0/24"), "100.64.7.7");
    assert_eq!(map("10.0.3.200", "10.0.0.0/22", "100.64.4.0/22"), "100.64.7.200");
    assert_eq!(map("fd00::1:7", "fd00::/64", "fd99:1::/64"), "fd99:1::1:7");
    assert_eq!(map("10.1.2.3", "0.0.0.0/0", "0.0.0.0/0"), "10.1.2.3");
}

#[test]
fn every_overlapping_network_gets_a_range_and_keeps_it() {
    let sites: &[(&str, &[&str])] =
        &[("a", &["10.0.0.0/24", "10.5.0.0/24"]), ("b", &["10.0.0.0/24"]), ("c", &["10.0.0.0/16"])];
    let mut objects = objects(sites, "100.64.0.0/10");
    let plan = |objects: &ObjectSet| plan_ranges(objects, objects.community("all").unwrap());
    let shown = |plan: &RangePlan| {
        let row = |range: &MappedRange| format!("{} {} {}", range.site, range.subnet, range.seen_as);
        plan.ranges.iter().map(row).collect::<Vec<_>>()
    };
    let first = plan(&objects);
    assert_eq!(
        shown(&first),
        ["a 10.0.0.0/24 100.64.0.0/24", "b 10.0.0.0/24 100.64.1.0/24", "c 10.0.0.0/16 100.65.0.0/16"]
    );
    objects.layer3.ranges.insert("all".into(), first.ranges.clone());
    assert_eq!(plan(&objects), first, "planned twice, nothing changes");
    assert_eq!(routes(&objects, "a"), ["b 100.64.1.0/24", "c 100.65.0.0/16"]);
    assert!(overlaps_in(&objects, ["a", "b", "c"]).is_empty());
    // The other sites leave: an address that was written down stays.
    let community = json!({"metadata": {"name": "all"}, "members": ["a"], "mapFrom": "100.64.0.0/10"});
    insert(&mut objects, Kind::ECommunity, community);
    assert_eq!(shown(&plan(&objects)), ["a 10.0.0.0/24 100.64.0.0/24"]);
    let community = json!({"metadata": {"name": "all"}, "members": ["a"]});
    insert(&mut objects, Kind::ECommunity, community);
    assert_eq!(shown(&plan(&objects)), [""; 0], "without mapFrom nothing is mapped");
}

#[test]
fn a_range_avoids_what_is_taken_and_says_when_it_is_full() {
    let sites: &[(&str, &[&str])] =
        &[("a", &["10.0.0.0/24"]), ("b", &["10.0.0.0/24"]), ("c", &["100.64.0.0/25"])];
    let full = objects(sites, "100.64.0.0/24");
    let plan = plan_ranges(&full, full.community("all").unwrap());
    assert_eq!((plan.ranges.len(), plan.without.len()), (0, 2));
    let roomy = objects(sites, "100.64.0.0/22");
    let plan = plan_ranges(&roomy, roomy.community("all").unwrap());
    let ranges: Vec<String> = plan.ranges.iter().map(|range| range.seen_as.to_string()).collect();
    assert_eq!(ranges, ["100.64.1.0/24", "100.64.2.0/24"]);
    let other_family = objects(sites, "fd00::/32");
    assert_eq!(plan_ranges(&other_family, other_family.community("all").unwrap()).without.len(), 2);
}

#[test]
fn a_key_belongs_to_the_gateway_that_had_it_first() {
    let mut objects = ObjectSet::default();
    let key = show_key(&[7; 32]);
    for name in ["young", "old", "none"] {
        insert(&mut objects, Kind::EGateway, json!({"metadata": {"name": name}, "eSiteName": "s"}));
    }
    let record = |since| TunnelRecord { public_key: key.clone(), since, ..TunnelRecord::default() };
    objects.layer3.tunnels.insert("young".into(), record(20));
    objects.layer3.tunnels.insert("old".into(), record(10));
    let keeper = |objects: &ObjectSet, name: &str| objects.tunnel_key_owner(name).map(str::to_owned);
    assert_eq!(keeper(&objects, "young"), Some("old".into()));
    assert_eq!((keeper(&objects, "old"), objects.tunnel_key_duplicate("old")), (None, Some("young")));
    assert_eq!((keeper(&objects, "none"), objects.tunnel_key("none")), (None, None));
    let plain = json!({
        "metadata": {"name": "plain"}, "eSiteName": "s", "publicKey": key, "endpoint": "203.0.113.1:51820"
    });
    insert(&mut objects, Kind::EGateway, plain);
    assert_eq!(keeper(&objects, "old"), Some("plain".into()), "a user wrote it down");
    assert_eq!(parse_key("AAAA"), None);
}

#[test]
fn a_gateway_that_was_moved_or_is_being_deleted_has_no_tunnel() {
    let check = |gateway: serde_json::Value, site: &str, expected: bool| {
        let mut objects = ObjectSet::default();
        insert(&mut objects, Kind::EGateway, gateway);
        let (public_key, site) = (show_key(&[7; 32]), site.to_owned());
        objects
            .layer3
            .tunnels
            .insert("g".into(), TunnelRecord { public_key, site, ..TunnelRecord::default() });
        assert_eq!(objects.tunnel_key("g").is_some(), expected);
    };
    let at_oslo = json!({"metadata": {"name": "g"}, "eSiteName": "oslo"});
    check(at_oslo.clone(), "oslo", true);
    check(at_oslo.clone(), "", true);
    // Its certificate names another site: it must be enrolled anew.
    check(at_oslo, "rome", false);
    let deleted = json!({
        "metadata": {"name": "g", "deletionTimestamp": "2026-11-18T00:00:00Z", "finalizers": ["x/y"]},
        "eSiteName": "oslo",
    });
    check(deleted, "oslo", false);
}
