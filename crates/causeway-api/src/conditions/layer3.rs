//! Conditions of layer 3: networks that collide, members without a tunnel, and exposures that are not forwarded.

use super::findings::{Findings, list};
use super::{POLICIES_RESOLVED, SUBNETS_DISTINCT, TUNNEL_KEY_UNIQUE, TUNNELS_KNOWN, absent};
use crate::kinds::{ECommunity, EGateway, EService, ESite, Kind, MappedSubnet, Protocol, ServiceExpose};
use crate::layer3::{NetworkOverlap, overlaps_in, overlaps_of, plan_ranges};
use crate::object_set::ObjectSet;

// A message is read by an operator; overlaps beyond this number are only counted.
const OVERLAPS_MAX: usize = 10;

/// Only members of a community have anything to collide with.
pub(super) fn subnets_of_site(findings: &mut Findings, objects: &ObjectSet, site: &ESite) {
    match objects.communities_of(&site.metadata.name).next() {
        Some(_) => subnets_are_distinct(findings, overlaps_of(objects, &site.metadata.name)),
        None => findings.remove_condition(SUBNETS_DISTINCT),
    }
}

pub(super) fn subnets_of_members(findings: &mut Findings, objects: &ObjectSet, community: &ECommunity) {
    let members = community.members.iter().map(String::as_str);
    let plan = plan_ranges(objects, community);
    if !plan.without.is_empty() {
        let named: Vec<String> =
            plan.without.iter().map(|(site, network)| format!("{network} of ESite {site}")).collect();
        let named: Vec<&str> = named.iter().map(String::as_str).collect();
        let message = format!(
            "mapFrom {} has no room for {}: choose a larger range of the same address family",
            community.map_from,
            list(&named)
        );
        return findings.fails(SUBNETS_DISTINCT, "RangeFull", message);
    }
    let held = objects.layer3.ranges.get(&community.metadata.name).map(Vec::as_slice).unwrap_or_default();
    if plan.ranges != held {
        return findings.set_false_without_ready(
            SUBNETS_DISTINCT,
            "RangesPending",
            "mapped networks are not allocated yet",
        );
    }
    subnets_are_distinct(findings, overlaps_in(objects, members));
}

fn subnets_are_distinct(findings: &mut Findings, overlaps: std::collections::BTreeSet<NetworkOverlap>) {
    if overlaps.is_empty() {
        return findings.holds(SUBNETS_DISTINCT, "SubnetsDistinct");
    }
    let mut parts: Vec<String> = overlaps.iter().take(OVERLAPS_MAX).map(NetworkOverlap::message).collect();
    if overlaps.len() > OVERLAPS_MAX {
        parts.push(format!("and {} more", overlaps.len() - OVERLAPS_MAX));
    }
    findings.fails(SUBNETS_DISTINCT, "SubnetsOverlap", parts.join("; "));
}

/// Without a list everything is allowed. An empty list, or one of missing policies, allows nothing.
pub(super) fn policies_of_community(findings: &mut Findings, objects: &ObjectSet, community: &ECommunity) {
    let Some(policies) = &community.e_policys else { return findings.remove_condition(POLICIES_RESOLVED) };
    super::policies_exist(findings, objects, policies, "begin a flow between members");
    let reading =
        policies.iter().filter_map(|name| objects.policy(name)).filter(|policy| !policy.http.is_empty());
    let reading: Vec<&str> = reading.map(|policy| policy.metadata.name.as_str()).collect();
    if !reading.is_empty() && absent(objects, Kind::EPolicy, policies).is_empty() {
        let message = format!("EPolicy {} has http rules and allows nothing at layer 3", list(&reading));
        findings.fails(POLICIES_RESOLVED, "HttpRules", message);
    }
}

/// A member takes part when a gateway of it has a key that no other gateway claims.
pub(super) fn tunnels_of_members(findings: &mut Findings, objects: &ObjectSet, community: &ECommunity) {
    let is_known = |gateway: &EGateway| {
        let name = gateway.metadata.name.as_str();
        objects.tunnel_key(name).is_some() && objects.tunnel_key_owner(name).is_none()
    };
    let has_gateways = |site: &&String| objects.gateways_at(site).next().is_some();
    let without_tunnel_key =
        community.members.iter().filter(has_gateways).filter(|site| !objects.gateways_at(site).any(is_known));
    let without_tunnel_key: Vec<&str> = without_tunnel_key.map(String::as_str).collect();
    match without_tunnel_key.is_empty() {
        true => findings.holds(TUNNELS_KNOWN, "TunnelsKnown"),
        false => {
            let message = format!(
                "no gateway of {} has reported a tunnel key: it has not connected since it was updated, \
                 or its tunnel is off",
                list(&without_tunnel_key)
            );
            findings.set_false_without_ready(TUNNELS_KNOWN, "TunnelUnknown", message);
        }
    }
}

