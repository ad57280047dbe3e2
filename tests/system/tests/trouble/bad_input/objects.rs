//! Objects that are wrong: types, values, names, sizes, and how the bytes are written.

use serde_json::{Value, json};
use testlab::https::Request;

use super::{Row, create, named, refused, warned, wrong};
use crate::GROUP;

pub(super) fn rows() -> Vec<Row> {
    [types(), values(), names(), presences(), unknown(), bytes()].into_iter().flatten().collect()
}

fn types() -> Vec<Row> {
    let row =
        |says, plural: &str, fields: Value, field| wrong(says, create(plural, &named("x", fields)), field);
    vec![
        row("a list is no string", "esites", json!({"subnets": "10.0.0.0/8"}), "subnets"),
        row("a list holds what its schema says", "esites", json!({"subnets": [7]}), "subnets[0]"),
        row("a priority is a number", "egateways", json!({"priority": "high"}), "priority"),
        row("a flag is true or false", "egateways", json!({"relay": "yes"}), "relay"),
        row("a port is no string", "eservices", json!({"port": "80"}), "port"),
        row("a port is no fraction", "eservices", json!({"port": 80.5}), "port"),
        row(
            "a check of health is an object",
            "eservices",
            json!({"port": 80, "healthCheck": "tcp"}),
            "healthCheck",
        ),
        row("every port of a server is a number", "eservers", json!({"ports": [22, "23"]}), "ports[1]"),
        row(
            "a limit is a number",
            "epolicies",
            json!({"limits": {"connections": "many"}}),
            "limits.connections",
        ),
        row("limits are an object", "epolicies", json!({"limits": [1]}), "limits"),
        row("sites are a list", "serviceexposes", json!({"eSites": {"a": 1}}), "eSites"),
        row("an address is a string", "virtualpresences", json!({"virtualIp": 7}), "virtualIp"),
        row("members are names", "ecommunities", json!({"members": [{}]}), "members[0]"),
        wrong("metadata is an object", create("esites", &json!({"metadata": "x"})), "metadata"),
        wrong(
            "a label is a string",
            create("esites", &json!({"metadata": {"name": "x", "labels": {"a": 1}}})),
            "metadata.labels.a",
        ),
        wrong("a name is a string", create("esites", &json!({"metadata": {"name": 5}})), "metadata.name"),
    ]
}

fn values() -> Vec<Row> {
    let site = |says, cidr: &str| {
        wrong(says, create("esites", &named("x", json!({"subnets": [cidr]}))), "subnets[0]")
    };
    let service = |says, fields: Value, field| wrong(says, create("eservices", &named("x", fields)), field);
    let gateway = |says, fields: Value, field| wrong(says, create("egateways", &named("x", fields)), field);
    vec![
        site("a network has no host bits", "10.0.0.1/8"),
        site("a prefix has at most 32 bits", "10.0.0.0/33"),
        site("garbage is no network", "over there"),
        site("an address alone is no network", "10.0.0.0"),
        gateway(
            "a range of presences is not the internet",
            json!({"eSiteName": "s", "virtualPresenceIPcidr": "0.0.0.0/0"}),
            "virtualPresenceIPcidr",
        ),
        gateway(
            "a range of presences holds hosts",
            json!({"eSiteName": "s", "virtualPresenceIPcidr": "10.0.0.0/32"}),
            "virtualPresenceIPcidr",
        ),
        gateway("a gateway's address is one host's", json!({"eSiteName": "s", "ip": "224.0.0.1"}), "ip"),
        gateway("a gateway stands at a site", json!({}), "eSiteName"),
        service(
            "an address has four parts below 256",
            json!({"ip": "10.0.0.256", "port": 80, "eSiteName": "s"}),
            "ip",
        ),
        service(
            "an address is not a network",
            json!({"ip": "10.0.0.0/24", "port": 80, "eSiteName": "s"}),
            "ip",
        ),
        service("port 0 is none", json!({"ip": "10.0.0.1", "port": 0, "eSiteName": "s"}), "port"),
        service("ports end at 65535", json!({"ip": "10.0.0.1", "port": 65536, "eSiteName": "s"}), "port"),
        service("ports are not negative", json!({"ip": "10.0.0.1", "port": -1, "eSiteName": "s"}), "port"),
        service(
            "a protocol is one of six",
            json!({"ip": "10.0.0.1", "port": 80, "protocol": "SCTP", "eSiteName": "s"}),
            "protocol",
        ),
        service(
            "a protocol is written in capitals",
            json!({"ip": "10.0.0.1", "port": 80, "protocol": "http", "eSiteName": "s"}),
            "protocol",
        ),
        service(
            "an endpoint has a port",
            json!({"port": 80, "eSiteName": "s", "endpoints": [{"ip": "10.0.0.1", "port": 99999}]}),
            "endpoints[0].port",
        ),
        service(
            "a bundle of CAs is PEM",
            json!({"ip": "10.0.0.1", "port": 443, "eSiteName": "s", "backendTLS": {"mode": "Verify", "caBundle": "AAAA"}}),
            "backendTLS.caBundle",
        ),
        wrong(
            "a server's ports are ports",
            create("eservers", &named("x", json!({"ip": "10.0.0.1", "eSiteName": "s", "ports": [0]}))),
            "ports[0]",
        ),
        wrong(
            "a limit is not negative",
            create("epolicies", &named("x", json!({"limits": {"connections": -5}}))),
            "limits.connections",
        ),
        wrong(
            "a path begins with a slash",
            create("epolicies", &named("x", json!({"http": [{"paths": ["x"]}]}))),
            "http[0].paths[0]",
        ),
        wrong(
            "a DNS name has no spaces",
            create("serviceexposes", &named("x", json!({"eServiceName": "web", "dnsName": "a b"}))),
            "dnsName",
        ),
        wrong(
            "an exposure is of a service",
            create("serviceexposes", &named("x", json!({"dnsName": "a.b"}))),
            "eServiceName",
        ),
        wrong(
            "a member stands once",
            create("ecommunities", &named("x", json!({"members": ["a", "a"]}))),
            "members[1]",
        ),
    ]
}

