//! TLS over TCP: what the pool and both multiplexers stand on.
//!
//! Sockets come with TCP_NODELAY and a chosen congestion control. rustls reads 4 KiB at a time; `ReadAhead`
//! below it takes more in one call, and holds memory only while bytes wait.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use anyhow::Result;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::identity::{Identity, SERVER_NAME};
use crate::link::Tuning;

pub type Tls = TlsStream<ReadAhead>;

/// Ciphertext that rustls may hold before a write waits. Its own default of 64 KiB means a system call for every 64 KiB.
const TLS_BUFFER_BYTES: usize = 256 << 10;

pub struct Listener {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    read_ahead_bytes: usize,
}

impl Listener {
    pub fn bind(listen: SocketAddr, identity: &Identity, alpn: &str, tuning: &Tuning) -> Result<Listener> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        // Accepted connections inherit it.
        rustix::net::sockopt::set_tcp_congestion(&socket, &tuning.congestion)?;
        socket.bind(listen)?;
        let acceptor = TlsAcceptor::from(Arc::new(identity.server(alpn)?));
        Ok(Listener { listener: socket.listen(4096)?, acceptor, read_ahead_bytes: tuning.read_ahead_bytes })
    }

    /// The TCP connection, and the handshake for the caller to run in a task of its own.
    pub async fn accept(&self) -> Result<impl Future<Output = Result<Tls>> + Send + use<>> {
        let (tcp, _) = self.listener.accept().await?;
        let acceptor = self.acceptor.clone();
        let read_ahead_bytes = self.read_ahead_bytes;
        Ok(async move {
            tcp.set_nodelay(true)?;
            let mut tls = acceptor.accept(ReadAhead::new(tcp, read_ahead_bytes)).await?;
            tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
            Ok(TlsStream::from(tls))
        })
    }
}

#[derive(Clone)]
pub struct Connector {
    peer: SocketAddr,
    connector: TlsConnector,
    tuning: Tuning,
}

impl Connector {
    pub fn new(peer: SocketAddr, identity: &Identity, alpn: &str, tuning: Tuning) -> Result<Connector> {
        let connector = TlsConnector::from(Arc::new(identity.client(alpn)?));
        Ok(Connector { peer, connector, tuning })
    }

    pub async fn connect(&self) -> Result<Tls> {
        let socket = TcpSocket::new_v4()?;
        rustix::net::sockopt::set_tcp_congestion(&socket, &self.tuning.congestion)?;
        let tcp = socket.connect(self.peer).await?;
        tcp.set_nodelay(true)?;
        let tcp = ReadAhead::new(tcp, self.tuning.read_ahead_bytes);
        let mut tls = self.connector.connect(ServerName::try_from(SERVER_NAME)?, tcp).await?;
        tls.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        Ok(TlsStream::from(tls))
    }
}

pub struct ReadAhead {
    tcp: TcpStream,
    read_ahead_bytes: usize,
    /// Empty while the connection is idle.
    buffer: Vec<u8>,
    taken: usize,
    filled: usize,
}

impl ReadAhead {
    fn new(tcp: TcpStream, read_ahead_bytes: usize) -> ReadAhead {
        ReadAhead { tcp, read_ahead_bytes, buffer: Vec::new(), taken: 0, filled: 0 }
    }

    fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.buffer.is_empty() {
            ready!(self.tcp.poll_read_ready(cx))?;
            self.buffer = vec![0; self.read_ahead_bytes];
        }
        let mut room = ReadBuf::new(&mut self.buffer);
        let polled = Pin::new(&mut self.tcp).poll_read(cx, &mut room);
        (self.taken, self.filled) = (0, room.filled().len());
        if polled.is_pending() {
            self.buffer = Vec::new();
        }
        polled
    }
}

impl AsyncRead for ReadAhead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.taken == self.filled {
            if self.read_ahead_bytes <= out.remaining() {
                return Pin::new(&mut self.tcp).poll_read(cx, out);
            }
            ready!(self.poll_fill(cx))?;
        }
        let take = out.remaining().min(self.filled - self.taken);
        out.put_slice(&self.buffer[self.taken..self.taken + take]);
        self.taken += take;
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for ReadAhead {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.tcp).poll_write_vectored(cx, parts)
    }

    fn is_write_vectored(&self) -> bool {
        self.tcp.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}
