//! The writer of reports on a real store, with the reconciler that follows it.

use causeway_api::conditions::LISTENING;
use causeway_api::meta::Condition;
use causeway_api::{ConditionStatus, EGateway, EService, ESite, ObjectMeta};
use causeway_apiserver::SystemClock;
use causeway_channel::Clock;
use causeway_daemon::{Metrics, Readiness};
use causeway_gateway::problems::{BackendOutage, Problems};
use causeway_store::{ListRange, Store, StoreSpec};
use tokio_util::sync::DropGuard;

use super::*;
use crate::reconcile::Reconciler;
use crate::replicas::ReplicaAddress;

struct Lab {
    store: Store,
    registry: Arc<Registry>,
    stop: CancellationToken,
    _stop: DropGuard,
    _folder: tempfile::TempDir,
}

impl Lab {
    async fn new() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreSpec::Sqlite { path: folder.path().join("store.db") }).await.unwrap();
        let registry = Arc::new(Registry::new(store.clone(), Arc::new(SystemClock)));
        crate::bootstrap::ensure(&registry).await.unwrap();
        let stop = CancellationToken::new();
        Lab { store, registry, _stop: stop.clone().drop_guard(), stop, _folder: folder }
    }

    /// Runs a replica. It is the only one when it has no address.
    async fn replica(&self, address: Option<&str>) -> Arc<ReportInbox> {
        let directory = match address {
            None => SessionDirectory::single_replica(Clock::system()),
            Some(address) => {
                let place = ReplicaAddress { address: address.to_owned(), endpoints: Vec::new() };
                SessionDirectory::open(self.store.clone(), place, Clock::system()).await.unwrap()
            }
        };
        let (inbox, state) = (Arc::new(ReportInbox::default()), Arc::new(ReportedState::default()));
        let check = Readiness::new().register("reconcile");
        let reconciler =
            Reconciler::new(self.registry.clone(), check, &Metrics::new("0")).with_reports(state.clone());
        tokio::spawn(reconciler.run(self.stop.clone()));
        let (registry, stop) = (self.registry.clone(), self.stop.clone());
        if address.is_some() {
            let (directory, stop) = (directory.clone(), stop.clone());
            tokio::spawn(async move { directory.run(stop).await });
        }
        let writer = ReportWriter { registry, directory, inbox: inbox.clone(), state, connections: None };
        tokio::spawn(writer.run(None, stop));
        inbox
    }

    async fn create(&self, object: impl Into<Object>) {
        self.registry.create_with_defaults("test", object.into()).await.unwrap();
    }

    /// A site with a gateway of the same name.
    async fn site(&self, name: &str) {
        let metadata = || ObjectMeta::named(name);
        self.create(ESite { metadata: metadata(), ..ESite::default() }).await;
        self.create(EGateway { metadata: metadata(), e_site_name: name.into(), ..EGateway::default() }).await;
    }

    async fn condition(&self, kind: Kind, name: &str, about: &str) -> Option<Condition> {
        let loaded = self.registry.object(kind, name).await.unwrap()?;
        loaded.object.status().condition(about).cloned()
    }

    async fn wait(&self, kind: Kind, name: &str, about: &str, is_wanted: impl Fn(&Condition) -> bool) {
        let mut last = None;
        let waiting = async {
            loop {
                last = self.condition(kind, name, about).await;
                if last.as_ref().is_some_and(&is_wanted) {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(20), waiting).await;
        assert!(waited.is_ok(), "{about} of {name}: {last:?}");
    }

    async fn records(&self) -> Vec<String> {
        let listing = self.store.list(REPORTS, ListRange::default()).await.unwrap();
        listing.records.iter().map(|record| record.key.to_string()).collect()
    }
}

fn problems(lines: &[&str]) -> Problems {
    Problems { gateway: lines.iter().map(|line| (*line).to_owned()).collect(), ..Problems::default() }
}

#[tokio::test]
async fn two_replicas_do_not_write_over_each_other() {
    let lab = Lab::new().await;
    let (first, second) = (lab.replica(Some("a:1")).await, lab.replica(Some("b:1")).await);
    first.put_problems(CLOUD, CLOUD, problems(&["no room"]));
    lab.wait(Kind::EGateway, CLOUD, LISTENING, |told| told.status == ConditionStatus::False).await;
    second.put_problems(CLOUD, CLOUD, problems(&[]));
    while lab.records().await.len() < 4 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let told = lab.condition(Kind::EGateway, CLOUD, LISTENING).await.unwrap();
    assert_eq!(told.status, ConditionStatus::False);
    assert!(told.message.starts_with("replica a:1 (") && told.message.ends_with("): no room"), "{told:?}");
    second.put_problems(CLOUD, CLOUD, problems(&["port 53 is taken"]));
    lab.wait(Kind::EGateway, CLOUD, LISTENING, |told| {
        told.message.starts_with("replica a:1 (") && told.message.contains(" | replica b:1 (")
    })
    .await;
}

/// Row 24, on a store: the service moves, and later its former gateway is deleted with its records.
#[tokio::test]
async fn a_report_of_a_former_gateway_is_dropped() {
    let lab = Lab::new().await;
    let inbox = lab.replica(None).await;
    lab.site("oslo").await;
    lab.site("rome").await;
    let web = EService {
        metadata: ObjectMeta::named("web"),
        e_site_name: "oslo".into(),
        port: 80,
        ip: "10.0.0.5".into(),
        ..EService::default()
    };
    lab.create(web).await;
    let outage = BackendOutage { up: 0, of: 1, why: "10.0.0.5:80: refused".into(), denied: false };
    let backends = [("web".to_owned(), outage)].into();
    inbox.put_problems("oslo", "oslo", Problems { backends, ..Problems::default() });
    inbox.put_problems("rome", "rome", Problems::default());
    let is_down = |told: &Condition| told.status == ConditionStatus::False;
    lab.wait(Kind::EService, "web", BACKENDS_ANSWER, is_down).await;
    assert_eq!(lab.records().await.len(), 4);

    let edit = |object: &mut Object| {
        if let Object::EService(service) = object {
            service.e_site_name = "rome".into();
        }
    };
    lab.registry.edit("test", Kind::EService, "web", edit).await.unwrap();
    let is_well = |told: &Condition| told.status == ConditionStatus::True && told.message.is_empty();
    lab.wait(Kind::EService, "web", BACKENDS_ANSWER, is_well).await;

    lab.registry.delete_object("test", Kind::EGateway, "oslo").await.unwrap();
    let removed = async {
        while lab.records().await != ["reports/rome/-/backends", "reports/rome/-/listening"] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), removed).await.expect("the records of oslo go with it");
}

