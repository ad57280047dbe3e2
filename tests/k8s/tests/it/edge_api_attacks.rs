//! Attacks on the Kubernetes API at the edge: a pod that wants Secrets of other pods, borrowed identities, tokens and certificates that should
//! not count, and clients that flood connections. Each row was tried against the program; other clients are served after each of them.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::{Value, json};
use testlab::causeway::{finish, wait_for};

use crate::edge_api::{EdgeLab, missing};

const SECRETS: &str = "/api/v1/namespaces/default/secrets";
const MAP: &str = "/api/v1/namespaces/default/configmaps/map-1";
/// The word of the Secret that is not for the pod, as the API shows it.
const FORBIDDEN_WORD: &str = "Zm9yYmlkZGVuLXdvcmQ=";

/// The code and the body of a request by curl, with a token.
fn ask(lab: &EdgeLab, token: &str, more: &[&str], path: &str) -> (String, String) {
    let mut curl = Command::new("curl");
    curl.args([
        "--silent",
        "--max-time",
        "5",
        "--noproxy",
        "*",
        "--path-as-is",
        "--write-out",
        "\n%{http_code}",
    ]);
    curl.arg("--cacert").arg(lab.folder.path().join("edge/kubernetes/ca.pem"));
    curl.arg("--header").arg(format!("Authorization: Bearer {token}")).args(more);
    curl.arg(format!("https://{}{path}", lab.address()));
    let out = finish(curl, None).unwrap().stdout;
    let (body, code) = out.rsplit_once('\n').unwrap_or(("", &out));
    (code.to_owned(), body.to_owned())
}

fn token_of(lab: &EdgeLab, account: &str, bound: Option<(&str, &str)>) -> String {
    let mut request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}});
    if let Some((name, uid)) = bound {
        request["spec"]["boundObjectRef"] =
            json!({"kind": "Pod", "apiVersion": "v1", "name": name, "uid": uid});
    }
    let file = lab.folder.path().join("token-request.json");
    std::fs::write(&file, request.to_string()).unwrap();
    let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
    let answer = lab.direct().ok(&format!("create --raw {path} -f {}", file.display()));
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

/// The subscriptions of a resource.
fn held(lab: &EdgeLab, plural: &str) -> Vec<Value> {
    let all = lab.dump().and_then(|dump| dump["resources"].as_array().cloned()).unwrap_or_default();
    all.into_iter().filter(|entry| entry["scope"]["resource"]["plural"] == plural).collect()
}

fn is_live(lab: &EdgeLab, plural: &str) -> bool {
    held(lab, plural).iter().any(|entry| entry["live"] == true)
}

fn cut(lab: &EdgeLab) {
    lab.relay.cut();
    wait_for("the edge knows that the link is cut", || (!is_live(lab, "secrets")).then_some(())).unwrap();
}

/// Subscriptions are bounded; one that no right stands behind would take the place of a kubelet's.
fn a_caller_without_rights_begins_nothing(lab: &EdgeLab) {
    let nothing = token_of(lab, "nothing", None);
    let scopes = || held(lab, "secrets").len() + held(lab, "configmaps").len();
    let before = scopes();
    for number in 0..5 {
        for path in [
            format!("{SECRETS}?labelSelector=n%3D{number}"),
            format!("{SECRETS}?labelSelector=n%3D{number}&watch=1&timeoutSeconds=1"),
            format!("{SECRETS}/missing-{number}"),
            format!("/api/v1/configmaps?labelSelector=n%3D{number}"),
        ] {
            assert_eq!(ask(lab, &nothing, &[], &path).0, "403", "{path}");
        }
    }
    assert_eq!(scopes(), before);
}

