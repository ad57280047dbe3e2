//! The whole fleet at a glance: `causeway status`.
//!
//! Objects come from the registry, fast-moving figures are joined here. `render` is pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use causeway_api::{EGateway, ESite, Kind, Object, Resource, ServiceExpose, VirtualPresence};
use causeway_apiserver::{ActionRefusal, GatewayStatsSource};
use serde_json::{Value, json};

use super::{CloudActions, object_refusal, refusal};
use crate::identity::IdentityState;

impl CloudActions {
    pub(super) async fn status(&self) -> Result<Value, ActionRefusal> {
        let sites = self.all::<ESite>(Kind::ESite).await?;
        let gateways = self.all::<EGateway>(Kind::EGateway).await?;
        let exposes = self.all::<ServiceExpose>(Kind::ServiceExpose).await?;
        let presences = self.all::<VirtualPresence>(Kind::VirtualPresence).await?;
        let identities = self.registrar.identity_states().await.map_err(|error| refusal(&error))?;
        self.fleet.refresh_figures().await;
        Ok(render(&sites, &gateways, &exposes, &presences, &identities, &*self.figures))
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
    presences: &[VirtualPresence],
    identities: &HashMap<String, IdentityState>,
    live: &dyn GatewayStatsSource,
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
    let mut addresses: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for presence in presences {
        let sites = addresses.entry(&presence.e_service_name).or_default();
        sites.entry(&presence.e_site_name).or_default().insert(&presence.virtual_ip);
    }
    // Every site of an exposure, also where it has no address.
    let presented = |expose: &ServiceExpose| -> Vec<Value> {
        let sites = addresses.get(expose.e_service_name.as_str());
        let there = |site: &String| {
            let addresses = sites.and_then(|sites| sites.get(site.as_str()));
            json!({"site": site, "addresses": addresses.cloned().unwrap_or_default()})
        };
        expose.e_sites.iter().map(there).collect()
    };
    let exposures: Vec<Value> = exposes
        .iter()
        .map(|expose| {
            json!({
                "name": expose.metadata.name,
                "service": expose.e_service_name,
                "dnsName": expose.dns_name,
                "sites": expose.e_sites,
                "presences": presented(expose),
                "policies": expose.e_policys,
                "conditions": expose.status.conditions,
            })
        })
        .collect();
    let gateways: Vec<Value> = gateways
        .iter()
        .map(|gateway| gateway_line(gateway, identities.get(&gateway.metadata.name), live))
        .collect();
    json!({"gateways": gateways, "sites": sites, "exposures": exposures})
}

fn gateway_line(
    gateway: &EGateway,
    identity: Option<&IdentityState>,
    live: &dyn GatewayStatsSource,
) -> Value {
    let name = &gateway.metadata.name;
    let mut line = serde_json::to_value(live.gateway(name).unwrap_or_default()).unwrap_or_default();
    line["name"] = name.as_str().into();
    line["site"] = gateway.e_site_name.as_str().into();
    // Written into the object when it left, so that it outlives this process.
    line["lastSeen"] = json!(gateway.status.last_seen);
    if line["lastDisconnectReason"].is_null() && !gateway.status.last_disconnect_reason.is_empty() {
        line["lastDisconnectReason"] = gateway.status.last_disconnect_reason.as_str().into();
    }
    line["conditions"] = json!(Object::from(gateway.clone()).status().conditions);
    line["ip"] = gateway.ip.as_str().into();
    line["identity"] = json!(identity);
    line
}
