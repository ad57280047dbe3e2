//! A stream that carries datagrams: as QUIC datagrams where the transport has them, and on the stream
//! otherwise.
//!
//! The stream stays the anchor: its header tells the purpose, and its end or reset ends the flow. A payload
//! is sent as a QUIC datagram when the link is QUIC, the peer has announced support, it fits the path's limit
//! and does not block streams; every other one is sent on the stream, in order and without loss. Either end
//! may therefore be of a version without datagrams.

use std::io;

use tokio::io::AsyncWriteExt;

use super::{RecvStream, ResetCode, SendStream, Stream};
use crate::wire::datagrams::{DatagramDecoder, DatagramFrame, FramedDatagram, WELCOME};

/// Bytes that one read from a stream returns at most.
const READ_BYTES: usize = 64 * 1024;

#[derive(Debug)]
pub struct DatagramFlow {
    pub send: DatagramFlowSend,
    pub recv: DatagramFlowRecv,
}

impl From<Stream> for DatagramFlow {
    fn from(stream: Stream) -> DatagramFlow {
        let (send, recv) = stream.split();
        DatagramFlow {
            send: DatagramFlowSend(send),
            recv: DatagramFlowRecv { stream: recv, frames: DatagramDecoder::default() },
        }
    }
}

/// Path that a datagram took.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DatagramPath {
    /// As a QUIC datagram: it may be lost, and does not block other datagrams.
    Beside,
    OnStream,
}

#[derive(Debug)]
pub struct DatagramFlowSend(SendStream);

impl DatagramFlowSend {
    /// Waits only if the datagram must be sent on the stream and the stream is full.
    pub async fn send(&mut self, datagram: FramedDatagram) -> io::Result<DatagramPath> {
        if self.0.mailbox().is_some_and(|mailbox| mailbox.send(datagram.payload())) {
            return Ok(DatagramPath::Beside);
        }
        self.0.write_chunk(datagram.into_frame()).await?;
        Ok(DatagramPath::OnStream)
    }

    /// Ends the flow properly.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.0.shutdown().await
    }

    pub fn reset(&mut self, code: ResetCode) {
        self.0.reset(code);
    }

    /// See `SendStream::stopped`.
    pub async fn stopped(&mut self) -> ResetCode {
        self.0.stopped().await
    }
}

#[derive(Debug)]
pub struct DatagramFlowRecv {
    stream: RecvStream,
    frames: DatagramDecoder,
}

impl DatagramFlowRecv {
    /// Returns the next datagram of either path. `None` at the end. Cancel-safe.
    pub async fn recv(&mut self) -> io::Result<Option<FramedDatagram>> {
        loop {
            match self.frames.take() {
                Some(DatagramFrame::Datagram(datagram)) => return Ok(Some(datagram)),
                Some(DatagramFrame::Word(word)) => {
                    self.handle_control_word(word);
                    continue;
                }
                None => {}
            }
            let chunk = match self.stream.mailbox().cloned() {
                // Neither has priority: a flood of datagrams must not hide the end of the stream, nor the
                // reverse.
                Some(mailbox) => tokio::select! {
                    payload = mailbox.recv() => match FramedDatagram::bare(payload) {
                        Some(datagram) => return Ok(Some(datagram)),
                        None => continue,
                    },
                    chunk = self.stream.read_chunk(READ_BYTES) => chunk?,
                },
                None => self.stream.read_chunk(READ_BYTES).await?,
            };
            match chunk {
                Some(chunk) => self.frames.push(chunk),
                None if self.frames.is_whole() => return Ok(self.last()),
                None => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
        }
    }

    pub fn stop(&mut self, code: ResetCode) {
        self.stream.stop(code);
    }

    fn handle_control_word(&self, word: u16) {
        // Control words of a newer peer are ignored.
        if let (WELCOME, Some(mailbox)) = (word, self.stream.mailbox()) {
            mailbox.welcome();
        }
    }

    /// The stream has ended; QUIC datagrams that came before may still be queued.
    fn last(&self) -> Option<FramedDatagram> {
        FramedDatagram::bare(self.stream.mailbox()?.take()?)
    }
}
