//! Rows through one check: the client, the query, and the answer.

use std::str::FromStr;

use causeway_netmap::{
    Generation, HostEntry, NetmapEntry, PolicyEntry, PolicyName, ServiceProtocol, SiteEntry, SubjectEntry,
    TranslatedPresenceEntry, TranslatedScope,
};

use super::*;

/// Oslo may use `camera` of Berlin, which has a name of its own choice, and not `vault`, though it is exposed there.
fn oslo() -> NetmapView {
    let presence = |service: &str, addresses: &[&str], names: &[&str], policy: &str| {
        NetmapEntry::Presence(PresenceEntry {
            service: service.into(),
            addresses: addresses.iter().map(|ip| PresenceIp(ip.parse().unwrap())).collect(),
            port: 80,
            protocol: ServiceProtocol::Tcp,
            brokers: 0,
            names: names.iter().map(|name| DnsName::new(name)).collect(),
            service_site: "berlin".into(),
            policies: vec![PolicyName::from(policy), "missing".into()],
        })
    };
    let policy = |name: &str, servers: &[&str], sites: &[&str]| {
        NetmapEntry::Policy(PolicyEntry {
            name: name.into(),
            servers: servers.iter().map(|name| (*name).into()).collect(),
            sites: sites.iter().map(|name| (*name).into()).collect(),
            limits: None,
            http: vec![],
            ports: Vec::new(),
        })
    };
    let node = |server: &str, site: &str, ip: Option<&str>| {
        NetmapEntry::Node(NodeEntry {
            server: server.into(),
            site: site.into(),
            ip: ip.map(|ip| ip.parse().unwrap()),
            ports: vec![10250],
            names: vec![DnsName::new(server), DnsName::new(&format!("{server}.{site}.{ZONE}"))],
            policies: vec![],
        })
    };
    let host = |server: &str, ip: &str, name: &str| {
        NetmapEntry::Host(HostEntry {
            server: server.into(),
            site: "bonn".into(),
            ip: ip.parse().unwrap(),
            names: vec![DnsName::new(name)],
        })
    };
    let facts = [
        NetmapEntry::Gateway(GatewayEntry {
            ip: "10.0.0.2".parse().ok(),
            presence_cidrs: vec!["198.18.0.0/16".parse().unwrap(), "fd00:18::/64".parse().unwrap()],
            ..GatewayEntry::named("oslo-1", "oslo")
        }),
        NetmapEntry::Site(SiteEntry {
            name: "oslo".into(),
            subnets: vec!["10.0.0.0/24".parse().unwrap(), "fd00::/64".parse().unwrap()],
            active: None,
        }),
        presence(
            "Camera",
            &["198.18.0.1", "fd00:18::1"],
            &["cam.example.com", "camera.berlin.causeway.internal"],
            "guests",
        ),
        presence("shop", &["198.18.0.3"], &["shop.berlin.causeway.internal"], "robots"),
        presence("vault", &["198.18.0.2"], &["vault.example.com", "vault.rome.causeway.internal"], "others"),
        policy("guests", &[], &["oslo"]),
        policy("robots", &["robot"], &[]),
        policy("others", &["stranger"], &["rome"]),
        NetmapEntry::Subject(SubjectEntry { server: "robot".into(), site: "oslo".into(), ip: None }),
        NetmapEntry::Subject(SubjectEntry { server: "stranger".into(), site: "rome".into(), ip: None }),
        node("here", "oslo", Some("10.0.0.9")),
        node("there", "berlin", None),
        node("mapped", "bonn", None),
        host("mapped", "100.64.7.7", "mapped.bonn.causeway.internal"),
        host("clerk", "100.64.7.8", "clerk.bonn.causeway.internal"),
        // A service has its name before a host.
        host("camera", "100.64.7.9", "camera.berlin.causeway.internal"),
    ];
    view(&facts)
}

fn view(facts: &[NetmapEntry]) -> NetmapView {
    NetmapView::of_entries(Generation { epoch: 1, revision: 7 }, facts).unwrap()
}

/// The answer as a short text.
fn as_text(answer: DnsAnswer) -> String {
    let owner = |soa: Record| match soa.data {
        RData::SOA(data) if data.minimum == 2 && soa.ttl == 2 => soa.name.to_ascii(),
        other => panic!("{other:?}"),
    };
    match answer {
        DnsAnswer::Records(records) => {
            let texts: Vec<String> =
                records.iter().map(|record| format!("{} {}", record.ttl, record.data)).collect();
            texts.join(", ")
        }
        DnsAnswer::NoData { soa } => format!("no data in {}", owner(soa)),
        DnsAnswer::NoName { soa } => format!("no name in {}", owner(soa)),
        DnsAnswer::Refused => "refused".into(),
        DnsAnswer::NotYet => "not yet".into(),
        DnsAnswer::Forward => "forward".into(),
    }
}

