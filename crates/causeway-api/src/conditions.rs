//! Computes the conditions of each object from all objects.
//!
//! References may dangle: that is never an error when an object is applied, but a condition on the referring
//! object. The result depends on the state, not on what changed: the same objects give the same conditions,
//! and transition times stay. Conditions of other types, for example those a gateway reports, are kept as
//! they are.

#[cfg(test)]
mod catalog;
mod findings;
mod layer3;
mod links;
mod names;
mod presented;

use findings::{Findings, missing};

pub use layer3::why_not_forwarded;
pub use links::is_connected;
pub use names::holds_name;

use crate::kinds::{
    ECommunity, EGateway, EPolicy, EServer, EService, ESite, Kind, ServiceExpose, VirtualPresence,
};
use crate::meta::{Condition, ConditionStatus, ObjectStatus};
use crate::object::Object;
use crate::object_set::ObjectSet;
use crate::presence;
use crate::time::Time;

/// The condition that summarises all findings.
pub const READY: &str = "Ready";
pub const SITE_RESOLVED: &str = "SiteResolved";
pub const SITES_RESOLVED: &str = "SitesResolved";
pub const GATEWAYS_RESOLVED: &str = "GatewaysResolved";
pub const SERVICE_RESOLVED: &str = "ServiceResolved";
pub const SERVERS_RESOLVED: &str = "ServersResolved";
pub const POLICIES_RESOLVED: &str = "PoliciesResolved";
pub const ADDRESS_USABLE: &str = "AddressUsable";
pub const MEMBERS_RESOLVED: &str = "MembersResolved";
pub const NAME_FREE: &str = "NameFree";
pub const PRESENTED: &str = "Presented";
/// Networks of the members of a community do not overlap, or are mapped.
pub const SUBNETS_DISTINCT: &str = "SubnetsDistinct";
/// Every member of a community has a gateway with a tunnel key. Does not count for `Ready`.
pub const TUNNELS_KNOWN: &str = "TunnelsKnown";
/// No other gateway claims the tunnel key of this one.
pub const TUNNEL_KEY_UNIQUE: &str = "TunnelKeyUnique";
/// Changes with the links, so it does not count for `Ready`.
pub const GATEWAYS_CONNECTED: &str = "GatewaysConnected";
/// Written into an EService from the report of its gateway, and from there into its exposures. Does not count
/// for `Ready` either.
pub const BACKENDS_ANSWER: &str = "BackendsAnswer";
/// Written into an EGateway by the cloud replica that holds its channel.
pub const CONNECTED: &str = "Connected";
/// Tells whether the gateway is enrolled for the site of its EGateway. Written by the cloud where it once was
/// not.
pub const ENROLLED_AT_SITE: &str = "EnrolledAtSite";
/// The condition of an EGateway about its listeners.
pub const LISTENING: &str = "Listening";
/// The condition of an EGateway about the netmap in force.
pub const NETMAP_IN_FORCE: &str = "NetmapInForce";
/// The condition about the gateway's disk. Written when a gateway first reports that it cannot write its
/// netmap.
pub const NETMAP_PERSISTED: &str = "NetmapPersisted";
/// The condition of an EGateway about its tunnel. Written when the tunnel first could not run.
pub const TUNNEL_READY: &str = "TunnelReady";
/// The condition of an EGateway whose edge serves the Kubernetes API: every pod of the site would survive a restart without the cloud.
pub const READY_FOR_OFFLINE: &str = "ReadyForOffline";
/// The condition of an EGateway whose edge has a byte budget for the Kubernetes API: it is not spent today.
pub const WITHIN_BYTE_BUDGET: &str = "WithinByteBudget";
/// The reason of `NetmapInForce` when it is True.
pub const IN_FORCE: &str = "InForce";

/// Returns the status an object should have. If it equals the current status, nothing needs to be written.
pub fn status(object: &Object, objects: &ObjectSet, now: Time) -> ObjectStatus {
    let conditions = match object {
        Object::ESite(object) => site(object, objects, now),
        Object::EGateway(object) => gateway(object, objects, now),
        Object::EService(object) => service(object, objects, now),
        Object::EServer(object) => server(object, objects, now),
        Object::EPolicy(object) => policy(object, objects, now),
        Object::ServiceExpose(object) => expose(object, objects, now),
        Object::VirtualPresence(object) => presence(object, objects, now),
        Object::ECommunity(object) => community(object, objects, now),
        // Kubernetes' own kinds have no conditions here.
        Object::Namespace(_) | Object::Event(_) | Object::Service(_) => Vec::new(),
    };
    let mut status = ObjectStatus {
        observed_generation: object.metadata().generation,
        conditions,
        ..object.status().clone()
    };
    if let Object::ESite(site) = object {
        status.mapped_subnets = layer3::mapped_subnets(objects, site);
    }
    status
}

