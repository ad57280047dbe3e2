//! From a host at one site to a service, a node or a site: object by object, gateway by gateway, to the backends.
//!
//! Pure: a picture of everything in, findings out, in the words of the conditions. A broken hop does not end
//! the walk: later hops can be broken too, and the reader can fix all of them at once. A present answer of a
//! gateway counts; a condition or record from before is reported as the past.

use std::collections::BTreeSet;

use causeway_api::management::{BackendFacts, ServicePathFacts};
use causeway_api::{
    ConditionStatus, EGateway, EPolicy, EServer, EService, ESite, Resource, ServiceExpose, VirtualPresence,
    conditions,
};

use super::collect::Picture;
use super::finding::Finding;
use super::{Unasked, gateway};

/// To a service from one site, or from every site it is exposed to.
pub fn to_service(picture: &Picture, name: &str, only: Option<&str>) -> Vec<Finding> {
    let objects = &picture.objects;
    let hop = format!("service {name}");
    let Some(service) = objects.service(name) else {
        let reason = format!("EService {name} does not exist");
        return vec![Finding::failed(hop, reason, "apply one, with eSiteName where it runs")];
    };
    let service_site = service.e_site_name.as_str();
    let (port, protocol) = (service.port, service.protocol.as_str());
    let mut findings = vec![Finding::ok(
        &hop,
        format!("EService {name} runs at the site {service_site}, {protocol} port {port}"),
    )];
    if let Some(why) = complaint(service, conditions::READY) {
        findings.push(Finding::failed(
            &hop,
            why,
            format!("causeway describe esvc {name} shows what it refers to"),
        ));
    }
    let exposed: BTreeSet<&str> =
        objects.exposes_of(name).flat_map(|expose| &expose.e_sites).map(String::as_str).collect();
    let sites: Vec<&str> = match only {
        Some(site) if exposed.contains(site) => vec![site],
        Some(site) => {
            let fix = format!("add {site} to eSites of a ServiceExpose of {name}");
            findings.push(Finding::failed(hop, format!("no ServiceExpose presents it at {site}"), fix));
            return findings;
        }
        None => exposed.into_iter().collect(),
    };
    if sites.is_empty() {
        let fix = format!("apply a ServiceExpose with eServiceName {name}");
        findings.push(Finding::failed(hop, "no ServiceExpose presents it anywhere", fix));
        return findings;
    }
    findings.extend(sites.iter().flat_map(|site| from_site(picture, service, site)));
    // Of a service that appears where it runs, the gateway was looked at.
    if !sites.contains(&service_site) {
        findings.extend(site_gateway(picture, service_site));
    }
    findings.extend(ways(picture, service, &sites));
    findings
}

/// The near half: from the hosts of a site to its gateway.
fn from_site(picture: &Picture, service: &EService, site: &str) -> Vec<Finding> {
    let name = &service.metadata.name;
    let exposes: Vec<&ServiceExpose> = picture
        .objects
        .exposes_of(name)
        .filter(|expose| expose.e_sites.iter().any(|to| to == site))
        .collect();
    let mut findings = vec![
        who_may(picture, &exposes, site),
        addresses(picture, &exposes, name, site),
        names(&exposes, service, site),
    ];
    findings.extend(site_gateway(picture, site));
    findings
}

/// To a host that can be reached by its name.
pub fn to_node(picture: &Picture, server: &EServer) -> Vec<Finding> {
    let (name, site) = (&server.metadata.name, server.e_site_name.as_str());
    let hop = format!("node {name}");
    let ports: Vec<String> = server.ports.iter().map(ToString::to_string).collect();
    let mut findings = vec![match ports.is_empty() {
        false => {
            Finding::ok(&hop, format!("EServer {name} stands at the site {site}, ports {}", ports.join(", ")))
        }
        true => Finding::failed(
            &hop,
            format!("EServer {name} has no ports: no client can reach it by name"),
            "add ports to be reached by name",
        ),
    }];
    findings.push(match complaint(server, conditions::POLICIES_RESOLVED) {
        Some(why) => Finding::failed(&hop, why, "attach an EPolicy in ePolicys"),
        None => Finding::ok(&hop, format!("its policies exist: {}", server.e_policys.join(", "))),
    });
    findings.extend(site_gateway(picture, site));
    findings
}

