//! Private keys of gateways, and certificate requests (CSR) for them.
//!
//! Every key is ECDSA P-256. A request proves that the sender holds the key; the names in it are only a wish,
//! which the issuer may show and never follows.

use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PKCS_ECDSA_P256_SHA256, SanType};
use rustls_pki_types::PrivateKeyDer;
use x509_parser::certification_request::X509CertificationRequest;
use x509_parser::extensions::{GeneralName, ParsedExtension};
use x509_parser::oid_registry::{OID_EC_P256, OID_KEY_TYPE_EC_PUBLIC_KEY};
use x509_parser::prelude::FromDer;
use x509_parser::x509::SubjectPublicKeyInfo;

use crate::peer::{KeyHash, PeerId};

/// A private key. Its `Debug` shows only the hash of its public half.
pub struct PrivateKey {
    pair: KeyPair,
}

#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("no key can be made")]
    Generate(#[source] rcgen::Error),
    #[error("the private key cannot be read: it must be ECDSA P-256, PKCS #8, in PEM")]
    Read(#[source] rcgen::Error),
    #[error("the certificate request cannot be made")]
    Request(#[source] rcgen::Error),
}

impl PrivateKey {
    pub fn generate() -> Result<PrivateKey, KeyError> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(KeyError::Generate)?;
        Ok(PrivateKey { pair })
    }

    pub fn from_pem(pem: &str) -> Result<PrivateKey, KeyError> {
        let pair = KeyPair::from_pem_and_sign_algo(pem, &PKCS_ECDSA_P256_SHA256).map_err(KeyError::Read)?;
        Ok(PrivateKey { pair })
    }

    /// Returns the private key itself: for a file of mode 0600 and nothing else.
    pub fn to_pem(&self) -> String {
        self.pair.serialize_pem()
    }

    pub fn to_der(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.pair.serialize_der().into())
    }

    pub fn hash(&self) -> KeyHash {
        KeyHash::of_spki(&rcgen::PublicKeyData::subject_public_key_info(&self.pair))
    }

    /// Returns the key pair for signing certificates.
    pub fn pair(&self) -> &KeyPair {
        &self.pair
    }

    /// Returns a certificate request in DER that names no gateway.
    pub fn unnamed_request(&self) -> Result<Vec<u8>, KeyError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&self.pair).map_err(KeyError::Request)?;
        Ok(request.der().to_vec())
    }

    /// Returns a certificate request in DER. `wish` is for people who read it.
    pub fn request(&self, wish: &PeerId) -> Result<Vec<u8>, KeyError> {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, wish.gateway());
        let uri = wish.uri().try_into().map_err(KeyError::Request)?;
        params.subject_alt_names = vec![SanType::URI(uri)];
        let request = params.serialize_request(&self.pair).map_err(KeyError::Request)?;
        Ok(request.der().to_vec())
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Key({})", self.hash())
    }
}

