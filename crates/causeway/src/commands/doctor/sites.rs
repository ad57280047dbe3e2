//! Packets between two sites, hop by hop: community, networks, policy, gateways, tunnels and the far side. Pure.

use causeway_api::conditions::{SUBNETS_DISTINCT, TUNNEL_KEY_UNIQUE, TUNNEL_READY};
use causeway_api::layer3::site_networks;
use causeway_api::management::{GatewayFacts, TunnelFacts, TunnelPeerFacts};
use causeway_api::{ConditionStatus, ECommunity, EGateway, ObjectSet, ObjectStatus};

use super::collect::Picture;
use super::finding::{Finding, State};
use super::gateway::switched_off;

/// Examines packets from hosts of one site to hosts of another.
pub fn examine(picture: &Picture, from: &str, to: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for site in [from, to] {
        if picture.objects.site(site).is_none() {
            let fix = "causeway get esites shows what there is";
            findings.push(Finding::failed(
                format!("site {site}"),
                format!("ESite {site} does not exist"),
                fix,
            ));
        }
    }
    if from == to {
        let fix = "name two sites";
        findings.push(Finding::failed(
            format!("site {from}"),
            "packets inside a site do not cross gateways",
            fix,
        ));
    }
    if !findings.is_empty() {
        return findings;
    }
    let shared: Vec<&ECommunity> = picture
        .objects
        .communities_of(from)
        .filter(|community| community.members.iter().any(|member| member == to))
        .collect();
    if shared.is_empty() {
        let reason = format!("no ECommunity has {from} and {to} as members, so no packets cross");
        let fix = format!("apply an ECommunity with members: [{from}, {to}]");
        findings.push(Finding::failed("community", reason, fix));
        return findings;
    }
    let names: Vec<&str> = shared.iter().map(|community| community.metadata.name.as_str()).collect();
    findings.push(Finding::ok("community", format!("{from} and {to} are members of {}", names.join(", "))));
    findings.push(policy(picture, &shared, from));
    for site in [from, to] {
        findings.push(networks(picture, site));
    }
    for (site, far) in [(from, to), (to, from)] {
        findings.extend(gateways(picture, site, far));
    }
    findings
}

/// Without policies everything is allowed. With them, one that exists must name the site or a host of it.
fn policy(picture: &Picture, shared: &[&ECommunity], from: &str) -> Finding {
    if let Some(open) = shared.iter().find(|community| community.e_policys.is_none()) {
        let name = &open.metadata.name;
        return Finding::ok("policy", format!("ECommunity {name} has no ePolicys: everything is allowed"));
    }
    let objects = &picture.objects;
    let named = shared.iter().flat_map(|community| community.e_policys.iter().flatten());
    let existing = named.filter_map(|name| objects.policy(name)).filter(|policy| policy.http.is_empty());
    let allowing = existing.filter(|policy| {
        let at_site =
            |server: &String| objects.server(server).is_some_and(|server| server.e_site_name == from);
        policy.allowed_sites.iter().any(|site| site == from) || policy.allowed_servers.iter().any(at_site)
    });
    let allowing: Vec<String> = allowing
        .map(|policy| match policy.ports.is_empty() {
            true => policy.metadata.name.clone(),
            false => format!("{} ({})", policy.metadata.name, policy.ports.join(", ")),
        })
        .collect();
    match allowing.is_empty() {
        false => Finding::ok("policy", format!("hosts of {from} may begin flows by {}", allowing.join(", "))),
        true => Finding::failed(
            "policy",
            format!("no policy of the community lets a host of {from} begin a flow"),
            format!("name {from} in allowedSites of an EPolicy of the ECommunity, or remove ePolicys"),
        ),
    }
}

