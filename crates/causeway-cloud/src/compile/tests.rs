//! The contents of compiled netmaps, and the objects that must not be in them.

use causeway_api::{Kind, Object};
use causeway_netmap::{BackendEndpoint, Generation, Netmap, NetmapView};
use serde_json::{Value, json};

use super::*;

fn object(kind: Kind, name: &str, mut fields: Value) -> Object {
    fields["metadata"] = json!({ "name": name });
    let mut object = Object::decode(kind, fields).unwrap().object;
    object.default_fields();
    assert_eq!(object.validate(None), vec![], "{name}");
    object
}

/// Berlin has a camera that Oslo may use; Rome has nothing to do with it.
fn objects() -> ObjectSet {
    let site = |name| object(Kind::ESite, name, json!({"subnets": ["10.0.0.0/24"]}));
    let gateway = |name, site| object(Kind::EGateway, name, json!({"eSiteName": site}));
    [
        site("Berlin"),
        site("oslo"),
        site("rome"),
        gateway("berlin-gw", "Berlin"),
        gateway("oslo-gw", "oslo"),
        gateway("rome-gw", "rome"),
        object(
            Kind::EService,
            "Camera",
            json!({"eSiteName": "Berlin", "ip": "10.0.0.9", "port": 554, "protocol": "TCP"}),
        ),
        object(
            Kind::EService,
            "Secret",
            json!({"eSiteName": "Berlin", "ip": "10.0.0.8", "port": 80, "protocol": "HTTP"}),
        ),
        object(Kind::EServer, "Guard", json!({"eSiteName": "oslo", "ip": "10.0.0.5"})),
        object(Kind::EServer, "Roman", json!({"eSiteName": "rome", "ip": "10.0.0.5"})),
        object(
            Kind::EServer,
            "node-1",
            json!({"eSiteName": "Berlin", "ip": "10.0.0.3", "ports": [10250], "ePolicys": ["kubelet"]}),
        ),
        object(Kind::EPolicy, "watchers", json!({"allowedServers": ["Guard", "Roman", "gone"]})),
        object(Kind::EPolicy, "kubelet", json!({"allowedSites": ["rome"]})),
        object(
            Kind::ServiceExpose,
            "camera",
            json!({"eServiceName": "Camera", "dnsName": "Cam.example.com", "eSites": ["oslo"],
                   "ePolicys": ["watchers", "missing"]}),
        ),
        object(
            Kind::VirtualPresence,
            "vp",
            json!({"eServiceName": "Camera", "virtualIp": "198.18.0.7", "eSiteName": "oslo"}),
        ),
    ]
    .into_iter()
    .collect()
}

fn view(objects: &ObjectSet, gateway: &str) -> NetmapView {
    let entries = compile(objects, &ActiveGateways::default(), gateway).unwrap();
    let view = NetmapView::decode(&Netmap::build(Generation::default(), entries, None).unwrap());
    assert_eq!((view.unknown, &view.damaged[..]), (0, &[][..]));
    view
}

fn keys(objects: &ObjectSet, gateway: &str) -> Vec<String> {
    let mut keys: Vec<String> = compile(objects, &ActiveGateways::default(), gateway)
        .unwrap()
        .iter()
        .map(|(key, _)| key.to_string())
        .collect();
    keys.sort();
    keys
}

#[test]
fn a_site_is_told_of_what_is_exposed_to_it_and_by_whom_it_may_be_used() {
    let view = view(&objects(), "oslo-gw");
    let camera = view.presences.get("Camera").unwrap();
    assert_eq!((camera.port, camera.service_site.as_str()), (554, "Berlin"));
    assert_eq!(camera.addresses, [PresenceIp("198.18.0.7".parse().unwrap())]);
    let names: Vec<&str> = camera.names.iter().map(|name| name.as_str()).collect();
    assert_eq!(names, ["cam.example.com", "camera.berlin.causeway.internal"]);
    let oslo = "oslo".into();
    let allowed = |server: Option<&str>| {
        view.allowed_by(&camera.policies, &oslo, server.map(Into::into).as_ref()).is_some()
    };
    assert!(allowed(Some("Guard")));
    assert!(!allowed(Some("Roman")), "policies tell a site only of its own hosts");
    assert!(!allowed(None));
    assert_eq!(view.subject_at("10.0.0.5".parse().unwrap()).unwrap().server.as_str(), "Guard");
}

#[test]
fn a_presence_of_kafka_has_a_port_for_every_broker_and_no_address_of_any() {
    let brokers = |protocol: &str, endpoints: Value| {
        let fields = json!({"eSiteName": "Berlin", "ip": "10.0.0.9", "port": 9092, "protocol": protocol,
            "endpoints": endpoints});
        let mut objects = objects();
        objects.insert(object(Kind::EService, "Camera", fields));
        view(&objects, "oslo-gw").presences.get("Camera").unwrap().brokers
    };
    let three = json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}, {"ip": "10.0.0.3", "port": 9093}]);
    assert_eq!(brokers("KAFKA", three.clone()), 3);
    assert_eq!(brokers("KAFKA", json!([])), 1);
    assert_eq!(brokers("TCP", three), 0);
}

