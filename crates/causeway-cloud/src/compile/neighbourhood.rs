//! The sites whose gateways are peers of a gateway, and those that become peers when the gateway asks for them.
//!
//! Pure. In a community of at most `members_max` sites every member is a peer. In a larger one a member is a peer
//! while it is a neighbour of the gateway: one of them asked for the other. Some members are peers without being asked
//! for: the cloud, the first relays, and plain WireGuard peers, which cannot be heard over the channel.
//! Taking access away is not decided here: a site without a common community is in neither set, whatever was asked.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use causeway_api::layer3::{SiteNetwork, routable};
use causeway_api::{ECommunity, EGateway, ObjectSet};

use super::tunnel::is_relay;
use crate::bootstrap::CLOUD;

/// Relays of a large community that are peers of all members. A gateway tries four relays, in the order of their names.
const RELAYS_MAX: usize = 4;

/// The members of large communities that are peers of a gateway.
#[derive(Clone, Copy, Debug)]
pub enum PeerScope<'a> {
    /// All of them: for gateways that do not ask.
    Everyone,
    /// Communities with more than `members_max` members are large. `neighbours` are the sites that were asked for.
    Neighbours { members_max: usize, neighbours: &'a BTreeSet<String> },
}

/// The other sites that share a community with the site of a gateway.
#[derive(Default, Debug, PartialEq, Eq)]
pub struct Neighbourhood<'a> {
    /// Their gateways are peers.
    pub peers: BTreeSet<&'a str>,
    /// Members of large communities that are peers only when they were asked for; those that were are in both sets.
    pub on_demand: BTreeSet<&'a str>,
}

impl<'a> Neighbourhood<'a> {
    pub fn of(objects: &'a ObjectSet, gateway: &'a EGateway, scope: PeerScope<'_>) -> Neighbourhood<'a> {
        let site = gateway.e_site_name.as_str();
        let name = gateway.metadata.name.as_str();
        let PeerScope::Neighbours { members_max, neighbours } = scope else {
            return Neighbourhood { peers: objects.neighbours(site), on_demand: BTreeSet::new() };
        };
        let (mut always, mut on_demand) = (BTreeSet::new(), BTreeSet::new());
        for community in objects.communities_of(site) {
            let members = community.members.iter().map(String::as_str).filter(|member| *member != site);
            let relays = standing_relays(objects, community);
            if community.members.len() <= members_max || name == CLOUD || relays.contains_key(name) {
                always.extend(members);
                continue;
            }
            let standing: BTreeSet<&str> = relays.into_values().chain([CLOUD]).collect();
            let is_plain = |member: &str| objects.gateways_at(member).any(EGateway::is_plain_wireguard);
            for member in members {
                match standing.contains(member) || is_plain(member) {
                    true => always.insert(member),
                    false => on_demand.insert(member),
                };
            }
        }
        on_demand.retain(|member| !always.contains(member));
        let asked = on_demand.iter().copied().filter(|member| neighbours.contains(*member));
        Neighbourhood { peers: asked.chain(always.iter().copied()).collect(), on_demand }
    }
}

/// Returns the first relays of a community by name, with their sites.
fn standing_relays<'a>(objects: &'a ObjectSet, community: &'a ECommunity) -> BTreeMap<&'a str, &'a str> {
    let gateways = community.members.iter().flat_map(|member| objects.gateways_at(member));
    let relays = gateways.filter(|gateway| gateway.metadata.name != CLOUD && is_relay(gateway));
    let relays: BTreeMap<&str, &str> =
        relays.map(|relay| (relay.metadata.name.as_str(), relay.e_site_name.as_str())).collect();
    relays.into_iter().take(RELAYS_MAX).collect()
}

/// Returns the networks of the sites that share a community with `site`.
pub fn networks_around<'a>(objects: &'a ObjectSet, site: &'a str) -> Vec<SiteNetwork<'a>> {
    routable(objects, site, objects.neighbours(site))
}

/// Returns the site behind which an address on the wire is.
pub fn site_behind<'a>(networks: &[SiteNetwork<'a>], address: IpAddr) -> Option<&'a str> {
    let around = networks.iter().filter(|network| network.wire.contains(&address));
    around.max_by_key(|network| network.wire.prefix_len()).map(|network| network.site)
}

/// Returns the site of this name among those that share a community with `site`. DNS names have no capital letters.
pub fn site_named<'a>(objects: &'a ObjectSet, site: &str, name: &str) -> Option<&'a str> {
    let neighbours = objects.neighbours(site);
    neighbours.get(name).or_else(|| neighbours.iter().find(|known| known.eq_ignore_ascii_case(name))).copied()
}
