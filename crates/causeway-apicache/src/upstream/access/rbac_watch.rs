//! Follows the RBAC objects of the cluster, and tells the decisions about access what changed.
//!
//! Four resources, each listed and watched once. Without the right to read them, answers are asked again by their age alone, and nodes
//! share none.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use causeway_api::selector::Selector;
use causeway_api::{Revision, Status};
use causeway_daemon::sync::MutexExt;
use causeway_watch::ring::Follower;

use super::rbac::{RbacChange, RbacObject};
use super::{AccessDecisions, SharedDecisions};
use crate::resource::ResourceName;
use crate::upstream::feed::{FeedChange, FeedStart, ResourceFeed};
use crate::upstream::feeds::{FeedLease, ResourceFeeds};
use crate::upstream::subscription::next_changes;

const RESOURCES: [&str; 4] = ["clusterrolebindings", "rolebindings", "clusterroles", "roles"];
// A missing right is given by an operator.
const RETRY: Duration = Duration::from_secs(300);
// A watch that lost its place begins anew.
const AGAIN: Duration = Duration::from_secs(1);

/// Runs until the decisions are dropped.
pub async fn run(decisions: Weak<SharedDecisions>, feeds: Arc<ResourceFeeds>) {
    loop {
        let followed = RbacFollower::open(&feeds).await;
        let pause = match followed {
            Ok((follower, watched)) => {
                let Some(shared) = decisions.upgrade() else { return };
                AccessDecisions(shared).set_followed(true, follower.names_nodes());
                follower.follow(&decisions, watched).await;
                AGAIN
            }
            Err(status) => {
                tracing::warn!(
                    reason = status.message,
                    "RBAC objects of the cluster cannot be watched; decisions about access are asked again by their age (see deploy/kubernetes-access.yaml)"
                );
                RETRY
            }
        };
        let Some(shared) = decisions.upgrade() else { return };
        AccessDecisions(shared).set_followed(false, true);
        tokio::time::sleep(pause).await;
    }
}

/// The bindings that name nodes, and the leases that keep the resources followed.
struct RbacFollower {
    node_bindings: Mutex<BTreeSet<String>>,
    _leases: Vec<Arc<FeedLease>>,
}

/// A watched resource.
struct WatchedRbac {
    name: ResourceName,
    changes: Follower<FeedChange>,
}

impl RbacFollower {
    async fn open(feeds: &ResourceFeeds) -> Result<(RbacFollower, Vec<WatchedRbac>), Status> {
        let mut follower = RbacFollower { node_bindings: Mutex::default(), _leases: Vec::new() };
        let mut watched = Vec::new();
        for plural in RESOURCES {
            let name = ResourceName::new("rbac.authorization.k8s.io", "v1", plural);
            let lease = feeds
                .lease("", &name)
                .ok_or_else(|| Status::unavailable("the cloud follows too many resources", 60))?;
            let changes = follower.begin(&name, &lease.feed).await?;
            watched.push(WatchedRbac { name, changes });
            follower._leases.push(lease);
        }
        Ok((follower, watched))
    }

    /// Reads the objects of one resource; changes follow them.
    async fn begin(&self, name: &ResourceName, feed: &ResourceFeed) -> Result<Follower<FeedChange>, Status> {
        let description = feed.ready().await?;
        let all = Selector::parse(description.definition(), "", "").map_err(Status::internal)?;
        match feed.start(&all, Revision(0)) {
            Some(FeedStart::Snapshot(target, changes)) => {
                for (key, object) in &target.objects {
                    self.note(name, key, Some(&object.body));
                }
                Ok(changes)
            }
            _ => Err(Status::unavailable("the resource is not listed yet", 1)),
        }
    }

    /// Returns when a watch has lost its place.
    async fn follow(&self, decisions: &Weak<SharedDecisions>, watched: Vec<WatchedRbac>) {
        let following = watched.into_iter().map(|mut watched| {
            Box::pin(async move {
                while let Some(changes) = next_changes(&mut watched.changes).await {
                    let Some(shared) = decisions.upgrade() else { return };
                    self.take(&AccessDecisions(shared), &watched.name, &changes);
                }
            })
        });
        futures_util::future::select_all(following).await;
    }

    fn take(&self, decisions: &AccessDecisions, name: &ResourceName, changes: &[Arc<FeedChange>]) {
        for change in changes {
            let (before, now) = change.bodies();
            self.note(name, change.key(), now);
            let namespace = change.key().split_once('/').map_or("", |(namespace, _)| namespace);
            decisions.set_followed(true, self.names_nodes());
            decisions.take_change(&RbacChange::new(namespace, is_binding(name), before, now));
        }
    }

    /// Remembers whether a binding names a node.
    fn note(&self, name: &ResourceName, key: &str, body: Option<&[u8]>) {
        let names_node = is_binding(name)
            && body.is_some_and(|body| RbacObject::read(body).is_none_or(|object| object.names_node()));
        let entry = format!("{}/{key}", name.plural);
        let mut bindings = self.node_bindings.lock_ignoring_poison();
        match names_node {
            true => drop(bindings.insert(entry)),
            false => drop(bindings.remove(&entry)),
        }
    }

    fn names_nodes(&self) -> bool {
        !self.node_bindings.lock_ignoring_poison().is_empty()
    }
}

fn is_binding(name: &ResourceName) -> bool {
    name.plural.ends_with("bindings")
}
