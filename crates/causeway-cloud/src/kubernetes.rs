//! Connects the cluster of `--kubernetes` with this cloud: the API cache with the nodes and pinned resources of sites, and the
//! enrolment of nodes with the reviews of the cluster and the objects of gateways.

use std::path::Path;
use std::sync::Arc;

use causeway_api::kinds::CachedResource;
use causeway_api::{EGateway, ESite, Kind, Object, ObjectMeta};
use causeway_apicache::connector::ConnectorFuture;
use causeway_apicache::resource::{ResourceName, SubscriptionScope};
use causeway_apicache::upstream::cluster::{ClusterClient, ClusterError, UpstreamIdentity};
use causeway_apicache::upstream::{SiteFacts, Upstream};
use causeway_apiserver::{Registry, RegistryError};
use causeway_channel::PeerId;
use serde_json::{Value, json};

use crate::identity::{NodeAuthority, NodeEnrolment, NodeEnrolmentConfig, StoredGateway};
use crate::reconcile::MANAGER;

/// Opens the cluster of a kubeconfig. Without one, edges have no copy of a Kubernetes API.
pub async fn open(
    kubeconfig: Option<&Path>,
    registry: &Arc<Registry>,
) -> Result<Option<Arc<Upstream>>, ClusterError> {
    let Some(kubeconfig) = kubeconfig else { return Ok(None) };
    let sites = Arc::new(RegistryFacts(registry.clone()));
    Ok(Some(Arc::new(Upstream::open(kubeconfig, sites).await?)))
}

/// Lets the nodes of a cluster enrol.
pub async fn node_enrolment(
    kubeconfig: &Path,
    config: NodeEnrolmentConfig,
    registry: &Arc<Registry>,
) -> Result<NodeEnrolment, ClusterError> {
    let cluster = ClusterClient::open(kubeconfig).await?;
    Ok(NodeEnrolment::new(config, Box::new(ClusterNodes { cluster, registry: registry.clone() })))
}

/// The reviews of a cluster and the objects of this cloud.
struct ClusterNodes {
    cluster: ClusterClient,
    registry: Arc<Registry>,
}

impl ClusterNodes {
    async fn object(&self, kind: Kind, name: &str) -> Result<Option<Object>, String> {
        let found = self.registry.object(kind, name).await.map_err(|error| error.to_string())?;
        Ok(found.map(|found| found.object))
    }

    /// Returns false if the object exists.
    async fn create(&self, object: Object) -> Result<bool, String> {
        match self.registry.create_with_defaults(MANAGER, object).await {
            Ok(_) => Ok(true),
            Err(RegistryError::AlreadyExists(_) | RegistryError::Conflict(_)) => Ok(false),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl NodeAuthority for ClusterNodes {
    fn review_token<'a>(
        &'a self,
        token: &'a str,
        audience: &'a str,
    ) -> ConnectorFuture<'a, Result<Value, ClusterError>> {
        let review = json!({
            "kind": "TokenReview", "apiVersion": "authentication.k8s.io/v1",
            "spec": {"token": token, "audiences": [audience]},
        });
        let path = "/apis/authentication.k8s.io/v1/tokenreviews";
        Box::pin(async move { self.cluster.review(&UpstreamIdentity::Own, path, &review).await })
    }

    fn pod<'a>(&'a self, path: &'a str) -> ConnectorFuture<'a, Result<Value, ClusterError>> {
        Box::pin(async move {
            let text = self.cluster.get(&UpstreamIdentity::Own, path, "application/json").await?;
            Ok(serde_json::from_slice(&text)?)
        })
    }

    fn server_site<'a>(&'a self, node: &'a str) -> ConnectorFuture<'a, Result<Option<String>, String>> {
        Box::pin(async move {
            Ok(match self.object(Kind::EServer, node).await? {
                Some(Object::EServer(server)) => Some(server.e_site_name),
                _ => None,
            })
        })
    }

    fn gateway<'a>(&'a self, gateway: &'a str) -> ConnectorFuture<'a, Result<Option<StoredGateway>, String>> {
        Box::pin(async move {
            Ok(match self.object(Kind::EGateway, gateway).await? {
                Some(Object::EGateway(gateway)) => Some(StoredGateway {
                    is_marked: gateway.metadata.deletion_timestamp.is_some(),
                    site: gateway.e_site_name,
                }),
                _ => None,
            })
        })
    }

    fn create_gateway<'a>(&'a self, peer: &'a PeerId) -> ConnectorFuture<'a, Result<bool, String>> {
        let gateway = EGateway {
            metadata: ObjectMeta::named(peer.gateway()),
            e_site_name: peer.site().to_owned(),
            ..EGateway::default()
        };
        Box::pin(self.create(gateway.into()))
    }

    fn ensure_site<'a>(&'a self, site: &'a str) -> ConnectorFuture<'a, Result<(), String>> {
        let site = ESite { metadata: ObjectMeta::named(site), ..ESite::default() };
        Box::pin(async move { self.create(site.into()).await.map(drop) })
    }
}

struct RegistryFacts(Arc<Registry>);

impl SiteFacts for RegistryFacts {
    fn has_node<'a>(&'a self, site: &'a str, node: &'a str) -> ConnectorFuture<'a, bool> {
        Box::pin(async move {
            // Without an answer of the store no node is believed.
            let found = self.0.object(Kind::EServer, node).await.ok().flatten();
            matches!(found.map(|found| found.object), Some(Object::EServer(server)) if server.e_site_name == site)
        })
    }

    fn pins<'a>(&'a self, site: &'a str) -> ConnectorFuture<'a, Option<Vec<SubscriptionScope>>> {
        Box::pin(async move {
            let found = self.0.object(Kind::ESite, site).await.ok()?;
            Some(match found.map(|found| found.object) {
                Some(Object::ESite(site)) => site.cache.iter().filter_map(scope).collect(),
                _ => Vec::new(),
            })
        })
    }
}

/// The scope of an entry; `None` for one that names no resource.
fn scope(cached: &CachedResource) -> Option<SubscriptionScope> {
    Some(SubscriptionScope {
        resource: ResourceName::parse(&cached.resource)?,
        namespace: cached.namespace.clone(),
        label_selector: cached.label_selector.clone(),
        field_selector: cached.field_selector.clone(),
    })
}
