//! Compares the site in each EGateway with the site its gateway was enrolled for.
//!
//! Follows EGateways and the records of enrolment in the store. If the two differ, sessions of that
//! gateway end here, and the condition `EnrolledAtSite` of the EGateway says why. New sessions are refused by
//! `sessions::greeting`, which asks the store itself. Running in several replicas changes nothing: each ends
//! its own sessions, and the condition is the same.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use causeway_api::conditions::ENROLLED_AT_SITE;
use causeway_api::meta::set_condition;
use causeway_api::{ConditionStatus, Kind, Object};
use causeway_apiserver::registry::prefix;
use causeway_apiserver::{Registry, RegistryError};
use causeway_store::{FollowBackoff, Followed, Store, StoreFollower, StoreRecord};
use tokio_util::sync::CancellationToken;

use crate::identity::{ENROLLED_PREFIX, enrolled_site};
use crate::reconcile::MANAGER;
use crate::sessions::{Sessions, enrol_anew, wrong_site_message};

/// Delay after an error of the store. Short, as for revocations: moving a gateway to another site ends its sessions.
const RETRY_DELAY: Duration = Duration::from_millis(300);

pub struct GatewaySites {
    pub store: Store,
    pub registry: Arc<Registry>,
    pub sessions: Sessions,
}

/// State of every gateway. As many entries as there are objects and records.
#[derive(Debug, Default)]
struct Known {
    /// `eSiteName` of the EGateway.
    objects: HashMap<String, String>,
    /// The site of the last certificate that is not revoked.
    enrolled: HashMap<String, String>,
    /// Status of the condition; absent where there is none.
    shown: HashMap<String, bool>,
    objects_loaded: bool,
    enrolled_loaded: bool,
}

/// Result of a step in the following of EGateways.
#[derive(Debug, Default, PartialEq, Eq)]
struct ChangedGateways {
    gateways: BTreeSet<String>,
    /// A gateway may stand elsewhere than before.
    moved: bool,
}

impl Known {
    /// The site that the certificate names, where it is another than the object's.
    fn mismatch(&self, gateway: &str) -> Option<(&str, &str)> {
        let (enrolled, site) = (self.enrolled.get(gateway)?, self.objects.get(gateway)?);
        (enrolled != site).then_some((enrolled, site))
    }

    /// The condition that must be written, if any: a gateway that never was elsewhere needs none.
    fn due(&self, gateway: &str) -> Option<bool> {
        let is_here = self.mismatch(gateway).is_none();
        match self.shown.get(gateway) {
            None if is_here => None,
            shown => (shown != Some(&is_here)).then_some(is_here),
        }
    }

    fn is_loaded(&self) -> bool {
        self.objects_loaded && self.enrolled_loaded
    }

    fn handle_objects(&mut self, prefix: &str, step: Followed<Vec<StoreRecord>>) -> ChangedGateways {
        match step {
            Followed::Loaded { state, .. } => {
                self.objects.clear();
                self.shown.clear();
                self.objects_loaded = true;
                for record in state {
                    if let Some(gateway) = record.key.strip_prefix(prefix) {
                        self.take_object(gateway, Some(&record.value));
                    }
                }
                ChangedGateways { gateways: self.objects.keys().cloned().collect(), moved: true }
            }
            Followed::Event(event) => match event.key.strip_prefix(prefix) {
                Some(gateway) => ChangedGateways {
                    moved: self.take_object(gateway, event.value.as_deref()),
                    gateways: BTreeSet::from([gateway.to_owned()]),
                },
                None => ChangedGateways::default(),
            },
            // The last state is valid until the next load.
            Followed::Progress(_) | Followed::Failed(_) => ChangedGateways::default(),
        }
    }

    /// Returns the gateways whose condition may be different now.
    fn handle_records(&mut self, step: Followed<Vec<StoreRecord>>) -> BTreeSet<String> {
        match step {
            Followed::Loaded { state, .. } => {
                self.enrolled.clear();
                self.enrolled_loaded = true;
                for record in state {
                    if let Some(gateway) = record.key.strip_prefix(ENROLLED_PREFIX) {
                        self.take_record(gateway, Some(&record.value));
                    }
                }
                self.objects.keys().cloned().collect()
            }
            Followed::Event(event) => match event.key.strip_prefix(ENROLLED_PREFIX) {
                Some(gateway) => {
                    self.take_record(gateway, event.value.as_deref());
                    BTreeSet::from([gateway.to_owned()])
                }
                None => BTreeSet::new(),
            },
            Followed::Progress(_) | Followed::Failed(_) => BTreeSet::new(),
        }
    }

    /// True when the gateway stands elsewhere than before.
    fn take_object(&mut self, gateway: &str, value: Option<&[u8]>) -> bool {
        let object = value.and_then(|value| Object::from_stored(Kind::EGateway, value).ok());
        let Some(Object::EGateway(object)) = object else {
            self.objects.remove(gateway);
            self.shown.remove(gateway);
            return false;
        };
        match object.status.condition(ENROLLED_AT_SITE) {
            Some(condition) => {
                self.shown.insert(gateway.to_owned(), condition.status == ConditionStatus::True);
            }
            None => drop(self.shown.remove(gateway)),
        }
        let before = self.objects.insert(gateway.to_owned(), object.e_site_name.clone());
        before.is_some_and(|before| before != object.e_site_name)
    }

    fn take_record(&mut self, gateway: &str, value: Option<&[u8]>) {
        match value.and_then(enrolled_site) {
            Some(site) => drop(self.enrolled.insert(gateway.to_owned(), site)),
            None => drop(self.enrolled.remove(gateway)),
        }
    }
}

