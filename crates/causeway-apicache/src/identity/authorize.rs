//! Decides whether a caller may read: by the answers of the API server, remembered on disk.
//!
//! While the cloud is there, an answer is asked again after a minute. While it is away, only what was allowed is allowed,
//! for a bounded time.

use causeway_api::Status;
use http::{Method, StatusCode};
use serde_json::{Value, json};

use super::LocalCaller;
use crate::copy::collection::unix_now;
use crate::copy::{CopyDatabase, tables};
use crate::server::pass::{PassError, Passthrough};
use crate::upstream::access::AccessQuestion;

/// A handle; clones share the copy and the way to the cloud.
#[derive(Clone)]
pub struct Authorizer {
    pub database: CopyDatabase,
    pub pass: Passthrough,
}

const FRESH_SECONDS: i64 = 60;
/// Up to this age a grant counts while it is being asked again.
const STALE_SECONDS: i64 = 300;
/// The time for which a grant holds while the cloud is away.
const OFFLINE_SECONDS: i64 = 7 * 24 * 3_600;
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

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
        if age.is_some_and(|age| age < FRESH_SECONDS) {
            return Ok(());
        }
        if age.is_some_and(|age| age < STALE_SECONDS) {
            // The read does not wait for a link that may be dying; a lost right holds from the next read on.
            let (authorizer, caller, question) = (self.clone(), caller.clone(), question.clone());
            tokio::spawn(async move {
                let _ = authorizer.decide(&caller, &question, (key, text), None).await;
            });
            return Ok(());
        }
        self.decide(caller, question, (key, text), age).await
    }

    /// Asks the API server and remembers its answer. Without an answer, a grant of this age counts.
    async fn decide(
        &self,
        caller: &LocalCaller,
        question: &AccessQuestion,
        (key, text): (String, String),
        age: Option<i64>,
    ) -> Result<(), Status> {
        match self.ask(caller, question).await {
            Ok(is_allowed) => {
                self.keep(key, text, is_allowed.then(unix_now)).await;
                match is_allowed {
                    true => Ok(()),
                    false => Err(forbidden(caller, question)),
                }
            }
            Err(_) if age.is_some_and(|age| age < OFFLINE_SECONDS) => Ok(()),
            // Without the cloud, only what was allowed is allowed.
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

    /// Returns true if the caller was allowed the same for all names, or in all namespaces: rights in Kubernetes only add.
    async fn is_implied(&self, caller: &LocalCaller, question: &AccessQuestion) -> bool {
        for wider in wider_questions(question) {
            let (key, text) = (caller.key(), question_text(&wider));
            let granted = self.database.read(move |connection| tables::grant(connection, &key, &text)).await;
            if granted.ok().flatten().is_some_and(|granted| unix_now() - granted < OFFLINE_SECONDS) {
                return true;
            }
        }
        false
    }

    /// Remembers that the API server answered a read of this caller, so it is allowed.
    pub async fn answered(&self, caller: &LocalCaller, question: &AccessQuestion) {
        self.keep(caller.key(), question_text(question), Some(unix_now())).await;
    }

    async fn keep(&self, key: String, text: String, allowed: Option<i64>) {
        let kept =
            self.database.write(move |connection| tables::keep_grant(connection, &key, &text, allowed));
        if let Err(error) = kept.await {
            tracing::warn!(
                error = causeway_api::error_chain(&error),
                "cannot remember a decision of the API server"
            );
        }
    }

    async fn ask(&self, caller: &LocalCaller, question: &AccessQuestion) -> Result<bool, Status> {
        let review = json!({
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "spec": {"resourceAttributes": {
                "verb": question.verb, "group": question.group, "resource": question.plural,
                "namespace": question.namespace, "name": question.name,
            }},
        });
        let asked = self.pass.ask(Method::POST, REVIEWS, Some(caller), review.to_string().into()).await;
        let (code, body) = asked.map_err(|PassError(status)| status)?;
        match code {
            code if code.is_success() => {
                let answer: Value = serde_json::from_slice(&body).map_err(Status::internal)?;
                Ok(answer["status"]["allowed"] == Value::Bool(true))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Ok(false),
            code => Err(crate::upstream::cluster::status_of(code, &body)),
        }
    }
}

/// The key of a question among the remembered answers.
fn question_text(question: &AccessQuestion) -> String {
    let AccessQuestion { verb, group, plural, namespace, name } = question;
    format!("{verb} {group}/{plural} {namespace}/{name}")
}

/// The questions whose answer "allowed" includes this one.
fn wider_questions(question: &AccessQuestion) -> Vec<AccessQuestion> {
    let all_names = AccessQuestion { name: String::new(), ..question.clone() };
    let everywhere = AccessQuestion { namespace: String::new(), ..all_names.clone() };
    let mut wider = vec![all_names, everywhere];
    wider.dedup();
    wider.retain(|wider| wider != question);
    wider
}

/// 403 in the words of the API server.
fn forbidden(caller: &LocalCaller, question: &AccessQuestion) -> Status {
    let AccessQuestion { verb, group, plural, namespace, name } = question;
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
    use super::*;

    #[test]
    fn a_right_for_all_names_or_namespaces_includes_one() {
        let question = |namespace: &str, name: &str| AccessQuestion {
            verb: "list",
            group: String::new(),
            plural: "configmaps".into(),
            namespace: namespace.into(),
            name: name.into(),
        };
        assert_eq!(wider_questions(&question("shop", "a")), [question("shop", ""), question("", "")]);
        assert_eq!(wider_questions(&question("shop", "")), [question("", "")]);
        assert_eq!(wider_questions(&question("", "n1")), [question("", "")]);
        assert_eq!(wider_questions(&question("", "")), []);
    }
}
