//! Decides which gateways may have a different netmap now, from the changes, in the terms in which netmaps
//! depend on them.
//!
//! Too many costs time, too few leaves a wrong netmap in force: the test compares with compiling everything.
//! Statuses affect no netmap.

use std::collections::BTreeSet;

use causeway_api::{CLOUD, ECommunity, EPolicy, Object, ObjectSet, ServiceExpose};
use causeway_netmap::{EntryKey, Netmap, NetmapEntry};

/// Changes since the last look.
#[derive(Debug, Default)]
pub struct NetmapChanges {
    gateways: BTreeSet<String>,
    /// Every gateway there looks again.
    sites: BTreeSet<String>,
    /// Their site and every site they are exposed to look again.
    services: BTreeSet<String>,
    policies: BTreeSet<String>,
    /// Policies of hosts that changed: the subjects they allow may see that host.
    node_policies: BTreeSet<String>,
    servers: BTreeSet<String>,
    /// Hosts that a changed policy names: it may show their site something.
    named_servers: BTreeSet<String>,
    /// The active gateway of a site is another one.
    is_active_changed: bool,
    /// A community or a translated exposure changed: the gateway of the cloud, a peer of all their sites, looks again.
    are_members_changed: bool,
    /// Sites that share a community with these look again.
    near: BTreeSet<String>,
    /// Gateways whose tunnel changed: their neighbours look again.
    tunnels: BTreeSet<String>,
    /// Keys that a gateway claimed or gave up. Other gateways that claim them are affected.
    tunnel_keys: BTreeSet<String>,
}

/// Gateways whose netmaps must be compiled again.
#[derive(Debug, Default)]
pub struct AffectedGateways {
    gateways: BTreeSet<String>,
    sites: BTreeSet<String>,
    keys: BTreeSet<EntryKey>,
}

impl NetmapChanges {
    /// Takes note of one change: the object before and after it. A deletion mark is a change: an object that is being deleted
    /// grants nothing.
    pub fn note(&mut self, old: Option<&Object>, new: Option<&Object>) {
        if let (Some(old), Some(new)) = (old, new)
            && old.same_fields(new)
            && old.metadata().is_being_deleted() == new.metadata().is_being_deleted()
        {
            return;
        }
        [old, new].into_iter().flatten().for_each(|object| self.note_one(object));
    }

    /// Takes note that the active gateway of a site is another one.
    pub fn note_active(&mut self, site: &str) {
        self.sites.insert(site.to_owned());
        self.near.insert(site.to_owned());
        self.is_active_changed = true;
    }

    /// Takes note that a gateway reported another tunnel. `keys` are the keys before and after.
    pub fn note_tunnel(&mut self, gateway: &str, keys: impl IntoIterator<Item = String>) {
        self.tunnels.insert(gateway.to_owned());
        self.tunnel_keys.extend(keys);
    }

    /// Takes note that networks of a site were mapped, or are no longer.
    pub fn note_mapped(&mut self, site: &str) {
        self.sites.insert(site.to_owned());
        self.near.insert(site.to_owned());
    }

    /// Returns true if a gateway has come, gone or changed, or become active.
    pub fn concern_gateways(&self) -> bool {
        !self.gateways.is_empty() || self.is_active_changed
    }

    fn note_one(&mut self, object: &Object) {
        let name = object.name().to_owned();
        match object {
            Object::ESite(_) => {
                self.near.insert(name.clone());
                self.sites.insert(name);
            }
            // The gateways of a site decide among them which one has its networks.
            Object::EGateway(gateway) => {
                self.near.insert(gateway.e_site_name.clone());
                self.sites.insert(gateway.e_site_name.clone());
                self.tunnel_keys.insert(gateway.public_key.clone());
                self.tunnels.insert(name.clone());
                self.gateways.insert(name);
            }
            Object::EService(service) => {
                self.sites.insert(service.e_site_name.clone());
                self.services.insert(name);
            }
            // Members of a community know each other's hosts by name.
            Object::EServer(server) => {
                self.near.insert(server.e_site_name.clone());
                self.sites.insert(server.e_site_name.clone());
                self.node_policies.extend(server.e_policys.iter().cloned());
                self.servers.insert(name);
            }
            Object::EPolicy(policy) => {
                self.policies.insert(name);
                self.sites.extend(policy.allowed_sites.iter().cloned());
                self.named_servers.extend(policy.allowed_servers.iter().cloned());
            }
            Object::ServiceExpose(expose) => {
                self.sites.extend(expose.e_sites.iter().cloned());
                self.services.insert(expose.e_service_name.clone());
                self.are_members_changed |= expose.is_translated();
            }
            // The gateway of a translated service knows its presences.
            Object::VirtualPresence(presence) => {
                self.sites.insert(presence.e_site_name.clone());
                self.services.insert(presence.e_service_name.clone());
            }
            Object::ECommunity(community) => {
                self.sites.extend(community.members.iter().cloned());
                self.are_members_changed = true;
            }
            Object::Namespace(_) | Object::Event(_) | Object::Service(_) => {}
        }
    }