/// To a site: its gateways, and what is presented there.
pub fn to_site(picture: &Picture, site: &ESite) -> Vec<Finding> {
    let (objects, name) = (&picture.objects, site.metadata.name.as_str());
    let mut findings = vec![Finding::ok(format!("site {name}"), format!("ESite {name} exists"))];
    let mut gateways = objects.gateways_at(name).peekable();
    if gateways.peek().is_none() {
        findings.push(no_gateway(name));
        return findings;
    }
    findings.extend(gateways.flat_map(|gateway| walk_to(picture, gateway, true)));
    for expose in objects.exposes_at(name) {
        let expose_name = &expose.metadata.name;
        let hop = format!("exposure {expose_name}");
        findings.push(match complaint(expose, conditions::READY) {
            Some(why) => Finding::failed(hop, why, format!("causeway describe sx {expose_name}")),
            None => Finding::ok(hop, "it is complete"),
        });
    }
    findings
}

fn no_gateway(site: &str) -> Finding {
    let fix = format!("causeway token create --site {site} makes one");
    Finding::failed(format!("site {site}"), format!("no EGateway exists at {site}"), fix)
}

/// The gateways that a walk asks, the most relevant first.
pub fn gateways_on_the_way(picture: &Picture, service: &EService, only: Option<&str>) -> Vec<String> {
    let exposes = picture.objects.exposes_of(&service.metadata.name);
    let sites = exposes.flat_map(|expose| &expose.e_sites).map(String::as_str);
    let sites = [service.e_site_name.as_str()]
        .into_iter()
        .chain(sites.filter(|site| only.is_none_or(|only| only == *site)));
    let mut seen = BTreeSet::new();
    let gateways =
        sites.filter_map(|site| active(picture, site)).map(|gateway| gateway.metadata.name.clone());
    gateways.filter(|gateway| seen.insert(gateway.clone())).collect()
}

/// Judges which hosts of a site may use the service. Default deny: if no host may, the hop is broken.
fn who_may(picture: &Picture, exposes: &[&ServiceExpose], site: &str) -> Finding {
    let objects = &picture.objects;
    let hop = format!("policy at {site}");
    let fix = "attach an EPolicy that exists in ePolicys of the ServiceExpose";
    let names: BTreeSet<&str> =
        exposes.iter().flat_map(|expose| &expose.e_policys).map(String::as_str).collect();
    let policies: Vec<&EPolicy> = names.iter().filter_map(|name| objects.policy(name)).collect();
    if policies.is_empty() {
        let why = exposes.iter().find_map(|expose| complaint(*expose, conditions::POLICIES_RESOLVED));
        let why = why
            .unwrap_or_else(|| "no policy exists; no client may use the service (default deny)".to_owned());
        return Finding::failed(hop, why, fix);
    }
    if policies.iter().any(|policy| policy.allowed_sites.iter().any(|allowed| allowed == site)) {
        return Finding::ok(hop, format!("every host of {site} may use it"));
    }
    let servers = policies.iter().flat_map(|policy| &policy.allowed_servers);
    let here: BTreeSet<&str> = servers
        .filter(|server| objects.server(server).is_some_and(|server| server.e_site_name == site))
        .map(String::as_str)
        .collect();
    match here.is_empty() {
        false => Finding::ok(
            hop,
            format!("at {site} may use it: {}", here.into_iter().collect::<Vec<_>>().join(", ")),
        ),
        true => Finding::failed(
            hop,
            format!("no policy allows a client at {site}"),
            "name its hosts in allowedServers of an EPolicy, or the site in allowedSites",
        ),
    }
}

