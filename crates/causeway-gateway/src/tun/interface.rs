//! The network interface of the TUN device: its MTU, its state, its addresses, and one route per network of the peers.
//!
//! The interface has addresses that the host has already, one per family, inside the networks of the site. Without them
//! the kernel and masquerading firewalls, such as that of kube-proxy, choose any address of the host as the source, and the peer
//! drops the packet. A network to which the host has a route already is left to its owner and reported. The kernel
//! removes routes and addresses with the device.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::address::AddressMessage;
use rtnetlink::packet_route::link::{LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage};
use rtnetlink::{AddressMessageBuilder, Error, Handle, LinkMessageBuilder, LinkUnspec, RouteMessageBuilder};
use tokio_util::task::AbortOnDropHandle;

use crate::neighbour_proxy::message::HardwareAddress;

/// The MTU of a bridge that has no device of its own.
const ETHERNET_MTU: u32 = 1500;

pub struct TunInterface {
    netlink: Handle,
    _connection: AbortOnDropHandle<()>,
    name: String,
    index: u32,
    routes: BTreeSet<IpNet>,
    sources: BTreeSet<IpAddr>,
}

impl TunInterface {
    /// Finds the interface, sets its MTU and brings it up.
    pub async fn open(name: &str, mtu: u32) -> io::Result<TunInterface> {
        let (connection, netlink, _) = rtnetlink::new_connection()?;
        let connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let link = link(&netlink, name).await.map_err(cause)?;
        let index = link.header.index;
        let up = LinkMessageBuilder::<LinkUnspec>::new().index(index).mtu(mtu).up().build();
        netlink.link().set(up).execute().await.map_err(cause)?;
        forward_from(name);
        let name = name.to_owned();
        let (routes, sources) = Default::default();
        Ok(TunInterface { netlink, _connection: connection, name, index, routes, sources })
    }

    /// Brings addresses and routes in step with the sources and networks, and returns problems as sentences. Idempotent.
    pub async fn follow(&mut self, networks: &[IpNet], sources: &[IpAddr]) -> Vec<String> {
        if self.follow_sources(sources).await {
            // Routes that prefer a former source are made again.
            self.remove_routes(self.routes.clone()).await;
        }
        let wanted: BTreeSet<IpNet> = networks.iter().copied().collect();
        self.remove_routes(self.routes.difference(&wanted).copied().collect()).await;
        let mut troubles = Vec::new();
        for network in networks {
            if self.routes.contains(network) {
                continue;
            }
            let source = sources.iter().find(|source| source.is_ipv4() == network.addr().is_ipv4());
            match self.add(*network, source.copied()).await {
                Ok(()) => {
                    tracing::info!(%network, interface = %self.name, "added the route of a network of another site");
                    self.routes.insert(*network);
                }
                Err(error) => troubles.push(format!("cannot add a route for {network}: {error}")),
            }
        }
        troubles
    }

    /// Gives the interface exactly these addresses. Returns whether one of a former call is gone.
    async fn follow_sources(&mut self, sources: &[IpAddr]) -> bool {
        let wanted: BTreeSet<IpAddr> = sources.iter().copied().collect();
        let surplus: Vec<IpAddr> = self.sources.difference(&wanted).copied().collect();
        for source in &surplus {
            let address = address(*source, self.index);
            if let Err(error) = self.netlink.address().del(address).execute().await {
                tracing::debug!(%error, %source, "the address is gone already");
            }
            self.sources.remove(source);
        }
        for source in wanted {
            if self.sources.contains(&source) {
                continue;
            }
            let length = if source.is_ipv4() { 32 } else { 128 };
            match self.netlink.address().add(self.index, source, length).execute().await {
                Ok(()) => {
                    self.sources.insert(source);
                }
                // Routes still prefer it; only masquerading suffers.
                Err(error) => {
                    tracing::warn!(%error, %source, interface = %self.name, "cannot add an address")
                }
            }
        }
        !surplus.is_empty()
    }

    async fn remove_routes(&mut self, networks: BTreeSet<IpNet>) {
        for network in networks {
            if let Err(error) = self.netlink.route().del(route(network, self.index)).execute().await {
                tracing::debug!(%error, %network, "the route is gone already");
            }
            self.routes.remove(&network);
        }
    }

    async fn add(&self, network: IpNet, source: Option<IpAddr>) -> io::Result<()> {
        let plain = route(network, self.index);
        if let Some(source) = source {
            let mut preferred = plain.clone();
            preferred.attributes.push(RouteAttribute::PrefSource(source.into()));
            // Refused when the address is not the host's: then the kernel chooses one.
            if self.netlink.route().add(preferred).execute().await.is_ok() {
                return Ok(());
            }
        }
        self.netlink.route().add(plain).execute().await.map_err(cause)
    }
}

/// Brings up a TAP device that becomes a port of a bridge. The kernel of the host takes no part in its packets. The MTU is that of
/// the bridge: a smaller one would become the MTU of the bridge too.
pub async fn prepare_port(name: &str, bridge: &str, hardware: HardwareAddress) -> io::Result<()> {
    let (connection, netlink, _) = rtnetlink::new_connection()?;
    let _connection = AbortOnDropHandle::new(tokio::spawn(connection));
    let path = format!("/proc/sys/net/ipv6/conf/{name}/disable_ipv6");
    if let Err(error) = std::fs::write(&path, "1") {
        tracing::debug!(%error, path, "IPv6 stays as it is");
    }
    let of_bridge = link(&netlink, bridge).await.ok().and_then(|link| {
        link.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Mtu(mtu) => Some(*mtu),
            _ => None,
        })
    });
    let index = link(&netlink, name).await.map_err(cause)?.header.index;
    let port = LinkMessageBuilder::<LinkUnspec>::new().index(index).mtu(of_bridge.unwrap_or(ETHERNET_MTU));
    let port = port.address(hardware.to_vec()).arp(false).up().build();
    netlink.link().set(port).execute().await.map_err(cause)
}

fn address(source: IpAddr, interface: u32) -> AddressMessage {
    match source {
        IpAddr::V4(source) => {
            AddressMessageBuilder::<Ipv4Addr>::new().index(interface).address(source, 32).build()
        }
        IpAddr::V6(source) => {
            AddressMessageBuilder::<Ipv6Addr>::new().index(interface).address(source, 128).build()
        }
    }
}

fn route(network: IpNet, interface: u32) -> RouteMessage {
    match network {
        IpNet::V4(net) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .output_interface(interface)
            .build(),
        IpNet::V6(net) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(net.network(), net.prefix_len())
            .output_interface(interface)
            .build(),
    }
}

/// Enables forwarding of packets from the tunnel. Forwarding on the other interfaces is the operator's setting.
fn forward_from(name: &str) {
    let path = format!("/proc/sys/net/ipv4/conf/{name}/forwarding");
    if let Err(error) = std::fs::write(&path, "1") {
        tracing::debug!(%error, path, "forwarding stays as it is");
    }
}

async fn link(netlink: &Handle, name: &str) -> Result<LinkMessage, Error> {
    let mut found = std::pin::pin!(netlink.link().get().match_name(name.to_owned()).execute());
    found.try_next().await?.ok_or(Error::RequestFailed)
}

fn cause(error: Error) -> io::Error {
    match error {
        Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    }
}
