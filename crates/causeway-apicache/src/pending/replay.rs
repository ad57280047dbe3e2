//! Sends pending writes on return, in order and in the name of the caller that wrote them.
//!
//! `request` and `verdict` decide from values; `PendingReplay` sends. A write that the API server refuses is dropped and reported: in the
//! log of the edge, in `causeway_apicache_dropped_writes`, and in the dump of the edge.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use causeway_api::{Revision, error_chain};
use causeway_daemon::sync::MutexExt;
use futures_util::future::join_all;
use http::{Method, StatusCode};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::existing::has_written_fields;
use super::identity::{self, CallerTokens};
use super::log::{PendingKind, PendingLog, PendingWrite};
use crate::copy::collection::unix_now;
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
        PendingKind::Object => object_request(write),
        PendingKind::EventPatch => {
            Some((Method::PATCH, write.path.clone(), write.content_type.clone(), write.body.clone()))
        }
    }
}

/// An object of a listed resource: created, deleted, or changed by a JSON merge patch. With the UID the API server refuses another object of
/// the same name.
fn object_request(write: &PendingWrite) -> Option<(Method, String, String, Bytes)> {
    let json = "application/json".to_owned();
    if write.base.is_empty() {
        let (collection, _) = write.path.rsplit_once('/')?;
        return Some((Method::POST, collection.to_owned(), json, write.body.clone()));
    }
    let base: Value = serde_json::from_slice(&write.base).ok()?;
    let uid = base["metadata"]["uid"].clone();
    if write.body.is_empty() {
        let options =
            json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": uid}}).to_string();
        return Some((Method::DELETE, write.path.clone(), json, options.into()));
    }
    let now: Value = serde_json::from_slice(&write.body).ok()?;
    // A row that is no object is not sent; indexing it would panic.
    let mut patch = merge_difference(&base, &now).filter(Value::is_object)?;
    if !patch["metadata"].is_object() {
        patch["metadata"] = json!({});
    }
    patch["metadata"]["uid"] = uid;
    Some((
        Method::PATCH,
        write.path.clone(),
        "application/merge-patch+json".to_owned(),
        patch.to_string().into(),
    ))
}

/// The JSON merge patch between two objects; `None` when they are equal.
fn merge_difference(before: &Value, after: &Value) -> Option<Value> {
    let (Value::Object(before), Value::Object(after)) = (before, after) else {
        return (before != after).then(|| after.clone());
    };
    let mut patch = serde_json::Map::new();
    for (name, value) in after {
        match before.get(name) {
            None => drop(patch.insert(name.clone(), value.clone())),
            Some(known) => patch.extend(merge_difference(known, value).map(|part| (name.clone(), part))),
        }
    }
    let gone = before.keys().filter(|name| !after.contains_key(*name));
    patch.extend(gone.map(|name| (name.clone(), Value::Null)));
    (!patch.is_empty()).then_some(Value::Object(patch))
}

/// The outcome of a write that was sent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayVerdict {
    Done,
    /// The API server cannot take it now; it is sent again.
    Again,
    /// The API server is away: no other write reaches it either.
    Away,
    /// The API server refuses it for good.
    Dropped,
}

pub fn verdict(write: &PendingWrite, code: StatusCode) -> ReplayVerdict {
    match (write.kind, code.as_u16()) {
        // It is deleted already.
        (PendingKind::Object, 404) if write.body.is_empty() => ReplayVerdict::Done,
        (_, 200..=299) => ReplayVerdict::Done,
        // The first answer was lost with the link.
        (PendingKind::Event, 409) => ReplayVerdict::Done,
        // The service behind one resource may be away, so other writes go on.
        (PendingKind::Object, 502..=504) => ReplayVerdict::Again,
        (_, 502..=504) => ReplayVerdict::Away,
        (_, 408 | 429 | 500..=599) => ReplayVerdict::Again,
        _ => ReplayVerdict::Dropped,
    }
}

/// Returns true if the answer to a deletion is an object that waits for its finalizers: the copy goes on to show it.
fn is_leaving(answer: &[u8]) -> bool {
    let answer: Value = serde_json::from_slice(answer).unwrap_or_default();
    !answer["metadata"]["deletionTimestamp"].is_null()
}

