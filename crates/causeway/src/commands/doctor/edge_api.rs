//! The Kubernetes API of the edge on this host: is it served, is its copy in sync, would pods survive without the cloud.
//!
//! `probe` sends a request to each listener that the dump of the admin port names, as a client does, with the CA that clients have; `examine` is
//! pure and judges the answers and the dump.

use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use causeway_api::{error_chain, table};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};

use super::finding::Finding;
use crate::output::cell;

/// The answer of a listener: the time that it took, or the failure.
pub type ProbeAnswer = Result<Duration, String>;

/// The answers of the listeners. None: there is no such listener.
#[derive(Default)]
pub struct EdgeApiProbes {
    components: Option<ProbeAnswer>,
    pods: Option<ProbeAnswer>,
}

const ANSWER: Duration = Duration::from_secs(5);
// `ok`, or the message of another program that has the port.
const ANSWER_BYTES_MAX: usize = 64 << 10;
// Resources and pods that one finding names.
const NAMED_MAX: usize = 3;
const HOP: &str = "Kubernetes API";

/// Asks the listeners that the dump names.
pub async fn probe(kubernetes: &Value) -> EdgeApiProbes {
    let ca = kubernetes["ca"].as_str().unwrap_or_default();
    let ask = async |address: Option<&str>| match address {
        Some(address) => Some(answer(address, ca).await),
        None => None,
    };
    let pods = kubernetes["pods"]["listen"].as_str().filter(|_| kubernetes["pods"]["isListening"] == true);
    let (components, pods) = tokio::join!(ask(kubernetes["listen"].as_str()), ask(pods));
    EdgeApiProbes { components, pods }
}

async fn answer(address: &str, ca: &str) -> ProbeAnswer {
    let started = Instant::now();
    match tokio::time::timeout(ANSWER, readiness(address, ca)).await {
        Ok(Ok(())) => Ok(started.elapsed()),
        Ok(Err(why)) => Err(why),
        Err(_) => Err(format!("no answer within {} s", ANSWER.as_secs())),
    }
}

async fn readiness(address: &str, ca: &str) -> Result<(), String> {
    let failed = |error: &dyn std::error::Error| error_chain(error);
    let kubeconfig = json!({
        "current-context": "edge",
        "clusters": [{"name": "edge", "cluster": {
            "server": format!("https://{address}"), "certificate-authority-data": STANDARD.encode(ca),
        }}],
        "users": [{"name": "edge", "user": {}}],
        "contexts": [{"name": "edge", "context": {"cluster": "edge", "user": "edge"}}],
    });
    let kubeconfig: Kubeconfig = serde_json::from_value(kubeconfig).map_err(|error| failed(&error))?;
    let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
    let mut config = config.map_err(|error| failed(&error))?;
    // The address is one of this host.
    config.proxy_url = None;
    config.default_retry = false;
    let client = kube::Client::try_from(config).map_err(|error| failed(&error))?;
    let request = http::Request::get("/readyz").body(Body::empty()).map_err(|error| failed(&error))?;
    let response = client.send(request).await.map_err(|error| failed(&error))?;
    let code = response.status();
    let body = http_body_util::Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await;
    let body = body.map_err(|error| error.to_string())?.to_bytes();
    match code.is_success() && &body[..] == b"ok" {
        true => Ok(()),
        false => Err(format!("the answer to /readyz was {code}: is another program at this port?")),
    }
}

/// Judges the part `kubernetes` of the dump, with the answers of the listeners. `now` is in seconds since 1970.
pub fn examine(kubernetes: &Value, probes: &EdgeApiProbes, now: u64) -> Vec<Finding> {
    if let Some(failure) = kubernetes["failure"].as_str() {
        let fix =
            "free the address, or name another one ([kubernetes] listen); the edge tries again every 10 s";
        return vec![Finding::failed(HOP, failure, fix)];
    }
    // The cloud has no cluster.
    if kubernetes.is_null() {
        return Vec::new();
    }
    let mut findings = vec![served(HOP, &kubernetes["listen"], probes.components.as_ref())];
    findings.extend(pods(&kubernetes["pods"], probes.pods.as_ref()));
    findings.extend(copy(kubernetes, now));
    findings.push(offline(&kubernetes["readyForOffline"]));
    findings
}