    /// Follows the changes to the gateways that depend on them, in the objects as they are now. The state before
    /// is in the changes.
    pub fn affected(self, objects: &ObjectSet) -> AffectedGateways {
        let mut affected =
            AffectedGateways { gateways: self.gateways, sites: self.sites, keys: BTreeSet::new() };
        let mut near = self.near;
        let claiming = self.tunnel_keys.iter().flat_map(|key| objects.gateways_claiming(key));
        let mut is_cloud_changed = false;
        for gateway in self.tunnels.iter().map(String::as_str).chain(claiming) {
            near.extend(objects.gateway(gateway).map(|gateway| gateway.e_site_name.clone()));
            affected.gateways.insert(gateway.to_owned());
            is_cloud_changed |= gateway == CLOUD;
        }
        for site in &near {
            affected.sites.extend(objects.neighbours(site).into_iter().map(str::to_owned));
            affected.sites.extend(partners(objects, site).map(str::to_owned));
        }
        // The gateway of the cloud is a peer of every member of a community.
        if is_cloud_changed {
            let members = objects.all::<ECommunity>().flat_map(|community| community.members.iter().cloned());
            affected.sites.extend(members);
            for expose in objects.all::<ServiceExpose>().filter(|expose| expose.is_translated()) {
                affected.sites.extend(expose.e_sites.iter().cloned());
                let service = objects.service(&expose.e_service_name);
                affected.sites.extend(service.map(|service| service.e_site_name.clone()));
            }
        }
        let is_peer_of_cloud = |site: &String| {
            objects.communities_of(site).next().is_some() || partners(objects, site).next().is_some()
        };
        let is_translated =
            |service: &String| objects.exposes_of(service).any(|expose| expose.is_translated());
        if self.are_members_changed
            || near.iter().any(is_peer_of_cloud)
            || self.services.iter().any(is_translated)
        {
            affected.gateways.insert(CLOUD.to_owned());
        }
        for service in &self.services {
            affected.sites.extend(objects.service(service).map(|service| service.e_site_name.clone()));
            let exposes = objects.exposes_of(service);
            affected.sites.extend(exposes.flat_map(|expose| expose.e_sites.iter().cloned()));
        }
        for policy in self.node_policies.iter().filter_map(|policy| objects.policy(policy)) {
            affected.sites.extend(sites_of(policy, objects));
        }
        let named = self.named_servers.iter().filter_map(|server| objects.server(server));
        affected.sites.extend(named.map(|server| server.e_site_name.clone()));
        for server in &self.servers {
            affected.keys.extend([NetmapEntry::subject_key(server), NetmapEntry::node_key(server)]);
            let naming = objects.policies_allowing_server(server);
            affected.keys.extend(naming.map(|policy| NetmapEntry::policy_key(&policy.metadata.name)));
            // A policy with limits names the hosts of the sites it allows. A gateway that knew the host
            // before holds its key.
            let site = objects.server(server).map(|server| server.e_site_name.as_str()).unwrap_or_default();
            let limited = objects.policies_allowing_site(site).filter(|policy| policy.limits.is_some());
            affected.keys.extend(limited.map(|policy| NetmapEntry::policy_key(&policy.metadata.name)));
        }
        affected.keys.extend(self.policies.iter().map(|policy| NetmapEntry::policy_key(policy)));
        affected
    }
}

