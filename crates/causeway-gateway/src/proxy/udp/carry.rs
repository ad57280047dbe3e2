//! Moves the datagrams of one session, both ways, until nothing was said for too long or one side broke.

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use causeway_channel::link::{self, DatagramFlow, DatagramFlowRecv, DatagramFlowSend, ResetCode, Stream};
use causeway_channel::wire::datagrams::FramedDatagram;
use rustix::net::RecvFlags;
use tokio::io::Interest;
use tokio::net::UdpSocket;

use super::UdpOptions;
use super::table::UdpSessionQueue;
use crate::connection_record::ByteMeter;
use crate::limits::ByteDirection;
use crate::metrics::GatewayMetrics;
use crate::proxy::copy::CopyEnd;

/// More than any datagram, so that one that was cut cannot be taken for whole.
const BUFFER_BYTES: usize = 65_536;

thread_local! {
    /// What a thread receives into, for all its sessions: most datagrams are small, and most sessions are idle.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_BYTES].into_boxed_slice());
}

/// Where datagrams come from.
pub enum DatagramSource {
    /// A client of ours, by way of the presence's only socket.
    Client(UdpSessionQueue),
    Stream(DatagramFlowRecv),
    /// A backend.
    Socket(Arc<UdpSocket>),
}

/// Where they go.
pub enum DatagramSink {
    Client(Arc<UdpSocket>, SocketAddr),
    Stream(DatagramFlowSend),
    Socket(Arc<UdpSocket>),
}

/// One side of a session.
pub struct DatagramSide {
    pub source: DatagramSource,
    pub sink: DatagramSink,
}

impl DatagramSide {
    pub fn client(presence: Arc<UdpSocket>, client: SocketAddr, queue: UdpSessionQueue) -> DatagramSide {
        DatagramSide { source: DatagramSource::Client(queue), sink: DatagramSink::Client(presence, client) }
    }

    pub fn stream(stream: Stream) -> DatagramSide {
        let DatagramFlow { send, recv } = stream.into();
        DatagramSide { source: DatagramSource::Stream(recv), sink: DatagramSink::Stream(send) }
    }

    pub fn backend(socket: Arc<UdpSocket>) -> DatagramSide {
        DatagramSide { source: DatagramSource::Socket(socket.clone()), sink: DatagramSink::Socket(socket) }
    }

    /// Tells another gateway that it is over, and why. A client or a backend cannot be told.
    pub fn give_up(&mut self, code: ResetCode) {
        if let DatagramSource::Stream(recv) = &mut self.source {
            recv.stop(code);
        }
        if let DatagramSink::Stream(send) = &mut self.sink {
            send.reset(code);
        }
    }
}

/// Carries what is said between a client's side and a backend's.
pub async fn carry(
    client: &mut DatagramSide,
    backend: &mut DatagramSide,
    meter: &ByteMeter,
    options: &UdpOptions,
    figures: &GatewayMetrics,
) -> CopyEnd {
    let there = async {
        loop {
            let datagram = match client.source.recv().await {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return CopyEnd::Done,
                Err(error) => return CopyEnd::Client(error),
            };
            wait_for_turn(meter, ByteDirection::Sent, &datagram).await;
            if let Err(error) = backend.sink.send(datagram, figures).await {
                return CopyEnd::Backend(error);
            }
        }
    };
    let back = async {
        loop {
            let datagram = match backend.source.recv().await {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return CopyEnd::Done,
                // Nobody listens there, says ICMP. Once it has answered it may well be back in a moment.
                Err(error) if is_absent(&error) && meter.received() > 0 => {
                    figures.datagrams_dropped.inc();
                    continue;
                }
                Err(error) => return CopyEnd::Backend(error),
            };
            wait_for_turn(meter, ByteDirection::Received, &datagram).await;
            if let Err(error) = client.sink.send(datagram, figures).await {
                return CopyEnd::Client(error);
            }
        }
    };
    tokio::select! {
        ended = there => ended,
        ended = back => ended,
        () = idle(meter, options) => CopyEnd::Idle,
    }
}

/// Where a limit is reached datagrams wait, and those behind them in the queue, which drops what it cannot hold.
async fn wait_for_turn(meter: &ByteMeter, way: ByteDirection, datagram: &FramedDatagram) {
    let bytes = datagram.payload().len();
    let mut left = bytes;
    while left > 0 {
        left -= meter.take(way, left).await.min(left);
    }
    meter.add(way, bytes);
}

/// Resolves when nothing was said for too long. Woken once per timeout, not once per datagram.
async fn idle(meter: &ByteMeter, options: &UdpOptions) {
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

impl DatagramSource {
    /// None at the end.
    async fn recv(&mut self) -> io::Result<Option<FramedDatagram>> {
        match self {
            DatagramSource::Client(queue) => Ok(queue.recv().await),
            DatagramSource::Stream(recv) => recv.recv().await,
            DatagramSource::Socket(socket) => receive(socket).await.map(Some),
        }
    }
}

/// The next datagram of the only one the socket talks to, or what ICMP says of it. May be cancelled.
async fn receive(socket: &UdpSocket) -> io::Result<FramedDatagram> {
    let attempt = |buffer: &mut [u8]| {
        let (count, _) = rustix::net::recv(socket, &mut *buffer, RecvFlags::empty())?;
        Ok::<_, io::Error>(FramedDatagram::new(&buffer[..count]))
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
pub async fn receive_from(socket: &UdpSocket) -> io::Result<(FramedDatagram, SocketAddr)> {
    let attempt = |buffer: &mut [u8]| {
        let (count, from) = socket.try_recv_from(buffer)?;
        Ok::<_, io::Error>(FramedDatagram::new(&buffer[..count]).map(|datagram| (datagram, from)))
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

impl DatagramSink {
    /// An error ends the session; what UDP may do at any time does not: it is too long, or there is no way, or no memory.
    async fn send(&mut self, datagram: FramedDatagram, figures: &GatewayMetrics) -> io::Result<()> {
        let sent = match self {
            DatagramSink::Client(socket, client) => socket.send_to(datagram.payload(), *client).await,
            DatagramSink::Socket(socket) => socket.send(datagram.payload()).await,
            // When the stream takes nothing, those behind wait in the client's queue, and are dropped there.
            DatagramSink::Stream(send) => {
                match send.send(datagram).await? {
                    link::DatagramPath::Beside => figures.datagrams_beside.inc(),
                    link::DatagramPath::OnStream => figures.datagrams_on_streams.inc(),
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
