//! Pins the bytes of every protocol of the channel: each message is compared with a committed text, and decoded again.
//!
//! The texts are in `fixtures/`, one file per protocol and one line (`name: hex`) per message. A test that fails here means that
//! an older peer reads something else: a rename must leave these files as they are, and a new field adds lines.

use bytes::Bytes;
use causeway_channel::link::StreamOrigin;
use causeway_channel::tcp::frame::{self, Frame, LinkSettings};
use causeway_channel::wire::control::{self, *};
use causeway_channel::wire::datagrams::{self, DatagramDecoder, DatagramFrame, FramedDatagram};
use causeway_channel::wire::{self, *};
use causeway_channel::{CloseCode, ResetCode, StreamHeader, StreamPurpose};
use prost::Message;

/// The committed lines of one protocol, compared in order.
struct Fixture {
    lines: Vec<(&'static str, &'static str)>,
    found: Vec<(String, String)>,
}

impl Fixture {
    fn new(text: &'static str) -> Fixture {
        let lines = text.lines().filter(|line| !line.is_empty() && !line.starts_with('#'));
        Fixture { lines: lines.map(|line| line.split_once(": ").unwrap()).collect(), found: Vec::new() }
    }

    fn add(&mut self, name: &str, bytes: &[u8]) {
        let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        self.found.push((name.to_owned(), hex));
    }

    /// Every line was found, in this order, and no message is without a line.
    fn compare(&self) {
        let found: String = self.found.iter().map(|(name, hex)| format!("{name}: {hex}\n")).collect();
        let lines: String = self.lines.iter().map(|(name, hex)| format!("{name}: {hex}\n")).collect();
        assert_eq!(found, lines, "the bytes on the wire have changed; this is what is encoded now:\n{found}");
    }
}

#[tokio::test]
async fn enrolment_messages_have_the_bytes_that_peers_know() {
    let mut fixture = Fixture::new(include_str!("fixtures/enrolment.hex"));
    let hello = EnrolmentHello { version: 1, time: 1_798_000_000 };
    fixture.add("hello", &enrolment_frame(&hello).await);
    let bodies = [
        ("enrol", EnrolmentRequestBody::Enrol(EnrolMessage { secret: vec![7; 32], csr: b"csr".to_vec() })),
        ("renew", EnrolmentRequestBody::Renew(RenewMessage { csr: b"csr".to_vec() })),
        (
            "reenrol",
            EnrolmentRequestBody::Reenrol(ReenrolMessage {
                csr: b"csr".to_vec(),
                certificate: b"certificate".to_vec(),
            }),
        ),
        ("check", EnrolmentRequestBody::Check(CheckMessage { bundle: vec![9; 32] })),
        (
            "enrol-node",
            EnrolmentRequestBody::EnrolNode(EnrolNodeMessage { token: "a.b.c".into(), csr: b"csr".to_vec() }),
        ),
    ];
    for (name, body) in bodies {
        let request = EnrolmentRequest { time: 1_798_000_001, ask: Some(body) };
        fixture.add(name, &enrolment_frame(&request).await);
    }
    let issued = IssuedMessage {
        certificate: b"certificate".to_vec(),
        authorities: vec![b"ca1".to_vec(), b"ca2".to_vec()],
        endpoints: vec!["cloud.example:7443".into(), "[2001:db8::1]:7443".into()],
    };
    let refused = EnrolmentRefusal {
        code: EnrolmentCode::TokenUnknown.into(),
        message: "unknown token".into(),
        hint: "make a new one".into(),
        retry_after_seconds: 30,
    };
    let bodies = [
        ("issued", EnrolmentResponseBody::Issued(issued)),
        ("refused", EnrolmentResponseBody::Refused(refused)),
        ("checked", EnrolmentResponseBody::Checked(CheckedMessage { renew: true })),
    ];
    for (name, body) in bodies {
        fixture.add(name, &enrolment_frame(&EnrolmentResponse { answer: Some(body) }).await);
    }
    fixture.compare();
    assert_eq!((wire::ALPN, wire::VERSION), (&b"causeway-enrol/1"[..], 1));
}

