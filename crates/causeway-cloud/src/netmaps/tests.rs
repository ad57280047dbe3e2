//! The netmap publisher on a real store: a change reaches the gateways it concerns, and no other.

use std::time::Duration;

use causeway_api::Kind;
use causeway_apiserver::{Registry, SystemClock};
use causeway_channel::wire::control::{HeldNetmap, NetmapAck, NetmapRefused};
use causeway_daemon::Readiness;
use causeway_netmap::NetmapUpdateData;
use causeway_netmap::sync::{NetmapReceiver, NetmapReply, NetmapSyncState, ReceiverStep};
use causeway_store::{Store, StoreSpec};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;
use crate::reconcile::Reconciler;
use crate::replicas::SessionDirectory;
use crate::reports::{ReportWriter, ReportedState};

struct Lab {
    registry: Arc<Registry>,
    publisher: NetmapPublisher,
    stop: CancellationToken,
    running: Vec<JoinHandle<()>>,
    folder: Arc<tempfile::TempDir>,
}

impl Lab {
    async fn start() -> Lab {
        Lab::start_in(Arc::new(tempfile::tempdir().unwrap())).await
    }

    async fn start_in(folder: Arc<tempfile::TempDir>) -> Lab {
        let store = Store::open(StoreSpec::Sqlite { path: folder.path().join("store.db") }).await.unwrap();
        let registry = Arc::new(Registry::new(store, Arc::new(SystemClock)));
        let (stop, metrics) = (CancellationToken::new(), Metrics::new("0"));
        let (inbox, state) = (Arc::new(ReportInbox::default()), Arc::new(ReportedState::default()));
        let publisher = NetmapPublisher::new(&metrics, inbox.clone()).with_community_peers_max(2);
        let check = Readiness::new().register("reconcile");
        let reconciler = Reconciler::new(registry.clone(), check, &metrics).with_netmaps(publisher.clone());
        let reconciler = reconciler.with_reports(state.clone());
        let directory = SessionDirectory::single_replica(causeway_channel::Clock::system());
        let reports = ReportWriter { registry: registry.clone(), directory, inbox, state, connections: None };
        let running = vec![
            tokio::spawn(reconciler.run(stop.clone())),
            tokio::spawn(publisher.clone().run(stop.clone())),
            tokio::spawn(reports.run(None, stop.clone())),
        ];
        Lab { registry, publisher, stop, running, folder }
    }

    /// Two sites, and a service that the first has and the second may use.
    async fn furnish(&self) {
        for (site, gateway) in [("berlin", "berlin-gw"), ("oslo", "oslo-gw"), ("rome", "rome-gw")] {
            self.create(Kind::ESite, site, json!({})).await;
            self.create(Kind::EGateway, gateway, json!({"eSiteName": site})).await;
        }
        self.create(Kind::EService, "cam", json!({"eSiteName": "berlin", "ip": "10.0.0.9", "port": 554}))
            .await;
        self.create(Kind::EPolicy, "all", json!({"allowedSites": ["oslo"]})).await;
        // Before the exposure, which would be given an address of its own.
        let presence = json!({"eServiceName": "cam", "eSiteName": "oslo", "virtualIp": "198.18.0.9"});
        self.create(Kind::VirtualPresence, "vp", presence).await;
        self.create(
            Kind::ServiceExpose,
            "cam",
            json!({"eServiceName": "cam", "eSites": ["oslo"], "ePolicys": ["all"]}),
        )
        .await;
    }

    async fn create(&self, kind: Kind, name: &str, mut fields: Value) {
        fields["metadata"] = json!({ "name": name });
        let mut object = Object::decode(kind, fields).unwrap().object;
        object.default_fields();
        self.registry.create_object("test", object).await.unwrap();
    }

    async fn set_port(&self, port: i64) {
        let edit = |object: &mut Object| {
            if let Object::EService(service) = object {
                service.port = port;
            }
        };
        self.registry.edit("test", Kind::EService, "cam", edit).await.unwrap();
    }

    async fn end(self) -> Arc<tempfile::TempDir> {
        self.stop.cancel();
        for task in self.running {
            task.await.unwrap();
        }
        self.registry.store().clone().close().await.unwrap();
        self.folder
    }
}

/// An edge with its session.
struct Edge {
    receiver: NetmapReceiver,
    feed: NetmapFeed,
}

impl Edge {
    fn attach(lab: &Lab, gateway: &str, receiver: NetmapReceiver) -> Edge {
        let held = receiver.held().map(|held| held.stamp());
        Edge { feed: lab.publisher.attach(gateway, held), receiver }
    }

