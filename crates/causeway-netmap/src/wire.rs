//! Protobuf messages inside entries.
//!
//! An unknown field is ignored by readers and kept by holders: the bytes of an entry are never rewritten. A
//! field that an older gateway must not ignore is named in `requires` of a policy: a policy that requires
//! something unknown allows no client. Addresses are 4 or 16 bytes. Sets are written as sorted lists, so that
//! equal meaning gives equal bytes. The bytes are pinned by `tests/it/main.rs`.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub struct GatewayMessage {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub site: String,
    #[prost(bytes = "vec", tag = "3")]
    pub ip: Vec<u8>,
    #[prost(string, repeated, tag = "4")]
    pub presence_cidrs: Vec<String>,
    #[prost(sint32, tag = "5")]
    pub priority: i32,
    #[prost(bool, tag = "6")]
    pub relay: bool,
    /// 0: auto, 1: speed, 2: survival. An older edge ignores it; a number it does not know reads as auto.
    #[prost(uint32, tag = "7")]
    pub prefer: u32,
    /// An older gateway has no layer 3 and ignores this and the next field.
    #[prost(string, repeated, tag = "8")]
    pub tunnel_networks: Vec<String>,
    #[prost(message, repeated, tag = "9")]
    pub mappings: Vec<MappingMessage>,
    /// An older gateway ignores it: the streams that carry requests to it end when they are idle.
    #[prost(bool, tag = "10")]
    pub drain: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct MappingMessage {
    #[prost(string, tag = "1")]
    pub subnet: String,
    #[prost(string, tag = "2")]
    pub seen_as: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct TunnelPeerMessage {
    #[prost(string, tag = "1")]
    pub site: String,
    /// 32 bytes.
    #[prost(bytes = "vec", tag = "2")]
    pub public_key: Vec<u8>,
    /// 1: ChaCha20-Poly1305, 2: AES-256-GCM. An entry with another number is not used.
    #[prost(uint32, tag = "3")]
    pub cipher: u32,
    #[prost(string, repeated, tag = "4")]
    pub endpoints: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub networks: Vec<String>,
    #[prost(bool, tag = "6")]
    pub plain_wireguard: bool,
    #[prost(bool, tag = "7")]
    pub relay: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct CommunityMessage {
    #[prost(string, repeated, tag = "1")]
    pub members: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub policies: Vec<String>,
    /// Only what the policies allow may cross, also when there are none.
    #[prost(bool, tag = "3")]
    pub is_narrowed: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct RelayGroupMessage {
    #[prost(string, repeated, tag = "1")]
    pub sites: Vec<String>,
}

/// An older gateway does not know the entry, and is sent its peers instead.
#[derive(Clone, PartialEq, Message)]
pub struct OnDemandMessage {
    /// The address, 4 or 16 bytes, and a byte with the length of the prefix.
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub networks: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SiteMessage {
    #[prost(string, repeated, tag = "1")]
    pub subnets: Vec<String>,
    /// Empty: not known.
    #[prost(string, tag = "2")]
    pub active: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct PresenceMessage {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub addresses: Vec<Vec<u8>>,
    #[prost(uint32, tag = "2")]
    pub port: u32,
    #[prost(uint32, tag = "3")]
    pub protocol: u32,
    #[prost(string, repeated, tag = "4")]
    pub names: Vec<String>,
    #[prost(string, tag = "5")]
    pub service_site: String,
    #[prost(string, repeated, tag = "6")]
    pub policies: Vec<String>,
    /// An older gateway ignores it, and listens for no single broker.
    #[prost(uint32, tag = "7")]
    pub brokers: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct ServiceMessage {
    #[prost(uint32, tag = "1")]
    pub port: u32,
    #[prost(uint32, tag = "2")]
    pub protocol: u32,
    #[prost(message, repeated, tag = "3")]
    pub backends: Vec<BackendMessage>,
    #[prost(string, tag = "4")]
    pub domain_name: String,
    #[prost(message, optional, tag = "5")]
    pub health_check: Option<HealthCheckMessage>,
    #[prost(message, optional, tag = "6")]
    pub backend_tls: Option<BackendTlsMessage>,
    #[prost(bool, tag = "7")]
    pub proxy_protocol: bool,
    #[prost(message, repeated, tag = "8")]
    pub exposures: Vec<ExposureMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub struct BackendMessage {
    /// Empty: `host` is resolved.
    #[prost(bytes = "vec", tag = "1")]
    pub ip: Vec<u8>,
    #[prost(string, tag = "2")]
    pub host: String,
    #[prost(uint32, tag = "3")]
    pub port: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct HealthCheckMessage {
    /// 1 TCP, 2 HTTP.
    #[prost(uint32, tag = "1")]
    pub kind: u32,
    #[prost(string, tag = "2")]
    pub path: String,
    #[prost(uint32, tag = "3")]
    pub interval_seconds: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct BackendTlsMessage {
    /// 1 verify, 2 insecure. Disabled: the message is absent.
    #[prost(uint32, tag = "1")]
    pub mode: u32,
    #[prost(string, tag = "2")]
    pub server_name: String,
    #[prost(string, tag = "3")]
    pub ca_bundle: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ExposureMessage {
    #[prost(string, repeated, tag = "1")]
    pub sites: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub policies: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PolicyMessage {
    #[prost(string, repeated, tag = "1")]
    pub servers: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub sites: Vec<String>,
    #[prost(message, optional, tag = "3")]
    pub limits: Option<LimitsMessage>,
    #[prost(message, repeated, tag = "4")]
    pub http: Vec<HttpRuleMessage>,
    /// Features that a gateway must support to apply this policy.
    #[prost(string, repeated, tag = "5")]
    pub requires: Vec<String>,
    /// Always together with `ports` in `requires`: an older gateway would allow every port.
    #[prost(message, repeated, tag = "6")]
    pub ports: Vec<PortRuleMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PortRuleMessage {
    /// 1: TCP, 2: UDP, 3: ICMP and ICMPv6. A policy with another number allows no client.
    #[prost(uint32, tag = "1")]
    pub protocol: u32,
    #[prost(uint32, tag = "2")]
    pub first: u32,
    #[prost(uint32, tag = "3")]
    pub last: u32,
}

#[derive(Clone, PartialEq, Message)]
pub struct LimitsMessage {
    #[prost(uint64, optional, tag = "1")]
    pub connections_per_second: Option<u64>,
    #[prost(uint64, optional, tag = "2")]
    pub connections: Option<u64>,
    #[prost(uint64, optional, tag = "3")]
    pub bytes_per_second_in: Option<u64>,
    #[prost(uint64, optional, tag = "4")]
    pub bytes_per_second_out: Option<u64>,
    #[prost(uint64, optional, tag = "5")]
    pub requests_per_second: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct HttpRuleMessage {
    #[prost(string, repeated, tag = "1")]
    pub methods: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub paths: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SubjectMessage {
    #[prost(string, tag = "1")]
    pub site: String,
    /// Empty for a subject at a site with which this gateway shares no community.
    #[prost(bytes = "vec", tag = "2")]
    pub ip: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NodeMessage {
    #[prost(string, tag = "1")]
    pub site: String,
    /// Empty for a node at another site.
    #[prost(bytes = "vec", tag = "2")]
    pub ip: Vec<u8>,
    #[prost(uint32, repeated, tag = "3")]
    pub ports: Vec<u32>,
    #[prost(string, repeated, tag = "4")]
    pub names: Vec<String>,
    #[prost(string, repeated, tag = "5")]
    pub policies: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct HostMessage {
    #[prost(string, tag = "1")]
    pub site: String,
    #[prost(bytes = "vec", tag = "2")]
    pub ip: Vec<u8>,
    #[prost(string, repeated, tag = "3")]
    pub names: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TranslatedPresenceMessage {
    #[prost(bytes = "vec", repeated, tag = "1")]
    pub addresses: Vec<Vec<u8>>,
    /// 0: every port.
    #[prost(uint32, tag = "2")]
    pub port: u32,
    /// As in `ServiceMessage`; 7: every protocol.
    #[prost(uint32, tag = "3")]
    pub protocol: u32,
    #[prost(string, repeated, tag = "4")]
    pub names: Vec<String>,
    #[prost(string, tag = "5")]
    pub service_site: String,
    #[prost(string, tag = "6")]
    pub gateway: String,
    #[prost(string, repeated, tag = "7")]
    pub policies: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TranslatedServiceMessage {
    #[prost(bytes = "vec", tag = "1")]
    pub ip: Vec<u8>,
    #[prost(uint32, tag = "2")]
    pub server_port: u32,
    #[prost(uint32, tag = "3")]
    pub port: u32,
    #[prost(uint32, tag = "4")]
    pub protocol: u32,
    #[prost(message, repeated, tag = "5")]
    pub exposures: Vec<TranslatedExposureMessage>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TranslatedExposureMessage {
    #[prost(string, tag = "1")]
    pub site: String,
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub addresses: Vec<Vec<u8>>,
    #[prost(string, repeated, tag = "3")]
    pub policies: Vec<String>,
}