pub fn site(site: &ESite, objects: &ObjectSet, now: Time) -> Vec<Condition> {
    let mut findings = Findings::of(site, now);
    match objects.gateways_at(&site.metadata.name).count() {
        0 => findings.fails(
            GATEWAYS_RESOLVED,
            "GatewayMissing",
            "no EGateway exists at this site; no client can reach its services",
        ),
        _ => findings.holds(GATEWAYS_RESOLVED, "GatewaysFound"),
    }
    layer3::subnets_of_site(&mut findings, objects, site);
    findings.summary()
}

pub fn gateway(gateway: &EGateway, objects: &ObjectSet, now: Time) -> Vec<Condition> {
    let mut findings = Findings::of(gateway, now);
    site_exists(&mut findings, objects, &gateway.e_site_name);
    layer3::key_is_unique(&mut findings, objects, gateway);
    if gateway.is_plain_wireguard() {
        // It has no channel, so it is never connected.
        return findings.summary();
    }
    links::requires_connection(&mut findings, gateway);
    findings.summary()
}

/// The same from the gateway's own conditions, for the writer of `Connected`: so that `Ready` follows in the
/// same write, and not in a second one of the reconciler. None: its site has not been checked yet.
pub fn gateway_after_link(gateway: &EGateway, now: Time) -> Option<Vec<Condition>> {
    let site = gateway.status.condition(SITE_RESOLVED)?.clone();
    let mut findings = Findings::of(gateway, now);
    if site.status != ConditionStatus::True {
        findings.fails_ready(&site.reason, &site.message);
    }
    links::requires_connection(&mut findings, gateway);
    Some(findings.summary())
}

pub fn service(service: &EService, objects: &ObjectSet, now: Time) -> Vec<Condition> {
    let mut findings = Findings::of(service, now);
    site_exists(&mut findings, objects, &service.e_site_name);
    gateways_stand_at(&mut findings, objects, std::slice::from_ref(&service.e_site_name));
    links::gateways_connected(&mut findings, objects, [service.e_site_name.as_str()]);
    findings.summary()
}

pub fn server(server: &EServer, objects: &ObjectSet, now: Time) -> Vec<Condition> {
    let mut findings = Findings::of(server, now);
    site_exists(&mut findings, objects, &server.e_site_name);
    server_address(&mut findings, objects, server);
    // A host without ports is only a subject: it cannot be reached, so no policy is needed.
    if !server.ports.is_empty() || !server.e_policys.is_empty() {
        policies_exist(&mut findings, objects, &server.e_policys, "reach its ports");
        links::gateways_connected(&mut findings, objects, [server.e_site_name.as_str()]);
    }
    findings.summary()
}

pub fn policy(policy: &EPolicy, objects: &ObjectSet, now: Time) -> Vec<Condition> {
    let mut findings = Findings::of(policy, now);
    if policy.allowed_servers.is_empty() && policy.allowed_sites.is_empty() {
        let message = "allowedServers and allowedSites are empty; the policy allows no client";
        findings.fails(SERVERS_RESOLVED, "NobodyAllowed", message);
        findings.holds(SITES_RESOLVED, "NoneNamed");
        return findings.summary();
    }
    all_exist(&mut findings, objects, SERVERS_RESOLVED, Kind::EServer, &policy.allowed_servers);
    all_exist(&mut findings, objects, SITES_RESOLVED, Kind::ESite, &policy.allowed_sites);
    findings.summary()
}

pub fn expose(expose: &ServiceExpose, objects: &ObjectSet, now: Time) -> Vec<Condition> {
    let mut findings = Findings::of(expose, now);
    service_exists(&mut findings, objects, &expose.e_service_name);
    match expose.e_sites.as_slice() {
        [] => findings.fails(SITES_RESOLVED, "NoSites", "eSites is empty; the service is presented nowhere"),
        sites => all_exist(&mut findings, objects, SITES_RESOLVED, Kind::ESite, sites),
    }
    gateways_stand_at(&mut findings, objects, &expose.e_sites);
    policies_exist(&mut findings, objects, &expose.e_policys, "use the service");
    names::name_is_free(&mut findings, objects, expose);
    presented::presented(&mut findings, objects, expose);
    let service = objects.service(&expose.e_service_name);
    if let Some(condition) = service.and_then(|service| service.status.condition(BACKENDS_ANSWER)) {
        findings.copies(condition);
    }
    let service_site = service.map(|service| service.e_site_name.as_str());
    links::gateways_connected(
        &mut findings,
        objects,
        expose.e_sites.iter().map(String::as_str).chain(service_site),
    );
    findings.summary()
}

pub fn presence(presence: &VirtualPresence, objects: &ObjectSet, now: Time) -> Vec<Condition> {
    let mut findings = Findings::of(presence, now);
    service_exists(&mut findings, objects, &presence.e_service_name);
    match presence.e_site_name.as_str() {
        "" => {
            let message = "eSiteName is not set and does not follow from virtualIp";
            findings.fails(SITE_RESOLVED, "SiteUnknown", message);
        }
        site => site_exists(&mut findings, objects, site),
    }
    presence_address(&mut findings, objects, presence);
    findings.summary()
}

