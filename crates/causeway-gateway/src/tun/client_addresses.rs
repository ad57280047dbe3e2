//! The addresses under which servers of this site see clients of other sites, at the gateway of the servers.
//!
//! They come from the upper half of the presence range. A client has one address, the same after a restart unless another
//! client came first. A part of the range is kept for clients that find none free: they share its addresses by port.
//! Bounded by the range and by `ADDRESSES_MAX`; the clients of one peer hold at most three quarters of both, so that a
//! gateway that was taken over leaves addresses to the other ones. One client has no more shared ports than are free for its peer.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Clients with an address of their own, and shared ports.
const ADDRESSES_MAX: usize = 65_536;
/// Addresses and ports that are tried before the next way is taken.
const PROBES_MAX: u128 = 64;
/// One address of this number is kept for sharing, and at least one of a range.
const SHARED_PART: u128 = 64;
/// Ports that a shared address gives to clients. Lower ones have meanings of their own.
const SHARED_PORT_MIN: u16 = 1024;

/// A client of another site: the slot of its gateway, and its number on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClientId {
    pub peer: usize,
    pub number: IpAddr,
}

/// The end of a flow that stands for a client at this site.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ClientEnd {
    pub address: IpAddr,
    pub port: u16,
}

#[derive(Default)]
pub struct ClientAddresses {
    ranges: Vec<AddressRange>,
    own: HashMap<ClientId, IpAddr>,
    owners: HashMap<IpAddr, ClientId>,
    /// Protocol and port of a client, and the end that it has.
    shared: HashMap<(ClientId, u8, u16), ClientEnd>,
    ends: HashMap<(ClientEnd, u8), (ClientId, u16)>,
    /// Entries per peer, by its slot, and shared ports per client: derived from `own` and `shared`.
    held: HashMap<usize, HeldByPeer>,
    shared_by_client: HashMap<ClientId, usize>,
}

/// The number of entries that the clients of one peer have.
#[derive(Clone, Copy, Default, Debug)]
struct HeldByPeer {
    own_v4: usize,
    own_v6: usize,
    shared: usize,
}

/// The usable addresses of one network, less the ones that are taken.
#[derive(Clone, PartialEq, Eq, Debug)]
struct AddressRange {
    first: u128,
    count: u128,
    is_v4: bool,
    taken: BTreeSet<IpAddr>,
}

/// Returns the upper half of a presence range. None: the range has no halves.
pub fn upper_half(range: IpNet) -> Option<IpNet> {
    range.subnets(range.prefix_len() + 1).ok()?.nth(1)
}

/// Returns the networks that make up the upper halves of presence ranges without single addresses: presences that an
/// operator or an earlier version placed there.
pub fn client_networks(ranges: &[IpNet], taken: &BTreeSet<IpAddr>) -> Vec<IpNet> {
    let mut found = Vec::new();
    for range in ranges.iter().filter_map(|range| upper_half(*range)) {
        let inside: Vec<IpAddr> = taken.iter().copied().filter(|address| range.contains(address)).collect();
        without(range, &inside, &mut found);
    }
    found
}

/// Adds the parts of a network that contain none of these addresses.
fn without(network: IpNet, addresses: &[IpAddr], found: &mut Vec<IpNet>) {
    if addresses.is_empty() {
        return found.push(network);
    }
    for half in network.subnets(network.prefix_len() + 1).into_iter().flatten() {
        let inside: Vec<IpAddr> =
            addresses.iter().copied().filter(|address| half.contains(address)).collect();
        without(half, &inside, found);
    }
}

impl ClientAddresses {
    /// Takes other ranges. Clients whose address is no longer in them lose it.
    pub fn follow(&mut self, ranges: &[IpNet], taken: &BTreeSet<IpAddr>) {
        let halves = ranges.iter().filter_map(|range| upper_half(*range));
        let ranges: Vec<AddressRange> = halves.map(|half| AddressRange::new(half, taken)).collect();
        if ranges == self.ranges {
            return;
        }
        self.ranges = ranges;
        let ranges = &self.ranges;
        let is_own = |address: IpAddr| ranges.iter().any(|range| range.has_own(address));
        let is_shared = |address: IpAddr| ranges.iter().any(|range| range.has_shared(address));
        self.own.retain(|_, address| is_own(*address));
        self.owners.retain(|address, _| is_own(*address));
        self.shared.retain(|_, end| is_shared(end.address));
        self.ends.retain(|(end, _), _| is_shared(end.address));
        self.count_again();
    }

    /// Returns the end that a client has, without giving it one.
    pub fn find(&self, client: ClientId, protocol: u8, port: u16) -> Option<ClientEnd> {
        match self.own.get(&client) {
            Some(address) => Some(ClientEnd { address: *address, port }),
            None => self.shared.get(&(client, protocol, port)).copied(),
        }
    }

    /// Returns the end of a client, and gives it one if it has none. `seed` is the same for the client after a restart.
    /// Port 0: the protocol has no ports, and the address cannot be shared. None: nothing is free.
    pub fn assign(&mut self, client: ClientId, seed: &str, protocol: u8, port: u16) -> Option<ClientEnd> {
        if let Some(end) = self.find(client, protocol, port) {
            return Some(end);
        }
        let held = self.held.entry(client.peer).or_default();
        if self.own.len() + self.shared.len() >= ADDRESSES_MAX
            || held.all() >= part_of_one_peer(ADDRESSES_MAX)
        {
            return None;
        }
        let start = u128::from(hash(&(seed, client.number)));
        let range = self.ranges.iter().find(|range| range.is_v4 == client.number.is_ipv4())?;
        let own_max = part_of_one_peer(usize::try_from(range.own_count()).unwrap_or(usize::MAX));
        let free = range.own(start).find(|address| !self.owners.contains_key(address));
        if let Some(address) = free.filter(|_| *held.own(range.is_v4) < own_max) {
            *held.own(range.is_v4) += 1;
            self.own.insert(client, address);
            self.owners.insert(address, client);
            return Some(ClientEnd { address, port });
        }
        if port == 0 {
            return None;
        }
        let of_client = self.shared_by_client.get(&client).copied().unwrap_or(0);
        let free = range.shared_ports().min(part_of_one_peer(ADDRESSES_MAX)).saturating_sub(held.shared);
        if of_client >= free {
            return None;
        }
        let end = range.shared(start, port).find(|end| !self.ends.contains_key(&(*end, protocol)))?;
        *self.shared_by_client.entry(client).or_default() += 1;
        held.shared += 1;
        self.shared.insert((client, protocol, port), end);
        self.ends.insert((end, protocol), (client, port));
        Some(end)
    }

