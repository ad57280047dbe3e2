//! Finds the communities that need their ranges planned anew, and the write that stores a plan.

use std::collections::BTreeSet;

use causeway_api::layer3::{MappedRange, plan_ranges};
use causeway_api::{ECommunity, Object, ObjectSet};
use causeway_store::{Op, Store, StoreError};

use super::MAPPED_RANGES;

/// Communities whose ranges may be different now.
#[derive(Debug, Default)]
pub struct RangeWork {
    dirty: BTreeSet<String>,
}

impl RangeWork {
    /// Everything is looked at once.
    pub fn new(objects: &ObjectSet) -> RangeWork {
        let named = objects.all::<ECommunity>().map(|community| community.metadata.name.clone());
        RangeWork { dirty: named.chain(objects.layer3.ranges.keys().cloned()).collect() }
    }

    /// Takes note of a change of an object that `objects` does not hold at the moment.
    pub fn note(&mut self, old: Option<&Object>, new: Option<&Object>, objects: &ObjectSet) {
        if old.zip(new).is_some_and(|(old, new)| old.same_fields(new)) {
            return;
        }
        for object in [old, new].into_iter().flatten() {
            let site = match object {
                Object::ECommunity(community) => {
                    self.dirty.insert(community.metadata.name.clone());
                    continue;
                }
                Object::ESite(site) => &site.metadata.name,
                Object::EGateway(gateway) => &gateway.e_site_name,
                _ => continue,
            };
            self.dirty.extend(objects.communities_of(site).map(|community| community.metadata.name.clone()));
        }
    }

    /// Another community of these sites may have to plan around the new ranges.
    pub fn note_mapped(&mut self, community: &str, sites: &[String], objects: &ObjectSet) {
        self.dirty.insert(community.to_owned());
        let near = sites.iter().flat_map(|site| objects.communities_of(site));
        self.dirty.extend(near.map(|community| community.metadata.name.clone()));
    }

    pub fn again(&mut self, community: String) {
        self.dirty.insert(community);
    }

    pub fn has_work(&self) -> bool {
        !self.dirty.is_empty()
    }

    /// Returns the records to write.
    pub fn records_to_write(&mut self, objects: &ObjectSet) -> Vec<RangeWrite> {
        let mut writes = Vec::new();
        for name in std::mem::take(&mut self.dirty) {
            let held = objects.layer3.ranges.get(&name);
            let planned = objects.community(&name).map(|community| plan_ranges(objects, community).ranges);
            let planned = planned.filter(|ranges| !ranges.is_empty());
            if held != planned.as_ref() {
                writes.push(RangeWrite { community: name, held: held.cloned(), planned });
            }
        }
        writes
    }
}

/// The ranges of a community that must be stored. None: there is no record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RangeWrite {
    pub community: String,
    held: Option<Vec<MappedRange>>,
    planned: Option<Vec<MappedRange>>,
}

impl RangeWrite {
    /// Stores the plan, unless the record is no longer the one that the plan was made from.
    pub async fn store(&self, store: &Store) -> Result<(), StoreError> {
        let key = format!("{MAPPED_RANGES}{}", self.community);
        let stored = store.get(&key).await?;
        let ranges = stored.as_ref().and_then(|stored| serde_json::from_slice(&stored.value).ok());
        if ranges != self.held {
            return Ok(());
        }
        let value = self.planned.as_ref().map(|ranges| serde_json::to_vec(ranges).unwrap_or_default().into());
        let op = match (stored, value) {
            (Some(stored), Some(value)) => Op::Update { key, value, expected: stored.revision },
            (None, Some(value)) => Op::Create { key, value },
            (Some(stored), None) => Op::Delete { key, expected: Some(stored.revision) },
            (None, None) => return Ok(()),
        };
        match store.commit(vec![op]).await {
            // Another replica was faster; its record brings us here again.
            Err(
                StoreError::Conflict { .. } | StoreError::NotFound { .. } | StoreError::AlreadyExists { .. },
            )
            | Ok(_) => Ok(()),
            Err(error) => Err(error),
        }
    }
}
