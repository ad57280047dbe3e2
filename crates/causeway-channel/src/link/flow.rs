//! A stream that carries datagrams: beside it where the transport has datagrams, and on it where not.
//!
//! The stream stays the anchor: its header says what it is for, its end and its reset end the flow. A datagram goes beside it
//! when the link is QUIC, the peer has said that it hears them there, it fits the path's limit and does not hold up streams;
//! every other one goes on the stream, in order and without loss. So either end may be of a version that knows no datagrams.

use std::io;

use tokio::io::AsyncWriteExt;

use super::{RecvStream, ResetCode, SendStream, Stream};
use crate::wire::datagrams::{DatagramDecoder, DatagramFrame, FramedDatagram, WELCOME};

/// As much as a read from a stream gives at once.
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

/// How a datagram went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DatagramPath {
    /// As a datagram: it may be lost, and holds up no other.
    Beside,
    OnStream,
}

#[derive(Debug)]
pub struct DatagramFlowSend(SendStream);

impl DatagramFlowSend {
    /// Waits only where it has to take the stream, and that takes no more.
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
    /// The next datagram, whichever way it came. `None` at the end. May be cancelled.
    pub async fn recv(&mut self) -> io::Result<Option<FramedDatagram>> {
        loop {
            match self.frames.take() {
                Some(DatagramFrame::Datagram(datagram)) => return Ok(Some(datagram)),
                Some(DatagramFrame::Word(word)) => {
                    self.hear(word);
                    continue;
                }
                None => {}
            }
            let chunk = match self.stream.mailbox().cloned() {
                // Neither goes first: a flood of datagrams must not hide the end, nor the other way round.
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

    fn hear(&self, word: u16) {
        // Words that a newer peer may say are passed over.
        if let (WELCOME, Some(mailbox)) = (word, self.stream.mailbox()) {
            mailbox.welcome();
        }
    }

    /// The stream has ended; what came beside it before was not yet taken.
    fn last(&self) -> Option<FramedDatagram> {
        FramedDatagram::bare(self.stream.mailbox()?.take()?)
    }
}