fn served(hop: &str, address: &Value, answer: Option<&ProbeAnswer>) -> Finding {
    let address = cell(address);
    match answer {
        Some(Ok(time)) => {
            let time = time.as_secs_f64() * 1_000.0;
            Finding::ok(hop, format!("it answers at https://{address} in {time:.1} ms"))
        }
        Some(Err(why)) => Finding::failed(
            hop,
            format!("it does not answer at https://{address}: {why}"),
            "look at the log of this edge (journalctl -u causeway-edge) and at the firewall of this host",
        ),
        None => Finding::unknown(hop, "an edge of an older version does not tell its address", "update it"),
    }
}

fn pods(pods: &Value, answer: Option<&ProbeAnswer>) -> Option<Finding> {
    let hop = "Kubernetes API for pods";
    if pods.is_null() {
        return None;
    }
    Some(match pods["isListening"] == true {
        true => served(hop, &pods["listen"], answer),
        false => Finding::failed(
            hop,
            pods["problem"].as_str().unwrap_or("it has not been tried yet"),
            "add the address to this host, or change [kubernetes] pod-listen; the edge tries again every second",
        ),
    })
}

/// The resources of the copy: those that are current, and those that are not, by the reason.
fn copy(kubernetes: &Value, now: u64) -> Vec<Finding> {
    let hop = "copy of the Kubernetes API";
    let resources: Vec<&Value> = kubernetes["resources"].as_array().into_iter().flatten().collect();
    let is = |entry: &Value, field: &str| entry[field] == true;
    let (current, stale): (Vec<&Value>, Vec<&Value>) =
        resources.iter().partition(|entry| is(entry, "live") && is(entry, "complete"));
    let objects: u64 = current.iter().filter_map(|entry| entry["objects"].as_u64()).sum();
    let waiting = kubernetes["writes"]["pending"].as_u64().filter(|waiting| *waiting > 0);
    let waiting = waiting.map(|waiting| format!("; {waiting} writes wait for the API server"));
    let line = format!(
        "{} of {} subscriptions are current, with {objects} objects{}",
        current.len(),
        resources.len(),
        waiting.unwrap_or_default()
    );
    let (refused, behind): (Vec<&Value>, Vec<&Value>) =
        stale.into_iter().partition(|entry| entry["refused"].is_string());
    let mut findings = Vec::new();
    if behind.is_empty() {
        findings.push(Finding::ok(hop, line));
    } else {
        let lag = |entry: &Value| match entry["lastSync"].as_u64().filter(|synced| *synced > 0) {
            Some(synced) => table::age(now.saturating_sub(synced)),
            None => "never synced".to_owned(),
        };
        let names = behind.iter().map(|entry| format!("{} ({})", name(entry), lag(entry)));
        let (why, fix) = match (is(kubernetes, "connected"), kubernetes["traffic"]["spent"].as_str()) {
            (false, _) => ("there is no link to the cloud", "see the hop link; reads go on from the copy"),
            (true, Some(_)) => {
                ("the byte budget of the day is spent", "raise [kubernetes] bytes-per-day, or wait")
            }
            (true, None) => (
                "the cloud does not keep them current now",
                "a client of the site that reads them brings them up to date; see the log of this edge if that does not last",
            ),
        };
        let reason = format!("{line}; behind, with the time since the last sync: {}: {why}", named(names));
        findings.push(Finding::warning(hop, reason, fix));
    }
    if !refused.is_empty() {
        let names = refused.iter().map(|entry| format!("{}: {}", name(entry), cell(&entry["refused"])));
        let fix = "give the caller or the cloud the right (deploy/kubernetes-access.yaml), or remove the pin";
        findings.push(Finding::warning(hop, format!("not kept: {}", named(names)), fix));
    }
    findings
}

fn offline(ready: &Value) -> Finding {
    let hop = "offline readiness";
    let Some(pods) = ready["pods"].as_object() else {
        return Finding::unknown(
            hop,
            "the pods of the site have not been looked at yet",
            "ask again in 15 s",
        );
    };
    if pods.is_empty() {
        return Finding::ok(hop, "every pod would survive a restart of its node without the cloud");
    }
    let names = pods.iter().map(|(pod, reasons)| {
        let reasons: Vec<&str> = reasons.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        format!("{pod}: {}", reasons.join(", "))
    });
    let reason = format!("pods that would not survive a restart without the cloud: {}", named(names));
    Finding::warning(hop, reason, "name the objects in ESite.cache, or let the kubelet read them once")
}

