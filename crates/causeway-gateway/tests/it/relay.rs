//! A relay between gateways that this test plays: what it forwards, to whom, under which sender, and what it refuses.
//!
//! The relay is a tunnel without networks on loopback, which needs no rights. The gateways are sessions of the test.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use causeway_gateway::packet_carrier::PacketCarrier;
use causeway_gateway::tun::cipher::TransportCipher;
use causeway_gateway::tun::noise::StaticKeys;
use causeway_gateway::tun::relay_frame::{self, RELAY_HEAD_BYTES, RelayHop, RelayId};
use causeway_gateway::tun::session::{Opened, PeerSession};
use causeway_gateway::tun::{Tunnel, TunnelOptions};
use causeway_netmap::{NetmapView, RelayGroupEntry, TunnelCipher, TunnelKey, TunnelPeerEntry};
use tokio_util::sync::CancellationToken;

use crate::packets::gateway;

const DEADLINE: Duration = Duration::from_secs(30);
/// Time in which nothing may arrive. The relay forwards within microseconds.
const SILENCE: Duration = Duration::from_millis(300);

/// A gateway that the test plays.
struct Played {
    keys: StaticKeys,
    socket: UdpSocket,
    session: PeerSession,
    relay: SocketAddr,
}

impl Played {
    fn keys(number: u8) -> StaticKeys {
        StaticKeys::from_private([number; 32])
    }

    fn id(number: u8) -> RelayId {
        RelayId::of(Played::keys(number).public())
    }

    /// Opens a session with the relay.
    fn connect(number: u8, relay: SocketAddr, relay_key: [u8; 32]) -> Played {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.set_read_timeout(Some(SILENCE)).unwrap();
        let session = PeerSession::new(relay_key, TransportCipher::ChaCha20Poly1305);
        let mut played = Played { keys: Played::keys(number), socket, session, relay };
        let (begin, mut buffer) = (Instant::now(), [0; 2048]);
        loop {
            assert!(begin.elapsed() < DEADLINE, "the relay does not answer");
            let now = Instant::now();
            let index = u32::from(number);
            let message = played.session.initiate(&played.keys, index, now, SystemTime::now()).unwrap();
            played.socket.send_to(&message, relay).unwrap();
            let Ok(length) = played.socket.recv(&mut buffer) else { continue };
            if played.session.handle_response(&buffer[..length], Instant::now()) {
                // The first packet tells the relay at which address this gateway is.
                played.send(&[]);
                return played;
            }
        }
    }

    /// Seals bytes for the relay, and returns the datagram.
    fn send(&mut self, plain: &[u8]) -> Vec<u8> {
        let mut out = [0; 2048];
        let length = self.session.seal_silently(plain, &mut out, Instant::now()).unwrap();
        self.socket.send_to(&out[..length], self.relay).unwrap();
        out[..length].to_vec()
    }

    fn send_frame(&mut self, hop: RelayHop, message: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; RELAY_HEAD_BYTES];
        relay_frame::write(hop, &mut frame);
        frame.extend_from_slice(message);
        self.send(&frame)
    }

    /// Returns the next frame of the relay. None: nothing came for this time. Probes are left out.
    fn next_frame(&mut self, patience: Duration) -> Option<(RelayHop, Vec<u8>)> {
        self.socket.set_read_timeout(Some(patience)).unwrap();
        let mut buffer = [0; 2048];
        while let Ok(length) = self.socket.recv(&mut buffer) {
            let Ok(Opened::Packet(plain)) = self.session.open(&mut buffer[..length], Instant::now()) else {
                continue;
            };
            if let Some(hop) = relay_frame::read(plain) {
                return Some((hop, plain[RELAY_HEAD_BYTES..].to_vec()));
            }
        }
        None
    }
}

fn peer(number: u8, name: &str, site: &str) -> TunnelPeerEntry {
    TunnelPeerEntry {
        gateway: name.into(),
        site: site.into(),
        public_key: TunnelKey(*Played::keys(number).public()),
        cipher: TunnelCipher::ChaCha20Poly1305,
        endpoints: Vec::new(),
        networks: Vec::new(),
        plain_wireguard: false,
        relay: false,
    }
}

/// Oslo and Berlin share a group, Berlin and Rome another one.
fn view() -> Arc<NetmapView> {
    let mut view = NetmapView::default();
    for (number, name, site) in
        [(1, "oslo-1", "oslo"), (2, "berlin-1", "berlin"), (3, "rome-1", "rome"), (4, "berlin-2", "berlin")]
    {
        view.tunnel_peers.insert(name.into(), peer(number, name, site));
    }
    for (name, sites) in [("north", ["oslo", "berlin"]), ("south", ["rome", "berlin"])] {
        let sites = sites.iter().map(|site| (*site).into()).collect();
        view.relay_groups.insert(name.into(), RelayGroupEntry { name: name.into(), sites });
    }
    Arc::new(view)
}