/// A request whose signature was checked: the sender holds the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    /// The public key, as SubjectPublicKeyInfo in DER.
    pub spki: Vec<u8>,
    pub key: KeyHash,
    /// The gateway that the sender claims to be. Never the base of a certificate.
    pub wish: RequestedIdentity,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestedIdentity {
    Nothing,
    Gateway(PeerId),
    /// Names that no gateway has.
    Other(String),
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CertificateRequestError {
    #[error("it is not a PKCS #10 request in DER")]
    Malformed,
    #[error("its key is not ECDSA P-256")]
    KeyType,
    #[error("its signature does not match its key")]
    Signature,
}

impl CertificateRequest {
    pub fn read(der: &[u8]) -> Result<CertificateRequest, CertificateRequestError> {
        let (rest, request) =
            X509CertificationRequest::from_der(der).map_err(|_| CertificateRequestError::Malformed)?;
        if !rest.is_empty() {
            return Err(CertificateRequestError::Malformed);
        }
        let spki = &request.certification_request_info.subject_pki;
        if !is_p256(spki) {
            return Err(CertificateRequestError::KeyType);
        }
        request.verify_signature().map_err(|_| CertificateRequestError::Signature)?;
        Ok(CertificateRequest {
            spki: spki.raw.to_vec(),
            key: KeyHash::of_spki(spki.raw),
            wish: wish(&request),
        })
    }
}

fn is_p256(spki: &SubjectPublicKeyInfo<'_>) -> bool {
    let curve = spki.algorithm.parameters.as_ref().and_then(|parameters| parameters.as_oid().ok());
    // An uncompressed point: one byte of form, two coordinates of 32 bytes.
    spki.algorithm.algorithm == OID_KEY_TYPE_EC_PUBLIC_KEY
        && curve == Some(OID_EC_P256)
        && spki.subject_public_key.data.len() == 65
}

fn wish(request: &X509CertificationRequest<'_>) -> RequestedIdentity {
    let extensions = request.requested_extensions().into_iter().flatten();
    for extension in extensions {
        let ParsedExtension::SubjectAlternativeName(names) = extension else { continue };
        match &names.general_names[..] {
            [] => {}
            [GeneralName::URI(uri)] => match uri.parse() {
                Ok(peer) => return RequestedIdentity::Gateway(peer),
                Err(_) => return RequestedIdentity::Other(shorten(uri)),
            },
            names => return RequestedIdentity::Other(shorten(&format!("{names:?}"))),
        }
    }
    RequestedIdentity::Nothing
}

// The text ends up in the audit log, and the sender chose it.
fn shorten(text: &str) -> String {
    text.chars().filter(|char| !char.is_control()).take(200).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn peer() -> PeerId {
        PeerId::new("Tokyo", "Gateway1").unwrap()
    }

    #[test]
    fn a_key_survives_its_file_and_shows_no_secret() {
        let key = PrivateKey::generate().unwrap();
        let again = PrivateKey::from_pem(&key.to_pem()).unwrap();
        assert_eq!(again.hash(), key.hash());
        let shown = format!("{key:?}");
        assert!(shown.contains(&key.hash().to_string()) && shown.len() < 80, "{shown}");
        assert!(PrivateKey::from_pem("no key").is_err());
    }

    #[test]
    fn a_request_proves_the_key_and_tells_the_wish() {
        let key = PrivateKey::generate().unwrap();
        let request = CertificateRequest::read(&key.request(&peer()).unwrap()).unwrap();
        assert_eq!(request.key, key.hash());
        assert_eq!(request.wish, RequestedIdentity::Gateway(peer()));
    }

    #[test]
    fn requests_that_prove_nothing_are_refused() {
        let key = PrivateKey::generate().unwrap();
        let good = key.request(&peer()).unwrap();
        let refused = |bytes: &[u8], error: CertificateRequestError| {
            assert_eq!(CertificateRequest::read(bytes), Err(error))
        };

        refused(b"", CertificateRequestError::Malformed);
        refused(&good[..good.len() - 1], CertificateRequestError::Malformed);
        refused(&[&good[..], b"x"].concat(), CertificateRequestError::Malformed);

        let mut forged = good.clone();
        let place = forged.windows(5).position(|bytes| bytes == b"Tokyo").unwrap();
        forged[place] = b'X';
        refused(&forged, CertificateRequestError::Signature);

        let p384 = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
        let other = CertificateParams::default().serialize_request(&p384).unwrap();
        refused(other.der(), CertificateRequestError::KeyType);
    }

    #[test]
    fn odd_wishes_are_told_apart() {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
        let mut params = CertificateParams::default();
        let nothing = params.serialize_request(&pair).unwrap();
        assert_eq!(CertificateRequest::read(nothing.der()).unwrap().wish, RequestedIdentity::Nothing);
        let unnamed = PrivateKey::generate().unwrap().unnamed_request().unwrap();
        assert_eq!(CertificateRequest::read(&unnamed).unwrap().wish, RequestedIdentity::Nothing);
        params.subject_alt_names = vec![SanType::DnsName("cloud.example".try_into().unwrap())];
        let dns = params.serialize_request(&pair).unwrap();
        assert!(matches!(CertificateRequest::read(dns.der()).unwrap().wish, RequestedIdentity::Other(_)));
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = CertificateRequest::read(&bytes);
        }

        #[test]
        fn no_flipped_bit_changes_what_is_read(place in 0usize..10_000, bit in 0u8..8) {
            let key = PrivateKey::generate().unwrap();
            let mut bytes = key.request(&peer()).unwrap();
            let request = CertificateRequest::read(&bytes).unwrap();
            let place = place % bytes.len();
            bytes[place] ^= 1 << bit;
            // Some bits outside the signed part mean nothing; every other one must break the signature.
            prop_assert!(!CertificateRequest::read(&bytes).is_ok_and(|read| read != request));
        }
    }
}
