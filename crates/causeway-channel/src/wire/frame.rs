//! Frames of enrolment and of the control stream: a length of four bytes, big-endian, then a protobuf message.
//!
//! Shared by `wire` and `wire::control`, which add their own bounds and errors. Also shared: the text that a refusal shows.

use std::fmt;

use bytes::{Bytes, BytesMut};
use prost::Message;

pub(super) const LENGTH_BYTES: usize = 4;

/// A message is longer than its reader accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FrameTooLong {
    pub(super) bytes: usize,
}

/// Returns the announced length of a message, if a reader may accept it.
pub(super) fn length(prefix: [u8; LENGTH_BYTES], max: usize) -> Result<usize, FrameTooLong> {
    match u32::from_be_bytes(prefix) as usize {
        bytes if bytes > max => Err(FrameTooLong { bytes }),
        bytes => Ok(bytes),
    }
}

/// Encodes a frame. Fails when the message is longer than its reader accepts.
pub(super) fn encode(message: &impl Message, max: usize) -> Result<Bytes, FrameTooLong> {
    let bytes = message.encoded_len();
    if bytes > max {
        return Err(FrameTooLong { bytes });
    }
    let mut frame = BytesMut::with_capacity(LENGTH_BYTES + bytes);
    frame.extend_from_slice(&(bytes as u32).to_be_bytes());
    message.encode(&mut frame).expect("BytesMut grows as needed, and that is the only way to fail");
    Ok(frame.freeze())
}

/// Characters of a peer's text that are shown.
const SHOWN_CHARS_MAX: usize = 400;

/// Shows the message and the hint of a refusal, without control characters: they go to logs and terminals.
pub(super) fn write_refusal(formatter: &mut fmt::Formatter<'_>, message: &str, hint: &str) -> fmt::Result {
    let clean = |text: &str| -> String {
        text.chars().filter(|char| !char.is_control()).take(SHOWN_CHARS_MAX).collect()
    };
    write!(formatter, "{}", clean(message))?;
    if !hint.is_empty() {
        write!(formatter, " ({})", clean(hint))?;
    }
    Ok(())
}
