//! One certificate authority: a key, its certificate, and the certificates it signs.
//!
//! The content of a certificate comes from the caller's `CertificateSubject`, never from a request. Time is passed in.
//! `ca_store` keeps the key.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use causeway_channel::clock::{BACKDATE, unix_seconds};
use causeway_channel::key::KeyError;
use causeway_channel::{KeyHash, PeerId, PrivateKey, tls};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyUsagePurpose, SanType, SerialNumber, SubjectPublicKeyInfo,
};
use rustls_pki_types::CertificateDer;

const DAY: Duration = Duration::from_secs(24 * 3600);
/// Longer than hardware lives; `rotate` replaces it earlier.
pub const AUTHORITY_LIFETIME: Duration = DAY.saturating_mul(3653);
pub const GATEWAY_LIFETIME: Duration = DAY.saturating_mul(30);
pub const SERVER_LIFETIME: Duration = DAY.saturating_mul(90);
pub const ADMIN_LIFETIME: Duration = DAY.saturating_mul(365);

/// A CA that can sign.
#[derive(Debug)]
pub struct Authority {
    key: PrivateKey,
    certificate: CertificateDer<'static>,
    not_after: SystemTime,
}

/// The subject of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CertificateSubject {
    Gateway(PeerId),
    /// A person or a program; the organization is the group that gives the role.
    User {
        name: String,
        organization: &'static str,
    },
    Server {
        names: Vec<CloudServerName>,
    },
    /// The cloud itself, when it dials another replica.
    Replica,
}

/// A name under which the cloud is reached.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum CloudServerName {
    Dns(String),
    Ip(IpAddr),
}

/// A certificate fresh from the press.
#[derive(Debug, Clone)]
pub struct SignedCertificate {
    pub certificate: CertificateDer<'static>,
    pub serial: String,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
}

#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    #[error(transparent)]
    Key(#[from] KeyError),
    #[error("no certificate can be made")]
    Sign(#[from] rcgen::Error),
    #[error("the CA's certificate cannot be read")]
    Read(#[from] causeway_channel::peer::CertificateError),
    #[error("the CA's certificate and its key do not belong together")]
    Mismatch,
}

impl Authority {
    pub fn create(now: SystemTime) -> Result<Authority, AuthorityError> {
        let key = PrivateKey::generate()?;
        let mut params = CertificateParams::default();
        // Two CAs that exist side by side need different names, or a verifier may try the wrong one.
        let short: String = key.hash().to_string().chars().take(8).collect();
        params.distinguished_name = name(&format!("Causeway CA {short}"), None);
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.serial_number = Some(serial());
        // Certificates are backdated; their CA must be older than the oldest of them.
        let not_after = now + AUTHORITY_LIFETIME;
        set_validity(&mut params, now - DAY, not_after);
        let certificate = params.self_signed(key.pair())?.der().clone();
        Ok(Authority { key, certificate, not_after })
    }

    pub fn restore(
        certificate: CertificateDer<'static>,
        key: PrivateKey,
    ) -> Result<Authority, AuthorityError> {
        let facts = causeway_channel::CertificateFacts::read(&certificate)?;
        if facts.key != key.hash() {
            return Err(AuthorityError::Mismatch);
        }
        Ok(Authority { key, certificate, not_after: facts.not_after })
    }

    /// The hash of its public key, which join tokens carry.
    pub fn id(&self) -> KeyHash {
        self.key.hash()
    }

    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    pub fn not_after(&self) -> SystemTime {
        self.not_after
    }

    /// For `ca_store`, which seals it.
    pub(super) fn key(&self) -> &PrivateKey {
        &self.key
    }

    /// Signs a certificate over the public key `spki`.
    pub fn sign(
        &self,
        subject: &CertificateSubject,
        spki: &[u8],
        now: SystemTime,
        lifetime: Duration,
    ) -> Result<SignedCertificate, AuthorityError> {
        let serial = serial();
        let (not_before, not_after) = (now - BACKDATE, (now + lifetime).min(self.not_after));
        let mut params = subject.params()?;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        set_validity(&mut params, not_before, not_after);
        params.serial_number = Some(serial.clone());
        let public_key = SubjectPublicKeyInfo::from_der(spki)?;
        let issuer = Issuer::from_ca_cert_der(&self.certificate, self.key.pair())?;
        let certificate = params.signed_by(&public_key, &issuer)?.der().clone();
        let serial = serial.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(SignedCertificate { certificate, serial, not_before, not_after })
    }
}

impl CertificateSubject {
    fn params(&self) -> Result<CertificateParams, rcgen::Error> {
        let mut params = CertificateParams::default();
        match self {
            CertificateSubject::Gateway(peer) => {
                params.distinguished_name = name(peer.gateway(), Some("causeway:gateway"));
                params.subject_alt_names = vec![SanType::URI(peer.uri().try_into()?)];
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            }
            CertificateSubject::User { name: user, organization } => {
                params.distinguished_name = name(user, Some(organization));
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            }
            CertificateSubject::Server { names } => {
                params.distinguished_name = name("causeway cloud", None);
                params.subject_alt_names =
                    names.iter().map(CloudServerName::san).collect::<Result<_, _>>()?;
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
            }
            CertificateSubject::Replica => {
                params.distinguished_name = name("causeway replica", None);
                params.subject_alt_names = vec![SanType::DnsName(tls::CLOUD_NAME.try_into()?)];
                params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
            }
        }
        Ok(params)
    }
}

impl CloudServerName {
    fn san(&self) -> Result<SanType, rcgen::Error> {
        Ok(match self {
            CloudServerName::Dns(name) => SanType::DnsName(name.as_str().try_into()?),
            CloudServerName::Ip(address) => SanType::IpAddress(*address),
        })
    }
}

fn name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    // X.520 ends a common name at 64 characters; the full name of a gateway is in its URI.
    name.push(DnType::CommonName, common_name.chars().take(64).collect::<String>());
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name
}

fn serial() -> SerialNumber {
    let secret = causeway_channel::TokenSecret::generate();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&secret.expose()[..16]);
    // Always positive and of full length.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    SerialNumber::from_slice(&bytes)
}