fn names() -> Vec<Row> {
    let row = |says, name: &str| wrong(says, create("esites", &named(name, json!({}))), "metadata.name");
    let generated = |says, prefix: &str| {
        wrong(says, create("esites", &json!({"metadata": {"generateName": prefix}})), "metadata.generateName")
    };
    vec![
        row("a name has no slash", "a/b"),
        row("a name has no percent sign", "a%2fb"),
        row("a name begins with a letter or digit", ".hidden"),
        row("a name has no two dots in a row", "a..b"),
        row("a name has no spaces", "a b"),
        row("a name is ASCII", "m\u{fc}nchen"),
        row("a name has no control characters", "a\u{0}b"),
        row("a name has at most 253 characters", &"n".repeat(254)),
        wrong("a name is needed", create("esites", &json!({"metadata": {}})), "metadata.name"),
        generated("a prefix has at most 248 characters", &"p".repeat(300)),
        generated("a prefix follows the rules of names", "-x"),
        wrong(
            "the key of a label has rules",
            create("esites", &json!({"metadata": {"name": "x", "labels": {"a b": "c"}}})),
            "metadata.labels[a b]",
        ),
        wrong(
            "the value of a label has rules",
            create("esites", &json!({"metadata": {"name": "x", "labels": {"a": "b c"}}})),
            "metadata.labels[a]",
        ),
        refused(
            "a taken name is a conflict",
            create("esites", &named("oslo", json!({}))),
            409,
            "AlreadyExists",
            "oslo",
        ),
    ]
}

fn presences() -> Vec<Row> {
    let row =
        |says, fields: Value, field| wrong(says, create("virtualpresences", &named("x", fields)), field);
    vec![
        row(
            "a presence lies inside its site's range",
            json!({"virtualIp": "10.21.0.1", "eServiceName": "web", "eSiteName": "oslo"}),
            "virtualIp",
        ),
        row(
            "a presence lies inside somebody's range",
            json!({"virtualIp": "172.16.0.1", "eServiceName": "web"}),
            "virtualIp",
        ),
        row(
            "a presence has an address of its own",
            json!({"virtualIp": "10.20.0.9", "eServiceName": "web", "eSiteName": "oslo"}),
            "virtualIp",
        ),
        row(
            "a presence's site must be clear",
            json!({"virtualIp": "10.20.0.10", "eServiceName": "web"}),
            "eSiteName",
        ),
        row(
            "a presence is no network address",
            json!({"virtualIp": "10.20.0.0", "eServiceName": "web", "eSiteName": "oslo"}),
            "virtualIp",
        ),
        row(
            "a presence has an address",
            json!({"virtualIp": "here", "eServiceName": "web", "eSiteName": "oslo"}),
            "virtualIp",
        ),
        row(
            "a presence is of a service",
            json!({"virtualIp": "10.20.0.10", "eSiteName": "oslo"}),
            "eServiceName",
        ),
    ]
}

