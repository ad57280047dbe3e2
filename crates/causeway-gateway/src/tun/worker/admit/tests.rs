//! Packets at the gateway of `oslo`, whose hosts may begin connections to port 443 of `rome`, and not the reverse.

use std::sync::Arc;

use causeway_netmap::{
    CommunityEntry, GatewayEntry, IpProtocol, NetmapView, PolicyEntry, PolicyLimits, PortRule, PresenceIp,
    TranslatedPresenceEntry, TranslatedScope, TunnelCipher, TunnelKey, TunnelPeerEntry,
};
use etherparse::PacketBuilder;

use super::*;
use crate::tun::admission::OwnSockets;
use crate::tun::packet::parse;
use crate::tun::plan::PlannedPeer;

const OSLO: [u8; 4] = [10, 1, 0, 5];
const ROME: [u8; 4] = [10, 2, 0, 6];

struct Lab {
    flows: FlowTable,
    plan: ForwardPlan,
    peers: PeerTable,
    now: Instant,
}

fn peer(site: &str, key: u8, network: &str) -> PlannedPeer {
    let entry = TunnelPeerEntry {
        gateway: format!("{site}-1").as_str().into(),
        site: site.into(),
        public_key: TunnelKey([key; 32]),
        cipher: TunnelCipher::ChaCha20Poly1305,
        endpoints: Vec::new(),
        networks: vec![network.parse().unwrap()],
        plain_wireguard: false,
        relay: false,
    };
    PlannedPeer { entry, endpoints: Vec::new() }
}

impl Lab {
    fn new() -> Lab {
        let mut view = NetmapView::default();
        view.gateway = Some(GatewayEntry {
            tunnel_networks: vec!["10.1.0.0/16".parse().unwrap()],
            ..GatewayEntry::named("oslo-1", "oslo")
        });
        let members = ["oslo", "rome"].map(Into::into).to_vec();
        let policies = Some(vec!["web".into()]);
        view.communities.insert("north".into(), CommunityEntry { name: "north".into(), members, policies });
        let policy = PolicyEntry {
            name: "web".into(),
            servers: Vec::new(),
            sites: vec!["oslo".into()],
            limits: None,
            http: Vec::new(),
            ports: vec![PortRule { protocol: IpProtocol::Tcp, first: 443, last: 443 }],
        };
        view.policies.insert("web".into(), policy);
        let peers = vec![peer("rome", 1, "10.2.0.0/16")];
        let plan = ForwardPlan::new(Arc::new(view), OwnSockets::default(), peers);
        let (mut peers, now) = (PeerTable::default(), Instant::now());
        peers.follow(&plan, 1420, now);
        Lab { flows: FlowTable::new(16), plan, peers, now }
    }

    /// Tells whether a segment with these ports and flags passes.
    fn passes(&mut self, direction: Direction, ports: (u16, u16), syn: bool, ack: bool) -> bool {
        let (source, destination) = match direction {
            Direction::Outbound => (OSLO, ROME),
            Direction::Inbound => (ROME, OSLO),
        };
        let mut segment = PacketBuilder::ipv4(source, destination, 64).tcp(ports.0, ports.1, 1, 1000);
        segment = if syn { segment.syn() } else { segment };
        segment = if ack { segment.ack(1) } else { segment };
        let mut bytes = Vec::new();
        segment.write(&mut bytes, &[]).unwrap();
        let packet = parse(&bytes).unwrap();
        let from = (direction == Direction::Inbound).then_some(0);
        let arrival = Arrival { bytes: &bytes, packet: &packet, direction, from, count: 1 };
        admit(&mut self.flows, &self.plan, &self.peers, &arrival, self.now).is_ok()
    }
}

#[test]
fn a_reply_passes_and_a_connection_of_the_other_end_does_not() {
    let mut lab = Lab::new();
    assert!(!lab.passes(Direction::Inbound, (443, 22), true, false), "rome may begin nothing");
    assert!(lab.passes(Direction::Outbound, (5000, 443), true, false));
    assert!(lab.passes(Direction::Inbound, (443, 5000), true, true));
    assert!(!lab.passes(Direction::Inbound, (443, 5000), true, false), "a SYN is no reply");
    assert!(lab.passes(Direction::Inbound, (443, 5000), false, true), "the flow goes on");
}

#[test]
fn a_segment_that_looks_like_a_reply_opens_no_way_for_a_connection() {
    let mut lab = Lab::new();
    // After a restart of this gateway it may belong to a connection that oslo began.
    assert!(lab.passes(Direction::Inbound, (443, 22), false, true));
    assert!(!lab.passes(Direction::Inbound, (443, 22), true, false));
    assert!(!lab.passes(Direction::Inbound, (80, 22), false, true), "no policy allows port 80 of rome");
}

