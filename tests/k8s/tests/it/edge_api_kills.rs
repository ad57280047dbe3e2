//! kill -9 of edge and cloud at random moments while objects change: a reader of the edge never sees an older object after a newer one, loses no
//! deletion, and ends with the objects of the API server. Twelve seconds; ten minutes with `CAUSEWAY_SOAK=1`.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, ListParams, Patch, PatchParams, PostParams, WatchEvent, WatchParams};
use serde_json::json;
use testlab::causeway::wait_for;
use testlab::random::SeededRandom;

use crate::edge_api::{EdgeLab, client_of, missing};

/// Names in use at the same time.
const NAMES: u64 = 40;

/// UID and revision of each object, by name.
type Objects = BTreeMap<String, (String, u64)>;

fn entry(map: &ConfigMap) -> (String, (String, u64)) {
    let metadata = map.metadata.clone();
    let revision = metadata.resource_version.unwrap().parse().unwrap();
    (metadata.name.unwrap(), (metadata.uid.unwrap(), revision))
}

/// A reader as client-go has them: one list, then watches that resume after the last event; a list again only after 410.
#[derive(Default)]
struct Reader {
    objects: Objects,
    /// 0: a list is needed.
    revision: u64,
    lists: usize,
    watches: usize,
    events: usize,
}

impl Reader {
    /// Follows until the connection breaks.
    async fn follow(shared: &Mutex<Reader>, maps: &Api<ConfigMap>) -> Result<(), kube::Error> {
        let revision = shared.lock().unwrap().revision;
        if revision == 0 {
            let list = maps.list(&ListParams::default()).await?;
            shared.lock().unwrap().take_list(&list);
        }
        let revision = shared.lock().unwrap().revision;
        let stream = maps.watch(&WatchParams::default(), &revision.to_string()).await?;
        shared.lock().unwrap().watches += 1;
        let mut stream = std::pin::pin!(stream);
        while let Some(event) = stream.try_next().await? {
            let mut reader = shared.lock().unwrap();
            match event {
                WatchEvent::Added(map) | WatchEvent::Modified(map) => reader.take(&map, true),
                WatchEvent::Deleted(map) => reader.take(&map, false),
                WatchEvent::Bookmark(bookmark) => {
                    let at = bookmark.metadata.resource_version.parse().unwrap();
                    assert!(at >= reader.revision, "a bookmark leads back from {} to {at}", reader.revision);
                    reader.revision = at;
                }
                WatchEvent::Error(status) if status.code == 410 => {
                    reader.revision = 0;
                    return Ok(());
                }
                WatchEvent::Error(status) => panic!("{status:?}"),
            }
        }
        Ok(())
    }

    fn take_list(&mut self, list: &kube::core::ObjectList<ConfigMap>) {
        let revision = list.metadata.resource_version.as_ref().unwrap().parse().unwrap();
        let listed: Objects = list.items.iter().map(entry).collect();
        for (name, (uid, before)) in &self.objects {
            if let Some((_, now)) = listed.get(name).filter(|(listed_uid, _)| listed_uid == uid) {
                assert!(now >= before, "a list leads {name} back from {before} to {now}");
            }
        }
        (self.objects, self.revision) = (listed, revision);
        self.lists += 1;
    }

    fn take(&mut self, map: &ConfigMap, is_there: bool) {
        let (name, (uid, revision)) = entry(map);
        assert!(
            revision > self.revision,
            "{name}: an event of {revision} after {}: a reader that resumes would lose one of them",
            self.revision
        );
        if let Some((_, before)) = self.objects.get(&name) {
            assert!(revision > *before, "{name} goes back from {before} to {revision}");
        }
        match is_there {
            true => drop(self.objects.insert(name, (uid, revision))),
            false => assert!(self.objects.remove(&name).is_some(), "{name} was deleted and not there"),
        }
        self.revision = revision;
        self.events += 1;
    }
}

