//! All objects at one moment, by name, with the indexes that relations between them need.
//!
//! A reconciler keeps one and updates it from a watch; `conditions` and the compiler of netmaps read it.
//! `insert` and `remove` update the indexes, so that evaluating one object does not require a scan of all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::kinds::{
    ECommunity, EGateway, EPolicy, EServer, EService, ESite, Kind, ServiceExpose, VirtualPresence,
};
use crate::layer3::Layer3Facts;
use crate::object::{Object, Resource};

/// Every object, by kind and name.
#[derive(Clone, Default, Debug)]
pub struct ObjectSet {
    // Boxed, because half of a tree's slots are empty and an object is large.
    objects: [BTreeMap<String, Box<Object>>; Kind::SERVED.len()],
    gateways_by_site: Index<String>,
    servers_by_address: Index<(String, IpAddr)>,
    presences_by_address: Index<IpAddr>,
    presences_by_service: Index<String>,
    presences_by_site: Index<String>,
    services_by_site: Index<String>,
    servers_by_site: Index<String>,
    servers_by_policy: Index<String>,
    exposes_by_service: Index<String>,
    exposes_by_site: Index<String>,
    exposes_by_dns_name: Index<String>,
    servers_by_dns_name: Index<String>,
    policies_by_site: Index<String>,
    policies_by_server: Index<String>,
    communities_by_member: Index<String>,
    plain_peers: BTreeSet<String>,
    /// Facts about layer 3 that are stored beside the objects.
    pub layer3: Layer3Facts,
}

/// Names of objects, by a common property.
type Index<K> = BTreeMap<K, BTreeSet<String>>;

impl ObjectSet {
    /// Inserts an object, replacing the one of that kind and name.
    pub fn insert(&mut self, object: Object) {
        let name = object.name().to_string();
        self.remove(object.kind(), &name);
        self.index(&object, true);
        self.objects[object.kind() as usize].insert(name, Box::new(object));
    }

    pub fn remove(&mut self, kind: Kind, name: &str) -> Option<Object> {
        let object = self.objects[kind as usize].remove(name)?;
        self.index(&object, false);
        Some(*object)
    }

    pub fn get(&self, kind: Kind, name: &str) -> Option<&Object> {
        self.objects[kind as usize].get(name).map(|object| &**object)
    }

    pub fn find<T: Resource>(&self, name: &str) -> Option<&T> {
        self.get(T::KIND, name).and_then(T::of_object)
    }

    /// All objects of a kind, by name.
    pub fn all<T: Resource>(&self) -> impl Iterator<Item = &T> {
        self.objects[T::KIND as usize].values().filter_map(|object| T::of_object(object))
    }

    pub fn objects(&self) -> impl Iterator<Item = &Object> {
        self.objects.iter().flat_map(BTreeMap::values).map(|object| &**object)
    }

    pub fn site(&self, name: &str) -> Option<&ESite> {
        self.find(name)
    }

    pub fn gateway(&self, name: &str) -> Option<&EGateway> {
        self.find(name)
    }

    pub fn service(&self, name: &str) -> Option<&EService> {
        self.find(name)
    }

    pub fn server(&self, name: &str) -> Option<&EServer> {
        self.find(name)
    }

    pub fn policy(&self, name: &str) -> Option<&EPolicy> {
        self.find(name)
    }

    pub fn expose(&self, name: &str) -> Option<&ServiceExpose> {
        self.find(name)
    }

    pub fn presence(&self, name: &str) -> Option<&VirtualPresence> {
        self.find(name)
    }

    pub fn community(&self, name: &str) -> Option<&ECommunity> {
        self.find(name)
    }