fn is_event(write: &PendingWrite) -> bool {
    matches!(write.kind, PendingKind::Event | PendingKind::EventPatch)
}

/// Returns true if a create met an object of its name.
fn is_repeated_create(write: &PendingWrite, code: StatusCode) -> bool {
    write.kind == PendingKind::Object && write.base.is_empty() && code == StatusCode::CONFLICT
}

/// Sends the log. One runs at an edge.
pub struct PendingReplay {
    pub log: PendingLog,
    pub pass: Passthrough,
    pub subscriptions: Subscriptions,
    pub report: Arc<ReplayReport>,
    pub tokens: Arc<CallerTokens>,
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
        let mut refusals = self.refusals.lock_ignoring_poison();
        refusals.push_back(format!("{} of {} {}: {why}", write.kind.as_str(), write.resource, write.key));
        if refusals.len() > REFUSALS_MAX {
            refusals.pop_front();
        }
    }

    pub fn summary(&self, log: &PendingLog) -> Value {
        let refusals = self.refusals.lock_ignoring_poison();
        json!({
            "pending": log.len(),
            "sent": self.sent.load(Ordering::Relaxed),
            "dropped": self.dropped.load(Ordering::Relaxed),
            "refusals": *refusals,
        })
    }
}

const ERASE: Duration = Duration::from_secs(60);
const AGAIN: Duration = Duration::from_secs(2);
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The time that the copy has to show a write that was answered.
const IN_COPY: Duration = Duration::from_secs(5);

