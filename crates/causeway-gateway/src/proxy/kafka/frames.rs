//! Frames of Kafka in a run of chunks: which pass, and which are held until they are whole.
//!
//! Every frame has its length in front, then what its head says. What passes is neither copied nor kept, however large it is;
//! chunks go on as they came. A head that is cut in two waits for its rest. Nothing here reads bodies.

use std::collections::VecDeque;
use std::convert::Infallible;

use bytes::{Bytes, BytesMut};

use super::versions::{NO_SUCH_VERSION, PendingRequest, RequestHandling, RewrittenApi, judge};

/// An answer that is read is held in memory. A cluster of 200,000 partitions has some 12 MB of metadata.
pub const HELD_BYTES_MAX: usize = 16 << 20;
/// Questions whose answers are read, under way on one connection. Clients have a handful.
pub const WAITING_MAX: usize = 1024;
/// The first byte of TLS. As a length it would be a frame of more than 350 MB.
const TLS_HANDSHAKE: u8 = 0x16;

/// This is not how Kafka is spoken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KafkaFrameError {
    #[error("a frame of {0} bytes")]
    Length(i32),
    #[error("request {key} in version {version}, which is not offered here")]
    Version { key: i16, version: i16 },
    #[error("{WAITING_MAX} questions under way")]
    TooManyQuestions,
    #[error("an answer of {0} bytes that has to be read whole")]
    TooLong(usize),
}

/// What comes out of a run of chunks, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FramePiece<T> {
    Pass(Bytes),
    /// A whole frame, with its length.
    Held(T, Bytes),
}

/// What is to become of a frame.
enum Fate<T> {
    Pass,
    /// Passes with another head.
    Changed,
    Hold(T),
}

/// What both directions of one connection know.
#[derive(Default)]
pub struct KafkaConversation {
    /// What was asked and has to be read, oldest first.
    waiting: VecDeque<(i32, PendingRequest)>,
    /// The client speaks TLS: nothing can be read.
    is_opaque: bool,
}

const REQUEST_HEAD: usize = 12;
const ANSWER_HEAD: usize = 8;

/// What a client says.
#[derive(Default)]
pub struct RequestScanner {
    scanner: Scanner<REQUEST_HEAD, Infallible>,
    is_begun: bool,
}

impl RequestScanner {
    pub fn take(
        &mut self,
        chunk: Bytes,
        talk: &mut KafkaConversation,
        mut emit: impl FnMut(Bytes),
    ) -> Result<(), KafkaFrameError> {
        if !self.is_begun && !chunk.is_empty() {
            self.is_begun = true;
            talk.is_opaque = chunk[0] == TLS_HANDSHAKE;
        }
        if talk.is_opaque {
            emit(chunk);
            return Ok(());
        }
        let emit = |piece| match piece {
            FramePiece::Pass(bytes) => emit(bytes),
            FramePiece::Held(never, _) => match never {},
        };
        self.scanner.take(chunk, |head| talk.ask(head), emit)
    }
}

/// What a broker says.
#[derive(Default)]
pub struct ResponseScanner {
    scanner: Scanner<ANSWER_HEAD, PendingRequest>,
}

impl ResponseScanner {
    pub fn take(
        &mut self,
        chunk: Bytes,
        talk: &mut KafkaConversation,
        mut emit: impl FnMut(FramePiece<PendingRequest>),
    ) -> Result<(), KafkaFrameError> {
        if talk.is_opaque {
            emit(FramePiece::Pass(chunk));
            return Ok(());
        }
        self.scanner.take(chunk, |head| Ok(talk.answer(head)), emit)
    }
}

impl KafkaConversation {
    /// The head of a request: length, key, version, number.
    fn ask(&mut self, head: &mut [u8; REQUEST_HEAD]) -> Result<Fate<Infallible>, KafkaFrameError> {
        let [_, _, _, _, k0, k1, v0, v1, c0, c1, c2, c3] = *head;
        let (key, version) = (i16::from_be_bytes([k0, k1]), i16::from_be_bytes([v0, v1]));
        let (asked, fate) = match judge(key, version) {
            RequestHandling::Pass => return Ok(Fate::Pass),
            RequestHandling::Refuse => return Err(KafkaFrameError::Version { key, version }),
            RequestHandling::Watch(asked) => (asked, Fate::Pass),
            RequestHandling::AskForNoSuchVersion => {
                head[6..8].copy_from_slice(&NO_SUCH_VERSION.to_be_bytes());
                (PendingRequest { api: RewrittenApi::ApiVersions, version: 0 }, Fate::Changed)
            }
        };
        if self.waiting.len() >= WAITING_MAX {
            return Err(KafkaFrameError::TooManyQuestions);
        }
        self.waiting.push_back((i32::from_be_bytes([c0, c1, c2, c3]), asked));
        Ok(fate)
    }

