//! Presences at addresses that are the host's own: bound directly, in step with the netmap.
//!
//! A stand-in for the listeners of the room: addresses inside 127.0.0.0/8 are local on every host. What cannot be bound is
//! reported once and tried again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use causeway_netmap::{Protocol, ServiceName, View};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::AbortHandle;

use crate::figures::Figures;

/// A client at a presence.
pub struct Accepted {
    pub stream: TcpStream,
    pub client: SocketAddr,
    pub service: ServiceName,
}

/// Accepted and not yet served; the kernel keeps the rest waiting.
const PENDING_MAX: usize = 256;
/// An address may become local, or free.
const RETRY: Duration = Duration::from_secs(2);
/// After an accept that failed, as it does when no file is left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub struct HostListeners {
    netmaps: watch::Receiver<Arc<View>>,
    figures: Figures,
    bound: BTreeMap<SocketAddr, (ServiceName, AbortHandle)>,
    complained: BTreeSet<SocketAddr>,
    accepted: mpsc::Receiver<Accepted>,
    accepting: mpsc::Sender<Accepted>,
}

impl HostListeners {
    pub fn new(netmaps: watch::Receiver<Arc<View>>, figures: Figures) -> HostListeners {
        let (accepting, accepted) = mpsc::channel(PENDING_MAX);
        let mut netmaps = netmaps;
        netmaps.mark_changed();
        HostListeners {
            netmaps,
            figures,
            bound: BTreeMap::new(),
            complained: BTreeSet::new(),
            accepted,
            accepting,
        }
    }

    /// The next client. May be cancelled.
    pub async fn next(&mut self) -> Accepted {
        loop {
            tokio::select! {
                biased;
                Ok(()) = self.netmaps.changed() => self.follow(),
                Some(accepted) = self.accepted.recv() => return accepted,
                () = tokio::time::sleep(RETRY), if !self.complained.is_empty() => self.follow(),
            }
        }
    }

    fn follow(&mut self) {
        let view = self.netmaps.borrow_and_update().clone();
        let wanted = wanted(&view);
        self.bound.retain(|address, (service, task)| {
            let stays = wanted.get(address) == Some(service);
            if !stays {
                task.abort();
            }
            stays
        });
        self.complained.retain(|address| wanted.contains_key(address));
        for (address, service) in wanted {
            if self.bound.contains_key(&address) {
                continue;
            }
            match bind(address) {
                Ok(listener) => {
                    tracing::info!(%service, %address, "a presence listens");
                    self.complained.remove(&address);
                    let task = tokio::spawn(accept(listener, service.clone(), self.accepting.clone()));
                    self.bound.insert(address, (service, task.abort_handle()));
                }
                Err(error) if self.complained.insert(address) => {
                    tracing::warn!(%service, %address, %error, "a presence cannot listen; it is tried again");
                }
                Err(_) => {}
            }
        }
        self.figures.unbound.set(self.complained.len() as i64);
    }
}

impl Drop for HostListeners {
    fn drop(&mut self) {
        self.bound.values().for_each(|(_, task)| task.abort());
    }
}

fn wanted(view: &View) -> BTreeMap<SocketAddr, ServiceName> {
    let tcp = view.presences.values().filter(|presence| presence.protocol != Protocol::Udp);
    let addresses = tcp.flat_map(|presence| {
        let at = |address: &causeway_netmap::PresenceIp| SocketAddr::new(address.0, presence.port);
        presence.addresses.iter().map(at).map(|address| (address, presence.service.clone()))
    });
    addresses.collect()
}

fn bind(address: SocketAddr) -> std::io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => tokio::net::TcpSocket::new_v4()?,
        SocketAddr::V6(_) => tokio::net::TcpSocket::new_v6()?,
    };
    // A restarted gateway must not wait for the last connections of the one before.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

async fn accept(listener: TcpListener, service: ServiceName, accepting: mpsc::Sender<Accepted>) {
    loop {
        match listener.accept().await {
            Ok((stream, client)) => {
                let accepted = Accepted { stream, client, service: service.clone() };
                if accepting.send(accepted).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                tracing::debug!(%service, %error, "a connection could not be accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
