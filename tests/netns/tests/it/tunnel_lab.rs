//! Two sites with a gateway and a host each, and the layer 3 tunnel between the gateways, run in this process by
//! netmaps that the test writes.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::process::Output;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use causeway_gateway::audit::{AuditRecord, AuditSink};
use causeway_gateway::packet_carrier::PacketCarrier;
use causeway_gateway::peers::{BoxedFuture, GatewayPeers, PeerError};
use causeway_gateway::tun::{Tunnel, TunnelOptions, TunnelState};
use causeway_gateway::{Gateway, GatewayOptions, GatewayParts};
use causeway_netmap::{
    CommunityEntry, GatewayEntry, NetmapView, PrefixMapping, TunnelCipher, TunnelKey, TunnelPeerEntry,
};
use testlab::net::{Host, Net, Plan};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::presence_namespace::leftovers;

pub const PATIENCE: Duration = Duration::from_secs(30);
pub const PORT: u16 = 7446;

/// client-a, gw-a, internet, gw-b, client-b; both families. The internet knows the gateways only.
pub fn plan(lan_a: &[&str], lan_b: &[&str]) -> Plan {
    Plan::new()
        .router("internet")
        .nat("gw-a")
        .link("gw-a", "internet", &["198.51.100.0/24", "2001:db8:a::/64"])
        .nat("gw-b")
        .link("gw-b", "internet", &["192.0.2.0/24", "2001:db8:b::/64"])
        .host("client-a")
        .link("client-a", "gw-a", lan_a)
        .host("client-b")
        .link("client-b", "gw-b", lan_b)
}

/// A site as its own gateway and the other one see it.
#[derive(Clone)]
pub struct Site {
    pub name: &'static str,
    pub networks: Vec<&'static str>,
    /// Real network and the network on the wire.
    pub mapped: Vec<(&'static str, &'static str)>,
    pub endpoint: Option<SocketAddr>,
    pub key: TunnelKey,
    pub cipher: TunnelCipher,
    pub plain: bool,
}

impl Site {
    pub fn new(name: &'static str, networks: &[&'static str]) -> Site {
        Site {
            name,
            networks: networks.to_vec(),
            mapped: Vec::new(),
            endpoint: None,
            key: TunnelKey([0; 32]),
            cipher: TunnelCipher::Aes256Gcm,
            plain: false,
        }
    }

    fn entry(&self) -> TunnelPeerEntry {
        let mapped =
            |network: &&str| self.mapped.iter().find(|(real, _)| real == network).map(|(_, wire)| *wire);
        TunnelPeerEntry {
            gateway: format!("gw-{}", self.name).as_str().into(),
            site: self.name.into(),
            public_key: self.key,
            cipher: self.cipher,
            endpoints: self.endpoint.iter().map(ToString::to_string).collect(),
            networks: self
                .networks
                .iter()
                .map(|network| mapped(network).unwrap_or(network).parse().unwrap())
                .collect(),
            plain_wireguard: self.plain,
            relay: false,
        }
    }
}

/// The netmap of the first site, with the second one as its peer.
pub fn view(own: &Site, peer: &Site) -> NetmapView {
    let mut view = NetmapView::default();
    let mappings = own.mapped.iter().map(|(subnet, seen_as)| PrefixMapping {
        subnet: subnet.parse().unwrap(),
        seen_as: seen_as.parse().unwrap(),
    });
    view.gateway = Some(GatewayEntry {
        tunnel_networks: own.networks.iter().map(|network| network.parse().unwrap()).collect(),
        mappings: mappings.collect(),
        ..GatewayEntry::named(format!("gw-{}", own.name).as_str(), own.name)
    });
    view.tunnel_peers.insert(peer.entry().gateway, peer.entry());
    let members = vec![own.name.into(), peer.name.into()];
    view.communities.insert("north".into(), CommunityEntry { name: "north".into(), members, policies: None });
    view
}

struct NoPeers;

impl GatewayPeers for NoPeers {
    fn open_stream(
        &self,
        header: causeway_channel::link::StreamHeader,
    ) -> BoxedFuture<'_, Result<causeway_channel::link::Stream, PeerError>> {
        Box::pin(async move {
            Err(PeerError::Away { site: header.site.as_str().into(), why: "no channel".into() })
        })
    }
}

