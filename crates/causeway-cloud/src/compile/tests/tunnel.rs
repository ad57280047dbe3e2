//! Layer 3 in compiled netmaps: peers, networks, communities, and what a gateway is not told.

use causeway_api::Time;
use causeway_api::layer3::{TunnelRecord, show_key};
use causeway_netmap::{IpProtocol, PortRule, SiteName, TunnelCipher, TunnelKey};

use super::*;

/// Berlin and Oslo are members of `north`; Rome is a member of `south` with a plain WireGuard peer. All have keys.
fn objects() -> ObjectSet {
    let site = |name, subnets: &[&str]| object(Kind::ESite, name, json!({"subnets": subnets}));
    let gateway = |name, site, subnets: &[&str]| {
        object(Kind::EGateway, name, json!({"eSiteName": site, "subnets": subnets}))
    };
    let mut objects: ObjectSet = [
        site("berlin", &["10.1.0.0/24"]),
        site("oslo", &["10.2.0.0/24", "fd00:2::/64"]),
        site("rome", &["10.3.0.0/24"]),
        site("office", &["10.4.0.0/24"]),
        gateway("berlin-1", "berlin", &[]),
        gateway("oslo-1", "oslo", &["10.20.1.0/24"]),
        gateway("oslo-2", "oslo", &["10.20.2.0/24"]),
        gateway("rome-1", "rome", &[]),
        object(
            Kind::EGateway,
            "office-1",
            json!({"eSiteName": "office", "publicKey": show_key(&[9; 32]), "endpoint": "203.0.113.9:51820"}),
        ),
        object(Kind::ECommunity, "north", json!({"members": ["oslo", "berlin"]})),
        object(
            Kind::ECommunity,
            "south",
            json!({"members": ["rome", "office"], "ePolicys": ["ssh", "missing"]}),
        ),
        object(Kind::EPolicy, "ssh", json!({"allowedServers": ["Clerk"], "ports": ["tcp/22", "icmp"]})),
        object(Kind::EServer, "Clerk", json!({"eSiteName": "office", "ip": "10.4.0.7"})),
    ]
    .into_iter()
    .collect();
    for (number, name) in (1..).zip(["berlin-1", "oslo-1", "oslo-2", "rome-1"]) {
        objects.layer3.tunnels.insert(name.into(), record(number, number != 4));
    }
    objects
}

fn record(key: u8, aes: bool) -> TunnelRecord {
    TunnelRecord {
        public_key: show_key(&[key; 32]),
        port: 7446,
        aes,
        addresses: vec![format!("192.0.2.{key}").parse().unwrap()],
        since: i64::from(key),
        ..TunnelRecord::default()
    }
}

fn peers(objects: &ObjectSet, gateway: &str) -> Vec<String> {
    let view = view(objects, gateway);
    let networks =
        |networks: &[ipnet::IpNet]| networks.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    view.tunnel_peers.values().map(|peer| format!("{} {}", peer.gateway, networks(&peer.networks))).collect()
}

fn own(objects: &ObjectSet, gateway: &str) -> Vec<String> {
    let gateway = view(objects, gateway).gateway.unwrap();
    gateway.tunnel_networks.iter().map(ToString::to_string).collect()
}

#[test]
fn peers_are_the_gateways_of_sites_that_share_a_community() {
    let objects = objects();
    assert_eq!(
        peers(&objects, "berlin-1"),
        ["oslo-1 10.2.0.0/24,10.20.1.0/24,fd00:2::/64", "oslo-2 10.20.2.0/24"]
    );
    assert_eq!(peers(&objects, "oslo-1"), ["berlin-1 10.1.0.0/24"]);
    assert_eq!(peers(&objects, "oslo-2"), ["berlin-1 10.1.0.0/24"], "it has networks of its own");
    assert_eq!(peers(&objects, "rome-1"), ["office-1 10.4.0.0/24"]);
    assert_eq!(own(&objects, "oslo-1"), ["10.2.0.0/24", "10.20.1.0/24", "fd00:2::/64"]);
    assert_eq!(own(&objects, "oslo-2"), ["10.20.2.0/24"]);
    let text = format!("{:?}", view(&objects, "berlin-1"));
    for foreign in ["rome", "office", "10.3.0", "10.4.0", "south", "Clerk"] {
        assert!(!text.contains(foreign), "berlin is told about {foreign}: {text}");
    }
}

