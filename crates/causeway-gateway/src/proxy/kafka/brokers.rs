//! Which backend of a service a broker is, by the host and port that it advertises.
//!
//! A broker advertises an address, or a name that its site knows; names are asked for here, at the gateway of the brokers, as
//! anybody of the site would. `place` decides, from values. A name that was known once stays known when nobody answers.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use causeway_netmap::{BackendEndpoint, ServiceEntry, ServiceName};
use futures_util::future::join_all;

use crate::peers::BoxedFuture;

/// Names are asked for again after this long.
const FRESH: Duration = Duration::from_secs(10);
/// A client waits for its answer meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);
/// Names that are remembered, and brokers that were complained about.
const NAMES_MAX: usize = 4096;
/// Names that are asked for at the same time.
const AT_ONCE: usize = 16;
/// What DNS allows.
const NAME_BYTES_MAX: usize = 255;

/// What is known of names, for all connections.
#[derive(Default)]
pub struct BrokerNames {
    known: Mutex<HashMap<String, (Instant, Vec<IpAddr>)>>,
    told: Mutex<HashSet<(ServiceName, String, i32)>>,
}

impl BrokerNames {
    /// The place of each broker among the backends. None: it is none of them.
    pub async fn places(&self, service: &ServiceEntry, brokers: &[(&str, i32)]) -> Vec<Option<usize>> {
        // With one backend and one broker there is nothing to be told apart, whatever the broker says of itself.
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
            self.complain(service, host, *port);
        }
        found
    }

    async fn addresses(&self, host: &str) -> Vec<IpAddr> {
        if host.len() > NAME_BYTES_MAX || host.parse::<IpAddr>().is_ok() {
            return Vec::new();
        }
        let known = lock(&self.known).get(host).cloned();
        if let Some((at, addresses)) = &known
            && at.elapsed() < FRESH
        {
            return addresses.clone();
        }
        let asked = tokio::time::timeout(PATIENCE, tokio::net::lookup_host((host, 0))).await;
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
        let mut known = lock(&self.known);
        if known.len() >= NAMES_MAX {
            known.retain(|_, (at, _)| at.elapsed() < FRESH);
        }
        if known.len() < NAMES_MAX {
            known.insert(host.to_owned(), (Instant::now(), addresses.to_vec()));
        }
    }

    /// Says it once.
    fn complain(&self, service: &ServiceEntry, host: &str, port: i32) {
        let mut told = lock(&self.told);
        if told.len() < NAMES_MAX && told.insert((service.name.clone(), host.to_owned(), port)) {
            tracing::warn!(
                service = %service.name, host, port,
                "a broker of Kafka is none of the service's endpoints; clients elsewhere are not told of it"
            );
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The backend that advertises this host and port; `addresses` are those of the host, if they are known.
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
        // The name is known on every host.
        let brokers = [("localhost", 9092), ("10.0.1.1", 9092), ("10.0.1.9", 9092)];
        assert_eq!(names.places(&two, &brokers).await, [Some(0), Some(1), None]);
        assert_eq!(lock(&names.known).len(), 1);
        // Complained about once.
        names.places(&two, &brokers).await;
        assert_eq!(lock(&names.told).len(), 1);
    }
}
