//! Revisions over HTTP: writers that meet, watches that resume, history that is gone.

use causeway_store::{Store, StoreSpec};
use futures_util::future::join_all;
use futures_util::{StreamExt, TryStreamExt};
use kube::api::{DynamicObject, ListParams, PostParams, VersionMatch, WatchEvent, WatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use testlab::causeway::Cloud;

use crate::Lab;
use crate::kube_rs::{revision, site, sites, soon};

/// Forgets all history of a data dir that no cloud holds.
pub async fn compact(lab: &Lab) {
    let store = Store::open(StoreSpec::Sqlite { path: lab.cloud.data_dir.join("store.db") }).await.unwrap();
    let upto = store.revision().await.unwrap();
    assert_eq!(store.compact(upto).await.unwrap(), upto);
    store.close().await.unwrap();
}

/// Waits until the reconciler has looked at the object, so that it writes nothing in between.
async fn settled(client: &Client, name: &str) -> DynamicObject {
    let looked_at = async {
        loop {
            let object = sites(client).get(name).await.unwrap();
            let observed = object.data.get("status").map(|status| status["observedGeneration"].clone());
            if observed == Some(json!(object.metadata.generation)) {
                return object;
            }
            tokio::task::yield_now().await;
        }
    };
    soon("the reconciler looks at it", looked_at).await
}

/// The numbers of requests that were accepted and that got 409 with this reason; nothing else is possible.
fn count(outcomes: &[kube::Result<DynamicObject>], reason: &str) -> (usize, usize) {
    for outcome in outcomes {
        if let Err(error) = outcome {
            let conflict =
                matches!(error, kube::Error::Api(status) if status.code == 409 && status.reason == reason);
            assert!(conflict, "{error}");
        }
    }
    let accepted = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    (accepted, outcomes.len() - accepted)
}

#[tokio::test(flavor = "multi_thread")]
async fn of_writers_that_meet_exactly_one_wins() {
    let lab = Lab::start();
    // Connections of their own, so that they really meet.
    let clients = join_all((0..8).map(|_| lab.client())).await;
    sites(&clients[0]).create(&PostParams::default(), &site("Oslo")).await.unwrap();
    settled(&clients[0], "Oslo").await;
    for writers in [2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 8, 8, 8] {
        let before = sites(&clients[0]).get("Oslo").await.unwrap();
        let write = async |place: usize| {
            let mut mine = before.clone();
            mine.annotations_mut().insert("writer".into(), format!("{place} after {}", revision(&before)));
            sites(&clients[place]).replace("Oslo", &PostParams::default(), &mine).await
        };
        let outcomes = join_all((0..writers).map(write)).await;
        assert_eq!(count(&outcomes, "Conflict"), (1, writers - 1), "{writers} writers");
        let winner = outcomes.into_iter().find_map(Result::ok).unwrap();
        let after = sites(&clients[0]).get("Oslo").await.unwrap();
        assert_eq!((after.annotations(), revision(&after)), (winner.annotations(), revision(&winner)));
    }
    for round in 0..5 {
        let name = format!("new-{round}");
        let create =
            async |place: usize| sites(&clients[place]).create(&PostParams::default(), &site(&name)).await;
        let outcomes = join_all((0..8).map(create)).await;
        assert_eq!(count(&outcomes, "AlreadyExists"), (1, 7), "creators");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_from_any_old_revision_gives_exactly_what_came_after_it() {
    let mut lab = Lab::start();
    let client = lab.client().await;
    let start = revision(&sites(&client).create(&PostParams::default(), &site("first")).await.unwrap());
    for name in ["a", "b", "c", "d"] {
        sites(&client).create(&PostParams::default(), &site(name)).await.unwrap();
        settled(&client, name).await;
    }
    sites(&client).delete("b", &Default::default()).await.unwrap();
    sites(&client).create(&PostParams::default(), &site("last")).await.unwrap();
    let end = revision(&settled(&client, "last").await);
    let before = events(&client, start, end).await;
    assert!(before.len() >= 10, "{before:?}");

    lab.kill();
    lab.start_again();
    let client = lab.client().await;
    for from in std::iter::once(start).chain(before.iter().map(|event| event.0)).filter(|from| *from < end) {
        let expected: Vec<_> = before.iter().filter(|event| event.0 > from).cloned().collect();
        assert_eq!(events(&client, from, end).await, expected, "resumed after {from}");
    }
}

/// Revision, kind of event and name of everything after `from`, up to `end`.
async fn events(client: &Client, from: u64, end: u64) -> Vec<(u64, &'static str, String)> {
    let mut stream = sites(client).watch(&WatchParams::default(), &from.to_string()).await.unwrap().boxed();
    let mut all: Vec<(u64, &str, String)> = Vec::new();
    while all.last().is_none_or(|(revision, ..)| *revision < end) {
        let (word, object) = match soon("the watch goes on", stream.try_next()).await.unwrap().unwrap() {
            WatchEvent::Added(object) => ("ADDED", object),
            WatchEvent::Modified(object) => ("MODIFIED", object),
            WatchEvent::Deleted(object) => ("DELETED", object),
            WatchEvent::Bookmark(_) => continue,
            WatchEvent::Error(status) => panic!("{status}"),
        };
        all.push((revision(&object), word, object.name_any()));
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_compacted_gets_410_and_a_new_list_goes_on() {
    let mut lab = Lab::start();
    let client = lab.client().await;
    let old = revision(&sites(&client).create(&PostParams::default(), &site("first")).await.unwrap());
    for name in ["a", "b", "c"] {
        sites(&client).create(&PostParams::default(), &site(name)).await.unwrap();
    }
    let page = ListParams::default().limit(2);
    let list = sites(&client).list(&page).await.unwrap();
    let token = list.metadata.continue_.unwrap();
    // The page's own revision must be in the past as well.
    sites(&client).delete("a", &Default::default()).await.unwrap();
    lab.kill();
    compact(&lab).await;
    lab.start_again();

    let client = lab.client().await;
    let status = watch_refusal(&client, old).await;
    assert_eq!((status.code, status.reason.as_str()), (410, "Expired"), "{status}");
    let refused = sites(&client).list(&page.clone().continue_token(&token)).await.unwrap_err();
    assert!(
        matches!(&refused, kube::Error::Api(status) if status.code == 410 && status.reason == "Expired"),
        "{refused}"
    );
    let exact = ListParams::default().at(&old.to_string()).matching(VersionMatch::Exact);
    let refused = sites(&client).list(&exact).await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 410), "{refused}");

    let list = sites(&client).list(&ListParams::default()).await.unwrap();
    let names: Vec<String> = list.items.iter().map(ResourceExt::name_any).collect();
    assert_eq!(names, ["b", "c", "cloud", "first"]);
    let start: u64 = list.metadata.resource_version.unwrap().parse().unwrap();
    let made = revision(&sites(&client).create(&PostParams::default(), &site("later")).await.unwrap());
    assert!(events(&client, start, made).await.iter().any(|event| event.2 == "later"));
}

/// kubectl, client-go and kube-rs all look for the refusal inside of the stream; HTTP 410 would do as well.
async fn watch_refusal(client: &Client, from: u64) -> kube::core::Status {
    match sites(client).watch(&WatchParams::default(), &from.to_string()).await {
        Err(kube::Error::Api(status)) => *status,
        Err(error) => panic!("{error}"),
        Ok(stream) => match soon("an answer", stream.boxed().try_next()).await.unwrap().unwrap() {
            WatchEvent::Error(status) => *status,
            other => panic!("{other:?}"),
        },
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn revisions_never_go_back_when_the_server_is_killed() {
    let mut lab = Lab::start();
    let mut last = 0;
    for round in 0..3 {
        let client = lab.client().await;
        for n in 0..5 {
            let made = sites(&client)
                .create(&PostParams::default(), &site(&format!("s-{round}-{n}")))
                .await
                .unwrap();
            assert!(revision(&made) > last, "{} came after {last}", revision(&made));
            last = revision(&made);
        }
        lab.kill();
        lab.cloud = Cloud::start(&lab.cloud.data_dir).unwrap();
    }
    let client = lab.client().await;
    let list = sites(&client).list(&ListParams::default()).await.unwrap();
    assert_eq!(list.items.len(), 16, "every acknowledged write is there");
}
