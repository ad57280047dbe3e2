//! Reports that arrived at this replica and are not in the store yet, and what the store holds of reports and
//! objects.
//!
//! `ReportInbox` is filled by the spool intake and by the netmap publisher. `ReportedState` is filled by the
//! reconciler, which follows the store: so a record is known before any condition that was computed from it.
//! Both are bounded by the number of gateways and services.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};

use causeway_api::conditions::{BACKENDS_ANSWER, is_connected};
use causeway_api::sync::MutexExt;
use causeway_api::{EGateway, Object, ObjectSet};
use causeway_gateway::problems::Problems;
use causeway_store::{Revision, StoreRecord};
use serde_json::Value;
use tokio::sync::Notify;

use crate::replicas::{ActiveGateways, decode_active, site_of_active};

use super::record::{Report, ReportSubject, ReportTable};

/// Reports that are not in the store yet, by gateway. A newer report on a subject replaces an older one.
#[derive(Default)]
pub struct ReportInbox {
    reports: Mutex<BTreeMap<String, BTreeMap<ReportSubject, Report>>>,
    pub(super) wake: Notify,
}

impl ReportInbox {
    pub fn put_problems(&self, site: &str, gateway: &str, told: Problems) {
        Report::of_problems(site, told).into_iter().for_each(|report| self.report(gateway, report));
    }

    /// Takes the problems out of a status record of an edge. A record without them changes nothing.
    pub fn put_status(&self, site: &str, gateway: &str, status: &Value) {
        if status.get("regrets").is_none() {
            return;
        }
        match serde_json::from_value(status.clone()) {
            Ok(told) => self.put_problems(site, gateway, told),
            Err(error) => tracing::warn!(gateway, %error, "cannot decode the problem report of the gateway"),
        }
    }

    pub fn report(&self, gateway: &str, report: Report) {
        self.lock().entry(gateway.to_owned()).or_default().insert(report.subject(), report);
        self.wake.notify_one();
    }

    /// Puts back a report that could not be stored, unless a newer one has arrived. Wakes nothing: it is
    /// tried again later.
    pub(super) fn put_back(&self, gateway: &str, report: Report) {
        self.lock().entry(gateway.to_owned()).or_default().entry(report.subject()).or_insert(report);
    }

    pub(super) fn take(&self) -> Vec<(String, Report)> {
        let taken = std::mem::take(&mut *self.lock());
        let reports = |(gateway, reports): (String, BTreeMap<ReportSubject, Report>)| {
            reports.into_values().map(move |report| (gateway.clone(), report))
        };
        taken.into_iter().flat_map(reports).collect()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, BTreeMap<ReportSubject, Report>>> {
        self.reports.lock_ignoring_poison()
    }
}

/// Reports and objects as the store holds them, and what changed since the writer looked last.
#[derive(Default)]
pub struct ReportedState {
    facts: Mutex<ReportedFacts>,
    pub(super) wake: Notify,
}

#[derive(Default)]
pub(super) struct ReportedFacts {
    /// The reconciler's picture; None until it has loaded the store once. Locked before this, never after.
    pub objects: Option<Arc<Mutex<ObjectSet>>>,
    /// The revision up to which the objects are known.
    pub seen: Revision,
    pub table: ReportTable,
    pub active: ActiveGateways,
    pub changed: ChangedObjects,
    /// Gateways that the objects did not have, with reports newer than the objects. Decided when the objects is as new.
    pub undecided: BTreeSet<String>,
}

#[derive(Default, PartialEq, Eq, Debug)]
pub(super) struct ChangedObjects {
    /// The picture was loaded anew.
    pub everything: bool,
    pub gateways: BTreeSet<String>,
    pub services: BTreeSet<String>,
    /// Sites whose responsible gateway, or what it reports, may be different now.
    pub sites: BTreeSet<String>,
    /// Gateways that have a new report.
    pub reporters: BTreeSet<String>,
}

impl ChangedObjects {
    pub fn extend(&mut self, other: ChangedObjects) {
        self.everything |= other.everything;
        self.gateways.extend(other.gateways);
        self.services.extend(other.services);
        self.sites.extend(other.sites);
        self.reporters.extend(other.reporters);
    }
}

impl ReportedState {
    /// The reconciler has loaded everything. Called with the objects unlocked.
    pub fn reset(
        &self,
        objects: Arc<Mutex<ObjectSet>>,
        active: ActiveGateways,
        reports: &[StoreRecord],
        revision: Revision,
    ) {
        let mut facts = self.lock();
        facts.objects = Some(objects);
        facts.active = active;
        facts.seen = revision;
        facts.table.reset(reports.iter().map(|record| (&*record.key, &*record.value, record.revision)));
        facts.changed.everything = true;
        drop(facts);
        self.wake.notify_one();
    }

