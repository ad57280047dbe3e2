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

/// Room for two control messages of an `int`, aligned as the kernel wants them.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
struct ControlBuffer([u8; 64]);

impl ControlBuffer {
    /// Writes a control message at an offset at which the last one ended, and returns the room it takes.
    #[allow(unsafe_code)]
    fn append<T>(&mut self, at: usize, level: libc::c_int, kind: libc::c_int, value: T) -> usize {
        // SAFETY: only computes lengths.
        let (space, length) = unsafe {
            let bytes = size_of::<T>() as libc::c_uint;
            (libc::CMSG_SPACE(bytes) as usize, libc::CMSG_LEN(bytes))
        };
        let Some(room) = self.0.get_mut(at..at + space) else { return 0 };
        let header = room.as_mut_ptr().cast::<libc::cmsghdr>();
        // SAFETY: `room` has space for header and value; every message takes a multiple of the alignment.
        unsafe {
            (*header).cmsg_level = level;
            (*header).cmsg_type = kind;
            (*header).cmsg_len = length as _;
            libc::CMSG_DATA(header).cast::<T>().write_unaligned(value);
        }
        space
    }
}

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
    /// DSCP and ECN. The kernel joins only datagrams that have the same.
    pub traffic_class: u8,
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
        let nothing = Received { from: NOWHERE, length: 0, segment: 0, traffic_class: 0 };
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
        // Without them congestion marks of the path are not seen; packets cross all the same.
        let _ = port.set(libc::IPPROTO_IP, libc::IP_RECVTOS, 1);
        if port.is_v6 {
            let _ = port.set(libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, 1);
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

    /// Sends a train of datagrams with `segment` bytes each; the last one may be shorter. All have the traffic class.
    #[allow(unsafe_code)]
    pub fn send(
        &self,
        to: SocketAddr,
        bytes: &[u8],
        segment: usize,
        traffic_class: u8,
    ) -> Result<(), SendError> {
        // A socket of IPv6 takes the control message of IPv4 for a destination of IPv4.
        let (class_level, class_type) = match to.ip().to_canonical().is_ipv4() {
            true => (libc::IPPROTO_IP, libc::IP_TOS),
            false => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
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
        let mut control_bytes = 0;
        if bytes.len() > segment {
            control_bytes += control.append(control_bytes, libc::IPPROTO_UDP, UDP_SEGMENT, segment as u16);
        }
        if traffic_class != 0 {
            let class = libc::c_int::from(traffic_class);
            control_bytes += control.append(control_bytes, class_level, class_type, class);
        }
        if control_bytes > 0 {
            message.msg_control = control.0.as_mut_ptr().cast();
            message.msg_controllen = control_bytes as _;
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
            let (segment, traffic_class) = control_of(&headers[index].msg_hdr);
            let segment = segment.filter(|segment| *segment > 0).unwrap_or(length);
            let from = address_of(&addresses[index], headers[index].msg_hdr.msg_namelen);
            batch.meta[index] = Received { from: from.unwrap_or(NOWHERE), length, segment, traffic_class };
        }
        Ok(count as usize)
    }
}

/// Reads the size of the datagrams that the kernel has joined, and their traffic class.
#[allow(unsafe_code)]
fn control_of(header: &libc::msghdr) -> (Option<usize>, u8) {
    let (mut segment, mut traffic_class) = (None, 0);
    // SAFETY: the kernel has written the control messages, and the macros stay within their length. `IP_TOS` is one byte,
    // the other two are an `int`.
    unsafe {
        let mut control = libc::CMSG_FIRSTHDR(header);
        while !control.is_null() {
            let data = libc::CMSG_DATA(control);
            match ((*control).cmsg_level, (*control).cmsg_type) {
                (libc::IPPROTO_UDP, UDP_GRO) => {
                    segment = usize::try_from(data.cast::<libc::c_int>().read_unaligned()).ok();
                }
                (libc::IPPROTO_IP, libc::IP_TOS) => traffic_class = *data,
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    traffic_class = data.cast::<libc::c_int>().read_unaligned() as u8;
                }
                _ => {}
            }
            control = libc::CMSG_NXTHDR(header, control);
        }
    }
    (segment, traffic_class)
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
        other.send(to, &[1; 128 * 100], 100, 0).unwrap();
        assert_eq!(receive(&one, 12_800), [1; 12_800]);
        assert!(other.send(to, &[1; 129 * 100], 100, 0).is_err());
        assert!(matches!(other.send(to, &[1; TRAIN_BYTES_MAX + 1], 1400, 0), Err(SendError::TooLong)));
        other.send(to, &[2; 50], 100, 0).unwrap();
        assert_eq!(receive(&one, 50), [2; 50], "an error has no consequence for what follows");
    }

    #[test]
    fn a_sender_of_ipv4_is_known_by_its_ipv4_address() {
        let (one, other) = pair();
        let to = SocketAddr::from((Ipv4Addr::LOCALHOST, other.local_addr().unwrap().port()));
        one.send(to, b"hello", 5, 0).unwrap();
        let mut wait = [rustix::event::PollFd::new(&other, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut wait, None).unwrap();
        let mut batch = ReceiveBatch::default();
        assert_eq!(other.receive(&mut batch).unwrap(), 1);
        let (received, bytes) = batch.train(0);
        assert_eq!((received.from, &*bytes), (one.local_addr().unwrap(), &b"hello"[..]));
    }
    #[test]
    fn the_traffic_class_of_a_train_arrives_with_it() {
        let (one, other) = pair();
        let ends = [&one, &other].map(|socket| socket.local_addr().unwrap().port());
        let check = |from: &TunnelSocket, to: (&TunnelSocket, SocketAddr), class: u8| {
            from.send(to.1, &[3; 5 * 100], 100, class).unwrap();
            let (mut batch, mut length) = (ReceiveBatch::default(), 0);
            while length < 500 {
                let mut wait = [rustix::event::PollFd::new(to.0, rustix::event::PollFlags::IN)];
                rustix::event::poll(&mut wait, None).unwrap();
                for index in 0..to.0.receive(&mut batch).unwrap_or(0) {
                    let received = batch.train(index).0;
                    assert_eq!((received.segment, received.traffic_class), (100, class), "{}", to.1);
                    length += received.length;
                }
            }
        };
        // From IPv6 to IPv4, from IPv4 to IPv6, and with IPv6 alone where the host has it.
        for class in [46 << 2 | 0b10, 0b11, 0, 0xff] {
            check(&other, (&one, (Ipv4Addr::LOCALHOST, ends[0]).into()), class);
            check(&one, (&other, (Ipv4Addr::LOCALHOST, ends[1]).into()), class);
            if let Ok(six) = TunnelSocket::bind("[::1]:0".parse().unwrap()) {
                check(&other, (&six, six.local_addr().unwrap()), class);
            }
        }
    }
}