/// Returns the sites with which a site exchanges packets of translated services.
fn partners<'a>(objects: &'a ObjectSet, site: &'a str) -> impl Iterator<Item = &'a str> {
    let here = objects.exposes_at(site).filter(|expose| expose.is_translated());
    let servers = here.filter_map(|expose| objects.service(&expose.e_service_name));
    let own = objects.services_at(site).flat_map(|service| objects.exposes_of(&service.metadata.name));
    let clients = own.filter(|expose| expose.is_translated()).flat_map(|expose| &expose.e_sites);
    servers.map(|service| service.e_site_name.as_str()).chain(clients.map(String::as_str))
}

/// Returns the sites whose clients a policy allows.
fn sites_of<'a>(policy: &'a EPolicy, objects: &'a ObjectSet) -> impl Iterator<Item = String> + 'a {
    let servers = policy.allowed_servers.iter().filter_map(|server| objects.server(server));
    policy.allowed_sites.iter().cloned().chain(servers.map(|server| server.e_site_name.clone()))
}

impl AffectedGateways {
    /// Returns the gateways that are affected by name or by site.
    pub fn named<'a>(&'a self, objects: &'a ObjectSet) -> impl Iterator<Item = &'a str> {
        let there = self.sites.iter().flat_map(|site| objects.gateways_at(site));
        let there = there.map(|gateway| gateway.metadata.name.as_str());
        self.gateways.iter().map(String::as_str).chain(there)
    }

    /// Tells whether no gateway is affected because of an entry it holds.
    pub fn has_no_keys(&self) -> bool {
        self.keys.is_empty()
    }

