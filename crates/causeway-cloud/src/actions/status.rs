//! The whole fleet at a glance: `causeway status`.
//!
//! Objects come from the registry, fast-moving figures are joined here. `render` is pure.

use causeway_api::{EGateway, ESite, Kind, Object, Resource, ServiceExpose};
use causeway_apiserver::{ActionRefusal, LiveFigures};
use serde_json::{Value, json};

use super::{CloudActions, object_refusal};

impl CloudActions {
    pub(super) async fn status(&self) -> Result<Value, ActionRefusal> {
        let sites = self.all::<ESite>(Kind::ESite).await?;
        let gateways = self.all::<EGateway>(Kind::EGateway).await?;
        let exposes = self.all::<ServiceExpose>(Kind::ServiceExpose).await?;
        self.fleet.refresh_figures().await;
        Ok(render(&sites, &gateways, &exposes, &*self.figures))
    }

    async fn all<T: Resource>(&self, kind: Kind) -> Result<Vec<T>, ActionRefusal> {
        let (objects, _) = self.registry.objects(kind).await.map_err(|status| object_refusal(&status))?;
        Ok(objects.into_iter().filter_map(|loaded| T::from_object(loaded.object)).collect())
    }
}

fn render(
    sites: &[ESite],
    gateways: &[EGateway],
    exposes: &[ServiceExpose],
    live: &dyn LiveFigures,
) -> Value {
    let gateways_of =
        |site: &ESite| gateways.iter().filter(|gateway| gateway.e_site_name == site.metadata.name).count();
    let sites: Vec<Value> = sites
        .iter()
        .map(|site| {
            json!({
                "name": site.metadata.name,
                "subnets": site.subnets,
                "gateways": gateways_of(site),
                "conditions": site.status.conditions,
            })
        })
        .collect();
    let exposures: Vec<Value> = exposes
        .iter()
        .map(|expose| {
            json!({
                "name": expose.metadata.name,
                "service": expose.e_service_name,
                "dnsName": expose.dns_name,
                "sites": expose.e_sites,
                "policies": expose.e_policys,
                "conditions": expose.status.conditions,
            })
        })
        .collect();
    let gateways: Vec<Value> = gateways.iter().map(|gateway| gateway_line(gateway, live)).collect();
    json!({"gateways": gateways, "sites": sites, "exposures": exposures})
}

fn gateway_line(gateway: &EGateway, live: &dyn LiveFigures) -> Value {
    let name = &gateway.metadata.name;
    let mut line = serde_json::to_value(live.gateway(name).unwrap_or_default()).unwrap_or_default();
    line["name"] = name.as_str().into();
    line["site"] = gateway.e_site_name.as_str().into();
    line["conditions"] = json!(Object::from(gateway.clone()).status().conditions);
    line
}
