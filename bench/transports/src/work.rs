//! Uses of a stream. The client names one in the first nine bytes; the server does it.

use std::io;

use futures::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::link::Stream;

pub const REQUEST_BYTES: usize = 100;
pub const RESPONSE_BYTES: usize = 1000;
/// Bytes that are read or written at once in bulk.
pub const PIECE_BYTES: usize = 256 << 10;

#[derive(Clone, Copy, Debug)]
pub enum Work {
    /// The server sends this number of bytes and ends its half.
    Download(u64),
    /// The server reads until the end and answers with the count.
    Upload,
    /// The server answers every request of `REQUEST_BYTES` with `RESPONSE_BYTES`, until the client ends.
    Answer,
    /// The server answers one request, and both halves end with it.
    AnswerOnce,
}

impl Work {
    pub fn encode(self) -> [u8; 9] {
        let (tag, number) = match self {
            Work::Download(bytes) => (1, bytes),
            Work::Upload => (2, 0),
            Work::Answer => (3, 0),
            Work::AnswerOnce => (4, 0),
        };
        let mut out = [tag; 9];
        out[1..].copy_from_slice(&u64::to_be_bytes(number));
        out
    }
}

/// Serves one stream. Errors are the client going away, which is how most measurements end.
pub fn serve(stream: Stream) -> BoxFuture<'static, ()> {
    Box::pin(async move { drop(do_work(stream).await) })
}

async fn do_work(mut stream: Stream) -> io::Result<()> {
    let tag = stream.recv.read_u8().await?;
    let number = stream.recv.read_u64().await?;
    // Boxed, so that an idle connection does not hold the room that the largest work needs.
    match tag {
        1 => Box::pin(send_bytes(stream, number)).await,
        2 => Box::pin(count_bytes(stream)).await,
        3 => Box::pin(answer_requests(stream)).await,
        _ => Box::pin(answer_once(stream)).await,
    }
}

async fn send_bytes(mut stream: Stream, bytes: u64) -> io::Result<()> {
    let piece = vec![0x5a; PIECE_BYTES];
    let mut left = bytes;
    while left > 0 {
        let size = left.min(PIECE_BYTES as u64) as usize;
        stream.send.write_all(&piece[..size]).await?;
        left -= size as u64;
    }
    stream.send.shutdown().await?;
    stream.recv.read(&mut [0]).await?;
    Ok(())
}

async fn count_bytes(mut stream: Stream) -> io::Result<()> {
    let mut piece = vec![0; PIECE_BYTES];
    let mut count = 0;
    loop {
        match stream.recv.read(&mut piece).await? {
            0 => break,
            more => count += more as u64,
        }
    }
    stream.send.write_u64(count).await?;
    stream.send.shutdown().await
}

async fn answer_requests(mut stream: Stream) -> io::Result<()> {
    let mut request = [0; REQUEST_BYTES];
    let response = [0x5a; RESPONSE_BYTES];
    while read_request(&mut stream, &mut request).await? {
        stream.send.write_all(&response).await?;
        stream.send.flush().await?;
    }
    stream.send.shutdown().await
}

async fn answer_once(mut stream: Stream) -> io::Result<()> {
    let mut request = [0; REQUEST_BYTES];
    while read_request(&mut stream, &mut request).await? {}
    stream.send.write_all(&[0x5a; RESPONSE_BYTES]).await?;
    stream.send.shutdown().await
}

/// False at a clean end before the first byte.
async fn read_request(stream: &mut Stream, request: &mut [u8]) -> io::Result<bool> {
    let first = stream.recv.read(request).await?;
    if first > 0 {
        stream.recv.read_exact(&mut request[first..]).await?;
    }
    Ok(first > 0)
}
