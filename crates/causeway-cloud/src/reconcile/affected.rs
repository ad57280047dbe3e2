//! Decides which objects may have different conditions now, from the changes, in the terms in which
//! conditions depend on them.
//!
//! Too many is a waste, too few is a lie: the test compares with looking at everything.

use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;

use causeway_api::{ConditionStatus, Kind, Object, ObjectSet, ServiceExpose, conditions};

/// Changes since the last look.
#[derive(Debug, Default)]
pub struct ConditionChanges {
    /// The changed objects themselves.
    objects: BTreeSet<(Kind, String)>,
    /// Sites that came, went, or whose gateways changed.
    sites: HashSet<String>,
    /// Sites where a gateway was connected or lost.
    links: HashSet<String>,
    services: HashSet<String>,
    /// These came or went.
    servers: HashSet<String>,
    policies: HashSet<String>,
    /// Addresses that an object took or released.
    server_addresses: HashSet<(String, IpAddr)>,
    presence_addresses: HashSet<IpAddr>,
    /// Services whose presences changed.
    presented: HashSet<String>,
    /// DNS names, in lower case, that an object took or gave up.
    dns_names: HashSet<String>,
    /// A presence without a site depends on every gateway's range.
    gateways: bool,
    /// Sites whose networks, tunnels or communities changed: those that share a community look again.
    near: HashSet<String>,
    /// Policies whose fields changed, for communities.
    changed_policies: HashSet<String>,
    /// Tunnel keys that a gateway claimed or gave up.
    tunnel_keys: HashSet<String>,
}

impl ConditionChanges {
    /// Takes note of one change: the object before and after it.
    pub fn note(&mut self, old: Option<&Object>, new: Option<&Object>) {
        let Some(object) = new.or(old) else { return };
        if new.is_some() {
            self.objects.insert((object.kind(), object.name().to_owned()));
        }
        if let (Some(old), Some(new)) = (old, new)
            && old.same_fields(new)
        {
            if let Some(site) = changed_link(old, new) {
                self.links.insert(site.to_owned());
            }
            if let Object::EService(service) = new
                && said_of_backends(old) != said_of_backends(new)
            {
                self.services.insert(service.metadata.name.clone());
            }
            return;
        }
        let came_or_went = old.is_none() || new.is_none();
        let name = object.name().to_owned();
        let existence = match object.kind() {
            Kind::ESite => Some(&mut self.sites),
            Kind::EServer => Some(&mut self.servers),
            Kind::EPolicy => Some(&mut self.policies),
            _ => None,
        };
        if let Some(names) = existence.filter(|_| came_or_went) {
            names.insert(name);
        }
        for object in [old, new].into_iter().flatten() {
            match object {
                Object::ESite(site) => drop(self.near.insert(site.metadata.name.clone())),
                Object::ECommunity(community) => self.near.extend(community.members.iter().cloned()),
                Object::EPolicy(policy) => drop(self.changed_policies.insert(policy.metadata.name.clone())),
                Object::EGateway(gateway) => {
                    self.near.insert(gateway.e_site_name.clone());
                    self.tunnel_keys.insert(gateway.public_key.clone());
                    self.gateways = true;
                    self.sites.insert(gateway.e_site_name.clone());
                }
                Object::EServer(server) => {
                    self.server_addresses.extend(server.ip_addr().map(|ip| (server.e_site_name.clone(), ip)));
                    let names = [&server.metadata.name, &server.e_server_name];
                    self.dns_names.extend(names.map(|name| name.to_ascii_lowercase()));
                }
                // Its site is where its exposures lead.
                Object::EService(service) => drop(self.services.insert(service.metadata.name.clone())),
                Object::ServiceExpose(expose) => {
                    self.dns_names.insert(expose.dns_name.to_ascii_lowercase());
                }
                Object::VirtualPresence(presence) => {
                    self.presence_addresses.extend(presence.ip_addr());
                    self.presented.insert(presence.e_service_name.clone());
                }
                _ => {}
            }
        }
    }

    /// Takes note that a gateway reported another tunnel. `keys` are the keys before and after.
    pub fn note_tunnel(&mut self, gateway: &str, site: Option<&str>, keys: &[String]) {
        self.objects.insert((Kind::EGateway, gateway.to_owned()));
        self.near.extend(site.map(str::to_owned));
        self.tunnel_keys.extend(keys.iter().cloned());
    }

    /// Takes note that networks of sites were mapped, or are no longer.
    pub fn note_mapped(&mut self, community: &str, sites: &[String]) {
        self.objects.insert((Kind::ECommunity, community.to_owned()));
        self.near.extend(sites.iter().cloned());
    }

