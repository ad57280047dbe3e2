//! The active gateway of each site that has several: decided from drain, priority and attachment, and stored.
//!
//! `activegateways/SITE` names the gateway that streams to the site go to. Every replica decides by the same
//! pure function when a session begins or ends, when EGateways change and when a replica is gone; the record
//! changes only when the decision does. Netmaps contain it (`compile`), and `SiteGateways` puts it before the
//! other gateways of the site. A stream does not wait for the record: a gateway that is not attached is
//! passed over (`Fleet::open_stream_to`).
//!
//! Replicas that do not agree which gateways are attached would overwrite each other without end. A record is
//! therefore written only over the value that the decision was based on, and a replica that was overwritten waits
//! before it writes again, longer each time (`OverwriteBackoff`).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causeway_store::{Op, Store, StoreError};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Fleet;
use crate::netmaps::SiteGateways;

pub const ACTIVE_GATEWAYS: &str = "activegateways/";
/// Changes within this time are handled together. The directory has received the changes of other replicas by then.
const CHANGE_BATCH_DELAY: Duration = Duration::from_millis(200);
/// Interval at which attachments are compared although no session began or ended here: another replica may be
/// gone.
const RECHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Backoff of a replica whose record another replica has overwritten; doubled each time.
const OVERWRITE_BACKOFF_MIN: Duration = Duration::from_secs(2);
const OVERWRITE_BACKOFF_MAX: Duration = Duration::from_secs(60);

/// The stored active gateways, by site.
pub type ActiveGateways = BTreeMap<String, String>;

/// The value of a record.
#[derive(Serialize, Deserialize)]
struct ActiveGatewayRecord {
    gateway: String,
}

/// Returns the site that a key names. None: the key is not one of an active gateway.
pub fn site_of_active(key: &str) -> Option<&str> {
    key.strip_prefix(ACTIVE_GATEWAYS)
}

/// Returns the gateway in a record. None: the record cannot be read, as one of a newer version.
pub fn decode_active(value: &[u8]) -> Option<String> {
    serde_json::from_slice(value).ok().map(|record: ActiveGatewayRecord| record.gateway)
}

/// Decides which gateway of a site is active: the first that is attached, of `gateways` in the order of
/// `EGateway::rank`. While none is attached, the stored one stays, as long as it is a gateway of the site. A gateway that
/// drains is active only if no other one is attached: packets between sites then have no other way.
pub fn active_gateway<'a>(
    gateways: &'a [String],
    is_attached: impl Fn(&str) -> bool,
    stored: Option<&str>,
) -> Option<&'a str> {
    let attached = gateways.iter().find(|gateway| is_attached(gateway));
    let kept = || gateways.iter().find(|gateway| Some(gateway.as_str()) == stored);
    attached.or_else(kept).map(String::as_str)
}

/// The loop that stores the active gateway of each site.
pub struct ActiveGatewayWriter {
    store: Store,
    fleet: Arc<Fleet>,
    sites: watch::Receiver<Arc<SiteGateways>>,
    /// Changes when a session begins or ends here.
    sessions: watch::Receiver<u64>,
}

impl ActiveGatewayWriter {
    pub fn new(
        store: Store,
        fleet: Arc<Fleet>,
        sites: watch::Receiver<Arc<SiteGateways>>,
        sessions: watch::Receiver<u64>,
    ) -> ActiveGatewayWriter {
        ActiveGatewayWriter { store, fleet, sites, sessions }
    }

    pub async fn run(mut self, stop: CancellationToken) {
        let mut backoff = OverwriteBackoff::default();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.wait() => {}
            }
            let sites = self.sites.borrow_and_update().clone();
            self.sessions.mark_unchanged();
            let changes = records_to_change(&sites, |gateway| self.fleet.is_attached(gateway));
            for change in backoff.filter(changes, &sites, Instant::now()) {
                if stop.is_cancelled() {
                    return;
                }
                if self.commit(&change).await {
                    backoff.handle_written(&change, Instant::now());
                }
            }
        }
    }

    async fn wait(&mut self) {
        tokio::select! {
            Ok(()) = self.sites.changed() => {}
            Ok(()) = self.sessions.changed() => {}
            () = tokio::time::sleep(RECHECK_INTERVAL) => return,
        }
        tokio::time::sleep(CHANGE_BATCH_DELAY).await;
    }

    /// Returns whether the record was written.
    async fn commit(&self, change: &ActiveChange) -> bool {
        let key = format!("{ACTIVE_GATEWAYS}{}", change.site);
        match store_change(&self.store, &key, change).await {
            Ok(is_written) => is_written,
            // Another replica was faster.
            Err(
                StoreError::NotFound { .. } | StoreError::Conflict { .. } | StoreError::AlreadyExists { .. },
            ) => false,
            Err(error) => {
                tracing::debug!(key, %error, "cannot store the active gateway of the site");
                false
            }
        }
    }
}

