//! Layer 3 and services can each be switched off at a gateway; the other goes on, and status says what is off.

use std::net::SocketAddr;

use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::net::reach_tcp;

use crate::layer3_lab::{Layer3, PATIENCE, PORT};

/// A proxied service at the host of each edge, presented at the other edge.
fn expose(lab: &Layer3) {
    lab.policy(json!({"allowedSites": ["edge-a", "edge-b"]}));
    for (name, site, host, to) in
        [("of-a", "edge-a", "host-a", "edge-b"), ("of-b", "edge-b", "host-b", "edge-a")]
    {
        let ip = lab.address(host, false);
        lab.apply(json!({"kind": "EService", "metadata": {"name": name}, "eSiteName": site, "ip": ip, "port": PORT}));
        lab.apply(
            json!({"kind": "ServiceExpose", "metadata": {"name": name}, "eServiceName": name, "eSites": [to],
            "ePolicys": ["narrow"]}),
        );
    }
}

/// Tells whether a host reaches a service of the other edge at its presence.
fn reaches(lab: &Layer3, host: &str, service: &str, site: &str) -> bool {
    let presence = SocketAddr::new(lab.presence(service, site), PORT);
    reach_tcp(&lab.host(host), presence, std::time::Duration::from_secs(2)).is_ok()
}

/// Checks that the status of edge-a names this plane and no other, as a setting and not as a problem.
fn is_shown_off(lab: &Layer3, plane: &str, sentence: &str) {
    let shown = |gateway: &Value| gateway["switchedOff"] == json!([plane]);
    lab.cloud.wait_gateway("edge-a", "shows what is off", PATIENCE, shown).unwrap();
    let text = lab.cloud.run(&["status"]).unwrap().success().unwrap();
    assert!(text.contains(&format!("  - edge-a: {sentence}")), "{text}");
    assert!(!text.contains("! edge-a:"), "{text}");
    let told = lab.cloud.run(&["doctor", "egateway/edge-a"]).unwrap().success().unwrap();
    assert!(told.contains(sentence), "{told}");
}

#[test]
fn layer3_switched_off_leaves_services_and_other_gateways_unharmed() {
    let test = "layer3_switched_off_leaves_services_and_other_gateways_unharmed";
    let Some(lab) = Layer3::start_with(test, false, &[("CAUSEWAY_TUNNEL_OFF", "true")]) else { return };
    lab.community(&["cloud", "edge-a", "edge-b"], None);
    expose(&lab);
    for (host, service, site) in [("host-a", "of-b", "edge-a"), ("host-b", "of-a", "edge-b")] {
        wait_for(&format!("{host} reaches {service}"), || reaches(&lab, host, service, site).then_some(()))
            .unwrap();
    }
    lab.await_crossing("host-b", "host-c", false);
    for to in ["host-b", "host-c"] {
        assert!(!lab.pings("host-a", lab.address(to, false)), "{to}");
    }
    is_shown_off(&lab, "layer3", "layer 3 is switched off in its configuration ([tunnel] off)");
    let doctor = lab.cloud.run(&["doctor", "edge-a", "edge-b"]).unwrap();
    assert!(doctor.stdout.contains("layer 3 is switched off"), "{}", doctor.stdout);
    lab.end();
}

#[test]
fn layer3_goes_on_where_services_are_switched_off() {
    let test = "layer3_goes_on_where_services_are_switched_off";
    let Some(lab) = Layer3::start_with(test, false, &[("CAUSEWAY_SERVICES_OFF", "true")]) else { return };
    lab.community(&["cloud", "edge-a", "edge-b"], None);
    expose(&lab);
    // A service of the cloud's site, presented at the other edge, shows that services work elsewhere.
    let ip = lab.address("host-c", false);
    lab.apply(json!({"kind": "EService", "metadata": {"name": "of-c"}, "eSiteName": "cloud", "ip": ip, "port": PORT}));
    lab.apply(json!({"kind": "ServiceExpose", "metadata": {"name": "of-c"}, "eServiceName": "of-c", "eSites": ["edge-b"],
        "ePolicys": ["narrow"]}));
    wait_for("host-b reaches of-c", || reaches(&lab, "host-b", "of-c", "edge-b").then_some(())).unwrap();
    assert!(!reaches(&lab, "host-a", "of-b", "edge-a"), "no presence listens at edge-a");
    assert!(!reaches(&lab, "host-b", "of-a", "edge-b"), "edge-a dials no backend");
    for (from, to) in [("host-a", "host-b"), ("host-b", "host-a"), ("host-a", "host-c")] {
        lab.await_crossing(from, to, false);
    }
    // A translated service is layer 3.
    lab.apply(json!({"kind": "EService", "metadata": {"name": "plc"}, "eSiteName": "edge-a",
        "ip": lab.address("host-a", false), "protocol": "IP"}));
    lab.apply(json!({"kind": "ServiceExpose", "metadata": {"name": "plc"}, "eServiceName": "plc", "eSites": ["edge-b"],
        "ePolicys": ["narrow"], "mode": "translate"}));
    let presence = lab.presence("plc", "edge-b");
    wait_for("the translated server answers", || lab.pings("host-b", presence).then_some(())).unwrap();
    is_shown_off(&lab, "services", "services are switched off in its configuration ([gateway] services-off)");
    lab.end();
}
