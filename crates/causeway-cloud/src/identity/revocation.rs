//! Keys that are no longer believed, kept in memory as the store has them.
//!
//! `revocations/HASH` in the store names a key. Every request asks the set in memory, which a watch keeps fresh;
//! before a certificate is signed, the store itself is read. Sessions that are open are told through `ended`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use arc_swap::ArcSwap;
use bytes::Bytes;
use causeway_api::sync::MutexExt;
use causeway_channel::KeyHash;
use causeway_channel::clock::{from_unix_seconds, unix_seconds};
use causeway_store::StoreRecord;
use serde::{Deserialize, Serialize};
use tokio::sync::broadcast;

use super::follow::FollowedChange;

pub const PREFIX: &str = "revocations/";
/// A listener that falls further behind must look at all its sessions anew.
const BROADCAST_MAX: usize = 1024;

pub fn store_key(key: &KeyHash) -> String {
    format!("{PREFIX}{key}")
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevocationRecord {
    /// Empty for the certificate of a person or a program.
    pub gateway: String,
    // The next four are newer; a replica that does not know them reads the rest.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub site: String,
    /// The hash of the key that replaced it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// Of a person or a program: the name in the certificate, and its serial number.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub user: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub serial: String,
    pub reason: RevocationReason,
    pub at: i64,
    /// When the last certificate over this key ends by itself, and the record with it.
    pub until: i64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RevocationReason {
    /// An administrator revoked it.
    Revoked,
    /// The gateway was enrolled anew with another key.
    Replaced,
}

impl RevocationRecord {
    pub fn new(gateway: &str, reason: RevocationReason, now: SystemTime, until: i64) -> RevocationRecord {
        RevocationRecord {
            gateway: gateway.to_owned(),
            site: String::new(),
            by: None,
            user: String::new(),
            serial: String::new(),
            reason,
            at: unix_seconds(now),
            until,
        }
    }

    pub fn encode(&self) -> Bytes {
        serde_json::to_vec(self).expect("strings and numbers are always JSON").into()
    }

    pub fn is_forgettable(&self, now: SystemTime) -> bool {
        now > from_unix_seconds(self.until)
    }
}

/// The revoked keys. The follower of the store applies changes; a revocation here is applied without waiting for it.
#[derive(Debug)]
pub struct Revocations {
    keys: ArcSwap<HashMap<KeyHash, Option<RevocationRecord>>>,
    /// Held while a change is applied.
    applying: Mutex<()>,
    ended: broadcast::Sender<KeyHash>,
}

impl Revocations {
    pub fn new(records: Vec<StoreRecord>) -> Revocations {
        let (ended, _) = broadcast::channel(BROADCAST_MAX);
        let revocations = Revocations { keys: ArcSwap::default(), applying: Mutex::default(), ended };
        revocations.apply(FollowedChange::All(records));
        revocations
    }

    pub fn contains(&self, key: &KeyHash) -> bool {
        self.keys.load().contains_key(key)
    }

    /// Keys as they are revoked. After `Lagged`, ask `contains` for every open session.
    pub fn ended(&self) -> broadcast::Receiver<KeyHash> {
        self.ended.subscribe()
    }

    pub(super) fn forgettable(&self, now: SystemTime) -> Vec<KeyHash> {
        let keys = self.keys.load();
        let old = keys
            .iter()
            .filter(|(_, record)| record.as_ref().is_some_and(|record| record.is_forgettable(now)));
        old.map(|(key, _)| *key).collect()
    }

    pub(super) fn apply(&self, change: FollowedChange) {
        self.change(|keys| match change {
            FollowedChange::All(records) => {
                keys.clear();
                keys.extend(records.iter().filter_map(|record| read(&record.key, &record.value)));
            }
            FollowedChange::One(event) => match &event.value {
                Some(value) => keys.extend(read(&event.key, value)),
                None => drop(key_of(&event.key).map(|key| keys.remove(&key))),
            },
        });
    }

    /// A key that was just revoked here: its next request is refused, before the watch brings the record.
    pub(super) fn insert(&self, key: KeyHash, record: RevocationRecord) {
        self.change(|keys| drop(keys.insert(key, Some(record))));
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<KeyHash, Option<RevocationRecord>>)) {
        let _applying = self.applying.lock_ignoring_poison();
        let before = self.keys.load_full();
        let mut keys = HashMap::clone(&before);
        change(&mut keys);
        let fresh: Vec<_> = keys.keys().filter(|key| !before.contains_key(*key)).copied().collect();
        self.keys.store(Arc::new(keys));
        // Without a receiver there is no session to end.
        fresh.into_iter().for_each(|key| drop(self.ended.send(key)));
    }
}

// A record that cannot be read still names its key: the key counts as revoked, and for ever.
fn read(store_key: &str, value: &[u8]) -> Option<(KeyHash, Option<RevocationRecord>)> {
    Some((key_of(store_key)?, serde_json::from_slice(value).ok()))
}

fn key_of(store_key: &str) -> Option<KeyHash> {
    KeyHash::from_hex(store_key.strip_prefix(PREFIX)?)
}

#[cfg(test)]
mod tests {
    use causeway_store::{Revision, StoreEvent};

    use super::*;

    fn event(key: &KeyHash, value: Option<&RevocationRecord>) -> FollowedChange {
        FollowedChange::One(Arc::new(StoreEvent {
            revision: Revision(1),
            key: store_key(key).into(),
            value: value.map(RevocationRecord::encode),
            previous: None,
            created: Revision(1),
        }))
    }

    #[test]
    fn keys_come_and_go_and_each_is_announced_once() {
        let now = from_unix_seconds(1_800_000_000);
        let record = RevocationRecord::new("g", RevocationReason::Revoked, now, unix_seconds(now) + 5);
        let (a, b) = (KeyHash::of_spki(b"a"), KeyHash::of_spki(b"b"));
        let revocations = Revocations::new(Vec::new());
        let mut ended = revocations.ended();

        revocations.apply(event(&a, Some(&record)));
        revocations.apply(event(&a, Some(&record)));
        assert!(revocations.contains(&a) && !revocations.contains(&b));
        assert_eq!(ended.try_recv().unwrap(), a);
        assert!(ended.try_recv().is_err());

        assert_eq!(revocations.forgettable(now), vec![]);
        assert_eq!(revocations.forgettable(now + std::time::Duration::from_secs(6)), vec![a]);

        revocations.apply(event(&a, None));
        assert!(!revocations.contains(&a));
        let damaged = StoreRecord {
            key: store_key(&b).into(),
            value: Bytes::from_static(b"{"),
            revision: Revision(2),
            created: Revision(2),
        };
        revocations.apply(FollowedChange::All(vec![damaged]));
        assert!(revocations.contains(&b), "a damaged record revokes all the same");
        assert_eq!(ended.try_recv().unwrap(), b);
    }
}
