//! A packet socket at one interface, for ARP or for neighbour discovery (packet(7)).
//!
//! The kernel removes the socket, and its membership of all multicast groups, with the process. Payloads are read and
//! written by `message`; the kernel removes and adds the Ethernet header.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};

use socket2::{Domain, SockFilter, Socket, Type};
use tokio::io::unix::AsyncFd;

use super::message::{HardwareAddress, NeighbourFamily, NeighbourFrame};

pub struct PacketSocket {
    socket: AsyncFd<OwnedFd>,
    address: libc::sockaddr_ll,
}

/// Longer than any message that is read; the rest of a longer frame is cut off.
pub const PAYLOAD_BYTES_MAX: usize = 512;

// linux/filter.h, linux/bpf_common.h
const LOAD_BYTE: u16 = 0x30;
const JUMP_IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;

impl PacketSocket {
    /// Needs CAP_NET_RAW.
    #[allow(unsafe_code)]
    pub fn open(index: u32, family: NeighbourFamily) -> io::Result<PacketSocket> {
        // Without a protocol the socket receives nothing until it is bound, when the filter is in place.
        let socket = Socket::new(Domain::PACKET, Type::DGRAM, None)?;
        socket.set_nonblocking(true)?;
        let protocol = match family {
            NeighbourFamily::V4 => libc::ETH_P_ARP,
            NeighbourFamily::V6 => libc::ETH_P_IPV6,
        };
        if family == NeighbourFamily::V6 {
            // ICMPv6 (58) of type 135 or 136 directly behind the IPv6 header; no other packet is copied.
            socket.attach_filter(&[
                SockFilter::new(LOAD_BYTE, 0, 0, 6),
                SockFilter::new(JUMP_IF_EQUAL, 0, 3, 58),
                SockFilter::new(LOAD_BYTE, 0, 0, 40),
                SockFilter::new(JUMP_IF_EQUAL, 2, 0, 135),
                SockFilter::new(JUMP_IF_EQUAL, 1, 0, 136),
                SockFilter::new(RETURN, 0, 0, 0),
                SockFilter::new(RETURN, 0, 0, PAYLOAD_BYTES_MAX as u32),
            ])?;
        }
        let address = address_of(index, protocol)?;
        bind(&socket, &address)?;
        if family == NeighbourFamily::V6 {
            receive_all_multicast(&socket, address.sll_ifindex)?;
        }
        // SAFETY: the `OwnedFd` owns a valid file descriptor, and neither replaces nor closes it inside the `AsyncFd`.
        let socket = unsafe { AsyncFd::register(OwnedFd::from(socket)) }.map_err(io::Error::from)?;
        Ok(PacketSocket { socket, address })
    }

    /// Waits for a payload, and returns its length and the source of its frame. Cancel-safe.
    pub async fn receive(&self, payload: &mut [u8]) -> io::Result<(usize, HardwareAddress)> {
        loop {
            let mut ready = self.socket.readable().await?;
            match ready.try_io(|socket| receive(socket.get_ref(), payload)) {
                Ok(received) => return received,
                Err(_would_block) => {}
            }
        }
    }

    /// Never waits: a frame for which the queue of the interface has no place is lost.
    #[allow(unsafe_code)]
    pub fn send(&self, frame: &NeighbourFrame) -> io::Result<()> {
        let mut address = self.address;
        address.sll_halen = frame.to.len() as u8;
        address.sll_addr[..frame.to.len()].copy_from_slice(&frame.to);
        // SAFETY: the payload and the address are valid for reads of the given lengths during the call.
        let sent = unsafe {
            libc::sendto(
                self.socket.as_raw_fd(),
                frame.payload.as_ptr().cast(),
                frame.payload.len(),
                0,
                (&raw const address).cast(),
                size_of::<libc::sockaddr_ll>() as libc::socklen_t,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

#[allow(unsafe_code)]
fn address_of(index: u32, protocol: libc::c_int) -> io::Result<libc::sockaddr_ll> {
    let invalid = || io::Error::from(io::ErrorKind::InvalidInput);
    // SAFETY: all fields of `sockaddr_ll` are plain data, for which zeros are a valid value.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = u16::try_from(protocol).map_err(|_| invalid())?.to_be();
    address.sll_ifindex = i32::try_from(index).map_err(|_| invalid())?;
    Ok(address)
}

#[allow(unsafe_code)]
fn bind(socket: &Socket, address: &libc::sockaddr_ll) -> io::Result<()> {
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is valid for reads of `length` bytes during the call.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const *address).cast(), length) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Questions for an IPv6 address go to a group that depends on the address; the kernel has joined none of ours.
#[allow(unsafe_code)]
fn receive_all_multicast(socket: &Socket, index: libc::c_int) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: index,
        mr_type: libc::PACKET_MR_ALLMULTI as libc::c_ushort,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // SAFETY: PACKET_ADD_MEMBERSHIP reads a `packet_mreq`, which outlives the call.
    let joined = unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            (&raw const membership).cast(),
            size_of::<libc::packet_mreq>() as libc::socklen_t,
        )
    };
    if joined < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[allow(unsafe_code)]
fn receive(socket: &OwnedFd, payload: &mut [u8]) -> io::Result<(usize, HardwareAddress)> {
    // SAFETY: all fields of `sockaddr_ll` are plain data, for which zeros are a valid value.
    let mut from: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: payload, address and length are valid for writes of the given lengths during the call, and the kernel
    // writes no more than these.
    let received = unsafe {
        libc::recvfrom(
            socket.as_raw_fd(),
            payload.as_mut_ptr().cast(),
            payload.len(),
            0,
            (&raw mut from).cast(),
            &raw mut length,
        )
    };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let mut hardware = HardwareAddress::default();
    hardware.copy_from_slice(&from.sll_addr[..6]);
    Ok((received.min(payload.len()), hardware))
}
