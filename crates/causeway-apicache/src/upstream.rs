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
mod site_streams;
pub mod subscription;

use std::path::Path;
use std::sync::Arc;

use causeway_api::{Status, error_chain};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::connector::ConnectorFuture;
use crate::resource::SubscriptionScope;
use access::AccessReviews;
use cluster::{ClusterClient, ClusterError, UpstreamIdentity};
use feeds::ResourceFeeds;
use site_streams::SiteStreams;

/// The facts of a site at the cloud: its nodes, and the scopes that the operator pinned for it.
pub trait SiteFacts: Send + Sync + 'static {
    /// Returns true if an EServer of this name is in the site.
    fn has_node<'a>(&'a self, site: &'a str, node: &'a str) -> ConnectorFuture<'a, bool>;
    fn pins<'a>(&'a self, site: &'a str) -> ConnectorFuture<'a, Vec<SubscriptionScope>>;
}

/// The purposes of a stream, as its header names them.
pub const SYNC_TARGET: &str = "sync";
pub const REQUEST_TARGET: &str = "request";

/// The cluster behind the cloud.
pub struct Upstream {
    cluster: ClusterClient,
    feeds: Arc<ResourceFeeds>,
    access: AccessReviews,
    sites: Arc<dyn SiteFacts>,
    streams: SiteStreams,
}

impl Upstream {
    /// Reads the kubeconfig. The cluster need not be reachable yet.
    pub async fn open(kubeconfig: &Path, sites: Arc<dyn SiteFacts>) -> Result<Upstream, ClusterError> {
        let cluster = ClusterClient::open(kubeconfig).await?;
        let (feeds, access) = (ResourceFeeds::new(cluster.clone()), AccessReviews::new(cluster.clone()));
        Ok(Upstream { cluster, feeds, access, sites, streams: SiteStreams::default() })
    }

    /// Serves a stream that a gateway of `site` opened for `target`.
    pub async fn serve<S>(self: Arc<Self>, site: String, target: &str, stream: S)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        // A stream that is dropped is reset; the edge tries again later.
        let Some(_counted) = self.streams.begin(&site) else {
            return tracing::warn!(site, "the site has too many streams of the API cache open");
        };
        let ended = match target {
            SYNC_TARGET => {
                subscription::serve(&self, &site, stream).await.map_err(|error| error_chain(&error))
            }
            REQUEST_TARGET => {
                passthrough::serve(self, site.clone(), stream).await.map_err(|error| error_chain(&error))
            }
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
            true => Ok(answer["status"]["user"].take()),
            false => Err(Status::unauthorized("the API server does not know the token")),
        }
    }
}