async fn enrolment_frame<M: Message + Default + PartialEq + std::fmt::Debug>(message: &M) -> Vec<u8> {
    let mut bytes = Vec::new();
    wire::write(&mut bytes, message).await.unwrap();
    assert_eq!(wire::read::<M>(&mut &bytes[..]).await.unwrap(), *message);
    bytes
}

fn netmap_at(revision: u64) -> HeldNetmap {
    HeldNetmap { epoch: 2, revision, digest: Bytes::from(vec![0xd1; 32]), turn: 0 }
}

#[tokio::test]
async fn messages_of_an_edge_have_the_bytes_that_clouds_know() {
    let mut fixture = Fixture::new(include_str!("fixtures/control_edge.hex"));
    let hello = Hello {
        version: 1,
        epoch: 7,
        held: Some(netmap_at(70)),
        software: "causeway 0.1.0".into(),
        bundle_hash: Bytes::from(vec![0xb0; 32]),
        time: 1_798_000_000,
        features: vec![FEATURE_PINGS_ACKNOWLEDGED.into()],
        instance: Bytes::from(vec![0x1e; INSTANCE_BYTES]),
        tunnel: None,
        switched_off: Vec::new(),
        neighbours: Vec::new(),
    };
    let hello_with_neighbours = Hello {
        held: Some(HeldNetmap { turn: 3, ..netmap_at(70) }),
        features: vec![FEATURE_NEIGHBOURS.into()],
        neighbours: vec!["oslo".into(), "rome".into()],
        ..Hello::default()
    };
    let neighbours = NeighbourQuery {
        addresses: vec![Bytes::from_static(&[10, 2, 0, 7]), Bytes::from(vec![0xfd; 16])],
        sites: vec!["oslo".into()],
        silent: vec!["rome".into()],
    };
    let tunnel = TunnelReport {
        public_key: Bytes::from(vec![0x25; 32]),
        port: 7446,
        aes: true,
        addresses: vec![Bytes::from_static(&[192, 0, 2, 7]), Bytes::from(vec![0x20; 16])],
    };
    let hello_with_tunnel = Hello { tunnel: Some(tunnel), ..Hello::default() };
    let refused = NetmapRefused {
        target: Some(netmap_at(71)),
        reason: "digest mismatch".into(),
        want_whole: true,
        held: Some(netmap_at(70)),
    };
    let batch = SpoolBatch {
        queue_id: Bytes::from(vec![0x0a; 16]),
        first_seq: 300,
        records: vec![Bytes::from_static(b"one"), Bytes::from_static(b"two")],
        dropped: 4,
    };
    let messages: Vec<(&str, EdgeMessage)> = vec![
        ("hello", hello.into()),
        ("hello_with_tunnel", hello_with_tunnel.into()),
        ("ping", Ping { nonce: 99 }.into()),
        ("netmap_ack", NetmapAck { held: Some(netmap_at(71)), not_persisted: "disk full".into() }.into()),
        ("netmap_refused", refused.into()),
        ("spool_batch", batch.into()),
        ("goodbye", Goodbye { reason: "shutdown".into() }.into()),
        ("hello_with_neighbours", hello_with_neighbours.into()),
        ("neighbour_query", neighbours.into()),
    ];
    for (name, message) in messages {
        let bytes = control::encode_edge(message.clone()).unwrap();
        assert_eq!(ControlReader::of_edge(&bytes[..]).next().await.unwrap(), Some(message));
        fixture.add(name, &bytes);
    }
    fixture.compare();
    assert_eq!(control::VERSION, 1);
}

