//! The first bytes of a client of TLS, as a shared entry reads them.
//!
//! What must hold: more bytes never change a name that was read, nor make one of bytes that are no TLS; a name is one that
//! DNS could have; the reader never wants more than its bound.
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