#[test]
fn the_gateway_of_the_cloud_is_a_peer_of_every_member_and_carries_networks_of_its_own_communities_only() {
    let mut objects = objects();
    objects.insert(object(Kind::ESite, "cloud", json!({"subnets": ["10.9.0.0/24"]})));
    objects.insert(object(Kind::EGateway, "cloud", json!({"eSiteName": "cloud"})));
    assert_eq!(peers(&objects, "oslo-1"), ["berlin-1 10.1.0.0/24"], "the cloud has no key yet");
    objects.layer3.tunnels.insert("cloud".into(), record(8, true));
    assert_eq!(peers(&objects, "oslo-1"), ["berlin-1 10.1.0.0/24", "cloud "]);
    assert!(view(&objects, "oslo-1").tunnel_peers.get("cloud").unwrap().relay);
    assert_eq!(peers(&objects, "cloud"), ["berlin-1 ", "oslo-1 ", "oslo-2 ", "rome-1 "]);
    assert_eq!((own(&objects, "cloud"), view(&objects, "cloud").communities.len()), (Vec::new(), 0));
    assert_eq!(relay_groups(&objects, "cloud"), ["north: berlin oslo", "south: office rome"]);
    objects.insert(object(Kind::ECommunity, "north", json!({"members": ["oslo", "berlin", "cloud"]})));
    assert_eq!(peers(&objects, "berlin-1")[0], "cloud 10.9.0.0/24");
    let rows = peers(&objects, "cloud");
    assert_eq!((rows[0].as_str(), rows[3].as_str()), ("berlin-1 10.1.0.0/24", "rome-1 "));
    assert_eq!(own(&objects, "cloud"), ["10.9.0.0/24"]);
}

fn relay_groups(objects: &ObjectSet, gateway: &str) -> Vec<String> {
    let view = view(objects, gateway);
    let sites = |sites: &[SiteName]| sites.iter().map(SiteName::as_str).collect::<Vec<_>>().join(" ");
    view.relay_groups.values().map(|group| format!("{}: {}", group.name, sites(&group.sites))).collect()
}

#[test]
fn a_relay_forwards_between_members_of_the_communities_of_its_site() {
    let mut objects = objects();
    assert!(relay_groups(&objects, "oslo-1").is_empty(), "the gateway is no relay");
    objects.insert(object(Kind::EGateway, "oslo-1", json!({"eSiteName": "oslo", "relay": true})));
    assert_eq!(relay_groups(&objects, "oslo-1"), ["north: berlin oslo"]);
    assert!(view(&objects, "berlin-1").tunnel_peers.get("oslo-1").unwrap().relay);
    objects.insert(object(Kind::ECommunity, "north", json!({"members": ["oslo"]})));
    assert!(relay_groups(&objects, "oslo-1").is_empty(), "a community of one site needs no relay");
}

#[test]
fn the_subnets_of_a_site_move_with_its_active_gateway() {
    let objects = objects();
    let active: ActiveGateways = [("oslo".to_owned(), "oslo-2".to_owned())].into();
    let entries = compile(&objects, &active, "berlin-1").unwrap();
    let view = NetmapView::decode(&Netmap::build(Generation::default(), entries, None).unwrap());
    let networks = |name: &str| view.tunnel_peers.get(name).unwrap().networks.len();
    assert_eq!((networks("oslo-1"), networks("oslo-2")), (1, 3));
}

#[test]
fn a_peer_has_its_key_its_endpoints_and_the_cipher_that_both_can() {
    let objects = objects();
    let north = view(&objects, "berlin-1");
    let oslo = north.tunnel_peers.get("oslo-1").unwrap();
    assert_eq!((oslo.public_key, oslo.cipher), (TunnelKey([2; 32]), TunnelCipher::Aes256Gcm));
    assert_eq!(
        (oslo.endpoints.as_slice(), oslo.plain_wireguard),
        (&["192.0.2.2:7446".to_owned()][..], false)
    );
    let south = view(&objects, "rome-1");
    let office = south.tunnel_peers.get("office-1").unwrap();
    assert_eq!((office.public_key, office.cipher), (TunnelKey([9; 32]), TunnelCipher::ChaCha20Poly1305));
    assert_eq!(
        (office.endpoints.as_slice(), office.plain_wireguard),
        (&["203.0.113.9:51820".to_owned()][..], true)
    );
    let mut objects = objects;
    objects.layer3.tunnels.insert("oslo-1".into(), record(2, false));
    let cipher = |objects: &ObjectSet| view(objects, "berlin-1").tunnel_peers.get("oslo-1").unwrap().cipher;
    assert_eq!(cipher(&objects), TunnelCipher::ChaCha20Poly1305, "only one of them has AES");
    objects.layer3.tunnels.remove("oslo-1");
    assert_eq!(peers(&objects, "berlin-1"), ["oslo-2 10.20.2.0/24"], "without a key it is no peer");
}

