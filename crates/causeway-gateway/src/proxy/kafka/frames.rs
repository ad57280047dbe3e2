//! Splits chunks into Kafka frames: most are passed on, some are held until they are complete.
//!
//! Every frame starts with its length, followed by its head. A passed frame is neither copied nor stored,
//! however large it is; its chunks go on as they arrived. A head that is split over two chunks waits for the
//! rest. Bodies are not parsed here.

use std::collections::VecDeque;
use std::convert::Infallible;

use bytes::{Bytes, BytesMut};

use super::versions::{NO_SUCH_VERSION, PendingRequest, RequestHandling, RewrittenApi, handling_of};

/// The maximum size of a held response, which is kept in memory. A cluster of 200,000 partitions has some 12
/// MB of metadata.
pub const HELD_BYTES_MAX: usize = 16 << 20;
/// The maximum number of requests in flight on one connection whose responses are held. Clients have a
/// handful.
pub const WAITING_MAX: usize = 1024;
/// The first byte of TLS. As a length it would be a frame of more than 350 MB.
const TLS_HANDSHAKE: u8 = 0x16;

/// A violation of the Kafka protocol.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KafkaFrameError {
    #[error("invalid Kafka frame length: {0} bytes")]
    Length(i32),
    #[error("Kafka request with API key {key} in version {version}, which ApiVersions does not offer here")]
    Version { key: i16, version: i16 },
    #[error("more than {WAITING_MAX} Kafka requests in flight on one connection")]
    TooManyRequests,
    #[error("a Kafka response of {0} bytes is too long to be rewritten")]
    TooLong(usize),
}

/// The output of a run of chunks, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FramePiece<T> {
    Pass(Bytes),
    /// A complete frame, with its length.
    Held(T, Bytes),
}

/// The treatment of a frame.
enum FrameAction<T> {
    Pass,
    /// Passed with a changed head.
    Changed,
    Hold(T),
}

/// The state that both directions of one connection share.
#[derive(Default)]
pub struct KafkaConversation {
    /// Requests whose responses are held, oldest first.
    waiting: VecDeque<(i32, PendingRequest)>,
    /// The client uses TLS: nothing can be parsed.
    is_opaque: bool,
}

const REQUEST_HEAD: usize = 12;
const RESPONSE_HEAD: usize = 8;

/// Scans the bytes of a client.
#[derive(Default)]
pub struct RequestScanner {
    scanner: Scanner<REQUEST_HEAD, Infallible>,
    is_begun: bool,
}

impl RequestScanner {
    pub fn take(
        &mut self,
        chunk: Bytes,
        state: &mut KafkaConversation,
        mut emit: impl FnMut(Bytes),
    ) -> Result<(), KafkaFrameError> {
        if !self.is_begun && !chunk.is_empty() {
            self.is_begun = true;
            state.is_opaque = chunk[0] == TLS_HANDSHAKE;
        }
        if state.is_opaque {
            emit(chunk);
            return Ok(());
        }
        let emit = |piece| match piece {
            FramePiece::Pass(bytes) => emit(bytes),
            FramePiece::Held(never, _) => match never {},
        };
        self.scanner.take(chunk, |head| state.handle_request(head), emit)
    }
}

/// Scans the bytes of a broker.
#[derive(Default)]
pub struct ResponseScanner {
    scanner: Scanner<RESPONSE_HEAD, PendingRequest>,
}

impl ResponseScanner {
    pub fn take(
        &mut self,
        chunk: Bytes,
        state: &mut KafkaConversation,
        mut emit: impl FnMut(FramePiece<PendingRequest>),
    ) -> Result<(), KafkaFrameError> {
        if state.is_opaque {
            emit(FramePiece::Pass(chunk));
            return Ok(());
        }
        self.scanner.take(chunk, |head| Ok(state.handle_response(head)), emit)
    }
}

