//! The netmap in the form in which the tunnel looks packets up.
//!
//! Made once per netmap, outside of the worker; read for every packet.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use causeway_netmap::{NetmapView, TunnelCipher, TunnelPeerEntry};
use ipnet::IpNet;

use super::admission::OwnSockets;
use super::cipher::TransportCipher;
use super::service_plan::ServicePlan;
use super::translate::{PrefixPair, PrefixTable};

#[derive(Default)]
pub struct ForwardPlan {
    pub view: Arc<NetmapView>,
    pub own: OwnSockets,
    /// Networks of this site, with real addresses.
    pub networks: Vec<IpNet>,
    pub mappings: PrefixTable,
    /// Networks of this site, as other sites see them.
    pub networks_on_wire: Vec<IpNet>,
    pub peers: Vec<PlannedPeer>,
    pub services: ServicePlan,
}

/// A peer with the addresses of its endpoints.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedPeer {
    pub entry: TunnelPeerEntry,
    pub endpoints: Vec<SocketAddr>,
}

impl PlannedPeer {
    pub fn cipher(&self) -> TransportCipher {
        match self.entry.cipher {
            // A peer that is no Causeway gateway knows one cipher only.
            TunnelCipher::Aes256Gcm if !self.entry.plain_wireguard => TransportCipher::Aes256Gcm,
            _ => TransportCipher::ChaCha20Poly1305,
        }
    }
}

impl ForwardPlan {
    pub fn new(view: Arc<NetmapView>, own: OwnSockets, peers: Vec<PlannedPeer>) -> ForwardPlan {
        let (networks, mappings) = match &view.gateway {
            Some(gateway) => (gateway.tunnel_networks.clone(), gateway.mappings.clone()),
            None => Default::default(),
        };
        let pairs: Vec<(IpNet, PrefixPair)> = mappings
            .iter()
            .filter_map(|mapping| Some((mapping.subnet, PrefixPair::new(mapping.subnet, mapping.seen_as)?)))
            .collect();
        let is_unmapped = |network: &&IpNet| !pairs.iter().any(|(subnet, _)| subnet.contains(*network));
        let mut networks_on_wire: Vec<IpNet> = networks.iter().filter(is_unmapped).copied().collect();
        networks_on_wire.extend(mappings.iter().map(|mapping| mapping.seen_as));
        let mappings = PrefixTable::new(pairs.into_iter().map(|(_, pair)| pair));
        let services = ServicePlan::new(&view);
        ForwardPlan { view, own, networks, mappings, networks_on_wire, peers, services }
    }

    pub fn is_own(&self, real: IpAddr) -> bool {
        contains(&self.networks, real)
    }

    pub fn is_own_on_wire(&self, address: IpAddr) -> bool {
        contains(&self.networks_on_wire, address)
    }

    /// Returns the networks to which the device leads: those of all peers, except networks of this site, and the addresses
    /// of translated services and of their clients.
    pub fn routes(&self) -> Vec<IpNet> {
        let mut routes: Vec<IpNet> = self.peers.iter().flat_map(|peer| peer.entry.networks.clone()).collect();
        routes.retain(|network| !self.networks.contains(network));
        routes.extend(self.services.routes());
        routes.sort();
        routes.dedup();
        routes
    }
}

pub fn contains(networks: &[IpNet], address: IpAddr) -> bool {
    networks.iter().any(|network| network.contains(&address))
}

#[cfg(test)]
mod tests {
    use causeway_netmap::{GatewayEntry, PrefixMapping};

    use super::*;

    #[test]
    fn a_mapped_network_is_known_on_the_wire_by_its_other_addresses_only() {
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        let mut view = NetmapView::default();
        view.gateway = Some(GatewayEntry {
            name: "oslo-1".into(),
            site: "oslo".into(),
            ip: None,
            presence_cidrs: Vec::new(),
            priority: 0,
            relay: false,
            prefer: Default::default(),
            drain: false,
            tunnel_networks: vec![net("10.0.0.0/24"), net("10.1.0.0/24")],
            mappings: vec![PrefixMapping { subnet: net("10.0.0.0/24"), seen_as: net("100.64.7.0/24") }],
        });
        let plan = ForwardPlan::new(Arc::new(view), OwnSockets::default(), Vec::new());
        let check = |address: &str, real: bool, wire: bool| {
            let address = address.parse().unwrap();
            assert_eq!((plan.is_own(address), plan.is_own_on_wire(address)), (real, wire), "{address}");
        };
        check("10.0.0.7", true, false);
        check("100.64.7.7", false, true);
        check("10.1.0.7", true, true);
        check("10.2.0.7", false, false);
    }
}
