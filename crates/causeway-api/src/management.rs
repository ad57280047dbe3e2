//! The contract of `/causeway/v1`: paths, request bodies and response bodies of the calls that are no objects.
//!
//! The cloud serves these types and `causeway` sends and reads them. Requests refuse unknown fields, so that a typing
//! error is found; optional fields are left out when they are not set, so that an older cloud accepts the request.
//! Responses ignore unknown fields. The audit (`audit`, `audit/admin`) and the backup are streams of JSON lines and
//! have no type here; their paths do.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::{Condition, GatewayStats, Time};

/// Paths of the calls.
pub mod paths {
    /// The beginning of every path.
    pub const PREFIX: &str = "/causeway/v1/";
    /// GET: `FleetStatus`. `?show=gateways` leaves out sites and exposures; `gateway=NAME`, which may occur several times,
    /// leaves out the other gateways. An older cloud sends everything.
    pub const STATUS: &str = "/causeway/v1/status";
    /// POST `CreateTokenRequest`: `CreatedToken`. GET: `TokenList`. DELETE `TOKENS/ID`: `DeletedToken`.
    pub const TOKENS: &str = "/causeway/v1/tokens";
    /// POST `CreateCertificateRequest`: `IssuedUserCertificate`. GET: `CertificateList`.
    pub const CERTIFICATES: &str = "/causeway/v1/certificates";
    /// POST `RevokeRequest`: `RevokedGateway` or `RevokedCertificate`.
    pub const REVOKE: &str = "/causeway/v1/revoke";
    /// GET: `RotationView`.
    pub const CA: &str = "/causeway/v1/ca";
    /// POST `RotateRequest`: `RotationView`.
    pub const CA_ROTATE: &str = "/causeway/v1/ca/rotate";
    /// POST `ProbeRequest`: `ProbeResponse`.
    pub const PROBE: &str = "/causeway/v1/probe";
    /// POST `DiagnoseRequest`: `GatewayFacts`, or `ServicePathFacts` if a service is named.
    pub const DIAGNOSE: &str = "/causeway/v1/diagnose";
    /// GET with `site`, `client` and `service`: `AccessAnswer`.
    pub const ACCESS: &str = "/causeway/v1/access";
    /// GET: `PathList`. `gateway=NAME`, which may occur several times, leaves out paths that neither begin nor end there.
    pub const PATHS: &str = "/causeway/v1/paths";
    /// GET: `EdgeCacheList`. `gateway=NAME`, which may occur several times, leaves out the other edges.
    pub const CACHES: &str = "/causeway/v1/caches";
    /// GET: the records of connections and requests, one JSON object per line.
    pub const AUDIT: &str = "/causeway/v1/audit";
    /// GET: the records of administrative calls, one JSON object per line.
    pub const ADMIN_AUDIT: &str = "/causeway/v1/audit/admin";
    /// GET: the whole store, one JSON object per line.
    pub const BACKUP: &str = "/causeway/v1/backup";
}

/// The rights of an API token or of a user certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ApiRole {
    Viewer,
    Admin,
}

/// Members of this group may do everything.
pub const ADMIN_GROUP: &str = "causeway:admin";
/// Members of this group may read every object.
pub const VIEWER_GROUP: &str = "causeway:viewer";

impl ApiRole {
    /// The group that stands for the role, in certificates and in responses.
    pub fn group(self) -> &'static str {
        match self {
            ApiRole::Viewer => VIEWER_GROUP,
            ApiRole::Admin => ADMIN_GROUP,
        }
    }

    pub fn as_str(self) -> &'static str {
        match self {
            ApiRole::Viewer => "viewer",
            ApiRole::Admin => "admin",
        }
    }
}

/// Asks for a join token (`site`) or for an API token (`role`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateTokenRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    /// The gateway at that site. Default: the name of the site.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<ApiRole>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// The address of the gateway inside its site. A cloud from before this field refuses it as unknown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// The token may replace a host that is enrolled under the name of the gateway.
    #[serde(default, skip_serializing_if = "is_false")]
    pub replace: bool,
}

