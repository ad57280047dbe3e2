//! The form of records in a segment file.
//!
//! A segment is a head (magic, salt, first sequence number, checksum) followed by frames. A frame is a mark,
//! a checksum, a length, a sequence number, a kind, and the record. After a damaged frame the reader searches
//! for the next mark, so damage costs only the records it touches. The salt goes into every checksum: a
//! record that holds the bytes of a frame is never taken for one. All numbers are little endian. This module
//! does no I/O.

/// The largest record. A batch holds several of them, and an audit line is far below a kilobyte.
pub const RECORD_BYTES_MAX: usize = 32 << 10;
pub const SEGMENT_HEAD_BYTES: usize = 24;
pub const FRAME_HEAD_BYTES: usize = 21;

const MAGIC: [u8; 8] = *b"CWYUPQ\x00\x01";
const MARK: [u8; 4] = [0xC3, 0x5A, 0x0F, 0xE1];

/// The kind of a record. The number is on disk and on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpoolRecordKind {
    /// The newest one counts; older ones are history.
    Status = 1,
    /// Every one counts.
    Audit = 2,
}

impl SpoolRecordKind {
    fn from_number(number: u8) -> Option<SpoolRecordKind> {
        match number {
            1 => Some(SpoolRecordKind::Status),
            2 => Some(SpoolRecordKind::Audit),
            _ => None,
        }
    }
}

/// The head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentHeader {
    pub salt: u32,
    pub first: u64,
}

impl SegmentHeader {
    pub fn encode(&self) -> [u8; SEGMENT_HEAD_BYTES] {
        let mut bytes = [0; SEGMENT_HEAD_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&self.salt.to_le_bytes());
        bytes[12..20].copy_from_slice(&self.first.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..20]);
        bytes[20..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    pub fn decode(bytes: &[u8]) -> Option<SegmentHeader> {
        let whole = bytes.len() >= SEGMENT_HEAD_BYTES
            && bytes[..8] == MAGIC
            && u32_at(bytes, 20) == crc32fast::hash(&bytes[..20]);
        whole.then(|| SegmentHeader { salt: u32_at(bytes, 8), first: u64_at(bytes, 12) })
    }
}

/// Writes one frame behind what `out` holds.
pub fn encode(salt: u32, seq: u64, kind: SpoolRecordKind, record: &[u8], out: &mut Vec<u8>) {
    let start = out.len();
    let length = u32::try_from(record.len()).expect("a record is at most RECORD_BYTES_MAX long");
    out.extend_from_slice(&MARK);
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&length.to_le_bytes());
    out.extend_from_slice(&seq.to_le_bytes());
    out.push(kind as u8);
    out.extend_from_slice(record);
    let sum = checksum(salt, &out[start + 8..]);
    out[start + 4..start + 8].copy_from_slice(&sum.to_le_bytes());
}

#[derive(Debug, PartialEq, Eq)]
pub enum ParsedRecord<'a> {
    Record {
        seq: u64,
        kind: SpoolRecordKind,
        record: &'a [u8],
    },
    /// Valid so far; this many bytes are needed to decide.
    NeedsMore(usize),
    /// No frame begins here.
    Damaged,
}

/// Looks at the frame that should begin with the first of `bytes`.
pub fn parse(salt: u32, bytes: &[u8]) -> ParsedRecord<'_> {
    let known = bytes.len().min(MARK.len());
    if bytes[..known] != MARK[..known] {
        return ParsedRecord::Damaged;
    }
    if bytes.len() < FRAME_HEAD_BYTES {
        return ParsedRecord::NeedsMore(FRAME_HEAD_BYTES);
    }
    let length = u32_at(bytes, 8) as usize;
    if length > RECORD_BYTES_MAX {
        return ParsedRecord::Damaged;
    }
    let whole = FRAME_HEAD_BYTES + length;
    if bytes.len() < whole {
        return ParsedRecord::NeedsMore(whole);
    }
    if u32_at(bytes, 4) != checksum(salt, &bytes[8..whole]) {
        return ParsedRecord::Damaged;
    }
    match SpoolRecordKind::from_number(bytes[20]) {
        Some(kind) => {
            ParsedRecord::Record { seq: u64_at(bytes, 12), kind, record: &bytes[FRAME_HEAD_BYTES..whole] }
        }
        None => ParsedRecord::Damaged,
    }
}

/// Returns the offset after the first byte at which the next frame may begin; the length of `bytes` if there
/// is none.
pub fn next_mark(bytes: &[u8]) -> usize {
    let may_begin = |place: &usize| {
        let known = (bytes.len() - place).min(MARK.len());
        bytes[*place..*place + known] == MARK[..known]
    };
    (1..bytes.len()).find(may_begin).unwrap_or(bytes.len())
}

fn checksum(salt: u32, bytes: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(salt);
    hasher.update(bytes);
    hasher.finalize()
}

fn u32_at(bytes: &[u8], place: usize) -> u32 {
    u32::from_le_bytes(bytes[place..place + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], place: usize) -> u64 {
    u64::from_le_bytes(bytes[place..place + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_comes_back_and_every_damaged_byte_is_noticed() {
        let mut frame = Vec::new();
        encode(7, 42, SpoolRecordKind::Audit, b"who did what", &mut frame);
        let whole = ParsedRecord::Record { seq: 42, kind: SpoolRecordKind::Audit, record: b"who did what" };
        assert_eq!(parse(7, &frame), whole);
        assert_eq!(parse(8, &frame), ParsedRecord::Damaged, "another segment's salt");
        for length in 0..frame.len() {
            assert!(matches!(parse(7, &frame[..length]), ParsedRecord::NeedsMore(more) if more > length));
        }
        for place in 0..frame.len() {
            let mut damaged = frame.clone();
            damaged[place] ^= 0x10;
            assert_ne!(parse(7, &damaged), whole, "byte {place}");
            assert!(!matches!(parse(7, &damaged), ParsedRecord::Record { .. }), "byte {place}");
        }
    }

    #[test]
    fn the_next_mark_is_found_also_when_only_its_beginning_is_there() {
        let mut bytes = b"xxxx".to_vec();
        encode(1, 1, SpoolRecordKind::Status, b"", &mut bytes);
        assert_eq!(next_mark(&bytes), 4);
        assert_eq!(next_mark(&bytes[..6]), 4);
        assert_eq!(next_mark(b"nothing"), 7);
        assert_eq!(next_mark(&bytes[4..]), FRAME_HEAD_BYTES);
    }

    #[test]
    fn a_head_comes_back_and_a_damaged_one_does_not() {
        let head = SegmentHeader { salt: 99, first: 1 << 40 };
        let bytes = head.encode();
        assert_eq!(SegmentHeader::decode(&bytes), Some(head));
        assert_eq!(SegmentHeader::decode(&bytes[..23]), None);
        for place in 0..bytes.len() {
            let mut damaged = bytes;
            damaged[place] ^= 1;
            assert_eq!(SegmentHeader::decode(&damaged), None);
        }
    }
}
