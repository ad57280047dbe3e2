//! Entries decode as they were encoded; entries of a later version do no harm.

use prost::Message;

use super::*;
use crate::wire::{PolicyMessage, PresenceMessage};

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
            home: "berlin".into(),
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
        }),
        NetmapEntry::Subject(SubjectEntry { server: "Server1".into(), site: "oslo".into(), ip: None }),
        NetmapEntry::Node(NodeEntry {
            server: "node-1".into(),
            site: "oslo".into(),
            ip: Some(ip4),
            ports: vec![22, 10250],
            names: vec![DnsName::new("node-1")],
            policies: vec!["p".into()],
        }),
    ]
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
    message.requires = vec!["only-on-weekdays".into()];
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
