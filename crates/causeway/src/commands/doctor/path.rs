//! From a host at one site to a service, a node or a site: object by object, gateway by gateway.
//!
//! Pure: a picture of everything in, hops out, in the words of the conditions. A broken hop does not end the walk: what stands
//! behind it can be broken too, and whoever reads this mends all of it at once.

use std::collections::BTreeSet;

use causeway_api::{
    ConditionStatus, EGateway, EPolicy, EServer, EService, ESite, Resource, ServiceExpose, VirtualPresence,
    conditions,
};
use serde_json::Value;

use super::{Hop, Picture, broken, fine, gateway};

/// To a service from one site, or from every site it is exposed to.
pub fn to_service(picture: &Picture, name: &str, only: Option<&str>) -> Vec<Hop> {
    let world = &picture.world;
    let Some(service) = world.service(name) else {
        return vec![broken(format!(
            "EService {name} does not exist: apply one, with eSiteName where it runs"
        ))];
    };
    let home = service.e_site_name.as_str();
    let (port, protocol) = (service.port, service.protocol.as_str());
    let mut hops = vec![fine(format!("EService {name} runs at the site {home}, {protocol} port {port}"))];
    let exposed: BTreeSet<&str> =
        world.exposes_of(name).flat_map(|expose| &expose.e_sites).map(String::as_str).collect();
    let sites: Vec<&str> = match only {
        Some(site) if exposed.contains(site) => vec![site],
        Some(site) => {
            hops.push(broken(format!(
                "no ServiceExpose presents it at {site}: add the site to eSites of one"
            )));
            return hops;
        }
        None => exposed.into_iter().collect(),
    };
    if sites.is_empty() {
        hops.push(broken(format!(
            "no ServiceExpose presents it anywhere: apply one with eServiceName {name}"
        )));
        return hops;
    }
    hops.extend(sites.iter().flat_map(|site| from_site(picture, service, site)));
    // Of a service that appears where it runs, the gateway was looked at.
    if !sites.contains(&home) {
        hops.extend(site_gateway(picture, home));
    }
    hops.push(backend(picture, service));
    hops
}

/// The near half: from the hosts of a site to its gateway.
fn from_site(picture: &Picture, service: &EService, site: &str) -> Vec<Hop> {
    let name = &service.metadata.name;
    let exposes: Vec<&ServiceExpose> =
        picture.world.exposes_of(name).filter(|expose| expose.e_sites.iter().any(|to| to == site)).collect();
    let mut hops = vec![
        who_may(picture, &exposes, site),
        addresses(picture, &exposes, name, site),
        names(&exposes, service, site),
    ];
    hops.extend(site_gateway(picture, site));
    hops
}

/// To a host that can be reached by its name.
pub fn to_node(picture: &Picture, server: &EServer) -> Vec<Hop> {
    let (name, site) = (&server.metadata.name, server.e_site_name.as_str());
    let ports: Vec<String> = server.ports.iter().map(ToString::to_string).collect();
    let mut hops = vec![match ports.is_empty() {
        false => fine(format!("EServer {name} stands at the site {site}, ports {}", ports.join(", "))),
        true => {
            broken(format!("EServer {name} has no ports: nobody reaches it; add them to be reached by name"))
        }
    }];
    hops.push(match complaint(server, conditions::POLICIES_RESOLVED) {
        Some(why) => broken(format!("{why}: attach an EPolicy in ePolicys")),
        None => fine(format!("its policies exist: {}", server.e_policys.join(", "))),
    });
    hops.extend(site_gateway(picture, site));
    hops
}

/// To a site: its gateways, and what is presented there.
pub fn to_site(picture: &Picture, site: &ESite) -> Vec<Hop> {
    let (world, name) = (&picture.world, site.metadata.name.as_str());
    let mut hops = vec![fine(format!("ESite {name} exists"))];
    let mut gateways = world.gateways_at(name).peekable();
    if gateways.peek().is_none() {
        hops.push(broken(format!(
            "no EGateway stands at {name}: `causeway token create --site {name}` makes one"
        )));
        return hops;
    }
    hops.extend(gateways.flat_map(|gateway| walk_to(picture, gateway)));
    for expose in world.exposes_at(name) {
        let expose_name = &expose.metadata.name;
        hops.push(match complaint(expose, conditions::READY) {
            Some(why) => broken(format!("ServiceExpose {expose_name}: {why}")),
            None => fine(format!("ServiceExpose {expose_name} is complete")),
        });
    }
    hops
}

/// The gateways that a walk asks something of, in the order in which they matter.
pub fn gateways_on_the_way(picture: &Picture, service: &EService, only: Option<&str>) -> Vec<String> {
    let exposes = picture.world.exposes_of(&service.metadata.name);
    let sites = exposes.flat_map(|expose| &expose.e_sites).map(String::as_str);
    let sites = [service.e_site_name.as_str()]
        .into_iter()
        .chain(sites.filter(|site| only.is_none_or(|only| only == *site)));
    let mut seen = BTreeSet::new();
    let gateways =
        sites.filter_map(|site| active(picture, site)).map(|gateway| gateway.metadata.name.clone());
    gateways.filter(|gateway| seen.insert(gateway.clone())).collect()
}

