//! The keys of the store in etcd, and the conversion of its key-values to records. Pure.

use std::sync::Arc;

use bytes::Bytes;
use etcd_client::{EventType, KeyValue};

use crate::model::prefix_end;
use crate::{Revision, StoreError, StoreEvent, StoreRecord};

pub(super) struct EtcdKeys {
    all: String,
    objects: String,
    meta: String,
}

impl EtcdKeys {
    /// Makes the keys under a prefix, which always ends with a slash, given or not.
    pub fn new(prefix: &str) -> EtcdKeys {
        let all = format!("{}/", prefix.trim_end_matches('/'));
        EtcdKeys { objects: format!("{all}objects/"), meta: format!("{all}meta/"), all }
    }

    /// Returns the prefix of all keys of the store.
    pub fn all(&self) -> &str {
        &self.all
    }

    pub fn object(&self, key: &str) -> String {
        format!("{}{key}", self.objects)
    }

    pub fn meta(&self, name: &str) -> String {
        format!("{}{name}", self.meta)
    }

    /// Returns the range from the first key that begins with `prefix` (after `after`) to before the first
    /// that does not.
    pub fn range(&self, prefix: &str, after: Option<&str>) -> (String, String) {
        let whole = self.object(prefix);
        let end = prefix_end(&whole).expect("our folder ends with a slash, which has a successor");
        match after {
            Some(after) if after >= prefix => (self.behind(after), end),
            _ => (whole, end),
        }
    }

    /// Returns the first possible key after this one.
    pub fn behind(&self, key: &str) -> String {
        format!("{}\0", self.object(key))
    }

    pub fn record(&self, found: KeyValue) -> Result<StoreRecord, StoreError> {
        let (revision, created) = (revision(found.mod_revision()), revision(found.create_revision()));
        let (key, value) = found.into_key_value();
        Ok(StoreRecord { key: self.key(&key)?, value: value.into(), revision, created })
    }

    /// Converts an event to a change of a record, or to the name and value of a key under `meta/`.
    pub fn change(&self, event: &etcd_client::Event) -> Result<EtcdChange, StoreError> {
        let after = event.kv().ok_or_else(|| StoreError::corrupt("etcd sent an event without a key"))?;
        let before = event.prev_kv();
        let gone = event.event_type() == EventType::Delete;
        if let Some(name) = after.key().strip_prefix(self.meta.as_bytes()) {
            let name = String::from_utf8_lossy(name).into_owned();
            let value = (!gone).then(|| after.value().to_vec());
            return Ok(EtcdChange::Meta { name, value, revision: revision(after.mod_revision()) });
        }
        let created =
            if gone { before.map_or(0, KeyValue::create_revision) } else { after.create_revision() };
        Ok(EtcdChange::Object(Arc::new(StoreEvent {
            revision: revision(after.mod_revision()),
            key: self.key(after.key())?,
            value: (!gone).then(|| Bytes::copy_from_slice(after.value())),
            previous: before.map(|before| Bytes::copy_from_slice(before.value())),
            created: revision(created),
        })))
    }

    fn key(&self, name: &[u8]) -> Result<Arc<str>, StoreError> {
        name.strip_prefix(self.objects.as_bytes())
            .and_then(|key| std::str::from_utf8(key).ok())
            .map(Arc::from)
            .ok_or_else(|| {
                StoreError::corrupt(format!("a foreign key in etcd: {}", String::from_utf8_lossy(name)))
            })
    }
}

pub(super) enum EtcdChange {
    Object(Arc<StoreEvent>),
    Meta { name: String, value: Option<Vec<u8>>, revision: Revision },
}

/// Converts a revision. etcd counts with signed numbers, all of them positive.
pub(super) fn revision(number: i64) -> Revision {
    Revision(u64::try_from(number).unwrap_or_default())
}

pub(super) fn number(value: Option<&[u8]>) -> Result<u64, StoreError> {
    value
        .and_then(|value| std::str::from_utf8(value).ok()?.parse().ok())
        .ok_or_else(|| StoreError::corrupt("one of our marks in etcd is no number"))
}