    /// Takes updates in until one leads to a netmap that holds `key` or not, and returns how the last one
    /// came.
    async fn wait(&mut self, what: &str, holds: impl Fn(&Netmap) -> bool) -> NetmapUpdateData {
        let waiting = async {
            loop {
                let update = self.take().await;
                if self.receiver.held().is_some_and(|held| holds(held)) {
                    return update;
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), waiting).await.expect(what)
    }

    async fn take(&mut self) -> NetmapUpdateData {
        let encoded = self.feed.next_update().await;
        let ReceiverStep::Persist(netmap) = self.receiver.handle_bytes(&encoded) else { panic!("not taken") };
        let NetmapReply::Acknowledged(stamp) = self.receiver.handle_persisted(netmap, Ok(())) else {
            panic!()
        };
        self.feed.acknowledged(&NetmapAck { held: Some(held(stamp)), ..NetmapAck::default() });
        NetmapUpdateData::decode(&encoded).unwrap()
    }

    fn generation(&self) -> Generation {
        self.receiver.held().unwrap().generation()
    }
}

fn held(stamp: NetmapStamp) -> HeldNetmap {
    let Generation { epoch, revision } = stamp.generation;
    HeldNetmap { epoch, revision, digest: stamp.digest.0.to_vec().into(), turn: stamp.turn }
}

#[tokio::test]
async fn a_change_reaches_whom_it_concerns_as_a_difference() {
    let lab = Lab::start().await;
    lab.furnish().await;
    let mut oslo = Edge::attach(&lab, "oslo-gw", NetmapReceiver::default());
    let mut rome = Edge::attach(&lab, "rome-gw", NetmapReceiver::default());
    oslo.wait("a presence", |netmap| netmap.get("presence/cam").is_some()).await;
    rome.wait("its own", |netmap| netmap.get("gateway").is_some()).await;
    let before = oslo.generation();
    lab.set_port(555).await;
    let update = oslo.take().await;
    assert!(oslo.generation() > before);
    assert_eq!((update.is_whole(), update.set.len(), update.unset.len()), (false, 1, 0));
    assert_eq!(lab.publisher.held("oslo-gw"), lab.publisher.target("oslo-gw"));
    lab.registry.delete_object("test", Kind::ServiceExpose, "cam").await.unwrap();
    oslo.wait("nothing exposed", |netmap| netmap.get("presence/cam").is_none()).await;
    let told = tokio::time::timeout(Duration::from_millis(1), rome.feed.next_update()).await;
    assert!(told.is_err(), "rome has nothing to do with it");
    lab.end().await;
}

#[tokio::test]
async fn a_session_that_comes_back_gets_a_delta_and_a_new_cloud_sends_nothing_that_is_known() {
    let lab = Lab::start().await;
    lab.furnish().await;
    let mut oslo = Edge::attach(&lab, "oslo-gw", NetmapReceiver::default());
    oslo.wait("a presence", |netmap| netmap.get("presence/cam").is_some()).await;
    let receiver = oslo.receiver.clone();
    drop(oslo);
    assert_eq!(lab.publisher.held("oslo-gw"), None, "nobody is attached");
    lab.set_port(556).await;
    let mut oslo = Edge::attach(&lab, "oslo-gw", receiver);
    let update = oslo.take().await;
    assert!(!update.is_whole() && update.set.len() == 1);
    let receiver = oslo.receiver.clone();
    drop(oslo);

    let lab = Lab::start_in(lab.end().await).await;
    let mut oslo = Edge::attach(&lab, "oslo-gw", receiver);
    // The new cloud compiles the same bytes, and finds that there is nothing to say.
    let compiled = async {
        while lab.publisher.target("oslo-gw").is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), compiled).await.unwrap();
    let told = tokio::time::timeout(Duration::from_millis(1), oslo.feed.next_update()).await;
    assert!(told.is_err(), "sent although known");
    assert!(matches!(oslo.feed.standing(), NetmapSyncState::InForce(_)));
    lab.set_port(557).await;
    assert!(!oslo.take().await.is_whole(), "and knows what the gateway holds");
    lab.end().await;
}

#[tokio::test]
async fn a_gateway_that_cannot_take_it_is_a_condition() {
    let lab = Lab::start().await;
    lab.furnish().await;
    let mut oslo = Edge::attach(&lab, "oslo-gw", NetmapReceiver::default());
    oslo.wait("a presence", |netmap| netmap.get("presence/cam").is_some()).await;
    in_force(&lab, "oslo-gw", "InForce").await;
    lab.set_port(558).await;
    oslo.feed.next_update().await;
    let reason = "the disk is full".to_owned();
    oslo.feed.refused(&NetmapRefused { reason, ..NetmapRefused::default() });
    in_force(&lab, "oslo-gw", "Refused").await;
    lab.end().await;
}

