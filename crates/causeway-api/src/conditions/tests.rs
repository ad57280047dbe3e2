//! Conditions of an object about its references.

use serde_json::{Value, json};

use super::*;

const NOW: i64 = 1_800_000_000;

#[test]
fn an_expose_says_what_is_missing_and_what_follows() {
    let refers = |sites: &[&str], policies: &[&str]| json!({"metadata": {"name": "web"}, "eServiceName": "web", "eSites": sites, "ePolicys": policies});
    let check = |value: Value, about, expected| check(Kind::ServiceExpose, value, about, expected);
    check(refers(&["berlin"], &["p1"]), READY, "True AllResolved");
    check(
        refers(&["berlin"], &["p1", "Policy2", "Policy3"]),
        POLICIES_RESOLVED,
        "False PolicyMissing EPolicy Policy2, Policy3 do not exist",
    );
    check(
        refers(&["berlin"], &["Policy2"]),
        POLICIES_RESOLVED,
        "False PolicyMissing EPolicy Policy2 does not exist; no client may use the service (default deny)",
    );
    check(
        refers(&["berlin"], &[]),
        POLICIES_RESOLVED,
        "False NoPolicies ePolicys is empty; no client may use the service (default deny)",
    );
    check(
        refers(&[], &["p1"]),
        SITES_RESOLVED,
        "False NoSites eSites is empty; the service is presented nowhere",
    );
    check(refers(&["mars"], &["p1"]), SITES_RESOLVED, "False SiteMissing ESite mars does not exist");
    check(refers(&["bare"], &["p1"]), GATEWAYS_RESOLVED, "False GatewayMissing no EGateway exists at bare");
    check(
        refers(&["mars"], &["p9"]),
        READY,
        "False SiteMissing ESite mars does not exist; EPolicy p9 does not exist; no client may use the service (default deny)",
    );
    check(
        json!({"metadata": {"name": "x"}, "eServiceName": "x", "eSites": ["berlin"], "ePolicys": ["p1"]}),
        SERVICE_RESOLVED,
        "False ServiceMissing EService x does not exist",
    );
}

#[test]
fn an_expose_says_where_it_is_presented_and_why_not_elsewhere() {
    let sx = |sites: &[&str]| json!({"metadata": {"name": "web"}, "eServiceName": "web", "eSites": sites, "ePolicys": ["p1"]});
    let check = |value: Value, about, expected| check(Kind::ServiceExpose, value, about, expected);
    check(sx(&["berlin"]), PRESENTED, "True Presented berlin 198.18.0.7");
    check(sx(&["oslo"]), PRESENTED, "False PresencePending an IPv4 address at oslo is not allocated yet");
    check(sx(&["oslo"]), READY, "False PresencePending an IPv4 address at oslo is not allocated yet");
    check(sx(&["berlin", "bare"]), PRESENTED, "False GatewayMissing berlin 198.18.0.7");
    check(sx(&["bare"]), PRESENTED, "False Nowhere no site of eSites has a gateway that could present it");
    let away = "False GatewayAway no gateway is connected at berlin, oslo";
    check(sx(&["berlin"]), GATEWAYS_CONNECTED, away);
    let nothing =
        json!({"metadata": {"name": "x"}, "eServiceName": "x", "eSites": ["berlin"], "ePolicys": ["p1"]});
    check(nothing, PRESENTED, "False ServiceMissing EService x does not exist");
}

