//! The small file beside the segments: how far the cloud has acknowledged, and how many records were lost.
//!
//! Two slots are written in turn, in place, each with a checksum: a write that is cut leaves the other slot, and a
//! full disk does not matter because the space is allocated once. Losing the file costs nothing but repeats, which the
//! cloud recognises.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

const SLOT_BYTES: usize = 36;

/// The counters that outlive the records.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpoolState {
    pub acknowledged: u64,
    /// Lost among the records up to `acknowledged`.
    pub lost: u64,
    pub next: u64,
}

#[derive(Debug)]
pub struct SpoolStateFile {
    file: File,
    turn: u64,
}

impl SpoolStateFile {
    /// Opens or makes the file; what stood in it, if anything readable did.
    pub fn open(path: &Path) -> io::Result<(SpoolStateFile, Option<SpoolState>)> {
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
        let mut bytes = [0; 2 * SLOT_BYTES];
        if file.metadata()?.len() < bytes.len() as u64 {
            file.write_all_at(&bytes, 0)?;
        }
        file.read_exact_at(&mut bytes, 0)?;
        let newest = [decode(&bytes[..SLOT_BYTES]), decode(&bytes[SLOT_BYTES..])]
            .into_iter()
            .flatten()
            .max_by_key(|(turn, _)| *turn);
        let turn = newest.map_or(0, |(turn, _)| turn);
        Ok((SpoolStateFile { file, turn }, newest.map(|(_, saved)| saved)))
    }

    pub fn write(&mut self, saved: SpoolState) -> io::Result<()> {
        self.turn += 1;
        let slot = (self.turn % 2) * SLOT_BYTES as u64;
        self.file.write_all_at(&encode(self.turn, saved), slot)
    }
}

fn encode(turn: u64, saved: SpoolState) -> [u8; SLOT_BYTES] {
    let mut bytes = [0; SLOT_BYTES];
    let numbers = [turn, saved.acknowledged, saved.lost, saved.next];
    for (place, number) in bytes.chunks_exact_mut(8).zip(numbers) {
        place.copy_from_slice(&number.to_le_bytes());
    }
    let sum = crc32fast::hash(&bytes[..32]);
    bytes[32..].copy_from_slice(&sum.to_le_bytes());
    bytes
}

fn decode(bytes: &[u8]) -> Option<(u64, SpoolState)> {
    let number = |place: usize| {
        u64::from_le_bytes(bytes[8 * place..8 * place + 8].try_into().expect("eight bytes of a slot"))
    };
    let sum = u32::from_le_bytes(bytes[32..36].try_into().expect("the last four bytes of a slot"));
    // A slot never written is all zero, and the checksum of zeros is not zero.
    (sum == crc32fast::hash(&bytes[..32]))
        .then(|| (number(0), SpoolState { acknowledged: number(1), lost: number(2), next: number(3) }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_whole_slot_counts() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state");
        let (mut state, nothing) = SpoolStateFile::open(&path).unwrap();
        assert_eq!(nothing, None);
        let saved = |acknowledged| SpoolState { acknowledged, lost: 1, next: 9 };
        for acknowledged in 1..=3 {
            state.write(saved(acknowledged)).unwrap();
            assert_eq!(SpoolStateFile::open(&path).unwrap().1, Some(saved(acknowledged)));
        }
        // The last write is cut at any byte: the one before counts.
        let whole = std::fs::read(&path).unwrap();
        for place in SLOT_BYTES..2 * SLOT_BYTES {
            let mut cut = whole.clone();
            cut[place] ^= 0xFF;
            std::fs::write(&path, &cut).unwrap();
            assert_eq!(SpoolStateFile::open(&path).unwrap().1, Some(saved(2)), "byte {place}");
        }
    }
}
