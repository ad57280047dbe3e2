//! Certificates for gateways: first ones for a token, next ones for a live one, new ones for an expired one.
//!
//! Requests come from the wire as bytes; answers and refusals go back as messages. The name in a certificate
//! comes from the token or from the certificate shown, never from the request. Every step that lasts is one
//! commit, made only if nothing it was decided upon has changed.

use std::time::SystemTime;

use causeway_api::Kind;
use causeway_apiserver::registry::key as object_key;
use causeway_channel::clock::{UtcTimestamp, unix_seconds};
use causeway_channel::key::{CertificateRequest, RequestedIdentity};
use causeway_channel::tls;
use causeway_channel::wire::{
    self, CheckedMessage, EnrolmentCode, EnrolmentRefusal, EnrolmentRequestBody, EnrolmentResponseBody,
    IssuedMessage,
};
use causeway_channel::{CertificateFacts, KeyHash, PeerId, TokenSecret};
use causeway_store::{Op, Revision, StoreError};
use rustls_pki_types::CertificateDer;

use super::audit::AuditLine;
use super::authority::{CertificateSubject, GATEWAY_LIFETIME, SignedCertificate};
use super::ca_store::CaSet;
use super::gateways::{self, GatewayRecord};
use super::node_enrolment::NodeEnrolment;
use super::registrar::{ATTEMPTS_MAX, Registrar, encode, join_key};
use super::revocation::{self, RevocationReason, RevocationRecord};
use super::revocation_log::RevocationEntry;
use super::tokens::{self, JoinTokenRecord, Redeemed, Redemption};

impl Registrar {
    /// Answers one request. `nodes` enrols the nodes of a cluster, `shown` is the client certificate of the TLS handshake,
    /// `client` its address.
    pub async fn answer(
        &self,
        request: wire::EnrolmentRequest,
        nodes: Option<&NodeEnrolment>,
        shown: Option<&CertificateDer<'_>>,
        client: &str,
    ) -> Result<EnrolmentResponseBody, EnrolmentRefusal> {
        let Some(ask) = request.ask else {
            return Err(malformed("the request asks for nothing this cloud knows"));
        };
        let name = ask.name();
        let mut subject = EnrolmentSubjects::default();
        let answer = self.dispatch(ask, nodes, shown, &mut subject).await;
        self.metrics.count_answer(name, &answer);
        // A check comes from every edge every day and changes nothing; it is counted, not audited.
        if name != "check" {
            self.audit_answer(name, &subject, client, &answer);
        }
        answer
    }

    /// Issues a first certificate without a token, for a process that holds the store and the seal key anyway: migration of
    /// fleets, and benchmarks. The name is `peer`, independent of the request; a gateway that has a certificate keeps it.
    /// Its EGateway must exist before: a running cloud revokes gateways that have none.
    pub async fn issue_first(&self, peer: &PeerId, csr: &[u8]) -> Result<IssuedMessage, EnrolmentRefusal> {
        let request = read_request(csr, &mut EnrolmentSubjects::default())?;
        self.refuse_revoked(&request.key).await?;
        match self.issue(peer, None, &request, None, Vec::new(), self.now()).await? {
            Some(EnrolmentResponseBody::Issued(issued)) => Ok(issued),
            _ => Err(EnrolmentRefusal::new(
                EnrolmentCode::NotCurrent,
                "this gateway has a certificate",
                "renew that",
            )),
        }
    }

    async fn dispatch(
        &self,
        ask: EnrolmentRequestBody,
        nodes: Option<&NodeEnrolment>,
        shown: Option<&CertificateDer<'_>>,
        subject: &mut EnrolmentSubjects,
    ) -> Result<EnrolmentResponseBody, EnrolmentRefusal> {
        match ask {
            EnrolmentRequestBody::Enrol(enrol) => self.enrol(&enrol, subject).await,
            EnrolmentRequestBody::Renew(renew) => self.renew(shown, &renew.csr, subject).await,
            EnrolmentRequestBody::Reenrol(reenrol) => {
                self.reenrol(&reenrol.certificate, &reenrol.csr, subject).await
            }
            EnrolmentRequestBody::Check(check) => self.check(shown, &check.bundle, subject).await,
            EnrolmentRequestBody::EnrolNode(enrol) => self.enrol_node(nodes, &enrol, subject).await,
        }
    }

