//! A cloud and an edge behind a NAT, for tests that break what lies between them.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::fleet::{CHANNEL_PORT, CloudHost, EdgeHost};
use testlab::net::{Crossed, Net};
use testlab::random::SeededRandom;
use testlab::relay::Relay;

use crate::{build, two_sites};

/// The edge of these tests, its host, and the NAT it is behind.
pub const EDGE: &str = "edge-a";
pub const NAT: &str = "nat-a";
/// For what has no bound of its own. Nothing waits this long when all is well.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// A fleet that did not move for this time has settled. Shorter than the time between two keepalives.
pub const QUIET: Duration = Duration::from_secs(2);
const GROUP: &str = "/apis/causeway.io/v1";

// In the order in which they end: processes before the network they run in.
pub struct Fleet {
    pub edge: Option<EdgeHost>,
    pub cloud: CloudHost,
    pub folder: tempfile::TempDir,
    pub net: Net,
    changes: usize,
}

impl Fleet {
    /// A network with a cloud in it, and no edge yet.
    pub fn start(test: &str) -> Option<Fleet> {
        Fleet::start_advertising(test, |net| vec![channel(net.ipv4("cloud").unwrap())])
    }

    /// The same, where edges are told other endpoints.
    pub fn start_advertising(test: &str, advertise: impl FnOnce(&Net) -> Vec<SocketAddr>) -> Option<Fleet> {
        let net = build(test, &two_sites())?;
        let folder = tempfile::tempdir().unwrap();
        let endpoints = advertise(&net);
        let cloud = CloudHost::start(&net.host("cloud").unwrap(), folder.path(), &endpoints, &[]).unwrap();
        let policy = json!({"apiVersion": "causeway.io/v1", "kind": "EPolicy", "metadata": {"name": "open"},
            "allowedSites": ["cloud"]});
        cloud.call(|api| api.post(&format!("{GROUP}/epolicies"), &policy)?.success()).unwrap();
        Some(Fleet { edge: None, cloud, folder, net, changes: 0 })
    }

    /// The same, where a relay on the router stands between the edges and the cloud.
    pub fn start_behind_relay(test: &str) -> Option<(Fleet, Relay)> {
        let mut relay = None;
        let fleet = Fleet::start_advertising(test, |net| {
            let listen = SocketAddr::new(net.gateway_ipv4(NAT).unwrap().into(), 0);
            let cloud = channel(net.ipv4("cloud").unwrap());
            let internet = net.host("internet").unwrap();
            let line =
                relay.insert(Relay::start_in(&internet, listen, cloud, SeededRandom::seed(test)).unwrap());
            vec![line.address()]
        });
        Some((fleet?, relay?))
    }

    /// Starts the edge with a new token. Returns when it was started.
    pub fn join(&mut self, environment: &[(&str, &str)]) -> Instant {
        let token = self.cloud.token(EDGE).unwrap();
        let host = self.net.host(EDGE).unwrap();
        let begin = Instant::now();
        self.edge = Some(EdgeHost::join_with(&host, self.folder.path(), EDGE, &token, environment).unwrap());
        begin
    }

    /// A fleet whose edge is connected over QUIC and has nothing more to say.
    pub fn connected(test: &str) -> Option<Fleet> {
        let mut fleet = Fleet::start(test)?;
        fleet.join(&[]);
        fleet.await_transport("quic", PATIENCE);
        fleet.await_quiet();
        Some(fleet)
    }

    pub fn gateway(&self) -> Value {
        self.cloud.gateway(EDGE).unwrap()
    }

    /// Waits until the edge is connected over this transport. Returns its status and the time it took.
    pub fn await_transport(&self, transport: &str, within: Duration) -> (Value, Duration) {
        let what = format!("is connected over {transport}");
        let wanted = |gateway: &Value| gateway["connected"] == true && gateway["transport"] == transport;
        self.cloud.wait_gateway(EDGE, &what, within, wanted).unwrap()
    }

    pub fn await_connected(&self, within: Duration) -> (Value, Duration) {
        let connected = |gateway: &Value| gateway["connected"] == true;
        self.cloud.wait_gateway(EDGE, "is connected", within, connected).unwrap()
    }

    /// Waits until the edge is heard again: more bytes of the session of `before`, or another session.
    pub fn await_heard(&self, before: &Value, within: Duration) -> (Value, Duration) {
        let heard = |gateway: &Value| {
            let more = gateway["receivedBytes"].as_u64() > before["receivedBytes"].as_u64();
            gateway["connected"] == true && (more || gateway["since"] != before["since"])
        };
        self.cloud.wait_gateway(EDGE, "is heard", within, heard).unwrap()
    }

    /// The bytes that crossed the edge's only link.
    pub fn crossed(&self) -> Crossed {
        self.net.host(EDGE).unwrap().crossed("eth0").unwrap()
    }

    /// Waits until nothing crosses the edge's link for a while.
    fn await_quiet(&self) {
        let (mut last, mut since) = (self.crossed(), Instant::now());
        wait_for("the edge is quiet", || {
            if self.crossed() != last {
                (last, since) = (self.crossed(), Instant::now());
            }
            (since.elapsed() >= QUIET).then_some(())
        })
        .unwrap();
    }

    /// Changes what the edge must know. It cannot acknowledge it without the link.
    pub fn change(&mut self) {
        self.changes += 1;
        let [service, expose] = exposed(&format!("service-{}", self.changes));
        for (plural, object) in [("eservices", service), ("serviceexposes", expose)] {
            self.cloud.call(|api| api.post(&format!("{GROUP}/{plural}"), &object)?.success()).unwrap();
        }
    }
}

pub fn channel(address: impl Into<IpAddr>) -> SocketAddr {
    SocketAddr::new(address.into(), CHANNEL_PORT)
}

/// A service at the edge, and its exposure to the cloud: the edge must know both.
pub fn exposed(name: &str) -> [Value; 2] {
    let service = json!({"apiVersion": "causeway.io/v1", "kind": "EService", "metadata": {"name": name},
        "ip": "10.9.9.9", "port": 80, "protocol": "TCP", "eSiteName": EDGE});
    let expose = json!({"apiVersion": "causeway.io/v1", "kind": "ServiceExpose", "metadata": {"name": name},
        "eServiceName": name, "dnsName": format!("{name}.test"), "eSites": ["cloud"], "ePolicys": ["open"]});
    [service, expose]
}

/// Returns true if the long form is wanted.
pub fn soak() -> bool {
    std::env::var_os("CAUSEWAY_SOAK").is_some_and(|value| value == "1")
}
