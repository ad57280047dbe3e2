//! Throughput of one stream on loopback, both transports. Run on purpose, with optimisation: `cargo test
//! --release -p causeway-channel --test it -- --ignored --nocapture speed`.

use std::time::{Duration, Instant};

use bytes::Bytes;
use causeway_channel::link::{Link, StreamHeader, StreamPurpose, Transport};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::stage::{Pair, Stage};

const DURATION: Duration = Duration::from_secs(3);

#[ignore = "a measurement"]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn speed() {
    let mut stage = Stage::new().await;
    let Pair { edge, cloud } = stage.pair(Transport::Tcp).await;
    for _ in 0..2 {
        bulk("chunks of 64 KiB", &edge, &cloud, true).await;
        bulk("copies of 16 KiB", &edge, &cloud, false).await;
    }
    round_trips(&edge, &cloud).await;
    let Pair { edge, cloud } = stage.pair(Transport::Quic).await;
    bulk("chunks of 64 KiB", &edge, &cloud, true).await;
    round_trips(&edge, &cloud).await;
}

async fn bulk(what: &str, edge: &Link, cloud: &Link, is_chunks: bool) {
    let mut stream = edge.open_stream(StreamHeader::new(StreamPurpose::Probe)).await.unwrap();
    let (_, mut accepted) = cloud.accept_stream().await.unwrap();
    let reader = tokio::spawn(async move {
        let (mut bytes, begin) = (0, Instant::now());
        if is_chunks {
            while let Ok(Some(chunk)) = accepted.recv.read_chunk(256 * 1024).await {
                bytes += chunk.len();
            }
        } else {
            let mut buffer = vec![0; 16 * 1024];
            while let Ok(count @ 1..) = accepted.read(&mut buffer).await {
                bytes += count;
            }
        }
        bytes as f64 / begin.elapsed().as_secs_f64() / 1e6
    });
    let data = Bytes::from(vec![7; 64 * 1024]);
    let begin = Instant::now();
    while begin.elapsed() < DURATION {
        match is_chunks {
            true => stream.send.write_chunk(data.clone()).await.unwrap(),
            false => stream.write_all(&data[..16 * 1024]).await.unwrap(),
        }
    }
    stream.shutdown().await.unwrap();
    println!("{} {what}: {:.0} MB/s", edge.transport(), reader.await.unwrap());
}

async fn round_trips(edge: &Link, cloud: &Link) {
    let mut stream = edge.open_stream(StreamHeader::new(StreamPurpose::Probe)).await.unwrap();
    let (_, mut accepted) = cloud.accept_stream().await.unwrap();
    let echo = tokio::spawn(async move {
        let mut buffer = [0; 100];
        while accepted.read_exact(&mut buffer).await.is_ok() {
            accepted.write_all(&buffer).await.unwrap();
        }
    });
    let (mut count, begin, mut buffer) = (0, Instant::now(), [0; 100]);
    while begin.elapsed() < DURATION {
        stream.write_all(&[1; 100]).await.unwrap();
        stream.read_exact(&mut buffer).await.unwrap();
        count += 1;
    }
    println!("{} round trips of 100 bytes: {:.0} us", edge.transport(), 3e6 / f64::from(count));
    echo.abort();
}
