//! Reads and writes the messages of the control stream.
//!
//! Input: a byte stream, or messages. Output: decoded messages, or frames in order. Both sides can be interrupted at any
//! await without losing or repeating a byte. The messages themselves are in `control`.

use std::collections::VecDeque;
use std::io;
use std::marker::PhantomData;

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::{CLOUD_MESSAGE_BYTES_MAX, CloudMessage, EDGE_MESSAGE_BYTES_MAX, EdgeMessage};
use crate::wire::frame::{self, FrameTooLong, LENGTH_BYTES};

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error("the control stream broke")]
    Io(#[from] io::Error),
    #[error("the control stream ended within a message")]
    Cut,
    #[error("a message of {bytes} bytes was announced and {max} are allowed")]
    TooLong { bytes: usize, max: usize },
    #[error("a message cannot be read")]
    Malformed(#[from] prost::DecodeError),
}

/// Reads messages. `next` is cancel-safe.
#[derive(Debug)]
pub struct ControlReader<R, M> {
    stream: R,
    buffer: BytesMut,
    max: usize,
    kind: PhantomData<fn() -> M>,
}

impl<R> ControlReader<R, EdgeMessage> {
    /// Reads at the cloud.
    pub fn of_edge(stream: R) -> ControlReader<R, EdgeMessage> {
        ControlReader { stream, buffer: BytesMut::new(), max: EDGE_MESSAGE_BYTES_MAX, kind: PhantomData }
    }
}

impl<R> ControlReader<R, CloudMessage> {
    /// Reads at the edge.
    pub fn of_cloud(stream: R) -> ControlReader<R, CloudMessage> {
        ControlReader { stream, buffer: BytesMut::new(), max: CLOUD_MESSAGE_BYTES_MAX, kind: PhantomData }
    }
}

impl<R: AsyncRead + Unpin, M: Message + Default> ControlReader<R, M> {
    /// Returns the next message; `None` when the peer has ended the stream.
    pub async fn next(&mut self) -> Result<Option<M>, ControlError> {
        loop {
            if let Some(body) = split(&mut self.buffer, self.max)? {
                let message = M::decode(body)?;
                if self.buffer.is_empty() {
                    // An idle session keeps no buffer here, however large its last message was.
                    self.buffer = BytesMut::new();
                }
                return Ok(Some(message));
            }
            // Memory grows with the bytes that arrive, not with the announced length; while none arrive,
            // there is space for a ping.
            let more = if self.buffer.is_empty() { IDLE_BYTES } else { READ_BYTES };
            self.buffer.reserve(more);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return if self.buffer.is_empty() { Ok(None) } else { Err(ControlError::Cut) };
            }
        }
    }
}

/// A keepalive takes 12 bytes.
const IDLE_BYTES: usize = 16;
/// Most other messages fit into this.
const READ_BYTES: usize = 512;

/// Takes the first message from the buffer, if it is complete.
fn split(buffer: &mut BytesMut, max: usize) -> Result<Option<Bytes>, ControlError> {
    let Some(length) = buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let bytes = frame::length(*length, max).map_err(too_long(max))?;
    if buffer.len() - LENGTH_BYTES < bytes {
        return Ok(None);
    }
    buffer.advance(LENGTH_BYTES);
    Ok(Some(buffer.split_to(bytes).freeze()))
}

/// Encodes a frame. Fails when the message is larger than the cloud accepts.
pub fn encode_edge(message: impl Into<EdgeMessage>) -> Result<Bytes, ControlError> {
    let max = EDGE_MESSAGE_BYTES_MAX;
    frame::encode(&message.into(), max).map_err(too_long(max))
}

/// Encodes a frame. Fails when the message is larger than an edge accepts.
pub fn encode_cloud(message: impl Into<CloudMessage>) -> Result<Bytes, ControlError> {
    let max = CLOUD_MESSAGE_BYTES_MAX;
    frame::encode(&message.into(), max).map_err(too_long(max))
}

fn too_long(max: usize) -> impl Fn(FrameTooLong) -> ControlError {
    move |error| ControlError::TooLong { bytes: error.bytes, max }
}

/// Writes messages in order. `drain` is cancel-safe: no byte is lost or repeated.
#[derive(Debug)]
pub struct ControlWriter<W> {
    stream: W,
    queue: VecDeque<Bytes>,
    flushed: bool,
}

impl<W: AsyncWrite + Unpin> ControlWriter<W> {
    pub fn new(stream: W) -> ControlWriter<W> {
        ControlWriter { stream, queue: VecDeque::new(), flushed: true }
    }

    /// Queues a message. A caller that responds to the peer's messages checks `len` first.
    pub fn push(&mut self, frame: Bytes) {
        self.queue.push_back(frame);
        self.flushed = false;
    }

    /// Number of messages that are not written yet.
    pub fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns whether every message is written and flushed.
    pub fn is_empty(&self) -> bool {
        self.flushed
    }

