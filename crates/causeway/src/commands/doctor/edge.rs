//! The view of an edge from its own host: its link, clock, certificate, netmap, names, presences, backends and Kubernetes API.
//!
//! `Local` finds the admin port of the edge, reads `/debug` and probes the Kubernetes API; `examine` is pure and judges. No credential
//! is needed: a user who can read the data dir, or reach the admin port on loopback, may see this.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::edge_api::{self, EdgeApiProbes};
use super::finding::{Finding, State};
use super::gateway;
use crate::client::ApiConnectionArgs;
use crate::output::{self, cell};

const DATA_DIR_DEFAULT: &str = "/var/lib/causeway";
const ADMIN_DEFAULT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 7445);
const ANSWER: Duration = Duration::from_secs(5);
/// A dump of an edge with thousands of services is below a megabyte.
const ANSWER_BYTES_MAX: u64 = 32 << 20;

/// The edge on this host.
#[derive(Debug, PartialEq, Eq)]
pub struct Local {
    data_dir: Option<PathBuf>,
    admin: SocketAddr,
}

/// The state of the edge as far as it was found.
#[derive(Default)]
pub struct Seen {
    admin: String,
    /// The answer of the admin port, or why there is none.
    dump: Option<Result<Value, String>>,
    /// Why the cloud gave this edge up, as the data dir remembers it.
    given_up: Option<Value>,
    data_dir: Option<PathBuf>,
    /// The answers of the Kubernetes API of the edge.
    probes: EdgeApiProbes,
    /// Seconds since 1970.
    now: u64,
}

impl Local {
    /// The edge of `--admin`, or of a data dir that is an edge's when no kubeconfig was named. None: the API is meant.
    pub fn find(admin: Option<SocketAddr>, connection: &ApiConnectionArgs) -> Option<Local> {
        find(admin, connection, &|name| std::env::var_os(name).filter(|value| !value.is_empty()))
    }

    pub async fn collect(&self) -> Seen {
        let read = |name: &str| {
            let text = std::fs::read(self.data_dir.as_ref()?.join(name)).ok()?;
            serde_json::from_slice(&text).ok()
        };
        let dump = dump(self.admin).await;
        let probes = match &dump {
            Ok(dump) => edge_api::probe(&dump["kubernetes"]).await,
            Err(_) => EdgeApiProbes::default(),
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |now| now.as_secs());
        Seen {
            admin: self.admin.to_string(),
            dump: Some(dump),
            given_up: read("refused.json"),
            data_dir: self.data_dir.clone(),
            probes,
            now,
        }
    }
}