/// The change of one record.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ActiveChange {
    site: String,
    /// The value that the decision was based on.
    from: Option<String>,
    /// None: the record is not needed any more.
    to: Option<String>,
}

/// Writes a change if the record still has the value that the decision was based on. Otherwise its event is on the
/// way, and the decision is made again.
async fn store_change(store: &Store, key: &str, change: &ActiveChange) -> Result<bool, StoreError> {
    let stored = store.get(key).await?;
    if stored.as_ref().and_then(|record| decode_active(&record.value)) != change.from {
        return Ok(false);
    }
    let key = key.to_owned();
    let value = |gateway: &String| -> Bytes {
        let record = ActiveGatewayRecord { gateway: gateway.clone() };
        serde_json::to_vec(&record).unwrap_or_default().into()
    };
    let op = match (stored, &change.to) {
        (Some(record), Some(gateway)) => Op::Update { key, value: value(gateway), expected: record.revision },
        (None, Some(gateway)) => Op::Create { key, value: value(gateway) },
        (Some(record), None) => Op::Delete { key, expected: Some(record.revision) },
        (None, None) => return Ok(false),
    };
    store.commit(vec![op]).await.map(|_| true)
}

/// Returns the records to write: of sites with several gateways whose active one changed. A site with one
/// gateway needs none.
fn records_to_change(sites: &SiteGateways, is_attached: impl Fn(&str) -> bool) -> Vec<ActiveChange> {
    let mut changes = Vec::new();
    let mut shared = BTreeSet::new();
    for (site, gateways) in sites.shared() {
        shared.insert(site);
        let stored = sites.active(site);
        let Some(active) = active_gateway(gateways, &is_attached, stored) else { continue };
        if stored != Some(active) {
            let (from, to) = (stored.map(str::to_owned), Some(active.to_owned()));
            changes.push(ActiveChange { site: site.to_owned(), from, to });
        }
    }
    let left = sites.active_gateways().iter().filter(|(site, _)| !shared.contains(site.as_str()));
    changes.extend(left.map(|(site, stored)| ActiveChange {
        site: site.clone(),
        from: Some(stored.clone()),
        to: None,
    }));
    changes
}

/// Backoff of a replica whose records another replica overwrites. Holds the record that this replica wrote last for
/// each site with several gateways, and the time before it may be written again. Time is an argument.
#[derive(Default)]
struct OverwriteBackoff {
    written: HashMap<String, Written>,
}

struct Written {
    gateway: String,
    at: Instant,
    wait: Duration,
}

impl OverwriteBackoff {
    /// Removes changes that would restore an overwritten record of this replica before its backoff has elapsed.
    fn filter(
        &mut self,
        changes: Vec<ActiveChange>,
        sites: &SiteGateways,
        now: Instant,
    ) -> Vec<ActiveChange> {
        self.written.retain(|site, _| sites.active(site).is_some());
        let is_due = |change: &ActiveChange| match (&change.to, self.written.get(&change.site)) {
            (Some(to), Some(written)) if *to == written.gateway => now >= written.at + written.wait,
            _ => true,
        };
        changes.into_iter().filter(is_due).collect()
    }