/// A token that was just created, with its secret.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CreatedToken {
    pub id: String,
    /// The token itself. It is not stored and cannot be shown again.
    pub token: String,
    pub expires: String,
    /// The role of an API token; absent for a join token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub role: Option<ApiRole>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    /// The address of the gateway inside its site; empty if it has none. An older cloud does not send it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<String>,
    /// The enrolled host that a host joining with this token replaces.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<ReplacedHost>,
}

/// A host that is enrolled under the name of a join token.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplacedHost {
    /// When its certificate expires.
    pub until: String,
    pub connected: bool,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TokenList {
    pub tokens: Vec<TokenSummary>,
}

/// A token without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TokenSummary {
    pub id: String,
    pub kind: TokenKind,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub site: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    pub created: String,
    pub expires: String,
    pub expired: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<u32>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<u32>,
}

/// A join token, or an API token by its role.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenKind {
    Join,
    Viewer,
    Admin,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedToken {
    pub id: String,
}

/// Asks for a certificate of a person or a program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct CreateCertificateRequest {
    pub role: ApiRole,
    /// The name in the certificate, which the audit shows. Default: the role.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds: Option<u64>,
    /// PKCS #10 in DER, in base64.
    pub csr: String,
}

/// A certificate that was just signed, and the other contents of a kubeconfig.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IssuedUserCertificate {
    pub serial: String,
    pub user: String,
    pub role: ApiRole,
    pub expires: String,
    /// In PEM, as are the CAs.
    pub certificate: String,
    pub authorities: String,
    /// The URL under which the cloud itself reaches its API.
    pub server: String,
    /// The names and addresses in the server certificate of the API.
    #[serde(default)]
    pub names: Vec<String>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CertificateList {
    pub certificates: Vec<CertificateSummary>,
}

/// A certificate of a person or a program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct CertificateSummary {
    pub serial: String,
    pub user: String,
    pub group: String,
    pub created: String,
    pub expires: String,
    pub expired: bool,
    pub revoked: bool,
}

/// Revokes a gateway or a user certificate; exactly one is named.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RevokeRequest {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<String>,
    /// A serial number, or `current` for the certificate of the caller.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub certificate: Option<String>,
    /// Leaves the open join tokens of the gateway open. An older cloud does so always, and refuses the field.
    #[serde(default, skip_serializing_if = "is_false")]
    pub keep_tokens: bool,
}

/// A gateway whose keys were revoked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedGateway {
    pub gateway: String,
    /// Hashes of the keys that are refused from now on. Empty if the gateway had none.
    #[serde(default)]
    pub keys: Vec<String>,
    /// Ids of the join tokens that were open and are closed now.
    #[serde(default)]
    pub tokens: Vec<String>,
}

/// A certificate of a person or a program that was revoked.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevokedCertificate {
    pub serial: String,
    pub user: String,
    pub key: String,
}

/// One step of a CA rotation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RotateRequest {
    pub step: RotationStep,
    /// Finishes although gateways or tokens still depend on the old CA.
    #[serde(default)]
    pub force: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RotationStep {
    Start,
    Finish,
}

/// The CAs that are trusted, and the state of a rotation.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RotationView {
    pub changing: bool,
    pub authorities: Vec<AuthorityView>,
    /// Gateways that `finish` waits for.
    pub waiting_gateways: Vec<String>,
    /// Join tokens that `finish` waits for.
    pub waiting_tokens: Vec<String>,
    /// The file that opens the sealed CA keys, on this replica's host. A backup does not hold it.
    pub seal_key: String,
}

/// One CA.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AuthorityView {
    /// SHA-256 of its public key.
    pub id: String,
    pub created: String,
    pub expires: String,
    /// Signs for gateways and users.
    pub issuing: bool,
    /// Signs for the cloud's own listeners.
    pub serving: bool,
    /// The certificate, in PEM.
    pub certificate: String,
}

