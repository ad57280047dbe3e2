//! Opens a UDP socket to one backend of a service: the one with the fewest sessions, preferring backends that
//! did not fail recently.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use causeway_daemon::sync::MutexExt;
use causeway_netmap::{BackendEndpoint, ServiceEntry};
use tokio::net::UdpSocket;

use crate::dial::{BackendDialer, SocketProtocol};
use crate::policy::PolicyRefusal;

/// The time for which a failed backend is tried last.
const FAILED_PENALTY: Duration = Duration::from_secs(5);
/// The maximum number of remembered addresses; beyond it, those without sessions are removed.
const REMEMBERED_MAX: usize = 1024;

/// The number of sessions per backend. Clones share it.
#[derive(Clone, Default, Debug)]
pub struct UdpBackends {
    dialer: BackendDialer,
    known: Arc<Mutex<HashMap<SocketAddr, Known>>>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
struct Known {
    sessions: usize,
    failed: Option<Instant>,
}

/// A connected socket: it exchanges datagrams with one backend only.
#[derive(Debug)]
pub struct ConnectedSocket {
    pub socket: Arc<UdpSocket>,
    pub place: UdpSessionGuard,
}

/// Counts a session until it is dropped.
#[derive(Debug)]
pub struct UdpSessionGuard {
    backends: UdpBackends,
    address: SocketAddr,
}

impl UdpBackends {
    pub fn new(dialer: BackendDialer) -> UdpBackends {
        UdpBackends { dialer, ..UdpBackends::default() }
    }

    pub async fn connect(&self, service: &ServiceEntry) -> Result<ConnectedSocket, PolicyRefusal> {
        let down = || PolicyRefusal::BackendDown { service: service.name.clone() };
        let mut addresses = Vec::new();
        for backend in &service.backends {
            match resolve(backend).await {
                Ok(found) => addresses.extend(found),
                Err(error) => {
                    tracing::debug!(service = %service.name, ?backend, %error, "cannot resolve the backend")
                }
            }
        }
        let address = self.take(&self.allowed(service, addresses)?, Instant::now()).ok_or_else(down)?;
        let place = UdpSessionGuard { backends: self.clone(), address };
        match self.dialer.connect_udp(address).await {
            Ok(socket) => Ok(ConnectedSocket { socket: Arc::new(socket), place }),
            Err(error) => {
                tracing::debug!(service = %service.name, %address, %error, "cannot open a UDP socket to the backend");
                place.failed();
                Err(down())
            }
        }
    }

    /// Returns the addresses that may be dialled, or the refusal when none may.
    fn allowed(
        &self,
        service: &ServiceEntry,
        addresses: Vec<SocketAddr>,
    ) -> Result<Vec<SocketAddr>, PolicyRefusal> {
        let (mut allowed, mut denied) = (Vec::new(), None);
        for address in addresses {
            match self.dialer.check(SocketProtocol::Udp, address) {
                Ok(()) => allowed.push(address),
                Err(why) => {
                    tracing::debug!(service = %service.name, %address, %why, "the address of the backend may not be dialled");
                    denied = Some(why);
                }
            }
        }
        match denied {
            Some(why) if allowed.is_empty() => {
                Err(PolicyRefusal::BackendDenied { what: format!("service {}", service.name), why })
            }
            _ => Ok(allowed),
        }
    }

    fn take(&self, addresses: &[SocketAddr], now: Instant) -> Option<SocketAddr> {
        let mut known = self.lock();
        if known.len() >= REMEMBERED_MAX {
            known.retain(|_, known| known.sessions > 0);
        }
        let chosen = *addresses.iter().min_by_key(|address| rank(known.get(address), now))?;
        known.entry(chosen).or_default().sessions += 1;
        Some(chosen)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Known>> {
        self.known.lock_ignoring_poison()
    }
}

/// The endpoint with the lowest rank is taken; among equals the first.
fn rank(known: Option<&Known>, now: Instant) -> (bool, usize) {
    let known = known.copied().unwrap_or_default();
    let is_avoided =
        known.failed.is_some_and(|failed| now.saturating_duration_since(failed) < FAILED_PENALTY);
    (is_avoided, known.sessions)
}

impl UdpSessionGuard {
    /// Records that the backend is not reachable.
    pub fn failed(&self) {
        self.backends.lock().entry(self.address).or_default().failed = Some(Instant::now());
    }
}

impl Drop for UdpSessionGuard {
    fn drop(&mut self) {
        if let Some(known) = self.backends.lock().get_mut(&self.address) {
            known.sessions = known.sessions.saturating_sub(1);
        }
    }
}

async fn resolve(backend: &BackendEndpoint) -> io::Result<Vec<SocketAddr>> {
    Ok(match backend {
        BackendEndpoint::Address(ip, port) => vec![SocketAddr::new(*ip, *port)],
        BackendEndpoint::Host(name, port) => tokio::net::lookup_host((name.as_str(), *port)).await?.collect(),
    })
}

#[cfg(test)]
mod tests {
    use causeway_netmap::{DnsName, ServiceProtocol};

    use super::*;

    #[tokio::test]
    async fn addresses_that_may_not_be_dialled_are_left_out_after_names_are_resolved() {
        let rules = crate::dial::DialRules {
            deny: vec!["127.0.0.0/8".parse().unwrap(), "::1".parse().unwrap()],
            ..Default::default()
        };
        let backends = UdpBackends::new(BackendDialer::new(rules, Default::default()));
        let service = |backends: Vec<BackendEndpoint>| ServiceEntry {
            name: "names".into(),
            port: 53,
            protocol: ServiceProtocol::Udp,
            backends,
            domain_name: None,
            health_check: None,
            backend_tls: None,
            proxy_protocol: false,
            exposures: Vec::new(),
        };
        let at = |ip: &str| BackendEndpoint::Address(ip.parse().unwrap(), 53);
        let word = async |service: &ServiceEntry| match backends.connect(service).await {
            Ok(connected) => connected.place.address.to_string(),
            Err(refusal) => refusal.word().to_owned(),
        };
        assert_eq!(word(&service(vec![at("169.254.169.254")])).await, "backend-denied");
        let localhost = BackendEndpoint::Host(DnsName::new("localhost"), 53);
        assert_eq!(word(&service(vec![localhost, at("0.0.0.0")])).await, "backend-denied");
        assert_eq!(word(&service(vec![])).await, "backend-down");
    }

    #[test]
    fn the_backend_with_the_fewest_sessions_is_taken_and_one_that_failed_last() {
        let (backends, now) = (UdpBackends::default(), Instant::now());
        let addresses: Vec<SocketAddr> = (1..=3).map(|port| ([10, 0, 0, 1], port).into()).collect();
        let take = |now| {
            let address = backends.take(&addresses, now).unwrap();
            UdpSessionGuard { backends: backends.clone(), address }
        };
        let ports =
            |places: &[UdpSessionGuard]| places.iter().map(|place| place.address.port()).collect::<Vec<_>>();
        let mut places: Vec<UdpSessionGuard> = (0..4).map(|_| take(now)).collect();
        assert_eq!(ports(&places), [1, 2, 3, 1]);
        // The second backend gets the session of the first, but then fails.
        drop(places.remove(1));
        places.push(take(now));
        assert_eq!(places[3].address.port(), 2);
        places[3].failed();
        drop(places.pop());
        assert_eq!(take(now).address.port(), 3);
        assert_eq!(take(Instant::now() + FAILED_PENALTY).address.port(), 2);
        assert!(backends.take(&[], now).is_none());
    }
}
