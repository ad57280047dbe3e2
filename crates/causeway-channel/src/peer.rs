//! Identity of a peer, read from its certificate.
//!
//! The URI `spiffe://causeway/site/SITE/gateway/GATEWAY` names the gateway; the hash of the public key
//! identifies the key itself, which revocation refers to. Signatures are checked in `tls`.

use std::fmt;
use std::str::FromStr;
use std::time::SystemTime;

use aws_lc_rs::digest;
use x509_parser::prelude::{FromDer, GeneralName, X509Certificate};

use crate::clock::from_unix_seconds;

const SCHEME: &str = "spiffe://causeway/";
/// As long as a Kubernetes name may be.
const NAME_BYTES_MAX: usize = 253;

/// One gateway of one site.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerId {
    site: String,
    gateway: String,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PeerIdError {
    #[error("the name {name:?} of the {what} is not usable: {why}")]
    Name { what: &'static str, name: String, why: &'static str },
    #[error("{uri:?} is not of the form spiffe://causeway/site/SITE/gateway/GATEWAY")]
    Form { uri: String },
}

impl PeerId {
    pub fn new(site: impl Into<String>, gateway: impl Into<String>) -> Result<PeerId, PeerIdError> {
        let (site, gateway) = (site.into(), gateway.into());
        check_name("site", &site)?;
        check_name("gateway", &gateway)?;
        Ok(PeerId { site, gateway })
    }

    pub fn site(&self) -> &str {
        &self.site
    }

    pub fn gateway(&self) -> &str {
        &self.gateway
    }

    /// Returns the form in certificates.
    pub fn uri(&self) -> String {
        format!("{SCHEME}site/{}/gateway/{}", self.site, self.gateway)
    }
}

impl FromStr for PeerId {
    type Err = PeerIdError;

    fn from_str(uri: &str) -> Result<PeerId, PeerIdError> {
        let form = || PeerIdError::Form { uri: uri.chars().take(600).collect() };
        let path = uri.strip_prefix(SCHEME).ok_or_else(form)?;
        match path.split('/').collect::<Vec<_>>()[..] {
            ["site", site, "gateway", gateway] => PeerId::new(site, gateway),
            _ => Err(form()),
        }
    }
}

impl fmt::Display for PeerId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.site, self.gateway)
    }
}

// Names go into URIs, store keys and file names as they are, so nothing may need escaping in any of them.
fn check_name(what: &'static str, name: &str) -> Result<(), PeerIdError> {
    let refuse = |why| Err(PeerIdError::Name { what, name: name.chars().take(80).collect(), why });
    let bytes = name.as_bytes();
    let (Some(first), Some(last)) = (bytes.first(), bytes.last()) else {
        return refuse("it is empty");
    };
    if bytes.len() > NAME_BYTES_MAX {
        return refuse("it is longer than 253 characters");
    }
    if !bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte)) {
        return refuse("only letters, digits, '-', '_' and '.' are allowed");
    }
    if !first.is_ascii_alphanumeric() || !last.is_ascii_alphanumeric() {
        return refuse("it must begin and end with a letter or a digit");
    }
    Ok(())
}

/// SHA-256 of a public key in its SubjectPublicKeyInfo form.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KeyHash([u8; 32]);

impl KeyHash {
    pub fn of_spki(spki: &[u8]) -> KeyHash {
        KeyHash(sha256(spki))
    }

    pub fn from_bytes(bytes: &[u8]) -> Option<KeyHash> {
        Some(KeyHash(bytes.try_into().ok()?))
    }

    pub fn from_hex(text: &str) -> Option<KeyHash> {
        if text.len() != 64 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return None;
        }
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * index..2 * index + 2)?, 16).ok()?;
        }
        Some(KeyHash(bytes))
    }

    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for KeyHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for KeyHash {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    let mut out = [0; 32];
    out.copy_from_slice(digest::digest(&digest::SHA256, bytes).as_ref());
    out
}

/// Content of a certificate. Nothing here has been verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The gateway it names, if its only URI names one.
    pub peer: Option<PeerId>,
    pub common_name: String,
    pub organizations: Vec<String>,
    pub key: KeyHash,
    pub serial: String,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
    pub is_authority: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    #[error("the certificate cannot be read: {0}")]
    Malformed(String),
    #[error("the certificate names more than one URI")]
    SeveralUris,
    #[error("the certificate names no gateway")]
    Peer(#[source] PeerIdError),
}

