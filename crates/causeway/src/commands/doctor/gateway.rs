//! Checks of a gateway as the cloud sees it: present, admitted, connected, with the newest netmap, and its own reports.
//!
//! Pure: its line of `causeway status --json` and the answers of the gateway in, findings out. A present
//! answer of the gateway counts more than a condition that was written before. A state that cannot be judged
//! is reported as unknown.

use causeway_api::management::{GatewayFacts, GatewayOverview, ProbeResponse};
use causeway_api::{Condition, ConditionStatus};

use super::Unasked;
use super::finding::{Finding, State};

/// As `causeway_channel::clock` has it: certificates begin this long before they are issued, and work for an edge this far
/// ahead; below the first number nothing is said.
const CLOCK_NOTICEABLE_SECONDS: i64 = 30;
const CLOCK_BEHIND_MAX_SECONDS: i64 = 10 * 60;
const CLOCK_AHEAD_MAX_SECONDS: i64 = 24 * 3600;

/// The cloud's own gateway has no channel: it is where we are.
pub fn is_cloud(gateway: Option<&GatewayOverview>) -> bool {
    gateway.is_some_and(|gateway| gateway.name == "cloud")
}

/// The answers of a gateway.
#[derive(Default)]
pub struct Answers<'a> {
    /// Bytes to the gateway and back.
    pub probe: Option<&'a Result<ProbeResponse, Unasked>>,
    /// Its self-description.
    pub facts: Option<&'a Result<GatewayFacts, Unasked>>,
    /// Report presences that do not listen. The walk to a service reports only its own.
    pub tells_presences: bool,
}

