//! The list of targets other than nodes that may be dialled directly, such as webhooks, from the
//! configuration. Pure.
//!
//! A rule is `HOST:PORT`. HOST is a name, `*.` and the end of a name, an address or a network; PORT is a
//! number, a range `A-B` or `*`. There is no rule that allows everything: an operator must spell out an open
//! proxy.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// The rules, in the order of the configuration. Empty: no such target is allowed.
pub type AllowList = Vec<AllowRule>;

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AllowRule {
    hosts: Hosts,
    first: u16,
    last: u16,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Hosts {
    Name(String),
    /// Starts with the dot.
    Below(String),
    Network(IpNet),
}

/// The host of a target: a name in lower case, or an address.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ConnectHost {
    Name(String),
    Address(IpAddr),
}

impl ConnectHost {
    /// Parses the host of a request: case, brackets and a trailing dot make no difference.
    pub fn new(text: &str) -> ConnectHost {
        let text = text.trim_end_matches('.');
        let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        match bare.parse::<IpAddr>() {
            Ok(address) => ConnectHost::Address(address.to_canonical()),
            Err(_) => ConnectHost::Name(text.to_ascii_lowercase()),
        }
    }
}

impl fmt::Display for ConnectHost {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectHost::Name(name) => formatter.write_str(name),
            ConnectHost::Address(address) => address.fmt(formatter),
        }
    }
}

impl AllowRule {
    pub fn allows(&self, host: &ConnectHost, port: u16) -> bool {
        let fits = match (&self.hosts, host) {
            (Hosts::Name(known), ConnectHost::Name(name)) => known == name,
            (Hosts::Below(end), ConnectHost::Name(name)) => {
                name.len() > end.len() && name.ends_with(end.as_str())
            }
            (Hosts::Network(network), ConnectHost::Address(address)) => network.contains(address),
            _ => false,
        };
        fits && (self.first..=self.last).contains(&port)
    }
}

impl FromStr for AllowRule {
    type Err = String;

    fn from_str(text: &str) -> Result<AllowRule, String> {
        let wrong = |why: &str| {
            format!("`{text}` {why}; write HOST:PORT, as in hooks.example.org:443 or 10.96.0.0/12:443")
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(|| wrong("has no port"))?;
        let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
        let (first, last) = match (port, port.split_once('-')) {
            ("*", _) => (1, u16::MAX),
            (_, Some((first, last))) => (
                number(first).ok_or_else(|| wrong("has a bad port"))?,
                number(last).ok_or_else(|| wrong("has a bad port"))?,
            ),
            (port, None) => number(port).map(|port| (port, port)).ok_or_else(|| wrong("has a bad port"))?,
        };
        if first > last {
            return Err(wrong("has a port range whose end is before its start"));
        }
        let host = host.trim_end_matches('.');
        let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        let hosts = match (bare.unwrap_or(host).parse::<IpNet>(), bare.unwrap_or(host).parse::<IpAddr>()) {
            (Ok(network), _) => Hosts::Network(network.trunc()),
            (_, Ok(address)) => Hosts::Network(IpNet::from(address.to_canonical())),
            _ => match host.strip_prefix('*') {
                Some(end) if end.starts_with('.') && is_name(&end[1..]) => {
                    Hosts::Below(end.to_ascii_lowercase())
                }
                None if is_name(host) => Hosts::Name(host.to_ascii_lowercase()),
                _ => return Err(wrong("has a host that is not a name, address or network")),
            },
        };
        Ok(AllowRule { hosts, first, last })
    }
}

fn is_name(text: &str) -> bool {
    let plain = |character: char| character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.');
    !text.is_empty() && !text.starts_with('.') && text.chars().all(plain)
}

impl TryFrom<String> for AllowRule {
    type Error = String;

    fn try_from(text: String) -> Result<AllowRule, String> {
        text.parse()
    }
}

impl From<AllowRule> for String {
    fn from(rule: AllowRule) -> String {
        rule.to_string()
    }
}

impl fmt::Display for AllowRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::Name(name) => formatter.write_str(name)?,
            Hosts::Below(end) => write!(formatter, "*{end}")?,
            Hosts::Network(IpNet::V6(network)) => write!(formatter, "[{network}]")?,
            Hosts::Network(IpNet::V4(network)) => network.fmt(formatter)?,
        }
        match (self.first, self.last) {
            (1, u16::MAX) => formatter.write_str(":*"),
            (first, last) if first == last => write!(formatter, ":{first}"),
            (first, last) => write!(formatter, ":{first}-{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_allows_what_it_names_and_nothing_else() {
        let check = |rule: &str, host: &str, port: u16, allowed: bool| {
            let rule: AllowRule = rule.parse().unwrap();
            assert_eq!(rule.allows(&ConnectHost::new(host), port), allowed, "{rule} for {host}:{port}");
            assert_eq!(rule.to_string().parse::<AllowRule>().unwrap(), rule);
        };
        check("hooks.example.org:443", "Hooks.Example.Org.", 443, true);
        check("hooks.example.org:443", "hooks.example.org", 8443, false);
        check("hooks.example.org:443", "evil-hooks.example.org", 443, false);
        check("*.svc:443", "hook.ns.svc", 443, true);
        check("*.svc.:443", "hook.ns.svc", 443, true);
        check("*.svc:443", "svc", 443, false);
        check("*.svc:443", ".svc", 443, false);
        check("*.svc:443", "hooksvc", 443, false);
        check("10.96.0.0/12:443", "10.97.1.2", 443, true);
        check("10.96.0.0/12:443", "[::ffff:10.97.1.2]", 443, true);
        check("10.96.0.0/12:443", "10.112.0.1", 443, false);
        check("10.96.0.0/12:443", "10.97.1.2.example.org", 443, false);
        check("10.96.0.0/12:443", "10.97.1.2.", 443, true);
        check("10.97.1.2.:443", "10.97.1.2", 443, true);
        check("10.0.0.1:8000-8999", "10.0.0.1", 8443, true);
        check("10.0.0.1:8000-8999", "10.0.0.1", 9000, false);
        check("[fd00::/64]:*", "[fd00::1]", 1, true);
        check("[fd00::/64]:*", "[fd00:0:0:1::1]", 1, false);
        check("[::1]:443", "[::1]", 443, true);
    }

    #[test]
    fn a_rule_that_is_not_understood_is_refused() {
        for text in [
            "",
            "host",
            "host:",
            "host:0",
            "host:65536",
            "*:443",
            "*host:443",
            "a b:1",
            ":443",
            "h:9-8",
            "10.0.0.0/33:1",
        ] {
            assert!(text.parse::<AllowRule>().is_err(), "{text}");
        }
    }
}
