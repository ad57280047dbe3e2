//! Netmaps of a large community: bytes and compilation per gateway grow with its neighbours and no faster.

use std::time::{Duration, Instant};

use causeway_api::layer3::{TunnelRecord, show_key};

use super::*;
use crate::compile::{PeerScope, compile_for};

/// The networks of the sites, by their number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum AddressPlan {
    /// One beside the other, as planned by one organisation.
    Adjacent,
    /// Networks that the sites chose for themselves: no two of them are one larger network.
    Scattered,
}

impl AddressPlan {
    fn subnet(self, index: usize) -> String {
        let place = match self {
            AddressPlan::Adjacent => index,
            // The factor is odd, so that all places are different; they are even, so that no two can be joined.
            AddressPlan::Scattered => index * 40_503 % 0x8000 * 2,
        };
        format!("10.{}.{}.0/24", place / 256, place % 256)
    }
}

fn community(members: usize) -> ObjectSet {
    community_of(members, AddressPlan::Adjacent)
}

/// A community of this many sites, with a gateway and a network each.
fn community_of(members: usize, plan: AddressPlan) -> ObjectSet {
    let name = |index: usize| format!("site-{index:04}");
    let mut objects = ObjectSet::default();
    for index in 0..members {
        let (site, gateway) = (name(index), format!("gateway-{index:04}"));
        objects.insert(object(Kind::ESite, &site, json!({"subnets": [plan.subnet(index)]})));
        objects.insert(object(Kind::EGateway, &gateway, json!({"eSiteName": site})));
        let mut key = [0; 32];
        key[..8].copy_from_slice(&(index as u64 + 1).to_be_bytes());
        let record = TunnelRecord {
            public_key: show_key(&key),
            port: 7446,
            aes: true,
            addresses: vec![format!("192.168.{}.{}", index / 256, index % 256).parse().unwrap()],
            ..TunnelRecord::default()
        };
        objects.layer3.tunnels.insert(gateway, record);
    }
    let members: Vec<String> = (0..members).map(name).collect();
    objects.insert(object(Kind::ECommunity, "all", json!({"members": members})));
    objects
}

/// The figures of one gateway.
struct NetmapFigures {
    peers: usize,
    bytes: usize,
    /// As it is sent to a gateway that has none yet.
    sent_bytes: usize,
    compiled_in: Duration,
}

fn figures(members: usize) -> NetmapFigures {
    let objects = community(members);
    let begin = Instant::now();
    let entries = compile(&objects, &ActiveGateways::default(), "gateway-0007").unwrap();
    let compiled_in = begin.elapsed();
    let bytes = entries.iter().map(|(key, value)| key.as_str().len() + value.len()).sum();
    let netmap = Netmap::build(Generation::default(), entries, None).unwrap();
    let sent_bytes = netmap.update_from(None).encode().len();
    let peers = NetmapView::decode(&netmap).tunnel_peers.len();
    NetmapFigures { peers, bytes, sent_bytes, compiled_in }
}

#[test]
fn the_netmap_of_a_member_grows_with_its_neighbours_and_no_faster() {
    let rows = [125, 250, 500, 1000].map(|members| (members, figures(members)));
    for (members, row) in &rows {
        println!(
            "{members} gateways: {} peers, netmap {} bytes, {} bytes sent, {} bytes per peer, compiled in {:?}",
            row.peers,
            row.bytes,
            row.sent_bytes,
            row.bytes / row.peers,
            row.compiled_in
        );
    }
    let per_peer = |row: &NetmapFigures| row.bytes / row.peers;
    for (members, row) in &rows {
        assert_eq!(row.peers, members - 1);
        assert!(per_peer(row) < 200, "{members} gateways: {} bytes per peer", per_peer(row));
    }
    let (small, large) = (per_peer(&rows[0].1), per_peer(&rows[3].1));
    assert!(large <= small + small / 10, "{large} bytes per peer of 1000, {small} of 125");
}

/// The sum of the netmaps of all members, when each talks with the next `talking` ones and they with it, and the largest
/// delta when one more site joins.
fn sum(members: usize, talking: usize, plan: AddressPlan) -> (usize, usize) {
    let (objects, larger) = (community_of(members, plan), community_of(members + 1, plan));
    let (mut bytes, mut delta) = (0, 0);
    // Netmaps of the first gateways; the remaining ones are alike.
    const SAMPLE: usize = 16;
    for index in 0..SAMPLE {
        let around = (1..=talking / 2).flat_map(|step| [index + step, index + members - step]);
        let neighbours = around.map(|index| format!("site-{:04}", index % members)).collect();
        let scope = PeerScope::Neighbours { members_max: 64, neighbours: &neighbours };
        let netmap = |objects: &ObjectSet, revision| {
            let gateway = format!("gateway-{index:04}");
            let entries = compile_for(objects, &ActiveGateways::default(), &gateway, scope).unwrap();
            Netmap::build(Generation { epoch: 1, revision }, entries, None).unwrap()
        };
        let (before, after) = (netmap(&objects, 1), netmap(&larger, 2));
        assert_eq!(NetmapView::decode(&before).tunnel_peers.len(), talking);
        bytes += before.size_bytes();
        delta = delta.max(after.update_from(Some(&before)).encode().len());
    }
    (bytes / SAMPLE * members, delta)
}

