//! The veth pair between the host and the presence namespace, and the routes at both ends.
//!
//! Neither end has an address. Each knows the other by a permanent neighbour entry, under a link-local
//! address that is used for nothing else. So no address plan can conflict with it, no ARP or neighbour
//! discovery is needed, and scanning a presence network fills no neighbour table. At both ends every packet
//! arrives by the interface to which the route back to its sender leads, so rp_filter drops nothing, even in
//! strict mode.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsRawFd;

use futures_util::TryStreamExt;
use ipnet::IpNet;
use rtnetlink::packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkMessage};
use rtnetlink::packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteScope, RouteType,
};
use rtnetlink::{Error, Handle, LinkMessageBuilder, LinkUnspec, LinkVeth, RouteMessageBuilder};
use tokio_util::task::AbortOnDropHandle;

use super::PresenceNamespaceError;
use super::namespace::AnonymousNamespace;
use super::plan::{HostRoute, NamespacePlan, RouteChanges, changes, hidden};

/// The kernel replaces `%d` by a number that is free on this host.
const NAME: &str = "causeway%d";
const NAME_INSIDE: &str = "host";
/// Set explicitly, because network managers change addresses that the kernel has chosen. Locally
/// administered; the link has only two ends, so the addresses need not be unique on a host.
const HOST_HARDWARE: [u8; 6] = [0x02, 0xca, 0x05, 0xe0, 0x00, 0x01];
const NAMESPACE_HARDWARE: [u8; 6] = [0x02, 0xca, 0x05, 0xe0, 0x00, 0x02];
const HOST_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 18, 1));
const NAMESPACE_V4: IpAddr = IpAddr::V4(Ipv4Addr::new(169, 254, 18, 2));
const HOST_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x12, 1));
const NAMESPACE_V6: IpAddr = IpAddr::V6(Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0x12, 2));
/// The first interface of every namespace is its loopback.
const LOOPBACK: u32 = 1;

/// The table that the kernel searches first, for its own addresses; rtnetlink(7).
const TABLE_LOCAL: u8 = 255;

/// A veth pair that is up.
pub struct Veth {
    inside: Handle,
    outside: Handle,
    _connection: AbortOnDropHandle<()>,
    name: String,
    index: u32,
    index_inside: u32,
    /// The networks that are local in the presence namespace.
    local: BTreeSet<IpNet>,
    /// Tells whether the default routes to the host exist, for IPv4 and IPv6.
    has_default_route: [bool; 2],
}

impl Veth {
    /// Creates the pair from the host's side, with the other end in the namespace from the start.
    pub async fn create(namespace: &AnonymousNamespace) -> Result<Veth, PresenceNamespaceError> {
        let (connection, outside, _) = rtnetlink::new_connection()
            .map_err(|source| PresenceNamespaceError::Io { what: "opening netlink", source })?;
        let connection = AbortOnDropHandle::new(tokio::spawn(connection));
        let inside = namespace.netlink.clone();
        let peer = LinkMessageBuilder::<LinkUnspec>::new()
            .name(NAME_INSIDE)
            .address(NAMESPACE_HARDWARE.to_vec())
            .setns_by_fd(namespace.file.as_raw_fd())
            .build();
        let pair = LinkMessageBuilder::<LinkVeth>::new_with_info_kind(InfoKind::Veth)
            .name(NAME)
            .address(HOST_HARDWARE.to_vec())
            .set_info_data(InfoData::Veth(InfoVeth::Peer(peer)))
            .build();
        outside.link().add(pair).execute().await.map_err(not_made)?;
        // The inner end holds the index of the host's end, whatever its name is.
        let end = link(&inside, |get| get.match_name(NAME_INSIDE.to_owned()))
            .await
            .map_err(io("finding the veth"))?;
        let index = end.attributes.iter().find_map(|attribute| match attribute {
            LinkAttribute::Link(index) => Some(*index),
            _ => None,
        });
        let index = index.ok_or_else(|| PresenceNamespaceError::Io {
            what: "finding the veth",
            source: io::ErrorKind::NotFound.into(),
        })?;
        let name = name_of(&outside, index).await.unwrap_or_default();
        // Not on creation: an end cannot be up before the other one exists.
        for (handle, index) in [(&inside, LOOPBACK), (&inside, end.header.index), (&outside, index)] {
            let up = LinkMessageBuilder::<LinkUnspec>::new().index(index).up().build();
            handle.link().set(up).execute().await.map_err(io("setting an interface up"))?;
        }
        forward_from(&name);
        Ok(Veth {
            inside,
            outside,
            _connection: connection,
            name,
            index,
            index_inside: end.header.index,
            local: BTreeSet::new(),
            has_default_route: [false; 2],
        })
    }

    pub async fn exists(&self) -> bool {
        link(&self.outside, |get| get.match_index(self.index)).await.is_ok()
    }

