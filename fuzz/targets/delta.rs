//! Differences of objects that a cloud sends, as the edge applies them to the version in its copy.
//!
//! The first byte is the length of the base, which follows; the rest is tried as the difference: as it is, behind the digest of the base, and as the
//! object that the base becomes. Invariants: a result is never longer than its bound; a difference that was encoded is applied to what was encoded,
//! and is smaller.
#![no_main]

use causeway_apicache::sync::delta::{apply, encode};
use libfuzzer_sys::fuzz_target;

const BYTES_MAX: usize = 4 << 10;
const DIGEST_BYTES: usize = 8;

fuzz_target!(|data: &[u8]| {
    let Some((length, rest)) = data.split_first() else { return };
    let (base, delta) = rest.split_at(rest.len().min(usize::from(*length)));
    // Long enough to be a copy of itself, which begins with the digest.
    let base = [base, &[0; 32]].concat();
    let itself = encode(&base, &base).expect("a copy of the base is smaller than the base");
    let with_digest = [&itself[..DIGEST_BYTES], delta].concat();
    for delta in [delta, &with_digest] {
        if let Ok(applied) = apply(&base, delta, BYTES_MAX) {
            assert!(applied.len() <= BYTES_MAX);
        }
    }
    if let Some(encoded) = encode(&base, delta) {
        assert!(encoded.len() < delta.len());
        assert_eq!(apply(&base, &encoded, delta.len()).as_deref(), Ok(delta));
        assert!(apply(&base, &encoded, delta.len() - 1).is_err());
    }
});
