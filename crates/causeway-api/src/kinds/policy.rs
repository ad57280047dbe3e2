//! EPolicy: allows subjects to use the objects it is attached to, within limits.

use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{self, NAMES_MAX};
use crate::field::{FieldError, FieldErrors};
use crate::meta::{ObjectMeta, ObjectStatus};

/// EPolicy allows subjects to use the objects it is attached to, within limits. Policies are a union: a
/// subject is allowed when any of them names it; the limits of every policy that names it apply.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EPolicy {
    pub metadata: ObjectMeta,

    /// Names of the EServers that are allowed (their metadata.name). Default: none. Example: ["Server1"].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set", "maxItems" = NAMES_MAX))]
    pub allowed_servers: Vec<String>,

    /// Names of the ESites all of whose hosts are allowed. Default: none. Example: ["cloud"].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set", "maxItems" = NAMES_MAX))]
    pub allowed_sites: Vec<String>,

    /// Protocols and ports that the policy allows: tcp/PORT, udp/PORT, a range as FIRST-LAST, or icmp. For services it is the
    /// service's port that counts. Default: every protocol and port. Example: ["tcp/443", "udp/5000-5100", "icmp"].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = PORTS_MAX))]
    pub ports: Vec<String>,

    /// Limits for each allowed subject. Default: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limits: Option<Limits>,

    /// HTTP requests that are allowed on HTTP and GRPC services; a request must match one rule. A policy with
    /// rules allows nothing at layer 3, where no requests are read. Default: every request. Example: [{"methods": ["GET"], "paths": ["/public/*"]}].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = RULES_MAX))]
    pub http: Vec<HttpRule>,

    #[serde(skip_serializing_if = "ObjectStatus::is_empty")]
    pub status: ObjectStatus,
}

/// Limits of one subject at one service. A missing number is no limit; 0 allows nothing.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Limits {
    /// New connections per second. Default: no limit. Example: 50.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub connections_per_second: Option<i64>,
    /// Connections open at the same time. Default: no limit. Example: 200.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub connections: Option<i64>,
    /// Bytes per second from the subject to the service. Default: no limit. Example: 1000000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub bytes_per_second_in: Option<i64>,
    /// Bytes per second from the service to the subject. Default: no limit. Example: 10000000.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub bytes_per_second_out: Option<i64>,
    /// HTTP requests per second; more are answered with 429. Default: no limit. Example: 100.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 0))]
    pub requests_per_second: Option<i64>,
}

/// A set of HTTP requests: any of the methods on any of the paths.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HttpRule {
    /// Methods, in capitals. Default: every method. Example: ["GET", "HEAD"].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = METHODS_MAX))]
    pub methods: Vec<String>,
    /// Paths, each beginning with '/'. One that ends with '*' matches every path with this prefix. Default:
    /// every path. Example: ["/healthz", "/public/*"].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = PATHS_MAX))]
    pub paths: Vec<String>,
}

// A gateway compares a request with every rule: these bounds keep that cheap.
const RULES_MAX: usize = 256;
const METHODS_MAX: usize = 32;
const PATHS_MAX: usize = 256;
const PORTS_MAX: usize = 256;

impl EPolicy {
    /// Returns the ports that the policy is limited to. None: a rule cannot be read, so the policy allows nothing.
    pub fn port_ranges(&self) -> Option<Vec<PortRange>> {
        self.ports.iter().map(|rule| rule.parse().ok()).collect()
    }

    pub(crate) fn check_fields(&self, errors: &mut FieldErrors) {
        check::names(errors, "allowedServers", &self.allowed_servers);
        check::names(errors, "allowedSites", &self.allowed_sites);
        check::set(errors, "ports", &self.ports, PORTS_MAX, check::port_rule);
        if let Some(limits) = &self.limits {
            limits.check_fields(errors);
        }
        check::count(errors, "http", self.http.len(), RULES_MAX);
        for (index, rule) in self.http.iter().take(RULES_MAX).enumerate() {
            check::set(errors, &format!("http[{index}].methods"), &rule.methods, METHODS_MAX, check::method);
            check::set(errors, &format!("http[{index}].paths"), &rule.paths, PATHS_MAX, check::path_pattern);
        }
    }
}

/// The protocol of a `PortRange`. `Icmp` includes ICMPv6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum PortProtocol {
    Tcp,
    Udp,
    Icmp,
}

/// One element of `ports`: a protocol, and its first and last port. ICMP has no ports.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct PortRange {
    pub protocol: PortProtocol,
    pub first: u16,
    pub last: u16,
}

impl FromStr for PortRange {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<PortRange, &'static str> {
        const ALLOWED: &str = "write tcp or udp, a slash and a port or a range, or icmp; for example tcp/443, udp/5000-5100, icmp";
        if text == "icmp" {
            return Ok(PortRange { protocol: PortProtocol::Icmp, first: 0, last: u16::MAX });
        }
        let (protocol, ports) = text.split_once('/').ok_or(ALLOWED)?;
        let protocol = match protocol {
            "tcp" => PortProtocol::Tcp,
            "udp" => PortProtocol::Udp,
            "icmp" => return Err("icmp has no ports: write icmp alone"),
            _ => return Err(ALLOWED),
        };
        let port = |text: &str| {
            let is_plain = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let port = text.parse::<u16>().ok().filter(|port| is_plain && *port != 0);
            port.ok_or("a port is 1 to 65535")
        };
        let (first, last) = ports.split_once('-').unwrap_or((ports, ports));
        let (first, last) = (port(first)?, port(last)?);
        if first > last {
            return Err("the first port of a range is not above the last");
        }
        Ok(PortRange { protocol, first, last })
    }
}

impl Limits {
    fn check_fields(&self, errors: &mut FieldErrors) {
        let rows = [
            ("limits.connectionsPerSecond", self.connections_per_second),
            ("limits.connections", self.connections),
            ("limits.bytesPerSecondIn", self.bytes_per_second_in),
            ("limits.bytesPerSecondOut", self.bytes_per_second_out),
            ("limits.requestsPerSecond", self.requests_per_second),
        ];
        for (path, limit) in rows {
            if let Some(limit) = limit.filter(|limit| *limit < 0) {
                errors.push(FieldError::invalid(
                    path,
                    limit,
                    "a limit is 0 or more; leave it out for no limit",
                ));
            }
        }
    }
}
