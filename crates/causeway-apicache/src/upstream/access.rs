//! Decides whether a caller may read a part of a resource: the API server is asked in the caller's own name, once for all sites.
//!
//! A SelfSubjectAccessReview under the caller's token, or as the impersonated node, needs no right of the cloud beside
//! impersonation. `question` has the words, `sharing` tells which answers count for more callers than one, `rbac` which ones a change of
//! RBAC objects may change, and `schedule` when one is asked again, and `shares` how many a site may make the cloud hold. `rbac_watch` follows RBAC objects, `session` serves the questions of an edge.
//! An answer is held while a subscription or an edge uses it; holders are told when it changes.

pub mod question;
pub mod rbac;
mod rbac_watch;
pub mod schedule;
pub mod session;
pub mod shares;
pub mod sharing;
pub mod wire;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use causeway_api::Status;
use causeway_daemon::sync::MutexExt;
use futures_util::{StreamExt, stream};
use serde_json::Value;
use tokio::sync::{Notify, watch};

use super::cluster::{ClusterClient, ClusterError, UpstreamIdentity};
use super::feeds::ResourceFeeds;
use crate::copy::collection::unix_now;
pub use question::AccessQuestion;
use question::REVIEWS;
use rbac::RbacChange;
use schedule::DecisionTimes;
use shares::{DecisionShare, DecisionShares};
use sharing::DecisionKey;

/// The decisions of the API server. A handle; clones share them.
#[derive(Clone)]
pub struct AccessDecisions(Arc<SharedDecisions>);

struct SharedDecisions {
    cluster: ClusterClient,
    table: Mutex<DecisionTable>,
    shares: DecisionShares,
    /// Notified when decisions are affected.
    wake: Notify,
    /// Becomes true when it is known whether RBAC objects can be watched.
    is_settled: watch::Sender<bool>,
    /// The feeds of RBAC objects, until the first question.
    feeds: Mutex<Option<Arc<ResourceFeeds>>>,
}

#[derive(Default)]
struct DecisionTable {
    decisions: HashMap<DecisionKey, Arc<Decision>>,
    /// RBAC objects are watched, so a change of them is noticed.
    is_followed: bool,
    /// A binding of the cluster names a node, or bindings are not known.
    names_nodes: bool,
}

/// One question and its newest answer.
struct Decision {
    identity: UpstreamIdentity,
    question: AccessQuestion,
    answer: watch::Sender<Option<Answer>>,
    /// One request at a time; holders that come meanwhile take its answer.
    asking: tokio::sync::Mutex<()>,
    is_affected: AtomicBool,
    /// The site that asked first; the decision counts as its own.
    share: DecisionShare,
    /// Another site uses it too.
    is_common: AtomicBool,
    /// The end of the caller's token, in Unix seconds. Kept, because every turn of `refresh` looks at it.
    expires: Option<i64>,
    /// The part of the period, so that decisions of one time are not asked again at one time.
    jitter: f64,
}

#[derive(Clone, Copy, PartialEq)]
struct Answer {
    is_allowed: bool,
    asked: Instant,
}

/// A decision in use.
pub struct HeldDecision {
    decision: Arc<Decision>,
    answers: watch::Receiver<Option<Answer>>,
}

// The lists of RBAC objects of a large cluster.
const SETTLE: Duration = Duration::from_secs(5);
// An answer that no holder uses is good for this time. A denial is kept for a shorter time, so that a new right works soon.
const UNHELD: Duration = Duration::from_secs(60);
const DENIED_FOR: Duration = Duration::from_secs(5);
/// The pace of requests at the API server for answers that grow old, see `schedule::due_max`.
const REFRESH: Duration = Duration::from_millis(500);
/// After a change of RBAC objects: this many at a time, and in one `REFRESH`.
const AFFECTED_PARALLEL: usize = 8;
const AFFECTED_MAX: usize = 50;

impl AccessDecisions {
    /// Needs a runtime: a task asks again until the last handle is dropped.
    pub fn new(cluster: ClusterClient, feeds: Arc<ResourceFeeds>) -> AccessDecisions {
        let shared = Arc::new(SharedDecisions {
            cluster,
            table: Mutex::new(DecisionTable { names_nodes: true, ..DecisionTable::default() }),
            shares: DecisionShares::default(),
            wake: Notify::new(),
            is_settled: watch::Sender::new(false),
            feeds: Mutex::new(Some(feeds)),
        });
        tokio::spawn(refresh(Arc::downgrade(&shared)));
        AccessDecisions(shared)
    }