/// Who at a site may use it? Default deny: nobody is a broken hop.
fn who_may(picture: &Picture, exposes: &[&ServiceExpose], site: &str) -> Hop {
    let world = &picture.world;
    let names: BTreeSet<&str> =
        exposes.iter().flat_map(|expose| &expose.e_policys).map(String::as_str).collect();
    let policies: Vec<&EPolicy> = names.iter().filter_map(|name| world.policy(name)).collect();
    if policies.is_empty() {
        let why = exposes.iter().find_map(|expose| complaint(*expose, conditions::POLICIES_RESOLVED));
        return broken(
            why.unwrap_or_else(|| "no policy exists; nobody may use the service (default deny)".to_owned()),
        );
    }
    if policies.iter().any(|policy| policy.allowed_sites.iter().any(|allowed| allowed == site)) {
        return fine(format!("every host of {site} may use it"));
    }
    let servers = policies.iter().flat_map(|policy| &policy.allowed_servers);
    let here: BTreeSet<&str> = servers
        .filter(|server| world.server(server).is_some_and(|server| server.e_site_name == site))
        .map(String::as_str)
        .collect();
    match here.is_empty() {
        false => fine(format!("at {site} may use it: {}", here.into_iter().collect::<Vec<_>>().join(", "))),
        true => broken(format!(
            "no policy allows anybody at {site}: name its hosts in allowedServers, or the site in allowedSites"
        )),
    }
}

fn addresses(picture: &Picture, exposes: &[&ServiceExpose], service: &str, site: &str) -> Hop {
    let world = &picture.world;
    let there: Vec<&VirtualPresence> =
        world.presences_of(service).filter(|presence| presence.e_site_name == site).collect();
    let usable: Vec<&str> = there
        .iter()
        .filter(|presence| complaint(**presence, conditions::ADDRESS_USABLE).is_none())
        .map(|presence| presence.virtual_ip.as_str())
        .collect();
    if usable.is_empty() {
        let unusable = there.iter().find_map(|presence| complaint(*presence, conditions::ADDRESS_USABLE));
        let missing = exposes.iter().find_map(|expose| complaint(*expose, conditions::PRESENTED));
        let why = unusable.or(missing).unwrap_or_else(|| "the controller has made none yet".to_owned());
        return broken(format!("it has no address at {site}: {why}"));
    }
    let route = world.gateways_at(site).find(|gateway| !gateway.ip.is_empty()).map(|gateway| {
        format!("; hosts need a route: {} via {}", gateway.virtual_presence_ip_cidr, gateway.ip)
    });
    fine(format!("its address at {site} is {}{}", usable.join(", "), route.unwrap_or_default()))
}

fn names(exposes: &[&ServiceExpose], service: &EService, site: &str) -> Hop {
    if let Some(why) = exposes.iter().find_map(|expose| complaint(*expose, conditions::NAME_FREE)) {
        return broken(format!("{why}: choose another dnsName"));
    }
    let own =
        format!("{}.{}.causeway.internal", service.metadata.name, service.e_site_name).to_ascii_lowercase();
    let chosen = exposes.iter().map(|expose| expose.dns_name.clone()).filter(|name| !name.is_empty());
    let names: BTreeSet<String> = chosen.chain([own]).collect();
    fine(format!("its names at {site}: {}", names.into_iter().collect::<Vec<_>>().join(", ")))
}

/// The gateway that works for a site: of those connected the one with the highest priority.
fn active<'a>(picture: &'a Picture, site: &str) -> Option<&'a EGateway> {
    let is_away = |gateway: &EGateway| {
        let shown = picture.gateway(&gateway.metadata.name);
        shown.is_none_or(|shown| shown["connected"] != true) && !gateway::is_cloud(shown)
    };
    picture.world.gateways_at(site).min_by_key(|gateway| (is_away(gateway), -gateway.priority))
}

fn site_gateway(picture: &Picture, site: &str) -> Vec<Hop> {
    match active(picture, site) {
        Some(gateway) => walk_to(picture, gateway),
        None => vec![broken(format!(
            "no EGateway stands at {site}: `causeway token create --site {site}` makes one"
        ))],
    }
}

fn walk_to(picture: &Picture, gateway: &EGateway) -> Vec<Hop> {
    let name = gateway.metadata.name.as_str();
    gateway::examine(name, picture.gateway(name), picture.probes.get(name))
}

/// What its gateway says about the backend, else the last record of the service.
fn backend(picture: &Picture, service: &EService) -> Hop {
    let complaints = [conditions::READY, conditions::BACKENDS_ANSWER];
    if let Some(why) = complaints.into_iter().find_map(|about| complaint(service, about)) {
        return broken(why);
    }
    let text = |record: &Value, key: &str| record[key].as_str().unwrap_or("?").to_owned();
    match picture.records.last() {
        None => fine("nobody has used it lately; whether it answers shows when somebody does".to_owned()),
        Some(record) if matches!(record["end"].as_str(), Some("backend-down" | "timeout")) => {
            broken(format!(
                "the backend did not answer at {} ({}): does it run at the site {}, and may its gateway reach it?",
                text(record, "time"),
                text(record, "end"),
                service.e_site_name
            ))
        }
        Some(record) => fine(format!("last used at {}: {}", text(record, "time"), text(record, "end"))),
    }
}

/// What a condition says when it does not hold.
fn complaint(object: &impl Resource, about: &str) -> Option<String> {
    let said = object.status().condition(about)?;
    (said.status == ConditionStatus::False).then(|| said.message.clone())
}

#[cfg(test)]
mod tests;
