//! Authenticates API requests: certificates and bearer tokens become identities.
//!
//! Answers come from memory: parsed certificates, the revoked keys, and a copy of the API tokens that a watch
//! keeps fresh. Only a token that is not in the copy yet is looked up in the store.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use causeway_api::sync::MutexExt;
use causeway_apiserver::admin_audit::CredentialName;
use causeway_apiserver::{AuthFailure, Authenticator, Identity, Role};
use causeway_channel::clock::{from_unix_seconds, unix_seconds};
use causeway_channel::peer::sha256;
use causeway_channel::{CertificateFacts, KeyHash, TokenSecret, tls};
use causeway_store::StoreRecord;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustls_pki_types::CertificateDer;

use super::audit::AuditLine;
use super::ca_store::CaSet;
use super::follow::FollowedChange;
use super::metrics::IdentityReasonLabels;
use super::registrar::{Registrar, api_key};
use super::tokens::{self, ADMIN_GROUP, ApiRole, ApiTokenRecord, VIEWER_GROUP};

const GATEWAY_GROUP: &str = "causeway:gateway";
const AUTHENTICATED: &str = "system:authenticated";
/// Certificates whose verification is remembered; beyond it all are forgotten and verified anew.
const REMEMBERED_MAX: usize = 8192;

/// The credentials that are cached between requests.
#[derive(Debug)]
pub(super) struct CredentialCache {
    certificates: Mutex<HashMap<[u8; 32], Arc<Known>>>,
    tokens: ArcSwap<ApiTokens>,
}

/// A certificate that was verified. Its time, its key and its CA are judged at every use.
#[derive(Debug)]
struct Known {
    identity: Identity,
    key: KeyHash,
    authority: KeyHash,
    not_before: SystemTime,
    not_after: SystemTime,
}

#[derive(Debug, Clone, Default)]
struct ApiTokens {
    known: HashMap<String, ApiTokenRecord>,
    /// Tokens seen to be deleted, with their end: still presented perhaps, and no longer worth a look into the store.
    gone: HashMap<String, i64>,
}

impl CredentialCache {
    pub fn new(api_tokens: Vec<StoreRecord>) -> CredentialCache {
        let credentials = CredentialCache { certificates: Mutex::default(), tokens: ArcSwap::default() };
        credentials.apply(FollowedChange::All(api_tokens));
        credentials
    }

    /// Called by one task only.
    pub fn apply(&self, change: FollowedChange) {
        let mut tokens = ApiTokens::clone(&self.tokens.load());
        match change {
            FollowedChange::All(records) => {
                let now: HashMap<_, _> =
                    records.iter().filter_map(|record| read(&record.key, &record.value)).collect();
                let lost = std::mem::replace(&mut tokens.known, now);
                let lost = lost.into_iter().filter(|(id, _)| !tokens.known.contains_key(id));
                tokens.gone.extend(lost.map(|(id, record)| (id, record.expires)).collect::<Vec<_>>());
            }
            FollowedChange::One(event) => match &event.value {
                Some(value) => tokens.known.extend(read(&event.key, value)),
                None => {
                    let Some(id) = event.key.strip_prefix(tokens::API_PREFIX) else { return };
                    let before = event.previous.as_ref().and_then(|value| read(&event.key, value));
                    let record = tokens.known.remove(id).or(before.map(|(_, record)| record));
                    tokens.gone.insert(id.to_owned(), record.map_or(i64::MAX, |record| record.expires));
                }
            },
        }
        self.tokens.store(Arc::new(tokens));
    }

    /// Drops the marks of tokens that would have ended by now.
    pub fn forget(&self, now: SystemTime) {
        let now = unix_seconds(now);
        if self.tokens.load().gone.values().any(|&expires| expires < now) {
            self.tokens.rcu(|tokens| {
                let mut tokens = ApiTokens::clone(tokens);
                tokens.gone.retain(|_, expires| *expires >= now);
                tokens
            });
        }
    }

