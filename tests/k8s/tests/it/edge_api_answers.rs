//! Single answers of the API at the edge beside those of the API server: tokens that have expired, revisions, metadata alone, discovery, bodies in CBOR,
//! and requests under a link that swallows everything. Each with the cloud, without it, and after a restart without it.

use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};
use testlab::causeway::{finish, wait_for};
use testlab::relay::Faults;

use crate::edge_api::{EdgeLab, missing};

const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const MAP: &str = "/api/v1/namespaces/default/configmaps/map-1";

/// A server of the Kubernetes API, and a credential for it.
struct Server {
    address: String,
    ca: PathBuf,
    token: String,
}

struct CurlAnswer {
    code: String,
    headers: String,
    body: String,
}

impl CurlAnswer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body)
            .unwrap_or_else(|error| panic!("{error}: {} {}", self.code, self.body))
    }

    /// The parts of a refusal that clients look at.
    fn refusal(&self) -> Value {
        let status = self.json();
        let causes = status["details"]["causes"].as_array().into_iter().flatten();
        let causes: Vec<Value> = causes.map(|cause| cause["reason"].clone()).collect();
        json!([self.code, status["kind"], status["code"], status["reason"], causes])
    }
}

impl Server {
    fn edge(lab: &EdgeLab) -> Server {
        let ca = lab.folder.path().join("edge/kubernetes/ca.pem");
        Server { address: lab.address().to_string(), ca, token: lab.cluster.token() }
    }

    fn direct(lab: &EdgeLab) -> Server {
        let port = std::fs::read_to_string(lab.cluster.0.join("port")).unwrap();
        let address = format!("127.0.0.1:{}", port.trim());
        Server { address, ca: lab.cluster.0.join("pki/ca.crt"), token: lab.cluster.token() }
    }

    fn with_token(&self, token: &str) -> Server {
        Server { address: self.address.clone(), ca: self.ca.clone(), token: token.to_owned() }
    }

    fn send(&self, more: &[&str], path: &str) -> CurlAnswer {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--include", "--http1.1", "--max-time", "20", "--noproxy", "*"]);
        curl.arg("--cacert").arg(&self.ca).args(more).arg(format!("https://{}{path}", self.address));
        if !self.token.is_empty() {
            curl.arg("--header").arg(format!("Authorization: Bearer {}", self.token));
        }
        let out = finish(curl, None).unwrap().stdout;
        let (headers, body) = out.split_once("\r\n\r\n").unwrap_or((&out, ""));
        let code = headers.split(' ').nth(1).unwrap_or_default().to_owned();
        CurlAnswer { code, headers: headers.to_ascii_lowercase(), body: body.to_owned() }
    }

    fn get(&self, path: &str) -> CurlAnswer {
        self.send(&[], path)
    }

    fn get_as(&self, path: &str, kind: &str) -> Value {
        let accept = format!("Accept: application/json;as={kind};g=meta.k8s.io;v=v1");
        self.send(&["--header", &accept], path).json()
    }

    fn post(&self, path: &str, media: &str, body: &str) -> CurlAnswer {
        let media = format!("Content-Type: {media}");
        self.send(&["--header", &media, "--data-binary", body], path)
    }
}

/// A token with other claims, signed with the key of the cluster.
fn resigned(lab: &EdgeLab, token: &str, change: impl FnOnce(&mut Value)) -> String {
    let mut parts = token.split('.');
    let (head, claims) = (parts.next().unwrap(), parts.next().unwrap());
    let mut claims: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(claims).unwrap()).unwrap();
    change(&mut claims);
    let message = format!("{head}.{}", URL_SAFE_NO_PAD.encode(claims.to_string()));
    let (file, signature) = (lab.folder.path().join("message"), lab.folder.path().join("signature"));
    std::fs::write(&file, &message).unwrap();
    let mut sign = Command::new("openssl");
    sign.args(["dgst", "-sha256", "-sign"]).arg(lab.cluster.0.join("pki/service-account.key"));
    sign.arg("-out").arg(&signature).arg(&file);
    finish(sign, None).unwrap().success().unwrap();
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(raw_signature(&std::fs::read(signature).unwrap())))
}

