//! Sealed packets over the channel: a stream per peer, only from peers of the netmap, dropped when nothing takes them.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causeway_channel::link::{DatagramFlow, Link, Stream, StreamHeader, StreamPurpose, Transport};
use causeway_channel::wire::datagrams::FramedDatagram;
use causeway_gateway::audit::{AuditRecord, AuditSink};
use causeway_gateway::packet_carrier::{self, PacketCarrier, PacketHandler};
use causeway_gateway::peers::{BoxedFuture, GatewayPeers, PeerError};
use causeway_gateway::{Gateway, GatewayOptions, GatewayParts};
use causeway_netmap::{GatewayName, NetmapView, OnDemandEntry, TunnelCipher, TunnelKey, TunnelPeerEntry};
use tokio::sync::{mpsc, watch};

use crate::links;

const DEADLINE: Duration = Duration::from_secs(30);

struct NoRecords;

impl AuditSink for NoRecords {
    fn record(&self, _: AuditRecord) {}
}

struct OverLink(Option<Link>);

impl GatewayPeers for OverLink {
    fn open_stream(&self, header: StreamHeader) -> BoxedFuture<'_, Result<Stream, PeerError>> {
        Box::pin(async move {
            let away = |why: String| PeerError::Away { site: "berlin".into(), why };
            let link = self.0.as_ref().ok_or_else(|| away("no link".to_owned()))?;
            link.open_stream(header).await.map_err(|error| away(error.to_string()))
        })
    }
}

/// A netmap with one peer.
fn view(gateway: &str, site: &str, plain_wireguard: bool) -> Arc<NetmapView> {
    let mut view = NetmapView::default();
    let peer = TunnelPeerEntry {
        gateway: gateway.into(),
        site: site.into(),
        public_key: TunnelKey([1; 32]),
        cipher: TunnelCipher::ChaCha20Poly1305,
        endpoints: Vec::new(),
        networks: Vec::new(),
        plain_wireguard,
        relay: false,
    };
    view.tunnel_peers.insert(gateway.into(), peer);
    Arc::new(view)
}

pub fn gateway(view: Arc<NetmapView>, link: Option<Link>) -> (Gateway, watch::Sender<Arc<NetmapView>>) {
    let (netmaps, netmap) = watch::channel(view);
    let gateway = Gateway::new(GatewayParts {
        netmaps: netmap,
        peers: Arc::new(OverLink(link)),
        audit: Arc::new(NoRecords),
        options: GatewayOptions::default(),
        role_facts: None,
    });
    (gateway, netmaps)
}

fn carrier(gateway: &Gateway) -> Arc<PacketCarrier> {
    let carrier = PacketCarrier::new(gateway.context().clone());
    carrier.start();
    carrier
}