async fn in_force(lab: &Lab, gateway: &str, reason: &str) {
    loop {
        let loaded = lab.registry.object(Kind::EGateway, gateway).await.unwrap().unwrap();
        let conditions = &loaded.object.status().conditions;
        if conditions
            .iter()
            .any(|found| found.kind == causeway_api::conditions::NETMAP_IN_FORCE && found.reason == reason)
        {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_gateway_is_never_told_the_netmap_of_another_site() {
    let lab = Lab::start().await;
    lab.furnish().await;
    // The certificate says rome. Before and after its object is moved to oslo, where the camera is present.
    let feed = lab.publisher.attach_from("rome-gw", Some("rome"), None);
    let mut rome = Edge { feed, receiver: NetmapReceiver::default() };
    rome.wait("the netmap of rome", |held| !held.is_empty()).await;
    let edit = |object: &mut Object| {
        if let Object::EGateway(gateway) = object {
            gateway.e_site_name = "oslo".to_owned();
        }
    };
    lab.registry.edit("test", Kind::EGateway, "rome-gw", edit).await.unwrap();
    rome.wait("an empty netmap", Netmap::is_empty).await;
    // A session that comes anew with the certificate of oslo gets it.
    let feed = lab.publisher.attach_from("rome-gw", Some("oslo"), None);
    let mut oslo = Edge { feed, receiver: NetmapReceiver::default() };
    oslo.wait("the netmap of oslo", |held| !held.is_empty()).await;
    drop((rome, oslo));
    lab.end().await;
}

#[tokio::test]
async fn the_stored_active_gateway_reaches_the_gateways_of_its_site() {
    let lab = Lab::start().await;
    lab.furnish().await;
    lab.create(Kind::EGateway, "oslo-2", json!({"eSiteName": "oslo"})).await;
    let mut oslo = Edge::attach(&lab, "oslo-gw", NetmapReceiver::default());
    // The first netmap may come before the site is in it: None.
    let active = |netmap: &Netmap| {
        let view = causeway_netmap::NetmapView::decode(netmap);
        let site = view.sites.get("oslo")?;
        Some(site.active.as_ref().map(ToString::to_string).unwrap_or_default())
    };
    let sites = lab.publisher.sites();
    for gateway in ["oslo-2", "oslo-gw"] {
        let record = format!(r#"{{"gateway":"{gateway}"}}"#).into();
        lab.registry.store().put("activegateways/oslo", record).await.unwrap();
        oslo.wait("the active gateway", |netmap| active(netmap).as_deref() == Some(gateway)).await;
        assert_eq!(sites.borrow().gateways("oslo").next().unwrap(), gateway);
    }
    lab.registry.store().delete("activegateways/oslo", None).await.unwrap();
    oslo.wait("no record", |netmap| active(netmap).as_deref() == Some("")).await;
    drop(oslo);
    lab.end().await;
}

#[tokio::test]
async fn a_member_of_a_large_community_is_told_when_it_is_asked_for_and_no_longer_than_it_is_one() {
    let lab = Lab::start().await;
    lab.furnish().await;
    lab.create(Kind::ECommunity, "c", json!({"members": ["berlin", "oslo", "rome"]})).await;
    let knows = |netmap: &Netmap, site: &str| {
        let view = NetmapView::decode(netmap);
        view.communities.values().any(|community| community.members.contains(&site.into()))
    };
    lab.publisher.restore_neighbours("oslo-gw", None, Some(&[]));
    let mut oslo = Edge::attach(&lab, "oslo-gw", NetmapReceiver::default());
    oslo.wait("no neighbour", |netmap| knows(netmap, "oslo") && !knows(netmap, "rome")).await;
    let before = oslo.receiver.held().unwrap().stamp();
    let ask = |site: &str| NeighbourQuery { sites: vec![site.to_owned()], ..NeighbourQuery::default() };
    oslo.feed.asked(&ask("nowhere"));
    oslo.feed.asked(&ask("Rome"));
    oslo.wait("rome", |netmap| knows(netmap, "rome") && !knows(netmap, "berlin")).await;
    let after = oslo.receiver.held().unwrap().stamp();
    // The store may have changed meanwhile; the turn rises with the neighbours.
    assert!(after.generation >= before.generation && after.turn > before.turn, "{before:?} {after:?}");
    // A cloud that was restarted takes the neighbours from the gateway, and sends nothing that is known.
    let receiver = oslo.receiver.clone();
    drop(oslo);
    let lab = Lab::start_in(lab.end().await).await;
    lab.publisher.restore_neighbours("oslo-gw", Some(after), Some(&["rome".to_owned()]));
    let mut oslo = Edge::attach(&lab, "oslo-gw", receiver);
    oslo.feed.asked(&ask("berlin"));
    let both = |netmap: &Netmap| knows(netmap, "rome") && knows(netmap, "berlin");
    while !both(oslo.receiver.held().unwrap()) {
        // The store may not be loaded yet; the edge repeats its question too.
        oslo.feed.asked(&ask("berlin"));
        let _ = tokio::time::timeout(Duration::from_millis(100), oslo.take()).await;
    }
    lab.registry.delete_object("test", Kind::ECommunity, "c").await.unwrap();
    oslo.wait("no community", |netmap| !knows(netmap, "rome") && !knows(netmap, "oslo")).await;
    lab.end().await;
}