    /// Brings both ends in step with the plan. Idempotent. A network that already has a route is left to its
    /// owner and reported as a sentence.
    pub async fn follow(&mut self, plan: &NamespacePlan) -> Result<Vec<String>, PresenceNamespaceError> {
        let routes = routes(&self.outside).await.map_err(io("reading the host's routes"))?;
        let RouteChanges { add, remove, taken } = changes(plan, &routes, self.index);
        let mut troubles = Vec::new();
        for network in remove {
            self.remove_route(network).await;
        }
        let unwanted: Vec<IpNet> =
            self.local.iter().filter(|network| !plan.networks().contains(network)).copied().collect();
        for network in unwanted {
            // A route that is already gone need not be removed.
            let _ = self.inside.route().del(local_route(network)).execute().await;
            self.local.remove(&network);
        }
        for network in plan.networks() {
            if let Err(error) = self.make_local(*network).await {
                troubles.push(format!("cannot make {network} local in the presence namespace: {error}"));
            }
        }
        for network in add.iter().filter(|network| self.local.contains(network)) {
            match self.add_route(*network, plan.source).await {
                Ok(()) => {
                    tracing::info!(%network, interface = %self.name, "added the route of a presence network")
                }
                Err(error) => troubles.push(format!("cannot add a route for {network}: {error}")),
            }
        }
        for route in taken {
            troubles.push(self.describe_conflict(&route).await);
        }
        for (route, address) in hidden(plan, &routes, self.index) {
            let by = match route.interface {
                Some(index) => name_of(&self.outside, index).await,
                None => None,
            };
            let (to, by) = (route.to, by.map(|name| format!(" by {name}")).unwrap_or_default());
            troubles.push(format!(
                "the host has a more specific route to {to}{by}, which hides presences such as {address}; \
                 fix: ip route del {to}, or choose another virtualPresenceIPcidr"
            ));
        }
        Ok(troubles)
    }

    /// Returns the interface by which packets of other hosts arrive: the one with the gateway's address.
    pub async fn entrance(&self, plan: &NamespacePlan) -> Option<String> {
        let address = plan.source?;
        let mut found = std::pin::pin!(self.outside.address().get().set_address_filter(address).execute());
        let message = found.try_next().await.ok()??;
        name_of(&self.outside, message.header.index).await
    }

    /// The name of the host's end.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Removes the end on the host, and with it the other end and all routes. Without this call the kernel
    /// does the same a moment later, when the namespace ends.
    pub async fn remove(self) {
        if let Err(error) = self.outside.link().del(self.index).execute().await {
            tracing::debug!(%error, interface = %self.name, "the veth is gone already");
        }
    }

    /// Makes a network local in the presence namespace, and adds the route back to its clients.
    async fn make_local(&mut self, network: IpNet) -> io::Result<()> {
        let (family, host, inner) = match network {
            IpNet::V4(_) => (0, HOST_V4, NAMESPACE_V4),
            IpNet::V6(_) => (1, HOST_V6, NAMESPACE_V6),
        };
        if !self.has_default_route[family] {
            let neighbours = [
                (&self.outside, self.index, inner, NAMESPACE_HARDWARE),
                (&self.inside, self.index_inside, host, HOST_HARDWARE),
            ];
            for (handle, index, address, hardware) in neighbours {
                let neighbour = handle.neighbours().add(index, address).link_layer_address(&hardware);
                neighbour.replace().execute().await.map_err(cause)?;
            }
            let any_network = IpNet::new_assert(
                if family == 0 { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() },
                0,
            );
            let default_route = via(any_network, host, self.index_inside);
            self.inside.route().add(default_route).replace().execute().await.map_err(cause)?;
            self.has_default_route[family] = true;
        }
        if !self.local.contains(&network) {
            self.inside.route().add(local_route(network)).replace().execute().await.map_err(cause)?;
            self.local.insert(network);
        }
        Ok(())
    }

    async fn add_route(&self, network: IpNet, source: Option<IpAddr>) -> io::Result<()> {
        let inner = if network.addr().is_ipv4() { NAMESPACE_V4 } else { NAMESPACE_V6 };
        let route = via(network, inner, self.index);
        if let Some(source) = source.filter(|source| source.is_ipv4() == network.addr().is_ipv4()) {
            let mut preferred = route.clone();
            preferred.attributes.push(RouteAttribute::PrefSource(source.into()));
            // Refused when the address is not the host's: then the kernel chooses one.
            if self.outside.route().add(preferred).execute().await.is_ok() {
                return Ok(());
            }
        }
        self.outside.route().add(route).execute().await.map_err(cause)
    }

    async fn remove_route(&self, network: IpNet) {
        let inner = if network.addr().is_ipv4() { NAMESPACE_V4 } else { NAMESPACE_V6 };
        if let Err(error) = self.outside.route().del(via(network, inner, self.index)).execute().await {
            tracing::debug!(%error, %network, "the route is gone already");
        }
    }

