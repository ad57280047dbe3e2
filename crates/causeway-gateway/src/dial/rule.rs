//! A rule about backends in the local configuration: a network, optionally with ports. Pure.
//!
//! Syntax: `ADDRESS` or `NETWORK`, followed by `:PORT` or `:FIRST-LAST` if the rule does not apply to all
//! ports. IPv6 addresses with a port are written in brackets.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BackendRule {
    network: IpNet,
    first: u16,
    last: u16,
}

impl BackendRule {
    pub fn contains(&self, ip: IpAddr, port: u16) -> bool {
        self.network.contains(&ip) && (self.first..=self.last).contains(&port)
    }

    /// Returns a key that is greater for a more specific rule: a longer network first, then fewer ports.
    pub fn specificity(&self) -> (u8, u16) {
        BackendRule::specificity_of(self.network.prefix_len(), self.first, self.last)
    }

    pub fn specificity_of(bits: u8, first: u16, last: u16) -> (u8, u16) {
        (bits, u16::MAX - (last - first))
    }
}

impl FromStr for BackendRule {
    type Err = String;

    fn from_str(text: &str) -> Result<BackendRule, String> {
        let wrong = |why: &str| {
            format!(
                "`{text}` {why}; write an address or a network, with a port if it is not for all, as in 10.0.0.0/8, \
                 169.254.169.254:80 or [fd00::/8]:8000-8999"
            )
        };
        if let Some(network) = network(text) {
            return Ok(BackendRule { network, first: 1, last: u16::MAX });
        }
        let (host, ports) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((host, "")) => (host, None),
            Some((host, rest)) => {
                (host, Some(rest.strip_prefix(':').ok_or_else(|| wrong("has a bad port"))?))
            }
            None => match text.rsplit_once(':') {
                Some((host, _)) if host.contains(':') => {
                    return Err(wrong("needs brackets around its address"));
                }
                Some((host, ports)) => (host, Some(ports)),
                None => (text, None),
            },
        };
        let network = network(host).ok_or_else(|| wrong("is not an address or network"))?;
        let number = |text: &str| text.parse::<u16>().ok().filter(|port| *port != 0);
        let ports = match ports {
            None => Some((1, u16::MAX)),
            Some(ports) => match ports.split_once('-') {
                Some((first, last)) => number(first).zip(number(last)).filter(|(first, last)| first <= last),
                None => number(ports).map(|port| (port, port)),
            },
        };
        let (first, last) = ports.ok_or_else(|| wrong("has a bad port"))?;
        Ok(BackendRule { network, first, last })
    }
}

fn network(text: &str) -> Option<IpNet> {
    if let Ok(ip) = text.parse::<IpAddr>() {
        return Some(ip.to_canonical().into());
    }
    let network = text.parse::<IpNet>().ok()?.trunc();
    // IPv4-mapped networks are compared as the IPv4 networks they map.
    let (ip, bits) = (network.addr().to_canonical(), network.prefix_len());
    match (network.addr(), ip) {
        (IpAddr::V6(_), IpAddr::V4(_)) => IpNet::new(ip, bits.checked_sub(96)?).ok(),
        _ => Some(network),
    }
}

impl TryFrom<String> for BackendRule {
    type Error = String;

    fn try_from(text: String) -> Result<BackendRule, String> {
        text.parse()
    }
}

impl From<BackendRule> for String {
    fn from(rule: BackendRule) -> String {
        rule.to_string()
    }
}

impl fmt::Display for BackendRule {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last, &self.network) {
            (1, u16::MAX, network) => return network.fmt(formatter),
            (.., IpNet::V6(network)) => write!(formatter, "[{network}]")?,
            (.., IpNet::V4(network)) => network.fmt(formatter)?,
        }
        match (self.first, self.last) {
            (first, last) if first == last => write!(formatter, ":{first}"),
            (first, last) => write!(formatter, ":{first}-{last}"),
        }
    }
}