    fn certificate(&self, leaf: &CertificateDer<'_>, cas: &CaSet) -> Result<Arc<Known>, AuthFailure> {
        let name = sha256(leaf);
        let remembered = self.lock().get(&name).cloned();
        if let Some(known) = remembered {
            return Ok(known);
        }
        let known = Arc::new(read_certificate(leaf, cas)?);
        let mut certificates = self.lock();
        if certificates.len() >= REMEMBERED_MAX {
            certificates.clear();
        }
        certificates.insert(name, known.clone());
        Ok(known)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Arc<Known>>> {
        self.certificates.lock_ignoring_poison()
    }
}

fn read(key: &str, value: &[u8]) -> Option<(String, ApiTokenRecord)> {
    Some((key.strip_prefix(tokens::API_PREFIX)?.to_owned(), serde_json::from_slice(value).ok()?))
}

fn read_certificate(leaf: &CertificateDer<'_>, cas: &CaSet) -> Result<Known, AuthFailure> {
    let facts = CertificateFacts::read(leaf).map_err(|error| AuthFailure::Malformed(error.to_string()))?;
    let signed_by = |authority: &&Arc<super::authority::Authority>| {
        tls::verify_client(leaf, &[authority.certificate().clone()]).is_ok()
    };
    let authority = cas.authorities().iter().find(signed_by).ok_or(AuthFailure::Unknown)?.id();
    let credential =
        Credential::Certificate { key: facts.key, expires: unix_seconds(facts.not_after), authority };
    Ok(Known {
        identity: identity_of(&facts, credential).ok_or(AuthFailure::Unknown)?,
        key: facts.key,
        authority,
        not_before: facts.not_before,
        not_after: facts.not_after,
    })
}

/// The role a certificate gives. A gateway's certificate gives the role of a gateway, independent of its other fields.
fn identity_of(facts: &CertificateFacts, credential: Credential) -> Option<Identity> {
    let (user, group, role) = if let Some(peer) = &facts.peer {
        let role = Role::Gateway { site: peer.site().to_owned(), gateway: peer.gateway().to_owned() };
        (format!("{GATEWAY_GROUP}:{}", peer.gateway()), GATEWAY_GROUP, role)
    } else {
        let role = Role::of_groups(&facts.organizations)?;
        let group = if role == Role::Admin { ADMIN_GROUP } else { VIEWER_GROUP };
        (facts.common_name.clone(), group, role)
    };
    Some(Identity {
        user,
        groups: vec![group.to_owned(), AUTHENTICATED.to_owned()],
        role,
        credential: Some(credential.to_string().into()),
        impersonation: None,
    })
}

/// The name of a credential inside an identity: enough to tell later whether it is still good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Credential {
    Certificate { key: KeyHash, expires: i64, authority: KeyHash },
    Token { id: String, expires: i64 },
}

impl std::fmt::Display for Credential {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Credential::Certificate { key, expires, authority } => {
                write!(formatter, "certificate/{key}/{expires}/{authority}")
            }
            Credential::Token { id, expires } => write!(formatter, "token/{id}/{expires}"),
        }
    }
}

impl Credential {
    pub(super) fn parse(text: &str) -> Option<Credential> {
        match text.split('/').collect::<Vec<_>>()[..] {
            ["certificate", key, expires, authority] => Some(Credential::Certificate {
                key: KeyHash::from_hex(key)?,
                expires: expires.parse().ok()?,
                authority: KeyHash::from_hex(authority)?,
            }),
            ["token", id, expires] => {
                Some(Credential::Token { id: id.to_owned(), expires: expires.parse().ok()? })
            }
            _ => None,
        }
    }
}

impl Registrar {
    fn judge_certificate(&self, leaf: &CertificateDer<'_>) -> Result<Identity, AuthFailure> {
        let cas = self.cas.load();
        let known = self.credentials.certificate(leaf, &cas)?;
        let now = self.now();
        if now < known.not_before {
            return Err(AuthFailure::NotYetValid);
        }
        if now > known.not_after {
            return Err(AuthFailure::Expired);
        }
        if self.revocations.contains(&known.key) {
            return Err(AuthFailure::Revoked);
        }
        if !cas.ids().contains(&known.authority) {
            return Err(AuthFailure::Unknown);
        }
        Ok(known.identity.clone())
    }

    async fn judge_token(&self, text: &str) -> Result<Identity, AuthFailure> {
        let secret = tokens::parse_api_text(text).map_err(|why| AuthFailure::Malformed(why.to_owned()))?;
        let id = tokens::id(&secret);
        let tokens = self.credentials.tokens.load_full();
        if tokens.gone.contains_key(&id) {
            return Err(AuthFailure::Revoked);
        }
        let record = match tokens.known.get(&id) {
            Some(record) => record.clone(),
            // Perhaps made a moment ago on another replica.
            None => match self.load::<ApiTokenRecord>(&api_key(&id)).await {
                Ok(Some((record, _))) => record,
                Ok(None) => return Err(AuthFailure::Unknown),
                Err(error) => return Err(AuthFailure::Unavailable(error.to_string())),
            },
        };
        self.judge_record(&record, &secret, id)
    }

    fn judge_record(
        &self,
        record: &ApiTokenRecord,
        secret: &TokenSecret,
        id: String,
    ) -> Result<Identity, AuthFailure> {
        if !record.matches(secret) {
            return Err(AuthFailure::Unknown);
        }
        if record.has_expired(self.now()) {
            return Err(AuthFailure::Expired);
        }
        let role = match record.role {
            ApiRole::Admin => Role::Admin,
            ApiRole::Viewer => Role::Viewer,
        };
        let user = format!("causeway:token:{}", &id[..8]);
        let groups = vec![record.role.group().to_owned(), AUTHENTICATED.to_owned()];
        let credential = Credential::Token { id, expires: record.expires }.to_string();
        Ok(Identity { user, groups, role, credential: Some(credential.into()), impersonation: None })
    }

