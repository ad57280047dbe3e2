//! Compares two sets of (key, UID, revision) by digests of buckets.
//!
//! A key belongs to one bucket. The digest of a bucket is the sum of the digests of its entries, so its order does not
//! matter. SHA-256 makes the digests the same in every version of the program; 64 bits of it are sent.

use aws_lc_rs::digest::{Context, SHA256};
use causeway_api::Revision;

/// The most buckets of a comparison: 32 KiB of digests.
pub const BUCKETS_MAX: u32 = 4_096;
// With few entries per bucket, the keys of a bucket that differs cost less than the object that changed.
const ENTRIES_PER_BUCKET: u64 = 4;

/// Returns the number of buckets for a copy of this many objects.
pub fn bucket_count(objects: u64) -> u32 {
    let wanted = (objects / ENTRIES_PER_BUCKET).clamp(1, u64::from(BUCKETS_MAX));
    u32::try_from(wanted.next_power_of_two()).unwrap_or(BUCKETS_MAX).min(BUCKETS_MAX)
}

/// Returns the bucket of a key.
pub fn bucket_of(key: &str, buckets: u32) -> u32 {
    (hash(&[key.as_bytes()]) % u64::from(buckets.max(1))) as u32
}

/// Returns the digest of one entry.
pub fn entry_digest(key: &str, uid: &str, revision: Revision) -> u64 {
    hash(&[key.as_bytes(), b"\0", uid.as_bytes(), b"\0", &revision.0.to_be_bytes()])
}

/// Returns the digests of all buckets.
pub fn bucket_digests<'a>(
    entries: impl Iterator<Item = (&'a str, &'a str, Revision)>,
    buckets: u32,
) -> Vec<u64> {
    let mut digests = vec![0u64; buckets.max(1) as usize];
    for (key, uid, revision) in entries {
        let digest = &mut digests[bucket_of(key, buckets) as usize];
        *digest = digest.wrapping_add(entry_digest(key, uid, revision));
    }
    digests
}

fn hash(parts: &[&[u8]]) -> u64 {
    let mut context = Context::new(&SHA256);
    parts.iter().for_each(|part| context.update(part));
    let digest = context.finish();
    digest.as_ref().first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_the_same_in_every_version() {
        assert_eq!(entry_digest("shop/a", "u", Revision(7)), 3_049_406_507_122_352_179);
        assert_eq!([0, 7, 16, 10_000, u64::MAX].map(bucket_count), [1, 1, 4, 4_096, 4_096]);
        let one = [("a", "u", Revision(1)), ("b", "u", Revision(2))];
        let other = [("b", "u", Revision(2)), ("a", "u", Revision(1))];
        assert_eq!(bucket_digests(one.into_iter(), 8), bucket_digests(other.into_iter(), 8));
        assert_ne!(bucket_digests(one.into_iter(), 8), bucket_digests(one[..1].iter().copied(), 8));
    }
}
