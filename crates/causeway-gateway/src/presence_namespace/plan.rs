//! Computes the wanted state of the presence namespace from the netmap, and the route changes that lead to
//! it. Pure.

use std::net::IpAddr;

use causeway_netmap::NetmapView;
use ipnet::IpNet;

/// The networks that the presence namespace serves.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct NamespacePlan {
    networks: Vec<IpNet>,
    /// The source address with which the host itself reaches presences, if the host has that address: then a
    /// policy can name it.
    pub source: Option<IpAddr>,
    /// The addresses of presences in these networks.
    presences: Vec<IpAddr>,
}

impl NamespacePlan {
    /// Empty while no presence has an address in one of the networks. Loopback addresses are never included:
    /// the kernel does not route them over a link; they are bound on the host.
    pub fn of(view: &NetmapView) -> NamespacePlan {
        let Some(gateway) = &view.gateway else { return NamespacePlan::default() };
        let mut networks: Vec<IpNet> =
            gateway.presence_cidrs.iter().map(IpNet::trunc).filter(|net| !net.addr().is_loopback()).collect();
        networks.sort();
        networks.dedup();
        let mut plan = NamespacePlan { networks, source: gateway.ip, presences: Vec::new() };
        let addresses = view.presences.values().flat_map(|presence| &presence.addresses);
        plan.presences = addresses.map(|address| address.0).filter(|address| plan.holds(*address)).collect();
        match plan.presences.is_empty() {
            false => plan,
            true => NamespacePlan::default(),
        }
    }

    /// Tells whether both plans have the same networks. Presences come and go without a change to the
    /// networks.
    pub fn is_like(&self, other: &NamespacePlan) -> bool {
        self.networks == other.networks && self.source == other.source
    }

    pub fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    pub fn networks(&self) -> &[IpNet] {
        &self.networks
    }

    pub fn holds(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }
}

/// A route of the host's main table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HostRoute {
    pub to: IpNet,
    /// None: the route leads nowhere, or to several interfaces.
    pub interface: Option<u32>,
}

/// Changes to the host's routes.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RouteChanges {
    pub add: Vec<IpNet>,
    pub remove: Vec<IpNet>,
    /// Networks that already have another route: ours would silently replace it, or lose to it.
    pub taken: Vec<HostRoute>,
}

/// `ours` is the host's end of the veth. It has no address, so only we add routes to it, except the kernel's
/// own IPv6 routes.
pub fn changes(plan: &NamespacePlan, routes: &[HostRoute], ours: u32) -> RouteChanges {
    let mut changes = RouteChanges::default();
    for network in plan.networks() {
        let mut there = routes.iter().filter(|route| route.to == *network);
        match there.clone().find(|route| route.interface != Some(ours)) {
            Some(other) => changes.taken.push(other.clone()),
            None if there.next().is_none() => changes.add.push(*network),
            None => {}
        }
    }
    let ours = routes.iter().filter(|route| route.interface == Some(ours) && !is_link_route(&route.to));
    let unwanted = |route: &&HostRoute| {
        !plan.networks.contains(&route.to) || changes.taken.iter().any(|t| t.to == route.to)
    };
    changes.remove = ours.filter(unwanted).map(|route| route.to).collect();
    changes
}

/// Returns routes that are more specific than ours and lead presences elsewhere, each with the first address
/// that it hides.
pub fn hidden(plan: &NamespacePlan, routes: &[HostRoute], ours: u32) -> Vec<(HostRoute, IpAddr)> {
    let is_inside = |route: &&HostRoute| {
        let within = |network: &IpNet| network.contains(&route.to) && *network != route.to;
        route.interface != Some(ours) && plan.networks.iter().any(within)
    };
    let hides = |route: &HostRoute| plan.presences.iter().copied().filter(|ip| route.to.contains(ip)).min();
    routes.iter().filter(is_inside).filter_map(|route| Some((route.clone(), hides(route)?))).collect()
}

/// Tells whether the network is one of the link-local IPv6 routes that every interface has.
fn is_link_route(network: &IpNet) -> bool {
    match network.addr() {
        IpAddr::V4(_) => false,
        IpAddr::V6(address) => address.is_unicast_link_local() || address.is_multicast(),
    }
}

#[cfg(test)]
mod tests {
    use causeway_netmap::{
        GatewayEntry, Generation, NetmapEntry, PresenceEntry, PresenceIp, ServiceProtocol,
    };

    use super::*;

