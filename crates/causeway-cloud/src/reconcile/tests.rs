//! The reconciler on a real store: conditions follow the objects, and two of them do not fight.

use std::collections::BTreeSet;
use std::path::Path;

use causeway_api::{ApiVersion, ConditionStatus, conditions};
use causeway_apiserver::SystemClock;
use causeway_daemon::Readiness;
use causeway_store::{Store, StoreSpec};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use super::*;

struct Lab {
    registry: Arc<Registry>,
    stop: CancellationToken,
    running: Vec<JoinHandle<()>>,
    _folder: tempfile::TempDir,
}

async fn registry(folder: &Path) -> Arc<Registry> {
    let store = Store::open(StoreSpec::Sqlite { path: folder.join("store.db") }).await.unwrap();
    Arc::new(Registry::new(store, Arc::new(SystemClock)))
}

impl Lab {
    async fn start(reconcilers: usize) -> Lab {
        Lab::start_with(reconcilers, false).await
    }

    async fn start_with(reconcilers: usize, keeps_own: bool) -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(folder.path()).await;
        let stop = CancellationToken::new();
        let running = (0..reconcilers)
            .map(|_| {
                let check = Readiness::new().register("reconcile");
                let reconciler = Reconciler::new(registry.clone(), check, &Metrics::new("0"));
                let reconciler = if keeps_own { reconciler.keeping_own_objects() } else { reconciler };
                tokio::spawn(reconciler.run(stop.clone()))
            })
            .collect();
        Lab { registry, stop, running, _folder: folder }
    }

    async fn create(&self, kind: Kind, name: &str, mut fields: Value) {
        fields["metadata"] = json!({ "name": name });
        let mut object = Object::decode(kind, fields).unwrap().object;
        object.default_fields();
        self.registry.create_object("test", object).await.unwrap();
    }

    /// Waits until a condition is as said; the deadline is the test runner's.
    async fn wait(&self, kind: Kind, name: &str, about: &str, status: ConditionStatus) {
        loop {
            let loaded = self.registry.object(kind, name).await.unwrap().unwrap();
            let conditions = &loaded.object.status().conditions;
            if conditions.iter().any(|condition| condition.kind == about && condition.status == status) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn end(self) {
        self.stop.cancel();
        for task in self.running {
            task.await.unwrap();
        }
    }
}

#[tokio::test]
async fn conditions_follow_what_others_do() {
    let lab = Lab::start(1).await;
    lab.create(Kind::EGateway, "gw", json!({"eSiteName": "oslo"})).await;
    lab.wait(Kind::EGateway, "gw", conditions::SITE_RESOLVED, ConditionStatus::False).await;
    lab.create(Kind::ESite, "oslo", json!({})).await;
    lab.wait(Kind::EGateway, "gw", conditions::SITE_RESOLVED, ConditionStatus::True).await;
    lab.wait(Kind::ESite, "oslo", conditions::READY, ConditionStatus::True).await;
    lab.registry.delete_object("test", Kind::EGateway, "gw").await.unwrap();
    lab.wait(Kind::ESite, "oslo", conditions::READY, ConditionStatus::False).await;
    lab.end().await;
}

#[tokio::test]
async fn the_cloud_s_own_objects_come_back_by_themselves() {
    let lab = Lab::start_with(2, true).await;
    let mut gone: Option<Vec<String>> = None;
    for _ in 0..2 {
        let mut uids = Vec::new();
        for kind in [Kind::ESite, Kind::EGateway] {
            let found = loop {
                let known = |uid: &String| gone.as_ref().is_some_and(|gone| gone.contains(uid));
                match lab.registry.object(kind, "cloud").await.unwrap() {
                    Some(found) if !known(&found.object.metadata().uid) => break found,
                    _ => tokio::time::sleep(Duration::from_millis(5)).await,
                }
            };
            uids.push(found.object.metadata().uid.clone());
        }
        for kind in [Kind::EGateway, Kind::ESite] {
            let refused = lab.registry.delete_object("test", kind, "cloud").await.unwrap_err();
            assert!(
                refused.status().code == 403 && refused.status().message.contains("causeway.io/allow-delete"),
                "{refused}"
            );
            let allow = |object: &mut Object| {
                let annotations = &mut object.metadata_mut().annotations;
                annotations.insert(causeway_api::ALLOW_DELETE.into(), "true".into());
            };
            lab.registry.edit("test", kind, "cloud", allow).await.unwrap();
            lab.registry.delete_object("test", kind, "cloud").await.unwrap();
        }
        gone = Some(uids);
    }
    lab.end().await;
}

#[tokio::test]
async fn two_reconcilers_come_to_rest() {
    let lab = Lab::start(2).await;
    for number in 0..50 {
        lab.create(Kind::ESite, &format!("site-{number}"), json!({})).await;
        lab.create(Kind::EGateway, &format!("gw-{number}"), json!({"eSiteName": format!("site-{number}")}))
            .await;
    }
    for number in 0..50 {
        lab.wait(Kind::ESite, &format!("site-{number}"), conditions::READY, ConditionStatus::True).await;
        lab.wait(Kind::EGateway, &format!("gw-{number}"), conditions::SITE_RESOLVED, ConditionStatus::True)
            .await;
    }
    // At rest the revision stands still. Two more objects are the clock: when their conditions are written,
    // everything that was on its way before has had its turn.
    let clock =
        |name: &'static str| lab.create(Kind::ECommunity, name, json!({"members": ["site-1", "site-2"]}));
    clock("tick").await;
    lab.wait(Kind::ECommunity, "tick", conditions::READY, ConditionStatus::True).await;
    let before = lab.registry.store().revision().await.unwrap();
    clock("tock").await;
    lab.wait(Kind::ECommunity, "tock", conditions::READY, ConditionStatus::True).await;
    let after = lab.registry.store().revision().await.unwrap();
    assert_eq!(after.0 - before.0, 2, "one for the object, one for its conditions");
    lab.end().await;
}

#[tokio::test]
async fn who_is_behind_does_not_overwrite_who_is_not() {
    let lab = Lab::start(0).await;
    lab.create(Kind::ESite, "oslo", json!({})).await;
    let behind = Reconciler::new(lab.registry.clone(), Readiness::new().register("slow"), &Metrics::new("0"));
    let (LoadedState { objects, freed, .. }, _) = behind.load().await.unwrap();
    let mut round = Round::new(&behind, objects, freed);
    let fast = Reconciler::new(lab.registry.clone(), Readiness::new().register("fast"), &Metrics::new("0"));
    let running = tokio::spawn(fast.run(lab.stop.clone()));
    lab.create(Kind::EGateway, "gw", json!({"eSiteName": "oslo"})).await;
    lab.wait(Kind::ESite, "oslo", conditions::READY, ConditionStatus::True).await;
    lab.wait(Kind::EGateway, "gw", conditions::SITE_RESOLVED, ConditionStatus::True).await;
    lab.stop.cancel();
    running.await.unwrap();

    // Without the gateway in its picture, this one would say that the site has none.
    let before = lab.registry.store().revision().await.unwrap();
    round.collect_pending();
    round.start_writes();
    while let Some((work, written)) = round.writes.next().await {
        round.finish(work, written);
    }
    assert_eq!(lab.registry.store().revision().await.unwrap(), before, "nothing is written");
}

#[tokio::test]
async fn what_a_gateway_reports_is_kept() {
    let lab = Lab::start(1).await;
    lab.create(Kind::ESite, "oslo", json!({})).await;
    lab.create(Kind::EGateway, "gw", json!({"eSiteName": "nowhere"})).await;
    lab.wait(Kind::EGateway, "gw", conditions::SITE_RESOLVED, ConditionStatus::False).await;
    let report = |object: &mut Object| {
        let mut own = object.status().conditions[0].clone();
        own.kind = "DnsListening".to_owned();
        own.status = ConditionStatus::True;
        object.status_mut().conditions.push(own);
    };
    lab.registry.edit_status("gateway", Kind::EGateway, "gw", report).await.unwrap();
    let to_oslo = |object: &mut Object| {
        if let Object::EGateway(gateway) = object {
            gateway.e_site_name = "oslo".to_owned();
        }
    };
    lab.registry.edit("test", Kind::EGateway, "gw", to_oslo).await.unwrap();
    // It is not ready: it never connected.
    lab.wait(Kind::EGateway, "gw", conditions::SITE_RESOLVED, ConditionStatus::True).await;
    lab.wait(Kind::EGateway, "gw", "DnsListening", ConditionStatus::True).await;
    let loaded = lab.registry.object(Kind::EGateway, "gw").await.unwrap().unwrap();
    assert_eq!(
        loaded.object.status().observed_generation,
        2,
        "{:?}",
        loaded.object.to_value(ApiVersion::Group, 0)
    );
    lab.end().await;
}

#[tokio::test]
async fn a_failure_pauses_everything_and_a_pause_that_is_over_does_not_spin() {
    let folder = tempfile::tempdir().unwrap();
    let readiness = Readiness::new();
    let check = readiness.register("reconcile");
    check.ready();
    let reconciler = Reconciler::new(registry(folder.path()).await, check, &Metrics::new("0"));
    let mut round = Round::new(&reconciler, ObjectSet::default(), FreedAddresses::default());
    round.collect_pending();
    assert_eq!(round.due(), None, "nothing to do");

    let key = |name: &str| WriteSubject::Object((Kind::ESite, name.to_owned()));
    round.finish(key("a"), Err(causeway_api::Status::storage_full("full").into()));
    let until = round.due().unwrap();
    assert!(until > Instant::now() && !readiness.is_ready());
    round.finish(key("b"), Err(causeway_api::Status::storage_full("full").into()));
    assert_eq!(round.due(), Some(until), "those that fail together pause once");

    round.paused = Some(Instant::now());
    round.collect_pending();
    assert_eq!(round.due(), None, "the writes that were started bring the next event");
    round.finish(key("a"), Err(causeway_api::Status::storage_full("full").into()));
    assert!(round.due().unwrap() > Instant::now() + PAUSE_FIRST, "the second pause is longer");
    round.finish(key("a"), Ok(()));
    assert!(readiness.is_ready() && round.pause == PAUSE_FIRST);
}

impl Lab {
    /// The addresses of a service at a site, when there are as many as said.
    async fn addresses(&self, service: &str, site: &str, count: usize) -> Vec<String> {
        loop {
            let found = self.presences(service, site).await;
            if found.len() == count {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn presences(&self, service: &str, site: &str) -> Vec<String> {
        let (objects, _) = self.registry.objects(Kind::VirtualPresence).await.unwrap();
        let presences = objects.into_iter().filter_map(|loaded| match loaded.object {
            Object::VirtualPresence(presence) => Some(presence),
            _ => None,
        });
        let here =
            presences.filter(|presence| presence.e_service_name == service && presence.e_site_name == site);
        here.map(|presence| presence.virtual_ip).collect()
    }

    async fn service(&self, name: &str, sites: &[&str]) {
        self.create(Kind::EService, name, json!({"eSiteName": "home", "ip": "10.0.0.5", "port": 80})).await;
        self.create(Kind::ServiceExpose, name, json!({"eServiceName": name, "eSites": sites})).await;
    }

    async fn cidr(&self, gateway: &str, cidr: &str) {
        let edit = |object: &mut Object| {
            if let Object::EGateway(gateway) = object {
                gateway.virtual_presence_ip_cidr = cidr.to_owned();
            }
        };
        self.registry.edit("test", Kind::EGateway, gateway, edit).await.unwrap();
    }
}

#[tokio::test]
async fn an_exposure_gets_an_address_at_every_site_and_loses_it_with_the_site() {
    let lab = Lab::start(1).await;
    for site in ["oslo", "berlin"] {
        lab.create(Kind::ESite, site, json!({})).await;
        lab.create(Kind::EGateway, site, json!({"eSiteName": site, "virtualPresenceIPcidr": "10.7.0.0/29"}))
            .await;
    }
    lab.service("web", &["oslo", "berlin"]).await;
    assert_eq!(lab.addresses("web", "oslo", 1).await, ["10.7.0.1"]);
    assert_eq!(lab.addresses("web", "berlin", 1).await, ["10.7.0.1"], "every site may use the same range");
    lab.wait(Kind::ServiceExpose, "web", conditions::PRESENTED, ConditionStatus::True).await;

    let only_oslo = |object: &mut Object| {
        if let Object::ServiceExpose(expose) = object {
            expose.e_sites = vec!["oslo".to_owned()];
        }
    };
    lab.registry.edit("test", Kind::ServiceExpose, "web", only_oslo).await.unwrap();
    lab.addresses("web", "berlin", 0).await;
    lab.service("mail", &["berlin"]).await;
    assert_eq!(lab.addresses("mail", "berlin", 1).await, ["10.7.0.2"], "the one just freed is the last");

    lab.cidr("oslo", "10.8.0.0/29,fd00::/112").await;
    assert_eq!(lab.addresses("web", "oslo", 2).await.len(), 2);
    let mut now = Vec::new();
    while now != ["10.8.0.1", "fd00::1"] {
        now = lab.presences("web", "oslo").await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    lab.registry.delete_object("test", Kind::EService, "web").await.unwrap();
    lab.addresses("web", "oslo", 0).await;
    lab.wait(Kind::ServiceExpose, "web", conditions::SERVICE_RESOLVED, ConditionStatus::False).await;
    lab.end().await;
}

#[tokio::test]
async fn a_full_range_is_a_condition_and_order_survives_a_restart() {
    let lab = Lab::start(1).await;
    lab.create(Kind::EGateway, "gw", json!({"eSiteName": "oslo", "virtualPresenceIPcidr": "10.7.0.0/29"}))
        .await;
    for name in ["a", "b", "c", "d", "e", "f"] {
        lab.service(name, &["oslo"]).await;
        lab.addresses(name, "oslo", 1).await;
    }
    lab.service("g", &["oslo"]).await;
    lab.wait(Kind::ServiceExpose, "g", conditions::PRESENTED, ConditionStatus::False).await;
    lab.registry.delete_object("test", Kind::ServiceExpose, "g").await.unwrap();
    for name in ["e", "b"] {
        lab.registry.delete_object("test", Kind::ServiceExpose, name).await.unwrap();
        lab.addresses(name, "oslo", 0).await;
    }
    let Lab { registry, stop, running, _folder } = lab;
    stop.cancel();
    for task in running {
        task.await.unwrap();
    }
    let stop = CancellationToken::new();
    let check = Readiness::new().register("reconcile");
    let again = Reconciler::new(registry.clone(), check, &Metrics::new("0"));
    let lab = Lab { registry, running: vec![tokio::spawn(again.run(stop.clone()))], stop, _folder };
    lab.service("h", &["oslo"]).await;
    assert_eq!(lab.addresses("h", "oslo", 1).await, ["10.7.0.5"], "freed first");
    lab.service("i", &["oslo"]).await;
    assert_eq!(lab.addresses("i", "oslo", 1).await, ["10.7.0.2"], "freed last");
    lab.end().await;
}

#[tokio::test]
async fn three_replicas_give_every_exposure_one_address_of_its_own() {
    let lab = Lab::start(3).await;
    lab.create(Kind::EGateway, "gw", json!({"eSiteName": "oslo", "virtualPresenceIPcidr": "10.7.0.0/20"}))
        .await;
    let count = if cfg!(debug_assertions) { 300 } else { 2_000 };
    let began = Instant::now();
    for number in 0..count {
        lab.service(&format!("s{number}"), &["oslo"]).await;
    }
    let mut seen = BTreeSet::new();
    for number in 0..count {
        seen.extend(lab.addresses(&format!("s{number}"), "oslo", 1).await);
    }
    println!("{count} exposures in {:?}", began.elapsed());
    assert_eq!(seen.len(), count, "no address twice");
    // At rest: a hand-made presence elsewhere is the clock.
    lab.create(
        Kind::VirtualPresence,
        "mine",
        json!({"eSiteName": "x", "eServiceName": "s0", "virtualIp": "10.1.1.1"}),
    )
    .await;
    lab.wait(Kind::VirtualPresence, "mine", conditions::READY, ConditionStatus::False).await;
    let (all, _) = lab.registry.objects(Kind::VirtualPresence).await.unwrap();
    assert_eq!(all.len(), count + 1);
    lab.end().await;
}

/// Two reconcilers, as two replicas have them: they agree on the mapped networks.
#[tokio::test]
async fn overlapping_networks_get_ranges_that_the_sites_show() {
    let lab = Lab::start(2).await;
    for (site, gateway) in [("berlin", "berlin-1"), ("oslo", "oslo-1")] {
        lab.create(Kind::ESite, site, json!({"subnets": ["10.0.0.0/24"]})).await;
        lab.create(Kind::EGateway, gateway, json!({"eSiteName": site})).await;
    }
    lab.create(Kind::ECommunity, "north", json!({"members": ["berlin", "oslo"]})).await;
    for site in ["berlin", "oslo"] {
        lab.wait(Kind::ESite, site, conditions::SUBNETS_DISTINCT, ConditionStatus::False).await;
    }
    lab.wait(Kind::ECommunity, "north", conditions::SUBNETS_DISTINCT, ConditionStatus::False).await;
    let map = |live: &mut Object| {
        if let Object::ECommunity(community) = live {
            community.map_from = "100.64.0.0/10".into();
        }
    };
    lab.registry.edit("test", Kind::ECommunity, "north", map).await.unwrap();
    let mut shown = Vec::new();
    for site in ["berlin", "oslo"] {
        lab.wait(Kind::ESite, site, conditions::SUBNETS_DISTINCT, ConditionStatus::True).await;
        let loaded = lab.registry.object(Kind::ESite, site).await.unwrap().unwrap();
        shown.extend(loaded.object.status().mapped_subnets.iter().map(|mapping| mapping.seen_as.clone()));
    }
    assert_eq!(shown, ["100.64.0.0/24", "100.64.1.0/24"], "the older site has the first range");
    lab.wait(Kind::ECommunity, "north", conditions::SUBNETS_DISTINCT, ConditionStatus::True).await;
    lab.registry.delete_object("test", Kind::ECommunity, "north").await.unwrap();
    loop {
        let loaded = lab.registry.object(Kind::ESite, "oslo").await.unwrap().unwrap();
        let status = loaded.object.status();
        if status.mapped_subnets.is_empty() && status.condition(conditions::SUBNETS_DISTINCT).is_none() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(lab.registry.store().get("mappedranges/north").await.unwrap().is_none());
    lab.end().await;
}

#[tokio::test]
async fn a_reported_tunnel_shows_and_goes_with_its_gateway() {
    let lab = Lab::start(1).await;
    lab.create(Kind::ESite, "oslo", json!({"subnets": ["10.0.0.0/24"]})).await;
    lab.create(Kind::EGateway, "oslo-1", json!({"eSiteName": "oslo"})).await;
    lab.create(Kind::EGateway, "oslo-2", json!({"eSiteName": "oslo"})).await;
    lab.create(Kind::ECommunity, "north", json!({"members": ["oslo"]})).await;
    lab.wait(Kind::ECommunity, "north", conditions::TUNNELS_KNOWN, ConditionStatus::False).await;
    let record = |since: i64| {
        let key = causeway_api::layer3::show_key(&[7; 32]);
        bytes::Bytes::from(json!({"publicKey": key, "port": 7446, "since": since}).to_string())
    };
    let store = lab.registry.store();
    store.put("tunnels/oslo-1", record(1)).await.unwrap();
    lab.wait(Kind::ECommunity, "north", conditions::TUNNELS_KNOWN, ConditionStatus::True).await;
    lab.wait(Kind::EGateway, "oslo-1", conditions::TUNNEL_KEY_UNIQUE, ConditionStatus::True).await;
    store.put("tunnels/oslo-2", record(2)).await.unwrap();
    lab.wait(Kind::EGateway, "oslo-1", conditions::TUNNEL_KEY_UNIQUE, ConditionStatus::False).await;
    lab.wait(Kind::EGateway, "oslo-2", conditions::TUNNEL_KEY_UNIQUE, ConditionStatus::False).await;
    lab.registry.delete_object("test", Kind::EGateway, "oslo-1").await.unwrap();
    lab.wait(Kind::EGateway, "oslo-2", conditions::TUNNEL_KEY_UNIQUE, ConditionStatus::True).await;
    while store.get("tunnels/oslo-1").await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    lab.end().await;
}
