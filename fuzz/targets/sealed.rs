//! The record of the CAs as it is stored, where other programs may have written.
//!
//! Input: the record as JSON, with each `sealedKey` in plain text: it is sealed here under its entry's own
//! name, because no mutation would ever guess a ciphertext. An input that begins with `!` is used as it is.
//! Invariants: a parsed record has as many CAs as it names; a refusal does not show a key.
#![no_main]

use std::sync::LazyLock;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use causeway_cloud::identity::readers::{SealKey, decode_cas};
use causeway_fuzz::json;
use causeway_store::Revision;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use serde_json::Value;

/// The same for every run, so that an input that was found can be replayed.
const SEAL_KEY: &str = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f\n";

static SEAL: LazyLock<SealKey> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("causeway-fuzz-seal-{}.key", std::process::id()));
    std::fs::write(&path, SEAL_KEY).expect("the folder for temporary files can be written");
    let seal = SealKey::load(&path).expect("the file can be read").expect("it was written just now");
    let _ = std::fs::remove_file(&path);
    seal
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    json::mutate(data, size, max_size, seed)
});

fuzz_target!(|data: &[u8]| {
    let (record, named) = match data.strip_prefix(b"!") {
        Some(raw) => (raw.to_vec(), None),
        None => match serde_json::from_slice(data) {
            Ok(record) => sealed(record),
            Err(_) => (data.to_vec(), None),
        },
    };
    match decode_cas(&record, Revision(7), &SEAL) {
        Ok(cas) => {
            let count = cas.authorities().len();
            assert!(count > 0 && named.is_none_or(|named| named == count));
            assert_eq!((cas.ids().len(), cas.bundle().len(), cas.dated().count()), (count, count, count));
        }
        Err(error) => assert!(!error.to_string().contains("PRIVATE KEY"), "{error}"),
    }
});

/// Returns the record with its keys sealed, and the number of CAs it names.
fn sealed(mut record: Value) -> (Vec<u8>, Option<usize>) {
    if let Some(fields) = record.as_object_mut() {
        fields.insert("sealedWith".into(), SEAL.id().into());
    }
    let entries = record.get_mut("authorities").and_then(Value::as_array_mut);
    let named = entries.as_ref().map(|entries| entries.len());
    for entry in entries.into_iter().flatten() {
        let context = format!("causeway ca {}", entry["id"].as_str().unwrap_or_default());
        if let Some(plain) = entry.get("sealedKey").and_then(Value::as_str) {
            entry["sealedKey"] = STANDARD.encode(SEAL.seal(&context, plain.as_bytes())).into();
        }
    }
    (record.to_string().into_bytes(), named)
}
