//! The sessions of a cloud on loopback, and edges that send the messages of each test.

use std::net::SocketAddr;
use std::sync::atomic::AtomicI64;
use std::time::{Duration, SystemTime};

use causeway_api::{ConditionStatus, EGateway, ESite, Kind, Object, ObjectMeta};
use causeway_apiserver::SystemClock;
use causeway_channel::clock::unix_seconds;
use causeway_channel::dial::{DialConfig, DialTransports, LinkDialer};
use causeway_channel::link::{
    CHANNEL_ALPN, ClosedBy, LinkClosed, RecvStream, SendStream, StreamHeader, StreamPurpose,
};
use causeway_channel::port::{
    CertificateCheck, ChannelPort, PortLimits, PortMetrics, PortSockets, RejectReason,
};
use causeway_channel::quic::EndpointKeys;
use causeway_channel::tls::TlsCredentials;
use causeway_channel::wire::control::{
    self, CloudMessage, CloudMessageBody, ControlReader, ControlWriter, Hello, SessionRefused, encode_edge,
};
use causeway_channel::wire::{EnrolMessage, EnrolmentRequest, EnrolmentRequestBody, EnrolmentResponseBody};
use causeway_channel::{Clock, PeerId, PrivateKey};
use causeway_store::{Store, StoreSpec};
use tokio_util::sync::DropGuard;

use super::*;
use crate::channel::ChannelServer;
use crate::deleted_gateways::DeletedGateways;
use crate::gateway_sites::GatewaySites;
use crate::identity::{EnrolmentLimits, EnrolmentServer, IdentityConfig, OnEnrolled, OpenTokens};
use crate::reconcile::Reconciler;
use crate::replicas::SessionDirectory;
use crate::reports::{ReportWriter, ReportedState};
use crate::tunnels::{TunnelReportWriter, TunnelReports};

/// Longer than anything here may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
const TRANSPORTS: [DialTransports; 2] = [DialTransports::QuicOnly, DialTransports::TcpOnly];

struct Lab {
    registrar: Arc<Registrar>,
    registry: Arc<Registry>,
    sessions: Sessions,
    metrics: PortMetrics,
    address: SocketAddr,
    /// Milliseconds by which the cloud's clock is ahead.
    ahead: Arc<AtomicI64>,
    _stop: DropGuard,
    _folder: tempfile::TempDir,
}

/// The control stream of a link, at the edge.
type Control = (ControlReader<RecvStream, CloudMessage>, ControlWriter<SendStream>);

impl Lab {
    async fn new() -> Lab {
        Lab::with(PortLimits::default()).await
    }