/// Measures the link to a gateway by sending bytes over it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ProbeRequest {
    pub gateway: String,
    #[serde(default = "default_probe_bytes")]
    pub bytes: u64,
    #[serde(default)]
    pub mode: ProbeDirection,
    /// The probe fails after this many seconds.
    #[serde(default = "default_probe_seconds")]
    pub seconds: u64,
}

impl ProbeRequest {
    /// A probe of one packet, which shows whether the gateway answers at all.
    pub fn new(gateway: impl Into<String>) -> ProbeRequest {
        ProbeRequest {
            gateway: gateway.into(),
            bytes: default_probe_bytes(),
            mode: ProbeDirection::default(),
            seconds: default_probe_seconds(),
        }
    }
}

fn default_probe_bytes() -> u64 {
    1000
}

fn default_probe_seconds() -> u64 {
    10
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProbeDirection {
    #[default]
    Echo,
    /// To the edge.
    Sink,
    /// From the edge.
    Source,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProbeResponse {
    /// Between the edge and the replica that holds its session, if known.
    pub transport: Option<String>,
    pub milliseconds: f64,
    pub bytes: u64,
    pub bytes_per_second: f64,
}

/// Asks a gateway for its own state, or for the state of the path from it to a service.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct DiagnoseRequest {
    pub gateway: String,
    /// The service at the end of the path. `None`: the state of the gateway itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<String>,
}

/// The state of a gateway as it describes itself. The cloud passes it on as the gateway sends it; fields that callers of the
/// API do not read are left out here.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayFacts {
    /// The netmap in force.
    pub generation: String,
    /// Problems with DNS, with presences as a whole, and with open files.
    pub problems: Vec<String>,
    /// Services whose presence does not listen there, with the reason.
    pub presences: BTreeMap<String, String>,
    /// Problems that keep other hosts of its site away from presences.
    pub hints: Vec<String>,
    /// State of the edge. `None`: the gateway of the cloud.
    pub role: Option<EdgeFacts>,
    /// Planes that its configuration switches off: `services`, `layer3`.
    pub switched_off: Vec<String>,
    /// `None`: layer 3 is switched off, or an older gateway.
    pub tunnel: Option<TunnelFacts>,
    /// `None`: an older gateway.
    pub connections: Option<ConnectionCounts>,
}

/// The state of an edge, as part of the facts of its gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EdgeFacts {
    pub link: EdgeLinkFacts,
    /// Readiness checks that fail, with the reason.
    pub not_ready: BTreeMap<String, String>,
    /// `None`: the edge has no copy of the Kubernetes API, or is of an older version.
    pub kubernetes: Option<EdgeCacheFacts>,
}

/// The copy of the Kubernetes API at an edge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EdgeCacheFacts {
    /// Why the API is not served although it is wanted. `None`: it is served.
    pub failure: Option<String>,
    /// The address at which it is served.
    pub listen: String,
    /// The link to the cloud is up.
    pub connected: bool,
    /// Subscriptions: resources, or parts of them, that the edge keeps.
    pub resources: usize,
    /// Those that are not kept current now.
    pub behind: usize,
    /// The last word of the cloud about the one that is behind for the longest time. `None`: none is, or one was never complete.
    pub behind_since: Option<Time>,
    pub objects: u64,
    pub bytes: u64,
    /// Open watches of local clients.
    pub watchers: usize,
    /// Writes that wait for the API server, and those that it refused since the edge was started.
    pub pending_writes: u64,
    pub refused_writes: u64,
    /// Pods that would not survive a restart of their node without the cloud.
    pub pods_at_risk: usize,
    /// Why the budget of bytes is spent. Empty: it lasts, or there is none.
    pub budget: String,
    /// Bytes on the link today.
    pub link_bytes: u64,
    /// The subscriptions, those that are behind first; not all of very many.
    pub subscriptions: Vec<EdgeCacheSubscription>,
}