    /// Begins to follow RBAC objects with the first question, and waits until it is known whether that works: sites that come
    /// at the same time share answers.
    async fn start_rbac_watch(&self) {
        let feeds = self.0.feeds.lock_ignoring_poison().take();
        if let Some(feeds) = feeds {
            tokio::spawn(rbac_watch::run(Arc::downgrade(&self.0), feeds));
        }
        let mut settled = self.0.is_settled.subscribe();
        let _ = tokio::time::timeout(SETTLE, settled.wait_for(|is_settled| *is_settled)).await;
    }

    /// Checks that the caller may do what is asked. The answer stays current while it is held.
    pub async fn check(
        &self,
        site: &str,
        identity: &UpstreamIdentity,
        question: &AccessQuestion,
    ) -> Result<HeldDecision, Status> {
        let held = self.hold(site, identity, question).await?;
        match held.is_allowed() {
            true => Ok(held),
            false => Err(Status::forbidden(
                "the caller",
                format!("{} {}", question.verb, question.plural),
                "the API server does not allow it",
            )),
        }
    }

    async fn hold(
        &self,
        site: &str,
        identity: &UpstreamIdentity,
        question: &AccessQuestion,
    ) -> Result<HeldDecision, Status> {
        self.start_rbac_watch().await;
        let key = DecisionKey::new(identity, question, !self.lock().names_nodes);
        let (held, is_personal) = self.answered(site, key.clone(), identity, question).await?;
        if !(key.is_shared() && is_personal) {
            return Ok(held);
        }
        // The answer counts for this node alone, and the watch of bindings has not told so yet.
        self.lock().decisions.remove(&key);
        Ok(self.answered(site, DecisionKey::caller(identity, question), identity, question).await?.0)
    }

    /// Returns the decision of a key with an answer that counts, and whether that answer was asked now and is personal.
    async fn answered(
        &self,
        site: &str,
        key: DecisionKey,
        identity: &UpstreamIdentity,
        question: &AccessQuestion,
    ) -> Result<(HeldDecision, bool), Status> {
        let (decision, was_held) = self.find(site, key, identity, question)?;
        if !decision.counts(was_held, Instant::now()) {
            let _alone = decision.asking.lock().await;
            if !decision.counts(was_held, Instant::now()) {
                let (is_allowed, reason) =
                    self.0.cluster.access(identity, question).await.map_err(|error| error.status())?;
                decision.set(is_allowed, Instant::now());
                let is_personal = is_allowed && sharing::is_personal(&reason);
                return Ok((HeldDecision::new(decision.clone()), is_personal));
            }
        }
        Ok((HeldDecision::new(decision), false))
    }

    /// Returns the decision of a key, a new one when there is none, and whether it was in use.
    fn find(
        &self,
        site: &str,
        key: DecisionKey,
        identity: &UpstreamIdentity,
        question: &AccessQuestion,
    ) -> Result<(Arc<Decision>, bool), Status> {
        let mut table = self.lock();
        if let Some(known) = table.decisions.get(&key) {
            if **known.share.site() != *site {
                known.is_common.store(true, Ordering::Relaxed);
            }
            // Before the clone, which is a reference too.
            let was_held = is_held(known);
            return Ok((known.clone(), was_held));
        }
        let Some(share) = self.0.shares.take(site) else {
            let full = "the cloud holds too many decisions about access for this site";
            return Err(Status::unavailable(full, 60));
        };
        let decision = Arc::new(Decision {
            identity: identity.clone(),
            question: question.clone(),
            answer: watch::Sender::new(None),
            asking: tokio::sync::Mutex::default(),
            is_affected: AtomicBool::new(false),
            share,
            is_common: AtomicBool::new(false),
            expires: match identity {
                UpstreamIdentity::Token(token) => rbac::expiry_of(token),
                _ => None,
            },
            jitter: 0.75 + causeway_watch::random_fraction() / 2.0,
        });
        table.decisions.insert(key, decision.clone());
        Ok((decision, false))
    }

