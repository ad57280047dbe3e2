//! DSCP and ECN of a packet and of the datagram that carried it.
//!
//! The first byte is the traffic class of the datagram, the rest its packet. Invariants: only a mark that the sender of the packet
//! does not understand drops it; DSCP stays, a congestion mark is never lost, and nothing else of a packet changes; a header
//! with a valid checksum keeps one.
#![no_main]

use causeway_gateway::tun::checksum::sum;
use causeway_gateway::tun::packet::{ParsedPacket, parse};
use causeway_gateway::tun::traffic_class::{combine, of};
use libfuzzer_sys::fuzz_target;

const ECN: u8 = 0b11;

fuzz_target!(|data: &[u8]| {
    let Some((outer, bytes)) = data.split_first() else { return };
    let (class, mut changed) = (of(bytes), bytes.to_vec());
    let Some(combined) = combine(&mut changed, *outer) else {
        assert_eq!((class & ECN, outer & ECN, &changed[..]), (0, ECN, bytes));
        return;
    };
    assert_eq!(combined >> 2, class >> 2);
    assert!(outer & ECN != ECN || combined & ECN == ECN);
    assert_eq!(changed.len(), bytes.len());
    let Ok(before) = parse(bytes) else { return };
    assert_eq!(before.traffic_class, class);
    assert_eq!(parse(&changed), Ok(ParsedPacket { traffic_class: combined, ..before }));
    assert_eq!(
        changed[before.transport_at.min(bytes.len())..],
        bytes[before.transport_at.min(bytes.len())..]
    );
    if before.source.is_ipv4() && sum(&bytes[..before.transport_at]) == 0xffff {
        assert_eq!(sum(&changed[..before.transport_at]), 0xffff);
    }
});
