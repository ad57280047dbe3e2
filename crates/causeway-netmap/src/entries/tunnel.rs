//! Entries of layer 3: the gateways that exchange packets with this one, the communities that permit it, and
//! the ports that a policy is limited to.
//!
//! Values only. The compiler decides the peers of a gateway, the gateway decides what may cross.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

use crate::names::{CommunityName, GatewayName, PolicyName, SiteName};

/// An X25519 public key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TunnelKey(pub [u8; 32]);

// The first bytes identify a key in logs; the whole key is in the netmap.
impl fmt::Debug for TunnelKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TunnelKey(")?;
        self.0.iter().take(4).try_for_each(|byte| write!(f, "{byte:02x}"))?;
        write!(f, "..)")
    }
}

/// The cipher of transport packets. The netmap alone decides it, so that no packet can lower it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum TunnelCipher {
    ChaCha20Poly1305,
    Aes256Gcm,
}

/// A network that other sites see under other addresses, 1:1. Both have the same prefix length.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct PrefixMapping {
    pub subnet: IpNet,
    pub seen_as: IpNet,
}

/// A gateway with which this gateway exchanges packets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TunnelPeerEntry {
    pub gateway: GatewayName,
    pub site: SiteName,
    pub public_key: TunnelKey,
    pub cipher: TunnelCipher,
    /// `host:port`, with a literal address or a name. Empty: the peer is behind NAT and begins itself.
    pub endpoints: Vec<String>,
    /// Networks behind the peer, as seen on the wire: routes to it, and the source addresses it may use.
    pub networks: Vec<IpNet>,
    /// A WireGuard peer that is no Causeway gateway: it has no channel and relays nothing.
    pub plain_wireguard: bool,
    /// The peer forwards sealed packets between its peers.
    pub relay: bool,
}

/// Sites whose networks reach each other at layer 3.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CommunityEntry {
    pub name: CommunityName,
    pub members: Vec<SiteName>,
    /// Policies that permit a flow between members. None: every flow is permitted.
    pub policies: Option<Vec<PolicyName>>,
}

/// Sites between whose gateways this gateway forwards sealed packets, as a relay. A gateway without such entries forwards
/// none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RelayGroupEntry {
    /// An ECommunity, or `service:` and a translated service.
    pub name: String,
    pub sites: Vec<SiteName>,
}

/// Networks of members of large communities. A member is a peer only after this gateway asked the cloud for it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OnDemandEntry {
    /// As seen on the wire, aggregated. Networks of members that are peers already are among them.
    pub networks: Vec<IpNet>,
}

impl OnDemandEntry {
    pub fn covers(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(&address))
    }
}

/// A protocol that a policy can be limited to. `Icmp` includes ICMPv6.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum IpProtocol {
    Tcp,
    Udp,
    Icmp,
}

/// Ports of a protocol, first and last included. ICMP has no ports: its rule is 0 to 65535.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PortRule {
    pub protocol: IpProtocol,
    pub first: u16,
    pub last: u16,
}

impl PortRule {
    pub fn covers(&self, protocol: IpProtocol, port: u16) -> bool {
        self.protocol == protocol && (self.first..=self.last).contains(&port)
    }
}
