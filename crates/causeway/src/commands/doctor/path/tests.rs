//! The hop at which a walk breaks, in rows: everything is present, then one object or answer is missing.

use causeway_api::management::ProbeResponse;
use causeway_api::meta::set_condition;
use causeway_api::{Condition, Kind, Object, Time};
use serde_json::{Value, json};

use super::*;
use crate::commands::doctor::finding::State;

fn put(picture: &mut Picture, kind: Kind, name: &str, mut value: Value) {
    value["metadata"] = json!({ "name": name });
    let mut object = Object::decode(kind, value).unwrap().object;
    *object.status_mut() = conditions::status(&object, &picture.objects, Time::from_second(0));
    picture.objects.insert(object);
}

/// Conditions as the cloud would have written them.
fn write_conditions(picture: &mut Picture) {
    let objects: Vec<Object> = picture.objects.objects().cloned().collect();
    for mut object in objects {
        *object.status_mut() = conditions::status(&object, &picture.objects, Time::from_second(0));
        picture.objects.insert(object);
    }
}

/// The answer of the gateway of a site about its path to the service web.
fn answer(picture: &mut Picture, site: &str, answer: Result<Value, Unasked>) {
    let answer = answer.map(|facts| serde_json::from_value(facts).unwrap());
    picture.paths.insert((format!("gw-{site}"), "web".to_owned()), answer);
}

/// A condition that is False.
fn unmet(kind: &str, message: &str) -> Vec<Condition> {
    let mut conditions = Vec::new();
    set_condition(&mut conditions, kind, false.into(), "Test", message, Time::from_second(0), 1);
    conditions
}

fn whole() -> Picture {
    let mut picture = Picture::default();
    for site in ["berlin", "oslo"] {
        put(&mut picture, Kind::ESite, site, json!({}));
        let fields = json!({"eSiteName": site, "virtualPresenceIPcidr": "198.18.0.0/16", "ip": "10.0.0.1"});
        put(&mut picture, Kind::EGateway, &format!("gw-{site}"), fields);
        let echo = Ok(ProbeResponse { milliseconds: 1.0, bytes: 1000, ..ProbeResponse::default() });
        picture.probes.insert(format!("gw-{site}"), echo);
        answer(
            &mut picture,
            site,
            Ok(json!({"milliseconds": 2.0, "backends": [
            {"backend": "10.0.0.5:80", "outcome": "answers", "detail": "it answers HTTP with 200"}]})),
        );
    }
    put(&mut picture, Kind::EService, "web", json!({"eSiteName": "oslo", "ip": "10.0.0.5", "port": 80}));
    put(
        &mut picture,
        Kind::EServer,
        "s1",
        json!({"eSiteName": "berlin", "ip": "10.0.0.7", "ports": [22], "ePolicys": ["p"]}),
    );
    put(&mut picture, Kind::EPolicy, "p", json!({"allowedServers": ["s1"]}));
    let expose =
        json!({"eServiceName": "web", "dnsName": "web.test", "eSites": ["berlin"], "ePolicys": ["p"]});
    put(&mut picture, Kind::ServiceExpose, "web", expose);
    let presence = json!({"eServiceName": "web", "eSiteName": "berlin", "virtualIp": "198.18.0.9"});
    put(&mut picture, Kind::VirtualPresence, "vp", presence);
    let shown = |name: &str| json!({"name": name, "site": "x", "connected": true, "transport": "quic", "since": "2026-01-01T00:00:00Z", "generation": "1.7"});
    picture.status =
        serde_json::from_value(json!({"gateways": [shown("gw-berlin"), shown("gw-oslo")]})).unwrap();
    picture
}

