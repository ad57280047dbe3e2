//! The difference between two versions of an object, as copies from the first one and new bytes.
//!
//! Pure. The cloud encodes a change once for all sites; the edge applies it to the version in its copy. A difference that is not smaller
//! than the object is not used. `docs/decisions/0008-deltas.md` has the measurement.
//!
//! A difference begins with a digest of its base. A revision alone does not identify the base: cells of a table, such as the
//! age, differ between two lists of one revision, and a newer API server may fill in other defaults.

use std::collections::HashMap;

use aws_lc_rs::digest::{SHA256, digest};
use bytes::{BufMut, Bytes, BytesMut};

/// A difference that does not fit its base.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a difference of an object does not fit the version in the copy")]
pub struct DeltaError;

// Bytes that are compared at once. Shorter matches cost more than they save.
const WINDOW: usize = 8;
// Positions of the base that are indexed: every one of this many.
const STEP: usize = 4;
const MATCH_MIN: usize = 16;
// Larger objects are sent whole: the index would take more memory than the objects.
const BASE_BYTES_MAX: usize = 512 << 10;

const DIGEST_BYTES: usize = 8;

fn digest_of(base: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut short = [0; DIGEST_BYTES];
    short.copy_from_slice(&digest(&SHA256, base).as_ref()[..DIGEST_BYTES]);
    short
}

/// Returns the difference, or `None` when the whole object is as small.
pub fn encode(base: &[u8], target: &[u8]) -> Option<Bytes> {
    if base.len() > BASE_BYTES_MAX || target.len() > BASE_BYTES_MAX {
        return None;
    }
    let mut index: HashMap<[u8; WINDOW], usize> = HashMap::with_capacity(base.len() / STEP);
    for at in (0..base.len().saturating_sub(WINDOW - 1)).step_by(STEP) {
        index.entry(window(base, at)?).or_insert(at);
    }
    let mut out = BytesMut::from(&digest_of(base)[..]);
    // Objects change in a few places: the byte after the last copy most often continues it.
    let (mut literal, mut at, mut expected) = (0, 0, 0);
    while at < target.len() {
        let continued = common(&base[expected.min(base.len())..], &target[at..]);
        let found = match continued >= MATCH_MIN {
            true => Some((expected, continued)),
            false => window(target, at)
                .and_then(|wanted| index.get(&wanted).copied())
                .map(|from| (from, common(&base[from..], &target[at..]))),
        };
        match found.filter(|(_, length)| *length >= MATCH_MIN) {
            Some((from, length)) => {
                insert(&mut out, &target[literal..at]);
                copy(&mut out, from, length);
                at += length;
                (literal, expected) = (at, from + length);
            }
            None => {
                at += 1;
                expected += 1;
            }
        }
        if out.len() >= target.len() {
            return None;
        }
    }
    insert(&mut out, &target[literal..]);
    (out.len() < target.len()).then(|| out.freeze())
}

/// Applies a difference. The result has at most `bytes_max` bytes.
pub fn apply(base: &[u8], delta: &[u8], bytes_max: usize) -> Result<Bytes, DeltaError> {
    let (of, mut delta) = delta.split_first_chunk::<DIGEST_BYTES>().ok_or(DeltaError)?;
    if *of != digest_of(base) {
        return Err(DeltaError);
    }
    let mut out = BytesMut::new();
    while !delta.is_empty() {
        let head = take_number(&mut delta)?;
        let length = head >> 1;
        if length > bytes_max - out.len() {
            return Err(DeltaError);
        }
        if head & 1 == 1 {
            let from = take_number(&mut delta)?;
            let end = from.checked_add(length).ok_or(DeltaError)?;
            out.extend_from_slice(base.get(from..end).ok_or(DeltaError)?);
        } else {
            let (new, rest) = delta.split_at_checked(length).ok_or(DeltaError)?;
            out.extend_from_slice(new);
            delta = rest;
        }
    }
    Ok(out.freeze())
}

fn window(bytes: &[u8], at: usize) -> Option<[u8; WINDOW]> {
    bytes.get(at..at + WINDOW)?.try_into().ok()
}

fn common(left: &[u8], right: &[u8]) -> usize {
    left.iter().zip(right).take_while(|(left, right)| left == right).count()
}

fn insert(out: &mut BytesMut, bytes: &[u8]) {
    if !bytes.is_empty() {
        put_number(out, bytes.len() << 1);
        out.extend_from_slice(bytes);
    }
}

fn copy(out: &mut BytesMut, from: usize, length: usize) {
    put_number(out, length << 1 | 1);
    put_number(out, from);
}

