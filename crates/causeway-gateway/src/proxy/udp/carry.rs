//! Forwards the datagrams of one session, both ways, until it is idle for too long or one side fails.

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

/// More than any datagram, so that a truncated one cannot be taken for a whole one.
const BUFFER_BYTES: usize = 65_536;

thread_local! {
    /// The receive buffer of a thread, shared by its sessions: most datagrams are small, and most sessions
    /// are idle.
    static BUFFER: RefCell<Box<[u8]>> = RefCell::new(vec![0; BUFFER_BYTES].into_boxed_slice());
}

/// A source of datagrams.
pub enum DatagramSource {
    /// A local client, through the single socket of the presence.
    Client(UdpSessionQueue),
    Stream(DatagramFlowRecv),
    /// A backend.
    Socket(Arc<UdpSocket>),
}

/// A destination of datagrams.
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

    /// Tells another gateway that the session has ended, and why. A client or a backend cannot be told.
    pub fn give_up(&mut self, code: ResetCode) {
        if let DatagramSource::Stream(recv) = &mut self.source {
            recv.stop(code);
        }
        if let DatagramSink::Stream(send) = &mut self.sink {
            send.reset(code);
        }
    }
}

/// Forwards datagrams between the client's side and the backend's side.
pub async fn carry(
    client: &mut DatagramSide,
    backend: &mut DatagramSide,
    meter: &ByteMeter,
    options: &UdpOptions,
    metrics: &GatewayMetrics,
) -> CopyEnd {
    let there = async {
        loop {
            let datagram = match client.source.recv().await {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return CopyEnd::Done,
                Err(error) => return CopyEnd::Client(error),
            };
            wait_for_turn(meter, ByteDirection::Sent, &datagram).await;
            if let Err(error) = backend.sink.send(datagram, metrics).await {
                return CopyEnd::Backend(error);
            }
        }
    };
    let back = async {
        loop {
            let datagram = match backend.source.recv().await {
                Ok(Some(datagram)) => datagram,
                Ok(None) => return CopyEnd::Done,
                // ICMP: port unreachable. A backend that has answered before may be back in a moment.
                Err(error) if is_absent(&error) && meter.received() > 0 => {
                    metrics.datagrams_dropped.inc();
                    continue;
                }
                Err(error) => return CopyEnd::Backend(error),
            };
            wait_for_turn(meter, ByteDirection::Received, &datagram).await;
            if let Err(error) = client.sink.send(datagram, metrics).await {
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

/// Over a limit, datagrams wait, and so do those behind them in the queue, which drops what exceeds its size.
async fn wait_for_turn(meter: &ByteMeter, way: ByteDirection, datagram: &FramedDatagram) {
    let bytes = datagram.payload().len();
    let mut left = bytes;
    while left > 0 {
        left -= meter.take(way, left).await.min(left);
    }
    meter.add(way, bytes);
}

/// Resolves when the session was idle for too long. Woken once per timeout, not once per datagram.
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
    /// None at the end of the source.
    async fn recv(&mut self) -> io::Result<Option<FramedDatagram>> {
        match self {
            DatagramSource::Client(queue) => Ok(queue.recv().await),
            DatagramSource::Stream(recv) => recv.recv().await,
            DatagramSource::Socket(socket) => receive(socket).await.map(Some),
        }
    }
}

/// Receives the next datagram from the peer of a connected socket, or an ICMP error. Cancel safe.
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

/// Receives the next datagram of a client, with its address. Cancel safe.
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
    /// An error ends the session. Conditions that are normal for UDP do not: a datagram that is too long, no
    /// route, no memory.
    async fn send(&mut self, datagram: FramedDatagram, metrics: &GatewayMetrics) -> io::Result<()> {
        let sent = match self {
            DatagramSink::Client(socket, client) => socket.send_to(datagram.payload(), *client).await,
            DatagramSink::Socket(socket) => socket.send(datagram.payload()).await,
            // While the stream is blocked, further datagrams wait in the client's queue and are dropped
            // there.
            DatagramSink::Stream(send) => {
                match send.send(datagram).await? {
                    link::DatagramPath::Beside => metrics.datagrams_beside.inc(),
                    link::DatagramPath::OnStream => metrics.datagrams_on_streams.inc(),
                };
                return Ok(());
            }
        };
        if let Err(error) = sent {
            tracing::trace!(%error, "dropped a datagram");
            metrics.datagrams_dropped.inc();
        }
        Ok(())
    }
}
