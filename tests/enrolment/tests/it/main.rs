//! Edges with a disk against the identity of a cloud, over loopback, with a clock that is set by hand.

#![allow(clippy::unwrap_used, clippy::panic)]

mod joining;
mod keeping;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use causeway_channel::clock::from_unix_seconds;
use causeway_channel::port::{ChannelPort, PortLimits, PortSockets};
use causeway_channel::quic::EndpointKeys;
use causeway_channel::{Clock, JoinToken};
use causeway_cloud::channel::{ChannelServer, NoLinks};
use causeway_cloud::identity::{
    EnrolmentLimits, EnrolmentServer, IdentityConfig, OnEnrolled, OpenTokens, Registrar,
};
use causeway_edge::Edge;
use causeway_store::{Store, StoreSpec};
use tokio_util::sync::{CancellationToken, DropGuard};

const HOUR: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(86_400);

/// A clock with hands.
#[derive(Clone)]
struct Hands(Arc<AtomicI64>);

impl Hands {
    fn new() -> Hands {
        Hands(Arc::new(AtomicI64::new(1_800_000_000)))
    }

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

/// A cloud's identity on the channel port, and a place for edges.
struct Stage {
    home: tempfile::TempDir,
    hands: Hands,
    registrar: Arc<Registrar>,
    addr: SocketAddr,
    _stop: DropGuard,
}

impl Stage {
    async fn new() -> Stage {
        let home = tempfile::tempdir().unwrap();
        let hands = Hands::new();
        let sockets = PortSockets::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let addr = sockets.local_addr();
        let store = Store::open(StoreSpec::Sqlite { path: home.path().join("store.db") }).await.unwrap();
        let data_dir = home.path().join("cloud");
        std::fs::create_dir(&data_dir).unwrap();
        let advertise = vec![addr.to_string().parse().unwrap()];
        let mut config = IdentityConfig::new(data_dir, advertise, "https://127.0.0.1:7443");
        config.clock = hands.clock();
        let registrar = Registrar::open(store, config).await.unwrap();
        let tls = registrar.channel_tls();
        let port = ChannelPort::on(sockets, tls, EndpointKeys::generate(), PortLimits::default()).unwrap();
        let enrolment = EnrolmentServer::new(registrar.clone(), None, EnrolmentLimits::default());
        let stop = CancellationToken::new();
        tokio::spawn(ChannelServer { port, enrolment, links: Arc::new(NoLinks) }.run(stop.clone()));
        let (keeper, until) = (registrar.clone(), stop.clone());
        tokio::spawn(async move { keeper.run(until).await });
        Stage { home, hands, registrar, addr, _stop: stop.drop_guard() }
    }

    fn edge_dir(&self, name: &str) -> PathBuf {
        self.home.path().join("edges").join(name)
    }

    fn edge(&self, name: &str) -> Edge {
        Edge::open_with(self.edge_dir(name), self.hands.clock()).unwrap()
    }

    async fn token(&self, gateway: &str) -> JoinToken {
        self.registrar.create_join_token("Tokyo", gateway, HOUR, OnEnrolled::Replace).await.unwrap().token
    }

    async fn enrolled(&self, name: &str) -> Edge {
        let edge = self.edge(name);
        edge.enrol_once(&self.token(name).await).await.unwrap();
        edge
    }

    async fn used(&self, gateway: &str) -> u32 {
        let tokens = self.registrar.tokens().await.unwrap();
        tokens
            .iter()
            .filter(|token| token.gateway.as_deref() == Some(gateway))
            .filter_map(|token| token.used)
            .sum()
    }
}
