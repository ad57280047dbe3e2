//! The TAP device at a port of an Open vSwitch bridge: packets of the tunnel in Ethernet frames of the LAN.
//!
//! Flows of the bridge lead packets for the tunnel here (`ovs`), with the hardware address of this device as their
//! destination; other frames are floods of the bridge and are ignored. `lan_neighbours` finds the destinations of frames in
//! the other direction. Frames have no offloads: the user-space switch of Open vSwitch would send them on with checksums
//! that are not complete.

use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::ops::Range;
use std::time::Instant;

use ipnet::IpNet;

use super::device::{DeviceKind, TunDevice};
use super::lan_frame::{ARP, ETHERNET_BYTES, IPV4, IPV6, LanFrame, ends, read_lan};
use super::lan_neighbours::LanNeighbours;
use super::offload::FrameHeader;
use super::plan::contains;
use crate::neighbour_proxy::message::{self, HardwareAddress, NeighbourFrame, NeighbourMessage};

pub struct TapDevice {
    device: TunDevice,
    neighbours: LanNeighbours,
    /// Networks whose addresses are answered with this device: those for which the bridge has flows.
    steered: Vec<IpNet>,
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
