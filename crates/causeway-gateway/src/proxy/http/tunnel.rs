//! Tunnels after `101 Switching Protocols`: copies bytes in both directions until both have ended.

use std::io;

use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::body::RequestAccount;
use super::pool::PoolLease;
use crate::connection_record::ByteMeter;
use crate::limits::ByteDirection;
use crate::proxy::copy::CopyEnd;
use crate::proxy::end_reason::judge_end;

/// WebSocket frames are small, and most tunnels are idle.
const BUFFER_BYTES: usize = 8 << 10;

/// Waits until both ends are upgraded, then copies bytes. Writes the record of the request.
pub async fn tunnel(client: OnUpgrade, backend: OnUpgrade, mut account: RequestAccount, lease: PoolLease) {
    let moved = tokio::select! {
        biased;
        () = account.cut() => Ok(()),
        moved = between(client, backend, &account) => moved,
    };
    let ended = moved.err().unwrap_or(CopyEnd::Done);
    let (end, reason) = judge_end(&ended, account.meter().map(|meter| meter.received()));
    account.end(end, reason);
    drop(lease);
}

async fn between(client: OnUpgrade, backend: OnUpgrade, account: &RequestAccount) -> Result<(), CopyEnd> {
    let client = client.await.map_err(|error| CopyEnd::Client(io::Error::other(error)))?;
    let backend = backend.await.map_err(|error| CopyEnd::Backend(io::Error::other(error)))?;
    let Some(meter) = account.meter() else { return Ok(()) };
    let (mut from_client, mut to_client) = halves(client);
    let (mut from_backend, mut to_backend) = halves(backend);
    let up = pump(&mut from_client, &mut to_backend, &meter, ByteDirection::Sent);
    let down = pump(&mut from_backend, &mut to_client, &meter, ByteDirection::Received);
    // Each direction ends on its own; one that fails ends the other.
    let up = async { up.await.map_err(|error| error.name(CopyEnd::Client, CopyEnd::Backend)) };
    let down = async { down.await.map_err(|error| error.name(CopyEnd::Backend, CopyEnd::Client)) };
    tokio::try_join!(up, down).map(drop)
}

/// Closes a connection whose client asked for an upgrade and got an ordinary response. hyper returns such a
/// connection at its end instead of shutting it down; a stream of the channel that is dropped is reset, and
/// the response on it is lost.
pub async fn close(client: OnUpgrade) {
    if let Ok(client) = client.await {
        // The peer may already be gone.
        let _ = TokioIo::new(client).shutdown().await;
    }
}

fn halves(upgraded: Upgraded) -> (impl AsyncRead + Unpin, impl AsyncWrite + Unpin) {
    tokio::io::split(TokioIo::new(upgraded))
}

enum Stopped {
    Reading(io::Error),
    Writing(io::Error),
}

impl Stopped {
    fn name(self, reading: fn(io::Error) -> CopyEnd, writing: fn(io::Error) -> CopyEnd) -> CopyEnd {
        match self {
            Stopped::Reading(error) => reading(error),
            Stopped::Writing(error) => writing(error),
        }
    }
}

async fn pump(
    from: &mut (impl AsyncRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    meter: &ByteMeter,
    way: ByteDirection,
) -> Result<(), Stopped> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let bytes = from.read(&mut buffer).await.map_err(Stopped::Reading)?;
        if bytes == 0 {
            return to.shutdown().await.map_err(Stopped::Writing);
        }
        let mut left = &buffer[..bytes];
        while !left.is_empty() {
            // All bytes, unless a limit makes them wait for their turns.
            let granted = meter.take(way, left.len()).await.min(left.len());
            to.write_all(&left[..granted]).await.map_err(Stopped::Writing)?;
            to.flush().await.map_err(Stopped::Writing)?;
            meter.add(way, granted);
            left = &left[granted..];
        }
    }
}
