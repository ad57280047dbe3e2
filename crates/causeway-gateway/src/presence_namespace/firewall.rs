//! Checks whether the host's firewall forwards packets of other hosts to the presence namespace, for
//! `causeway doctor`.
//!
//! `blocking_rules` is pure. Input: chains of the forward hook as `nft --json` lists them. Output: sentences with the
//! remedy. Only certain findings are reported: a rule that cannot be evaluated here counts as one that may
//! accept. `read` runs `nft`, bounded in time and bytes; rules of the legacy iptables are not seen.

use std::io::Read;
use std::net::IpAddr;
use std::process::{Command, Stdio};
use std::time::Duration;

use ipnet::IpNet;
use serde_json::Value;

/// A Kubernetes host has some hundred chains; each is listed alone.
const OUTPUT_BYTES_MAX: u64 = 4 << 20;
const NFT_MAX: Duration = Duration::from_secs(3);
/// The maximum number of base chains of the forward hook that are read.
const CHAINS_MAX: usize = 16;

/// The path of a packet from another host to a presence.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PresencePath {
    /// The interface by which it arrives, if known.
    pub entrance: Option<String>,
    /// The host's end of the veth.
    pub veth: String,
    pub network: IpNet,
}

/// Returns the chains of the forward hook, each with its rules. None: `nft` is not available.
pub async fn read() -> Option<Vec<Value>> {
    let listed = nft(&["--json", "list", "chains"]).await?;
    let chains = listed["nftables"].as_array()?.iter().filter_map(|item| item.get("chain"));
    let mut found = Vec::new();
    for chain in chains.filter(|chain| chain["hook"] == "forward").take(CHAINS_MAX) {
        let word = |key: &str| chain[key].as_str();
        let (Some(family), Some(table), Some(name)) = (word("family"), word("table"), word("name")) else {
            continue;
        };
        let listed = nft(&["--json", "list", "chain", family, table, name]).await;
        let rules = listed.as_ref().and_then(|listed| listed["nftables"].as_array()).into_iter().flatten();
        let rules: Vec<Value> = rules.filter_map(|item| item.get("rule").cloned()).collect();
        let mut chain = chain.clone();
        chain["rules"] = rules.into();
        found.push(chain);
    }
    Some(found)
}

async fn nft(arguments: &[&str]) -> Option<Value> {
    let program =
        ["/usr/sbin/nft", "/sbin/nft"].into_iter().find(|path| std::path::Path::new(path).exists())?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let output = child.stdout.take()?;
    let reading = tokio::task::spawn_blocking(move || {
        let mut text = Vec::new();
        output.take(OUTPUT_BYTES_MAX).read_to_end(&mut text).map(|_| text)
    });
    let read = tokio::time::timeout(NFT_MAX, reading).await;
    // A process that has not ended by now is stuck; killing it ends the reading too.
    let _ = child.kill();
    let _ = child.wait();
    let text = read.ok()?.ok()?.ok()?;
    serde_json::from_slice(&text).ok()
}

/// Returns the rules that block new connections of other hosts to presences.
pub fn blocking_rules(chains: &[Value], way: &PresencePath) -> Vec<String> {
    let is_v4 = way.network.addr().is_ipv4();
    let concerns = |family: &str| family == "inet" || family == if is_v4 { "ip" } else { "ip6" };
    let chains = chains.iter().filter(|chain| chain["family"].as_str().is_some_and(concerns));
    chains.filter_map(|chain| blocking_rule(chain, way)).collect()
}

fn blocking_rule(chain: &Value, way: &PresencePath) -> Option<String> {
    let word = |key: &str| chain[key].as_str().unwrap_or("?");
    let place = format!("{} {} {}", word("family"), word("table"), word("name"));
    let PresencePath { veth, network, .. } = way;
    let fix = format!(
        "fix: nft insert rule {place} oifname \"{veth}\" accept; nft insert rule {place} iifname \"{veth}\" accept"
    );
    let mut may_accept = false;
    for rule in chain["rules"].as_array().into_iter().flatten() {
        let parts: Vec<&Value> = rule["expr"].as_array().into_iter().flatten().collect();
        let matches: Vec<Option<bool>> = parts.iter().filter_map(|part| fits(part, way)).collect();
        if matches.contains(&Some(false)) {
            continue;
        }
        let is_certain = matches.iter().all(|fits| *fits == Some(true));
        let has = |verdict: &str| parts.iter().any(|part| part.get(verdict).is_some());
        if has("accept") && is_certain {
            return None;
        }
        if (has("drop") || has("reject")) && is_certain {
            return Some(format!(
                "the firewall of this host drops what other hosts send to {network}: a rule of chain {place} does; {fix}"
            ));
        }
        may_accept |= ["accept", "jump", "goto", "vmap", "queue", "xt"].into_iter().any(has);
    }
    (chain["policy"] == "drop" && !may_accept).then(|| {
        format!(
            "the firewall of this host drops what other hosts send to {network}: chain {place} has policy drop and no rule that accepts it; {fix}"
        )
    })
}

