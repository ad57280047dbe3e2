//! Foreign bytes: every row gets its 4xx as a Status, and nothing is partially executed.

use serde_json::{Value, json};

use crate::lab::{Content, GROUP, Lab};

struct Row {
    why: &'static str,
    method: &'static str,
    path: String,
    content_type: Option<&'static str>,
    body: Vec<u8>,
    code: u16,
    /// A word that must occur in the message or name a field.
    says: &'static str,
}

fn row(
    why: &'static str,
    method: &'static str,
    path: &str,
    body: impl Into<Vec<u8>>,
    code: u16,
    says: &'static str,
) -> Row {
    Row { why, method, path: path.into(), content_type: None, body: body.into(), code, says }
}

fn typed(content_type: &'static str, row: Row) -> Row {
    Row { content_type: Some(content_type), ..row }
}

fn service(field: &str, value: Value) -> String {
    let mut service = json!({
        "kind": "EService", "metadata": {"name": "s"}, "ip": "10.0.0.1", "port": 80, "protocol": "TCP", "eSiteName": "a",
    });
    service[field] = value;
    service.to_string()
}

fn rows() -> Vec<Row> {
    let sites = &format!("{GROUP}/esites");
    let services = &format!("{GROUP}/eservices");
    let one = &format!("{GROUP}/esites/a");
    let named = |name: &str| json!({"metadata": {"name": name}}).to_string();
    let nested = |open: &str, close: &str| format!("{}1{}", open.repeat(50_000), close.repeat(50_000));
    let merge = "application/merge-patch+json";
    let json_patch = "application/json-patch+json";
    let apply = "application/apply-patch+yaml";
    vec![
        row("no body", "POST", sites, "", 400, "body"),
        row("no JSON", "POST", sites, "hello", 400, "body"),
        row("half an object", "POST", sites, r#"{"metadata":{"name":"x""#, 400, "EOF"),
        row("two objects", "POST", sites, "{}{}", 400, "trailing"),
        row("no UTF-8", "POST", sites, b"{\"metadata\":{\"name\":\"\xff\"}}".to_vec(), 400, "body"),
        row("a list", "POST", sites, "[]", 400, "ESite"),
        row("a number", "POST", sites, "7", 400, "ESite"),
        row("deep lists", "POST", sites, nested("[", "]"), 400, "body"),
        row("deep objects", "POST", sites, nested(r#"{"a":"#, "}"), 400, "body"),
        row(
            "a deep annotation",
            "POST",
            sites,
            format!(r#"{{"metadata":{{"annotations":{}}}}}"#, nested("[", "]")),
            400,
            "body",
        ),
        row("no name", "POST", sites, "{}", 422, "metadata.name"),
        row("metadata is a list", "POST", sites, r#"{"metadata":[]}"#, 422, "metadata"),
        row("a name is a number", "POST", sites, r#"{"metadata":{"name":7}}"#, 422, "metadata.name"),
        row("a name with a slash", "POST", sites, named("a/b"), 422, "metadata.name"),
        row("a name with dots", "POST", sites, named(".."), 422, "metadata.name"),
        row("a name with a space", "POST", sites, named("a b"), 422, "metadata.name"),
        row("a name with a NUL", "POST", sites, named("a\0b"), 422, "metadata.name"),
        row("a long name", "POST", sites, named(&"x".repeat(254)), 422, "metadata.name"),
        row(
            "a namespace",
            "POST",
            sites,
            r#"{"metadata":{"name":"x","namespace":"default"}}"#,
            422,
            "metadata.namespace",
        ),
        row(
            "a bad label",
            "POST",
            sites,
            r#"{"metadata":{"name":"x","labels":{"a b":"c"}}}"#,
            422,
            "metadata.labels",
        ),
        row(
            "a label is a number",
            "POST",
            sites,
            r#"{"metadata":{"name":"x","labels":{"a":1}}}"#,
            422,
            "metadata.labels",
        ),
        row(
            "a bad subnet",
            "POST",
            sites,
            r#"{"metadata":{"name":"x"},"subnets":["10.0.0.0/99"]}"#,
            422,
            "subnets[0]",
        ),
        row(
            "a subnet is no list",
            "POST",
            sites,
            r#"{"metadata":{"name":"x"},"subnets":"10.0.0.0/8"}"#,
            422,
            "subnets",
        ),
        row("another kind", "POST", sites, r#"{"kind":"EGateway","metadata":{"name":"x"}}"#, 400, "EGateway"),
        row(
            "another version",
            "POST",
            sites,
            r#"{"apiVersion":"causeway.io/v9","metadata":{"name":"x"}}"#,
            400,
            "causeway.io/v9",
        ),
        row(
            "a revision at birth",
            "POST",
            sites,
            r#"{"metadata":{"name":"x","resourceVersion":"5"}}"#,
            400,
            "resourceVersion",
        ),
        row("port 0", "POST", services, service("port", json!(0)), 422, "port"),
        row("port 70000", "POST", services, service("port", json!(70_000)), 422, "port"),
        row("a port in words", "POST", services, service("port", json!("http")), 422, "port"),
        row("half a port", "POST", services, service("port", json!(80.5)), 422, "port"),
        row("an unknown protocol", "POST", services, service("protocol", json!("SCTP")), 422, "protocol"),
        row("a bad IP", "POST", services, service("ip", json!("10.0.0.256")), 422, "ip"),
        row("endpoints are an object", "POST", services, service("endpoints", json!({})), 422, "endpoints"),
        row(
            "a bad CIDR",
            "POST",
            &format!("{GROUP}/egateways"),
            r#"{"metadata":{"name":"g"},"eSiteName":"a","virtualPresenceIPcidr":"x"}"#,
            422,
            "virtualPresenceIPcidr",
        ),
        row(
            "a presence of nowhere",
            "POST",
            &format!("{GROUP}/virtualpresences"),
            r#"{"metadata":{"name":"v"},"virtualIp":"10.9.9.9","eServiceName":"s"}"#,
            422,
            "virtualIp",
        ),
        row(
            "a presence without an address",
            "POST",
            &format!("{GROUP}/virtualpresences"),
            r#"{"metadata":{"name":"v"},"eServiceName":"s","eSiteName":"a"}"#,
            422,
            "virtualIp",
        ),
        row("text", "POST", sites, named("x"), 415, "text/plain").with("text/plain"),
        row("protobuf", "POST", sites, named("x"), 415, "protobuf")
            .with("application/vnd.kubernetes.protobuf"),
        row("a form", "POST", sites, "a=b", 415, "x-www-form").with("application/x-www-form-urlencoded"),
        typed("application/yaml", row("bad YAML", "POST", sites, "a: [b", 400, "body")),
        typed("application/yaml", row("a YAML tab", "POST", sites, "a:\n\t- b", 400, "body")),
        typed("application/yaml", row("deep YAML", "POST", sites, "[".repeat(10_000), 400, "body")),
        typed("application/yaml", row("a YAML bomb", "POST", sites, bomb(), 400, "")),
        row("another name", "PUT", one, named("b"), 400, "does not match"),
        row(
            "an unread revision",
            "PUT",
            one,
            r#"{"metadata":{"resourceVersion":"x"}}"#,
            400,
            "resourceVersion",
        ),
        row("nobody there", "PUT", &format!("{sites}/nobody"), named("nobody"), 404, "nobody"),
        row("no type of patch", "PATCH", one, "{}", 415, "merge-patch"),
        typed(merge, row("no JSON", "PATCH", one, "{", 400, "body")),
        typed(merge, row("a list", "PATCH", one, "[]", 400, "object")),
        typed(merge, row("a wrong type", "PATCH", one, r#"{"subnets":7}"#, 422, "subnets")),
        typed(merge, row("force", "PATCH", &format!("{one}?force=true"), "{}", 422, "force")),
        typed(json_patch, row("an object", "PATCH", one, "{}", 400, "patch")),
        typed(
            json_patch,
            row("an unknown operation", "PATCH", one, r#"[{"op":"x","path":"/a"}]"#, 400, "patch"),
        ),
        typed(json_patch, row("no path", "PATCH", one, r#"[{"op":"add","value":1}]"#, 400, "path")),
        typed(
            json_patch,
            row("a missing place", "PATCH", one, r#"[{"op":"remove","path":"/nowhere"}]"#, 422, "/nowhere"),
        ),
        typed(
            json_patch,
            row("a failed test", "PATCH", one, r#"[{"op":"test","path":"/kind","value":"x"}]"#, 422, "/kind"),
        ),
        typed(
            json_patch,
            row("no kind left", "PATCH", one, r#"[{"op":"replace","path":"","value":7}]"#, 400, "ESite"),
        ),
        typed(
            json_patch,
            row(
                "many operations",
                "PATCH",
                one,
                format!("[{}]", vec![r#"{"op":"test","path":"/a"}"#; 10_001].join(",")),
                413,
                "10001",
            )
            .missing_value(),
        ),
        typed(json_patch, row("doubling", "PATCH", one, doubling(), 422, "too large")),
        typed(apply, row("no manager", "PATCH", one, "kind: ESite", 422, "fieldManager")),
        typed(apply, row("no YAML", "PATCH", &format!("{one}?fieldManager=m"), "a: [", 400, "body")),
        typed(apply, row("no object", "PATCH", &format!("{one}?fieldManager=m"), "- a", 400, "ESite")),
        row("a bad option", "DELETE", one, r#"{"propagationPolicy":"x"}"#, 422, "propagationPolicy"),
        row(
            "a bad precondition",
            "DELETE",
            one,
            r#"{"preconditions":{"resourceVersion":"x"}}"#,
            400,
            "resourceVersion",
        ),
        row("a list of options", "DELETE", one, "[]", 400, "DeleteOptions"),
        row("a bad dry run", "DELETE", &format!("{one}?dryRun=Some"), "", 422, "dryRun"),
        row("a bad label selector", "GET", &format!("{sites}?labelSelector=a%20in%20%28"), "", 400, ""),
        row(
            "a bad field selector",
            "GET",
            &format!("{sites}?fieldSelector=status.x%3D1"),
            "",
            400,
            "status.x",
        ),
        row("a bad limit", "GET", &format!("{sites}?limit=many"), "", 400, "limit"),
        row("a bad token", "GET", &format!("{sites}?continue=xyz"), "", 400, "continue"),
        row("a bad revision", "GET", &format!("{sites}?resourceVersion=x"), "", 400, "resourceVersion"),
        row(
            "a bad match",
            "GET",
            &format!("{sites}?resourceVersion=1&resourceVersionMatch=x"),
            "",
            422,
            "resourceVersionMatch",
        ),
        row(
            "a match alone",
            "GET",
            &format!("{sites}?resourceVersionMatch=Exact"),
            "",
            422,
            "resourceVersionMatch",
        ),
        row("a bad timeout", "GET", &format!("{sites}?watch=1&timeoutSeconds=x"), "", 400, "timeoutSeconds"),
        row("a bad include", "GET", &format!("{sites}?includeObject=x"), "", 422, "includeObject"),
        row("a bad validation", "POST", &format!("{sites}?fieldValidation=x"), "{}", 422, "fieldValidation"),
        row("an unknown verb", "TRACE", sites, "", 405, "TRACE"),
        row("POST to an object", "POST", one, "{}", 405, "POST"),
        row("an unknown subresource", "GET", &format!("{one}/scale"), "", 404, "scale"),
        row("a name that climbs", "GET", &format!("{sites}/..%2F..%2Fidentity%2Fca"), "", 404, ""),
        row("another collection", "GET", &format!("{GROUP}/addresses"), "", 404, "addresses"),
        row(
            "a review of nothing",
            "POST",
            "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
            "{}",
            400,
            "resourceAttributes",
        ),
        row("no review", "POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", "[", 400, ""),
    ]
}

impl Row {
    fn with(self, content_type: &'static str) -> Row {
        Row { content_type: Some(content_type), ..self }
    }

    /// A `test` operation needs a value; the count is checked after all are read.
    fn missing_value(self) -> Row {
        let body =
            String::from_utf8(self.body).unwrap().replace(r#""path":"/a""#, r#""path":"/a","value":1"#);
        Row { body: body.into(), ..self }
    }
}

fn doubling() -> String {
    let steps = (0..60).map(|n| format!(r#"{{"op":"copy","from":"","path":"/x{n}"}}"#)).collect::<Vec<_>>();
    format!("[{}]", steps.join(","))
}

fn bomb() -> String {
    let mut text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n".to_owned();
    for n in 1..12 {
        let last = n - 1;
        text += &format!("a{n}: &a{n} [{}]\n", vec![format!("*a{last}"); 10].join(","));
    }
    text
}

#[tokio::test]
async fn every_bad_request_gets_its_4xx_and_changes_nothing() {
    let lab = Lab::new().await;
    lab.site("a", "x").await;
    let before = lab.store.revision().await.unwrap();
    let rows = rows();
    assert!(rows.len() >= 80, "{}", rows.len());
    let mut wrong = Vec::new();
    for row in rows {
        let content_type = row.content_type.map(|value| ("content-type", value));
        let body = Content::from(bytes::Bytes::from(row.body));
        let headers: Vec<_> = content_type.into_iter().collect();
        let found = lab.ask_with(row.method, &row.path, body, &headers).await;
        let told = found.json.to_string();
        let fine = found.code == row.code
            && found.json["kind"] == "Status"
            && told.contains(row.says)
            && told.len() < 20_000;
        if !fine {
            wrong.push(format!("{} ({} {}): {} {told:.300}", row.why, row.method, row.path, found.code));
        }
    }
    assert!(wrong.is_empty(), "\n{}", wrong.join("\n"));
    assert_eq!(lab.store.revision().await.unwrap(), before);
    let accept = [("accept", "text/html")];
    assert_eq!(
        lab.ask_with("GET", &format!("{GROUP}/esites"), (), &accept).await.expect(406)["kind"],
        "Status"
    );
}
