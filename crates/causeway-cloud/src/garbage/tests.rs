//! The collector on a real store: rows of deletions and what is left of owners and dependents.

use causeway_api::{ESite, OwnerReference};
use causeway_apiserver::SystemClock;
use causeway_apiserver::registry::ObjectAuthor;
use causeway_store::{Store, StoreSpec};

use super::*;

struct Lab {
    registry: Arc<Registry>,
    stop: CancellationToken,
    _folder: tempfile::TempDir,
}

impl Lab {
    async fn new() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreSpec::Sqlite { path: folder.path().join("store.db") }).await.unwrap();
        let registry = Arc::new(Registry::new(store, Arc::new(SystemClock)));
        Lab { registry, stop: CancellationToken::new(), _folder: folder }
    }

    fn start(&self) {
        tokio::spawn(GarbageCollector::new(self.registry.clone()).run(self.stop.clone()));
    }

    /// Creates a site with owners; `!` before the name of an owner lets it block.
    async fn site(&self, name: &str, owners: &[&str]) -> String {
        let mut site = ESite { metadata: ObjectMeta::named(name), ..ESite::default() };
        for owner in owners {
            let (block, owner) = match owner.strip_prefix('!') {
                Some(owner) => (true, owner),
                None => (false, *owner),
            };
            let uid = match self.meta(owner).await {
                Some(meta) => meta.uid,
                None => format!("uid-of-{owner}"),
            };
            site.metadata.owner_references.push(reference("causeway.io/v1", "ESite", owner, &uid, block));
        }
        self.put(site).await
    }

    async fn put(&self, site: ESite) -> String {
        let made = self.registry.create_object("test", site.into()).await.unwrap();
        made.object.metadata().uid.clone()
    }

    async fn meta(&self, name: &str) -> Option<ObjectMeta> {
        let loaded = self.registry.object(Kind::ESite, name).await.unwrap();
        loaded.map(|loaded| loaded.object.metadata().clone())
    }

    async fn delete(&self, name: &str, propagation: Propagation) {
        let options = DeleteOptions { propagation: Some(propagation), ..DeleteOptions::default() };
        self.registry.delete(ObjectAuthor::ourselves("test"), Kind::ESite, name, &options).await.unwrap();
    }

    async fn names(&self) -> Vec<String> {
        let (objects, _) = self.registry.objects(Kind::ESite).await.unwrap();
        objects.iter().map(|loaded| loaded.object.name().to_owned()).collect()
    }

    async fn until_left(&self, expected: &[&str]) {
        self.until(&format!("{expected:?} are left"), async || self.names().await == expected).await;
    }

    async fn until(&self, what: &str, holds: impl AsyncFn() -> bool) {
        let waiting = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let waited = tokio::time::timeout(Duration::from_secs(30), waiting).await;
        assert!(waited.is_ok(), "not so: {what}; there are {:?}", self.names().await);
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

fn reference(version: &str, kind: &str, name: &str, uid: &str, block: bool) -> OwnerReference {
    OwnerReference {
        api_version: version.into(),
        kind: kind.into(),
        name: name.into(),
        uid: uid.into(),
        controller: None,
        block_owner_deletion: Some(block),
    }
}

#[tokio::test]
async fn dependents_go_after_their_owner_and_theirs_after_them() {
    let lab = Lab::new().await;
    lab.start();
    lab.site("owner", &[]).await;
    lab.site("other", &[]).await;
    lab.site("child", &["owner"]).await;
    lab.site("grandchild", &["child"]).await;
    lab.site("shared", &["owner", "other"]).await;
    lab.delete("owner", Propagation::Background).await;
    lab.until_left(&["other", "shared"]).await;
    let released = async || lab.meta("shared").await.unwrap().owner_references.len() == 1;
    lab.until("the reference to the owner that is gone is removed", released).await;
}

#[tokio::test]
async fn in_the_foreground_the_owner_goes_last_and_waits_for_finalizers() {
    let lab = Lab::new().await;
    lab.start();
    lab.site("owner", &[]).await;
    lab.site("blocking", &["!owner"]).await;
    lab.site("deeper", &["!blocking"]).await;
    lab.site("free", &["owner"]).await;
    let hold = |live: &mut Object| live.metadata_mut().finalizers.push("example.com/hold".into());
    lab.registry.edit("test", Kind::ESite, "deeper", hold).await.unwrap();
    lab.delete("owner", Propagation::Foreground).await;
    lab.until_left(&["blocking", "deeper", "owner"]).await;
    let marked = async || lab.meta("deeper").await.unwrap().deletion_timestamp.is_some();
    lab.until("the one that is held is asked to go", marked).await;
    assert_eq!(lab.meta("owner").await.unwrap().finalizers, ["foregroundDeletion"]);
    let release =
        |live: &mut Object| live.metadata_mut().finalizers.retain(|name| !name.starts_with("example"));
    lab.registry.edit("test", Kind::ESite, "deeper", release).await.unwrap();
    lab.until_left(&[]).await;
}

/// The collector is behind the store: it knows `blocking`, but neither its dependent nor that the owner is being deleted.
#[tokio::test]
async fn an_object_whose_owner_began_to_wait_later_is_left_until_its_dependents_are_known() {
    let lab = Lab::new().await;
    lab.site("owner", &[]).await;
    lab.site("blocking", &["!owner"]).await;
    let seen = lab.registry.object(Kind::ESite, "blocking").await.unwrap().unwrap().revision;
    lab.site("deeper", &["!blocking"]).await;
    lab.delete("owner", Propagation::Foreground).await;
    collect(&lab.registry, &(Kind::ESite, "blocking".into()), seen, (&[], false)).await.unwrap();
    assert_eq!(lab.names().await, ["blocking", "deeper", "owner"]);
    lab.start();
    lab.until_left(&[]).await;
}

#[tokio::test]
async fn orphans_stay_without_their_owner() {
    let lab = Lab::new().await;
    lab.start();
    lab.site("owner", &[]).await;
    lab.site("child", &["!owner"]).await;
    lab.delete("owner", Propagation::Orphan).await;
    lab.until_left(&["child"]).await;
    assert_eq!(lab.meta("child").await.unwrap().owner_references, []);
}

#[tokio::test]
async fn what_was_lost_while_nobody_looked_is_found_at_the_start() {
    let lab = Lab::new().await;
    lab.site("stray", &["never-there"]).await;
    lab.site("waiting", &[]).await;
    lab.site("kept", &["waiting"]).await;
    lab.delete("waiting", Propagation::Orphan).await;
    // Its owner was deleted and made again: the name is the same, the UID is not.
    lab.site("again", &[]).await;
    lab.site("of-the-first", &["again"]).await;
    lab.delete("again", Propagation::Background).await;
    lab.site("again", &[]).await;
    assert_eq!(lab.names().await.len(), 5);
    lab.start();
    lab.until_left(&["again", "kept"]).await;
}

#[tokio::test]
async fn an_owner_of_a_kind_that_is_not_here_holds_its_dependents() {
    let lab = Lab::new().await;
    let mut foreign = ESite { metadata: ObjectMeta::named("foreign"), ..ESite::default() };
    foreign.metadata.owner_references.push(reference("apps/v1", "Deployment", "web", "u1", true));
    lab.put(foreign).await;
    let mut event = ESite { metadata: ObjectMeta::named("of-an-event"), ..ESite::default() };
    event.metadata.owner_references.push(reference("v1", "Event", "web", "u2", true));
    lab.put(event).await;
    lab.site("stray", &["never-there"]).await;
    lab.start();
    lab.until_left(&["foreign", "of-an-event"]).await;
}

#[tokio::test]
async fn owners_that_wait_for_each_other_go_together() {
    let lab = Lab::new().await;
    let first = lab.site("first", &[]).await;
    lab.site("second", &["!first"]).await;
    let second = lab.meta("second").await.unwrap().uid;
    let circle = |live: &mut Object| {
        live.metadata_mut().owner_references = vec![reference("v1", "ESite", "second", &second, true)];
    };
    lab.registry.edit("test", Kind::ESite, "first", circle).await.unwrap();
    lab.start();
    assert_eq!(lab.meta("first").await.unwrap().uid, first);
    lab.delete("first", Propagation::Foreground).await;
    lab.until_left(&[]).await;
}

#[tokio::test]
async fn two_collectors_change_nothing_twice() {
    let lab = Lab::new().await;
    lab.start();
    lab.start();
    lab.site("owner", &[]).await;
    for number in 0..20 {
        lab.site(&format!("child-{number:02}"), &["!owner"]).await;
    }
    lab.delete("owner", Propagation::Foreground).await;
    lab.until_left(&[]).await;
}