fn networks(picture: &Picture, site: &str) -> Finding {
    let hop = format!("networks of {site}");
    let networks = site_networks(&picture.objects, site);
    let status = picture.objects.site(site).map(|site| &site.status);
    if networks.is_empty() {
        let fix = format!("set subnets of ESite {site}, or of its EGateways");
        return Finding::failed(hop, format!("{site} has no networks, so it has no route"), fix);
    }
    if let Some(message) = status.and_then(|status| failing(status, SUBNETS_DISTINCT)) {
        return Finding::failed(hop, message, "set mappedSubnets of the ESite, or mapFrom of the ECommunity");
    }
    let shown: Vec<String> = networks.iter().map(|network| network.real.to_string()).collect();
    Finding::ok(hop, shown.join(", "))
}

fn gateways(picture: &Picture, site: &str, far: &str) -> Vec<Finding> {
    let gateways: Vec<&EGateway> = picture.objects.gateways_at(site).collect();
    if gateways.is_empty() {
        let fix = format!("causeway token create --site {site}");
        return vec![Finding::failed(
            format!("gateway of {site}"),
            format!("no EGateway exists at {site}"),
            fix,
        )];
    }
    gateways.into_iter().flat_map(|gateway| gateway_hops(picture, gateway, far)).collect()
}

fn gateway_hops(picture: &Picture, gateway: &EGateway, far: &str) -> Vec<Finding> {
    let name = gateway.metadata.name.as_str();
    let hop = format!("gateway {name}");
    if gateway.is_plain_wireguard() {
        let reason = format!("a plain WireGuard peer at {}, which cannot be asked", gateway.endpoint);
        return vec![Finding::unknown(hop, reason, "")];
    }
    let mut findings = Vec::new();
    for (condition, fix) in [
        (TUNNEL_KEY_UNIQUE, "remove the key file from the data dir of the gateway and restart it"),
        (TUNNEL_READY, "the message names the fix"),
    ] {
        if let Some(message) = failing(&gateway.status, condition) {
            findings.push(Finding::failed(hop.clone(), message, fix));
        }
    }
    match picture.facts.get(name) {
        Some(Ok(facts)) => findings.extend(tunnel_hops(&picture.objects, facts, name, far)),
        Some(Err(_)) | None => {
            let connected = picture.gateway(name).is_some_and(|shown| shown.stats.connected);
            let reason = match connected {
                true => "the gateway could not be asked about its tunnel",
                false => "the gateway is not connected; its tunnel may work with what it knows",
            };
            findings.push(Finding::unknown(hop, reason, format!("causeway doctor egateway/{name}")));
        }
    }
    findings
}

