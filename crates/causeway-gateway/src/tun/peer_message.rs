//! Messages between two gateways inside their session, sealed as packets are.
//!
//! The first byte tells them from IP packets, whose first byte is at least 0x40. A WireGuard peer that is no Causeway
//! gateway would drop them and is sent none. A gateway of an older version reads the first eight bytes of a probe
//! and ignores the rest, and drops the other kinds.

use std::net::{IpAddr, SocketAddr};

const PROBE_REQUEST: u8 = 1;
const PROBE_REPLY: u8 = 2;
const ADDRESSES: u8 = 3;

/// Kind, three zeros, identifier.
const HEAD_BYTES: usize = 8;
/// IPv6 or mapped IPv4 address, port.
const ADDRESS_BYTES: usize = 18;
/// Addresses in one message: a gateway has one reflexive address per relay and family.
pub const ADDRESSES_MAX: usize = 4;
/// The longest message, except a probe that is padded to the size under test.
pub const MESSAGE_BYTES_MAX: usize = HEAD_BYTES + ADDRESSES_MAX * ADDRESS_BYTES;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PeerMessage {
    ProbeRequest {
        id: u32,
    },
    /// `seen` is the address from which the request came: the sender learns how NATs change its own.
    ProbeReply {
        id: u32,
        seen: Option<SocketAddr>,
    },
    /// Addresses at which the sender may be reached, as relays see them.
    Addresses(AddressList),
}

/// A bounded list of addresses.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AddressList([Option<SocketAddr>; ADDRESSES_MAX]);

impl AddressList {
    /// Takes the first ones.
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> AddressList {
        let mut list = AddressList::default();
        list.0.iter_mut().zip(addresses).for_each(|(place, address)| *place = Some(address));
        list
    }

    pub fn iter(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.0.iter().flatten().copied()
    }

    pub fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }
}

impl PeerMessage {
    /// Reads a message. None: an IP packet, or unknown.
    pub fn read(bytes: &[u8]) -> Option<PeerMessage> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let id = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        match head[0] {
            PROBE_REQUEST => Some(PeerMessage::ProbeRequest { id }),
            PROBE_REPLY => {
                Some(PeerMessage::ProbeReply { id, seen: rest.first_chunk().and_then(read_address) })
            }
            ADDRESSES => {
                // The identifier is the number of addresses; those after the bound are left out.
                let (addresses, _) = rest.as_chunks::<ADDRESS_BYTES>();
                let count = usize::try_from(id).unwrap_or(usize::MAX);
                let addresses = addresses.iter().take(count).filter_map(read_address);
                Some(PeerMessage::Addresses(AddressList::new(addresses)))
            }
            _ => None,
        }
    }

    /// Writes the message, and returns its length. None: there is no room.
    pub fn write(self, out: &mut [u8]) -> Option<usize> {
        let (kind, id, addresses) = match self {
            PeerMessage::ProbeRequest { id } => (PROBE_REQUEST, id, AddressList::default()),
            PeerMessage::ProbeReply { id, seen } => (PROBE_REPLY, id, AddressList::new(seen)),
            PeerMessage::Addresses(list) => (ADDRESSES, list.iter().count() as u32, list),
        };
        let (head, mut rest) = out.split_first_chunk_mut::<HEAD_BYTES>()?;
        let [a, b, c, d] = id.to_le_bytes();
        *head = [kind, 0, 0, 0, a, b, c, d];
        let mut length = HEAD_BYTES;
        for address in addresses.iter() {
            let (place, after) = rest.split_first_chunk_mut::<ADDRESS_BYTES>()?;
            write_address(place, address);
            length += ADDRESS_BYTES;
            rest = after;
        }
        Some(length)
    }
}

/// None: an address to which nothing can be sent. Padding is zeros, and reads as none.
fn read_address(bytes: &[u8; ADDRESS_BYTES]) -> Option<SocketAddr> {
    let (ip, port) = bytes.split_first_chunk::<16>()?;
    let ip = IpAddr::from(*ip).to_canonical();
    let address = SocketAddr::new(ip, u16::from_be_bytes(port.try_into().ok()?));
    is_usable(address).then_some(address)
}

fn write_address(out: &mut [u8; ADDRESS_BYTES], address: SocketAddr) {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    out[..16].copy_from_slice(&ip.octets());
    out[16..].copy_from_slice(&address.port().to_be_bytes());
}

/// Tells whether a peer may be reached at an address that another gateway names.
fn is_usable(address: SocketAddr) -> bool {
    let is_local = match address.ip() {
        IpAddr::V4(ip) => ip.is_link_local() || ip.is_broadcast(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    let ip = address.ip();
    address.port() != 0 && !(is_local || ip.is_loopback() || ip.is_unspecified() || ip.is_multicast())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = SocketAddr> {
        let v4 = any::<[u8; 4]>().prop_map(IpAddr::from);
        let v6 = any::<[u8; 16]>().prop_map(|octets| IpAddr::from(octets).to_canonical());
        (prop_oneof![v4, v6], any::<u16>())
            .prop_map(|(ip, port)| SocketAddr::new(ip, port))
            .prop_filter("of a peer", |address| is_usable(*address))
    }

    proptest! {
        #[test]
        fn messages_are_read_as_written(
            id in any::<u32>(),
            seen in proptest::option::of(address()),
            addresses in proptest::collection::vec(address(), 0..=ADDRESSES_MAX),
            padding in 0_usize..1400,
        ) {
            let list = PeerMessage::Addresses(AddressList::new(addresses.clone()));
            for message in [PeerMessage::ProbeRequest { id }, PeerMessage::ProbeReply { id, seen }, list] {
                let mut bytes = [0; MESSAGE_BYTES_MAX];
                let length = message.write(&mut bytes).unwrap();
                let mut bytes = bytes[..length].to_vec();
                bytes.resize(length + padding, 0);
                prop_assert_eq!(PeerMessage::read(&bytes), Some(message));
            }
            prop_assert_eq!(AddressList::new(addresses.clone()).iter().collect::<Vec<_>>(), addresses);
        }

        #[test]
        fn no_bytes_panic_and_packets_are_no_messages(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let read = PeerMessage::read(&bytes);
            prop_assert!(read.is_none() || bytes[0] < 0x40);
            let mut out = [0; 5];
            prop_assert!(read.is_none_or(|message| message.write(&mut out).is_none()));
        }
    }

    #[test]
    fn a_reply_of_an_older_gateway_names_no_address_and_local_addresses_are_left_out() {
        assert_eq!(
            PeerMessage::read(&[2, 0, 0, 0, 7, 0, 0, 0]),
            Some(PeerMessage::ProbeReply { id: 7, seen: None })
        );
        let told = ["127.0.0.1:5", "192.0.2.1:0", "[fe80::1]:5", "224.0.0.1:5", "192.0.2.1:5"];
        let list = AddressList::new(told[1..].iter().map(|text| text.parse().unwrap()));
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        PeerMessage::Addresses(list).write(&mut bytes).unwrap();
        let Some(PeerMessage::Addresses(read)) = PeerMessage::read(&bytes) else { panic!("it is a list") };
        assert_eq!(read.iter().collect::<Vec<_>>(), ["192.0.2.1:5".parse().unwrap()]);
    }
}
