//! Allocation of addresses, and its changes when ranges, exposures or presences of users change.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::*;
use crate::kinds::Kind;
use crate::object::Object;
use crate::object_set::ObjectSet;

/// A small store: executes the steps of one site and records freed addresses.
#[derive(Default)]
struct Lab {
    objects: ObjectSet,
    freed: FreedAddresses,
    moment: u64,
}

impl Lab {
    fn new(cidr: &str) -> Lab {
        let mut lab = Lab::default();
        lab.put(Kind::EGateway, "gw", json!({"eSiteName": "oslo", "virtualPresenceIPcidr": cidr}));
        lab
    }

    fn put(&mut self, kind: Kind, name: &str, mut value: Value) {
        value["metadata"] = json!({"name": name});
        self.objects.insert(Object::decode(kind, value).unwrap().object);
    }

    fn expose(&mut self, service: &str) {
        self.put(Kind::EService, service, json!({"eSiteName": "home", "port": 80}));
        self.put(Kind::ServiceExpose, service, json!({"eServiceName": service, "eSites": ["oslo"]}));
        self.reconcile();
    }

    fn hide(&mut self, service: &str) {
        self.objects.remove(Kind::ServiceExpose, service).unwrap();
        self.reconcile();
    }

    /// Runs until no step is left: an address that one round frees is allocated in the next.
    fn reconcile(&mut self) {
        for _ in 0..2 {
            self.round();
        }
        assert_eq!(self.missing(), [], "running again changes nothing");
    }

    fn missing(&self) -> Vec<AllocationStep> {
        steps(&self.objects, &self.freed, &PendingAllocations::default(), "oslo")
    }

    fn round(&mut self) {
        for step in self.missing() {
            self.moment += 1;
            let old = self.objects.remove(Kind::VirtualPresence, step.presence());
            if let Some(Object::VirtualPresence(old)) = &old {
                self.freed.note("oslo", old.ip_addr().unwrap(), self.moment);
            }
            match (step, old) {
                (AllocationStep::Make(presence), None) => self.objects.insert((*presence).into()),
                (AllocationStep::Renumber { to, .. }, Some(Object::VirtualPresence(mut presence))) => {
                    presence.virtual_ip = to.to_string();
                    self.objects.insert(presence.into());
                }
                (AllocationStep::Remove { .. }, Some(_)) => {}
                (step, old) => panic!("{step:?} of {old:?}"),
            }
        }
    }

    fn addresses(&self) -> BTreeMap<String, Vec<String>> {
        let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for presence in self.objects.all::<VirtualPresence>() {
            found.entry(presence.e_service_name.clone()).or_default().push(presence.virtual_ip.clone());
        }
        found.values_mut().for_each(|addresses| addresses.sort());
        found
    }

    #[track_caller]
    fn check(&self, expected: &[(&str, &[&str])]) {
        let expected: BTreeMap<String, Vec<String>> = expected
            .iter()
            .map(|(service, ips)| (service.to_string(), ips.iter().map(ToString::to_string).collect()))
            .collect();
        assert_eq!(self.addresses(), expected);
    }
}

#[test]
fn a_freed_address_is_the_last_to_be_handed_out_again() {
    let mut lab = Lab::new("10.0.0.0/29");
    for service in ["a", "b", "c"] {
        lab.expose(service);
    }
    lab.check(&[("a", &["10.0.0.1"]), ("b", &["10.0.0.2"]), ("c", &["10.0.0.3"])]);
    lab.hide("b");
    lab.hide("a");
    for service in ["d", "e", "f", "g", "h"] {
        lab.expose(service);
    }
    // Unused addresses first, then in the order in which they were freed.
    lab.check(&[
        ("c", &["10.0.0.3"]),
        ("d", &["10.0.0.4"]),
        ("e", &["10.0.0.5"]),
        ("f", &["10.0.0.6"]),
        ("g", &["10.0.0.2"]),
        ("h", &["10.0.0.1"]),
    ]);
    lab.expose("too-much");
    assert!(!lab.addresses().contains_key("too-much"), "a full range makes nothing and breaks nothing");
    lab.hide("f");
    assert_eq!(lab.addresses()["too-much"], ["10.0.0.6"], "what becomes free is given to who waits");
}

#[test]
fn nobody_gets_the_ends_of_a_range_or_the_gateways_own_address() {
    let mut lab = Lab::new("10.0.0.0/29");
    let gateway =
        json!({"eSiteName": "oslo", "virtualPresenceIPcidr": "10.0.0.0/30", "ip": "10.0.0.1", "priority": 5});
    lab.put(Kind::EGateway, "narrow", gateway);
    lab.expose("a");
    lab.expose("b");
    // Both gateways must be able to present it: the narrower range counts.
    lab.check(&[("a", &["10.0.0.2"])]);
    let mut lab = Lab::new("fd00::/126");
    for service in ["a", "b", "c", "d"] {
        lab.expose(service);
    }
    lab.check(&[("a", &["fd00::1"]), ("b", &["fd00::2"]), ("c", &["fd00::3"])]);
}

#[test]
fn two_families_are_two_presences() {
    let mut lab = Lab::new("10.0.0.0/24,fd00::/112");
    lab.expose("Web");
    lab.check(&[("Web", &["10.0.0.1", "fd00::1"])]);
    lab.put(Kind::EGateway, "gw", json!({"eSiteName": "oslo", "virtualPresenceIPcidr": "10.0.0.0/24"}));
    lab.reconcile();
    lab.check(&[("Web", &["10.0.0.1"])]);
}