#[test]
fn a_full_range_and_an_address_that_cannot_be_used_are_told() {
    let mut objects = objects();
    let text = |objects: &ObjectSet, sites: &[&str]| {
        let expose = decode(
            Kind::ServiceExpose,
            json!({"metadata": {"name": "web"}, "eServiceName": "web", "eSites": sites}),
        );
        let status = status(&expose, objects, Time::from_second(NOW));
        let condition = status.condition(PRESENTED).unwrap();
        format!("{} {}", condition.reason, condition.message)
    };
    objects.insert(decode(
        Kind::EGateway,
        json!({"metadata": {"name": "gw-o"}, "eSiteName": "oslo", "virtualPresenceIPcidr": "10.1.0.0/30", "ip": "10.1.0.2"}),
    ));
    assert!(text(&objects, &["oslo"]).starts_with("PresencePending"), "{}", text(&objects, &["oslo"]));
    objects.insert(decode(
        Kind::VirtualPresence,
        json!({"metadata": {"name": "other"}, "eSiteName": "oslo", "eServiceName": "other", "virtualIp": "10.1.0.1"}),
    ));
    assert_eq!(
        text(&objects, &["oslo"]),
        "CidrFull every IPv4 address of 10.1.0.0/30 at oslo is taken; give its EGateway a larger virtualPresenceIPcidr"
    );
    objects.insert(decode(
        Kind::EGateway,
        json!({"metadata": {"name": "gw-b"}, "eSiteName": "berlin", "virtualPresenceIPcidr": "10.2.0.0/24"}),
    ));
    assert_eq!(
        text(&objects, &["berlin"]),
        "AddressUnusable VirtualPresence web-b was made by hand for berlin, and its address 198.18.0.7 cannot be used there"
    );
}

#[test]
fn the_older_exposure_has_the_name_and_a_node_before_both() {
    let mut objects = objects();
    let expose = |name: &str, service: &str, created: i64, sites: &[&str]| {
        let mut object = decode(
            Kind::ServiceExpose,
            json!({"metadata": {"name": name}, "eServiceName": service, "dnsName": "URL1.test", "eSites": sites}),
        );
        object.metadata_mut().creation_timestamp = Some(Time::from_second(created));
        object
    };
    let text = |objects: &ObjectSet, name: &str| {
        let object = objects.get(Kind::ServiceExpose, name).unwrap();
        let status = status(object, objects, Time::from_second(NOW));
        let condition = status.condition(NAME_FREE).unwrap();
        format!("{} {}", condition.status.as_str(), condition.message).trim_end().to_owned()
    };
    objects.insert(expose("b", "web", 10, &["berlin", "oslo"]));
    objects.insert(expose("a", "mail", 20, &["oslo"]));
    objects.insert(expose("c", "mail", 20, &["bare"]));
    objects.insert(expose("d", "web", 30, &["berlin"]));
    assert_eq!(text(&objects, "b"), "True");
    assert_eq!(
        text(&objects, "a"),
        "False URL1.test is also the dnsName of ServiceExpose b, which has precedence at oslo"
    );
    assert_eq!(text(&objects, "c"), "True", "another site");
    assert_eq!(text(&objects, "d"), "True", "the same service");
    let holds = |name: &str, site: &str| holds_name(&objects, objects.expose(name).unwrap(), site);
    assert!(holds("b", "oslo") && !holds("a", "oslo") && holds("c", "bare"));
    objects.insert(decode(
        Kind::EServer,
        json!({"metadata": {"name": "url1.test"}, "eSiteName": "berlin", "ip": "10.0.0.3", "ports": [22]}),
    ));
    assert_eq!(
        text(&objects, "b"),
        "False URL1.test is the name of EServer url1.test, which has precedence wherever it can be reached"
    );
}

#[test]
fn a_site_is_connected_when_one_of_its_gateways_is() {
    let mut objects = objects();
    let service = objects.get(Kind::EService, "web").unwrap().clone();
    let text = |objects: &ObjectSet| {
        status(&service, objects, Time::from_second(NOW)).condition(GATEWAYS_CONNECTED).unwrap().status
    };
    assert_eq!(text(&objects), ConditionStatus::False);
    let mut second = decode(Kind::EGateway, json!({"metadata": {"name": "gw-o2"}, "eSiteName": "oslo"}));
    let conditions = &mut second.status_mut().conditions;
    crate::meta::set_condition(conditions, CONNECTED, true.into(), "Connected", "", Time::from_second(1), 1);
    objects.insert(second);
    assert_eq!(text(&objects), ConditionStatus::True);
}

