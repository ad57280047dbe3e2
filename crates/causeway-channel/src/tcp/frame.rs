//! Frames of the TCP transport inside TLS: parsing and writing.
//!
//! A frame has a head of 8 bytes (kind, flags, length, stream; big-endian) and a payload. Unknown kinds from
//! 128 up are ignored, and payloads of `LinkSettings` may grow; any other deviation is an error. The state in
//! which a frame is allowed is checked in `mux`. The bytes are pinned by
//! `tests/it/wire_fixtures.rs`.

use crate::link::{CloseReason, HEADER_BYTES_MAX};

pub const HEAD_BYTES: usize = 8;

/// A full frame with its head is exactly one full TLS record.
pub const PAYLOAD_BYTES_MAX: usize = 16 * 1024 - HEAD_BYTES;

const CLOSE_TEXT_BYTES_MAX: usize = CloseReason::TEXT_BYTES_MAX;

const OPEN: u8 = 1;
const DATA: u8 = 2;
const RESET: u8 = 3;
const STOP: u8 = 4;
const CREDIT: u8 = 5;
const DATAGRAM: u8 = 6;
const PING: u8 = 7;
const PONG: u8 = 8;
const CLOSE: u8 = 9;
const SETTINGS: u8 = 10;
const OPTIONAL: u8 = 128;

/// Flag of `DATA`: this direction of the stream ends.
const FIN: u8 = 1;

/// Limits that each end grants to the other; the first frame in each direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkSettings {
    /// Number of streams that the other end may have opened at the same time.
    pub streams_max: u32,
    /// Bytes that may be sent on a new stream before credit is granted.
    pub initial_credit: u32,
}

impl LinkSettings {
    /// Limits before the peer's settings arrive, so that an edge may send at once. No peer may grant less.
    pub const FLOOR: LinkSettings = LinkSettings { streams_max: 16, initial_credit: 16 * 1024 };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Frame<'a> {
    Settings(LinkSettings),
    /// `credit` is the initial credit of the other end on this stream.
    Open {
        stream: u32,
        credit: u32,
        header: &'a [u8],
    },
    Data {
        stream: u32,
        bytes: &'a [u8],
        fin: bool,
    },
    Reset {
        stream: u32,
        code: u32,
    },
    Stop {
        stream: u32,
        code: u32,
    },
    Credit {
        stream: u32,
        bytes: u32,
    },
    /// A datagram of the link itself. This version sends none.
    Datagram(&'a [u8]),
    Ping(u64),
    Pong(u64),
    Close {
        code: u32,
        text: &'a [u8],
    },
    /// A kind of a newer version that may be ignored.
    Unknown,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("a frame of unknown kind {0}")]
    Kind(u8),
    #[error("a frame of kind {kind} with {length} bytes")]
    Length { kind: u8, length: u16 },
}

/// Returns the first frame in `bytes` and its length; `None` when more bytes are needed. An invalid head is
/// refused before its payload has arrived.
pub fn parse(bytes: &[u8]) -> Result<Option<(Frame<'_>, usize)>, FrameError> {
    let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(None) };
    let [kind, flags, length_high, length_low, stream @ ..] = *head;
    let length = u16::from_be_bytes([length_high, length_low]);
    let stream = u32::from_be_bytes(stream);
    if !length_fits(kind, usize::from(length))? {
        return Err(FrameError::Length { kind, length });
    }
    let Some(payload) = rest.get(..usize::from(length)) else { return Ok(None) };
    let frame = match kind {
        OPEN => Frame::Open { stream, credit: number(payload), header: payload.get(4..).unwrap_or_default() },
        DATA => Frame::Data { stream, bytes: payload, fin: flags & FIN != 0 },
        RESET => Frame::Reset { stream, code: number(payload) },
        STOP => Frame::Stop { stream, code: number(payload) },
        CREDIT => Frame::Credit { stream, bytes: number(payload) },
        DATAGRAM => Frame::Datagram(payload),
        PING => Frame::Ping(long_number(payload)),
        PONG => Frame::Pong(long_number(payload)),
        CLOSE => Frame::Close { code: number(payload), text: payload.get(4..).unwrap_or_default() },
        SETTINGS => Frame::Settings(LinkSettings {
            streams_max: number(payload),
            initial_credit: number(payload.get(4..).unwrap_or_default()),
        }),
        _ => Frame::Unknown,
    };
    Ok(Some((frame, HEAD_BYTES + usize::from(length))))
}

