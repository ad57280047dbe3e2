//! The UDP socket of the tunnel: trains of equal datagrams out (`UDP_SEGMENT`), batches of trains in (`UDP_GRO`).
//!
//! quinn-udp has both, and switches segmentation off for the whole socket after one error; here an error concerns
//! the peer whose path is too small (`SendError::TooLong`).

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

/// Trains in one batch.
pub const BATCH: usize = 16;
/// The longest datagram or train, with room for a frame header before the first packet.
pub const BUFFER_BYTES: usize = 65_536;
/// The kernel takes 128 segments and refuses 129, and 65,507 bytes at most.
pub const TRAIN_SEGMENTS_MAX: usize = 128;
pub const TRAIN_BYTES_MAX: usize = 65_507;
/// Kernel buffers, each way. 65,507 bytes of packets take about twice that.
const KERNEL_BUFFER_BYTES: usize = 4 << 20;

// linux/udp.h
const UDP_SEGMENT: libc::c_int = 103;
const UDP_GRO: libc::c_int = 104;

pub struct TunnelSocket {
    socket: Socket,
    is_v6: bool,
    /// False: the kernel does not cut trains.
    segments: bool,
}

/// Room for a control message of one `int`, aligned as the kernel wants it.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct ControlBuffer([u8; 64]);

/// Buffers for received trains.
pub struct ReceiveBatch {
    buffers: Vec<Vec<u8>>,
    meta: [Received; BATCH],
}

/// A train as it was received: equal datagrams, the last one may be shorter.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    pub from: SocketAddr,
    pub length: usize,
    pub segment: usize,
}

#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// A datagram is longer than the first link of the path carries.
    #[error("the datagram is longer than the path carries")]
    TooLong,
    #[error("sending failed")]
    Io(#[source] io::Error),
}

const NOWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(std::net::Ipv4Addr::UNSPECIFIED), 0);

impl Default for ReceiveBatch {
    fn default() -> ReceiveBatch {
        let nothing = Received { from: NOWHERE, length: 0, segment: 0 };
        ReceiveBatch { buffers: vec![vec![0; BUFFER_BYTES]; BATCH], meta: [nothing; BATCH] }
    }
}

impl ReceiveBatch {
    /// Returns a train and where it came from.
    pub fn train(&mut self, index: usize) -> (Received, &mut [u8]) {
        let received = self.meta[index];
        (received, &mut self.buffers[index][..received.length])
    }
}

