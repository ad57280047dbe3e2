//! Decides which sockets a gateway should bind, from the netmap and the available namespaces. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use causeway_netmap::{NetmapView, ServiceName, ServiceProtocol};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ListenScope {
    Namespace,
    Host,
}

impl ListenScope {
    pub fn word(self) -> &'static str {
        match self {
            ListenScope::Namespace => "namespace",
            ListenScope::Host => "host",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ListenTransport {
    Tcp,
    Udp,
}

/// One socket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ListenSocket {
    pub scope: ListenScope,
    pub transport: ListenTransport,
    pub address: SocketAddr,
}

/// The service that a socket is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenerOwner {
    pub service: ServiceName,
    /// One Kafka broker, by its index among the backends of the service.
    pub broker: Option<u16>,
}

/// If two services want the same socket, the first by name has it, as in the netmap; a service takes
/// precedence over the brokers of another.
pub fn wanted(
    view: &NetmapView,
    scope: ListenScope,
    ports: &BTreeMap<ServiceName, SocketAddr>,
) -> BTreeMap<ListenSocket, ListenerOwner> {
    let mut wanted = BTreeMap::new();
    let mut brokers = Vec::new();
    for presence in view.presences.values() {
        let transport = match presence.protocol {
            ServiceProtocol::Udp => ListenTransport::Udp,
            _ => ListenTransport::Tcp,
        };
        let named = ports.get(&presence.service);
        let own = presence.addresses.iter().map(|address| SocketAddr::new(address.0, presence.port));
        // Loopback addresses belong to the host in any case; no link carries them.
        let own =
            own.map(|address| (if address.ip().is_loopback() { ListenScope::Host } else { scope }, address));
        // Without a namespace the address of the presence is usually not local; the configured port replaces
        // it.
        let own = own.filter(|(scope, address)| {
            *scope == ListenScope::Namespace || named.is_none() || address.ip().is_loopback()
        });
        for (scope, address) in own.chain(named.map(|address| (ListenScope::Host, *address))) {
            let key = ListenSocket { scope, transport, address };
            let owner = |broker| ListenerOwner { service: presence.service.clone(), broker };
            wanted.entry(key).or_insert_with(|| owner(None));
            let single = (0..presence.brokers).map_while(|broker| {
                let address = broker_address(address, usize::from(broker))?;
                Some((ListenSocket { address, ..key }, owner(Some(broker))))
            });
            brokers.extend(single);
        }
    }
    for (key, owner) in brokers {
        wanted.entry(key).or_insert(owner);
    }
    wanted
}

/// Returns the port of one Kafka broker: it follows that of its service. None: there is no such port.
pub fn broker_address(service: SocketAddr, broker: usize) -> Option<SocketAddr> {
    let offset = u16::try_from(broker).ok()?.checked_add(1)?;
    Some(SocketAddr::new(service.ip(), service.port().checked_add(offset)?))
}
