//! Sites whose presences must be reconciled, the steps in progress there, and the execution of a step.
//!
//! `causeway_api::allocate` decides the steps; this module separates requested steps from those that are
//! already visible among the objects. Several replicas may do the same at once: names are the same in all of
//! them, addresses are reserved by the store, so one replica succeeds and the rest see its result.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

use causeway_api::allocate::{self, AllocationStep, FreedAddresses, PendingAllocations, steps};
use causeway_api::{Kind, Object, ObjectSet};
use causeway_apiserver::registry::address;
use causeway_apiserver::request::options::DeleteOptions;
use causeway_apiserver::{Registry, RegistryError};

use super::MANAGER;

/// State of presences beside the objects.
#[derive(Debug, Default)]
pub struct PresenceWork {
    /// Sites to look at.
    dirty: BTreeSet<String>,
    freed: FreedAddresses,
    queue: VecDeque<(String, AllocationStep)>,
    /// Steps that are being written, or are written and not seen yet, by presence.
    under_way: BTreeMap<String, (String, Option<IpAddr>)>,
    /// Addresses that the store refused and whose holder has not been seen yet.
    refused: BTreeMap<String, BTreeSet<IpAddr>>,
}

impl PresenceWork {
    /// Everything is looked at once.
    pub fn new(objects: &ObjectSet, freed: FreedAddresses) -> PresenceWork {
        let exposed =
            objects.all::<causeway_api::ServiceExpose>().flat_map(|expose| expose.e_sites.iter().cloned());
        let present =
            objects.all::<causeway_api::VirtualPresence>().map(|presence| presence.e_site_name.clone());
        PresenceWork { dirty: exposed.chain(present).collect(), freed, ..PresenceWork::default() }
    }

    /// Takes note of a change of an object that `objects` does not hold at the moment.
    pub fn note(&mut self, old: Option<&Object>, new: Option<&Object>, objects: &ObjectSet) {
        let same = |(old, new): (&Object, &Object)| old.same_fields(new) && labels(old) == labels(new);
        if let Some(name) =
            new.or(old).filter(|object| object.kind() == Kind::VirtualPresence).map(Object::name)
        {
            self.under_way.remove(name);
        }
        if old.zip(new).is_some_and(same) {
            return;
        }
        for object in [old, new].into_iter().flatten() {
            match object {
                Object::ServiceExpose(expose) => self.dirty.extend(expose.e_sites.iter().cloned()),
                Object::EService(service) => {
                    let name = &service.metadata.name;
                    let exposed = objects.exposes_of(name).flat_map(|expose| expose.e_sites.iter().cloned());
                    let present = objects.presences_of(name).map(|presence| presence.e_site_name.clone());
                    self.dirty.extend(exposed.chain(present));
                }
                Object::EGateway(gateway) => drop(self.dirty.insert(gateway.e_site_name.clone())),
                Object::VirtualPresence(presence) => {
                    self.dirty.insert(presence.e_site_name.clone());
                    if let (Some(ip), Some(refused)) =
                        (presence.ip_addr(), self.refused.get_mut(&presence.e_site_name))
                    {
                        refused.remove(&ip);
                    }
                }
                _ => {}
            }
        }
    }

    /// An address was given back, at a revision; or its record was forgotten.
    pub fn note_freed(&mut self, key: &str, revision: Option<u64>) {
        match (address::freed(key), revision) {
            (Some((site, ip)), Some(revision)) => self.freed.note(site, ip, revision),
            (Some((site, ip)), None) => self.freed.forget(site, ip),
            (None, _) => {}
        }
    }

    /// Plans anew for every site that changed. Steps that were planned and not begun are planned again.
    pub fn replan(&mut self, objects: &ObjectSet) {
        let dirty = std::mem::take(&mut self.dirty);
        self.queue.retain(|(site, _)| !dirty.contains(site));
        for site in dirty {
            let claims = self.claims(&site);
            let steps = steps(objects, &self.freed, &claims, &site);
            self.queue.extend(steps.into_iter().map(|step| (site.clone(), step)));
        }
    }

    fn claims(&self, site: &str) -> PendingAllocations {
        let here = self.under_way.iter().filter(|(_, (at, _))| at == site);
        let refused = self.refused.get(site).into_iter().flatten().copied();
        PendingAllocations {
            presences: here.clone().map(|(name, _)| name.clone()).collect(),
            addresses: here.filter_map(|(_, (_, ip))| *ip).chain(refused).collect(),
        }
    }

    /// The next thing to do and where, which is then under way.
    pub fn next(&mut self) -> Option<(String, AllocationStep)> {
        let (site, step) = self.queue.pop_front()?;
        self.under_way.insert(step.presence().to_owned(), (site.clone(), step.address()));
        Some((site, step))
    }

    pub fn has_work(&self) -> bool {
        !self.queue.is_empty() || self.is_dirty()
    }

    pub fn is_dirty(&self) -> bool {
        !self.dirty.is_empty()
    }

    pub fn len(&self) -> usize {
        self.queue.len() + self.under_way.len()
    }

    /// Takes the result of a step. True: it must be tried again, later.
    pub fn finish(&mut self, site: String, step: &AllocationStep, done: &Result<(), RegistryError>) -> bool {
        // A step that succeeded stays in progress until its event arrives. A step that failed may have been
        // removed already: any event of the presence ends it, also an unrelated one.
        let Err(error) = done else { return false };
        let presence = step.presence();
        self.under_way.remove(presence);
        match error {
            // Another replica was faster; the event is on the way and brings us here again.
            RegistryError::AlreadyExists(_) | RegistryError::NotFound(_) => return false,
            // A presence that was not seen yet holds the address: the next one, at once.
            error if error.is_duplicate_value() => {
                self.refused.entry(site.clone()).or_default().extend(step.address());
            }
            // The range moved on; its event is on the way too.
            RegistryError::Invalid(_) => {
                tracing::debug!(presence, reason = %error, "a presence was refused");
                return false;
            }
            RegistryError::Conflict(_) => {}
            _ => {
                self.dirty.insert(site);
                return true;
            }
        }
        self.dirty.insert(site);
        false
    }
}

fn labels(object: &Object) -> &BTreeMap<String, String> {
    &object.metadata().labels
}

/// Carries a step out, if it is still right where it is written.
pub async fn carry_out(registry: &Registry, step: &AllocationStep) -> Result<(), RegistryError> {
    match step {
        AllocationStep::Make(presence) => {
            registry.create_object(MANAGER, (**presence).clone().into()).await.map(drop)
        }
        AllocationStep::Renumber { name, from, to } => {
            let edit = |live: &mut Object| {
                if let Object::VirtualPresence(presence) = live
                    && allocate::is_made(presence)
                    && presence.virtual_ip == *from
                {
                    presence.virtual_ip = to.to_string();
                }
            };
            registry.edit(MANAGER, Kind::VirtualPresence, name, edit).await.map(drop)
        }
        AllocationStep::Remove { name } => remove(registry, name).await,
    }
}

/// Removes a presence that is still the controller's. One that a client has just taken over stays.
async fn remove(registry: &Registry, name: &str) -> Result<(), RegistryError> {
    let Some(loaded) = registry.object(Kind::VirtualPresence, name).await? else { return Ok(()) };
    let Object::VirtualPresence(presence) = &loaded.object else { return Ok(()) };
    if !allocate::is_made(presence) {
        return Ok(());
    }
    let options = DeleteOptions { resource_version: Some(loaded.revision), ..DeleteOptions::default() };
    registry.delete_object_if(MANAGER, Kind::VirtualPresence, name, &options).await
}