#[tokio::test]
async fn messages_of_the_cloud_have_the_bytes_that_edges_know() {
    let mut fixture = Fixture::new(include_str!("fixtures/control_cloud.hex"));
    let welcome = Welcome {
        session_id: "s-1".into(),
        replica: "host:7444".into(),
        time: 1_798_000_000,
        endpoints: vec!["cloud.example:7443".into()],
        keepalive_ms: 15_000,
        retry_hint_ms: 2_000,
        renew: true,
        features: vec!["later".into()],
    };
    let refused = SessionRefused {
        code: SessionRefusedCode::OlderEpoch.into(),
        message: "a newer session exists".into(),
        hint: "wait".into(),
        retry_after_ms: 1_000,
        current_epoch: 8,
    };
    let messages: Vec<(&str, CloudMessage)> = vec![
        ("welcome", welcome.into()),
        ("refused", refused.into()),
        ("pong", Pong { nonce: 99 }.into()),
        ("netmap", NetmapUpdate { update: Bytes::from_static(b"update") }.into()),
        ("spool_ack", SpoolAck { queue_id: Bytes::from(vec![0x0a; 16]), seq: 301 }.into()),
        ("drain", DrainNotice { deadline_ms: 30_000, retry_hint_ms: 5_000 }.into()),
        (
            "endpoint_update",
            EndpointUpdate { renew: true, endpoints: vec!["cloud.example:7443".into()], keepalive_ms: None }
                .into(),
        ),
        (
            "endpoint_update_keepalive",
            EndpointUpdate { renew: false, endpoints: Vec::new(), keepalive_ms: Some(2_400) }.into(),
        ),
        ("reconnect_hint", ReconnectHint { retry_hint_ms: 9_000 }.into()),
    ];
    for (name, message) in messages {
        let bytes = control::encode_cloud(message.clone()).unwrap();
        assert_eq!(ControlReader::of_cloud(&bytes[..]).next().await.unwrap(), Some(message));
        fixture.add(name, &bytes);
    }
    fixture.compare();
}

#[test]
fn a_stream_header_has_the_bytes_that_peers_know() {
    let mut fixture = Fixture::new(include_str!("fixtures/stream_header.hex"));
    let mut header = StreamHeader::new(StreamPurpose::Service)
        .to("berlin", "gw-1")
        .target("camera")
        .subject("shop")
        .details(&b"details"[..]);
    header.origin = Some(StreamOrigin { site: "oslo".into(), gateway: "gw-2".into() });
    (header.bulk, header.datagrams) = (true, true);
    for (name, header) in [("all_fields", header), ("control", StreamHeader::new(StreamPurpose::Control))] {
        let bytes = header.encode_prefixed().unwrap();
        assert_eq!(StreamHeader::decode_message(bytes.slice(2..)).unwrap(), header);
        fixture.add(name, &bytes);
    }
    fixture.compare();
}

#[test]
fn frames_over_tcp_have_the_bytes_that_peers_know() {
    let mut fixture = Fixture::new(include_str!("fixtures/tcp_frames.hex"));
    let frames = [
        ("settings", Frame::Settings(LinkSettings { streams_max: 4096, initial_credit: 65_536 })),
        ("open", Frame::Open { stream: 0x0102_0304, credit: 65_536, header: b"header" }),
        ("data", Frame::Data { stream: 3, bytes: b"bytes", fin: false }),
        ("data_fin", Frame::Data { stream: 3, bytes: b"bytes", fin: true }),
        ("reset", Frame::Reset { stream: 5, code: 4 }),
        ("stop", Frame::Stop { stream: 5, code: 7 }),
        ("credit", Frame::Credit { stream: 5, bytes: 1000 }),
        ("datagram", Frame::Datagram(b"packet")),
        ("ping", Frame::Ping(0x0102_0304_0506_0708)),
        ("pong", Frame::Pong(0x0102_0304_0506_0708)),
        ("close", Frame::Close { code: 9, text: b"certificate expired" }),
    ];
    for (name, frame) in frames {
        let mut bytes = Vec::new();
        frame.write(&mut bytes);
        assert_eq!(frame::parse(&bytes), Ok(Some((frame, bytes.len()))));
        fixture.add(name, &bytes);
    }
    fixture.compare();
}

