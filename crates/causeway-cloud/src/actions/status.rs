//! The whole fleet at a glance: `causeway status`.
//!
//! Objects come from the registry, fast-moving stats are joined here. `render` is pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use causeway_api::management::{
    CommunityOverview, ExposureOverview, FleetStatus, GatewayOverview, IdentityState, PresenceAddresses,
    SiteOverview,
};
use causeway_api::{ECommunity, EGateway, ESite, Kind, Object, Resource, ServiceExpose, VirtualPresence};
use causeway_apiserver::request::query::QueryParameters;
use causeway_apiserver::{ActionRefusal, GatewayStatsSource};

use super::{CloudActions, object_refusal, refusal};

impl CloudActions {
    pub(super) async fn status(&self, query: Option<&str>) -> Result<FleetStatus, ActionRefusal> {
        let wanted = WantedStatus::parse(query)?;
        if wanted.only_gateways {
            return self.gateways(&wanted).await;
        }
        let sites = self.all::<ESite>(Kind::ESite).await?;
        let gateways = self.all::<EGateway>(Kind::EGateway).await?;
        let exposes = self.all::<ServiceExpose>(Kind::ServiceExpose).await?;
        let presences = self.all::<VirtualPresence>(Kind::VirtualPresence).await?;
        let communities = self.all::<ECommunity>(Kind::ECommunity).await?;
        let identities = self.registrar.identity_states().await.map_err(|error| refusal(&error))?;
        self.fleet.refresh_stats().await;
        let status = render(&sites, &gateways, &exposes, &presences, &identities, &*self.stats);
        Ok(FleetStatus { communities: communities.into_iter().map(community_overview).collect(), ..status })
    }

    /// The gateways alone: stats that move, for callers that follow the objects by a watch.
    async fn gateways(&self, wanted: &WantedStatus) -> Result<FleetStatus, ActionRefusal> {
        let gateways = self.all::<EGateway>(Kind::EGateway).await?;
        let identities = self.registrar.identity_states().await.map_err(|error| refusal(&error))?;
        self.fleet.refresh_stats().await;
        let shown = gateways.iter().filter(|gateway| wanted.wants(&gateway.metadata.name));
        let gateways = shown
            .map(|gateway| gateway_overview(gateway, identities.get(&gateway.metadata.name), &*self.stats))
            .collect();
        Ok(FleetStatus { gateways, ..FleetStatus::default() })
    }

    pub(super) async fn all<T: Resource>(&self, kind: Kind) -> Result<Vec<T>, ActionRefusal> {
        let (objects, _) = self.registry.objects(kind).await.map_err(|status| object_refusal(&status))?;
        Ok(objects.into_iter().filter_map(|loaded| T::from_object(loaded.object)).collect())
    }
}

/// The part of the status that a caller wants.
#[derive(Debug, Default, PartialEq, Eq)]
struct WantedStatus {
    only_gateways: bool,
    /// Empty: all of them.
    names: BTreeSet<String>,
}

impl WantedStatus {
    fn parse(query: Option<&str>) -> Result<WantedStatus, ActionRefusal> {
        let pairs = QueryParameters::parse(query);
        let only_gateways = match pairs.one("show") {
            None => false,
            Some("gateways") => true,
            Some(other) => {
                return Err(ActionRefusal::bad_request(format!(
                    "show={other}: only gateways can be shown alone"
                )));
            }
        };
        Ok(WantedStatus { only_gateways, names: pairs.all("gateway").map(str::to_owned).collect() })
    }

    fn wants(&self, gateway: &str) -> bool {
        self.names.is_empty() || self.names.contains(gateway)
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
    FleetStatus { gateways, sites, exposures, communities: Vec::new() }
}

fn community_overview(community: ECommunity) -> CommunityOverview {
    CommunityOverview {
        name: community.metadata.name,
        members: community.members,
        policies: community.e_policys,
        map_from: community.map_from,
        conditions: community.status.conditions,
    }
}

fn gateway_overview(
    gateway: &EGateway,
    identity: Option<&IdentityState>,
    live: &dyn GatewayStatsSource,
) -> GatewayOverview {
    let name = &gateway.metadata.name;
    let mut stats = live.gateway(name).unwrap_or_default();
    // The reason and the version in the object were written by the process that had the session, so that they outlive it.
    if stats.last_disconnect_reason.is_none() && !gateway.status.last_disconnect_reason.is_empty() {
        stats.last_disconnect_reason = Some(gateway.status.last_disconnect_reason.clone());
    }
    if stats.software.is_none() && !gateway.status.software.is_empty() {
        stats.software = Some(gateway.status.software.clone());
    }
    GatewayOverview {
        name: name.clone(),
        site: gateway.e_site_name.clone(),
        draining: gateway.drain,
        stats,
        last_seen: gateway.status.last_seen,
        conditions: Object::from(gateway.clone()).status().conditions.clone(),
        ip: gateway.ip.clone(),
        identity: identity.cloned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_gets_the_part_that_it_wants() {
        let wanted = |query: &str| WantedStatus::parse(Some(query)).unwrap();
        assert_eq!(WantedStatus::parse(None).unwrap(), WantedStatus::default());
        assert!(!wanted("pretty=true").only_gateways);
        assert!(wanted("show=gateways").wants("any"));
        let two = wanted("show=gateways&gateway=a&gateway=b%2E1");
        assert!(two.wants("a") && two.wants("b.1") && !two.wants("c"));
        assert!(WantedStatus::parse(Some("show=sites")).is_err());
    }
}