impl PendingReplay {
    /// Runs for ever; dropping the future ends it. A write that is under way is sent again by the next run.
    pub async fn run(&self) {
        let mut changes = self.log.changes();
        loop {
            changes.mark_unchanged();
            if let Err(error) = self.log.erase_expired_tokens(unix_now()).await {
                tracing::warn!(error = error_chain(&error), "cannot erase expired tokens from the log");
            }
            // Tokens expire while the cloud is away, too.
            if tokio::time::timeout(ERASE, self.pass.0.connected()).await.is_err() {
                continue;
            }
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
        let (mut is_complete, mut is_event_refused) = (true, false);
        // Copies that were not followed when the link returned have this long in all, not for each write.
        let followed_by = Instant::now() + IN_COPY;
        for write in self.log.all() {
            // Events keep their order: those behind one that cannot be taken now wait for the next turn.
            if is_event_refused && is_event(&write) {
                continue;
            }
            // A write that was replaced or taken back since the log was read is not sent.
            let Ok(Some(_sending)) = self.log.begin_sending(&write).await else {
                is_complete = false;
                continue;
            };
            let Some((method, path, content_type, body)) = request(&write) else {
                self.finish(&write, None, followed_by).await;
                continue;
            };
            let newest = self.tokens.newest(&write.caller);
            let caller = match identity::sender(&write, newest, unix_now()) {
                Ok(caller) => caller,
                Err(why) => {
                    tracing::warn!(resource = %write.resource, key = write.key, reason = why,
                        "a write that was made while the API server was away is refused");
                    self.report.drop_write(&write, why);
                    self.finish(&write, None, followed_by).await;
                    continue;
                }
            };
            let Ok((code, answer)) =
                self.pass.send(method, &path, Some(&content_type), Some(&caller), body).await
            else {
                return false;
            };
            let (code, answer) = match is_repeated_create(&write, code) {
                true => match self.existing(&write, &caller, (code, answer)).await {
                    Some(found) => found,
                    None => return false,
                },
                false => (code, answer),
            };
            match verdict(&write, code) {
                // An object or an event that the API server cannot take now holds back no status of a node.
                ReplayVerdict::Again => {
                    is_complete = false;
                    is_event_refused |= is_event(&write);
                }
                ReplayVerdict::Away => return false,
                ReplayVerdict::Done => {
                    self.report.sent.fetch_add(1, Ordering::Relaxed);
                    if !is_leaving(&answer) {
                        self.until_deleted(&write).await;
                    }
                    self.finish(&write, kube_object::revision_of(&answer), followed_by).await;
                }
                ReplayVerdict::Dropped => {
                    let status = crate::upstream::cluster::status_of(code, &answer);
                    tracing::warn!(resource = %write.resource, key = write.key, code = code.as_u16(), reason = status.message,
                        "the API server refused a write that was made while it was away; it is dropped");
                    self.report.drop_write(&write, &status.message);
                    self.finish(&write, None, followed_by).await;
                }
            }
        }
        is_complete
    }

    /// Looks at the object that exists in place of a new one. The answer to an earlier attempt may have been lost with the link: an object with
    /// the written fields is the answer. `None`: the cloud is away again.
    async fn existing(
        &self,
        write: &PendingWrite,
        caller: &LocalCaller,
        refused: (StatusCode, Bytes),
    ) -> Option<(StatusCode, Bytes)> {
        let asked = self.pass.ask(Method::GET, &write.path, Some(caller), Bytes::new()).await;
        let (code, found) = asked.ok()?;
        let parse = |text: &[u8]| serde_json::from_slice::<Value>(text).unwrap_or_default();
        let is_ours = code.is_success() && has_written_fields(&parse(&found), &parse(&write.body));
        Some(if is_ours { (code, found) } else { refused })
    }

    /// Waits until the copy does not show a deleted object any more.
    async fn until_deleted(&self, write: &PendingWrite) {
        if write.kind != PendingKind::Object || !write.body.is_empty() {
            return;
        }
        let gone = async {
            while matches!(self.subscriptions.copied(&write.resource, &write.key).await, Ok(Some(_))) {
                tokio::time::sleep(POLL_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout(IN_COPY, gone).await;
    }

    /// Removes a write from the log and its effect from local reads, as soon as the copy shows the revision that the API server gave it.
    /// Copies that no stream keeps current are waited for until `followed_by`: callers begin copies, and any number of them may be dead.
    async fn finish(&self, write: &PendingWrite, revision: Option<Revision>, followed_by: Instant) {
        if let Some(revision) = revision {
            let now = Instant::now();
            let shown = self.subscriptions.of_resource(&write.resource).into_iter().map(|collection| {
                let time = if collection.is_live() { IN_COPY } else { followed_by.duration_since(now) };
                async move { collection.wait_revision(revision, time).await }
            });
            join_all(shown).await;
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
    use crate::connector::{CloudConnector, TestCloud};
    use crate::copy::CopyDatabase;
    use crate::resource::{ResourceDescription, ResourceName, SubscriptionScope};
    use crate::subscriptions::SubscriptionCredential;
    use crate::traffic::{DayUse, LinkTraffic};

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
            caller: String::new(),
            token: String::new(),
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

    async fn replay(log: PendingLog, cloud: TestCloud, folder: &std::path::Path) -> PendingReplay {
        let connector: Arc<dyn CloudConnector> = Arc::new(cloud);
        let database = CopyDatabase::open(&folder.join("copy.db")).unwrap();
        let traffic = LinkTraffic::new(None, DayUse::default());
        let subscriptions = Subscriptions::open(database, connector.clone(), traffic).await.unwrap();
        PendingReplay {
            log,
            pass: Passthrough(connector),
            subscriptions,
            report: Arc::default(),
            tokens: Arc::default(),
        }
    }

    #[tokio::test]
    async fn an_event_that_is_refused_for_now_holds_back_no_status() {
        let folder = tempfile::tempdir().unwrap();
        let log = PendingLog::open(&folder.path().join("pending.db")).unwrap();
        let event = |name: &str| PendingWrite {
            path: format!("/api/v1/namespaces/shop/events/{name}"),
            ..write(PendingKind::Event, json!({}), json!({}))
        };
        for name in ["a", "b"] {
            log.append(event(name)).await.unwrap();
        }
        let (base, now) =
            (json!({"metadata": {"uid": "u"}}), json!({"metadata": {"uid": "u"}, "status": {}}));
        log.append(write(PendingKind::Status, now, base)).await.unwrap();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let seen = asked.clone();
        let cloud = TestCloud::new(move |method, path| {
            seen.lock_ignoring_poison().push(format!("{method} {path}"));
            // An admission webhook of the namespace fails.
            let code = if method == Method::POST { 500 } else { 200 };
            Box::pin(std::future::ready((code, "{}".to_owned())))
        });
        let replay = replay(log, cloud, folder.path()).await;
        assert!(!replay.send_all().await);
        let expected = ["POST /api/v1/namespaces/shop/events", "PATCH /api/v1/namespaces/shop/pods/a/status"];
        assert_eq!(*asked.lock_ignoring_poison(), expected, "the events behind the refused one wait");
        assert_eq!(replay.log.len(), 2);
    }

    #[tokio::test]
    async fn a_write_that_its_caller_took_back_is_not_sent() {
        let folder = tempfile::tempdir().unwrap();
        let log = PendingLog::open(&folder.path().join("pending.db")).unwrap();
        let object = |name: &str| PendingWrite {
            key: format!("shop/{name}"),
            path: format!("/api/v1/namespaces/shop/pods/{name}"),
            base: Bytes::new(),
            ..write(PendingKind::Object, json!({"metadata": {"name": name}}), json!({}))
        };
        for name in ["a", "b"] {
            log.append(object(name)).await.unwrap();
        }
        let second = log.all()[1].clone();
        let (asked, taken_back) = (Arc::new(AtomicU64::new(0)), log.clone());
        let count = asked.clone();
        let cloud = TestCloud::new(move |_, _| {
            count.fetch_add(1, Ordering::Relaxed);
            let (log, second) = (taken_back.clone(), second.clone());
            Box::pin(async move {
                // The caller deletes the second object while the first is sent.
                assert!(log.remove_unsent(&second).await.unwrap());
                (201, "{}".to_owned())
            })
        });
        let replay = replay(log, cloud, folder.path()).await;
        replay.send_all().await;
        assert_eq!(asked.load(Ordering::Relaxed), 1);
        assert!(replay.log.is_empty());
    }

    #[tokio::test]
    async fn a_long_answer_is_the_end_of_a_write() {
        let folder = tempfile::tempdir().unwrap();
        let log = PendingLog::open(&folder.path().join("pending.db")).unwrap();
        for name in ["a", "b"] {
            let path = format!("/api/v1/namespaces/shop/events/{name}");
            let event = PendingWrite { path, ..write(PendingKind::Event, json!({}), json!({})) };
            log.append(event).await.unwrap();
        }
        let cloud = TestCloud::new(|_, _| Box::pin(std::future::ready((201, "x".repeat(5 << 20)))));
        let replay = replay(log, cloud, folder.path()).await;
        assert!(replay.send_all().await);
        assert!(replay.log.is_empty());
        assert_eq!(replay.report.sent.load(Ordering::Relaxed), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn copies_that_are_not_followed_hold_up_a_turn_once() {
        let folder = tempfile::tempdir().unwrap();
        let log = PendingLog::open(&folder.path().join("pending.db")).unwrap();
        for name in ["a", "b", "c"] {
            let path = format!("/api/v1/namespaces/shop/pods/{name}");
            let event = PendingWrite { path, ..write(PendingKind::Event, json!({}), json!({})) };
            log.append(event).await.unwrap();
        }
        let answer = json!({"metadata": {"name": "a", "resourceVersion": "9"}}).to_string();
        let cloud = TestCloud::new(move |_, _| Box::pin(std::future::ready((201, answer.clone()))));
        let replay = replay(log, cloud, folder.path()).await;
        let pods = ResourceName::new("", "v1", "pods");
        for number in 0..3 {
            let scope = SubscriptionScope::one(pods.clone(), "shop", &number.to_string());
            let begun = replay.subscriptions.ensure(&scope, SubscriptionCredential::Pin, ("", true)).await;
            let begun = begun.unwrap().unwrap();
            let description = ResourceDescription {
                name: pods.clone(),
                kind: "Pod".into(),
                list_kind: "PodList".into(),
                is_namespaced: true,
                columns: "[]".into(),
            };
            begun.describe(description).await.unwrap();
            begun.complete(Vec::new(), Revision(1)).await.unwrap();
        }
        assert_eq!(replay.subscriptions.of_resource(&pods).len(), 3);
        let begun = Instant::now();
        assert!(replay.send_all().await && replay.log.is_empty());
        assert!(begun.elapsed() < 2 * IN_COPY, "{:?} of the clock of the test", begun.elapsed());
    }

    #[test]
    fn an_object_that_waits_for_its_finalizers_is_not_waited_for() {
        assert!(is_leaving(br#"{"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}"#));
        assert!(!is_leaving(br#"{"kind": "Status", "status": "Success"}"#) && !is_leaving(b""));
    }

    #[test]
    fn a_row_that_is_no_object_is_not_sent() {
        let base = json!({"metadata": {"uid": "u"}});
        for body in [json!([]), json!("x"), json!(7), json!(null)] {
            assert_eq!(request(&write(PendingKind::Object, body, base.clone())), None);
        }
    }

    #[test]
    fn refusals_are_dropped_and_absence_is_waited_for() {
        use PendingKind::{Event, Status};
        use ReplayVerdict::{Again, Away, Done, Dropped};
        for (kind, code, expected) in [
            (Status, 200, Done),
            (Event, 201, Done),
            (Event, 409, Done),
            (Status, 409, Dropped),
            (Status, 404, Dropped),
            (Status, 403, Dropped),
            (Status, 422, Dropped),
            (Status, 429, Again),
            (Status, 500, Again),
            (Status, 503, Away),
            (Event, 504, Away),
        ] {
            let write = write(kind, json!({}), json!({}));
            assert_eq!(verdict(&write, StatusCode::from_u16(code).unwrap()), expected, "{kind:?} {code}");
        }
        let object = |body: &str| PendingWrite {
            body: body.to_owned().into(),
            ..write(PendingKind::Object, json!({}), json!({}))
        };
        assert_eq!(verdict(&object(""), StatusCode::NOT_FOUND), Done, "deleted in the cluster too");
        assert_eq!(
            verdict(&object("{}"), StatusCode::SERVICE_UNAVAILABLE),
            Again,
            "the service of its resource"
        );
        assert_eq!(verdict(&object("{}"), StatusCode::NOT_FOUND), Dropped);
        assert_eq!(verdict(&object("{}"), StatusCode::CONFLICT), Dropped);
        assert_eq!(verdict(&object("{}"), StatusCode::UNAUTHORIZED), Dropped);
    }

    #[test]
    fn an_object_is_created_changed_or_deleted() {
        let base = json!({"metadata": {"uid": "u", "labels": {"a": "b"}}, "data": {"k": "1", "l": [1]}});
        let now = json!({"metadata": {"uid": "u"}, "data": {"k": "2", "l": [1, 2]}});
        let object = |body: Option<&Value>, base: Option<&Value>| {
            let text = |value: Option<&Value>| value.map(Value::to_string).unwrap_or_default().into();
            request(&PendingWrite {
                body: text(body),
                base: text(base),
                ..write(PendingKind::Object, json!({}), json!({}))
            })
        };
        let (method, path, content, body) = object(Some(&now), Some(&base)).unwrap();
        assert_eq!((method, path.as_str()), (Method::PATCH, "/api/v1/namespaces/shop/pods/a"));
        assert_eq!(content, "application/merge-patch+json");
        let expected = json!({"metadata": {"uid": "u", "labels": null}, "data": {"k": "2", "l": [1, 2]}});
        assert_eq!(serde_json::from_slice::<Value>(&body).unwrap(), expected);
        assert_eq!(object(Some(&base), Some(&base)), None, "nothing changed after all");
        let (method, path, ..) = object(Some(&now), None).unwrap();
        assert_eq!((method, path.as_str()), (Method::POST, "/api/v1/namespaces/shop/pods"));
        let (method, _, _, body) = object(None, Some(&base)).unwrap();
        let options: Value = serde_json::from_slice(&body).unwrap();
        assert_eq!((method, &options["preconditions"]["uid"]), (Method::DELETE, &json!("u")));
    }
}
