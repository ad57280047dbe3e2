//! Translated services in the form in which the tunnel looks packets up.
//!
//! At the site of the clients a presence address stands for the server; at the site of the server the pair of site and
//! presence address does. Made once per netmap, read for every packet; no state of flows.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use causeway_netmap::{
    NetmapView, PolicyName, ServerName, ServiceName, SiteName, TranslatedPresenceEntry, TranslatedScope,
    TunnelPeerEntry,
};
use ipnet::IpNet;

use super::client_addresses::client_networks;
use super::client_numbers::number_of_server;
use super::packet;

#[derive(Default)]
pub struct ServicePlan {
    presences: HashMap<IpAddr, Arc<TranslatedPresenceEntry>>,
    services: HashMap<SiteName, HashMap<IpAddr, Arc<PlannedService>>>,
    /// EServers of other sites by their numbers on the wire.
    servers: HashMap<SiteName, HashMap<IpAddr, ServerName>>,
    /// Presence ranges of this gateway. Clients of other sites get addresses of their upper halves.
    pub ranges: Vec<IpNet>,
    /// Addresses that no client gets.
    pub taken: BTreeSet<IpAddr>,
    /// The networks in which clients of other sites have addresses. Empty: no service of this site is translated.
    client_networks: Vec<IpNet>,
}

/// A service of this site, as one other site may use it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PlannedService {
    pub name: ServiceName,
    pub ip: IpAddr,
    pub port: u16,
    pub scope: TranslatedScope,
    pub policies: Vec<PolicyName>,
}

impl PlannedService {
    /// Returns the port at the server for a port on the wire.
    pub fn server_port(&self, protocol: u8, port: u16) -> u16 {
        match self.scope {
            TranslatedScope::Port(_, number) if has_ports(protocol) && number == port => self.port,
            _ => port,
        }
    }
}

fn has_ports(protocol: u8) -> bool {
    matches!(protocol, packet::TCP | packet::UDP)
}

impl ServicePlan {
    pub fn new(view: &NetmapView) -> ServicePlan {
        let mut plan = ServicePlan::default();
        let Some(gateway) = &view.gateway else { return plan };
        for presence in view.translated_presences.values() {
            let presence = Arc::new(presence.clone());
            for address in &presence.addresses {
                plan.presences.entry(address.0).or_insert_with(|| presence.clone());
            }
        }
        for service in view.translated_services.values() {
            for exposure in &service.exposures {
                let planned = Arc::new(PlannedService {
                    name: service.service.clone(),
                    ip: service.ip,
                    port: service.port,
                    scope: service.scope,
                    policies: exposure.policies.clone(),
                });
                let there = plan.services.entry(exposure.site.clone()).or_default();
                for address in exposure.addresses.iter().filter(|address| is_alike(address.0, service.ip)) {
                    there.entry(address.0).or_insert_with(|| planned.clone());
                }
            }
        }
        if plan.services.is_empty() {
            return plan;
        }
        for subject in view.subjects.values().filter(|subject| subject.site != gateway.site) {
            let there = plan.servers.entry(subject.site.clone()).or_default();
            for is_v4 in [true, false] {
                there.insert(number_of_server(subject.server.as_str(), is_v4), subject.server.clone());
            }
        }
        plan.ranges = gateway.presence_cidrs.clone();
        let presences = view.presences.values().flat_map(|presence| &presence.addresses);
        plan.taken = presences.map(|address| address.0).chain(plan.presences.keys().copied()).collect();
        plan.taken.extend(gateway.ip);
        plan.client_networks = client_networks(&plan.ranges, &plan.taken);
        plan
    }

    pub fn is_empty(&self) -> bool {
        self.presences.is_empty() && self.services.is_empty()
    }

    /// Returns the service of another site that has an address here.
    pub fn presence(&self, address: IpAddr) -> Option<&Arc<TranslatedPresenceEntry>> {
        self.presences.get(&address)
    }

    /// Returns the service of this site that has an address at another site.
    pub fn service(&self, site: &SiteName, address: IpAddr) -> Option<&Arc<PlannedService>> {
        self.services.get(site)?.get(&address)
    }

    /// Returns the EServer of another site that has a number on the wire.
    pub fn server(&self, site: &SiteName, number: IpAddr) -> Option<&ServerName> {
        self.servers.get(site)?.get(&number)
    }

    /// Tells whether clients of other sites have addresses in this part of the presence range.
    pub fn is_client_address(&self, address: IpAddr) -> bool {
        self.client_networks.iter().any(|network| network.contains(&address))
    }

    /// Returns the networks in which clients of other sites have addresses.
    pub fn client_networks(&self) -> &[IpNet] {
        &self.client_networks
    }

    /// Tells whether packets of translated services cross to or from a peer.
    pub fn is_peer(&self, peer: &TunnelPeerEntry) -> bool {
        self.services.contains_key(&peer.site)
            || self.presences.values().any(|presence| presence.gateway == peer.gateway)
    }

    /// Returns the routes that lead to the device.
    pub fn routes(&self) -> impl Iterator<Item = IpNet> {
        self.presences.keys().map(|address| IpNet::from(*address)).chain(self.client_networks.iter().copied())
    }
}

fn is_alike(one: IpAddr, other: IpAddr) -> bool {
    one.is_ipv4() == other.is_ipv4()
}
