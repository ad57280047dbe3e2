//! Which sockets there should be, from the netmap and from where they can be. Values only.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use causeway_netmap::{Protocol, ServiceName, View};

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Door {
    Room,
    Host,
}

impl Door {
    pub fn word(self) -> &'static str {
        match self {
            Door::Room => "room",
            Door::Host => "host",
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Transport {
    Tcp,
    Udp,
}

/// One socket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Spot {
    pub door: Door,
    pub transport: Transport,
    pub address: SocketAddr,
}

/// Of two services that want the same socket the first by name has it, as in the netmap.
pub fn wanted(
    view: &View,
    place: Door,
    ports: &BTreeMap<ServiceName, SocketAddr>,
) -> BTreeMap<Spot, ServiceName> {
    let mut wanted = BTreeMap::new();
    for presence in view.presences.values() {
        let transport = match presence.protocol {
            Protocol::Udp => Transport::Udp,
            _ => Transport::Tcp,
        };
        let named = ports.get(&presence.service);
        let own = presence.addresses.iter().map(|address| SocketAddr::new(address.0, presence.port));
        // Loopback addresses are the host's in any case; no link carries them.
        let own = own.map(|address| (if address.ip().is_loopback() { Door::Host } else { place }, address));
        // Without a room the presence's own address is nobody's, as a rule; that is what the named port is for.
        let own = own
            .filter(|(door, address)| *door == Door::Room || named.is_none() || address.ip().is_loopback());
        for (door, address) in own.chain(named.map(|address| (Door::Host, *address))) {
            let spot = Spot { door, transport, address };
            wanted.entry(spot).or_insert_with(|| presence.service.clone());
        }
    }
    wanted
}
