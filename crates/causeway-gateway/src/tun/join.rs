//! Joins consecutive segments of a flow into large frames for a TUN device with offloads.
//!
//! Input: packets in the order of their arrival. Output: frames with a header for the device, in an order that
//! keeps every flow. A packet is joined only if cutting the frame again gives exactly the packets that were
//! joined; its checksum is verified first, because the frame gets a new one.

use std::net::IpAddr;

use super::checksum;
use super::offload::{FrameHeader, SegmentKind};
use super::packet::{Fragment, ParsedPacket, TcpHeader, TransportHeader};

/// Flows that are joined at the same time. A frame takes 64 KiB.
const SLOTS: usize = 8;
/// The length field of IPv4, and of a frame.
const FRAME_MAX: usize = 65_535;
/// The kernel accepts no frame with more segments of UDP (`UDP_MAX_SEGMENTS`).
const UDP_SEGMENTS_MAX: usize = 64;

/// The frames that are being joined.
pub struct Joiner {
    slots: Vec<Slot>,
    /// False: the device does not take such frames.
    tcp: bool,
    udp: bool,
}

struct Slot {
    frame: Vec<u8>,
    flow: Option<JoinedFlow>,
    /// The order in which frames were begun.
    begun: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct FlowAddresses {
    source: IpAddr,
    destination: IpAddr,
    ports: (u16, u16),
    protocol: u8,
}

struct JoinedFlow {
    addresses: FlowAddresses,
    headers: usize,
    segment: usize,
    segments: usize,
    next_sequence: u32,
    next_id: u16,
    /// A short segment or PSH ended the frame.
    complete: bool,
    transport_at: usize,
}

/// Writes a frame, header first, to the device.
pub trait FrameSink {
    fn write_frame(&mut self, frame: &[u8]);
}

impl Joiner {
    pub fn new(tcp: bool, udp: bool) -> Joiner {
        let slot =
            || Slot { frame: Vec::with_capacity(FRAME_MAX + FrameHeader::BYTES), flow: None, begun: 0 };
        Joiner { slots: (0..SLOTS).map(|_| slot()).collect(), tcp, udp }
    }

    /// Stops joining, after the device has refused a frame.
    pub fn disable(&mut self) {
        (self.tcp, self.udp) = (false, false);
    }

    /// Takes a packet. `bytes` has `FrameHeader::BYTES` unused bytes before the packet.
    pub fn push(&mut self, bytes: &mut [u8], packet: &ParsedPacket, sink: &mut impl FrameSink) {
        let (room, rest) = bytes.split_at_mut(FrameHeader::BYTES);
        let bytes_of_packet = &rest[..packet.length];
        let addresses = flow_addresses(packet);
        let joinable = self.is_joinable(bytes_of_packet, packet);
        let slot = addresses.and_then(|addresses| {
            self.slots
                .iter_mut()
                .find(|slot| slot.flow.as_ref().is_some_and(|flow| flow.addresses == addresses))
        });
        if let Some(slot) = slot {
            if joinable && slot.join(bytes_of_packet, packet) {
                return;
            }
            slot.flush(sink);
        } else if addresses.is_none() {
            // Without ports its flow is not known: all that came before it goes first.
            self.flush(sink);
        }
        match addresses {
            Some(addresses) if joinable => self.begin(addresses, bytes_of_packet, packet, sink),
            _ => {
                let header = FrameHeader::default();
                let mut field = [0; FrameHeader::BYTES];
                header.write(&mut field);
                room.copy_from_slice(&field);
                sink.write_frame(&bytes[..FrameHeader::BYTES + packet.length]);
            }
        }
    }

    /// Writes all frames, in the order in which they were begun.
    pub fn flush(&mut self, sink: &mut impl FrameSink) {
        loop {
            let open = self.slots.iter_mut().filter(|slot| slot.flow.is_some());
            match open.min_by_key(|slot| slot.begun) {
                Some(slot) => slot.flush(sink),
                None => return,
            }
        }
    }

