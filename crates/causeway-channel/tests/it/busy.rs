//! A port without free slots: refused clients are told when to retry, and are served then.

use std::net::SocketAddr;
use std::time::Duration;

use causeway_channel::Link;
use causeway_channel::dial::{AttemptError, DialConfig, DialTransports, LinkDialer};
use causeway_channel::port::{ChannelPort, HandshakeConcurrency, IncomingLink, PACE_WAIT_MAX};
use causeway_channel::quic::{ConnectError, EndpointKeys};
use causeway_channel::session::AttemptFailure;
use causeway_channel::tls::TrustAnchors;
use tokio::net::UdpSocket;
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::stage::{Authority, generous, within};

/// A port all of whose slots are taken.
struct FullPort {
    authority: Authority,
    address: SocketAddr,
    /// Their slots are not released: as long as that lasts, no other client gets one.
    taken: Vec<(Link, IncomingLink)>,
    _serving: AbortOnDropHandle<()>,
}

impl FullPort {
    async fn start() -> FullPort {
        let authority = Authority::new();
        let address = "127.0.0.1:0".parse().unwrap();
        let keys = EndpointKeys::generate();
        let mut port = ChannelPort::bind(address, authority.server(), keys, generous()).await.unwrap();
        let address = port.local_addr();
        let (sender, mut accepted) = mpsc::channel(256);
        let serving = tokio::spawn(async move { while sender.send(port.accept().await).await.is_ok() {} });
        let mut full =
            FullPort { authority, address, taken: Vec::new(), _serving: AbortOnDropHandle::new(serving) };
        let first = LinkDialer::new(full.config(address, DialTransports::QuicOnly));
        for _ in 0..HandshakeConcurrency::new(usize::MAX).slot_count() {
            let link = within(first.dial()).await.unwrap();
            full.taken.push((link, within(accepted.recv()).await.unwrap()));
        }
        full
    }

    fn config(&self, address: SocketAddr, transports: DialTransports) -> DialConfig {
        DialConfig {
            transports,
            ..DialConfig::new(
                vec![address.to_string().parse().unwrap()],
                TrustAnchors::Bundle(self.authority.bundle()),
                self.authority.gateway("g1"),
            )
        }
    }
}

/// A path to `port` on which its first packet is lost.
async fn lossy(port: SocketAddr) -> (SocketAddr, AbortOnDropHandle<()>) {
    let (near, far) =
        (UdpSocket::bind("127.0.0.1:0").await.unwrap(), UdpSocket::bind("127.0.0.1:0").await.unwrap());
    far.connect(port).await.unwrap();
    let address = near.local_addr().unwrap();
    let carry = async move {
        let (mut there, mut back) = ([0; 65_536], [0; 65_536]);
        let (mut client, mut lost) = (None, 0);
        loop {
            tokio::select! {
                Ok((length, from)) = near.recv_from(&mut there) => {
                    client = Some(from);
                    far.send(&there[..length]).await.unwrap();
                }
                Ok(length) = far.recv(&mut back) => match client {
                    Some(client) if lost > 0 => drop(near.send_to(&back[..length], client).await),
                    _ => lost += 1,
                },
            }
        }
    };
    (address, AbortOnDropHandle::new(tokio::spawn(carry)))
}

#[tokio::test]
async fn a_word_that_is_lost_is_said_again() {
    let full = FullPort::start().await;
    let (address, _way) = lossy(full.address).await;
    let dialer = LinkDialer::new(full.config(address, DialTransports::QuicOnly));
    let error = within(dialer.dial_with(None, Duration::from_secs(10))).await.unwrap_err();
    assert!(error.busy().is_some(), "{error}");
}

#[tokio::test]
async fn who_is_sent_away_is_told_when_to_come_and_served_then() {
    let mut full = FullPort::start().await;
    let config = |transports| full.config(full.address, transports);

    // Refused with a time; no other route to the same port is tried.
    let dialer = LinkDialer::new(config(DialTransports::Both));
    let patience = Duration::from_secs(10);
    let error = within(dialer.dial_with(None, patience)).await.unwrap_err();
    let told: Vec<_> = error
        .failed()
        .iter()
        .filter(|failed| matches!(failed.error, AttemptError::Quic(ConnectError::Busy(_))))
        .collect();
    assert_eq!(told.len(), 1, "{error}");
    let wait = error.busy().unwrap();
    assert!(wait < patience, "{wait:?}");
    assert_eq!(AttemptFailure::of_dial(&error), AttemptFailure::Busy { retry_after: wait });

    // With its ticket it waits; a later client without one is refused.
    tokio::time::sleep(wait).await;
    let quic = dialer.with_config(config(DialTransports::QuicOnly));
    let called = tokio::spawn({
        let dialer = dialer.clone();
        async move { dialer.dial_with(Some(causeway_channel::Transport::Quic), patience).await }
    });
    let newcomer = within(quic.dial_with(None, patience)).await;
    assert!(newcomer.unwrap_err().busy().is_some());
    let again = within(quic.with_config(config(DialTransports::QuicOnly)).dial_with(None, patience)).await;
    assert!(again.unwrap_err().busy().is_some(), "another {PACE_WAIT_MAX:?} have passed");
    assert!(!called.is_finished(), "whoever was called waits");
    full.taken.retain(|(_, incoming)| !matches!(incoming, IncomingLink::Channel(..)));
    within(called).await.unwrap().unwrap();
}