/// The report was on its way when its gateway was deleted, so it is stored after the deletion was seen.
#[tokio::test]
async fn a_report_that_comes_after_the_deletion_of_its_gateway_leaves_no_record() {
    let lab = Lab::new().await;
    let inbox = lab.replica(None).await;
    lab.site("oslo").await;
    lab.site("rome").await;
    inbox.put_problems("oslo", "oslo", problems(&["no room"]));
    lab.wait(Kind::EGateway, "oslo", LISTENING, |told| told.status == ConditionStatus::False).await;
    let are_left = async |expected: &[&str]| {
        let removed = async {
            while lab.records().await != expected {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), removed).await.expect("no record of oslo is left");
    };
    lab.registry.delete_object("test", Kind::EGateway, "oslo").await.unwrap();
    are_left(&[]).await;
    inbox.put_problems("oslo", "oslo", problems(&["no room"]));
    inbox.put_problems("rome", "rome", problems(&["no room"]));
    lab.wait(Kind::EGateway, "rome", LISTENING, |told| told.status == ConditionStatus::False).await;
    are_left(&["reports/rome/-/backends", "reports/rome/-/listening"]).await;
}

#[tokio::test]
async fn a_condition_that_was_overwritten_is_put_right_at_once() {
    let lab = Lab::new().await;
    let inbox = lab.replica(None).await;
    lab.site("oslo").await;
    inbox.put_problems("oslo", "oslo", problems(&["no room"]));
    let is_right = |told: &Condition| told.message == "no room";
    lab.wait(Kind::EGateway, "oslo", LISTENING, is_right).await;
    let edit = |object: &mut Object| {
        let now = causeway_api::Time::from_second(0);
        set_condition(&mut object.status_mut().conditions, LISTENING, true.into(), "X", "fine", now, 1);
    };
    lab.registry.edit_status("admin", Kind::EGateway, "oslo", edit).await.unwrap();
    lab.wait(Kind::EGateway, "oslo", LISTENING, is_right).await;
}