/// A resource, or a part of it, of which an edge keeps a copy.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EdgeCacheSubscription {
    /// As in `apps/v1/deployments`.
    pub resource: String,
    pub namespace: String,
    /// Label selector and field selector.
    pub selector: String,
    pub objects: u64,
    pub bytes: u64,
    pub watchers: usize,
    /// All objects were received once.
    pub complete: bool,
    /// The cloud sends each change.
    pub live: bool,
    /// The last word of the cloud.
    pub last_sync: Option<Time>,
    /// `cloud` or `edge`; empty: clients use it.
    pub pinned_by: String,
    /// Why the API server does not give it.
    pub refused: Option<String>,
}

/// The link of an edge to the cloud, as the edge sees it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EdgeLinkFacts {
    /// The transports that the configuration allows: `auto`, `quic` or `tcp`.
    pub allowed: String,
    /// TCP goes through an HTTP proxy.
    pub proxied: bool,
    /// Why the link is on TCP although QUIC is allowed.
    pub quic_problem: Option<String>,
}

/// The layer 3 tunnel of a gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TunnelFacts {
    /// The name of the device. `None`: no device is open.
    pub device: Option<String>,
    /// The address of its UDP socket.
    pub listen: Option<String>,
    /// By the name of the peer's gateway.
    pub peers: BTreeMap<String, TunnelPeerFacts>,
    /// Members of large communities become peers with the first packet.
    pub on_demand: bool,
    /// Problems of the tunnel, as sentences.
    pub troubles: Vec<String>,
}

/// The path of packets from one gateway to another.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct TunnelPeerFacts {
    pub endpoint: Option<String>,
    /// `direct`, `relayed`, `channel`, or `none` while no packet was sent. A newer gateway may have further words.
    pub path: String,
    /// The relay of a relayed path.
    pub relay: Option<String>,
    /// False: the peer only tells this gateway its address. An older gateway does not send it.
    pub carries_networks: bool,
    /// The reason for which packets take no direct path.
    pub not_direct: Option<String>,
    pub rtt_us: Option<u64>,
    pub loss_percent: Option<u64>,
    pub mtu: Option<u64>,
    /// RFC 3339.
    pub last_handshake: Option<String>,
    pub sent: TunnelTraffic,
    pub received: TunnelTraffic,
}

/// Packets and bytes in one direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TunnelTraffic {
    pub packets: u64,
    pub bytes: u64,
}

impl Default for TunnelPeerFacts {
    fn default() -> TunnelPeerFacts {
        TunnelPeerFacts {
            endpoint: None,
            path: "none".to_owned(),
            relay: None,
            carries_networks: true,
            not_direct: None,
            rtt_us: None,
            loss_percent: None,
            mtu: None,
            last_handshake: None,
            sent: TunnelTraffic::default(),
            received: TunnelTraffic::default(),
        }
    }
}

/// Numbers of open connections, UDP sessions and requests of a gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ConnectionCounts {
    /// From other sites to services of its site.
    pub inbound: u64,
    /// From clients at its site.
    pub outbound: u64,
}

/// The path from a gateway to the backends of a service, as the gateway tried it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ServicePathFacts {
    /// Why clients at this gateway cannot use the presence. `None`: it listens, or the service runs here.
    pub presence_problem: Option<String>,
    /// Why the gateway at the service's site was not reached. `None`: it answered.
    pub far_problem: Option<String>,
    /// Round trip from this gateway to the backends.
    pub milliseconds: f64,
    pub backends: Vec<BackendFacts>,
}

/// One backend, as its gateway found it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BackendFacts {
    pub backend: String,
    /// `answers`, `connects`, `down`, `denied`, `silent`, `otherProtocol` or `unwell`. A newer gateway may have further words.
    pub outcome: String,
    /// A description for the operator.
    pub detail: String,
}

/// The decision on a client that wants to use a service, as the gateways at both ends make it by their newest netmaps.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessAnswer {
    /// True if both ends allow it.
    pub allowed: bool,
    /// The decision of the client's gateway, then that of the service's gateway.
    pub decisions: Vec<AccessDecision>,
}

