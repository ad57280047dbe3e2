//! Cuts the large frames of a TUN device with offloads into packets for the wire.
//!
//! Input: the header that the device puts before a frame (`struct virtio_net_hdr`), and the packet behind it.
//! Output: packets with full checksums, one after the other, in the memory of the frame: the header of a segment
//! is written over the end of the segment before it, which its consumer has copied or sealed by then.
//! `join` does the reverse.

use super::checksum::{self, ChecksumState};
use super::packet::{self, ParsedPacket, TcpHeader, TransportHeader};

/// The header of a frame, as `linux/virtio_net.h` has it, in native byte order.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct FrameHeader {
    pub needs_checksum: bool,
    pub kind: SegmentKind,
    /// The length of all headers of the packet.
    pub header_bytes: u16,
    /// Payload of each segment.
    pub segment_bytes: u16,
    pub checksum_start: u16,
    pub checksum_offset: u16,
}

#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum SegmentKind {
    #[default]
    One,
    Tcp4,
    Tcp6,
    Udp,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SplitError {
    #[error("the packet is larger than the path carries")]
    TooBig,
    #[error("the header of the frame does not fit its packet")]
    Malformed,
}

impl FrameHeader {
    pub const BYTES: usize = 10;
    const NEEDS_CSUM: u8 = 1;
    const TCPV4: u8 = 1;
    const TCPV6: u8 = 4;
    const UDP_L4: u8 = 5;
    const ECN: u8 = 0x80;

    /// Reads the header. None: too short, or an offload that was not asked for.
    pub fn read(bytes: &[u8]) -> Option<FrameHeader> {
        let bytes: &[u8; FrameHeader::BYTES] = bytes.first_chunk()?;
        let word = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
        let kind = match bytes[1] & !FrameHeader::ECN {
            0 => SegmentKind::One,
            FrameHeader::TCPV4 => SegmentKind::Tcp4,
            FrameHeader::TCPV6 => SegmentKind::Tcp6,
            FrameHeader::UDP_L4 => SegmentKind::Udp,
            _ => return None,
        };
        Some(FrameHeader {
            needs_checksum: bytes[0] & FrameHeader::NEEDS_CSUM != 0,
            kind,
            header_bytes: word(2),
            segment_bytes: word(4),
            checksum_start: word(6),
            checksum_offset: word(8),
        })
    }

    pub fn write(&self, bytes: &mut [u8; FrameHeader::BYTES]) {
        bytes[0] = if self.needs_checksum { FrameHeader::NEEDS_CSUM } else { 0 };
        bytes[1] = match self.kind {
            SegmentKind::One => 0,
            SegmentKind::Tcp4 => FrameHeader::TCPV4,
            SegmentKind::Tcp6 => FrameHeader::TCPV6,
            SegmentKind::Udp => FrameHeader::UDP_L4,
        };
        let words = [self.header_bytes, self.segment_bytes, self.checksum_start, self.checksum_offset];
        for (field, word) in bytes[2..].chunks_exact_mut(2).zip(words) {
            field.copy_from_slice(&word.to_ne_bytes());
        }
    }

    /// Returns the state of the transport checksum for `translate` and `mss`.
    pub fn checksum_state(&self) -> ChecksumState {
        match self.needs_checksum {
            true => ChecksumState::Partial,
            false => ChecksumState::Full,
        }
    }
}

/// Headers of a packet with segments. IPv4 and TCP have 120 bytes at most; the rest is for IPv6 extension headers.
const HEADERS_MAX: usize = 256;

/// Passes the packets of a frame to `each`, in order. `bytes` is the packet without the frame header; it is
/// scratch afterwards. No packet is longer than `mtu`; TCP segments are made smaller if they do not fit.
pub fn split(
    bytes: &mut [u8],
    header: &FrameHeader,
    packet: &ParsedPacket,
    mtu: usize,
    mut each: impl FnMut(&mut [u8]),
) -> Result<usize, SplitError> {
    let bytes = bytes.get_mut(..packet.length).ok_or(SplitError::Malformed)?;
    let (transport_bytes, shrinkable) = match (header.kind, packet.transport) {
        (SegmentKind::One, _) => {
            if packet.length > mtu {
                return Err(SplitError::TooBig);
            }
            if header.needs_checksum {
                complete_checksum(bytes, header)?;
            }
            each(bytes);
            return Ok(1);
        }
        (SegmentKind::Tcp4 | SegmentKind::Tcp6, TransportHeader::Tcp(tcp)) => (tcp.header_bytes, true),
        (SegmentKind::Udp, TransportHeader::Udp { .. }) => (8, false),
        _ => return Err(SplitError::Malformed),
    };
    let headers = packet.transport_at + transport_bytes;
    let mut segment = usize::from(header.segment_bytes);
    let room = mtu.saturating_sub(headers);
    if segment > room && shrinkable {
        segment = room;
    }
    if headers > HEADERS_MAX || headers > bytes.len() || segment == 0 {
        return Err(SplitError::Malformed);
    }
    let payload = bytes.len() - headers;
    if segment.min(payload) > room {
        return Err(SplitError::TooBig);
    }
    let mut first = [0; HEADERS_MAX];
    first[..headers].copy_from_slice(&bytes[..headers]);
    let first = &first[..headers];
    let count = payload.div_ceil(segment).max(1);
    for index in 0..count {
        let at = index * segment;
        let end = (at + segment).min(payload) + headers;
        let here = &mut bytes[at..end];
        here[..headers].copy_from_slice(first);
        let place = SegmentPlace { index, is_last: index + 1 == count, offset: at };
        finish_segment(here, packet, place);
        each(here);
    }
    Ok(count)
}