    /// Tells whether a gateway is affected because of an entry of its last netmap.
    pub fn touches(&self, netmap: &Netmap) -> bool {
        self.keys.iter().any(|key| netmap.get(key.as_str()).is_some())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use causeway_api::layer3::{TunnelRecord, show_key};
    use causeway_api::{Kind, Time};
    use causeway_netmap::Generation;
    use serde_json::{Value, json};
    use testlab::random::SeededRandom;

    use super::*;
    use crate::compile::{PeerScope, compile_for};

    /// Random objects. The seed is printed with every failure.
    struct RandomObjects(SeededRandom);

    impl RandomObjects {
        fn below(&mut self, bound: u64) -> u64 {
            self.0.below(bound)
        }

        fn name(&mut self) -> String {
            ["a", "b", CLOUD][self.below(3) as usize].to_owned()
        }

        fn names(&mut self) -> Vec<String> {
            let names: BTreeSet<String> = (0..self.below(3)).map(|_| self.name()).collect();
            names.into_iter().collect()
        }

        fn object(&mut self) -> Object {
            let kind = Kind::ALL[self.below(8) as usize];
            let ip = format!("198.18.0.{}", 1 + self.below(3));
            let mut value: Value = match kind {
                Kind::ESite => json!({"subnets": [format!("10.{}.0.0/16", self.below(3))]}),
                Kind::EGateway => {
                    let subnets = if self.below(2) == 0 {
                        json!([])
                    } else {
                        json!([format!("10.9.{}.0/24", self.below(2))])
                    };
                    // Some are plain WireGuard peers, perhaps with the key of another gateway.
                    let key = [String::new(), show_key(&[1; 32]), show_key(&[2; 32])][self.below(3) as usize]
                        .clone();
                    json!({
                        "eSiteName": self.name(), "virtualPresenceIPcidr": "198.18.0.0/16", "subnets": subnets,
                        "publicKey": key, "endpoint": "192.0.2.1:1", "priority": self.below(2),
                    })
                }
                Kind::EService => json!({"eSiteName": self.name(), "port": 80 + self.below(2), "ip": ip}),
                Kind::EServer => {
                    let ports = if self.below(2) == 0 { json!([]) } else { json!([22]) };
                    // Some are in a network of a site, and so reached by packets.
                    let ip = if self.below(2) == 0 { ip } else { format!("10.{}.0.5", self.below(3)) };
                    json!({"eSiteName": self.name(), "ip": ip, "ePolicys": self.names(), "ports": ports})
                }
                Kind::EPolicy => {
                    let limits = if self.below(2) == 0 { json!(null) } else { json!({"connections": 1}) };
                    json!({"allowedServers": self.names(), "allowedSites": self.names(), "limits": limits})
                }
                Kind::ServiceExpose => {
                    let dns_name = ["x.test", "a", ""][self.below(3) as usize];
                    let mode = ["proxy", "translate"][self.below(2) as usize];
                    json!({
                        "eServiceName": self.name(), "dnsName": dns_name, "eSites": self.names(), "ePolicys": self.names(),
                        "mode": mode,
                    })
                }
                Kind::VirtualPresence => {
                    json!({"eServiceName": self.name(), "virtualIp": ip, "eSiteName": self.name()})
                }
                Kind::ECommunity => match self.below(2) {
                    0 => json!({"members": self.names()}),
                    _ => json!({"members": self.names(), "ePolicys": self.names()}),
                },
                Kind::Namespace | Kind::Event | Kind::Service => json!({}),
            };
            value["metadata"] = json!({"name": self.name(), "generation": 1});
            let mut object = Object::decode(kind, value).unwrap().object;
            object.default_fields();
            object
        }
    }

    #[test]
    fn compiling_what_is_affected_is_as_good_as_compiling_everything() {
        let mut skipped = 0;
        let neighbours = BTreeSet::from(["a".to_owned()]);
        for seed in 0..200 {
            let (mut random, mut objects) = (RandomObjects(SeededRandom::new(seed)), ObjectSet::default());
            let mut held: BTreeMap<&str, Netmap> = BTreeMap::new();
            for step in 0..40 {
                let mut changes = NetmapChanges::default();
                for _ in 0..=random.below(2) {
                    let object = random.object();
                    let old = objects.remove(object.kind(), object.name());
                    let mut new = (random.below(4) > 0).then_some(object);
                    // The same object with a deletion mark.
                    if let (Some(old), 0) = (&old, random.below(3)) {
                        let marked = new.insert(old.clone());
                        marked.metadata_mut().deletion_timestamp = Some(Time::from_second(1));
                    }
                    changes.note(old.as_ref(), new.as_ref());
                    new.into_iter().for_each(|new| objects.insert(new));
                }
                if random.below(3) == 0 {
                    let (gateway, key) = (random.name(), show_key(&[random.below(3) as u8; 32]));
                    let record = TunnelRecord {
                        public_key: key,
                        since: random.below(3) as i64,
                        ..TunnelRecord::default()
                    };
                    let new = (random.below(4) > 0).then_some(record);
                    let old = match new.clone() {
                        Some(new) => objects.layer3.tunnels.insert(gateway.clone(), new),
                        None => objects.layer3.tunnels.remove(&gateway),
                    };
                    changes.note_tunnel(&gateway, old.into_iter().chain(new).map(|record| record.public_key));
                }
                let affected = changes.affected(&objects);
                for gateway in ["a", "b", CLOUD] {
                    let scope = PeerScope::Neighbours { members_max: 1, neighbours: &neighbours };
                    let scope = if seed % 2 == 0 { PeerScope::Everyone } else { scope };
                    let entries =
                        compile_for(&objects, &Default::default(), gateway, scope).unwrap_or_default();
                    let fresh = Netmap::build(Generation::default(), entries, None).unwrap();
                    let looks = held.get(gateway).is_none_or(|netmap| affected.touches(netmap))
                        || affected.named(&objects).any(|named| named == gateway);
                    if looks {
                        held.insert(gateway, fresh);
                    } else {
                        skipped += 1;
                        let same = held.get(gateway).map(Netmap::digest) == Some(fresh.digest());
                        assert!(same, "seed {seed}, step {step}: {gateway} should have looked again");
                    }
                }
            }
        }
        assert!(skipped > 2_000, "the rule must save something: {skipped}");
    }

    #[test]
    fn a_status_concerns_nobody() {
        let mut random = RandomObjects(SeededRandom::new(1));
        let old = random.object();
        let mut new = old.clone();
        new.status_mut().observed_generation = 7;
        let mut changes = NetmapChanges::default();
        changes.note(Some(&old), Some(&new));
        let affected = changes.affected(&ObjectSet::default());
        assert!(affected.gateways.is_empty() && affected.sites.is_empty() && affected.keys.is_empty());
    }
}