impl TunnelSocket {
    pub fn bind(address: SocketAddr) -> io::Result<TunnelSocket> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_nonblocking(true)?;
        if address.is_ipv6() {
            // One port for both families; without IPv4 on this host it stays IPv6 only.
            let _ = socket.set_only_v6(!address.ip().is_unspecified());
        }
        let _ = socket.set_recv_buffer_size(KERNEL_BUFFER_BYTES);
        let _ = socket.set_send_buffer_size(KERNEL_BUFFER_BYTES);
        let port = TunnelSocket { socket, is_v6: address.is_ipv6(), segments: true };
        // The tunnel measures the path itself: datagrams are never fragmented, and ICMP does not change the size.
        let _ = port.set(libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE);
        if port.is_v6 {
            let _ = port.set(libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE);
        }
        port.socket.bind(&SockAddr::from(address))?;
        let gro = port.set(libc::IPPROTO_UDP, UDP_GRO, 1);
        let segments = port.set(libc::IPPROTO_UDP, UDP_SEGMENT, 0);
        if let Err(error) = gro.as_ref().and(segments.as_ref()) {
            tracing::warn!(%error, "the kernel has no segmentation of UDP for the tunnel: slower");
        }
        Ok(TunnelSocket { segments: segments.is_ok(), ..port })
    }

    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()?.as_socket().ok_or_else(|| io::ErrorKind::AddrNotAvailable.into())
    }

    pub fn cuts_trains(&self) -> bool {
        self.segments
    }

    #[allow(unsafe_code)]
    fn set(&self, level: libc::c_int, name: libc::c_int, value: libc::c_int) -> io::Result<()> {
        let length = size_of::<libc::c_int>() as libc::socklen_t;
        // SAFETY: the option is an `int`, and its address and length are those of `value`.
        let result = unsafe {
            libc::setsockopt(self.socket.as_raw_fd(), level, name, (&raw const value).cast(), length)
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Sends a train of datagrams with `segment` bytes each; the last one may be shorter.
    #[allow(unsafe_code)]
    pub fn send(&self, to: SocketAddr, bytes: &[u8], segment: usize) -> Result<(), SendError> {
        let to = SockAddr::from(match (self.is_v6, to) {
            (true, SocketAddr::V4(v4)) => SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port())),
            _ => to,
        });
        let mut control = ControlBuffer([0; 64]);
        let mut part = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        // SAFETY: zeros are a valid `msghdr`: no address, no data, no control message.
        let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
        message.msg_name = to.as_ptr().cast_mut().cast();
        message.msg_namelen = to.len();
        message.msg_iov = &raw mut part;
        message.msg_iovlen = 1;
        if bytes.len() > segment {
            message.msg_control = control.0.as_mut_ptr().cast();
            // SAFETY: `control` is aligned and has room for one control message with a `u16`.
            unsafe {
                message.msg_controllen = libc::CMSG_SPACE(2) as _;
                let header = libc::CMSG_FIRSTHDR(&raw const message);
                (*header).cmsg_level = libc::IPPROTO_UDP;
                (*header).cmsg_type = UDP_SEGMENT;
                (*header).cmsg_len = libc::CMSG_LEN(2) as _;
                libc::CMSG_DATA(header).cast::<u16>().write_unaligned(segment as u16);
            }
        }
        // SAFETY: every pointer in `message` is to memory that outlives the call; the kernel only reads it.
        let sent = unsafe { libc::sendmsg(self.socket.as_raw_fd(), &raw const message, libc::MSG_NOSIGNAL) };
        if sent >= 0 {
            return Ok(());
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EMSGSIZE) => Err(SendError::TooLong),
            _ => Err(SendError::Io(error)),
        }
    }

    /// Receives trains without waiting, and returns their number.
    #[allow(unsafe_code)]
    pub fn receive(&self, batch: &mut ReceiveBatch) -> io::Result<usize> {
        // SAFETY: zeros are valid values of all three structures.
        let mut headers: [libc::mmsghdr; BATCH] = unsafe { std::mem::zeroed() };
        let mut addresses: [libc::sockaddr_storage; BATCH] = unsafe { std::mem::zeroed() };
        let mut parts: [libc::iovec; BATCH] = unsafe { std::mem::zeroed() };
        let mut controls = [ControlBuffer([0; 64]); BATCH];
        for index in 0..BATCH {
            let buffer = &mut batch.buffers[index];
            parts[index] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
            let header = &mut headers[index].msg_hdr;
            header.msg_name = (&raw mut addresses[index]).cast();
            header.msg_namelen = size_of::<libc::sockaddr_storage>() as _;
            header.msg_iov = &raw mut parts[index];
            header.msg_iovlen = 1;
            header.msg_control = controls[index].0.as_mut_ptr().cast();
            header.msg_controllen = controls[index].0.len() as _;
        }
        // SAFETY: every pointer in `headers` is to memory of the stated length that outlives the call.
        let count = unsafe {
            let flags = libc::MSG_DONTWAIT;
            libc::recvmmsg(
                self.socket.as_raw_fd(),
                headers.as_mut_ptr(),
                BATCH as _,
                flags as _,
                std::ptr::null_mut(),
            )
        };
        if count < 0 {
            return Err(io::Error::last_os_error());
        }
        for index in 0..count as usize {
            let length = headers[index].msg_len as usize;
            let segment =
                segment_of(&headers[index].msg_hdr).filter(|segment| *segment > 0).unwrap_or(length);
            let from = address_of(&addresses[index], headers[index].msg_hdr.msg_namelen);
            batch.meta[index] = Received { from: from.unwrap_or(NOWHERE), length, segment };
        }
        Ok(count as usize)
    }
}