/// One key stands for one gateway.
pub(super) fn key_is_unique(findings: &mut Findings, objects: &ObjectSet, gateway: &EGateway) {
    let name = gateway.metadata.name.as_str();
    match (objects.tunnel_key_owner(name), objects.tunnel_key_duplicate(name)) {
        (Some(owner), _) => {
            let message = format!(
                "EGateway {owner} has the same tunnel key and had it first, so {name} exchanges no packets: \
                 give this gateway a key of its own"
            );
            findings.fails(TUNNEL_KEY_UNIQUE, "KeyTaken", message);
        }
        (None, Some(duplicate)) => {
            let message =
                format!("EGateway {duplicate} claims the same tunnel key; {name} had it first and keeps it");
            findings.set_false_without_ready(TUNNEL_KEY_UNIQUE, "KeyClaimed", message);
        }
        (None, None) => match objects.tunnel_key(name) {
            Some(_) => findings.holds(TUNNEL_KEY_UNIQUE, "KeyUnique"),
            None => findings.remove_condition(TUNNEL_KEY_UNIQUE),
        },
    }
}

/// Returns the reason for which an exposure is not forwarded. None: it is forwarded as soon as its service exists.
pub fn why_not_forwarded(objects: &ObjectSet, expose: &ServiceExpose) -> Option<(&'static str, String)> {
    let service = objects.service(&expose.e_service_name)?;
    let name = &service.metadata.name;
    if expose.metadata.is_being_deleted() || service.metadata.is_being_deleted() {
        let message = format!("ServiceExpose {} or EService {name} is being deleted", expose.metadata.name);
        return Some(("BeingDeleted", message));
    }
    if !expose.is_translated() {
        let is_ip = service.protocol == Protocol::Ip;
        return is_ip.then(|| {
            ("TranslateRequired", format!("EService {name} has protocol IP, which requires mode translate"))
        });
    }
    if let Some(why) = not_translatable(service) {
        return Some((
            "NotTranslatable",
            format!("EService {name} cannot be exposed with mode translate: {why}"),
        ));
    }
    let is_shared = |other: &&ServiceExpose| {
        let is_proxied = !other.is_translated() && !other.metadata.is_being_deleted();
        is_proxied && other.e_sites.iter().any(|site| expose.e_sites.contains(site))
    };
    let other = objects.exposes_of(name).find(is_shared)?;
    let message = format!(
        "ServiceExpose {} presents EService {name} in mode proxy at one of these sites: a presence has one mode",
        other.metadata.name
    );
    Some(("ModeConflict", message))
}

/// Returns the reason for which a service cannot be translated: the first field that needs a connection of the gateway.
fn not_translatable(service: &EService) -> Option<&'static str> {
    let is_loopback = service.translated_server().is_some_and(|(ip, _)| ip.to_canonical().is_loopback());
    let rows = [
        (
            service.endpoints.len() > 1,
            "endpoints has several entries, but with mode translate packets go to one server",
        ),
        (
            service.health_check.is_some(),
            "healthCheck is set, but with mode translate the gateway opens no connections",
        ),
        (
            service.backend_tls.is_some(),
            "backendTLS is set, but with mode translate the gateway opens no connections",
        ),
        (
            service.proxy_protocol,
            "proxyProtocol is set, but with mode translate the gateway opens no connections",
        ),
        (service.protocol == Protocol::Kafka, "the addresses inside KAFKA are not translated"),
        (is_loopback, "packets do not cross to a loopback address"),
        (service.translated_server().is_none(), "packets need an address, and it has only a domainName"),
    ];
    rows.into_iter().find(|(fails, _)| *fails).map(|(_, why)| why)
}

/// Returns the mapped networks that the status of a site shows.
pub(super) fn mapped_subnets(objects: &ObjectSet, site: &ESite) -> Vec<MappedSubnet> {
    let ranges = objects.layer3.ranges_at(&site.metadata.name);
    let shown =
        ranges.filter(|range| objects.layer3.range_of(&range.site, range.subnet) == Some(range.seen_as));
    let shown = shown
        .map(|range| MappedSubnet { subnet: range.subnet.to_string(), seen_as: range.seen_as.to_string() });
    let mut shown: Vec<MappedSubnet> = shown.collect();
    shown.sort_by(|one, other| one.subnet.cmp(&other.subnet));
    shown
}