#[test]
fn the_site_of_a_service_checks_the_rule_again() {
    let view = view(&objects(), "berlin-gw");
    let camera = view.services.get("Camera").unwrap();
    assert_eq!(camera.backends, [BackendEndpoint::Address("10.0.0.9".parse().unwrap(), 554)]);
    let policies = camera.policies_for(&"oslo".into()).unwrap();
    assert!(view.allowed_by(policies.clone(), &"oslo".into(), Some(&"Guard".into())).is_some());
    assert!(view.allowed_by(policies, &"oslo".into(), None).is_none());
    assert_eq!(camera.policies_for(&"rome".into()), None);
    let guard = view.subjects.get("Guard").unwrap();
    assert_eq!((guard.site.as_str(), guard.ip), ("oslo", None), "real addresses do not cross");
}

#[test]
fn hosts_of_a_site_are_known_where_their_site_comes_in_under_limits() {
    let with = |policy: Value| {
        let mut objects = objects();
        objects.insert(object(Kind::EPolicy, "kubelet", policy));
        objects
    };
    let knows = |objects: &ObjectSet| keys(objects, "berlin-gw").contains(&"subject/Roman".to_owned());
    assert!(!knows(&with(json!({"allowedSites": ["rome"]}))), "without limits nobody needs to know");
    assert!(knows(&with(json!({"allowedSites": ["rome"], "limits": {"connections": 5}}))));
    assert!(!knows(&with(json!({"allowedSites": ["oslo"], "limits": {"connections": 5}}))));
}

#[test]
fn a_gateway_hears_nothing_of_what_is_none_of_its_business() {
    let objects = objects();
    assert_eq!(
        keys(&objects, "rome-gw"),
        ["gateway", "node/node-1", "policy/kubelet", "site/rome", "subject/Roman"]
    );
    assert_eq!(
        keys(&objects, "oslo-gw"),
        ["gateway", "policy/missing", "policy/watchers", "presence/Camera", "site/oslo", "subject/Guard"]
    );
    assert_eq!(
        keys(&objects, "berlin-gw"),
        [
            "gateway",
            "node/node-1",
            "policy/kubelet",
            "policy/missing",
            "policy/watchers",
            "service/Camera",
            "site/Berlin",
            "subject/Guard",
            "subject/node-1"
        ]
    );
    for gateway in ["rome-gw", "oslo-gw"] {
        let told = compile(&objects, &ActiveGateways::default(), gateway).unwrap();
        let told: Vec<u8> = told.iter().flat_map(|(_, value)| value.to_vec()).collect();
        assert!(!String::from_utf8_lossy(&told).contains("Secret"));
    }
    assert_eq!(compile(&objects, &ActiveGateways::default(), "nobody"), None);
}

#[test]
fn a_node_is_reached_by_its_name_from_where_it_is_allowed() {
    let objects = objects();
    let from_rome = view(&objects, "rome-gw");
    let node = from_rome.nodes.get("node-1").unwrap();
    assert_eq!((node.site.as_str(), node.ip, &node.ports[..]), ("Berlin", None, &[10250][..]));
    assert!(from_rome.allowed_by(&node.policies, &"rome".into(), None).is_some());
    let here = view(&objects, "berlin-gw");
    let node = here.nodes.get("node-1").unwrap();
    assert_eq!(node.ip, "10.0.0.3".parse().ok());
    assert!(here.allowed_by(&node.policies, &"rome".into(), None).is_some());
    assert!(here.allowed_by(&node.policies, &"oslo".into(), None).is_none());
}

#[test]
fn nothing_is_present_that_is_not_exposed() {
    let check = |name: &str, change: &dyn Fn(&mut ObjectSet)| {
        let mut objects = objects();
        change(&mut objects);
        assert!(view(&objects, "oslo-gw").presences.is_empty(), "{name}");
    };
    check("no exposure", &|objects| drop(objects.remove(Kind::ServiceExpose, "camera")));
    check("no service", &|objects| drop(objects.remove(Kind::EService, "Camera")));
    check("no address", &|objects| drop(objects.remove(Kind::VirtualPresence, "vp")));
    check("an address outside the gateway's range", &|objects| {
        objects.insert(object(
            Kind::VirtualPresence,
            "vp",
            json!({"eServiceName": "Camera", "virtualIp": "192.0.2.7", "eSiteName": "oslo"}),
        ));
    });
    check("exposed elsewhere", &|objects| {
        let fields = json!({"eServiceName": "Camera", "eSites": ["rome"], "ePolicys": ["watchers"]});
        objects.insert(object(Kind::ServiceExpose, "camera", fields));
    });
}

