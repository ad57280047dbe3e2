//! Counts of what is asked and answered.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use super::answer::Answer;
use super::message::Transport;

#[derive(Clone, Debug, Default)]
pub struct Figures {
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
pub enum Outcome {
    Answered,
    NoData,
    NoName,
    Refused,
    Forwarded,
    NotYet,
    Malformed,
}

impl Outcome {
    pub fn of(answer: &Answer) -> Outcome {
        match answer {
            Answer::Records(_) => Outcome::Answered,
            Answer::NoData { .. } => Outcome::NoData,
            Answer::NoName { .. } => Outcome::NoName,
            Answer::Refused => Outcome::Refused,
            Answer::Forward => Outcome::Forwarded,
            Answer::NotYet => Outcome::NotYet,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Outcome::Answered => "answered",
            Outcome::NoData => "no-data",
            Outcome::NoName => "no-name",
            Outcome::Refused => "refused",
            Outcome::Forwarded => "forwarded",
            Outcome::NotYet => "not-yet",
            Outcome::Malformed => "malformed",
        }
    }
}

impl Figures {
    pub fn register(&self, registry: &mut Registry) {
        let Figures { queries, forward_failed, connections, connections_refused, unbound } = self.clone();
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

    pub fn count(&self, over: Transport, outcome: Outcome) {
        let transport = match over {
            Transport::Udp => "udp",
            Transport::Tcp => "tcp",
        };
        self.queries.get_or_create(&Query { transport, outcome: outcome.word() }).inc();
    }

    pub fn count_failed(&self, reason: &'static str) {
        self.forward_failed.get_or_create(&Failure { reason }).inc();
    }
}