/// Head of a data frame whose payload is read separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataHead {
    pub stream: u32,
    pub length: usize,
    pub fin: bool,
}

impl DataHead {
    /// Returns `None` when another frame begins here, or its head is incomplete. A head that `parse` refuses
    /// is never passed to this function.
    pub fn parse(bytes: &[u8]) -> Option<DataHead> {
        let [DATA, flags, high, low, stream @ ..] = bytes.first_chunk::<HEAD_BYTES>()? else { return None };
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        let stream = u32::from_be_bytes(stream.first_chunk().copied()?);
        (length <= PAYLOAD_BYTES_MAX).then_some(DataHead { stream, length, fin: flags & FIN != 0 })
    }
}

fn length_fits(kind: u8, length: usize) -> Result<bool, FrameError> {
    Ok(match kind {
        OPEN => (4..=4 + HEADER_BYTES_MAX).contains(&length),
        DATA | DATAGRAM => length <= PAYLOAD_BYTES_MAX,
        RESET | STOP | CREDIT => length == 4,
        PING | PONG => length == 8,
        CLOSE => (4..=4 + CLOSE_TEXT_BYTES_MAX).contains(&length),
        SETTINGS => (8..=PAYLOAD_BYTES_MAX).contains(&length),
        OPTIONAL.. => length <= PAYLOAD_BYTES_MAX,
        _ => return Err(FrameError::Kind(kind)),
    })
}

