//! The whole fleet at a glance: `causeway status`.
//!
//! Objects come from the registry, fast-moving figures are joined here. `render` is pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use causeway_api::management::{
    ExposureOverview, FleetStatus, GatewayOverview, IdentityState, PresenceAddresses, SiteOverview,
};
use causeway_api::{EGateway, ESite, Kind, Object, Resource, ServiceExpose, VirtualPresence};
use causeway_apiserver::{ActionRefusal, GatewayStatsSource};

use super::{CloudActions, object_refusal, refusal};

impl CloudActions {
    pub(super) async fn status(&self) -> Result<FleetStatus, ActionRefusal> {
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
) -> FleetStatus {
    let gateways_of =
        |site: &ESite| gateways.iter().filter(|gateway| gateway.e_site_name == site.metadata.name).count();
    let sites = sites
        .iter()
        .map(|site| SiteOverview {
            name: site.metadata.name.clone(),
            subnets: site.subnets.clone(),
            gateways: gateways_of(site),
            conditions: site.status.conditions.clone(),
        })
        .collect();
    let mut addresses: BTreeMap<&str, BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    for presence in presences {
        let sites = addresses.entry(&presence.e_service_name).or_default();
        sites.entry(&presence.e_site_name).or_default().insert(&presence.virtual_ip);
    }
    let presented = |expose: &ServiceExpose| -> Vec<PresenceAddresses> {
        let sites = addresses.get(expose.e_service_name.as_str());
        let at_site = |site: &String| {
            let addresses = sites.and_then(|sites| sites.get(site.as_str())).into_iter().flatten();
            PresenceAddresses { site: site.clone(), addresses: addresses.map(ToString::to_string).collect() }
        };
        expose.e_sites.iter().map(at_site).collect()
    };
    let exposures = exposes
        .iter()
        .map(|expose| ExposureOverview {
            name: expose.metadata.name.clone(),
            service: expose.e_service_name.clone(),
            dns_name: expose.dns_name.clone(),
            sites: expose.e_sites.clone(),
            presences: presented(expose),
            policies: expose.e_policys.clone(),
            conditions: expose.status.conditions.clone(),
        })
        .collect();
    let gateways = gateways
        .iter()
        .map(|gateway| gateway_overview(gateway, identities.get(&gateway.metadata.name), live))
        .collect();
    FleetStatus { gateways, sites, exposures }
}

fn gateway_overview(
    gateway: &EGateway,
    identity: Option<&IdentityState>,
    live: &dyn GatewayStatsSource,
) -> GatewayOverview {
    let name = &gateway.metadata.name;
    let mut stats = live.gateway(name).unwrap_or_default();
    // The reason in the object was written when the session ended, so that it outlives this process.
    if stats.last_disconnect_reason.is_none() && !gateway.status.last_disconnect_reason.is_empty() {
        stats.last_disconnect_reason = Some(gateway.status.last_disconnect_reason.clone());
    }
    GatewayOverview {
        name: name.clone(),
        site: gateway.e_site_name.clone(),
        stats,
        last_seen: gateway.status.last_seen,
        conditions: Object::from(gateway.clone()).status().conditions.clone(),
        ip: gateway.ip.clone(),
        identity: identity.cloned(),
    }
}
