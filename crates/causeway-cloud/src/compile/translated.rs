//! Translated services in the netmap of a gateway: presences at the sites of clients, the server at its own site, and the
//! gateways between which their packets cross.
//!
//! A gateway of a client's site knows presence addresses and the gateway of the server; the gateway of the server knows
//! the server and the presence addresses. No real address leaves its site. Both gateways are peers of each other without
//! networks.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use causeway_api::kinds::Protocol;
use causeway_api::{EGateway, EService, ObjectSet, ServiceExpose, conditions};
use causeway_netmap::{
    IpProtocol, NetmapEntry, PresenceIp, TranslatedExposure, TranslatedPresenceEntry, TranslatedScope,
    TranslatedServiceEntry,
};

use super::tunnel::owner_of;
use super::{Draft, facts, is_usable, sorted};
use crate::bootstrap::CLOUD;
use crate::replicas::ActiveGateways;

/// Returns the translated exposures of a service that are carried.
fn exposes_of<'a>(objects: &'a ObjectSet, service: &'a str) -> impl Iterator<Item = &'a ServiceExpose> {
    let exposes = objects.exposes_of(service).filter(|expose| expose.is_translated());
    exposes.filter(move |expose| conditions::why_not_forwarded(objects, expose).is_none())
}

/// Returns the gateways that carry packets of any translated service, except those of the cloud.
pub fn gateways<'a>(objects: &'a ObjectSet, active: &'a ActiveGateways) -> impl Iterator<Item = &'a str> {
    let exposes = objects.all::<ServiceExpose>();
    let exposes = exposes.filter(|expose| expose.is_translated() && !expose.e_sites.is_empty());
    let carried = exposes.filter(|expose| conditions::why_not_forwarded(objects, expose).is_none());
    carried
        .filter_map(|expose| Some((expose, objects.service(&expose.e_service_name)?)))
        .flat_map(move |(expose, service)| {
            let owner = owner_of(objects, active, &service.e_site_name);
            let clients = expose.e_sites.iter().flat_map(|site| objects.gateways_at(site));
            clients.chain(owner)
        })
        .filter(|gateway| gateway.e_site_name != CLOUD && !gateway.is_plain_wireguard())
        .map(|gateway| gateway.metadata.name.as_str())
}

/// Returns the sites between which packets of a translated service cross, for each service that is carried.
pub fn groups(objects: &ObjectSet) -> BTreeMap<String, Vec<&str>> {
    let mut sites: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for expose in objects.all::<ServiceExpose>().filter(|expose| expose.is_translated()) {
        let service = objects.service(&expose.e_service_name);
        if let Some(service) = service.filter(|_| conditions::why_not_forwarded(objects, expose).is_none()) {
            let group = sites.entry(service.metadata.name.as_str()).or_default();
            group.extend(expose.e_sites.iter().map(String::as_str).chain([service.e_site_name.as_str()]));
        }
    }
    sites
        .into_iter()
        .map(|(service, sites)| (format!("service:{service}"), sites.into_iter().collect()))
        .collect()
}

