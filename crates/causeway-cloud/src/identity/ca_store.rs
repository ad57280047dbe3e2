//! The CAs of this cloud as they stand in the store, and the steps of changing from one to the next.
//!
//! One record, `identity/ca`, written only by compare-and-swap, so that replicas agree. The private keys in
//! it are sealed. Usually there is one CA. During a change there are two: both are trusted, gateways and users
//! get certificates from the new one, and the cloud itself shows the old one until the end, because
//! every edge trusts that one already.

use std::sync::Arc;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use causeway_channel::clock::{from_unix_seconds, unix_seconds};
use causeway_channel::{KeyHash, PrivateKey};
use causeway_store::{Revision, Store, StoreError};
use rustls_pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

use super::authority::{Authority, AuthorityError};
use super::earlier_life::EarlierLifeError;
use super::seal::{SealError, SealKey};

pub const KEY: &str = "identity/ca";
const VERSION: u32 = 1;

/// The CAs in use, ready to sign. An immutable value; a change publishes another.
#[derive(Debug)]
pub struct CaSet {
    /// The revision of its record in the store.
    pub revision: Revision,
    /// Oldest first; never empty.
    authorities: Vec<Arc<Authority>>,
    created: Vec<SystemTime>,
}

impl CaSet {
    /// Signs for gateways and users.
    pub fn issuing(&self) -> &Arc<Authority> {
        self.authorities.last().expect("a set of CAs holds at least one CA; `open` refuses an empty one")
    }

    /// Signs for the cloud's own listeners.
    pub fn serving(&self) -> &Arc<Authority> {
        self.authorities.first().expect("a set of CAs holds at least one CA; `open` refuses an empty one")
    }

    pub fn is_changing(&self) -> bool {
        self.authorities.len() > 1
    }

    pub fn authorities(&self) -> &[Arc<Authority>] {
        &self.authorities
    }

    /// With the time each was made.
    pub fn dated(&self) -> impl Iterator<Item = (&Arc<Authority>, SystemTime)> {
        self.authorities.iter().zip(self.created.iter().copied())
    }

    /// Everything to trust, in DER.
    pub fn bundle(&self) -> Vec<CertificateDer<'static>> {
        self.authorities.iter().map(|authority| authority.certificate().clone()).collect()
    }

    /// The CAs that a new join token pins.
    pub fn ids(&self) -> Vec<KeyHash> {
        self.authorities.iter().map(|authority| authority.id()).collect()
    }
}

#[derive(Debug, thiserror::Error)]
pub enum CaStoreError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Seal(#[from] SealError),
    #[error(transparent)]
    Authority(#[from] AuthorityError),
    #[error("the record {KEY} in the store is damaged: {0}")]
    Damaged(String),
    #[error(
        "the record {KEY} in the store is of version {found}, this program knows {VERSION}: use a newer causeway"
    )]
    Version { found: u32 },
    #[error(transparent)]
    EarlierLife(#[from] EarlierLifeError),
    #[error(
        "the store holds a CA, but this replica has no seal key to open it: \
         copy the file {origin} to {} (mode 600) and start again", path.display()
    )]
    NoSealKey { origin: String, path: std::path::PathBuf },
    #[error(
        "the seal key {} is not the one that sealed the CA in the store: \
         copy the file {origin} over it (mode 600) and start again", path.display()
    )]
    OtherSealKey { origin: String, path: std::path::PathBuf },
    #[error("a change of CA is already under way; finish it with `causeway ca rotate --finish`")]
    AlreadyChanging,
    #[error("no change of CA is under way; start one with `causeway ca rotate`")]
    NotChanging,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    version: u32,
    /// The id of the seal key.
    sealed_with: String,
    /// Host and path of the seal key, for the operator who has to copy it.
    sealed_at: String,
    authorities: Vec<StoredAuthority>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StoredAuthority {
    id: String,
    created: i64,
    certificate: String,
    sealed_key: String,
}

/// The path of a replica's seal key, and the replica's name in messages.
#[derive(Debug, Clone)]
pub struct SealKeyLocation {
    pub path: std::path::PathBuf,
    pub host: String,
}

impl SealKeyLocation {
    fn origin(&self) -> String {
        format!("{}:{}", self.host, self.path.display())
    }
}

/// Reads the CAs, or makes the first CA when there is none. Of replicas that start together one creates it
/// and the rest read the created one. `may_create` is called before a CA is made.
pub async fn open_or_create(
    store: &Store,
    place: &SealKeyLocation,
    now: SystemTime,
    may_create: impl FnOnce() -> Result<(), EarlierLifeError>,
) -> Result<(CaSet, SealKey), CaStoreError> {
    if let Some(found) = open(store, place).await? {
        return Ok(found);
    }
    may_create()?;
    let existing = SealKey::load(&place.path)?;
    let is_new = existing.is_none();
    let seal = match existing {
        Some(seal) => seal,
        None => SealKey::generate(&place.path)?,
    };
    let first = Authority::create(now)?;
    match store.create(KEY, encode(&[(&first, now)], &seal, place.origin())).await {
        Ok(revision) => {
            tracing::info!(authority = %first.id(), "made the CA of this cloud");
            let cas = CaSet { revision, authorities: vec![Arc::new(first)], created: vec![now] };
            Ok((cas, seal))
        }
        Err(StoreError::AlreadyExists { .. }) => {
            if is_new {
                drop_useless_seal(store, &seal).await?;
            }
            open(store, place)
                .await?
                .ok_or_else(|| CaStoreError::Damaged("it vanished while being read".into()))
        }
        Err(error) => Err(error.into()),
    }
}