    fn count_refusal(&self, failure: &AuthFailure) {
        let why = match failure {
            AuthFailure::Malformed(_) => "malformed",
            AuthFailure::Unknown => "unknown",
            AuthFailure::Expired => "expired",
            AuthFailure::NotYetValid => "not-yet-valid",
            AuthFailure::Revoked => "revoked",
            AuthFailure::Unavailable(_) => "unavailable",
        };
        self.metrics.credentials_refused.get_or_create(&IdentityReasonLabels { why: why.to_owned() }).inc();
    }
}

impl Authenticator for Registrar {
    fn certificate(&self, chain: &[CertificateDer<'_>]) -> Result<Identity, AuthFailure> {
        let judged = match chain.first() {
            Some(leaf) => self.judge_certificate(leaf),
            None => Err(AuthFailure::Malformed("there is no certificate".to_owned())),
        };
        judged.inspect_err(|failure| self.count_refusal(failure))
    }

    fn bearer<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, AuthFailure>> {
        async move { self.judge_token(token).await.inspect_err(|failure| self.count_refusal(failure)) }
            .boxed()
    }

    fn bearer_in_memory(&self, token: &str) -> Option<Identity> {
        let secret = tokens::parse_api_text(token).ok()?;
        let id = tokens::id(&secret);
        let tokens = self.credentials.tokens.load_full();
        if tokens.gone.contains_key(&id) {
            return None;
        }
        let record = tokens.known.get(&id)?;
        self.judge_record(record, &secret, id).ok()
    }

    fn still_valid(&self, identity: &Identity) -> bool {
        // Without a name there is nothing to revoke.
        let Some(text) = &identity.credential else { return true };
        let now = self.now();
        match Credential::parse(text) {
            Some(Credential::Certificate { key, expires, authority }) => {
                now <= from_unix_seconds(expires)
                    && !self.revocations.contains(&key)
                    && self.cas.load().ids().contains(&authority)
            }
            Some(Credential::Token { id, expires }) => {
                now < from_unix_seconds(expires) && !self.credentials.tokens.load().gone.contains_key(&id)
            }
            None => false,
        }
    }

    fn credential_name(&self, identity: &Identity) -> Option<CredentialName> {
        let (kind, id) = match Credential::parse(identity.credential.as_deref()?)? {
            Credential::Certificate { key, .. } => ("certificate", key.to_string()),
            Credential::Token { id, .. } => ("token", id),
        };
        Some(CredentialName { kind: kind.to_owned(), id })
    }

    fn note_refusal(&self, client: SocketAddr, credential: &str, failure: &AuthFailure) {
        self.audit(&AuditLine {
            event: "authentication-failed",
            subject: credential,
            client: &client.to_string(),
            decision: "deny",
            reason: &failure.to_string(),
            ..AuditLine::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_credential_reads_what_it_writes() {
        let (key, authority) = (KeyHash::of_spki(b"k"), KeyHash::of_spki(b"a"));
        let rows = [
            Credential::Certificate { key, expires: 5, authority },
            Credential::Token { id: "abc".into(), expires: -1 },
        ];
        for credential in rows {
            assert_eq!(Credential::parse(&credential.to_string()), Some(credential));
        }
        for text in ["", "token", "token/a/b", "certificate/x/1/y", "other/a/1"] {
            assert_eq!(Credential::parse(text), None, "{text}");
        }
    }

    #[test]
    fn the_role_comes_from_the_certificate() {
        let facts = |uri: Option<&str>, organizations: &[&str]| CertificateFacts {
            peer: uri.map(|uri| uri.parse().unwrap()),
            common_name: "ann".into(),
            organizations: organizations.iter().map(ToString::to_string).collect(),
            key: KeyHash::of_spki(b"k"),
            serial: "1".into(),
            not_before: SystemTime::UNIX_EPOCH,
            not_after: SystemTime::UNIX_EPOCH,
            is_authority: false,
        };
        let row = |uri, organizations: &[&str], role: Option<Role>| {
            let credential = Credential::Token { id: "x".into(), expires: 0 };
            let identity = identity_of(&facts(uri, organizations), credential);
            assert_eq!(identity.map(|identity| identity.role), role, "{uri:?} {organizations:?}");
        };
        let uri = "spiffe://causeway/site/s/gateway/g";
        let gateway = Role::Gateway { site: "s".into(), gateway: "g".into() };
        row(None, &["causeway:admin"], Some(Role::Admin));
        row(None, &["causeway:viewer"], Some(Role::Viewer));
        row(None, &["other", "causeway:admin"], Some(Role::Admin));
        row(None, &[], None);
        row(None, &["system:masters"], None);
        row(Some(uri), &[], Some(gateway.clone()));
        row(Some(uri), &["causeway:admin"], Some(gateway));
    }
}
