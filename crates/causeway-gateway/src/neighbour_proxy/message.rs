//! Reads and writes the messages by which hosts of a LAN find each other's hardware addresses: ARP (RFC 826) for IPv4,
//! neighbour discovery (RFC 4861) for IPv6. Pure.
//!
//! Input: the payload of an Ethernet frame, from any host of the LAN. Output: the question or claim in it, or None. The
//! decision to answer is made by `claims`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::tun::checksum::{add, sum, sum_of_pseudo_header};

/// An Ethernet address.
pub type HardwareAddress = [u8; 6];

pub const BROADCAST: HardwareAddress = [0xff; 6];

/// The family of addresses that a socket serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum NeighbourFamily {
    /// ARP.
    V4,
    /// Neighbour discovery.
    V6,
}

impl NeighbourFamily {
    pub fn of(address: IpAddr) -> NeighbourFamily {
        match address {
            IpAddr::V4(_) => NeighbourFamily::V4,
            IpAddr::V6(_) => NeighbourFamily::V6,
        }
    }
}

/// A message of a host.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NeighbourMessage {
    pub question: Option<NeighbourQuestion>,
    /// The sender states that it has this address.
    pub claim: Option<(IpAddr, HardwareAddress)>,
}

/// A question for the hardware address of `target`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NeighbourQuestion {
    pub target: IpAddr,
    /// None: the sender has no address yet, and asks whether `target` is free (RFC 5227, RFC 4862).
    pub sender: Option<IpAddr>,
    pub hardware: HardwareAddress,
    /// A gateway that becomes active asks, see `probe`.
    pub is_takeover: bool,
}

/// A frame to be sent: its destination, and the payload behind the Ethernet header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NeighbourFrame {
    pub to: HardwareAddress,
    pub payload: Vec<u8>,
}

/// Marks the probe of a gateway that becomes active. The former gateway of the site does not defend an address against
/// it: it may not know yet that it is replaced. In ARP the mark is in the target hardware address, which has no meaning
/// in a request (RFC 826); in neighbour discovery it is a nonce (RFC 7527).
const TAKEOVER_MARK: HardwareAddress = [0x02, 0xca, 0x05, 0xe0, 0x00, 0x03];

const ARP_BYTES: usize = 28;
/// Hardware type Ethernet, protocol type IPv4, lengths 6 and 4.
const ARP_HEAD: [u8; 6] = [0, 1, 8, 0, 6, 4];
const ARP_REQUEST: u8 = 1;
const ARP_REPLY: u8 = 2;

const IPV6_BYTES: usize = 40;
const ICMPV6: u8 = 58;
/// A router does not forward with this hop limit, so that the message is from the link (RFC 4861, 7.1.1).
const HOP_LIMIT: u8 = 255;
const SOLICITATION: u8 = 135;
const ADVERTISEMENT: u8 = 136;
/// Type, code, checksum, flags, target.
const ND_BYTES: usize = 24;
const SOURCE_HARDWARE: u8 = 1;
const TARGET_HARDWARE: u8 = 2;
const NONCE: u8 = 14;
const SOLICITED: u8 = 0x40;
const OVERRIDE: u8 = 0x20;
const ALL_NODES: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 1);

/// Reads the payload of a frame. `from` is the source of the frame.
pub fn read(family: NeighbourFamily, from: HardwareAddress, payload: &[u8]) -> Option<NeighbourMessage> {
    match family {
        NeighbourFamily::V4 => read_arp(payload),
        NeighbourFamily::V6 => read_nd(from, payload),
    }
}