/// The decision of one gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AccessDecision {
    pub site: String,
    /// The active gateway of the site. Empty: the site has none.
    pub gateway: String,
    /// The principal as this gateway sees it.
    pub principal: String,
    pub allowed: bool,
    /// The policies that allow it. Each of them adds its limits.
    pub policies: Vec<String>,
    /// True if policies allow only some HTTP requests.
    pub reads_requests: bool,
    /// The reason of a refusal in one word, as in metrics and the audit, and as a sentence.
    pub refusal: String,
    pub message: String,
}

/// The paths of packets between gateways, as the gateways tell them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathList {
    pub paths: Vec<GatewayPath>,
    /// Connected gateways that did not tell their paths.
    pub unanswered: Vec<UnansweredGateway>,
    /// Gateways that were too many to be asked, and paths that were too many to be sent.
    pub not_asked: usize,
    pub not_shown: usize,
}

/// The path of packets from one gateway to another.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayPath {
    pub gateway: String,
    pub peer: String,
    /// `direct`, `relayed`, `channel`, or `none` while no packet was sent. A newer gateway may have further words.
    pub path: String,
    pub endpoint: Option<String>,
    /// The gateway that forwards packets of a path that is `relayed`.
    pub relay: Option<String>,
    pub rtt_us: Option<u64>,
    pub loss_percent: Option<u64>,
    pub mtu: Option<u64>,
    /// The reason for which packets take no direct path.
    pub not_direct: Option<String>,
    /// RFC 3339.
    pub last_handshake: Option<String>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
}

impl GatewayPath {
    pub fn new(gateway: &str, peer: String, facts: TunnelPeerFacts) -> GatewayPath {
        GatewayPath {
            gateway: gateway.to_owned(),
            peer,
            path: facts.path,
            endpoint: facts.endpoint,
            relay: facts.relay,
            rtt_us: facts.rtt_us,
            loss_percent: facts.loss_percent,
            mtu: facts.mtu,
            not_direct: facts.not_direct,
            last_handshake: facts.last_handshake,
            sent_bytes: facts.sent.bytes,
            received_bytes: facts.received.bytes,
        }
    }
}

/// A gateway that did not answer a question of the cloud.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct UnansweredGateway {
    pub gateway: String,
    pub reason: String,
}

/// The copies of the Kubernetes API at the edges that are connected.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct EdgeCacheList {
    pub caches: Vec<EdgeCacheOverview>,
    /// Edges without a copy, or of a version that does not tell of it.
    pub without: Vec<String>,
    /// Edges that did not answer.
    pub unanswered: Vec<UnansweredGateway>,
    /// Edges that were too many to be asked.
    pub not_asked: usize,
}

/// The copy at one edge.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EdgeCacheOverview {
    pub gateway: String,
    pub site: String,
    #[serde(flatten)]
    pub facts: EdgeCacheFacts,
}

/// Sites, gateways, exposures and communities with their conditions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetStatus {
    pub gateways: Vec<GatewayOverview>,
    pub sites: Vec<SiteOverview>,
    pub exposures: Vec<ExposureOverview>,
    /// Empty from a cloud without layer 3.
    pub communities: Vec<CommunityOverview>,
}

/// A gateway, the state of its channel and of its identity.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct GatewayOverview {
    pub name: String,
    pub site: String,
    /// True while the gateway gets no new streams (`causeway drain`). A cloud from before there was such a field leaves it out.
    pub draining: bool,
    #[serde(flatten)]
    pub stats: GatewayStats,
    /// When the last session ended, as stored in the object. It outlives the process of the cloud.
    pub last_seen: Option<Time>,
    pub conditions: Vec<Condition>,
    pub ip: String,
    pub identity: Option<IdentityState>,
}

/// The identity of one gateway.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct IdentityState {
    /// No host can connect as this gateway until it is enrolled again.
    pub revoked: bool,
    /// When its last certificate was signed, or when it was revoked.
    pub at: String,
    /// When its last certificate expires.
    pub expires: String,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SiteOverview {
    pub name: String,
    pub subnets: Vec<String>,
    /// The number of gateways of the site.
    pub gateways: usize,
    pub conditions: Vec<Condition>,
}