fn set_validity(params: &mut CertificateParams, not_before: SystemTime, not_after: SystemTime) {
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let since = |time| Duration::from_secs(unix_seconds(time).unsigned_abs());
    params.not_before = epoch + since(not_before);
    params.not_after = epoch + since(not_after);
}

#[cfg(test)]
mod tests {
    use causeway_channel::CertificateFacts;
    use causeway_channel::clock::from_unix_seconds;
    use causeway_channel::key::CertificateRequest;

    use super::*;

    fn now() -> SystemTime {
        from_unix_seconds(1_800_000_000)
    }

    fn spki(key: &PrivateKey) -> Vec<u8> {
        let peer = PeerId::new("x", "y").unwrap();
        CertificateRequest::read(&key.request(&peer).unwrap()).unwrap().spki
    }

    #[test]
    fn a_gateway_gets_the_name_of_its_subject_and_thirty_days() {
        let authority = Authority::create(now()).unwrap();
        let key = PrivateKey::generate().unwrap();
        let peer = PeerId::new("Tokyo", "G".repeat(200)).unwrap();
        let signed = authority
            .sign(&CertificateSubject::Gateway(peer.clone()), &spki(&key), now(), GATEWAY_LIFETIME)
            .unwrap();
        let facts = CertificateFacts::read(&signed.certificate).unwrap();
        assert_eq!(facts.peer, Some(peer));
        assert_eq!(facts.key, key.hash());
        assert_eq!(facts.serial, signed.serial);
        assert_eq!((facts.not_before, facts.not_after), (now() - BACKDATE, now() + GATEWAY_LIFETIME));
        assert!(!facts.is_authority);
        tls::verify_client(&signed.certificate, &[authority.certificate().clone()]).unwrap();
        let other = Authority::create(now()).unwrap();
        assert!(tls::verify_client(&signed.certificate, &[other.certificate().clone()]).is_err());
    }

    #[test]
    fn no_certificate_outlives_its_ca() {
        let authority = Authority::create(now()).unwrap();
        let late = authority.not_after() - DAY;
        let user = CertificateSubject::User { name: "a".into(), organization: "causeway:admin" };
        let signed =
            authority.sign(&user, &spki(&PrivateKey::generate().unwrap()), late, ADMIN_LIFETIME).unwrap();
        assert_eq!(signed.not_after, authority.not_after());
    }

    #[test]
    fn a_server_certificate_is_no_client_certificate() {
        let authority = Authority::create(now()).unwrap();
        let names =
            vec![CloudServerName::Dns("a.example".into()), CloudServerName::Ip("::1".parse().unwrap())];
        let key = PrivateKey::generate().unwrap();
        let signed = authority
            .sign(&CertificateSubject::Server { names }, &spki(&key), now(), SERVER_LIFETIME)
            .unwrap();
        assert!(tls::verify_client(&signed.certificate, &[authority.certificate().clone()]).is_err());
    }

    #[test]
    fn only_a_replica_has_the_name_of_the_cloud_and_is_a_client() {
        let authority = Authority::create(now()).unwrap();
        let spki = spki(&PrivateKey::generate().unwrap());
        let check = |subject: CertificateSubject, is_client: bool, is_cloud: bool| {
            let signed = authority.sign(&subject, &spki, now(), SERVER_LIFETIME).unwrap().certificate;
            let client = tls::verify_client(&signed, &[authority.certificate().clone()]).is_ok();
            assert_eq!((client, tls::is_cloud(&signed)), (is_client, is_cloud), "{subject:?}");
        };
        check(CertificateSubject::Replica, true, true);
        check(CertificateSubject::Gateway(PeerId::new("cloud", tls::CLOUD_NAME).unwrap()), true, false);
        check(
            CertificateSubject::User { name: tls::CLOUD_NAME.into(), organization: "causeway:admin" },
            true,
            false,
        );
        let names = vec![CloudServerName::Dns(tls::CLOUD_NAME.into())];
        check(CertificateSubject::Server { names }, false, true);
    }

    #[test]
    fn a_ca_is_restored_only_with_its_own_key() {
        let authority = Authority::create(now()).unwrap();
        let again = PrivateKey::from_pem(&authority.key().to_pem()).unwrap();
        let restored = Authority::restore(authority.certificate().clone(), again).unwrap();
        assert_eq!((restored.id(), restored.not_after()), (authority.id(), authority.not_after()));
        let stranger = Authority::restore(authority.certificate().clone(), PrivateKey::generate().unwrap());
        assert!(matches!(stranger, Err(AuthorityError::Mismatch)));
    }
}
