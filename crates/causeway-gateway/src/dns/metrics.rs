//! Counters of DNS queries, replies and connections.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::answer::DnsAnswer;
use super::message::DnsTransport;

#[derive(Clone, Debug, Default)]
pub struct DnsMetrics {
    queries: Family<Query, Counter>,
    forward_failed: Family<Failure, Counter>,
    /// Open TCP connections of clients.
    pub connections: Gauge,
    /// TCP connections refused because of the connection limit.
    pub connections_refused: Counter,
    /// Addresses that should be bound and are not.
    pub unbound: Gauge,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Query {
    transport: &'static str,
    outcome: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Failure {
    reason: &'static str,
}

/// The outcome of a query.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq)]
pub enum QueryOutcome {
    Answered,
    NoData,
    NoName,
    Refused,
    Forwarded,
    NotYet,
    Malformed,
}

impl QueryOutcome {
    pub fn of(answer: &DnsAnswer) -> QueryOutcome {
        match answer {
            DnsAnswer::Records(_) => QueryOutcome::Answered,
            DnsAnswer::NoData { .. } => QueryOutcome::NoData,
            DnsAnswer::NoName { .. } => QueryOutcome::NoName,
            DnsAnswer::Refused => QueryOutcome::Refused,
            DnsAnswer::Forward => QueryOutcome::Forwarded,
            DnsAnswer::NotYet => QueryOutcome::NotYet,
        }
    }

    fn word(self) -> &'static str {
        match self {
            QueryOutcome::Answered => "answered",
            QueryOutcome::NoData => "no-data",
            QueryOutcome::NoName => "no-name",
            QueryOutcome::Refused => "refused",
            QueryOutcome::Forwarded => "forwarded",
            QueryOutcome::NotYet => "not-yet",
            QueryOutcome::Malformed => "malformed",
        }
    }
}

impl DnsMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let DnsMetrics { queries, forward_failed, connections, connections_refused, unbound } = self.clone();
        let registry = registry.sub_registry_with_prefix("causeway_dns");
        registry.register("queries", "DNS queries, by transport and outcome", queries);
        registry.register(
            "forward_failed",
            "DNS queries that no upstream answered, by reason",
            forward_failed,
        );
        registry.register("connections", "Open TCP connections of DNS clients", connections);
        registry.register(
            "connections_refused",
            "TCP connections of DNS clients refused because of the connection limit",
            connections_refused,
        );
        registry.register("unbound", "Addresses on which DNS should listen and does not", unbound);
    }

    pub fn count(&self, over: DnsTransport, outcome: QueryOutcome) {
        let transport = match over {
            DnsTransport::Udp => "udp",
            DnsTransport::Tcp => "tcp",
        };
        self.queries.get_or_create(&Query { transport, outcome: outcome.word() }).inc();
    }

    pub fn count_failed(&self, reason: &'static str) {
        self.forward_failed.get_or_create(&Failure { reason }).inc();
    }
}
