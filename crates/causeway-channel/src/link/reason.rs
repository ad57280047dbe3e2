//! Reasons for the end of a stream or a link: codes on the wire and texts for people.
//!
//! An unknown code is kept as `Other`, so that it can be forwarded and shown.

use std::fmt;
use std::io;

/// Reason for which one direction of a stream was reset or stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResetCode {
    /// The holder of the half dropped it, or its link is gone.
    Abandoned,
    Refused,
    NoRoute,
    NotAllowed,
    BackendDown,
    Timeout,
    Limit,
    Draining,
    Malformed,
    Internal,
    /// The stream was allowed at its start, and is no longer.
    Revoked,
    Other(u32),
}

impl ResetCode {
    /// Returns the code in an error of a stream: a reset when reading, a stop when writing.
    pub fn of(error: &io::Error) -> Option<ResetCode> {
        error.get_ref()?.downcast_ref::<Reset>().map(|reset| reset.0)
    }
}

impl From<u32> for ResetCode {
    fn from(code: u32) -> ResetCode {
        match code {
            1 => ResetCode::Abandoned,
            2 => ResetCode::Refused,
            3 => ResetCode::NoRoute,
            4 => ResetCode::NotAllowed,
            5 => ResetCode::BackendDown,
            6 => ResetCode::Timeout,
            7 => ResetCode::Limit,
            8 => ResetCode::Draining,
            9 => ResetCode::Malformed,
            10 => ResetCode::Internal,
            11 => ResetCode::Revoked,
            other => ResetCode::Other(other),
        }
    }
}

impl From<ResetCode> for u32 {
    fn from(code: ResetCode) -> u32 {
        match code {
            ResetCode::Abandoned => 1,
            ResetCode::Refused => 2,
            ResetCode::NoRoute => 3,
            ResetCode::NotAllowed => 4,
            ResetCode::BackendDown => 5,
            ResetCode::Timeout => 6,
            ResetCode::Limit => 7,
            ResetCode::Draining => 8,
            ResetCode::Malformed => 9,
            ResetCode::Internal => 10,
            ResetCode::Revoked => 11,
            ResetCode::Other(other) => other,
        }
    }
}

impl fmt::Display for ResetCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            ResetCode::Abandoned => "abandoned",
            ResetCode::Refused => "refused",
            ResetCode::NoRoute => "no route",
            ResetCode::NotAllowed => "not allowed",
            ResetCode::BackendDown => "the backend is down",
            ResetCode::Timeout => "timed out",
            ResetCode::Limit => "over a limit",
            ResetCode::Draining => "draining",
            ResetCode::Malformed => "malformed",
            ResetCode::Internal => "internal error",
            ResetCode::Revoked => "no longer allowed",
            ResetCode::Other(code) => return write!(formatter, "code {code}"),
        };
        formatter.write_str(text)
    }
}

/// The peer reset or stopped a direction of a stream. Wrapped in an `io::Error` of kind `ConnectionReset`
/// when the peer sends no more, `BrokenPipe` when it reads no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer ended the stream: {0}")]
pub struct Reset(pub ResetCode);

impl Reset {
    pub fn reading(code: ResetCode) -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionReset, Reset(code))
    }

    pub fn writing(code: ResetCode) -> io::Error {
        io::Error::new(io::ErrorKind::BrokenPipe, Reset(code))
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CloseCode {
    Done,
    /// A newer session of the same gateway took over.
    Superseded,
    Revoked,
    Draining,
    Limit,
    Malformed,
    NotAdmitted,
    /// No packet arrived for too long.
    Dead,
    Internal,
    CertificateExpired,
    Other(u32),
}

impl From<u32> for CloseCode {
    fn from(code: u32) -> CloseCode {
        match code {
            0 => CloseCode::Done,
            1 => CloseCode::Superseded,
            2 => CloseCode::Revoked,
            3 => CloseCode::Draining,
            4 => CloseCode::Limit,
            5 => CloseCode::Malformed,
            6 => CloseCode::NotAdmitted,
            7 => CloseCode::Dead,
            8 => CloseCode::Internal,
            9 => CloseCode::CertificateExpired,
            other => CloseCode::Other(other),
        }
    }
}

impl From<CloseCode> for u32 {
    fn from(code: CloseCode) -> u32 {
        match code {
            CloseCode::Done => 0,
            CloseCode::Superseded => 1,
            CloseCode::Revoked => 2,
            CloseCode::Draining => 3,
            CloseCode::Limit => 4,
            CloseCode::Malformed => 5,
            CloseCode::NotAdmitted => 6,
            CloseCode::Dead => 7,
            CloseCode::Internal => 8,
            CloseCode::CertificateExpired => 9,
            CloseCode::Other(other) => other,
        }
    }
}

impl fmt::Display for CloseCode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            CloseCode::Done => "done",
            CloseCode::Superseded => "superseded",
            CloseCode::Revoked => "revoked",
            CloseCode::Draining => "draining",
            CloseCode::Limit => "over a limit",
            CloseCode::Malformed => "malformed",
            CloseCode::NotAdmitted => "not admitted",
            CloseCode::Dead => "dead",
            CloseCode::Internal => "internal error",
            CloseCode::CertificateExpired => "certificate expired",
            CloseCode::Other(code) => return write!(formatter, "code {code}"),
        };
        formatter.write_str(text)
    }
}