#[tokio::test]
async fn packets_arrive_whole_and_in_order_over_either_transport() {
    for transport in [Transport::Tcp, Transport::Quic] {
        let (near, far, _port) = links::pair(transport).await;
        let _control = near.open_stream(StreamHeader::new(StreamPurpose::Control)).await.unwrap();
        let _begun = far.accept_stream().await.unwrap();
        let (oslo, _) = gateway(view("berlin-1", "berlin", false), Some(near));
        let (berlin, netmaps) = gateway(view("oslo-1", "oslo", false), None);
        let carrier = carrier(&oslo);
        let (taken, mut arrived) = mpsc::unbounded_channel();
        let handle: PacketHandler = Arc::new(move |from: &GatewayName, packet: Bytes| {
            let _ = taken.send((from.to_string(), packet));
        });
        let sizes = [1_usize, 148, 1200, 1452, 9000];
        for size in sizes {
            assert!(carrier.send(&"berlin-1".into(), &vec![size as u8; size]));
        }
        let (header, stream) = far.accept_stream().await.unwrap();
        assert_eq!(header.purpose(), Some(StreamPurpose::Packets));
        assert_eq!((header.site.as_str(), header.gateway.as_str()), ("berlin", "berlin-1"));
        let peer = ("oslo".into(), "oslo-1".into());
        let receiving = tokio::spawn(packet_carrier::receive(berlin.context().clone(), peer, stream, handle));
        let mut found: Vec<usize> = Vec::new();
        while found.len() < sizes.len() {
            let (from, packet) = tokio::time::timeout(DEADLINE, arrived.recv()).await.unwrap().unwrap();
            assert_eq!(from, "oslo-1");
            assert!(packet.iter().all(|byte| *byte == packet.len() as u8));
            found.push(packet.len());
        }
        // Datagrams beside the stream may overtake those on it.
        found.sort_unstable();
        assert_eq!(found, sizes, "{transport:?}");
        netmaps.send_replace(Arc::default());
        tokio::time::timeout(DEADLINE, receiving).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn packets_of_a_gateway_that_is_no_peer_are_refused() {
    for (gateway_name, site, is_plain) in
        [("rome-1", "rome", false), ("oslo-1", "rome", false), ("oslo-1", "oslo", true)]
    {
        let (near, far, _port) = links::pair(Transport::Tcp).await;
        let (berlin, _netmaps) = gateway(view(gateway_name, site, is_plain), None);
        let mut sent = near.open_stream(StreamHeader::new(StreamPurpose::Packets)).await.unwrap();
        let (_, stream) = far.accept_stream().await.unwrap();
        let handle: PacketHandler = Arc::new(|_, _| panic!("nothing may arrive"));
        let peer = ("oslo".into(), "oslo-1".into());
        packet_carrier::receive(berlin.context().clone(), peer, stream, handle).await;
        let mut byte = [0; 1];
        let read = tokio::io::AsyncReadExt::read(&mut sent, &mut byte);
        let ended = tokio::time::timeout(DEADLINE, read).await.unwrap();
        assert!(ended.is_err(), "{gateway_name} {site} {is_plain}: {ended:?}");
    }
}

#[tokio::test]
async fn a_gateway_that_becomes_no_peer_takes_no_place_from_one_that_does() {
    let on_demand = |mut view: NetmapView| {
        view.on_demand = Some(OnDemandEntry { networks: vec!["10.0.0.0/8".parse().unwrap()] });
        Arc::new(view)
    };
    let (near, far, _port) = links::pair(Transport::Tcp).await;
    let (berlin, netmaps) = gateway(on_demand(NetmapView::default()), None);
    let (taken, mut arrived) = mpsc::unbounded_channel();
    let handle: PacketHandler = Arc::new(move |from: &GatewayName, _| drop(taken.send(from.to_string())));
    let mut receiving = tokio::task::JoinSet::new();
    let mut open = async |gateway: &str| {
        let header = StreamHeader { datagrams: true, ..StreamHeader::new(StreamPurpose::Packets) };
        let sent = near.open_stream(header).await.unwrap();
        let (_, stream) = far.accept_stream().await.unwrap();
        let peer = ("oslo".into(), gateway.into());
        receiving.spawn(packet_carrier::receive(berlin.context().clone(), peer, stream, handle.clone()));
        // The stream takes its place before the next one comes.
        tokio::task::yield_now().await;
        sent
    };
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(open("mallory-1").await);
    }
    let mut oslo = DatagramFlow::from(open("oslo-1").await);
    netmaps.send_replace(on_demand((*view("oslo-1", "oslo", false)).clone()));
    oslo.send.send(FramedDatagram::new(b"packet").unwrap()).await.unwrap();
    let from = tokio::time::timeout(DEADLINE, arrived.recv()).await.unwrap();
    assert_eq!(from.as_deref(), Some("oslo-1"));
}

#[tokio::test]
async fn a_packet_that_cannot_cross_is_dropped_and_nothing_waits() {
    let (oslo, netmaps) = gateway(view("berlin-1", "berlin", false), None);
    let carrier = carrier(&oslo);
    assert!(!carrier.send(&"nobody".into(), b"x"), "no peer of the netmap");
    let taken = (0..1000).filter(|_| carrier.send(&"berlin-1".into(), b"x")).count();
    assert!(taken <= 512, "{taken} packets wait for a peer that is away");
    netmaps.send_replace(view("berlin-1", "berlin", true));
    let stopped = || !carrier.send(&"berlin-1".into(), b"x");
    tokio::time::timeout(DEADLINE, async {
        while !stopped() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
}