    /// The gateways of a site, by name.
    pub fn gateways_at(&self, site: &str) -> impl Iterator<Item = &EGateway> {
        self.gateways_by_site.get(site).into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The hosts that have an address at a site, by name.
    pub fn servers_with(&self, site: &str, ip: IpAddr) -> impl Iterator<Item = &EServer> {
        let names = self.servers_by_address.get(&(site.to_string(), ip));
        names.into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The presences that have an address, at any site, by name.
    pub fn presences_with(&self, ip: IpAddr) -> impl Iterator<Item = &VirtualPresence> {
        self.presences_by_address.get(&ip).into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The presences of a service, at any site, by name.
    pub fn presences_of(&self, service: &str) -> impl Iterator<Item = &VirtualPresence> {
        self.presences_by_service.get(service).into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The presences at a site, by name.
    pub fn presences_at(&self, site: &str) -> impl Iterator<Item = &VirtualPresence> {
        self.presences_by_site.get(site).into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The services that run at a site, by name.
    pub fn services_at(&self, site: &str) -> impl Iterator<Item = &EService> {
        self.services_by_site.get(site).into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The hosts of a site, by name.
    pub fn servers_at(&self, site: &str) -> impl Iterator<Item = &EServer> {
        self.servers_by_site.get(site).into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The hosts that a policy is attached to, by name; the policy need not exist.
    pub fn servers_under(&self, policy: &str) -> impl Iterator<Item = &EServer> {
        self.servers_by_policy.get(policy).into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The exposures of a service, by name.
    pub fn exposes_of(&self, service: &str) -> impl Iterator<Item = &ServiceExpose> {
        self.exposes_by_service.get(service).into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The exposures to a site, by name.
    pub fn exposes_at(&self, site: &str) -> impl Iterator<Item = &ServiceExpose> {
        self.exposes_by_site.get(site).into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The exposures under a DNS name, by name. Case is ignored.
    pub fn exposes_named(&self, dns_name: &str) -> impl Iterator<Item = &ServiceExpose> {
        let names = self.exposes_by_dns_name.get(&dns_name.to_ascii_lowercase());
        names.into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The hosts with this DNS name, by name. Case is ignored.
    pub fn servers_named(&self, dns_name: &str) -> impl Iterator<Item = &EServer> {
        let names = self.servers_by_dns_name.get(&dns_name.to_ascii_lowercase());
        names.into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The number of presences at a site.
    pub fn presence_count(&self, site: &str) -> usize {
        self.presences_by_site.get(site).map_or(0, BTreeSet::len)
    }

    /// The policies that allow a whole site, by name.
    pub fn policies_allowing_site(&self, site: &str) -> impl Iterator<Item = &EPolicy> {
        self.policies_by_site.get(site).into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The policies that allow a host, by name.
    pub fn policies_allowing_server(&self, server: &str) -> impl Iterator<Item = &EPolicy> {
        self.policies_by_server.get(server).into_iter().flatten().filter_map(|name| self.find(name))
    }

    /// The communities that a site is a member of, by name. The site need not exist. A community that is being deleted has no
    /// members.
    pub fn communities_of(&self, site: &str) -> impl Iterator<Item = &ECommunity> {
        let named = self.communities_by_member.get(site).into_iter().flatten();
        let found = named.filter_map(|name| self.find::<ECommunity>(name));
        found.filter(|community| !community.metadata.is_being_deleted())
    }

    /// The other sites that share a community with a site, by name.
    pub fn neighbours(&self, site: &str) -> BTreeSet<&str> {
        let members = self.communities_of(site).flat_map(|community| &community.members);
        members.map(String::as_str).filter(|member| *member != site).collect()
    }

    /// The gateways that are plain WireGuard peers, by name.
    pub fn plain_peers(&self) -> impl Iterator<Item = &EGateway> {
        self.plain_peers.iter().filter_map(|name| self.find(name))
    }

    /// Adds the object to its indexes, or removes it from them.
    fn index(&mut self, object: &Object, enter: bool) {
        let name = object.name();
        match object {
            Object::EGateway(gateway) => {
                set(&mut self.gateways_by_site, gateway.e_site_name.clone(), name, enter);
                match enter && gateway.is_plain_wireguard() {
                    true => self.plain_peers.insert(name.to_owned()),
                    false => self.plain_peers.remove(name),
                };
            }
            Object::EService(service) => {
                set(&mut self.services_by_site, service.e_site_name.clone(), name, enter);
            }
            Object::EServer(server) => {
                set(&mut self.servers_by_site, server.e_site_name.clone(), name, enter);
                for policy in &server.e_policys {
                    set(&mut self.servers_by_policy, policy.clone(), name, enter);
                }
                for dns_name in [&server.metadata.name, &server.e_server_name] {
                    set(&mut self.servers_by_dns_name, dns_name.to_ascii_lowercase(), name, enter);
                }
                if let Some(ip) = server.ip_addr() {
                    set(&mut self.servers_by_address, (server.e_site_name.clone(), ip), name, enter);
                }
            }
            Object::EPolicy(policy) => {
                for site in &policy.allowed_sites {
                    set(&mut self.policies_by_site, site.clone(), name, enter);
                }
                for server in &policy.allowed_servers {
                    set(&mut self.policies_by_server, server.clone(), name, enter);
                }
            }
            Object::ServiceExpose(expose) => {
                set(&mut self.exposes_by_service, expose.e_service_name.clone(), name, enter);
                for site in &expose.e_sites {
                    set(&mut self.exposes_by_site, site.clone(), name, enter);
                }
                if !expose.dns_name.is_empty() {
                    set(&mut self.exposes_by_dns_name, expose.dns_name.to_ascii_lowercase(), name, enter);
                }
            }
            Object::VirtualPresence(presence) => {
                set(&mut self.presences_by_site, presence.e_site_name.clone(), name, enter);
                set(&mut self.presences_by_service, presence.e_service_name.clone(), name, enter);
                if let Some(ip) = presence.ip_addr() {
                    set(&mut self.presences_by_address, ip, name, enter);
                }
            }
            Object::ECommunity(community) => {
                for member in &community.members {
                    set(&mut self.communities_by_member, member.clone(), name, enter);
                }
            }
            Object::ESite(_) | Object::Namespace(_) | Object::Event(_) | Object::Service(_) => {}
        }
    }
}

fn set<K: Ord>(index: &mut Index<K>, key: K, name: &str, enter: bool) {
    if enter {
        index.entry(key).or_default().insert(name.to_string());
    } else if let Some(names) = index.get_mut(&key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(&key);
        }
    }
}

impl FromIterator<Object> for ObjectSet {
    fn from_iter<I: IntoIterator<Item = Object>>(objects: I) -> ObjectSet {
        let mut set = ObjectSet::default();
        objects.into_iter().for_each(|object| set.insert(object));
        set
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn indexes_follow_every_change() {
        let mut objects = ObjectSet::default();
        let at = |site: &str| gateway("gw", site);
        let names = |objects: &ObjectSet, site: &str| {
            objects.gateways_at(site).map(|gateway| gateway.metadata.name.clone()).collect::<Vec<_>>()
        };
        objects.insert(at("berlin"));
        assert_eq!((names(&objects, "berlin"), names(&objects, "oslo")), (vec!["gw".into()], vec![]));
        objects.insert(at("oslo"));
        assert_eq!((names(&objects, "berlin"), names(&objects, "oslo")), (vec![], vec!["gw".into()]));
        objects.remove(Kind::EGateway, "gw");
        assert_eq!((names(&objects, "berlin"), names(&objects, "oslo")), (vec![], vec![]));
        assert!(objects.gateways_by_site.is_empty(), "an index keeps nothing of what is gone");
    }

    fn gateway(name: &str, site: &str) -> Object {
        let value = json!({"metadata": {"name": name}, "eSiteName": site});
        Object::decode(Kind::EGateway, value).unwrap().object
    }
}
