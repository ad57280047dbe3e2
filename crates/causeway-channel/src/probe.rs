//! Probe streams: measure whether a link carries bytes, and how fast.
//!
//! One end opens a stream of purpose `Probe` with the mode in `details`; the other end answers without
//! authorization, since no data of value is transferred. `answer` is called by the acceptor of streams, `run`
//! by the measuring end.

use std::io;
use std::str::FromStr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::io::AsyncWriteExt;
use tokio::time::timeout;

use crate::link::{Link, ResetCode, SendStream, Stream, StreamError, StreamHeader, StreamPurpose};

/// Mode of a probe: the task of the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeMode {
    /// Send every byte back.
    Echo,
    /// Read every byte, and answer only with the end.
    Sink,
    /// Send this many bytes.
    Source { bytes: u64 },
}

/// Bound of a probe: a minute at 10 Gbit/s would be 75 GB, which is not needed to judge a link.
pub const BYTES_MAX: u64 = 8 << 30;
/// Probes that one end of a session answers at the same time; more are refused. Each may hold a window of the link.
pub const ANSWERED_MAX: usize = 16;
/// A probe without progress for this long is aborted.
const STALL: Duration = Duration::from_secs(15);
const CHUNK_BYTES: usize = 64 * 1024;

impl FromStr for ProbeMode {
    type Err = ();

    fn from_str(text: &str) -> Result<ProbeMode, ()> {
        match text.split_once(':') {
            None if text == "echo" => Ok(ProbeMode::Echo),
            None if text == "sink" => Ok(ProbeMode::Sink),
            Some(("source", bytes)) => {
                let bytes = bytes.parse().map_err(|_| ())?;
                if bytes > BYTES_MAX { Err(()) } else { Ok(ProbeMode::Source { bytes }) }
            }
            _ => Err(()),
        }
    }
}

impl std::fmt::Display for ProbeMode {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ProbeMode::Echo => formatter.write_str("echo"),
            ProbeMode::Sink => formatter.write_str("sink"),
            ProbeMode::Source { bytes } => write!(formatter, "source:{bytes}"),
        }
    }
}

/// Answers a probe of the other end, to its end.
pub async fn answer(header: &StreamHeader, stream: Stream) {
    let wanted = std::str::from_utf8(&header.details).ok().and_then(|text| text.parse().ok());
    let Some(mode) = wanted else { return stream.refuse(ResetCode::Malformed) };
    if let Err(error) = serve(mode, stream).await {
        tracing::debug!(%mode, %error, "a probe of the peer broke");
    }
}

async fn serve(mode: ProbeMode, mut stream: Stream) -> io::Result<()> {
    match mode {
        ProbeMode::Echo => {
            while let Some(chunk) = patient(stream.recv.read_chunk(CHUNK_BYTES)).await? {
                patient(stream.send.write_chunk(chunk)).await?;
            }
        }
        ProbeMode::Sink => while patient(stream.recv.read_chunk(CHUNK_BYTES)).await?.is_some() {},
        ProbeMode::Source { bytes } => send(&mut stream.send, bytes).await?,
    }
    patient(stream.send.shutdown()).await
}

/// Result of a probe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProbeResult {
    /// From opening the stream to the last byte of the response.
    pub took: Duration,
    /// Bytes transferred in the measured direction.
    pub bytes: u64,
}

impl ProbeResult {
    pub fn bytes_per_second(&self) -> f64 {
        self.bytes as f64 / self.took.as_secs_f64().max(1e-6)
    }
}

#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error("no stream could be opened")]
    Open(#[from] StreamError),
    #[error("the probe broke")]
    Io(#[from] io::Error),
    #[error("{received} of {expected} bytes came back")]
    Short { received: u64, expected: u64 },
}

/// Probes the other end of a link with `bytes`; `Source` has its own number.
pub async fn run(
    link: &Link,
    header: StreamHeader,
    mode: ProbeMode,
    bytes: u64,
) -> Result<ProbeResult, ProbeError> {
    let wanted = self::header(mode);
    let header = StreamHeader { purpose: wanted.purpose, details: wanted.details, ..header };
    let start = Instant::now();
    run_on(link.open_stream(header).await?, start, mode, bytes).await
}

/// Returns the stream header that requests a probe.
pub fn header(mode: ProbeMode) -> StreamHeader {
    StreamHeader::new(StreamPurpose::Probe).details(mode.to_string())
}

/// As `run`, on a stream that began with `header` and was opened at `start`.
pub async fn run_on(
    stream: Stream,
    start: Instant,
    mode: ProbeMode,
    bytes: u64,
) -> Result<ProbeResult, ProbeError> {
    let (mut to_peer, mut from_peer) = stream.split();
    let (sent, expected) = match mode {
        ProbeMode::Echo => (bytes.min(BYTES_MAX), bytes.min(BYTES_MAX)),
        ProbeMode::Sink => (bytes.min(BYTES_MAX), 0),
        ProbeMode::Source { bytes } => (0, bytes),
    };
    let sending = async {
        send(&mut to_peer, sent).await?;
        patient(to_peer.shutdown()).await
    };
    let receiving = async {
        let mut received = 0;
        while let Some(chunk) = patient(from_peer.read_chunk(CHUNK_BYTES)).await? {
            received += chunk.len() as u64;
        }
        Ok::<u64, io::Error>(received)
    };
    let ((), received) = tokio::try_join!(sending, receiving)?;
    match received == expected {
        true => Ok(ProbeResult { took: start.elapsed(), bytes: sent.max(expected) }),
        false => Err(ProbeError::Short { received, expected }),
    }
}

async fn send(stream: &mut SendStream, bytes: u64) -> io::Result<()> {
    let chunk = Bytes::from(vec![0x5a; CHUNK_BYTES.min(bytes as usize)]);
    let mut left = bytes;
    while left > 0 {
        let part = chunk.slice(..chunk.len().min(left as usize));
        left -= part.len() as u64;
        patient(stream.write_chunk(part)).await?;
    }
    Ok(())
}

async fn patient<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout(STALL, step).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_probe_wants_is_read_as_it_is_written() {
        for mode in [ProbeMode::Echo, ProbeMode::Sink, ProbeMode::Source { bytes: 17 }] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        for text in ["", "echo:1", "source", "source:", "source:-1", "source:99999999999999", "other"] {
            assert_eq!(text.parse::<ProbeMode>(), Err(()), "{text}");
        }
    }
}
