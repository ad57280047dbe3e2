//! The difference between two netmaps, and its encoding on the wire and on disk.
//!
//! One byte tells whether deflate follows; then a protobuf message. The bytes are untrusted: their inflated
//! size is bounded before inflating, and keys must be sorted and unique. Unknown fields are ignored; an
//! unknown first byte is an error that names it. The bytes are pinned by `tests/it/main.rs`.

use std::io::Read;

use bytes::Bytes;
use flate2::Compression;
use flate2::bufread::{DeflateDecoder, DeflateEncoder};
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};

use crate::generation::{Digest, Generation, NetmapStamp};
use crate::netmap::{ENTRIES_MAX, EntryKey, KEY_BYTES_MAX, NETMAP_BYTES_MAX};

/// An encoded update must fit a message of the control stream (16 MiB) with its envelope.
pub const ENCODED_BYTES_MAX: usize = 15 << 20;
/// The largest netmap, and the overhead of protobuf per entry: tags and lengths.
const PLAIN_BYTES_MAX: usize = NETMAP_BYTES_MAX + ENTRIES_MAX * 20 + 1024;

const PLAIN: u8 = 1;
const DEFLATED: u8 = 2;
/// Below this size deflate gains nothing.
const DEFLATE_BYTES_MIN: usize = 200;

/// The change from one netmap to the next. Lists are sorted by key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetmapUpdateData {
    /// None: the whole netmap.
    pub base: Option<NetmapStamp>,
    pub target: NetmapStamp,
    pub set: Vec<(EntryKey, Bytes)>,
    pub unset: Vec<EntryKey>,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    #[error("an update begins with {0}, which this version does not know")]
    Format(u8),
    #[error("an update of more than {PLAIN_BYTES_MAX} bytes, or {ENCODED_BYTES_MAX} compressed")]
    TooLarge,
    #[error("an update is malformed: {0}")]
    Malformed(&'static str),
}

#[derive(Clone, PartialEq, Message)]
struct UpdateMessage {
    #[prost(message, optional, tag = "1")]
    base: Option<StampMessage>,
    #[prost(message, optional, tag = "2")]
    target: Option<StampMessage>,
    #[prost(message, repeated, tag = "3")]
    set: Vec<EntryMessage>,
    #[prost(string, repeated, tag = "4")]
    unset: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct StampMessage {
    #[prost(uint64, tag = "1")]
    epoch: u64,
    #[prost(uint64, tag = "2")]
    revision: u64,
    #[prost(bytes = "vec", tag = "3")]
    digest: Vec<u8>,
    /// An older gateway ignores it; only gateways that ask for neighbours are sent one.
    #[prost(uint64, tag = "4")]
    turn: u64,
}

#[derive(Clone, PartialEq, Message)]
struct EntryMessage {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

impl NetmapUpdateData {
    pub fn is_whole(&self) -> bool {
        self.base.is_none()
    }

    pub fn encode(&self) -> Bytes {
        let plain = self.message().encode_to_vec();
        let mut encoded = vec![DEFLATED];
        if plain.len() >= DEFLATE_BYTES_MIN {
            // Reading from memory into memory cannot fail.
            let read = DeflateEncoder::new(&plain[..], Compression::default()).read_to_end(&mut encoded);
            if read.is_ok() && encoded.len() <= plain.len() {
                return encoded.into();
            }
        }
        encoded.clear();
        encoded.push(PLAIN);
        encoded.extend_from_slice(&plain);
        encoded.into()
    }

    pub fn decode(encoded: &[u8]) -> Result<NetmapUpdateData, DecodeError> {
        if encoded.len() > ENCODED_BYTES_MAX {
            return Err(DecodeError::TooLarge);
        }
        let plain = match encoded.split_first() {
            None => return Err(DecodeError::Malformed("it is empty")),
            Some((&PLAIN, plain)) => Bytes::copy_from_slice(plain),
            Some((&DEFLATED, deflated)) => inflate(deflated)?,
            Some((other, _)) => return Err(DecodeError::Format(*other)),
        };
        count_entries(&plain)?;
        let message =
            UpdateMessage::decode(plain).map_err(|_| DecodeError::Malformed("it is no protobuf message"))?;
        NetmapUpdateData::of(message)
    }

    fn message(&self) -> UpdateMessage {
        let entry = |(key, value): &(EntryKey, Bytes)| EntryMessage {
            key: key.as_str().into(),
            value: value.clone(),
        };
        UpdateMessage {
            base: self.base.map(StampMessage::of),
            target: Some(StampMessage::of(self.target)),
            set: self.set.iter().map(entry).collect(),
            unset: self.unset.iter().map(|key| key.as_str().into()).collect(),
        }
    }

    fn of(message: UpdateMessage) -> Result<NetmapUpdateData, DecodeError> {
        let base = message.base.map(|base| base.stamp()).transpose()?;
        let target = message.target.ok_or(DecodeError::Malformed("it has no target"))?.stamp()?;
        let entry = |entry: EntryMessage| Ok((key(entry.key)?, entry.value));
        let set: Vec<(EntryKey, Bytes)> = message.set.into_iter().map(entry).collect::<Result<_, _>>()?;
        let unset: Vec<EntryKey> = message.unset.into_iter().map(key).collect::<Result<_, _>>()?;
        let sorted = set.is_sorted_by(|(a, _), (b, _)| a < b) && unset.is_sorted_by(|a, b| a < b);
        match sorted {
            true => Ok(NetmapUpdateData { base, target, set, unset }),
            false => Err(DecodeError::Malformed("its keys are not sorted")),
        }
    }
}

impl StampMessage {
    fn of(stamp: NetmapStamp) -> StampMessage {
        let Generation { epoch, revision } = stamp.generation;
        StampMessage { epoch, revision, digest: stamp.digest.0.to_vec(), turn: stamp.turn }
    }