pub fn community(community: &ECommunity, objects: &ObjectSet, now: Time) -> Vec<Condition> {
    let mut findings = Findings::of(community, now);
    all_exist(&mut findings, objects, MEMBERS_RESOLVED, Kind::ESite, &community.members);
    layer3::policies_of_community(&mut findings, objects, community);
    layer3::subnets_of_members(&mut findings, objects, community);
    layer3::tunnels_of_members(&mut findings, objects, community);
    findings.summary()
}

fn site_exists(findings: &mut Findings, objects: &ObjectSet, site: &str) {
    match objects.site(site) {
        Some(_) => findings.holds(SITE_RESOLVED, "SiteFound"),
        None => findings.fails(SITE_RESOLVED, "SiteMissing", format!("ESite {site} does not exist")),
    }
}

fn service_exists(findings: &mut Findings, objects: &ObjectSet, service: &str) {
    match objects.service(service) {
        Some(_) => findings.holds(SERVICE_RESOLVED, "ServiceFound"),
        None => {
            let message = format!("EService {service} does not exist");
            findings.fails(SERVICE_RESOLVED, "ServiceMissing", message);
        }
    }
}

fn all_exist(
    findings: &mut Findings,
    objects: &ObjectSet,
    about: &'static str,
    kind: Kind,
    names: &[String],
) {
    let absent: Vec<&str> = absent(objects, kind, names);
    match (absent.is_empty(), kind) {
        (true, Kind::EServer) => findings.holds(about, "ServersFound"),
        (true, _) => findings.holds(about, "SitesFound"),
        (false, Kind::EServer) => findings.fails(about, "ServerMissing", missing(kind, &absent)),
        (false, _) => findings.fails(about, "SiteMissing", missing(kind, &absent)),
    }
}

/// Every existing site needs a gateway; missing sites are reported by another condition.
fn gateways_stand_at(findings: &mut Findings, objects: &ObjectSet, sites: &[String]) {
    let bare = |site: &&String| objects.site(site).is_some() && objects.gateways_at(site).next().is_none();
    let bare: Vec<&str> = sites.iter().filter(bare).map(String::as_str).collect();
    match bare.is_empty() {
        true => findings.holds(GATEWAYS_RESOLVED, "GatewaysFound"),
        false => {
            let message = format!("no EGateway exists at {}", findings::list(&bare));
            findings.fails(GATEWAYS_RESOLVED, "GatewayMissing", message);
        }
    }
}

/// Default deny: only subjects of existing policies are allowed. The message says so when no policy exists.
fn policies_exist(findings: &mut Findings, objects: &ObjectSet, names: &[String], may: &str) {
    let denied = format!("no client may {may} (default deny)");
    let absent = absent(objects, Kind::EPolicy, names);
    if names.is_empty() {
        findings.fails(POLICIES_RESOLVED, "NoPolicies", format!("ePolicys is empty; {denied}"));
    } else if absent.is_empty() {
        findings.holds(POLICIES_RESOLVED, "PoliciesFound");
    } else if absent.len() == names.len() {
        let message = format!("{}; {denied}", missing(Kind::EPolicy, &absent));
        findings.fails(POLICIES_RESOLVED, "PolicyMissing", message);
    } else {
        findings.fails(POLICIES_RESOLVED, "PolicyMissing", missing(Kind::EPolicy, &absent));
    }
}

/// A client is identified by its address, so two hosts of a site must not share one.
fn server_address(findings: &mut Findings, objects: &ObjectSet, server: &EServer) {
    let Some(ip) = server.ip_addr() else { return };
    let others = objects.servers_with(&server.e_site_name, ip).map(|other| other.metadata.name.as_str());
    let others: Vec<&str> = others.filter(|name| *name != server.metadata.name).collect();
    match others.is_empty() {
        true => findings.holds(ADDRESS_USABLE, "AddressFree"),
        false => {
            let message = format!("{ip} is also the address of EServer {}", findings::list(&others));
            findings.fails(ADDRESS_USABLE, "AddressTaken", message);
        }
    }
}

/// The address was valid when the presence was stored; ranges may have changed since.
fn presence_address(findings: &mut Findings, objects: &ObjectSet, presence: &VirtualPresence) {
    let gateways: Vec<&EGateway> = match presence.e_site_name.as_str() {
        "" => objects.all().collect(),
        site => objects.gateways_at(site).collect(),
    };
    if gateways.is_empty() && !presence.e_site_name.is_empty() {
        let message = format!("no EGateway exists at {}", presence.e_site_name);
        findings.fails(ADDRESS_USABLE, "GatewayMissing", message);
        return;
    }
    let rivals: Vec<&VirtualPresence> =
        presence.ip_addr().map(|ip| objects.presences_with(ip).collect()).unwrap_or_default();
    match presence::check_refs(presence, &gateways, &rivals).into_iter().next() {
        None => findings.holds(ADDRESS_USABLE, "AddressFree"),
        Some(error) => findings.fails(ADDRESS_USABLE, "AddressUnusable", error.to_string()),
    }
}

fn absent<'a>(objects: &ObjectSet, kind: Kind, names: &'a [String]) -> Vec<&'a str> {
    names.iter().map(String::as_str).filter(|name| objects.get(kind, name).is_none()).collect()
}

#[cfg(test)]
mod tests;
