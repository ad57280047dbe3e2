//! A port whose places are all taken: who is sent away is told when to come, and is served then.

use std::time::Duration;

use causeway_channel::dial::{AttemptError, DialConfig, Dialer, Transports};
use causeway_channel::port::{ChannelPort, Incoming, PACE_WAIT_MAX, Pace};
use causeway_channel::quic::{ConnectError, PortKeys};
use causeway_channel::session::Failure;
use causeway_channel::tls::Trust;
use tokio::sync::mpsc;

use crate::stage::{Authority, generous, within};

#[tokio::test]
async fn who_is_sent_away_is_told_when_to_come_and_served_then() {
    let authority = Authority::new();
    let address = "127.0.0.1:0".parse().unwrap();
    let keys = PortKeys::generate();
    let mut port = ChannelPort::bind(address, authority.server(), keys, generous()).await.unwrap();
    let address = port.local_addr();
    let (sender, mut accepted) = mpsc::channel(256);
    let serving = tokio::spawn(async move { while sender.send(port.accept().await).await.is_ok() {} });
    let config = |transports| DialConfig {
        transports,
        ..DialConfig::new(
            vec![address.to_string().parse().unwrap()],
            Trust::Bundle(authority.bundle()),
            authority.gateway("g1"),
        )
    };
    // Their turns are not given back: as long as that lasts, nobody else gets one.
    let (first, mut taken) = (Dialer::new(config(Transports::QuicOnly)), Vec::new());
    for _ in 0..Pace::new(usize::MAX).places() {
        let link = within(first.dial()).await.unwrap();
        taken.push((link, within(accepted.recv()).await.unwrap()));
    }

    // Told when to come, and nothing else is tried at the same door.
    let dialer = Dialer::new(config(Transports::Both));
    let patience = Duration::from_secs(10);
    let error = within(dialer.dial_patiently(None, patience)).await.unwrap_err();
    let told: Vec<_> = error
        .failed()
        .iter()
        .filter(|failed| matches!(failed.error, AttemptError::Quic(ConnectError::Busy(_))))
        .collect();
    assert_eq!(told.len(), 1, "{error}");
    let wait = error.busy().unwrap();
    assert!(wait < patience, "{wait:?}");
    assert_eq!(Failure::of_dial(&error), Failure::Busy { retry_after: wait });

    // With its number it waits; somebody without one, who came after it, is sent away before.
    tokio::time::sleep(wait).await;
    let quic = dialer.with_config(config(Transports::QuicOnly));
    let called = tokio::spawn({
        let dialer = dialer.clone();
        async move { dialer.dial_patiently(Some(causeway_channel::Transport::Quic), patience).await }
    });
    let newcomer = within(quic.dial_patiently(None, patience)).await;
    assert!(newcomer.unwrap_err().busy().is_some());
    let again = within(quic.with_config(config(Transports::QuicOnly)).dial_patiently(None, patience)).await;
    assert!(again.unwrap_err().busy().is_some(), "another {PACE_WAIT_MAX:?} have passed");
    assert!(!called.is_finished(), "whoever was called waits");
    taken.retain(|(_, incoming)| !matches!(incoming, Incoming::Channel(..)));
    within(called).await.unwrap().unwrap();
    serving.abort();
}
