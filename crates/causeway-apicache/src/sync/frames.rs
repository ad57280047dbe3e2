//! Messages on a stream: a length of four bytes, one byte that tells whether the rest is compressed, and the message.
//!
//! Raw DEFLATE, where it makes a message smaller. Both lengths are bounded before memory is allocated.

use std::io::{Read, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use prost::Message;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::OwnedSemaphorePermit;

use crate::upstream::site_streams::SiteMemory;

/// The largest message. An object of Kubernetes has at most 1.5 MiB in etcd, and two to three times that as JSON.
pub const MESSAGE_BYTES_MAX: usize = 16 << 20;
// Below this, compression saves less than a packet.
const COMPRESS_BYTES_MIN: usize = 256;
const PLAIN: u8 = 0;
const DEFLATE: u8 = 1;

#[derive(Debug, thiserror::Error)]
pub enum SyncFrameError {
    #[error("the stream broke")]
    Stream(#[from] std::io::Error),
    #[error("a message of {bytes} bytes is longer than it may be")]
    TooLong { bytes: usize },
    #[error("a message cannot be read")]
    Malformed(#[from] prost::DecodeError),
    #[error("a message has the unknown encoding {0}")]
    Encoding(u8),
}

/// Encodes a message with its head.
pub fn encode(message: &impl Message) -> Result<Bytes, SyncFrameError> {
    let plain = message.encode_to_vec();
    if plain.len() > MESSAGE_BYTES_MAX {
        return Err(SyncFrameError::TooLong { bytes: plain.len() });
    }
    let packed = (plain.len() >= COMPRESS_BYTES_MIN).then(|| deflate(&plain)).transpose()?;
    let (encoding, content) = match packed.filter(|packed| packed.len() < plain.len()) {
        Some(packed) => (DEFLATE, packed),
        None => (PLAIN, plain),
    };
    let mut frame = Vec::with_capacity(content.len() + 5);
    frame.extend_from_slice(&(content.len() as u32 + 1).to_be_bytes());
    frame.push(encoding);
    frame.extend_from_slice(&content);
    Ok(frame.into())
}

fn deflate(plain: &[u8]) -> std::io::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::with_capacity(plain.len() / 4), Compression::new(4));
    encoder.write_all(plain)?;
    encoder.finish()
}

/// Decodes the part of a frame behind its length. `content_max` bounds its content: a few bytes can be the compressed form
/// of many.
pub fn decode<M: Message + Default>(frame: Bytes, content_max: usize) -> Result<M, SyncFrameError> {
    let Some(encoding) = frame.first().copied() else { return Err(SyncFrameError::Encoding(0)) };
    let content = frame.slice(1..);
    match encoding {
        PLAIN => Ok(M::decode(content)?),
        DEFLATE => {
            let mut plain = Vec::new();
            DeflateDecoder::new(&content[..]).take(content_max as u64 + 1).read_to_end(&mut plain)?;
            if plain.len() > content_max {
                return Err(SyncFrameError::TooLong { bytes: plain.len() });
            }
            Ok(M::decode(Bytes::from(plain))?)
        }
        other => Err(SyncFrameError::Encoding(other)),
    }
}

/// Reads messages. `next` may be dropped while it waits: bytes that have arrived are kept.
pub struct MessageReader<R> {
    stream: R,
    buffer: bytes::BytesMut,
    bytes_max: usize,
    content_max: usize,
    /// Memory for long frames, and the part of it that the next frame takes.
    memory: Option<SiteMemory>,
    held: Option<OwnedSemaphorePermit>,
}

// Bytes asked of the stream at once.
const READ_BYTES: usize = 64 << 10;
// A longer frame takes part of the memory that its reader shares with other readers.
const LONG_FRAME_BYTES: usize = 16 << 10;

impl<R: AsyncRead + Unpin> MessageReader<R> {
    /// `bytes_max` bounds a frame as it arrives; its content is bounded by `MESSAGE_BYTES_MAX`.
    pub fn new(stream: R, bytes_max: usize) -> MessageReader<R> {
        MessageReader {
            stream,
            buffer: bytes::BytesMut::new(),
            bytes_max,
            content_max: MESSAGE_BYTES_MAX,
            memory: None,
            held: None,
        }
    }

    /// For a peer that is not trusted: bounds the content of a frame, and takes long frames from `memory`.
    pub fn limited(stream: R, bytes_max: usize, content_max: usize, memory: SiteMemory) -> MessageReader<R> {
        MessageReader { content_max, memory: Some(memory), ..MessageReader::new(stream, bytes_max) }
    }

    /// Changes the bounds of the frames that follow.
    pub fn set_limits(&mut self, bytes_max: usize, content_max: usize) {
        (self.bytes_max, self.content_max) = (bytes_max, content_max);
    }

    /// Returns the next message; `None` at the end of the stream.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, SyncFrameError> {
        loop {
            if let Some(frame) = self.take_frame()? {
                self.held = None;
                return decode(frame, self.content_max).map(Some);
            }
            if let Some(memory) = &self.memory
                && self.held.is_none()
                && let Some(bytes) = self.next_length().filter(|bytes| *bytes > LONG_FRAME_BYTES)
            {
                self.held = memory.take(bytes).await;
            }
            self.buffer.reserve(READ_BYTES);
            if self.stream.read_buf(&mut self.buffer).await? == 0 {
                return match self.buffer.is_empty() {
                    true => Ok(None),
                    false => Err(SyncFrameError::Stream(std::io::ErrorKind::UnexpectedEof.into())),
                };
            }
        }
    }

    /// Returns the length of the next frame, when it has arrived.
    fn next_length(&self) -> Option<usize> {
        self.buffer.first_chunk::<4>().map(|length| u32::from_be_bytes(*length) as usize)
    }

    fn take_frame(&mut self) -> Result<Option<Bytes>, SyncFrameError> {
        let Some(bytes) = self.next_length() else { return Ok(None) };
        if bytes > self.bytes_max {
            return Err(SyncFrameError::TooLong { bytes });
        }
        if self.buffer.len() < 4 + bytes {
            return Ok(None);
        }
        let _ = self.buffer.split_to(4);
        Ok(Some(self.buffer.split_to(bytes).freeze()))
    }
}

