//! A gateway with the layer 3 tunnel and nothing else, by a netmap made of its arguments. For `bench/layer3`.
//!
//! Arguments: KEY_FILE NETWORK[=SEEN_AS] PEER_KEY PEER_ENDPOINT PEER_NETWORK aes|chacha. With KEY_FILE alone it prints
//! the public key, in the form of `wg pubkey`.

use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use causeway_channel::link::{Stream, StreamHeader};
use causeway_gateway::audit::NullAuditSink;
use causeway_gateway::packet_carrier::PacketCarrier;
use causeway_gateway::peers::{BoxedFuture, GatewayPeers, PeerError};
use causeway_gateway::tun::{Tunnel, TunnelOptions};
use causeway_gateway::{Gateway, GatewayOptions, GatewayParts};
use causeway_netmap::{
    CommunityEntry, GatewayEntry, NetmapView, PrefixMapping, TunnelCipher, TunnelKey, TunnelPeerEntry,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

type Failure = Box<dyn std::error::Error>;

struct NoPeers;

impl GatewayPeers for NoPeers {
    fn open_stream(&self, header: StreamHeader) -> BoxedFuture<'_, Result<Stream, PeerError>> {
        let site = header.site.as_str().into();
        Box::pin(async move { Err(PeerError::Away { site, why: "there is no channel".into() }) })
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (netmaps, receiver) = watch::channel(Arc::new(NetmapView::default()));
    let gateway = Gateway::new(GatewayParts {
        netmaps: receiver,
        peers: Arc::new(NoPeers),
        audit: Arc::new(NullAuditSink),
        options: GatewayOptions::default(),
        role_facts: None,
    });
    let key_file = arguments.first().ok_or("KEY_FILE is missing")?.into();
    let options = TunnelOptions { off: false, key_file, ..TunnelOptions::default() };
    // Not started: there is no channel.
    let carrier = PacketCarrier::new(gateway.context().clone());
    let tunnel = Tunnel::new(gateway.context().clone(), options, carrier);
    if arguments.len() == 1 {
        println!("{}", STANDARD.encode(tunnel.public_key().ok_or("no key")?.0));
        return Ok(());
    }
    netmaps.send_replace(Arc::new(view(&arguments[1..])?));
    let state = tunnel.state();
    // With TUNNEL_VERBOSE the state is printed as it changes.
    let verbose = std::env::var_os("TUNNEL_VERBOSE").is_some();
    tokio::spawn(async move {
        let mut state = state;
        while state.changed().await.is_ok() {
            let now = state.borrow_and_update().clone();
            if verbose || !now.troubles.is_empty() {
                eprintln!("{now:?}");
            }
        }
    });
    tunnel.run(CancellationToken::new()).await;
    Ok(())
}

fn view(arguments: &[String]) -> Result<NetmapView, Failure> {
    let [networks, key, endpoint, peer_networks, cipher] = arguments else {
        return Err("see the file's head".into());
    };
    let (subnet, seen_as) = networks.split_once('=').map_or((networks.as_str(), None), |(a, b)| (a, Some(b)));
    let mut view = NetmapView::default();
    let mappings = match seen_as {
        Some(seen_as) => vec![PrefixMapping { subnet: subnet.parse()?, seen_as: seen_as.parse()? }],
        None => Vec::new(),
    };
    view.gateway = Some(GatewayEntry {
        tunnel_networks: vec![subnet.parse()?],
        mappings,
        ..GatewayEntry::named("here", "here")
    });
    let key: [u8; 32] = STANDARD.decode(key)?.try_into().map_err(|_| "PEER_KEY has another length")?;
    let peer = TunnelPeerEntry {
        gateway: "there".into(),
        site: "there".into(),
        public_key: TunnelKey(key),
        cipher: if cipher == "aes" { TunnelCipher::Aes256Gcm } else { TunnelCipher::ChaCha20Poly1305 },
        endpoints: vec![endpoint.clone()],
        networks: vec![peer_networks.parse()?],
        plain_wireguard: false,
        relay: false,
    };
    view.tunnel_peers.insert("there".into(), peer);
    let members = vec!["here".into(), "there".into()];
    view.communities.insert("all".into(), CommunityEntry { name: "all".into(), members, policies: None });
    Ok(view)
}
