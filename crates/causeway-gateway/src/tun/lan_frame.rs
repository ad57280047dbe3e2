//! Ethernet frames of a LAN, as the port of a bridge receives them. Pure.
//!
//! Input: a frame, and the hardware address of the port. Output: the place of its packet and the sender, a message of ARP or
//! neighbour discovery, or nothing: floods of the bridge and messages between other hosts. `tap_device` reads and writes frames.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::neighbour_proxy::message::{self, HardwareAddress, NeighbourFamily, NeighbourMessage};

pub const ETHERNET_BYTES: usize = 14;
pub const IPV4: u16 = 0x0800;
pub const ARP: u16 = 0x0806;
pub const IPV6: u16 = 0x86dd;

/// The content of a frame of the LAN.
#[derive(Debug, PartialEq, Eq)]
pub enum LanFrame {
    /// A packet for the tunnel, and its sender.
    Packet(IpAddr, HardwareAddress),
    Neighbour(NeighbourMessage),
    /// A flood of the bridge, or a message for another host.
    Foreign,
}

/// Reads an Ethernet frame. A frame with a VLAN tag is foreign: the port has none.
pub fn read_lan(frame: &[u8], own: HardwareAddress) -> LanFrame {
    let Some((ethernet, payload)) = frame.split_first_chunk::<ETHERNET_BYTES>() else {
        return LanFrame::Foreign;
    };
    let [t0, t1, t2, t3, t4, t5, f0, f1, f2, f3, f4, f5, k0, k1] = *ethernet;
    let (to, from) = ([t0, t1, t2, t3, t4, t5], [f0, f1, f2, f3, f4, f5]);
    // Messages of this host's own kernel, which shares the device.
    if from == own {
        return LanFrame::Foreign;
    }
    let kind = u16::from_be_bytes([k0, k1]);
    let message = match kind {
        ARP if to == own => message::read(NeighbourFamily::V4, from, payload),
        IPV6 => message::read(NeighbourFamily::V6, from, payload),
        _ => None,
    };
    if let Some(message) = message {
        return LanFrame::Neighbour(message);
    }
    match (kind, ends(payload)) {
        (IPV4, Some((source @ IpAddr::V4(_), _))) | (IPV6, Some((source @ IpAddr::V6(_), _)))
            if to == own =>
        {
            LanFrame::Packet(source, from)
        }
        _ => LanFrame::Foreign,
    }
}

/// Returns source and destination of a packet. None: too short, or of another version.
pub fn ends(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
    let v4 = |at: usize| Some(IpAddr::V4(Ipv4Addr::from(<[u8; 4]>::try_from(packet.get(at..at + 4)?).ok()?)));
    let v6 =
        |at: usize| Some(IpAddr::V6(Ipv6Addr::from(<[u8; 16]>::try_from(packet.get(at..at + 16)?).ok()?)));
    match packet.first()? >> 4 {
        4 => Some((v4(12)?, v4(16)?)),
        6 => Some((v6(8)?, v6(24)?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: HardwareAddress = [2, 0xca, 5, 0, 0, 1];
    const HOST: HardwareAddress = [2, 0, 0, 0, 0, 9];

    fn frame(to: HardwareAddress, from: HardwareAddress, kind: u16, payload: &[u8]) -> Vec<u8> {
        [&to[..], &from[..], &kind.to_be_bytes(), payload].concat()
    }

    #[test]
    fn only_frames_for_this_device_are_packets() {
        let mut v4 = [0; 28];
        (v4[0], v4[12], v4[16]) = (0x45, 10, 198);
        let mut v6 = [0; 48];
        (v6[0], v6[8], v6[24]) = (0x60, 0xfd, 0xfd);
        let check = |name: &str, bytes: Vec<u8>, packet: Option<&str>| {
            let expected = packet.map(|source| LanFrame::Packet(source.parse().unwrap(), HOST));
            assert_eq!(read_lan(&bytes, OWN), expected.unwrap_or(LanFrame::Foreign), "{name}");
        };
        check("IPv4", frame(OWN, HOST, IPV4, &v4), Some("10.0.0.0"));
        check("IPv6", frame(OWN, HOST, IPV6, &v6), Some("fd00::"));
        check("a flood", frame([2, 0, 0, 0, 0, 8], HOST, IPV4, &v4), None);
        check("a broadcast", frame(message::BROADCAST, HOST, IPV4, &v4), None);
        check("own", frame(OWN, OWN, IPV4, &v4), None);
        check("another version", frame(OWN, HOST, IPV6, &v4), None);
        check("a tag", frame(OWN, HOST, 0x8100, &v6), None);
        check("cut off", frame(OWN, HOST, IPV4, &v4[..19]), None);
        check("an empty frame", Vec::new(), None);
    }

    #[test]
    fn answers_of_hosts_are_read_and_questions_between_hosts_ignored() {
        for address in ["10.0.0.9", "fd00::9"] {
            let address: IpAddr = address.parse().unwrap();
            let kind = if address.is_ipv4() { ARP } else { IPV6 };
            let family = NeighbourFamily::of(address);
            let asked = message::question(address, OWN).unwrap();
            let question = message::read(family, OWN, &asked.payload).unwrap().question.unwrap();
            let answer = message::answer(&question, HOST).unwrap();
            assert_eq!(answer.to, OWN, "the answer comes to this device alone");
            match read_lan(&frame(answer.to, HOST, kind, &answer.payload), OWN) {
                LanFrame::Neighbour(message) => assert_eq!(message.claim, Some((address, HOST))),
                other => panic!("{other:?}"),
            }
        }
        let between = message::probe("10.0.0.9".parse().unwrap(), HOST, false).unwrap();
        assert_eq!(read_lan(&frame(between.to, HOST, ARP, &between.payload), OWN), LanFrame::Foreign);
    }
}
