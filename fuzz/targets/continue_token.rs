//! Continue tokens of lists, which clients send back.
//!
//! Text is tried as it is, and also in the base64 encoding of tokens. Invariants: a token names a position
//! inside its collection, for no other collection, and a printed token parses as the same.
#![no_main]

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use causeway_api::Kind;
use causeway_apiserver::registry::token::ContinueToken;
use causeway_fuzz::assert_short;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    check(&URL_SAFE_NO_PAD.encode(data));
    if let Ok(text) = std::str::from_utf8(data) {
        check(text);
    }
});

fn check(text: &str) {
    let mut taken = 0;
    for kind in Kind::ALL {
        match ContinueToken::parse(kind, text) {
            Ok(token) => {
                taken += 1;
                assert!(!token.after.is_empty() && !token.after.contains('/'));
                assert_eq!(ContinueToken::parse(kind, &token.print(kind)).as_ref(), Ok(&token));
            }
            Err(status) => {
                assert_eq!(status.code, 400);
                assert_short(&status.message, 1024);
            }
        }
    }
    assert!(taken <= 1, "a token belongs to one collection");
}