struct SegmentPlace {
    index: usize,
    is_last: bool,
    offset: usize,
}

/// Sets lengths, numbers, flags and checksums of one segment.
fn finish_segment(bytes: &mut [u8], packet: &ParsedPacket, place: SegmentPlace) {
    let length = bytes.len();
    match packet.source.is_ipv4() {
        true => {
            bytes[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            let id = u16::from_be_bytes([bytes[4], bytes[5]]).wrapping_add(place.index as u16);
            bytes[4..6].copy_from_slice(&id.to_be_bytes());
            bytes[10..12].fill(0);
            let sum = !checksum::sum(&bytes[..packet.transport_at]);
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        false => bytes[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes()),
    }
    let transport = &mut bytes[packet.transport_at..];
    let checksum_at = match packet.transport {
        TransportHeader::Tcp(tcp) => {
            let sequence = tcp.sequence.wrapping_add(place.offset as u32);
            transport[4..8].copy_from_slice(&sequence.to_be_bytes());
            // FIN and PSH belong to the last segment, CWR to the first one (RFC 3168, 6.1.2).
            if !place.is_last {
                transport[13] &= !(TcpHeader::FIN | TcpHeader::PSH);
            }
            if place.index > 0 {
                transport[13] &= !TcpHeader::CWR;
            }
            16
        }
        _ => {
            let length = transport.len() as u16;
            transport[4..6].copy_from_slice(&length.to_be_bytes());
            6
        }
    };
    transport[checksum_at..checksum_at + 2].fill(0);
    let pseudo =
        checksum::sum_of_pseudo_header(packet.source, packet.destination, packet.protocol, transport.len());
    let mut sum = !checksum::add(pseudo, checksum::sum(transport));
    if sum == 0 && packet.protocol == packet::UDP {
        sum = 0xffff;
    }
    transport[checksum_at..checksum_at + 2].copy_from_slice(&sum.to_be_bytes());
}

/// Cuts a packet of IPv4 that may be fragmented, and passes the fragments to `each` (RFC 791, 3.2). The checksum of
/// its transport must be full. None: it has options, or the fragments would hold nothing.
pub fn fragment(
    bytes: &[u8],
    packet: &ParsedPacket,
    mtu: usize,
    mut each: impl FnMut(&mut [u8]),
) -> Option<()> {
    let piece = mtu.checked_sub(20)? & !7;
    if piece == 0 || packet.transport_at < 20 || !packet.source.is_ipv4() || bytes[0] != 0x45 {
        return None;
    }
    let flags = u16::from_be_bytes([bytes[6], bytes[7]]);
    let payload = bytes.get(20..packet.length)?;
    let mut out = vec![0; 20 + piece];
    let count = payload.len().div_ceil(piece);
    for (index, part) in payload.chunks(piece).enumerate() {
        let here = &mut out[..20 + part.len()];
        here[..20].copy_from_slice(&bytes[..20]);
        here[20..].copy_from_slice(part);
        here[2..4].copy_from_slice(&((20 + part.len()) as u16).to_be_bytes());
        // A fragment may be cut again: its offset counts on, and more follow if more followed it.
        let more = if index + 1 < count { 0x2000 } else { flags & 0x2000 };
        let offset = (flags & 0x1fff) + (index * piece / 8) as u16;
        here[6..8].copy_from_slice(&(more | offset).to_be_bytes());
        here[10..12].fill(0);
        let sum = !checksum::sum(&here[..20]);
        here[10..12].copy_from_slice(&sum.to_be_bytes());
        each(here);
    }
    Some(())
}

/// Completes a partial checksum: the field holds the sum of the pseudo-header.
pub fn complete_checksum(bytes: &mut [u8], header: &FrameHeader) -> Result<(), SplitError> {
    let start = usize::from(header.checksum_start);
    let field = start + usize::from(header.checksum_offset);
    if field + 2 > bytes.len() {
        return Err(SplitError::Malformed);
    }
    let mut sum = !checksum::sum(&bytes[start..]);
    // A sum of 0 would mean "no checksum" in UDP, and is the same number as 0xffff elsewhere.
    if sum == 0 {
        sum = 0xffff;
    }
    bytes[field..field + 2].copy_from_slice(&sum.to_be_bytes());
    Ok(())
}

#[cfg(test)]
mod tests;
