//! A gateway in a community of 1,000: the memory of its table, and the messages that it sends as a function of the peers
//! with which it talks.

use std::time::SystemTime;

use causeway_netmap::{TunnelCipher, TunnelKey, TunnelPeerEntry};

use super::*;
use crate::tun::admission::OwnSockets;
use crate::tun::noise::{self, StaticKeys};

const GATEWAYS: usize = 1000;
/// Peers with which the gateway talks.
const TALKING: [usize; 2] = [4, 16];

/// The plan of the first gateway. `keys` are those of the first gateways; the remaining ones send nothing.
fn plan(keys: &[StaticKeys]) -> ForwardPlan {
    let planned = |index: usize| {
        let mut silent = [0xee; 32];
        silent[..8].copy_from_slice(&(index as u64).to_be_bytes());
        let [high, low] = (index as u16).to_be_bytes();
        let entry = TunnelPeerEntry {
            gateway: format!("gateway-{index:04}").as_str().into(),
            site: format!("site-{index:04}").as_str().into(),
            public_key: TunnelKey(keys.get(index).map_or(silent, |keys| *keys.public())),
            cipher: TunnelCipher::Aes256Gcm,
            endpoints: Vec::new(),
            networks: vec![format!("10.{high}.{low}.0/24").parse().unwrap()],
            plain_wireguard: false,
            relay: false,
        };
        PlannedPeer { entry, endpoints: vec![SocketAddr::from(([192, 0, 2, 1], 7446))] }
    };
    ForwardPlan::new(Default::default(), OwnSockets::default(), (1..GATEWAYS).map(planned).collect())
}

/// Runs the timers of a gateway that talks with this number of peers for ten minutes, and returns initiations and
/// keepalives.
fn messages(keys: &[StaticKeys], talking: usize) -> (usize, usize) {
    let begin = Instant::now();
    let mut table = PeerTable::default();
    table.follow(&plan(keys), 1420, begin);
    let (mut initiations, mut keepalives, mut index) = (0, 0, 0);
    let mut others: Vec<Option<PeerSession>> = (0..table.slots()).map(|_| None).collect();
    for second in (0..600).step_by(5) {
        let now = begin + Duration::from_secs(second);
        let clock = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000 + second);
        for slot in 0..table.slots() {
            let Some(peer) = table.get_mut(slot) else { continue };
            let mut out = [0; 256];
            // A packet every ten seconds to each peer with which this gateway talks, and its reply.
            if slot < talking && second % 10 == 0 {
                peer.used = Some(now);
                match (peer.session.seal(&[0x45; 64], &mut out, 1420, now), &mut others[slot]) {
                    (Some(length), Some(other)) => {
                        other.open(&mut out[..length], now).unwrap();
                        let length = other.seal(&[0x45; 64], &mut out, 1420, now).unwrap();
                        peer.session.open(&mut out[..length], now).unwrap();
                    }
                    _ => peer.session.want_handshake(),
                }
            }
            peer.session.keep_alive(peer.keepalive(now));
            let actions = peer.session.handle_time(now);
            keepalives += usize::from(actions.keepalive);
            if !actions.initiate {
                continue;
            }
            index += 2;
            initiations += 1;
            let message = peer.session.initiate(&keys[0], index, now, clock).unwrap();
            // The slots are in the order of the names, and this gateway is the first.
            let other = others[slot]
                .get_or_insert_with(|| PeerSession::new(*keys[0].public(), peer.planned.cipher()));
            let initiation = noise::read_initiation(&keys[slot + 1], &message).unwrap();
            let response = other.handle_initiation(initiation, index + 1, now).unwrap();
            assert!(peer.session.handle_response(&response, now));
            table.note_index(slot, index);
        }
    }
    (initiations, keepalives)
}