    /// Notes a change of an RBAC object: decisions that it may change are asked again at once.
    fn take_change(&self, change: &RbacChange) {
        let table = self.lock();
        let affects = |decision: &&Arc<Decision>| change.affects(&decision.identity, &decision.question);
        let affected = mark_affected(table.decisions.values().filter(affects));
        drop(table);
        if affected > 0 {
            tracing::debug!(
                affected,
                "decisions about access are asked again after a change of RBAC objects"
            );
            self.0.wake.notify_one();
        }
    }

    /// Notes whether RBAC objects are watched, and whether their bindings name nodes. After a gap every decision may be another one.
    fn set_followed(&self, is_followed: bool, names_nodes: bool) {
        let mut table = self.lock();
        let is_gap = is_followed && !table.is_followed;
        if names_nodes && !table.names_nodes {
            // Each node has decisions of its own from now on: holders ask again.
            table.decisions.retain(|key, decision| {
                if key.is_shared() {
                    decision.answer.send_replace(None);
                }
                !key.is_shared()
            });
        }
        (table.is_followed, table.names_nodes) = (is_followed, names_nodes);
        self.0.is_settled.send_replace(true);
        if is_gap {
            mark_affected(table.decisions.values());
            self.0.wake.notify_one();
        }
    }

    /// Asks again what is affected or due.
    async fn refresh(&self) {
        let now = Instant::now();
        let chosen: Vec<(DecisionKey, Arc<Decision>)> = {
            let mut table = self.lock();
            table.decisions.retain(|_, decision| is_held(decision) || decision.age(now) < UNHELD);
            let is_followed = table.is_followed;
            let held = table.decisions.iter().filter(|(_, decision)| is_held(decision));
            let times = held.filter_map(|(key, decision)| {
                Some(((key, decision), decision.site(), decision.times(key, is_followed)?))
            });
            let due_max = schedule::due_max(table.decisions.len());
            let chosen = schedule::choose(times, now, (AFFECTED_MAX, due_max)).into_iter();
            chosen.map(|(key, decision)| (key.clone(), decision.clone())).collect()
        };
        let ask = |(key, decision): (DecisionKey, Arc<Decision>)| async move {
            self.ask_again(&key, &decision).await;
        };
        stream::iter(chosen).map(ask).buffer_unordered(AFFECTED_PARALLEL).for_each(|()| async {}).await;
    }

    async fn ask_again(&self, key: &DecisionKey, decision: &Decision) {
        let _alone = decision.asking.lock().await;
        // A change that comes while the API server decides marks it again.
        decision.is_affected.store(false, Ordering::Relaxed);
        match self.0.cluster.access(&decision.identity, &decision.question).await {
            Ok((is_allowed, _)) => decision.set(is_allowed, Instant::now()),
            // The cloud may not act as this node any more; other nodes ask in their own names.
            Err(ClusterError::Refused(_)) if key.is_shared() => self.dissolve(key, decision),
            Err(ClusterError::Refused(status)) if matches!(status.code, 401 | 403) => {
                decision.set(false, Instant::now());
            }
            // Without an answer the last decision stays, and is asked again.
            Err(_) => decision.is_affected.store(true, Ordering::Relaxed),
        }
    }

    fn dissolve(&self, key: &DecisionKey, decision: &Decision) {
        self.lock().decisions.remove(key);
        decision.answer.send_replace(None);
    }

    fn lock(&self) -> MutexGuard<'_, DecisionTable> {
        self.0.table.lock_ignoring_poison()
    }
}

/// Marks decisions as affected, and returns their number.
fn mark_affected<'a>(decisions: impl Iterator<Item = &'a Arc<Decision>>) -> usize {
    let mut marked = 0;
    for decision in decisions {
        decision.is_affected.store(true, Ordering::Relaxed);
        marked += 1;
    }
    marked
}

/// The table has one reference.
fn is_held(decision: &Arc<Decision>) -> bool {
    Arc::strong_count(decision) > 1
}

async fn refresh(shared: std::sync::Weak<SharedDecisions>) {
    loop {
        // A change of RBAC objects is taken up at once; several within `REFRESH` are one.
        if let Some(shared) = shared.upgrade() {
            let _ = tokio::time::timeout(REFRESH, shared.wake.notified()).await;
        }
        match shared.upgrade() {
            Some(shared) => AccessDecisions(shared).refresh().await,
            None => return,
        }
    }
}