#[test]
fn the_other_kinds_speak_about_their_own_references() {
    use Kind::{ECommunity, EGateway, EPolicy, EServer, EService, ESite, VirtualPresence};
    let meta = json!({"name": "n"});
    let rows = [
        (ESite, json!({"metadata": {"name": "berlin"}}), READY, "True AllResolved"),
        (
            ESite,
            json!({"metadata": {"name": "bare"}}),
            GATEWAYS_RESOLVED,
            "False GatewayMissing no EGateway exists at this site; no client can reach its services",
        ),
        (
            EGateway,
            json!({"metadata": meta, "eSiteName": "mars"}),
            READY,
            "False SiteMissing ESite mars does not exist; the gateway has never connected to this cloud",
        ),
        (EService, json!({"metadata": meta, "eSiteName": "berlin"}), READY, "True AllResolved"),
        (
            EService,
            json!({"metadata": meta, "eSiteName": "bare"}),
            READY,
            "False GatewayMissing no EGateway exists at bare",
        ),
        (
            EServer,
            json!({"metadata": meta, "eSiteName": "berlin", "ip": "10.0.0.9"}),
            READY,
            "True AllResolved",
        ),
        (
            EServer,
            json!({"metadata": meta, "eSiteName": "berlin", "ip": "10.0.0.1"}),
            ADDRESS_USABLE,
            "False AddressTaken 10.0.0.1 is also the address of EServer s1",
        ),
        (
            EServer,
            json!({"metadata": meta, "eSiteName": "oslo", "ip": "10.0.0.1"}),
            ADDRESS_USABLE,
            "True AddressFree",
        ),
        (
            EServer,
            json!({"metadata": meta, "eSiteName": "berlin", "ip": "10.0.0.9", "ports": [10250]}),
            POLICIES_RESOLVED,
            "False NoPolicies ePolicys is empty; no client may reach its ports (default deny)",
        ),
        (
            EPolicy,
            json!({"metadata": meta, "allowedServers": ["s1"], "allowedSites": ["berlin"]}),
            READY,
            "True AllResolved",
        ),
        (
            EPolicy,
            json!({"metadata": meta, "allowedServers": ["s1", "s2"]}),
            SERVERS_RESOLVED,
            "False ServerMissing EServer s2 does not exist",
        ),
        (
            EPolicy,
            json!({"metadata": meta}),
            READY,
            "False NobodyAllowed allowedServers and allowedSites are empty; the policy allows no client",
        ),
        (
            VirtualPresence,
            json!({"metadata": meta, "eSiteName": "berlin", "eServiceName": "web", "virtualIp": "198.18.0.5"}),
            READY,
            "True AllResolved",
        ),
        (
            VirtualPresence,
            json!({"metadata": meta, "eSiteName": "berlin", "eServiceName": "web", "virtualIp": "10.1.1.1"}),
            ADDRESS_USABLE,
            "False AddressUnusable virtualIp: Invalid value: \"10.1.1.1\": it must lie inside virtualPresenceIPcidr of the site berlin: 198.18.0.0/16",
        ),
        (
            VirtualPresence,
            json!({"metadata": meta, "eSiteName": "bare", "eServiceName": "web", "virtualIp": "10.1.1.1"}),
            ADDRESS_USABLE,
            "False GatewayMissing no EGateway exists at bare",
        ),
        (
            ECommunity,
            json!({"metadata": meta, "members": ["berlin", "mars"]}),
            MEMBERS_RESOLVED,
            "False SiteMissing ESite mars does not exist",
        ),
    ];
    for (kind, value, about, expected) in rows {
        check(kind, value, about, expected);
    }
}

#[test]
fn looking_twice_changes_nothing_and_foreign_conditions_stay() {
    let value = json!({"metadata": {"name": "web", "generation": 3}, "eServiceName": "web", "ePolicys": ["p9"], "eSites": ["berlin"]});
    let mut object = Object::decode(Kind::ServiceExpose, value).unwrap().object;
    let foreign = ("ForeignFinding", Time::from_second(5));
    let conditions = &mut object.status_mut().conditions;
    crate::meta::set_condition(conditions, foreign.0, true.into(), "Seen", "", foreign.1, 1);

    let first = status(&object, &objects(), Time::from_second(NOW));
    *object.status_mut() = first.clone();
    let second = status(&object, &objects(), Time::from_second(NOW + 60));
    assert_eq!(first, second);
    assert_eq!(first.observed_generation, 3);
    assert_eq!(first.condition(foreign.0).unwrap().last_transition_time, foreign.1);
    assert_eq!(object.validate(None), [], "what we write is valid");

    // The policy appears: only changed conditions get a new time.
    let mut objects = objects();
    objects.insert(decode(Kind::EPolicy, json!({"metadata": {"name": "p9"}})));
    let third = status(&object, &objects, Time::from_second(NOW + 120));
    let times = |about| third.condition(about).unwrap().last_transition_time.as_second();
    assert_eq!(
        (times(POLICIES_RESOLVED), times(READY), times(SERVICE_RESOLVED)),
        (NOW + 120, NOW + 120, NOW)
    );
}

