//! The dependency graph: objects that have owners, and objects that wait for their dependents.
//!
//! Pure. Fed with stored objects; says in `queue` which objects are to be looked at. Objects with neither owners nor a
//! finalizer of the collector take no room here.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use causeway_api::{Kind, ObjectMeta, OwnerReference, garbage};
use causeway_store::Revision;
use serde::Deserialize;

pub type Key = (Kind, String);

#[derive(Default)]
pub struct Graph {
    /// The newest change that was taken in.
    pub revision: Revision,
    /// Objects that are to be looked at.
    pub queue: BTreeSet<Key>,
    nodes: BTreeMap<Key, Node>,
    /// Dependents by the UID of an owner.
    dependents: HashMap<String, BTreeSet<Key>>,
}

struct Node {
    uid: String,
    owners: Vec<OwnerReference>,
    waits: bool,
    waits_in_foreground: bool,
}

/// One dependent of an object.
#[derive(Clone, Debug, PartialEq)]
pub struct Dependent {
    pub key: Key,
    pub owners: Vec<OwnerReference>,
}

impl Dependent {
    /// Returns true if the object has this owner.
    pub fn names(&self, uid: &str) -> bool {
        self.owners.iter().any(|owner| owner.uid == uid)
    }
}

#[derive(Deserialize)]
struct Outline {
    metadata: ObjectMeta,
}

#[derive(Deserialize)]
struct Identity {
    metadata: IdentityMeta,
}

#[derive(Deserialize)]
struct IdentityMeta {
    #[serde(default)]
    uid: String,
}

impl Graph {
    /// Takes in an object as it is stored now; `None` when it is gone. `previous` is the value before.
    pub fn note(&mut self, key: Key, stored: Option<&[u8]>, previous: Option<&[u8]>) {
        self.forget(&key);
        // The dependents of an object that is gone, or was replaced, have lost an owner.
        if stored.is_none()
            && !self.dependents.is_empty()
            && let Some(previous) = previous
            && let Ok(Identity { metadata }) = serde_json::from_slice(previous)
        {
            self.queue_dependents(&metadata.uid);
        }
        let Some(stored) = stored.filter(|stored| concerns(stored)) else { return };
        let Ok(Outline { metadata }) = serde_json::from_slice::<Outline>(stored) else { return };
        let (owners, waits) = (metadata.owner_references.clone(), garbage::waits(&metadata));
        if owners.is_empty() && !waits {
            return;
        }
        for owner in &owners {
            self.dependents.entry(owner.uid.clone()).or_default().insert(key.clone());
        }
        if waits {
            self.queue_dependents(&metadata.uid);
        }
        let node = Node {
            uid: metadata.uid.clone(),
            owners,
            waits,
            waits_in_foreground: garbage::waits_in_foreground(&metadata),
        };
        self.queue_waiting_owners(&node);
        self.queue.insert(key.clone());
        self.nodes.insert(key, node);
    }

    /// The dependents of an object.
    pub fn dependents_of(&self, key: &Key) -> Vec<Dependent> {
        let Some(uid) = self.nodes.get(key).map(|node| &node.uid) else { return Vec::new() };
        let keys = self.dependents.get(uid).into_iter().flatten();
        keys.filter_map(|key| {
            let node = self.nodes.get(key)?;
            Some(Dependent { key: key.clone(), owners: node.owners.clone() })
        })
        .collect()
    }

    /// Returns true if dependents that wait in the foreground lead back to the object.
    pub fn is_in_circle(&self, key: &Key) -> bool {
        let dependents = |key: &Key| {
            let uid = self.nodes.get(key).map(|node| &node.uid);
            uid.and_then(|uid| self.dependents.get(uid)).into_iter().flatten()
        };
        let mut open: Vec<&Key> = dependents(key).collect();
        let mut seen: BTreeSet<&Key> = BTreeSet::new();
        while let Some(next) = open.pop() {
            if next == key {
                return true;
            }
            let waits = self.nodes.get(next).is_some_and(|node| node.waits_in_foreground);
            if waits && seen.insert(next) {
                open.extend(dependents(next));
            }
        }
        false
    }

    fn forget(&mut self, key: &Key) {
        let Some(node) = self.nodes.remove(key) else { return };
        for owner in &node.owners {
            if let Some(keys) = self.dependents.get_mut(&owner.uid) {
                keys.remove(key);
                if keys.is_empty() {
                    self.dependents.remove(&owner.uid);
                }
            }
        }
        self.queue_waiting_owners(&node);
    }