#[test]
fn a_key_that_two_gateways_claim_stays_with_the_older() {
    let mut objects = objects();
    objects.layer3.tunnels.insert("oslo-2".into(), TunnelRecord { since: 99, ..record(1, true) });
    assert_eq!(peers(&objects, "berlin-1"), ["oslo-1 10.2.0.0/24,10.20.1.0/24,fd00:2::/64"]);
    assert_eq!(peers(&objects, "oslo-2"), [""; 0], "it has no peers of its own either");
}

#[test]
fn a_community_with_policies_brings_them_and_the_hosts_they_name() {
    let objects = objects();
    let north = view(&objects, "berlin-1");
    assert_eq!(north.communities.get("north").unwrap().policies, None);
    let south = view(&objects, "rome-1");
    let community = south.communities.get("south").unwrap();
    assert_eq!(community.policies, Some(vec!["missing".into(), "ssh".into()]));
    assert_eq!(community.members, ["office".into(), "rome".into()]);
    let ssh = south.policies.get("ssh").unwrap();
    assert_eq!(
        ssh.ports,
        [
            PortRule { protocol: IpProtocol::Tcp, first: 22, last: 22 },
            PortRule { protocol: IpProtocol::Icmp, first: 0, last: u16::MAX }
        ]
    );
    assert!(ssh.allows(&"office".into(), Some(&"Clerk".into())));
    assert!(!south.policies.get("missing").unwrap().allows(&"office".into(), Some(&"Clerk".into())));
    let ip = |text: &str| text.parse().unwrap();
    assert_eq!(south.remote_subject_at(ip("10.4.0.7")).unwrap().server.as_str(), "Clerk");
    assert!(south.subject_at(ip("10.4.0.7")).is_none());
}

#[test]
fn mapped_networks_are_on_the_wire_and_hosts_are_known_by_them() {
    let mut objects = objects();
    let mapped = json!([{"subnet": "10.4.0.0/24", "as": "100.64.4.0/24"}]);
    objects.insert(object(
        Kind::ESite,
        "office",
        json!({"subnets": ["10.4.0.0/24"], "mappedSubnets": mapped}),
    ));
    assert_eq!(peers(&objects, "rome-1"), ["office-1 100.64.4.0/24"]);
    let south = view(&objects, "rome-1");
    assert!(south.remote_subject_at("100.64.4.7".parse().unwrap()).is_some());
    let mapped = json!([{"subnet": "10.1.0.0/24", "as": "100.64.1.0/24"}]);
    objects.insert(object(
        Kind::ESite,
        "berlin",
        json!({"subnets": ["10.1.0.0/24"], "mappedSubnets": mapped}),
    ));
    let gateway = view(&objects, "berlin-1").gateway.unwrap();
    assert_eq!(gateway.tunnel_networks, ["10.1.0.0/24".parse().unwrap()]);
    let shown: Vec<String> =
        gateway.mappings.iter().map(|mapping| format!("{} {}", mapping.subnet, mapping.seen_as)).collect();
    assert_eq!(shown, ["10.1.0.0/24 100.64.1.0/24"]);
    assert_eq!(peers(&objects, "oslo-1"), ["berlin-1 100.64.1.0/24"]);
}

/// The hosts of other sites that a gateway knows by name.
fn hosts(objects: &ObjectSet, gateway: &str) -> Vec<String> {
    let view = view(objects, gateway);
    let shown = |host: &causeway_netmap::HostEntry| format!("{} {}", host.names[0].as_str(), host.ip);
    view.hosts.values().map(shown).collect()
}

