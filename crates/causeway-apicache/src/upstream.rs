//! The cloud's side of the API cache: follows the cluster once for all sites, and acts for their callers.
//!
//! `cluster` sends requests, `list_watch` reads a resource, `feed` and `feeds` follow resources, `subscription` serves one
//! subscription, `passthrough` one request, `access` asks what a caller may do. Streams of edges are handed to `serve`
//! with the site from their certificate.

pub mod access;
pub mod cluster;
pub mod feed;
pub mod feeds;
pub mod list_watch;
pub mod passthrough;
pub(crate) mod site_streams;
pub mod subscription;

use std::path::Path;
use std::sync::Arc;

use causeway_api::{Status, error_chain};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connector::ConnectorFuture;
use crate::resource::SubscriptionScope;
use access::AccessDecisions;
use cluster::{ClusterClient, ClusterError, UpstreamIdentity};
use feeds::ResourceFeeds;
use site_streams::SiteStreams;

/// The facts of a site at the cloud: its nodes, and the scopes that the operator pinned for it.
pub trait SiteFacts: Send + Sync + 'static {
    /// Returns true if an EServer of this name is in the site.
    fn has_node<'a>(&'a self, site: &'a str, node: &'a str) -> ConnectorFuture<'a, bool>;
    /// `None`: it is not known now.
    fn pins<'a>(&'a self, site: &'a str) -> ConnectorFuture<'a, Option<Vec<SubscriptionScope>>>;
}

/// The purposes of a stream, as its header names them.
pub const SYNC_TARGET: &str = "sync";
pub const REQUEST_TARGET: &str = "request";
pub const ACCESS_TARGET: &str = "access";

/// The cluster behind the cloud.
pub struct Upstream {
    cluster: ClusterClient,
    feeds: Arc<ResourceFeeds>,
    access: AccessDecisions,
    sites: Arc<dyn SiteFacts>,
    subscriptions: SiteStreams,
    requests: SiteStreams,
    /// Streams of questions about access.
    questions: SiteStreams,
}

/// Subscriptions that one site may have open at the same time. A site holds a few dozen resources, and one subscription
/// per ConfigMap and Secret of its pods.
const SUBSCRIPTIONS_PER_SITE_MAX: usize = 8_192;
/// Requests and upgraded connections of one site. Each has a connection to the API server.
const REQUESTS_PER_SITE_MAX: usize = 1_024;
// An edge has one; a site has few gateways, and an old stream may end late. Each holds thousands of decisions.
const QUESTION_STREAMS_PER_SITE_MAX: usize = 4;

impl Upstream {
    /// Reads the kubeconfig. The cluster need not be reachable yet.
    pub async fn open(kubeconfig: &Path, sites: Arc<dyn SiteFacts>) -> Result<Upstream, ClusterError> {
        let cluster = ClusterClient::open(kubeconfig).await?;
        let feeds = ResourceFeeds::new(cluster.clone());
        let access = AccessDecisions::new(cluster.clone(), feeds.clone());
        let (subscriptions, requests) =
            (SiteStreams::new(SUBSCRIPTIONS_PER_SITE_MAX), SiteStreams::new(REQUESTS_PER_SITE_MAX));
        let questions = SiteStreams::new(QUESTION_STREAMS_PER_SITE_MAX);
        Ok(Upstream { cluster, feeds, access, sites, subscriptions, requests, questions })
    }

    /// Serves a stream that a gateway of `site` opened for `target`.
    pub async fn serve<S>(self: Arc<Self>, site: String, target: &str, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // A stream that is dropped is reset; the edge tries again later.
        let streams = match target {
            SYNC_TARGET => &self.subscriptions,
            ACCESS_TARGET => &self.questions,
            _ => &self.requests,
        };
        // The site decides how often this is logged, so it is not a warning.
        let Some(counted) = streams.begin(&site) else {
            return tracing::debug!(site, target, "the site has too many streams of the API cache open");
        };
        let ended = match target {
            SYNC_TARGET => subscription::serve(&self, &site, (counted.memory(), counted.snapshots()), stream)
                .await
                .map_err(|error| error_chain(&error)),
            ACCESS_TARGET => access::session::serve(&self, &site, counted.memory(), stream)
                .await
                .map_err(|error| error_chain(&error)),
            REQUEST_TARGET => passthrough::serve(self, site.clone(), Arc::new(counted), stream)
                .await
                .map_err(|error| error_chain(&error)),
            _ => Err("the stream has an unknown target".to_owned()),
        };
        if let Err(error) = ended {
            tracing::debug!(site, target, error, "a stream of the API cache ended");
        }
    }

