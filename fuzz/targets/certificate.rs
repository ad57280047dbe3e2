//! Certificates, certificate requests and keys from untrusted peers.
//!
//! Invariants: an identity read from a certificate prints as the URI it came from; an accepted request was
//! signed by the key it shows; a certificate that claims to be an authority is never accepted as a client.
#![no_main]

use causeway_channel::key::{CertificateRequest, RequestedIdentity};
use causeway_channel::tls::{bundle_hash, verify_client};
use causeway_channel::{CertificateFacts, PrivateKey, KeyHash, PeerId};
use causeway_fuzz::assert_short;
use libfuzzer_sys::fuzz_target;
use std::sync::LazyLock;

// The CA of the seeds: their certificates verify against it, mutations of them must not.
static AUTHORITY: &[u8] = include_bytes!("../seeds/certificate/authority.der");
static CLIENT: LazyLock<CertificateFacts> = LazyLock::new(|| {
    CertificateFacts::read(include_bytes!("../seeds/certificate/gateway.der"))
        .expect("the seed is a certificate")
});

fuzz_target!(|data: &[u8]| {
    match CertificateFacts::read(data) {
        Ok(facts) => check(&facts),
        Err(error) => assert_short(&error.to_string(), 4 * 1024),
    }
    if let Ok(request) = CertificateRequest::read(data) {
        assert_eq!(request.key, KeyHash::of_spki(&request.spki));
        match request.wish {
            RequestedIdentity::Gateway(peer) => check_peer(&peer),
            RequestedIdentity::Other(text) => assert_short(&text, 800),
            RequestedIdentity::Nothing => {}
        }
    }
    let authority = AUTHORITY.to_vec().into();
    if verify_client(&data.to_vec().into(), &[authority]).is_ok() {
        let facts = CertificateFacts::read(data).expect("what the verifier takes can be read");
        assert_eq!(facts, *CLIENT, "only what the CA signed passes");
    }
    let _ = bundle_hash(&[data.to_vec().into()]);
    if let Ok(text) = std::str::from_utf8(data)
        && let Ok(key) = PrivateKey::from_pem(text)
    {
        let again = PrivateKey::from_pem(&key.to_pem()).expect("what was written can be read");
        assert_eq!(again.hash(), key.hash());
    }
});

fn check(facts: &CertificateFacts) {
    if let Some(peer) = &facts.peer {
        check_peer(peer);
    }
    let _ = format!("{facts:?}");
}

fn check_peer(peer: &PeerId) {
    assert_eq!(peer.uri().parse::<PeerId>().as_ref(), Ok(peer));
}
