//! The persistent state of an edge in its data dir, and the order in which it is written.
//!
//! `identity.pem` holds the key and its certificate, in one file, so that they always belong together; it is
//! written last and makes the edge enrolled. `ca.pem` and `edge.json` hold the trusted CAs and the endpoints
//! to dial.
//! `pending.key` is a key that was saved before it was sent; `refused.json` says why the cloud refused this edge for good.

use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use causeway_channel::clock::UtcTimestamp;
use causeway_channel::tls::{TlsCredentials, TrustAnchors};
use causeway_channel::token::ENDPOINTS_MAX;
use causeway_channel::{CertificateFacts, ChannelEndpoint, IssuedCertificate, PeerId, PrivateKey, pem};
use causeway_daemon::data_dir::DataDirError;
use causeway_daemon::{DataDir, ProcessRole};
use rustls::pki_types::CertificateDer;
use serde::{Deserialize, Serialize};

const IDENTITY: &str = "identity.pem";
const AUTHORITIES: &str = "ca.pem";
const SETTINGS: &str = "edge.json";
const PENDING: &str = "pending.key";
const REFUSED: &str = "refused.json";
const VERSION: u32 = 1;

/// The identity of an edge, the CAs it trusts and the endpoints it dials. `Debug` shows no key.
#[derive(Debug)]
pub struct EdgeIdentity {
    pub peer: PeerId,
    pub key: PrivateKey,
    pub certificate: CertificateDer<'static>,
    pub facts: CertificateFacts,
    pub authorities: Vec<CertificateDer<'static>>,
    /// The endpoints that the cloud announced last.
    pub endpoints: Vec<ChannelEndpoint>,
    /// The endpoints of the join token, in case the cloud announced unusable ones.
    pub joined_at: Vec<ChannelEndpoint>,
}

impl EdgeIdentity {
    /// For TLS with the cloud.
    pub fn credentials(&self) -> TlsCredentials {
        TlsCredentials { chain: vec![self.certificate.clone()], key: self.key.to_der() }
    }

    pub fn trust(&self) -> TrustAnchors {
        TrustAnchors::Bundle(self.authorities.clone())
    }

    /// The endpoints to dial, best first.
    pub fn dial(&self) -> Vec<ChannelEndpoint> {
        dial_order(&self.endpoints, &self.joined_at)
    }
}

/// Returns the endpoints to dial: those the cloud announced and those of the join token, alternating, each
/// once, `ENDPOINTS_MAX` at most. Alternating, so that a long list of dead endpoints does not use up the time
/// of a dial before the endpoints of the token are tried.
pub fn dial_order(told: &[ChannelEndpoint], joined_at: &[ChannelEndpoint]) -> Vec<ChannelEndpoint> {
    let mut endpoints = Vec::new();
    for place in 0..told.len().max(joined_at.len()) {
        for endpoint in told.get(place).into_iter().chain(joined_at.get(place)) {
            if !endpoints.contains(endpoint) && endpoints.len() < ENDPOINTS_MAX {
                endpoints.push(endpoint.clone());
            }
        }
    }
    endpoints
}

