//! Authorization of readers: decisions of the API server (SelfSubjectAccessReview), cached on disk.
//!
//! While the cloud is reachable, it reports changed decisions on a stream; without that stream a decision is asked again
//! after a minute. While the cloud is unreachable, only cached grants allow access, for a bounded time.

use causeway_api::Status;
use http::{Method, StatusCode};
use serde_json::Value;
use tokio::sync::mpsc;

use super::LocalCaller;
use super::access_stream::{AccessStream, AccessVerdict, RevokedGrant};
use crate::copy::collection::unix_now;
use crate::copy::{CopyDatabase, tables};
use crate::server::pass::{PassError, Passthrough};
use crate::upstream::access::AccessQuestion;
use crate::upstream::access::question::REVIEWS;

/// A handle; clones share the cache and the connection to the cloud.
#[derive(Clone)]
pub struct Authorizer {
    pub database: CopyDatabase,
    pub pass: Passthrough,
    pub stream: AccessStream,
}

const FRESH_SECONDS: i64 = 60;
/// Up to this age a grant is used while it is being re-checked.
const STALE_SECONDS: i64 = 300;
/// The time for which a grant is valid while the cloud is unreachable.
const OFFLINE_SECONDS: i64 = 7 * 24 * 3_600;
/// Revoked grants that wait to be removed from the cache on disk.
const REVOKED_QUEUE_MAX: usize = 256;

/// Returns true if an answer of this age counts for `seconds_max`. A host without a battery for its clock starts with the time of an hour ago,
/// so an answer may be from the future by as much: a clock that is set back prolongs an answer to twice this time at most.
pub(super) fn is_recent(age: i64, seconds_max: i64) -> bool {
    (-seconds_max..seconds_max).contains(&age)
}

fn counts_offline(age: i64) -> bool {
    is_recent(age, OFFLINE_SECONDS)
}

impl Authorizer {
    /// Checks that the caller may do what is asked.
    pub async fn check(&self, caller: &LocalCaller, question: &AccessQuestion) -> Result<(), Status> {
        let (key, text) = (caller.key(), question_text(question));
        let granted = {
            let (key, text) = (key.clone(), text.clone());
            self.database.read(move |connection| tables::grant(connection, &key, &text)).await
        };
        let granted = granted.map_err(|error| Status::internal(causeway_api::error_chain(&error)))?;
        let age = granted.map(|granted| unix_now() - granted);
        // A grant from the future is old: the clock was set back.
        let is_fresh = age.is_some_and(|age| (0..FRESH_SECONDS).contains(&age));
        if self.stream.is_allowed(&(key.clone(), text.clone())) {
            if !is_fresh {
                // OFFLINE_SECONDS counts from the last confirmation: refresh it.
                self.keep(key, text, Some(unix_now())).await;
            }
            return Ok(());
        }
        // While the stream is open, a cached grant that is not on it is asked again.
        if is_fresh && !self.stream.is_open(caller) {
            return Ok(());
        }
        if age.is_some_and(|age| (0..STALE_SECONDS).contains(&age)) {
            // Answer from the cache and re-check in the background; a revocation takes effect at the next read.
            let (authorizer, caller, question) = (self.clone(), caller.clone(), question.clone());
            tokio::spawn(async move {
                let _ = authorizer.ask_and_cache(&caller, &question, (key, text), None).await;
            });
            return Ok(());
        }
        self.ask_and_cache(caller, question, (key, text), age).await
    }

    /// Asks the API server and caches its decision. Without a decision, a cached grant of this age is used.
    async fn ask_and_cache(
        &self,
        caller: &LocalCaller,
        question: &AccessQuestion,
        (key, text): (String, String),
        age: Option<i64>,
    ) -> Result<(), Status> {
        let asked = match self.stream.ask(caller, question, (key.clone(), text.clone())).await {
            Some(answer) => answer,
            None => self.post_access_review(caller, question).await,
        };
        match asked {
            Ok(AccessVerdict::Allowed) => {
                self.keep(key, text, Some(unix_now())).await;
                Ok(())
            }
            Ok(AccessVerdict::Denied) => {
                self.remove(key, question).await;
                Err(forbidden(caller, question))
            }
            // Another token of the same caller may have wider rights.
            Ok(AccessVerdict::TokenEnded) => {
                self.keep(key, text, None).await;
                Err(forbidden(caller, question))
            }
            Err(_) if age.is_some_and(counts_offline) => Ok(()),
            // Without the cloud, only cached grants allow access.
            Err(status) if status.code == 503 => {
                if self.is_implied(caller, question).await {
                    return Ok(());
                }
                let mut refused = forbidden(caller, question);
                refused.message.push_str(": the API server did not allow it before, and cannot be asked now");
                Err(refused)
            }
            Err(status) => Err(status),
        }
    }

