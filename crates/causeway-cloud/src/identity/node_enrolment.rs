//! Enrols the gateways of Kubernetes nodes: a pod shows its service-account token, the cluster tells its node.
//!
//! Input: the request of an edge. Output: a certificate for the gateway of the pod's node. Decisions are in `node_review`; the
//! cluster and the objects are behind `NodeAuthority`. The number of questions to the cluster is bounded here.

use std::num::NonZeroU32;
use std::time::Duration;

use causeway_api::error_chain;
use causeway_apicache::connector::ConnectorFuture;
use causeway_apicache::upstream::cluster::ClusterError;
use causeway_channel::PeerId;
use causeway_channel::key::CertificateRequest;
use causeway_channel::wire::{EnrolNodeMessage, EnrolmentCode, EnrolmentRefusal, EnrolmentResponseBody};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

use super::enrolment::{EnrolmentSubjects, busy, read_request, unavailable};
use super::node_review::{self, ReviewedPod, ServiceAccountName, StoredGateway};
use super::registrar::{ATTEMPTS_MAX, Registrar};

/// The nodes that may enrol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEnrolmentConfig {
    /// Service accounts whose pods may enrol their node.
    pub accounts: Vec<ServiceAccountName>,
    /// The audience that their tokens must be for.
    pub audience: String,
    /// The site of nodes without an EServer. None: they are refused.
    pub default_site: Option<String>,
}

/// The cluster that vouches for pods, and the objects of this cloud.
pub trait NodeAuthority: Send + Sync + 'static {
    /// Creates a TokenReview for one audience and returns the answer.
    fn review_token<'a>(
        &'a self,
        token: &'a str,
        audience: &'a str,
    ) -> ConnectorFuture<'a, Result<Value, ClusterError>>;
    /// Reads a Pod.
    fn pod<'a>(&'a self, path: &'a str) -> ConnectorFuture<'a, Result<Value, ClusterError>>;
    /// Returns `eSiteName` of the EServer of this name.
    fn server_site<'a>(&'a self, node: &'a str) -> ConnectorFuture<'a, Result<Option<String>, String>>;
    /// Returns the EGateway of this name.
    fn gateway<'a>(&'a self, gateway: &'a str) -> ConnectorFuture<'a, Result<Option<StoredGateway>, String>>;
    /// Creates the EGateway. Returns false if it exists by now; it stays as it is.
    fn create_gateway<'a>(&'a self, peer: &'a PeerId) -> ConnectorFuture<'a, Result<bool, String>>;
    /// Creates the ESite, if it is missing.
    fn ensure_site<'a>(&'a self, site: &'a str) -> ConnectorFuture<'a, Result<(), String>>;
}

/// Node enrolment of one cluster. The enrolment server holds it.
pub struct NodeEnrolment {
    config: NodeEnrolmentConfig,
    authority: Box<dyn NodeAuthority>,
    reviews: DefaultDirectRateLimiter,
    open: Semaphore,
}

/// Reviews of tokens that one replica asks for. A thousand nodes enrol in a minute; the API server is not loaded by strangers,
/// whose attempts are limited by address before.
const REVIEWS_PER_SECOND: NonZeroU32 = NonZeroU32::new(20).expect("the constant is not zero");
const REVIEWS_BURST: NonZeroU32 = NonZeroU32::new(100).expect("the constant is not zero");
/// Questions to the API server at the same time.
const OPEN_MAX: usize = 16;
/// For all questions of one enrolment together. Shorter than the exchange with the edge (`EnrolmentLimits`), so that the edge is told.
const CLUSTER_DEADLINE: Duration = Duration::from_secs(10);
const RETRY_SECONDS: u32 = 5;

impl NodeEnrolment {
    pub fn new(config: NodeEnrolmentConfig, authority: Box<dyn NodeAuthority>) -> NodeEnrolment {
        let reviews = RateLimiter::direct(Quota::per_second(REVIEWS_PER_SECOND).allow_burst(REVIEWS_BURST));
        NodeEnrolment { config, authority, reviews, open: Semaphore::new(OPEN_MAX) }
    }

