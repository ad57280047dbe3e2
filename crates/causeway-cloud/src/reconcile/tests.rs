//! The reconciler on a real store: conditions follow the objects, and two of them do not fight.

use std::path::Path;

use causeway_api::{ApiVersion, ConditionStatus};
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
        let folder = tempfile::tempdir().unwrap();
        let registry = registry(folder.path()).await;
        let stop = CancellationToken::new();
        let running = (0..reconcilers)
            .map(|_| {
                let check = Readiness::new().register("reconcile");
                let reconciler = Reconciler::new(registry.clone(), check, &Metrics::new("0"));
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
    lab.wait(Kind::EGateway, "gw", conditions::READY, ConditionStatus::False).await;
    lab.create(Kind::ESite, "oslo", json!({})).await;
    lab.wait(Kind::EGateway, "gw", conditions::READY, ConditionStatus::True).await;
    lab.wait(Kind::ESite, "oslo", conditions::READY, ConditionStatus::True).await;
    lab.registry.delete_object("test", Kind::EGateway, "gw").await.unwrap();
    lab.wait(Kind::ESite, "oslo", conditions::READY, ConditionStatus::False).await;
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
        lab.wait(Kind::EGateway, &format!("gw-{number}"), conditions::READY, ConditionStatus::True).await;
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
async fn what_a_gateway_reports_is_kept() {
    let lab = Lab::start(1).await;
    lab.create(Kind::ESite, "oslo", json!({})).await;
    lab.create(Kind::EGateway, "gw", json!({"eSiteName": "nowhere"})).await;
    lab.wait(Kind::EGateway, "gw", conditions::READY, ConditionStatus::False).await;
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
    lab.wait(Kind::EGateway, "gw", conditions::READY, ConditionStatus::True).await;
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
    let mut round = Round::new(&reconciler, World::default());
    round.look();
    assert_eq!(round.due(), None, "nothing to do");

    let key = |name: &str| (Kind::ESite, name.to_owned());
    round.finish(key("a"), Err(Status::storage_full("full")));
    let until = round.due().unwrap();
    assert!(until > Instant::now() && !readiness.is_ready());
    round.finish(key("b"), Err(Status::storage_full("full")));
    assert_eq!(round.due(), Some(until), "those that fail together pause once");

    round.paused = Some(Instant::now());
    round.look();
    assert_eq!(round.due(), None, "the writes that were started bring the next event");
    round.finish(key("a"), Err(Status::storage_full("full")));
    assert!(round.due().unwrap() > Instant::now() + PAUSE_FIRST, "the second pause is longer");
    round.finish(key("a"), Ok(()));
    assert!(readiness.is_ready() && round.pause == PAUSE_FIRST);
}