    /// Returns true if the cloud has said so on the stream that is open now; it tells when that changes.
    pub fn is_told(&self, caller: &LocalCaller, question: &AccessQuestion) -> bool {
        self.stream.is_allowed(&(caller.key(), question_text(question)))
    }

    /// Returns true if the API server allowed this caller the same before, within the time that counts without the cloud.
    pub async fn was_allowed(&self, caller: &LocalCaller, question: &AccessQuestion) -> bool {
        let (key, text) = (caller.key(), question_text(question));
        let granted = self.database.read(move |connection| tables::grant(connection, &key, &text)).await;
        granted.ok().flatten().is_some_and(|granted| counts_offline(unix_now() - granted))
            || self.is_implied(caller, question).await
    }

    /// Returns true if the caller was allowed the same for all names, or in all namespaces: rights in Kubernetes only add.
    async fn is_implied(&self, caller: &LocalCaller, question: &AccessQuestion) -> bool {
        for wider in wider_questions(question) {
            let (key, text) = (caller.key(), question_text(&wider));
            let granted = self.database.read(move |connection| tables::grant(connection, &key, &text)).await;
            if granted.ok().flatten().is_some_and(|granted| counts_offline(unix_now() - granted)) {
                return true;
            }
        }
        false
    }

    /// Caches a grant: the API server has answered a read of this caller.
    pub async fn record_allowed(&self, caller: &LocalCaller, question: &AccessQuestion) {
        self.keep(caller.key(), question_text(question), Some(unix_now())).await;
    }

    /// Removes a grant and those that include it: the API server has refused the access.
    pub async fn remove_grant(&self, caller: &LocalCaller, question: &AccessQuestion) {
        self.remove(caller.key(), question).await;
    }

    /// Removes the grant of a question and the wider ones: rights only add, so a caller without this one has none of those.
    async fn remove(&self, key: String, question: &AccessQuestion) {
        let mut texts: Vec<String> = wider_questions(question).iter().map(question_text).collect();
        texts.push(question_text(question));
        let removed = self.database.write(move |connection| {
            texts.iter().try_for_each(|text| tables::keep_grant(connection, &key, text, None))
        });
        if let Err(error) = removed.await {
            tracing::warn!(
                error = causeway_api::error_chain(&error),
                "cannot remove a right that the API server has taken away"
            );
        }
    }

    /// Keeps the decision stream open and removes revoked grants. Runs for ever; dropping the future ends it.
    pub async fn run_decision_stream(&self) {
        let (revoked, mut revocations) = mpsc::channel::<RevokedGrant>(REVOKED_QUEUE_MAX);
        let remove = async {
            while let Some(RevokedGrant { key: (key, _), question, code }) = revocations.recv().await {
                // Other codes (an expired token) keep the grant; only 403 removes it.
                if code == 403 {
                    self.remove(key, &question).await;
                    self.stream.note_removal();
                }
            }
        };
        tokio::join!(self.stream.run(&*self.pass.0, &revoked), remove);
    }

    async fn keep(&self, key: String, text: String, allowed: Option<i64>) {
        let kept =
            self.database.write(move |connection| tables::keep_grant(connection, &key, &text, allowed));
        if let Err(error) = kept.await {
            tracing::warn!(
                error = causeway_api::error_chain(&error),
                "cannot cache a decision of the API server"
            );
        }
    }

    /// Posts a SelfSubjectAccessReview of the caller to the API server.
    async fn post_access_review(
        &self,
        caller: &LocalCaller,
        question: &AccessQuestion,
    ) -> Result<AccessVerdict, Status> {
        let review = question.review();
        let asked = self.pass.ask(Method::POST, REVIEWS, Some(caller), review.to_string().into()).await;
        let (code, body) = asked.map_err(|PassError(status)| status)?;
        match code {
            code if code.is_success() => {
                let answer: Value = serde_json::from_slice(&body).map_err(Status::internal)?;
                Ok(match answer["status"]["allowed"] == Value::Bool(true) {
                    true => AccessVerdict::Allowed,
                    false => AccessVerdict::Denied,
                })
            }
            StatusCode::UNAUTHORIZED => Ok(AccessVerdict::TokenEnded),
            StatusCode::FORBIDDEN => Ok(AccessVerdict::Denied),
            code => Err(crate::upstream::cluster::status_of(code, &body)),
        }
    }
}

/// The key of a question in the cache.
fn question_text(question: &AccessQuestion) -> String {
    let AccessQuestion { verb, group, plural, namespace, name, field_selector } = question;
    let fields = if field_selector.is_empty() { String::new() } else { format!(" fields {field_selector}") };
    format!("{verb} {group}/{plural} {namespace}/{name}{fields}")
}

/// The questions whose answer "allowed" includes this one.
fn wider_questions(question: &AccessQuestion) -> Vec<AccessQuestion> {
    let unselected = AccessQuestion { field_selector: String::new(), ..question.clone() };
    let all_names = AccessQuestion { name: String::new(), ..unselected.clone() };
    let everywhere = AccessQuestion { namespace: String::new(), ..all_names.clone() };
    let mut wider = vec![unselected, all_names, everywhere];
    wider.dedup();
    wider.retain(|wider| wider != question);
    wider
}

