//! Entries of translated services: packets cross end to end between a client and the server, and both gateways translate
//! addresses.

use std::net::IpAddr;

use super::tunnel::IpProtocol;
use crate::names::{DnsName, GatewayName, PolicyName, PresenceIp, ServiceName, SiteName};

/// The packets that a translated service takes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TranslatedScope {
    /// One port of TCP or UDP, and echo messages.
    Port(IpProtocol, u16),
    /// Every protocol and port.
    Everything,
}

/// A translated service of another site that can be used at this site, at local addresses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TranslatedPresenceEntry {
    pub service: ServiceName,
    /// All of the family that the server has.
    pub addresses: Vec<PresenceIp>,
    pub scope: TranslatedScope,
    pub names: Vec<DnsName>,
    /// Site where the service runs, and the gateway that carries its packets.
    pub service_site: SiteName,
    pub gateway: GatewayName,
    pub policies: Vec<PolicyName>,
}

/// A service that runs at this site and is translated for clients of other sites.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TranslatedServiceEntry {
    pub service: ServiceName,
    /// The server.
    pub ip: IpAddr,
    /// The port of the server. It may differ from the port in `scope`.
    pub port: u16,
    pub scope: TranslatedScope,
    pub exposures: Vec<TranslatedExposure>,
}

/// A site that may use a translated service, the addresses that the service has there, and the policies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TranslatedExposure {
    pub site: SiteName,
    pub addresses: Vec<PresenceIp>,
    pub policies: Vec<PolicyName>,
}

impl TranslatedScope {
    /// Tells whether the service takes packets of this protocol to this port. None: a protocol without a name here.
    pub fn covers(self, protocol: Option<IpProtocol>, port: u16) -> bool {
        match (self, protocol) {
            (TranslatedScope::Everything, _) | (_, Some(IpProtocol::Icmp)) => true,
            (TranslatedScope::Port(own, number), Some(protocol)) => own == protocol && number == port,
            (TranslatedScope::Port(..), None) => false,
        }
    }
}