#[derive(Clone, Default)]
pub struct Records(pub Arc<Mutex<Vec<AuditRecord>>>);

impl AuditSink for Records {
    fn record(&self, record: AuditRecord) {
        self.0.lock().unwrap().push(record);
    }
}

/// A tunnel that is loaded, and runs after `start`.
pub struct TunnelHost {
    pub tunnel: Tunnel,
    pub netmaps: watch::Sender<Arc<NetmapView>>,
    pub records: Records,
    stop: CancellationToken,
    thread: Option<JoinHandle<()>>,
    /// The host in which the tunnel runs, and its state before.
    ran_in: Option<(Host, BTreeSet<String>)>,
    _folder: tempfile::TempDir,
    _gateway: Gateway,
}

impl TunnelHost {
    pub fn load() -> TunnelHost {
        let folder = tempfile::tempdir().unwrap();
        let (netmaps, receiver) = watch::channel(Arc::new(NetmapView::default()));
        let records = Records::default();
        let gateway = Gateway::new(GatewayParts {
            netmaps: receiver,
            peers: Arc::new(NoPeers),
            audit: Arc::new(records.clone()),
            options: GatewayOptions::default(),
            role_facts: None,
        });
        let key_file = folder.path().join("tunnel.key");
        let listen = SocketAddr::new(IpAddr::from([0_u16; 8]), PORT);
        let options = TunnelOptions { off: false, key_file, listen, ..TunnelOptions::default() };
        // Not started: there is no channel.
        let carrier = PacketCarrier::new(gateway.context().clone());
        let tunnel = Tunnel::new(gateway.context().clone(), options, carrier);
        let stop = CancellationToken::new();
        let (thread, ran_in) = (None, None);
        TunnelHost { tunnel, netmaps, records, stop, thread, ran_in, _folder: folder, _gateway: gateway }
    }

    pub fn start(&mut self, host: &Host, view: NetmapView) {
        self.netmaps.send_replace(Arc::new(view));
        self.ran_in = Some((host.clone(), leftovers(host)));
        let (tunnel, stop) = (self.tunnel.clone(), self.stop.clone());
        let run = move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(tunnel.run(stop));
        };
        self.thread = Some(host.start(run).unwrap());
    }

    pub fn state(&self) -> TunnelState {
        self.tunnel.state().borrow().clone()
    }

    /// Stops the tunnel, and checks that interfaces, addresses, routes, rules, neighbours and sockets of its host are as before.
    pub fn stop(&mut self) {
        self.end();
        if let Some((host, before)) = self.ran_in.take() {
            assert_eq!(leftovers(&host), before, "{}", host.name());
        }
    }

    fn end(&mut self) {
        self.stop.cancel();
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}

impl Drop for TunnelHost {
    fn drop(&mut self) {
        match std::thread::panicking() {
            true => self.end(),
            false => self.stop(),
        }
    }
}

/// Both tunnels between two sites.
pub fn start(net: &Net, a: &mut Site, b: &mut Site) -> [TunnelHost; 2] {
    let mut hosts = [TunnelHost::load(), TunnelHost::load()];
    for (site, host) in [&mut *a, &mut *b].into_iter().zip(&hosts) {
        site.key = host.tunnel.public_key().unwrap();
        let address = net.ipv4(&format!("gw-{}", site.name)).unwrap();
        site.endpoint = Some(SocketAddr::new(address.into(), PORT));
    }
    hosts[0].start(&net.host("gw-a").unwrap(), view(a, b));
    hosts[1].start(&net.host("gw-b").unwrap(), view(b, a));
    hosts
}

/// Runs a program on a host, and returns what it said.
pub fn run(net: &Net, host: &str, program: &str, arguments: &[&str]) -> Output {
    net.host(host).unwrap().command(program).args(arguments).output().unwrap()
}

pub fn ping(net: &Net, from: &str, to: &str, more: &[&str]) -> bool {
    let mut arguments = vec!["-c", "1", "-W", "1", "-n"];
    arguments.extend(more);
    arguments.push(to);
    run(net, from, "ping", &arguments).status.success()
}

/// Waits until a ping is answered.
pub fn wait_ping(net: &Net, from: &str, to: &str) {
    let deadline = std::time::Instant::now() + PATIENCE;
    while !ping(net, from, to, &[]) {
        assert!(std::time::Instant::now() < deadline, "{from} gets no answer from {to}");
    }
}