/// A message that has the form of a sealed packet.
fn sealed(fill: u8) -> Vec<u8> {
    [&[4, 0, 0, 0][..], &[fill; 60]].concat()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_forwards_between_members_and_names_the_true_sender() {
    let folder = tempfile::tempdir().unwrap();
    let (owner, netmaps) = gateway(view(), None);
    let options = TunnelOptions {
        off: false,
        listen: "127.0.0.1:0".parse().unwrap(),
        key_file: folder.path().join("tunnel.key"),
        ..TunnelOptions::default()
    };
    let tunnel = Tunnel::new(owner.context().clone(), options, PacketCarrier::new(owner.context().clone()));
    let (key, stop) = (tunnel.public_key().unwrap().0, CancellationToken::new());
    let mut state = tunnel.state();
    let running = tokio::spawn({
        let (tunnel, stop) = (tunnel.clone(), stop.clone());
        async move { tunnel.run(stop).await }
    });
    let listening = state.wait_for(|state| state.listen.is_some());
    let relay = tokio::time::timeout(DEADLINE, listening).await.unwrap().unwrap().listen.unwrap();
    let tunnel_state = state.clone();
    let playing = tokio::task::spawn_blocking(move || {
        let [mut oslo, mut berlin, mut rome] = [1, 2, 3].map(|number| Played::connect(number, relay, key));
        let from_oslo = RelayHop::From(Played::id(1));
        oslo.send_frame(RelayHop::To(Played::id(2)), &sealed(7));
        assert_eq!(berlin.next_frame(DEADLINE), Some((from_oslo, sealed(7))));
        berlin.send_frame(RelayHop::To(Played::id(3)), &sealed(8));
        assert_eq!(rome.next_frame(DEADLINE), Some((RelayHop::From(Played::id(2)), sealed(8))));
        // Oslo and Rome share no group; a frame to itself, or to a stranger, goes nowhere.
        for to in [3, 1, 9] {
            oslo.send_frame(RelayHop::To(Played::id(to)), &sealed(9));
        }
        // A gateway that is no relay names a sender: to the relay itself, nothing is forwarded.
        oslo.send_frame(RelayHop::From(Played::id(2)), &sealed(9));
        // No sealed packet, and a gateway without a session.
        oslo.send_frame(
            RelayHop::To(Played::id(2)),
            b"GET / HTTP/1.1\r\n\r\n, as long as a sealed packet is",
        );
        oslo.send_frame(RelayHop::To(Played::id(4)), &sealed(9));
        // The same datagram twice, a frame that is not sealed, and one of a stranger.
        let again = oslo.send_frame(RelayHop::To(Played::id(2)), &sealed(10));
        assert_eq!(berlin.next_frame(DEADLINE), Some((from_oslo, sealed(10))));
        oslo.socket.send_to(&again, relay).unwrap();
        let mut open = vec![0; RELAY_HEAD_BYTES];
        relay_frame::write(RelayHop::To(Played::id(2)), &mut open);
        open.extend_from_slice(&sealed(11));
        let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
        stranger.set_read_timeout(Some(SILENCE)).unwrap();
        for socket in [&oslo.socket, &stranger] {
            socket.send_to(&open, relay).unwrap();
        }
        assert!(stranger.recv(&mut [0; 2048]).is_err(), "a stranger gets no answer");
        assert_eq!((berlin.next_frame(SILENCE), rome.next_frame(SILENCE)), (None, None));
        (oslo, berlin, rome)
    });
    let (mut oslo, mut berlin, mut rome) = playing.await.unwrap();
    let expected =
        [("relay-refused", 4), ("malformed", 1), ("relay-no-path", 1), ("replayed", 1), ("not-authentic", 2)];
    let counted = state.wait_for(|state| {
        let is_counted = |(reason, count): &(&str, u64)| state.dropped.get(*reason) == Some(count);
        state.relayed.packets == 3 && expected.iter().all(is_counted)
    });
    let counted = tokio::time::timeout(DEADLINE, counted).await.map(|counted| counted.is_ok());
    assert_eq!(counted, Ok(true), "{:?}", tunnel.state().borrow().clone());
    // Berlin leaves the community of Oslo, Rome is no member any more: their sessions are open, and nothing is forwarded.
    let mut less = (*view()).clone();
    less.relay_groups.remove("north");
    less.tunnel_peers.retain(|name, _| name.as_str() != "rome-1");
    netmaps.send_replace(Arc::new(less));
    let mut gone = tunnel_state;
    let gone = gone.wait_for(|state| !state.peers.contains_key("rome-1"));
    tokio::time::timeout(DEADLINE, gone).await.unwrap().unwrap();
    let playing = tokio::task::spawn_blocking(move || {
        oslo.send_frame(RelayHop::To(Played::id(2)), &sealed(12));
        berlin.send_frame(RelayHop::To(Played::id(3)), &sealed(12));
        rome.send_frame(RelayHop::To(Played::id(2)), &sealed(12));
        assert_eq!((berlin.next_frame(SILENCE), rome.next_frame(SILENCE)), (None, None));
    });
    playing.await.unwrap();
    let refused = state.wait_for(|state| state.dropped.get("relay-refused") == Some(&6));
    tokio::time::timeout(DEADLINE, refused).await.unwrap().unwrap();
    assert_eq!(tunnel.state().borrow().relayed.packets, 3);
    stop.cancel();
    running.await.unwrap();
}