impl CertificateFacts {
    pub fn read(der: &[u8]) -> Result<CertificateFacts, CertificateError> {
        let malformed = |why: String| CertificateError::Malformed(why);
        let (rest, certificate) =
            X509Certificate::from_der(der).map_err(|error| malformed(error.to_string()))?;
        if !rest.is_empty() {
            return Err(malformed("bytes after its end".to_owned()));
        }
        let subject = certificate.subject();
        let text = |value: &x509_parser::x509::AttributeTypeAndValue| value.as_str().ok().map(str::to_owned);
        Ok(CertificateFacts {
            peer: peer(&certificate)?,
            common_name: subject.iter_common_name().find_map(text).unwrap_or_default(),
            organizations: subject.iter_organization().filter_map(text).collect(),
            key: KeyHash::of_spki(certificate.public_key().raw),
            serial: certificate.raw_serial().iter().map(|byte| format!("{byte:02x}")).collect(),
            not_before: from_unix_seconds(certificate.validity().not_before.timestamp()),
            not_after: from_unix_seconds(certificate.validity().not_after.timestamp()),
            is_authority: certificate.is_ca(),
        })
    }
}

fn peer(certificate: &X509Certificate<'_>) -> Result<Option<PeerId>, CertificateError> {
    let names = certificate
        .subject_alternative_name()
        .map_err(|error| CertificateError::Malformed(error.to_string()))?;
    let mut uris = names.iter().flat_map(|names| &names.value.general_names).filter_map(|name| match name {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    match (uris.next(), uris.next()) {
        (None, _) => Ok(None),
        (Some(uri), None) => uri.parse().map(Some).map_err(CertificateError::Peer),
        (Some(_), Some(_)) => Err(CertificateError::SeveralUris),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_uri_names_one_gateway_or_is_refused() {
        let reads = |uri: &str, site: &str, gateway: &str| {
            let peer: PeerId = uri.parse().unwrap();
            assert_eq!((peer.site(), peer.gateway()), (site, gateway), "{uri}");
            assert_eq!(peer.uri(), uri);
        };
        reads("spiffe://causeway/site/Tokyo/gateway/EGateway1", "Tokyo", "EGateway1");
        reads("spiffe://causeway/site/a.b-c/gateway/0", "a.b-c", "0");
        for refused in [
            "",
            "spiffe://causeway/",
            "spiffe://causeway/site/a",
            "spiffe://causeway/site/a/gateway/",
            "spiffe://causeway/site//gateway/b",
            "spiffe://causeway/site/a/gateway/b/",
            "spiffe://causeway/site/a/gateway/b/c",
            "spiffe://causeway/site/a/node/b",
            "spiffe://other/site/a/gateway/b",
            "SPIFFE://causeway/site/a/gateway/b",
            "spiffe://causeway/site/a%2fb/gateway/b",
            "spiffe://causeway/site/a b/gateway/b",
            "spiffe://causeway/site/a/gateway/b?x",
            "spiffe://causeway/site/a/gateway/b#x",
            "spiffe://causeway/site/ä/gateway/b",
            "spiffe://causeway/site/../gateway/b",
            "spiffe://causeway/site/-a/gateway/b",
            "spiffe://causeway/site/a\0/gateway/b",
        ] {
            assert!(refused.parse::<PeerId>().is_err(), "{refused}");
        }
        assert!(PeerId::new("a".repeat(253), "b").is_ok());
        assert!(PeerId::new("a".repeat(254), "b").is_err());
    }

    #[test]
    fn a_key_hash_reads_what_it_writes() {
        let hash = KeyHash::of_spki(b"key");
        assert_eq!(KeyHash::from_hex(&hash.to_string()), Some(hash));
        assert_eq!(KeyHash::from_hex("00"), None);
        assert_eq!(KeyHash::from_hex(&"zz".repeat(32)), None);
        assert_eq!(KeyHash::from_hex(&"+1".repeat(32)).map(|_| ()), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_certificate_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = CertificateFacts::read(&bytes);
        }

        #[test]
        fn names_survive_the_uri(site in "[A-Za-z0-9]([-A-Za-z0-9_.]{0,20}[A-Za-z0-9])?", gateway in "[A-Za-z0-9]{1,20}") {
            let peer = PeerId::new(site, gateway).unwrap();
            prop_assert_eq!(peer.uri().parse::<PeerId>().unwrap(), peer);
        }
    }
}
