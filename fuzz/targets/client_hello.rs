//! The first bytes of a TLS client, as a shared entry parses them.
//!
//! Invariants: more bytes never change a name that was read, nor produce one from bytes that are not TLS; a
//! name is a valid DNS name; the parser never wants more than its bound.
#![no_main]

use causeway_gateway::proxy::sni::{HELLO_BYTES_MAX, ClientHello, read};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let whole = read(data);
    if let Ok(Some(ClientHello::Named(name))) = &whole {
        assert!(!name.is_empty() && name.len() <= 253);
        assert!(name.bytes().all(|byte| byte.is_ascii_graphic() && !byte.is_ascii_uppercase()), "{name:?}");
    }
    assert!(whole != Ok(None) || data.len() < HELLO_BYTES_MAX);
    for length in [data.len() / 3, data.len() / 2, data.len().saturating_sub(1)] {
        match read(&data[..length]) {
            Ok(None) => {}
            early => assert_eq!(early, whole),
        }
    }
});
