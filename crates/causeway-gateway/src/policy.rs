//! Authorization: judges by the policies of the netmap whether a connection or a request is allowed.
//!
//! Default deny: a subject is allowed only by an existing policy that names it or its site. Both ends of a
//! crossing decide: the gateway of the client by the client's address, the gateway of the service by the
//! certificate of the other end. A refusal has a text and a reset code; each protocol translates it for its
//! clients.

pub mod path;

use std::fmt;
use std::net::IpAddr;
use std::time::Duration;

use causeway_channel::link::ResetCode;
use causeway_netmap::{
    IpProtocol, NetmapView, NodeEntry, PolicyEntry, PolicyHttpRule, PolicyLimits, PolicyName, PresenceEntry,
    ServerName, ServiceEntry, ServiceName, ServiceProtocol, SiteName,
};

use crate::dial::Denied;

/// The principal of a connection: a site, and the host if one is known by its address.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct Principal {
    pub site: SiteName,
    pub server: Option<ServerName>,
}

impl fmt::Display for Principal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.server {
            Some(server) => write!(formatter, "{server} at {}", self.site),
            None => write!(formatter, "an unknown host at {}", self.site),
        }
    }
}

/// The policies that allow a principal, in the order of their names. Never empty.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Permit {
    rules: Vec<MatchedPolicy>,
}

/// One policy of a permit, with the parts that a connection needs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MatchedPolicy {
    pub policy: PolicyName,
    pub limits: Option<PolicyLimits>,
    http: Vec<PolicyHttpRule>,
}

/// Why a connection or request is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PolicyRefusal {
    /// No netmap has arrived yet.
    #[error("this gateway has no netmap yet")]
    NoNetmap,
    #[error("there is no service {service} here")]
    NoService { service: ServiceName },
    #[error("service {service} is not exposed to site {site}")]
    NotExposed { service: ServiceName, site: SiteName },
    #[error("there is no node {node} here")]
    NoNode { node: ServerName },
    #[error("node {node} does not offer port {port}")]
    PortClosed { node: ServerName, port: u16 },
    #[error("no policy of {what} allows {who}")]
    NotAllowed { what: String, who: Principal },
    /// The other gateway names a host of another site.
    #[error("{server} is not a host of site {site}")]
    NotItsHost { server: ServerName, site: SiteName },
    #[error("no rule allows {method} {path}")]
    RequestNotAllowed { method: String, path: String },
    /// `retry_after`: the time after which a request would be admitted. None for a limit that is no rate.
    #[error("over the limit of policy {policy}: {what}")]
    Limit { policy: PolicyName, what: &'static str, retry_after: Option<Duration> },
    /// The gateway has reached one of its own bounds.
    #[error("this gateway has reached its maximum of {what}")]
    Full { what: &'static str },
    #[error("site {site} is away")]
    SiteAway { site: SiteName },
    /// The link or the gateway there reset the stream before it was open.
    #[error("site {site} refused the stream: {code}")]
    SiteRefused { site: SiteName, code: ResetCode },
    #[error("no backend of {service} answers")]
    BackendDown { service: ServiceName },
    /// The configuration of the gateway does not allow to dial the address in the netmap.
    #[error("the gateway does not dial {what}: {why}")]
    BackendDenied { what: String, why: Denied },
    #[error("malformed stream: {why}")]
    Malformed { why: MalformedPart },
}

/// The part of a stream or request that cannot be read, or that two readers could read differently.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MalformedPart {
    #[error("its details cannot be read")]
    Details,
    #[error("it carries something unknown")]
    Content,
    #[error("the content does not match the protocol of the service")]
    ServiceProtocol,
    #[error("a stream to a node must have the protocol tcp")]
    NodeProtocol,
    #[error("it names no port")]
    NoPort,
    #[error("it is not for a service")]
    NoService,
    #[error("it has both a length and a transfer encoding")]
    TwoLengths,
    #[error("it has a transfer encoding other than chunked")]
    TransferEncoding,
    #[error("it has no Host, or more than one")]
    Host,
    #[error("CONNECT is not for services")]
    Connect,
    #[error("its path does not begin with a slash")]
    RelativePath,
    #[error("its path has a percent sign that escapes nothing")]
    BadEscape,
    /// Only some servers treat them as a separator.
    #[error("its path has an escaped slash or a backslash")]
    HiddenSlash,
    #[error("its path has a control character")]
    ControlCharacter,
    /// Some servers remove parameters from a segment before they resolve dots.
    #[error("its path has dots with parameters")]
    DottedParameters,
    #[error("its path leads above the root")]
    AboveRoot,
}

