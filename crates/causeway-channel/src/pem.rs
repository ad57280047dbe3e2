//! Encodes and decodes certificates in PEM.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;

/// One block per certificate, in this order.
pub fn encode(certificates: &[CertificateDer<'_>]) -> String {
    let mut text = String::new();
    for certificate in certificates {
        text.push_str("-----BEGIN CERTIFICATE-----\n");
        let encoded = STANDARD.encode(certificate);
        // RFC 7468 wants lines of 64 characters; base64 is ASCII, so bytes are characters.
        for line in encoded.as_bytes().chunks(64) {
            text.extend(line.iter().map(|&byte| char::from(byte)));
            text.push('\n');
        }
        text.push_str("-----END CERTIFICATE-----\n");
    }
    text
}

/// Decodes every certificate in `text`; blocks of other kinds are ignored. Returns `None` when a block is
/// damaged.
pub fn decode(text: &[u8]) -> Option<Vec<CertificateDer<'static>>> {
    CertificateDer::pem_slice_iter(text).collect::<Result<_, _>>().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certificates_survive_their_text() {
        let certificates: Vec<_> =
            [0usize, 1, 47, 48, 49, 700].iter().map(|&bytes| CertificateDer::from(vec![7; bytes])).collect();
        let text = encode(&certificates);
        assert!(text.lines().all(|line| line.len() <= 64));
        assert_eq!(decode(text.as_bytes()).unwrap(), certificates);
        assert_eq!(decode(b"no certificates here").unwrap(), vec![]);
        assert_eq!(decode(b"-----BEGIN CERTIFICATE-----\n!!!\n-----END CERTIFICATE-----\n"), None);
    }
}
