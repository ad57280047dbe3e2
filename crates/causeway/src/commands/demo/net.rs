//! Connects the machines of the demo: pairs of virtual interfaces, addresses and routes.
//!
//! Everything happens inside the machines' own networks; the network of the host is not touched.

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::AsRawFd;

use anyhow::Context;
use futures_util::TryStreamExt;
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth};
use rtnetlink::{Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};

use super::machine::DemoMachine;

/// One end of a cable.
#[derive(Clone)]
pub struct VethEnd {
    pub interface: &'static str,
    pub addresses: Vec<Ipv4Addr>,
    pub prefix: u8,
    /// The gateway of the default route.
    pub default_by: Option<Ipv4Addr>,
}

/// Joins two machines.
pub async fn join(
    near: &DemoMachine,
    near_end: VethEnd,
    far: &DemoMachine,
    far_end: VethEnd,
) -> anyhow::Result<()> {
    let network = far.network()?;
    let (near_name, far_name) = (near_end.interface, far_end.interface);
    near.run(async move {
        let netlink = netlink()?;
        let peer =
            LinkMessageBuilder::<LinkUnspec>::new().name(far_name).setns_by_fd(network.as_raw_fd()).build();
        let pair = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(near_name)
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .build();
        netlink.link().add(pair).execute().await.context("a cable of the demo cannot be laid")
    })
    .await??;
    near.run(configure_interface(near_end)).await??;
    far.run(configure_interface(far_end)).await?
}

/// Brings the loopback up, and enables forwarding on the host of a gateway.
pub async fn wake(machine: &DemoMachine, forwards: bool) -> anyhow::Result<()> {
    machine
        .run(async move {
            let netlink = netlink()?;
            let loopback = index(&netlink, "lo").await?;
            netlink
                .link()
                .set(LinkMessageBuilder::<LinkUnspec>::new().index(loopback).up().build())
                .execute()
                .await?;
            if forwards {
                std::fs::write("/proc/sys/net/ipv4/ip_forward", "1")
                    .context("forwarding cannot be switched on")?;
            }
            Ok(())
        })
        .await?
}

async fn configure_interface(end: VethEnd) -> anyhow::Result<()> {
    let netlink = netlink()?;
    let index = index(&netlink, end.interface).await?;
    for address in end.addresses {
        netlink.address().add(index, IpAddr::V4(address), end.prefix).execute().await?;
    }
    netlink.link().set(LinkMessageBuilder::<LinkUnspec>::new().index(index).up().build()).execute().await?;
    if let Some(gateway) = end.default_by {
        let route = RouteMessageBuilder::<Ipv4Addr>::new().gateway(gateway).build();
        netlink.route().add(route).execute().await?;
    }
    Ok(())
}

async fn index(netlink: &Handle, name: &str) -> anyhow::Result<u32> {
    let mut found = std::pin::pin!(netlink.link().get().match_name(name.to_owned()).execute());
    Ok(found.try_next().await?.with_context(|| format!("there is no interface {name}"))?.header.index)
}

/// In the network of the calling thread.
fn netlink() -> anyhow::Result<Handle> {
    let (connection, handle, _) = rtnetlink::new_connection()?;
    tokio::spawn(connection);
    Ok(handle)
}