impl PolicyRefusal {
    /// Returns the reset code for the link.
    pub fn code(&self) -> ResetCode {
        match self {
            PolicyRefusal::NoNetmap
            | PolicyRefusal::NoService { .. }
            | PolicyRefusal::NoNode { .. }
            | PolicyRefusal::SiteAway { .. } => ResetCode::NoRoute,
            PolicyRefusal::NotExposed { .. }
            | PolicyRefusal::PortClosed { .. }
            | PolicyRefusal::NotAllowed { .. }
            | PolicyRefusal::NotItsHost { .. }
            | PolicyRefusal::RequestNotAllowed { .. } => ResetCode::NotAllowed,
            PolicyRefusal::Limit { .. } | PolicyRefusal::Full { .. } => ResetCode::Limit,
            // It has no code of its own: an older gateway would treat that as a broken stream.
            PolicyRefusal::BackendDown { .. } | PolicyRefusal::BackendDenied { .. } => ResetCode::BackendDown,
            PolicyRefusal::SiteRefused { code, .. } => *code,
            PolicyRefusal::Malformed { .. } => ResetCode::Malformed,
        }
    }

    /// Returns one word, for metrics and the audit.
    pub fn word(&self) -> &'static str {
        match self {
            PolicyRefusal::NoNetmap => "no-netmap",
            PolicyRefusal::NoService { .. } => "no-service",
            PolicyRefusal::NotExposed { .. } => "not-exposed",
            PolicyRefusal::NoNode { .. } => "no-node",
            PolicyRefusal::PortClosed { .. } => "port-closed",
            PolicyRefusal::NotAllowed { .. } => "not-allowed",
            PolicyRefusal::NotItsHost { .. } => "not-its-host",
            PolicyRefusal::RequestNotAllowed { .. } => "request-not-allowed",
            PolicyRefusal::Limit { .. } => "limit",
            PolicyRefusal::Full { .. } => "full",
            PolicyRefusal::SiteAway { .. } => "site-away",
            PolicyRefusal::SiteRefused { code, .. } => word_of_code(*code),
            PolicyRefusal::BackendDown { .. } => "backend-down",
            PolicyRefusal::BackendDenied { .. } => "backend-denied",
            PolicyRefusal::Malformed { .. } => "malformed",
        }
    }
}

impl Permit {
    /// Returns the permit for targets that the configuration allows and no policy governs: the allow-list of
    /// CONNECT.
    pub fn configured() -> Permit {
        Permit {
            rules: vec![MatchedPolicy { policy: "connect-allow".into(), limits: None, http: Vec::new() }],
        }
    }

    /// Returns whether any of its policies has rules for method and path.
    pub fn has_http_rules(&self) -> bool {
        self.rules.iter().any(|rule| !rule.http.is_empty())
    }

    /// Returns the policies; the first one is named in the audit.
    pub fn rules(&self) -> &[MatchedPolicy] {
        &self.rules
    }

    /// Returns the policy that is named in the audit.
    pub fn rule(&self) -> &PolicyName {
        &self.rules.first().expect("a permit has at least one rule: `permit` makes no other").policy
    }

    /// Returns the policy that allows the request. Only for protocols whose requests are parsed. `path` is as
    /// `path::normal` returns it: without a query, dots and repeated slashes resolved.
    pub fn allows_request(&self, method: &str, path: &str) -> Result<&PolicyName, PolicyRefusal> {
        let allowing = self.rules.iter().find(|rule| rule.allows_request(method, path));
        allowing.map(|rule| &rule.policy).ok_or_else(|| PolicyRefusal::RequestNotAllowed {
            method: method.to_owned(),
            path: path.to_owned(),
        })
    }
}

impl MatchedPolicy {
    fn allows_request(&self, method: &str, path: &str) -> bool {
        self.http.is_empty() || self.http.iter().any(|rule| matches(rule, method, path))
    }
}

fn matches(rule: &PolicyHttpRule, method: &str, path: &str) -> bool {
    let method_fits = rule.methods.is_empty() || rule.methods.iter().any(|known| known == method);
    let fits = |known: &String| match known.strip_suffix('*') {
        Some(prefix) => path.starts_with(prefix),
        None => path == known,
    };
    method_fits && (rule.paths.is_empty() || rule.paths.iter().any(fits))
}

/// Returns one word for the reset code of another gateway, for metrics and the audit.
pub(crate) fn word_of_code(code: ResetCode) -> &'static str {
    match code {
        ResetCode::NotAllowed | ResetCode::Revoked => "not-allowed",
        ResetCode::Limit => "limit",
        ResetCode::BackendDown => "backend-down",
        ResetCode::Timeout => "timeout",
        ResetCode::Malformed | ResetCode::Internal | ResetCode::Other(_) => "malformed",
        ResetCode::NoRoute | ResetCode::Abandoned | ResetCode::Refused | ResetCode::Draining => "site-away",
    }
}