fn unknown() -> Vec<Row> {
    let to = |query: &str, body: &str| {
        Request::new("POST", &format!("{GROUP}/esites?dryRun=All{query}")).body("application/json", body)
    };
    let colour = r#"{"metadata":{"name":"x"},"colour":"red"}"#;
    let nested = r#"{"metadata":{"name":"x","nmae":"y"}}"#;
    let twice = r#"{"metadata":{"name":"x"},"subnets":[],"subnets":["10.0.0.0/8"]}"#;
    vec![
        warned("an unknown field is warned of", to("", colour), 201, r#"unknown field \"colour\""#),
        warned(
            "an unknown field further down as well",
            to("", nested),
            201,
            r#"unknown field \"metadata.nmae\""#,
        ),
        warned("a key that stands twice is warned of", to("", twice), 201, r#"duplicate field \"subnets\""#),
        refused(
            "strictly, an unknown field is an error",
            to("&fieldValidation=Strict", colour),
            400,
            "BadRequest",
            "unknown field \"colour\"",
        ),
        refused(
            "strictly, a key that stands twice is an error",
            to("&fieldValidation=Strict", twice),
            400,
            "BadRequest",
            "duplicate field \"subnets\"",
        ),
    ]
}

fn bytes() -> Vec<Row> {
    let sent = |kind: &str, body: Vec<u8>| Request::new("POST", &format!("{GROUP}/esites")).body(kind, body);
    let json =
        |says, body: Vec<u8>| refused(says, sent("application/json", body), 400, "BadRequest", "the body");
    let yaml = |says, body: String| {
        refused(says, sent("application/yaml", body.into()), 400, "BadRequest", "the body")
    };
    let nested = |open: &str, close: &str, depth| [open.repeat(depth), close.repeat(depth)].concat();
    let policy = json!({"metadata": {"name": "x"}, "allowedServers": (0..9_000).map(|n| format!("{:0>150}", n)).collect::<Vec<_>>()});
    let notes = json!({"metadata": {"name": "x", "annotations": {"note": "n".repeat(300 << 10)}}});
    vec![
        json("an empty body is no object", Vec::new()),
        json("a cut off body is no object", br#"{"metadata":{"name":"#.to_vec()),
        json("two objects are not one", br#"{"metadata":{"name":"x"}}{}"#.to_vec()),
        json("a byte order mark is no JSON", b"\xef\xbb\xbf{\"metadata\":{\"name\":\"x\"}}".to_vec()),
        json("bytes that are no UTF-8 are refused", b"{\"metadata\":{\"name\":\"\xff\xfe\"}}".to_vec()),
        json("a number beyond all numbers is refused", br#"{"metadata":{"name":"x"},"a":1e999}"#.to_vec()),
        json("a list is no object", b"[]".to_vec()),
        json("a deep list is refused", nested("[", "]", 200_000).into()),
        json(
            "a deep object is refused",
            [r#"{"a":"#.repeat(100_000), "1".into(), "}".repeat(100_000)].concat().into(),
        ),
        json("binary is refused", vec![0; 4096]),
        yaml("deep YAML is refused", nested("[", "]", 50_000)),
        yaml("YAML that grows by references is refused", bomb()),
        yaml("YAML with a tab for a space is refused", "metadata:\n\tname: x\n".into()),
        yaml("a reference without an anchor is refused", "metadata: *nowhere\n".into()),
        refused(
            "a body of megabytes is too large",
            sent("application/json", vec![b' '; 4 << 20]),
            413,
            "RequestEntityTooLarge",
            "larger than",
        ),
        refused(
            "an announced terabyte is not waited for",
            sent("application/json", Vec::new()).header("content-length", "1099511627776"),
            413,
            "RequestEntityTooLarge",
            "larger than",
        ),
        refused(
            "an object of a megabyte is too large",
            create("epolicies", &policy),
            413,
            "RequestEntityTooLarge",
            "would take more than",
        ),
        wrong("annotations end at 256 KiB", create("esites", &notes), "metadata.annotations"),
    ]
}

/// Nine generations, each nine times the one before.
fn bomb() -> String {
    let mut text = String::from("a0: &a0 [x,x,x,x,x,x,x,x,x]\n");
    for n in 1..10 {
        let before = vec![format!("*a{}", n - 1); 9].join(",");
        text.push_str(&format!("a{n}: &a{n} [{before}]\n"));
    }
    text
}