/// Reads the size of the datagrams that the kernel has joined.
#[allow(unsafe_code)]
fn segment_of(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel has written the control messages, and the macros stay within their length.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while !control.is_null() {
            if (*control).cmsg_level == libc::IPPROTO_UDP && (*control).cmsg_type == UDP_GRO {
                return usize::try_from(libc::CMSG_DATA(control).cast::<libc::c_int>().read_unaligned()).ok();
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    None
}

/// Reads the sender. An IPv4 sender at an IPv6 socket is returned as IPv4.
#[allow(unsafe_code)]
fn address_of(storage: &libc::sockaddr_storage, length: libc::socklen_t) -> Option<SocketAddr> {
    // SAFETY: a `sockaddr_storage` is large and aligned enough for either family, whose tag is checked first.
    let address = unsafe {
        match i32::from(storage.ss_family) {
            libc::AF_INET if length as usize >= size_of::<libc::sockaddr_in>() => {
                let v4 = &*(&raw const *storage).cast::<libc::sockaddr_in>();
                SocketAddr::from((v4.sin_addr.s_addr.to_ne_bytes(), u16::from_be(v4.sin_port)))
            }
            libc::AF_INET6 if length as usize >= size_of::<libc::sockaddr_in6>() => {
                let v6 = &*(&raw const *storage).cast::<libc::sockaddr_in6>();
                let ip = std::net::Ipv6Addr::from(v6.sin6_addr.s6_addr);
                match ip.to_ipv4_mapped() {
                    Some(v4) => SocketAddr::from((v4, u16::from_be(v6.sin6_port))),
                    // The scope is needed to answer a link-local address.
                    None => std::net::SocketAddrV6::new(ip, u16::from_be(v6.sin6_port), 0, v6.sin6_scope_id)
                        .into(),
                }
            }
            _ => return None,
        }
    };
    Some(address)
}

impl AsFd for TunnelSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn pair() -> (TunnelSocket, TunnelSocket) {
        let one = TunnelSocket::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        (one, TunnelSocket::bind("[::]:0".parse().unwrap()).unwrap())
    }

    fn receive(socket: &TunnelSocket, bytes: usize) -> Vec<u8> {
        let (mut batch, mut found) = (ReceiveBatch::default(), Vec::new());
        while found.len() < bytes {
            let mut wait = [rustix::event::PollFd::new(socket, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut wait, None).unwrap();
            for index in 0..socket.receive(&mut batch).unwrap_or(0) {
                found.extend_from_slice(batch.train(index).1);
            }
        }
        found
    }

    #[test]
    fn trains_of_128_segments_pass_and_longer_ones_are_an_error_of_their_own() {
        let (one, other) = pair();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, one.local_addr().unwrap().port()));
        other.send(to, &[1; 128 * 100], 100).unwrap();
        assert_eq!(receive(&one, 12_800), [1; 12_800]);
        assert!(other.send(to, &[1; 129 * 100], 100).is_err());
        assert!(matches!(other.send(to, &[1; TRAIN_BYTES_MAX + 1], 1400), Err(SendError::TooLong)));
        other.send(to, &[2; 50], 100).unwrap();
        assert_eq!(receive(&one, 50), [2; 50], "an error has no consequence for what follows");
    }

    #[test]
    fn a_sender_of_ipv4_is_known_by_its_ipv4_address() {
        let (one, other) = pair();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, other.local_addr().unwrap().port()));
        one.send(to, b"hello", 5).unwrap();
        let mut wait = [rustix::event::PollFd::new(&other, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut wait, None).unwrap();
        let mut batch = ReceiveBatch::default();
        assert_eq!(other.receive(&mut batch).unwrap(), 1);
        let (received, bytes) = batch.train(0);
        assert_eq!((received.from, &*bytes), (one.local_addr().unwrap(), &b"hello"[..]));
    }
}
