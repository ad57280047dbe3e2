//! A cloud as far as its sessions go, on loopback, and edges that say what each test wants them to say.

use std::net::SocketAddr;
use std::sync::atomic::AtomicI64;
use std::time::Duration;

use causeway_api::{ConditionStatus, EGateway, ESite, Kind, Object, ObjectMeta};
use causeway_apiserver::SystemClock;
use causeway_channel::clock::unix_seconds;
use causeway_channel::dial::{DialConfig, DialTransports, Dialer};
use causeway_channel::link::{
    CHANNEL_ALPN, ClosedBy, LinkClosed, RecvStream, SendStream, StreamHeader, StreamPurpose,
};
use causeway_channel::port::{ChannelPort, PortLimits, PortMetrics, RejectReason};
use causeway_channel::quic::EndpointKeys;
use causeway_channel::tls::TlsCredentials;
use causeway_channel::wire::control::{
    self, CloudMessage, CloudMessageBody, ControlReader, ControlWriter, Hello, SessionRefused, encode_edge,
};
use causeway_channel::wire::{EnrolMessage, EnrolmentRequest, EnrolmentRequestBody, EnrolmentResponseBody};
use causeway_channel::{Clock, PrivateKey};
use causeway_store::{Store, StoreSpec};
use tokio_util::sync::DropGuard;

use super::*;
use crate::channel::ChannelServer;
use crate::gateway_sites::GatewaySites;
use crate::identity::{EnrolmentLimits, EnrolmentServer, IdentityConfig, OnEnrolled, OpenTokens};
use crate::replicas::ReplicaIdentity;

/// Longer than anything here may take on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
const TRANSPORTS: [DialTransports; 2] = [DialTransports::QuicOnly, DialTransports::TcpOnly];

struct Lab {
    registrar: Arc<Registrar>,
    registry: Arc<Registry>,
    sessions: Sessions,
    figures: PortMetrics,
    address: SocketAddr,
    /// Milliseconds by which the cloud's clock is ahead.
    ahead: Arc<AtomicI64>,
    _stop: DropGuard,
    _home: tempfile::TempDir,
}

/// The control stream of a link, at the edge.
type Control = (ControlReader<RecvStream, CloudMessage>, ControlWriter<SendStream>);

impl Lab {
    async fn new() -> Lab {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(StoreSpec::Sqlite { path: home.path().join("store.db") }).await.unwrap();
        let data_dir = home.path().join("data");
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
        let (limits, passengers) = (SessionLimits::default(), SessionServices::none());
        let sessions = Sessions::new("lab".into(), registrar.clone(), registry.clone(), passengers, limits);
        let (address, keys) = ("127.0.0.1:0".parse().unwrap(), EndpointKeys::generate());
        let port =
            ChannelPort::bind(address, registrar.channel_tls(), keys, PortLimits::default()).await.unwrap();
        let (address, figures, checking) = (port.local_addr(), port.figures().clone(), sessions.clone());
        port.check_certificates(Box::new(move |shown, client| checking.check_certificate(shown, client)));
        let enrolment = EnrolmentServer::new(registrar.clone(), EnrolmentLimits::default());
        let stop = CancellationToken::new();
        tokio::spawn(ChannelServer { port, enrolment, links: Arc::new(sessions.clone()) }.run(stop.clone()));
        let (keeper, running, until) = (registrar.clone(), sessions.clone(), stop.clone());
        tokio::spawn(async move { tokio::join!(keeper.run(until.clone()), running.run(until)) });
        let sites = GatewaySites { store, registry: registry.clone(), sessions: sessions.clone() };
        tokio::spawn(sites.run(stop.clone()));
        Lab { registrar, registry, sessions, figures, address, ahead, _stop: stop.drop_guard(), _home: home }
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

    /// What a gateway dials with that was enrolled for a site. A new key each time.
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
            self.registrar.answer(request, None, "127.0.0.1").await
        else {
            panic!("{peer} gets no certificate")
        };
        let credentials = TlsCredentials { chain: vec![issued.certificate.into()], key: key.to_der() };
        DialConfig { credentials, alpn: CHANNEL_ALPN, ..self.registrar.dial_config().unwrap() }
    }

    async fn dial(&self, config: &DialConfig, transports: DialTransports) -> Link {
        let endpoints = vec![self.address.to_string().parse().unwrap()];
        let config = DialConfig { endpoints, transports, clock: Clock::system(), ..config.clone() };
        within(Dialer::new(config).dial()).await.unwrap()
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
    match within(reader.next()).await.unwrap().unwrap().says {
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
            while lab.figures.turned_away(RejectReason::Certificate) != number as u64 + 1 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert_eq!(lab.figures.handshakes(), 0, "the port has handed no link on");
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
            // TCP has no credit for streams: an edge of ours waits by itself, and who does not is cut off.
            drop(second.await);
            let closed = within(link.closed()).await;
            assert_eq!(why(&closed), (ClosedBy::Peer, CloseCode::Malformed), "{closed}");
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