    /// Everything whose conditions may be different now. One walk over all objects, whatever the number of
    /// changes.
    pub fn affected(mut self, objects: &ObjectSet) -> BTreeSet<(Kind, String)> {
        let mut affected = std::mem::take(&mut self.objects);
        if self.concerns_others() {
            let concerned = objects.objects().filter(|object| self.concerns(object, objects));
            affected.extend(concerned.map(|object| (object.kind(), object.name().to_owned())));
        }
        affected
    }

    fn concerns_others(&self) -> bool {
        self.gateways
            || !self.near.is_empty()
            || !self.changed_policies.is_empty()
            || !self.tunnel_keys.is_empty()
            || !self.sites.is_empty()
            || !self.links.is_empty()
            || !self.presented.is_empty()
            || !self.dns_names.is_empty()
            || !self.services.is_empty()
            || !self.servers.is_empty()
            || !self.policies.is_empty()
            || !self.server_addresses.is_empty()
            || !self.presence_addresses.is_empty()
    }

    fn concerns(&self, object: &Object, objects: &ObjectSet) -> bool {
        let any = |names: &[String], changed: &HashSet<String>| {
            !changed.is_empty() && names.iter().any(|name| changed.contains(name))
        };
        match object {
            Object::ESite(site) => {
                let name = site.metadata.name.as_str();
                self.sites.contains(name)
                    || self.near.contains(name)
                    || (!self.near.is_empty()
                        && objects.neighbours(name).into_iter().any(|other| self.near.contains(other)))
            }
            Object::EGateway(gateway) => {
                let reported = objects.layer3.tunnels.get(&gateway.metadata.name);
                self.sites.contains(&gateway.e_site_name)
                    || (!gateway.public_key.is_empty() && self.tunnel_keys.contains(&gateway.public_key))
                    || reported.is_some_and(|record| self.tunnel_keys.contains(&record.public_key))
            }
            Object::EService(service) => self.site_or_link(&service.e_site_name),
            Object::EServer(server) => {
                self.site_or_link(&server.e_site_name)
                    || any(&server.e_policys, &self.policies)
                    || server.ip_addr().is_some_and(|ip| {
                        !self.server_addresses.is_empty()
                            && self.server_addresses.contains(&(server.e_site_name.clone(), ip))
                    })
            }
            Object::EPolicy(policy) => {
                any(&policy.allowed_servers, &self.servers) || any(&policy.allowed_sites, &self.sites)
            }
            Object::ServiceExpose(expose) => {
                self.services.contains(&expose.e_service_name)
                    || any(&expose.e_sites, &self.sites)
                    || any(&expose.e_sites, &self.links)
                    || any(&expose.e_policys, &self.policies)
                    || self.concerns_name(expose)
                    || self.concerns_presences(expose)
                    || objects
                        .service(&expose.e_service_name)
                        .is_some_and(|service| self.site_or_link(&service.e_site_name))
            }
            Object::VirtualPresence(presence) => {
                self.services.contains(&presence.e_service_name)
                    || self.sites.contains(&presence.e_site_name)
                    || (self.gateways && presence.e_site_name.is_empty())
                    || presence.ip_addr().is_some_and(|ip| self.presence_addresses.contains(&ip))
            }
            Object::ECommunity(community) => {
                any(&community.members, &self.sites)
                    || any(&community.members, &self.near)
                    || any(community.e_policys.as_deref().unwrap_or_default(), &self.changed_policies)
            }
            Object::Namespace(_) | Object::Event(_) | Object::Service(_) => false,
        }
    }

    fn site_or_link(&self, site: &str) -> bool {
        self.sites.contains(site) || self.links.contains(site)
    }

    fn concerns_name(&self, expose: &ServiceExpose) -> bool {
        let name = &expose.dns_name;
        !self.dns_names.is_empty() && !name.is_empty() && self.dns_names.contains(&name.to_ascii_lowercase())
    }

    /// An exposure that has its addresses depends on its own presences. One that waits for an address depends
    /// on all presences: an address may have become free.
    fn concerns_presences(&self, expose: &ServiceExpose) -> bool {
        let is_waiting = || {
            let said = expose.status.condition(conditions::PRESENTED);
            said.is_none_or(|said| said.status != ConditionStatus::True)
        };
        self.presented.contains(&expose.e_service_name) || (!self.presented.is_empty() && is_waiting())
    }
}

/// Exposures repeat it.
fn said_of_backends(service: &Object) -> Option<(ConditionStatus, &str, &str)> {
    let said = service.status().condition(conditions::BACKENDS_ANSWER)?;
    Some((said.status, &said.reason, &said.message))
}

/// The site of a gateway that was connected or lost; nothing else about it changed.
pub fn changed_link<'a>(old: &Object, new: &'a Object) -> Option<&'a str> {
    let (Object::EGateway(before), Object::EGateway(now)) = (old, new) else { return None };
    let is_changed = conditions::is_connected(before) != conditions::is_connected(now);
    (is_changed && old.same_fields(new)).then_some(now.e_site_name.as_str())
}