fn addresses(picture: &Picture, exposes: &[&ServiceExpose], service: &str, site: &str) -> Finding {
    let objects = &picture.objects;
    let hop = format!("presence of {service} at {site}");
    let there: Vec<&VirtualPresence> =
        objects.presences_of(service).filter(|presence| presence.e_site_name == site).collect();
    let usable: Vec<&str> = there
        .iter()
        .filter(|presence| complaint(**presence, conditions::ADDRESS_USABLE).is_none())
        .map(|presence| presence.virtual_ip.as_str())
        .collect();
    if usable.is_empty() {
        let unusable = there.iter().find_map(|presence| complaint(*presence, conditions::ADDRESS_USABLE));
        let missing = exposes.iter().find_map(|expose| complaint(*expose, conditions::PRESENTED));
        let why = unusable.or(missing).unwrap_or_else(|| "the controller has made none yet".to_owned());
        return Finding::failed(hop, format!("it has no address at {site}: {why}"), "");
    }
    let route = objects.gateways_at(site).find(|gateway| !gateway.ip.is_empty()).map(|gateway| {
        format!("; hosts need a route: {} via {}", gateway.virtual_presence_ip_cidr, gateway.ip)
    });
    Finding::ok(hop, format!("its address at {site} is {}{}", usable.join(", "), route.unwrap_or_default()))
}

fn names(exposes: &[&ServiceExpose], service: &EService, site: &str) -> Finding {
    let hop = format!("names at {site}");
    if let Some(why) = exposes.iter().find_map(|expose| complaint(*expose, conditions::NAME_FREE)) {
        return Finding::failed(hop, why, "choose another dnsName");
    }
    let own =
        format!("{}.{}.causeway.internal", service.metadata.name, service.e_site_name).to_ascii_lowercase();
    let chosen = exposes.iter().map(|expose| expose.dns_name.clone()).filter(|name| !name.is_empty());
    let names: BTreeSet<String> = chosen.chain([own]).collect();
    Finding::ok(hop, format!("its names at {site}: {}", names.into_iter().collect::<Vec<_>>().join(", ")))
}

/// The gateway that works for a site: of those connected the one with the highest priority.
fn active<'a>(picture: &'a Picture, site: &str) -> Option<&'a EGateway> {
    let is_away = |gateway: &EGateway| {
        let shown = picture.gateway(&gateway.metadata.name);
        shown.is_none_or(|shown| !shown.stats.connected) && !gateway::is_cloud(shown)
    };
    picture.objects.gateways_at(site).min_by_key(|gateway| (is_away(gateway), gateway.rank()))
}

fn site_gateway(picture: &Picture, site: &str) -> Vec<Finding> {
    match active(picture, site) {
        Some(gateway) => walk_to(picture, gateway, false),
        None => vec![no_gateway(site)],
    }
}

fn walk_to(picture: &Picture, gateway: &EGateway, tells_presences: bool) -> Vec<Finding> {
    let name = gateway.metadata.name.as_str();
    let answers = gateway::Answers { tells_presences, ..picture.answers(name) };
    gateway::examine(name, picture.gateway(name), &answers)
}

/// The ways from the sites to the service as they were tried, and its backends as they were found.
pub fn ways(picture: &Picture, service: &EService, sites: &[&str]) -> Vec<Finding> {
    let (name, service_site) = (&service.metadata.name, service.e_site_name.as_str());
    // Gateways open no connection to a translated service: the path between the sites is all that can be examined.
    let is_translated = |site: &str| {
        let mut exposes = picture.objects.exposes_of(name).filter(|expose| expose.is_translated());
        exposes.any(|expose| expose.e_sites.iter().any(|to| to == site))
    };
    let (translated, sites): (Vec<&str>, Vec<&str>) =
        sites.iter().copied().partition(|site| is_translated(site));
    if sites.is_empty() && !translated.is_empty() {
        let told = |site: &&str| {
            let reason =
                "packets are translated end to end, and none was tried; causeway status shows the path";
            Finding::ok(format!("path {site} -> {service_site}"), reason)
        };
        return translated.iter().map(told).collect();
    }
    let answer = |site: &str| {
        let gateway = active(picture, site)?;
        picture.paths.get(&(gateway.metadata.name.clone(), name.clone()))
    };
    let mut findings = Vec::new();
    for site in sites.iter().filter(|site| **site != service_site) {
        findings.extend(answer(site).into_iter().flat_map(|answer| way(name, site, service_site, answer)));
    }
    // The gateway that saw the backends: their own, or one that asked it.
    let seen = std::iter::once(service_site)
        .chain(sites.iter().copied())
        .filter_map(|site| answer(site)?.as_ref().ok())
        .find(|answer| !answer.backends.is_empty());
    match seen {
        Some(answer) => findings.extend(answer.backends.iter().map(|found| backend(service, found))),
        None => {
            let denied = std::iter::once(service_site).chain(sites.iter().copied()).find_map(|site| {
                match answer(site) {
                    Some(Err(Unasked::NotAllowed(why))) => Some(why),
                    _ => None,
                }
            });
            findings.push(match denied {
                Some(why) => gateway::not_allowed(&format!("backends of {name}"), why),
                None => not_tried(picture, service),
            });
        }
    }
    findings
}