    fn handle_written(&mut self, change: &ActiveChange, now: Instant) {
        let Some(gateway) = change.to.clone() else {
            self.written.remove(&change.site);
            return;
        };
        let before = self.written.get(&change.site).filter(|before| before.gateway == gateway);
        // A record that was not overwritten for this long resets the backoff.
        let before = before.filter(|before| now < before.at + before.wait + OVERWRITE_BACKOFF_MAX);
        let wait =
            before.map_or(OVERWRITE_BACKOFF_MIN, |before| (before.wait * 2).min(OVERWRITE_BACKOFF_MAX));
        self.written.insert(change.site.clone(), Written { gateway, at: now, wait });
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::{EGateway, ObjectMeta, ObjectSet};

    use super::*;

    #[test]
    fn the_first_attached_gateway_is_active_and_stays_while_none_is() {
        let gateways = ["a", "b", "c"].map(str::to_owned);
        let check = |attached: &[&str], stored: Option<&str>, expected: Option<&str>| {
            assert_eq!(active_gateway(&gateways, |name| attached.contains(&name), stored), expected);
        };
        check(&["a", "b", "c"], None, Some("a"));
        check(&["b", "c"], Some("a"), Some("b"));
        check(&["a", "b"], Some("b"), Some("a"));
        check(&[], Some("b"), Some("b"));
        check(&[], Some("moved-away"), None);
        check(&[], None, None);
    }

    #[test]
    fn a_record_is_written_when_the_decision_changes_and_removed_with_the_second_gateway() {
        let mut objects = ObjectSet::default();
        for (name, site, priority) in [("a", "oslo", 7), ("b", "oslo", 1), ("c", "rome", 0)] {
            let metadata = ObjectMeta::named(name);
            let gateway = EGateway { metadata, e_site_name: site.into(), priority, ..EGateway::default() };
            objects.insert(gateway.into());
        }
        let decided = |objects: &ObjectSet, stored: &[(&str, &str)], attached: &[&str]| -> Vec<String> {
            let stored = stored.iter().map(|(site, name)| ((*site).to_owned(), (*name).to_owned()));
            let sites = SiteGateways::of(objects, &stored.collect());
            let show = |change: &ActiveChange| match &change.to {
                Some(gateway) => format!("{} {gateway}", change.site),
                None => format!("delete {}", change.site),
            };
            records_to_change(&sites, |name| attached.contains(&name)).iter().map(show).collect()
        };
        assert_eq!(decided(&objects, &[], &["a", "b", "c"]), ["oslo a"]);
        assert_eq!(decided(&objects, &[("oslo", "a")], &["a", "b", "c"]), [""; 0]);
        assert_eq!(decided(&objects, &[("oslo", "a")], &["b"]), ["oslo b"]);
        assert_eq!(decided(&objects, &[("oslo", "b")], &[]), [""; 0], "none is attached");
        let first = objects.gateway("a").unwrap().clone();
        objects.insert(EGateway { drain: true, ..first.clone() }.into());
        assert_eq!(decided(&objects, &[("oslo", "a")], &["a", "b"]), ["oslo b"], "a drains");
        assert_eq!(decided(&objects, &[("oslo", "b")], &["a"]), ["oslo a"], "packets have no other way");
        objects.insert(first.into());
        assert_eq!(decided(&objects, &[("oslo", "b")], &["a", "b"]), ["oslo a"], "the drain has ended");
        objects.remove(causeway_api::Kind::EGateway, "a");
        assert_eq!(decided(&objects, &[("oslo", "a")], &["b"]), ["delete oslo"]);
    }
    fn change(from: Option<&str>, to: Option<&str>) -> ActiveChange {
        let owned = |name: &str| name.to_owned();
        ActiveChange { site: "oslo".into(), from: from.map(owned), to: to.map(owned) }
    }

    #[tokio::test]
    async fn a_record_that_another_replica_wrote_meanwhile_is_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let spec = causeway_store::StoreSpec::Sqlite { path: folder.path().join("store.db") };
        let store = Store::open(spec).await.unwrap();
        let key = "activegateways/oslo";
        let store_it = async |change: ActiveChange| store_change(&store, key, &change).await.unwrap();
        let stored = async || store.get(key).await.unwrap().and_then(|record| decode_active(&record.value));
        assert!(store_it(change(None, Some("a"))).await);
        assert!(!store_it(change(None, Some("b"))).await, "decided before the record existed");
        assert!(store_it(change(Some("a"), Some("b"))).await);
        assert!(!store_it(change(Some("a"), Some("c"))).await, "decided on an older value");
        assert!(!store_it(change(Some("a"), None)).await);
        assert_eq!(stored().await.as_deref(), Some("b"));
        assert!(store_it(change(Some("b"), None)).await);
        assert_eq!(stored().await, None);
    }

    /// Two replicas that never agree: each sees its own gateway attached and not the other's.
    #[test]
    fn replicas_that_disagree_write_less_and_less_often() {
        let begun = Instant::now();
        let mut replicas = [("a", OverwriteBackoff::default()), ("b", OverwriteBackoff::default())];
        let (mut stored, mut writes, mut late_writes) = ("a".to_owned(), 0, 0);
        for step in 0..3600 * 5 {
            let now = begun + Duration::from_millis(200) * step;
            for (own, backoff) in &mut replicas {
                let active = [("oslo".to_owned(), stored.clone())].into();
                let sites = SiteGateways::of(&ObjectSet::default(), &active);
                let wanted = (stored != *own).then(|| change(Some(&stored), Some(own)));
                for due in backoff.filter(wanted.into_iter().collect(), &sites, now) {
                    backoff.handle_written(&due, now);
                    stored = (*own).to_owned();
                    writes += 1;
                    late_writes += u32::from(step >= 1800 * 5);
                }
            }
        }
        assert!(writes < 150, "{writes} writes in an hour");
        assert!((40..=61).contains(&late_writes), "{late_writes} writes in the second half");
    }

    #[test]
    fn a_failover_and_its_return_do_not_wait() {
        let (mut backoff, now) = (OverwriteBackoff::default(), Instant::now());
        let mut write = |from: &str, to: &str, at: Instant| {
            let active = [("oslo".to_owned(), from.to_owned())].into();
            let sites = SiteGateways::of(&ObjectSet::default(), &active);
            let due = backoff.filter(vec![change(Some(from), Some(to))], &sites, at);
            due.iter().for_each(|change| backoff.handle_written(change, at));
            due.len()
        };
        assert_eq!(write("a", "b", now), 1);
        assert_eq!(
            write("b", "a", now + Duration::from_secs(1)),
            1,
            "another gateway than this replica wrote last"
        );
        assert_eq!(write("a", "b", now + Duration::from_secs(2)), 1);
    }
}