#[track_caller]
fn check(change: impl Fn(&mut Picture), walk: impl Fn(&Picture) -> Vec<Finding>, broken_at: Option<&str>) {
    let mut picture = whole();
    change(&mut picture);
    write_conditions(&mut picture);
    let findings = walk(&picture);
    let first_bad = findings.iter().find(|finding| finding.state != State::Ok);
    let told = findings.iter().map(Finding::text).collect::<Vec<_>>().join("\n");
    match broken_at {
        None => assert!(first_bad.is_none(), "{told}"),
        Some(part) => assert!(first_bad.is_some_and(|finding| finding.text().contains(part)), "{told}"),
    }
}

#[test]
fn the_walk_to_a_service_says_where_it_breaks() {
    let web = |picture: &Picture| to_service(picture, "web", Some("berlin"));
    check(|_| {}, web, None);
    check(|_| {}, |picture| to_service(picture, "web", None), None);
    check(
        |_| {},
        |picture| to_service(picture, "web", Some("oslo")),
        Some("no ServiceExpose presents it at oslo"),
    );
    check(|_| {}, |picture| to_service(picture, "mail", None), Some("EService mail does not exist"));
    let without =
        |kind, name: &'static str| move |picture: &mut Picture| drop(picture.objects.remove(kind, name));
    check(without(Kind::ServiceExpose, "web"), |picture| to_service(picture, "web", None), Some("anywhere"));
    check(
        without(Kind::EPolicy, "p"),
        web,
        Some("EPolicy p does not exist; no client may use the service (default deny)"),
    );
    check(without(Kind::EServer, "s1"), web, Some("no policy allows a client at berlin"));
    check(without(Kind::VirtualPresence, "vp"), web, Some("an IPv4 address at berlin is not allocated yet"));
    check(without(Kind::EGateway, "gw-oslo"), web, Some("no EGateway exists at oslo"));
    check(|picture| picture.status.gateways[0].stats.connected = false, web, Some("not connected since"));
    check(
        |picture| drop(picture.probes.insert("gw-oslo".to_owned(), Err(Unasked::Failed("reset".to_owned())))),
        web,
        Some("nothing comes back"),
    );
    let refused = unmet("NetmapInForce", "it keeps its old one");
    check(
        |picture| picture.status.gateways[1].conditions = refused.clone(),
        web,
        Some("it keeps its old one"),
    );
}

#[test]
fn a_broken_hop_hides_none_of_those_behind_it() {
    let mut picture = whole();
    picture.objects.remove(Kind::EPolicy, "p");
    let unheard = unmet("Listening", "names are not answered");
    picture.status.gateways[0].conditions = unheard;
    picture.status.gateways[1].stats.connected = false;
    let down = json!({"backends": [{"backend": "10.0.0.5:80", "outcome": "down", "detail": "refused"}]});
    answer(&mut picture, "berlin", Ok(down));
    picture.paths.remove(&("gw-oslo".to_owned(), "web".to_owned()));
    write_conditions(&mut picture);
    let broken: Vec<String> = to_service(&picture, "web", Some("berlin"))
        .into_iter()
        .filter(|finding| finding.state != State::Ok)
        .map(|finding| finding.text())
        .collect();
    let expected = [
        "EPolicy p does not exist",
        "names are not answered",
        "not connected",
        "does not take connections: refused",
    ];
    assert_eq!(broken.len(), expected.len(), "{broken:#?}");
    for (told, part) in broken.iter().zip(expected) {
        assert!(told.contains(part), "{told}, not {part}");
    }
}

