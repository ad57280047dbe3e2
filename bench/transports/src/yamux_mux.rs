//! All streams on one TLS connection, multiplexed by yamux.
//!
//! yamux has one owner that must be polled: a task here, which also takes the requests for new streams.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use anyhow::{Context as _, Result};
use futures::future::{BoxFuture, poll_fn};
use futures::{StreamExt, TryStreamExt, stream};
use tokio::io::BufWriter;
use tokio::sync::{mpsc, oneshot};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};
use yamux::{Config, Connection, Mode};

use crate::identity::Identity;
use crate::link::{Link, Serve, Stream, Tuning};
use crate::tls::{Connector, Listener, Tls};

/// yamux writes the header and the body of a frame apart. The buffer joins small ones into one TLS record;
/// bodies as large as it go past it.
const WRITE_BUFFER_BYTES: usize = 16 << 10;

type Socket = Compat<BufWriter<Tls>>;
type Reply = oneshot::Sender<yamux::Stream>;

pub async fn serve(listen: SocketAddr, identity: &Identity, tuning: Tuning, serve: Serve) -> Result<()> {
    let listener = Listener::bind(listen, identity, "bench-yamux", &tuning)?;
    loop {
        let handshake = listener.accept().await?;
        tokio::spawn(async move {
            let Ok(tls) = handshake.await else { return };
            let connection = Connection::new(socket(tls), config(), Mode::Server);
            let (_open, requests) = mpsc::channel(1);
            drive(connection, requests, move |stream| drop(tokio::spawn(serve(halves(stream))))).await;
        });
    }
}

pub async fn connect(
    peer: SocketAddr,
    identity: &Identity,
    tuning: Tuning,
    count: usize,
) -> Result<Vec<Arc<dyn Link>>> {
    let connector = Connector::new(peer, identity, "bench-yamux", tuning)?;
    let dial = |_| async {
        let connection = Connection::new(socket(connector.connect().await?), config(), Mode::Client);
        let (open, requests) = mpsc::channel(256);
        tokio::spawn(drive(connection, requests, drop));
        anyhow::Ok(Arc::new(Mux { open }) as Arc<dyn Link>)
    };
    stream::iter(0..count).map(dial).buffer_unordered(16).try_collect().await
}

struct Mux {
    open: mpsc::Sender<Reply>,
}

impl Link for Mux {
    fn open(&self) -> BoxFuture<'_, Result<Stream>> {
        Box::pin(async {
            let (reply, stream) = oneshot::channel();
            self.open.send(reply).await.ok().context("the connection is closed")?;
            Ok(halves(stream.await?))
        })
    }
}

fn socket(tls: Tls) -> Socket {
    BufWriter::with_capacity(WRITE_BUFFER_BYTES, tls).compat()
}

/// Windows are yamux's own affair: they start at 256 KiB and grow with what is read.
fn config() -> Config {
    let mut config = Config::default();
    config.set_max_connection_receive_window(Some(4 << 30));
    config.set_max_num_streams(4096);
    config.set_split_send_size(64 << 10);
    config
}

fn halves(stream: yamux::Stream) -> Stream {
    let (recv, send) = tokio::io::split(stream.compat());
    Stream { send: Box::new(send), recv: Box::new(recv) }
}

async fn drive(
    mut connection: Connection<Socket>,
    mut requests: mpsc::Receiver<Reply>,
    accepted: impl Fn(yamux::Stream),
) {
    let mut request = None;
    poll_fn(|cx| {
        loop {
            if request.is_none()
                && let Poll::Ready(Some(reply)) = requests.poll_recv(cx)
            {
                request = Some(reply);
            }
            if request.is_some()
                && let Poll::Ready(opened) = connection.poll_new_outbound(cx)
            {
                if let (Some(reply), Ok(stream)) = (request.take(), opened) {
                    drop(reply.send(stream));
                }
                continue;
            }
            match poll_inbound(&mut connection, cx) {
                Poll::Ready(Some(stream)) => accepted(stream),
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => return Poll::Pending,
            }
        }
    })
    .await;
}

fn poll_inbound(connection: &mut Connection<Socket>, cx: &mut Context<'_>) -> Poll<Option<yamux::Stream>> {
    connection.poll_next_inbound(cx).map(|stream| stream.and_then(Result::ok))
}
