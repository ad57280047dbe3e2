//! Lowers the maximum segment size in the SYN of a TCP connection to what the tunnel carries (RFC 879).
//!
//! Hosts then send segments that fit, also where ICMP "too big" does not reach them.

use super::checksum::{self, ChecksumState};
use super::packet::{ParsedPacket, TcpHeader, TransportHeader};

/// Lowers the option of a SYN so that segments fit `mtu`. Returns whether the packet changed.
pub fn clamp(bytes: &mut [u8], packet: &ParsedPacket, mtu: usize, state: ChecksumState) -> bool {
    let TransportHeader::Tcp(tcp) = packet.transport else { return false };
    if tcp.flags & TcpHeader::SYN == 0 {
        return false;
    }
    let ip_bytes = if packet.source.is_ipv4() { 20 } else { 40 };
    let Ok(limit) = u16::try_from(mtu.saturating_sub(ip_bytes + 20)) else { return false };
    let header = packet.transport_at..packet.transport_at + tcp.header_bytes;
    let Some(header) = bytes.get_mut(header) else { return false };
    let Some(at) = option_at(header) else { return false };
    let old = u16::from_be_bytes([header[at], header[at + 1]]);
    if old <= limit {
        return false;
    }
    // An option may begin at an odd offset: its bytes are then in two words.
    let words = (at & !1, (at + 3) & !1);
    let before = checksum::sum(&header[words.0..words.1]);
    header[at..at + 2].copy_from_slice(&limit.to_be_bytes());
    if state == ChecksumState::Full {
        let delta = checksum::delta(before, checksum::sum(&header[words.0..words.1]));
        let field = u16::from_be_bytes([header[16], header[17]]);
        header[16..18].copy_from_slice(&checksum::update_full(field, delta).to_be_bytes());
    }
    true
}

/// Returns where the value of the option "maximum segment size" begins.
fn option_at(header: &[u8]) -> Option<usize> {
    let mut at = 20;
    loop {
        match *header.get(at)? {
            0 => return None,
            1 => at += 1,
            2 => {
                let fits = header.get(at + 1) == Some(&4) && header.len() >= at + 4;
                return fits.then_some(at + 2);
            }
            _ => match *header.get(at + 1)? {
                length if length >= 2 => at += usize::from(length),
                _ => return None,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{PacketBuilder, TcpOptionElement as Option};
    use proptest::prelude::*;

    use super::*;
    use crate::tun::packet::parse;

    fn syn(options: &[Option]) -> Vec<u8> {
        let builder = PacketBuilder::ipv4([10, 0, 0, 7], [10, 1, 0, 9], 61).tcp(4000, 443, 77, 1024).syn();
        let mut bytes = Vec::new();
        builder.options(options).unwrap().write(&mut bytes, &[]).unwrap();
        bytes
    }

    fn valid(bytes: &[u8]) -> bool {
        let packet = parse(bytes).unwrap();
        let pseudo = checksum::sum_of_pseudo_header(packet.source, packet.destination, 6, bytes.len() - 20);
        checksum::add(pseudo, checksum::sum(&bytes[20..])) == 0xffff
    }

    #[test]
    fn a_syn_is_lowered_to_the_tunnel_and_its_checksum_follows() {
        for options in [
            &[Option::MaximumSegmentSize(1460)][..],
            &[Option::Noop, Option::MaximumSegmentSize(1460), Option::Noop, Option::WindowScale(7)],
            &[Option::WindowScale(7), Option::MaximumSegmentSize(9000)],
        ] {
            let mut bytes = syn(options);
            let packet = parse(&bytes).unwrap();
            assert!(clamp(&mut bytes, &packet, 1420, ChecksumState::Full));
            assert!(valid(&bytes), "{options:?}");
            let at = option_at(&bytes[20..]).unwrap() + 20;
            assert_eq!(u16::from_be_bytes([bytes[at], bytes[at + 1]]), 1380);
            assert!(!clamp(&mut bytes, &packet, 1420, ChecksumState::Full), "twice changes nothing");
        }
    }

    #[test]
    fn a_partial_checksum_is_left_alone() {
        let mut bytes = syn(&[Option::MaximumSegmentSize(1460)]);
        let (packet, before) = (parse(&bytes).unwrap(), bytes[36..38].to_vec());
        assert!(clamp(&mut bytes, &packet, 1280, ChecksumState::Partial));
        assert_eq!(bytes[36..38], before);
    }

    proptest! {
        #[test]
        fn no_options_panic(options in proptest::collection::vec(any::<u8>(), 0..40)) {
            let mut bytes = syn(&[]);
            let options = &options[..options.len() & !3];
            bytes.extend_from_slice(options);
            bytes[3] += options.len() as u8;
            bytes[32] = (5 + options.len() as u8 / 4) << 4;
            let packet = parse(&bytes).unwrap();
            clamp(&mut bytes, &packet, 600, ChecksumState::Full);
        }
    }
}
