//! Compiles the netmap of one gateway from all objects.
//!
//! Pure: the objects and a gateway's name in, entries out; the same objects give the same bytes in every
//! replica. A gateway is told only what concerns its site: names of services that are not exposed to it, and
//! addresses inside sites with which it shares no community, do not leave the cloud. Default deny: access needs an existing policy, and a
//! dangling reference allows none.

pub mod affected;
mod facts;
mod neighbourhood;
mod translated;
mod tunnel;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use bytes::Bytes;
use causeway_api::layer3::wire_address;
use causeway_api::{
    EGateway, EServer, EService, ObjectSet, ServiceExpose, VirtualPresence, conditions, presence,
};
use causeway_netmap::{
    DnsName, EntryKey, ExposureEntry, NetmapEntry, NodeEntry, PresenceEntry, PresenceIp, ServiceEntry,
    SiteEntry, SubjectEntry,
};

use crate::replicas::ActiveGateways;
use neighbourhood::Neighbourhood;

pub use neighbourhood::{PeerScope, networks_around, site_behind, site_named};

/// The entries of the netmap of a gateway that does not ask for its neighbours. None: there is no such gateway.
pub fn compile(
    objects: &ObjectSet,
    active: &ActiveGateways,
    gateway: &str,
) -> Option<Vec<(EntryKey, Bytes)>> {
    compile_for(objects, active, gateway, PeerScope::Everyone)
}

/// The entries of a gateway's netmap, with the members of large communities that `scope` names. None: there is no such
/// gateway.
pub fn compile_for(
    objects: &ObjectSet,
    active: &ActiveGateways,
    gateway: &str,
    scope: PeerScope<'_>,
) -> Option<Vec<(EntryKey, Bytes)>> {
    let facts = facts(objects, active, objects.gateway(gateway)?, scope);
    Some(facts.iter().map(NetmapEntry::encode).collect())
}

fn facts(
    objects: &ObjectSet,
    active: &ActiveGateways,
    gateway: &EGateway,
    scope: PeerScope<'_>,
) -> Vec<NetmapEntry> {
    let neighbourhood = Neighbourhood::of(objects, gateway, scope);
    let mut draft = Draft {
        objects,
        site: &gateway.e_site_name,
        neighbourhood,
        facts: Vec::new(),
        reach: BTreeMap::new(),
    };
    let mut own = facts::gateway(gateway);
    draft.tunnel(active, gateway, &mut own);
    draft.facts.push(NetmapEntry::Gateway(own));
    draft.own_site(active);
    draft.presences(active, gateway);
    draft.services();
    draft.translated_services(active, gateway);
    draft.nodes_here();
    draft.nodes_elsewhere();
    draft.hosts_elsewhere(active, gateway);
    draft.subjects_here();
    draft.policies();
    draft.leave_names_to_nodes();
    draft.facts
}

/// A netmap in the making.
struct Draft<'a> {
    objects: &'a ObjectSet,
    site: &'a str,
    neighbourhood: Neighbourhood<'a>,
    facts: Vec<NetmapEntry>,
    /// The policies that are referred to, and the sites from which allowed subjects may come.
    reach: BTreeMap<&'a str, Reach<'a>>,
}

#[derive(Default)]
struct Reach<'a> {
    anywhere: bool,
    sites: BTreeSet<&'a str>,
}

impl Reach<'_> {
    fn covers(&self, site: &str) -> bool {
        self.anywhere || self.sites.contains(site)
    }
}

impl<'a> Draft<'a> {
    fn own_site(&mut self, active: &ActiveGateways) {
        let subnets = self.objects.site(self.site).map(facts::subnets).unwrap_or_default();
        // A record of a gateway that is no longer at the site waits to be replaced.
        let is_here = |name: &&String| {
            self.objects.gateway(name).is_some_and(|gateway| gateway.e_site_name == self.site)
        };
        let active = active.get(self.site).filter(is_here).map(|name| name.as_str().into());
        self.facts.push(NetmapEntry::Site(SiteEntry { name: self.site.into(), subnets, active }));
    }

