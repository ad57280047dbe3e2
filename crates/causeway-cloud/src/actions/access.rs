//! Tells whether a client may use a service, and by which policy: `GET /causeway/v1/access`.
//!
//! The netmaps of both gateways are compiled from the objects as they are now, and the gateways' own functions decide. No
//! gateway is asked: the answer says what holds when both have their newest netmaps.

use std::net::IpAddr;

use causeway_api::management::{AccessAnswer, AccessDecision};
use causeway_apiserver::ActionRefusal;
use causeway_apiserver::request::query::QueryParameters;
use causeway_gateway::policy::{self, Permit, PolicyRefusal, Principal};
use causeway_netmap::{NetmapView, ServiceName, SiteName};

use super::CloudActions;

impl CloudActions {
    pub(super) fn access(&self, query: Option<&str>) -> Result<AccessAnswer, ActionRefusal> {
        let pairs = QueryParameters::parse(query);
        let needed = |name: &str| {
            let value = pairs.one(name).filter(|value| !value.is_empty());
            value.ok_or_else(|| {
                ActionRefusal::bad_request(format!(
                    "{name} is missing: ?site=SITE&client=HOST&service=SERVICE"
                ))
            })
        };
        let (site, service) = (needed("site")?, needed("service")?);
        let client = pairs.one("client").unwrap_or_default();
        let service_site = self
            .netmaps
            .site_of_service(service)
            .ok_or_else(|| ActionRefusal::not_found(format!("there is no EService {service}")))?;
        let sites = self.netmaps.sites();
        // A policy is the same at a gateway that drains.
        let gateway_of = |site: &str| {
            let sites = sites.borrow();
            sites.gateways(site).chain(sites.draining(site)).next().cloned().unwrap_or_default()
        };
        let near = End::new(site, gateway_of(site), &self.netmaps);
        let far = End::new(&service_site, gateway_of(&service_site), &self.netmaps);
        Ok(decide(&near, &far, client, service))
    }
}

/// One end of a crossing: a site, its active gateway and the netmap of that.
struct End {
    site: SiteName,
    gateway: String,
    view: NetmapView,
}

impl End {
    fn new(site: &str, gateway: String, netmaps: &crate::netmaps::NetmapPublisher) -> End {
        let view = netmaps.view_of(&gateway).unwrap_or_default();
        End { site: site.into(), gateway, view }
    }

    fn decision(
        &self,
        who: &Result<Principal, PolicyRefusal>,
        result: Result<Permit, PolicyRefusal>,
    ) -> AccessDecision {
        let mut decision = AccessDecision {
            site: self.site.to_string(),
            gateway: self.gateway.clone(),
            principal: who.as_ref().map(ToString::to_string).unwrap_or_default(),
            ..AccessDecision::default()
        };
        match result {
            Ok(permit) => {
                decision.allowed = true;
                decision.policies = permit.rules().iter().map(|rule| rule.policy.to_string()).collect();
                decision.reads_requests = permit.has_http_rules();
            }
            Err(refusal) => {
                decision.refusal = refusal.word().to_owned();
                decision.message = refusal.to_string();
            }
        }
        decision
    }
}

/// Decides at both ends, as the gateways do. `client` is the name of a host, an address, or empty for a host that no EServer
/// describes.
fn decide(near: &End, far: &End, client: &str, service: &str) -> AccessAnswer {
    let service = ServiceName::from(service);
    let who = principal(near, client);
    let here = who.clone().and_then(|who| {
        let presence = near.view.presences.get(&service);
        let presence = presence
            .ok_or_else(|| PolicyRefusal::NotExposed { service: service.clone(), site: near.site.clone() })?;
        policy::may_use(&near.view, presence, &who)
    });
    let mut decisions = vec![near.decision(&who, here)];
    if far.site != near.site {
        let name = who.as_ref().ok().and_then(|who| who.server.as_ref());
        let claimed = name.map(ToString::to_string).unwrap_or_default();
        let who = policy::principal_of_peer(&far.view, &near.site, &claimed);
        let there = who
            .clone()
            .and_then(|who| policy::may_reach(&far.view, &service, &who).map(|(_, permit)| permit));
        decisions.push(far.decision(&who, there));
    }
    AccessAnswer { allowed: decisions.iter().all(|decision| decision.allowed), decisions }
}

