//! Encodings of datagrams that belong to a stream.
//!
//! On the stream: each behind its length in two bytes, big-endian. No UDP payload is longer than 65,527
//! bytes, so larger length values are control words without a payload; unknown words are ignored. Only a
//! stream that ends inside a datagram is an error.
//!
//! As a QUIC datagram: behind the number of the stream, as a variable-length integer (RFC 9000, section 16).
//! Number 0 is the control stream, which carries no datagrams, so 0 stands for the link itself. No peer of this
//! version sends those; they are dropped. The bytes are pinned by `tests/it/wire_fixtures.rs`.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes of the length.
pub const PREFIX_BYTES: usize = 2;
/// Largest payload of UDP over IPv6: 65,535 less the UDP header.
pub const PAYLOAD_BYTES_MAX: usize = 65_527;
/// Control word on the stream: its sender accepts QUIC datagrams for this stream.
pub const WELCOME: u16 = 0xffff;
/// Stream number of datagrams that belong to the link itself.
pub const OF_THE_LINK: u64 = 0;
/// Bytes of the longest stream number.
pub const NUMBER_BYTES_MAX: usize = 8;

/// One datagram, behind its length if it came from a stream or will most likely be sent on one.
#[derive(Clone, Debug)]
pub struct FramedDatagram {
    bytes: Bytes,
    /// Offset of the payload: after the length, or 0.
    start: usize,
}

impl FramedDatagram {
    /// Returns `None` if the payload is longer than UDP can carry.
    pub fn new(payload: &[u8]) -> Option<FramedDatagram> {
        let length = length(payload.len())?;
        let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + payload.len());
        bytes.put_u16(length);
        bytes.put_slice(payload);
        Some(FramedDatagram { bytes: bytes.freeze(), start: PREFIX_BYTES })
    }

    /// Wraps the payload of a QUIC datagram. Returns `None` if it is longer than UDP can carry.
    pub fn bare(payload: Bytes) -> Option<FramedDatagram> {
        length(payload.len())?;
        Some(FramedDatagram { bytes: payload, start: 0 })
    }

    pub fn payload(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    /// Returns the form on a stream. Copies only the payload of a QUIC datagram.
    pub fn into_frame(self) -> Bytes {
        match self.start {
            PREFIX_BYTES => self.bytes,
            _ => FramedDatagram::new(&self.bytes).map_or_else(Bytes::new, |framed| framed.bytes),
        }
    }
}

impl PartialEq for FramedDatagram {
    fn eq(&self, other: &FramedDatagram) -> bool {
        self.payload() == other.payload()
    }
}

impl Eq for FramedDatagram {}

fn length(bytes: usize) -> Option<u16> {
    u16::try_from(bytes).ok().filter(|_| bytes <= PAYLOAD_BYTES_MAX)
}

/// An item on a stream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum DatagramFrame {
    Datagram(FramedDatagram),
    Word(u16),
}

impl DatagramFrame {
    pub fn into_bytes(self) -> Bytes {
        match self {
            DatagramFrame::Datagram(datagram) => datagram.into_frame(),
            DatagramFrame::Word(word) => Bytes::copy_from_slice(&word.to_be_bytes()),
        }
    }

    /// Parses one complete frame.
    fn of(bytes: Bytes) -> DatagramFrame {
        match bytes.first_chunk::<PREFIX_BYTES>().map(|prefix| u16::from_be_bytes(*prefix)) {
            Some(word) if usize::from(word) > PAYLOAD_BYTES_MAX => DatagramFrame::Word(word),
            _ => DatagramFrame::Datagram(FramedDatagram { bytes, start: PREFIX_BYTES }),
        }
    }
}

/// Splits the bytes of a stream into datagrams and control words. Buffers at most one incomplete datagram.
#[derive(Default, Debug)]
pub struct DatagramDecoder {
    /// The last chunk, not parsed yet.
    chunk: Bytes,
    /// The first bytes of an incomplete datagram.
    begun: BytesMut,
}

impl DatagramDecoder {
    /// Adds a chunk. The previous one must be consumed: `take` returned `None`.
    pub fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty());
        self.chunk = chunk;
    }

    /// Returns the next datagram or control word. `None`: more bytes are needed.
    pub fn take(&mut self) -> Option<DatagramFrame> {
        if self.begun.is_empty() {
            // In the usual case the datagram lies in one chunk and is not copied.
            match frame_bytes(&self.chunk) {
                Some(bytes) if self.chunk.len() >= bytes => {
                    return Some(DatagramFrame::of(self.chunk.split_to(bytes)));
                }
                _ => {}
            }
        }
        while !self.chunk.is_empty() {
            let wanted = frame_bytes(&self.begun).unwrap_or(PREFIX_BYTES);
            let taken = (wanted - self.begun.len()).min(self.chunk.len());
            self.begun.extend_from_slice(&self.chunk[..taken]);
            self.chunk.advance(taken);
            if frame_bytes(&self.begun) == Some(self.begun.len()) {
                return Some(DatagramFrame::of(self.begun.split().freeze()));
            }
        }
        None
    }

    /// Returns whether the stream ended between two datagrams.
    pub fn is_whole(&self) -> bool {
        self.begun.is_empty() && self.chunk.is_empty()
    }
}

