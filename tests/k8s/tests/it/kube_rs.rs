//! kube-rs: lists, pages, and a watcher that lives through a restart and through compaction.

use std::time::Duration;

use futures_util::{StreamExt, TryStreamExt};
use kube::api::{
    Api, ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams,
};
use kube::core::GroupVersionKind;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Client, Discovery, ResourceExt};
use serde_json::json;
use testlab::causeway::{Cloud, DEADLINE};
use tokio::sync::mpsc;

use crate::Lab;

pub fn api(client: &Client, kind: &str, plural: &str) -> Api<DynamicObject> {
    Api::all_with(client.clone(), &resource(kind, plural))
}

pub fn sites(client: &Client) -> Api<DynamicObject> {
    api(client, "ESite", "esites")
}

fn resource(kind: &str, plural: &str) -> ApiResource {
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk("causeway.io", "v1", kind), plural)
}

pub fn site(name: &str) -> DynamicObject {
    DynamicObject::new(name, &resource("ESite", "esites"))
}

pub fn revision(object: &DynamicObject) -> u64 {
    object.resource_version().unwrap().parse().unwrap()
}

/// Fails instead of waiting for ever.
pub async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future).await.unwrap_or_else(|_| panic!("{what}: not in time"))
}

/// A change of one object, in a form that can be compared.
type Change = (u64, String, bool);

/// All changes after `start`, up to the deletion of the object `last`; asked of the server in one go.
async fn changes(client: &Client, start: u64, last: &str) -> Vec<Change> {
    let stream = sites(client).watch(&WatchParams::default(), &start.to_string()).await.unwrap();
    let mut stream = stream.boxed();
    let mut all = Vec::new();
    while let Some(event) = soon("the watch goes on", stream.try_next()).await.unwrap() {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                all.push((revision(&object), object.name_any(), true));
            }
            WatchEvent::Deleted(object) => {
                all.push((revision(&object), object.name_any(), false));
                if object.name_any() == last {
                    break;
                }
            }
            WatchEvent::Bookmark(_) => {}
            WatchEvent::Error(status) => panic!("{status}"),
        }
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn kube_rs_discovers_lists_and_writes() {
    let lab = Lab::start();
    let client = lab.client().await;
    let found = Discovery::new(client.clone()).run_aggregated().await.unwrap();
    let group = found.get("causeway.io").expect("our group");
    assert_eq!(group.recommended_resources().len(), 8);
    assert!(Discovery::new(client.clone()).run().await.unwrap().has_group("causeway.io"));

    let sites = sites(&client);
    for name in ["a", "b", "c", "d", "e"] {
        sites.create(&PostParams::default(), &site(name)).await.unwrap();
    }
    let mut names = Vec::new();
    let mut page = ListParams::default().limit(2);
    loop {
        let list = sites.list(&page).await.unwrap();
        assert!(list.items.len() <= 2);
        names.extend(list.items.iter().map(ResourceExt::name_any));
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => break,
        }
    }
    assert_eq!(names, ["a", "b", "c", "cloud", "d", "e"]);

    let merge = Patch::Merge(json!({"subnets": ["10.1.0.0/16"]}));
    let patched = sites.patch("a", &PatchParams::default(), &merge).await.unwrap();
    assert_eq!(patched.data["subnets"], json!(["10.1.0.0/16"]));
    let apply = json!({"kind": "ESite", "apiVersion": "causeway.io/v1", "subnets": ["10.2.0.0/16"]});
    let refused = sites.patch("a", &PatchParams::apply("other"), &Patch::Apply(&apply)).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.is_conflict()), "{refused}");
    let forced = PatchParams::apply("other").force();
    sites.patch("a", &forced, &Patch::Apply(&apply)).await.unwrap();
    let gone = sites.get("nowhere").await.unwrap_err();
    assert!(matches!(&gone, kube::Error::Api(status) if status.is_not_found()), "{gone}");
    let metadata = sites.list_metadata(&ListParams::default()).await.unwrap();
    assert_eq!(metadata.items.len(), 6);
}

