//! Objects that the site changed and the API server does not know yet, laid over the copy when it is read.
//!
//! A local object names the object of the copy that it stands on. When a newer revision of that one arrives, the local object counts no
//! more: the API server has the last word. Nothing here is stored; `pending` and `endpoints` put the objects here again after a start.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use bytes::Bytes;
use causeway_api::Revision;
use causeway_daemon::sync::MutexExt;

use crate::kube_object::KubeObject;

/// The object that clients of the site see under a key.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LocalObject {
    /// The key and the revision of the object in the copy that this one stands on; `None`: the API server has no such object.
    pub stands_on: Option<(String, Revision)>,
    /// `None`: the object of the copy is hidden.
    pub object: Option<KubeObject>,
}

/// The local objects of one resource, by key. Bounded by the pending log and the slices of the copy.
#[derive(Default)]
pub struct LocalObjects(Mutex<BTreeMap<String, LocalObject>>);

impl LocalObjects {
    pub fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    pub fn find(&self, key: &str) -> Option<LocalObject> {
        self.lock().get(key).cloned()
    }

    /// Puts an object under a key, or takes it away.
    pub fn set(&self, key: &str, local: Option<LocalObject>) {
        let mut locals = self.lock();
        match local {
            Some(local) => drop(locals.insert(key.to_owned(), local)),
            None => drop(locals.remove(key)),
        }
    }

    /// Lays the local objects with this prefix over a list in the order of its keys. `selects` decides about objects that the API server
    /// does not have.
    pub fn lay_over(
        &self,
        prefix: &str,
        listed: Vec<KubeObject>,
        selects: impl Fn(&KubeObject) -> bool,
    ) -> Vec<KubeObject> {
        let locals = self.lock();
        let mut within =
            locals.range(prefix.to_owned()..).take_while(|(key, _)| key.starts_with(prefix)).peekable();
        if within.peek().is_none() {
            return listed;
        }
        let mut all: BTreeMap<String, KubeObject> =
            listed.into_iter().map(|object| (object.key.clone(), object)).collect();
        let changes: Vec<(&String, Option<KubeObject>)> = within
            .filter(|(key, local)| {
                let base = local.stands_on.as_ref().and_then(|(key, _)| all.get(key));
                counts(local, base, all.get(*key), &selects)
            })
            .map(|(key, local)| (key, local.object.clone()))
            .collect();
        for (key, object) in changes {
            match object {
                Some(object) => drop(all.insert(key.clone(), object)),
                None => drop(all.remove(key)),
            }
        }
        all.into_values().collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, LocalObject>> {
        self.0.lock_ignoring_poison()
    }
}

/// Returns true if a local object is to be shown. `base` is the object that it stands on, `same` the one of the copy under its own key.
pub fn counts(
    local: &LocalObject,
    base: Option<&KubeObject>,
    same: Option<&KubeObject>,
    selects: impl Fn(&KubeObject) -> bool,
) -> bool {
    match &local.stands_on {
        Some((_, revision)) => base.is_some_and(|base| base.revision == *revision),
        None => same.is_none() && local.object.as_ref().is_some_and(selects),
    }
}

/// An object under its own name that the API server has never seen: it has no revision.
pub fn unsent(key: &str, body: Bytes, cells: Bytes) -> KubeObject {
    KubeObject { key: key.to_owned(), uid: String::new(), revision: Revision(0), body, cells }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(key: &str, revision: u64, text: &str) -> KubeObject {
        KubeObject {
            key: key.into(),
            uid: "u".into(),
            revision: Revision(revision),
            body: Bytes::from(text.to_owned()),
            cells: Bytes::new(),
        }
    }

    #[test]
    fn a_local_object_counts_until_the_api_server_has_a_newer_one() {
        let locals = LocalObjects::default();
        let on = |key: &str| Some((key.to_owned(), Revision(5)));
        locals.set("a/x", Some(LocalObject { stands_on: on("a/x"), object: Some(object("a/x", 5, "mine")) }));
        locals.set("a/s", Some(LocalObject { stands_on: on("a/s"), object: None }));
        locals.set(
            "a/s-site",
            Some(LocalObject { stands_on: on("a/s"), object: Some(object("a/s-site", 9, "new")) }),
        );
        locals.set(
            "b/e",
            Some(LocalObject { stands_on: None, object: Some(unsent("b/e", "e".into(), Bytes::new())) }),
        );
        let list = |prefix: &str, listed: &[(&str, u64)]| {
            let listed = listed.iter().map(|(key, revision)| object(key, *revision, "theirs")).collect();
            let seen = locals.lay_over(prefix, listed, |_| true);
            seen.iter()
                .map(|object| format!("{}={}", object.key, String::from_utf8_lossy(&object.body)))
                .collect::<Vec<_>>()
        };
        assert_eq!(list("", &[("a/s", 5), ("a/x", 5)]), ["a/s-site=new", "a/x=mine", "b/e=e"]);
        assert_eq!(list("a/", &[("a/s", 6), ("a/x", 6)]), ["a/s=theirs", "a/x=theirs"]);
        assert_eq!(list("b/", &[("b/e", 7)]), ["b/e=theirs"]);
        assert_eq!(list("c/", &[("c/1", 1)]), ["c/1=theirs"]);
        assert_eq!(list("a/", &[]), [""; 0]);
    }
}
