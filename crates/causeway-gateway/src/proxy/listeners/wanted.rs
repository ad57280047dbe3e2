//! Which sockets there should be, from the netmap and from where they can be. Values only.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use causeway_netmap::{NetmapView, ServiceName, ServiceProtocol};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ListenScope {
    Room,
    Host,
}

impl ListenScope {
    pub fn word(self) -> &'static str {
        match self {
            ListenScope::Room => "room",
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
    pub door: ListenScope,
    pub transport: ListenTransport,
    pub address: SocketAddr,
}

/// Who is behind a socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenerOwner {
    pub service: ServiceName,
    /// One broker of Kafka, by its place among the backends of the service.
    pub broker: Option<u16>,
}

/// Of two services that want the same socket the first by name has it, as in the netmap; a service comes before the single
/// brokers of another.
pub fn wanted(
    view: &NetmapView,
    place: ListenScope,
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
        // Loopback addresses are the host's in any case; no link carries them.
        let own =
            own.map(|address| (if address.ip().is_loopback() { ListenScope::Host } else { place }, address));
        // Without a room the presence's own address is nobody's, as a rule; that is what the named port is for.
        let own = own.filter(|(door, address)| {
            *door == ListenScope::Room || named.is_none() || address.ip().is_loopback()
        });
        for (door, address) in own.chain(named.map(|address| (ListenScope::Host, *address))) {
            let spot = ListenSocket { door, transport, address };
            let tenant = |broker| ListenerOwner { service: presence.service.clone(), broker };
            wanted.entry(spot).or_insert_with(|| tenant(None));
            let single = (0..presence.brokers).map_while(|broker| {
                let address = broker_address(address, usize::from(broker))?;
                Some((ListenSocket { address, ..spot }, tenant(Some(broker))))
            });
            brokers.extend(single);
        }
    }
    for (spot, tenant) in brokers {
        wanted.entry(spot).or_insert(tenant);
    }
    wanted
}

/// Where one broker of Kafka is seen: behind the port of its service. None: there is no such port.
pub fn broker_address(service: SocketAddr, broker: usize) -> Option<SocketAddr> {
    let offset = u16::try_from(broker).ok()?.checked_add(1)?;
    Some(SocketAddr::new(service.ip(), service.port().checked_add(offset)?))
}
