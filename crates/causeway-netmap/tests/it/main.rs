//! Pins the bytes of netmaps: entries, updates and digests, as gateways and files on disk know them.
//!
//! The texts are in `fixtures/netmap.hex`, one line (`name: hex`) per value. A test that fails here means that an older gateway,
//! or the file of the last netmap, reads something else: a rename must leave the file as it is, and a new field adds lines.

#![allow(clippy::unwrap_used, clippy::panic)]

use bytes::Bytes;
use causeway_netmap::{
    BackendEndpoint, BackendHealthCheck, BackendHealthCheckType, BackendTlsSettings, BackendTlsVerification,
    CommunityEntry, DnsName, EntryKey, ExposureEntry, GatewayEntry, Generation, HostEntry, IpProtocol,
    Netmap, NetmapEntry, NetmapUpdateData, NodeEntry, OnDemandEntry, PolicyEntry, PolicyHttpRule,
    PolicyLimits, PortRule, PrefixMapping, PresenceEntry, PresenceIp, RelayGroupEntry, ServiceEntry,
    ServiceProtocol, SiteEntry, SubjectEntry, TranslatedExposure, TranslatedPresenceEntry, TranslatedScope,
    TranslatedServiceEntry, TunnelCipher, TunnelKey, TunnelPeerEntry,
};

const FIXTURE: &str = include_str!("fixtures/netmap.hex");

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    let digits = |at: usize| u8::from_str_radix(&text[at..at + 2], 16).unwrap();
    (0..text.len()).step_by(2).map(digits).collect()
}

fn line(name: &str) -> Option<&'static str> {
    FIXTURE.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

fn check(found: &[(String, Vec<u8>)]) {
    let text: String = found.iter().map(|(name, bytes)| format!("{name}: {}\n", hex(bytes))).collect();
    for (name, bytes) in found {
        assert_eq!(line(name), Some(hex(bytes).as_str()), "{name} has changed; this is encoded now:\n{text}");
    }
}

/// One entry of every kind, with all fields set.
fn entries() -> Vec<NetmapEntry> {
    let (ip4, ip6) = ("10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap());
    vec![
        NetmapEntry::Gateway(GatewayEntry {
            name: "oslo-1".into(),
            site: "oslo".into(),
            ip: Some(ip4),
            presence_cidrs: vec!["198.18.0.0/16".parse().unwrap(), "fd00::/112".parse().unwrap()],
            priority: -3,
            relay: true,
            prefer: Default::default(),
            drain: false,
            tunnel_networks: Vec::new(),
            mappings: Vec::new(),
        }),
        NetmapEntry::Node(NodeEntry {
            server: "node-1".into(),
            site: "oslo".into(),
            ip: Some(ip4),
            ports: vec![22, 10250],
            names: vec![DnsName::new("node-1")],
            policies: vec!["p".into()],
        }),
        NetmapEntry::Policy(PolicyEntry {
            name: "p".into(),
            servers: vec!["server1".into()],
            sites: vec!["oslo".into()],
            limits: Some(PolicyLimits {
                connections_per_second: Some(1),
                connections: Some(0),
                bytes_per_second_in: Some(300),
                bytes_per_second_out: Some(400),
                requests_per_second: Some(5),
            }),
            http: vec![PolicyHttpRule { methods: vec!["GET".into()], paths: vec!["/public/*".into()] }],
            ports: Vec::new(),
        }),
        NetmapEntry::Presence(PresenceEntry {
            service: "camera".into(),
            addresses: vec![PresenceIp(ip4), PresenceIp(ip6)],
            port: 8080,
            protocol: ServiceProtocol::Kafka,
            brokers: 3,
            names: vec![DnsName::new("camera.berlin.causeway.internal")],
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
                mode: BackendTlsVerification::Insecure,
                server_name: "web.local".into(),
                ca_bundle: "pem".into(),
            }),
            proxy_protocol: true,
            exposures: vec![ExposureEntry {
                sites: vec!["oslo".into()],
                policies: vec!["p".into(), "q".into()],
            }],
        }),
        NetmapEntry::Site(SiteEntry {
            name: "oslo".into(),
            subnets: vec!["10.0.0.0/24".parse().unwrap()],
            active: None,
        }),
        NetmapEntry::Subject(SubjectEntry { server: "server1".into(), site: "oslo".into(), ip: Some(ip4) }),
    ]
}