/// The two numbers of an ECDSA signature in DER, 32 bytes each (RFC 7518, section 3.4).
fn raw_signature(der: &[u8]) -> Vec<u8> {
    let number = |at: usize| {
        let bytes = &der[at + 2..at + 2 + usize::from(der[at + 1])];
        let significant = &bytes[bytes.len().saturating_sub(32)..];
        ([&vec![0; 32 - significant.len()], significant].concat(), at + 2 + bytes.len())
    };
    let (first, next) = number(2);
    [first, number(next).0].concat()
}

fn account_token(direct: &Server, account: &str) -> String {
    let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "spec": {}});
    let path = format!("/api/v1/namespaces/default/serviceaccounts/{account}/token");
    let answer = direct.post(&path, "application/json", &request.to_string()).json();
    answer["status"]["token"].as_str().unwrap().to_owned()
}

fn revision_of(server: &Server) -> u64 {
    server.get(MAPS).json()["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

fn await_cut(lab: &EdgeLab) {
    wait_for("the edge knows that the link is cut", || {
        lab.resource("configmaps").filter(|entry| entry["live"] == false).map(drop)
    })
    .unwrap();
}

#[test]
fn single_answers_are_those_of_the_api_server() {
    if let Some(reason) = missing() {
        println!("SKIPPED: single answers at the edge: {reason}");
        return;
    }
    let mut lab = EdgeLab::start();
    let (direct, edge) = (Server::direct(&lab), Server::edge(&lab));
    for name in ["map-1", "map-2"] {
        lab.config_map(name, "first");
    }
    for line in [
        "create serviceaccount till",
        "create role reader --verb=get,list,watch --resource=configmaps",
        "create rolebinding till --role=reader --serviceaccount=default:till",
    ] {
        lab.direct().ok(line);
    }
    let good = account_token(&direct, "till");
    let seconds = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let expired = resigned(&lab, &good, |claims| {
        (claims["iat"], claims["nbf"]) = ((seconds - 7_200).into(), (seconds - 7_200).into());
        claims["exp"] = (seconds - 60).into();
    });
    let resigned = resigned(&lab, &good, |_| {});
    assert_eq!(edge.get(MAP).code, "200");
    lab.await_live("configmaps");
    wait_for("the copy is as new as the cluster", || {
        (edge.get(MAPS).json()["items"] == direct.get(MAPS).json()["items"]).then_some(())
    })
    .unwrap();
    let discovery = Discovery::read(&direct, &edge);
    // History ends here: what is asked for below is too old for both.
    lab.cluster.compact(revision_of(&direct));
    let refused = Revisions::read(&direct);

    let check = |direct: &Server, edge: &Server, when: &str| {
        credentials(direct, edge, (&resigned, &expired), when);
        metadata_alone(direct, edge, when);
        refused.check(edge, when);
        discovery.check(edge, when);
    };
    check(&direct, &edge, "online");
    let cbor = |server: &Server| server.post(MAPS, "application/cbor", "\u{7f}").refusal();
    assert_eq!(cbor(&edge), cbor(&direct), "a body in CBOR");
    a_link_that_swallows_everything(&lab, &edge);

    lab.relay.cut();
    await_cut(&lab);
    check(&direct, &edge, "without the cloud");
    lab.restart_edge();
    check(&direct, &Server::edge(&lab), "after a restart without the cloud");
}

/// A token counts until its end, and a request without one not at all.
fn credentials(direct: &Server, edge: &Server, (good, expired): (&str, &str), when: &str) {
    for (server, name) in [(direct, "the API server"), (edge, "the edge")] {
        let code = |token: &str| server.with_token(token).get(MAP).code;
        assert_eq!((code(good), code(expired)), ("200".into(), "401".into()), "{when}, {name}");
    }
    let edge = edge.with_token("");
    for path in [MAP, MAPS, "/apis", "/api/v1/namespaces/default/secrets"] {
        let answer = edge.get(path);
        assert_eq!(answer.code, "401", "{when}, without a token: {path}: {}", answer.body);
    }
    let answer = edge.post(MAPS, "application/json", "{}");
    assert_eq!(answer.code, "401", "{when}, without a token: {}", answer.body);
}

fn metadata_alone(direct: &Server, edge: &Server, when: &str) {
    for (path, kind) in [
        (MAP.to_owned(), "PartialObjectMetadata"),
        (format!("{MAPS}?labelSelector=tier%3Dedge"), "PartialObjectMetadataList"),
    ] {
        let (mut ours, mut theirs) = (edge.get_as(&path, kind), direct.get_as(&path, kind));
        assert_eq!(ours["kind"], kind, "{when}: {ours}");
        // A list is at the revision of its server.
        for list in [&mut ours, &mut theirs] {
            if kind.ends_with("List") {
                list["metadata"]["resourceVersion"].take();
            }
        }
        assert_eq!(ours, theirs, "{when}: {path}");
    }
}

/// Requests at revisions that are too old and too new, with the refusals of the API server.
struct Revisions(Vec<(String, Value)>);

impl Revisions {
    fn read(direct: &Server) -> Revisions {
        let ahead = revision_of(direct) + 1_000_000;
        let paths = [
            format!("{MAPS}?resourceVersion=1&resourceVersionMatch=Exact"),
            format!("{MAPS}?resourceVersion={ahead}&resourceVersionMatch=NotOlderThan"),
            format!("{MAP}?resourceVersion={ahead}"),
        ];
        let refusals = paths.map(|path| {
            let refusal = direct.get(&path).refusal();
            (path, refusal)
        });
        let codes: Vec<&Value> = refusals.iter().map(|(_, refusal)| &refusal[0]).collect();
        assert_eq!(codes, ["410", "504", "504"]);
        Revisions(refusals.into())
    }

    fn check(&self, edge: &Server, when: &str) {
        for (path, theirs) in &self.0 {
            let ours = edge.get(path);
            assert_eq!(ours.refusal(), *theirs, "{when}: {path}: {}", ours.body);
        }
        let watch = edge.get(&format!("{MAPS}?watch=1&resourceVersion=1&timeoutSeconds=5")).json();
        let told = (&watch["type"], &watch["object"]["code"], &watch["object"]["reason"]);
        assert_eq!(told, (&"ERROR".into(), &410.into(), &"Expired".into()), "{when}: {watch}");
    }
}

/// Documents of the API server.
struct Discovery(Vec<(&'static str, Value)>);

impl Discovery {
    /// Reads them at both, so that the edge keeps them.
    fn read(direct: &Server, edge: &Server) -> Discovery {
        let paths = ["/api", "/apis", "/api/v1", "/apis/apps", "/apis/apps/v1", "/version", "/openapi/v2"];
        let read = |path: &'static str| {
            assert_eq!(edge.get(path).code, "200", "{path}");
            (path, direct.get(path).json())
        };
        Discovery(paths.map(read).into())
    }

    fn check(&self, edge: &Server, when: &str) {
        for (path, theirs) in &self.0 {
            assert!(edge.get(path).json() == *theirs, "{when}: {path}");
        }
    }
}

/// Requests that need the cloud are refused, and those that the copy answers go on.
fn a_link_that_swallows_everything(lab: &EdgeLab, edge: &Server) {
    lab.relay.set_both(&Faults { black_hole: true, ..Faults::default() });
    let object = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "new"}}).to_string();
    for round in ["the first request", "the second request"] {
        let begun = Instant::now();
        let answer = edge.post(MAPS, "application/json", &object);
        let status = answer.json();
        println!("under a link that swallows everything {round} is refused after {:?}", begun.elapsed());
        assert_eq!(
            (answer.code.as_str(), &status["reason"]),
            ("503", &"ServiceUnavailable".into()),
            "{status}"
        );
        assert!(status["details"]["retryAfterSeconds"].is_u64(), "{status}");
        assert!(
            !answer.headers.contains("retry-after"),
            "client-go would repeat it ten times: {}",
            answer.headers
        );
        assert_eq!(edge.get(MAP).json()["data"]["value"], "first");
    }
    lab.relay.set_both(&Faults::default());
    wait_for("the link is back", || (edge.post(MAPS, "application/json", "{}").code != "503").then_some(()))
        .unwrap();
    lab.await_live("configmaps");
}

#[test]
fn a_signature_of_openssl_has_the_form_of_a_token() {
    let raw = raw_signature(&[0x30, 9, 2, 2, 0, 0x81, 2, 3, 1, 2, 3]);
    assert_eq!((raw.len(), raw[31], &raw[61..]), (64, 0x81, &[1, 2, 3][..]));
}