    async fn with(port_limits: PortLimits) -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreSpec::Sqlite { path: folder.path().join("store.db") }).await.unwrap();
        let data_dir = folder.path().join("data");
        causeway_daemon::data_dir::make_folder(&data_dir).unwrap();
        let ahead = Arc::new(AtomicI64::new(0));
        let hands = ahead.clone();
        let mut config =
            IdentityConfig::new(data_dir, vec!["127.0.0.1:7444".parse().unwrap()], "https://127.0.0.1:7443");
        config.clock = Clock::from_fn(move || {
            SystemTime::now() + Duration::from_millis(hands.load(Ordering::SeqCst) as u64)
        });
        let registrar = Registrar::open(store.clone(), config).await.unwrap();
        let registry = Arc::new(Registry::new(store.clone(), Arc::new(SystemClock)));
        let tunnels = TunnelReports::default();
        let (limits, services) = (
            SessionLimits::default(),
            SessionServices {
                is_elsewhere: Some(Arc::new(|_| false)),
                tunnels: Some(tunnels.clone()),
                ..SessionServices::none()
            },
        );
        let live = LiveSessions::new(&limits);
        let sessions =
            Sessions::new("lab".into(), registrar.clone(), registry.clone(), live, services, limits);
        let (address, keys) = ("127.0.0.1:0".parse().unwrap(), EndpointKeys::generate());
        let (sockets, checking) = (PortSockets::bind(address).await.unwrap(), sessions.clone());
        let check: CertificateCheck =
            Box::new(move |shown, client| checking.check_certificate(shown, client));
        let tls = registrar.channel_tls();
        let port = ChannelPort::with_check(sockets, tls, keys, port_limits, check).unwrap();
        let (address, metrics) = (port.local_addr(), port.metrics().clone());
        let enrolment = EnrolmentServer::new(registrar.clone(), None, EnrolmentLimits::default());
        let stop = CancellationToken::new();
        tokio::spawn(ChannelServer { port, enrolment, links: Arc::new(sessions.clone()) }.run(stop.clone()));
        let (keeper, running, until) = (registrar.clone(), sessions.clone(), stop.clone());
        tokio::spawn(async move { tokio::join!(keeper.run(until.clone()), running.run(until)) });
        let writer = TunnelReportWriter {
            reports: tunnels,
            store: store.clone(),
            clock: Clock::system(),
            registrar: registrar.clone(),
        };
        tokio::spawn(writer.run(stop.clone()));
        let sites = GatewaySites { store, registry: registry.clone(), sessions: sessions.clone() };
        tokio::spawn(sites.run(stop.clone()));
        Lab {
            registrar,
            registry,
            sessions,
            metrics,
            address,
            ahead,
            _stop: stop.drop_guard(),
            _folder: folder,
        }
    }

    /// Makes the EGateway stand at a site, whether it exists or not.
    async fn stand(&self, gateway: &str, site: &str) {
        let made = EGateway {
            metadata: ObjectMeta::named(gateway),
            e_site_name: site.into(),
            ..EGateway::default()
        };
        let object = ESite { metadata: ObjectMeta::named(site), ..ESite::default() };
        for object in [Object::from(object), made.into()] {
            match self.registry.create_with_defaults("test", object).await {
                Err(error) if error.status().code != 409 => panic!("{error}"),
                _ => {}
            }
        }
        let edit = |object: &mut Object| {
            if let Object::EGateway(gateway) = object {
                gateway.e_site_name = site.to_owned();
            }
        };
        self.registry.edit("test", Kind::EGateway, gateway, edit).await.unwrap();
    }

    /// Returns the dial configuration of a gateway that was enrolled for a site. A new key each time.
    async fn enrol(&self, gateway: &str, site: &str) -> DialConfig {
        let (peer, key) = (PeerId::new(site, gateway).unwrap(), PrivateKey::generate().unwrap());
        let token = self
            .registrar
            .create_join_token(site, gateway, DEADLINE, OnEnrolled::Replace)
            .await
            .unwrap()
            .token;
        let csr = key.request(&peer).unwrap();
        let ask = EnrolmentRequestBody::Enrol(EnrolMessage { secret: token.secret.expose().to_vec(), csr });
        let request = EnrolmentRequest { time: unix_seconds(self.registrar.time()), ask: Some(ask) };
        let Ok(EnrolmentResponseBody::Issued(issued)) =
            self.registrar.answer(request, None, None, "127.0.0.1").await
        else {
            panic!("{peer} gets no certificate")
        };
        let credentials = TlsCredentials { chain: vec![issued.certificate.into()], key: key.to_der() };
        DialConfig { credentials, alpn: CHANNEL_ALPN, ..self.registrar.dial_config().unwrap() }
    }

    async fn dial(&self, config: &DialConfig, transports: DialTransports) -> Link {
        let endpoints = vec![self.address.to_string().parse().unwrap()];
        let config = DialConfig { endpoints, transports, clock: Clock::system(), ..config.clone() };
        within(LinkDialer::new(config).dial()).await.unwrap()
    }

    async fn condition(&self, gateway: &str) -> Option<(ConditionStatus, String)> {
        let object = self.registry.object(Kind::EGateway, gateway).await.unwrap().unwrap().object;
        let conditions = &object.status().conditions;
        let found =
            conditions.iter().find(|found| found.kind == causeway_api::conditions::ENROLLED_AT_SITE)?;
        Some((found.status, found.message.clone()))
    }
}

