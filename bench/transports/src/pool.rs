//! A pool of plain TLS connections that carry one stream at a time.
//!
//! Each half of a stream is a row of frames, a length of four bytes and that many bytes; a length of zero ends
//! the half. When both halves have ended the connection is as good as new, and serves the next stream.

use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use anyhow::Result;
use futures::future::BoxFuture;
use futures::{StreamExt, TryStreamExt, stream};
use tokio::io::{AsyncRead, AsyncWrite, BufWriter, ReadBuf, ReadHalf, WriteHalf};
use tokio::sync::mpsc;

use crate::identity::Identity;
use crate::link::{Link, Serve, Stream, Tuning};
use crate::tls::{Connector, Listener, Tls};

/// One frame is at most one write of the measurement; a stream that ends early wastes nothing, as frames are never padded.
const FRAME_BYTES_MAX: usize = 256 << 10;

/// Joins small writes, so that a short answer and the end of its half are one TLS record. Larger writes go past it.
const WRITE_BUFFER_BYTES: usize = 16 << 10;

type Outlet = BufWriter<WriteHalf<Tls>>;
type Halves = (Outlet, ReadHalf<Tls>);

pub async fn serve(listen: SocketAddr, identity: &Identity, tuning: Tuning, serve: Serve) -> Result<()> {
    let listener = Listener::bind(listen, identity, "bench-pool", &tuning)?;
    loop {
        let handshake = listener.accept().await?;
        tokio::spawn(async move {
            let Ok(tls) = handshake.await else { return };
            let (home, mut returned) = mpsc::unbounded_channel();
            let mut halves = Some(halves_of(tls));
            while let Some(whole) = halves {
                let home = home.clone();
                serve(on_loan(whole, move |halves| drop(home.send(halves)))).await;
                // The stream was dropped by now: it came home, or it is broken.
                halves = returned.try_recv().ok();
            }
        });
    }
}

pub async fn connect(
    peer: SocketAddr,
    identity: &Identity,
    tuning: Tuning,
    count: usize,
) -> Result<Vec<Arc<dyn Link>>> {
    let connector = Connector::new(peer, identity, "bench-pool", tuning)?;
    let dial = |_| async {
        let pool = Pool { connector: connector.clone(), idle: Arc::default() };
        lock(&pool.idle).push_back(halves_of(pool.connector.connect().await?));
        anyhow::Ok(Arc::new(pool) as Arc<dyn Link>)
    };
    stream::iter(0..count).map(dial).buffer_unordered(16).try_collect().await
}

struct Pool {
    connector: Connector,
    idle: Arc<Mutex<VecDeque<Halves>>>,
}

impl Link for Pool {
    fn open(&self) -> BoxFuture<'_, Result<Stream>> {
        Box::pin(async {
            // The one used last is the one whose memory is still warm.
            let idle = lock(&self.idle).pop_back();
            let halves = match idle {
                Some(halves) => halves,
                None => halves_of(self.connector.connect().await?),
            };
            let home = self.idle.clone();
            Ok(on_loan(halves, move |halves| lock(&home).push_back(halves)))
        })
    }
}