/// Returns the principal of a client at this address of this site.
pub fn principal_at(view: &NetmapView, client: IpAddr) -> Result<Principal, PolicyRefusal> {
    let site = view.gateway.as_ref().ok_or(PolicyRefusal::NoNetmap)?.site.clone();
    Ok(Principal {
        site,
        server: view.subject_at(client.to_canonical()).map(|subject| subject.server.clone()),
    })
}

/// Decides whether a local client may use a presence.
pub fn may_use(
    view: &NetmapView,
    presence: &PresenceEntry,
    who: &Principal,
) -> Result<Permit, PolicyRefusal> {
    permit(view, &presence.policies, who, (protocol_of(presence.protocol), presence.port)).ok_or_else(|| {
        PolicyRefusal::NotAllowed { what: format!("service {}", presence.service), who: who.clone() }
    })
}

/// Returns the principal that another gateway names. `site` is from its certificate, `subject` from the
/// gateway itself: empty, or a host of its own site. A host that is not in the netmap counts as its site:
/// inventing hosts gains neither rights nor shares of limits. The netmap has every host that a policy here
/// names, and the hosts of a site that a policy with limits allows by its name.
pub fn principal_of_peer(
    view: &NetmapView,
    site: &SiteName,
    subject: &str,
) -> Result<Principal, PolicyRefusal> {
    let known = if subject.is_empty() { None } else { view.subjects.get(subject) };
    match known {
        Some(known) if known.site != *site => {
            Err(PolicyRefusal::NotItsHost { server: known.server.clone(), site: site.clone() })
        }
        Some(known) => Ok(Principal { site: site.clone(), server: Some(known.server.clone()) }),
        None => Ok(Principal { site: site.clone(), server: None }),
    }
}

/// Decides whether a principal of another site may use a service that runs here.
pub fn may_reach<'a>(
    view: &'a NetmapView,
    service: &ServiceName,
    who: &Principal,
) -> Result<(&'a ServiceEntry, Permit), PolicyRefusal> {
    let found = view.services.get(service);
    let found = found.ok_or_else(|| PolicyRefusal::NoService { service: service.clone() })?;
    let policies = found.policies_for(&who.site);
    let policies = policies
        .ok_or_else(|| PolicyRefusal::NotExposed { service: service.clone(), site: who.site.clone() })?;
    let permit = permit(view, policies, who, (protocol_of(found.protocol), found.port))
        .ok_or_else(|| PolicyRefusal::NotAllowed { what: format!("service {service}"), who: who.clone() })?;
    Ok((found, permit))
}

/// Decides whether a principal may reach a port of a node. Both ends decide alike; only the gateway of the
/// node knows its address.
pub fn may_reach_node<'a>(
    view: &'a NetmapView,
    node: &ServerName,
    port: u16,
    who: &Principal,
) -> Result<(&'a NodeEntry, Permit), PolicyRefusal> {
    let found = view.nodes.get(node).ok_or_else(|| PolicyRefusal::NoNode { node: node.clone() })?;
    if !found.ports.contains(&port) {
        return Err(PolicyRefusal::PortClosed { node: node.clone(), port });
    }
    let permit = permit(view, &found.policies, who, (IpProtocol::Tcp, port))
        .ok_or_else(|| PolicyRefusal::NotAllowed { what: format!("node {node}"), who: who.clone() })?;
    Ok((found, permit))
}

/// Returns the permit of a principal for a port. A policy that does not exist allows no principal, and one with
/// ports allows nothing at other ports; the limits of every policy that allows it apply.
fn permit<'a>(
    view: &NetmapView,
    policies: impl IntoIterator<Item = &'a PolicyName>,
    who: &Principal,
    (protocol, port): (IpProtocol, u16),
) -> Option<Permit> {
    let existing = policies.into_iter().filter_map(|name| view.policies.get(name));
    let covering = existing.filter(|policy| policy.covers_port(protocol, port));
    let allowing = covering.filter(|policy| policy.allows(&who.site, who.server.as_ref()));
    let mut rules: Vec<MatchedPolicy> = allowing.map(rule).collect();
    rules.sort_by(|one, other| one.policy.cmp(&other.policy));
    rules.dedup_by(|one, other| one.policy == other.policy);
    (!rules.is_empty()).then_some(Permit { rules })
}

/// Returns the protocol whose ports a policy counts for a service.
fn protocol_of(protocol: ServiceProtocol) -> IpProtocol {
    match protocol {
        ServiceProtocol::Udp => IpProtocol::Udp,
        ServiceProtocol::Tcp
        | ServiceProtocol::Http
        | ServiceProtocol::Https
        | ServiceProtocol::Grpc
        | ServiceProtocol::Kafka => IpProtocol::Tcp,
    }
}

fn rule(policy: &PolicyEntry) -> MatchedPolicy {
    MatchedPolicy { policy: policy.name.clone(), limits: policy.limits, http: policy.http.clone() }
}

#[cfg(test)]
mod tests;