fn find(
    admin: Option<SocketAddr>,
    connection: &ApiConnectionArgs,
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Option<Local> {
    if let Some(admin) = admin {
        return Some(Local { data_dir: connection.data_dir.clone(), admin });
    }
    let is_named = connection.kubeconfig.is_some()
        || connection.data_dir.is_none()
            && ["CAUSEWAY_KUBECONFIG", "KUBECONFIG"].iter().any(|name| environment(name).is_some());
    if is_named {
        return None;
    }
    let data_dir = connection
        .data_dir
        .clone()
        .or_else(|| environment("CAUSEWAY_DATA_DIR").map(PathBuf::from))
        .unwrap_or_else(|| DATA_DIR_DEFAULT.into());
    let has = |name: &str| data_dir.join(name).exists();
    let is_edge = has("edge.json") || has("identity.pem") || has("run/edge.json") || has("refused.json");
    if has("admin.kubeconfig") || !is_edge {
        return None;
    }
    let admin = announced(&data_dir).unwrap_or(ADMIN_DEFAULT);
    Some(Local { data_dir: Some(data_dir), admin })
}

/// The admin address that the edge wrote down. The file of a killed edge is tried too: the connection shows
/// whether it is current.
fn announced(data_dir: &Path) -> Option<SocketAddr> {
    let text = std::fs::read(data_dir.join("run/edge.json")).ok()?;
    serde_json::from_slice::<Value>(&text).ok()?["admin"].as_str()?.parse().ok()
}

pub async fn dump(admin: SocketAddr) -> Result<Value, String> {
    let asking = async {
        let mut stream = TcpStream::connect(admin).await?;
        let request = format!("GET /debug HTTP/1.1\r\nhost: {admin}\r\nconnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = match tokio::time::timeout(ANSWER, asking).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(error.to_string()),
        Err(_) => return Err(format!("no answer within {} s", ANSWER.as_secs())),
    };
    let body = answer.windows(4).position(|part| part == b"\r\n\r\n").map(|end| &answer[end + 4..]);
    let value = body.and_then(|body| serde_json::from_slice(body).ok());
    value.ok_or_else(|| "the answer is not that of a Causeway admin port".to_owned())
}

/// Judges the state of an edge as seen from its own host.
pub fn examine(seen: &Seen) -> Vec<Finding> {
    let hop = "edge";
    let given_up = seen.given_up.as_ref().map(|note| {
        Finding::failed(
            hop,
            format!("the cloud gave this edge up at {}: {}", cell(&note["at"]), cell(&note["reason"])),
            "causeway token create at the cloud, and start the edge with --join TOKEN",
        )
    });
    let dump = match &seen.dump {
        Some(Ok(dump)) => dump,
        other => {
            let why = match other {
                Some(Err(why)) => why.as_str(),
                _ => "no request was sent",
            };
            let place =
                seen.data_dir.as_ref().map(|dir| format!(" on {}", output::path(dir))).unwrap_or_default();
            let down = Finding::failed(
                hop,
                format!("no edge answers at the admin port {}: {why}", seen.admin),
                format!(
                    "start causeway edge{place}, look at its log (journalctl -u causeway-edge), or name its port with --admin"
                ),
            );
            return given_up.into_iter().chain([down]).collect();
        }
    };
    if dump["edge"].is_null() {
        let reason = format!("{} is the admin port of a cloud, or of an older edge", seen.admin);
        return vec![Finding::failed(hop, reason, "name the port of the edge with --admin")];
    }
    let role = &dump["edge"];
    let mut findings = vec![Finding::ok(
        hop,
        format!("it runs since {}, {}", cell(&dump["started"]), cell(&role["software"])),
    )];
    findings.extend(given_up);
    findings.extend(identity(&role["identity"], role["time"].as_str()));
    findings.extend(link(&dump["link"]));
    findings.extend(netmap(dump, role));
    findings.extend(dns(&dump["dns"]));
    findings.extend(presences(&dump["presences"]));
    findings.extend(neighbours(&dump["neighbours"]));
    findings.extend(backends(&dump["backends"]));
    findings.extend(edge_api::examine(&dump["kubernetes"], &seen.probes, seen.now));
    findings
}

fn identity(identity: &Value, now: Option<&str>) -> Vec<Finding> {
    let hop = "identity";
    if identity.is_null() {
        return vec![Finding::failed(hop, "this edge is not enrolled", "start it with --join TOKEN")];
    }
    let expires = identity["certificateExpires"].as_str().unwrap_or_default();
    let who = format!("gateway {} of site {}", cell(&identity["gateway"]), cell(&identity["site"]));
    // RFC 3339 in UTC to the second: the order of texts is the order of times.
    match now.is_some_and(|now| now > expires) {
        true => vec![Finding::failed(
            hop,
            format!("{who}: by this host's clock its certificate expired at {expires}"),
            "set the clock if it is wrong; else the edge renews when it reaches the cloud",
        )],
        false => vec![Finding::ok(hop, format!("{who}, certificate until {expires}"))],
    }
}

fn link(link: &Value) -> Vec<Finding> {
    let hop = "link";
    let problem = link["lastProblem"].as_str();
    let mut findings = Vec::new();
    match (link["transport"].as_str(), link["state"].as_str()) {
        (Some(transport), _) => {
            let rtt =
                link["rttMs"].as_f64().map(|rtt| format!(", round trip {rtt:.1} ms")).unwrap_or_default();
            let line = format!("connected over {transport} to {}{rtt}", cell(&link["cloud"]));
            let fell_back = (transport == "tcp" && link["allowed"] == "auto" && link["proxied"] != true)
                .then(|| link["quicProblem"].as_str().unwrap_or("QUIC does not get through"));
            findings.push(match fell_back {
                None => Finding::ok(hop, line),
                Some(why) => Finding::warning(
                    hop,
                    format!("{line}; it fell back to TCP: {why}"),
                    "let UDP of the channel port through between this host and the cloud, or set transport tcp",
                ),
            });
        }
        (None, state) => {
            let state = state.unwrap_or("no link");
            let why = problem.map(|problem| format!(": {problem}")).unwrap_or_default();
            findings.push(Finding::failed(
                hop,
                format!("not connected to the cloud ({state}){why}"),
                "does the cloud run, and do UDP and TCP of its channel port pass from here?",
            ));
        }
    }
    if problem.is_some_and(|problem| problem.starts_with("superseded")) {
        findings.push(Finding::failed(
            hop,
            "another process took the session over: one of the two runs on a copy of the data dir",
            "stop the copy, and enrol it as a gateway of its own",
        ));
    }
    findings.extend(gateway::clock("clock", link["clockAheadSeconds"].as_i64()));
    findings
}

fn netmap(dump: &Value, role: &Value) -> Vec<Finding> {
    let (hop, netmap) = ("netmap", &dump["netmap"]);
    let mut findings = Vec::new();
    let not_ready = role["notReady"].as_object().into_iter().flatten();
    for (check, why) in not_ready.filter(|(check, _)| !(check.as_str() == "netmap" && netmap.is_null())) {
        let reason = format!("not ready: {check}: {}", cell(why));
        findings.push(Finding::failed(hop, reason, "look at the disk and the log of this edge"));
    }
    match netmap["generation"].as_str() {
        None => findings.push(Finding::failed(
            hop,
            "the cloud has sent no netmap yet: nothing is forwarded",
            "connect to the cloud once; afterwards the edge runs on what it persisted",
        )),
        Some(generation) => {
            let taken = netmap["since"].as_str().map(|since| format!(" since {since}")).unwrap_or_default();
            let entries = cell(&netmap["entries"]);
            findings
                .push(Finding::ok(hop, format!("netmap {generation} is in force{taken}, {entries} entries")));
            if netmap["damaged"].as_u64() > Some(0) {
                let reason = format!("{} entries of it cannot be used", netmap["damaged"]);
                findings.push(Finding::failed(hop, reason, "use the same version of causeway at both ends"));
            }
        }
    }
    findings
}

fn dns(dns: &Value) -> Vec<Finding> {
    let hop = "names";
    let listening: Vec<String> = dns["listening"].as_array().into_iter().flatten().map(cell).collect();
    let broken = dns["findings"].as_array().into_iter().flatten().map(|found| {
        let reason =
            format!("names are not answered at {}: {}", cell(&found["address"]), cell(&found["why"]));
        Finding::failed(hop, reason, "free the port or the address, or choose another one with --dns")
    });
    let fine = (!listening.is_empty())
        .then(|| Finding::ok(hop, format!("names are answered at {}", listening.join(", "))));
    fine.into_iter().chain(broken).collect()
}

fn presences(report: &Value) -> Vec<Finding> {
    let hop = "presences";
    let troubles = report["troubles"].as_array().into_iter().flatten().map(|trouble| {
        let hop =
            trouble["service"].as_str().map_or_else(|| hop.to_owned(), |name| format!("presence of {name}"));
        Finding::told(State::Failed, hop, &cell(&trouble["why"]))
    });
    let hints = report["hints"].as_array().into_iter().flatten();
    let hints = hints.map(|hint| Finding::told(State::Warning, hop, &cell(hint)));
    let listening = report["listening"].as_u64().unwrap_or(0);
    let place = if report["place"] == "host" {
        "on addresses of this host"
    } else {
        "in a network namespace of their own"
    };
    let fine = Finding::ok(hop, format!("{listening} listen, {place}"));
    std::iter::once(fine).chain(troubles).chain(hints).collect()
}

/// The addresses that hosts of the LAN find by themselves, and the routes that they need for the rest.
///
/// A gateway cannot see the routes of other hosts, so that a route which may be there already is no problem.
fn neighbours(report: &Value) -> Vec<Finding> {
    let hop = "routes of the site";
    let troubles = report["troubles"].as_array().into_iter().flatten();
    let troubles = troubles.map(|trouble| Finding::told(State::Failed, hop, &cell(trouble)));
    let routes = report["routed"].as_array().into_iter().flatten().map(|route| {
        let network = cell(&route["network"]);
        let reason =
            format!("{network} is in no network of this host: other hosts of the site need a route to it");
        let via = route["via"].as_str().unwrap_or("GATEWAY");
        let family = if network.contains(':') { "ip -6" } else { "ip" };
        let fix = format!(
            "on the router of the site, if the route is missing: {family} route add {network} via {via}"
        );
        Finding { fix, ..Finding::ok(hop, reason) }
    });
    troubles.chain(routes).collect()
}

fn backends(backends: &Value) -> Vec<Finding> {
    let all = backends.as_array().into_iter().flatten();
    let mut used = 0;
    let mut findings = Vec::new();
    for backend in all {
        if backend["used"] == true {
            used += 1;
            continue;
        }
        findings.push(Finding::failed(
            format!("backend {} of {}", cell(&backend["backend"]), cell(&backend["service"])),
            format!("left out until it answers: {}", cell(&backend["why"])),
            "does it run, and may this host reach it?",
        ));
    }
    if used > 0 {
        let reason = format!("{used} are in use (as far as clients and health checks have tried)");
        findings.insert(0, Finding::ok("backends", reason));
    }
    findings
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn well() -> Value {
        json!({
            "started": "2026-11-17T10:00:00Z",
            "edge": {"software": "causeway 0", "time": "2026-11-17T12:00:00Z", "notReady": {},
                "identity": {"gateway": "oslo", "site": "Oslo", "certificateExpires": "2026-12-17T10:00:00Z"}},
            "link": {"state": "ready", "transport": "quic", "cloud": "192.0.2.1:7444", "rttMs": 3.0, "allowed": "auto",
                "clockAheadSeconds": 0},
            "netmap": {"generation": "1.7", "entries": 4, "damaged": 0},
            "dns": {"listening": ["127.0.0.1:53"], "findings": []},
            "presences": {"place": "namespace", "listening": 1, "troubles": [], "hints": []},
            "neighbours": {"interfaces": {}, "routed": [], "troubles": []},
            "backends": [{"service": "web", "backend": "10.0.0.5:80", "used": true}],
        })
    }

    #[track_caller]
    fn check(path: &str, value: Value, expected: &[(State, &str)]) {
        let mut dump = well();
        if !path.is_empty() {
            *dump.pointer_mut(path).unwrap() = value;
        }
        let findings = examine(&Seen { dump: Some(Ok(dump)), ..Seen::default() });
        let told: Vec<String> = findings.iter().map(Finding::text).collect();
        let bad: Vec<&Finding> = findings.iter().filter(|finding| finding.state != State::Ok).collect();
        assert_eq!(bad.len(), expected.len(), "{told:#?}");
        for (finding, (state, part)) in bad.iter().zip(expected) {
            assert!(finding.state == *state && finding.text().contains(part), "{part} is not in {told:#?}");
        }
    }

    #[test]
    fn an_edge_says_what_is_wrong_with_it() {
        use State::{Failed, Warning};
        check("", Value::Null, &[]);
        check("/edge/identity", Value::Null, &[(Failed, "not enrolled")]);
        check("/edge/time", "2027-01-01T00:00:00Z".into(), &[(Failed, "expired at 2026-12-17")]);
        let lost = json!({"state": "backing off", "lastProblem": "no answer within 2000 ms"});
        check("/link", lost, &[(Failed, "(backing off): no answer within 2000 ms")]);
        let tcp = json!({"transport": "tcp", "allowed": "auto", "quicProblem": "no answer"});
        check("/link", tcp, &[(Warning, "fell back to TCP: no answer")]);
        check("/link", json!({"transport": "tcp", "allowed": "tcp"}), &[]);
        let double = json!({"transport": "quic", "lastProblem": "superseded: a newer session took over"});
        check("/link", double, &[(Failed, "copy of the data dir")]);
        check("/link/clockAheadSeconds", (-7200).into(), &[(Failed, "7200 s behind")]);
        check("/netmap", Value::Null, &[(Failed, "no netmap yet")]);
        check("/netmap/damaged", 2.into(), &[(Failed, "2 entries")]);
        check("/edge/notReady", json!({"netmap": "cannot be written"}), &[(Failed, "cannot be written")]);
        let taken = json!({"listening": [], "findings": [{"address": "127.0.0.1:53", "why": "taken"}]});
        check("/dns", taken, &[(Failed, "127.0.0.1:53: taken")]);
        let presences = json!({"place": "namespace", "listening": 0, "troubles": [{"service": "web", "why": "hidden; fix: ip route del x"}],
            "hints": ["it does not forward IPv4: sysctl -w a=1"]});
        check("/presences", presences, &[(Failed, "fix: ip route del x"), (Warning, "fix: sysctl -w a=1")]);
        let taken = json!({"troubles": ["another host has the address of a presence: 10.0.0.9"]});
        check("/neighbours", taken, &[(Failed, "has the address of a presence: 10.0.0.9")]);
        let down = json!([{"service": "web", "backend": "10.0.0.5:80", "used": false, "why": "refused"}]);
        check(
            "/backends",
            down,
            &[(Failed, "backend 10.0.0.5:80 of web: left out until it answers: refused")],
        );
    }

    #[test]
    fn the_routes_that_hosts_of_the_site_need_are_named_with_the_address_of_the_gateway() {
        let mut dump = well();
        dump["neighbours"]["routed"] = json!([{"network": "198.18.0.0/16", "via": "10.0.0.1"},
            {"network": "fd00:9::/64", "via": null}]);
        let findings = examine(&Seen { dump: Some(Ok(dump)), ..Seen::default() });
        let routes: Vec<&Finding> =
            findings.iter().filter(|found| found.hop == "routes of the site").collect();
        assert_eq!(routes.len(), 2, "{findings:?}");
        let (one, other) = (routes[0], routes[1]);
        assert!(
            one.state == State::Ok && one.fix.ends_with(": ip route add 198.18.0.0/16 via 10.0.0.1"),
            "{one:?}"
        );
        assert!(other.fix.ends_with("ip -6 route add fd00:9::/64 via GATEWAY"), "{other:?}");
    }

    #[test]
    fn an_edge_that_does_not_run_is_told_with_the_last_word_of_the_cloud() {
        let given_up = Some(json!({"at": "2026-11-17", "reason": "this gateway was revoked"}));
        let dump = Some(Err("connection refused".to_owned()));
        let seen = Seen { admin: "127.0.0.1:7445".into(), dump, given_up, ..Seen::default() };
        let told: Vec<String> = examine(&seen).iter().map(Finding::text).collect();
        assert!(told[0].contains("gave this edge up at 2026-11-17: this gateway was revoked"), "{told:?}");
        assert!(told[1].contains("no edge answers at the admin port 127.0.0.1:7445"), "{told:?}");
        let cloud = Seen { dump: Some(Ok(json!({"config": {}}))), ..Seen::default() };
        assert!(examine(&cloud)[0].text().contains("admin port of a cloud"));
    }

    #[test]
    fn an_edge_is_meant_where_its_data_dir_is_and_no_kubeconfig() {
        let folder = tempfile::tempdir().unwrap();
        let check = |data_dir: bool, admin: Option<&str>, variables: &[&str], expected: Option<&str>| {
            let connection = ApiConnectionArgs {
                data_dir: data_dir.then(|| folder.path().to_owned()),
                ..ApiConnectionArgs::default()
            };
            let environment = |name: &str| match name {
                "CAUSEWAY_DATA_DIR" => Some(folder.path().as_os_str().to_owned()),
                name => variables.contains(&name).then(|| "x".into()),
            };
            let found = find(admin.map(|admin| admin.parse().unwrap()), &connection, &environment);
            assert_eq!(found.map(|local| local.admin.to_string()).as_deref(), expected);
        };
        check(true, None, &[], None);
        check(false, Some("127.0.0.1:9"), &[], Some("127.0.0.1:9"));
        std::fs::write(folder.path().join("edge.json"), "{}").unwrap();
        check(true, None, &[], Some("127.0.0.1:7445"));
        check(false, None, &[], Some("127.0.0.1:7445"));
        check(false, None, &["KUBECONFIG"], None);
        check(true, None, &["KUBECONFIG"], Some("127.0.0.1:7445"));
        std::fs::create_dir(folder.path().join("run")).unwrap();
        std::fs::write(folder.path().join("run/edge.json"), r#"{"admin":"127.0.0.1:5"}"#).unwrap();
        check(true, None, &[], Some("127.0.0.1:5"));
        std::fs::write(folder.path().join("admin.kubeconfig"), "").unwrap();
        check(true, None, &[], None);
    }
}