impl<'a> Draft<'a> {
    /// Returns the gateways of other sites with which this one exchanges packets of translated services.
    pub(super) fn translated_peers(&self, active: &ActiveGateways, name: &str) -> BTreeSet<&'a str> {
        let objects = self.objects;
        let here = objects.exposes_at(self.site).filter(|expose| expose.is_translated());
        let here = here.filter(|expose| conditions::why_not_forwarded(objects, expose).is_none());
        let services = here.filter_map(|expose| objects.service(&expose.e_service_name));
        let servers = services.filter_map(|service| owner_of(objects, active, &service.e_site_name));
        let is_owner = self.is_owner(active, name);
        let own = objects.services_at(self.site).filter(|_| is_owner);
        let exposes = own.flat_map(|service| exposes_of(objects, &service.metadata.name));
        let clients = exposes.flat_map(|expose| &expose.e_sites).flat_map(|site| objects.gateways_at(site));
        let peers = servers.chain(clients);
        peers
            .filter(|peer| peer.e_site_name != self.site && !peer.is_plain_wireguard())
            .map(|peer| peer.metadata.name.as_str())
            .collect()
    }

    fn is_owner(&self, active: &ActiveGateways, name: &str) -> bool {
        owner_of(self.objects, active, self.site).is_some_and(|owner| owner.metadata.name == name)
    }

    /// Adds a translated service of another site that is exposed here.
    pub(super) fn translated_presence(
        &mut self,
        active: &ActiveGateways,
        service: &'a EService,
        exposes: &[&'a ServiceExpose],
        addresses: BTreeSet<IpAddr>,
    ) {
        let Some((server, _)) = service.translated_server() else { return };
        let addresses: Vec<PresenceIp> = alike(addresses, server);
        let owner = owner_of(self.objects, active, &service.e_site_name);
        // A service of this very site is reached at its own address.
        let Some(owner) = owner.filter(|_| service.e_site_name != self.site && !addresses.is_empty()) else {
            return;
        };
        let policies = sorted(exposes.iter().flat_map(|expose| &expose.e_policys));
        policies.iter().for_each(|policy| self.refer(policy, self.site));
        self.facts.push(NetmapEntry::TranslatedPresence(TranslatedPresenceEntry {
            service: service.metadata.name.as_str().into(),
            addresses,
            scope: scope(service),
            names: facts::presence_names(service, self.naming(exposes)),
            service_site: service.e_site_name.as_str().into(),
            gateway: owner.metadata.name.as_str().into(),
            policies: policies.into_iter().map(Into::into).collect(),
        }));
    }

    /// Adds the services of this site that are translated for other sites, at the gateway that carries their packets.
    pub(super) fn translated_services(&mut self, active: &ActiveGateways, gateway: &EGateway) {
        if !self.is_owner(active, &gateway.metadata.name) {
            return;
        }
        for service in self.objects.services_at(self.site) {
            let Some((ip, port)) = service.translated_server() else { continue };
            let exposes: Vec<&ServiceExpose> = exposes_of(self.objects, &service.metadata.name).collect();
            let sites = sorted(exposes.iter().flat_map(|expose| &expose.e_sites));
            let (own, mut exposures) = (self.site, Vec::new());
            for site in sites.into_iter().filter(|site| *site != own) {
                let there = exposes.iter().filter(|expose| expose.e_sites.iter().any(|to| to == site));
                let policies = sorted(there.flat_map(|expose| &expose.e_policys));
                policies.iter().for_each(|policy| self.refer(policy, site));
                exposures.push(TranslatedExposure {
                    site: site.into(),
                    addresses: alike(self.presence_addresses(service, site), ip),
                    policies: policies.into_iter().map(Into::into).collect(),
                });
            }
            if !exposures.is_empty() {
                self.facts.push(NetmapEntry::TranslatedService(TranslatedServiceEntry {
                    service: service.metadata.name.as_str().into(),
                    ip,
                    port,
                    scope: scope(service),
                    exposures,
                }));
            }
        }
    }

    /// Returns the addresses of a service at another site that a gateway there can use.
    fn presence_addresses(&self, service: &EService, site: &str) -> BTreeSet<IpAddr> {
        let there = self.objects.presences_of(&service.metadata.name);
        let there = there.filter(|found| found.e_site_name == site);
        let usable =
            there.filter(|found| self.objects.gateways_at(site).any(|gateway| is_usable(found, gateway)));
        usable.filter_map(|found| found.ip_addr()).collect()
    }
}

fn alike(addresses: BTreeSet<IpAddr>, server: IpAddr) -> Vec<PresenceIp> {
    addresses.into_iter().filter(|ip| ip.is_ipv4() == server.is_ipv4()).map(PresenceIp).collect()
}

fn scope(service: &EService) -> TranslatedScope {
    match service.protocol {
        Protocol::Ip => TranslatedScope::Everything,
        Protocol::Udp => TranslatedScope::Port(IpProtocol::Udp, service.port_number()),
        _ => TranslatedScope::Port(IpProtocol::Tcp, service.port_number()),
    }
}
