//! Moves the datagrams of one session, both ways, until nothing was said for too long or one side broke.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use causeway_channel::link::{self, Flow, FlowRecv, FlowSend, ResetCode, Stream};
use causeway_channel::wire::datagrams::Datagram;
use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::UdpOptions;
use super::table::Queue;
use crate::figures::Figures;
use crate::limits::Way;
use crate::passage::Meter;
use crate::proxy::pump::Ended;

/// More than any datagram, so that one that was cut cannot be taken for whole.
const BUFFER_BYTES: usize = 65_536;

thread_local! {
    /// What a thread receives into, for all its sessions: most datagrams are small, and most sessions are idle.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_BYTES].into_boxed_slice());
}

/// Where datagrams come from.
pub enum Source {
    /// A client of ours, by way of the presence's only socket.
    Client(Queue),
    Stream(FlowRecv),
    /// A backend.
    Socket(Arc<UdpSocket>),
}

/// Where they go.
pub enum Sink {
    Client(Arc<UdpSocket>, SocketAddr),
    Stream(FlowSend),
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
        let Flow { send, recv } = stream.into();
        Side { source: Source::Stream(recv), sink: Sink::Stream(send) }
    }

    pub fn backend(socket: Arc<UdpSocket>) -> Side {
        Side { source: Source::Socket(socket.clone()), sink: Sink::Socket(socket) }
    }

    /// Tells another gateway that it is over, and why. A client or a backend cannot be told.
    pub fn give_up(&mut self, code: ResetCode) {
        if let Source::Stream(recv) = &mut self.source {
            recv.stop(code);
        }
        if let Sink::Stream(send) = &mut self.sink {
            send.reset(code);
        }
    }
}

/// Carries what is said between a client's side and a backend's.
pub async fn carry(
    client: &mut Side,
    backend: &mut Side,
    meter: &Meter,
    options: &UdpOptions,
    figures: &Figures,
) -> Ended {
    let there = async {
        loop {
            let datagram = match client.source.recv().await {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return Ended::Done,
                Err(error) => return Ended::Client(error),
            };
            wait_for_turn(meter, Way::Sent, &datagram).await;
            if let Err(error) = backend.sink.send(datagram, figures).await {
                return Ended::Backend(error);
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
                    figures.datagrams_dropped.inc();
                    continue;
                }
                Err(error) => return Ended::Backend(error),
            };
            wait_for_turn(meter, Way::Received, &datagram).await;
            if let Err(error) = client.sink.send(datagram, figures).await {
                return Ended::Client(error);
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

impl Source {
    /// None at the end.
    async fn recv(&mut self) -> io::Result<Option<Datagram>> {
        match self {
            Source::Client(queue) => Ok(queue.recv().await),
            Source::Stream(recv) => recv.recv().await,
            Source::Socket(socket) => receive(socket).await.map(Some),
        }
    }
}

/// The next datagram of the only one the socket talks to, or what ICMP says of it. May be cancelled.
async fn receive(socket: &UdpSocket) -> io::Result<Datagram> {
    let attempt = |buffer: &mut [u8]| {
        let (count, _) = rustix::net::recv(socket, &mut *buffer, RecvFlags::empty())?;
        Ok::<_, io::Error>(Datagram::new(&buffer[..count]))
    };
    loop {
        let received = socket.async_io(Interest::READABLE | Interest::ERROR, || {
            BUFFER.with_borrow_mut(|buffer| attempt(buffer))
        });
        if let Some(datagram) = received.await? {
            return Ok(datagram);
        }
    }
}

/// The next datagram of a client, and who it is. May be cancelled.
pub async fn receive_from(socket: &UdpSocket) -> io::Result<(Datagram, SocketAddr)> {
    let attempt = |buffer: &mut [u8]| {
        let (count, from) = socket.try_recv_from(buffer)?;
        Ok::<_, io::Error>(Datagram::new(&buffer[..count]).map(|datagram| (datagram, from)))
    };
    loop {
        socket.readable().await?;
        match BUFFER.with_borrow_mut(|buffer| attempt(buffer)) {
            Ok(Some(received)) => return Ok(received),
            Ok(None) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
}

impl Sink {
    /// An error ends the session; what UDP may do at any time does not: it is too long, or there is no way, or no memory.
    async fn send(&mut self, datagram: Datagram, figures: &Figures) -> io::Result<()> {
        let sent = match self {
            Sink::Client(socket, client) => socket.send_to(datagram.payload(), *client).await,
            Sink::Socket(socket) => socket.send(datagram.payload()).await,
            // When the stream takes nothing, those behind wait in the client's queue, and are dropped there.
            Sink::Stream(send) => {
                match send.send(datagram).await? {
                    link::Way::Beside => figures.datagrams_beside.inc(),
                    link::Way::OnStream => figures.datagrams_on_streams.inc(),
                };
                return Ok(());
            }
        };
        if let Err(error) = sent {
            tracing::trace!(%error, "a datagram is dropped");
            figures.datagrams_dropped.inc();
        }
        Ok(())
    }
}