fn principal(near: &End, client: &str) -> Result<Principal, PolicyRefusal> {
    if near.view.gateway.is_none() {
        return Err(PolicyRefusal::NoNetmap);
    }
    match client.parse::<IpAddr>() {
        Ok(address) => policy::principal_at(&near.view, address),
        Err(_) => policy::principal_of_peer(&near.view, &near.site, client),
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::{Object, ObjectSet};
    use causeway_netmap::{Generation, Netmap};
    use serde_json::json;

    use super::*;
    use crate::compile::compile;

    fn objects() -> ObjectSet {
        let objects = [
            json!({"kind": "ESite", "metadata": {"name": "berlin"}}),
            json!({"kind": "ESite", "metadata": {"name": "oslo"}}),
            json!({"kind": "EGateway", "metadata": {"name": "gw-berlin"}, "eSiteName": "berlin", "virtualPresenceIPcidr": "198.18.0.0/16"}),
            json!({"kind": "EGateway", "metadata": {"name": "gw-oslo"}, "eSiteName": "oslo", "virtualPresenceIPcidr": "198.18.0.0/16"}),
            json!({"kind": "EService", "metadata": {"name": "web"}, "eSiteName": "berlin", "ip": "10.0.0.1", "port": 80}),
            json!({"kind": "EServer", "metadata": {"name": "truck"}, "eSiteName": "oslo", "ip": "10.0.0.7"}),
            json!({"kind": "EPolicy", "metadata": {"name": "trucks"}, "allowedServers": ["truck"]}),
            json!({"kind": "ServiceExpose", "metadata": {"name": "web"}, "eServiceName": "web", "eSites": ["oslo"], "ePolicys": ["trucks"]}),
            json!({"kind": "VirtualPresence", "metadata": {"name": "web-oslo"}, "eServiceName": "web", "eSiteName": "oslo", "virtualIp": "198.18.0.1"}),
        ];
        let mut set = ObjectSet::default();
        for object in objects {
            let kind =
                causeway_api::Kind::ALL.into_iter().find(|kind| object["kind"] == kind.name()).unwrap();
            set.insert(Object::decode(kind, object).unwrap().object);
        }
        set
    }

    fn end(objects: &ObjectSet, site: &str, gateway: &str) -> End {
        let entries = compile(objects, &Default::default(), gateway);
        let view = entries.map(|entries| Netmap::build(Generation::default(), entries, None).unwrap());
        let view = view.map(|netmap| NetmapView::decode(&netmap)).unwrap_or_default();
        End { site: site.into(), gateway: gateway.to_owned(), view }
    }

    #[test]
    fn both_gateways_decide_and_say_why() {
        let objects = objects();
        let (oslo, berlin) = (end(&objects, "oslo", "gw-oslo"), end(&objects, "berlin", "gw-berlin"));
        let check = |near: &End, client: &str, expected: &[(bool, &str)]| {
            let answer = decide(near, &berlin, client, "web");
            let found: Vec<(bool, &str)> = answer
                .decisions
                .iter()
                .map(|decision| (decision.allowed, decision.refusal.as_str()))
                .collect();
            assert_eq!(found, expected, "{client}: {answer:?}");
            assert_eq!(answer.allowed, expected.iter().all(|(allowed, _)| *allowed));
        };
        check(&oslo, "truck", &[(true, ""), (true, "")]);
        check(&oslo, "10.0.0.7", &[(true, ""), (true, "")]);
        check(&oslo, "10.0.0.8", &[(false, "not-allowed"), (false, "not-allowed")]);
        check(&oslo, "", &[(false, "not-allowed"), (false, "not-allowed")]);
        check(&berlin, "", &[(false, "not-exposed")]);
        let nowhere = end(&objects, "rome", "");
        check(&nowhere, "", &[(false, "no-netmap"), (false, "not-exposed")]);
        let allowed = decide(&oslo, &berlin, "truck", "web");
        assert_eq!(allowed.decisions[1].policies, ["trucks"]);
        let refused = decide(&oslo, &berlin, "10.0.0.8", "web");
        assert!(refused.decisions[0].message.contains("no policy of service web allows"), "{refused:?}");
    }
}
