//! Reports changes of this host's network: of a link, an address or a route.
//!
//! Listens to the netlink multicast of the kernel; `filter` selects the messages that matter. Changes in
//! quick succession are reported once. Without netlink nothing is reported, and the timers of the session
//! detect a lost link.

mod filter;

use std::io;
use std::time::Duration;

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until};

use filter::NetworkChangeFilter;

/// RTMGRP_LINK, RTMGRP_IPV4_IFADDR, RTMGRP_IPV4_ROUTE, RTMGRP_IPV6_IFADDR, RTMGRP_IPV6_ROUTE, from
/// linux/rtnetlink.h.
const GROUPS: u32 = 0x1 | 0x10 | 0x40 | 0x100 | 0x400;
/// An interface that comes up reports its link, its addresses and its routes within this time.
const BUNCH: Duration = Duration::from_millis(50);
/// A host that starts containers has changes all the time; they must not make the edge dial without pause.
const APART: Duration = Duration::from_secs(1);

pub struct NetworkChanges {
    socket: Option<UdpSocket>,
    filter: NetworkChangeFilter,
    /// The time of the last report.
    told: Option<Instant>,
    /// The time at which a pending change is reported.
    due: Option<Instant>,
}

impl NetworkChanges {
    pub fn watch() -> NetworkChanges {
        let socket = open();
        if let Err(error) = &socket {
            tracing::warn!(%error, "changes of the network cannot be watched; a lost link is noticed by its silence");
        }
        // Listed after the socket is open: an interface is either found now or reported later.
        let mut filter = NetworkChangeFilter::default();
        namespace_interfaces().into_iter().for_each(|index| filter.add_namespace_interface(index));
        NetworkChanges { socket: socket.ok(), filter, told: None, due: None }
    }

    /// Resolves after a change. May be dropped and called again.
    pub async fn next(&mut self) {
        loop {
            tokio::select! {
                biased;
                () = wait(self.due) => {
                    self.due = None;
                    self.told = Some(Instant::now());
                    return;
                }
                () = heard(self.socket.as_ref(), &mut self.filter) => {
                    let now = Instant::now();
                    let earliest = self.told.map_or(now, |told| told + APART);
                    self.due.get_or_insert((now + BUNCH).max(earliest));
                }
            }
        }
    }
}

// Tokio has no socket of this kind; one for datagrams waits and receives by the same calls, and more is not asked of it.
fn open() -> io::Result<UdpSocket> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    // No protocol is protocol 0, which is NETLINK_ROUTE.
    let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, None)?;
    bind(&socket, &SocketAddrNetlink::new(0, GROUPS))?;
    UdpSocket::from_std(socket.into())
}

/// Rooms that are there already: this process may have made one before it had anything to dial with.
fn namespace_interfaces() -> Vec<u32> {
    let Ok(interfaces) = std::fs::read_dir("/sys/class/net") else { return Vec::new() };
    let namespace_interfaces = interfaces
        .flatten()
        .filter(|interface| filter::is_namespace_interface(interface.file_name().as_encoded_bytes()));
    let index =
        |path: std::path::PathBuf| std::fs::read_to_string(path.join("ifindex")).ok()?.trim().parse().ok();
    namespace_interfaces.filter_map(|interface| index(interface.path())).collect()
}

// Reads all pending messages. A full buffer of the kernel counts as a change, too.
async fn heard(socket: Option<&UdpSocket>, filter: &mut NetworkChangeFilter) {
    let Some(socket) = socket else { return std::future::pending().await };
    let (mut buffer, mut is_changed) = ([0; 8192], false);
    loop {
        match socket.try_recv(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && is_changed => return,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if socket.readable().await.is_err() {
                    return std::future::pending().await;
                }
            }
            Ok(bytes) => is_changed |= filter.is_change(&buffer[..bytes]),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
                is_changed = true
            }
            Err(_) => return std::future::pending().await,
        }
    }
}

async fn wait(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
