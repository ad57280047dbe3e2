//! Moves the datagrams of one session, both ways, until nothing was said for too long or one side broke.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use causeway_channel::link::{RecvStream, ResetCode, SendStream, Stream};
use prometheus_client::metrics::counter::Counter;
use tokio::net::UdpSocket;

use super::UdpOptions;
use super::frames::{Datagram, Frames};
use super::table::Queue;
use crate::limits::Way;
use crate::passage::Meter;
use crate::proxy::pump::Ended;

/// As much as a read from a stream gives at once.
const READ_BYTES: usize = 64 * 1024;
/// More than any datagram.
const BUFFER_BYTES: usize = 65_536;

/// Where datagrams come from.
pub enum Source {
    /// A client of ours, by way of the presence's only socket.
    Client(Queue),
    Stream(RecvStream, Frames),
    /// A backend.
    Socket(Arc<UdpSocket>, Box<[u8]>),
}

/// Where they go.
pub enum Sink {
    Client(Arc<UdpSocket>, SocketAddr),
    Stream(SendStream),
    Socket(Arc<UdpSocket>),
}

/// One side of a session.
pub struct Side {
    pub source: Source,
    pub sink: Sink,
}

impl Side {
    pub fn client(presence: Arc<UdpSocket>, client: SocketAddr, queue: Queue) -> Side {
        Side { source: Source::Client(queue), sink: Sink::Client(presence, client) }
    }

    pub fn stream(stream: Stream) -> Side {
        let (send, recv) = stream.split();
        Side { source: Source::Stream(recv, Frames::default()), sink: Sink::Stream(send) }
    }

    pub fn backend(socket: Arc<UdpSocket>) -> Side {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        Side { source: Source::Socket(socket.clone(), buffer), sink: Sink::Socket(socket) }
    }

    /// Tells another gateway that it is over, and why. A client or a backend cannot be told.
    pub fn give_up(&mut self, code: ResetCode) {
        if let Source::Stream(recv, _) = &mut self.source {
            recv.stop(code);
        }
        if let Sink::Stream(send) = &mut self.sink {
            send.reset(code);
        }
    }
}

/// Carries what is said between a client's side and a backend's. `dropped` counts what could not be handed on.
pub async fn carry(
    client: &mut Side,
    backend: &mut Side,
    meter: &Meter,
    options: &UdpOptions,
    dropped: &Counter,
) -> Ended {
    let there = async {
        loop {
            let datagram = match client.source.recv().await {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return Ended::Done,
                Err(error) => return Ended::Client(error),
            };
            wait_for_turn(meter, Way::Sent, &datagram).await;
            match backend.sink.send(datagram).await {
                Ok(Sent::Yes) => {}
                Ok(Sent::Dropped) => drop(dropped.inc()),
                Err(error) => return Ended::Backend(error),
            }
        }
    };
    let back = async {
        loop {
            let datagram = match backend.source.recv().await {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return Ended::Done,
                // Nobody listens there, says ICMP. Once it has answered it may well be back in a moment.
                Err(error) if is_absent(&error) && meter.received() > 0 => {
                    dropped.inc();
                    continue;
                }
                Err(error) => return Ended::Backend(error),
            };
            wait_for_turn(meter, Way::Received, &datagram).await;
            match client.sink.send(datagram).await {
                Ok(Sent::Yes) => {}
                Ok(Sent::Dropped) => drop(dropped.inc()),
                Err(error) => return Ended::Client(error),
            }
        }
    };
    tokio::select! {
        ended = there => ended,
        ended = back => ended,
        () = idle(meter, options) => Ended::Idle,
    }
}

/// Where a limit is reached datagrams wait, and those behind them in the queue, which drops what it cannot hold.
async fn wait_for_turn(meter: &Meter, way: Way, datagram: &Datagram) {
    let bytes = datagram.payload().len();
    let mut left = bytes;
    while left > 0 {
        left -= meter.take(way, left).await.min(left);
    }
    meter.add(way, bytes);
}

/// Resolves when nothing was said for too long. Woken once per timeout, not once per datagram.
async fn idle(meter: &Meter, options: &UdpOptions) {
    loop {
        let is_settled = meter.sent() > 0 && meter.received() > 0;
        let timeout = if is_settled { options.settled_timeout } else { options.idle_timeout };
        let deadline = meter.moved() + timeout;
        if std::time::Instant::now() >= deadline {
            return;
        }
        tokio::time::sleep_until(deadline.into()).await;
    }
}

pub fn is_absent(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::ConnectionRefused
}

enum Sent {
    Yes,
    /// As UDP may at any time: it is too long, or there is no way, or no memory.
    Dropped,
}

impl Source {
    /// None at the end.
    async fn recv(&mut self) -> io::Result<Option<Datagram>> {
        match self {
            Source::Client(queue) => Ok(queue.recv().await),
            Source::Stream(recv, frames) => loop {
                if let Some(datagram) = frames.take() {
                    return Ok(Some(datagram));
                }
                match recv.read_chunk(READ_BYTES).await? {
                    Some(chunk) => frames.push(chunk),
                    None if frames.is_whole() => return Ok(None),
                    None => return Err(io::ErrorKind::UnexpectedEof.into()),
                }
            },
            Source::Socket(socket, buffer) => loop {
                let count = socket.recv(buffer).await?;
                if let Some(datagram) = Datagram::new(&buffer[..count]) {
                    return Ok(Some(datagram));
                }
            },
        }
    }
}

impl Sink {
    async fn send(&mut self, datagram: Datagram) -> io::Result<Sent> {
        let sent = match self {
            Sink::Client(socket, client) => socket.send_to(datagram.payload(), *client).await,
            Sink::Socket(socket) => socket.send(datagram.payload()).await,
            // A stream loses nothing; when it takes nothing, those behind wait in the client's queue, and are dropped there.
            Sink::Stream(send) => return send.write_chunk(datagram.into_frame()).await.map(|()| Sent::Yes),
        };
        match sent {
            Ok(_) => Ok(Sent::Yes),
            Err(error) => {
                tracing::trace!(%error, "a datagram is dropped");
                Ok(Sent::Dropped)
            }
        }
    }
}