#[test]
fn segments_that_look_like_replies_are_charged_to_the_peer_that_sends_them() {
    let mut lab = Lab::new();
    let passed =
        (0..16).filter(|port| lab.passes(Direction::Inbound, (443, 1000 + port), false, true)).count();
    assert_eq!(passed, 8, "half of the table");
    assert!(lab.passes(Direction::Outbound, (5000, 443), true, false), "a host of this site finds a place");
}

#[test]
fn later_fragments_of_a_packet_that_was_refused_pass_nowhere() {
    let mut lab = Lab::new();
    let mut piece = |port: u16, id: u8, is_first: bool| {
        let mut bytes = Vec::new();
        PacketBuilder::ipv4(OSLO, ROME, 64).tcp(5000, port, 1, 9).syn().write(&mut bytes, &[0; 28]).unwrap();
        bytes[4..8].copy_from_slice(&if is_first { [0, id, 0x20, 0] } else { [0, id, 0, 6] });
        let packet = parse(&bytes).unwrap();
        let direction = Direction::Outbound;
        let arrival = Arrival { bytes: &bytes, packet: &packet, direction, from: None, count: 1 };
        admit(&mut lab.flows, &lab.plan, &lab.peers, &arrival, lab.now).is_ok()
    };
    assert!(piece(443, 1, true) && piece(443, 1, false));
    assert!(!piece(22, 2, true) && !piece(22, 2, false));
    let refused = FragmentKey::new(Direction::Outbound, &lab.flows.iter().next().unwrap().key, 2);
    assert_eq!(lab.flows.fragments.find(None, &refused), None, "it takes no place of the table");
}

#[test]
fn limits_count_at_the_gateway_of_the_server_and_for_flows_that_are_open() {
    let mut lab = Lab::new();
    let with_limits = |lab: &mut Lab, limits: Option<PolicyLimits>| {
        let mut view = (*lab.plan.view).clone();
        let policy = view.policies.get_mut("web").unwrap();
        (policy.sites, policy.limits) = (vec!["rome".into()], limits);
        lab.plan = ForwardPlan::new(Arc::new(view), OwnSockets::default(), lab.plan.peers.clone());
        lab.peers.follow(&lab.plan, 1420, lab.now);
        let (plan, peers) = (&lab.plan, &lab.peers);
        lab.flows.judge(|flow| judge_again(plan, peers, flow), |_, _| {});
    };
    let begin = |lab: &mut Lab, port| lab.passes(Direction::Inbound, (port, 443), true, false);
    // The gateway of `rome` does not keep the limits.
    with_limits(&mut lab, Some(PolicyLimits { connections: Some(2), ..Default::default() }));
    assert_eq!([1, 2, 3].map(|port| begin(&mut lab, port)), [true, true, false]);
    with_limits(&mut lab, None);
    assert!(begin(&mut lab, 4));
    with_limits(&mut lab, Some(PolicyLimits { bytes_per_second_in: Some(40), ..Default::default() }));
    let passed = (0..10).filter(|_| lab.passes(Direction::Inbound, (4, 443), false, true)).count();
    assert_eq!(passed, 1, "40 bytes, which one segment has");
}

#[test]
fn packets_of_the_tunnel_reach_no_presence_of_another_site() {
    let mut lab = Lab::new();
    let mut view = (*lab.plan.view).clone();
    let policy = view.policies.get_mut("web").unwrap();
    policy.sites = ["oslo", "rome"].map(Into::into).to_vec();
    lab.plan = ForwardPlan::new(Arc::new(view.clone()), OwnSockets::default(), lab.plan.peers.clone());
    assert!(lab.passes(Direction::Inbound, (5000, 443), true, false), "no presence has the address");
    // A range of presences may lie inside the LAN.
    let presence = TranslatedPresenceEntry {
        service: "plc".into(),
        addresses: vec![PresenceIp(OSLO.into())],
        scope: TranslatedScope::Everything,
        names: Vec::new(),
        service_site: "bonn".into(),
        gateway: "bonn-1".into(),
        policies: Vec::new(),
    };
    view.translated_presences.insert("plc".into(), presence);
    lab.plan = ForwardPlan::new(Arc::new(view), OwnSockets::default(), lab.plan.peers.clone());
    let (plan, peers, mut ended) = (&lab.plan, &lab.peers, 0);
    lab.flows.judge(|flow| judge_again(plan, peers, flow), |_, _| ended += 1);
    assert_eq!(ended, 1);
    assert!(!lab.passes(Direction::Inbound, (5000, 443), true, false));
    assert!(!lab.passes(Direction::Inbound, (443, 5000), false, true), "nor as a reply");
}