#[test]
fn one_made_by_hand_satisfies_its_service_and_is_left_alone() {
    let mut lab = Lab::new("10.0.0.0/24");
    let by_hand = json!({"eSiteName": "oslo", "eServiceName": "web", "virtualIp": "10.0.0.77"});
    lab.put(Kind::VirtualPresence, "mine", by_hand.clone());
    lab.expose("web");
    lab.check(&[("web", &["10.0.0.77"])]);
    lab.put(Kind::EGateway, "gw", json!({"eSiteName": "oslo", "virtualPresenceIPcidr": "10.9.0.0/24"}));
    lab.hide("web");
    lab.check(&[("web", &["10.0.0.77"])]);
    // Created later, it replaces the presence of the controller.
    let mut lab = Lab::new("10.0.0.0/24");
    lab.expose("web");
    lab.check(&[("web", &["10.0.0.1"])]);
    lab.put(Kind::VirtualPresence, "mine", by_hand);
    lab.reconcile();
    lab.check(&[("web", &["10.0.0.77"])]);
}

#[test]
fn a_changed_range_renumbers_and_a_missing_gateway_does_not() {
    let mut lab = Lab::new("10.0.0.0/24");
    lab.expose("a");
    lab.expose("b");
    lab.objects.remove(Kind::EGateway, "gw");
    lab.reconcile();
    lab.check(&[("a", &["10.0.0.1"]), ("b", &["10.0.0.2"])]);
    lab.put(Kind::EGateway, "gw", json!({"eSiteName": "oslo", "virtualPresenceIPcidr": "10.9.0.0/24"}));
    lab.reconcile();
    lab.check(&[("a", &["10.9.0.1"]), ("b", &["10.9.0.2"])]);
    // A wider range: all addresses are still valid.
    lab.put(Kind::EGateway, "gw", json!({"eSiteName": "oslo", "virtualPresenceIPcidr": "10.0.0.0/8"}));
    lab.reconcile();
    lab.check(&[("a", &["10.9.0.1"]), ("b", &["10.9.0.2"])]);
}

#[test]
fn two_exposures_share_a_presence_until_both_are_gone() {
    let mut lab = Lab::new("10.0.0.0/24");
    lab.expose("web");
    lab.put(Kind::ServiceExpose, "second", json!({"eServiceName": "web", "eSites": ["oslo", "berlin"]}));
    lab.hide("web");
    lab.check(&[("web", &["10.0.0.1"])]);
    lab.put(Kind::ServiceExpose, "second", json!({"eServiceName": "web", "eSites": ["berlin"]}));
    lab.reconcile();
    lab.check(&[]);
    lab.expose("web");
    lab.objects.remove(Kind::EService, "web");
    lab.reconcile();
    lab.check(&[]);
}

#[test]
fn what_is_under_way_is_not_done_twice() {
    let mut lab = Lab::new("10.0.0.0/24");
    lab.put(Kind::EService, "web", json!({"eSiteName": "home", "port": 80}));
    lab.put(Kind::EService, "mail", json!({"eSiteName": "home", "port": 25}));
    for service in ["web", "mail"] {
        lab.put(Kind::ServiceExpose, service, json!({"eServiceName": service, "eSites": ["oslo"]}));
    }
    let claims = PendingAllocations {
        presences: [name("web", "oslo", AddressFamily::V4)].into(),
        addresses: ["10.0.0.1".parse().unwrap()].into(),
    };
    let steps = steps(&lab.objects, &lab.freed, &claims, "oslo");
    let [AllocationStep::Make(mail)] = steps.as_slice() else { panic!("{steps:?}") };
    assert_eq!((mail.e_service_name.as_str(), mail.virtual_ip.as_str()), ("mail", "10.0.0.2"));
    assert!(is_made(mail) && Object::from((**mail).clone()).validate(None).is_empty());
}

#[test]
fn names_are_lower_case_valid_and_tell_apart_what_looks_alike() {
    let long = "x".repeat(253);
    let dotted = format!("{}.b", "a".repeat(99));
    let pairs = [
        ("Web", "Oslo"),
        ("web", "Oslo"),
        ("web", "oslo"),
        ("web-oslo", "a"),
        ("web", "oslo-a"),
        (&*long, &*long),
        (&*dotted, "oslo"),
    ];
    let mut seen = std::collections::HashSet::new();
    for (service, site) in pairs {
        for family in AddressFamily::ALL {
            let name = name(service, site, family);
            assert_eq!(crate::name::check(&name), Ok(()), "{name}");
            assert_eq!(name, name.to_ascii_lowercase());
            assert!(seen.insert(name.clone()), "{name}");
        }
    }
    assert_eq!(name("Web", "Oslo", AddressFamily::V6), name("Web", "Oslo", AddressFamily::V4) + "-v6");
}

#[test]
fn what_was_freed_is_remembered_within_bounds() {
    let mut freed = FreedAddresses::default();
    for number in 0..5_000u32 {
        freed.note("oslo", std::net::Ipv4Addr::from(number).into(), u64::from(number));
    }
    freed.note("gone", "10.0.0.1".parse().unwrap(), 1);
    let superfluous = freed.superfluous(|site| site == "oslo");
    assert_eq!(superfluous.len(), 5_000 - 4_096 + 1);
    for (site, ip) in &superfluous {
        freed.forget(site, *ip);
    }
    assert_eq!(freed.superfluous(|site| site == "oslo"), []);
    assert_eq!(freed.moment("oslo", std::net::Ipv4Addr::from(4_999).into()), Some(4_999));
}
