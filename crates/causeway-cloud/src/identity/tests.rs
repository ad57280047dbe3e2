//! The whole of identity over loopback: replicas on one store, edges that enrol, clocks that are set by hand.
//!
//! `Fleet` is the stage: a store, a clock, and as many replicas as a test wants. `Device` is an edge without
//! a disk, made of the channel's own client.

mod access;
mod enrolment;
mod etcd;
mod nodes;
mod replicas;
mod returning;
mod rotation;
mod strangers;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use causeway_channel::clock::from_unix_seconds;
use causeway_channel::port::{ChannelPort, PortLimits, PortMetrics, PortSockets};
use causeway_channel::quic::EndpointKeys;
use causeway_channel::tls::{TlsCredentials, TrustAnchors};
use causeway_channel::wire::EnrolmentCode;
use causeway_channel::{
    Clock, EnrolError, EnrolmentContact, IssuedCertificate, JoinToken, PrivateKey, enrol,
};
use causeway_store::{Store, StoreSpec};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::channel::{ChannelServer, NoLinks};

use super::{
    EnrolmentLimits, EnrolmentServer, IdentityConfig, IdentityError, NodeEnrolment, OnEnrolled, OpenTokens,
    Registrar,
};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// A clock with hands.
#[derive(Clone)]
struct Hands(Arc<AtomicI64>);

impl Hands {
    fn now(&self) -> SystemTime {
        from_unix_seconds(self.0.load(Ordering::SeqCst))
    }

    fn advance(&self, by: Duration) {
        self.0.fetch_add(by.as_secs() as i64, Ordering::SeqCst);
    }

    fn clock(&self) -> Clock {
        let hands = self.clone();
        Clock::from_fn(move || hands.now())
    }
}

struct Fleet {
    folder: tempfile::TempDir,
    /// On etcd every replica opens a store of its own; SQLite belongs to one process.
    spec: StoreSpec,
    store: Store,
    hands: Hands,
    grace: Duration,
    limits: EnrolmentLimits,
    port_limits: PortLimits,
}

/// A running replica; it stops when dropped.
struct Replica {
    registrar: Arc<Registrar>,
    addr: SocketAddr,
    port: PortMetrics,
    data_dir: PathBuf,
    _stop: DropGuard,
}

impl Fleet {
    async fn new() -> Fleet {
        let folder = tempfile::tempdir().unwrap();
        let spec = StoreSpec::Sqlite { path: folder.path().join("store.db") };
        Fleet::with(folder, spec).await
    }

    async fn with(folder: tempfile::TempDir, spec: StoreSpec) -> Fleet {
        let store = Store::open(spec.clone()).await.unwrap();
        let hands = Hands(Arc::new(AtomicI64::new(1_800_000_000)));
        let (limits, port_limits) = (EnrolmentLimits::default(), PortLimits::default());
        Fleet { folder, spec, store, hands, grace: 90 * DAY, limits, port_limits }
    }

    async fn store(&self) -> Store {
        match &self.spec {
            StoreSpec::Sqlite { .. } => self.store.clone(),
            etcd => Store::open(etcd.clone()).await.unwrap(),
        }
    }

    fn data_dir(&self, name: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        causeway_daemon::data_dir::make_folder(&path).unwrap();
        path
    }

    fn config(&self, name: &str) -> IdentityConfig {
        let mut config = IdentityConfig::new(self.data_dir(name), Vec::new(), "https://127.0.0.1:7443");
        config.clock = self.hands.clock();
        config.grace = self.grace;
        config
    }

    /// For a first start with a seal key that was prepared.
    fn prepared(&self, name: &str) -> IdentityConfig {
        IdentityConfig { new_fleet: true, ..self.config(name) }
    }

    async fn open(&self, name: &str) -> Result<Arc<Registrar>, IdentityError> {
        Registrar::open(self.store().await, self.config(name)).await
    }

    /// A replica with its own data dir. All but the first get the seal key of `a`.
    async fn replica(&self, name: &str) -> Replica {
        self.replica_with(name, None).await
    }