    async fn describe_conflict(&self, route: &HostRoute) -> String {
        let name = match route.interface {
            Some(index) => name_of(&self.outside, index).await,
            None => None,
        };
        let to = &route.to;
        match name {
            Some(name) if name.starts_with("causeway") => format!(
                "the host has a route to {to} by {name} already: another causeway on this host uses the same \
                 virtualPresenceIPcidr; give one of the two gateways another"
            ),
            Some(name) => format!(
                "the host has a route to {to} by {name} already; choose another virtualPresenceIPcidr"
            ),
            None => format!("the host has a route to {to} already; choose another virtualPresenceIPcidr"),
        }
    }
}

/// Enables forwarding of packets from the presence namespace. Forwarding on this interface is our setting;
/// forwarding on the other interfaces is the operator's. If /proc is read-only the host's default applies.
fn forward_from(name: &str) {
    let path = format!("/proc/sys/net/ipv4/conf/{name}/forwarding");
    if let Err(error) = std::fs::write(&path, "1") {
        tracing::debug!(%error, path, "forwarding stays as it is");
    }
}

fn local_route(network: IpNet) -> RouteMessage {
    let mut route = to(network, LOOPBACK);
    route.header.table = TABLE_LOCAL;
    route.header.kind = RouteType::Local;
    // IPv4 requires the host scope for a local route.
    route.header.scope = RouteScope::Host;
    route
}

fn via(network: IpNet, gateway: IpAddr, interface: u32) -> RouteMessage {
    let mut route = to(network, interface);
    route.attributes.push(RouteAttribute::Gateway(gateway.into()));
    // The interface has no address in a common network with the gateway, which is reachable nevertheless.
    route.header.flags.insert(rtnetlink::packet_route::route::RouteFlags::Onlink);
    route
}

fn to(network: IpNet, interface: u32) -> RouteMessage {
    match network {
        IpNet::V4(net) => RouteMessageBuilder::<Ipv4Addr>::new()
            .destination_prefix(net.addr(), net.prefix_len())
            .output_interface(interface)
            .build(),
        IpNet::V6(net) => RouteMessageBuilder::<Ipv6Addr>::new()
            .destination_prefix(net.addr(), net.prefix_len())
            .output_interface(interface)
            .build(),
    }
}

/// Returns the routes of the host's main table. A host without IPv6 has none of that family.
async fn routes(handle: &Handle) -> Result<Vec<HostRoute>, Error> {
    let mut found = Vec::new();
    let v4 = RouteMessageBuilder::<Ipv4Addr>::new().build();
    let v6 = RouteMessageBuilder::<Ipv6Addr>::new().build();
    for (wanted, any) in [(v4, IpAddr::V4(Ipv4Addr::UNSPECIFIED)), (v6, IpAddr::V6(Ipv6Addr::UNSPECIFIED))] {
        let mut messages = std::pin::pin!(handle.route().get(wanted).execute());
        while let Some(message) = messages.try_next().await? {
            found.extend(route_of(&message, any));
        }
    }
    Ok(found)
}

fn route_of(message: &RouteMessage, any: IpAddr) -> Option<HostRoute> {
    if message.header.table != RouteHeader::RT_TABLE_MAIN {
        return None;
    }
    let mut route =
        HostRoute { to: IpNet::new(any, message.header.destination_prefix_length).ok()?, interface: None };
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Destination(RouteAddress::Inet(address)) => {
                route.to = IpNet::new((*address).into(), message.header.destination_prefix_length).ok()?;
            }
            RouteAttribute::Destination(RouteAddress::Inet6(address)) => {
                route.to = IpNet::new((*address).into(), message.header.destination_prefix_length).ok()?;
            }
            RouteAttribute::Oif(index) => route.interface = Some(*index),
            _ => {}
        }
    }
    Some(route)
}

async fn link(
    handle: &Handle,
    which: impl FnOnce(rtnetlink::LinkGetRequest) -> rtnetlink::LinkGetRequest,
) -> Result<LinkMessage, Error> {
    let mut found = std::pin::pin!(which(handle.link().get()).execute());
    found.try_next().await?.ok_or(Error::RequestFailed)
}

async fn name_of(handle: &Handle, index: u32) -> Option<String> {
    let found = link(handle, |get| get.match_index(index)).await.ok()?;
    found.attributes.into_iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name),
        _ => None,
    })
}

fn not_made(error: Error) -> PresenceNamespaceError {
    let source = cause(error);
    match source.raw_os_error() {
        Some(code) if code == rustix::io::Errno::PERM.raw_os_error() => {
            PresenceNamespaceError::NotPermitted { capability: "CAP_NET_ADMIN" }
        }
        Some(code) if code == rustix::io::Errno::OPNOTSUPP.raw_os_error() => {
            PresenceNamespaceError::NoSuchKernel { what: "it has no veth interfaces" }
        }
        _ => PresenceNamespaceError::Io { what: "making a veth", source },
    }
}

fn io(what: &'static str) -> impl Fn(Error) -> PresenceNamespaceError {
    move |error| PresenceNamespaceError::Io { what, source: cause(error) }
}

fn cause(error: Error) -> io::Error {
    match error {
        Error::NetlinkError(message) => message.to_io(),
        other => io::Error::other(other),
    }
}