#[test]
fn a_gateway_among_a_thousand_pays_for_the_peers_with_which_it_talks() {
    let keys: Vec<StaticKeys> = (0..=TALKING[1])
        .map(|index| {
            let mut private = [7; 32];
            private[..8].copy_from_slice(&(index as u64 + 1).to_be_bytes());
            StaticKeys::from_private(private)
        })
        .collect();
    let begin = Instant::now();
    let mut table = PeerTable::default();
    let plan = plan(&keys);
    table.follow(&plan, 1420, begin);
    let followed = begin.elapsed();
    let bytes = std::mem::size_of::<Option<Peer>>();
    println!("1000 gateways: {bytes} bytes per peer that is silent, table followed in {followed:?}");
    assert_eq!(table.iter().count(), GATEWAYS - 1);
    assert!(bytes < 4096, "{bytes} bytes per peer");
    assert!(table.iter().all(|peer| peer.session.indexes().next().is_none() && peer.staged.capacity() == 0));
    assert_eq!(messages(&keys, 0), (0, 0), "gateways without packets for each other send nothing");
    let (one, _) = messages(&keys, 1);
    for talking in TALKING {
        let (initiations, keepalives) = messages(&keys, talking);
        println!(
            "{talking} of 999 peers talk: {initiations} handshakes, {keepalives} keepalives in 10 minutes"
        );
        assert_eq!(initiations, talking * one, "handshakes grow with the peers that talk");
    }
}

#[test]
fn a_relay_that_changes_its_answer_all_the_time_causes_no_flood() {
    let (begin, keys) = (Instant::now(), [StaticKeys::from_private([7; 32])]);
    let mut plan = plan(&keys);
    plan.peers.truncate(2);
    plan.peers[0].entry.relay = true;
    let mut table = PeerTable::default();
    table.follow(&plan, 1420, begin);
    let mut told = |slot: usize, count: u16| {
        let peer = table.get_mut(slot).unwrap();
        let changes = (1..=count).filter(|port| {
            let now = begin + Duration::from_millis(u64::from(*port));
            peer.note_reflexive(SocketAddr::from(([192, 0, 2, 1], *port)), now)
        });
        let changes = changes.count();
        assert_eq!(peer.reflexive.map(|(address, _)| address.port()), Some(count), "the last one is known");
        changes
    };
    assert_eq!(told(0, 5000), 5, "once per second");
    assert_eq!(told(1, 5000), 0, "a peer that is no relay is not believed");
}

#[test]
fn a_relay_that_invents_initiations_of_a_peer_takes_nothing_from_the_peer() {
    let (now, keys) = (Instant::now(), [StaticKeys::from_private([7; 32])]);
    let mut plan = plan(&keys);
    plan.peers.truncate(30);
    plan.peers[0].entry.relay = true;
    plan.peers[1].entry.relay = true;
    let mut table = PeerTable::default();
    table.follow(&plan, 1420, now);
    let id = |table: &PeerTable, slot: usize| RelayId::of(table.get(slot).unwrap().session.peer());
    let (invents, honest) = (id(&table, 0), id(&table, 1));
    let read = (0..1000).filter(|turn| {
        let origin = Origin::Relay { relay: invents, from: 2 + turn % 28 };
        table.admits_initiation(origin, now)
    });
    assert_eq!(read.count() as u64, RELAYED_HANDSHAKES_PER_SECOND);
    assert!(!table.charge_relay((invents, 2), now), "responses count as well");
    assert!(table.admits_initiation(Origin::Relay { relay: honest, from: 2 }, now), "by another relay");
    // A peer that floods an honest relay leaves the rest to the other peers.
    let flood = |table: &mut PeerTable, from| {
        (0..1000).filter(|_| table.admits_initiation(Origin::Relay { relay: honest, from }, now)).count()
            as u64
    };
    assert_eq!(flood(&mut table, 3), RELAYED_HANDSHAKES_OF_ONE_PEER);
    assert_eq!(flood(&mut table, 4), RELAYED_HANDSHAKES_OF_ONE_PEER);
    assert!(table.admits_initiation(Origin::Channel(2), now), "over the channel");
    assert!(!table.admits_initiation(Origin::Channel(2), now), "a peer has a rate of its own there");
    let later = now + Duration::from_millis(100);
    let read = (0..1000).filter(|turn| {
        let origin = Origin::Relay { relay: invents, from: 2 + turn % 28 };
        table.admits_initiation(origin, later)
    });
    assert_eq!(read.count() as u64, RELAYED_HANDSHAKES_PER_SECOND / 10);
}
