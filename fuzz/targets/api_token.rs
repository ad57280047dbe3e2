//! API tokens as text, the way they stand behind `Authorization: Bearer`.
//!
//! Text is tried as it is; bytes are also wrapped as a token whose checksum is right, because no mutation
//! would ever guess that. Invariants: a token has one form; a refusal never repeats the text, and the parsed
//! secret is never shown.
#![no_main]

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use causeway_channel::peer::sha256;
use causeway_cloud::identity::readers::{api_text, parse_api_text};
use causeway_fuzz::assert_short;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let wrapped = wrap(data);
    check(&wrapped);
    assert_eq!(parse_api_text(&wrapped).is_ok(), data.len() == 32, "a secret has 32 bytes");
    if let Ok(text) = std::str::from_utf8(data) {
        check(text);
    }
});

fn wrap(secret: &[u8]) -> String {
    let bytes = [secret, &sha256(secret)[..4]].concat();
    format!("cwa1.{}", URL_SAFE_NO_PAD.encode(bytes))
}

fn check(text: &str) {
    match parse_api_text(text) {
        Ok(secret) => {
            assert_eq!(api_text(&secret), text, "a token has one form");
            assert!(!format!("{secret:?}").contains(&text[5..]));
        }
        Err(why) => assert_short(why, 100),
    }
}