    fn view(cidrs: &[&str], presences: &[&str]) -> NetmapView {
        let gateway = NetmapEntry::Gateway(GatewayEntry {
            presence_cidrs: cidrs.iter().map(|cidr| cidr.parse().unwrap()).collect(),
            ..GatewayEntry::named("gw", "oslo")
        });
        let presence = |ip: &&str| {
            NetmapEntry::Presence(PresenceEntry {
                service: (*ip).into(),
                addresses: vec![PresenceIp(ip.parse().unwrap())],
                port: 80,
                protocol: ServiceProtocol::Tcp,
                brokers: 0,
                names: vec![],
                service_site: "berlin".into(),
                policies: vec![],
            })
        };
        let facts = std::iter::once(gateway).chain(presences.iter().map(presence));
        NetmapView::of_entries(Generation { epoch: 1, revision: 1 }, facts).unwrap()
    }

    #[test]
    fn a_namespace_is_wanted_only_for_presences_in_it() {
        let check = |cidrs: &[&str], presences: &[&str], expected: &[&str]| {
            let plan = NamespacePlan::of(&view(cidrs, presences));
            let networks: Vec<String> = plan.networks().iter().map(IpNet::to_string).collect();
            assert_eq!(networks, expected, "{cidrs:?} {presences:?}");
        };
        check(&["198.18.0.0/16"], &[], &[]);
        check(&["198.18.0.0/16"], &["198.18.0.1"], &["198.18.0.0/16"]);
        check(&["198.18.0.5/16", "fd00::/64"], &["fd00::1"], &["198.18.0.0/16", "fd00::/64"]);
        check(&["198.18.0.0/16"], &["198.19.0.1"], &[]);
        check(&["127.18.0.0/16"], &["127.18.0.1"], &[]);
        assert!(NamespacePlan::of(&NetmapView::default()).is_empty());
    }

    #[test]
    fn routes_are_brought_into_step() {
        let plan = NamespacePlan::of(&view(&["198.18.0.0/16", "fd00::/64"], &["fd00::1"]));
        let route =
            |to: &str, interface: u32| HostRoute { to: to.parse().unwrap(), interface: Some(interface) };
        let check = |routes: &[HostRoute], add: &[&str], remove: &[&str], taken: &[&str]| {
            let changes = changes(&plan, routes, 7);
            let text = |nets: &[IpNet]| nets.iter().map(IpNet::to_string).collect::<Vec<_>>();
            assert_eq!(
                (text(&changes.add), text(&changes.remove)),
                (strings(add), strings(remove)),
                "{routes:?}"
            );
            let found: Vec<IpNet> = changes.taken.iter().map(|route| route.to).collect();
            assert_eq!(text(&found), strings(taken), "{routes:?}");
        };
        fn strings(words: &[&str]) -> Vec<String> {
            words.iter().map(|word| (*word).to_owned()).collect()
        }
        check(&[], &["198.18.0.0/16", "fd00::/64"], &[], &[]);
        check(&[route("198.18.0.0/16", 7), route("fe80::/64", 7)], &["fd00::/64"], &[], &[]);
        check(&[route("198.18.0.0/16", 2), route("fd00::/64", 7)], &[], &[], &["198.18.0.0/16"]);
        // Another route was added later: the network belongs to its owner.
        let both = [route("198.18.0.0/16", 2), route("198.18.0.0/16", 7), route("fd00::/64", 7)];
        check(&both, &[], &["198.18.0.0/16"], &["198.18.0.0/16"]);
        let old = [route("198.18.0.0/16", 7), route("fd00::/64", 7), route("198.51.100.0/24", 7)];
        check(&old, &[], &["198.51.100.0/24"], &[]);
    }

    #[test]
    fn a_more_specific_route_hides_the_presences_in_it() {
        let plan = NamespacePlan::of(&view(&["198.18.0.0/16"], &["198.18.5.9", "198.18.5.7"]));
        let check = |to: &str, interface: Option<u32>, expected: Option<&str>| {
            let route = HostRoute { to: to.parse().unwrap(), interface };
            let found = hidden(&plan, &[route], 7).first().map(|(_, address)| address.to_string());
            assert_eq!(found.as_deref(), expected, "{to}");
        };
        check("198.18.5.0/24", Some(2), Some("198.18.5.7"));
        check("198.18.5.9/32", None, Some("198.18.5.9"));
        check("198.18.6.0/24", Some(2), None);
        check("198.18.5.0/24", Some(7), None);
        check("198.18.0.0/16", Some(2), None);
        check("0.0.0.0/0", Some(2), None);
    }
}
