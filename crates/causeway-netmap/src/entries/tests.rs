//! Entries decode as they were encoded; entries of a later version do no harm.

use prost::Message;

use super::*;
use crate::wire::{MappingMessage, PolicyMessage, PortRuleMessage, PresenceMessage, TunnelPeerMessage};

fn facts() -> Vec<NetmapEntry> {
    let (ip4, ip6) = ("10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap());
    vec![
        NetmapEntry::Gateway(GatewayEntry {
            name: "oslo-1".into(),
            site: "oslo".into(),
            ip: Some(ip4),
            presence_cidrs: vec!["198.18.0.0/16".parse().unwrap(), "fd00::/112".parse().unwrap()],
            priority: -3,
            relay: true,
            prefer: CarriagePreference::Survival,
            drain: true,
            tunnel_networks: vec!["10.0.0.0/24".parse().unwrap()],
            mappings: vec![mapping()],
        }),
        NetmapEntry::Site(SiteEntry {
            name: "oslo".into(),
            subnets: vec!["10.0.0.0/24".parse().unwrap()],
            active: Some("oslo-2".into()),
        }),
        NetmapEntry::Site(SiteEntry { name: "rome".into(), subnets: Vec::new(), active: None }),
        NetmapEntry::Presence(PresenceEntry {
            service: "Camera".into(),
            addresses: vec![PresenceIp(ip4), PresenceIp(ip6)],
            port: 8080,
            protocol: ServiceProtocol::Http,
            brokers: 3,
            names: vec![DnsName::new("Camera.Berlin.causeway.internal.")],
            service_site: "berlin".into(),
            policies: vec!["p".into()],
        }),
        NetmapEntry::Service(ServiceEntry {
            name: "web".into(),
            port: 443,
            protocol: ServiceProtocol::Https,
            backends: vec![
                BackendEndpoint::Address(ip6, 8443),
                BackendEndpoint::Host(DnsName::new("web.local"), 443),
            ],
            domain_name: Some(DnsName::new("web.local")),
            health_check: Some(BackendHealthCheck {
                kind: BackendHealthCheckType::Http,
                path: "/healthz".into(),
                interval_seconds: 10,
            }),
            backend_tls: Some(BackendTlsSettings {
                mode: BackendTlsVerification::Verify,
                server_name: "web.local".into(),
                ca_bundle: "pem".into(),
            }),
            proxy_protocol: true,
            exposures: vec![ExposureEntry {
                sites: vec!["oslo".into()],
                policies: vec!["p".into(), "q".into()],
            }],
        }),
        NetmapEntry::Policy(PolicyEntry {
            name: "p".into(),
            servers: vec!["Server1".into()],
            sites: vec!["oslo".into()],
            limits: Some(PolicyLimits {
                connections: Some(0),
                requests_per_second: Some(9),
                ..PolicyLimits::default()
            }),
            http: vec![PolicyHttpRule { methods: vec!["GET".into()], paths: vec!["/public/*".into()] }],
            ports: vec![PortRule { protocol: IpProtocol::Udp, first: 5000, last: 5100 }],
        }),
        NetmapEntry::Subject(SubjectEntry { server: "Server1".into(), site: "oslo".into(), ip: None }),
        NetmapEntry::TranslatedPresence(TranslatedPresenceEntry {
            service: "printer".into(),
            addresses: vec![PresenceIp(ip4)],
            scope: TranslatedScope::Port(IpProtocol::Udp, 161),
            names: vec![DnsName::new("printer.rome.causeway.internal")],
            service_site: "rome".into(),
            gateway: "rome-1".into(),
            policies: vec!["p".into()],
        }),
        NetmapEntry::TranslatedService(TranslatedServiceEntry {
            service: "plc".into(),
            ip: ip6,
            port: 0,
            scope: TranslatedScope::Everything,
            exposures: vec![TranslatedExposure {
                site: "rome".into(),
                addresses: vec![PresenceIp(ip6)],
                policies: vec!["p".into()],
            }],
        }),
        NetmapEntry::Host(HostEntry {
            server: "clerk".into(),
            site: "rome".into(),
            ip: ip6,
            names: vec![DnsName::new("clerk.rome.causeway.internal")],
        }),
        NetmapEntry::Node(NodeEntry {
            server: "node-1".into(),
            site: "oslo".into(),
            ip: Some(ip4),
            ports: vec![22, 10250],
            names: vec![DnsName::new("node-1")],
            policies: vec!["p".into()],
        }),
        NetmapEntry::TunnelPeer(TunnelPeerEntry {
            gateway: "rome-1".into(),
            site: "rome".into(),
            public_key: TunnelKey([7; 32]),
            cipher: TunnelCipher::Aes256Gcm,
            endpoints: vec!["203.0.113.1:7446".into()],
            networks: vec!["10.2.0.0/24".parse().unwrap()],
            plain_wireguard: true,
            relay: true,
        }),
        community(None),
        community(Some(vec!["p".into()])),
        community(Some(Vec::new())),
        NetmapEntry::RelayGroup(RelayGroupEntry {
            name: "service:plc".into(),
            sites: vec!["oslo".into(), "rome".into()],
        }),
        NetmapEntry::OnDemand(OnDemandEntry {
            networks: vec!["10.2.0.0/15".parse().unwrap(), "fd00:2::/32".parse().unwrap()],
        }),
    ]
}

fn mapping() -> PrefixMapping {
    PrefixMapping { subnet: "10.0.0.0/24".parse().unwrap(), seen_as: "100.64.7.0/24".parse().unwrap() }
}

fn community(policies: Option<Vec<PolicyName>>) -> NetmapEntry {
    let members = vec!["oslo".into(), "rome".into()];
    NetmapEntry::Community(CommunityEntry { name: "north".into(), members, policies })
}

#[test]
fn a_fact_reads_as_it_was_written() {
    for fact in facts() {
        let (key, value) = fact.encode();
        assert_eq!(NetmapEntry::decode(&key, &value), Ok(Some(fact)));
    }
}

#[test]
fn a_kind_of_a_later_version_is_no_error() {
    assert_eq!(NetmapEntry::decode(&EntryKey::new("tunnel/a"), &Bytes::from_static(b"\xff")), Ok(None));
}

#[test]
fn a_protocol_of_a_later_version_is_not_taken_for_another() {
    let message = PresenceMessage { port: 1, protocol: 77, ..PresenceMessage::default() };
    let read = NetmapEntry::decode(&EntryKey::new("presence/a"), &message.encode_to_vec().into());
    assert_eq!(read.unwrap_err().why, "a protocol that is not known here");
    assert!(NetmapEntry::decode(&EntryKey::new("presence/a"), &Bytes::from_static(b"\xff\xff")).is_err());
}

#[test]
fn a_policy_that_asks_for_more_than_we_know_allows_nobody() {
    let mut message =
        PolicyMessage { sites: vec!["oslo".into()], servers: vec!["s".into()], ..PolicyMessage::default() };
    let allows = |message: &PolicyMessage| match NetmapEntry::decode(
        &EntryKey::new("policy/p"),
        &message.encode_to_vec().into(),
    ) {
        Ok(Some(NetmapEntry::Policy(policy))) => policy.allows(&"oslo".into(), Some(&"s".into())),
        other => panic!("{other:?}"),
    };
    assert!(allows(&message));
    message.requires = vec!["ports".into()];
    message.ports = vec![PortRuleMessage { protocol: 1, first: 1, last: 2 }];
    assert!(allows(&message));
    message.ports = vec![PortRuleMessage { protocol: 9, first: 1, last: 2 }];
    assert!(!allows(&message), "a protocol of a later version");
    message.ports = vec![PortRuleMessage { protocol: 1, first: 1, last: 70_000 }];
    assert!(!allows(&message), "a port that does not exist");
    message.ports.clear();
    message.requires.push("only-on-weekdays".into());
    assert!(!allows(&message));
}

#[test]
fn a_service_is_exposed_where_it_is_said() {
    let Some(NetmapEntry::Service(service)) =
        facts().into_iter().find(|fact| matches!(fact, NetmapEntry::Service(_)))
    else {
        panic!("there is one");
    };
    let policies = |site: &str| service.policies_for(&site.into()).map(|policies| policies.len());
    assert_eq!((policies("oslo"), policies("berlin")), (Some(2), None));
}

#[test]
fn a_policy_with_ports_tells_an_older_gateway_to_let_nobody_in() {
    let Some(policy) = facts().into_iter().find(|fact| matches!(fact, NetmapEntry::Policy(_))) else {
        panic!("there is one");
    };
    let message = PolicyMessage::decode(policy.encode().1).unwrap();
    assert_eq!(message.requires, ["ports"]);
}

#[test]
fn a_tunnel_peer_of_a_later_version_is_not_guessed_at() {
    let why = |message: TunnelPeerMessage| {
        let read = NetmapEntry::decode(&EntryKey::new("tunnelpeer/a"), &message.encode_to_vec().into());
        read.unwrap_err().why
    };
    let sound = TunnelPeerMessage { public_key: vec![1; 32], cipher: 1, ..TunnelPeerMessage::default() };
    assert_eq!(why(TunnelPeerMessage { cipher: 3, ..sound.clone() }), "a cipher that is not known here");
    assert_eq!(
        why(TunnelPeerMessage { public_key: vec![1; 31], ..sound }),
        "a tunnel key does not have 32 bytes"
    );
}

#[test]
fn a_mapping_keeps_the_size_of_a_network() {
    for (subnet, seen_as) in [("10.0.0.0/24", "10.1.0.0/23"), ("10.0.0.0/24", "fd00::/24")] {
        let mapping = MappingMessage { subnet: subnet.into(), seen_as: seen_as.into() };
        let message = crate::wire::GatewayMessage { mappings: vec![mapping], ..Default::default() };
        let read = NetmapEntry::decode(&EntryKey::new("gateway"), &message.encode_to_vec().into());
        assert_eq!(read.unwrap_err().why, "a mapping of networks of different sizes");
    }
}

#[test]
fn a_policy_is_about_the_ports_it_names() {
    let rule = |protocol, first, last| PortRule { protocol, first, last };
    let policy = |ports: &[PortRule]| PolicyEntry {
        name: "p".into(),
        servers: Vec::new(),
        sites: Vec::new(),
        limits: None,
        http: Vec::new(),
        ports: ports.to_vec(),
    };
    let narrow = policy(&[rule(IpProtocol::Tcp, 443, 443), rule(IpProtocol::Udp, 5000, 5100)]);
    let rows = [
        (IpProtocol::Tcp, 443, true),
        (IpProtocol::Tcp, 444, false),
        (IpProtocol::Udp, 443, false),
        (IpProtocol::Udp, 5000, true),
        (IpProtocol::Udp, 5100, true),
        (IpProtocol::Udp, 5101, false),
        (IpProtocol::Icmp, 0, false),
    ];
    for (protocol, port, covered) in rows {
        assert_eq!(narrow.covers_port(protocol, port), covered, "{protocol:?} {port}");
        assert!(policy(&[]).covers_port(protocol, port));
    }
    assert!(policy(&[rule(IpProtocol::Icmp, 0, u16::MAX)]).covers_port(IpProtocol::Icmp, 0));
}
