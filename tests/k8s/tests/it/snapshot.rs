//! A list of 10,000 objects in pages is one consistent snapshot, whatever is written meanwhile.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use futures_util::{StreamExt, TryStreamExt, stream};
use kube::ResourceExt;
use kube::api::{Api, DynamicObject, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;

use crate::Lab;
use crate::kube_rs::{api, revision, soon};

const OBJECTS: usize = 10_000;
// The media type that kubectl asks for.
const PAGE: u32 = 500;
// Enough for group commits to fill; far from the limit per identity.
const AT_ONCE: usize = 32;

/// Name and what the writers wrote last; the reconciler's status is left out.
type State = BTreeMap<String, String>;

fn written(object: &DynamicObject) -> String {
    object.labels().get("written").cloned().unwrap_or_default()
}

async fn create(communities: &Api<DynamicObject>, name: String) {
    let object = serde_json::from_value(json!({
        "kind": "ECommunity", "apiVersion": "causeway.io/v1",
        "metadata": {"name": name, "labels": {"written": "0"}},
    }));
    communities.create(&PostParams::default(), &object.unwrap()).await.unwrap();
}

/// Changes, deletes and creates all over the collection until told to stop.
async fn write(
    communities: Api<DynamicObject>,
    writer: usize,
    stop: Arc<AtomicBool>,
    count: Arc<AtomicUsize>,
) {
    let mut step = writer;
    while !stop.load(Ordering::Relaxed) {
        // A stride that is prime to the number of objects visits all of them in a scattered order.
        step = (step + 3_331) % OBJECTS;
        let name = format!("c-{step:05}");
        let label = Patch::Merge(json!({"metadata": {"labels": {"written": format!("{writer}-{step}")}}}));
        match step % 3 {
            0 => drop(communities.delete(&name, &Default::default()).await),
            1 => drop(communities.patch(&name, &PatchParams::default(), &label).await),
            _ => {
                create(&communities, format!("c-{step:05}-{writer}-{}", count.load(Ordering::Relaxed))).await
            }
        }
        count.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_objects_in_pages_are_one_snapshot_while_others_write() {
    let lab = Lab::start();
    let client = lab.client().await;
    let communities = api(&client, "ECommunity", "ecommunities");
    stream::iter(0..OBJECTS)
        .for_each_concurrent(AT_ONCE, |n| create(&communities, format!("c-{n:05}")))
        .await;
    let whole = communities.list(&ListParams::default()).await.unwrap();
    let start: u64 = whole.metadata.resource_version.unwrap().parse().unwrap();
    let mut state: State = whole.items.iter().map(|object| (object.name_any(), written(object))).collect();
    assert_eq!(state.len(), OBJECTS);

    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let mut writers = tokio::task::JoinSet::new();
    for writer in 0..4 {
        let client = lab.client().await;
        let communities = api(&client, "ECommunity", "ecommunities");
        writers.spawn(write(communities, writer, stop.clone(), count.clone()));
    }
    // The snapshot must lie in the middle of the writing, not before it.
    soon("writers write", async {
        while count.load(Ordering::Relaxed) < 20 {
            tokio::task::yield_now().await
        }
    })
    .await;

    let mut pages: Vec<DynamicObject> = Vec::new();
    let mut params = ListParams::default().limit(PAGE);
    let mut at = None;
    let at = loop {
        let page = communities.list(&params).await.unwrap();
        let here: u64 = page.metadata.resource_version.unwrap().parse().unwrap();
        assert_eq!(here, *at.get_or_insert(here), "every page is of the same revision");
        pages.extend(page.items);
        let Some(token) = page.metadata.continue_.filter(|token| !token.is_empty()) else { break here };
        // The announced remainder and the received objects add up, from the first page on.
        assert!(page.metadata.remaining_item_count.is_some_and(|left| left > 0));
        params = params.continue_token(&token);
    };
    let during = count.load(Ordering::Relaxed);
    stop.store(true, Ordering::Relaxed);
    while writers.join_next().await.is_some_and(|ended| ended.map_err(|error| panic!("{error}")).is_ok()) {}
    assert!(during >= 40, "{during} writes are too few to prove anything");

    // The same state, made from the watch: what was there, and what happened up to the snapshot.
    replay(&communities, &mut state, start, at).await;
    let listed: State = pages.iter().map(|object| (object.name_any(), written(object))).collect();
    assert_eq!(listed.len(), pages.len(), "no object twice");
    assert!(pages.iter().all(|object| revision(object) <= at), "nothing from after the snapshot");
    assert!(listed == state, "{}", difference(&listed, &state));
    println!("{during} writes while {} pages were read", pages.len().div_ceil(PAGE as usize));
}

async fn replay(communities: &Api<DynamicObject>, state: &mut State, start: u64, upto: u64) {
    let mut events = communities.watch(&WatchParams::default(), &start.to_string()).await.unwrap().boxed();
    loop {
        let event = soon("the watch goes on", events.try_next()).await.unwrap().unwrap();
        let (object, there) = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => (object, true),
            WatchEvent::Deleted(object) => (object, false),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => panic!("{status}"),
        };
        // The writers went on after the snapshot, so something later always comes.
        if revision(&object) > upto {
            return;
        }
        match there {
            true => state.insert(object.name_any(), written(&object)),
            false => state.remove(&object.name_any()),
        };
    }
}

fn difference(listed: &State, replayed: &State) -> String {
    let only = |a: &State, b: &State| -> Vec<String> {
        a.iter()
            .filter(|(name, value)| b.get(*name) != Some(value))
            .map(|entry| format!("{entry:?}"))
            .take(10)
            .collect()
    };
    format!("listed only: {:?}\nreplayed only: {:?}", only(listed, replayed), only(replayed, listed))
}