impl Decision {
    fn set(&self, is_allowed: bool, asked: Instant) {
        self.answer.send_if_modified(|answer| {
            let is_other = answer.is_none_or(|answer| answer.is_allowed != is_allowed);
            *answer = Some(Answer { is_allowed, asked });
            is_other
        });
    }

    /// Returns true if the answer need not be asked. `is_held`: the schedule keeps it current.
    fn counts(&self, is_held: bool, now: Instant) -> bool {
        let Some(answer) = *self.answer.borrow() else { return false };
        let age = now.duration_since(answer.asked);
        !self.is_affected.load(Ordering::Relaxed)
            && match answer.is_allowed {
                true => is_held || age < UNHELD,
                false => age < DENIED_FOR,
            }
    }

    /// The site whose turn the decision takes; empty when several sites use it.
    fn site(&self) -> &str {
        if self.is_common.load(Ordering::Relaxed) { "" } else { self.share.site() }
    }

    fn age(&self, now: Instant) -> Duration {
        self.answer.borrow().map_or(Duration::MAX, |answer| now.duration_since(answer.asked))
    }

    /// `None` before the first answer, and for a denial: its holders end.
    fn times(&self, key: &DecisionKey, is_followed: bool) -> Option<DecisionTimes> {
        let answer = (*self.answer.borrow()).filter(|answer| answer.is_allowed)?;
        Some(DecisionTimes {
            asked: answer.asked,
            period: schedule::period(key, is_followed).mul_f64(self.jitter),
            expires: self.expires.and_then(instant_of),
            is_affected: self.is_affected.load(Ordering::Relaxed),
        })
    }
}

/// The time of the clock that has these Unix seconds.
fn instant_of(unix: i64) -> Option<Instant> {
    let seconds = unix.saturating_sub(unix_now());
    let distance = Duration::from_secs(seconds.unsigned_abs());
    let now = Instant::now();
    if seconds < 0 { now.checked_sub(distance) } else { now.checked_add(distance) }
}

impl HeldDecision {
    fn new(decision: Arc<Decision>) -> HeldDecision {
        let answers = decision.answer.subscribe();
        HeldDecision { decision, answers }
    }

    pub fn is_allowed(&self) -> bool {
        self.decision.answer.borrow().is_some_and(|answer| answer.is_allowed)
    }

    /// Resolves when the answer is another one than at the last look, or is not known any more.
    pub async fn changed(&mut self) {
        if self.answers.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

/// Resolves when one of several decisions changes.
pub async fn any_changed(held: &mut [HeldDecision]) {
    if held.is_empty() {
        return std::future::pending().await;
    }
    futures_util::future::select_all(held.iter_mut().map(|held| Box::pin(held.changed()))).await;
}

impl ClusterClient {
    /// Asks the API server in the caller's own name. Returns its answer and its reason.
    async fn access(
        &self,
        identity: &UpstreamIdentity,
        question: &AccessQuestion,
    ) -> Result<(bool, String), ClusterError> {
        let answer = self.review(identity, REVIEWS, &question.review()).await?;
        let status = &answer["status"];
        Ok((status["allowed"] == Value::Bool(true), status["reason"].as_str().unwrap_or_default().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_that_no_holder_uses_is_not_held() {
        let (upstream, _) = crate::upstream::Upstream::for_tests().await;
        let question = AccessQuestion {
            verb: "list",
            group: String::new(),
            plural: "pods".into(),
            namespace: String::new(),
            name: String::new(),
            field_selector: String::new(),
        };
        let identity = UpstreamIdentity::Token("t".into());
        let find = |site: &str| {
            let key = DecisionKey::caller(&identity, &question);
            upstream.access.find(site, key, &identity, &question).unwrap()
        };
        let (first, was_held) = find("oslo");
        assert!(!was_held, "a new one");
        assert!(find("oslo").1, "the first holder has it");
        assert_eq!(first.site(), "oslo");
        let _ = find("bergen");
        assert_eq!(first.site(), "", "no site can make the others wait for it");
        drop(first);
        assert!(!find("oslo").1, "a reference of the question itself is no holder");
    }

    #[test]
    fn any_end_of_a_token_is_a_time() {
        let now = Instant::now();
        assert!(instant_of(unix_now() + 100).is_some_and(|end| end > now));
        // A token may say anything.
        for end in [i64::MIN, i64::MAX] {
            assert!(instant_of(end).is_none_or(|end| end != now), "{end}");
        }
    }
}