#[test]
fn a_backend_is_judged_by_what_was_tried_now() {
    let web = |picture: &Picture| to_service(picture, "web", Some("berlin"));
    let found = |outcome: &str| json!({"backends": [{"backend": "10.0.0.5:80", "outcome": outcome, "detail": "it answers with SSH"}]});
    let say_down = |picture: &mut Picture| {
        let mut service = picture.objects.remove(Kind::EService, "web").unwrap();
        let (conditions, now) = (&mut service.status_mut().conditions, Time::from_second(0));
        let message = "gateway gw-oslo reaches no backend; refused";
        set_condition(conditions, conditions::BACKENDS_ANSWER, false.into(), "BackendDown", message, now, 1);
        picture.objects.insert(service);
    };
    // Back again: what a condition or a record said before is no fact any more.
    check(say_down, web, None);
    check(|picture| picture.records = vec![json!({"time": "T", "end": "backend-down"})], web, None);
    for (outcome, part) in [
        ("down", "does not take connections"),
        ("otherProtocol", "set it to what the backend speaks"),
        ("denied", "backends-allow"),
        ("silent", "overloaded"),
        ("unwell", "log of the backend"),
    ] {
        check(|picture| answer(picture, "oslo", Ok(found(outcome))), web, Some(part));
    }
    let unasked = |picture: &mut Picture| picture.paths.clear();
    check(
        unasked,
        web,
        Some("??  backends of web: they were not tried now, and the audit has no recent connection"),
    );
    let said = |picture: &mut Picture| {
        picture.paths.clear();
        say_down(picture);
    };
    check(said, web, Some("what was said at 1970-01-01T00:00:00Z: gateway gw-oslo reaches no backend"));
    let denied = |picture: &mut Picture| {
        for site in ["berlin", "oslo"] {
            answer(picture, site, Err(Unasked::NotAllowed("this needs the role admin".into())));
        }
    };
    check(denied, web, Some("not probed, because this credential may not: this needs the role admin"));
}

#[test]
fn a_way_breaks_at_the_presence_or_at_the_far_gateway() {
    let web = |picture: &Picture| to_service(picture, "web", Some("berlin"));
    let hidden = json!({"presenceProblem": "hidden by a route; fix: ip route del x"});
    check(|picture| answer(picture, "berlin", Ok(hidden.clone())), web, Some("fix: ip route del x"));
    let far = json!({"farProblem": "no gateway of that site is connected"});
    check(
        |picture| answer(picture, "berlin", Ok(far.clone())),
        web,
        Some("path berlin -> oslo: the gateway of oslo is not reached"),
    );
    check(
        |picture| answer(picture, "berlin", Err(Unasked::Failed("too old".into()))),
        web,
        Some("could not be asked: too old"),
    );
}

#[test]
fn sites_and_nodes_are_walked_to() {
    let node = |picture: &Picture| to_node(picture, picture.objects.server("s1").unwrap());
    let site = |picture: &Picture| to_site(picture, picture.objects.site("berlin").unwrap());
    check(|_| {}, node, None);
    check(|_| {}, site, None);
    check(|picture| drop(picture.objects.remove(Kind::EPolicy, "p")), node, Some("attach an EPolicy"));
    check(|picture| drop(picture.objects.remove(Kind::EPolicy, "p")), site, Some("exposure web: EPolicy p"));
    check(
        |picture| drop(picture.objects.remove(Kind::EGateway, "gw-berlin")),
        site,
        Some("no EGateway exists at berlin"),
    );
}

#[test]
fn the_fleet_shows_what_is_bad_and_counts_what_is_well() {
    use crate::commands::doctor::fleet;
    let all = |picture: &Picture| fleet::examine(picture);
    check(|_| {}, all, None);
    check(
        |picture| picture.status.gateways[0].stats.connected = false,
        all,
        Some("1 of 2 gateways and 1 of 1"),
    );
    check(
        |picture| drop(picture.objects.remove(Kind::EPolicy, "p")),
        all,
        Some("2 of 2 gateways and 0 of 1 exposures"),
    );
    let mut picture = whole();
    let down = json!({"backends": [{"backend": "10.0.0.5:80", "outcome": "down", "detail": "refused"}]});
    answer(&mut picture, "oslo", Ok(down));
    picture.not_asked = 3;
    write_conditions(&mut picture);
    let told: Vec<String> = fleet::examine(&picture).iter().map(Finding::text).collect();
    assert!(told.iter().any(|line| line.contains("!!  backend 10.0.0.5:80 of web")), "{told:#?}");
    assert!(told.iter().any(|line| line.contains("3 gateways and paths were not asked")), "{told:#?}");
}
