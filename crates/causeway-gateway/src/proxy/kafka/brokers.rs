//! Matches brokers with the backends of a service, by the host and port that each broker advertises.
//!
//! A broker advertises an address, or a name that resolves at its site; names are resolved here, at the
//! gateway of the brokers, as by any host of the site. `place` decides from values. A resolved name stays
//! known while the resolver does not answer.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use causeway_daemon::sync::MutexExt;
use causeway_netmap::{BackendEndpoint, ServiceEntry, ServiceName};
use futures_util::future::join_all;

use crate::peers::BoxedFuture;

/// Names are resolved again after this time.
const RESOLVE_AGAIN: Duration = Duration::from_secs(10);
/// The resolver timeout: a client waits for its response meanwhile.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(2);
/// The maximum number of cached names, and of brokers that were logged.
const NAMES_MAX: usize = 4096;
/// Concurrent name lookups.
const AT_ONCE: usize = 16;
/// The maximum length of a DNS name.
const NAME_BYTES_MAX: usize = 255;

/// The cache of resolved names, shared by all connections.
#[derive(Default)]
pub struct BrokerNames {
    known: Mutex<HashMap<String, (Instant, Vec<IpAddr>)>>,
    logged: Mutex<HashSet<(ServiceName, String, i32)>>,
}

impl BrokerNames {
    /// Returns the index of each broker among the backends. None: the broker is not a backend.
    pub async fn places(&self, service: &ServiceEntry, brokers: &[(&str, i32)]) -> Vec<Option<usize>> {
        // One backend and one broker always match, whatever address the broker advertises.
        if let ([_], [_]) = (&service.backends[..], brokers) {
            return vec![Some(0)];
        }
        let mut found: Vec<Option<usize>> =
            brokers.iter().map(|(host, port)| place(service, host, *port, &[])).collect();
        let unknown: Vec<usize> = (0..brokers.len()).filter(|at| found[*at].is_none()).collect();
        for some in unknown.chunks(AT_ONCE) {
            let asking: Vec<BoxedFuture<'_, Vec<IpAddr>>> = some
                .iter()
                .map(|at| Box::pin(self.addresses(brokers[*at].0)) as BoxedFuture<'_, _>)
                .collect();
            for (at, addresses) in some.iter().zip(join_all(asking).await) {
                let (host, port) = brokers[*at];
                found[*at] = place(service, host, port, &addresses);
            }
        }
        for ((host, port), _) in brokers.iter().zip(&found).filter(|(_, place)| place.is_none()) {
            self.log_unmatched(service, host, *port);
        }
        found
    }

    async fn addresses(&self, host: &str) -> Vec<IpAddr> {
        if host.len() > NAME_BYTES_MAX || host.parse::<IpAddr>().is_ok() {
            return Vec::new();
        }
        let known = self.known.lock_ignoring_poison().get(host).cloned();
        if let Some((at, addresses)) = &known
            && at.elapsed() < RESOLVE_AGAIN
        {
            return addresses.clone();
        }
        let asked = tokio::time::timeout(RESOLVE_TIMEOUT, tokio::net::lookup_host((host, 0))).await;
        match asked {
            Ok(Ok(found)) => {
                let addresses: Vec<IpAddr> = found.map(|address| address.ip().to_canonical()).collect();
                self.remember(host, &addresses);
                addresses
            }
            _ => known.map(|(_, addresses)| addresses).unwrap_or_default(),
        }
    }

    fn remember(&self, host: &str, addresses: &[IpAddr]) {
        let mut known = self.known.lock_ignoring_poison();
        if known.len() >= NAMES_MAX {
            known.retain(|_, (at, _)| at.elapsed() < RESOLVE_AGAIN);
        }
        if known.len() < NAMES_MAX {
            known.insert(host.to_owned(), (Instant::now(), addresses.to_vec()));
        }
    }

    /// Logs a broker once.
    fn log_unmatched(&self, service: &ServiceEntry, host: &str, port: i32) {
        let mut logged = self.logged.lock_ignoring_poison();
        if logged.len() < NAMES_MAX && logged.insert((service.name.clone(), host.to_owned(), port)) {
            tracing::warn!(
                service = %service.name, host, port,
                "Kafka broker matches no endpoint of the service and is hidden from clients of other sites"
            );
        }
    }
}

/// Returns the backend that advertises this host and port; `addresses` are those of the host, if known.
fn place(service: &ServiceEntry, host: &str, port: i32, addresses: &[IpAddr]) -> Option<usize> {
    let port = u16::try_from(port).ok()?;
    let ip = host.parse::<IpAddr>().ok().map(|ip| ip.to_canonical());
    let name = host.trim_end_matches('.');
    let is_named = |known: &str| known.trim_end_matches('.').eq_ignore_ascii_case(name);
    let alone = service.backends.len() == 1;
    let is_own = alone && service.domain_name.as_ref().is_some_and(|known| is_named(known.as_str()));
    service.backends.iter().position(|backend| match backend {
        BackendEndpoint::Address(at, its_port) => {
            *its_port == port && (ip == Some(*at) || addresses.contains(at) || is_own)
        }
        BackendEndpoint::Host(known, its_port) => *its_port == port && is_named(known.as_str()),
    })
}

#[cfg(test)]
mod tests {
    use causeway_netmap::{DnsName, ServiceProtocol};