    async fn enrol(
        &self,
        enrol: &wire::EnrolMessage,
        subject: &mut EnrolmentSubjects,
    ) -> Result<EnrolmentResponseBody, EnrolmentRefusal> {
        let request = read_request(&enrol.csr, subject)?;
        let secret = TokenSecret::from_bytes(&enrol.secret)
            .ok_or_else(|| malformed("the secret of a token has 32 bytes"))?;
        let id = tokens::id(&secret);
        let token_key = join_key(&id);
        for _ in 0..ATTEMPTS_MAX {
            let found = self.load_record::<JoinTokenRecord>(&token_key).await.map_err(unavailable)?;
            let (mut token, token_record) =
                found.filter(|(token, _)| token.matches(&secret)).ok_or_else(tokens::unknown_token)?;
            let peer = PeerId::new(&token.site, &token.gateway)
                .map_err(|_| malformed("the token names no possible gateway"))?;
            subject.peer = Some(peer.clone());
            self.refuse_revoked(&request.key).await?;
            // An object that was deleted and created again is another gateway; tokens and keys of the former one are void.
            let standing = self.standing_since(peer.gateway()).await.map_err(unavailable)?;
            if standing.is_some_and(|since| token_record.created < since) {
                return Err(tokens::of_a_deleted_gateway(&token));
            }

            let now = self.now();
            let gateway = self.gateway(&peer).await?;
            let is_current = gateway.as_ref().is_some_and(|(record, _)| {
                record.is_key(&request.key) && record.is_alive(now, self.config.grace)
            });
            let mut ops = Vec::new();
            if token.check_redemption(&request.key, now, is_current)? == Redemption::Use {
                let is_enrolled = gateway.as_ref().is_some_and(|(record, _)| {
                    !record.is_key(&request.key) && record.is_alive(now, self.config.grace)
                });
                if is_enrolled && !token.replaces {
                    return Err(tokens::gateway_is_enrolled(&token));
                }
                token.redeemed.push(Redeemed { key: request.key.to_string(), at: unix_seconds(now) });
                ops.push(Op::Update {
                    key: token_key.clone(),
                    value: encode(&token),
                    expected: token_record.revision,
                });
            }
            if let Some(issued) = self.issue(&peer, None, &request, gateway, ops, now).await? {
                // Also for a key that asks again: its first request may have failed at this step.
                self.log_before_answer(RevocationEntry::of_join_token(&id, &token).into_iter().collect())
                    .await?;
                return Ok(issued);
            }
        }
        Err(busy())
    }

    async fn renew(
        &self,
        shown: Option<&CertificateDer<'_>>,
        csr: &[u8],
        subject: &mut EnrolmentSubjects,
    ) -> Result<EnrolmentResponseBody, EnrolmentRefusal> {
        let request = read_request(csr, subject)?;
        let (facts, peer) = self.read_shown(shown, subject)?;
        let now = self.now();
        if now > facts.not_after {
            let message = format!(
                "the certificate expired at {} and it is {} now",
                UtcTimestamp(facts.not_after),
                UtcTimestamp(now)
            );
            return Err(EnrolmentRefusal::new(
                EnrolmentCode::CertificateExpired,
                message,
                "re-enrol with the expired certificate",
            ));
        }
        self.issue_for_certificate(&facts, &peer, &request).await
    }

    async fn reenrol(
        &self,
        certificate: &[u8],
        csr: &[u8],
        subject: &mut EnrolmentSubjects,
    ) -> Result<EnrolmentResponseBody, EnrolmentRefusal> {
        let request = read_request(csr, subject)?;
        let certificate = CertificateDer::from(certificate);
        let (facts, peer) = self.read_shown(Some(&certificate), subject)?;
        self.issue_for_certificate(&facts, &peer, &request).await
    }

    // A gateway with a certificate keeps its key: the request proves that it still holds the key,
    // and a request that is replayed brings only another certificate for the same key.
    async fn issue_for_certificate(
        &self,
        facts: &CertificateFacts,
        peer: &PeerId,
        request: &CertificateRequest,
    ) -> Result<EnrolmentResponseBody, EnrolmentRefusal> {
        if request.key != facts.key {
            return Err(EnrolmentRefusal::new(
                EnrolmentCode::BadRequest,
                "the request is for another key than the certificate's",
                "renew with the same key; for a new key, enrol with a new token",
            ));
        }
        self.refuse_revoked(&facts.key).await?;
        for _ in 0..ATTEMPTS_MAX {
            let now = self.now();
            let gateway = self.gateway(peer).await?;
            let record = gateway.as_ref().map(|(record, _)| record);
            gateways::speaks_for_its_gateway(record, facts)?;
            gateways::is_within_grace(record, facts, now, self.config.grace)?;
            if let Some(issued) = self.issue(peer, None, request, gateway, Vec::new(), now).await? {
                return Ok(issued);
            }
        }
        Err(busy())
    }