/// Judges the state of the tunnel as the gateway describes it.
fn tunnel_hops(objects: &ObjectSet, facts: &GatewayFacts, name: &str, far: &str) -> Vec<Finding> {
    let hop = |what: &str| format!("{what} of gateway {name}");
    if facts.switched_off.iter().any(|plane| plane == "layer3") {
        let fix = format!(
            "remove `off` from [tunnel] in the configuration of {name} and restart it, if packets shall cross"
        );
        return vec![Finding::failed(hop("tunnel"), switched_off("layer3"), fix)];
    }
    let Some(tunnel) = &facts.tunnel else {
        let fix = "update causeway on its host";
        return vec![Finding::failed(hop("tunnel"), "the gateway is of a version without layer 3", fix)];
    };
    if !tunnel.troubles.is_empty() {
        return vec![Finding::told(State::Failed, hop("tunnel"), &tunnel.troubles.join("; "))];
    }
    let mut findings = Vec::new();
    match (&tunnel.device, &tunnel.listen) {
        (Some(device), Some(listen)) => {
            findings.push(Finding::ok(hop("tunnel"), format!("device {device}, UDP {listen}")));
        }
        _ => findings.push(Finding::failed(
            hop("tunnel"),
            "the gateway has opened no device: its netmap has no peer",
            format!("causeway doctor egateway/{name}"),
        )),
    }
    let of_far = objects.gateways_at(far).map(|gateway| gateway.metadata.name.as_str());
    let peers: Vec<(&str, &TunnelPeerFacts)> =
        of_far.filter_map(|gateway| Some((gateway, tunnel.peers.get(gateway)?))).collect();
    if peers.is_empty() && tunnel.on_demand {
        let reason =
            format!("no gateway of {far} is a peer yet: in a large community the first packet makes it one");
        findings.push(Finding::unknown(hop("route"), reason, format!("send a packet: ping a host of {far}")));
    } else if peers.is_empty() {
        let reason = format!("no gateway of {far} is a peer");
        findings.push(Finding::failed(hop("route"), reason, format!("causeway doctor {far}")));
    }
    for (gateway, peer) in peers {
        let hop = format!("path from {name} to {gateway}");
        let rtt = peer.rtt_us.map(|rtt| format!(", round trip {rtt} µs")).unwrap_or_default();
        let loss = peer.loss_percent.map(|loss| format!(", loss {loss} %")).unwrap_or_default();
        let why = peer.not_direct.as_deref().unwrap_or("UDP does not pass, or a NAT is in the way");
        let mtu = peer.mtu.map_or_else(|| "unknown".to_owned(), |mtu| mtu.to_string());
        match peer.path.as_str() {
            "direct" => {
                let endpoint = peer.endpoint.as_deref().unwrap_or("UDP");
                findings.push(Finding::ok(hop, format!("direct, {endpoint}{rtt}{loss}, MTU {mtu}")));
            }
            "relayed" => {
                let relay = peer.relay.as_deref().unwrap_or("a relay");
                findings.push(Finding::ok(
                    hop,
                    format!("relayed by {relay}{rtt}{loss}, MTU {mtu}, not direct: {why}"),
                ));
            }
            "channel" => findings.push(Finding::warning(
                hop,
                format!("over the channel{rtt}, not direct: {why}"),
                format!("let UDP of port {} pass where more speed is needed", tunnel_port(tunnel)),
            )),
            _ => findings.push(Finding::unknown(hop, "no handshake yet", "send a packet: ping a host there")),
        }
    }
    findings
}

fn tunnel_port(tunnel: &TunnelFacts) -> &str {
    tunnel.listen.as_deref().and_then(|listen| listen.rsplit(':').next()).unwrap_or("7446")
}

/// Returns the message of a condition that is False.
fn failing(status: &ObjectStatus, kind: &str) -> Option<String> {
    let condition = status.condition(kind)?;
    (condition.status == ConditionStatus::False).then(|| condition.message.clone())
}

#[cfg(test)]
mod tests {
    use causeway_api::{Kind, Object};
    use serde_json::{Value, json};

    use super::*;

    /// Puts the facts of the gateway a-1 in.
    fn told(picture: &mut Picture, facts: Value) {
        picture.facts.insert("a-1".into(), Ok(serde_json::from_value(facts).unwrap()));
    }

    fn picture(community: Value) -> Picture {
        let object = |kind, value: Value| Object::decode(kind, value).unwrap().object;
        let objects: ObjectSet = [
            object(Kind::ESite, json!({"metadata": {"name": "a"}, "subnets": ["10.1.0.0/24"]})),
            object(Kind::ESite, json!({"metadata": {"name": "b"}, "subnets": ["10.2.0.0/24"]})),
            object(Kind::ESite, json!({"metadata": {"name": "bare"}})),
            object(Kind::EGateway, json!({"metadata": {"name": "a-1"}, "eSiteName": "a"})),
            object(Kind::EGateway, json!({"metadata": {"name": "b-1"}, "eSiteName": "b"})),
            object(
                Kind::EPolicy,
                json!({"metadata": {"name": "p"}, "allowedSites": ["a"], "ports": ["icmp"]}),
            ),
            object(Kind::ECommunity, community),
        ]
        .into_iter()
        .collect();
        Picture { objects, ..Picture::default() }
    }

