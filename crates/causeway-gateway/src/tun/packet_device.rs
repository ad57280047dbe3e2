//! The device of the tunnel, of either data path: a TUN device at the kernel's routes, or a TAP device at a bridge.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use super::device::{Offloads, Refusals, TunDevice};
use super::join::FrameSink;
use super::plan::ForwardPlan;
use super::tap_device::TapDevice;

pub enum PacketDevice {
    Tun(TunDevice),
    Tap(TapDevice),
}

impl PacketDevice {
    fn device(&self) -> &TunDevice {
        match self {
            PacketDevice::Tun(device) => device,
            PacketDevice::Tap(tap) => tap.device(),
        }
    }

    pub fn name(&self) -> &str {
        self.device().name()
    }

    pub fn offloads(&self) -> Offloads {
        self.device().offloads()
    }

    /// Returns the frames that were refused since the last call.
    pub fn take_refusals(&mut self) -> Refusals {
        match self {
            PacketDevice::Tun(device) => device.take_refusals(),
            PacketDevice::Tap(tap) => tap.device_mut().take_refusals(),
        }
    }

    /// Reads a frame, and returns the place of its header and packet. None: the frame has no packet for the tunnel.
    pub fn read(&mut self, frame: &mut [u8]) -> io::Result<Option<Range<usize>>> {
        match self {
            PacketDevice::Tun(device) => device.read(frame).map(|length| Some(0..length)),
            PacketDevice::Tap(tap) => tap.read(frame),
        }
    }

    pub fn follow(&mut self, plan: &ForwardPlan) {
        if let PacketDevice::Tap(tap) = self {
            tap.steer(plan.steered());
        }
    }

    pub fn handle_time(&mut self, now: Instant) {
        if let PacketDevice::Tap(tap) = self {
            tap.handle_time(now);
        }
    }
}

impl AsFd for PacketDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device().as_fd()
    }
}

/// A gateway without networks of its own has no device, and no packet for it.
impl FrameSink for Option<PacketDevice> {
    fn write_frame(&mut self, frame: &[u8]) {
        match self {
            Some(PacketDevice::Tun(device)) => device.write_frame(frame),
            Some(PacketDevice::Tap(tap)) => tap.write_frame(frame),
            None => {}
        }
    }
}
