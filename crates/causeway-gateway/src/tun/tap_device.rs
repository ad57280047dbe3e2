//! The TAP device at a port of an Open vSwitch bridge: packets of the tunnel in Ethernet frames of the LAN.
//!
//! Flows of the bridge lead packets for the tunnel here (`ovs`), with the hardware address of this device as their
//! destination; other frames are floods of the bridge and are ignored. `lan_neighbours` finds the destinations of frames in
//! the other direction. Frames have no offloads: the user-space switch of Open vSwitch would send them on with checksums
//! that are not complete.

use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Range;
use std::time::Instant;

use ipnet::IpNet;

use super::device::{DeviceKind, TunDevice};
use super::lan_neighbours::LanNeighbours;
use super::offload::FrameHeader;
use super::plan::contains;
use crate::neighbour_proxy::message::{
    self, HardwareAddress, NeighbourFamily, NeighbourFrame, NeighbourMessage,
};

const ETHERNET_BYTES: usize = 14;
const IPV4: u16 = 0x0800;
const ARP: u16 = 0x0806;
const IPV6: u16 = 0x86dd;

pub struct TapDevice {
    device: TunDevice,
    neighbours: LanNeighbours,
    /// Networks whose addresses are answered with this device: those for which the bridge has flows.
    steered: Vec<IpNet>,
}

/// The content of a frame of the LAN.
#[derive(Debug, PartialEq, Eq)]
enum LanFrame {
    /// A packet for the tunnel, and its sender.
    Packet(IpAddr, HardwareAddress),
    Neighbour(NeighbourMessage),
    /// A flood of the bridge, or a message for another host.
    Foreign,
}

impl TapDevice {
    pub fn open(name: &str, own: HardwareAddress) -> io::Result<TapDevice> {
        let device = TunDevice::open(name, DeviceKind::Tap)?;
        Ok(TapDevice { device, neighbours: LanNeighbours::new(own), steered: Vec::new() })
    }

    pub fn device(&self) -> &TunDevice {
        &self.device
    }

    pub fn device_mut(&mut self) -> &mut TunDevice {
        &mut self.device
    }

    pub fn steer(&mut self, networks: Vec<IpNet>) {
        self.steered = networks;
    }

    /// Reads a frame, and returns the place of header and packet as a TUN device has them. None: no packet for the tunnel.
    pub fn read(&mut self, frame: &mut [u8]) -> io::Result<Option<Range<usize>>> {
        let length = self.device.read(frame)?;
        let Some((header, ethernet)) =
            frame.get(..length).and_then(|frame| frame.split_at_checked(FrameHeader::BYTES))
        else {
            return Ok(None);
        };
        let now = Instant::now();
        match read_lan(ethernet, self.neighbours.own()) {
            LanFrame::Packet(sender, hardware) => {
                // The header moves to the place before the packet.
                let header: Vec<u8> = header.to_vec();
                frame[ETHERNET_BYTES..ETHERNET_BYTES + FrameHeader::BYTES].copy_from_slice(&header);
                self.learn(sender, hardware, now);
                Ok(Some(ETHERNET_BYTES..length))
            }
            LanFrame::Neighbour(message) => {
                self.handle_message(&message, now);
                Ok(None)
            }
            LanFrame::Foreign => Ok(None),
        }
    }

    /// Sends questions that are due.
    pub fn handle_time(&mut self, now: Instant) {
        for question in self.neighbours.handle_time(now) {
            self.write_message(&question);
        }
        self.device.refused.frames += self.neighbours.take_dropped();
    }

    /// Delivers a frame of the tunnel, header and packet, to the host that has its destination.
    pub fn write_frame(&mut self, frame: &[u8]) {
        let packet = frame.get(FrameHeader::BYTES..).unwrap_or_default();
        let Some(destination) = ends(packet).map(|(_, destination)| destination) else {
            self.device.refused.frames += 1;
            return;
        };
        let delivery = self.neighbours.deliver(destination, frame, Instant::now());
        if let Some(hardware) = delivery.to {
            self.write_to(hardware, frame);
        }
        if let Some(question) = delivery.question {
            self.write_message(&question);
        }
    }

    fn learn(&mut self, address: IpAddr, hardware: HardwareAddress, now: Instant) {
        for frame in self.neighbours.learn(address, hardware, now) {
            self.write_to(hardware, &frame);
        }
    }

    fn handle_message(&mut self, message: &NeighbourMessage, now: Instant) {
        if let Some((address, hardware)) =
            message.claim.filter(|(address, _)| self.neighbours.expects(*address))
        {
            self.learn(address, hardware, now);
        }
        let own = self.neighbours.own();
        let is_own = |target: IpAddr| target == message::link_local(own) || contains(&self.steered, target);
        // A question of IPv4 is answered by a flow of the bridge.
        if let Some(question) =
            message.question.filter(|asked| asked.target.is_ipv6() && is_own(asked.target))
            && let Some(answer) = message::answer(&question, own)
        {
            self.write_message(&answer);
        }
    }

    fn write_message(&mut self, message: &NeighbourFrame) {
        let kind = if message.payload.first().is_some_and(|first| first >> 4 == 6) { IPV6 } else { ARP };
        self.write_parts(message.to, kind, &[0; FrameHeader::BYTES], &message.payload);
    }

    fn write_to(&mut self, hardware: HardwareAddress, frame: &[u8]) {
        if let Some((header, packet)) = frame.split_at_checked(FrameHeader::BYTES) {
            let kind = if packet.first().is_some_and(|first| first >> 4 == 6) { IPV6 } else { IPV4 };
            self.write_parts(hardware, kind, header, packet);
        }
    }

    fn write_parts(&mut self, to: HardwareAddress, kind: u16, header: &[u8], payload: &[u8]) {
        let mut ethernet = [0; ETHERNET_BYTES];
        ethernet[..6].copy_from_slice(&to);
        ethernet[6..12].copy_from_slice(&self.neighbours.own());
        ethernet[12..].copy_from_slice(&kind.to_be_bytes());
        self.device.write_parts(&[IoSlice::new(header), IoSlice::new(&ethernet), IoSlice::new(payload)]);
    }
}

/// Reads an Ethernet frame. A frame with a VLAN tag is foreign: the port has none.
fn read_lan(frame: &[u8], own: HardwareAddress) -> LanFrame {
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
fn ends(packet: &[u8]) -> Option<(IpAddr, IpAddr)> {
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
