//! From the cloud to a gateway: is it there, admitted, connected, in step, and what does it say of itself?
//!
//! Pure: its line of `causeway status --json` and the answers of the gateway in, findings out. A present
//! answer of the gateway counts more than a condition that was written before. A state that cannot be judged
//! is reported as unknown.

use serde_json::Value;

use super::Unasked;
use super::finding::{Finding, State};
use crate::output::cell;

/// As `causeway_channel::clock` has it: certificates begin this long before they are issued, and work for an edge this far
/// ahead; below the first number nothing is said.
const CLOCK_NOTICEABLE_SECONDS: i64 = 30;
const CLOCK_BEHIND_MAX_SECONDS: i64 = 10 * 60;
const CLOCK_AHEAD_MAX_SECONDS: i64 = 24 * 3600;

/// The cloud's own gateway has no channel: it is where we are.
pub fn is_cloud(gateway: Option<&Value>) -> bool {
    gateway.is_some_and(|gateway| gateway["name"] == "cloud")
}

/// The answers of a gateway.
#[derive(Default)]
pub struct Answers<'a> {
    /// Bytes to the gateway and back.
    pub probe: Option<&'a Result<Value, Unasked>>,
    /// Its self-description.
    pub facts: Option<&'a Result<Value, Unasked>>,
    /// Report presences that do not listen. The walk to a service reports only its own.
    pub tells_presences: bool,
}

pub fn examine(name: &str, gateway: Option<&Value>, answers: &Answers<'_>) -> Vec<Finding> {
    let hop = format!("gateway {name}");
    let Some(gateway) = gateway else {
        return vec![Finding::failed(
            hop,
            format!("there is no EGateway {name}"),
            format!("causeway token create --site SITE --gateway {name} makes it"),
        )];
    };
    let site = gateway["site"].as_str().unwrap_or("?");
    let mut findings = vec![Finding::ok(&hop, format!("EGateway {name} exists, at the site {site}"))];
    if is_cloud(Some(gateway)) {
        findings.extend(says(&hop, gateway, answers));
        return findings;
    }
    if gateway["identity"]["revoked"] == true {
        let at = gateway["identity"]["at"].as_str().unwrap_or("?");
        findings.push(Finding::failed(
            &hop,
            format!("revoked at {at}: nobody connects as {name} before it is enrolled anew"),
            format!(
                "causeway token create --site {site} --gateway {name}, and start the edge with --join TOKEN"
            ),
        ));
        return findings;
    }
    if let Some(said) = condition(gateway, "EnrolledAtSite") {
        let fix = format!(
            "causeway token create --site {site} --gateway {name}, and start the edge with --join TOKEN"
        );
        findings.push(Finding::failed(&hop, cell(&said["message"]), fix));
    }
    if gateway["connected"] != true {
        findings.push(away(&hop, name, site, gateway));
        return findings;
    }
    findings.push(connected(&hop, gateway, answers.facts));
    findings.extend(clock(&hop, gateway["clockAheadSeconds"].as_i64()));
    findings.extend(rivals(&hop, gateway));
    findings.push(netmap(&hop, gateway));
    findings.extend(says(&hop, gateway, answers));
    findings.extend(answers.probe.map(|probe| match probe {
        Ok(found) => {
            let (took, bytes) = (found["milliseconds"].as_f64().unwrap_or(0.0), &found["bytes"]);
            Finding::ok(&hop, format!("{bytes} bytes went there and back in {took:.1} ms"))
        }
        Err(Unasked::NotAllowed(why)) => not_allowed(&hop, why),
        Err(Unasked::Failed(why)) => Finding::failed(
            &hop,
            format!("nothing comes back from the edge: {why}"),
            format!("run causeway doctor on the host of {name}"),
        ),
    }));
    findings
}

pub fn not_allowed(hop: &str, why: &str) -> Finding {
    Finding::unknown(
        hop,
        format!("not probed, because this credential may not: {why}"),
        "ask somebody with the role admin, or use an admin kubeconfig",
    )
}