#[test]
fn a_peer_with_an_outer_network_sends_nothing_from_a_nested_one() {
    let mut lab = Lab::new();
    let community = CommunityEntry {
        name: "north".into(),
        members: ["oslo", "rome", "bonn"].map(Into::into).to_vec(),
        policies: None,
    };
    let mut view = (*lab.plan.view).clone();
    view.communities.insert("north".into(), community);
    // `rome` has all of 10.0.0.0/8, except what `bonn` and this site have in it.
    let planned = vec![peer("rome", 1, "10.0.0.0/8"), peer("bonn", 2, "10.3.0.0/16")];
    lab.plan = ForwardPlan::new(Arc::new(view), OwnSockets::default(), planned);
    lab.peers.follow(&lab.plan, 1420, lab.now);
    let mut check = |site: &str, source: [u8; 4], passes: bool| {
        let from = lab.peers.by_name(&format!("{site}-1").as_str().into());
        let mut bytes = Vec::new();
        PacketBuilder::ipv4(source, OSLO, 64).udp(4000, 53).write(&mut bytes, b"?").unwrap();
        let packet = parse(&bytes).unwrap();
        let direction = Direction::Inbound;
        let arrival = Arrival { bytes: &bytes, packet: &packet, direction, from, count: 1 };
        let admitted = admit(&mut lab.flows, &lab.plan, &lab.peers, &arrival, lab.now);
        match admitted {
            Ok(_) => assert!(passes, "{site} must not send from {source:?}"),
            Err(NotAdmitted::Drop(DropReason::Spoofed)) => assert!(!passes, "{site} sends from {source:?}"),
            Err(_) => panic!("{site} {source:?}: dropped for another reason"),
        }
    };
    check("rome", [10, 9, 0, 1], true);
    check("bonn", [10, 3, 0, 1], true);
    check("rome", [10, 3, 0, 1], false);
    check("bonn", [10, 9, 0, 1], false);
    // An address of this very site.
    check("rome", [10, 1, 0, 9], false);
    check("rome", [192, 0, 2, 1], false);
}

#[test]
fn an_icmp_error_about_a_flow_comes_from_the_site_of_the_flow() {
    let mut lab = Lab::new();
    let community = CommunityEntry {
        name: "north".into(),
        members: ["oslo", "rome", "bonn"].map(Into::into).to_vec(),
        policies: None,
    };
    let mut view = (*lab.plan.view).clone();
    view.communities.insert("north".into(), community);
    let mut second = peer("rome", 3, "10.4.0.0/16");
    second.entry.gateway = "rome-2".into();
    let planned = vec![peer("rome", 1, "10.2.0.0/16"), peer("bonn", 2, "10.3.0.0/16"), second];
    lab.plan = ForwardPlan::new(Arc::new(view), OwnSockets::default(), planned);
    lab.peers.follow(&lab.plan, 1420, lab.now);
    assert!(lab.passes(Direction::Outbound, (5000, 443), true, false));
    let mut quoted = Vec::new();
    PacketBuilder::ipv4(OSLO, ROME, 63).tcp(5000, 443, 1, 1000).write(&mut quoted, &[]).unwrap();
    let mut passes = |gateway: &str, source: [u8; 4], destination: [u8; 4]| {
        let from = lab.peers.by_name(&gateway.into());
        let mut bytes = Vec::new();
        let kind =
            etherparse::Icmpv4Type::DestinationUnreachable(etherparse::icmpv4::DestUnreachableHeader::Port);
        PacketBuilder::ipv4(source, destination, 64).icmpv4(kind).write(&mut bytes, &quoted).unwrap();
        let packet = parse(&bytes).unwrap();
        let direction = Direction::Inbound;
        let arrival = Arrival { bytes: &bytes, packet: &packet, direction, from, count: 1 };
        match admit(&mut lab.flows, &lab.plan, &lab.peers, &arrival, lab.now) {
            Ok(_) => true,
            Err(NotAdmitted::Drop(DropReason::IcmpError)) => false,
            Err(_) => panic!("{gateway}: dropped for another reason"),
        }
    };
    assert!(passes("rome-1", ROME, OSLO), "the host itself");
    assert!(passes("rome-1", [10, 2, 0, 1], OSLO), "a router on the way to it");
    assert!(passes("rome-2", [10, 4, 0, 1], OSLO), "a router behind another gateway of the site");
    assert!(!passes("bonn-1", [10, 3, 0, 1], OSLO), "a host of another member");
    assert!(!passes("rome-1", ROME, [10, 1, 0, 9]), "another host than the one whose packet is quoted");
}