#[test]
fn the_netmaps_of_a_large_community_grow_with_the_neighbours_that_talk() {
    for talking in [4, 16] {
        let rows = [250, 500, 1000].map(|members| (members, sum(members, talking, AddressPlan::Adjacent)));
        for (members, (bytes, delta)) in rows {
            println!(
                "{members} gateways, {talking} talk: {bytes} bytes of netmaps together, {} each; a new site is a delta of {delta} bytes at most",
                bytes / members
            );
            assert!(delta < 400, "{delta} bytes are sent to each member when a site joins");
        }
        let [(_, (small, _)), _, (_, (large, _))] = rows;
        assert!(large < small * 5, "four times the members: {small} and {large} bytes");
    }
}

/// Bytes of a summary for each network that cannot be joined with another.
const SCATTERED_NETWORK_BYTES: usize = 8;

#[test]
fn a_scattered_address_plan_costs_a_few_bytes_per_network_and_nothing_else() {
    for (members, talking) in [(250, 4), (500, 4), (1000, 4), (1000, 16)] {
        let networks: BTreeSet<String> =
            (0..members).map(|index| AddressPlan::Scattered.subnet(index)).collect();
        assert_eq!(networks.len(), members, "each site has a network of its own");
        let [adjacent, scattered] = [AddressPlan::Adjacent, AddressPlan::Scattered].map(|plan| {
            let (bytes, delta) = sum(members, talking, plan);
            (bytes / members, delta)
        });
        println!(
            "{members} gateways with scattered networks, {talking} talk: {} bytes of netmaps together, {} each instead of {}; \
             a new site is a delta of {} bytes at most instead of {}",
            scattered.0 * members,
            scattered.0,
            adjacent.0,
            scattered.1,
            adjacent.1
        );
        let more = scattered.0 - adjacent.0;
        assert!(more <= members * SCATTERED_NETWORK_BYTES, "{more} bytes for {members} networks");
    }
}

#[test]
fn a_large_community_is_told_in_summary_and_taking_access_away_wins() {
    let neighbours = BTreeSet::from(["site-0003".to_owned(), "stranger".to_owned()]);
    let scope = PeerScope::Neighbours { members_max: 64, neighbours: &neighbours };
    let view = |objects: &ObjectSet, gateway: &str, scope| {
        let entries = compile_for(objects, &ActiveGateways::default(), gateway, scope).unwrap();
        NetmapView::decode(&Netmap::build(Generation::default(), entries, None).unwrap())
    };
    let peers =
        |view: &NetmapView| view.tunnel_peers.keys().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    let mut objects = community(65);
    objects.insert(object(Kind::ESite, "stranger", json!({"subnets": ["172.16.0.0/24"]})));
    objects.insert(object(Kind::EServer, "clerk", json!({"eSiteName": "site-0003", "ip": "10.0.3.9"})));
    objects.insert(object(Kind::EServer, "other", json!({"eSiteName": "site-0004", "ip": "10.0.4.9"})));
    let told = view(&objects, "gateway-0000", scope);
    assert_eq!(peers(&told), "gateway-0003");
    let community = told.communities.get("all").unwrap();
    assert_eq!(community.members.len(), 2, "the site itself and its neighbour: {:?}", community.members);
    assert_eq!(told.hosts.keys().map(ToString::to_string).collect::<Vec<_>>(), ["clerk"]);
    let on_demand = told.on_demand.clone().unwrap();
    let covers = |address: &str| on_demand.covers(address.parse().unwrap());
    assert!(covers("10.0.3.9") && covers("10.0.64.1"), "{on_demand:?}");
    assert!(
        !covers("10.0.0.1") && !covers("10.0.65.1") && !covers("172.16.0.1"),
        "no address of another site"
    );
    // A gateway that does not ask, and a community that is not large.
    let old = view(&objects, "gateway-0000", PeerScope::Everyone);
    assert_eq!((old.tunnel_peers.len(), old.on_demand), (64, None));
    let small = PeerScope::Neighbours { members_max: 65, neighbours: &neighbours };
    assert_eq!(view(&objects, "gateway-0000", small).tunnel_peers.len(), 64);
    // The first relays are peers of all members, and have all members as peers.
    objects.insert(object(Kind::EGateway, "gateway-0009", json!({"eSiteName": "site-0009", "relay": true})));
    assert_eq!(peers(&view(&objects, "gateway-0000", scope)), "gateway-0003 gateway-0009");
    assert_eq!(view(&objects, "gateway-0009", scope).tunnel_peers.len(), 64);
    // The neighbour leaves the community.
    let left: Vec<String> =
        (0..66).filter(|index| *index != 3).map(|index| format!("site-{index:04}")).collect();
    objects.insert(object(Kind::ECommunity, "all", json!({"members": left})));
    let told = view(&objects, "gateway-0000", scope);
    assert_eq!(peers(&told), "gateway-0009");
    assert!(!told.on_demand.unwrap().covers("10.0.3.9".parse().unwrap()) && told.hosts.is_empty());
}
