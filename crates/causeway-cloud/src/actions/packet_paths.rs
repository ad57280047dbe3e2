//! Tells which path the packets of each pair of gateways take: `GET /causeway/v1/paths`.
//!
//! The gateways tell their paths; nothing about them is stored. `to_ask` chooses the gateways; pure.

use std::collections::BTreeSet;

use causeway_api::management::{GatewayPath, PathList};
use causeway_api::{ECommunity, EGateway, EService, Kind, ServiceExpose};
use causeway_apiserver::ActionRefusal;
use causeway_apiserver::request::query::QueryParameters;

use super::CloudActions;
use crate::bootstrap::CLOUD;

/// Paths of one answer: with endpoints and reasons about a megabyte.
const PATHS_MAX: usize = 4_000;

impl CloudActions {
    pub(super) async fn paths(&self, query: Option<&str>) -> Result<PathList, ActionRefusal> {
        let names = named_gateways(query);
        let gateways = self.all::<EGateway>(Kind::EGateway).await?;
        let sites = sites_with_packets(
            &self.all::<ECommunity>(Kind::ECommunity).await?,
            &self.all::<ServiceExpose>(Kind::ServiceExpose).await?,
            &self.all::<EService>(Kind::EService).await?,
        );
        self.fleet.refresh_stats().await;
        let is_connected = |name: &str| self.stats.gateway(name).is_some_and(|stats| stats.connected);
        let asked = self.ask_gateways(to_ask(&gateways, &sites, &names, is_connected)).await;
        let all = asked.answers.into_iter().flat_map(|(_, answer)| answer.paths.clone());
        let wanted = |name: &String| names.is_empty() || names.contains(name);
        // A gateway could invent peers, and leave no room for the paths of other gateways.
        let known: BTreeSet<&str> = gateways.iter().map(|gateway| gateway.metadata.name.as_str()).collect();
        let is_shown = |path: &GatewayPath| {
            known.contains(path.peer.as_str()) && (wanted(&path.gateway) || wanted(&path.peer))
        };
        let mut paths: Vec<_> = all.filter(is_shown).collect();
        let not_shown = paths.len().saturating_sub(PATHS_MAX);
        paths.truncate(PATHS_MAX);
        Ok(PathList { paths, unanswered: asked.unanswered, not_asked: asked.not_asked, not_shown })
    }
}

/// The gateways that a caller names. Empty: all.
pub(super) fn named_gateways(query: Option<&str>) -> BTreeSet<String> {
    QueryParameters::parse(query).all("gateway").map(str::to_owned).collect()
}

/// Returns the sites whose gateways have a tunnel: members of communities, and both ends of translated services.
fn sites_with_packets(
    communities: &[ECommunity],
    exposes: &[ServiceExpose],
    services: &[EService],
) -> BTreeSet<String> {
    let mut sites: BTreeSet<String> =
        communities.iter().flat_map(|community| community.members.iter().cloned()).collect();
    for expose in exposes.iter().filter(|expose| expose.is_translated()) {
        sites.extend(expose.e_sites.iter().cloned());
        let service = services.iter().find(|service| service.metadata.name == expose.e_service_name);
        sites.extend(service.map(|service| service.e_site_name.clone()));
    }
    sites
}

/// Returns the gateways that are asked: of those sites, connected, and named if any are. A plain WireGuard peer cannot be asked,
/// so all gateways with packets are asked about it.
fn to_ask(
    gateways: &[EGateway],
    sites: &BTreeSet<String>,
    names: &BTreeSet<String>,
    is_connected: impl Fn(&str) -> bool,
) -> Vec<String> {
    let asks_all = names.is_empty()
        || gateways
            .iter()
            .any(|gateway| gateway.is_plain_wireguard() && names.contains(&gateway.metadata.name));
    let asked = gateways.iter().filter(|gateway| {
        let name = &gateway.metadata.name;
        sites.contains(&gateway.e_site_name)
            && !gateway.is_plain_wireguard()
            && (asks_all || names.contains(name))
            && (name == CLOUD || is_connected(name))
    });
    asked.map(|gateway| gateway.metadata.name.clone()).collect()
}

#[cfg(test)]
mod tests {
    use causeway_api::{Object, Resource};
    use serde_json::{Value, json};

    use super::*;

    fn decode<T: Resource>(kind: Kind, objects: &[Value]) -> Vec<T> {
        let decoded = objects.iter().map(|object| Object::decode(kind, object.clone()).unwrap().object);
        decoded.filter_map(T::from_object).collect()
    }

    #[test]
    fn connected_gateways_with_packets_are_asked() {
        let gateway = |name: &str, site: &str| json!({"metadata": {"name": name}, "eSiteName": site});
        let office = json!({"metadata": {"name": "office"}, "eSiteName": "office",
            "publicKey": "CQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQkJCQk=", "endpoint": "203.0.113.9:51820"});
        let gateways: Vec<EGateway> = decode(
            Kind::EGateway,
            &[
                gateway("oslo-1", "oslo"),
                gateway("rome-1", "rome"),
                gateway("bonn-1", "bonn"),
                gateway("bern-1", "bern"),
                gateway("cloud", "cloud"),
                office,
            ],
        );
        let communities = decode(
            Kind::ECommunity,
            &[json!({"metadata": {"name": "all"}, "members": ["oslo", "rome", "cloud", "office"]})],
        );
        let exposes = decode(
            Kind::ServiceExpose,
            &[
                json!({"metadata": {"name": "web"}, "eServiceName": "web", "eSites": ["oslo"], "mode": "translate"}),
                json!({"metadata": {"name": "ftp"}, "eServiceName": "ftp", "eSites": ["lima"]}),
            ],
        );
        let services = decode(
            Kind::EService,
            &[json!({"metadata": {"name": "web"}, "eSiteName": "bern", "ip": "10.0.0.1", "port": 80})],
        );
        let sites = sites_with_packets(&communities, &exposes, &services);
        assert_eq!(Vec::from_iter(&sites), ["bern", "cloud", "office", "oslo", "rome"]);
        let check = |names: &[&str], expected: &[&str]| {
            let names = names.iter().map(ToString::to_string).collect();
            assert_eq!(to_ask(&gateways, &sites, &names, |name| name != "rome-1"), expected, "{names:?}");
        };
        check(&[], &["oslo-1", "bern-1", "cloud"]);
        check(&["oslo-1", "rome-1", "bonn-1"], &["oslo-1"]);
        check(&["cloud"], &["cloud"]);
        check(&["office"], &["oslo-1", "bern-1", "cloud"]);
    }

    #[test]
    fn gateways_are_named_in_the_query() {
        assert!(named_gateways(None).is_empty() && named_gateways(Some("pretty=true")).is_empty());
        assert_eq!(Vec::from_iter(named_gateways(Some("gateway=a&gateway=b%2E1"))), ["a", "b.1"]);
    }
}