    /// Writes all queued messages.
    pub async fn drain(&mut self) -> Result<(), ControlError> {
        while let Some(front) = self.queue.front_mut() {
            if self.stream.write_buf(front).await? == 0 {
                return Err(ControlError::Io(io::ErrorKind::WriteZero.into()));
            }
            if front.is_empty() {
                self.queue.pop_front();
            }
        }
        if !self.flushed {
            self.stream.flush().await?;
            self.flushed = true;
            self.queue = VecDeque::new();
        }
        Ok(())
    }

    /// Writes all queued messages, then ends this direction.
    pub async fn finish(&mut self) -> Result<(), ControlError> {
        self.drain().await?;
        Ok(self.stream.shutdown().await?)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::{Hello, Ping, SessionRefused, SessionRefusedCode, SpoolBatch};
    use super::*;

    fn block_on<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }

    fn heard(bytes: &[u8]) -> Result<Vec<EdgeMessage>, ControlError> {
        block_on(async {
            let mut reader = ControlReader::of_edge(bytes);
            let mut all = Vec::new();
            while let Some(message) = reader.next().await? {
                all.push(message);
            }
            Ok(all)
        })
    }

    #[test]
    fn messages_survive_the_stream_in_order() {
        let said: Vec<EdgeMessage> = vec![
            Hello { version: 1, epoch: 7, software: "causeway".into(), ..Hello::default() }.into(),
            Ping { nonce: 1 }.into(),
            SpoolBatch { records: vec![Bytes::from(vec![9; 5000])], ..SpoolBatch::default() }.into(),
        ];
        let frames: Vec<u8> = said.iter().flat_map(|message| encode_edge(message.clone()).unwrap()).collect();
        assert_eq!(heard(&frames).unwrap(), said);
    }

    #[test]
    fn a_reader_that_is_interrupted_loses_nothing() {
        block_on(async {
            let frame = encode_edge(Ping { nonce: 5 }).unwrap();
            let (mut near, far) = tokio::io::duplex(64);
            let mut reader = ControlReader::of_edge(far);
            let (first, rest) = frame.split_at(5);
            near.write_all(first).await.unwrap();
            // The read takes the available bytes, waits for more, and is dropped.
            tokio::select! {
                biased;
                _ = reader.next() => unreachable!("a part of a message is no message"),
                () = tokio::task::yield_now() => {}
            }
            near.write_all(rest).await.unwrap();
            assert_eq!(reader.next().await.unwrap(), Some(Ping { nonce: 5 }.into()));
        });
    }

    #[test]
    fn a_writer_that_is_interrupted_repeats_nothing() {
        block_on(async {
            let (near, far) = tokio::io::duplex(5);
            let (mut writer, mut reader) = (ControlWriter::new(near), ControlReader::of_edge(far));
            for nonce in 0..20 {
                writer.push(encode_edge(Ping { nonce: nonce * 1000 }).unwrap());
            }
            let mut heard = Vec::new();
            while heard.len() < 20 {
                tokio::select! {
                    biased;
                    message = reader.next() => heard.push(message.unwrap().unwrap()),
                    written = writer.drain(), if !writer.is_empty() => written.unwrap(),
                }
            }
            let expected: Vec<EdgeMessage> =
                (0..20).map(|nonce| Ping { nonce: nonce * 1000 }.into()).collect();
            assert_eq!(heard, expected);
        });
    }

    #[test]
    fn broken_frames_are_refused() {
        let check = |bytes: &[u8], why: &str| {
            let error = heard(bytes).unwrap_err();
            assert!(format!("{error:?}").starts_with(why), "{error:?}");
        };
        check(&[0xff, 0xff, 0xff, 0xff, 1], "TooLong");
        check(&[0, 1, 0, 1], "TooLong");
        check(&[0, 0, 0, 9, 1], "Cut");
        check(&[0, 0, 0], "Cut");
        check(&[0, 0, 0, 2, 0xff, 0xff], "Malformed");
        let long =
            SpoolBatch { records: vec![vec![0; EDGE_MESSAGE_BYTES_MAX].into()], ..SpoolBatch::default() };
        assert!(matches!(encode_edge(long), Err(ControlError::TooLong { .. })));
    }

    #[test]
    fn what_a_newer_peer_says_is_no_error() {
        // Field 100 with an empty message: a kind that this program does not know.
        assert_eq!(heard(&[0, 0, 0, 3, 0xa2, 0x06, 0]).unwrap(), [EdgeMessage { body: None }]);
        assert_eq!(
            SessionRefused { code: 99, ..SessionRefused::default() }.reason(),
            SessionRefusedCode::Other
        );
        let shown = SessionRefused::new(SessionRefusedCode::Full, "no", "\u{1b}[2Jwait").to_string();
        assert_eq!(shown, "no ([2Jwait)");
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = heard(&bytes);
            let _ = CloudMessage::decode(&bytes[..]);
        }
    }
}
