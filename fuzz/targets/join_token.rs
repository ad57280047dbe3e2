//! Join tokens, endpoints and identities as text.
//!
//! Text is tried as it is; bytes are also wrapped as the body of a token whose length and checksum are right,
//! because no mutation would ever guess those. Invariants: a parsed value prints as text that parses as the
//! same; refusals are short and do not show a secret.
#![no_main]

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use causeway_channel::peer::sha256;
use causeway_channel::{ChannelEndpoint, JoinToken, KeyHash, PeerId, TokenSecret};
use causeway_fuzz::assert_short;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check_token(&wrap(data));
    let Ok(text) = std::str::from_utf8(data) else { return };
    check_token(text);
    if let Ok(endpoint) = text.parse::<ChannelEndpoint>() {
        assert_eq!(endpoint.to_string().parse::<ChannelEndpoint>().as_ref(), Ok(&endpoint));
        assert!(endpoint.port() != 0 && !endpoint.host().is_empty());
    }
    match text.parse::<PeerId>() {
        Ok(peer) => {
            assert_eq!(peer.uri(), text, "an identity has one form");
            assert_eq!(PeerId::new(peer.site(), peer.gateway()).as_ref(), Ok(&peer));
        }
        Err(error) => assert_short(&error.to_string(), 8 * 1024),
    }
    if let Some(hash) = KeyHash::from_hex(text) {
        assert_eq!(hash.to_string(), text.to_ascii_lowercase());
    }
});

fn wrap(body: &[u8]) -> String {
    let body = &body[..body.len().min(5000)];
    let mut bytes = u16::try_from(body.len()).expect("bounded above").to_be_bytes().to_vec();
    bytes.extend_from_slice(body);
    let checksum = sha256(&bytes);
    bytes.extend_from_slice(&checksum[..4]);
    format!("cwj1.{}", URL_SAFE_NO_PAD.encode(bytes))
}

fn check_token(text: &str) {
    match text.parse::<JoinToken>() {
        Ok(token) => {
            assert_eq!(
                token.to_text().parse::<JoinToken>().as_ref(),
                Ok(&token),
                "a token reads what it prints"
            );
            assert_eq!(TokenSecret::from_bytes(token.secret.expose()).as_ref(), Some(&token.secret));
            assert!(format!("{token:?}").contains("Secret(…)"));
        }
        Err(error) => assert_short(&error.to_string(), 4 * 1024),
    }
}
