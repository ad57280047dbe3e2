//! News of this machine's network: a link, an address or a route has changed.
//!
//! Listens to the kernel's own multicast; what is news in it is decided in `news`. News that come in a bunch are told once.
//! Where there is no netlink, nothing is ever told, and the timers of the session do all the work.

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
/// An interface that comes up tells its link, its addresses and its routes within this time.
const BUNCH: Duration = Duration::from_millis(50);
/// A host that starts containers has changes all the time; they must not make the edge dial without pause.
const APART: Duration = Duration::from_secs(1);

pub struct NetworkChanges {
    socket: Option<UdpSocket>,
    ear: NetworkChangeFilter,
    /// When the last news were told.
    told: Option<Instant>,
    /// News that are not told yet.
    due: Option<Instant>,
}

impl NetworkChanges {
    pub fn watch() -> NetworkChanges {
        let socket = open();
        if let Err(error) = &socket {
            tracing::warn!(%error, "changes of the network cannot be watched; a lost link is noticed by its silence");
        }
        // After the socket is there: a room is either found now or told later.
        let mut ear = NetworkChangeFilter::default();
        rooms().into_iter().for_each(|index| ear.add_room(index));
        NetworkChanges { socket: socket.ok(), ear, told: None, due: None }
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
                () = heard(self.socket.as_ref(), &mut self.ear) => {
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
fn rooms() -> Vec<u32> {
    let Ok(interfaces) = std::fs::read_dir("/sys/class/net") else { return Vec::new() };
    let rooms =
        interfaces.flatten().filter(|interface| filter::is_room(interface.file_name().as_encoded_bytes()));
    let index =
        |path: std::path::PathBuf| std::fs::read_to_string(path.join("ifindex")).ok()?.trim().parse().ok();
    rooms.filter_map(|room| index(room.path())).collect()
}

// Reads whatever is there. A full buffer of the kernel is news, too.
async fn heard(socket: Option<&UdpSocket>, ear: &mut NetworkChangeFilter) {
    let Some(socket) = socket else { return std::future::pending().await };
    let (mut buffer, mut is_news) = ([0; 8192], false);
    loop {
        match socket.try_recv(&mut buffer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && is_news => return,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if socket.readable().await.is_err() {
                    return std::future::pending().await;
                }
            }
            Ok(bytes) => is_news |= ear.hears(&buffer[..bytes]),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {
                is_news = true
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
