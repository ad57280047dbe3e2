//! The links of one peer share the bound of their unread bytes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use causeway_channel::link::{ReceiveBudget, StreamHeader, StreamPurpose, Transport};
use causeway_channel::port::{ChannelPort, IncomingLink, PortLimits};
use causeway_channel::quic::{EndpointKeys, QuicOptions};
use tokio::io::AsyncWriteExt;

use crate::stage::{Stage, eventually, within};

const MIB: u64 = 1024 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_whose_budget_is_used_up_waits_and_nothing_is_lost() {
    let mut stage = Stage::new().await;
    // The stage admits its links without a budget, so this one has a port of its own.
    let tls = stage.authority.server();
    let keys = EndpointKeys::generate();
    let mut port =
        ChannelPort::bind("127.0.0.1:0".parse().unwrap(), tls, keys, PortLimits::default()).await.unwrap();
    stage.address = port.local_addr();
    let accepting = tokio::spawn(async move {
        let IncomingLink::Channel(link, _) = port.accept().await else { panic!("a link of the channel") };
        // Only the least that every link gets.
        link.admit_within(&ReceiveBudget::new(0));
        (link, port)
    });
    let edge = within(stage.dial(Transport::Quic, QuicOptions::default())).await.unwrap();
    let (cloud, mut port) = within(accepting).await.unwrap();
    let _serving = tokio::spawn(async move { port.accept().await });

    let (streams, done) = (40, Arc::new(AtomicUsize::new(0)));
    // All are open before the window is full: the header of a stream needs room in it, too.
    let (mut sending, mut unread) = (Vec::new(), Vec::new());
    for _ in 0..streams {
        sending.push(within(edge.open_stream(StreamHeader::new(StreamPurpose::Service))).await.unwrap());
        unread.push(within(cloud.accept_stream()).await.unwrap().1);
    }
    for mut stream in sending {
        let done = done.clone();
        tokio::spawn(async move {
            for _ in 0..16 {
                stream.send.write_chunk(vec![7; MIB as usize / 16].into()).await.unwrap();
            }
            stream.send.shutdown().await.unwrap();
            done.fetch_add(1, Ordering::SeqCst);
            std::future::pending::<()>().await;
        });
    }
    eventually("the window is full", || cloud.stats().received_bytes > 15 * MIB).await;
    let all_sent = async {
        while done.load(Ordering::SeqCst) < streams {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    assert!(
        tokio::time::timeout(Duration::from_secs(2), all_sent).await.is_err(),
        "all were sent, none was read"
    );
    let received = cloud.stats().received_bytes;
    assert!(received < 18 * MIB, "{} MiB were received and none was read", received / MIB);
    // All at the same time: the window is full of bytes of all streams.
    let reading = unread.into_iter().map(|mut stream| async move {
        let mut read = 0;
        while let Some(chunk) = within(stream.recv.read_chunk(1 << 20)).await.unwrap() {
            read += chunk.len() as u64;
        }
        read
    });
    let read: u64 = futures_util::future::join_all(reading).await.into_iter().sum();
    assert_eq!(read, streams as u64 * MIB);
}