/// Seven bits per byte, the lowest first.
fn put_number(out: &mut BytesMut, mut number: usize) {
    while number >= 0x80 {
        out.put_u8((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    out.put_u8(number as u8);
}

// Numbers are below 2^35; a longer one is none of ours.
const NUMBER_BYTES_MAX: usize = 5;

fn take_number(delta: &mut &[u8]) -> Result<usize, DeltaError> {
    let mut number = 0;
    for place in 0..NUMBER_BYTES_MAX {
        let (byte, rest) = delta.split_first().ok_or(DeltaError)?;
        *delta = rest;
        number |= usize::from(byte & 0x7f) << (7 * place);
        if byte & 0x80 == 0 {
            return Ok(number);
        }
    }
    Err(DeltaError)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 1 << 20;

    #[test]
    fn a_heartbeat_is_a_few_bytes() {
        let condition = |name: &str, time: &str| {
            format!(
                r#"{{"type":"{name}","status":"False","lastHeartbeatTime":"{time}","reason":"KubeletHasSufficient{name}"}}"#
            )
        };
        let node = |time: &str| {
            let conditions: Vec<String> =
                ["Memory", "Disk", "Pid"].iter().map(|name| condition(name, time)).collect();
            format!(
                r#"{{"metadata":{{"name":"n1","labels":{{"a":"b"}}}},"status":{{"conditions":[{}],"images":"{}"}}}}"#,
                conditions.join(","),
                "x".repeat(2_000)
            )
        };
        let (before, now) = (node("2026-11-18T10:00:00Z"), node("2026-11-18T10:05:07Z"));
        let delta = encode(before.as_bytes(), now.as_bytes()).unwrap();
        assert!(delta.len() < 80, "{} of {}", delta.len(), now.len());
        assert_eq!(apply(before.as_bytes(), &delta, MAX).unwrap(), now.as_bytes());
    }

    #[test]
    fn a_difference_that_saves_nothing_is_none_and_a_wrong_one_is_refused() {
        assert_eq!(encode(b"abcdefgh", b"12345678"), None);
        assert_eq!(encode(b"", b""), None);
        let delta = encode(&[7; 100], &[7; 90]).unwrap();
        assert_eq!(apply(&[7; 10], &delta, MAX), Err(DeltaError), "another base");
        assert_eq!(apply(&[7; 100], &delta, 89), Err(DeltaError), "too long");
        let with_digest = |rest: &[u8]| [&digest_of(b"x")[..], rest].concat();
        assert_eq!(apply(b"x", &with_digest(&[0x80]), MAX), Err(DeltaError));
        assert_eq!(apply(b"x", &with_digest(&[0xff; 9]), MAX), Err(DeltaError));
        assert_eq!(apply(b"x", &with_digest(&[9, 0]), MAX), Err(DeltaError));
        assert_eq!(apply(b"x", &[1], MAX), Err(DeltaError), "no digest");
    }

    #[test]
    fn a_base_of_the_same_revision_with_other_cells_is_refused() {
        let of_age = |age: &str, phase: &str| {
            format!("[\"{age}\"]{{\"name\":\"{}\",\"phase\":\"{phase}\"}}", "n".repeat(200))
        };
        let delta = encode(of_age("12m", "Pending").as_bytes(), of_age("12m", "Running").as_bytes()).unwrap();
        assert_eq!(apply(of_age("5m30s", "Pending").as_bytes(), &delta, MAX), Err(DeltaError));
    }

    proptest! {
        #[test]
        fn any_change_is_restored(base in proptest::collection::vec(0_u8..4, 0..600), cuts in proptest::collection::vec((0_usize..600, 0_usize..600, any::<u8>()), 0..6)) {
            let mut target = Vec::new();
            for (from, to, byte) in cuts {
                let (from, to) = (from.min(base.len()), to.min(base.len()));
                target.extend_from_slice(&base[from.min(to)..from.max(to)]);
                target.push(byte);
            }
            if let Some(delta) = encode(&base, &target) {
                prop_assert!(delta.len() < target.len());
                prop_assert_eq!(&apply(&base, &delta, MAX).unwrap()[..], &target[..]);
            }
        }

        #[test]
        fn any_bytes_behind_the_right_digest_are_applied_or_refused(base in proptest::collection::vec(any::<u8>(), 0..50), delta in proptest::collection::vec(any::<u8>(), 0..50)) {
            let delta = [&digest_of(&base)[..], &delta].concat();
            if let Ok(applied) = apply(&base, &delta, 1_000) {
                prop_assert!(applied.len() <= 1_000);
            }
        }

        #[test]
        fn any_bytes_are_applied_or_refused(base in proptest::collection::vec(any::<u8>(), 0..50), delta in proptest::collection::vec(any::<u8>(), 0..50)) {
            if let Ok(applied) = apply(&base, &delta, 1_000) {
                prop_assert!(applied.len() <= 1_000);
            }
        }
    }
}