/// 403 in the words of the API server.
fn forbidden(caller: &LocalCaller, question: &AccessQuestion) -> Status {
    let AccessQuestion { verb, group, plural, namespace, name, .. } = question;
    let resource = if group.is_empty() { plural.clone() } else { format!("{plural}.{group}") };
    let place = match namespace.as_str() {
        "" => "at the cluster scope".to_owned(),
        namespace => format!("in the namespace \"{namespace}\""),
    };
    let named = if name.is_empty() { String::new() } else { format!(" \"{name}\"") };
    let user = &caller.user.username;
    let message = format!(
        "{resource}{named} is forbidden: User \"{user}\" cannot {verb} resource \"{plural}\" in API group \"{group}\" {place}"
    );
    Status { message, ..Status::forbidden(user, "", "") }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::connector::TestCloud;

    /// An authorizer with the cache in `folder`, whose cloud answers reviews so.
    fn authorizer(folder: &std::path::Path, code: u16, body: &'static str) -> Authorizer {
        let cloud = TestCloud::new(move |_, _| Box::pin(std::future::ready((code, body.to_owned()))));
        Authorizer {
            database: CopyDatabase::open(&folder.join("copy.db")).unwrap(),
            pass: Passthrough(Arc::new(cloud)),
            stream: AccessStream::default(),
        }
    }

    fn list(namespace: &str, name: &str) -> AccessQuestion {
        AccessQuestion {
            verb: "list",
            group: String::new(),
            plural: "configmaps".into(),
            namespace: namespace.into(),
            name: name.into(),
            field_selector: String::new(),
        }
    }

    const AWAY: (u16, &str) = (503, "{}");
    const DENIED: (u16, &str) = (201, r#"{"status": {"allowed": false}}"#);

    #[tokio::test]
    async fn an_answer_of_an_unknown_age_gives_no_right() {
        let folder = tempfile::tempdir().unwrap();
        let (caller, question) = (LocalCaller::node("n1"), list("", ""));
        let away = authorizer(folder.path(), AWAY.0, AWAY.1);
        let code = async |age: i64| {
            away.keep(caller.key(), question_text(&question), Some(unix_now() - age)).await;
            let was_allowed = away.was_allowed(&caller, &question).await;
            let implied = away.was_allowed(&caller, &list("shop", "a")).await;
            let found = away.check(&caller, &question).await.map_or_else(|status| status.code, |()| 200);
            assert_eq!((was_allowed, implied), (found == 200, found == 200), "{age}");
            found
        };
        assert_eq!(code(3_600).await, 200, "the site goes on without the cloud");
        assert_eq!(code(-3_600).await, 200, "a host without a battery for its clock, after a power failure");
        assert_eq!(code(-1_000_000).await, 403, "the clock was set back");
        assert_eq!(code(OFFLINE_SECONDS + 5).await, 403, "the clock was set forward, or it is old");
    }

    #[tokio::test]
    async fn a_denial_takes_wider_rights_away_and_the_end_of_a_token_does_not() {
        let folder = tempfile::tempdir().unwrap();
        let caller = LocalCaller::node("n1");
        let wider = [list("shop", ""), list("", "")];
        let away = authorizer(folder.path(), AWAY.0, AWAY.1);
        let allowed = async || {
            let mut allowed = Vec::new();
            for question in &wider {
                allowed.push(away.was_allowed(&caller, question).await);
            }
            allowed
        };
        for question in &wider {
            away.record_allowed(&caller, question).await;
        }
        let ended = authorizer(folder.path(), 401, "{}");
        assert!(ended.check(&caller, &list("shop", "a")).await.is_err());
        assert_eq!(allowed().await, [true, true]);
        let denied = authorizer(folder.path(), DENIED.0, DENIED.1);
        assert!(denied.check(&caller, &list("shop", "a")).await.is_err());
        assert_eq!(allowed().await, [false, false]);
    }

    #[test]
    fn a_right_for_all_names_or_namespaces_includes_one() {
        let question = |namespace: &str, name: &str| AccessQuestion {
            verb: "list",
            group: String::new(),
            plural: "configmaps".into(),
            namespace: namespace.into(),
            name: name.into(),
            field_selector: String::new(),
        };
        let selected = AccessQuestion { field_selector: "a=b".into(), ..question("shop", "") };
        assert_eq!(wider_questions(&selected), [question("shop", ""), question("", "")]);
        assert_eq!(wider_questions(&question("shop", "a")), [question("shop", ""), question("", "")]);
        assert_eq!(wider_questions(&question("shop", "")), [question("", "")]);
        assert_eq!(wider_questions(&question("", "n1")), [question("", "")]);
        assert_eq!(wider_questions(&question("", "")), []);
    }
}
