//! Packets at the gateway of `oslo`, whose hosts may begin connections to port 443 of `rome`, and not the reverse.

use std::sync::Arc;

use causeway_netmap::{
    CommunityEntry, GatewayEntry, IpProtocol, NetmapView, PolicyEntry, PortRule, TunnelCipher, TunnelKey,
    TunnelPeerEntry,
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

impl Lab {
    fn new() -> Lab {
        let mut view = NetmapView::default();
        view.gateway = Some(GatewayEntry {
            name: "oslo-1".into(),
            site: "oslo".into(),
            ip: None,
            presence_cidrs: Vec::new(),
            priority: 0,
            relay: false,
            prefer: Default::default(),
            tunnel_networks: vec!["10.1.0.0/16".parse().unwrap()],
            mappings: Vec::new(),
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
        let entry = TunnelPeerEntry {
            gateway: "rome-1".into(),
            site: "rome".into(),
            public_key: TunnelKey([1; 32]),
            cipher: TunnelCipher::ChaCha20Poly1305,
            endpoints: Vec::new(),
            networks: vec!["10.2.0.0/16".parse().unwrap()],
            plain_wireguard: false,
            relay: false,
        };
        let planned = PlannedPeer { entry, endpoints: Vec::new() };
        let plan = ForwardPlan::new(Arc::new(view), OwnSockets::default(), vec![planned]);
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
