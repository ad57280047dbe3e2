//! Refused values and their messages. A row is a valid object with one field changed.

use serde_json::{Value, json};

use crate::{Kind, Object};

/// Valid objects of each kind.
fn good(kind: Kind) -> Value {
    match kind {
        Kind::ESite => json!({"subnets": ["10.0.0.0/24", "fd00::/64"]}),
        Kind::EGateway => json!({"ip": "10.0.0.1", "eSiteName": "Tokyo"}),
        Kind::EService => json!({"ip": "10.0.0.10", "port": 8080, "eSiteName": "Tokyo"}),
        Kind::EServer => {
            json!({"ip": "10.0.0.20", "eSiteName": "Tokyo", "ports": [10250], "ePolicys": ["p"]})
        }
        Kind::EPolicy => json!({"allowedServers": ["a"], "allowedSites": ["b"]}),
        Kind::ServiceExpose => {
            json!({"eServiceName": "web", "dnsName": "url1.test.com", "eSites": ["a"], "ePolicys": ["p"]})
        }
        Kind::VirtualPresence => json!({"virtualIp": "192.168.0.10", "eServiceName": "web"}),
        Kind::ECommunity => json!({"members": ["a", "b"]}),
        Kind::Namespace | Kind::Event | Kind::Service => json!({}),
    }
}