    fn community(members: &[&str]) -> Value {
        json!({"metadata": {"name": "c"}, "members": members})
    }

    #[track_caller]
    fn check(picture: &Picture, from: &str, to: &str, hop: &str, state: State, words: &str) {
        let findings = examine(picture, from, to);
        let found = findings.iter().find(|finding| finding.hop == hop);
        let found = found.unwrap_or_else(|| unreachable!("no {hop}: {findings:?}"));
        assert_eq!(found.state, state, "{found:?}");
        assert!(found.reason.contains(words), "{found:?}");
    }

    #[test]
    fn every_hop_between_two_sites_is_judged() {
        let open = picture(community(&["a", "b", "bare"]));
        check(&open, "a", "b", "community", State::Ok, "members of c");
        check(&open, "a", "b", "policy", State::Ok, "everything is allowed");
        check(&open, "a", "b", "networks of a", State::Ok, "10.1.0.0/24");
        check(&open, "a", "bare", "networks of bare", State::Failed, "no networks");
        check(&open, "a", "bare", "gateway of bare", State::Failed, "no EGateway");
        check(&open, "a", "mars", "site mars", State::Failed, "does not exist");
        check(&open, "a", "a", "site a", State::Failed, "inside a site");
        check(&picture(community(&["a"])), "a", "b", "community", State::Failed, "no ECommunity");
        let narrow =
            picture(json!({"metadata": {"name": "c"}, "members": ["a", "b"], "ePolicys": ["p", "gone"]}));
        check(&narrow, "a", "b", "policy", State::Ok, "p (icmp)");
        check(&narrow, "b", "a", "policy", State::Failed, "no policy");
    }

    #[test]
    fn the_state_of_a_tunnel_is_told_by_its_gateway() {
        let mut open = picture(community(&["a", "b"]));
        check(&open, "a", "b", "gateway a-1", State::Unknown, "not connected");
        told(&mut open, json!({}));
        check(&open, "a", "b", "tunnel of gateway a-1", State::Failed, "without layer 3");
        told(&mut open, json!({"switchedOff": ["layer3"]}));
        check(&open, "a", "b", "tunnel of gateway a-1", State::Failed, "switched off in its configuration");
        let trouble = json!({"tunnel": {"troubles": ["no /dev/net/tun; fix: load the module tun"]}});
        told(&mut open, trouble);
        check(&open, "a", "b", "tunnel of gateway a-1", State::Failed, "no /dev/net/tun");
        let peers = |path: &str| json!({"b-1": {"path": path, "endpoint": "192.0.2.1:7446", "mtu": 1420, "rttUs": 900}});
        let tunnel = |peers: Value| json!({"tunnel": {"device": "causeway-l3-0", "listen": "0.0.0.0:7446", "peers": peers}});
        told(&mut open, tunnel(peers("direct")));
        check(&open, "a", "b", "tunnel of gateway a-1", State::Ok, "causeway-l3-0");
        check(&open, "a", "b", "path from a-1 to b-1", State::Ok, "192.0.2.1:7446");
        let mut relayed = peers("relayed");
        relayed["b-1"]["relay"] = "cloud".into();
        told(&mut open, tunnel(relayed));
        check(&open, "a", "b", "path from a-1 to b-1", State::Ok, "relayed by cloud, round trip 900");
        told(&mut open, tunnel(peers("channel")));
        check(&open, "a", "b", "path from a-1 to b-1", State::Warning, "over the channel");
        told(&mut open, tunnel(json!({})));
        check(&open, "a", "b", "route of gateway a-1", State::Failed, "no gateway of b is a peer");
        let mut large = tunnel(json!({}));
        large["tunnel"]["onDemand"] = true.into();
        told(&mut open, large);
        check(&open, "a", "b", "route of gateway a-1", State::Unknown, "the first packet makes it one");
    }
}