    /// The head of an answer: length, number. Brokers answer in the order in which they were asked, so it is the first one as a rule.
    fn answer(&mut self, head: &[u8; ANSWER_HEAD]) -> Fate<PendingRequest> {
        let [_, _, _, _, c0, c1, c2, c3] = *head;
        let number = i32::from_be_bytes([c0, c1, c2, c3]);
        let place = self.waiting.iter().position(|(waiting, _)| *waiting == number);
        match place.and_then(|place| self.waiting.remove(place)) {
            Some((_, asked)) => Fate::Hold(asked),
            None => Fate::Pass,
        }
    }
}

/// Follows frames whose heads have `HEAD` bytes, the length included.
struct Scanner<const HEAD: usize, T> {
    /// The beginning of a head that was cut in two.
    head: [u8; HEAD],
    head_bytes: usize,
    /// What is missing of the frame.
    left: usize,
    held: Option<(T, BytesMut)>,
}

impl<const HEAD: usize, T> Default for Scanner<HEAD, T> {
    fn default() -> Self {
        Scanner { head: [0; HEAD], head_bytes: 0, left: 0, held: None }
    }
}

impl<const HEAD: usize, T> Scanner<HEAD, T> {
    fn take(
        &mut self,
        chunk: Bytes,
        mut judge: impl FnMut(&mut [u8; HEAD]) -> Result<Fate<T>, KafkaFrameError>,
        mut emit: impl FnMut(FramePiece<T>),
    ) -> Result<(), KafkaFrameError> {
        // Of the chunk, what was looked at, and what has already gone on or is kept.
        let (mut at, mut done) = (0, 0);
        while at < chunk.len() {
            if self.left > 0 {
                let bytes = self.left.min(chunk.len() - at);
                if let Some((_, held)) = &mut self.held {
                    held.extend_from_slice(&chunk[at..at + bytes]);
                    done = at + bytes;
                }
                at += bytes;
                self.left -= bytes;
                self.finish(&mut emit);
                continue;
            }
            let bytes = (HEAD - self.head_bytes).min(chunk.len() - at);
            self.head[self.head_bytes..self.head_bytes + bytes].copy_from_slice(&chunk[at..at + bytes]);
            let was_cut = self.head_bytes > 0;
            self.head_bytes += bytes;
            if self.head_bytes < HEAD {
                pass(&chunk, done..at, &mut emit);
                return Ok(());
            }
            self.head_bytes = 0;
            self.left = body_bytes(&self.head)?;
            let fate = judge(&mut self.head)?;
            if !matches!((&fate, was_cut), (Fate::Pass, false)) {
                pass(&chunk, done..at, &mut emit);
                done = at + bytes;
            }
            at += bytes;
            match fate {
                Fate::Pass if !was_cut => {}
                Fate::Pass | Fate::Changed => emit(FramePiece::Pass(Bytes::copy_from_slice(&self.head))),
                Fate::Hold(_) if self.left > HELD_BYTES_MAX => {
                    return Err(KafkaFrameError::TooLong(self.left));
                }
                Fate::Hold(what) => {
                    self.held = Some((what, BytesMut::from(&self.head[..])));
                    self.finish(&mut emit);
                }
            }
        }
        pass(&chunk, done..at, &mut emit);
        Ok(())
    }

    /// What was held goes on when it is whole.
    fn finish(&mut self, emit: &mut impl FnMut(FramePiece<T>)) {
        if self.left == 0
            && let Some((what, frame)) = self.held.take()
        {
            emit(FramePiece::Held(what, frame.freeze()));
        }
    }
}

fn pass<T>(chunk: &Bytes, range: std::ops::Range<usize>, emit: &mut impl FnMut(FramePiece<T>)) {
    if !range.is_empty() {
        emit(FramePiece::Pass(chunk.slice(range)));
    }
}

/// What follows a head. The length counts what is behind it, so it cannot be shorter than the rest of the head.
fn body_bytes<const HEAD: usize>(head: &[u8; HEAD]) -> Result<usize, KafkaFrameError> {
    let length = i32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let bytes = usize::try_from(length).ok().and_then(|length| length.checked_sub(HEAD - 4));
    bytes.ok_or(KafkaFrameError::Length(length))
}

#[cfg(test)]
mod tests;