    /// An object changed. Called with the objects locked.
    pub fn note(&self, revision: Revision, old: Option<&Object>, new: Option<&Object>) {
        let mut facts = self.lock();
        let is_due = facts.see(revision);
        let is_noted = facts.changed.note(old, new);
        drop(facts);
        if is_noted || is_due {
            self.wake.notify_one();
        }
    }

    /// Something else changed in the store: perhaps a report, or the active gateway of a site.
    pub fn note_record(&self, key: &str, value: Option<&[u8]>, revision: Revision) {
        let mut facts = self.lock();
        let is_due = facts.see(revision);
        if let Some(site) = site_of_active(key) {
            match value.and_then(decode_active) {
                Some(gateway) => facts.active.insert(site.to_owned(), gateway),
                None => facts.active.remove(site),
            };
            facts.changed.sites.insert(site.to_owned());
        } else {
            let changed = facts.table.handle_record(key, value, revision);
            if changed.is_none() && !is_due {
                return;
            }
            facts.changed.reporters.extend(changed);
        }
        drop(facts);
        self.wake.notify_one();
    }

    /// The store has moved without a change.
    pub fn handle_revision(&self, revision: Revision) {
        if self.lock().see(revision) {
            self.wake.notify_one();
        }
    }

    pub(super) fn objects(&self) -> Option<Arc<Mutex<ObjectSet>>> {
        self.lock().objects.clone()
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, ReportedFacts> {
        self.facts.lock_ignoring_poison()
    }
}

impl ReportedFacts {
    /// The objects are known up to `revision`. Returns true if undecided gateways must be looked at again.
    fn see(&mut self, revision: Revision) -> bool {
        let is_due = revision > self.seen && !self.undecided.is_empty();
        self.seen = self.seen.max(revision);
        if is_due {
            self.changed.reporters.append(&mut self.undecided);
        }
        is_due
    }

    /// This replica stored a report. The objects are not known up to `revision` yet.
    pub fn note_report(&mut self, key: &str, value: &[u8], revision: Revision) {
        if let Some(gateway) = self.table.handle_record(key, Some(value), revision) {
            self.changed.reporters.insert(gateway);
        }
    }

    /// This replica removed a report.
    pub fn note_removed(&mut self, key: &str, revision: Revision) {
        if let Some(gateway) = self.table.handle_record(key, None, revision) {
            self.changed.reporters.insert(gateway);
        }
    }
}

impl ChangedObjects {
    fn note(&mut self, old: Option<&Object>, new: Option<&Object>) -> bool {
        let either = old.or(new);
        match either {
            Some(Object::EGateway(gateway)) => {
                let of = |object: Option<&Object>| match object {
                    Some(Object::EGateway(gateway)) => Some(role(gateway)),
                    _ => None,
                };
                let (before, now) = (of(old), of(new));
                if before != now {
                    self.sites.extend([before, now].into_iter().flatten().map(|(site, ..)| site));
                }
                self.gateways.insert(gateway.metadata.name.clone());
                true
            }
            Some(Object::EService(service)) => {
                let of = |object: Option<&Object>| match object {
                    Some(Object::EService(service)) => {
                        let condition = service.status.condition(BACKENDS_ANSWER).cloned();
                        Some((service.e_site_name.clone(), condition))
                    }
                    _ => None,
                };
                let is_changed = of(old) != of(new);
                if is_changed {
                    self.services.insert(service.metadata.name.clone());
                }
                is_changed
            }
            _ => false,
        }
    }
}

/// Returns the fields that decide which gateway of a site is responsible.
fn role(gateway: &EGateway) -> (String, bool, i64, bool) {
    (gateway.e_site_name.clone(), gateway.drain, gateway.priority, is_connected(gateway))
}

#[cfg(test)]
mod tests {
    use causeway_gateway::problems::BackendOutage;

    use super::*;

    #[test]
    fn a_report_is_read_and_anything_else_is_not() {
        let inbox = ReportInbox::default();
        inbox.put_status("x", "a", &serde_json::json!({"started": "now"}));
        inbox.put_status("x", "b", &serde_json::json!({"regrets": 7}));
        inbox.put_status("x", "c", &serde_json::json!({"regrets": ["no room"]}));
        let backends = serde_json::json!({"web": {"up": 1, "of": 2, "why": "gone"}});
        inbox.put_status("x", "d", &serde_json::json!({"regrets": [], "backends": backends}));
        let reports = inbox.take();
        let of = |gateway: &str| reports.iter().filter(|(found, _)| found == gateway).count();
        assert_eq!((of("a"), of("b"), of("c"), of("d"), reports.len()), (0, 0, 5, 5, 10));
        let listening = Report::Listening { problems: vec!["no room".into()] };
        assert!(reports.contains(&("c".into(), listening)), "{reports:?}");
        let outage = BackendOutage { up: 1, of: 2, why: "gone".into(), denied: false };
        let services = [("web".to_owned(), outage)].into();
        assert!(reports.contains(&("d".into(), Report::Backends { site: "x".into(), services })));
    }
}