    async fn replica_with(&self, name: &str, nodes: Option<NodeEnrolment>) -> Replica {
        let data_dir = self.data_dir(name);
        let seal = self.folder.path().join("a/seal.key");
        if name != "a" && seal.exists() {
            std::fs::copy(seal, data_dir.join("seal.key")).unwrap();
        }
        let sockets = PortSockets::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let addr = sockets.local_addr();
        let mut config = self.config(name);
        config.advertise = vec![addr.to_string().parse().unwrap()];
        let registrar = Registrar::open(self.store().await, config).await.unwrap();
        let tls = registrar.channel_tls();
        let port = ChannelPort::on(sockets, tls, EndpointKeys::generate(), self.port_limits.clone()).unwrap();
        let metrics = port.metrics().clone();
        let enrolment = EnrolmentServer::new(registrar.clone(), nodes, self.limits.clone());
        let channel = ChannelServer { port, enrolment, links: Arc::new(NoLinks) };
        let stop = CancellationToken::new();
        tokio::spawn(channel.run(stop.clone()));
        let (keeper, until) = (registrar.clone(), stop.clone());
        tokio::spawn(async move { keeper.run(until).await });
        Replica { registrar, addr, port: metrics, data_dir, _stop: stop.drop_guard() }
    }

    fn contact(&self, replica: &Replica, trust: TrustAnchors) -> EnrolmentContact {
        let endpoints = vec![replica.addr.to_string().parse().unwrap()];
        EnrolmentContact {
            endpoints,
            trust,
            clock: self.hands.clock(),
            deadline: Duration::from_secs(20),
            proxy: None,
        }
    }

    async fn enrol(
        &self,
        replica: &Replica,
        token: &JoinToken,
        key: &PrivateKey,
    ) -> Result<IssuedCertificate, EnrolError> {
        let trust = TrustAnchors::Pinned(token.authorities.clone());
        enrol::enrol(&self.contact(replica, trust), token, key).await
    }

    async fn token(&self, replica: &Replica, gateway: &str) -> JoinToken {
        let issued = replica.registrar.create_join_token("Tokyo", gateway, HOUR, OnEnrolled::Refuse).await;
        issued.unwrap().token
    }

    /// For a gateway that is enrolled, too.
    async fn replacing_token(&self, replica: &Replica, gateway: &str) -> JoinToken {
        let issued = replica.registrar.create_join_token("Tokyo", gateway, HOUR, OnEnrolled::Replace).await;
        issued.unwrap().token
    }

    /// A device that is enrolled as `gateway`.
    async fn device(&self, replica: &Replica, gateway: &str) -> Device {
        let token = self.token(replica, gateway).await;
        self.device_with(replica, &token).await
    }

    async fn device_with(&self, replica: &Replica, token: &JoinToken) -> Device {
        let key = PrivateKey::generate().unwrap();
        let issued = self.enrol(replica, token, &key).await.unwrap();
        Device { key, issued }
    }
}

struct Device {
    key: PrivateKey,
    issued: IssuedCertificate,
}

impl Device {
    fn credentials(&self) -> TlsCredentials {
        TlsCredentials { chain: vec![self.issued.certificate.clone()], key: self.key.to_der() }
    }

    fn contact(&self, fleet: &Fleet, replica: &Replica) -> EnrolmentContact {
        fleet.contact(replica, TrustAnchors::Bundle(self.issued.authorities.clone()))
    }

    async fn renew(&mut self, fleet: &Fleet, replica: &Replica) -> Result<(), EnrolError> {
        let peer = self.issued.facts.peer.clone().unwrap();
        let contact = self.contact(fleet, replica);
        self.issued = enrol::renew(&contact, self.credentials(), &self.key, &peer).await?;
        Ok(())
    }

    async fn reenrol(&mut self, fleet: &Fleet, replica: &Replica) -> Result<(), EnrolError> {
        let peer = self.issued.facts.peer.clone().unwrap();
        let contact = self.contact(fleet, replica);
        self.issued = enrol::reenrol(&contact, &self.issued.certificate, &self.key, &peer).await?;
        Ok(())
    }

    async fn asks_to_renew(&self, fleet: &Fleet, replica: &Replica) -> Result<bool, EnrolError> {
        enrol::asks_to_renew(&self.contact(fleet, replica), self.credentials()).await
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, EnrolError>, code: EnrolmentCode) -> String {
    match result {
        Err(EnrolError::Refused(refusal)) if refusal.reason() == code => refusal.to_string(),
        other => panic!("expected {code:?}, got {other:?}"),
    }
}

/// Waits for a condition that another task brings about.
async fn eventually(what: &str, mut holds: impl FnMut() -> bool) -> Duration {
    let start = std::time::Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(10), "{what}: not within ten seconds");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    start.elapsed()
}

/// Gives what another task brings about ten seconds.
async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(10), future).await.expect("within ten seconds")
}