#[test]
fn ten_thousand_missing_names_fit_into_a_message() {
    let names: Vec<String> = (0..10_000).map(|n| format!("{n}-{}", "x".repeat(240))).collect();
    let mut object = decode(Kind::ECommunity, json!({"metadata": {"name": "all"}, "members": names}));
    *object.status_mut() = status(&object, &objects(), Time::from_second(NOW));
    assert_eq!(object.validate(None), []);
    let message = &object.status().condition(READY).unwrap().message;
    assert!(message.contains("and 9900 more"), "{}", message.len());
}

#[track_caller]
fn check(kind: Kind, value: Value, about: &str, expected: &str) {
    let object = decode(kind, value);
    let mut objects = objects();
    objects.insert(object.clone());
    let status = status(&object, &objects, Time::from_second(NOW));
    let condition = status.condition(about).unwrap();
    let text = format!("{} {} {}", condition.status.as_str(), condition.reason, condition.message);
    assert_eq!(text.trim_end(), expected);
}

fn decode(kind: Kind, value: Value) -> Object {
    Object::decode(kind, value).unwrap().object
}

/// Berlin and Oslo have gateways, the site "bare" has none; one service, one server, one policy.
fn objects() -> ObjectSet {
    let objects = [
        (Kind::ESite, json!({"metadata": {"name": "berlin"}})),
        (Kind::ESite, json!({"metadata": {"name": "oslo"}})),
        (Kind::ESite, json!({"metadata": {"name": "bare"}})),
        (
            Kind::EGateway,
            json!({"metadata": {"name": "gw-b"}, "eSiteName": "berlin", "virtualPresenceIPcidr": "198.18.0.0/16"}),
        ),
        (
            Kind::EGateway,
            json!({"metadata": {"name": "gw-o"}, "eSiteName": "oslo", "virtualPresenceIPcidr": "198.18.0.0/16"}),
        ),
        (
            Kind::EService,
            json!({"metadata": {"name": "web"}, "eSiteName": "oslo", "ip": "10.0.0.5", "port": 80}),
        ),
        (Kind::EServer, json!({"metadata": {"name": "s1"}, "eSiteName": "berlin", "ip": "10.0.0.1"})),
        (Kind::EPolicy, json!({"metadata": {"name": "p1"}, "allowedServers": ["s1"]})),
        (
            Kind::VirtualPresence,
            json!({"metadata": {"name": "web-b"}, "eSiteName": "berlin", "eServiceName": "web", "virtualIp": "198.18.0.7"}),
        ),
    ];
    objects.into_iter().map(|(kind, value)| decode(kind, value)).collect()
}

#[test]
fn a_gateway_is_ready_when_it_is_connected() {
    let text = |connected: Option<(bool, &str, &str)>, site: &str| {
        let mut gateway = decode(Kind::EGateway, json!({"metadata": {"name": "gw"}, "eSiteName": site}));
        if let Some((status, reason, message)) = connected {
            let conditions = &mut gateway.status_mut().conditions;
            let now = Time::from_second(NOW);
            crate::meta::set_condition(conditions, CONNECTED, status.into(), reason, message, now, 1);
        }
        let mut objects = objects();
        objects.insert(decode(Kind::ESite, json!({"metadata": {"name": "cloud"}})));
        let now = Time::from_second(NOW);
        let status = status(&gateway, &objects, now);
        let ready = status.condition(READY).unwrap();
        // The writer of `Connected` gets the same result, without the other objects.
        let mut seen = gateway.clone();
        *seen.status_mut() = status.clone();
        let Object::EGateway(seen) = &seen else { panic!("it is a gateway") };
        assert_eq!(gateway_after_link(seen, now).as_ref(), Some(&status.conditions));
        format!("{} {} {}", ready.status.as_str(), ready.reason, ready.message).trim_end().to_owned()
    };
    assert_eq!(text(Some((true, "Connected", "")), "berlin"), "True AllResolved");
    assert_eq!(text(None, "berlin"), "False NeverConnected the gateway has never connected to this cloud");
    assert_eq!(text(Some((false, "Revoked", "it was revoked")), "berlin"), "False Revoked it was revoked");
    assert_eq!(text(Some((false, "Stopped", "it was stopped")), "berlin"), "False Stopped it was stopped");
    assert_eq!(text(None, "cloud"), "True AllResolved", "the cloud is where the others connect to");
}

