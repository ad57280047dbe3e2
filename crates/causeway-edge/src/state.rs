//! What an edge keeps in its data dir, and in which order it is written.
//!
//! `identity.pem` holds the key and its certificate, in one file, so that they always belong together; it is
//! written last and makes the edge enrolled. `ca.pem` and `edge.json` say whom to trust and where to dial.
//! `pending.key` is a key that was saved before it was sent; `refused.json` says why the cloud gave this edge up.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use causeway_channel::clock::Moment;
use causeway_channel::tls::{Credentials, Trust};
use causeway_channel::token::ENDPOINTS_MAX;
use causeway_channel::{CertificateFacts, Endpoint, Issued, Key, PeerId, pem};
use causeway_daemon::DataDir;
use causeway_daemon::data_dir::DataDirError;
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

const IDENTITY: &str = "identity.pem";
const AUTHORITIES: &str = "ca.pem";
const SETTINGS: &str = "edge.json";
const PENDING: &str = "pending.key";
const REFUSED: &str = "refused.json";
const VERSION: u32 = 1;

/// Who this edge is, whom it trusts and where it dials. `Debug` shows no key.
#[derive(Debug)]
pub struct EdgeIdentity {
    pub peer: PeerId,
    pub key: Key,
    pub certificate: CertificateDer<'static>,
    pub facts: CertificateFacts,
    pub authorities: Vec<CertificateDer<'static>>,
    /// What the cloud told last.
    pub endpoints: Vec<Endpoint>,
    /// What the join token said: the way back, should the cloud have told nonsense.
    pub joined_at: Vec<Endpoint>,
}

impl EdgeIdentity {
    /// For TLS with the cloud.
    pub fn credentials(&self) -> Credentials {
        Credentials { chain: vec![self.certificate.clone()], key: self.key.to_der() }
    }

    pub fn trust(&self) -> Trust {
        Trust::Bundle(self.authorities.clone())
    }

    /// Where to dial, best first.
    pub fn dial(&self) -> Vec<Endpoint> {
        let mut endpoints = Vec::new();
        for endpoint in self.endpoints.iter().chain(&self.joined_at) {
            if !endpoints.contains(endpoint) && endpoints.len() < ENDPOINTS_MAX {
                endpoints.push(endpoint.clone());
            }
        }
        endpoints
    }
}