    /// An owner that waits may wait for this one no more, or for it as well.
    fn queue_waiting_owners(&mut self, node: &Node) {
        for owner in &node.owners {
            let Some(kind) = garbage::owner_kind(owner) else { continue };
            let key = (kind, owner.name.clone());
            if self.nodes.get(&key).is_some_and(|owner| owner.waits) {
                self.queue.insert(key);
            }
        }
    }

    fn queue_dependents(&mut self, uid: &str) {
        self.queue.extend(self.dependents.get(uid).into_iter().flatten().cloned());
    }
}

/// A cheap look before the text is parsed: most objects have no owners and are not being deleted.
fn concerns(stored: &[u8]) -> bool {
    const WORDS: [&[u8]; 2] = [b"\"ownerReferences\"", b"\"deletionTimestamp\""];
    let text = |word: &[u8]| stored.windows(word.len()).any(|window| window == word);
    WORDS.into_iter().any(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(uid: &str, owner: Option<(&str, &str)>, finalizer: Option<&str>) -> Vec<u8> {
        let mut meta = serde_json::json!({"name": uid, "uid": uid});
        if let Some((name, uid)) = owner {
            meta["ownerReferences"] =
                serde_json::json!([{"apiVersion": "v1", "kind": "ESite", "name": name, "uid": uid}]);
        }
        if let Some(finalizer) = finalizer {
            meta["finalizers"] = serde_json::json!([finalizer]);
            meta["deletionTimestamp"] = "2026-11-17T10:00:00Z".into();
        }
        serde_json::json!({"metadata": meta}).to_string().into_bytes()
    }

    fn key(name: &str) -> Key {
        (Kind::ESite, name.to_owned())
    }

    fn queued(graph: &mut Graph) -> Vec<String> {
        std::mem::take(&mut graph.queue).into_iter().map(|(_, name)| name).collect()
    }

    #[test]
    fn every_change_of_an_owner_brings_up_its_dependents() {
        let mut graph = Graph::default();
        graph.note(key("owner"), Some(&stored("owner", None, None)), None);
        assert_eq!(queued(&mut graph), Vec::<String>::new(), "it has no owners");
        assert!(graph.nodes.is_empty());
        let dependent = stored("a", Some(("owner", "owner")), None);
        graph.note(key("a"), Some(&dependent), None);
        assert_eq!(queued(&mut graph), ["a"]);

        let waiting = stored("owner", None, Some("foregroundDeletion"));
        graph.note(key("owner"), Some(&waiting), Some(&stored("owner", None, None)));
        assert_eq!(queued(&mut graph), ["a", "owner"]);
        assert_eq!(graph.dependents_of(&key("owner")).len(), 1);

        graph.note(key("a"), None, Some(&dependent));
        assert_eq!(queued(&mut graph), ["owner"], "nothing blocks it any more");
        graph.note(key("b"), Some(&stored("b", Some(("owner", "owner")), None)), None);
        assert_eq!(queued(&mut graph), ["b", "owner"]);
        graph.note(key("owner"), None, Some(&waiting));
        assert_eq!(queued(&mut graph), ["b"]);
        graph.note(key("b"), None, Some(&dependent));
        assert!(graph.nodes.is_empty() && graph.dependents.is_empty(), "nothing is kept of what is gone");
    }

    #[test]
    fn a_circle_is_told_from_a_chain() {
        let mut graph = Graph::default();
        let waiting = |uid: &str, owner: &str| stored(uid, Some((owner, owner)), Some("foregroundDeletion"));
        graph.note(key("a"), Some(&waiting("a", "c")), None);
        graph.note(key("b"), Some(&waiting("b", "a")), None);
        assert!(!graph.is_in_circle(&key("a")), "a chain so far");
        graph.note(key("c"), Some(&stored("c", Some(("b", "b")), None)), None);
        assert!(graph.is_in_circle(&key("c")), "it would wait for itself");
        assert!(!graph.is_in_circle(&key("a")), "one of them does not wait");
        graph.note(key("c"), Some(&waiting("c", "b")), None);
        assert!(graph.is_in_circle(&key("a")) && graph.is_in_circle(&key("b")));
        graph.note(key("self"), Some(&waiting("self", "self")), None);
        assert!(graph.is_in_circle(&key("self")));
    }

    #[test]
    fn what_cannot_be_read_is_left_alone() {
        let mut graph = Graph::default();
        graph.note(key("a"), Some(b"{\"ownerReferences\""), None);
        graph.note(key("a"), None, Some(b"no json"));
        assert!(graph.queue.is_empty());
    }
}