// Another replica was faster. A seal key made a moment ago has sealed nothing then, and left lying around it would
// only be mistaken for the right one. Unless the record is our own after all: a store that is asked again after a lost
// answer says that it exists. Then this file is the only one that opens it.
async fn drop_useless_seal(store: &Store, seal: &SealKey) -> Result<(), CaStoreError> {
    let Some(record) = store.get(KEY).await? else { return Ok(()) };
    if parse(&record.value)?.sealed_with != seal.id() {
        let _ = std::fs::remove_file(seal.path());
    }
    Ok(())
}

async fn open(store: &Store, place: &SealKeyLocation) -> Result<Option<(CaSet, SealKey)>, CaStoreError> {
    let Some(record) = store.get(KEY).await? else { return Ok(None) };
    let stored = parse(&record.value)?;
    let seal = SealKey::load(&place.path)?.ok_or_else(|| CaStoreError::NoSealKey {
        origin: stored.sealed_at.clone(),
        path: place.path.clone(),
    })?;
    let cas = decode(&record.value, record.revision, &seal)?;
    Ok(Some((cas, seal)))
}

/// Adds a second CA, from which certificates come from now on.
pub async fn start_change(
    store: &Store,
    cas: &CaSet,
    seal: &SealKey,
    place: &SealKeyLocation,
    now: SystemTime,
) -> Result<CaSet, CaStoreError> {
    if cas.is_changing() {
        return Err(CaStoreError::AlreadyChanging);
    }
    let (authorities, created) = {
        let mut authorities = cas.authorities.clone();
        authorities.push(Arc::new(Authority::create(now)?));
        let mut created = cas.created.clone();
        created.push(now);
        (authorities, created)
    };
    swap(store, cas, authorities, created, seal, place).await
}

/// Drops the old CA. The caller has checked that no gateway still needs it.
pub async fn finish_change(
    store: &Store,
    cas: &CaSet,
    seal: &SealKey,
    place: &SealKeyLocation,
) -> Result<CaSet, CaStoreError> {
    if !cas.is_changing() {
        return Err(CaStoreError::NotChanging);
    }
    swap(store, cas, cas.authorities[1..].to_vec(), cas.created[1..].to_vec(), seal, place).await
}

async fn swap(
    store: &Store,
    cas: &CaSet,
    authorities: Vec<Arc<Authority>>,
    created: Vec<SystemTime>,
    seal: &SealKey,
    place: &SealKeyLocation,
) -> Result<CaSet, CaStoreError> {
    let dated: Vec<_> =
        authorities.iter().map(|authority| &**authority).zip(created.iter().copied()).collect();
    let revision = store.update(KEY, encode(&dated, seal, place.origin()), cas.revision).await?;
    Ok(CaSet { revision, authorities, created })
}

fn encode(authorities: &[(&Authority, SystemTime)], seal: &SealKey, sealed_at: String) -> Bytes {
    let entry = |&(authority, created): &(&Authority, SystemTime)| {
        let id = authority.id().to_string();
        StoredAuthority {
            created: unix_seconds(created),
            certificate: STANDARD.encode(authority.certificate()),
            sealed_key: STANDARD.encode(seal.seal(&context(&id), authority.key().to_pem().as_bytes())),
            id,
        }
    };
    let stored = Stored {
        version: VERSION,
        sealed_with: seal.id(),
        sealed_at,
        authorities: authorities.iter().map(entry).collect(),
    };
    serde_json::to_vec(&stored).expect("strings and numbers are always JSON").into()
}

// Ties a sealed key to its CA, so that no two entries can be exchanged.
fn context(id: &str) -> String {
    format!("causeway ca {id}")
}

fn parse(value: &[u8]) -> Result<Stored, CaStoreError> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    // Without the parser's message: it quotes the input, which may be a key in the wrong place.
    let damaged = |error: serde_json::Error| {
        CaStoreError::Damaged(format!(
            "it is not what was expected at line {}, column {}",
            error.line(),
            error.column()
        ))
    };
    let Version { version } = serde_json::from_slice(value).map_err(damaged)?;
    if version != VERSION {
        return Err(CaStoreError::Version { found: version });
    }
    serde_json::from_slice(value).map_err(damaged)
}

/// Opens a record with the seal key.
pub fn decode(value: &[u8], revision: Revision, seal: &SealKey) -> Result<CaSet, CaStoreError> {
    let stored = parse(value)?;
    if stored.sealed_with != seal.id() {
        return Err(CaStoreError::OtherSealKey { origin: stored.sealed_at, path: seal.path().to_owned() });
    }
    if stored.authorities.is_empty() {
        return Err(CaStoreError::Damaged("it names no CA".into()));
    }
    let damaged = |what: &str| CaStoreError::Damaged(what.to_owned());
    let mut cas = CaSet { revision, authorities: Vec::new(), created: Vec::new() };
    for entry in stored.authorities {
        let sealed = STANDARD.decode(&entry.sealed_key).map_err(|_| damaged("a sealed key is not base64"))?;
        let pem = String::from_utf8(seal.open(&context(&entry.id), &sealed)?)
            .map_err(|_| damaged("a sealed key is not PEM"))?;
        let key = PrivateKey::from_pem(&pem).map_err(AuthorityError::Key)?;
        let certificate =
            STANDARD.decode(&entry.certificate).map_err(|_| damaged("a certificate is not base64"))?;
        cas.authorities.push(Arc::new(Authority::restore(certificate.into(), key)?));
        cas.created.push(from_unix_seconds(entry.created));
    }
    Ok(cas)
}

#[cfg(test)]
mod tests;