#[test]
fn attackers_get_no_more_than_their_rights() {
    if let Some(reason) = missing() {
        println!("SKIPPED: attacks on the Kubernetes API at the edge: {reason}");
        return;
    }
    let mut lab = EdgeLab::start();
    let direct = lab.direct();
    lab.config_map("map-1", "first");
    for line in [
        "create serviceaccount till",
        "create serviceaccount nothing",
        "create secret generic own --from-literal=word=own-word",
        "create secret generic other --from-literal=word=forbidden-word",
        "create role own --verb=get,list,watch --resource=secrets --resource-name=own",
        "create role maps --verb=get --resource=configmaps",
        "create rolebinding own --role=own --serviceaccount=default:till",
        "create rolebinding maps --role=maps --serviceaccount=default:till",
    ] {
        direct.ok(line);
    }
    let servers = "---\n{kind: ESite, apiVersion: causeway.io/v1, metadata: {name: Osaka}}\n\
         ---\n{kind: EServer, apiVersion: causeway.io/v1, metadata: {name: node-a}, ip: 10.0.0.2, eSiteName: Tokyo}\n\
         ---\n{kind: EServer, apiVersion: causeway.io/v1, metadata: {name: node-b}, ip: 10.0.0.2, eSiteName: Osaka}\n";
    lab.cloud.apply(servers).unwrap();
    let (till, admin) = (token_of(&lab, "till", None), lab.cluster.token());
    // The site holds all Secrets of the namespace, because the operator pinned them; the pod has read its own.
    for path in [SECRETS.to_owned(), MAP.to_owned(), format!("{SECRETS}/other")] {
        assert_eq!(ask(&lab, &admin, &[], &path).0, "200");
    }
    assert_eq!(ask(&lab, &till, &[], &format!("{SECRETS}/own")).0, "200");
    assert_eq!(ask(&lab, &till, &[], MAP).0, "200");
    lab.await_live("secrets");
    lab.await_live("configmaps");

    secrets_stay_closed(&lab, &till, "online");
    impersonation_is_decided_by_the_api_server(&lab, &admin, true);
    let (bound, pod_path) = a_bound_token_ends_with_its_pod(&lab);
    nodes_of_other_sites_write_nothing(&lab, true);

    cut(&lab);
    secrets_stay_closed(&lab, &till, "without the cloud");
    impersonation_is_decided_by_the_api_server(&lab, &admin, false);
    assert_eq!(ask(&lab, &bound, &[], MAP).0, "401", "its pod {pod_path} is gone");
    nodes_of_other_sites_write_nothing(&lab, false);
    lab.restart_edge();
    secrets_stay_closed(&lab, &till, "after a restart without the cloud");
    assert_eq!(ask(&lab, &bound, &[], MAP).0, "401", "its pod is gone");

    lab.relay.restore();
    wait_for("the edge is current again", || is_live(&lab, "secrets").then_some(())).unwrap();
    a_caller_without_rights_begins_nothing(&lab);
    floods_of_http2(&lab, &till);
    silent_connections(&lab, &till);
}