/// Why it is not there, from what was stored when it went.
fn away(hop: &str, name: &str, site: &str, gateway: &Value) -> Finding {
    let text = |key: &str| gateway[key].as_str().filter(|text| !text.is_empty());
    let since = text("since").or_else(|| text("lastSeen"));
    let look = format!(
        "look at the host of {name}: does causeway edge run, and can it reach UDP and TCP of the channel port? causeway doctor there says more"
    );
    let Some(since) = since else {
        let enrolled = gateway["identity"]["at"].as_str();
        return match enrolled {
            Some(at) => {
                Finding::failed(hop, format!("not connected; enrolled at {at}, and not seen since"), look)
            }
            None => Finding::failed(
                hop,
                "never connected to this cloud: nobody has enrolled as this gateway",
                format!(
                    "causeway token create --site {site} --gateway {name}, and start `causeway edge --join TOKEN` at the site"
                ),
            ),
        };
    };
    let (why, fix) = match text("lastDisconnectReason") {
        Some("Stopped") => {
            ("it was stopped in order".to_owned(), format!("start causeway edge on the host of {name} again"))
        }
        Some("CertificateExpired") => (
            "its certificate expired".to_owned(),
            format!(
                "start causeway edge on the host of {name}: it renews by itself; after a long absence it needs a new token"
            ),
        ),
        Some("CloudStopped") => ("this cloud was stopped, and it has not come back since".to_owned(), look),
        Some("Superseded") => ("another process took its session over, and is gone too".to_owned(), look),
        Some("LinkLost") => ("the link was lost".to_owned(), look),
        Some("Refused") => ("the cloud refused its session".to_owned(), look),
        Some(other) => (other.to_owned(), look),
        None => ("the reason is not known".to_owned(), look),
    };
    Finding::failed(hop, format!("not connected since {since}: {why}"), fix)
}

fn connected(hop: &str, gateway: &Value, facts: Option<&Result<Value, Unasked>>) -> Finding {
    let text = |key: &str| gateway[key].as_str().unwrap_or("?");
    let rtt = gateway["rttMs"].as_f64().map_or_else(|| "unknown".to_owned(), |rtt| format!("{rtt:.1} ms"));
    let (transport, since) = (text("transport"), text("since"));
    let from = gateway["address"].as_str().map(|address| format!(" from {address}")).unwrap_or_default();
    let line = format!("connected over {transport}{from} since {since}, round trip {rtt}");
    if transport != "tcp" {
        return Finding::ok(hop, line);
    }
    let link = facts.and_then(|facts| facts.as_ref().ok()).map(|facts| &facts["role"]["link"]);
    match link.map(|link| (link["allowed"].as_str(), link["quicProblem"].as_str(), link["proxied"] == true)) {
        Some((Some("tcp"), _, _)) => {
            Finding::ok(hop, format!("{line}; its configuration says transport tcp"))
        }
        Some((_, _, true)) => {
            Finding::ok(hop, format!("{line}; through an HTTP proxy, which carries no QUIC"))
        }
        Some((_, problem, _)) => Finding::warning(
            hop,
            format!("{line}; it fell back to TCP: {}", problem.unwrap_or("QUIC does not get through")),
            "let UDP of the channel port through between the edge and the cloud, or set transport tcp at the edge if that is wanted",
        ),
        None => Finding::warning(
            hop,
            format!("{line}; QUIC is not used, and the edge could not be asked why"),
            "look whether UDP of the channel port passes",
        ),
    }
}

pub fn clock(hop: &str, ahead: Option<i64>) -> Option<Finding> {
    let ahead = ahead?;
    if ahead.abs() <= CLOCK_NOTICEABLE_SECONDS {
        return None;
    }
    let side = if ahead > 0 { "ahead of" } else { "behind" };
    let reason = format!("its clock is {} s {side} the cloud's", ahead.abs());
    let fix = "set the clock of its host, and run NTP there (timedatectl set-ntp true)";
    let is_unusable = !(-CLOCK_BEHIND_MAX_SECONDS..=CLOCK_AHEAD_MAX_SECONDS).contains(&ahead);
    Some(match is_unusable {
        true => Finding::failed(hop, format!("{reason}: certificates do not work so"), fix),
        false => Finding::warning(hop, reason, fix),
    })
}

fn rivals(hop: &str, gateway: &Value) -> Option<Finding> {
    let takeovers = gateway["takeovers"].as_u64().filter(|count| *count > 0)?;
    let addresses: Vec<String> =
        gateway["rivalAddresses"].as_array().into_iter().flatten().map(cell).collect();
    Some(Finding::failed(
        hop,
        format!(
            "two processes use its identity and take the session from each other ({takeovers} times lately, from {}): one runs on a copy of the data dir",
            addresses.join(" and ")
        ),
        "stop one of them, remove its data dir, and enrol it as a gateway of its own: causeway token create --site SITE --gateway NAME",
    ))
}

