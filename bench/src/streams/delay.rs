//! A relay for the UDP of one client that delays every packet, both ways. It drops only packets that its own
//! socket buffers cannot hold.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::task::JoinSet;

type Waiting = VecDeque<(Instant, Vec<u8>)>;

const PACKET_BYTES_MAX: usize = 2048;

/// Returns the address to dial instead of `to`.
pub async fn relay(to: SocketAddr, delay: Duration, tasks: &mut JoinSet<()>) -> io::Result<SocketAddr> {
    let (front, back) =
        (Arc::new(UdpSocket::bind("127.0.0.1:0").await?), UdpSocket::bind("127.0.0.1:0").await?);
    back.connect(to).await?;
    let (address, back) = (front.local_addr()?, Arc::new(back));
    let client = Arc::new(OnceLock::new());
    let (from, into, seen) = (front.clone(), back.clone(), client.clone());
    tasks.spawn(async move {
        let (mut waiting, mut buffer) = (Waiting::new(), [0; PACKET_BYTES_MAX]);
        loop {
            tokio::select! {
                Ok((length, peer)) = from.recv_from(&mut buffer) => {
                    seen.get_or_init(|| peer);
                    waiting.push_back((Instant::now() + delay, buffer[..length].to_vec()));
                }
                () = due(&waiting) => if let Some((_, packet)) = waiting.pop_front() {
                    let _ = into.send(&packet).await;
                }
            }
        }
    });
    tasks.spawn(async move {
        let (mut waiting, mut buffer) = (Waiting::new(), [0; PACKET_BYTES_MAX]);
        loop {
            tokio::select! {
                Ok(length) = back.recv(&mut buffer) => {
                    waiting.push_back((Instant::now() + delay, buffer[..length].to_vec()));
                }
                () = due(&waiting) => if let (Some((_, packet)), Some(peer)) = (waiting.pop_front(), client.get()) {
                    let _ = front.send_to(&packet, peer).await;
                }
            }
        }
    });
    Ok(address)
}

async fn due(waiting: &Waiting) {
    match waiting.front() {
        Some((at, _)) if *at <= Instant::now() => {}
        Some((at, _)) => tokio::time::sleep_until((*at).into()).await,
        None => std::future::pending().await,
    }
}