/// No form of a request shows the other Secret to the pod.
fn secrets_stay_closed(lab: &EdgeLab, till: &str, when: &str) {
    let (code, own) = ask(lab, till, &[], &format!("{SECRETS}/own"));
    assert!(code == "200" && own.contains("b3duLXdvcmQ="), "{when}: {code} {own}");
    let forged = "eyJjYXVzZXdheSI6MSwicmV2aXNpb24iOjEsImFmdGVyIjoiIn0";
    for path in [
        format!("{SECRETS}/other"),
        SECRETS.to_owned(),
        "/api/v1/secrets".to_owned(),
        format!("{SECRETS}/own/../other"),
        format!("{SECRETS}/own%2f..%2fother"),
        format!("{SECRETS}/own/%2e%2e/other"),
        format!("/{SECRETS}/other"),
        format!("{SECRETS}//other"),
        format!("{SECRETS}/other/"),
        format!("{SECRETS}/%6fther"),
        format!("{SECRETS}/other%00"),
        format!("{SECRETS}/other?fieldSelector=metadata.name%3Down"),
        format!("{SECRETS}?fieldSelector=metadata.name%3Dother"),
        format!("{SECRETS}?fieldSelector=metadata.name%3Down&fieldSelector=metadata.name%3Dother"),
        format!("{SECRETS}?fieldSelector=metadata.name%3Down&fieldSelector="),
        format!("{SECRETS}?fieldSelector=metadata.name!%3Down"),
        format!("{SECRETS}?fieldSelector=metadata.name%3Down%2Cmetadata.name%3Dother"),
        format!("{SECRETS}?limit=1&continue={forged}"),
        format!("{SECRETS}?fieldSelector=metadata.name%3Down&limit=9&continue={forged}"),
        format!("{SECRETS}?watch=1&timeoutSeconds=1"),
        format!("{SECRETS}/other?watch=1&timeoutSeconds=1"),
        format!("{SECRETS}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Dother"),
        "/api/v1/watch/namespaces/default/secrets?timeoutSeconds=1".to_owned(),
        "/api/v1/watch/namespaces/default/secrets/other?timeoutSeconds=1".to_owned(),
        "/apis//v1/namespaces/default/secrets/other".to_owned(),
        "/.causeway/site/../../api/v1/namespaces/default/secrets/other".to_owned(),
    ] {
        for accept in ["application/json", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"] {
            let (code, body) = ask(lab, till, &["--header", &format!("Accept: {accept}")], &path);
            assert!(!body.contains(FORBIDDEN_WORD), "{when}: {path} ({accept}): {code} {body}");
            // A table has names and sizes, no words.
            let shows_row = code == "200" && body.contains(r#""name":"other""#);
            assert!(!shows_row, "{when}: {path} ({accept}): {body}");
        }
    }
    for header in ["X-Remote-User: admin", "X-Causeway-Node: node-a", "Impersonate-User: admin"] {
        let (code, body) = ask(lab, till, &["--header", header], &format!("{SECRETS}/other"));
        assert!(matches!(code.as_str(), "401" | "403" | "503"), "{when}: {header}: {code} {body}");
    }
}

/// The rights of the caller itself say nothing about the user that it wants to be.
fn impersonation_is_decided_by_the_api_server(lab: &EdgeLab, admin: &str, online: bool) {
    let nothing = "Impersonate-User: system:serviceaccount:default:nothing";
    let (code, body) = ask(lab, admin, &["--header", nothing], MAP);
    let expected = if online { "403" } else { "503" };
    assert!(code == expected && !body.contains("first"), "online {online}: {code} {body}");
    if online {
        let till = "Impersonate-User: system:serviceaccount:default:till";
        let (code, body) = ask(lab, admin, &["--header", till], MAP);
        assert!(code == "200" && body.contains("first"), "{code} {body}");
    }
    let node = lab.as_certified("system:node:node-a", "system:nodes");
    let refused = node.run(&format!("get --raw {MAP} --as=admin --as-group=system:masters"));
    assert!(refused.code != 0 && refused.stderr.contains("orbidden"), "online {online}: {refused:?}");
}

/// Returns a token that was bound to a pod which is gone.
fn a_bound_token_ends_with_its_pod(lab: &EdgeLab) -> (String, String) {
    let direct = lab.direct();
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "box"}, "spec": {"nodeName": "node-a",
        "serviceAccountName": "till", "containers": [{"name": "box", "image": "box"}]}});
    direct.ok_with(&pod.to_string(), "create -f -");
    let uid = direct.ok("get pod box -o 'jsonpath={.metadata.uid}'");
    let token = token_of(lab, "till", Some(("box", &uid)));
    // As a kubelet holds its pods.
    let pods = "get --raw '/api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a'";
    let node = lab.as_certified("system:node:node-a", "system:nodes");
    wait_for("the edge knows the CA of client certificates", || node.run(pods).success().ok()).unwrap();
    lab.await_live("pods");
    wait_for("the pod is in the copy", || node.ok(pods).contains(&uid).then_some(())).unwrap();
    assert_eq!(ask(lab, &token, &[], MAP).0, "200");
    cut(lab);
    assert_eq!(ask(lab, &token, &[], MAP).0, "200", "without the cloud, while its pod is there");
    lab.relay.restore();
    lab.await_live("pods");
    direct.ok("delete pod box --grace-period=0 --force");
    wait_for("the pod has left the copy", || (!node.ok(pods).contains(&uid)).then_some(())).unwrap();
    wait_for("the token has ended", || (ask(lab, &token, &[], MAP).0 == "401").then_some(()))
        .unwrap_or_else(|error| panic!("{error}: {:?}", ask(lab, &token, &[], MAP)));
    // Another token of the same account counts, and does not bring the ended one back.
    assert_eq!(ask(lab, &token_of(lab, "till", None), &[], MAP).0, "200");
    assert_eq!(ask(lab, &token, &[], MAP).0, "401");
    (token, format!("default/box ({uid})"))
}

