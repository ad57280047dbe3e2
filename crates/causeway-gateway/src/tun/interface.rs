//! The network interface of the TUN device: its MTU, its state, and one route per network of the peers.
//!
//! A network to which the host has a route already is left to its owner and reported. The kernel removes the routes
//! with the device.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::link::LinkMessage;
use rtnetlink::packet_route::route::{RouteAttribute, RouteMessage};
use rtnetlink::{Error, Handle, LinkMessageBuilder, LinkUnspec, RouteMessageBuilder};
use tokio_util::task::AbortOnDropHandle;

pub struct TunInterface {
    netlink: Handle,
    _connection: AbortOnDropHandle<()>,
    name: String,
    index: u32,
    routes: BTreeSet<IpNet>,
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
        Ok(TunInterface { netlink, _connection: connection, name, index, routes: BTreeSet::new() })
    }

    /// Brings the routes in step with the networks, and returns problems as sentences. Idempotent.
    pub async fn follow(&mut self, networks: &[IpNet], source: Option<IpAddr>) -> Vec<String> {
        let wanted: BTreeSet<IpNet> = networks.iter().copied().collect();
        let surplus: Vec<IpNet> = self.routes.difference(&wanted).copied().collect();
        for network in surplus {
            if let Err(error) = self.netlink.route().del(route(network, self.index)).execute().await {
                tracing::debug!(%error, %network, "the route is gone already");
            }
            self.routes.remove(&network);
        }
        let mut troubles = Vec::new();
        for network in networks {
            if self.routes.contains(network) {
                continue;
            }
            match self.add(*network, source).await {
                Ok(()) => {
                    tracing::info!(%network, interface = %self.name, "added the route of a network of another site");
                    self.routes.insert(*network);
                }
                Err(error) => troubles.push(format!("cannot add a route for {network}: {error}")),
            }
        }
        troubles
    }

    async fn add(&self, network: IpNet, source: Option<IpAddr>) -> io::Result<()> {
        let plain = route(network, self.index);
        if let Some(source) = source.filter(|source| source.is_ipv4() == network.addr().is_ipv4()) {
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
