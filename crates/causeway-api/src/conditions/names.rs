//! Decides which exposure has a DNS name at a site when several claim it.
//!
//! The older exposure has it, then the first by name; the other one gets a condition. A host that can be
//! reached by its name takes precedence over any exposure. The compiler of netmaps follows the same rule, so
//! every gateway of a site gives the same answer.

use std::collections::BTreeSet;

use super::NAME_FREE;
use super::findings::{Findings, list};
use crate::kinds::ServiceExpose;
use crate::object_set::ObjectSet;

/// Tells whether the exposure has its DNS name at a site, or an older exposure of another service has it.
pub fn holds_name(objects: &ObjectSet, expose: &ServiceExpose, site: &str) -> bool {
    let at_site = |rival: &&ServiceExpose| rival.e_sites.iter().any(|name| name == site);
    preceding(objects, expose).find(at_site).is_none()
}

pub(super) fn name_is_free(findings: &mut Findings, objects: &ObjectSet, expose: &ServiceExpose) {
    let name = expose.dns_name.as_str();
    if name.is_empty() {
        return findings.holds(NAME_FREE, "NoName");
    }
    if let Some(node) = objects.servers_named(name).find(|server| !server.ports.is_empty()) {
        let message = format!(
            "{name} is the name of EServer {}, which has precedence wherever it can be reached",
            node.metadata.name
        );
        return findings.fails(NAME_FREE, "NameConflict", message);
    }
    let ours: BTreeSet<&String> = expose.e_sites.iter().collect();
    for preceding_expose in preceding(objects, expose) {
        let shared: Vec<&str> =
            preceding_expose.e_sites.iter().filter(|site| ours.contains(site)).map(String::as_str).collect();
        if !shared.is_empty() {
            let (other, sites) = (&preceding_expose.metadata.name, list(&shared));
            let message = format!(
                "{name} is also the dnsName of ServiceExpose {other}, which has precedence at {sites}"
            );
            return findings.fails(NAME_FREE, "NameConflict", message);
        }
    }
    findings.holds(NAME_FREE, "NameFree");
}

/// Exposures of other services with the same name that take precedence. Two exposures of one service lead to
/// the same backends.
fn preceding<'a>(
    objects: &'a ObjectSet,
    expose: &'a ServiceExpose,
) -> impl Iterator<Item = &'a ServiceExpose> {
    let age = |expose: &ServiceExpose| {
        let created = expose.metadata.creation_timestamp.map(|created| created.as_second());
        // An exposure that is not stored yet is the youngest.
        (created.unwrap_or(i64::MAX), expose.metadata.name.clone())
    };
    let own = age(expose);
    objects
        .exposes_named(&expose.dns_name)
        .filter(move |other| other.e_service_name != expose.e_service_name && age(other) < own)
}