/// From one site to the gateway of the service.
fn way(
    name: &str,
    site: &str,
    service_site: &str,
    answer: &Result<ServicePathFacts, Unasked>,
) -> Vec<Finding> {
    let hop = format!("path {site} -> {service_site}");
    let facts = match answer {
        Ok(facts) => facts,
        // Said once, with the backends.
        Err(Unasked::NotAllowed(_)) => return Vec::new(),
        Err(Unasked::Failed(why)) => {
            return vec![Finding::unknown(
                hop,
                format!("the gateway at {site} could not be asked: {why}"),
                "",
            )];
        }
    };
    let mut findings = Vec::new();
    if let Some(why) = &facts.presence_problem {
        let presence = format!("presence of {name} at {site}");
        findings.push(Finding::told(super::State::Failed, presence, why));
    }
    findings.push(match &facts.far_problem {
        Some(why) => Finding::failed(
            hop,
            format!("the gateway of {service_site} is not reached: {why}"),
            format!("causeway doctor {service_site} looks at its gateway"),
        ),
        None if facts.presence_problem.is_some() && facts.backends.is_empty() => return findings,
        None => {
            let took = facts.milliseconds;
            Finding::ok(hop, format!("a question went from {site} to the backends and back in {took:.1} ms"))
        }
    });
    findings
}

/// One backend, as its gateway found it now.
fn backend(service: &EService, found: &BackendFacts) -> Finding {
    let name = &service.metadata.name;
    let hop = format!("backend {} of {name}", found.backend);
    let detail = found.detail.as_str();
    let protocol = service.protocol.as_str();
    match found.outcome.as_str() {
        "answers" | "connects" => Finding::ok(hop, detail),
        "down" => Finding::failed(
            hop,
            format!("it does not take connections: {detail}"),
            format!(
                "does it run at the site {}, and may its gateway reach it? Else correct ip, port or endpoints of EService {name}",
                service.e_site_name
            ),
        ),
        "denied" => Finding::failed(
            hop,
            format!("its gateway does not dial it: {detail}"),
            format!(
                "correct ip, port or endpoints of EService {name}, or the configuration of its gateway ([gateway] backends-allow, backends-deny)"
            ),
        ),
        "otherProtocol" => Finding::failed(
            hop,
            detail,
            format!(
                "protocol of EService {name} is {protocol}: set it to what the backend speaks, or correct the port"
            ),
        ),
        "silent" => Finding::failed(
            hop,
            detail,
            format!("is it overloaded, or does it speak another protocol than {protocol}?"),
        ),
        _ => Finding::failed(hop, detail, format!("look at the log of the backend, and at EService {name}")),
    }
}

/// No gateway could be asked: reports earlier conditions and records, as the past.
fn not_tried(picture: &Picture, service: &EService) -> Finding {
    let hop = format!("backends of {}", service.metadata.name);
    let fix = "when its gateway is connected again, they can be tried";
    if let Some(said) = service.status.condition(conditions::BACKENDS_ANSWER)
        && said.status == ConditionStatus::False
    {
        let at = said.last_transition_time;
        let reason = format!("they were not tried now; what was said at {at}: {}", said.message);
        return Finding::unknown(hop, reason, fix);
    }
    match picture.records.last() {
        None => Finding::unknown(
            hop,
            "they were not tried now, and the audit has no recent connection to the service",
            fix,
        ),
        Some(record) => {
            let text = |key: &str| record[key].as_str().unwrap_or("?").to_owned();
            let reason = format!("they were not tried now; last used at {}: {}", text("time"), text("end"));
            Finding::unknown(hop, reason, fix)
        }
    }
}

/// The message of a condition that is not true.
pub fn complaint(object: &impl Resource, about: &str) -> Option<String> {
    let said = object.status().condition(about)?;
    (said.status == ConditionStatus::False).then(|| said.message.clone())
}

#[cfg(test)]
mod tests;
