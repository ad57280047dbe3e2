//! Counts of what is asked and answered.

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
    /// Clients over TCP, now.
    pub connections: Gauge,
    /// Clients over TCP that were turned away because there were too many.
    pub connections_refused: Counter,
    /// Addresses that should be listened on and are not.
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

/// What became of a query.
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
        registry.register("queries", "Queries, by how they came and what became of them", queries);
        registry.register("forward_failed", "Queries that no upstream answered, by reason", forward_failed);
        registry.register("connections", "Clients over TCP, now", connections);
        registry.register(
            "connections_refused",
            "Clients over TCP that were one too many",
            connections_refused,
        );
        registry.register("unbound", "Addresses that should be listened on and are not", unbound);
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
