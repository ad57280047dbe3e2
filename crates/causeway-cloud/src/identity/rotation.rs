//! The change from one CA to the next, without losing an edge.
//!
//! `start` adds a CA: both are trusted, certificates come from the new one, and every edge that renews or
//! checks in learns of both. `finish` drops the old one, once no gateway depends on it alone.

use std::time::SystemTime;

use causeway_api::management::{AuthorityView, RotationView};
use causeway_channel::KeyHash;
use causeway_channel::clock::UtcTimestamp;
use causeway_store::StoreError;

use super::audit::AuditLine;
use super::ca_store::{self, CaSet, CaStoreError};
use super::follow;
use super::gateways::{self, GatewayRecord};
use super::registrar::Registrar;
use super::tokens::{self, JoinTokenRecord};

#[derive(Debug, thiserror::Error)]
pub enum RotationError {
    #[error("a change of CA is already under way; finish it with `causeway ca rotate --finish`")]
    AlreadyChanging,
    #[error("no change of CA is under way; start one with `causeway ca rotate`")]
    NotChanging,
    #[error("{}", waiting(gateways, tokens))]
    StillNeeded {
        /// Gateways that have not shown a certificate from the new CA.
        gateways: Vec<String>,
        /// Join tokens not yet redeemed that name only the old CA.
        tokens: Vec<String>,
    },
    #[error("another replica changed the CAs at the same moment; look and try again")]
    Raced,
    #[error(transparent)]
    CaStore(CaStoreError),
}

fn waiting(gateways: &[String], tokens: &[String]) -> String {
    let mut text = String::from("the old CA is still needed");
    let mut list = |what: &str, names: &[String]| {
        if !names.is_empty() {
            let shown = names.iter().take(10).cloned().collect::<Vec<_>>().join(", ");
            let more = if names.len() > 10 { ", …" } else { "" };
            text.push_str(&format!("; {} {what}: {shown}{more}", names.len()));
        }
    };
    list("gateways have not shown a certificate from the new one yet", gateways);
    list("open join tokens name only the old one", tokens);
    text.push_str("; wait (edges ask once a day), delete or revoke them, or force it and lose them");
    text
}

impl From<CaStoreError> for RotationError {
    fn from(error: CaStoreError) -> RotationError {
        match error {
            CaStoreError::AlreadyChanging => RotationError::AlreadyChanging,
            CaStoreError::NotChanging => RotationError::NotChanging,
            CaStoreError::Store(StoreError::Conflict { .. }) => RotationError::Raced,
            error => RotationError::CaStore(error),
        }
    }
}

impl From<StoreError> for RotationError {
    fn from(error: StoreError) -> RotationError {
        RotationError::CaStore(CaStoreError::Store(error))
    }
}

impl Registrar {
    /// Returns the CAs, and the gateways and tokens that still depend on an old one.
    pub async fn authorities(&self) -> Result<RotationView, RotationError> {
        let cas = self.cas.load_full();
        let needed = self.who_needs_the_old(&cas).await?;
        let view = |(authority, created): (&std::sync::Arc<super::authority::Authority>, SystemTime)| {
            let id = authority.id();
            AuthorityView {
                id: id.to_string(),
                created: UtcTimestamp(created).to_string(),
                expires: UtcTimestamp(authority.not_after()).to_string(),
                issuing: id == cas.issuing().id(),
                serving: id == cas.serving().id(),
                certificate: causeway_channel::pem::encode(std::slice::from_ref(authority.certificate())),
            }
        };
        Ok(RotationView {
            changing: cas.is_changing(),
            authorities: cas.dated().map(view).collect(),
            waiting_gateways: needed.gateways,
            waiting_tokens: needed.tokens,
            seal_key: self.place.path.display().to_string(),
        })
    }

    /// Begins the change.
    pub async fn start_rotation(&self) -> Result<RotationView, RotationError> {
        let cas = self.cas.load_full();
        let next = ca_store::start_change(&self.store, &cas, &self.seal, &self.place, self.now()).await?;
        let id = next.issuing().id().to_string();
        self.audit(&AuditLine { event: "ca-change-started", key: &id, ..AuditLine::default() });
        self.take(next).await?;
        self.authorities().await
    }

    /// Ends the change. Refused while a gateway would be locked out, unless forced.
    pub async fn finish_rotation(&self, force: bool) -> Result<RotationView, RotationError> {
        let cas = self.cas.load_full();
        if !cas.is_changing() {
            return Err(RotationError::NotChanging);
        }
        let needed = self.who_needs_the_old(&cas).await?;
        if !needed.is_empty() && !force {
            return Err(RotationError::StillNeeded { gateways: needed.gateways, tokens: needed.tokens });
        }
        let next = ca_store::finish_change(&self.store, &cas, &self.seal, &self.place).await?;
        let (id, reason) = (next.issuing().id().to_string(), if needed.is_empty() { "" } else { "forced" });
        self.audit(&AuditLine { event: "ca-change-finished", key: &id, reason, ..AuditLine::default() });
        self.take(next).await?;
        self.authorities().await
    }

    // The caller's next request must already meet the new state, so this replica does not wait for its watch.
    async fn take(&self, cas: CaSet) -> Result<(), RotationError> {
        self.publish_cas(cas);
        if let Err(error) = self.upkeep().await {
            tracing::error!(
                error = &error as &dyn std::error::Error,
                "the new CAs are stored but not yet in use here"
            );
        }
        Ok(())
    }

    async fn who_needs_the_old(&self, cas: &CaSet) -> Result<Needed, StoreError> {
        let mut needed = Needed::default();
        if !cas.is_changing() {
            return Ok(needed);
        }
        let (now, issuing) = (self.now(), cas.issuing().id());
        let (gateways, _) = follow::snapshot(&self.store, gateways::PREFIX).await?;
        for record in &gateways {
            let name = record.key.strip_prefix(gateways::PREFIX).unwrap_or(&record.key);
            // One that cannot be read might need it.
            let needs = serde_json::from_slice::<GatewayRecord>(&record.value)
                .map_or(true, |gateway| gateway.needs(&issuing) && gateway.is_alive(now, self.config.grace));
            if needs {
                needed.gateways.push(name.to_owned());
            }
        }
        let (tokens, _) = follow::snapshot(&self.store, tokens::JOIN_PREFIX).await?;
        for record in &tokens {
            let id = record.key.strip_prefix(tokens::JOIN_PREFIX).unwrap_or(&record.key);
            let needs = serde_json::from_slice::<JoinTokenRecord>(&record.value)
                .is_ok_and(|token| token.is_open(now) && !token.authorities.contains(&issuing.to_string()));
            if needs {
                needed.tokens.push(id.to_owned());
            }
        }
        Ok(needed)
    }
}

impl GatewayRecord {
    fn needs(&self, issuing: &KeyHash) -> bool {
        self.proven != issuing.to_string()
    }
}

#[derive(Default)]
struct Needed {
    gateways: Vec<String>,
    tokens: Vec<String>,
}

impl Needed {
    fn is_empty(&self) -> bool {
        self.gateways.is_empty() && self.tokens.is_empty()
    }
}