/// Returns the length of the frame that begins here, including the prefix.
fn frame_bytes(bytes: &[u8]) -> Option<usize> {
    let prefix = u16::from_be_bytes(*bytes.first_chunk::<PREFIX_BYTES>()?);
    match usize::from(prefix) {
        bytes if bytes > PAYLOAD_BYTES_MAX => Some(PREFIX_BYTES),
        bytes => Some(PREFIX_BYTES + bytes),
    }
}

/// Encodes a QUIC datagram: the stream number, below 2^62 as all numbers of QUIC, and the payload.
pub fn beside(number: u64, payload: &[u8]) -> Bytes {
    let mut bytes = BytesMut::with_capacity(NUMBER_BYTES_MAX + payload.len());
    match number {
        0..0x40 => bytes.put_u8(number as u8),
        0x40..0x4000 => bytes.put_u16(0x4000 | number as u16),
        0x4000..0x4000_0000 => bytes.put_u32(0x8000_0000 | number as u32),
        _ => bytes.put_u64(0xc000_0000_0000_0000 | number),
    }
    bytes.put_slice(payload);
    bytes.freeze()
}

/// Splits a QUIC datagram into stream number and payload. Returns `None` if it is too short.
pub fn read_beside(mut bytes: Bytes) -> Option<(u64, Bytes)> {
    let first = *bytes.first()?;
    let length = 1usize << (first >> 6);
    if bytes.len() < length {
        return None;
    }
    let head = bytes.split_to(length);
    let number =
        head[1..].iter().fold(u64::from(first & 0x3f), |number, byte| number << 8 | u64::from(*byte));
    Some((number, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_come_out_as_they_went_in_however_they_are_cut() {
        let sizes = [0, 1, 2, 300, 0, 65_507, PAYLOAD_BYTES_MAX, 7];
        let payloads: Vec<Vec<u8>> = sizes.iter().map(|size| vec![*size as u8; *size]).collect();
        let mut whole = BytesMut::new();
        for payload in &payloads {
            whole.extend_from_slice(&FramedDatagram::new(payload).unwrap().into_frame());
            whole.put_u16(WELCOME);
        }
        let whole = whole.freeze();
        for piece in [1, 2, 3, 5, 299, 302, 1200, 65_536, whole.len()] {
            let (mut frames, mut found, mut words) = (DatagramDecoder::default(), Vec::new(), 0);
            for start in (0..whole.len()).step_by(piece) {
                frames.push(whole.slice(start..whole.len().min(start + piece)));
                while let Some(framed) = frames.take() {
                    match framed {
                        DatagramFrame::Datagram(datagram) => found.push(datagram.payload().to_vec()),
                        DatagramFrame::Word(word) => words += u32::from(word == WELCOME),
                    }
                }
            }
            assert!(frames.is_whole() && found == payloads, "in pieces of {piece}");
            assert_eq!(words as usize, payloads.len());
        }
        assert_eq!(FramedDatagram::new(&[0; PAYLOAD_BYTES_MAX + 1]), None);
        assert_eq!(FramedDatagram::bare(vec![0; PAYLOAD_BYTES_MAX + 1].into()), None);
    }

    #[test]
    fn an_end_in_the_middle_is_seen() {
        for part in [&b"\x00"[..], b"\x00\x02", b"\x00\x02a", b"\xff"] {
            let mut frames = DatagramDecoder::default();
            frames.push(Bytes::from_static(part));
            assert!(frames.take().is_none() && !frames.is_whole());
        }
    }

    #[test]
    fn what_goes_beside_a_stream_says_whose_it_is() {
        let numbers = [0, 1, 63, 64, 16_383, 16_384, (1 << 30) - 1, 1 << 30, (1 << 62) - 1];
        let lengths = [1, 1, 1, 2, 2, 4, 4, 8, 8];
        for (number, length) in numbers.into_iter().zip(lengths) {
            let bytes = beside(number, b"hello");
            assert_eq!(bytes.len(), length + 5);
            assert_eq!(read_beside(bytes), Some((number, Bytes::from_static(b"hello"))));
            for cut in 0..length {
                assert_eq!(read_beside(beside(number, b"").slice(..cut)), None, "{number} cut at {cut}");
            }
        }
        let bare = FramedDatagram::bare(Bytes::from_static(b"hello")).unwrap();
        assert_eq!(bare, FramedDatagram::new(b"hello").unwrap());
        assert_eq!(bare.into_frame(), FramedDatagram::new(b"hello").unwrap().into_frame());
    }
}
