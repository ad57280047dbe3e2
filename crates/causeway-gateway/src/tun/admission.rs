//! Decides which flows may begin between this site and another, from the netmap alone.
//!
//! Membership in a community is the permission. A community with policies permits what one of them allows: who
//! begins, and to which port. Replies are not judged: they follow their flow (`flow`).

use std::net::IpAddr;
use std::sync::Arc;

use causeway_netmap::{
    IpProtocol, NetmapView, PolicyLimits, PolicyName, ServerName, SiteName, TranslatedScope, TunnelPeerEntry,
};

use super::packet;
use super::translate::Direction;
use crate::dial::{DialRules, Registered, SocketProtocol};

/// The first packet of a flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlowStart {
    pub direction: Direction,
    /// The host of this site, with its real address.
    pub local: IpAddr,
    /// The host of the other site, with its address on the wire.
    pub remote: IpAddr,
    pub protocol: u8,
    /// The port at the host that did not begin. 0: the protocol has none.
    pub port: u16,
}

/// The right by which a flow crosses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FlowRight {
    /// The site that began.
    pub site: SiteName,
    pub subject: Option<ServerName>,
    /// The policy or community.
    pub rule: Arc<str>,
    pub limits: Option<PolicyLimits>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum FlowRefusal {
    #[error("this gateway has no netmap yet")]
    NoNetmap,
    #[error("the sites have no community in common")]
    NoCommunity,
    #[error("no policy allows it")]
    NotAllowed,
    #[error("the service has no such protocol or port")]
    NotServed,
    #[error("the configuration of the gateway does not allow the address of the server")]
    ServerDenied,
    #[error("the destination is a listener of the gateway itself")]
    OwnListener,
    #[error("the address stands for a service of another site, and serves hosts of this site only")]
    Presence,
    #[error("this gateway has reached its maximum of flows")]
    Full,
    #[error("over the limit of the policy")]
    Limit,
}

impl FlowRefusal {
    /// Returns one word, for metrics and the audit.
    pub fn word(self) -> &'static str {
        match self {
            FlowRefusal::NoNetmap => "no-netmap",
            FlowRefusal::NoCommunity => "no-community",
            FlowRefusal::NotAllowed => "not-allowed",
            FlowRefusal::NotServed => "not-served",
            FlowRefusal::ServerDenied => "server-denied",
            FlowRefusal::OwnListener => "own-listener",
            FlowRefusal::Presence => "presence",
            FlowRefusal::Full => "full",
            FlowRefusal::Limit => "limit",
        }
    }
}

/// The listeners of this process, and the addresses of this host.
#[derive(Clone, Default, Debug)]
pub struct OwnSockets {
    pub listeners: Arc<Vec<Registered>>,
    pub addresses: Vec<IpAddr>,
    /// The addresses of servers that the local configuration allows.
    pub rules: Arc<DialRules>,
}

impl OwnSockets {
    fn has(&self, address: IpAddr, protocol: u8, port: u16) -> bool {
        let transport = match protocol {
            packet::TCP => SocketProtocol::Tcp,
            packet::UDP => SocketProtocol::Udp,
            _ => return false,
        };
        self.listeners.iter().any(|known| {
            let bound = known.address.ip().to_canonical();
            let reaches = bound == address || bound.is_unspecified() && self.addresses.contains(&address);
            known.transport == transport && known.address.port() == port && reaches
        })
    }
}

/// Decides whether a flow may begin.
pub fn judge(
    view: &NetmapView,
    own: &OwnSockets,
    peer: &TunnelPeerEntry,
    start: &FlowStart,
) -> Result<FlowRight, FlowRefusal> {
    let here = &view.gateway.as_ref().ok_or(FlowRefusal::NoNetmap)?.site;
    let (site, subject) = match start.direction {
        Direction::Outbound => (here, view.subject_at(start.local)),
        Direction::Inbound => (&peer.site, view.remote_subject_at(start.remote)),
    };
    if start.direction == Direction::Inbound && own.has(start.local, start.protocol, start.port) {
        return Err(FlowRefusal::OwnListener);
    }
    let subject = subject.filter(|subject| subject.site == *site).map(|subject| subject.server.clone());
    let right = |rule: &str, limits: Option<PolicyLimits>| FlowRight {
        site: site.clone(),
        subject: subject.clone(),
        rule: rule.into(),
        limits,
    };
    let mut refusal = FlowRefusal::NoCommunity;
    for community in view.communities.values() {
        if !community.members.contains(here) || !community.members.contains(&peer.site) {
            continue;
        }
        let Some(policies) = &community.policies else { return Ok(right(community.name.as_str(), None)) };
        refusal = FlowRefusal::NotAllowed;
        let allowing = policies.iter().filter_map(|name| view.policies.get(name)).find(|policy| {
            policy.http.is_empty()
                && policy.allows(site, subject.as_ref())
                && (policy.ports.is_empty()
                    || ip_protocol(start.protocol)
                        .is_some_and(|protocol| policy.covers_port(protocol, start.port)))
        });
        if let Some(policy) = allowing {
            return Ok(right(policy.name.as_str(), policy.limits));
        }
    }
    Err(refusal)
}

/// Decides whether a flow of a translated service may begin. `start.port` is the port at the presence address.
pub fn judge_service(
    view: &NetmapView,
    policies: &[PolicyName],
    scope: TranslatedScope,
    site: &SiteName,
    subject: Option<&ServerName>,
    start: &FlowStart,
) -> Result<FlowRight, FlowRefusal> {
    let protocol = ip_protocol(start.protocol);
    if !scope.covers(protocol, start.port) {
        return Err(FlowRefusal::NotServed);
    }
    let allowing = policies.iter().filter_map(|name| view.policies.get(name)).find(|policy| {
        policy.http.is_empty()
            && policy.allows(site, subject)
            && (policy.ports.is_empty()
                || protocol.is_some_and(|protocol| policy.covers_port(protocol, start.port)))
    });
    let policy = allowing.ok_or(FlowRefusal::NotAllowed)?;
    Ok(FlowRight {
        site: site.clone(),
        subject: subject.cloned(),
        rule: policy.name.as_str().into(),
        limits: policy.limits,
    })
}

fn ip_protocol(protocol: u8) -> Option<IpProtocol> {
    match protocol {
        packet::TCP => Some(IpProtocol::Tcp),
        packet::UDP => Some(IpProtocol::Udp),
        packet::ICMP | packet::ICMPV6 => Some(IpProtocol::Icmp),
        _ => None,
    }
}

#[cfg(test)]
#[path = "admission/tests.rs"]
mod tests;
