//! Decides whether a caller may read a part of a resource: the API server is asked in the caller's own name.
//!
//! A SelfSubjectAccessReview under the caller's token, or as the impersonated node, needs no right of the cloud beside
//! impersonation. Decisions are remembered for a short time: denials for 5 s, so that a new right works soon.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use causeway_api::Status;
use serde_json::{Value, json};

use super::cluster::{ClusterClient, ClusterError, UpstreamIdentity};
use crate::resource::SubscriptionScope;

/// One question about access.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct AccessQuestion {
    pub verb: &'static str,
    pub group: String,
    pub plural: String,
    /// Empty: all namespaces.
    pub namespace: String,
    /// Empty: all names.
    pub name: String,
}

impl AccessQuestion {
    pub fn about(verb: &'static str, scope: &SubscriptionScope) -> AccessQuestion {
        AccessQuestion {
            verb,
            group: scope.resource.group.clone(),
            plural: scope.resource.plural.clone(),
            namespace: scope.namespace.clone(),
            name: scope.only_name().unwrap_or_default().to_owned(),
        }
    }
}

const ALLOWED_FOR: Duration = Duration::from_secs(60);
const DENIED_FOR: Duration = Duration::from_secs(5);
// Decisions in memory; a full table is emptied of what has expired, then of everything.
const DECISIONS_MAX: usize = 20_000;
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";

/// Asks, and remembers the answers.
pub struct AccessReviews {
    cluster: ClusterClient,
    decisions: Mutex<HashMap<(UpstreamIdentity, AccessQuestion), (bool, Instant)>>,
}

impl AccessReviews {
    pub fn new(cluster: ClusterClient) -> AccessReviews {
        AccessReviews { cluster, decisions: Mutex::default() }
    }

    /// Checks that the caller may do what is asked.
    pub async fn check(&self, identity: &UpstreamIdentity, question: &AccessQuestion) -> Result<(), Status> {
        let key = (identity.clone(), question.clone());
        let known = self.lock().get(&key).copied().filter(|(_, until)| Instant::now() < *until);
        let is_allowed = match known {
            Some((is_allowed, _)) => is_allowed,
            None => {
                let is_allowed = self.ask(identity, question).await.map_err(|error| error.status())?;
                self.remember(key, is_allowed);
                is_allowed
            }
        };
        match is_allowed {
            true => Ok(()),
            false => Err(Status::forbidden(
                "the caller",
                format!("{} {}", question.verb, question.plural),
                "the API server does not allow it",
            )),
        }
    }

    async fn ask(
        &self,
        identity: &UpstreamIdentity,
        question: &AccessQuestion,
    ) -> Result<bool, ClusterError> {
        let review = json!({
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "spec": {"resourceAttributes": {
                "verb": question.verb, "group": question.group, "resource": question.plural,
                "namespace": question.namespace, "name": question.name,
            }},
        });
        let answer = self.cluster.review(identity, REVIEWS, &review).await?;
        Ok(answer["status"]["allowed"] == Value::Bool(true))
    }

    fn remember(&self, key: (UpstreamIdentity, AccessQuestion), is_allowed: bool) {
        let now = Instant::now();
        let until = now + if is_allowed { ALLOWED_FOR } else { DENIED_FOR };
        let mut decisions = self.lock();
        if decisions.len() >= DECISIONS_MAX {
            decisions.retain(|_, (_, until)| now < *until);
        }
        if decisions.len() >= DECISIONS_MAX {
            decisions.clear();
        }
        decisions.insert(key, (is_allowed, until));
    }

    fn lock(
        &self,
    ) -> std::sync::MutexGuard<'_, HashMap<(UpstreamIdentity, AccessQuestion), (bool, Instant)>> {
        self.decisions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
