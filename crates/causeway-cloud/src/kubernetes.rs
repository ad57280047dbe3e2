//! Connects the API cache with this cloud: which nodes and which pinned resources a site has, by its objects.

use std::path::Path;
use std::sync::Arc;

use causeway_api::kinds::CachedResource;
use causeway_api::{Kind, Object};
use causeway_apicache::connector::ConnectorFuture;
use causeway_apicache::resource::{ResourceName, SubscriptionScope};
use causeway_apicache::upstream::cluster::ClusterError;
use causeway_apicache::upstream::{SiteFacts, Upstream};
use causeway_apiserver::Registry;

/// Opens the cluster of a kubeconfig. Without one, edges have no copy of a Kubernetes API.
pub async fn open(
    kubeconfig: Option<&Path>,
    registry: &Arc<Registry>,
) -> Result<Option<Arc<Upstream>>, ClusterError> {
    let Some(kubeconfig) = kubeconfig else { return Ok(None) };
    let sites = Arc::new(RegistryFacts(registry.clone()));
    Ok(Some(Arc::new(Upstream::open(kubeconfig, sites).await?)))
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

    fn pins<'a>(&'a self, site: &'a str) -> ConnectorFuture<'a, Vec<SubscriptionScope>> {
        Box::pin(async move {
            match self.0.object(Kind::ESite, site).await.ok().flatten().map(|found| found.object) {
                Some(Object::ESite(site)) => site.cache.iter().filter_map(scope).collect(),
                _ => Vec::new(),
            }
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
