//! The active gateway of each site that has several: decided from priority and attachment, and stored.
//!
//! `activegateways/SITE` names the gateway that streams to the site go to. Every replica decides by the same
//! pure function when a session begins or ends, when EGateways change and when a replica is gone; the record
//! changes only when the decision does. Netmaps contain it (`compile`), and `SiteGateways` puts it before the
//! other gateways of the site. A stream does not wait for the record: a gateway that is not attached is
//! passed over (`Fleet::open_stream_to`).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use causeway_store::{Op, Store, StoreError};
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Fleet;
use crate::netmaps::SiteGateways;

pub const ACTIVE_GATEWAYS: &str = "activegateways/";
/// Changes within this time are looked at together. The directory has caught up with other replicas by then.
const GATHER: Duration = Duration::from_millis(200);
/// Interval at which attachments are compared although no session began or ended here: another replica may be
/// gone.
const LOOK: Duration = Duration::from_secs(1);

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
/// priority and name. While none is attached, the stored one stays, as long as it is a gateway of the site.
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
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = self.wait() => {}
            }
            let sites = self.sites.borrow_and_update().clone();
            self.sessions.mark_unchanged();
            for op in decide(&sites, |gateway| self.fleet.is_attached(gateway)) {
                if stop.is_cancelled() {
                    return;
                }
                self.commit(op).await;
            }
        }
    }

    async fn wait(&mut self) {
        tokio::select! {
            Ok(()) = self.sites.changed() => {}
            Ok(()) = self.sessions.changed() => {}
            () = tokio::time::sleep(LOOK) => return,
        }
        tokio::time::sleep(GATHER).await;
    }

    async fn commit(&self, op: Op) {
        let key = op.key().to_owned();
        match self.store.commit(vec![op]).await {
            // Another replica was faster.
            Ok(_) | Err(StoreError::NotFound { .. }) => {}
            Err(error) => tracing::debug!(key, %error, "cannot store the active gateway of the site"),
        }
    }
}

/// Returns the records to write: of sites with several gateways whose active one changed. A site with one
/// gateway needs none.
fn decide(sites: &SiteGateways, is_attached: impl Fn(&str) -> bool) -> Vec<Op> {
    let mut ops = Vec::new();
    let mut shared = BTreeSet::new();
    for (site, gateways) in sites.shared() {
        shared.insert(site);
        let stored = sites.active(site);
        let Some(active) = active_gateway(gateways, &is_attached, stored) else { continue };
        if stored != Some(active) {
            let record = ActiveGatewayRecord { gateway: active.to_owned() };
            let value: Bytes = serde_json::to_vec(&record).unwrap_or_default().into();
            ops.push(Op::Put { key: format!("{ACTIVE_GATEWAYS}{site}"), value });
        }
    }
    let left = sites.active_gateways().keys().filter(|site| !shared.contains(site.as_str()));
    ops.extend(left.map(|site| Op::Delete { key: format!("{ACTIVE_GATEWAYS}{site}"), expected: None }));
    ops
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
        let mut world = ObjectSet::default();
        for (name, site, priority) in [("a", "oslo", 7), ("b", "oslo", 1), ("c", "rome", 0)] {
            let metadata = ObjectMeta::named(name);
            let gateway = EGateway { metadata, e_site_name: site.into(), priority, ..EGateway::default() };
            world.insert(gateway.into());
        }
        let decided = |world: &ObjectSet, stored: &[(&str, &str)], attached: &[&str]| -> Vec<String> {
            let stored = stored.iter().map(|(site, name)| ((*site).to_owned(), (*name).to_owned()));
            let sites = SiteGateways::of(world, &stored.collect());
            let show = |op: &Op| match op {
                Op::Put { key, value } => format!("{key} {}", decode_active(value).unwrap()),
                op => format!("delete {}", op.key()),
            };
            decide(&sites, |name| attached.contains(&name)).iter().map(show).collect()
        };
        assert_eq!(decided(&world, &[], &["a", "b", "c"]), ["activegateways/oslo a"]);
        assert_eq!(decided(&world, &[("oslo", "a")], &["a", "b", "c"]), [""; 0]);
        assert_eq!(decided(&world, &[("oslo", "a")], &["b"]), ["activegateways/oslo b"]);
        assert_eq!(decided(&world, &[("oslo", "b")], &[]), [""; 0], "none is attached");
        world.remove(causeway_api::Kind::EGateway, "a");
        assert_eq!(decided(&world, &[("oslo", "a")], &["b"]), ["delete activegateways/oslo"]);
    }
}
