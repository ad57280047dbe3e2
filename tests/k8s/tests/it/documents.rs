//! The objects of the design documents, word for word.

use testlab::causeway::Ran;

use crate::{Lab, here};

const SEVEN: [&str; 7] = [
    "esite/TokyoChibaSite1",
    "egateway/TokyoChibaGateway",
    "virtualpresence/vp1",
    "eservice/TykyoChibaNginx",
    "eserver/Server1",
    "epolicy/Policy1",
    "serviceexpose/TykyoChibaNginx",
];

fn apply(lab: &Lab, name: &str) -> Ran {
    lab.cloud.run(&["apply", "-f", &here(name)]).unwrap()
}

#[test]
fn seven_objects_are_created_and_the_second_time_unchanged() {
    let lab = Lab::start();
    for outcome in ["created", "unchanged"] {
        let expected = SEVEN.map(|name| format!("{name} {outcome}\n")).concat();
        assert_eq!(apply(&lab, "data/documents-objects.json").success().unwrap(), expected);
    }
    let said = lab.cloud.wait_condition("sx", "TykyoChibaNginx", "PoliciesResolved", "False").unwrap();
    assert!(said["message"].as_str().unwrap().contains("Policy2"), "{said}");
}

#[test]
fn a_missing_comma_is_shown_at_its_place_and_nothing_is_applied() {
    let lab = Lab::start();
    let before = lab.cloud.run(&["get", "all", "-o", "name"]).unwrap().success().unwrap();
    let ran = apply(&lab, "data/documents-broken.json");
    assert_eq!((ran.code, ran.stdout.as_str()), (1, ""));
    for part in ["documents-broken.json:11:5", "\"eSiteName\": \"TokyoChibaSite1\""] {
        assert!(ran.stderr.contains(part), "{part} is missing in\n{}", ran.stderr);
    }
    assert_eq!(lab.cloud.run(&["get", "all", "-o", "name"]).unwrap().success().unwrap(), before);
}
