//! Reads the headers of IP packets: IPv4, IPv6 with extension headers, TCP, UDP, ICMP, ICMPv6.
//!
//! Input: bytes from hosts and from other gateways. Output: addresses, ports and the offsets at which
//! `translate`, `mss` and `offload` change a packet. No input panics. A packet that can be read in two ways is
//! refused: a first fragment without its whole transport header, a later one that would replace a part of it, a second
//! fragment header, a source route, an impossible length.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

pub const ICMP: u8 = 1;
pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const DCCP: u8 = 33;
pub const ICMPV6: u8 = 58;
pub const SCTP: u8 = 132;
pub const UDP_LITE: u8 = 136;

/// The parts of a packet that forwarding needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ParsedPacket {
    pub source: IpAddr,
    pub destination: IpAddr,
    /// The transport protocol, after the extension headers of IPv6.
    pub protocol: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    pub hop_limit: u8,
    /// The length without padding behind the packet.
    pub length: usize,
    /// Offset of the transport header.
    pub transport_at: usize,
    pub fragment: Fragment,
    /// IPv4: the DF bit. IPv6: always.
    pub dont_fragment: bool,
    pub transport: TransportHeader,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fragment {
    Whole,
    First { id: u32 },
    Later { id: u32 },
}

/// The transport header, where the packet has one that is understood.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransportHeader {
    Tcp(TcpHeader),
    Udp {
        source: u16,
        destination: u16,
    },
    /// An echo request or reply, of either version.
    Echo {
        request: bool,
        id: u16,
    },
    /// An ICMP or ICMPv6 error, which quotes the packet that caused it.
    IcmpError {
        kind: u8,
        code: u8,
    },
    /// Another ICMP or ICMPv6 message.
    IcmpOther {
        kind: u8,
    },
    /// Another protocol, or a fragment after the first.
    Opaque,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TcpHeader {
    pub source: u16,
    pub destination: u16,
    pub sequence: u32,
    /// Header and options.
    pub header_bytes: usize,
    pub flags: u8,
}