/// Tells whether a new TCP connection on this path matches one part of a rule. None: the part is no
/// condition. Some(None): unknown.
fn fits(part: &Value, way: &PresencePath) -> Option<Option<bool>> {
    // Parts that only count or log.
    if part.get("xt").is_some() {
        return Some(None);
    }
    let condition = part.get("match")?;
    let (left, right) = (&condition["left"], &condition["right"]);
    let equal = match left["meta"]["key"].as_str() {
        Some("oifname" | "oif") => one_of(right, |name| name_fits(name, &way.veth)),
        Some("iifname" | "iif") => match &way.entrance {
            Some(entrance) => one_of(right, |name| name_fits(name, entrance)),
            None => None,
        },
        Some("l4proto") => one_of(right, |protocol| Some(protocol.as_str()? == "tcp")),
        Some("nfproto") => {
            one_of(right, |family| Some((family.as_str()? == "ipv4") == way.network.addr().is_ipv4()))
        }
        _ => None,
    };
    let equal = equal.or_else(|| match left["ct"]["key"].as_str() {
        Some("state") => one_of(right, |state| Some(state.as_str()? == "new")),
        _ => None,
    });
    let equal =
        equal.or_else(|| match (left["payload"]["protocol"].as_str(), left["payload"]["field"].as_str()) {
            (Some("ip" | "ip6"), Some("daddr")) => one_of(right, |network| within(network, &way.network)),
            _ => None,
        });
    let is_negated = condition["op"] == "!=";
    Some(equal.map(|equal| equal != is_negated))
}

/// Evaluates each element of a set, or a single value.
fn one_of(right: &Value, fits: impl Fn(&Value) -> Option<bool>) -> Option<bool> {
    let elements = right["set"].as_array().or_else(|| right.as_array());
    match elements {
        None => fits(right),
        Some(elements) => {
            let all: Vec<Option<bool>> = elements.iter().map(fits).collect();
            match all.contains(&Some(true)) {
                true => Some(true),
                false if all.contains(&None) => None,
                false => Some(false),
            }
        }
    }
}

fn name_fits(pattern: &Value, name: &str) -> Option<bool> {
    let pattern = pattern.as_str()?;
    Some(match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => pattern == name,
    })
}

/// Some(true) when `ours` is entirely inside, Some(false) when it is entirely outside.
fn within(value: &Value, ours: &IpNet) -> Option<bool> {
    let network = match value.get("prefix") {
        Some(prefix) => {
            let length = u8::try_from(prefix["len"].as_u64()?).ok()?;
            IpNet::new(prefix["addr"].as_str()?.parse::<IpAddr>().ok()?, length).ok()?.trunc()
        }
        None => IpNet::from(value.as_str()?.parse::<IpAddr>().ok()?),
    };
    match network.contains(ours) {
        true => Some(true),
        false if ours.contains(&network) => None,
        false => Some(false),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn way() -> PresencePath {
        PresencePath {
            entrance: Some("eth0".to_owned()),
            veth: "causeway0".to_owned(),
            network: "198.18.0.0/16".parse().unwrap(),
        }
    }

    #[track_caller]
    fn check(policy: &str, rules: &[Value], expected: Option<&str>) {
        let rules: Vec<Value> = rules.iter().map(|parts| json!({ "expr": parts })).collect();
        let chain = json!({"family": "inet", "table": "filter", "name": "forward", "hook": "forward",
            "policy": policy, "rules": rules});
        let found = blocking_rules(&[chain], &way());
        match expected {
            None => assert!(found.is_empty(), "{found:?}"),
            Some(part) => assert!(matches!(&found[..], [one] if one.contains(part)), "{found:?}"),
        }
    }

    fn on(left: Value, right: Value) -> Value {
        json!({"match": {"op": "==", "left": left, "right": right}})
    }

    #[test]
    fn only_what_certainly_drops_is_told() {
        let (accept, drop) = (json!({"accept": null}), json!({"drop": null}));
        let counter = json!({"counter": {"packets": 0, "bytes": 0}});
        let out = |name: &str| on(json!({"meta": {"key": "oifname"}}), name.into());
        let l4 = on(json!({"meta": {"key": "l4proto"}}), json!({"set": ["tcp", "udp"]}));
        let state =
            |states: Value| json!({"match": {"op": "in", "left": {"ct": {"key": "state"}}, "right": states}});
        let to = |addr: &str, len: u8| {
            let left = json!({"payload": {"protocol": "ip", "field": "daddr"}});
            on(left, json!({"prefix": {"addr": addr, "len": len}}))
        };
        let known = state(json!(["established", "related"]));
        check("accept", &[], None);
        check("drop", &[], Some("policy drop"));
        check("drop", &[json!([known, accept])], Some("policy drop"));
        check("drop", &[json!([out("causeway*"), counter, accept])], None);
        check("drop", &[json!([out("docker0"), accept])], Some("oifname \"causeway0\" accept"));
        check("drop", &[json!([to("198.18.0.0", 15), accept])], None);
        check("drop", &[json!([to("198.18.4.0", 24), accept])], None);
        check("drop", &[json!([{"jump": {"target": "ours"}}])], None);
        check("drop", &[json!([{"xt": {"type": "match"}}, accept])], None);
        check("accept", &[json!([l4, drop])], Some("a rule of chain inet filter forward"));
        check("accept", &[json!([out("docker0"), drop])], None);
        check("accept", &[json!([out("causeway0"), accept]), json!([drop])], None);
        check("accept", &[json!([{"reject": {"type": "icmp"}}])], Some("drops"));
        check("accept", &[json!([on(json!({"fib": {}}), "x".into()), drop])], None);
        let not = json!({"match": {"op": "!=", "left": {"meta": {"key": "iifname"}}, "right": "lan0"}});
        check("accept", &[json!([not, drop])], Some("drops"));
    }

    #[test]
    fn chains_of_another_family_do_not_count() {
        let chain = json!({"family": "ip6", "table": "t", "name": "f", "policy": "drop", "rules": []});
        assert!(blocking_rules(&[chain], &way()).is_empty());
        assert!(blocking_rules(&[json!({}), json!(7), Value::Null], &way()).is_empty());
    }
}
