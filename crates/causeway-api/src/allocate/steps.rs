//! Computes the steps that give a site the presences it should have.
//!
//! A site should have one presence per service that exists and is exposed there, and per address family of
//! the site, unless a user created one. Presences that the controller created and that are not needed any
//! more are deleted; those outside a changed range get a new address.

use std::collections::{BTreeMap, HashSet};
use std::net::IpAddr;

use super::{
    AddressFamily, AddressPool, FreedAddresses, MADE_BY, MADE_LABEL, is_made, name, translated_family,
};
use crate::conditions;
use crate::kinds::{EGateway, VirtualPresence};
use crate::meta::ObjectMeta;
use crate::object_set::ObjectSet;
use crate::presence;

/// One step.
#[derive(Clone, PartialEq, Debug)]
pub enum AllocationStep {
    Make(Box<VirtualPresence>),
    /// The current address is in no range of its site any more.
    Renumber {
        name: String,
        from: String,
        to: IpAddr,
    },
    Remove {
        name: String,
    },
}

impl AllocationStep {
    pub fn presence(&self) -> &str {
        match self {
            AllocationStep::Make(presence) => &presence.metadata.name,
            AllocationStep::Renumber { name, .. } | AllocationStep::Remove { name } => name,
        }
    }

    /// The address that the step takes.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            AllocationStep::Make(presence) => presence.ip_addr(),
            AllocationStep::Renumber { to, .. } => Some(*to),
            AllocationStep::Remove { .. } => None,
        }
    }
}

/// Steps in progress at a site that are not visible among the objects yet.
#[derive(Clone, Default, Debug)]
pub struct PendingAllocations {
    /// Presences that are being written.
    pub presences: HashSet<String>,
    /// Addresses that are being taken, or turned out to be taken.
    pub addresses: HashSet<IpAddr>,
}

/// Returns all steps that a site needs.
pub fn steps(
    objects: &ObjectSet,
    freed: &FreedAddresses,
    claims: &PendingAllocations,
    site: &str,
) -> Vec<AllocationStep> {
    let wanted: BTreeMap<&str, Option<AddressFamily>> = objects
        .exposes_at(site)
        .filter(|expose| conditions::why_not_forwarded(objects, expose).is_none())
        .filter(|expose| objects.service(&expose.e_service_name).is_some())
        .map(|expose| (expose.e_service_name.as_str(), translated_family(objects, expose)))
        .collect();
    let mut present: BTreeMap<&str, Vec<&VirtualPresence>> = BTreeMap::new();
    for found in objects.presences_at(site) {
        present.entry(&found.e_service_name).or_default().push(found);
    }
    let mut draft = Draft {
        objects,
        freed,
        claims,
        site,
        gateways: objects.gateways_at(site).collect(),
        pool: AddressPool::of(objects, site),
        steps: Vec::new(),
    };
    let none = Vec::new();
    for (service, found) in present.iter().filter(|(service, _)| !wanted.contains_key(*service)) {
        draft.reconcile(service, found, None);
    }
    for (service, only) in wanted {
        let families = draft.pool.families().filter(|family| only.is_none_or(|only| *family == only));
        let families = families.collect();
        draft.reconcile(service, present.get(service).unwrap_or(&none), Some(families));
    }
    draft.steps
}

struct Draft<'a> {
    objects: &'a ObjectSet,
    freed: &'a FreedAddresses,
    claims: &'a PendingAllocations,
    site: &'a str,
    gateways: Vec<&'a EGateway>,
    pool: AddressPool<'a>,
    steps: Vec<AllocationStep>,
}

impl Draft<'_> {
    /// Compares the presences of a service at the site with the wanted ones: one of each family. None: it is not exposed.
    fn reconcile(&mut self, service: &str, found: &[&VirtualPresence], wanted: Option<Vec<AddressFamily>>) {
        let by_hand = found.iter().any(|presence| !is_made(presence));
        let made = found.iter().copied().filter(|presence| is_made(presence));
        let Some(families) = wanted.filter(|_| !by_hand) else {
            return made.for_each(|presence| self.remove(presence));
        };
        // Without a gateway the valid addresses are unknown: existing presences stay until there is one.
        if families.is_empty() {
            return;
        }
        let mut kept: HashSet<AddressFamily> = HashSet::new();
        for presence in made {
            match presence.ip_addr().map(AddressFamily::of).filter(|family| families.contains(family)) {
                Some(family) if kept.insert(family) => self.keep(presence, family),
                _ => self.remove(presence),
            }
        }
        families
            .into_iter()
            .filter(|family| !kept.contains(family))
            .for_each(|family| self.make(service, family));
    }

    fn keep(&mut self, presence: &VirtualPresence, family: AddressFamily) {
        let name = &presence.metadata.name;
        if self.claims.presences.contains(name)
            || presence::check_refs(presence, &self.gateways, &[]).is_empty()
        {
            return;
        }
        // A full range is reported by a condition; the old address stays until there is a better one.
        if let Some(to) = self.pool.take(family, self.freed, &self.claims.addresses) {
            self.steps.push(AllocationStep::Renumber {
                name: name.clone(),
                from: presence.virtual_ip.clone(),
                to,
            });
        }
    }

    fn make(&mut self, service: &str, family: AddressFamily) {
        let name = name(service, self.site, family);
        // A name that another object has is reported by a condition.
        if self.claims.presences.contains(&name) || self.objects.presence(&name).is_some() {
            return;
        }
        if let Some(ip) = self.pool.take(family, self.freed, &self.claims.addresses) {
            let labels = [(MADE_LABEL.to_owned(), MADE_BY.to_owned())].into();
            self.steps.push(AllocationStep::Make(Box::new(VirtualPresence {
                metadata: ObjectMeta { labels, ..ObjectMeta::named(&name) },
                virtual_ip: ip.to_string(),
                e_service_name: service.to_owned(),
                e_site_name: self.site.to_owned(),
                ..VirtualPresence::default()
            })));
        }
    }

    fn remove(&mut self, presence: &VirtualPresence) {
        let name = &presence.metadata.name;
        if !self.claims.presences.contains(name) && presence.metadata.deletion_timestamp.is_none() {
            self.steps.push(AllocationStep::Remove { name: name.clone() });
        }
    }
}