/// Parses the endpoints that the cloud announced. Those that cannot be parsed are left out.
pub fn read_endpoints(texts: &[String]) -> Vec<ChannelEndpoint> {
    let mut endpoints: Vec<ChannelEndpoint> = Vec::new();
    for endpoint in texts.iter().take(ENDPOINTS_MAX).filter_map(|text| text.parse().ok()) {
        if !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    endpoints
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
pub struct RefusalNote {
    pub at: String,
    pub reason: String,
}

/// The data dir of an edge, locked.
#[derive(Debug)]
pub struct EdgeState {
    dir: DataDir,
}

impl EdgeState {
    pub fn open(path: &Path) -> Result<EdgeState, StateError> {
        Ok(EdgeState { dir: DataDir::open_as(path, ProcessRole::Edge)? })
    }

    /// `None`: not enrolled yet.
    pub fn load(&self) -> Result<Option<EdgeIdentity>, StateError> {
        let Some(text) = self.read(IDENTITY)? else { return Ok(None) };
        let identity = |why| self.damaged(IDENTITY, why);
        let text = String::from_utf8(text).map_err(|_| identity("it is not text"))?;
        let key = PrivateKey::from_pem(&text).map_err(|_| identity("no private key"))?;
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
        let settings = self.settings()?.ok_or_else(|| self.damaged(SETTINGS, "missing, or not JSON"))?;
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
        key: &PrivateKey,
        issued: &IssuedCertificate,
        peer: &PeerId,
        joined_at: &[ChannelEndpoint],
    ) -> Result<(), StateError> {
        let texts =
            |endpoints: &[ChannelEndpoint]| endpoints.iter().map(ChannelEndpoint::to_string).collect();
        let settings = Settings {
            version: VERSION,
            site: peer.site().to_owned(),
            gateway: peer.gateway().to_owned(),
            endpoints: texts(&issued.endpoints),
            joined_at: texts(joined_at),
        };
        self.dir.write(AUTHORITIES, pem::encode(&issued.authorities).as_bytes())?;
        self.write_settings(&settings)?;
        let identity = format!("{}{}", key.to_pem(), pem::encode(std::slice::from_ref(&issued.certificate)));
        self.dir.write(IDENTITY, identity.as_bytes())?;
        Ok(())
    }

    /// Saves the endpoints that the cloud announced, for the next start. The rest of the settings stays as it is.
    pub fn save_endpoints(&self, endpoints: &[ChannelEndpoint]) -> Result<(), StateError> {
        let Some(mut settings) = self.settings()? else { return Ok(()) };
        let texts: Vec<String> =
            endpoints.iter().take(ENDPOINTS_MAX).map(ChannelEndpoint::to_string).collect();
        if texts.is_empty() || texts == settings.endpoints {
            return Ok(());
        }
        settings.endpoints = texts;
        self.write_settings(&settings)
    }

    fn settings(&self) -> Result<Option<Settings>, StateError> {
        Ok(self.read(SETTINGS)?.and_then(|text| serde_json::from_slice(&text).ok()))
    }

    fn write_settings(&self, settings: &Settings) -> Result<(), StateError> {
        let settings = serde_json::to_vec_pretty(settings).expect("strings are always JSON");
        self.dir.write(SETTINGS, &settings)?;
        Ok(())
    }

    /// The key to enrol with: the one of an enrolment that was interrupted, or a new one, saved.
    pub fn pending_key(&self) -> Result<PrivateKey, StateError> {
        if let Some(text) = self.read(PENDING)? {
            // Nothing hangs on a pending key that cannot be read: it was never certified.
            if let Some(key) = String::from_utf8(text).ok().and_then(|text| PrivateKey::from_pem(&text).ok())
            {
                return Ok(key);
            }
            tracing::warn!("the key of an interrupted enrolment is damaged; making a new one");
        }
        self.new_pending_key()
    }

    pub fn new_pending_key(&self) -> Result<PrivateKey, StateError> {
        let key = PrivateKey::generate().map_err(|_| self.damaged(PENDING, "no key can be made"))?;
        self.dir.write(PENDING, key.to_pem().as_bytes())?;
        Ok(key)
    }

    pub fn clear_pending(&self) -> Result<(), StateError> {
        self.remove(PENDING)
    }

    /// The reason why the cloud refused this edge for good, if it did.
    pub fn refused(&self) -> Result<Option<RefusalNote>, StateError> {
        let Some(text) = self.read(REFUSED)? else { return Ok(None) };
        let unreadable = || RefusalNote { at: String::new(), reason: "unknown".to_owned() };
        Ok(Some(serde_json::from_slice(&text).unwrap_or_else(|_| unreadable())))
    }

    pub fn note_refused(&self, reason: String, now: SystemTime) -> Result<(), StateError> {
        let note = RefusalNote { at: UtcTimestamp(now).to_string(), reason };
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

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoints(texts: &str) -> Vec<ChannelEndpoint> {
        texts.split_whitespace().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_endpoints_of_the_token_are_tried_whatever_the_cloud_told() {
        let check = |told: &str, joined_at: &str, expected: &str| {
            assert_eq!(dial_order(&endpoints(told), &endpoints(joined_at)), endpoints(expected));
        };
        check("", "a:1", "a:1");
        check("a:1 b:1", "a:1", "a:1 b:1");
        check("b:1 c:1", "a:1", "b:1 a:1 c:1");
        check("b:1 c:1", "a:1 b:1 d:1", "b:1 a:1 c:1 d:1");
        let many: Vec<ChannelEndpoint> =
            (1..=40).map(|port| format!("dead:{port}").parse().unwrap()).collect();
        let order = dial_order(&many, &endpoints("a:1"));
        assert_eq!((order.len(), order[1].host()), (ENDPOINTS_MAX, "a"), "one dial reaches the token's");
    }

    #[test]
    fn of_what_the_cloud_tells_only_what_can_be_dialled_is_taken() {
        let check = |texts: &[&str], expected: &str| {
            let texts: Vec<String> = texts.iter().map(|text| (*text).to_owned()).collect();
            assert_eq!(read_endpoints(&texts), endpoints(expected), "{texts:?}");
        };
        check(&[], "");
        check(&["a:1", "b:2", "a:1"], "a:1 b:2");
        check(&["", "a", "a:0", "a b:1", "\u{1b}:1", "[::1:7", &"x".repeat(300)], "");
        check(&["nonsense", "a:1"], "a:1");
        let many: Vec<String> = (1..=1000).map(|port| format!("a:{port}")).collect();
        assert_eq!(read_endpoints(&many).len(), ENDPOINTS_MAX);
    }

    #[test]
    fn endpoints_are_kept_beside_those_of_the_token() {
        let folder = tempfile::tempdir().unwrap();
        let state = EdgeState::open(folder.path()).unwrap();
        state.save_endpoints(&endpoints("b:1")).unwrap();
        assert!(state.settings().unwrap().is_none(), "an edge that is not enrolled keeps none");
        let (version, site, gateway) = (VERSION, "oslo".to_owned(), "oslo-1".to_owned());
        let texts = vec!["a:1".to_owned()];
        let settings = Settings { version, site, gateway, endpoints: texts.clone(), joined_at: texts };
        state.write_settings(&settings).unwrap();
        for (told, kept) in [("a:1 b:1", "a:1 b:1"), ("", "a:1 b:1"), ("c:1", "c:1")] {
            state.save_endpoints(&endpoints(told)).unwrap();
            let settings = state.settings().unwrap().unwrap();
            assert_eq!(read_endpoints(&settings.endpoints), endpoints(kept), "{told}");
            assert_eq!(settings.joined_at, ["a:1"]);
        }
    }
}
