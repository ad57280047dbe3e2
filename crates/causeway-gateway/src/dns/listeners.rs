//! Binds and closes the listening addresses of the DNS server as the configuration and the netmap require.
//!
//! An address that is not on this host yet, or a port in use by another program, is a finding and is tried
//! again; it never stops the server. Addresses that are no longer wanted are closed before new ones are
//! bound.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use causeway_netmap::NetmapView;
use serde::Serialize;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::dial::{OwnListener, OwnListeners, SocketProtocol};

use super::server::{DnsFrontend, serve_connections, serve_datagrams};

const PORT: u16 = 53;
/// Attempts for port 0: the number must be free for both protocols.
const TRIES_MAX: usize = 16;

/// An address that should be bound and is not.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ListenProblem {
    pub address: SocketAddr,
    /// The reason, as a text for the operator.
    pub why: String,
}

/// Returns the addresses to bind: those of the configuration, or loopback and the gateway's own address.
pub fn wanted(configured: Option<&[SocketAddr]>, view: &NetmapView) -> Vec<SocketAddr> {
    if let Some(configured) = configured {
        return configured.to_vec();
    }
    let loopback: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let own = view.gateway.as_ref().and_then(|gateway| gateway.ip);
    let mut found: Vec<SocketAddr> = Vec::new();
    for ip in loopback.into_iter().chain(own.map(|ip| ip.to_canonical())) {
        let address = SocketAddr::new(ip, PORT);
        if !found.contains(&address) {
            found.push(address);
        }
    }
    found
}

/// The open sockets, by the wanted address.
pub struct DnsListeners {
    frontend: Arc<DnsFrontend>,
    own_listeners: OwnListeners,
    open: BTreeMap<SocketAddr, Listener>,
    findings: Vec<ListenProblem>,
}

struct Listener {
    bound: SocketAddr,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _own: [OwnListener; 2],
}

impl DnsListeners {
    pub fn new(frontend: Arc<DnsFrontend>, own_listeners: OwnListeners) -> DnsListeners {
        DnsListeners { frontend, own_listeners, open: BTreeMap::new(), findings: Vec::new() }
    }

    /// Binds missing addresses and closes surplus ones. Idempotent.
    pub async fn follow(&mut self, wanted: &[SocketAddr]) {
        let unwanted: Vec<SocketAddr> =
            self.open.keys().filter(|address| !wanted.contains(address)).copied().collect();
        for address in unwanted {
            self.close(address).await;
        }
        let mut findings = Vec::new();
        for address in wanted {
            if self.open.contains_key(address) {
                continue;
            }
            match bind(*address).await {
                Ok((socket, listener, bound)) => self.start(*address, bound, socket, listener),
                // A host without IPv6 has no IPv6 loopback; that is not a problem.
                Err(error) if address.ip().is_loopback() && error.kind() == ErrorKind::AddrNotAvailable => {}
                Err(error) => findings.push(ListenProblem { address: *address, why: describe(&error) }),
            }
        }
        // Logged when the finding is new, not with every try.
        for finding in findings.iter().filter(|finding| !self.findings.contains(finding)) {
            tracing::warn!(address = %finding.address, why = finding.why, "cannot bind the DNS listener; trying again");
        }
        self.findings = findings;
    }

    pub fn bound(&self) -> Vec<SocketAddr> {
        self.open.values().map(|listener| listener.bound).collect()
    }

    pub fn findings(&self) -> &[ListenProblem] {
        &self.findings
    }

    fn start(&mut self, address: SocketAddr, bound: SocketAddr, socket: UdpSocket, listener: TcpListener) {
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(serve_datagrams(self.frontend.clone(), socket, stop.clone()));
        tasks.spawn(serve_connections(self.frontend.clone(), listener, stop.clone()));
        tracing::info!(address = %bound, "DNS listener bound");
        let own = [SocketProtocol::Udp, SocketProtocol::Tcp]
            .map(|transport| self.own_listeners.register("dns", transport, bound));
        self.open.insert(address, Listener { bound, stop, tasks, _own: own });
    }

    async fn close(&mut self, address: SocketAddr) {
        if let Some(mut listener) = self.open.remove(&address) {
            listener.stop.cancel();
            while listener.tasks.join_next().await.is_some() {}
            tracing::info!(address = %listener.bound, "DNS listener closed");
        }
    }
}

/// Binds both sockets, or none.
async fn bind(address: SocketAddr) -> std::io::Result<(UdpSocket, TcpListener, SocketAddr)> {
    let mut tries = 0;
    loop {
        let socket = UdpSocket::bind(address).await?;
        let bound = socket.local_addr()?;
        match TcpListener::bind(bound).await {
            Ok(listener) => return Ok((socket, listener, bound)),
            Err(error)
                if address.port() == 0 && error.kind() == ErrorKind::AddrInUse && tries < TRIES_MAX =>
            {
                tries += 1;
            }
            Err(error) => return Err(error),
        }
    }
}

fn describe(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::AddrNotAvailable => "this host does not have the address".to_owned(),
        ErrorKind::AddrInUse => "another program has the port".to_owned(),
        ErrorKind::PermissionDenied => {
            "not permitted: ports below 1024 need root or CAP_NET_BIND_SERVICE".to_owned()
        }
        _ => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use causeway_netmap::GatewayEntry;

    use super::*;

    #[test]
    fn names_are_answered_on_loopback_and_on_the_gateways_own_address() {
        let mut view = NetmapView::default();
        let texts = |configured: Option<&[SocketAddr]>, view: &NetmapView| -> Vec<String> {
            wanted(configured, view).iter().map(ToString::to_string).collect()
        };
        assert_eq!(texts(None, &view), ["127.0.0.1:53", "[::1]:53"]);
        for (ip, last) in [("10.0.0.2", "10.0.0.2:53"), ("fd00::2", "[fd00::2]:53"), ("::1", "[::1]:53")] {
            view.gateway = Some(GatewayEntry { ip: ip.parse().ok(), ..GatewayEntry::named("g", "oslo") });
            assert_eq!(texts(None, &view).last().map(String::as_str), Some(last));
        }
        assert_eq!(texts(Some(&["127.0.0.1:5353".parse().unwrap()]), &view), ["127.0.0.1:5353"]);
        assert!(texts(Some(&[]), &view).is_empty());
    }
}
