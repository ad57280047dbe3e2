//! Joins two streams: bytes, ends and reasons of each direction go over to the other stream.
//!
//! Where datagrams may come beside one of them, they are joined datagram by datagram: each of both links carries them in the way it
//! can.

use causeway_channel::link::{Flow, FlowRecv, FlowSend, RecvStream, ResetCode, SendStream, Stream};
use tokio::io::AsyncWriteExt;

/// What is read at a time; the transport hands out no more than it has.
const CHUNK_BYTES: usize = 64 << 10;

/// Goes on until both directions have ended, each on its own.
pub async fn relay(near: Stream, far: Stream) {
    if near.has_datagrams() || far.has_datagrams() {
        let (near, far) = (Flow::from(near), Flow::from(far));
        // On the heap: streams without them do not carry its state.
        Box::pin(async { tokio::join!(pour(near.recv, far.send), pour(far.recv, near.send)) }).await;
        return;
    }
    let ((near_send, near_recv), (far_send, far_recv)) = (near.split(), far.split());
    tokio::join!(pump(near_recv, far_send), pump(far_recv, near_send));
}

async fn pump(mut from: RecvStream, mut to: SendStream) {
    loop {
        let chunk = tokio::select! {
            chunk = from.read_chunk(CHUNK_BYTES) => chunk,
            // The reader over there wants no more: whoever writes here is told at once, not with the next byte.
            code = to.stopped() => return from.stop(code),
        };
        let failed = match chunk {
            Ok(Some(bytes)) => to.write_chunk(bytes).await.err(),
            Ok(None) => return drop(to.shutdown().await),
            Err(error) => return to.reset(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned)),
        };
        if let Some(error) = failed {
            return from.stop(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned));
        }
    }
}

async fn pour(mut from: FlowRecv, mut to: FlowSend) {
    loop {
        let datagram = tokio::select! {
            datagram = from.recv() => datagram,
            code = to.stopped() => return from.stop(code),
        };
        let failed = match datagram {
            Ok(Some(datagram)) => to.send(datagram).await.err(),
            Ok(None) => return drop(to.finish().await),
            Err(error) => return to.reset(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned)),
        };
        if let Some(error) = failed {
            return from.stop(ResetCode::of(&error).unwrap_or(ResetCode::Abandoned));
        }
    }
}
