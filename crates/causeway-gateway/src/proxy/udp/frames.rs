//! Datagrams on a stream: each behind its length in two bytes, big end first.
//!
//! Every length is possible, none too; so there is nothing to refuse, and only an end in the middle is an error.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// The length in front.
pub const PREFIX_BYTES: usize = 2;
/// What UDP over IPv4 can carry: 65,535 less the heads of IP and UDP.
pub const PAYLOAD_BYTES_MAX: usize = 65_507;

/// One datagram as it stands on a stream, its length in front.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram(Bytes);

impl Datagram {
    /// None: longer than two bytes can say.
    pub fn new(payload: &[u8]) -> Option<Datagram> {
        let length = u16::try_from(payload.len()).ok()?;
        let mut frame = BytesMut::with_capacity(PREFIX_BYTES + payload.len());
        frame.put_u16(length);
        frame.put_slice(payload);
        Some(Datagram(frame.freeze()))
    }

    pub fn payload(&self) -> &[u8] {
        &self.0[PREFIX_BYTES..]
    }

    pub fn into_frame(self) -> Bytes {
        self.0
    }
}

/// Cuts what comes from a stream into datagrams. Holds one unfinished datagram at most.
#[derive(Default, Debug)]
pub struct Frames {
    /// What came last and was not looked at.
    chunk: Bytes,
    /// The beginning of a datagram whose rest has not come.
    begun: BytesMut,
}

impl Frames {
    /// The chunk before must have been used up: `take` gave none.
    pub fn push(&mut self, chunk: Bytes) {
        debug_assert!(self.chunk.is_empty());
        self.chunk = chunk;
    }

    /// The next datagram. None: more must come.
    pub fn take(&mut self) -> Option<Datagram> {
        if self.begun.is_empty() {
            // The usual case: it lies in one piece, and is not copied.
            match frame_bytes(&self.chunk) {
                Some(bytes) if self.chunk.len() >= bytes => {
                    return Some(Datagram(self.chunk.split_to(bytes)));
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
                return Some(Datagram(self.begun.split().freeze()));
            }
        }
        None
    }

    /// Did the stream end between two datagrams?
    pub fn is_whole(&self) -> bool {
        self.begun.is_empty() && self.chunk.is_empty()
    }
}

/// How long the frame is that begins here, its length included.
fn frame_bytes(bytes: &[u8]) -> Option<usize> {
    let prefix = bytes.first_chunk::<PREFIX_BYTES>()?;
    Some(PREFIX_BYTES + usize::from(u16::from_be_bytes(*prefix)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_come_out_as_they_went_in_however_they_are_cut() {
        let sizes = [0, 1, 2, 300, 0, PAYLOAD_BYTES_MAX, 65_535, 7];
        let payloads: Vec<Vec<u8>> = sizes.iter().map(|size| vec![*size as u8; *size]).collect();
        let mut whole = BytesMut::new();
        for payload in &payloads {
            whole.extend_from_slice(&Datagram::new(payload).unwrap().into_frame());
        }
        let whole = whole.freeze();
        for piece in [1, 2, 3, 5, 299, 302, 1200, 65_536, whole.len()] {
            let (mut frames, mut found) = (Frames::default(), Vec::new());
            for start in (0..whole.len()).step_by(piece) {
                frames.push(whole.slice(start..whole.len().min(start + piece)));
                while let Some(datagram) = frames.take() {
                    found.push(datagram.payload().to_vec());
                }
            }
            assert!(frames.is_whole() && found == payloads, "in pieces of {piece}");
        }
        assert_eq!(Datagram::new(&[0; 65_536]), None);
    }

    #[test]
    fn an_end_in_the_middle_is_seen() {
        for part in [&b"\x00"[..], b"\x00\x02", b"\x00\x02a"] {
            let mut frames = Frames::default();
            frames.push(Bytes::from_static(part));
            assert!(frames.take().is_none() && !frames.is_whole());
        }
    }
}