impl TcpHeader {
    pub const FIN: u8 = 0x01;
    pub const SYN: u8 = 0x02;
    pub const RST: u8 = 0x04;
    pub const PSH: u8 = 0x08;
    pub const ACK: u8 = 0x10;
    pub const CWR: u8 = 0x80;
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PacketError {
    #[error("the packet ends inside a header")]
    Truncated,
    #[error("neither IPv4 nor IPv6")]
    Version,
    #[error("a length in a header is impossible")]
    Length,
    #[error("source routes are not forwarded")]
    SourceRoute,
    #[error("too many extension headers")]
    ExtensionHeaders,
    #[error("a later fragment overlaps the TCP header of the first one")]
    FragmentOverlap,
    #[error("a second fragment header")]
    FragmentHeaders,
}

/// The number of bytes behind the IP header that an ICMP error quotes at least (RFC 792).
const QUOTED_MIN_BYTES: usize = 8;
/// The smallest TCP header. The first fragment holds it, so that no later fragment of a sender begins inside it.
const TCP_HEADER_MIN_BYTES: usize = 20;
/// RFC 8200, 4.1 lists seven; a sender may repeat destination options once.
const EXTENSION_HEADERS_MAX: usize = 8;

/// Reads a whole packet. Bytes behind it are padding.
pub fn parse(bytes: &[u8]) -> Result<ParsedPacket, PacketError> {
    parse_with(bytes, false)
}

/// Reads the packet that an ICMP error quotes: it may be cut off after the first bytes of its transport header.
pub fn parse_quoted(bytes: &[u8]) -> Result<ParsedPacket, PacketError> {
    parse_with(bytes, true)
}

/// Returns where the packet begins that an ICMP error quotes.
pub fn quoted_at(packet: &ParsedPacket) -> usize {
    packet.transport_at + 8
}

/// Returns the offset of the checksum in the transport header, for protocols whose checksum covers the
/// addresses.
pub fn checksum_offset(protocol: u8) -> Option<usize> {
    match protocol {
        TCP => Some(16),
        UDP | UDP_LITE | DCCP => Some(6),
        ICMPV6 => Some(2),
        _ => None,
    }
}

fn parse_with(bytes: &[u8], quoted: bool) -> Result<ParsedPacket, PacketError> {
    let mut packet = match bytes.first().ok_or(PacketError::Truncated)? >> 4 {
        4 => parse_v4(bytes, quoted)?,
        6 => parse_v6(bytes, quoted)?,
        _ => return Err(PacketError::Version),
    };
    if let Fragment::Later { .. } = packet.fragment {
        return Ok(packet);
    }
    let end = packet.length.min(bytes.len());
    let transport = bytes.get(packet.transport_at..end).ok_or(PacketError::Length)?;
    packet.transport = parse_transport(packet.protocol, packet.source.is_ipv4(), transport, quoted)?;
    Ok(packet)
}

fn parse_v4(bytes: &[u8], quoted: bool) -> Result<ParsedPacket, PacketError> {
    let header: &[u8; 20] = bytes.first_chunk().ok_or(PacketError::Truncated)?;
    let header_bytes = usize::from(header[0] & 0x0f) * 4;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header_bytes < 20 || length < header_bytes || (!quoted && length > bytes.len()) {
        return Err(PacketError::Length);
    }
    let options = bytes.get(20..header_bytes).ok_or(PacketError::Truncated)?;
    if has_source_route(options) {
        return Err(PacketError::SourceRoute);
    }
    let id = u32::from(u16::from_be_bytes([header[4], header[5]]));
    let flags = u16::from_be_bytes([header[6], header[7]]);
    let fragment = match (flags & 0x1fff, flags & 0x2000 != 0) {
        (0, false) => Fragment::Whole,
        (0, true) => Fragment::First { id },
        // The end of the reassembled packet must be within 65,535 bytes.
        (offset, _) if usize::from(offset) * 8 + length - header_bytes > 65_535 => {
            return Err(PacketError::Length);
        }
        (offset, _) => later_fragment(id, header[9], offset)?,
    };
    Ok(ParsedPacket {
        source: Ipv4Addr::new(header[12], header[13], header[14], header[15]).into(),
        destination: Ipv4Addr::new(header[16], header[17], header[18], header[19]).into(),
        protocol: header[9],
        traffic_class: header[1],
        hop_limit: header[8],
        length,
        transport_at: header_bytes,
        fragment,
        dont_fragment: flags & 0x4000 != 0,
        transport: TransportHeader::Opaque,
    })
}

/// Tells whether the options of IPv4 have a loose or strict source route (RFC 791, 3.1).
fn has_source_route(mut options: &[u8]) -> bool {
    while let Some((kind, rest)) = options.split_first() {
        match kind {
            0 => return false,
            1 => options = rest,
            131 | 137 => return true,
            _ => match rest.first() {
                Some(&length) if length >= 2 => {
                    options = options.get(usize::from(length)..).unwrap_or_default()
                }
                _ => return false,
            },
        }
    }
    false
}

fn parse_v6(bytes: &[u8], quoted: bool) -> Result<ParsedPacket, PacketError> {
    let header: &[u8; 40] = bytes.first_chunk().ok_or(PacketError::Truncated)?;
    let length = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    if !quoted && length > bytes.len() {
        return Err(PacketError::Length);
    }
    let address = |at: usize| {
        let mut octets = [0; 16];
        octets.copy_from_slice(&header[at..at + 16]);
        IpAddr::V6(Ipv6Addr::from(octets))
    };
    let mut packet = ParsedPacket {
        source: address(8),
        destination: address(24),
        protocol: header[6],
        traffic_class: header[0] << 4 | header[1] >> 4,
        hop_limit: header[7],
        length,
        transport_at: 40,
        fragment: Fragment::Whole,
        dont_fragment: true,
        transport: TransportHeader::Opaque,
    };
    let end = length.min(bytes.len());
    let mut has_fragment_header = false;
    for _ in 0..EXTENSION_HEADERS_MAX {
        let here = bytes.get(packet.transport_at..end).unwrap_or_default();
        let (next, step) = match packet.protocol {
            // Hop-by-hop options, destination options.
            0 | 60 => extension(here)?,
            43 => {
                let segments_left = *here.get(3).ok_or(PacketError::Truncated)?;
                if segments_left > 0 {
                    return Err(PacketError::SourceRoute);
                }
                extension(here)?
            }
            // RFC 8200, 4.5: a packet has one. A second one would hide the flow of the first from this reader, or the reverse.
            44 if has_fragment_header => return Err(PacketError::FragmentHeaders),
            44 => {
                has_fragment_header = true;
                let fragment: &[u8; 8] = here.first_chunk().ok_or(PacketError::Truncated)?;
                let id = u32::from_be_bytes([fragment[4], fragment[5], fragment[6], fragment[7]]);
                let offset = u16::from_be_bytes([fragment[2], fragment[3]]);
                packet.fragment = match (offset >> 3, offset & 1) {
                    // An atomic fragment is a whole packet (RFC 6946).
                    (0, 0) => Fragment::Whole,
                    (0, _) => Fragment::First { id },
                    (offset, _) if usize::from(offset) * 8 + here.len() - 8 > 65_535 => {
                        return Err(PacketError::Length);
                    }
                    (offset, _) => later_fragment(id, fragment[0], offset)?,
                };
                (fragment[0], 8)
            }
            // Authentication header: its length is in units of 4 bytes, minus 2 (RFC 4302, 2.2).
            51 => {
                let units = usize::from(*here.get(1).ok_or(PacketError::Truncated)?);
                (here[0], (units + 2) * 4)
            }
            _ => return Ok(packet),
        };
        (packet.protocol, packet.transport_at) = (next, packet.transport_at + step);
        if let Fragment::Later { .. } = packet.fragment {
            return Ok(packet);
        }
    }
    Err(PacketError::ExtensionHeaders)
}

/// Returns a fragment after the first one, `offset` units of 8 bytes behind it. One that would replace flags or ports that
/// were judged in the first one is refused (RFC 1858, 4; RFC 3128).
fn later_fragment(id: u32, protocol: u8, offset: u16) -> Result<Fragment, PacketError> {
    match protocol == TCP && usize::from(offset) * 8 < TCP_HEADER_MIN_BYTES {
        true => Err(PacketError::FragmentOverlap),
        false => Ok(Fragment::Later { id }),
    }
}

fn extension(here: &[u8]) -> Result<(u8, usize), PacketError> {
    match here {
        [next, units, ..] => Ok((*next, (usize::from(*units) + 1) * 8)),
        _ => Err(PacketError::Truncated),
    }
}

fn parse_transport(
    protocol: u8,
    v4: bool,
    bytes: &[u8],
    quoted: bool,
) -> Result<TransportHeader, PacketError> {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let needed = match protocol {
        TCP if !quoted => TCP_HEADER_MIN_BYTES,
        TCP | UDP | ICMP | ICMPV6 => QUOTED_MIN_BYTES,
        _ => return Ok(TransportHeader::Opaque),
    };
    if bytes.len() < needed {
        return Err(PacketError::Truncated);
    }
    Ok(match (protocol, v4) {
        (TCP, _) => {
            let (header_bytes, flags) = match quoted {
                true => (TCP_HEADER_MIN_BYTES, 0),
                false => (usize::from(bytes[12] >> 4) * 4, bytes[13]),
            };
            if !quoted && (header_bytes < TCP_HEADER_MIN_BYTES || header_bytes > bytes.len()) {
                return Err(PacketError::Length);
            }
            let sequence = u32::from_be_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
            TransportHeader::Tcp(TcpHeader {
                source: word(0),
                destination: word(2),
                sequence,
                header_bytes,
                flags,
            })
        }
        (UDP, _) => TransportHeader::Udp { source: word(0), destination: word(2) },
        (ICMP, true) => match bytes[0] {
            kind @ (0 | 8) => TransportHeader::Echo { request: kind == 8, id: word(4) },
            kind @ (3 | 4 | 5 | 11 | 12) => TransportHeader::IcmpError { kind, code: bytes[1] },
            kind => TransportHeader::IcmpOther { kind },
        },
        (ICMPV6, false) => match bytes[0] {
            kind @ (128 | 129) => TransportHeader::Echo { request: kind == 128, id: word(4) },
            kind @ 0..=127 => TransportHeader::IcmpError { kind, code: bytes[1] },
            kind => TransportHeader::IcmpOther { kind },
        },
        // ICMP in IPv6 and ICMPv6 in IPv4 have no meaning.
        _ => TransportHeader::Opaque,
    })
}

#[cfg(test)]
mod tests;