    async fn node_identity(&self, site: &str, node: &str) -> Result<UpstreamIdentity, Status> {
        match self.sites.has_node(site, node).await {
            true => Ok(UpstreamIdentity::Node(node.to_owned())),
            false => Err(Status::forbidden(
                &format!("system:node:{node}"),
                format!("act from site {site}"),
                "no EServer of this name has that eSiteName",
            )),
        }
    }

    /// The facts that an edge needs to authenticate callers, and its pins.
    async fn site_facts(&self, site: &str) -> Result<Value, Status> {
        let own = &UpstreamIdentity::Own;
        let get = async |path: &str| {
            // The keys have a media type of their own (RFC 7517), and the API server offers no other for them.
            let text =
                self.cluster.get(own, path, "application/json, application/jwk-set+json").await.ok()?;
            serde_json::from_slice::<Value>(&text).ok()
        };
        let configuration = get("/.well-known/openid-configuration").await.unwrap_or_default();
        let authentication =
            get("/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication").await;
        let client_ca = authentication.as_ref().map(|found| found["data"]["client-ca-file"].clone());
        Ok(json!({
            "issuer": configuration["issuer"],
            "keys": get("/openid/v1/jwks").await.unwrap_or_default()["keys"],
            "clientCa": client_ca.unwrap_or_default(),
            "pins": self.sites.pins(site).await,
        }))
    }

    /// Asks the API server whose token this is.
    async fn review_token(&self, token: &str) -> Result<Value, Status> {
        let review = json!({
            "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1", "spec": {"token": token},
        });
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        let mut answer = self
            .cluster
            .review(&UpstreamIdentity::Own, path, &review)
            .await
            .map_err(|error| error.status())?;
        match answer["status"]["authenticated"] == Value::Bool(true) {
            true => Ok(answer.pointer_mut("/status/user").map(Value::take).unwrap_or_default()),
            false => Err(Status::unauthorized("the API server does not know the token")),
        }
    }
}

/// Facts that a test takes away.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct TestFacts {
    has_left: std::sync::atomic::AtomicBool,
}

#[cfg(test)]
impl TestFacts {
    pub fn revoke(&self) {
        self.has_left.store(true, std::sync::atomic::Ordering::SeqCst);
    }

    fn is_there(&self) -> bool {
        !self.has_left.load(std::sync::atomic::Ordering::SeqCst)
    }
}

#[cfg(test)]
impl SiteFacts for TestFacts {
    fn has_node<'a>(&'a self, site: &'a str, node: &'a str) -> ConnectorFuture<'a, bool> {
        Box::pin(async move { self.is_there() && (site, node) == ("oslo", "n1") })
    }

    fn pins<'a>(&'a self, _: &'a str) -> ConnectorFuture<'a, Option<Vec<SubscriptionScope>>> {
        let all = |plural: &str| SubscriptionScope::all(crate::resource::ResourceName::new("", "v1", plural));
        let maps = SubscriptionScope { namespace: "shop".into(), ..all("configmaps") };
        Box::pin(async move { Some(if self.is_there() { vec![all("nodes"), maps] } else { Vec::new() }) })
    }
}

#[cfg(test)]
impl Upstream {
    /// With a cluster that cannot be reached.
    pub(crate) async fn for_tests() -> (Arc<Upstream>, Arc<TestFacts>) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&path, text.to_string()).expect("the folder is writable");
        let facts = Arc::new(TestFacts::default());
        (Arc::new(Upstream::open(&path, facts.clone()).await.expect("it is a kubeconfig")), facts)
    }
}