/// Reason sent to the peer when a link is closed. Text beyond `TEXT_BYTES_MAX` is cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CloseReason {
    pub code: CloseCode,
    pub text: String,
}

impl CloseReason {
    /// Fits one packet of QUIC together with the rest of the frame, and is a few sentences.
    pub const TEXT_BYTES_MAX: usize = 512;

    pub fn new(code: CloseCode, text: impl Into<String>) -> CloseReason {
        CloseReason { code, text: text.into() }
    }

    /// Decodes the reason of a peer. Its text goes into logs and terminals, so control characters are
    /// replaced.
    pub fn from_wire(code: u32, text: &[u8]) -> CloseReason {
        let text = String::from_utf8_lossy(text).replace(char::is_control, " ");
        CloseReason::new(CloseCode::from(code), cut(&text))
    }

    /// Returns the text for the wire, cut at a character boundary.
    pub fn text_for_wire(&self) -> &str {
        cut(&self.text)
    }
}

fn cut(text: &str) -> &str {
    let mut end = text.len().min(CloseReason::TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

impl fmt::Display for CloseReason {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.text.is_empty() {
            true => write!(formatter, "{}", self.code),
            false => write!(formatter, "{}: {}", self.code, self.text),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ClosedBy {
    Us,
    /// The peer, with its own reason.
    Peer,
    /// Neither end: a timeout, a reset from a peer that does not know the link, or a protocol error.
    Transport,
}

/// Error of operations on a closed link.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct LinkClosed {
    pub by: ClosedBy,
    pub reason: CloseReason,
}

impl LinkClosed {
    pub fn new(by: ClosedBy, code: CloseCode, text: impl Into<String>) -> LinkClosed {
        LinkClosed { by, reason: CloseReason::new(code, text) }
    }
}

impl fmt::Display for LinkClosed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by = match self.by {
            ClosedBy::Us => "we closed the link",
            ClosedBy::Peer => "the peer closed the link",
            ClosedBy::Transport => "the link broke",
        };
        write!(formatter, "{by}: {}", self.reason)
    }
}

impl From<LinkClosed> for io::Error {
    fn from(closed: LinkClosed) -> io::Error {
        io::Error::new(io::ErrorKind::NotConnected, closed)
    }
}

/// A stream could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    #[error(transparent)]
    Closed(#[from] LinkClosed),
    #[error(transparent)]
    Header(#[from] super::header::HeaderError),
    /// The peer refused the stream before it read the header.
    #[error(transparent)]
    Refused(#[from] Reset),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_back_as_they_went() {
        for code in 0..300 {
            assert_eq!(u32::from(ResetCode::from(code)), code);
            assert_eq!(u32::from(CloseCode::from(code)), code);
        }
        assert_eq!(ResetCode::from(4), ResetCode::NotAllowed);
        assert_eq!(CloseCode::from(9), CloseCode::CertificateExpired);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character() {
        let reason = CloseReason::new(CloseCode::Limit, format!("{}ü", "x".repeat(511)));
        assert_eq!(reason.text_for_wire().len(), 511);
        let heard = CloseReason::from_wire(4, &[&b"a\x1b[2Jb\n\xff"[..], &[b'x'; 600]].concat());
        assert!(heard.code == CloseCode::Limit && heard.text.starts_with("a [2Jb \u{fffd}xxx"), "{heard}");
        assert!(heard.text.len() <= CloseReason::TEXT_BYTES_MAX);
    }

    #[test]
    fn the_code_of_a_reset_can_be_read_from_the_error() {
        assert_eq!(ResetCode::of(&Reset::reading(ResetCode::NoRoute)), Some(ResetCode::NoRoute));
        assert_eq!(ResetCode::of(&io::Error::other("else")), None);
    }
}