/// The resource and the selectors of an entry.
fn name(entry: &Value) -> String {
    let (scope, resource) = (&entry["scope"], &entry["scope"]["resource"]);
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let parts = [text(&resource["group"]), text(&resource["version"]), text(&resource["plural"])];
    let resource = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
    let parts =
        [resource, text(&scope["namespace"]), text(&scope["labelSelector"]), text(&scope["fieldSelector"])];
    parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The first names, and the number of further ones.
fn named(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(NAMED_MAX);
    let mut named: Vec<String> = names.take(NAMED_MAX).collect();
    if more > 0 {
        named.push(format!("and {more} more"));
    }
    named.join("; ")
}

#[cfg(test)]
mod tests {
    use super::super::finding::State;
    use super::*;

    fn well() -> Value {
        let entry = |plural: &str| {
            json!({"scope": {"resource": {"group": "", "version": "v1", "plural": plural}}, "objects": 3,
                "live": true, "complete": true, "lastSync": 90, "refused": null})
        };
        json!({"connected": true, "listen": "127.0.0.1:6444", "pods": null, "ca": "", "writes": {"pending": 0},
            "traffic": {}, "readyForOffline": {"ready": true, "pods": {}}, "resources": [entry("pods"), entry("nodes")]})
    }

    fn found(dump: &Value, probes: &EdgeApiProbes) -> Vec<(State, String)> {
        examine(dump, probes, 100).into_iter().map(|found| (found.state, found.text())).collect()
    }

    #[track_caller]
    fn check(path: &str, value: Value, expected: (State, &str)) {
        let mut dump = well();
        *dump.pointer_mut(path).unwrap() = value;
        let probes = EdgeApiProbes { components: Some(Ok(Duration::from_millis(2))), pods: None };
        let all = found(&dump, &probes);
        let bad: Vec<_> = all.iter().filter(|(state, _)| *state != State::Ok).collect();
        assert!(
            matches!(&bad[..], [(state, text)] if *state == expected.0 && text.contains(expected.1)),
            "{all:#?}"
        );
    }

    #[test]
    fn a_copy_that_is_behind_or_not_ready_is_told() {
        use State::{Failed, Unknown, Warning};
        let probes = EdgeApiProbes { components: Some(Ok(Duration::from_millis(2))), pods: None };
        let all = found(&well(), &probes);
        assert!(all.iter().all(|(state, _)| *state == State::Ok) && all.len() == 3, "{all:#?}");
        assert!(all[1].1.contains("2 of 2 subscriptions are current, with 6 objects"), "{all:#?}");
        assert!(found(&Value::Null, &probes).is_empty(), "the cloud has no cluster");
        check("/resources/0/live", false.into(), (Warning, "v1/pods (10s): the cloud does not keep"));
        let mut refused = well()["resources"][0].clone();
        refused["live"] = false.into();
        refused["refused"] = "n1 may not".into();
        check("/resources/0", refused, (Warning, "not kept: v1/pods: n1 may not"));
        check("/readyForOffline", Value::Null, (Unknown, "not been looked at"));
        check("/readyForOffline/pods", json!({"a/b": ["no token"]}), (Warning, "a/b: no token"));
        let missing = json!({"listen": "169.254.1.1:1", "isListening": false, "problem": "it is no address of this host"});
        check("/pods", missing, (Failed, "it is no address of this host"));
        let mut away = well();
        away["connected"] = false.into();
        away["resources"][1]["live"] = false.into();
        away["writes"]["pending"] = 2.into();
        let all = found(&away, &probes);
        let line = "1 of 2 subscriptions are current, with 3 objects; 2 writes wait for the API server; behind, \
            with the time since the last sync: v1/nodes (10s): there is no link to the cloud";
        assert!(all[1].0 == Warning && all[1].1.contains(line), "{all:#?}");
        let failure = json!({"failure": "cannot listen on 127.0.0.1:6444"});
        assert!(
            matches!(&found(&failure, &probes)[..], [(Failed, text)] if text.contains("cannot listen on"))
        );
    }

    #[tokio::test]
    async fn a_listener_is_asked_and_not_believed() {
        // Bound and closed again: nothing listens there.
        let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let other = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let taken = other.local_addr().unwrap();
        // A program that does not speak TLS.
        std::thread::spawn(move || {
            for stream in other.incoming().flatten() {
                let _ = std::io::Write::write_all(&mut &stream, b"HTTP/1.1 200 OK\r\n\r\nok");
            }
        });
        let certificate = "";
        let dump = json!({"listen": closed.to_string(), "ca": certificate,
            "pods": {"listen": taken.to_string(), "isListening": true}});
        let probes = probe(&dump).await;
        let all = found(&dump, &probes);
        assert!(all[0].0 == State::Failed && all[0].1.contains(&closed.to_string()), "{all:#?}");
        assert!(all[1].0 == State::Failed && all[1].1.contains("for pods: it does not answer"), "{all:#?}");
    }
}
