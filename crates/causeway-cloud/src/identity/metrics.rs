//! The metrics of identity, for `/metrics`.

use causeway_channel::wire::{EnrolmentCode, EnrolmentRefusal, EnrolmentResponseBody};
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

/// The counters of identity. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct IdentityMetrics {
    requests: Family<RequestLabels, Counter>,
    connections: Gauge,
    turned_away: Family<IdentityReasonLabels, Counter>,
    mismatches: Counter,
    pub(super) credentials_refused: Family<IdentityReasonLabels, Counter>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    request: String,
    outcome: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
pub(super) struct IdentityReasonLabels {
    pub why: String,
}

impl IdentityMetrics {
    pub fn register(&self, registry: &mut Registry) {
        let registry = registry.sub_registry_with_prefix("causeway_identity");
        registry.register(
            "requests",
            "Requests for certificates, by what was asked and how it ended",
            self.requests.clone(),
        );
        registry.register("connections", "Connections open for enrolment", self.connections.clone());
        registry.register(
            "requests_rejected",
            "Connections and requests that were rejected unread, by reason",
            self.turned_away.clone(),
        );
        registry.register(
            "name_mismatches",
            "Certificate requests that named another gateway than their token or certificate",
            self.mismatches.clone(),
        );
        registry.register(
            "credentials_refused",
            "API credentials that were not accepted, by reason",
            self.credentials_refused.clone(),
        );
    }

    pub(super) fn count_answer(
        &self,
        request: &str,
        answer: &Result<EnrolmentResponseBody, EnrolmentRefusal>,
    ) {
        let outcome = match answer {
            Ok(_) => "ok",
            Err(refusal) => outcome(refusal.reason()),
        };
        let labels = RequestLabels { request: request.to_owned(), outcome: outcome.to_owned() };
        self.requests.get_or_create(&labels).inc();
    }

    pub(super) fn count_mismatch(&self) {
        self.mismatches.inc();
    }

    pub(super) fn count_turned_away(&self, why: &str) {
        self.turned_away.get_or_create(&IdentityReasonLabels { why: why.to_owned() }).inc();
    }

    /// Counts a connection for as long as the guard lives.
    pub(super) fn connection(&self) -> impl Drop + use<> {
        self.connections.inc();
        Open(self.connections.clone())
    }

    #[cfg(test)]
    pub(super) fn turned_away(&self, why: &str) -> u64 {
        self.turned_away.get_or_create(&IdentityReasonLabels { why: why.to_owned() }).get()
    }

    #[cfg(test)]
    pub(super) fn mismatches(&self) -> u64 {
        self.mismatches.get()
    }
}

struct Open(Gauge);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.dec();
    }
}

fn outcome(code: EnrolmentCode) -> &'static str {
    match code {
        EnrolmentCode::Other => "other",
        EnrolmentCode::Malformed => "malformed",
        EnrolmentCode::RateLimited => "rate-limited",
        EnrolmentCode::Unavailable => "unavailable",
        EnrolmentCode::TokenUnknown => "token-unknown",
        EnrolmentCode::TokenExpired => "token-expired",
        EnrolmentCode::TokenUsed => "token-used",
        EnrolmentCode::TokenDeleted => "token-deleted",
        EnrolmentCode::BadRequest => "bad-request",
        EnrolmentCode::Revoked => "revoked",
        EnrolmentCode::NotCurrent => "not-current",
        EnrolmentCode::GraceOver => "grace-over",
        EnrolmentCode::CertificateNeeded => "certificate-needed",
        EnrolmentCode::CertificateExpired => "certificate-expired",
        EnrolmentCode::WrongAuthority => "wrong-authority",
        EnrolmentCode::Version => "version",
        EnrolmentCode::NotPermitted => "not-permitted",
    }
}
