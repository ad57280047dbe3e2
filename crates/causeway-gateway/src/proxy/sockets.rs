//! Local sockets of a crossing: sets their options, dials backends, and copies with Kafka addresses rewritten.
//!
//! Both ends use it. Streams to other sites are opened by `stream_opener`.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use causeway_netmap::ServiceEntry;
use tokio::net::TcpStream;

use super::Proxy;
use super::backends::BackendConnection;
use super::copy::{ByteSink, ByteSource, CopyEnd, CopySide, cross};
use super::kafka::{self, KafkaRewriter};
use crate::connection_record::ByteMeter;
use crate::policy::PolicyRefusal;

/// Period of TCP keepalive. It finds dead hosts; the idle timeout is for peers whose kernels answer and that send nothing.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Sends small writes at once, and finds dead peers.
pub(crate) fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // A kernel that does not know the option does not pace either.
    let _ = causeway_channel::tcp::unpace(stream);
    let keepalive = socket2::TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 4);
    socket2::SockRef::from(stream).set_tcp_keepalive(&keepalive)
}

/// Connects to a backend of the service: to the one with that index, or to the best one.
pub(crate) async fn dial(
    proxy: &Proxy,
    service: &ServiceEntry,
    client: Option<SocketAddr>,
    index: Option<usize>,
) -> Result<BackendConnection, PolicyRefusal> {
    match index {
        Some(index) => proxy.backends.dial_one(service, index, client).await,
        None => proxy.backends.dial_for(service, client).await,
    }
}

/// Copies both ways. With a rewriter, broker addresses in Kafka responses are replaced.
pub(crate) async fn copy_rewritten<R: ByteSource, W: ByteSink, S: ByteSource, V: ByteSink>(
    client: &mut CopySide<R, W>,
    backend: &mut CopySide<S, V>,
    meter: &ByteMeter,
    idle: Duration,
    rewriter: Option<&KafkaRewriter>,
) -> CopyEnd {
    match rewriter {
        // On the heap: connections without a rewriter do not carry its state.
        Some(rewriter) => Box::pin(kafka::cross(client, backend, meter, idle, rewriter)).await,
        None => cross(client, backend, meter, idle).await,
    }
}