impl GatewaySites {
    /// Follows both collections until `stop`. A closed store has no more steps.
    pub async fn run(self, stop: CancellationToken) {
        let (gateways, backoff) = (prefix(Kind::EGateway), FollowBackoff::constant(RETRY_DELAY));
        let mut objects = StoreFollower::records(&self.store, &gateways, backoff);
        let mut records = StoreFollower::records(&self.store, ENROLLED_PREFIX, backoff);
        let mut known = Known::default();
        let mut due = BTreeSet::new();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                Some(step) = objects.next() => {
                    let changed = known.handle_objects(&gateways, step);
                    if changed.moved {
                        self.end_sessions(&known);
                    }
                    due.extend(changed.gateways);
                }
                Some(step) = records.next() => due.extend(known.handle_records(step)),
            }
            // Before both are loaded, a gateway would seem never to have been enrolled.
            if known.is_loaded() {
                for gateway in std::mem::take(&mut due) {
                    self.write(&mut known, &gateway).await;
                }
            }
        }
    }

    fn end_sessions(&self, known: &Known) {
        self.sessions.handle_moved(|gateway| known.objects.get(gateway).map(String::as_str));
    }

    async fn write(&self, known: &mut Known, gateway: &str) {
        let Some(is_here) = known.due(gateway) else { return };
        let (reason, message) = match known.mismatch(gateway) {
            None => ("EnrolledHere", String::new()),
            Some((enrolled, site)) => {
                let message = wrong_site_message(gateway, enrolled, site);
                (
                    "EnrolledElsewhere",
                    format!("{message}; its sessions are refused; {}", enrol_anew(gateway, site)),
                )
            }
        };
        let now = self.registry.now();
        let edit = |object: &mut Object| {
            let generation = object.metadata().generation;
            let conditions = &mut object.status_mut().conditions;
            set_condition(conditions, ENROLLED_AT_SITE, is_here.into(), reason, &message, now, generation);
        };
        match self.registry.edit_status(MANAGER, Kind::EGateway, gateway, edit).await {
            Ok(_) => drop(known.shown.insert(gateway.to_owned(), is_here)),
            // Deleted meanwhile; the event comes by.
            Err(RegistryError::NotFound(_)) => {}
            Err(error) => tracing::warn!(
                gateway,
                reason = %error,
                "cannot update the condition EnrolledAtSite of an EGateway; it is tried again with its next change"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::{EGateway, ObjectMeta, Time};
    use causeway_store::Revision;

    use super::*;

    fn stored(site: &str, condition: Option<bool>) -> Vec<u8> {
        let metadata = ObjectMeta::named("g");
        let mut gateway = EGateway { metadata, e_site_name: site.into(), ..EGateway::default() };
        if let Some(holds) = condition {
            let conditions = &mut gateway.status.conditions;
            set_condition(conditions, ENROLLED_AT_SITE, holds.into(), "R", "", Time::from_second(0), 1);
        }
        Object::from(gateway).encode().to_vec()
    }

    #[test]
    fn a_gateway_that_is_enrolled_elsewhere_is_told_of_and_so_is_its_return() {
        let check = |site: &str, enrolled: Option<&str>, shown: Option<bool>, due: Option<bool>| {
            let mut known = Known::default();
            known.take_object("g", Some(&stored(site, shown)));
            if let Some(enrolled) = enrolled {
                known.enrolled.insert("g".into(), enrolled.into());
            }
            assert_eq!(known.due("g"), due, "{site} {enrolled:?} {shown:?}");
        };
        check("oslo", None, None, None);
        check("oslo", Some("oslo"), None, None);
        check("oslo", Some("rome"), None, Some(false));
        check("oslo", Some("rome"), Some(false), None);
        check("oslo", Some("oslo"), Some(false), Some(true));
        check("oslo", Some("oslo"), Some(true), None);
        // Revoked, or never enrolled: no certificate names another site.
        check("oslo", None, Some(false), Some(true));
    }

    #[test]
    fn a_load_replaces_what_was_known_and_nothing_is_due_before_both_are_loaded() {
        let record = |key: &str, value: Vec<u8>| StoreRecord {
            key: key.into(),
            value: value.into(),
            revision: Revision(1),
            created: Revision(1),
        };
        let loaded = |records| Followed::Loaded { state: records, revision: Revision(1) };
        let mut known = Known::default();
        let changed = known.handle_objects("g/", loaded(vec![record("g/a", stored("oslo", None))]));
        assert_eq!(changed, ChangedGateways { gateways: BTreeSet::from(["a".into()]), moved: true });
        assert!(!known.is_loaded());
        assert_eq!(known.handle_records(loaded(vec![])), BTreeSet::from(["a".into()]));
        assert!(known.is_loaded());
        // Gone while events were missed.
        assert_eq!(known.handle_objects("g/", loaded(vec![])).gateways, BTreeSet::new());
        assert!(known.objects.is_empty());
    }

    #[test]
    fn only_a_change_of_the_site_ends_sessions() {
        let mut known = Known::default();
        assert!(!known.take_object("g", Some(&stored("oslo", None))));
        assert!(!known.take_object("g", Some(&stored("oslo", Some(true)))));
        assert!(known.take_object("g", Some(&stored("rome", None))));
        assert!(!known.take_object("g", None));
        assert!(known.objects.is_empty() && known.shown.is_empty(), "nothing is kept of deleted objects");
    }
}
