//! Admission of a certificate to a session, checked once when a link comes in.
//!
//! TLS has checked the signature and let any age pass; what is left is the time, revocation, and whether the key is
//! still the gateway's; and the signature again, where CAs have come or gone since the start.
//! The sessions check whether the EGateway exists.

use std::sync::Arc;

use causeway_channel::clock::UtcTimestamp;
use causeway_channel::tls;
use causeway_channel::token::ENDPOINTS_MAX;
use causeway_channel::wire::EnrolmentCode;
use causeway_channel::wire::control::{SessionRefused, SessionRefusedCode};
use causeway_channel::{CertificateFacts, ChannelEndpoint, PeerId};
use rustls_pki_types::CertificateDer;

use super::audit::AuditLine;
use super::enrolment::read_gateway;
use super::gateways;
use super::registrar::Registrar;

/// A peer that may hold a session.
#[derive(Debug, Clone)]
pub struct AdmittedPeer {
    pub peer: PeerId,
    pub facts: CertificateFacts,
    /// The edge should renew before it is time, because CAs have changed.
    pub renew: bool,
}

/// An edge whose identity has ended for good need not ask often.
const HOPELESS_RETRY_MS: u32 = 30_000;

impl Registrar {
    /// Judges a certificate that was shown in a handshake. `bundle` is the hash of the CAs that the edge trusts.
    pub async fn admit(
        &self,
        shown: &CertificateDer<'_>,
        bundle: &[u8],
    ) -> Result<AdmittedPeer, SessionRefused> {
        let (facts, peer) = read_gateway(shown).map_err(refused)?;
        // A signature costs as much to check as all the rest of this. The handshake has checked it, against the same CAs
        // unless they have changed meanwhile.
        if !self.trusts_handshakes() {
            self.check_authority(shown).map_err(refused)?;
        }
        let now = self.now();
        if now > facts.not_after {
            let (end, now) = (UtcTimestamp(facts.not_after), UtcTimestamp(now));
            let message = format!("the certificate expired at {end} and it is {now} now");
            let hint = "re-enrol with the expired certificate";
            return Err(SessionRefused::new(SessionRefusedCode::CertificateExpired, message, hint));
        }
        if self.is_revoked(&facts.key) {
            let refusal = SessionRefused::new(
                SessionRefusedCode::Revoked,
                "this key was revoked",
                super::tokens::NEW_TOKEN,
            );
            return Err(SessionRefused { retry_after_ms: HOPELESS_RETRY_MS, ..refusal });
        }
        let record = self.gateway(&peer).await.map_err(refused)?.map(|(record, _)| record);
        gateways::speaks_for_its_gateway(record.as_ref(), &facts).map_err(refused)?;
        let cas = self.cas.load_full();
        // The handshake has verified it against the whole bundle; asking again is worth it only while there are several.
        let is_of_issuing_ca = cas.bundle().len() == 1
            || tls::verify_client(shown, &[cas.issuing().certificate().clone()]).is_ok();
        let renew = bundle != tls::bundle_hash(&cas.bundle()) || !is_of_issuing_ca;
        if cas.is_changing() && !renew {
            let issuing = cas.issuing().id().to_string();
            self.note_proven(&peer, &facts, &issuing).await.map_err(refused)?;
        }
        Ok(AdmittedPeer { peer, facts, renew })
    }

    /// The channel endpoints of this replica.
    pub fn endpoints(&self) -> Vec<String> {
        self.config.advertise.iter().map(ToString::to_string).collect()
    }

    /// Sets the endpoints at which edges reach the other replicas. Texts that are no endpoints are left out.
    pub fn set_other_endpoints(&self, endpoints: &[String]) {
        let endpoints = endpoints.iter().filter_map(|text| text.parse().ok()).collect();
        self.other_endpoints.store(Arc::new(endpoints));
    }

    /// Returns the channel endpoints for edges: those of this replica first, then those of other replicas.
    /// Their number is limited as in a token; endpoints of other replicas have precedence over all but the
    /// first endpoint of this one.
    pub fn all_endpoints(&self) -> Vec<ChannelEndpoint> {
        let mut endpoints = self.config.advertise.clone();
        let others = self.other_endpoints.load();
        let room = ENDPOINTS_MAX.saturating_sub(others.len()).max(1);
        endpoints.truncate(room);
        for endpoint in others.iter() {
            if endpoints.len() < ENDPOINTS_MAX && !endpoints.contains(endpoint) {
                endpoints.push(endpoint.clone());
            }
        }
        endpoints
    }

    /// One line about a session, in the log and in the audit log.
    pub fn audit_session(&self, event: &str, peer: Option<&PeerId>, client: &str, denied: Option<&str>) {
        let (site, gateway) = peer.map_or(("", ""), |peer| (peer.site(), peer.gateway()));
        let (decision, reason) = denied.map_or(("allow", ""), |reason| ("deny", reason));
        self.audit(&AuditLine { event, site, gateway, client, decision, reason, ..AuditLine::default() });
    }
}

// Translates a refusal of enrolment into one of sessions.
fn refused(refusal: causeway_channel::wire::EnrolmentRefusal) -> SessionRefused {
    let (code, retry_after_ms) = match refusal.reason() {
        EnrolmentCode::Revoked => (SessionRefusedCode::Revoked, HOPELESS_RETRY_MS),
        EnrolmentCode::NotCurrent | EnrolmentCode::GraceOver | EnrolmentCode::WrongAuthority => {
            (SessionRefusedCode::NotCurrent, HOPELESS_RETRY_MS)
        }
        EnrolmentCode::CertificateExpired => (SessionRefusedCode::CertificateExpired, 0),
        EnrolmentCode::Unavailable | EnrolmentCode::RateLimited => {
            (SessionRefusedCode::Unavailable, refusal.retry_after_seconds.saturating_mul(1000))
        }
        EnrolmentCode::Malformed => (SessionRefusedCode::Malformed, HOPELESS_RETRY_MS),
        _ => (SessionRefusedCode::Other, 1000),
    };
    SessionRefused { retry_after_ms, ..SessionRefused::new(code, refusal.message, refusal.hint) }
}