    async fn check(
        &self,
        shown: Option<&CertificateDer<'_>>,
        bundle: &[u8],
        subject: &mut EnrolmentSubjects,
    ) -> Result<EnrolmentResponseBody, EnrolmentRefusal> {
        let (facts, peer) = self.read_shown(shown, subject)?;
        self.refuse_revoked(&facts.key).await?;
        let cas = self.cas.load_full();
        let shown = shown.expect("read_shown refuses a missing certificate");
        let is_of_issuing_ca = tls::verify_client(shown, &[cas.issuing().certificate().clone()]).is_ok();
        let renew = bundle != tls::bundle_hash(&cas.bundle()) || !is_of_issuing_ca;
        if cas.is_changing() && !renew {
            self.note_proven(&peer, &facts, &cas.issuing().id().to_string()).await?;
        }
        Ok(EnrolmentResponseBody::Checked(CheckedMessage { renew }))
    }

    // The edge holds a certificate of the new CA and trusts both: it does not depend on the old one any more.
    pub(super) async fn note_proven(
        &self,
        peer: &PeerId,
        facts: &CertificateFacts,
        authority: &str,
    ) -> Result<(), EnrolmentRefusal> {
        let Some((mut record, revision)) = self.gateway(peer).await? else { return Ok(()) };
        if record.proven == authority || !record.is_key(&facts.key) {
            return Ok(());
        }
        record.proven = authority.to_owned();
        match self.store.update(&gateways::store_key(peer.gateway()), record.encode(), revision).await {
            // Another request wrote the record; the next check will note it.
            Ok(_) | Err(StoreError::Conflict { .. } | StoreError::NotFound { .. }) => Ok(()),
            Err(error) => Err(unavailable(error)),
        }
    }