fn number(payload: &[u8]) -> u32 {
    payload.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

fn long_number(payload: &[u8]) -> u64 {
    payload.first_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

impl Frame<'_> {
    /// Appends the frame. `mux` keeps payloads within their bounds.
    pub fn write(&self, out: &mut Vec<u8>) {
        match *self {
            Frame::Settings(settings) => {
                head(out, SETTINGS, 0, 8, 0);
                out.extend_from_slice(&settings.streams_max.to_be_bytes());
                out.extend_from_slice(&settings.initial_credit.to_be_bytes());
            }
            Frame::Open { stream, credit, header } => {
                head(out, OPEN, 0, 4 + header.len(), stream);
                out.extend_from_slice(&credit.to_be_bytes());
                out.extend_from_slice(header);
            }
            Frame::Data { stream, bytes, fin } => {
                data_head(out, stream, bytes.len(), fin);
                out.extend_from_slice(bytes);
            }
            Frame::Reset { stream, code } => short(out, RESET, stream, code),
            Frame::Stop { stream, code } => short(out, STOP, stream, code),
            Frame::Credit { stream, bytes } => short(out, CREDIT, stream, bytes),
            Frame::Datagram(bytes) => {
                head(out, DATAGRAM, 0, bytes.len(), 0);
                out.extend_from_slice(bytes);
            }
            Frame::Ping(nonce) => {
                head(out, PING, 0, 8, 0);
                out.extend_from_slice(&nonce.to_be_bytes());
            }
            Frame::Pong(nonce) => {
                head(out, PONG, 0, 8, 0);
                out.extend_from_slice(&nonce.to_be_bytes());
            }
            Frame::Close { code, text } => {
                head(out, CLOSE, 0, 4 + text.len(), 0);
                out.extend_from_slice(&code.to_be_bytes());
                out.extend_from_slice(text);
            }
            Frame::Unknown => {}
        }
    }
}

/// Writes the head of a data frame whose payload is sent separately, without a copy.
pub fn data_head(out: &mut Vec<u8>, stream: u32, length: usize, fin: bool) {
    head(out, DATA, if fin { FIN } else { 0 }, length, stream);
}

fn short(out: &mut Vec<u8>, kind: u8, stream: u32, value: u32) {
    head(out, kind, 0, 4, stream);
    out.extend_from_slice(&value.to_be_bytes());
}

fn head(out: &mut Vec<u8>, kind: u8, flags: u8, length: usize, stream: u32) {
    let length = u16::try_from(length).expect("payloads are bounded far below 64 KiB by the callers");
    let [length_high, length_low] = length.to_be_bytes();
    let [a, b, c, d] = stream.to_be_bytes();
    out.extend_from_slice(&[kind, flags, length_high, length_low, a, b, c, d]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(frame: Frame<'_>) {
        let mut bytes = Vec::new();
        frame.write(&mut bytes);
        for cut in 0..bytes.len() {
            assert_eq!(parse(&bytes[..cut]), Ok(None), "{frame:?} cut at {cut}");
        }
        let length = bytes.len();
        bytes.extend_from_slice(b"what follows");
        assert_eq!(parse(&bytes), Ok(Some((frame, length))));
    }

    #[test]
    fn what_is_written_is_read() {
        check(Frame::Settings(LinkSettings { streams_max: 7, initial_credit: 9 }));
        check(Frame::Open { stream: 1, credit: 5, header: b"header" });
        check(Frame::Open { stream: u32::MAX, credit: u32::MAX, header: &[7; HEADER_BYTES_MAX] });
        check(Frame::Data { stream: 2, bytes: b"", fin: true });
        check(Frame::Data { stream: 2, bytes: &[1; PAYLOAD_BYTES_MAX], fin: false });
        check(Frame::Reset { stream: 3, code: 4 });
        check(Frame::Stop { stream: 3, code: 4 });
        check(Frame::Credit { stream: 3, bytes: 4 });
        check(Frame::Datagram(b"packet"));
        check(Frame::Ping(u64::MAX));
        check(Frame::Pong(1));
        check(Frame::Close { code: 1, text: b"bye" });
    }

    #[test]
    fn a_head_that_can_not_be_right_is_refused_at_once() {
        let refused = |kind, length: u16, error| {
            let [high, low] = length.to_be_bytes();
            assert_eq!(parse(&[kind, 0, high, low, 0, 0, 0, 1]), Err(error));
        };
        refused(0, 0, FrameError::Kind(0));
        refused(11, 0, FrameError::Kind(11));
        refused(DATA, 0x4000, FrameError::Length { kind: DATA, length: 0x4000 });
        refused(RESET, 3, FrameError::Length { kind: RESET, length: 3 });
        refused(OPEN, 3, FrameError::Length { kind: OPEN, length: 3 });
        refused(OPEN, 4101, FrameError::Length { kind: OPEN, length: 4101 });
        refused(CLOSE, 517, FrameError::Length { kind: CLOSE, length: 517 });
    }

    #[test]
    fn the_head_of_a_data_frame_can_be_read_alone() {
        let mut bytes = Vec::new();
        Frame::Data { stream: 0x01020304, bytes: &[1; 9000], fin: true }.write(&mut bytes);
        assert_eq!(
            DataHead::parse(&bytes[..8]),
            Some(DataHead { stream: 0x01020304, length: 9000, fin: true })
        );
        assert_eq!(DataHead::parse(&bytes[..7]), None);
        bytes.clear();
        Frame::Datagram(&[1; 9000]).write(&mut bytes);
        assert_eq!(DataHead::parse(&bytes), None);
    }

    #[test]
    fn a_newer_peer_may_add_kinds_and_settings() {
        let optional = [200, 0, 0, 2, 0, 0, 0, 0, 1, 2];
        assert_eq!(parse(&optional), Ok(Some((Frame::Unknown, 10))));
        let settings = [SETTINGS, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 99];
        let known = LinkSettings { streams_max: 1, initial_credit: 2 };
        assert_eq!(parse(&settings), Ok(Some((Frame::Settings(known), 17))));
    }

    proptest! {
        #[test]
        fn no_bytes_panic_and_no_frame_is_longer_than_its_bytes(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            if let Ok(Some((_, length))) = parse(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