fn check_in(view: &NetmapView, name: &str, kind: RecordType, expected: &str) {
    let asked = Name::from_str(name).unwrap();
    assert_eq!(as_text(answer(view, DnsClient::Near, &asked, kind)), expected, "{name} {kind}");
}

#[test]
fn names_are_answered_with_the_addresses_they_have_here() {
    use RecordType::{A, AAAA, ANY, HTTPS, MX};
    let view = oslo();
    let check = |name: &str, kind: RecordType, expected: &str| check_in(&view, name, kind, expected);
    check("camera.berlin.causeway.internal.", A, "5 198.18.0.1");
    check("camera.berlin.causeway.internal.", AAAA, "5 fd00:18::1");
    check("CAMERA.Berlin.causeway.INTERNAL.", A, "5 198.18.0.1");
    check("cam.example.com.", A, "5 198.18.0.1");
    check("cam.example.com.", ANY, "5 198.18.0.1, 5 fd00:18::1");
    // A policy that admits a single host of the site is enough for the name.
    check("shop.berlin.causeway.internal.", A, "5 198.18.0.3");
    check("shop.berlin.causeway.internal.", AAAA, "no data in causeway.internal.");
    check("camera.berlin.causeway.internal.", MX, "no data in causeway.internal.");
    // Outside our zone we are authoritative for the name alone.
    check("cam.example.com.", HTTPS, "no data in cam.example.com.");
    check("example.com.", A, "forward");
    check("x.cam.example.com.", A, "forward");
}

#[test]
fn what_the_site_may_not_use_does_not_exist() {
    use RecordType::{A, NS, PTR, SOA};
    let view = oslo();
    let check = |name: &str, kind: RecordType, expected: &str| check_in(&view, name, kind, expected);
    let none = "no name in causeway.internal.";
    check("vault.rome.causeway.internal.", A, none);
    check("vault.example.com.", A, "no name in vault.example.com.");
    check("rome.causeway.internal.", A, none);
    check("nothing.berlin.causeway.internal.", A, none);
    check("x.camera.berlin.causeway.internal.", A, none);
    check("notcauseway.internal.", A, "forward");
    check("2.0.18.198.in-addr.arpa.", PTR, "no name in 2.0.18.198.in-addr.arpa.");
    // A name with names below it exists.
    check("berlin.causeway.internal.", A, "no data in causeway.internal.");
    check("causeway.internal.", NS, "no data in causeway.internal.");
    let soa = "2 gateway.causeway.internal. hostmaster.causeway.internal. 7 2 2 2 2".to_owned();
    check("causeway.internal.", SOA, &soa);
}

#[test]
fn nodes_are_where_they_are_or_behind_this_gateway() {
    use RecordType::{A, AAAA};
    let view = oslo();
    let check = |name: &str, kind: RecordType, expected: &str| check_in(&view, name, kind, expected);
    check("here.", A, "5 10.0.0.9");
    check("here.oslo.causeway.internal.", A, "5 10.0.0.9");
    check("there.", A, "5 10.0.0.2");
    check("there.", AAAA, "no data in there.");
    let mut view = oslo();
    view.gateway.as_mut().unwrap().ip = None;
    check_in(&view, "there.", A, "no data in there.");
}

#[test]
fn addresses_have_names() {
    use RecordType::{A, PTR};
    let view = oslo();
    let check = |name: &str, kind: RecordType, expected: &str| check_in(&view, name, kind, expected);
    check("1.0.18.198.in-addr.arpa.", PTR, "5 camera.berlin.causeway.internal.");
    check("1.0.18.198.in-addr.arpa.", A, "no data in 1.0.18.198.in-addr.arpa.");
    let zeros = "0.".repeat(23);
    let whole = format!("1.{zeros}8.1.0.0.0.0.d.f.ip6.arpa.");
    check(&whole, PTR, "5 camera.berlin.causeway.internal.");
    check(&whole.replace("8.1.0.0", "9.1.0.0"), PTR, "forward");
    // Only this gateway knows the names in our presence networks.
    check("9.9.18.198.in-addr.arpa.", PTR, "no name in 9.9.18.198.in-addr.arpa.");
    check("18.198.in-addr.arpa.", PTR, "no data in 18.198.in-addr.arpa.");
    check("198.in-addr.arpa.", PTR, "forward");
    check("1.0.0.10.in-addr.arpa.", PTR, "forward");
    check("999.0.18.198.in-addr.arpa.", PTR, "forward");
}