    fn begin(
        &mut self,
        addresses: FlowAddresses,
        bytes: &[u8],
        packet: &ParsedPacket,
        sink: &mut impl FrameSink,
    ) {
        let newest = self.slots.iter().map(|slot| slot.begun).max().unwrap_or(0);
        let slot = match self.slots.iter().position(|slot| slot.flow.is_none()) {
            Some(free) => free,
            None => {
                let oldest = self.slots.iter().enumerate().min_by_key(|(_, slot)| slot.begun);
                oldest.map_or(0, |(index, _)| index)
            }
        };
        let slot = &mut self.slots[slot];
        slot.flush(sink);
        slot.begin(addresses, bytes, packet, newest + 1);
    }

    /// Tells whether a packet may be part of a frame at all.
    fn is_joinable(&self, bytes: &[u8], packet: &ParsedPacket) -> bool {
        if packet.fragment != Fragment::Whole {
            return false;
        }
        let v4 = packet.source.is_ipv4();
        // Options of IPv4 and extension headers of IPv6 are not joined.
        if packet.transport_at != if v4 { 20 } else { 40 } {
            return false;
        }
        let transport = &bytes[packet.transport_at..];
        let possible = match packet.transport {
            TransportHeader::Tcp(tcp) => {
                let data_only = tcp.flags & !(TcpHeader::ACK | TcpHeader::PSH) == 0;
                self.tcp && data_only && tcp.flags & TcpHeader::ACK != 0 && transport.len() > tcp.header_bytes
            }
            TransportHeader::Udp { .. } => {
                let length = usize::from(u16::from_be_bytes([transport[4], transport[5]]));
                // Without a checksum the frame could not carry the absence of one.
                self.udp && transport.len() > 8 && length == transport.len() && transport[6..8] != [0, 0]
            }
            _ => false,
        };
        possible && has_valid_checksums(bytes, packet)
    }
}

fn flow_addresses(packet: &ParsedPacket) -> Option<FlowAddresses> {
    let ports = match packet.transport {
        TransportHeader::Tcp(tcp) => (tcp.source, tcp.destination),
        TransportHeader::Udp { source, destination } => (source, destination),
        TransportHeader::Echo { id, .. } => (id, id),
        _ => return None,
    };
    let ParsedPacket { source, destination, protocol, .. } = *packet;
    (packet.fragment == Fragment::Whole).then_some(FlowAddresses { source, destination, ports, protocol })
}

fn has_valid_checksums(bytes: &[u8], packet: &ParsedPacket) -> bool {
    if packet.source.is_ipv4() && checksum::sum(&bytes[..20]) != 0xffff {
        return false;
    }
    let transport = &bytes[packet.transport_at..];
    let pseudo =
        checksum::sum_of_pseudo_header(packet.source, packet.destination, packet.protocol, transport.len());
    checksum::add(pseudo, checksum::sum(transport)) == 0xffff
}

impl Slot {
    fn begin(&mut self, addresses: FlowAddresses, bytes: &[u8], packet: &ParsedPacket, begun: u64) {
        let (headers, next_sequence, ends) = match packet.transport {
            TransportHeader::Tcp(tcp) => {
                let headers = packet.transport_at + tcp.header_bytes;
                let next = tcp.sequence.wrapping_add((packet.length - headers) as u32);
                (headers, next, tcp.flags & TcpHeader::PSH != 0)
            }
            _ => (packet.transport_at + 8, 0, false),
        };
        self.frame.clear();
        self.frame.extend_from_slice(&[0; FrameHeader::BYTES]);
        self.frame.extend_from_slice(bytes);
        self.begun = begun;
        self.flow = Some(JoinedFlow {
            addresses,
            headers,
            segment: packet.length - headers,
            segments: 1,
            next_sequence,
            next_id: u16::from_be_bytes([bytes[4], bytes[5]]).wrapping_add(1),
            complete: ends,
            transport_at: packet.transport_at,
        });
    }

