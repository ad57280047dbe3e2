//! The netmap value: sorted, opaque entries, with the stamp that identifies them.
//!
//! `build` makes a netmap from the entries of the compiler, `update_from` computes a difference, `apply`
//! applies one. An applied netmap has the digest that its update announced, or `apply` fails. The meaning of
//! entries is left to `entries`.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::generation::{Digest, DigestSum, Generation, NetmapStamp, hash};
use crate::update::NetmapUpdateData;

/// Ten times the exposures of the largest site we measure.
pub const ENTRIES_MAX: usize = 200_000;
/// A kind and a Kubernetes name of 253 bytes, with space for kinds that join two names.
pub const KEY_BYTES_MAX: usize = 600;
/// Bound of the sum of keys and values of one netmap.
pub const NETMAP_BYTES_MAX: usize = 64 << 20;

/// The name of an entry: `KIND/NAME`, or `KIND` alone when there is only one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryKey(Arc<str>);

impl EntryKey {
    pub fn new(text: impl Into<Arc<str>>) -> EntryKey {
        EntryKey(text.into())
    }

    pub fn of(kind: &str, name: &str) -> EntryKey {
        EntryKey(format!("{kind}/{name}").into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Splits at the first slash into kind and name.
    pub fn parts(&self) -> (&str, &str) {
        self.0.split_once('/').unwrap_or((&self.0, ""))
    }
}

impl Borrow<str> for EntryKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for EntryKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One state of the facts for a gateway. Entries are sorted by key, and keys are unique.
#[derive(Clone, PartialEq, Eq)]
pub struct Netmap {
    stamp: NetmapStamp,
    // A sorted slice instead of a tree: a cloud holds one for each of twenty thousand edges.
    entries: Box<[Entry]>,
    size_bytes: usize,
}

#[derive(Clone, PartialEq, Eq)]
struct Entry {
    key: EntryKey,
    value: Bytes,
    // Stored, so that a change of one entry does not hash all other entries again.
    hash: [u8; 32],
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BuildError {
    #[error("the entry {0} stands twice")]
    Twice(EntryKey),
    #[error("a netmap of {entries} entries and {bytes} bytes is larger than any gateway takes")]
    TooLarge { entries: usize, bytes: usize },
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ApplyError {
    #[error("the update is a change of a netmap that is not the one held")]
    WrongBase,
    #[error("after the update the digest is not the promised one")]
    DigestMismatch,
    #[error("the update leads to {offered}, but {held} is held")]
    Backwards { held: Generation, offered: Generation },
    #[error("after the update the netmap has {entries} entries and {bytes} bytes, which is too large")]
    TooLarge { entries: usize, bytes: usize },
}

impl Netmap {
    /// Makes a netmap from entries in any order. Entries that are unchanged since `previous` share its memory
    /// and are not hashed again.
    pub fn build(
        generation: Generation,
        mut entries: Vec<(EntryKey, Bytes)>,
        previous: Option<&Netmap>,
    ) -> Result<Netmap, BuildError> {
        entries.sort_unstable_by(|(a, _), (b, _)| a.cmp(b));
        if let Some(pair) = entries.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(BuildError::Twice(pair[0].0.clone()));
        }
        let same = |key: &EntryKey, value: &Bytes| {
            previous.and_then(|previous| previous.find(key.as_str())).filter(|entry| entry.value == value)
        };
        let entries = entries.into_iter().map(|(key, value)| match same(&key, &value) {
            Some(entry) => entry.clone(),
            None => Entry { hash: hash(&value), key, value },
        });
        let netmap = Netmap::of(generation, entries.collect());
        match netmap.fits() {
            true => Ok(netmap),
            false => Err(BuildError::TooLarge { entries: netmap.len(), bytes: netmap.size_bytes }),
        }
    }

    fn of(generation: Generation, entries: Box<[Entry]>) -> Netmap {
        let mut sum = DigestSum::new();
        entries.iter().for_each(|entry| sum.add(entry.key.as_str(), &entry.hash));
        let size_bytes = entries.iter().map(|entry| entry.key.as_str().len() + entry.value.len()).sum();
        Netmap { stamp: NetmapStamp { generation, digest: sum.finish(), turn: 0 }, entries, size_bytes }
    }

    fn fits(&self) -> bool {
        self.entries.len() <= ENTRIES_MAX && self.size_bytes <= NETMAP_BYTES_MAX
    }

    /// The same entries under another generation, as the first of it.
    pub fn at(&self, generation: Generation) -> Netmap {
        Netmap { stamp: NetmapStamp { generation, turn: 0, ..self.stamp }, ..self.clone() }
    }

    /// The same netmap under another turn of its generation.
    pub fn at_turn(self, turn: u64) -> Netmap {
        Netmap { stamp: NetmapStamp { turn, ..self.stamp }, ..self }
    }

    pub fn stamp(&self) -> NetmapStamp {
        self.stamp
    }

    pub fn generation(&self) -> Generation {
        self.stamp.generation
    }

    pub fn digest(&self) -> Digest {
        self.stamp.digest
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the bytes of keys and values together.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    pub fn get(&self, key: &str) -> Option<&Bytes> {
        self.find(key).map(|entry| &entry.value)
    }

    /// All entries in the order of keys.
    pub fn entries(&self) -> impl Iterator<Item = (&EntryKey, &Bytes)> {
        self.entries.iter().map(|entry| (&entry.key, &entry.value))
    }

    fn find(&self, key: &str) -> Option<&Entry> {
        let place = self.entries.binary_search_by(|entry| entry.key.as_str().cmp(key)).ok()?;
        self.entries.get(place)
    }

    /// Returns the update that turns `base` into this netmap; without a base, the whole netmap.
    pub fn update_from(&self, base: Option<&Netmap>) -> NetmapUpdateData {
        let mut update = NetmapUpdateData {
            base: base.map(Netmap::stamp),
            target: self.stamp,
            set: Vec::new(),
            unset: Vec::new(),
        };
        let old = base.map_or(&[][..], |base| &base.entries);
        walk(old, &self.entries, |old, new| match (old, new) {
            (Some(old), Some(new)) if old.hash == new.hash => {}
            (_, Some(new)) => update.set.push((new.key.clone(), new.value.clone())),
            (Some(old), None) => update.unset.push(old.key.clone()),
            (None, None) => {}
        });
        update
    }

    /// Applies an update. The result has the stamp that the update announced.
    pub fn apply(held: Option<&Netmap>, update: &NetmapUpdateData) -> Result<Netmap, ApplyError> {
        let offered = update.target.generation;
        if let Some(held) = held
            && (update.target.order() < held.stamp.order()
                || (update.target.order() == held.stamp.order() && update.target != held.stamp))
        {
            return Err(ApplyError::Backwards { held: held.generation(), offered });
        }
        let base = match (&update.base, held) {
            (None, _) => None,
            // The digest decides: the same entries may have been confirmed under a later generation.
            (Some(base), Some(held)) if base.digest == held.digest() => Some(held),
            (Some(_), _) => return Err(ApplyError::WrongBase),
        };
        let netmap = Netmap::of(offered, changed(base, update)).at_turn(update.target.turn);
        if !netmap.fits() {
            return Err(ApplyError::TooLarge { entries: netmap.len(), bytes: netmap.size_bytes });
        }
        match netmap.stamp == update.target {
            true => Ok(netmap),
            false => Err(ApplyError::DigestMismatch),
        }
    }
}

/// Returns the entries of `base` without the unset ones, with the set ones. A decoded update is sorted; an
/// update that names a key twice ends in a digest mismatch.
fn changed(base: Option<&Netmap>, update: &NetmapUpdateData) -> Box<[Entry]> {
    let set: Vec<Entry> = update
        .set
        .iter()
        .map(|(key, value)| Entry { hash: hash(value), key: key.clone(), value: value.clone() })
        .collect();
    let mut entries = Vec::with_capacity(base.map_or(0, Netmap::len) + set.len());
    let old = base.map_or(&[][..], |base| &base.entries);
    walk(old, &set, |old, new| match (old, new) {
        (_, Some(new)) => entries.push(new.clone()),
        (Some(old), None) if update.unset.binary_search(&old.key).is_err() => entries.push(old.clone()),
        _ => {}
    });
    entries.into()
}

/// Merges two sorted lists: visits each key once, with the entries of both lists.
fn walk<'a>(
    mut old: &'a [Entry],
    mut new: &'a [Entry],
    mut visit: impl FnMut(Option<&'a Entry>, Option<&'a Entry>),
) {
    loop {
        let order = match (old.first(), new.first()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.key.cmp(&new.key),
        };
        visit(old.first().filter(|_| order.is_le()), new.first().filter(|_| order.is_ge()));
        old = &old[usize::from(order.is_le())..];
        new = &new[usize::from(order.is_ge())..];
    }
}

impl fmt::Debug for Netmap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Netmap({} {:?}, {} entries)", self.generation(), self.digest(), self.len())
    }
}

#[cfg(test)]
mod tests;
