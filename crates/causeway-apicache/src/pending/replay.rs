//! Sends pending writes on return, in order and in the name of the node that wrote them.
//!
//! `request` and `verdict` decide from values; `PendingReplay` sends. A write that the API server refuses is dropped and reported: in the
//! log of the edge, in `causeway_apicache_dropped_writes`, and in the dump of the edge.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use causeway_api::{Revision, error_chain};
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::log::{PendingKind, PendingLog, PendingWrite};
use crate::identity::LocalCaller;
use crate::kube_object;
use crate::server::pass::Passthrough;
use crate::strategic_patch;
use crate::subscriptions::Subscriptions;

/// The request that a pending write becomes; `None` when the site changed nothing after all.
pub fn request(write: &PendingWrite) -> Option<(Method, String, String, Bytes)> {
    let strategic = "application/strategic-merge-patch+json".to_owned();
    match write.kind {
        PendingKind::Status => {
            let base: Value = serde_json::from_slice(&write.base).ok()?;
            let now: Value = serde_json::from_slice(&write.body).ok()?;
            let mut patch = strategic_patch::difference(&base, &now).filter(Value::is_object)?;
            if !patch["metadata"].is_object() {
                patch["metadata"] = json!({});
            }
            // With the UID the API server refuses another object of the same name.
            patch["metadata"]["uid"] = base["metadata"]["uid"].clone();
            Some((Method::PATCH, format!("{}/status", write.path), strategic, patch.to_string().into()))
        }
        PendingKind::Event => {
            let (collection, _) = write.path.rsplit_once('/')?;
            Some((Method::POST, collection.to_owned(), write.content_type.clone(), write.body.clone()))
        }
        PendingKind::EventPatch => {
            Some((Method::PATCH, write.path.clone(), write.content_type.clone(), write.body.clone()))
        }
    }
}

/// The outcome of a write that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayVerdict {
    Done,
    /// The API server is busy or away; the write is sent again.
    Again,
    /// The API server refuses it for good.
    Dropped,
}

pub fn verdict(kind: PendingKind, code: StatusCode) -> ReplayVerdict {
    match (kind, code.as_u16()) {
        (_, 200..=299) => ReplayVerdict::Done,
        // The first answer was lost with the link.
        (PendingKind::Event, 409) => ReplayVerdict::Done,
        (_, 408 | 429 | 500..=599) => ReplayVerdict::Again,
        _ => ReplayVerdict::Dropped,
    }
}

/// Sends the log. One runs at an edge.
pub struct PendingReplay {
    pub log: PendingLog,
    pub pass: Passthrough,
    pub subscriptions: Subscriptions,
    pub report: Arc<ReplayReport>,
}

/// The results of replays since the start.
#[derive(Default)]
pub struct ReplayReport {
    pub sent: AtomicU64,
    pub dropped: AtomicU64,
    /// The newest refusals, as text.
    refusals: Mutex<VecDeque<String>>,
}

const REFUSALS_MAX: usize = 20;

impl ReplayReport {
    pub fn drop_write(&self, write: &PendingWrite, why: &str) {
        self.dropped.fetch_add(1, Ordering::Relaxed);
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.push_back(format!("{} of {} {}: {why}", write.kind.as_str(), write.resource, write.key));
        if refusals.len() > REFUSALS_MAX {
            refusals.pop_front();
        }
    }

    pub fn summary(&self, log: &PendingLog) -> Value {
        let refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        json!({
            "pending": log.len(),
            "sent": self.sent.load(Ordering::Relaxed),
            "dropped": self.dropped.load(Ordering::Relaxed),
            "refusals": *refusals,
        })
    }
}

const AGAIN: Duration = Duration::from_secs(2);
/// The time that the copy has to show a write that was answered.
const IN_COPY: Duration = Duration::from_secs(5);

impl PendingReplay {
    /// Runs for ever; dropping the future ends it. A write that is under way is sent again by the next run.
    pub async fn run(&self) {
        let mut changes = self.log.changes();
        loop {
            changes.mark_unchanged();
            self.pass.0.connected().await;
            let is_done = self.send_all().await;
            if is_done && self.log.is_empty() {
                let _ = changes.changed().await;
            } else {
                tokio::time::sleep(AGAIN).await;
            }
        }
    }