#[test]
fn strangers_hear_nothing() {
    let view = oslo();
    for (name, kind) in [
        ("camera.berlin.causeway.internal.", RecordType::A),
        ("nothing.causeway.internal.", RecordType::A),
        ("example.com.", RecordType::A),
        ("1.0.18.198.in-addr.arpa.", RecordType::PTR),
    ] {
        let asked = Name::from_str(name).unwrap();
        assert_eq!(answer(&view, DnsClient::Far, &asked, kind), DnsAnswer::Refused, "{name}");
    }
    check_in(&view, "causeway.internal.", RecordType::AXFR, "refused");
    check_in(&view, "example.com.", RecordType::IXFR, "refused");
}

#[test]
fn who_is_near() {
    let view = oslo();
    let connected: Vec<IpNet> = vec!["192.168.7.0/24".parse().unwrap(), "fe80::/64".parse().unwrap()];
    let check = |client: &str, expected: DnsClient| {
        assert_eq!(client_location(&view, &connected, client.parse().unwrap()), expected, "{client}");
    };
    check("127.0.0.1", DnsClient::Near);
    check("::1", DnsClient::Near);
    check("10.0.0.77", DnsClient::Near);
    check("::ffff:10.0.0.77", DnsClient::Near);
    check("fd00::77", DnsClient::Near);
    check("192.168.7.9", DnsClient::Near);
    check("fe80::1", DnsClient::Near);
    check("10.0.1.77", DnsClient::Far);
    check("203.0.113.5", DnsClient::Far);
    check("2001:db8::1", DnsClient::Far);
    assert_eq!(client_location(&NetmapView::default(), &[], "10.0.0.77".parse().unwrap()), DnsClient::Far);
}

#[test]
fn without_a_netmap_nothing_is_said_about_our_names() {
    let view = NetmapView::default();
    check_in(&view, "camera.berlin.causeway.internal.", RecordType::A, "not yet");
    check_in(&view, "example.com.", RecordType::A, "forward");
}

#[test]
fn hosts_that_packets_reach_have_their_addresses_on_the_wire() {
    use RecordType::{A, AAAA};
    let view = oslo();
    let check = |name: &str, kind: RecordType, expected: &str| check_in(&view, name, kind, expected);
    check("clerk.bonn.causeway.internal.", A, "5 100.64.7.8");
    check("clerk.bonn.causeway.internal.", AAAA, "no data in causeway.internal.");
    // The names of a node lead to the same address, not to the entry ports of the gateway.
    check("mapped.bonn.causeway.internal.", A, "5 100.64.7.7");
    check("mapped.", A, "5 100.64.7.7");
    check("clerk.", A, "forward");
    check("bonn.causeway.internal.", A, "no data in causeway.internal.");
}

#[test]
fn a_translated_service_has_a_name_where_a_client_may_use_it() {
    use RecordType::{A, PTR};
    let translated = |service: &str, ip: &str, policy: &str| {
        NetmapEntry::TranslatedPresence(TranslatedPresenceEntry {
            service: service.into(),
            addresses: vec![PresenceIp(ip.parse().unwrap())],
            scope: TranslatedScope::Everything,
            names: vec![DnsName::new(&format!("{service}.bonn.{ZONE}"))],
            service_site: "bonn".into(),
            gateway: "bonn-1".into(),
            policies: vec![policy.into()],
        })
    };
    let gateway = oslo().gateway.unwrap();
    let guests = oslo().policies.get("guests").unwrap().clone();
    let view = view(&[
        NetmapEntry::Gateway(gateway),
        NetmapEntry::Policy(guests),
        translated("plc", "198.18.0.7", "guests"),
        translated("hidden", "198.18.0.8", "missing"),
    ]);
    check_in(&view, "plc.bonn.causeway.internal.", A, "5 198.18.0.7");
    check_in(&view, "7.0.18.198.in-addr.arpa.", PTR, "5 plc.bonn.causeway.internal.");
    check_in(&view, "hidden.bonn.causeway.internal.", A, "no name in causeway.internal.");
    check_in(&view, "8.0.18.198.in-addr.arpa.", PTR, "no name in 8.0.18.198.in-addr.arpa.");
}