    /// Forgets clients and shared ports that no flow uses.
    pub fn retain(&mut self, is_used: impl Fn(IpAddr) -> bool, is_end_used: impl Fn(ClientEnd, u8) -> bool) {
        self.own.retain(|_, address| is_used(*address));
        self.owners.retain(|address, _| is_used(*address));
        self.ends.retain(|(end, protocol), _| is_end_used(*end, *protocol));
        let ends = &self.ends;
        self.shared.retain(|(_, protocol, _), end| ends.contains_key(&(*end, *protocol)));
        self.count_again();
    }

    /// Forgets the clients of a gateway that is no peer any more.
    pub fn forget_peer(&mut self, peer: usize) {
        self.own.retain(|client, _| client.peer != peer);
        self.owners.retain(|_, client| client.peer != peer);
        self.shared.retain(|(client, ..), _| client.peer != peer);
        self.ends.retain(|_, (client, _)| client.peer != peer);
        self.count_again();
    }

    fn count_again(&mut self) {
        self.held.clear();
        self.shared_by_client.clear();
        for (client, address) in &self.own {
            *self.held.entry(client.peer).or_default().own(address.is_ipv4()) += 1;
        }
        for (client, ..) in self.shared.keys() {
            self.held.entry(client.peer).or_default().shared += 1;
            *self.shared_by_client.entry(*client).or_default() += 1;
        }
    }
}

impl HeldByPeer {
    fn own(&mut self, is_v4: bool) -> &mut usize {
        match is_v4 {
            true => &mut self.own_v4,
            false => &mut self.own_v6,
        }
    }

    fn all(&self) -> usize {
        self.own_v4 + self.own_v6 + self.shared
    }
}

/// Returns the part of `count` addresses that the clients of one peer may hold: three quarters, and at least one.
fn part_of_one_peer(count: usize) -> usize {
    count.min((count - count / 4).max(1))
}

impl AddressRange {
    fn new(network: IpNet, taken: &BTreeSet<IpAddr>) -> AddressRange {
        let (first, last) = (number(network.network()), number(network.broadcast()));
        let is_v4 = network.addr().is_ipv4();
        // The last address of a range of IPv4 is its broadcast address.
        let count = (last - first).saturating_add(1) - u128::from(is_v4);
        let taken = taken.iter().copied().filter(|address| network.contains(address)).collect();
        AddressRange { first, count, is_v4, taken }
    }

    fn own_count(&self) -> u128 {
        self.count - self.shared_count()
    }

    fn shared_count(&self) -> u128 {
        self.count.min((self.count / SHARED_PART).clamp(1, 1024))
    }

    /// Returns the number of ports of one protocol that the shared addresses have.
    fn shared_ports(&self) -> usize {
        let ports = self.shared_count() * (u128::from(u16::MAX - SHARED_PORT_MIN) + 1);
        usize::try_from(ports).unwrap_or(usize::MAX)
    }

    fn address(&self, index: u128) -> IpAddr {
        match self.is_v4 {
            true => Ipv4Addr::from((self.first + index) as u32).into(),
            false => Ipv6Addr::from(self.first + index).into(),
        }
    }

    fn has_own(&self, address: IpAddr) -> bool {
        self.index_of(address).is_some_and(|index| index < self.own_count())
    }

    fn has_shared(&self, address: IpAddr) -> bool {
        self.index_of(address).is_some_and(|index| index >= self.own_count())
    }

    fn index_of(&self, address: IpAddr) -> Option<u128> {
        let is_usable = address.is_ipv4() == self.is_v4 && !self.taken.contains(&address);
        number(address).checked_sub(self.first).filter(|index| is_usable && *index < self.count)
    }

    /// Returns addresses for one client, in the order in which they are tried.
    fn own(&self, start: u128) -> impl Iterator<Item = IpAddr> {
        let count = self.own_count();
        let indexes = (0..PROBES_MAX.min(count)).map(move |step| (start + step) % count);
        indexes.map(|index| self.address(index)).filter(|address| !self.taken.contains(address))
    }

    /// Returns ends of shared addresses, in the order in which they are tried: the port of the client first.
    fn shared(&self, start: u128, port: u16) -> impl Iterator<Item = ClientEnd> {
        let (count, first) = (self.shared_count(), self.own_count());
        let span = u128::from(u16::MAX - SHARED_PORT_MIN) + 1;
        (0..PROBES_MAX * 4).filter_map(move |step| {
            let address = self.address(first + (start + step) % count.max(1));
            let port = match step {
                0 if port >= SHARED_PORT_MIN => port,
                _ => SHARED_PORT_MIN + ((u128::from(port) + start / 7 + step * 257) % span) as u16,
            };
            (count > 0 && !self.taken.contains(&address)).then_some(ClientEnd { address, port })
        })
    }
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
#[path = "client_addresses/tests.rs"]
mod tests;