#[test]
fn objects_with_nothing_wrong_are_taken() {
    for kind in Kind::SERVED {
        check(kind, json!({}), &[]);
    }
    for protocol in ["TCP", "UDP", "HTTP", "HTTPS", "GRPC", "KAFKA", "IP"] {
        check(Kind::EService, json!({"protocol": protocol}), &[]);
    }
    check(Kind::EService, json!({"ip": null, "domainName": "EServiceNginx"}), &[]);
    check(
        Kind::EService,
        json!({"ip": null, "endpoints": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.1", "port": 1}]}),
        &[],
    );
    check(
        Kind::EService,
        json!({"healthCheck": {"type": "HTTP"}, "backendTLS": {"serverName": "a_b.local"}}),
        &[],
    );
    check(Kind::EGateway, json!({"virtualPresenceIPcidr": "198.18.0.0/16,fd00:198:18::/112"}), &[]);
    check(Kind::EGateway, json!({"virtualPresenceIPcidr": "fd00:198:18::/112"}), &[]);
    check(
        Kind::EPolicy,
        json!({"limits": {"connections": 0}, "http": [{"methods": ["GET"], "paths": ["/*", "/a"]}]}),
        &[],
    );
    check(Kind::ESite, json!({"metadata": {"generateName": "site-"}}), &[]);
    check(Kind::VirtualPresence, json!({"virtualIp": "fd00::5"}), &[]);
}

#[test]
fn a_cached_resource_names_version_and_plural() {
    let site = |cached: Value, expected: &[&str]| check(Kind::ESite, json!({"cache": [cached]}), expected);
    site(json!({"resource": "v1/configmaps", "namespace": "shop", "labelSelector": "tier in (a, b)"}), &[]);
    site(json!({"resource": "apps/v1/deployments", "fieldSelector": "metadata.name=a"}), &[]);
    site(json!({}), &["cache[0].resource: Required value"]);
    site(json!({"resource": "pods"}), &["cache[0].resource: Invalid value"]);
    site(json!({"resource": "v1/../secrets"}), &["cache[0].resource: Invalid value"]);
    site(json!({"resource": "v1/pods", "namespace": "a/b"}), &["cache[0].namespace: Invalid value"]);
    site(json!({"resource": "v1/pods", "labelSelector": "=("}), &["cache[0].labelSelector: Invalid value"]);
}

#[test]
fn brokers_of_kafka_have_ports_behind_the_services_own() {
    let three = json!([{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}, {"ip": "10.0.0.3"}]);
    let kafka = |port: i64| json!({"protocol": "KAFKA", "port": port, "endpoints": three});
    check(Kind::EService, kafka(65532), &[]);
    check(
        Kind::EService,
        kafka(65533),
        &[
            "port: Invalid value: 65533: presences need a port behind it for each broker, 3 here, and the last port is 65535",
        ],
    );
    check(Kind::EService, json!({"protocol": "TCP", "port": 65535}), &[]);
}

#[test]
fn addresses_stand_for_one_host() {
    for kind in [Kind::EGateway, Kind::EService, Kind::EServer] {
        check(
            kind,
            json!({"ip": "10.0.0"}),
            &["ip: Invalid value: \"10.0.0\": write an IPv4 or IPv6 address"],
        );
        check(
            kind,
            json!({"ip": "10.0.0.1/24"}),
            &["ip: Invalid value: \"10.0.0.1/24\": write the address without the prefix length: 10.0.0.1"],
        );
        check(kind, json!({"ip": "010.0.0.1"}), &["ip: Invalid value"]);
        check(kind, json!({"ip": " 10.0.0.1"}), &["ip: Invalid value"]);
        check(kind, json!({"ip": "fe80::1%eth0"}), &["ip: Invalid value"]);
        check(kind, json!({"ip": "0.0.0.0"}), &["this address identifies no host"]);
        check(kind, json!({"ip": "::"}), &["this address identifies no host"]);
        check(kind, json!({"ip": "224.0.0.1"}), &["multicast"]);
        check(kind, json!({"ip": "255.255.255.255"}), &["broadcast"]);
        check(kind, json!({"ip": "::ffff:10.0.0.1"}), &["write the IPv4 address as such: 10.0.0.1"]);
    }
    check(Kind::VirtualPresence, json!({"virtualIp": "x"}), &["virtualIp: Invalid value: \"x\""]);
    check(Kind::EServer, json!({"ip": null}), &["ip: Required value: the address of the host"]);
    check(Kind::VirtualPresence, json!({"virtualIp": ""}), &["virtualIp: Required value"]);
}

#[test]
fn ranges_are_networks() {
    let site = |cidr: &str, expected: &str| check(Kind::ESite, json!({"subnets": [cidr]}), &[expected]);
    site(
        "10.0.0.1/24",
        "subnets[0]: Invalid value: \"10.0.0.1/24\": this is an address inside a network; the network is 10.0.0.0/24",
    );
    site("10.0.0.0/33", "subnets[0]: Invalid value: \"10.0.0.0/33\": write a network and its prefix length");
    site("10.0.0.7", "add a prefix length, for example 10.0.0.0/24");
    site("fd00::1", "add a prefix length, for example fd00::/64");
    site("", "subnets[0]: Invalid value");
    site("224.0.0.0/8", "a multicast range holds no hosts");
    check(
        Kind::ESite,
        json!({"subnets": ["10.0.0.0/24", "10.0.0.0/24"]}),
        &["subnets[1]: Duplicate value: \"10.0.0.0/24\""],
    );

    let gateway = |cidr: &str, expected: &str| {
        check(Kind::EGateway, json!({"virtualPresenceIPcidr": cidr}), &[expected])
    };
    gateway(
        "192.168.0.5/24",
        "virtualPresenceIPcidr: Invalid value: \"192.168.0.5/24\": this is an address inside a network; the network is 192.168.0.0/24",
    );
    gateway("0.0.0.0/0", "the prefix length of a presence range is 8 to 30");
    gateway("192.168.0.0/31", "the prefix length of a presence range is 8 to 30");
    gateway("fd00::/127", "the prefix length of a presence range is 16 to 126");
    gateway("10.0.0.0/24,10.1.0.0/24", "write one IPv4 range, one IPv6 range, or one of each");
    gateway("10.0.0.0/24,", "Invalid value: \"\": write a network");
    gateway("no", "write a network and its prefix length");
}

#[test]
fn ports_and_numbers_have_bounds() {
    for port in [-1, 65_536, i64::MAX] {
        let expected = format!("port: Invalid value: {port}: a port is 1 to 65535");
        check(Kind::EService, json!({"port": port}), &[expected.as_str()]);
    }
    check(
        Kind::EService,
        json!({"port": 0}),
        &["port: Required value: the port the service listens on, 1 to 65535"],
    );
    check(
        Kind::EService,
        json!({"endpoints": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2", "port": 70000}]}),
        &["endpoints[1].port: Invalid value: 70000"],
    );
    check(Kind::EServer, json!({"ports": [0]}), &["ports[0]: Invalid value: 0: a port is 1 to 65535"]);
    check(Kind::EServer, json!({"ports": [1, 2, 1]}), &["ports[2]: Duplicate value: \"1\""]);
    check(
        Kind::EGateway,
        json!({"priority": 1001}),
        &["priority: Invalid value: 1001: a priority is -1000 to 1000"],
    );
    check(
        Kind::EGateway,
        json!({"metadata": {"name": "cloud"}, "eSiteName": "oslo"}),
        &["eSiteName: Invalid value: \"oslo\": EGateway cloud is the gateway inside the cloud"],
    );
    check(
        Kind::EService,
        json!({"healthCheck": {"intervalSeconds": 0}}),
        &["healthCheck.intervalSeconds: Invalid value: 0: an interval in seconds is 1 to 3600"],
    );
    for limit in
        ["connectionsPerSecond", "connections", "bytesPerSecondIn", "bytesPerSecondOut", "requestsPerSecond"]
    {
        let expected =
            format!("limits.{limit}: Invalid value: -5: a limit is 0 or more; leave it out for no limit");
        check(Kind::EPolicy, json!({"limits": {limit: -5}}), &[expected.as_str()]);
    }
}

#[test]
fn a_service_says_where_it_runs() {
    check(
        Kind::EService,
        json!({"ip": null}),
        &["ip: Required value: say where the service runs: set ip, or domainName, or endpoints"],
    );
    check(Kind::EService, json!({"endpoints": [{"port": 1}]}), &["endpoints[0].ip: Required value"]);
    check(
        Kind::EService,
        json!({"endpoints": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.1", "port": 8080}]}),
        &["endpoints[1]: Duplicate value: \"10.0.0.1 port 8080\""],
    );
    let many: Vec<Value> =
        (0..1001).map(|n| json!({"ip": format!("10.0.{}.{}", n / 250, n % 250 + 1)})).collect();
    check(
        Kind::EService,
        json!({"endpoints": many}),
        &["endpoints: Too many: 1001: must have at most 1000 items"],
    );
    check(
        Kind::EService,
        json!({"domainName": "a..b"}),
        &["domainName: Invalid value: \"a..b\": write a host name"],
    );
    check(
        Kind::EService,
        json!({"protocol": "UDP", "proxyProtocol": true}),
        &["proxyProtocol: Forbidden: a UDP backend cannot read a PROXY protocol header"],
    );
    check(
        Kind::EService,
        json!({"healthCheck": {"type": "HTTP", "path": "healthz"}}),
        &["healthCheck.path: Invalid value: \"healthz\": write a path that begins with '/'"],
    );
    check(
        Kind::EService,
        json!({"backendTLS": {"caBundle": "LS0tLS1CRUdJTg=="}}),
        &["backendTLS.caBundle: Invalid value: \"LS0tLS1CRUdJTg==\": write PEM text"],
    );
    check(
        Kind::EService,
        json!({"backendTLS": {"caBundle": "x".repeat(65_537)}}),
        &["backendTLS.caBundle: Too long"],
    );
    check(
        Kind::EService,
        json!({"backendTLS": {"serverName": "a b"}}),
        &["backendTLS.serverName: Invalid value"],
    );
}

#[test]
fn references_are_names() {
    check(
        Kind::EGateway,
        json!({"eSiteName": null}),
        &["eSiteName: Required value: the name of the ESite of the gateway"],
    );
    check(Kind::EService, json!({"eSiteName": ""}), &["eSiteName: Required value"]);
    check(
        Kind::EServer,
        json!({"eSiteName": "a/b"}),
        &["eSiteName: Invalid value: \"a/b\": a name has letters"],
    );
    check(Kind::ServiceExpose, json!({"eServiceName": "a..b"}), &["eServiceName: Invalid value: \"a..b\""]);
    check(Kind::VirtualPresence, json!({"eServiceName": ""}), &["eServiceName: Required value"]);
    check(
        Kind::ServiceExpose,
        json!({"ePolicys": ["p", "", "p"]}),
        &["ePolicys[1]: Invalid value: \"\"", "ePolicys[2]: Duplicate value: \"p\""],
    );
    check(Kind::EPolicy, json!({"allowedServers": ["%2e"]}), &["allowedServers[0]: Invalid value: \"%2e\""]);
    check(Kind::ECommunity, json!({"members": ["a", "a"]}), &["members[1]: Duplicate value"]);
    let many: Vec<String> = (0..10_001).map(|n| format!("s{n}")).collect();
    check(
        Kind::EPolicy,
        json!({"allowedSites": many}),
        &["allowedSites: Too many: 10001: must have at most 10000 items"],
    );
    check(Kind::EServer, json!({"eServerName": "-"}), &["eServerName: Invalid value: \"-\""]);
}

#[test]
fn dns_names_are_those_clients_can_ask_for() {
    let long = format!("{}.com", "a".repeat(64));
    for name in [
        "a b",
        "a..b",
        "-a.com",
        "a-.com",
        "url_1.com",
        "example.com.",
        "*.com",
        "10.0.0.1",
        "ü.com",
        long.as_str(),
    ] {
        check(Kind::ServiceExpose, json!({"dnsName": name}), &["dnsName: Invalid value"]);
    }
    for name in ["a", "A.b", "x1.test.com", "1a.com"] {
        check(Kind::ServiceExpose, json!({"dnsName": name}), &[]);
    }
}

#[test]
fn http_rules_are_methods_and_paths() {
    let rule = |rule: Value, expected: &str| check(Kind::EPolicy, json!({"http": [{}, rule]}), &[expected]);
    rule(
        json!({"methods": ["get"]}),
        "http[1].methods[0]: Invalid value: \"get\": write an HTTP method in capitals",
    );
    rule(json!({"methods": ["GET", "GET"]}), "http[1].methods[1]: Duplicate value");
    rule(
        json!({"paths": ["/a", "/b", "c"]}),
        "http[1].paths[2]: Invalid value: \"c\": write a path that begins with '/'",
    );
    rule(json!({"paths": ["/a*b"]}), "'*' may stand only at its end");
    rule(json!({"paths": ["/a?b=c"]}), "http[1].paths[0]: Invalid value");
    rule(json!({"paths": ["/a b"]}), "http[1].paths[0]: Invalid value");
    let many: Vec<Value> = (0..257).map(|_| json!({})).collect();
    check(Kind::EPolicy, json!({"http": many}), &["http: Too many: 257: must have at most 256 items"]);
}

#[test]
fn metadata_follows_kubernetes() {
    let meta = |meta: Value, expected: &[&str]| {
        let mut metadata = json!({"name": "a"});
        metadata.as_object_mut().unwrap().extend(meta.as_object().unwrap().clone());
        check(Kind::ESite, json!({"metadata": metadata}), expected);
    };
    meta(json!({"name": ""}), &["metadata.name: Required value: a name, or generateName to have one made"]);
    meta(json!({"name": "a_b"}), &["metadata.name: Invalid value: \"a_b\""]);
    meta(json!({"name": "x".repeat(254)}), &["metadata.name: Invalid value"]);
    meta(json!({"name": "", "generateName": "_"}), &["metadata.generateName: Invalid value: \"_\""]);
    meta(json!({"namespace": "default"}), &["metadata.namespace: Forbidden: this kind is cluster-scoped"]);
    meta(
        json!({"labels": {"a b": "c"}}),
        &["metadata.labels[a b]: Invalid value: \"a b\": a key has letters"],
    );
    meta(json!({"labels": {"a": "b c"}}), &["metadata.labels[a]: Invalid value: \"b c\": a label's value"]);
    meta(json!({"labels": {"a": "x".repeat(64)}}), &["metadata.labels[a]: Invalid value"]);
    meta(json!({"annotations": {"a b": "c"}}), &["metadata.annotations[a b]: Invalid value"]);
    meta(json!({"annotations": {"Capital": "any\nthing"}}), &[]);
    meta(
        json!({"annotations": {"a": "x".repeat(300_000)}}),
        &["metadata.annotations: Invalid value: \"300001 bytes\""],
    );
    meta(json!({"finalizers": ["a b"]}), &["metadata.finalizers[0]: Invalid value"]);
    meta(json!({"finalizers": ["a", "a"]}), &["metadata.finalizers[1]: Duplicate value"]);
    meta(
        json!({"ownerReferences": [{"kind": "ESite", "name": "a", "apiVersion": "v1"}]}),
        &["metadata.ownerReferences[0].uid: Required value"],
    );
}

#[test]
fn conditions_are_bounded_and_unique() {
    let condition = |kind: &str, reason: &str, message: String| json!({"type": kind, "status": "True", "reason": reason, "message": message, "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = |conditions: Vec<Value>, expected: &[&str]| {
        check(Kind::ESite, json!({"status": {"conditions": conditions}}), expected);
    };
    status(vec![condition("Ready", "Fine", String::new())], &[]);
    status(vec![condition("a b", "Fine", String::new())], &["status.conditions[0].type: Invalid value"]);
    status(
        vec![condition("A", "not one word", String::new())],
        &["status.conditions[0].reason: Invalid value"],
    );
    status(vec![condition("A", "", String::new())], &["status.conditions[0].reason: Invalid value"]);
    status(vec![condition("A", "B", "x".repeat(40_000))], &["status.conditions[0].message: Too long"]);
    status(
        vec![condition("A", "B", String::new()), condition("A", "B", String::new())],
        &["status.conditions[1].type: Duplicate value"],
    );
    status(
        (0..65).map(|n| condition(&format!("C{n}"), "B", String::new())).collect(),
        &["status.conditions: Too many"],
    );
}

#[test]
fn an_update_keeps_name_and_uid() {
    let object = |name: &str, uid: &str| {
        Object::decode(Kind::ESite, json!({"metadata": {"name": name, "uid": uid}})).unwrap().object
    };
    let errors = |new: &Object, old: &Object| {
        new.validate(Some(old)).iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(errors(&object("a", ""), &object("a", "1")), [""; 0]);
    assert_eq!(errors(&object("a", "1"), &object("a", "1")), [""; 0]);
    assert_eq!(
        errors(&object("a", "2"), &object("a", "1")),
        ["metadata.uid: Invalid value: \"2\": this field is immutable; it is \"1\""]
    );
    assert_eq!(
        errors(&object("b", ""), &object("a", "1")),
        ["metadata.name: Invalid value: \"b\": this field is immutable; it is \"a\""]
    );
}

/// Merges `change` into a valid object and compares the errors: every expected text must occur in the error
/// at the same position.
#[track_caller]
fn check(kind: Kind, change: Value, expected: &[&str]) {
    let mut value = good(kind);
    let fields = value.as_object_mut().unwrap();
    fields.insert("metadata".into(), json!({"name": "n"}));
    fields.extend(change.as_object().unwrap().clone());
    let mut object = Object::decode(kind, value).unwrap().object;
    object.default_fields();
    let errors: Vec<String> = object.validate(None).iter().map(ToString::to_string).collect();
    assert_eq!(errors.len(), expected.len(), "{errors:?}");
    for (error, expected) in errors.iter().zip(expected) {
        assert!(error.contains(expected), "{error}\ndoes not say\n{expected}");
    }
}

#[test]
fn fields_of_layer_3_have_their_rules() {
    let key = crate::layer3::show_key(&[7; 32]);
    check(Kind::ESite, json!({"mappedSubnets": [{"subnet": "10.0.0.0/24", "as": "100.64.7.0/24"}]}), &[]);
    check(
        Kind::ESite,
        json!({"mappedSubnets": [{"subnet": "10.0.0.0/24", "as": "100.64.0.0/23"}]}),
        &[
            "mappedSubnets[0].as: Invalid value: \"100.64.0.0/23\": it must have the address family and the prefix length of 10.0.0.0/24",
        ],
    );
    check(
        Kind::ESite,
        json!({"mappedSubnets": [{"subnet": "10.0.0.0/24"}]}),
        &["mappedSubnets[0].as: Required value: a network and its prefix length"],
    );
    check(
        Kind::ESite,
        json!({"mappedSubnets": [
            {"subnet": "10.0.0.0/24", "as": "100.64.7.0/24"}, {"subnet": "10.0.1.0/24", "as": "100.64.7.0/24"}
        ]}),
        &[
            "mappedSubnets[1]: Invalid value: \"10.0.1.0/24\": it overlaps the mapping of 10.0.0.0/24 as 100.64.7.0/24: \
           an address has one other address",
        ],
    );
    check(
        Kind::EGateway,
        json!({"publicKey": key, "endpoint": "203.0.113.7:51820", "subnets": ["10.9.0.0/24"]}),
        &[],
    );
    check(Kind::EGateway, json!({"publicKey": key, "endpoint": "wg.example.org:51820"}), &[]);
    check(
        Kind::EGateway,
        json!({"publicKey": key}),
        &[
            "endpoint: Required value: a plain WireGuard peer has a public key and an endpoint, for example 203.0.113.7:51820",
        ],
    );
    check(
        Kind::EGateway,
        json!({"endpoint": "203.0.113.7:51820"}),
        &[
            "publicKey: Required value: a plain WireGuard peer has an endpoint and a public key; a Causeway gateway has neither",
        ],
    );
    check(
        Kind::EGateway,
        json!({"publicKey": "AAAA", "endpoint": "203.0.113.7"}),
        &[
            "publicKey: Invalid value: \"AAAA\": write the public key as base64 of 32 bytes, 44 characters, as `wg pubkey` prints it",
            "endpoint: Invalid value: \"203.0.113.7\": write an address or a name, and a port, for example 203.0.113.7:51820 or [2001:db8::7]:51820",
        ],
    );
    check(Kind::EPolicy, json!({"ports": ["tcp/443", "udp/5000-5100", "icmp"]}), &[]);
    for (rule, why) in [
        (
            "443",
            "write tcp or udp, a slash and a port or a range, or icmp; for example tcp/443, udp/5000-5100, icmp",
        ),
        (
            "sctp/1",
            "write tcp or udp, a slash and a port or a range, or icmp; for example tcp/443, udp/5000-5100, icmp",
        ),
        ("tcp/0", "a port is 1 to 65535"),
        ("tcp/+5", "a port is 1 to 65535"),
        ("udp/10-5", "the first port of a range is not above the last"),
        ("icmp/8", "icmp has no ports: write icmp alone"),
    ] {
        let expected = format!("ports[0]: Invalid value: \"{rule}\": {why}");
        check(Kind::EPolicy, json!({"ports": [rule]}), &[expected.as_str()]);
    }
    check(Kind::ECommunity, json!({"mapFrom": "100.64.0.0/10", "ePolicys": ["p"]}), &[]);
    check(
        Kind::ECommunity,
        json!({"mapFrom": "0.0.0.0/0"}),
        &[
            "mapFrom: Invalid value: \"0.0.0.0/0\": the prefix length of a range for mapped networks is 8 to 30",
        ],
    );
    check(Kind::ServiceExpose, json!({"mode": "translate"}), &[]);
    check(
        Kind::EService,
        json!({"protocol": "IP", "healthCheck": {}, "proxyProtocol": true}),
        &[
            "healthCheck: Forbidden: a service of protocol IP: the gateway opens no connection to check",
            "proxyProtocol: Forbidden: a IP backend cannot read a PROXY protocol header",
        ],
    );
}