    /// Signs the certificate, stores the gateway's record, and revokes the key it replaces. `None` when another request
    /// changed a record in between. `node` is the Kubernetes node that the gateway belongs to from now on; a key that is
    /// certified again keeps its node.
    pub(super) async fn issue(
        &self,
        peer: &PeerId,
        node: Option<&str>,
        request: &CertificateRequest,
        gateway: Option<(GatewayRecord, Revision)>,
        mut ops: Vec<Op>,
        now: SystemTime,
    ) -> Result<Option<EnrolmentResponseBody>, EnrolmentRefusal> {
        let cas = self.cas.load_full();
        let signed = cas
            .issuing()
            .sign(&CertificateSubject::Gateway(peer.clone()), &request.spki, now, GATEWAY_LIFETIME)
            .map_err(|error| {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    gateway = peer.gateway(),
                    "cannot sign the certificate of a gateway"
                );
                EnrolmentRefusal::new(
                    EnrolmentCode::Unavailable,
                    "the cloud cannot sign certificates",
                    "look at the cloud's log",
                )
            })?;
        let mut record = GatewayRecord::new(peer, &request.key, &signed, &cas.issuing().id(), now);
        record.node = node.map(str::to_owned);
        let key = gateways::store_key(peer.gateway());
        match &gateway {
            None => ops.push(Op::Create { key, value: record.encode() }),
            Some((before, revision)) => {
                if before.is_key(&request.key) {
                    record.proven.clone_from(&before.proven);
                    record.node = record.node.or_else(|| before.node.clone());
                }
                ops.extend(replaced(before, &request.key, peer, now));
                ops.push(Op::Update { key, value: record.encode(), expected: *revision });
            }
        }
        let revoked: Vec<RevocationEntry> = ops.iter().filter_map(revoked_key).collect();
        match self.store.commit(ops).await {
            Ok(_) => {
                self.log_before_answer(revoked).await?;
                Ok(Some(EnrolmentResponseBody::Issued(self.message(&cas, signed))))
            }
            Err(
                StoreError::Conflict { .. } | StoreError::AlreadyExists { .. } | StoreError::NotFound { .. },
            ) => Ok(None),
            Err(error) => Err(unavailable(error)),
        }
    }

    /// Writes redeemed tokens and replaced keys to the revocation log before the certificate is sent, so that a crash in
    /// between does not lose them. A gateway that is refused here asks again with the same key.
    async fn log_before_answer(&self, entries: Vec<RevocationEntry>) -> Result<(), EnrolmentRefusal> {
        self.append_to_log(entries).await.map_err(|_| EnrolmentRefusal {
            retry_after_seconds: 5,
            ..EnrolmentRefusal::new(
                EnrolmentCode::Unavailable,
                "the cloud cannot write its revocation log",
                "make room in the data dir of the cloud; the edge tries again",
            )
        })
    }

    fn message(&self, cas: &CaSet, signed: SignedCertificate) -> IssuedMessage {
        IssuedMessage {
            certificate: signed.certificate.to_vec(),
            authorities: cas.bundle().iter().map(|authority| authority.to_vec()).collect(),
            endpoints: self.all_endpoints().iter().map(ToString::to_string).collect(),
        }
    }

    // TLS has checked a certificate of the handshake, but perhaps against CAs of yesterday, and one
    // that came in a message was not checked at all. So both are checked here; only the time is left to the caller.
    pub(super) fn read_shown(
        &self,
        shown: Option<&CertificateDer<'_>>,
        subject: &mut EnrolmentSubjects,
    ) -> Result<(CertificateFacts, PeerId), EnrolmentRefusal> {
        let shown = shown.ok_or_else(|| {
            EnrolmentRefusal::new(
                EnrolmentCode::CertificateNeeded,
                "this needs the gateway's certificate",
                "enrol first",
            )
        })?;
        let (facts, peer) = read_gateway(shown)?;
        self.check_authority(shown)?;
        subject.peer = Some(peer.clone());
        subject.key = Some(facts.key);
        Ok((facts, peer))
    }

    /// Returns true if the certificate is from a CA that is trusted now.
    pub(super) fn check_authority(&self, shown: &CertificateDer<'_>) -> Result<(), EnrolmentRefusal> {
        tls::verify_client(shown, &self.cas.load().bundle()).map_err(|_| {
            EnrolmentRefusal::new(
                EnrolmentCode::WrongAuthority,
                "the certificate is not from a CA this cloud trusts (any more)",
                tokens::NEW_TOKEN,
            )
        })
    }

    // Asks the store, not the set in memory: a certificate lasts, so the last word counts.
    pub(super) async fn refuse_revoked(&self, key: &KeyHash) -> Result<(), EnrolmentRefusal> {
        let found = self.load::<RevocationRecord>(&revocation::store_key(key)).await;
        let message = match found {
            Ok(None) => return Ok(()),
            Ok(Some((RevocationRecord { reason: RevocationReason::Replaced, .. }, _))) => {
                "this key was replaced: the gateway was enrolled anew with another one"
            }
            Ok(Some(_)) | Err(StoreError::Corrupt { .. }) => "this key was revoked",
            Err(error) => return Err(unavailable(error)),
        };
        Err(EnrolmentRefusal::new(EnrolmentCode::Revoked, message, tokens::NEW_TOKEN))
    }

    pub(super) async fn gateway(
        &self,
        peer: &PeerId,
    ) -> Result<Option<(GatewayRecord, Revision)>, EnrolmentRefusal> {
        self.current_gateway(peer.gateway()).await.map_err(unavailable)
    }

    /// Returns the record of a gateway. A record that is older than the EGateway of this name belongs to one that was
    /// deleted: its key is not valid, even before `deleted_gateways` has revoked it.
    pub(super) async fn current_gateway(
        &self,
        gateway: &str,
    ) -> Result<Option<(GatewayRecord, Revision)>, StoreError> {
        let found = self.load::<GatewayRecord>(&gateways::store_key(gateway)).await?;
        let Some((mut record, revision)) = found else { return Ok(None) };
        let since = self.standing_since(gateway).await?;
        if since.is_some_and(|since| revision < since) {
            record.void_key = record.key.take();
        }
        Ok(Some((record, revision)))
    }

    /// When the EGateway of this name came into being.
    pub(super) async fn standing_since(&self, gateway: &str) -> Result<Option<Revision>, StoreError> {
        Ok(self.store.get(&object_key(Kind::EGateway, gateway)).await?.map(|object| object.created))
    }

    fn audit_answer(
        &self,
        name: &'static str,
        subject: &EnrolmentSubjects,
        client: &str,
        answer: &Result<EnrolmentResponseBody, EnrolmentRefusal>,
    ) {
        let key = subject.key.map(|key| key.to_string()).unwrap_or_default();
        let (site, gateway) = subject.peer.as_ref().map_or(("", ""), |peer| (peer.site(), peer.gateway()));
        let mismatch = subject.mismatch();
        if mismatch.is_some() {
            self.metrics.count_mismatch();
        }
        let (decision, reason) = match answer {
            Ok(_) => ("allow", mismatch.unwrap_or_default()),
            Err(refusal) => ("deny", refusal.message.clone()),
        };
        let line = AuditLine {
            event: name,
            site,
            gateway,
            key: &key,
            client,
            decision,
            reason: &reason,
            subject: &subject.pod,
        };
        self.audit(&line);
    }
}

