//! The Internet checksum (RFC 1071), and its update when single words change (RFC 1624).
//!
//! Sums are 16 bits wide, one's complement, in the byte order of the network. A checksum field is *full* when
//! it holds the complement of the sum over pseudo-header, header and payload, and *partial* when it holds the
//! sum of the pseudo-header alone, not complemented: the device that sends the packet completes it.

use std::net::IpAddr;

/// The state of the checksum field of a transport header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ChecksumState {
    Full,
    /// The frame has `VIRTIO_NET_HDR_F_NEEDS_CSUM`.
    Partial,
}

/// Adds the 16-bit words of `bytes`. An odd last byte counts as the high half of a word.
pub fn sum(bytes: &[u8]) -> u16 {
    // The sum is independent of byte order up to a final swap (RFC 1071, 2.B), so that wide native loads do.
    let mut wide: u64 = 0;
    let mut chunks = bytes.chunks_exact(4);
    for chunk in &mut chunks {
        wide += u64::from(u32::from_ne_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]));
    }
    let mut last = [0; 4];
    let rest = chunks.remainder();
    last[..rest.len()].copy_from_slice(rest);
    wide += u64::from(u32::from_ne_bytes(last));
    u16::from_be(fold(wide))
}

/// Folds a wide sum into 16 bits, with end-around carry.
pub fn fold(mut wide: u64) -> u16 {
    wide = (wide & 0xffff_ffff) + (wide >> 32);
    wide = (wide & 0xffff_ffff) + (wide >> 32);
    wide = (wide & 0xffff) + (wide >> 16);
    wide = (wide & 0xffff) + (wide >> 16);
    wide as u16
}

/// Adds two sums.
pub fn add(one: u16, other: u16) -> u16 {
    fold(u64::from(one) + u64::from(other))
}

/// Returns the sum that must be added when words with the sum `old` are replaced by words with the sum `new`.
pub fn delta(old: u16, new: u16) -> u16 {
    add(new, !old)
}

/// Returns the sum of an address.
pub fn sum_of_address(address: IpAddr) -> u16 {
    match address {
        IpAddr::V4(address) => sum(&address.octets()),
        IpAddr::V6(address) => sum(&address.octets()),
    }
}

/// Returns the sum of the pseudo-header (RFC 9293, 3.1; RFC 8200, 8.1).
pub fn sum_of_pseudo_header(source: IpAddr, destination: IpAddr, protocol: u8, length: usize) -> u16 {
    let addresses = u64::from(sum_of_address(source)) + u64::from(sum_of_address(destination));
    let length = length as u64;
    fold(addresses + u64::from(protocol) + (length >> 16) + (length & 0xffff))
}

/// Updates a full checksum: `HC' = ~(~HC + delta)` (RFC 1624, equation 3).
pub fn update_full(checksum: u16, delta: u16) -> u16 {
    !add(!checksum, delta)
}

/// Updates the full checksum of UDP: 0 means that there is none, and a result of 0 is sent as 0xffff (RFC 768).
pub fn update_udp(checksum: u16, delta: u16) -> u16 {
    match checksum {
        0 => 0,
        _ => match update_full(checksum, delta) {
            0 => 0xffff,
            updated => updated,
        },
    }
}

/// Updates a partial checksum after a change of addresses. Ports and options are not part of it.
pub fn update_partial(checksum: u16, delta: u16) -> u16 {
    add(checksum, delta)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The definition, word by word.
    fn slow(bytes: &[u8]) -> u16 {
        let mut total: u32 = 0;
        for pair in bytes.chunks(2) {
            total += u32::from(pair[0]) << 8 | u32::from(*pair.get(1).unwrap_or(&0));
            if total > 0xffff {
                total = (total & 0xffff) + 1;
            }
        }
        total as u16
    }

    /// 0 and 0xffff are the same number in one's complement.
    fn same(one: u16, other: u16) -> bool {
        one == other || (one.is_multiple_of(0xffff) && other.is_multiple_of(0xffff))
    }

    proptest! {
        #[test]
        fn the_wide_sum_is_the_sum_of_words(bytes in proptest::collection::vec(any::<u8>(), 0..3000)) {
            prop_assert!(same(sum(&bytes), slow(&bytes)));
        }

        #[test]
        fn an_updated_checksum_is_the_checksum_of_the_changed_bytes(
            mut bytes in proptest::collection::vec(any::<u8>(), 8..200), word in any::<u16>(), at in 0_usize..4,
        ) {
            let before = !sum(&bytes);
            let old = u16::from_be_bytes([bytes[at * 2], bytes[at * 2 + 1]]);
            bytes[at * 2..at * 2 + 2].copy_from_slice(&word.to_be_bytes());
            prop_assert!(same(update_full(before, delta(old, word)), !sum(&bytes)));
        }

        #[test]
        fn a_partial_checksum_is_the_sum_of_the_new_pseudo_header(
            one in any::<[u8; 4]>(), other in any::<[u8; 4]>(), new in any::<[u8; 4]>(), length in 0_usize..70_000,
        ) {
            let (one, other, new) = (IpAddr::from(one), IpAddr::from(other), IpAddr::from(new));
            let before = sum_of_pseudo_header(one, other, 6, length);
            let change = delta(sum_of_address(one), sum_of_address(new));
            let expected = sum_of_pseudo_header(new, other, 6, length);
            prop_assert!(same(update_partial(before, change), expected));
        }
    }

    #[test]
    fn udp_without_a_checksum_keeps_none_and_never_gets_one_of_zero() {
        assert_eq!(update_udp(0, 0x1234), 0);
        // The sum becomes 0xffff, whose complement is 0.
        assert_eq!(update_full(0x0001, 0x0001), 0);
        assert_eq!(update_udp(0x0001, 0x0001), 0xffff);
    }
}