#[test]
fn a_community_says_what_keeps_packets_from_crossing() {
    let community = |fields: Value| {
        let mut value = json!({"metadata": {"name": "c"}, "members": ["berlin", "oslo"]});
        value.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        value
    };
    let check = |fields: Value, about, expected| check(Kind::ECommunity, community(fields), about, expected);
    check(json!({}), SUBNETS_DISTINCT, "True SubnetsDistinct");
    check(
        json!({"ePolicys": []}),
        POLICIES_RESOLVED,
        "False NoPolicies ePolicys is empty; no client may begin a flow between members (default deny)",
    );
    check(
        json!({"ePolicys": ["gone"]}),
        POLICIES_RESOLVED,
        "False PolicyMissing EPolicy gone does not exist; no client may begin a flow between members (default deny)",
    );
    check(json!({"ePolicys": ["p1"]}), POLICIES_RESOLVED, "True PoliciesFound");
    check(
        json!({}),
        TUNNELS_KNOWN,
        "False TunnelUnknown no gateway of berlin, oslo has reported a tunnel key: it has not connected since it was \
         updated, or its tunnel is off",
    );
    let object = decode(Kind::ECommunity, community(json!({})));
    let status = status(&object, &objects(), Time::from_second(NOW));
    assert!(status.condition(POLICIES_RESOLVED).is_none(), "without ePolicys everything is allowed");
}

#[test]
fn a_translated_exposure_says_why_its_service_cannot_be_translated() {
    let check = |service: Value, expected: &str| {
        let mut objects = objects();
        let mut fields =
            json!({"metadata": {"name": "web"}, "eSiteName": "oslo", "ip": "10.0.0.5", "port": 80});
        fields.as_object_mut().unwrap().extend(service.as_object().unwrap().clone());
        objects.insert(decode(Kind::EService, fields));
        let expose = json!({"metadata": {"name": "web"}, "eServiceName": "web", "eSites": ["berlin"], "ePolicys": ["p1"],
            "mode": "translate"});
        let expose = decode(Kind::ServiceExpose, expose);
        objects.insert(expose.clone());
        let status = status(&expose, &objects, Time::from_second(NOW));
        let condition = status.condition(PRESENTED).unwrap();
        let text = format!("{} {} {}", condition.status.as_str(), condition.reason, condition.message);
        assert_eq!(text.trim_end(), expected);
    };
    check(json!({}), "True Presented berlin 198.18.0.7");
    check(json!({"protocol": "IP", "port": 0}), "True Presented berlin 198.18.0.7");
    let why = |why: &str| {
        format!("False NotTranslatable EService web cannot be exposed with mode translate: {why}")
    };
    let unopened = |field: &str| {
        why(&format!("{field} is set, but with mode translate the gateway opens no connections"))
    };
    check(json!({"healthCheck": {}}), &unopened("healthCheck"));
    check(json!({"backendTLS": {}}), &unopened("backendTLS"));
    check(json!({"proxyProtocol": true}), &unopened("proxyProtocol"));
    let two = json!([{"ip": "10.0.0.5"}, {"ip": "10.0.0.6"}]);
    check(
        json!({"endpoints": two}),
        &why("endpoints has several entries, but with mode translate packets go to one server"),
    );
    let named = json!({"ip": "", "domainName": "web.test"});
    check(named, &why("packets need an address, and it has only a domainName"));
    let loopback = why("packets do not cross to a loopback address");
    check(json!({"ip": "127.0.0.1"}), &loopback);
}
