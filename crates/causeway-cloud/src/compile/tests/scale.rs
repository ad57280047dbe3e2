//! Netmaps of a large community: bytes and compilation per gateway grow with its neighbours and no faster.

use std::time::{Duration, Instant};

use causeway_api::layer3::{TunnelRecord, show_key};

use super::*;

/// A community of this many sites, with a gateway and a network each.
fn community(members: usize) -> ObjectSet {
    let name = |index: usize| format!("site-{index:04}");
    let mut objects = ObjectSet::default();
    for index in 0..members {
        let (site, gateway) = (name(index), format!("gateway-{index:04}"));
        let subnet = format!("10.{}.{}.0/24", index / 256, index % 256);
        objects.insert(object(Kind::ESite, &site, json!({"subnets": [subnet]})));
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
