//! Finds the sites at which an exposure has an address, and the reasons for the remaining sites.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::PRESENTED;
use super::findings::Findings;
use super::layer3::why_not_forwarded;
use crate::allocate::{AddressFamily, AddressPool, name, translated_family};
use crate::kinds::{EGateway, ServiceExpose, VirtualPresence};
use crate::object_set::ObjectSet;
use crate::presence;

// A message is read by an operator; sites beyond this number are only counted.
const SITES_MAX: usize = 100;

/// The reason for a missing address at a site.
struct Gap {
    reason: &'static str,
    message: String,
}

/// Sites without gateways and missing services are reported by other conditions; here they only count as not
/// presented.
pub(super) fn presented(findings: &mut Findings, objects: &ObjectSet, expose: &ServiceExpose) {
    let service = expose.e_service_name.as_str();
    if objects.service(service).is_none() {
        return findings.set_false_without_ready(
            PRESENTED,
            "ServiceMissing",
            format!("EService {service} does not exist"),
        );
    }
    if let Some((reason, message)) = why_not_forwarded(objects, expose) {
        return findings.fails(PRESENTED, reason, message);
    }
    let mut found: BTreeMap<&str, Vec<&VirtualPresence>> = BTreeMap::new();
    for presence in objects.presences_of(service) {
        found.entry(&presence.e_site_name).or_default().push(presence);
    }
    let (none, mut shown, mut gaps, mut bare) = (Vec::new(), Vec::new(), Vec::new(), 0);
    for site in &expose.e_sites {
        let gateways: Vec<&EGateway> = objects.gateways_at(site).collect();
        if gateways.is_empty() {
            bare += 1;
            continue;
        }
        match at_site(objects, expose, site, &gateways, found.get(site.as_str()).unwrap_or(&none)) {
            Ok(addresses) => shown.push(format!("{site} {}", join(&addresses, ", "))),
            Err(gap) => gaps.push(gap),
        }
    }
    let joined = |parts: Vec<String>| match parts.len().checked_sub(SITES_MAX) {
        None | Some(0) => parts.join("; "),
        Some(more) => format!("{}; and {more} more", parts[..SITES_MAX].join("; ")),
    };
    match gaps.first().map(|gap| gap.reason) {
        Some(reason) => {
            findings.fails(PRESENTED, reason, joined(gaps.into_iter().map(|gap| gap.message).collect()))
        }
        None if shown.is_empty() => {
            findings.set_false_without_ready(
                PRESENTED,
                "Nowhere",
                "no site of eSites has a gateway that could present it",
            );
        }
        None if bare > 0 => findings.set_false_without_ready(PRESENTED, "GatewayMissing", joined(shown)),
        None => findings.holds_with_message(PRESENTED, "Presented", joined(shown)),
    }
}

/// Returns the addresses of a service at a site.
fn at_site(
    objects: &ObjectSet,
    expose: &ServiceExpose,
    site: &str,
    gateways: &[&EGateway],
    found: &[&VirtualPresence],
) -> Result<Vec<IpAddr>, Gap> {
    let service = expose.e_service_name.as_str();
    let only = translated_family(objects, expose);
    let is_usable = |presence: &&&VirtualPresence| presence::check_refs(presence, gateways, &[]).is_empty();
    let usable = found.iter().filter(is_usable).filter_map(|presence| presence.ip_addr());
    let mut usable: Vec<IpAddr> =
        usable.filter(|ip| only.is_none_or(|only| AddressFamily::of(*ip) == only)).collect();
    usable.sort_unstable();
    let by_hand = found.iter().find(|presence| !crate::allocate::is_made(presence));
    if let Some(presence) = by_hand {
        return match usable.is_empty() {
            false => Ok(usable),
            true => Err(unusable(presence, site)),
        };
    }
    let mut pool = AddressPool::of(objects, site);
    if let Some(only) = only.filter(|only| !pool.families().any(|family| family == *only)) {
        let message = format!(
            "the server of EService {service} has an {} address, and virtualPresenceIPcidr at {site} has no such range",
            only.as_str()
        );
        return Err(Gap { reason: "FamilyMissing", message });
    }
    let mut families = pool.families().filter(|family| only.is_none_or(|only| *family == only));
    let missing = families.find(|family| !usable.iter().any(|ip| AddressFamily::of(*ip) == *family));
    drop(families);
    match missing {
        Some(family) => Err(gap(objects, &mut pool, (service, site, family))),
        None => Ok(usable),
    }
}

fn unusable(presence: &VirtualPresence, site: &str) -> Gap {
    let (name, ip) = (&presence.metadata.name, &presence.virtual_ip);
    let message = format!(
        "VirtualPresence {name} was made by hand for {site}, and its address {ip} cannot be used there"
    );
    Gap { reason: "AddressUnusable", message }
}

/// Returns the reason for a missing address of a family.
fn gap(
    objects: &ObjectSet,
    pool: &mut AddressPool<'_>,
    (service, site, family): (&str, &str, AddressFamily),
) -> Gap {
    let name = name(service, site, family);
    let foreign =
        objects.presence(&name).filter(|found| found.e_service_name != service || found.e_site_name != site);
    if foreign.is_some() {
        let message =
            format!("the name {name} is taken by a VirtualPresence that was not created for this service");
        return Gap { reason: "PresenceNameTaken", message };
    }
    if pool.is_full(family) {
        let range = pool.range(family).map(|range| range.to_string()).unwrap_or_default();
        let message = format!(
            "every {} address of {range} at {site} is taken; give its EGateway a larger virtualPresenceIPcidr",
            family.as_str()
        );
        return Gap { reason: "CidrFull", message };
    }
    Gap {
        reason: "PresencePending",
        message: format!("an {} address at {site} is not allocated yet", family.as_str()),
    }
}

fn join(addresses: &[IpAddr], with: &str) -> String {
    addresses.iter().map(IpAddr::to_string).collect::<Vec<_>>().join(with)
}
