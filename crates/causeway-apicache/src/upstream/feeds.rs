//! The followed resources: each begins with its first subscription, and ends some time after its last.
//!
//! A subscription may end without a word, with the task of its session; therefore unused feeds are looked for, at intervals.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use causeway_daemon::sync::MutexExt;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::cluster::ClusterClient;
use super::feed::ResourceFeed;
use crate::resource::ResourceName;

/// All followed resources of a cluster.
pub struct ResourceFeeds {
    cluster: ClusterClient,
    /// As many entries as the cluster has resources, and the names of resources that it does not serve, for a while.
    feeds: Mutex<HashMap<ResourceName, KeptFeed>>,
}

struct KeptFeed {
    lease: Arc<FeedLease>,
    /// The site whose subscription began it.
    begun_by: String,
    unused_since: Option<Instant>,
}

/// Keeps a resource followed.
pub struct FeedLease {
    pub feed: Arc<ResourceFeed>,
    _stop: DropGuard,
}

// A site that returns within this time resumes from the history; a longer absence of all sites costs a comparison.
const LINGER: Duration = Duration::from_secs(300);
const SWEEP: Duration = Duration::from_secs(30);
// Names that a peer can make us ask for; a cluster serves a few hundred resources.
const FEEDS_MAX: usize = 4_096;
// Resources that one site may name before the cluster has shown that it serves them. A new site begins a few dozen.
const UNREADY_PER_SITE_MAX: usize = 128;

impl ResourceFeeds {
    /// Needs a runtime: a task looks for unused feeds until the value is dropped.
    pub fn new(cluster: ClusterClient) -> Arc<ResourceFeeds> {
        let feeds = Arc::new(ResourceFeeds { cluster, feeds: Mutex::default() });
        let swept = Arc::downgrade(&feeds);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(SWEEP).await;
                match swept.upgrade() {
                    Some(feeds) => sweep(&mut feeds.lock(), Instant::now()),
                    None => return,
                }
            }
        });
        feeds
    }

    /// Returns the feed of a resource, and begins it when there is none. `None`: too many resources are followed.
    pub fn lease(&self, site: &str, name: &ResourceName) -> Option<Arc<FeedLease>> {
        let mut feeds = self.lock();
        if let Some(kept) = feeds.get_mut(name) {
            kept.unused_since = None;
            return Some(kept.lease.clone());
        }
        if !has_room(&feeds, site) {
            return None;
        }
        let feed = Arc::new(ResourceFeed::new(name.clone()));
        let stop = CancellationToken::new();
        let (running, cluster, token) = (feed.clone(), self.cluster.clone(), stop.clone());
        tracing::info!(resource = %name, "begins to follow a resource of the cluster");
        tokio::spawn(async move {
            running.run(cluster, token).await;
            tracing::info!(resource = %running.name(), "no site uses the resource; it is no longer followed");
        });
        let lease = Arc::new(FeedLease { feed, _stop: stop.drop_guard() });
        let kept = KeptFeed { lease: lease.clone(), begun_by: site.to_owned(), unused_since: None };
        feeds.insert(name.clone(), kept);
        Some(lease)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<ResourceName, KeptFeed>> {
        self.feeds.lock_ignoring_poison()
    }
}

/// Decides whether a site may begin to follow another resource.
fn has_room(feeds: &HashMap<ResourceName, KeptFeed>, site: &str) -> bool {
    let is_unready = |kept: &&KeptFeed| kept.begun_by == site && !kept.lease.feed.is_ready();
    feeds.len() < FEEDS_MAX && feeds.values().filter(is_unready).count() < UNREADY_PER_SITE_MAX
}

/// Drops feeds that no subscription has used for some time, and at once those that never had an object to send.
fn sweep(feeds: &mut HashMap<ResourceName, KeptFeed>, now: Instant) {
    feeds.retain(|_, kept| {
        if Arc::strong_count(&kept.lease) > 1 {
            kept.unused_since = None;
            return true;
        }
        let since = *kept.unused_since.get_or_insert(now);
        !kept.lease.feed.has_failed() && now.duration_since(since) < LINGER
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_site_that_names_resources_which_do_not_exist_keeps_no_other_site_out() {
        let mut feeds = HashMap::new();
        for number in 0.. {
            if !has_room(&feeds, "oslo") {
                break;
            }
            let name = ResourceName::new("", &format!("v{number}"), "pods");
            let feed = Arc::new(ResourceFeed::new(name.clone()));
            let lease = Arc::new(FeedLease { feed, _stop: CancellationToken::new().drop_guard() });
            feeds.insert(name, KeptFeed { lease, begun_by: "oslo".into(), unused_since: None });
        }
        assert_eq!(feeds.len(), UNREADY_PER_SITE_MAX);
        assert!(has_room(&feeds, "berlin"));
    }

    #[test]
    fn a_feed_outlives_its_last_subscription_for_a_while() {
        let name = ResourceName::new("", "v1", "pods");
        let stop = CancellationToken::new();
        let feed = Arc::new(ResourceFeed::new(name.clone()));
        let lease = Arc::new(FeedLease { feed, _stop: stop.clone().drop_guard() });
        let kept = KeptFeed { lease: lease.clone(), begun_by: "oslo".into(), unused_since: None };
        let mut feeds = HashMap::from([(name, kept)]);
        let now = Instant::now();
        sweep(&mut feeds, now);
        drop(lease);
        sweep(&mut feeds, now + LINGER * 2);
        sweep(&mut feeds, now + LINGER * 3 - Duration::from_secs(1));
        assert_eq!(feeds.len(), 1);
        sweep(&mut feeds, now + LINGER * 3);
        assert!(feeds.is_empty() && stop.is_cancelled());
    }
}