    fn stamp(&self) -> Result<NetmapStamp, DecodeError> {
        let digest =
            Digest::from_slice(&self.digest).ok_or(DecodeError::Malformed("a digest has not 32 bytes"))?;
        let generation = Generation { epoch: self.epoch, revision: self.revision };
        Ok(NetmapStamp { generation, digest, turn: self.turn })
    }
}

fn key(text: String) -> Result<EntryKey, DecodeError> {
    match text.len() {
        1..=KEY_BYTES_MAX => Ok(EntryKey::new(text)),
        _ => Err(DecodeError::Malformed("a key is empty or too long")),
    }
}

/// Two bytes can encode an entry that takes sixty in memory, so entries are counted before they are decoded.
fn count_entries(mut plain: &[u8]) -> Result<(), DecodeError> {
    let malformed = |_| DecodeError::Malformed("it is no protobuf message");
    let mut entries = 0;
    while !plain.is_empty() {
        let (tag, wire_type) = decode_key(&mut plain).map_err(malformed)?;
        skip_field(wire_type, tag, &mut plain, DecodeContext::default()).map_err(malformed)?;
        entries += 1;
        // At most all entries are set or unset, besides base and target.
        if entries > 2 * ENTRIES_MAX + 2 {
            return Err(DecodeError::TooLarge);
        }
    }
    Ok(())
}

/// Inflates at most the size of the largest netmap: the reader stops at the bound.
fn inflate(deflated: &[u8]) -> Result<Bytes, DecodeError> {
    let mut plain = Vec::new();
    let mut bounded = DeflateDecoder::new(deflated).take(PLAIN_BYTES_MAX as u64 + 1);
    bounded.read_to_end(&mut plain).map_err(|_| DecodeError::Malformed("it does not inflate"))?;
    match plain.len() <= PLAIN_BYTES_MAX {
        true => Ok(plain.into()),
        false => Err(DecodeError::TooLarge),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn update(entries: usize) -> NetmapUpdateData {
        let target = NetmapStamp {
            generation: Generation { epoch: 1, revision: 7 },
            digest: Digest([3; 32]),
            turn: 2,
        };
        let entry =
            |number| (EntryKey::new(format!("presence/service-{number:05}")), Bytes::from(vec![7; 40]));
        NetmapUpdateData {
            base: Some(target),
            target,
            set: (0..entries).map(entry).collect(),
            unset: vec![EntryKey::new("x")],
        }
    }

    #[test]
    fn what_was_encoded_decodes_as_the_same_small_or_large() {
        for entries in [0, 1, 2_000] {
            let update = update(entries);
            let encoded = update.encode();
            assert_eq!(NetmapUpdateData::decode(&encoded), Ok(update));
            assert_eq!(encoded[0], if entries > 1 { DEFLATED } else { PLAIN }, "{entries}");
        }
        assert!(update(2_000).encode().len() < 20_000);
    }

    #[test]
    fn a_bomb_is_not_unfolded() {
        // Deflate compresses zeros a thousandfold: this inflates to more than the bound.
        let zeros = vec![0; PLAIN_BYTES_MAX + 1];
        let mut bomb = vec![DEFLATED];
        DeflateEncoder::new(&zeros[..], Compression::fast()).read_to_end(&mut bomb).unwrap();
        assert!(bomb.len() < ENCODED_BYTES_MAX / 10);
        assert_eq!(NetmapUpdateData::decode(&bomb), Err(DecodeError::TooLarge));
        let mut bytes = vec![PLAIN];
        bytes.extend([0x1a, 0].repeat(2 * ENTRIES_MAX + 3));
        assert_eq!(NetmapUpdateData::decode(&bytes), Err(DecodeError::TooLarge));
        assert_eq!(NetmapUpdateData::decode(&vec![PLAIN; ENCODED_BYTES_MAX + 1]), Err(DecodeError::TooLarge));
    }

    #[test]
    fn an_update_of_a_later_version_is_named() {
        assert_eq!(NetmapUpdateData::decode(&[9, 1, 2]), Err(DecodeError::Format(9)));
        assert!(matches!(NetmapUpdateData::decode(&[]), Err(DecodeError::Malformed(_))));
    }

    #[test]
    fn keys_come_sorted_and_once() {
        for keys in [["b", "a"], ["a", "a"], ["", "a"]] {
            let mut update = update(0);
            update.set = keys.map(|key| (EntryKey::new(key), Bytes::new())).to_vec();
            assert!(
                matches!(NetmapUpdateData::decode(&update.encode()), Err(DecodeError::Malformed(_))),
                "{keys:?}"
            );
        }
    }

    proptest! {
        #[test]
        fn foreign_bytes_do_no_harm(mut bytes in proptest::collection::vec(any::<u8>(), 0..200), format in 0u8..4) {
            if let Some(first) = bytes.first_mut() { *first = format; }
            if let Ok(update) = NetmapUpdateData::decode(&bytes) {
                prop_assert_eq!(NetmapUpdateData::decode(&update.encode()), Ok(update));
            }
        }
    }
}