/// The subjects of a request, as far as they are known.
#[derive(Default)]
pub(super) struct EnrolmentSubjects {
    pub(super) peer: Option<PeerId>,
    /// The node, the pod and the service account, as the cluster names them.
    pub(super) pod: String,
    key: Option<KeyHash>,
    wish: Option<RequestedIdentity>,
}

impl EnrolmentSubjects {
    // A request that names another gateway gets its own name all the same, and is worth a line in the audit log.
    fn mismatch(&self) -> Option<String> {
        match (&self.wish, &self.peer) {
            (Some(RequestedIdentity::Gateway(wish)), Some(peer)) if wish != peer => {
                Some(format!("the request named {wish}; the certificate names {peer}"))
            }
            (Some(RequestedIdentity::Other(wish)), Some(peer)) => {
                Some(format!("the request named {wish:?}; the certificate names {peer}"))
            }
            _ => None,
        }
    }
}

// A gateway has one key. The same commit revokes the previous one.
fn replaced(before: &GatewayRecord, key: &KeyHash, peer: &PeerId, now: SystemTime) -> Option<Op> {
    let old = KeyHash::from_hex(before.key.as_deref().or(before.void_key.as_deref())?)?;
    if old == *key {
        return None;
    }
    let record = RevocationRecord {
        site: before.site.clone(),
        by: Some(key.to_string()),
        ..RevocationRecord::new(peer.gateway(), RevocationReason::Replaced, now, before.expires)
    };
    Some(Op::Put { key: revocation::store_key(&old), value: record.encode() })
}

fn revoked_key(op: &Op) -> Option<RevocationEntry> {
    let Op::Put { key, value } = op else { return None };
    key.starts_with(revocation::PREFIX).then(|| RevocationEntry::of(key, value))?
}

pub(super) fn read_request(
    csr: &[u8],
    subject: &mut EnrolmentSubjects,
) -> Result<CertificateRequest, EnrolmentRefusal> {
    let request = CertificateRequest::read(csr).map_err(|error| {
        EnrolmentRefusal::new(
            EnrolmentCode::BadRequest,
            format!("the certificate request is refused: {error}"),
            "use causeway edge",
        )
    })?;
    subject.key = Some(request.key);
    subject.wish = Some(request.wish.clone());
    Ok(request)
}

/// Reads the gateway of a certificate. The signature is not checked.
pub(super) fn read_gateway(
    shown: &CertificateDer<'_>,
) -> Result<(CertificateFacts, PeerId), EnrolmentRefusal> {
    let facts = CertificateFacts::read(shown).map_err(|error| malformed(&error.to_string()))?;
    let peer = facts.peer.clone().ok_or_else(|| malformed("the certificate is not a gateway's"))?;
    Ok((facts, peer))
}

pub(super) fn malformed(message: &str) -> EnrolmentRefusal {
    EnrolmentRefusal::new(EnrolmentCode::Malformed, message, "edge and cloud may be of different versions")
}

pub(super) fn unavailable(error: StoreError) -> EnrolmentRefusal {
    tracing::warn!(
        error = &error as &dyn std::error::Error,
        "the store failed while a gateway asked for a certificate"
    );
    EnrolmentRefusal {
        retry_after_seconds: 5,
        ..EnrolmentRefusal::new(
            EnrolmentCode::Unavailable,
            "the cloud's store does not answer",
            "try again later",
        )
    }
}

pub(super) fn busy() -> EnrolmentRefusal {
    EnrolmentRefusal {
        retry_after_seconds: 1,
        ..EnrolmentRefusal::new(EnrolmentCode::Unavailable, "too many at once", "try again")
    }
}