    /// Services that are exposed here and have an address here.
    fn presences(&mut self, active: &ActiveGateways, gateway: &'a EGateway) {
        let mut addresses: BTreeMap<&str, BTreeSet<IpAddr>> = BTreeMap::new();
        for found in self.objects.presences_at(self.site).filter(|found| is_usable(found, gateway)) {
            addresses.entry(&found.e_service_name).or_default().extend(found.ip_addr());
        }
        for (name, addresses) in addresses {
            let exposes: Vec<&ServiceExpose> = self.exposes_to(name, self.site).collect();
            let Some(service) = self.objects.service(name).filter(|_| !exposes.is_empty()) else { continue };
            if exposes.iter().all(|expose| expose.is_translated()) {
                self.translated_presence(active, service, &exposes, addresses);
                continue;
            }
            let exposes: Vec<&ServiceExpose> =
                exposes.into_iter().filter(|expose| !expose.is_translated()).collect();
            let policies = sorted(exposes.iter().flat_map(|expose| &expose.e_policys));
            policies.iter().for_each(|policy| self.refer(policy, self.site));
            self.facts.push(NetmapEntry::Presence(PresenceEntry {
                service: name.into(),
                addresses: addresses.into_iter().map(PresenceIp).collect(),
                port: service.port_number(),
                protocol: facts::protocol(service.protocol),
                brokers: facts::brokers(service),
                names: facts::presence_names(service, self.naming(&exposes)),
                service_site: service.e_site_name.as_str().into(),
                policies: policies.into_iter().map(Into::into).collect(),
            }));
        }
    }

    /// Services that run here and are exposed somewhere.
    fn services(&mut self) {
        for service in self.objects.services_at(self.site) {
            let exposes = self.objects.exposes_of(&service.metadata.name);
            let exposes = exposes.filter(|expose| self.is_forwarded(expose) && !expose.is_translated());
            let exposes: Vec<_> = exposes.filter(|expose| !expose.e_sites.is_empty()).collect();
            if exposes.is_empty() {
                continue;
            }
            for expose in &exposes {
                for (policy, site) in pairs(&expose.e_policys, &expose.e_sites) {
                    self.refer(policy, site);
                }
            }
            self.facts.push(NetmapEntry::Service(service_fact(service, &exposes)));
        }
    }

    fn nodes_here(&mut self) {
        for server in self.objects.servers_at(self.site).filter(|server| !server.ports.is_empty()) {
            let policies = sorted(&server.e_policys);
            for policy in &policies {
                self.reach.entry(policy).or_default().anywhere = true;
            }
            self.facts.push(NetmapEntry::Node(node_fact(server, server.ip_addr(), &policies)));
        }
    }

    /// Adds the hosts at other sites that clients of this site may reach, under the policies that allow it.
    fn nodes_elsewhere(&mut self) {
        let for_site = self.objects.policies_allowing_site(self.site);
        let servers = self.objects.servers_at(self.site);
        let for_servers =
            servers.flat_map(|server| self.objects.policies_allowing_server(&server.metadata.name));
        let allowing = for_site.chain(for_servers).filter(|policy| !policy.metadata.is_being_deleted());
        let allowing: BTreeSet<&str> = allowing.map(|policy| policy.metadata.name.as_str()).collect();
        let nodes = allowing.iter().flat_map(|policy| self.objects.servers_under(policy));
        let nodes = nodes.filter(|server| server.e_site_name != self.site && !server.ports.is_empty());
        let nodes: BTreeMap<&str, &EServer> =
            nodes.map(|server| (server.metadata.name.as_str(), server)).collect();
        for server in nodes.into_values() {
            let mut policies = sorted(&server.e_policys);
            policies.retain(|policy| allowing.contains(policy));
            policies.iter().for_each(|policy| self.refer(policy, self.site));
            self.facts.push(NetmapEntry::Node(node_fact(server, None, &policies)));
        }
    }

    /// All hosts of the site: a refusal, too, is recorded with the name of the refused host.
    fn subjects_here(&mut self) {
        for server in self.objects.servers_at(self.site) {
            self.facts.push(NetmapEntry::Subject(SubjectEntry {
                server: server.metadata.name.as_str().into(),
                site: self.site.into(),
                ip: server.ip_addr(),
            }));
        }
    }