#[test]
fn policies_without_which_nobody_may() {
    let mut objects = objects();
    objects.remove(Kind::EPolicy, "watchers");
    let view = view(&objects, "oslo-gw");
    let camera = view.presences.get("Camera").unwrap();
    assert!(view.allowed_by(&camera.policies, &"oslo".into(), Some(&"Guard".into())).is_none());
}

/// Line 6 of what the channel must show: one object changed in a site of 2,000 exposures.
#[test]
fn one_object_changed_in_a_site_of_two_thousand_exposures_is_below_two_kilobytes() {
    let mut objects = ObjectSet::default();
    for (site, gateway) in [("factory", "factory-gw"), ("shop", "shop-gw")] {
        objects.insert(object(Kind::ESite, site, json!({})));
        objects.insert(object(Kind::EGateway, gateway, json!({"eSiteName": site})));
    }
    for number in 0..20 {
        let fields = json!({"allowedSites": ["shop"], "limits": {"connections": 100 + number}});
        objects.insert(object(Kind::EPolicy, &format!("policy-{number}"), fields));
    }
    let service = |number: u32, port: u32| {
        let fields = json!({"eSiteName": "factory", "ip": format!("10.0.{}.{}", number / 250, 1 + number % 250),
                            "port": port, "protocol": "HTTP"});
        object(Kind::EService, &format!("service-{number}"), fields)
    };
    let expose = |number: u32, policy: u32| {
        let name = format!("service-{number}");
        let fields = json!({"eServiceName": name, "dnsName": format!("s{number}.example.com"),
                            "eSites": ["shop"], "ePolicys": [format!("policy-{policy}")]});
        object(Kind::ServiceExpose, &name, fields)
    };
    let presence = |number: u32, host: u32| {
        let fields = json!({"eServiceName": format!("service-{number}"), "eSiteName": "shop",
                            "virtualIp": format!("198.18.{}.{}", host / 250, 1 + host % 250)});
        object(Kind::VirtualPresence, &format!("vp-{number}"), fields)
    };
    for number in 0..2_000 {
        objects.insert(service(number, 8080));
        objects.insert(expose(number, number % 20));
        objects.insert(presence(number, number));
    }
    let netmap = |objects: &ObjectSet, gateway: &str, previous: Option<&Netmap>| {
        Netmap::build(
            Generation::default(),
            compile(objects, &ActiveGateways::default(), gateway).unwrap(),
            previous,
        )
        .unwrap()
    };
    let changes: Vec<(&str, Object)> = vec![
        ("port of a service", service(7, 9090)),
        ("policy of an exposure", expose(7, 9)),
        ("address of a presence", presence(7, 3_000)),
        ("a policy that a hundred exposures use", {
            let fields = json!({"allowedSites": ["shop"], "limits": {"connections": 7}});
            object(Kind::EPolicy, "policy-7", fields)
        }),
        ("a new host", object(Kind::EServer, "host", json!({"eSiteName": "shop", "ip": "10.9.9.9"}))),
    ];
    for gateway in ["factory-gw", "shop-gw"] {
        let before = netmap(&objects, gateway, None);
        let whole = before.update_from(None).encode().len();
        println!(
            "{gateway}: {} entries, {} bytes, {whole} bytes on the link when sent whole",
            before.len(),
            before.size_bytes()
        );
        for (what, change) in &changes {
            let mut objects = objects.clone();
            objects.insert(change.clone());
            let after = netmap(&objects, gateway, Some(&before));
            let bytes = after.update_from(Some(&before)).encode().len();
            println!("{gateway}: {what}: {bytes} bytes cross the link");
            assert!(bytes < 2_000, "{what}: {bytes}");
        }
    }
}

#[test]
fn a_gateway_is_told_which_gateway_of_its_site_is_active() {
    let mut objects = objects();
    objects.insert(object(Kind::EGateway, "oslo-2", json!({"eSiteName": "oslo"})));
    let check = |stored: &str, expected: Option<&str>| {
        let active = ActiveGateways::from([("oslo".to_owned(), stored.to_owned())]);
        for (gateway, site, expected) in
            [("oslo-gw", "oslo", expected), ("oslo-2", "oslo", expected), ("rome-gw", "rome", None)]
        {
            let entries = compile(&objects, &active, gateway).unwrap();
            let netmap = Netmap::build(Generation::default(), entries, None).unwrap();
            let view = NetmapView::decode(&netmap);
            let active = view.sites[site].active.as_ref().map(ToString::to_string);
            assert_eq!(active.as_deref(), expected, "{gateway}, {stored}");
        }
    };
    check("oslo-2", Some("oslo-2"));
    check("rome-gw", None);
    check("gone", None);
}

mod scale;
mod tunnel;