    /// Asks the cluster for the pod of a token and its node.
    async fn pod_and_node(&self, token: &str) -> Result<(ReviewedPod, String), EnrolmentRefusal> {
        node_review::check_token(token)?;
        let too_many = || {
            let message = "too many service-account tokens are being reviewed";
            later(EnrolmentCode::RateLimited, message, "none needed: the edge tries again")
        };
        self.reviews.check().map_err(|_| too_many())?;
        let _open = self.open.try_acquire().map_err(|_| too_many())?;
        let audience = &self.config.audience;
        let deadline = Instant::now() + CLUSTER_DEADLINE;
        let review = before(deadline, self.authority.review_token(token, audience)).await?;
        let pod = node_review::read_review(&review, audience, &self.config.accounts)?;
        let node = match &pod.node {
            Some(node) => node.clone(),
            None => node_review::node_of(&pod, &before(deadline, self.authority.pod(&pod.path())).await?)?,
        };
        Ok((pod, node))
    }
}

impl Registrar {
    /// `nodes` is `None` where the cloud enrols no nodes.
    pub(super) async fn enrol_node(
        &self,
        nodes: Option<&NodeEnrolment>,
        enrol: &EnrolNodeMessage,
        subject: &mut EnrolmentSubjects,
    ) -> Result<EnrolmentResponseBody, EnrolmentRefusal> {
        let Some(nodes) = nodes else {
            return Err(EnrolmentRefusal::new(
                EnrolmentCode::NotPermitted,
                "this cloud enrols no nodes by service accounts",
                "set `kubernetes` and `join-service-accounts` of the cloud, or use a join token",
            ));
        };
        let request = read_request(&enrol.csr, subject)?;
        self.refuse_revoked(&request.key).await?;
        let (pod, node) = nodes.pod_and_node(&enrol.token).await?;
        subject.pod = pod.describe(Some(&node));
        let server_site = nodes.authority.server_site(&node).await.map_err(|error| no_objects(&error))?;
        let default_site = nodes.config.default_site.as_deref();
        let peer = node_review::gateway_of(&node, server_site.as_deref(), default_site)?;
        subject.peer = Some(peer.clone());
        for _ in 0..ATTEMPTS_MAX {
            if let Some(issued) = self.try_enrol_node(nodes, &peer, &node, &request).await? {
                return Ok(issued);
            }
        }
        Err(busy())
    }

    /// `None` when another request changed the gateway's record or created its object in between.
    async fn try_enrol_node(
        &self,
        nodes: &NodeEnrolment,
        peer: &PeerId,
        node: &str,
        request: &CertificateRequest,
    ) -> Result<Option<EnrolmentResponseBody>, EnrolmentRefusal> {
        let failed = |error: String| no_objects(&error);
        let object = nodes.authority.gateway(peer.gateway()).await.map_err(failed)?;
        let since = self.standing_since(peer.gateway()).await.map_err(unavailable)?;
        let gateway = self.gateway(peer).await?;
        // A record that is older than its EGateway is the enrolment of a deleted one.
        let is_current = |revision| since.is_none_or(|since| revision >= since);
        let record = gateway.as_ref().filter(|(_, revision)| is_current(*revision)).map(|(record, _)| record);
        node_review::judge_gateway(peer, object.as_ref(), record)?;
        // Before the certificate: a cloud revokes gateways that have no object. One that was there is not created: it may have been
        // deleted since, and stays deleted.
        if object.is_none() && !nodes.authority.create_gateway(peer).await.map_err(failed)? {
            return Ok(None);
        }
        nodes.authority.ensure_site(peer.site()).await.map_err(failed)?;
        self.issue(peer, Some(node), request, gateway, Vec::new(), self.now()).await
    }
}