    /// Every policy that is referred to, and the hosts of other sites that it lets in: those it names, and,
    /// where it has limits, those of sites it names, because each host has a share of its own and hosts that
    /// are not known share their site's. One that does not exist is there too, and allows no subject: so a
    /// netmap shows its dependencies.
    fn policies(&mut self) {
        let mut visitors: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, reach) in &self.reach {
            // One whose ports cannot be read allows no subject, nor does one that is being deleted.
            let policy = self.objects.policy(name);
            let policy =
                policy.filter(|policy| facts::ports(policy).is_some() && !policy.metadata.is_being_deleted());
            let named = policy.into_iter().flat_map(|policy| &policy.allowed_servers);
            let named = named.filter_map(|server| self.objects.server(server));
            let servers: BTreeMap<&str, &str> = named
                .filter(|server| reach.covers(&server.e_site_name))
                .map(|server| (server.metadata.name.as_str(), server.e_site_name.as_str()))
                .collect();
            let sites = policy.into_iter().flat_map(|policy| &policy.allowed_sites);
            let sites = sorted(sites.filter(|site| reach.covers(site)));
            if policy.is_some_and(|policy| policy.limits.is_some()) {
                let hosts = sites
                    .iter()
                    .filter(|site| **site != self.site)
                    .flat_map(|site| self.objects.servers_at(site));
                visitors.extend(hosts.map(|host| (host.metadata.name.as_str(), host.e_site_name.as_str())));
            }
            self.facts.push(NetmapEntry::Policy(facts::policy(
                name,
                servers.keys().copied(),
                &sites,
                policy,
            )));
            visitors.extend(servers.into_iter().filter(|(_, site)| *site != self.site));
        }
        let neighbours = self.objects.neighbours(self.site);
        for (server, site) in visitors {
            let ip =
                self.objects.server(server).filter(|_| neighbours.contains(site)).and_then(EServer::ip_addr);
            let ip = ip.and_then(|ip| wire_address(self.objects, site, ip));
            let subject = SubjectEntry { server: server.into(), site: site.into(), ip };
            self.facts.push(NetmapEntry::Subject(subject));
        }
    }

    /// The exposures that have their DNS name here: of two that want the same, the older one.
    fn naming<'b>(
        &'b self,
        exposes: &'b [&'a ServiceExpose],
    ) -> impl Iterator<Item = &'a ServiceExpose> + 'b {
        exposes.iter().copied().filter(|expose| conditions::holds_name(self.objects, expose, self.site))
    }

    /// A host that can be reached by its name has it before any service.
    fn leave_names_to_nodes(&mut self) {
        let nodes = self.facts.iter().filter_map(|fact| match fact {
            NetmapEntry::Node(node) => Some(&node.names),
            _ => None,
        });
        let taken: BTreeSet<DnsName> = nodes.flatten().cloned().collect();
        for fact in &mut self.facts {
            match fact {
                NetmapEntry::Presence(presence) => presence.names.retain(|name| !taken.contains(name)),
                NetmapEntry::TranslatedPresence(presence) => {
                    presence.names.retain(|name| !taken.contains(name));
                }
                _ => {}
            }
        }
    }

    /// Tells whether an exposure is forwarded; otherwise a condition of it has the reason.
    fn is_forwarded(&self, expose: &ServiceExpose) -> bool {
        conditions::why_not_forwarded(self.objects, expose).is_none()
    }

    fn exposes_to(&self, service: &str, site: &str) -> impl Iterator<Item = &'a ServiceExpose> {
        let exposes = self.objects.exposes_of(service).filter(|expose| self.is_forwarded(expose));
        exposes.filter(move |expose| expose.e_sites.iter().any(|to| to == site))
    }

    fn refer(&mut self, policy: &'a str, from: &'a str) {
        self.reach.entry(policy).or_default().sites.insert(from);
    }
}

/// Checks that this gateway can use the address. A conflict with another presence is settled where presences are
/// stored.
fn is_usable(found: &VirtualPresence, gateway: &EGateway) -> bool {
    presence::check_refs(found, &[gateway], &[]).is_empty()
}

fn service_fact(service: &EService, exposes: &[&ServiceExpose]) -> ServiceEntry {
    let exposure = |expose: &&ServiceExpose| ExposureEntry {
        sites: sorted(&expose.e_sites).into_iter().map(Into::into).collect(),
        policies: sorted(&expose.e_policys).into_iter().map(Into::into).collect(),
    };
    ServiceEntry { exposures: exposes.iter().map(exposure).collect(), ..facts::service(service) }
}

fn node_fact(server: &EServer, ip: Option<IpAddr>, policies: &[&str]) -> NodeEntry {
    NodeEntry {
        server: server.metadata.name.as_str().into(),
        site: server.e_site_name.as_str().into(),
        ip,
        ports: server.port_numbers().collect::<BTreeSet<u16>>().into_iter().collect(),
        names: facts::node_names(server),
        policies: policies.iter().map(|policy| (*policy).into()).collect(),
    }
}

fn sorted<'a>(names: impl IntoIterator<Item = &'a String>) -> Vec<&'a str> {
    let names: BTreeSet<&str> = names.into_iter().map(String::as_str).collect();
    names.into_iter().collect()
}

fn pairs<'a>(left: &'a [String], right: &'a [String]) -> impl Iterator<Item = (&'a str, &'a str)> {
    left.iter().flat_map(move |left| right.iter().map(move |right| (left.as_str(), right.as_str())))
}

#[cfg(test)]
mod tests;