    /// Appends a packet of the same flow if it continues the frame.
    fn join(&mut self, bytes: &[u8], packet: &ParsedPacket) -> bool {
        let Some(flow) = &mut self.flow else { return false };
        let first = &self.frame[FrameHeader::BYTES..];
        let headers = flow.headers;
        if flow.complete || bytes.len() <= headers {
            return false;
        }
        let payload = &bytes[headers..];
        if payload.len() > flow.segment || first.len() + payload.len() > FRAME_MAX {
            return false;
        }
        let same_ip = match packet.source.is_ipv4() {
            true => {
                let id = u16::from_be_bytes([bytes[4], bytes[5]]);
                // With DF the number has no meaning, and the kernel counts it up when it cuts the frame.
                let id_fits = id == flow.next_id;
                // TOS, flags, TTL.
                id_fits && first[..2] == bytes[..2] && first[6..9] == bytes[6..9]
            }
            false => first[..4] == bytes[..4] && first[7] == bytes[7],
        };
        let at = flow.transport_at;
        let same_transport = match packet.transport {
            TransportHeader::Tcp(tcp) => {
                let same_but_push = (first[at + 13] ^ bytes[at + 13]) & !TcpHeader::PSH == 0;
                tcp.sequence == flow.next_sequence
                    && headers == at + tcp.header_bytes
                    && same_but_push
                    // Acknowledgement; data offset; window; urgent pointer and options.
                    && first[at + 8..at + 13] == bytes[at + 8..at + 13]
                    && first[at + 14..at + 16] == bytes[at + 14..at + 16]
                    && first[at + 18..headers] == bytes[at + 18..headers]
            }
            _ => flow.segments < UDP_SEGMENTS_MAX,
        };
        if !same_ip || !same_transport {
            return false;
        }
        self.frame.extend_from_slice(payload);
        flow.segments += 1;
        flow.next_id = flow.next_id.wrapping_add(1);
        flow.complete = payload.len() < flow.segment;
        if let TransportHeader::Tcp(tcp) = packet.transport {
            flow.next_sequence = flow.next_sequence.wrapping_add(payload.len() as u32);
            if tcp.flags & TcpHeader::PSH != 0 {
                // Of the frame, PSH goes to the last segment.
                self.frame[FrameHeader::BYTES + at + 13] |= TcpHeader::PSH;
                flow.complete = true;
            }
        }
        true
    }

    fn flush(&mut self, sink: &mut impl FrameSink) {
        let Some(flow) = self.flow.take() else { return };
        let (field, bytes) = self.frame.split_at_mut(FrameHeader::BYTES);
        let mut header = FrameHeader::default();
        if flow.segments > 1 {
            header = finish_frame(bytes, &flow);
        }
        if let Ok(field) = field.try_into() {
            header.write(field);
        }
        sink.write_frame(&self.frame);
    }
}

/// Sets the lengths and the partial checksum of a frame with several segments.
fn finish_frame(bytes: &mut [u8], flow: &JoinedFlow) -> FrameHeader {
    let length = bytes.len();
    let FlowAddresses { source, destination, protocol, .. } = flow.addresses;
    let is_tcp = protocol == super::packet::TCP;
    match source {
        IpAddr::V4(_) => {
            bytes[2..4].copy_from_slice(&(length as u16).to_be_bytes());
            bytes[10..12].fill(0);
            let sum = !checksum::sum(&bytes[..20]);
            bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        IpAddr::V6(_) => bytes[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes()),
    }
    let at = flow.transport_at;
    let offset = if is_tcp { 16 } else { 6 };
    if !is_tcp {
        let length = (length - at) as u16;
        bytes[at + 4..at + 6].copy_from_slice(&length.to_be_bytes());
    }
    let pseudo = checksum::sum_of_pseudo_header(source, destination, protocol, length - at);
    bytes[at + offset..at + offset + 2].copy_from_slice(&pseudo.to_be_bytes());
    FrameHeader {
        needs_checksum: true,
        kind: match (is_tcp, source) {
            (true, IpAddr::V4(_)) => SegmentKind::Tcp4,
            (true, IpAddr::V6(_)) => SegmentKind::Tcp6,
            (false, _) => SegmentKind::Udp,
        },
        header_bytes: flow.headers as u16,
        segment_bytes: flow.segment as u16,
        checksum_start: at as u16,
        checksum_offset: offset as u16,
    }
}

#[cfg(test)]
#[path = "join/tests.rs"]
mod tests;