#[test]
fn datagrams_have_the_bytes_that_peers_know() {
    let mut fixture = Fixture::new(include_str!("fixtures/datagrams.hex"));
    let on_stream = [
        ("on_stream", DatagramFrame::Datagram(FramedDatagram::new(b"hello").unwrap())),
        ("on_stream_empty", DatagramFrame::Datagram(FramedDatagram::new(b"").unwrap())),
        ("on_stream_welcome", DatagramFrame::Word(datagrams::WELCOME)),
    ];
    for (name, frame) in on_stream {
        let bytes = frame.clone().into_bytes();
        let mut decoder = DatagramDecoder::default();
        decoder.push(bytes.clone());
        assert_eq!(decoder.take(), Some(frame));
        fixture.add(name, &bytes);
    }
    let beside = [
        ("beside_link", datagrams::OF_THE_LINK),
        ("beside_stream_4", 4),
        ("beside_stream_400", 400),
        ("beside_stream_40000", 40_000),
        ("beside_stream_2_to_the_40", 1 << 40),
    ];
    for (name, stream) in beside {
        let bytes = datagrams::beside(stream, b"hello");
        assert_eq!(datagrams::read_beside(bytes.clone()), Some((stream, Bytes::from_static(b"hello"))));
        fixture.add(name, &bytes);
    }
    fixture.compare();
}

#[test]
fn codes_have_the_numbers_that_peers_know() {
    let purposes = [
        StreamPurpose::Control,
        StreamPurpose::Probe,
        StreamPurpose::Service,
        StreamPurpose::Node,
        StreamPurpose::Api,
        StreamPurpose::Diagnose,
        StreamPurpose::Packets,
    ];
    assert_eq!(purposes.map(|purpose| purpose as u32), [1, 2, 3, 4, 5, 7, 8]);
    let resets = [
        ResetCode::Abandoned,
        ResetCode::Refused,
        ResetCode::NoRoute,
        ResetCode::NotAllowed,
        ResetCode::BackendDown,
        ResetCode::Timeout,
        ResetCode::Limit,
        ResetCode::Draining,
        ResetCode::Malformed,
        ResetCode::Internal,
        ResetCode::Revoked,
    ];
    assert_eq!(resets.map(u32::from), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
    let closes = [
        CloseCode::Done,
        CloseCode::Superseded,
        CloseCode::Revoked,
        CloseCode::Draining,
        CloseCode::Limit,
        CloseCode::Malformed,
        CloseCode::NotAdmitted,
        CloseCode::Dead,
        CloseCode::Internal,
        CloseCode::CertificateExpired,
    ];
    assert_eq!(closes.map(u32::from), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let enrolment = [
        EnrolmentCode::Other,
        EnrolmentCode::Malformed,
        EnrolmentCode::RateLimited,
        EnrolmentCode::Unavailable,
        EnrolmentCode::TokenUnknown,
        EnrolmentCode::TokenExpired,
        EnrolmentCode::TokenUsed,
        EnrolmentCode::TokenDeleted,
        EnrolmentCode::BadRequest,
        EnrolmentCode::Revoked,
        EnrolmentCode::NotCurrent,
        EnrolmentCode::GraceOver,
        EnrolmentCode::CertificateNeeded,
        EnrolmentCode::CertificateExpired,
        EnrolmentCode::WrongAuthority,
        EnrolmentCode::Version,
        EnrolmentCode::NotPermitted,
    ];
    assert_eq!(enrolment.map(i32::from), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]);
    let sessions = [
        SessionRefusedCode::Other,
        SessionRefusedCode::Malformed,
        SessionRefusedCode::Version,
        SessionRefusedCode::OlderEpoch,
        SessionRefusedCode::Revoked,
        SessionRefusedCode::CertificateExpired,
        SessionRefusedCode::NotCurrent,
        SessionRefusedCode::UnknownGateway,
        SessionRefusedCode::Full,
        SessionRefusedCode::Draining,
        SessionRefusedCode::Unavailable,
        SessionRefusedCode::WrongSite,
    ];
    assert_eq!(sessions.map(i32::from), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]);
}