/// Entries of layer 3. Their lines in the fixture are apart, so that those above stay as they were.
fn tunnel_entries() -> Vec<(&'static str, NetmapEntry)> {
    let mut base = entries();
    let (Some(NetmapEntry::Gateway(mut gateway)), Some(NetmapEntry::Policy(mut policy))) =
        (base.first().cloned(), base.drain(..).nth(2))
    else {
        panic!("the first entry is the gateway, the third the policy");
    };
    gateway.tunnel_networks = vec!["10.0.0.0/24".parse().unwrap()];
    gateway.mappings = vec![PrefixMapping {
        subnet: "10.0.0.0/24".parse().unwrap(),
        seen_as: "100.64.7.0/24".parse().unwrap(),
    }];
    policy.ports = vec![
        PortRule { protocol: IpProtocol::Tcp, first: 443, last: 443 },
        PortRule { protocol: IpProtocol::Udp, first: 5000, last: 5100 },
        PortRule { protocol: IpProtocol::Icmp, first: 0, last: u16::MAX },
    ];
    let community = |policies| {
        let members = vec!["oslo".into(), "rome".into()];
        NetmapEntry::Community(CommunityEntry { name: "north".into(), members, policies })
    };
    let peer = TunnelPeerEntry {
        gateway: "rome-1".into(),
        site: "rome".into(),
        public_key: TunnelKey([7; 32]),
        cipher: TunnelCipher::Aes256Gcm,
        endpoints: vec!["203.0.113.1:7446".into(), "cloud.example:7446".into()],
        networks: vec!["10.2.0.0/24".parse().unwrap()],
        plain_wireguard: true,
        relay: true,
    };
    let host = HostEntry {
        server: "clerk".into(),
        site: "rome".into(),
        ip: "100.64.7.7".parse().unwrap(),
        names: vec![DnsName::new("clerk.rome.causeway.internal")],
    };
    let presence = TranslatedPresenceEntry {
        service: "printer".into(),
        addresses: vec![PresenceIp("198.18.0.3".parse().unwrap())],
        scope: TranslatedScope::Port(IpProtocol::Tcp, 9100),
        names: vec![DnsName::new("printer.test")],
        service_site: "rome".into(),
        gateway: "rome-1".into(),
        policies: vec!["p".into()],
    };
    let service = TranslatedServiceEntry {
        service: "plc".into(),
        ip: "10.0.0.7".parse().unwrap(),
        port: 502,
        scope: TranslatedScope::Everything,
        exposures: vec![TranslatedExposure {
            site: "rome".into(),
            addresses: vec![PresenceIp("198.18.0.4".parse().unwrap())],
            policies: vec!["p".into()],
        }],
    };
    vec![
        ("gateway with networks", NetmapEntry::Gateway(gateway)),
        ("policy with ports", NetmapEntry::Policy(policy)),
        ("community without policies", community(None)),
        ("community with policies", community(Some(vec!["p".into()]))),
        ("community with no policy", community(Some(Vec::new()))),
        (
            "relay group",
            NetmapEntry::RelayGroup(RelayGroupEntry {
                name: "service:plc".into(),
                sites: vec!["oslo".into(), "rome".into()],
            }),
        ),
        (
            "on-demand networks",
            NetmapEntry::OnDemand(OnDemandEntry {
                networks: vec!["10.2.0.0/15".parse().unwrap(), "fd00:2::/32".parse().unwrap()],
            }),
        ),
        ("tunnel peer", NetmapEntry::TunnelPeer(peer)),
        ("host", NetmapEntry::Host(host)),
        ("translated presence", NetmapEntry::TranslatedPresence(presence)),
        ("translated service", NetmapEntry::TranslatedService(service)),
    ]
}

#[test]
fn entries_of_layer_3_have_the_bytes_that_gateways_know() {
    let mut found = Vec::new();
    for (name, entry) in tunnel_entries() {
        let (key, value) = entry.encode();
        assert_eq!(NetmapEntry::decode(&key, &value), Ok(Some(entry)));
        found.push((format!("{name} ({})", key.as_str()), value.to_vec()));
    }
    check(&found);
}

fn netmap(revision: u64, entries: &[NetmapEntry]) -> Netmap {
    let entries = entries.iter().map(NetmapEntry::encode).collect();
    Netmap::build(Generation { epoch: 2, revision }, entries, None).unwrap()
}

#[test]
fn entries_have_the_bytes_that_gateways_know() {
    let mut found = Vec::new();
    for entry in entries() {
        let (key, value) = entry.encode();
        assert_eq!(NetmapEntry::decode(&key, &value), Ok(Some(entry)));
        found.push((key.as_str().to_owned(), value.to_vec()));
    }
    check(&found);
}

#[test]
fn protocols_have_the_numbers_that_gateways_know() {
    let protocols = [
        ServiceProtocol::Tcp,
        ServiceProtocol::Udp,
        ServiceProtocol::Http,
        ServiceProtocol::Https,
        ServiceProtocol::Grpc,
        ServiceProtocol::Kafka,
    ];
    for (number, protocol) in (1..).zip(protocols) {
        // Field 1 is the port, field 2 the protocol.
        let value = Bytes::from(vec![0x08, 80, 0x10, number]);
        let Ok(Some(NetmapEntry::Service(service))) =
            NetmapEntry::decode(&EntryKey::new("service/a"), &value)
        else {
            panic!("protocol {number} is not decoded");
        };
        assert_eq!(service.protocol, protocol);
    }
}

#[test]
fn a_delta_and_a_digest_have_the_bytes_that_gateways_know() {
    let all = entries();
    let (old, new) = (netmap(70, &all[..2]), netmap(71, &all[1..3]));
    let delta = new.update_from(Some(&old));
    assert_eq!(NetmapUpdateData::decode(&delta.encode()), Ok(delta.clone()));
    assert_eq!(Netmap::apply(Some(&old), &delta), Ok(new.clone()));
    let whole = netmap(72, &all);
    check(&[
        ("delta".into(), delta.encode().to_vec()),
        ("digest of the base".into(), old.digest().as_bytes().to_vec()),
        ("digest of the target".into(), new.digest().as_bytes().to_vec()),
        ("digest of all".into(), whole.digest().as_bytes().to_vec()),
    ]);
}

/// Deflate may pack the same text in several ways, so the committed form must be read, and need not be written.
#[test]
fn a_whole_netmap_that_was_deflated_is_read() {
    let whole = netmap(72, &entries());
    let encoded = whole.update_from(None).encode();
    let line =
        line("whole").unwrap_or_else(|| panic!("no line; this is encoded now:\nwhole: {}", hex(&encoded)));
    assert_eq!(line.get(..2), Some("02"), "deflated");
    let update = NetmapUpdateData::decode(&unhex(line)).unwrap();
    assert_eq!(update, whole.update_from(None));
    assert_eq!(Netmap::apply(None, &update), Ok(whole));
}