/// Sites whose networks reach each other at layer 3.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CommunityOverview {
    pub name: String,
    pub members: Vec<String>,
    /// None: everything between members is allowed.
    pub policies: Option<Vec<String>>,
    pub map_from: String,
    pub conditions: Vec<Condition>,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ExposureOverview {
    pub name: String,
    pub service: String,
    pub dns_name: String,
    pub sites: Vec<String>,
    /// Every site of the exposure, also those where it has no address.
    pub presences: Vec<PresenceAddresses>,
    pub policies: Vec<String>,
    pub conditions: Vec<Condition>,
}

/// The addresses of an exposure at one site.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PresenceAddresses {
    pub site: String,
    pub addresses: BTreeSet<String>,
}

// The signature is that of `skip_serializing_if`.
fn is_false(value: &bool) -> bool {
    !*value
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_request_leaves_out_what_is_not_set_and_refuses_what_is_unknown() {
        let check = |request: Value, expected: Value| assert_eq!(request, expected);
        let token = CreateTokenRequest {
            site: Some("oslo".into()),
            ttl_seconds: Some(5),
            ..CreateTokenRequest::default()
        };
        check(serde_json::to_value(token).unwrap(), json!({"site": "oslo", "ttlSeconds": 5}));
        let revoke = RevokeRequest { gateway: Some("oslo".into()), ..RevokeRequest::default() };
        check(serde_json::to_value(revoke).unwrap(), json!({"gateway": "oslo"}));
        let diagnose = DiagnoseRequest { gateway: "oslo".into(), service: None };
        check(serde_json::to_value(diagnose).unwrap(), json!({"gateway": "oslo"}));
        let probe: ProbeRequest = serde_json::from_value(json!({"gateway": "oslo"})).unwrap();
        assert_eq!(probe, ProbeRequest::new("oslo"));
        assert!(serde_json::from_value::<CreateTokenRequest>(json!({"sight": "a"})).is_err());
        assert!(serde_json::from_value::<RotateRequest>(json!({"step": "start", "x": 1})).is_err());
    }

    #[test]
    fn a_response_of_an_older_cloud_is_read() {
        let token: CreatedToken =
            serde_json::from_value(json!({"id": "a", "token": "t", "expires": "e", "site": "oslo"})).unwrap();
        assert_eq!((token.ip, token.replaces), (None, None));
        let status: FleetStatus = serde_json::from_value(json!({"sites": [{"name": "oslo"}]})).unwrap();
        assert_eq!(status.sites[0].name, "oslo");
        let facts: GatewayFacts =
            serde_json::from_value(json!({"role": null, "tunnel": {"peers": {"rome-1": {}}}})).unwrap();
        let peer = &facts.tunnel.unwrap().peers["rome-1"];
        assert!(peer.carries_networks && peer.path == "none" && facts.role.is_none());
    }

    #[test]
    fn unknown_fields_and_words_of_a_newer_gateway_are_harmless() {
        let facts: GatewayFacts = serde_json::from_value(json!({
            "problems": ["p"], "colour": "blue", "role": {"link": {"allowed": "auto", "weight": 3}, "age": 1},
            "tunnel": {"peers": {"rome-1": {"path": "by pigeon", "altitude": 9}}, "lid": true},
        }))
        .unwrap();
        assert_eq!(facts.tunnel.unwrap().peers["rome-1"].path, "by pigeon");
        let path: ServicePathFacts =
            serde_json::from_value(json!({"backends": [{"outcome": "sings", "key": "c"}], "way": "long"}))
                .unwrap();
        assert_eq!(path.backends[0].outcome, "sings");
        let probe: ProbeResponse = serde_json::from_value(json!({"bytes": 7, "colour": "blue"})).unwrap();
        assert_eq!(probe.bytes, 7);
    }
}
