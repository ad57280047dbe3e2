//! A secondary link beside a primary one, as the callers of `Link` see both.

use causeway_channel::link::{LinkLimits, StreamHeader, StreamPurpose, Transport};
use causeway_channel::port::PortLimits;
use causeway_channel::quic::QuicOptions;

use crate::stage::{Stage, within};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_takes_quic_when_the_secondary_link_has_no_room() {
    let mut stage = Stage::new().await;
    let primary = stage.pair(Transport::Quic).await;
    let few = LinkLimits { streams_max: 1, ..LinkLimits::default() };
    let secondary =
        stage.pair_with(Transport::Tcp, QuicOptions { limits: few, ..QuicOptions::default() }).await;
    primary.edge.attach_secondary(secondary.edge.clone());
    let header = || StreamHeader::new(StreamPurpose::Service).target("web");
    // One end allows itself few streams, so the link is full after that many.
    let mut open = Vec::new();
    while primary.edge.stats_by_transport().0.streams_open == 0 {
        open.push(within(primary.edge.open_stream(header())).await.unwrap());
        assert!(open.len() <= 64, "the secondary link is never full");
    }
    assert!(open.len() > 1, "the secondary link takes the first streams");
    assert_eq!(within(primary.cloud.accept_stream()).await.unwrap().0.target, "web");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_port_is_crowded_when_less_than_half_of_its_links_are_free() {
    let mut stage = Stage::with(PortLimits { links_max: 4, ..PortLimits::default() }).await;
    let mut pairs = Vec::new();
    for expected in [false, false, true] {
        pairs.push(stage.pair(Transport::Quic).await);
        assert_eq!(pairs[0].cloud.is_port_crowded(), expected, "with {} links", pairs.len());
    }
    assert!(!pairs[0].edge.is_port_crowded(), "a dialled link has no port");
}
