//! The manifests of `examples/` and those of the design documents are accepted, and report missing objects.

use std::path::Path;

use causeway_api::allocate::{AllocationStep, FreedAddresses, PendingAllocations, steps};
use causeway_api::conditions::{self, POLICIES_RESOLVED, READY};
use causeway_api::layer3::plan_ranges;
use causeway_api::{
    ApiVersion, ConditionStatus, ECommunity, ESite, Kind, Object, ObjectSet, Time, name, presence,
};
use serde_json::Value;

const NOW: i64 = 1_800_000_000;

#[test]
fn the_examples_are_valid_and_everything_in_them_resolves() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples"));
    let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "yaml"));
    files.sort();
    let mut objects = ObjectSet::default();
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap();
        for value in serde_saphyr::from_multiple::<Value>(&text).unwrap() {
            objects.insert(admit(value, ApiVersion::Group, &objects));
        }
    }
    give_addresses(&mut objects);
    give_ranges(&mut objects);
    for object in objects.objects() {
        let status = conditions::status(object, &objects, Time::from_second(NOW));
        let ready = status.condition(READY).unwrap();
        // A gateway of an edge that was only declared has never connected; nothing else may be missing.
        let is_resolved = match (object.kind(), object.name()) {
            (Kind::EGateway, name) if name != "cloud" => ready.reason == "NeverConnected",
            _ => ready.status == ConditionStatus::True,
        };
        assert!(is_resolved, "{} {}: {}", object.kind(), object.name(), ready.message);
    }
    for kind in Kind::ALL {
        assert!(objects.objects().any(|object| object.kind() == kind), "no example of {kind}");
    }
}

#[test]
fn the_objects_of_the_documents_are_taken_word_for_word() {
    let list: Value = serde_json::from_str(include_str!("arktos-objects.json")).unwrap();
    let mut objects = ObjectSet::default();
    for value in list["items"].as_array().unwrap() {
        objects.insert(admit(value.clone(), ApiVersion::Core, &objects));
    }
    assert_eq!(objects.objects().count(), 7);
    assert!(objects.server("Server1").is_some(), "named by its eServerName");
    assert_eq!(objects.presence("vp1").unwrap().e_site_name, "TokyoChibaSite1", "from its address");

    let expose = objects.expose("TykyoChibaNginx").expect("named by its eServiceName");
    let found = conditions::expose(expose, &objects, Time::from_second(NOW));
    let policies = found.iter().find(|condition| condition.kind == POLICIES_RESOLVED).unwrap();
    assert_eq!(
        (policies.status, policies.reason.as_str(), policies.message.as_str()),
        (ConditionStatus::False, "PolicyMissing", "EPolicy Policy2 does not exist")
    );
}

/// Processes an object like the API server, as far as this crate decides it.
#[track_caller]
fn admit(mut value: Value, version: ApiVersion, objects: &ObjectSet) -> Object {
    assert_eq!(value["apiVersion"], version.as_str());
    let kind = Kind::from_name(value["kind"].as_str().unwrap()).unwrap();
    name::default_name(kind, &mut value);
    let decoded = Object::decode(kind, value).unwrap();
    assert_eq!(decoded.unknown, [""; 0], "{kind} {}", decoded.object.name());
    let mut object = decoded.object;
    object.default_fields();
    assert_eq!(object.validate(None), [], "{kind} {}", object.name());
    if let Object::VirtualPresence(presence) = &mut object {
        let gateways: Vec<_> = objects.all().cloned().collect();
        let presences: Vec<_> = objects.all().cloned().collect();
        assert_eq!(presence::check(presence, &gateways, &presences), []);
        if presence.e_site_name.is_empty() {
            let site = presence::site_for(presence.ip_addr().unwrap(), &gateways).unwrap().unwrap();
            presence.e_site_name = site.0;
        }
    }
    object
}

/// Allocates mapped networks like the controller.
fn give_ranges(objects: &mut ObjectSet) {
    let communities: Vec<ECommunity> = objects.all().cloned().collect();
    for community in communities {
        let plan = plan_ranges(objects, &community);
        objects.layer3.ranges.insert(community.metadata.name.clone(), plan.ranges);
    }
}

/// Allocates addresses like the controller.
fn give_addresses(objects: &mut ObjectSet) {
    let sites: Vec<String> = objects.all::<ESite>().map(|site| site.metadata.name.clone()).collect();
    for site in sites {
        for step in steps(objects, &FreedAddresses::default(), &PendingAllocations::default(), &site) {
            let AllocationStep::Make(presence) = step else { panic!("{step:?}") };
            objects.insert((*presence).into());
        }
    }
}