#[cfg(test)]
mod tests {
    use causeway_api::Time;
    use causeway_api::meta::set_condition;
    use serde_json::{Value, json};
    use testlab::random::SeededRandom;

    use super::*;

    /// Random objects. The seed is printed with every failure.
    struct RandomObjects(SeededRandom);

    impl RandomObjects {
        fn below(&mut self, bound: u64) -> u64 {
            self.0.below(bound)
        }

        fn name(&mut self) -> String {
            ["a", "b", "c"][self.below(3) as usize].to_owned()
        }

        fn names(&mut self) -> Vec<String> {
            let mut names: Vec<String> = (0..self.below(3)).map(|_| self.name()).collect();
            names.sort();
            names.dedup();
            names
        }

        fn object(&mut self) -> Object {
            let kind = Kind::ALL[self.below(8) as usize];
            let ip = format!("198.18.0.{}", 1 + self.below(3));
            let fields = match kind {
                Kind::ESite => json!({"subnets": []}),
                Kind::EGateway => {
                    let range = ["198.18.0.0/16", "198.18.0.0/30", "10.0.0.0/8"][self.below(3) as usize];
                    json!({"eSiteName": self.name(), "virtualPresenceIPcidr": range})
                }
                Kind::EService => json!({"eSiteName": self.name(), "port": 80, "ip": ip, "protocol": "TCP"}),
                Kind::EServer => {
                    json!({"eSiteName": self.name(), "ip": ip, "ePolicys": self.names(), "ports": [22]})
                }
                Kind::EPolicy => json!({"allowedServers": self.names(), "allowedSites": self.names()}),
                Kind::ServiceExpose => {
                    let dns_name = ["x.test", "a", ""][self.below(3) as usize];
                    json!({"eServiceName": self.name(), "dnsName": dns_name, "eSites": self.names(), "ePolicys": self.names()})
                }
                Kind::VirtualPresence => {
                    let site = if self.below(2) == 0 { String::new() } else { self.name() };
                    json!({"eServiceName": self.name(), "virtualIp": ip, "eSiteName": site})
                }
                Kind::ECommunity => json!({"members": self.names()}),
                Kind::Namespace | Kind::Event | Kind::Service => json!({}),
            };
            let mut value: Value = fields;
            value["metadata"] = json!({"name": self.name(), "generation": 1});
            let mut object = Object::decode(kind, value).unwrap().object;
            object.default_fields();
            if kind == Kind::EGateway && self.below(2) == 0 {
                let (conditions, now) = (&mut object.status_mut().conditions, Time::from_second(0));
                set_condition(conditions, conditions::CONNECTED, true.into(), "Connected", "", now, 1);
            }
            if kind == Kind::EService && self.below(2) == 0 {
                let (conditions, now) = (&mut object.status_mut().conditions, Time::from_second(0));
                let (is_up, message) = (self.below(2) == 0, self.name());
                set_condition(
                    conditions,
                    conditions::BACKENDS_ANSWER,
                    is_up.into(),
                    "Said",
                    &message,
                    now,
                    1,
                );
            }
            object
        }
    }

    #[test]
    fn looking_at_what_is_affected_is_as_good_as_looking_at_everything() {
        let now = Time::from_second(0);
        for seed in 0..100 {
            let (mut random, mut objects) = (RandomObjects(SeededRandom::new(seed)), ObjectSet::default());
            for step in 0..40 {
                let mut changes = ConditionChanges::default();
                for _ in 0..=random.below(2) {
                    let object = random.object();
                    let old = objects.remove(object.kind(), object.name());
                    let new = (random.below(4) > 0).then_some(object);
                    changes.note(old.as_ref(), new.as_ref());
                    new.into_iter().for_each(|new| objects.insert(new));
                }
                for (kind, name) in changes.affected(&objects) {
                    // Changed and then deleted between two looks.
                    let Some(mut object) = objects.get(kind, &name).cloned() else { continue };
                    *object.status_mut() = conditions::status(&object, &objects, now);
                    objects.insert(object);
                }
                for object in objects.objects() {
                    let expected = conditions::status(object, &objects, now);
                    assert_eq!(*object.status(), expected, "seed {seed}, step {step}: {}", object.key());
                }
            }
        }
    }

    #[test]
    fn a_status_that_was_written_concerns_nobody_else() {
        let mut random = RandomObjects(SeededRandom::new(1));
        let old = random.object();
        let mut new = old.clone();
        new.status_mut().observed_generation = 7;
        let mut changes = ConditionChanges::default();
        changes.note(Some(&old), Some(&new));
        assert!(!changes.concerns_others());
    }
}