fn netmap(hop: &str, gateway: &Value) -> Finding {
    match (condition(gateway, "NetmapInForce"), gateway["generation"].as_str()) {
        (Some(said), _) => Finding::failed(
            hop,
            format!("its netmap is not in force: {}", cell(&said["message"])),
            "look at the disk and the log of the edge",
        ),
        // The gateway itself says it too, when it can be asked.
        (None, Some(generation)) if condition(gateway, "NetmapPersisted").is_some() => Finding::failed(
            hop,
            format!(
                "netmap {generation} is in force at the edge, and not on its disk: after a restart without the cloud it would run on an older one"
            ),
            "free space on the disk of the edge, or look at its log",
        ),
        (None, Some(generation)) => Finding::ok(hop, format!("netmap {generation} is in force at the edge")),
        (None, None) => Finding::failed(
            hop,
            "the edge has no netmap yet",
            "wait a moment; then look at the log of the cloud",
        ),
    }
}

/// Judges the self-description of a gateway; without an answer, the last one.
fn says(hop: &str, gateway: &Value, answers: &Answers<'_>) -> Vec<Finding> {
    let facts = match answers.facts {
        Some(Ok(facts)) => facts,
        other => {
            let said = condition(gateway, "Listening").map(|said| {
                let reason = format!("it cannot do all it should: {}", cell(&said["message"]));
                // On the way to a service it may be about another one.
                match answers.tells_presences {
                    true => Finding::failed(hop, reason, ""),
                    false => Finding::warning(hop, reason, ""),
                }
            });
            let unasked = match other {
                Some(Err(Unasked::NotAllowed(why))) => Some(not_allowed(hop, why)),
                Some(Err(Unasked::Failed(why))) => {
                    Some(Finding::unknown(hop, format!("it could not be asked how it is: {why}"), ""))
                }
                _ => None,
            };
            return said.into_iter().chain(unasked).collect();
        }
    };
    let mut findings: Vec<Finding> = list(&facts["problems"])
        .map(|problem| Finding::told(State::Failed, hop, &format!("it cannot do all it should: {problem}")))
        .collect();
    let presences = facts["presences"].as_object().filter(|_| answers.tells_presences);
    for (service, why) in presences.into_iter().flatten() {
        let hop = format!("presence of {service} at {hop}");
        findings.push(Finding::told(State::Failed, hop, &format!("it does not listen: {}", cell(why))));
    }
    for (check, why) in facts["role"]["notReady"].as_object().into_iter().flatten() {
        let reason = format!("it is not ready: {check}: {}", cell(why));
        findings.push(Finding::failed(hop, reason, "look at the disk and the log of the edge"));
    }
    // Without an address in its site no host can route through it, and only its own host uses presences.
    let is_router = gateway["ip"].as_str().is_some_and(|ip| !ip.is_empty());
    let state = if is_router { State::Failed } else { State::Warning };
    findings.extend(list(&facts["hints"]).map(|hint| Finding::told(state, hop, &hint)));
    findings
}

fn list(value: &Value) -> impl Iterator<Item = String> + '_ {
    value.as_array().into_iter().flatten().filter_map(|line| line.as_str().map(str::to_owned))
}

