//! The attacks over TLS and TCP.
//!
//! Each link sends as fast as the cloud takes it, until the cloud closes it; then the next one is dialled.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use causeway_channel::tls::CLOUD_NAME;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::frames::{self, DATA, DATAGRAM, HEADER_BYTES_MAX, PING};
use super::{Attack, Thief};

/// Bytes that are written at once.
const CHUNK_BYTES: usize = 64 * 1024;
/// A handshake costs the cloud the same from every client; the port bounds their rate.
const PAUSE: Duration = Duration::from_millis(50);
/// A write that the cloud does not take for so long is as good as refused.
const STUCK: Duration = Duration::from_secs(5);

pub async fn run(thief: Thief, attack: Attack) {
    let tls = Arc::new(thief.tls.clone());
    while !thief.is_over() {
        if let Ok(link) = dial(&thief, tls.clone()).await {
            thief.counts.links.fetch_add(1, Ordering::Relaxed);
            let _ = abuse(&thief, attack, link).await;
        }
        tokio::time::sleep(PAUSE).await;
    }
}

type Tls = tokio_rustls::client::TlsStream<TcpStream>;

async fn dial(thief: &Thief, tls: Arc<rustls::ClientConfig>) -> std::io::Result<Tls> {
    let socket = TcpStream::connect(thief.address).await?;
    TlsConnector::from(tls).connect(CLOUD_NAME.try_into().unwrap(), socket).await
}

async fn abuse(thief: &Thief, attack: Attack, link: Tls) -> std::io::Result<()> {
    let (mut reader, mut writer) = tokio::io::split(link);
    let reading = (attack == Attack::Attentive).then(|| {
        tokio::spawn(async move {
            let mut bytes = vec![0; CHUNK_BYTES];
            while reader.read(&mut bytes).await.is_ok_and(|count| count > 0) {}
        })
    });
    let mut next = 1;
    let mut out = Vec::new();
    if attack != Attack::BeforeHello {
        frames::open(&mut out, next, frames::CONTROL_HEADER);
        frames::frame(&mut out, DATA, next, &frames::hello(Thief::epoch()));
        next += 2;
        writer.write_all(&out).await?;
        writer.flush().await?;
        // Streams before the welcome would end the link; what is behind it is the aim here.
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    while !thief.is_over() {
        out.clear();
        while out.len() < CHUNK_BYTES {
            load(attack, &mut out, next);
            next = next.wrapping_add(2);
        }
        match tokio::time::timeout(STUCK, writer.write_all(&out)).await {
            Ok(written) => written?,
            Err(_) => break,
        }
        thief.counts.bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
    }
    if let Some(reading) = reading {
        reading.abort();
    }
    Ok(())
}

/// The use of one stream number.
fn load(attack: Attack, out: &mut Vec<u8>, stream: u32) {
    if attack != Attack::Odds {
        return frames::open_and_give_up(out, stream, frames::SERVICE_HEADER);
    }
    match stream % 8 {
        1 => frames::open_and_give_up(out, stream, &[0xff; HEADER_BYTES_MAX]),
        3 => frames::frame(out, DATAGRAM, 0, &[7; 1200]),
        5 => frames::frame(out, PING, 0, &u64::from(stream).to_be_bytes()),
        // A frame of a kind that may be passed over, as long as frames get.
        _ => frames::frame(out, 200, stream, &[7; 16_000]),
    }
}