/// Writes a message and flushes the stream.
pub async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &impl Message,
) -> Result<(), SyncFrameError> {
    stream.write_all(&encode(message)?).await?;
    Ok(stream.flush().await?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::wire::{Refused, SyncProgress};

    #[tokio::test]
    async fn messages_cross_a_stream_in_any_pieces() {
        let (mut near, far) = tokio::io::duplex(7);
        let long = Refused { code: 1, message: "x".repeat(5_000) };
        let sent = long.clone();
        let writing = tokio::spawn(async move {
            write(&mut near, &sent).await.unwrap();
            write(&mut near, &SyncProgress { revision: 9 }).await.unwrap();
        });
        let mut reader = MessageReader::new(far, 1_000);
        assert_eq!(reader.next::<Refused>().await.unwrap(), Some(long));
        assert_eq!(reader.next::<SyncProgress>().await.unwrap(), Some(SyncProgress { revision: 9 }));
        assert_eq!(reader.next::<SyncProgress>().await.unwrap(), None);
        writing.await.unwrap();
    }

    #[tokio::test]
    async fn long_broken_and_unknown_frames_are_refused() {
        let check = async |bytes: &[u8], expected: &str| {
            let mut reader = MessageReader::new(bytes, 100);
            let error = reader.next::<Refused>().await.unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        check(&[0, 1, 0, 0, 0], "longer").await;
        check(&[0, 0, 0, 9, 0], "broke").await;
        check(&[0, 0, 0, 1, 7], "encoding 7").await;
        check(&[0, 0, 0, 2, 0, 0xff], "cannot be read").await;
        check(&[0, 0, 0, 2, 1, 0xff], "broke").await;
        check(&[0, 0, 0, 0], "encoding").await;
        let bomb = deflate(&vec![0; MESSAGE_BYTES_MAX + 1]).unwrap();
        let mut frame = vec![DEFLATE];
        frame.extend_from_slice(&bomb);
        let frame = Bytes::from(frame);
        assert!(matches!(decode::<Refused>(frame, MESSAGE_BYTES_MAX), Err(SyncFrameError::TooLong { .. })));
    }

    #[tokio::test]
    async fn a_small_frame_of_an_edge_does_not_become_a_large_message() {
        let frame = encode(&Refused { code: 1, message: "x".repeat(100_000) }).unwrap();
        assert!(frame.len() < 1_000, "{}", frame.len());
        let memory = SiteMemory::new(64);
        let mut reader = MessageReader::limited(&frame[..], 1_000, 64 << 10, memory.clone());
        assert!(matches!(reader.next::<Refused>().await, Err(SyncFrameError::TooLong { .. })));
        let mut reader = MessageReader::limited(&frame[..], 1_000, 128 << 10, memory);
        assert!(reader.next::<Refused>().await.unwrap().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn long_frames_of_a_site_wait_for_each_other() {
        let memory = SiteMemory::new(64);
        // In pieces, as a stream brings them.
        let limited = |bytes: Bytes| {
            let (mut near, far) = tokio::io::duplex(1_000);
            tokio::spawn(async move { near.write_all(&bytes).await });
            MessageReader::limited(far, 64 << 10, 64 << 10, memory.clone())
        };
        // The head of a frame of 60 KiB, and nothing more.
        let (mut sends_half, far) = tokio::io::duplex(100);
        sends_half.write_all(&(60_u32 << 10).to_be_bytes()).await.unwrap();
        let mut stuck = MessageReader::limited(far, 64 << 10, 64 << 10, memory.clone());
        let waiting = std::time::Duration::from_secs(1);
        assert!(tokio::time::timeout(waiting, stuck.next::<Refused>()).await.is_err());
        // Text that is hardly compressed.
        let mut state = 1_u64;
        let mut letter = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            char::from(b'!' + ((state >> 33) % 90) as u8)
        };
        let text: String = (0..50_000).map(|_| letter()).collect();
        let long = encode(&Refused { code: 1, message: text }).unwrap();
        assert!(long.len() > LONG_FRAME_BYTES, "{}", long.len());
        let short = encode(&Refused { code: 1, message: "x".repeat(200) }).unwrap();
        assert!(limited(short).next::<Refused>().await.unwrap().is_some(), "short ones need no room");
        assert!(tokio::time::timeout(waiting, limited(long.clone()).next::<Refused>()).await.is_err());
        drop(stuck);
        assert!(limited(long).next::<Refused>().await.unwrap().is_some());
    }
}