/// Asks the cluster, with a deadline.
async fn before(
    deadline: Instant,
    asked: ConnectorFuture<'_, Result<Value, ClusterError>>,
) -> Result<Value, EnrolmentRefusal> {
    let error = match timeout_at(deadline, asked).await {
        Ok(Ok(answer)) => return Ok(answer),
        Ok(Err(ClusterError::Refused(status))) if status.code == 404 => {
            return Err(EnrolmentRefusal::new(
                EnrolmentCode::NotPermitted,
                "the pod of the service-account token is gone",
                "show the token of a running pod",
            ));
        }
        Ok(Err(error)) => error_chain(&error),
        Err(_) => format!("no answer within {} seconds", CLUSTER_DEADLINE.as_secs()),
    };
    tracing::warn!(error, "the cluster of --kubernetes cannot review the token of a node that enrols");
    let hint = "look at the cloud's log and at the rights of its kubeconfig (deploy/kubernetes-access.yaml)";
    Err(later(EnrolmentCode::Unavailable, "the cloud's cluster does not review tokens now", hint))
}

fn no_objects(error: &str) -> EnrolmentRefusal {
    tracing::warn!(error, "the objects of a node that enrols cannot be read or written");
    later(
        EnrolmentCode::Unavailable,
        "the cloud's objects cannot be read or written",
        "look at the cloud's log",
    )
}

fn later(code: EnrolmentCode, message: &str, hint: &str) -> EnrolmentRefusal {
    EnrolmentRefusal { retry_after_seconds: RETRY_SECONDS, ..EnrolmentRefusal::new(code, message, hint) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::identity::server::EnrolmentLimits;

    /// Each question takes eight seconds; the review names no node, so that the pod is read, too.
    struct SlowCluster;

    const QUESTION: Duration = Duration::from_secs(8);

    impl NodeAuthority for SlowCluster {
        fn review_token<'a>(
            &'a self,
            _: &'a str,
            audience: &'a str,
        ) -> ConnectorFuture<'a, Result<Value, ClusterError>> {
            let extra = json!({
                "authentication.kubernetes.io/pod-name": ["edge-x"],
                "authentication.kubernetes.io/pod-uid": ["u-1"],
            });
            let user = json!({"username": "system:serviceaccount:a:b", "extra": extra});
            let status = json!({"authenticated": true, "audiences": [audience], "user": user});
            Box::pin(async move {
                tokio::time::sleep(QUESTION).await;
                Ok(json!({ "status": status }))
            })
        }

        fn pod<'a>(&'a self, _: &'a str) -> ConnectorFuture<'a, Result<Value, ClusterError>> {
            Box::pin(async {
                tokio::time::sleep(QUESTION).await;
                Ok(json!({"metadata": {"uid": "u-1"}, "spec": {"serviceAccountName": "b", "nodeName": "n1"}}))
            })
        }

        fn server_site<'a>(&'a self, node: &'a str) -> ConnectorFuture<'a, Result<Option<String>, String>> {
            panic!("no object of {node} is read")
        }

        fn gateway<'a>(
            &'a self,
            gateway: &'a str,
        ) -> ConnectorFuture<'a, Result<Option<StoredGateway>, String>> {
            panic!("no object of {gateway} is read")
        }

        fn create_gateway<'a>(&'a self, peer: &'a PeerId) -> ConnectorFuture<'a, Result<bool, String>> {
            panic!("no object of {peer} is made")
        }

        fn ensure_site<'a>(&'a self, site: &'a str) -> ConnectorFuture<'a, Result<(), String>> {
            panic!("no object of {site} is made")
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_edge_is_told_before_its_exchange_ends_that_the_cluster_is_slow() {
        let config = NodeEnrolmentConfig {
            accounts: vec!["a/b".parse().unwrap()],
            audience: "x".to_owned(),
            default_site: None,
        };
        let nodes = NodeEnrolment::new(config, Box::new(SlowCluster));
        let start = Instant::now();
        let refusal = nodes.pod_and_node("eyJh.eyJi.c2ln").await.unwrap_err();
        assert_eq!(refusal.reason(), EnrolmentCode::Unavailable, "{refusal}");
        assert!(start.elapsed() < EnrolmentLimits::default().exchange, "{:?}", start.elapsed());
    }
}
