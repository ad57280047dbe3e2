//! The plan follows the netmap, whatever name servers do.

use std::time::Duration;

use causeway_netmap::{TunnelCipher, TunnelPeerEntry};

use super::*;
use crate::audit::{AuditRecord, AuditSink};
use crate::peers::{BoxedFuture, GatewayPeers, PeerError};
use crate::{Gateway, GatewayOptions, GatewayParts};

struct Nobody;

impl AuditSink for Nobody {
    fn record(&self, _: AuditRecord) {}
}

impl GatewayPeers for Nobody {
    fn open_stream(
        &self,
        _: causeway_channel::link::StreamHeader,
    ) -> BoxedFuture<'_, Result<causeway_channel::link::Stream, PeerError>> {
        Box::pin(std::future::pending())
    }
}

/// A netmap with peers by name and endpoint.
fn view(peers: &[(&str, &str)]) -> Arc<NetmapView> {
    let mut view = NetmapView::default();
    for (number, (gateway, endpoint)) in (0..).zip(peers) {
        let entry = TunnelPeerEntry {
            gateway: (*gateway).into(),
            site: (*gateway).into(),
            public_key: TunnelKey([number; 32]),
            cipher: TunnelCipher::ChaCha20Poly1305,
            endpoints: vec![(*endpoint).to_owned()],
            networks: Vec::new(),
            plain_wireguard: false,
            relay: false,
        };
        view.tunnel_peers.insert((*gateway).into(), entry);
    }
    Arc::new(view)
}

fn shown(plan: &ForwardPlan) -> Vec<(String, Vec<String>)> {
    let endpoints = |peer: &plan::PlannedPeer| peer.endpoints.iter().map(ToString::to_string).collect();
    plan.peers.iter().map(|peer| (peer.entry.gateway.to_string(), endpoints(peer))).collect()
}

/// A tunnel that opens nothing, and its gateway.
fn tunnel(netmap: watch::Receiver<Arc<NetmapView>>) -> (Tunnel, Gateway) {
    let gateway = Gateway::new(GatewayParts {
        netmaps: netmap,
        peers: Arc::new(Nobody),
        audit: Arc::new(Nobody),
        options: GatewayOptions::default(),
        role_facts: None,
    });
    let context = gateway.context().clone();
    let carrier = PacketCarrier::new(context.clone());
    (Tunnel::new(context, TunnelOptions::default(), carrier), gateway)
}

#[tokio::test(start_paused = true)]
async fn a_name_is_looked_up_although_netmaps_come_more_often_than_answers() {
    let peers = |number: usize| {
        view(&[("oslo", "slow.example:1"), ("rome", ["192.0.2.3:3", "192.0.2.4:4"][number % 2])])
    };
    let (netmaps, mut netmap) = watch::channel(peers(0));
    let (tunnel, _gateway) = tunnel(netmap.clone());
    let asked = std::cell::Cell::new(0);
    let look_up = |_: String| {
        asked.set(asked.get() + 1);
        async {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Some(vec![SocketAddr::from(([192, 0, 2, 9], 1))])
        }
    };
    let (plans, plan) = watch::channel(Arc::default());
    let following = tunnel.follow_netmaps(&mut netmap, false, &plans, look_up);
    let playing = async {
        for number in 1..=20 {
            tokio::time::sleep(Duration::from_millis(100)).await;
            netmaps.send_replace(peers(number));
        }
        assert_eq!(shown(&plan.borrow())[0].1, ["192.0.2.9:1"], "after two seconds");
        assert_eq!(asked.get(), 1, "a netmap with the same name asks no name server");
        tokio::time::sleep(2 * CHECK_PERIOD).await;
        assert!((2..=3).contains(&asked.get()), "its address may change: {}", asked.get());
        netmaps.send_replace(Arc::default());
    };
    tokio::join!(following, playing);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_is_taken_away_goes_at_once_although_a_name_server_is_silent() {
    let (netmaps, netmap) = watch::channel(view(&[
        ("oslo", "dead.example:1"),
        ("rome", "good.example:2"),
        ("bonn", "192.0.2.3:3"),
    ]));
    let (tunnel, _gateway) = tunnel(netmap.clone());
    let look_up = |name: String| async move {
        match name.as_str() {
            "good.example:2" => Some(vec![SocketAddr::from(([192, 0, 2, 2], 2))]),
            _ => std::future::pending().await,
        }
    };
    let (plans, mut plan) = watch::channel(Arc::default());
    let mut followed = netmap;
    let following = tunnel.follow_netmaps(&mut followed, false, &plans, look_up);
    let playing = async {
        let mut expect = async |expected: &[(&str, &[&str])]| {
            let expected: Vec<(String, Vec<String>)> = expected
                .iter()
                .map(|(name, at)| ((*name).to_owned(), at.iter().map(|at| (*at).to_owned()).collect()))
                .collect();
            let found = plan.wait_for(|plan| shown(plan) == expected);
            let found = tokio::time::timeout(Duration::from_millis(500), found).await;
            assert!(found.is_ok(), "not within half a second: {expected:?}");
        };
        expect(&[("bonn", &["192.0.2.3:3"]), ("oslo", &[]), ("rome", &["192.0.2.2:2"])]).await;
        netmaps.send_replace(view(&[("oslo", "dead.example:1"), ("rome", "good.example:2")]));
        expect(&[("oslo", &[]), ("rome", &["192.0.2.2:2"])]).await;
        assert_eq!(shown(&tunnel.shared.plan.load()).len(), 2, "the worker has it too");
        netmaps.send_replace(view(&[("oslo", "dead.example:1")]));
        expect(&[("oslo", &[])]).await;
        netmaps.send_replace(Arc::default());
    };
    let ended = tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(following, playing) });
    assert!(ended.await.is_ok(), "without peers there is nothing to follow");
}