#[test]
fn names_of_hosts_follow_the_mapping_at_other_members() {
    let mut objects = objects();
    let host = |name, site, ip, more: serde_json::Value| {
        let mut value = json!({"eSiteName": site, "ip": ip});
        value.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object(Kind::EServer, name, value)
    };
    objects.insert(host("camera", "berlin", "10.1.0.7", json!({})));
    objects.insert(host("outside", "berlin", "192.0.2.7", json!({})));
    objects.insert(host("node", "berlin", "10.1.0.8", json!({"ports": [22], "ePolicys": ["all"]})));
    objects.insert(object(Kind::EPolicy, "all", json!({"allowedSites": ["oslo", "rome", "office"]})));
    let real = ["camera.berlin.causeway.internal 10.1.0.7", "node.berlin.causeway.internal 10.1.0.8"];
    assert_eq!(hosts(&objects, "oslo-1"), real);
    assert_eq!(hosts(&objects, "berlin-1"), [""; 0], "its own hosts have their own addresses");
    assert_eq!(hosts(&objects, "rome-1"), [""; 0], "no community in common");
    let mapped = json!([{"subnet": "10.1.0.0/24", "as": "100.64.1.0/24"}]);
    let berlin = json!({"subnets": ["10.1.0.0/24"], "mappedSubnets": mapped});
    objects.insert(object(Kind::ESite, "berlin", berlin));
    let mapped = ["camera.berlin.causeway.internal 100.64.1.7", "node.berlin.causeway.internal 100.64.1.8"];
    assert_eq!(hosts(&objects, "oslo-1"), mapped);
    let text = format!("{:?}", view(&objects, "oslo-1"));
    assert!(!text.contains("10.1.0."), "real addresses stay in the cloud: {text}");
    // Policies narrow the community: a node stays behind the entry ports that its own policies open.
    let narrowed = json!({"members": ["oslo", "berlin"], "ePolicys": ["all"]});
    objects.insert(object(Kind::ECommunity, "north", narrowed));
    assert_eq!(hosts(&objects, "oslo-1"), mapped[..1]);
    let nothing = json!({"members": ["oslo", "berlin"], "ePolicys": ["missing"]});
    objects.insert(object(Kind::ECommunity, "north", nothing));
    assert_eq!(hosts(&objects, "oslo-1"), [""; 0]);
    // Without a tunnel of either side the entry ports are the only way.
    objects.insert(object(Kind::ECommunity, "north", json!({"members": ["oslo", "berlin"]})));
    objects.layer3.tunnels.remove("oslo-1");
    assert_eq!(hosts(&objects, "oslo-1"), [""; 0]);
    objects.layer3.tunnels.insert("oslo-1".into(), record(2, true));
    objects.layer3.tunnels.remove("berlin-1");
    assert_eq!(hosts(&objects, "oslo-1"), [""; 0]);
}

/// Rome exposes `plc` to Berlin, in mode translate; they share no community.
fn translated(service: serde_json::Value) -> ObjectSet {
    let mut objects = objects();
    let mut fields = json!({"eSiteName": "rome", "ip": "10.3.0.9", "port": 502});
    fields.as_object_mut().unwrap().extend(service.as_object().unwrap().clone());
    objects.insert(object(Kind::EService, "plc", fields));
    let expose =
        json!({"eServiceName": "plc", "eSites": ["berlin"], "ePolicys": ["all"], "mode": "translate"});
    objects.insert(object(Kind::ServiceExpose, "plc", expose));
    objects.insert(object(Kind::EPolicy, "all", json!({"allowedSites": ["berlin"]})));
    let presence = json!({"eServiceName": "plc", "eSiteName": "berlin", "virtualIp": "198.18.0.5"});
    objects.insert(object(Kind::VirtualPresence, "plc-berlin", presence));
    let berlin = json!({"eSiteName": "berlin", "virtualPresenceIPcidr": "198.18.0.0/16"});
    objects.insert(object(Kind::EGateway, "berlin-1", berlin));
    objects
}

#[test]
fn a_translated_service_joins_the_gateways_of_its_sites_and_no_real_address_leaves_one() {
    use causeway_netmap::TranslatedScope;
    let objects = translated(json!({}));
    let berlin = view(&objects, "berlin-1");
    let presence = berlin.translated_presences.get("plc").unwrap();
    assert_eq!(presence.addresses, [causeway_netmap::PresenceIp("198.18.0.5".parse().unwrap())]);
    assert_eq!(presence.scope, TranslatedScope::Port(IpProtocol::Tcp, 502));
    assert_eq!((presence.gateway.as_str(), presence.service_site.as_str()), ("rome-1", "rome"));
    assert!(berlin.presences.is_empty(), "no listener has the address");
    assert!(!format!("{berlin:?}").contains("10.3.0."), "{berlin:?}");
    let rome = view(&objects, "rome-1");
    let service = rome.translated_services.get("plc").unwrap();
    assert_eq!((service.ip, service.port), ("10.3.0.9".parse().unwrap(), 502));
    assert_eq!((service.exposures.len(), service.exposures[0].site.as_str()), (1, "berlin"));
    assert_eq!(service.exposures[0].addresses, presence.addresses);
    assert!(rome.services.is_empty() && !format!("{rome:?}").contains("10.1.0."), "{rome:?}");
    let peer = |gateway: &str, peer: &str| {
        peers(&objects, gateway).into_iter().find(|row| row.starts_with(peer)).unwrap()
    };
    assert_eq!(peer("berlin-1", "rome-1"), "rome-1 ", "a peer without networks");
    assert_eq!(peer("rome-1", "berlin-1"), "berlin-1 ");
    assert!(view(&objects, "oslo-1").translated_presences.is_empty());
    assert!(!peers(&objects, "oslo-1").iter().any(|row| row.starts_with("rome")));
}

