//! The attacks over QUIC, with quinn itself: streams that are opened and reset, datagrams that belong to no stream.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use causeway_channel::tls::CLOUD_NAME;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, Endpoint, VarInt};

use super::{Attack, Thief, frames};

const PAUSE: Duration = Duration::from_millis(50);
/// An open that the cloud gives no credit for in this time: all there is has been used.
const STUCK: Duration = Duration::from_secs(5);
/// Streams that are opened before they are given up.
const AT_ONCE: usize = 64;

pub async fn run(thief: Thief, attack: Attack) {
    let crypto = QuicClientConfig::try_from(thief.tls.clone()).unwrap();
    let mut endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    endpoint.set_default_client_config(ClientConfig::new(Arc::new(crypto)));
    while !thief.is_over() {
        if let Ok(connecting) = endpoint.connect(thief.address, CLOUD_NAME)
            && let Ok(connection) = connecting.await
        {
            thief.counts.links.fetch_add(1, Ordering::Relaxed);
            let _ = abuse(&thief, attack, &connection).await;
            connection.close(VarInt::from_u32(0), b"");
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn abuse(thief: &Thief, attack: Attack, connection: &Connection) -> anyhow::Result<()> {
    let mut control = None;
    if attack != Attack::BeforeHello {
        let (mut send, recv) = connection.open_bi().await?;
        send.write_all(&prefixed(frames::CONTROL_HEADER)).await?;
        send.write_all(&frames::hello(Thief::epoch())).await?;
        control = Some((send, recv));
    }
    while !thief.is_over() {
        let mut open = Vec::new();
        for _ in 0..AT_ONCE {
            if attack == Attack::Odds {
                // Of no stream; too many push out older ones, at both ends.
                let _ = connection.send_datagram(vec![7; 1000].into());
            }
            let Ok(opened) = tokio::time::timeout(STUCK, connection.open_bi()).await else { break };
            let (mut send, mut recv) = opened?;
            match attack {
                // Half a header, and never the rest.
                Attack::Odds => send.write_all(&[0x10]).await?,
                _ => send.write_all(&prefixed(frames::SERVICE_HEADER)).await?,
            }
            if attack != Attack::Odds {
                let _ = (send.reset(VarInt::from_u32(1)), recv.stop(VarInt::from_u32(1)));
            }
            open.push((send, recv));
            thief.counts.streams.fetch_add(1, Ordering::Relaxed);
            if connection.close_reason().is_some() {
                return Ok(());
            }
        }
        if connection.close_reason().is_some() {
            break;
        }
    }
    drop(control);
    Ok(())
}

/// A header as it stands on a stream of QUIC: behind a length of two bytes.
fn prefixed(header: &[u8]) -> Vec<u8> {
    [&u16::try_from(header.len()).unwrap().to_be_bytes()[..], header].concat()
}