#[derive(Debug, thiserror::Error)]
pub enum StateError {
    #[error(transparent)]
    DataDir(#[from] DataDirError),
    #[error("{} cannot be {action}", path.display())]
    File { path: PathBuf, action: &'static str, source: io::Error },
    #[error("{} is damaged ({why}); restore it from a backup, or remove it and enrol again with a new token", path.display())]
    Damaged { path: PathBuf, why: &'static str },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Settings {
    version: u32,
    /// For people; what counts is the certificate.
    site: String,
    gateway: String,
    endpoints: Vec<String>,
    joined_at: Vec<String>,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct RefusedNote {
    pub at: String,
    pub reason: String,
}

/// The data dir of an edge, locked.
#[derive(Debug)]
pub struct State {
    dir: DataDir,
}

impl State {
    pub fn open(path: &Path) -> Result<State, StateError> {
        Ok(State { dir: DataDir::open(path)? })
    }

    /// `None`: not enrolled yet.
    pub fn load(&self) -> Result<Option<EdgeIdentity>, StateError> {
        let Some(text) = self.read(IDENTITY)? else { return Ok(None) };
        let identity = |why| self.damaged(IDENTITY, why);
        let text = String::from_utf8(text).map_err(|_| identity("it is not text"))?;
        let key = Key::from_pem(&text).map_err(|_| identity("no private key"))?;
        let certificate = pem::decode(text.as_bytes())
            .and_then(|certificates| certificates.into_iter().next())
            .ok_or_else(|| identity("no certificate"))?;
        let facts =
            CertificateFacts::read(&certificate).map_err(|_| identity("the certificate cannot be read"))?;
        let peer = facts.peer.clone().ok_or_else(|| identity("the certificate names no gateway"))?;
        if facts.key != key.hash() {
            return Err(identity("key and certificate do not belong together"));
        }
        let authorities = self.read(AUTHORITIES)?.and_then(|text| pem::decode(&text)).unwrap_or_default();
        if authorities.is_empty() {
            return Err(self.damaged(AUTHORITIES, "no certificate"));
        }
        let settings: Settings = self
            .read(SETTINGS)?
            .and_then(|text| serde_json::from_slice(&text).ok())
            .ok_or_else(|| self.damaged(SETTINGS, "missing, or not JSON"))?;
        let parse = |texts: &[String]| texts.iter().filter_map(|text| text.parse().ok()).collect::<Vec<_>>();
        let (endpoints, joined_at) = (parse(&settings.endpoints), parse(&settings.joined_at));
        if endpoints.is_empty() && joined_at.is_empty() {
            return Err(self.damaged(SETTINGS, "no endpoint"));
        }
        Ok(Some(EdgeIdentity { peer, key, certificate, facts, authorities, endpoints, joined_at }))
    }

    /// Keeps what the cloud gave. The identity is written last: until then the old state is in force, and a
    /// crash leaves either the one or the other.
    pub fn save(
        &self,
        key: &Key,
        issued: &Issued,
        peer: &PeerId,
        joined_at: &[Endpoint],
    ) -> Result<(), StateError> {
        let texts = |endpoints: &[Endpoint]| endpoints.iter().map(Endpoint::to_string).collect();
        let settings = Settings {
            version: VERSION,
            site: peer.site().to_owned(),
            gateway: peer.gateway().to_owned(),
            endpoints: texts(&issued.endpoints),
            joined_at: texts(joined_at),
        };
        let settings = serde_json::to_vec_pretty(&settings).expect("strings are always JSON");
        self.dir.write(AUTHORITIES, pem::encode(&issued.authorities).as_bytes())?;
        self.dir.write(SETTINGS, &settings)?;
        let identity = format!("{}{}", key.to_pem(), pem::encode(std::slice::from_ref(&issued.certificate)));
        self.dir.write(IDENTITY, identity.as_bytes())?;
        Ok(())
    }

    /// The key to enrol with: the one of an enrolment that was interrupted, or a new one, saved.
    pub fn pending_key(&self) -> Result<Key, StateError> {
        if let Some(text) = self.read(PENDING)? {
            // Nothing hangs on a pending key that cannot be read: it was never certified.
            if let Some(key) = String::from_utf8(text).ok().and_then(|text| Key::from_pem(&text).ok()) {
                return Ok(key);
            }
            tracing::warn!("the key of an interrupted enrolment is damaged; making a new one");
        }
        self.new_pending_key()
    }

    pub fn new_pending_key(&self) -> Result<Key, StateError> {
        let key = Key::generate().map_err(|_| self.damaged(PENDING, "no key can be made"))?;
        self.dir.write(PENDING, key.to_pem().as_bytes())?;
        Ok(key)
    }

    pub fn clear_pending(&self) -> Result<(), StateError> {
        self.remove(PENDING)
    }

    /// Why the cloud gave this edge up, if it did.
    pub fn refused(&self) -> Result<Option<RefusedNote>, StateError> {
        let Some(text) = self.read(REFUSED)? else { return Ok(None) };
        let unreadable = || RefusedNote { at: String::new(), reason: "unknown".to_owned() };
        Ok(Some(serde_json::from_slice(&text).unwrap_or_else(|_| unreadable())))
    }

    pub fn note_refused(&self, reason: String, now: SystemTime) -> Result<(), StateError> {
        let note = RefusedNote { at: Moment(now).to_string(), reason };
        let text = serde_json::to_vec_pretty(&note).expect("strings are always JSON");
        self.dir.write(REFUSED, &text)?;
        Ok(())
    }

    pub fn clear_refused(&self) -> Result<(), StateError> {
        self.remove(REFUSED)
    }

    fn read(&self, name: &str) -> Result<Option<Vec<u8>>, StateError> {
        let path = self.dir.join(name);
        match std::fs::read(&path) {
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(source) => Err(StateError::File { path, action: "read", source }),
        }
    }

    fn remove(&self, name: &str) -> Result<(), StateError> {
        let path = self.dir.join(name);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                Err(StateError::File { path, action: "removed", source })
            }
            _ => Ok(()),
        }
    }

    fn damaged(&self, name: &str, why: &'static str) -> StateError {
        StateError::Damaged { path: self.dir.join(name), why }
    }
}
