//! Rows for the interfaces at which addresses are answered.

use causeway_netmap::{
    GatewayEntry, Generation, NetmapEntry, PresenceEntry, PresenceIp, ServiceProtocol, SiteEntry,
    SubjectEntry, TranslatedPresenceEntry, TranslatedScope, TunnelCipher, TunnelKey, TunnelPeerEntry,
};

use super::*;

const RANGES: [&str; 3] = ["10.0.0.128/25", "fd00:10::80/121", "198.18.0.0/16"];
const PRESENCES: [&str; 6] =
    ["10.0.0.129", "10.0.0.140", "10.0.0.141", "10.0.0.255", "fd00:10::81", "198.18.0.1"];

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn interface(index: u32, addresses: &[&str]) -> LanInterface {
    let addresses = addresses.iter().map(|address| net(address)).collect();
    LanInterface { index, name: format!("eth{index}"), hardware: [2, 0, 0, 0, 0, index as u8], addresses }
}

fn view(active: Option<&str>) -> NetmapView {
    let gateway = GatewayEntry {
        presence_cidrs: RANGES.iter().map(|range| net(range)).collect(),
        tunnel_networks: vec![net("10.0.0.0/27")],
        ..GatewayEntry::named("oslo-1", "oslo")
    };
    let site = SiteEntry { name: "oslo".into(), subnets: Vec::new(), active: active.map(Into::into) };
    let presence = |ip: &&str| {
        NetmapEntry::Presence(PresenceEntry {
            service: (*ip).into(),
            addresses: vec![PresenceIp(ip.parse().unwrap())],
            port: 80,
            protocol: ServiceProtocol::Tcp,
            brokers: 0,
            names: vec![],
            service_site: "rome".into(),
            policies: vec![],
        })
    };
    let translated = TranslatedPresenceEntry {
        service: "plc".into(),
        addresses: vec![PresenceIp("10.0.0.150".parse().unwrap())],
        scope: TranslatedScope::Everything,
        names: Vec::new(),
        service_site: "rome".into(),
        gateway: "rome-1".into(),
        policies: Vec::new(),
    };
    // The host of the LAN with the address of a presence is known to the netmap.
    let subject = SubjectEntry { server: "pump".into(), site: "oslo".into(), ip: "10.0.0.140".parse().ok() };
    let peer = TunnelPeerEntry {
        gateway: "rome-1".into(),
        site: "rome".into(),
        public_key: TunnelKey([1; 32]),
        cipher: TunnelCipher::Aes256Gcm,
        endpoints: Vec::new(),
        networks: ["10.0.0.64/27", "10.0.0.0/27", "172.16.0.0/24"].iter().map(|text| net(text)).collect(),
        plain_wireguard: false,
        relay: false,
    };
    let mut facts = vec![NetmapEntry::Gateway(gateway), NetmapEntry::Site(site)];
    facts.extend(PRESENCES.iter().map(presence));
    facts.push(NetmapEntry::TranslatedPresence(translated));
    facts.push(NetmapEntry::Subject(subject));
    facts.push(NetmapEntry::TunnelPeer(peer));
    NetmapView::of_entries(Generation { epoch: 1, revision: 1 }, &facts).unwrap()
}

fn sinks() -> PacketSinks {
    PacketSinks { presence_networks: RANGES.iter().map(|range| net(range)).collect(), tunnel: true }
}

/// The interfaces with their addresses and networks, as text.
fn planned(view: &NetmapView, interfaces: &[LanInterface], sinks: &PacketSinks) -> Vec<String> {
    let plan = NeighbourPlan::new(view, interfaces, sinks);
    let line = |((index, family), answered): (&(u32, NeighbourFamily), &AnsweredAddresses)| {
        let addresses = answered.addresses.iter().map(ToString::to_string);
        let networks = answered.networks.iter().map(ToString::to_string);
        format!("{index} {family:?} {}", addresses.chain(networks).collect::<Vec<_>>().join(" "))
    };
    plan.interfaces.iter().map(line).collect()
}