/// A condition that does not hold.
fn condition<'a>(gateway: &'a Value, kind: &str) -> Option<&'a Value> {
    let conditions = gateway["conditions"].as_array()?;
    conditions.iter().find(|said| said["type"] == kind && said["status"] == "False")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The findings that are not ok, by state and a part of what they say.
    #[track_caller]
    fn check(gateway: Value, facts: Option<Result<Value, Unasked>>, expected: &[(State, &str)]) {
        let answers = Answers { facts: facts.as_ref(), tells_presences: true, ..Answers::default() };
        let findings = examine("tokyo", Some(&gateway), &answers);
        let bad: Vec<&Finding> = findings.iter().filter(|finding| finding.state != State::Ok).collect();
        let told: Vec<String> = findings.iter().map(Finding::text).collect();
        assert_eq!(bad.len(), expected.len(), "{told:#?}");
        for (finding, (state, part)) in bad.iter().zip(expected) {
            assert!(finding.state == *state && finding.text().contains(part), "{part} is not in {told:#?}");
        }
    }

    fn connected() -> Value {
        json!({"name": "tokyo", "site": "Tokyo", "connected": true, "transport": "quic", "since": "now", "rttMs": 3.0,
            "generation": "1.7", "identity": {"revoked": false, "at": "T", "expires": "U"}})
    }

    fn with(key: &str, value: Value) -> Value {
        let mut gateway = connected();
        gateway[key] = value;
        gateway
    }

    #[test]
    fn a_gateway_that_is_away_says_why() {
        use State::Failed;
        let none = examine("tokyo", None, &Answers::default());
        assert!(none[0].text().contains("there is no EGateway tokyo"));
        let away = |key: &str, value: Value| {
            let mut gateway = json!({"name": "tokyo", "site": "Tokyo", "connected": false});
            gateway[key] = value;
            gateway
        };
        check(away("x", Value::Null), None, &[(Failed, "never connected")]);
        check(away("since", "2026-01-01".into()), None, &[(Failed, "not connected since 2026-01-01")]);
        // Away since before the cloud was restarted: the live stats know nothing.
        check(away("lastSeen", "2026-01-01".into()), None, &[(Failed, "not connected since 2026-01-01")]);
        check(away("identity", json!({"at": "2026-02-02"})), None, &[(Failed, "enrolled at 2026-02-02")]);
        let revoked = away("identity", json!({"revoked": true, "at": "2026-02-02"}));
        check(revoked, None, &[(Failed, "revoked at 2026-02-02")]);
        let moved =
            json!([{"type": "EnrolledAtSite", "status": "False", "message": "its certificate names Kyoto"}]);
        check(away("conditions", moved), None, &[(Failed, "names Kyoto"), (Failed, "never connected")]);
        let mut stopped = away("lastSeen", "T".into());
        stopped["lastDisconnectReason"] = "Stopped".into();
        check(stopped, None, &[(Failed, "stopped in order")]);
    }

    #[test]
    fn a_gateway_that_is_connected_is_not_always_well() {
        use State::{Failed, Unknown, Warning};
        check(connected(), None, &[]);
        check(with("clockAheadSeconds", 20.into()), None, &[]);
        check(with("clockAheadSeconds", 3600.into()), None, &[(Warning, "3600 s ahead of")]);
        check(with("clockAheadSeconds", (-3600).into()), None, &[(Failed, "3600 s behind")]);
        check(with("generation", Value::Null), None, &[(Failed, "no netmap")]);
        let refused = json!([{"type": "NetmapInForce", "status": "False", "message": "disk full"}]);
        check(with("conditions", refused), None, &[(Failed, "disk full")]);
        let unwritten = json!([{"type": "NetmapPersisted", "status": "False", "message": "disk full"}]);
        check(with("conditions", unwritten), None, &[(Failed, "not on its disk")]);
        let mut double = with("takeovers", 4.into());
        double["rivalAddresses"] = json!(["10.0.0.1", "10.0.0.2"]);
        check(double, None, &[(Failed, "10.0.0.1 and 10.0.0.2")]);
        let denied = Some(Err(Unasked::NotAllowed("this needs the role admin".into())));
        check(connected(), denied, &[(Unknown, "role admin")]);
        check(connected(), Some(Err(Unasked::Failed("too old".into()))), &[(Unknown, "too old")]);
    }

    #[test]
    fn the_reason_for_tcp_is_told() {
        use State::Warning;
        let tcp = || with("transport", "tcp".into());
        let link = |link: Value| Some(Ok(json!({"role": {"link": link}})));
        check(tcp(), link(json!({"allowed": "tcp"})), &[]);
        check(tcp(), link(json!({"allowed": "auto", "proxied": true})), &[]);
        let blocked = json!({"allowed": "auto", "quicProblem": "no answer within 2000 ms"});
        check(tcp(), link(blocked), &[(Warning, "fell back to TCP: no answer within 2000 ms")]);
        check(tcp(), None, &[(Warning, "could not be asked why")]);
    }

    #[test]
    fn an_answer_of_the_gateway_counts_more_than_a_condition() {
        use State::{Failed, Warning};
        let unheard = json!([{"type": "Listening", "status": "False", "message": "no names"}]);
        check(with("conditions", unheard.clone()), None, &[(Failed, "no names")]);
        check(with("conditions", unheard), Some(Ok(json!({"problems": []}))), &[]);
        let facts = json!({"problems": ["the presence of web does not listen: taken"],
            "hints": ["it does not forward IPv4: sysctl -w a=1"], "role": {"notReady": {"netmap": "disk full"}}});
        let told = [(Failed, "taken"), (Failed, "netmap: disk full"), (Warning, "fix: sysctl -w a=1")];
        check(connected(), Some(Ok(facts.clone())), &told);
        let told = [(Failed, "taken"), (Failed, "netmap: disk full"), (Failed, "fix: sysctl -w a=1")];
        check(with("ip", "10.0.0.1".into()), Some(Ok(facts)), &told);
        let facts = Ok(json!({"presences": {"web": "taken", "mail": "no route"}}));
        check(
            connected(),
            Some(facts.clone()),
            &[(Failed, "presence of mail at gateway tokyo"), (Failed, "taken")],
        );
        let answers = Answers { facts: Some(&facts), ..Answers::default() };
        let told = examine("tokyo", Some(&connected()), &answers);
        assert!(told.iter().all(|finding| finding.state == State::Ok), "{told:?}");
    }
}