fn halves_of(tls: Tls) -> Halves {
    let (recv, send) = tokio::io::split(tls);
    (BufWriter::with_capacity(WRITE_BUFFER_BYTES, send), recv)
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A stream over `halves` that gives them back when both have ended and were dropped.
fn on_loan(halves: Halves, home: impl Fn(Halves) + Send + Sync + 'static) -> Stream {
    let loan = Arc::new(Loan { back: Mutex::new((None, None)), home: Box::new(home) });
    let (send, recv) = halves;
    Stream {
        send: Box::new(Sender {
            io: Some(send),
            frame: Frame::default(),
            ending: false,
            ended: false,
            loan: loan.clone(),
        }),
        recv: Box::new(Receiver { io: Some(recv), frame: Frame::default(), ended: false, loan }),
    }
}

struct Loan {
    back: Mutex<(Option<Outlet>, Option<ReadHalf<Tls>>)>,
    home: Box<dyn Fn(Halves) + Send + Sync>,
}

impl Loan {
    fn settle(&self, send: Option<Outlet>, recv: Option<ReadHalf<Tls>>) {
        let mut back = lock(&self.back);
        back.0 = back.0.take().or(send);
        back.1 = back.1.take().or(recv);
        if let (Some(_), Some(_)) = &*back
            && let (Some(send), Some(recv)) = std::mem::take(&mut *back)
        {
            (self.home)((send, recv));
        }
    }
}

/// The position of a half: bytes of the header that went through, bytes of the body that did not yet.
#[derive(Default)]
struct Frame {
    header: [u8; 4],
    header_done: usize,
    body_left: usize,
}

struct Sender {
    io: Option<Outlet>,
    frame: Frame,
    ending: bool,
    ended: bool,
    loan: Arc<Loan>,
}

impl AsyncWrite for Sender {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let Sender { io: Some(io), frame, .. } = &mut *self else { return Poll::Ready(Err(closed())) };
        if frame.body_left == 0 && !bytes.is_empty() {
            let size = bytes.len().min(FRAME_BYTES_MAX);
            *frame = Frame { header: (size as u32).to_be_bytes(), header_done: 0, body_left: size };
        }
        let body = &bytes[..bytes.len().min(frame.body_left)];
        loop {
            let header = &frame.header[frame.header_done..];
            let mut written = if header.is_empty() {
                ready!(Pin::new(&mut *io).poll_write(cx, body))?
            } else {
                ready!(
                    Pin::new(&mut *io).poll_write_vectored(cx, &[IoSlice::new(header), IoSlice::new(body)])
                )?
            };
            let of_header = written.min(header.len());
            frame.header_done += of_header;
            written -= of_header;
            frame.body_left -= written;
            if written > 0 || body.is_empty() {
                return Poll::Ready(Ok(written));
            }
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(io) = &mut self.io else { return Poll::Ready(Err(closed())) };
        Pin::new(io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Sender { io: Some(io), frame, ending, ended, .. } = &mut *self else {
            return Poll::Ready(Err(closed()));
        };
        if !*ended {
            if frame.body_left > 0 {
                return Poll::Ready(Err(io::Error::other("ended inside a frame")));
            }
            if !*ending {
                *frame = Frame::default();
                *ending = true;
            }
            while frame.header_done < frame.header.len() {
                frame.header_done +=
                    ready!(Pin::new(&mut *io).poll_write(cx, &frame.header[frame.header_done..]))?;
            }
            *ended = true;
        }
        Pin::new(io).poll_flush(cx)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        if self.ended {
            self.loan.settle(self.io.take(), None);
        }
    }
}

struct Receiver {
    io: Option<ReadHalf<Tls>>,
    frame: Frame,
    ended: bool,
    loan: Arc<Loan>,
}

impl AsyncRead for Receiver {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let Receiver { io: Some(io), frame, ended, .. } = &mut *self else {
            return Poll::Ready(Err(closed()));
        };
        if *ended {
            return Poll::Ready(Ok(()));
        }
        while frame.body_left == 0 {
            let mut header = ReadBuf::new(&mut frame.header[frame.header_done..]);
            ready!(Pin::new(&mut *io).poll_read(cx, &mut header))?;
            match header.filled().len() {
                0 => return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into())),
                more => frame.header_done += more,
            }
            if frame.header_done == frame.header.len() {
                *frame = Frame { body_left: u32::from_be_bytes(frame.header) as usize, ..Frame::default() };
                if frame.body_left == 0 {
                    *ended = true;
                    return Poll::Ready(Ok(()));
                }
            }
        }
        let room = out.remaining().min(frame.body_left);
        let mut body = ReadBuf::new(out.initialize_unfilled_to(room));
        ready!(Pin::new(&mut *io).poll_read(cx, &mut body))?;
        let read = body.filled().len();
        if read == 0 {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        out.advance(read);
        frame.body_left -= read;
        Poll::Ready(Ok(()))
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if self.ended {
            self.loan.settle(None, self.io.take());
        }
    }
}

fn closed() -> io::Error {
    io::ErrorKind::NotConnected.into()
}
