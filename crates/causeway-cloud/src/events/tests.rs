//! Events on a real store: who tells what, how often, and what is dropped.

use causeway_api::events::{PER_OBJECT_MAX, TTL_SECONDS};
use causeway_api::kinds::{Event, EventSource, ObjectReference};
use causeway_api::meta::set_condition;
use causeway_api::{EGateway, ESite, ObjectMeta, Time};
use causeway_apiserver::registry::RegistryHooks;
use causeway_apiserver::{SystemClock, TimeSource};
use causeway_store::{Store, StoreSpec};

use super::*;

struct Lab {
    store: Store,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Lab {
    async fn new() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreSpec::Sqlite { path: folder.path().join("store.db") }).await.unwrap();
        Lab { store, stop: CancellationToken::new(), _folder: folder }
    }

    /// A replica that records what it commits.
    fn replica(&self, name: &str, clock: Arc<dyn TimeSource>) -> Arc<Registry> {
        let (recorder, queue) = recorder(&Metrics::new("test"));
        let hooks = RegistryHooks { observer: Some(Arc::new(recorder)), ..RegistryHooks::default() };
        let registry = Arc::new(Registry::with_hooks(self.store.clone(), clock, hooks));
        let writer = EventWriter::new(registry.clone(), queue, name.to_owned());
        tokio::spawn(writer.run(self.stop.clone()));
        tokio::spawn(EventKeeper::new(registry.clone()).run(self.stop.clone()));
        registry
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

async fn events(registry: &Registry) -> Vec<Event> {
    let (objects, _) = registry.objects(Kind::Event).await.unwrap();
    let event = |object| match object {
        Object::Event(event) => *event,
        other => panic!("{other:?}"),
    };
    objects.into_iter().map(|loaded| event(loaded.object)).collect()
}

async fn until(registry: &Registry, what: &str, holds: impl Fn(&[Event]) -> bool) {
    let waiting = async {
        while !holds(&events(registry).await) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(30), waiting).await;
    assert!(waited.is_ok(), "not so: {what}: {:#?}", events(registry).await);
}

async fn connect(registry: &Registry, connected: bool) {
    let reason = if connected { "Connected" } else { "Disconnected" };
    let edit = |object: &mut Object| {
        let conditions = &mut object.status_mut().conditions;
        set_condition(conditions, "Connected", connected.into(), reason, "told", Time::from_second(0), 1);
    };
    registry.edit_status("test", Kind::EGateway, "oslo", edit).await.unwrap();
}

async fn make_gateway(registry: &Registry) {
    let gateway =
        EGateway { metadata: ObjectMeta::named("oslo"), e_site_name: "oslo".into(), ..EGateway::default() };
    registry.create_object("test", gateway.into()).await.unwrap();
}

#[tokio::test]
async fn two_replicas_tell_each_change_once_and_count_in_one_event() {
    let lab = Lab::new().await;
    let (first, second) = (lab.replica("a", Arc::new(SystemClock)), lab.replica("b", Arc::new(SystemClock)));
    make_gateway(&first).await;
    connect(&first, true).await;
    // The other finds it said already: nothing is committed, and nothing told.
    connect(&second, true).await;
    connect(&first, false).await;
    connect(&second, true).await;
    let count = |events: &[Event], reason: &str| {
        events.iter().filter(|event| event.reason == reason).map(Event::occurrences).sum::<i64>()
    };
    until(&first, "connected twice, gone once", |events| {
        events.len() == 2 && count(events, "Connected") == 2 && count(events, "Disconnected") == 1
    })
    .await;
    let told = events(&first).await;
    let gone = told.iter().find(|event| event.reason == "Disconnected").unwrap();
    assert_eq!((gone.kind.as_str(), gone.message.as_str()), ("Warning", "told"));
    assert_eq!(
        (gone.involved_object.kind.as_str(), gone.involved_object.name.as_str()),
        ("EGateway", "oslo")
    );
    assert_eq!((gone.metadata.namespace.as_str(), gone.source.component.as_str()), ("default", SOURCE));
}

#[tokio::test]
async fn a_client_that_writes_many_events_about_one_object_keeps_the_newest() {
    let lab = Lab::new().await;
    let registry = lab.replica("a", Arc::new(SystemClock));
    make_gateway(&registry).await;
    connect(&registry, true).await;
    until(&registry, "ours is told", |events| events.len() == 1).await;
    for number in 0..3 * PER_OBJECT_MAX {
        let event = Event {
            metadata: ObjectMeta::named(format!("flood-{number:03}")),
            involved_object: ObjectReference { name: "noisy".into(), ..ObjectReference::default() },
            source: EventSource { component: "client".into(), host: String::new() },
            ..Event::default()
        };
        registry.create_object("client", event.into()).await.unwrap();
    }
    until(&registry, "the rest is dropped", |events| events.len() == PER_OBJECT_MAX + 1).await;
    let names: Vec<String> = events(&registry).await.into_iter().map(|event| event.metadata.name).collect();
    assert!(names.contains(&format!("flood-{:03}", 3 * PER_OBJECT_MAX - 1)), "{names:?}");
    assert!(names.iter().any(|name| name.starts_with("oslo.")), "{names:?}");
}

#[tokio::test]
async fn events_of_an_hour_ago_are_dropped_at_the_start() {
    let lab = Lab::new().await;
    let now = SystemClock.now().as_second();
    let put = async |registry: &Registry, name: &str, seconds: i64| {
        let event = Event {
            metadata: ObjectMeta::named(name),
            last_timestamp: Some(Time::from_second(seconds)),
            ..Event::default()
        };
        registry.create_object("client", event.into()).await.unwrap();
    };
    // Written by a registry whose clock was then: creationTimestamp is the server's.
    let then = now - TTL_SECONDS as i64 - 1;
    let earlier = move || causeway_api_timestamp(then);
    let past = Registry::new(lab.store.clone(), Arc::new(earlier));
    put(&past, "old", then).await;
    put(&past, "recent", now - 60).await;
    let registry = lab.replica("a", Arc::new(SystemClock));
    until(&registry, "only the recent one is left", |events| {
        events.iter().map(|event| event.metadata.name.as_str()).eq(["recent"])
    })
    .await;
}

fn causeway_api_timestamp(second: i64) -> jiff::Timestamp {
    jiff::Timestamp::from_second(second).unwrap()
}

#[tokio::test]
async fn nothing_is_told_of_objects_that_only_change_their_fields() {
    let lab = Lab::new().await;
    let registry = lab.replica("a", Arc::new(SystemClock));
    let site = ESite { metadata: ObjectMeta::named("oslo"), ..ESite::default() };
    registry.create_object("test", site.into()).await.unwrap();
    let edit = |object: &mut Object| drop(object.metadata_mut().labels.insert("a".into(), "b".into()));
    registry.edit("test", Kind::ESite, "oslo", edit).await.unwrap();
    make_gateway(&registry).await;
    connect(&registry, true).await;
    until(&registry, "one event, of the gateway", |events| {
        events.len() == 1 && events[0].involved_object.kind == "EGateway"
    })
    .await;
}