async fn read_for_ever(shared: Arc<Mutex<Reader>>, maps: Api<ConfigMap>) {
    loop {
        match Reader::follow(&shared, &maps).await {
            Err(kube::Error::Api(status)) if status.code == 410 => shared.lock().unwrap().revision = 0,
            // The edge is away, or its cloud is and it cannot answer yet.
            _ => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Changes objects until it is stopped. Bursts of deletions, so that a comparison finds several at once.
async fn change_for_ever(maps: Api<ConfigMap>, mut random: SeededRandom) {
    let name = |number: u64| format!("map-{number}");
    loop {
        match random.below(20) {
            0 => {
                let from = random.below(NAMES);
                for number in from..from + 12 {
                    let _ = maps.delete(&name(number % NAMES), &DeleteParams::default()).await;
                }
            }
            1..5 => drop(maps.delete(&name(random.below(NAMES)), &DeleteParams::default()).await),
            _ => {
                let name = name(random.below(NAMES));
                let change = json!({"data": {"value": random.number().to_string()}});
                let written = maps.patch(&name, &PatchParams::default(), &Patch::Merge(change.clone())).await;
                if matches!(written, Err(kube::Error::Api(status)) if status.code == 404) {
                    let mut new: ConfigMap = serde_json::from_value(change).unwrap();
                    new.metadata.name = Some(name);
                    maps.create(&PostParams::default(), &new).await.unwrap();
                }
            }
        }
        tokio::time::sleep(Duration::from_millis(random.below(30))).await;
    }
}

#[test]
fn a_reader_of_the_edge_survives_kills_of_edge_and_cloud() {
    if let Some(reason) = missing() {
        println!("SKIPPED: kills of edge and cloud: {reason}");
        return;
    }
    let soak = std::env::var_os("CAUSEWAY_SOAK").is_some_and(|value| value == "1");
    let time = Duration::from_secs(if soak { 600 } else { 12 });
    let mut random = SeededRandom::for_test("kills of edge and cloud");
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut lab = EdgeLab::start();
    let edge = lab.through_edge(&lab.cluster.token());
    lab.config_map("map-0", "first");
    edge.ok("get configmaps");
    lab.await_live("configmaps");
    let kubeconfig = lab.edge_kubeconfig(&lab.cluster.token());
    let (direct, through): (Api<ConfigMap>, Api<ConfigMap>) = runtime.block_on(async {
        let (direct, through) = (lab.cluster.client().await, client_of(&kubeconfig).await);
        (Api::namespaced(direct, "default"), Api::namespaced(through, "default"))
    });
    let readers: Vec<Arc<Mutex<Reader>>> = (0..3).map(|_| Arc::default()).collect();
    let mut reading = tokio::task::JoinSet::new();
    for reader in &readers {
        reading.spawn_on(read_for_ever(reader.clone(), through.clone()), runtime.handle());
    }
    let changing = runtime.spawn(change_for_ever(direct.clone(), SeededRandom::new(random.number())));
    let (end, mut kills) = (Instant::now() + time, [0, 0]);
    while Instant::now() < end {
        // The moment of a kill is random.
        std::thread::sleep(Duration::from_millis(random.below(1_500)));
        let is_edge = random.below(2) == 0;
        kills[usize::from(is_edge)] += 1;
        match is_edge {
            true => lab.edge.kill().unwrap(),
            false => lab.cloud.process.kill().unwrap(),
        }
        std::thread::sleep(Duration::from_millis(random.below(500)));
        match is_edge {
            true => lab.start_edge_again(),
            false => lab.start_cloud_again(),
        }
        assert!(!changing.is_finished(), "changes go on");
    }
    changing.abort();
    let is_over = runtime.block_on(changing);
    assert!(is_over.is_err_and(|error| error.is_cancelled()));
    // A marker is the last change: a reader that has it has everything before.
    lab.config_map("marker", "last");
    let theirs: Objects =
        runtime.block_on(direct.list(&ListParams::default())).unwrap().iter().map(entry).collect();
    for (number, reader) in readers.iter().enumerate() {
        wait_for("a reader has the last change", || {
            assert!(reading.try_join_next().is_none(), "a reader failed; the seed is above");
            reader.lock().unwrap().objects.contains_key("marker").then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}\n{}\n{}", lab.edge.log(), lab.cloud.process.log()));
        let reader = reader.lock().unwrap();
        println!(
            "reader {number}: {} events, {} watches, {} lists",
            reader.events, reader.watches, reader.lists
        );
        assert_eq!(reader.objects, theirs, "reader {number} ends equal");
        assert!(reader.events > 20, "there were changes");
    }
    println!(
        "{} kills of the cloud, {} of the edge; {} objects at the end",
        kills[0],
        kills[1],
        theirs.len()
    );
}