    /// Returns true when every write was answered.
    async fn send_all(&self) -> bool {
        for write in self.log.all() {
            let Some((method, path, content_type, body)) = request(&write) else {
                self.finish(&write, None).await;
                continue;
            };
            let caller = LocalCaller::node(&write.node);
            let Ok((code, answer)) =
                self.pass.send(method, &path, Some(&content_type), Some(&caller), body).await
            else {
                return false;
            };
            match verdict(write.kind, code) {
                ReplayVerdict::Again => return false,
                ReplayVerdict::Done => {
                    self.report.sent.fetch_add(1, Ordering::Relaxed);
                    self.finish(&write, kube_object::revision_of(&answer)).await;
                }
                ReplayVerdict::Dropped => {
                    let status = crate::upstream::cluster::status_of(code, &answer);
                    tracing::warn!(resource = %write.resource, key = write.key, code = code.as_u16(), reason = status.message,
                        "the API server refused a write that was made while it was away; it is dropped");
                    self.report.drop_write(&write, &status.message);
                    self.finish(&write, None).await;
                }
            }
        }
        true
    }

    /// Removes a write from the log and its effect from local reads, as soon as the copy shows the revision that the API server gave it.
    async fn finish(&self, write: &PendingWrite, revision: Option<Revision>) {
        if let Some(revision) = revision {
            for collection in self.subscriptions.of_resource(&write.resource) {
                collection.wait_revision(revision, IN_COPY).await;
            }
        }
        if let Err(error) = self.log.remove(write).await {
            return tracing::warn!(error = error_chain(&error), "cannot remove a write from the log");
        }
        // A newer write of the same object keeps its effect.
        if self.log.find(write.kind, &write.path).is_some() {
            return;
        }
        let cleared = self.subscriptions.set_local(&write.resource, vec![(write.key.clone(), None)]).await;
        if let Err(error) = cleared {
            tracing::warn!(error = error_chain(&error), "cannot show the copy again after a write was sent");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::ResourceName;

    fn write(kind: PendingKind, body: Value, base: Value) -> PendingWrite {
        PendingWrite {
            sequence: 1,
            kind,
            node: "n1".into(),
            resource: ResourceName::new("", "v1", "pods"),
            key: "shop/a".into(),
            path: "/api/v1/namespaces/shop/pods/a".into(),
            content_type: "application/json".into(),
            body: body.to_string().into(),
            base: base.to_string().into(),
            at: 0,
        }
    }

    #[test]
    fn a_status_is_sent_as_the_changes_of_the_site_with_the_uid() {
        let base = json!({"metadata": {"uid": "u"}, "status": {"phase": "Pending", "hostIP": "1"}});
        let now = json!({"metadata": {"uid": "u"}, "status": {"phase": "Running", "hostIP": "1"}});
        let (method, path, content, body) = request(&write(PendingKind::Status, now, base.clone())).unwrap();
        assert_eq!((method, path.as_str()), (Method::PATCH, "/api/v1/namespaces/shop/pods/a/status"));
        assert_eq!(content, "application/strategic-merge-patch+json");
        let body: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body, json!({"metadata": {"uid": "u"}, "status": {"phase": "Running"}}));
        assert_eq!(request(&write(PendingKind::Status, base.clone(), base)), None);
        let (method, path, ..) = request(&write(PendingKind::Event, json!({}), json!({}))).unwrap();
        assert_eq!((method, path.as_str()), (Method::POST, "/api/v1/namespaces/shop/pods"));
    }

    #[test]
    fn refusals_are_dropped_and_absence_is_waited_for() {
        use PendingKind::{Event, Status};
        use ReplayVerdict::{Again, Done, Dropped};
        for (kind, code, expected) in [
            (Status, 200, Done),
            (Event, 201, Done),
            (Event, 409, Done),
            (Status, 409, Dropped),
            (Status, 404, Dropped),
            (Status, 403, Dropped),
            (Status, 422, Dropped),
            (Status, 429, Again),
            (Status, 503, Again),
        ] {
            assert_eq!(verdict(kind, StatusCode::from_u16(code).unwrap()), expected, "{kind:?} {code}");
        }
    }
}
