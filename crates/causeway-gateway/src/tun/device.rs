//! The TUN device: packets of this host and its networks, with the kernel's offloads in both directions. `tap_device` uses
//! the same device for Ethernet frames, without offloads.
//!
//! The device is not persistent: the kernel removes it, and with it its routes, when the process ends, however it
//! ends. Addresses, routes and the MTU are set by `interface`.

use std::ffi::CString;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;

use super::join::FrameSink;
use super::offload::FrameHeader;

/// Offloads that the kernel has granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offloads {
    pub tcp: bool,
    pub udp: bool,
}

pub struct TunDevice {
    file: File,
    name: String,
    offloads: Offloads,
    /// Frames that the kernel did not take, since the last call of `take_refusals`.
    pub(super) refused: Refusals,
}

/// The content of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceKind {
    /// Packets.
    Tun,
    /// Ethernet frames.
    Tap,
}

/// Frames that the device has not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Refusals {
    pub frames: u64,
    /// One of them had several segments, and the kernel does not know such frames.
    pub segments: bool,
}

// linux/if_tun.h
const TUN_F_CSUM: libc::c_ulong = 0x01;
const TUN_F_TSO4: libc::c_ulong = 0x02;
const TUN_F_TSO6: libc::c_ulong = 0x04;
const TUN_F_TSO_ECN: libc::c_ulong = 0x08;
const TUN_F_USO4: libc::c_ulong = 0x20;
const TUN_F_USO6: libc::c_ulong = 0x40;

impl TunDevice {
    /// Creates a device. The kernel replaces `%d` in the name by a free number.
    #[allow(unsafe_code)]
    pub fn open(name: &str, kind: DeviceKind) -> io::Result<TunDevice> {
        let file =
            OpenOptions::new().read(true).write(true).custom_flags(libc::O_NONBLOCK).open("/dev/net/tun")?;
        let wanted = CString::new(name).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        // SAFETY: all fields of `ifreq` are plain data, for which zeros are a valid value.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        let bytes = wanted.as_bytes();
        if bytes.len() >= request.ifr_name.len() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the name of the device is too long"));
        }
        for (field, byte) in request.ifr_name.iter_mut().zip(bytes) {
            *field = *byte as libc::c_char;
        }
        let flag = match kind {
            DeviceKind::Tun => libc::IFF_TUN,
            DeviceKind::Tap => libc::IFF_TAP,
        };
        request.ifr_ifru.ifru_flags = (flag | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        // SAFETY: TUNSETIFF reads and writes an `ifreq`, which outlives the call.
        if unsafe { libc::ioctl(file.as_raw_fd(), libc::TUNSETIFF as _, &mut request) } < 0 {
            return Err(io::Error::last_os_error());
        }
        let name = request.ifr_name.iter().take_while(|byte| **byte != 0).map(|byte| *byte as u8 as char);
        let mut device = TunDevice {
            file,
            name: name.collect(),
            offloads: Offloads::default(),
            refused: Refusals::default(),
        };
        match kind {
            DeviceKind::Tun => device.offloads = device.negotiate(),
            DeviceKind::Tap => device.set_offloads(0)?,
        }
        Ok(device)
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn offloads(&self) -> Offloads {
        self.offloads
    }

    /// Reads a frame: header and packet.
    pub fn read(&mut self, frame: &mut [u8]) -> io::Result<usize> {
        self.file.read(frame)
    }

    /// Writes a frame that is in several places.
    pub fn write_parts(&mut self, parts: &[IoSlice<'_>]) {
        if self.file.write_vectored(parts).is_err() {
            self.refused.frames += 1;
        }
    }

    /// Returns what was refused since the last call.
    pub fn take_refusals(&mut self) -> Refusals {
        std::mem::take(&mut self.refused)
    }

    /// Asks for the largest set of offloads that this kernel has.
    fn negotiate(&mut self) -> Offloads {
        let tcp = TUN_F_CSUM | TUN_F_TSO4 | TUN_F_TSO6 | TUN_F_TSO_ECN;
        let sets = [
            (tcp | TUN_F_USO4 | TUN_F_USO6, Offloads { tcp: true, udp: true }),
            // USO is there from Linux 6.2 on.
            (tcp, Offloads { tcp: true, udp: false }),
            (TUN_F_CSUM, Offloads::default()),
            (0, Offloads::default()),
        ];
        let granted = sets.into_iter().find(|(flags, _)| self.set_offloads(*flags).is_ok());
        let granted = granted.map(|(_, offloads)| offloads).unwrap_or_default();
        if !granted.tcp {
            tracing::warn!(
                device = self.name,
                "the kernel refuses segmentation offload on the TUN device: slower"
            );
        }
        granted
    }

    #[allow(unsafe_code)]
    fn set_offloads(&self, flags: libc::c_ulong) -> io::Result<()> {
        // SAFETY: TUNSETOFFLOAD takes its argument by value.
        match unsafe { libc::ioctl(self.file.as_raw_fd(), libc::TUNSETOFFLOAD as _, flags) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for TunDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl FrameSink for TunDevice {
    fn write_frame(&mut self, frame: &[u8]) {
        if let Err(error) = self.file.write(frame) {
            self.refused.frames += 1;
            let has_segments = FrameHeader::read(frame).is_some_and(|header| header.segment_bytes > 0);
            self.refused.segments |= has_segments && error.kind() == io::ErrorKind::InvalidInput;
        }
    }
}
