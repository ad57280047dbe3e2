//! DSCP and ECN of packets inside the tunnel and of the datagrams that carry them. Pure.
//!
//! The traffic class of a packet is copied to the datagram around it, so that the networks between gateways treat both alike
//! (RFC 2983, RFC 6040 "normal mode"). A network that marks congestion marks the datagram: `combine` puts the mark on the
//! packet (RFC 6040, figure 4). DSCP of a datagram never changes the packet.

use super::checksum;

/// The bits of ECN (RFC 3168, 5).
const ECN: u8 = 0b11;
const NOT_ECT: u8 = 0b00;
const ECT_1: u8 = 0b01;
const CE: u8 = 0b11;

/// Returns the traffic class of a packet. 0: it is no packet, as a keepalive.
pub fn of(packet: &[u8]) -> u8 {
    match packet {
        [first, second, ..] if first >> 4 == 4 => *second,
        [first, second, ..] if first >> 4 == 6 => first << 4 | second >> 4,
        _ => 0,
    }
}

/// Puts the congestion mark of a datagram on the packet that it carried, and returns the new traffic class. None: the packet
/// must be dropped, because its sender does not understand the mark (RFC 6040, 4.2).
pub fn combine(packet: &mut [u8], outer: u8) -> Option<u8> {
    let inner = of(packet);
    let ecn = match (inner & ECN, outer & ECN) {
        (NOT_ECT, CE) => return None,
        (NOT_ECT, _) => NOT_ECT,
        (_, CE) => CE,
        (CE, _) => CE,
        (_, ECT_1) => ECT_1,
        (inner, _) => inner,
    };
    let combined = inner & !ECN | ecn;
    if combined != inner {
        set(packet, combined);
    }
    Some(combined)
}

fn set(packet: &mut [u8], class: u8) {
    match packet {
        [first, second, _, _, _, _, _, _, _, _, high, low, ..] if *first >> 4 == 4 => {
            let word = |class: u8| u16::from_be_bytes([*first, class]);
            let delta = checksum::delta(word(*second), word(class));
            let sum = checksum::update_full(u16::from_be_bytes([*high, *low]), delta);
            [*high, *low] = sum.to_be_bytes();
            *second = class;
        }
        // The header of IPv6 has no checksum.
        [first, second, ..] if *first >> 4 == 6 => {
            *first = 0x60 | class >> 4;
            *second = class << 4 | *second & 0x0f;
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tun::packet;

    fn v4(class: u8) -> Vec<u8> {
        let mut bytes = vec![0x45, class, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 0, 2, 10, 2, 0, 2];
        let sum = !checksum::sum(&bytes);
        bytes[10..12].copy_from_slice(&sum.to_be_bytes());
        bytes.extend([0, 1, 0, 2, 0, 8, 0, 0]);
        bytes
    }

    fn v6(class: u8) -> Vec<u8> {
        let mut bytes = vec![0x60 | class >> 4, class << 4 | 0xa, 0xbc, 0xde, 0, 8, 17, 64];
        bytes.extend([0xfd; 32]);
        bytes.extend([0, 1, 0, 2, 0, 8, 0, 1]);
        bytes
    }

    #[test]
    fn the_class_is_read_from_both_families() {
        for class in 0..=u8::MAX {
            for packet in [v4(class), v6(class)] {
                assert_eq!(of(&packet), class);
                assert_eq!(packet::parse(&packet).unwrap().traffic_class, class);
            }
        }
        assert_eq!((of(&[]), of(&[0x45]), of(&[1, 0xff, 0])), (0, 0, 0), "no packets");
    }

    #[test]
    fn congestion_marks_are_combined_as_rfc_6040_says() {
        const ECT_0: u8 = 0b10;
        // Figure 4: rows are the inner header, columns the outer one.
        let columns = [NOT_ECT, ECT_0, ECT_1, CE];
        let rows = [
            (NOT_ECT, [Some(NOT_ECT), Some(NOT_ECT), Some(NOT_ECT), None]),
            (ECT_0, [Some(ECT_0), Some(ECT_0), Some(ECT_1), Some(CE)]),
            (ECT_1, [Some(ECT_1), Some(ECT_1), Some(ECT_1), Some(CE)]),
            (CE, [Some(CE); 4]),
        ];
        const DSCP: u8 = 46 << 2;
        for (inner, expected) in rows {
            for (outer, expected) in columns.into_iter().zip(expected) {
                for packet in [v4 as fn(u8) -> Vec<u8>, v6] {
                    let mut bytes = packet(DSCP | inner);
                    // The DSCP of the datagram is another one.
                    let found = combine(&mut bytes, 10 << 2 | outer);
                    assert_eq!(found, expected.map(|ecn| DSCP | ecn), "{inner:02b} {outer:02b}");
                    let class = found.unwrap_or(DSCP | inner);
                    assert_eq!(bytes, packet(class), "nothing else, and the checksum");
                }
            }
        }
    }

    #[test]
    fn bytes_that_are_no_packet_are_left_alone() {
        for bytes in [&[][..], &[0x45], &[0x45, 0x02, 0], &[0x60, 0x20], &[1, 2, 3]] {
            let mut changed = bytes.to_vec();
            let _ = combine(&mut changed, CE);
            assert_eq!(changed.len(), bytes.len());
        }
    }
}