#[test]
fn an_address_is_answered_at_the_interface_whose_network_holds_it() {
    let lan = interface(3, &["10.0.0.1/24", "10.0.0.141/24", "fd00:10::1/64"]);
    let other = interface(2, &["192.168.1.2/24"]);
    let check =
        |active: Option<&str>, interfaces: &[LanInterface], sinks: &PacketSinks, expected: &[&str]| {
            assert_eq!(planned(&view(active), interfaces, sinks), expected, "{active:?}");
        };
    let both = [other.clone(), lan.clone()];
    // Neither the address of the known host .140, nor that of the gateway's host .141, nor broadcast, nor a network of
    // this site.
    let all = ["3 V4 10.0.0.129 10.0.0.150 10.0.0.64/27", "3 V6 fd00:10::81"];
    check(None, &both, &sinks(), &all);
    check(Some("oslo-1"), &both, &sinks(), &all);
    // A standby gateway.
    check(Some("oslo-2"), &both, &sinks(), &[]);
    // No interface is connected to the range.
    check(None, &[other], &sinks(), &[]);
    // No part of the gateway would take the packets.
    check(None, &both, &PacketSinks::default(), &[]);
    let namespace_alone = PacketSinks { tunnel: false, ..sinks() };
    check(None, &both, &namespace_alone, &["3 V4 10.0.0.129", "3 V6 fd00:10::81"]);
    // A connected network that equals the range, or is a part of it, has the route; packets would not come.
    let equal = interface(4, &["10.0.0.130/25"]);
    check(None, &[equal], &namespace_alone, &[]);
    check(None, &[interface(4, &["10.0.0.130/26"])], &namespace_alone, &[]);
    // The smaller of two networks has the address.
    let wide = interface(5, &["10.0.0.2/16"]);
    check(None, &[wide, lan], &namespace_alone, &["3 V4 10.0.0.129", "3 V6 fd00:10::81"]);
}

#[test]
fn a_range_outside_of_the_lan_needs_a_route_on_the_hosts() {
    let routes = |interfaces: &[LanInterface]| -> Vec<String> {
        let plan = NeighbourPlan::new(&view(None), interfaces, &sinks());
        let via = |route: &NeededRoute| route.via.map_or("-".to_owned(), |via| via.to_string());
        plan.routed.iter().map(|route| format!("{} via {}", route.network, via(route))).collect()
    };
    let lan = interface(3, &["fe80::1/64", "10.0.0.1/24", "fd00:10::1/64"]);
    assert_eq!(
        routes(std::slice::from_ref(&lan)),
        ["172.16.0.0/24 via 10.0.0.1", "198.18.0.0/16 via 10.0.0.1"]
    );
    // The address in a network of the site counts before that of another interface.
    let other = interface(2, &["192.168.1.2/24"]);
    assert_eq!(routes(&[other.clone(), lan]), ["172.16.0.0/24 via 10.0.0.1", "198.18.0.0/16 via 10.0.0.1"]);
    // Outside of the LAN every network needs a route, a translated presence that of its range.
    let all = ["10.0.0.64/27", "10.0.0.128/25", "172.16.0.0/24", "198.18.0.0/16"];
    let all = all.map(|network| format!("{network} via 192.168.1.2"));
    assert_eq!(routes(&[other])[..4], all);
    let without = [interface(2, &["fe80::1/64"])];
    assert!(routes(&without).contains(&"fd00:10::80/121 via -".to_owned()), "{:?}", routes(&without));
}

#[test]
fn in_a_network_of_another_site_the_addresses_of_the_lan_are_left_out() {
    let lan = interface(3, &["10.0.0.1/24", "10.0.0.70/24"]);
    let plan = NeighbourPlan::new(&view(None), &[lan], &sinks());
    let answered = &plan.interfaces[&(3, NeighbourFamily::V4)];
    let check = |address: &str, expected: bool| {
        assert_eq!(answered.is_in_network(address.parse().unwrap()), expected, "{address}");
    };
    check("10.0.0.65", true);
    check("10.0.0.70", false);
    check("10.0.0.7", false);
    check("10.0.0.200", false);
}