async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.expect("it takes too long")
}

async fn control(link: &Link) -> Control {
    let stream = within(link.open_stream(StreamHeader::new(StreamPurpose::Control))).await.unwrap();
    (ControlReader::of_cloud(stream.recv), ControlWriter::new(stream.send))
}

/// Says hello on a control stream; a refusal is an error.
async fn hello((reader, writer): &mut Control) -> Result<(), SessionRefused> {
    static EPOCH: AtomicU64 = AtomicU64::new(1);
    let epoch = EPOCH.fetch_add(1, Ordering::SeqCst);
    writer.push(encode_edge(Hello { version: control::VERSION, epoch, ..Hello::default() }).unwrap());
    writer.drain().await.unwrap();
    match within(reader.next()).await.unwrap().unwrap().body {
        Some(CloudMessageBody::Welcome(_)) => Ok(()),
        Some(CloudMessageBody::Refused(refused)) => Err(refused),
        other => panic!("{other:?}"),
    }
}

fn why(closed: &LinkClosed) -> (ClosedBy, CloseCode) {
    (closed.by, closed.reason.code)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_key_gets_a_reason_and_no_link() {
    let lab = Lab::new().await;
    lab.stand("g", "oslo").await;
    let thief = lab.enrol("g", "oslo").await;
    lab.registrar.revoke_gateway("g", OpenTokens::Close).await.unwrap();
    let key = CertificateFacts::read(&thief.credentials.chain[0]).unwrap().key;
    within(async {
        while !lab.registrar.is_revoked(&key) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    for (number, transports) in TRANSPORTS.into_iter().enumerate() {
        let link = lab.dial(&thief, transports).await;
        let closed = within(link.closed()).await;
        assert_eq!(why(&closed), (ClosedBy::Peer, CloseCode::Revoked), "{transports:?}: {closed}");
        assert!(closed.reason.text.contains("causeway token create"), "{closed}");
        within(async {
            while lab.metrics.turned_away(RejectReason::Certificate) != number as u64 + 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert_eq!(lab.metrics.handshakes(), 0, "the port has handed no link on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn before_the_welcome_an_edge_has_one_stream() {
    let lab = Lab::new().await;
    lab.stand("g", "oslo").await;
    let edge = lab.enrol("g", "oslo").await;
    for transports in TRANSPORTS {
        let link = lab.dial(&edge, transports).await;
        let mut control = control(&link).await;
        let second = link.open_stream(StreamHeader::new(StreamPurpose::Service));
        if transports == DialTransports::TcpOnly {
            // TCP has no credit for streams: an edge of ours waits by itself, and a peer that does not is cut
            // off.
            drop(second.await);
            let closed = within(link.closed()).await;
            assert_eq!(why(&closed), (ClosedBy::Peer, CloseCode::Malformed), "{closed}");
            // A peer that never says hello is cut off with the same code, later.
            assert!(closed.reason.text.contains("second stream before the welcome"), "{closed}");
            continue;
        }
        let mut second = std::pin::pin!(second);
        let early = tokio::time::timeout(Duration::from_millis(100), second.as_mut()).await;
        assert!(early.is_err(), "a second stream was opened before the welcome");
        hello(&mut control).await.unwrap();
        within(second).await.unwrap();
    }
    let link = lab.dial(&edge, DialTransports::TcpOnly).await;
    let mut control = control(&link).await;
    hello(&mut control).await.unwrap();
    for _ in 0..100 {
        within(link.open_stream(StreamHeader::new(StreamPurpose::Service))).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_with_its_certificate_although_the_edge_never_pings() {
    let lab = Lab::new().await;
    lab.stand("g", "oslo").await;
    let edge = lab.enrol("g", "oslo").await;
    let not_after = CertificateFacts::read(&edge.credentials.chain[0]).unwrap().not_after;
    for transports in TRANSPORTS {
        let mut left = Duration::from_secs(1);
        let closed = loop {
            let ahead = not_after.duration_since(SystemTime::now()).unwrap() - left;
            lab.ahead.store(ahead.as_millis() as i64, Ordering::SeqCst);
            let link = lab.dial(&edge, transports).await;
            match hello(&mut control(&link).await).await {
                // Nothing is said from here on.
                Ok(()) => break within(link.closed()).await,
                // The machine is slower than that: the certificate had ended before the hello was read.
                Err(refused) => {
                    assert_eq!(refused.reason(), SessionRefusedCode::CertificateExpired, "{refused}")
                }
            }
            left *= 2;
        };
        assert_eq!(why(&closed), (ClosedBy::Peer, CloseCode::CertificateExpired), "{transports:?}: {closed}");
        assert!(closed.reason.text.contains("renew"), "{closed}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_whose_object_was_moved_is_out_until_it_is_enrolled_anew() {
    let lab = Lab::new().await;
    for (transports, gateway) in TRANSPORTS.into_iter().zip(["g1", "g2"]) {
        lab.stand(gateway, "oslo").await;
        let old = lab.enrol(gateway, "oslo").await;
        let link = lab.dial(&old, transports).await;
        let mut talk = control(&link).await;
        hello(&mut talk).await.unwrap();
        assert_eq!(lab.condition(gateway).await, None, "nothing to tell");

        lab.stand(gateway, "rome").await;
        let fix = format!("causeway token create --site rome --gateway {gateway}");
        let closed = within(link.closed()).await;
        assert_eq!(why(&closed), (ClosedBy::Peer, CloseCode::NotAdmitted), "{closed}");
        assert!(closed.reason.text.contains(&fix) && closed.reason.text.contains("oslo"), "{closed}");

        let link = lab.dial(&old, transports).await;
        let refused = hello(&mut control(&link).await).await.unwrap_err();
        assert_eq!(refused.reason(), SessionRefusedCode::WrongSite);
        assert!(refused.hint.contains(&fix), "{refused}");
        within(async {
            while lab.condition(gateway).await.is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        let (status, message) = lab.condition(gateway).await.unwrap();
        assert_eq!(status, ConditionStatus::False);
        assert!(message.contains(&fix), "{message}");

        let new = lab.enrol(gateway, "rome").await;
        let link = lab.dial(&new, transports).await;
        let mut talk = control(&link).await;
        hello(&mut talk).await.unwrap();
        within(async {
            while lab.condition(gateway).await.unwrap().0 != ConditionStatus::True {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert_eq!(lab.sessions.session(gateway).unwrap().peer.site(), "rome");
    }
}

/// Says hello as the process `instance`, and returns the welcome.
async fn hello_as((reader, writer): &mut Control, instance: &[u8]) -> control::Welcome {
    static EPOCH: AtomicU64 = AtomicU64::new(1_000_000);
    let epoch = EPOCH.fetch_add(1, Ordering::SeqCst);
    let instance = bytes::Bytes::copy_from_slice(instance);
    writer
        .push(encode_edge(Hello { version: control::VERSION, epoch, instance, ..Hello::default() }).unwrap());
    writer.drain().await.unwrap();
    match within(reader.next()).await.unwrap().unwrap().body {
        Some(CloudMessageBody::Welcome(welcome)) => welcome,
        other => panic!("{other:?}"),
    }
}

/// Asks to join a session; the answer, or `None` when the link was closed first.
async fn join(link: &Link, session_id: &str, instance: &[u8]) -> Option<CloudMessageBody> {
    let (mut reader, mut writer) = control(link).await;
    let instance = bytes::Bytes::copy_from_slice(instance);
    let ask = control::JoinSession { session_id: session_id.to_owned(), instance };
    writer.push(encode_edge(ask).unwrap());
    writer.drain().await.ok()?;
    within(reader.next()).await.ok()??.body
}

fn is_joined(answer: Option<&CloudMessageBody>) -> bool {
    matches!(answer, Some(CloudMessageBody::Joined(_)))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secondary_link_joins_only_the_session_of_its_own_process() {
    let lab = Lab::new().await;
    lab.stand("g", "oslo").await;
    lab.stand("h", "oslo").await;
    let (edge, other) = (lab.enrol("g", "oslo").await, lab.enrol("h", "oslo").await);
    let (instance, stranger) = ([7; 16], [8; 16]);
    let primary = lab.dial(&edge, DialTransports::QuicOnly).await;
    let mut talk = control(&primary).await;
    let welcome = hello_as(&mut talk, &instance).await;
    assert!(welcome.features.iter().any(|feature| feature == control::FEATURE_SECONDARY_LINK));
    let other_id = "lab-999999";
    for (name, config, transports, session_id, shown) in [
        ("another process", &edge, DialTransports::TcpOnly, welcome.session_id.as_str(), &stranger[..]),
        ("no process", &edge, DialTransports::TcpOnly, &welcome.session_id, &[]),
        ("another session", &edge, DialTransports::TcpOnly, other_id, &instance),
        ("another gateway", &other, DialTransports::TcpOnly, &welcome.session_id, &instance),
        ("over QUIC", &edge, DialTransports::QuicOnly, &welcome.session_id, &instance),
    ] {
        let link = lab.dial(config, transports).await;
        let answer = join(&link, session_id, shown).await;
        assert!(!is_joined(answer.as_ref()), "{name}: {answer:?}");
        within(link.closed()).await;
    }
    assert!(!lab.sessions.session("g").unwrap().link.has_secondary());
    let link = lab.dial(&edge, DialTransports::TcpOnly).await;
    assert!(is_joined(join(&link, &welcome.session_id, &instance).await.as_ref()));
    let session = lab.sessions.session("g").unwrap();
    while !session.link.has_secondary() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // Streams of services use it, in both directions; other purposes and streams with datagrams do not.
    let header = StreamHeader { gateway: "g".into(), ..StreamHeader::new(StreamPurpose::Service) };
    let opened = within(session.link.open_stream(header.clone())).await.unwrap();
    assert_eq!(within(link.accept_stream()).await.unwrap().0.gateway, "g");
    let datagrams = StreamHeader { datagrams: true, ..header };
    let beside = within(session.link.open_stream(datagrams)).await.unwrap();
    assert!(within(primary.accept_stream()).await.unwrap().0.datagrams);
    drop((opened, beside));
    // A session over TCP has none.
    let over_tcp = lab.dial(&other, DialTransports::TcpOnly).await;
    let mut talk_over_tcp = control(&over_tcp).await;
    let welcome = hello_as(&mut talk_over_tcp, &instance).await;
    let link = lab.dial(&other, DialTransports::TcpOnly).await;
    assert!(!is_joined(join(&link, &welcome.session_id, &instance).await.as_ref()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secondary_links_leave_half_of_the_port_to_sessions() {
    let lab = Lab::with(PortLimits { links_max: 4, ..PortLimits::default() }).await;
    lab.stand("g", "oslo").await;
    lab.stand("h", "oslo").await;
    let (edge, other) = (lab.enrol("g", "oslo").await, lab.enrol("h", "oslo").await);
    let instance = [7; 16];
    let primary = lab.dial(&edge, DialTransports::QuicOnly).await;
    let mut talk = control(&primary).await;
    let welcome = hello_as(&mut talk, &instance).await;
    let first = lab.dial(&edge, DialTransports::TcpOnly).await;
    assert!(is_joined(join(&first, &welcome.session_id, &instance).await.as_ref()));
    // A third link leaves one place of four.
    let second = lab.dial(&edge, DialTransports::TcpOnly).await;
    let answer = join(&second, &welcome.session_id, &instance).await;
    assert!(matches!(answer, Some(CloudMessageBody::Refused(_)) | None), "{answer:?}");
    within(second.closed()).await;
    let session = lab.dial(&other, DialTransports::QuicOnly).await;
    hello_as(&mut control(&session).await, &instance).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_links_of_a_gateway_share_one_bound_of_unread_bytes() {
    const MIB: u64 = 1024 * 1024;
    let lab = Lab::new().await;
    lab.stand("g", "oslo").await;
    lab.stand("h", "oslo").await;
    let (edge, other) = (lab.enrol("g", "oslo").await, lab.enrol("h", "oslo").await);
    let (instance, mut held) = ([7; 16], Vec::new());
    // A session that is held here keeps its window, although it may have ended meanwhile.
    let begin = async |edge: &DialConfig, gateway: &str| {
        let link = lab.dial(edge, DialTransports::QuicOnly).await;
        let mut talk = control(&link).await;
        hello_as(&mut talk, &instance).await;
        (lab.sessions.session(gateway).unwrap(), link, talk)
    };
    for number in 0..5 {
        held.push(begin(&edge, "g").await);
        let used = held[0].0.budget.used_bytes() / MIB;
        match number {
            0 => assert_eq!(used, 512),
            // Each would have a window of its own otherwise.
            _ => assert!((513..=896 + 4 * 16).contains(&used), "{used} MiB with {number} older sessions"),
        }
    }
    let (session, ..) = begin(&other, "h").await;
    assert_eq!(session.budget.used_bytes(), 512 * MIB, "another gateway has a budget of its own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_tunnel_of_a_revoked_gateway_ends_connected_or_not() {
    let lab = Lab::new().await;
    lab.stand("g", "oslo").await;
    let has_tunnel = async |expected: bool| {
        let waiting = async {
            while lab.registry.store().get("tunnels/g").await.unwrap().is_some() != expected {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(waiting).await;
    };
    for is_connected in [true, false] {
        let edge = lab.enrol("g", "oslo").await;
        let link = lab.dial(&edge, DialTransports::TcpOnly).await;
        let (mut reader, mut writer) = control(&link).await;
        let tunnel =
            control::TunnelReport { public_key: vec![7; 32].into(), port: 7446, ..Default::default() };
        let epoch = 2_000_000 + u64::from(!is_connected);
        let hello = Hello { version: control::VERSION, epoch, tunnel: Some(tunnel), ..Hello::default() };
        writer.push(encode_edge(hello).unwrap());
        writer.drain().await.unwrap();
        assert!(matches!(
            within(reader.next()).await.unwrap().unwrap().body,
            Some(CloudMessageBody::Welcome(_))
        ));
        has_tunnel(true).await;
        if !is_connected {
            link.close(CloseReason::new(CloseCode::Done, ""));
            within(async {
                while lab.sessions.session("g").is_some() {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
            .await;
            has_tunnel(true).await;
        }
        lab.registrar.revoke_gateway("g", OpenTokens::Close).await.unwrap();
        has_tunnel(false).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tunnel_ends_with_the_certificate_of_its_gateway() {
    let lab = Lab::new().await;
    let has_tunnels = async |expected: &[&str]| {
        let waiting = async {
            loop {
                let found = lab.registry.store().list("tunnels/", Default::default()).await.unwrap().records;
                if found.iter().map(|record| &*record.key).eq(expected.iter().copied()) {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        within(waiting).await;
    };
    lab.stand("g", "oslo").await;
    let edge = lab.enrol("g", "oslo").await;
    let link = lab.dial(&edge, DialTransports::TcpOnly).await;
    let (mut reader, mut writer) = control(&link).await;
    let tunnel = control::TunnelReport { public_key: vec![7; 32].into(), port: 7446, ..Default::default() };
    let hello =
        Hello { version: control::VERSION, epoch: 3_000_000, tunnel: Some(tunnel), ..Hello::default() };
    writer.push(encode_edge(hello).unwrap());
    writer.drain().await.unwrap();
    within(reader.next()).await.unwrap().unwrap();
    has_tunnels(&["tunnels/g"]).await;
    // Records of an older version name no certificate: the enrolment decides.
    lab.stand("h", "oslo").await;
    lab.enrol("h", "oslo").await;
    for gateway in ["cloud", "h", "never"] {
        let value = br#"{"publicKey":"k","port":7446}"#.to_vec().into();
        lab.registry.store().create(&format!("tunnels/{gateway}"), value).await.unwrap();
    }
    lab.stand("other", "oslo").await;
    lab.enrol("other", "oslo").await;
    lab.registrar.revoke_gateway("other", OpenTokens::Close).await.unwrap();
    has_tunnels(&["tunnels/cloud", "tunnels/g", "tunnels/h"]).await;
    lab.registrar.revoke_gateway("h", OpenTokens::Close).await.unwrap();
    has_tunnels(&["tunnels/cloud", "tunnels/g"]).await;
    link.close(CloseReason::new(CloseCode::Done, ""));
    let not_after = CertificateFacts::read(&edge.credentials.chain[0]).unwrap().not_after;
    let ahead = not_after.duration_since(SystemTime::now()).unwrap() + Duration::from_secs(2);
    lab.ahead.store(ahead.as_millis() as i64, Ordering::SeqCst);
    has_tunnels(&["tunnels/cloud"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secondary_link_never_outlives_its_session() {
    let lab = Lab::new().await;
    lab.stand("g", "oslo").await;
    for (number, end) in ["revoked", "superseded", "goodbye", "closed"].into_iter().enumerate() {
        let edge = lab.enrol("g", "oslo").await;
        let instance = [number as u8 + 1; 16];
        let primary = lab.dial(&edge, DialTransports::QuicOnly).await;
        let mut talk = control(&primary).await;
        let welcome = hello_as(&mut talk, &instance).await;
        let link = lab.dial(&edge, DialTransports::TcpOnly).await;
        assert!(is_joined(join(&link, &welcome.session_id, &instance).await.as_ref()));
        let (key, mut newer) = (lab.sessions.session("g").unwrap().key, None);
        match end {
            "revoked" => lab.registrar.revoke_gateway("g", OpenTokens::Close).await.map(drop).unwrap(),
            "superseded" => {
                let link = lab.dial(&edge, DialTransports::QuicOnly).await;
                let mut talk = control(&link).await;
                // Another process: nothing of the old one can finish.
                hello_as(&mut talk, &[99; 16]).await;
                newer = Some((link, talk));
            }
            "goodbye" => {
                talk.1.push(encode_edge(control::Goodbye { reason: String::new() }).unwrap());
                talk.1.drain().await.unwrap();
            }
            _ => lab.sessions.session("g").unwrap().close(CloseReason::new(CloseCode::Draining, "test")),
        }
        within(primary.closed()).await;
        within(link.closed()).await;
        println!("{end}: {key:?} both links are closed");
        drop(newer);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_with_a_finalizer_is_out_at_its_deletion_mark() {
    let lab = Lab::new().await;
    let store = lab.registry.store().clone();
    let stop = CancellationToken::new();
    let _stop = stop.clone().drop_guard();
    tokio::spawn(DeletedGateways::new(store, lab.registrar.clone()).run(stop));
    for (transports, gateway) in TRANSPORTS.into_iter().zip(["g1", "g2"]) {
        lab.stand(gateway, "oslo").await;
        let edit = |object: &mut Object| object.metadata_mut().finalizers = vec!["example.com/audit".into()];
        lab.registry.edit("test", Kind::EGateway, gateway, edit).await.unwrap();
        let edge = lab.enrol(gateway, "oslo").await;
        let link = lab.dial(&edge, transports).await;
        let mut talk = control(&link).await;
        hello(&mut talk).await.unwrap();

        lab.registry.delete_object("test", Kind::EGateway, gateway).await.unwrap();
        let closed = within(link.closed()).await;
        assert_eq!(why(&closed), (ClosedBy::Peer, CloseCode::Revoked), "{closed}");
        let object = lab.registry.object(Kind::EGateway, gateway).await.unwrap().unwrap().object;
        assert!(object.metadata().deletion_timestamp.is_some(), "the finalizer still holds it");

        // A new key does not let it in before the object is gone.
        let again = lab.enrol(gateway, "oslo").await;
        let link = lab.dial(&again, transports).await;
        let refused = hello(&mut control(&link).await).await.unwrap_err();
        assert_eq!(refused.reason(), SessionRefusedCode::UnknownGateway, "{refused}");
        assert!(refused.message.contains("is being deleted"), "{refused}");
    }
}

/// Starts the reconciler and the writer of reports; they end with the value.
fn write_reports(lab: &Lab) -> DropGuard {
    let stop = CancellationToken::new();
    let (state, metrics) = (Arc::new(ReportedState::default()), causeway_daemon::Metrics::new("0"));
    let check = causeway_daemon::Readiness::new().register("reconcile");
    let reconciler = Reconciler::new(lab.registry.clone(), check, &metrics).with_reports(state.clone());
    tokio::spawn(reconciler.run(stop.clone()));
    let reports = ReportWriter {
        registry: lab.registry.clone(),
        directory: SessionDirectory::single_replica(Clock::system()),
        inbox: Arc::default(),
        state,
        connections: Some(ConnectionWatch::new(lab.sessions.clone())),
    };
    tokio::spawn(reports.run(None, stop.clone()));
    stop.drop_guard()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_object_has_the_version_of_a_gateway_also_when_it_was_hardly_away() {
    let lab = Lab::new().await;
    let _reports = write_reports(&lab);
    lab.stand("g", "oslo").await;
    let edge = lab.enrol("g", "oslo").await;
    let begin = async |epoch: u64, software: &str| {
        let link = lab.dial(&edge, DialTransports::TcpOnly).await;
        let mut talk = control(&link).await;
        let hello =
            Hello { version: control::VERSION, epoch, software: software.to_owned(), ..Hello::default() };
        talk.1.push(encode_edge(hello).unwrap());
        talk.1.drain().await.unwrap();
        let answer = within(talk.0.next()).await.unwrap().unwrap().body;
        assert!(matches!(answer, Some(CloudMessageBody::Welcome(_))), "{answer:?}");
        (link, talk)
    };
    let is_stored = async |software: &str| {
        let stored = async || {
            let object = lab.registry.object(Kind::EGateway, "g").await.unwrap().unwrap().object;
            object.status().software.clone()
        };
        while stored().await != software {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let _first = begin(3_000_000, "causeway 0.1.0").await;
    within(is_stored("causeway 0.1.0")).await;
    // It takes the place of the session before it: the condition Connected stays as it is.
    let _second = begin(3_000_001, "causeway 0.2.0").await;
    within(is_stored("causeway 0.2.0")).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connected_condition_that_a_client_overwrote_is_put_right_at_once() {
    let lab = Lab::new().await;
    let _reports = write_reports(&lab);
    lab.stand("g", "oslo").await;
    let edge = lab.enrol("g", "oslo").await;
    let link = lab.dial(&edge, DialTransports::TcpOnly).await;
    let mut talk = control(&link).await;
    hello(&mut talk).await.unwrap();
    let until_connected = async || {
        let is_connected = async || {
            let object = lab.registry.object(Kind::EGateway, "g").await.unwrap().unwrap().object;
            let shown = object.status().condition(CONNECTED).map(|shown| shown.status);
            shown == Some(ConditionStatus::True)
        };
        while !is_connected().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    within(until_connected()).await;
    let edit = |object: &mut Object| {
        let (conditions, now) = (&mut object.status_mut().conditions, Time::from_second(0));
        causeway_api::meta::set_condition(conditions, CONNECTED, false.into(), "X", "", now, 1);
    };
    lab.registry.edit_status("admin", Kind::EGateway, "g", edit).await.unwrap();
    // It used to be read again once a minute.
    tokio::time::timeout(Duration::from_secs(10), until_connected()).await.expect("it stays overwritten");
}