pub fn examine(name: &str, gateway: Option<&GatewayOverview>, answers: &Answers<'_>) -> Vec<Finding> {
    let hop = format!("gateway {name}");
    let Some(gateway) = gateway else {
        return vec![Finding::failed(
            hop,
            format!("there is no EGateway {name}"),
            format!("causeway token create --site SITE --gateway {name} makes it"),
        )];
    };
    let site = gateway.site.as_str();
    let mut findings = vec![Finding::ok(&hop, format!("EGateway {name} exists, at the site {site}"))];
    if is_cloud(Some(gateway)) {
        findings.extend(says(&hop, gateway, answers));
        return findings;
    }
    if let Some(identity) = gateway.identity.as_ref().filter(|identity| identity.revoked) {
        let at = &identity.at;
        findings.push(Finding::failed(
            &hop,
            format!("revoked at {at}: no edge can connect as {name} until it is enrolled again"),
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
        findings.push(Finding::failed(&hop, &said.message, fix));
    }
    if !gateway.stats.connected {
        findings.push(away(&hop, name, site, gateway));
        return findings;
    }
    findings.push(connected(&hop, gateway, answers.facts));
    findings.extend(clock(&hop, gateway.stats.clock_ahead_seconds));
    findings.extend(rivals(&hop, gateway));
    findings.push(netmap(&hop, gateway));
    findings.extend(says(&hop, gateway, answers));
    findings.extend(answers.probe.map(|probe| match probe {
        Ok(found) => {
            let ProbeResponse { bytes, milliseconds, .. } = found;
            Finding::ok(&hop, format!("{bytes} bytes went there and back in {milliseconds:.1} ms"))
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
        "use a kubeconfig with the role admin",
    )
}

/// Why it is not there, from what was stored when it went.
fn away(hop: &str, name: &str, site: &str, gateway: &GatewayOverview) -> Finding {
    let since = gateway.stats.since.or(gateway.last_seen);
    let look = format!(
        "look at the host of {name}: does causeway edge run, and can it reach UDP and TCP of the channel port? causeway doctor there says more"
    );
    let Some(since) = since else {
        return match &gateway.identity {
            Some(identity) => {
                let at = &identity.at;
                Finding::failed(hop, format!("not connected; enrolled at {at}, and not seen since"), look)
            }
            None => Finding::failed(
                hop,
                "never connected to this cloud: no edge has enrolled as this gateway",
                format!(
                    "causeway token create --site {site} --gateway {name}, and start `causeway edge --join TOKEN` at the site"
                ),
            ),
        };
    };
    let reason = gateway.stats.last_disconnect_reason.as_deref().filter(|reason| !reason.is_empty());
    let (why, fix) = match reason {
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

fn connected(hop: &str, gateway: &GatewayOverview, facts: Option<&Result<GatewayFacts, Unasked>>) -> Finding {
    let stats = &gateway.stats;
    let rtt = stats.rtt_ms.map_or_else(|| "unknown".to_owned(), |rtt| format!("{rtt:.1} ms"));
    let transport = stats.transport.as_deref().unwrap_or("?");
    let since = stats.since.map_or_else(|| "?".to_owned(), |since| since.to_string());
    let from = stats.address.as_ref().map(|address| format!(" from {address}")).unwrap_or_default();
    let line = format!("connected over {transport}{from} since {since}, round trip {rtt}");
    if transport != "tcp" {
        return Finding::ok(hop, line);
    }
    let facts = facts.and_then(|facts| facts.as_ref().ok());
    let link = facts.map(|facts| facts.role.clone().unwrap_or_default().link);
    match link {
        Some(link) if link.allowed == "tcp" => {
            Finding::ok(hop, format!("{line}; its configuration says transport tcp"))
        }
        Some(link) if link.proxied => {
            Finding::ok(hop, format!("{line}; through an HTTP proxy, which carries no QUIC"))
        }
        Some(link) => Finding::warning(
            hop,
            format!(
                "{line}; it fell back to TCP: {}",
                link.quic_problem.as_deref().unwrap_or("QUIC does not get through")
            ),
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

fn rivals(hop: &str, gateway: &GatewayOverview) -> Option<Finding> {
    let takeovers = gateway.stats.takeovers.filter(|count| *count > 0)?;
    Some(Finding::failed(
        hop,
        format!(
            "two processes use its identity and take the session from each other ({takeovers} times lately, from {}): one runs on a copy of the data dir",
            gateway.stats.rival_addresses.join(" and ")
        ),
        "stop one of them, remove its data dir, and enrol it as a gateway of its own: causeway token create --site SITE --gateway NAME",
    ))
}

fn netmap(hop: &str, gateway: &GatewayOverview) -> Finding {
    match (condition(gateway, "NetmapInForce"), &gateway.stats.generation) {
        (Some(said), _) => Finding::failed(
            hop,
            format!("its netmap is not in force: {}", said.message),
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
fn says(hop: &str, gateway: &GatewayOverview, answers: &Answers<'_>) -> Vec<Finding> {
    let facts = match answers.facts {
        Some(Ok(facts)) => facts,
        other => {
            let said = condition(gateway, "Listening").map(|said| {
                let reason = format!("it cannot do all it should: {}", said.message);
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
    let off = facts.switched_off.iter().map(|plane| Finding::ok(hop, switched_off(plane)));
    let mut findings: Vec<Finding> = off.collect();
    findings.extend(
        facts.problems.iter().map(|problem| {
            Finding::told(State::Failed, hop, &format!("it cannot do all it should: {problem}"))
        }),
    );
    let presences = Some(&facts.presences).filter(|_| answers.tells_presences);
    for (service, why) in presences.into_iter().flatten() {
        let hop = format!("presence of {service} at {hop}");
        findings.push(Finding::told(State::Failed, hop, &format!("it does not listen: {why}")));
    }
    for (check, why) in facts.role.iter().flat_map(|role| &role.not_ready) {
        let reason = format!("it is not ready: {check}: {why}");
        findings.push(Finding::failed(hop, reason, "look at the disk and the log of the edge"));
    }
    // Without an address in its site no host can route through it, and only its own host uses presences.
    let is_router = !gateway.ip.is_empty();
    let state = if is_router { State::Failed } else { State::Warning };
    findings.extend(facts.hints.iter().map(|hint| Finding::told(state, hop, hint)));
    findings
}

/// Says that a plane is off because the gateway is configured so.
pub fn switched_off(plane: &str) -> String {
    match plane {
        "services" => "services are switched off in its configuration ([gateway] services-off)".to_owned(),
        "layer3" => "layer 3 is switched off in its configuration ([tunnel] off)".to_owned(),
        other => format!("{other} is switched off in its configuration"),
    }
}

/// A condition that does not hold.
fn condition<'a>(gateway: &'a GatewayOverview, kind: &str) -> Option<&'a Condition> {
    gateway.conditions.iter().find(|said| said.kind == kind && said.status == ConditionStatus::False)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// The findings that are not ok, by state and a part of what they say.
    #[track_caller]
    fn check(gateway: Value, facts: Option<Result<Value, Unasked>>, expected: &[(State, &str)]) {
        let facts = facts.map(read);
        let answers = Answers { facts: facts.as_ref(), tells_presences: true, ..Answers::default() };
        let findings = examine("tokyo", Some(&overview(gateway)), &answers);
        let bad: Vec<&Finding> = findings.iter().filter(|finding| finding.state != State::Ok).collect();
        let told: Vec<String> = findings.iter().map(Finding::text).collect();
        assert_eq!(bad.len(), expected.len(), "{told:#?}");
        for (finding, (state, part)) in bad.iter().zip(expected) {
            assert!(finding.state == *state && finding.text().contains(part), "{part} is not in {told:#?}");
        }
    }

    fn overview(gateway: Value) -> GatewayOverview {
        serde_json::from_value(gateway).unwrap()
    }

    fn read(facts: Result<Value, Unasked>) -> Result<GatewayFacts, Unasked> {
        facts.map(|facts| serde_json::from_value(facts).unwrap())
    }

    /// A condition that is False.
    fn unmet(kind: &str, message: &str) -> Value {
        json!([{"type": kind, "status": "False", "message": message, "reason": "Test",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}])
    }

    fn connected() -> Value {
        json!({"name": "tokyo", "site": "Tokyo", "connected": true, "transport": "quic", "since": "2026-01-02T00:00:00Z", "rttMs": 3.0,
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
        check(
            away("since", "2026-01-01T00:00:00Z".into()),
            None,
            &[(Failed, "not connected since 2026-01-01")],
        );
        // Away since before the cloud was restarted: the live stats know nothing.
        check(
            away("lastSeen", "2026-01-01T00:00:00Z".into()),
            None,
            &[(Failed, "not connected since 2026-01-01")],
        );
        check(away("identity", json!({"at": "2026-02-02"})), None, &[(Failed, "enrolled at 2026-02-02")]);
        let revoked = away("identity", json!({"revoked": true, "at": "2026-02-02"}));
        check(revoked, None, &[(Failed, "revoked at 2026-02-02")]);
        let moved = unmet("EnrolledAtSite", "its certificate names Kyoto");
        check(away("conditions", moved), None, &[(Failed, "names Kyoto"), (Failed, "never connected")]);
        let mut stopped = away("lastSeen", "2026-01-01T00:00:00Z".into());
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
        let refused = unmet("NetmapInForce", "disk full");
        check(with("conditions", refused), None, &[(Failed, "disk full")]);
        let unwritten = unmet("NetmapPersisted", "disk full");
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
        let unheard = unmet("Listening", "no names");
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
        let off = Ok(json!({"switchedOff": ["services", "layer3"]}));
        check(connected(), Some(off.clone()), &[]);
        let off = read(off);
        let answers = Answers { facts: Some(&off), ..Answers::default() };
        let told = examine("tokyo", Some(&overview(connected())), &answers);
        assert!(told.iter().any(|finding| finding.text().contains("layer 3 is switched off")), "{told:?}");
        let facts = read(facts);
        let answers = Answers { facts: Some(&facts), ..Answers::default() };
        let told = examine("tokyo", Some(&overview(connected())), &answers);
        assert!(told.iter().all(|finding| finding.state == State::Ok), "{told:?}");
    }
}