    use super::*;

    fn service(backends: Vec<BackendEndpoint>, domain_name: Option<&str>) -> ServiceEntry {
        ServiceEntry {
            name: "kafka".into(),
            port: 9092,
            protocol: ServiceProtocol::Kafka,
            backends,
            domain_name: domain_name.map(DnsName::new),
            health_check: None,
            backend_tls: None,
            proxy_protocol: false,
            exposures: vec![],
        }
    }

    fn at(ip: &str, port: u16) -> BackendEndpoint {
        BackendEndpoint::Address(ip.parse().unwrap(), port)
    }

    #[test]
    fn a_broker_is_the_backend_that_has_its_address_and_port() {
        let three = service(vec![at("10.0.1.1", 9092), at("10.0.1.2", 9092), at("10.0.1.2", 9094)], None);
        let check = |host: &str, port: i32, addresses: &[&str], expected: Option<usize>| {
            let addresses: Vec<IpAddr> = addresses.iter().map(|ip| ip.parse().unwrap()).collect();
            assert_eq!(place(&three, host, port, &addresses), expected, "{host}:{port}");
        };
        check("10.0.1.1", 9092, &[], Some(0));
        check("10.0.1.2", 9094, &[], Some(2));
        check("10.0.1.2", 9093, &[], None);
        check("10.0.1.3", 9092, &[], None);
        check("kafka-1.local", 9092, &[], None);
        check("kafka-1.local", 9092, &["fd00::1", "10.0.1.2"], Some(1));
        check("kafka-1.local", -1, &["10.0.1.2"], None);
        check("::ffff:10.0.1.1", 9092, &[], Some(0));
    }

    #[test]
    fn a_backend_that_has_a_name_is_known_by_it() {
        let named = service(vec![BackendEndpoint::Host(DnsName::new("kafka.local"), 9092)], None);
        assert_eq!(place(&named, "Kafka.local.", 9092, &[]), Some(0));
        let both = service(vec![at("10.0.1.1", 9092)], Some("kafka.local"));
        assert_eq!(place(&both, "kafka.local", 9092, &[]), Some(0));
        assert_eq!(place(&both, "kafka.local", 9093, &[]), None);
    }

    #[tokio::test]
    async fn one_broker_and_one_backend_are_the_same() {
        let names = BrokerNames::default();
        let one = service(vec![at("10.0.1.1", 9092)], None);
        assert_eq!(names.places(&one, &[("localhost", 9999)]).await, [Some(0)]);
        let two = service(vec![at("127.0.0.1", 9092), at("10.0.1.1", 9092)], None);
        // This name resolves on every host.
        let brokers = [("localhost", 9092), ("10.0.1.1", 9092), ("10.0.1.9", 9092)];
        assert_eq!(names.places(&two, &brokers).await, [Some(0), Some(1), None]);
        assert_eq!(names.known.lock_ignoring_poison().len(), 1);
        // Logged once.
        names.places(&two, &brokers).await;
        assert_eq!(names.logged.lock_ignoring_poison().len(), 1);
    }
}
