//! Tests of access decisions: which principals are allowed, and by which policy.

use causeway_netmap::{ExposureEntry, GatewayEntry, Generation, NetmapEntry, ServiceProtocol, SubjectEntry};

use super::*;

/// Berlin runs `camera`, exposed to Oslo under `guests` and `nobody-made-this`, and to Rome under nothing.
fn berlin() -> NetmapView {
    let policy = |name: &str, servers: &[&str], sites: &[&str], http: Vec<PolicyHttpRule>| {
        NetmapEntry::Policy(PolicyEntry {
            name: name.into(),
            servers: servers.iter().map(|name| (*name).into()).collect(),
            sites: sites.iter().map(|name| (*name).into()).collect(),
            limits: None,
            http,
            ports: Vec::new(),
        })
    };
    let read_only =
        PolicyHttpRule { methods: vec!["GET".into()], paths: vec!["/public/*".into(), "/health".into()] };
    let exposure = |site: &str, policies: &[&str]| ExposureEntry {
        sites: vec![site.into()],
        policies: policies.iter().map(|name| (*name).into()).collect(),
    };
    let facts = [
        NetmapEntry::Gateway(GatewayEntry::named("gw", "berlin")),
        NetmapEntry::Service(ServiceEntry {
            name: "camera".into(),
            port: 80,
            protocol: ServiceProtocol::Http,
            backends: vec![],
            domain_name: None,
            health_check: None,
            backend_tls: None,
            proxy_protocol: false,
            exposures: vec![exposure("oslo", &["guests", "nobody-made-this"]), exposure("rome", &[])],
        }),
        policy("guests", &["shop"], &[], vec![read_only]),
        policy("whole-site", &[], &["cloud"], vec![]),
        NetmapEntry::Subject(SubjectEntry { server: "shop".into(), site: "oslo".into(), ip: None }),
        NetmapEntry::Subject(SubjectEntry {
            server: "robot".into(),
            site: "berlin".into(),
            ip: "10.0.0.9".parse().ok(),
        }),
        NetmapEntry::Node(NodeEntry {
            server: "kubelet".into(),
            site: "berlin".into(),
            ip: "10.0.0.9".parse().ok(),
            ports: vec![10250],
            names: vec![],
            policies: vec!["whole-site".into()],
        }),
    ];
    NetmapView::of_entries(Generation { epoch: 1, revision: 1 }, &facts).unwrap()
}

#[track_caller]
fn check(site: &str, subject: &str, service: &str, expected: Result<&str, &str>) {
    let view = berlin();
    let decided = principal_of_peer(&view, &site.into(), subject)
        .and_then(|who| may_reach(&view, &service.into(), &who).map(|(_, permit)| permit));
    let decided = decided.as_ref().map(|permit| permit.rule().as_str()).map_err(PolicyRefusal::word);
    assert_eq!(decided, expected, "{subject} at {site} to {service}");
}

#[test]
fn a_service_is_reached_only_by_those_a_policy_names() {
    check("oslo", "shop", "camera", Ok("guests"));
    check("oslo", "", "camera", Err("not-allowed"));
    check("oslo", "stranger", "camera", Err("not-allowed"));
    check("rome", "", "camera", Err("not-allowed"));
    check("rome", "shop", "camera", Err("not-its-host"));
    check("oslo", "robot", "camera", Err("not-its-host"));
    check("paris", "", "camera", Err("not-exposed"));
    check("oslo", "shop", "printer", Err("no-service"));
}

#[test]
fn a_node_is_reached_under_its_own_policies_and_only_at_its_ports() {
    let view = berlin();
    let reach = |site: &str, node: &str, port| {
        let who = Principal { site: site.into(), server: None };
        may_reach_node(&view, &node.into(), port, &who).map(drop).map_err(|refusal| refusal.word())
    };
    assert_eq!(reach("cloud", "kubelet", 10250), Ok(()));
    assert_eq!(reach("cloud", "kubelet", 22), Err("port-closed"));
    assert_eq!(reach("oslo", "kubelet", 10250), Err("not-allowed"));
    assert_eq!(reach("cloud", "robot", 10250), Err("no-node"));
}

#[test]
fn requests_are_held_to_the_rules_of_http() {
    let view = berlin();
    let who = Principal { site: "oslo".into(), server: Some("shop".into()) };
    let (_, permit) = may_reach(&view, &"camera".into(), &who).unwrap();
    let allowed = |method: &str, path: &str| permit.allows_request(method, path).is_ok();
    assert!(allowed("GET", "/public/a/b") && allowed("GET", "/health") && allowed("GET", "/public/"));
    assert!(!allowed("POST", "/public/a") && !allowed("GET", "/health/x") && !allowed("GET", "/secret"));
}

#[test]
fn a_client_is_known_by_its_address_also_when_it_is_written_as_ipv6() {
    let view = berlin();
    for ip in ["10.0.0.9", "::ffff:10.0.0.9"] {
        let who = principal_at(&view, ip.parse().unwrap()).unwrap();
        assert_eq!((who.site.as_str(), who.server), ("berlin", Some("robot".into())));
    }
    assert_eq!(principal_at(&view, "10.0.0.10".parse().unwrap()).unwrap().server, None);
    assert_eq!(
        principal_at(&NetmapView::default(), "10.0.0.9".parse().unwrap()),
        Err(PolicyRefusal::NoNetmap)
    );
}

#[test]
fn a_policy_with_ports_allows_nothing_at_others() {
    let reach = |ports: &[(IpProtocol, u16, u16)], protocol: ServiceProtocol| {
        let mut view = berlin();
        let rules = ports.iter().map(|(protocol, first, last)| causeway_netmap::PortRule {
            protocol: *protocol,
            first: *first,
            last: *last,
        });
        for policy in view.policies.values_mut() {
            policy.ports = rules.clone().collect();
        }
        for service in view.services.values_mut() {
            service.protocol = protocol;
        }
        let who = Principal { site: "oslo".into(), server: Some("shop".into()) };
        let service = may_reach(&view, &"camera".into(), &who).is_ok();
        let who = Principal { site: "cloud".into(), server: None };
        (service, may_reach_node(&view, &"kubelet".into(), 10250, &who).is_ok())
    };
    use IpProtocol::{Icmp, Tcp, Udp};
    assert_eq!(reach(&[], ServiceProtocol::Http), (true, true));
    assert_eq!(reach(&[(Tcp, 80, 80)], ServiceProtocol::Http), (true, false));
    assert_eq!(reach(&[(Tcp, 81, 90)], ServiceProtocol::Http), (false, false));
    assert_eq!(reach(&[(Udp, 80, 80)], ServiceProtocol::Http), (false, false));
    assert_eq!(reach(&[(Udp, 80, 80)], ServiceProtocol::Udp), (true, false));
    assert_eq!(reach(&[(Tcp, 10000, 11000)], ServiceProtocol::Udp), (false, true));
    assert_eq!(reach(&[(Icmp, 0, u16::MAX)], ServiceProtocol::Http), (false, false));
}