/// Returns the answer to a question.
pub fn answer(question: &NeighbourQuestion, own: HardwareAddress) -> Option<NeighbourFrame> {
    match (question.target, question.sender) {
        (IpAddr::V4(target), sender) => {
            let sender = match sender {
                Some(IpAddr::V4(sender)) => sender,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            let payload = arp(ARP_REPLY, (own, target), (question.hardware, sender));
            Some(NeighbourFrame { to: question.hardware, payload })
        }
        (IpAddr::V6(target), Some(IpAddr::V6(sender))) => {
            let payload = advertisement(target, sender, SOLICITED | OVERRIDE, own)?;
            Some(NeighbourFrame { to: question.hardware, payload })
        }
        // A sender without an address hears the answer as a member of all nodes (RFC 4861, 7.2.4).
        (IpAddr::V6(target), _) => announcement(target.into(), own),
    }
}

/// Returns the question whether a host of the LAN has an address already.
pub fn probe(target: IpAddr, own: HardwareAddress, is_takeover: bool) -> Option<NeighbourFrame> {
    match target {
        IpAddr::V4(target) => {
            let mark = if is_takeover { TAKEOVER_MARK } else { [0; 6] };
            let payload = arp(ARP_REQUEST, (own, Ipv4Addr::UNSPECIFIED), (mark, target));
            Some(NeighbourFrame { to: BROADCAST, payload })
        }
        IpAddr::V6(target) => {
            let group = solicited_node(target);
            let mark = is_takeover.then_some((NONCE, TAKEOVER_MARK));
            let payload = nd(SOLICITATION, 0, target, (Ipv6Addr::UNSPECIFIED, group), mark)?;
            Some(NeighbourFrame { to: multicast(group), payload })
        }
    }
}

/// Returns the question for the hardware address of a host, by a sender without an address of the LAN: an ARP probe, which
/// every host answers and no host remembers (RFC 5227), or a solicitation from the link-local address of `own`.
pub fn question(target: IpAddr, own: HardwareAddress) -> Option<NeighbourFrame> {
    match target {
        IpAddr::V4(_) => probe(target, own, false),
        IpAddr::V6(target) => {
            let group = solicited_node(target);
            let option = Some((SOURCE_HARDWARE, own));
            let payload = nd(SOLICITATION, 0, target, (link_local(own), group), option)?;
            Some(NeighbourFrame { to: multicast(group), payload })
        }
    }
}

/// Returns the link-local address that follows from a hardware address (RFC 4291, appendix A).
pub fn link_local(own: HardwareAddress) -> Ipv6Addr {
    let [a, b, c, d, e, f] = own;
    let word = |high: u8, low: u8| u16::from_be_bytes([high, low]);
    Ipv6Addr::new(0xfe80, 0, 0, 0, word(a ^ 2, b), word(c, 0xff), word(0xfe, d), word(e, f))
}

/// Returns a message that replaces the hardware address that hosts remember for `address`: a gratuitous ARP request
/// (RFC 5227, 3), or an unsolicited neighbour advertisement (RFC 4861, 7.2.6).
pub fn announcement(address: IpAddr, own: HardwareAddress) -> Option<NeighbourFrame> {
    match address {
        IpAddr::V4(address) => {
            let payload = arp(ARP_REQUEST, (own, address), ([0; 6], address));
            Some(NeighbourFrame { to: BROADCAST, payload })
        }
        IpAddr::V6(address) => {
            let payload = advertisement(address, ALL_NODES, OVERRIDE, own)?;
            Some(NeighbourFrame { to: multicast(ALL_NODES), payload })
        }
    }
}

fn read_arp(payload: &[u8]) -> Option<NeighbourMessage> {
    let payload = payload.first_chunk::<ARP_BYTES>()?;
    if payload[..6] != ARP_HEAD || payload[6] != 0 {
        return None;
    }
    let hardware: HardwareAddress = payload[8..14].try_into().ok()?;
    let sender = Ipv4Addr::from(<[u8; 4]>::try_from(&payload[14..18]).ok()?);
    let target = Ipv4Addr::from(<[u8; 4]>::try_from(&payload[24..28]).ok()?);
    let sender = (!sender.is_unspecified()).then_some(IpAddr::V4(sender));
    let question = match payload[7] {
        // A gratuitous request asks for nothing.
        ARP_REQUEST if sender != Some(target.into()) => Some(NeighbourQuestion {
            target: target.into(),
            sender,
            hardware,
            is_takeover: sender.is_none() && payload[18..24] == TAKEOVER_MARK,
        }),
        ARP_REQUEST | ARP_REPLY => None,
        _ => return None,
    };
    is_unicast(hardware)
        .then_some(NeighbourMessage { question, claim: sender.map(|sender| (sender, hardware)) })
}

/// Writes an ARP message: sender, then target.
fn arp(operation: u8, from: (HardwareAddress, Ipv4Addr), to: (HardwareAddress, Ipv4Addr)) -> Vec<u8> {
    let mut payload = Vec::with_capacity(ARP_BYTES);
    payload.extend_from_slice(&ARP_HEAD);
    payload.extend_from_slice(&[0, operation]);
    for (hardware, address) in [from, to] {
        payload.extend_from_slice(&hardware);
        payload.extend_from_slice(&address.octets());
    }
    payload
}

fn read_nd(from: HardwareAddress, payload: &[u8]) -> Option<NeighbourMessage> {
    let (head, rest) = payload.split_first_chunk::<IPV6_BYTES>()?;
    if head[0] >> 4 != 6 || head[6] != ICMPV6 || head[7] != HOP_LIMIT {
        return None;
    }
    let length = usize::from(u16::from_be_bytes([head[4], head[5]]));
    let body = rest.get(..length)?;
    let (fixed, options) = body.split_first_chunk::<ND_BYTES>()?;
    let source = Ipv6Addr::from(<[u8; 16]>::try_from(&head[8..24]).ok()?);
    let destination = Ipv6Addr::from(<[u8; 16]>::try_from(&head[24..40]).ok()?);
    let target = Ipv6Addr::from(<[u8; 16]>::try_from(&fixed[8..24]).ok()?);
    let pseudo = sum_of_pseudo_header(source.into(), destination.into(), ICMPV6, length);
    if fixed[1] != 0 || target.is_multicast() || add(pseudo, sum(body)) != 0xffff {
        return None;
    }
    let options = NdOptions::read(options)?;
    match fixed[0] {
        SOLICITATION => {
            let sender = (!source.is_unspecified()).then_some(IpAddr::V6(source));
            let hardware = options.source.filter(|_| sender.is_some()).unwrap_or(from);
            let is_takeover = sender.is_none() && options.nonce == Some(TAKEOVER_MARK);
            let question = NeighbourQuestion { target: target.into(), sender, hardware, is_takeover };
            is_unicast(hardware).then_some(NeighbourMessage { question: Some(question), claim: None })
        }
        ADVERTISEMENT => {
            let hardware = options.target.unwrap_or(from);
            let claim = Some((target.into(), hardware));
            is_unicast(hardware).then_some(NeighbourMessage { question: None, claim })
        }
        _ => None,
    }
}

#[derive(Default)]
struct NdOptions {
    source: Option<HardwareAddress>,
    target: Option<HardwareAddress>,
    nonce: Option<HardwareAddress>,
}

impl NdOptions {
    /// None: an option has no length, or is cut off; then the message is discarded (RFC 4861, 7.1).
    fn read(mut bytes: &[u8]) -> Option<NdOptions> {
        let mut options = NdOptions::default();
        while !bytes.is_empty() {
            let length = usize::from(*bytes.get(1)?) * 8;
            let (option, rest) = bytes.split_at_checked(length).filter(|_| length > 0)?;
            if let Some(value) = option[2..].first_chunk::<6>().filter(|_| length == 8) {
                match option[0] {
                    SOURCE_HARDWARE => options.source = Some(*value),
                    TARGET_HARDWARE => options.target = Some(*value),
                    NONCE => options.nonce = Some(*value),
                    _ => {}
                }
            }
            bytes = rest;
        }
        Some(options)
    }
}

fn advertisement(target: Ipv6Addr, to: Ipv6Addr, flags: u8, own: HardwareAddress) -> Option<Vec<u8>> {
    nd(ADVERTISEMENT, flags, target, (target, to), Some((TARGET_HARDWARE, own)))
}

/// Writes a message of neighbour discovery with one option at most.
fn nd(
    kind: u8,
    flags: u8,
    target: Ipv6Addr,
    (source, destination): (Ipv6Addr, Ipv6Addr),
    option: Option<(u8, HardwareAddress)>,
) -> Option<Vec<u8>> {
    let mut body = vec![kind, 0, 0, 0, flags, 0, 0, 0];
    body.extend_from_slice(&target.octets());
    if let Some((kind, value)) = option {
        body.extend_from_slice(&[kind, 1]);
        body.extend_from_slice(&value);
    }
    let pseudo = sum_of_pseudo_header(source.into(), destination.into(), ICMPV6, body.len());
    let checksum = !add(pseudo, sum(&body));
    body[2..4].copy_from_slice(&checksum.to_be_bytes());
    let length = u16::try_from(body.len()).ok()?.to_be_bytes();
    let mut payload = vec![0x60, 0, 0, 0, length[0], length[1], ICMPV6, HOP_LIMIT];
    payload.extend_from_slice(&source.octets());
    payload.extend_from_slice(&destination.octets());
    payload.extend_from_slice(&body);
    Some(payload)
}

/// Returns the group in which the owner of an address hears questions for it (RFC 4291, 2.7.1).
pub fn solicited_node(address: Ipv6Addr) -> Ipv6Addr {
    let octets = address.octets();
    let low = u16::from_be_bytes([octets[14], octets[15]]);
    Ipv6Addr::new(0xff02, 0, 0, 0, 0, 1, 0xff00 | u16::from(octets[13]), low)
}

/// RFC 2464, 7.
fn multicast(group: Ipv6Addr) -> HardwareAddress {
    let octets = group.octets();
    [0x33, 0x33, octets[12], octets[13], octets[14], octets[15]]
}

fn is_unicast(hardware: HardwareAddress) -> bool {
    hardware[0] & 1 == 0 && hardware != [0; 6]
}

#[cfg(test)]
mod tests;