impl KafkaConversation {
    /// Handles the head of a request: length, key, version, correlation id.
    fn handle_request(
        &mut self,
        head: &mut [u8; REQUEST_HEAD],
    ) -> Result<FrameAction<Infallible>, KafkaFrameError> {
        let [_, _, _, _, k0, k1, v0, v1, c0, c1, c2, c3] = *head;
        let (key, version) = (i16::from_be_bytes([k0, k1]), i16::from_be_bytes([v0, v1]));
        let (asked, action) = match handling_of(key, version) {
            RequestHandling::Pass => return Ok(FrameAction::Pass),
            RequestHandling::Refuse => return Err(KafkaFrameError::Version { key, version }),
            RequestHandling::Watch(asked) => (asked, FrameAction::Pass),
            RequestHandling::AskForNoSuchVersion => {
                head[6..8].copy_from_slice(&NO_SUCH_VERSION.to_be_bytes());
                (PendingRequest { api: RewrittenApi::ApiVersions, version: 0 }, FrameAction::Changed)
            }
        };
        if self.waiting.len() >= WAITING_MAX {
            return Err(KafkaFrameError::TooManyRequests);
        }
        self.waiting.push_back((i32::from_be_bytes([c0, c1, c2, c3]), asked));
        Ok(action)
    }

    /// Handles the head of a response: length, correlation id. Brokers respond in the order of the requests,
    /// so it is normally the first one.
    fn handle_response(&mut self, head: &[u8; RESPONSE_HEAD]) -> FrameAction<PendingRequest> {
        let [_, _, _, _, c0, c1, c2, c3] = *head;
        let number = i32::from_be_bytes([c0, c1, c2, c3]);
        let place = self.waiting.iter().position(|(waiting, _)| *waiting == number);
        match place.and_then(|place| self.waiting.remove(place)) {
            Some((_, asked)) => FrameAction::Hold(asked),
            None => FrameAction::Pass,
        }
    }
}

/// Tracks frames whose heads have `HEAD` bytes, including the length.
struct Scanner<const HEAD: usize, T> {
    /// The beginning of a head that was split.
    head: [u8; HEAD],
    head_bytes: usize,
    /// The number of missing bytes of the frame.
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
        mut judge: impl FnMut(&mut [u8; HEAD]) -> Result<FrameAction<T>, KafkaFrameError>,
        mut emit: impl FnMut(FramePiece<T>),
    ) -> Result<(), KafkaFrameError> {
        // Offsets in the chunk: up to `at` it is scanned, up to `done` it is passed on or held.
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
            let action = judge(&mut self.head)?;
            if !matches!((&action, was_cut), (FrameAction::Pass, false)) {
                pass(&chunk, done..at, &mut emit);
                done = at + bytes;
            }
            at += bytes;
            match action {
                FrameAction::Pass if !was_cut => {}
                FrameAction::Pass | FrameAction::Changed => {
                    emit(FramePiece::Pass(Bytes::copy_from_slice(&self.head)))
                }
                FrameAction::Hold(_) if self.left > HELD_BYTES_MAX => {
                    return Err(KafkaFrameError::TooLong(self.left));
                }
                FrameAction::Hold(what) => {
                    self.held = Some((what, BytesMut::from(&self.head[..])));
                    self.finish(&mut emit);
                }
            }
        }
        pass(&chunk, done..at, &mut emit);
        Ok(())
    }

    /// Emits the held frame when it is complete.
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

/// Returns the number of bytes after the head. The length counts everything after itself, so it cannot be
/// shorter than the rest of the head.
fn body_bytes<const HEAD: usize>(head: &[u8; HEAD]) -> Result<usize, KafkaFrameError> {
    let length = i32::from_be_bytes([head[0], head[1], head[2], head[3]]);
    let bytes = usize::try_from(length).ok().and_then(|length| length.checked_sub(HEAD - 4));
    bytes.ok_or(KafkaFrameError::Length(length))
}

#[cfg(test)]
mod tests;
