//! Several chunks of a stream in one call, over both transports.

use bytes::Bytes;
use causeway_channel::link::{ResetCode, StreamHeader, StreamPurpose, Transport};
use tokio::io::AsyncWriteExt;

use crate::stage::{Stage, within};

/// More than one turn of a reader takes, so that pieces are split.
const PIECE_BYTES_MAX: usize = 40_000;
const TURN_BYTES: usize = 64 * 1024;
const TURNS: usize = 120;

/// The pieces of one call. They count up over the whole stream.
fn pieces(turn: usize, next: &mut u64) -> Vec<Bytes> {
    let length = |piece: usize| (turn * 7919 + piece * 104_729) % PIECE_BYTES_MAX;
    let mut fill = |piece| -> Bytes {
        let bytes = (0..length(piece)).map(|_| {
            *next += 1;
            *next as u8
        });
        bytes.collect()
    };
    // Some calls have nothing to write, and some pieces are empty.
    (0..turn % 6).map(&mut fill).collect()
}

async fn chunks_arrive_in_order(transport: Transport) {
    let mut stage = Stage::new().await;
    let pair = stage.pair(transport).await;
    let mut opened = within(pair.edge.open_stream(StreamHeader::new(StreamPurpose::Service))).await.unwrap();
    let writing = tokio::spawn(async move {
        let mut written = 0;
        for turn in 0..TURNS {
            let mut chunks = pieces(turn, &mut written);
            opened.send.write_chunks(&mut chunks).await.unwrap();
            assert!(chunks.is_empty());
        }
        opened.send.shutdown().await.unwrap();
        (written, opened)
    });
    let (_, mut accepted) = within(pair.cloud.accept_stream()).await.unwrap();
    let (mut read, mut chunks) = (0u64, Vec::new());
    while within(accepted.recv.read_chunks(&mut chunks, TURN_BYTES)).await.unwrap() {
        assert!(!chunks.is_empty(), "a turn without bytes");
        if transport == Transport::Tcp {
            assert!(chunks.iter().map(Bytes::len).sum::<usize>() <= TURN_BYTES);
        }
        for chunk in chunks.drain(..) {
            for byte in chunk {
                read += 1;
                assert_eq!(byte, read as u8, "byte {read}");
            }
        }
    }
    let (written, _opened) = writing.await.unwrap();
    assert_eq!(read, written);
    assert!(chunks.is_empty());
}

async fn the_reason_of_a_reset_is_read(transport: Transport) {
    let mut stage = Stage::new().await;
    let pair = stage.pair(transport).await;
    let mut opened = within(pair.edge.open_stream(StreamHeader::new(StreamPurpose::Service))).await.unwrap();
    let (_, mut accepted) = within(pair.cloud.accept_stream()).await.unwrap();
    opened.send.reset(ResetCode::NotAllowed);
    let mut chunks = Vec::new();
    let error = within(accepted.recv.read_chunks(&mut chunks, TURN_BYTES)).await.unwrap_err();
    assert_eq!(ResetCode::of(&error), Some(ResetCode::NotAllowed), "{error}");
    accepted.recv.stop(ResetCode::Limit);
    // The other direction, whose writer waits for room.
    opened.recv.stop(ResetCode::Refused);
    let error = loop {
        let mut chunks = vec![Bytes::from(vec![0; PIECE_BYTES_MAX]); 3];
        if let Err(error) = within(accepted.send.write_chunks(&mut chunks)).await {
            break error;
        }
    };
    assert_eq!(ResetCode::of(&error), Some(ResetCode::Refused), "{error}");
}

/// A reader that runs beside the writer never takes a stream that was reset for a whole one.
async fn a_reset_behind_bytes_is_no_end(transport: Transport) {
    let mut stage = Stage::new().await;
    let pair = stage.pair(transport).await;
    for round in 0..100 {
        let mut opened =
            within(pair.edge.open_stream(StreamHeader::new(StreamPurpose::Service))).await.unwrap();
        let (_, mut accepted) = within(pair.cloud.accept_stream()).await.unwrap();
        let reading = tokio::spawn(async move {
            let mut chunks = Vec::new();
            loop {
                chunks.clear();
                match within(accepted.recv.read_chunks(&mut chunks, TURN_BYTES)).await {
                    Ok(true) => {}
                    Ok(false) => return None,
                    Err(error) => return ResetCode::of(&error),
                }
            }
        });
        let mut chunks = vec![Bytes::from(vec![0; PIECE_BYTES_MAX]); 1 + round % 3];
        within(opened.send.write_chunks(&mut chunks)).await.unwrap();
        opened.send.reset(ResetCode::NotAllowed);
        assert_eq!(reading.await.unwrap(), Some(ResetCode::NotAllowed), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_arrive_in_order_over_quic() {
    chunks_arrive_in_order(Transport::Quic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn chunks_arrive_in_order_over_tcp() {
    chunks_arrive_in_order(Transport::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reason_of_a_reset_is_read_over_quic() {
    the_reason_of_a_reset_is_read(Transport::Quic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_reason_of_a_reset_is_read_over_tcp() {
    the_reason_of_a_reset_is_read(Transport::Tcp).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_behind_bytes_is_no_end_over_quic() {
    a_reset_behind_bytes_is_no_end(Transport::Quic).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reset_behind_bytes_is_no_end_over_tcp() {
    a_reset_behind_bytes_is_no_end(Transport::Tcp).await;
}