/// A node writes at the site that its EServer names, and nowhere else; also while the cloud cannot be asked.
fn nodes_of_other_sites_write_nothing(lab: &EdgeLab, online: bool) {
    let event = |node: &str| {
        let name = format!("{node}-{online}");
        let event = json!({"kind": "Event", "apiVersion": "v1", "metadata": {"name": name, "namespace": "default"},
            "involvedObject": {"kind": "Node", "name": node}, "reason": "Test", "type": "Normal"});
        let file = lab.folder.path().join("event.json");
        std::fs::write(&file, event.to_string()).unwrap();
        let kubectl = lab.as_certified(&format!("system:node:{node}"), "system:nodes");
        if online {
            kubectl.run(&format!("get --raw /api/v1/nodes/{node}"));
        }
        kubectl.run(&format!("create --raw /api/v1/namespaces/default/events -f {}", file.display()))
    };
    let own = event("node-a");
    assert_eq!(own.code, 0, "online {online}: {own:?}");
    let foreign = event("node-b");
    assert!(foreign.code != 0 && foreign.stderr.contains("orbidden"), "online {online}: {foreign:?}");
}

type TlsClient = StreamOwned<ClientConnection, TcpStream>;

fn tls(lab: &EdgeLab, protocols: &[&str]) -> TlsClient {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let mut roots = RootCertStore::empty();
    let ca = lab.folder.path().join("edge/kubernetes/ca.pem");
    for certificate in CertificateDer::pem_file_iter(ca).unwrap() {
        roots.add(certificate.unwrap()).unwrap();
    }
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let stream = TcpStream::connect(lab.address()).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(5))).unwrap();
    let name = ServerName::from(lab.address().ip());
    let mut client = StreamOwned::new(ClientConnection::new(Arc::new(config), name).unwrap(), stream);
    while client.conn.is_handshaking() {
        client.conn.complete_io(&mut client.sock).unwrap();
    }
    client
}

/// A frame of HTTP/2 (RFC 9113, section 4.1).
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut out = vec![length[1], length[2], length[3], kind, flags];
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

fn resident_kib(lab: &EdgeLab) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", lab.edge.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Floods of RFC 9113, section 10.5, and the resets and continuations of 2023 and 2024. The edge ends such a connection or answers it; its
/// memory stays bounded.
fn floods_of_http2(lab: &EdgeLab, till: &str) {
    let preface = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &frame(4, 0, 0, &[])].concat();
    // :method GET, :scheme https, :path /, and no credential.
    let head = [0x82, 0x87, 0x84, 0x01, 1, b'e'];
    let before = resident_kib(lab);
    let reset = |number: u32| {
        let stream = 2 * number + 1;
        [frame(1, 5, stream, &head), frame(3, 0, stream, &8u32.to_be_bytes())].concat()
    };
    let floods: [(&str, Vec<u8>); 5] = [
        ("streams that are reset at once", (0..20_000).flat_map(reset).collect()),
        ("settings that are never read", frame(4, 0, 0, &[]).repeat(50_000)),
        ("pings that are never read", frame(6, 0, 0, &[7; 8]).repeat(50_000)),
        (
            "a head without an end",
            [frame(1, 0, 1, &head), frame(9, 0, 1, &[0x40, 1, b'x', 1, b'y'].repeat(2_000)).repeat(400)]
                .concat(),
        ),
        ("empty continuations", [frame(1, 0, 1, &head), frame(9, 0, 1, &[]).repeat(100_000)].concat()),
    ];
    for (sentence, flood) in floods {
        let mut client = tls(lab, &["h2"]);
        // The edge may end the connection at any byte.
        let taken = client.write_all(&preface).and_then(|()| client.write_all(&flood)).is_ok();
        let (code, _) = ask(lab, till, &[], MAP);
        println!(
            "{sentence}: taken whole {taken}; the edge has {} KiB resident, {before} before",
            resident_kib(lab)
        );
        assert_eq!(code, "200", "others are served: {sentence}");
        let _ = client.read(&mut [0; 1]);
    }
    assert!(resident_kib(lab) < before + (64 << 10), "memory is bounded");
}

/// The files that a process may have open.
fn open_files_max() -> usize {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
    let line = limits.lines().find_map(|line| line.strip_prefix("Max open files")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap_or(usize::MAX)
}

/// More silent connections than the listener has places, where the machine allows that number.
fn silent_connections(lab: &EdgeLab, till: &str) {
    let silent: Vec<TlsClient> =
        (0..4_200.min(open_files_max() / 2)).map(|_| tls(lab, &["http/1.1"])).collect();
    let (code, body) = ask(lab, till, &[], MAP);
    assert_eq!(code, "200", "a caller is served beside {} silent connections: {body}", silent.len());
    println!("{} silent connections: the edge has {} KiB resident", silent.len(), resident_kib(lab));
}