#[test]
fn the_cloud_is_a_peer_of_gateways_of_translated_services() {
    let mut objects = translated(json!({"protocol": "IP"}));
    objects.remove(Kind::ECommunity, "north");
    objects.remove(Kind::ECommunity, "south");
    objects.insert(object(Kind::EGateway, "cloud", json!({"eSiteName": "cloud"})));
    objects.layer3.tunnels.insert("cloud".into(), record(8, true));
    assert_eq!(peers(&objects, "cloud"), ["berlin-1 ", "rome-1 "]);
    assert_eq!(peers(&objects, "rome-1"), ["berlin-1 ", "cloud "]);
    let scope = view(&objects, "berlin-1").translated_presences.get("plc").unwrap().scope;
    assert_eq!(scope, causeway_netmap::TranslatedScope::Everything);
}

#[test]
fn an_exposure_that_cannot_be_translated_is_in_no_netmap() {
    let check = |service: serde_json::Value, is_carried: bool| {
        let objects = translated(service.clone());
        assert_eq!(
            view(&objects, "berlin-1").translated_presences.len(),
            usize::from(is_carried),
            "{service}"
        );
        assert_eq!(view(&objects, "rome-1").translated_services.len(), usize::from(is_carried), "{service}");
    };
    check(json!({}), true);
    check(json!({"endpoints": [{"ip": "10.3.0.10", "port": 5020}]}), true);
    check(json!({"endpoints": [{"ip": "10.3.0.10"}, {"ip": "10.3.0.11"}]}), false);
    check(json!({"healthCheck": {}}), false);
    check(json!({"backendTLS": {}}), false);
    check(json!({"proxyProtocol": true}), false);
    check(json!({"protocol": "KAFKA"}), false);
    check(json!({"ip": "", "domainName": "plc.rome.test"}), false);
    let mut objects = translated(json!({}));
    let proxied = json!({"eServiceName": "plc", "eSites": ["berlin"], "ePolicys": ["all"]});
    objects.insert(object(Kind::ServiceExpose, "plc-2", proxied));
    let berlin = view(&objects, "berlin-1");
    assert_eq!(
        (berlin.presences.len(), berlin.translated_presences.len()),
        (1, 0),
        "a presence has one mode"
    );
}

#[test]
fn an_object_that_is_being_deleted_grants_nothing() {
    let check = |kind: Kind, name: &str, gateway: &str, grants: &dyn Fn(&NetmapView) -> bool| {
        let mut objects = objects();
        assert!(grants(&view(&objects, gateway)), "{name}");
        let mut marked = objects.remove(kind, name).unwrap();
        marked.metadata_mut().deletion_timestamp = Some(Time::from_second(1));
        objects.insert(marked);
        assert!(!grants(&view(&objects, gateway)), "{name} with a deletion mark");
    };
    check(Kind::ECommunity, "north", "berlin-1", &|view| !view.communities.is_empty());
    check(Kind::ECommunity, "north", "oslo-1", &|view| !view.tunnel_peers.is_empty());
    check(Kind::EGateway, "oslo-2", "berlin-1", &|view| view.tunnel_peers.contains_key("oslo-2"));
    let is_allowed = |view: &NetmapView| !view.policies.get("ssh").unwrap().servers.is_empty();
    check(Kind::EPolicy, "ssh", "rome-1", &is_allowed);
    for kind in [Kind::ServiceExpose, Kind::EService] {
        let mut objects = translated(json!({}));
        assert_eq!(view(&objects, "berlin-1").translated_presences.len(), 1);
        let mut marked = objects.remove(kind, "plc").unwrap();
        marked.metadata_mut().deletion_timestamp = Some(Time::from_second(1));
        objects.insert(marked);
        let counts = ["berlin-1", "rome-1"].map(|gateway| {
            let view = view(&objects, gateway);
            (view.translated_presences.len(), view.translated_services.len())
        });
        assert_eq!(counts, [(0, 0); 2], "{kind:?} with a deletion mark");
    }
}