/// Runs a watcher and hands out what it says, errors included.
fn watch(
    client: &Client,
    config: watcher::Config,
) -> mpsc::UnboundedReceiver<watcher::Result<watcher::Event<DynamicObject>>> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let stream = watcher(sites(client), config).default_backoff();
    tokio::spawn(async move {
        let mut stream = stream.boxed();
        while let Some(event) = stream.next().await {
            if sender.send(event).is_err() {
                break;
            }
        }
    });
    receiver
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_misses_nothing_and_repeats_nothing_across_a_restart() {
    for config in [watcher::Config::default(), watcher::Config::default().streaming_lists()] {
        let mut lab = Lab::start();
        let client = lab.client().await;
        let sites = sites(&client);
        let mut events = watch(&client, config);
        while !matches!(
            soon("the first list", events.recv()).await.unwrap().unwrap(),
            watcher::Event::InitDone
        ) {}

        let first = sites.create(&PostParams::default(), &site("first")).await.unwrap();
        for name in ["a", "b", "c"] {
            sites.create(&PostParams::default(), &site(name)).await.unwrap();
        }
        lab.kill();
        lab.start_again();
        // The watcher waits before it dials again; these happen in the meantime, or soon after.
        let client = lab.client().await;
        let sites = self::sites(&client);
        for name in ["a", "d"] {
            let labels = json!({"metadata": {"labels": {"again": "yes"}}});
            sites
                .patch(name, &PatchParams::default(), &Patch::Merge(labels))
                .await
                .or_else(not_found)
                .unwrap();
        }
        sites.delete("b", &Default::default()).await.unwrap();
        sites.create(&PostParams::default(), &site("last")).await.unwrap();
        sites.delete("last", &Default::default()).await.unwrap();

        let mut seen: Vec<Change> = Vec::new();
        loop {
            match soon("the watcher comes back", events.recv()).await.unwrap() {
                Ok(watcher::Event::Apply(object)) => seen.push((revision(&object), object.name_any(), true)),
                Ok(watcher::Event::Delete(object)) => {
                    seen.push((revision(&object), object.name_any(), false));
                    if object.name_any() == "last" {
                        break;
                    }
                }
                Ok(_) => panic!("the watcher listed again instead of going on"),
                Err(watcher::Error::WatchFailed(_) | watcher::Error::WatchStartFailed(_)) => {}
                Err(error) => panic!("{error}"),
            }
        }
        // Changes of the first moments, before the first object, may or may not have been in the list.
        seen.retain(|change| change.0 >= revision(&first));
        assert_eq!(seen, changes(&client, revision(&first) - 1, "last").await);
    }
}

fn not_found(error: kube::Error) -> kube::Result<DynamicObject> {
    match &error {
        kube::Error::Api(status) if status.is_not_found() => Ok(site("nobody")),
        _ => Err(error),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn after_compaction_a_reflector_lists_again_and_is_right() {
    let mut lab = Lab::start();
    let client = lab.client().await;
    for name in ["stays", "goes"] {
        sites(&client).create(&PostParams::default(), &site(name)).await.unwrap();
    }
    let writer = reflector::store::Writer::<DynamicObject>::new(resource("ESite", "esites"));
    let reader = writer.as_reader();
    let mut events =
        reflector(writer, watcher(sites(&client), watcher::Config::default()).default_backoff()).boxed();
    let names = || {
        let mut names: Vec<String> = reader.state().iter().map(|object| object.name_any()).collect();
        names.sort();
        names
    };
    while names() != ["cloud", "goes", "stays"] {
        soon("the first list", events.next()).await.unwrap().unwrap();
    }

    // While the watcher's server is away, another one on the same data changes and forgets.
    lab.kill();
    let other = Cloud::start(&lab.cloud.data_dir).unwrap();
    for command in [&["delete", "esite", "goes"][..], &["delete", "egateway", "cloud", "--force"]] {
        other.run(command).unwrap().success().unwrap();
    }
    let comes = "{kind: ESite, apiVersion: v1, metadata: {name: comes}}";
    other.apply(comes).unwrap().success().unwrap();
    drop(other);
    crate::history::compact(&lab).await;
    lab.start_again();

    let mut too_old = 0;
    while names() != ["cloud", "comes", "stays"] {
        match soon("the reflector recovers", events.next()).await.unwrap() {
            Err(watcher::Error::WatchError(status)) if status.code == 410 => too_old += 1,
            _ => {}
        }
    }
    assert_eq!(too_old, 1, "the old revision was refused once");
    sites(&client).create(&PostParams::default(), &site("later")).await.unwrap();
    while !names().contains(&"later".to_owned()) {
        soon("the watch goes on", events.next()).await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_ends_when_it_was_asked_to() {
    let lab = Lab::start();
    let client = lab.client().await;
    let started = std::time::Instant::now();
    let params = WatchParams::default().timeout(1);
    let watch = sites(&client).watch(&params, "0").await.unwrap();
    let events: Vec<_> = soon("the watch ends", watch.try_collect()).await.unwrap();
    assert!(started.elapsed() >= Duration::from_millis(900));
    assert!(
        events.iter().any(|event| matches!(event, WatchEvent::Added(object) if object.name_any() == "cloud"))
    );
}
