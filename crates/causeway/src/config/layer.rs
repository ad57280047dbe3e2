//! One layer of configuration: every value may be missing. File, environment and flags fill the same form.
//!
//! `docs/configuration.md` is made from the comments on these fields: the first paragraph is the meaning of the setting, the
//! second one the reason for its default where the default is no constant of `defaults`. `reference` renders it.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use causeway_gateway::dial::BackendRule;
use causeway_gateway::proxy::connect::AllowRule;
use serde::Deserialize;

use super::mistake::plain_form;
use super::{
    AdvertisedEndpoint, CaHash, CollectorUrl, CommonName, DatapathSetting, DnsListen, NameServer, PinSetting,
    PresenceModeSetting, PresencePort, ProxySetting, ResourceSetting, ServerName, ServiceAccountSetting,
    SiteLabelKey, StoreSetting, TransportSetting,
};
use crate::duration::HumanDuration;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Layer {
    /// Folder for everything that the process keeps: the store, keys and certificates at the cloud; identity,
    /// netmap and spool at an edge.
    pub data_dir: Option<PathBuf>,
    pub log: LogLayer,
    pub cloud: CloudLayer,
    pub edge: EdgeLayer,
    pub gateway: GatewayLayer,
    pub tunnel: TunnelLayer,
    pub kubernetes: KubernetesLayer,
    pub traces: TracesLayer,
    pub audit: AuditLayer,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LogLayer {
    /// Form of log lines: `text` or `json`.
    pub format: Option<String>,
    /// Level of log lines, `info` or `debug`, also per module, as in `info,causeway_channel=debug`. SIGHUP
    /// puts a changed filter in force without a restart.
    pub filter: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CloudLayer {
    /// Address of the API, for `kubectl`, `causeway` and every client with a certificate or a token.
    pub api: Option<SocketAddr>,
    /// Address that edges and other replicas dial, over UDP (QUIC) and TCP.
    pub channel: Option<SocketAddr>,
    /// Address of metrics, health and dumps of the cloud.
    pub admin: Option<SocketAddr>,
    /// Address where clients with a certificate of `DATA_DIR/connect` reach nodes by HTTP CONNECT
    /// (`docs/nodes.md`).
    ///
    /// Programs on the cloud's own host use `DATA_DIR/run/connect.sock`; a network listener is opened on
    /// request only.
    pub connect: Option<SocketAddr>,
    /// Hosts and networks that CONNECT may dial although they are no nodes, as in `hooks.example.org:443` or
    /// `10.96.0.0/12:443`.
    ///
    /// CONNECT reaches nodes only, until an operator names more.
    pub connect_allow: Option<Vec<AllowRule>>,
    /// Channel endpoints that edges are given, in join tokens and later over the channel.
    ///
    /// The addresses of this host that other hosts see are given, or its name. Name endpoints where edges reach the cloud
    /// under another name or address.
    pub advertise: Option<Vec<AdvertisedEndpoint>>,
    /// Endpoint where other replicas of this cloud reach its channel port.
    ///
    /// The first entry of `advertise` is used; another one is needed only where replicas reach each other
    /// over another network.
    pub peer_address: Option<AdvertisedEndpoint>,
    /// Store of the objects: `sqlite` (`DATA_DIR/store.db`) or `etcd=http://HOST:2379,...`, which several
    /// replicas can share.
    pub store: Option<StoreSetting>,
    /// CA certificate that etcd's server certificate is checked against.
    ///
    /// Needed only for etcd with a CA of its own.
    pub etcd_ca: Option<PathBuf>,
    /// Client certificate for etcd; needs `etcd-key`.
    ///
    /// Needed only for etcd that asks for client certificates.
    pub etcd_certificate: Option<PathBuf>,
    /// Key of `etcd-certificate`.
    ///
    /// Needed only for etcd that asks for client certificates.
    pub etcd_key: Option<PathBuf>,
    /// Key file that opens the CA in the store; the same for all replicas.
    ///
    /// `DATA_DIR/seal.key` is used, made at the first start. Name another file to keep the key apart from the
    /// data dir.
    pub seal_key: Option<PathBuf>,
    /// Further DNS names and IP addresses in the server certificate of the API.
    ///
    /// The host's own names and the hosts of `advertise` are in it already.
    pub api_names: Option<Vec<ServerName>>,
    /// Connections that one client address may have open on the API port. An IPv6 network of 64 bits counts
    /// as one address.
    pub api_connections_per_address: Option<NonZeroU32>,
    /// Time after the end of its certificate during which a gateway may still have it replaced with the same
    /// key; 0 allows none.
    pub expired_grace: Option<HumanDuration>,
    /// Size at which an audit file is closed and the next one is begun.
    pub audit_file_bytes_max: Option<u64>,
    /// Number of audit files that are kept. Together with `audit-file-bytes-max` it bounds the audit on disk
    /// (`docs/audit.md`).
    pub audit_files_max: Option<u64>,
    /// Handshakes on the channel port that are begun per second, for all addresses together. Twice as many
    /// pass in a burst.
    pub handshakes_per_second: Option<NonZeroU32>,
    /// Handshakes on the channel port that are begun per second for one address. Twice as many pass in a
    /// burst.
    pub handshakes_per_address: Option<NonZeroU32>,
    /// Handshakes that may be under way at the same time. Beyond it the oldest one is given up for the
    /// newest.
    pub half_open_max: Option<NonZeroU32>,
    /// Links of edges and replicas that may be open at the same time. Beyond it a link is closed with a
    /// reason.
    pub links_max: Option<NonZeroU32>,
    /// Streams that a peer may have open on one link, in each direction. Beyond it the peer waits with the
    /// next stream.
    pub streams_max: Option<NonZeroU32>,
    /// Bytes that a peer may send on one stream before they are read.
    pub stream_window_bytes: Option<NonZeroU32>,
    /// Kubeconfig of the cluster whose API edges serve from a copy (`docs/edge-api.md`).
    ///
    /// A cloud without a cluster has no Kubernetes API to copy.
    pub kubernetes: Option<PathBuf>,
    /// Service accounts of the cluster of `kubernetes` whose pods enrol their node as a gateway, as `NAMESPACE/NAME`
    /// (`docs/identity.md`).
    ///
    /// Gateways enrol with join tokens; trust in a cluster is given on request only.
    pub join_service_accounts: Option<Vec<ServiceAccountSetting>>,
    /// Audience that the tokens of `join-service-accounts` must be for.
    pub join_audience: Option<String>,
    /// Site of the gateways of nodes that have no EServer.
    ///
    /// Such a node is refused: the EServer of its name tells its site.
    pub join_default_site: Option<String>,
    /// Address where the kube-apiserver of the cluster of `kubernetes` reaches this API as an aggregated API
    /// (`docs/aggregated-api.md`). Needs `requestheader-ca`.
    ///
    /// A cloud outside of clusters has its own users; another way in is opened on request only.
    pub aggregated: Option<SocketAddr>,
    /// CA of the client certificate of kube-apiserver's front proxy: its `--requestheader-client-ca-file`.
    ///
    /// Needed only with `aggregated`.
    pub requestheader_ca: Option<PathBuf>,
    /// Common names that the certificate of the front proxy may have: kube-apiserver's `--requestheader-allowed-names`.
    ///
    /// Every certificate of `requestheader-ca` is accepted, as kube-apiserver does without names.
    pub requestheader_names: Option<Vec<CommonName>>,
    /// Labels of ESites that `/metrics` shows, as in `causeway_site_info{site="oslo",label_region="north"} 1`
    /// (`docs/operations.md`). At most 16.
    ///
    /// Every label is a dimension of a metric, and users of the API choose its values.
    pub metrics_site_labels: Option<Vec<SiteLabelKey>>,
    /// Members of an ECommunity above which it is large: a gateway has only the members with which it exchanges packets as
    /// peers (`docs/layer3.md`).
    pub community_peers_max: Option<NonZeroU32>,
    /// Time between the signal to stop and the end of the cloud's process, for requests and streams in
    /// flight.
    pub drain: Option<HumanDuration>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EdgeLayer {
    /// Address of metrics, health and dumps of the edge.
    pub admin: Option<SocketAddr>,
    /// Time between the signal to stop and the end of the edge's process, for connections in flight.
    pub drain: Option<HumanDuration>,
    /// Transport to the cloud: `auto`, `quic` or `tcp`.
    pub transport: Option<TransportSetting>,
    /// HTTP proxy on the way to the cloud, as `http://[USER:PASSWORD@]HOST:PORT`. It carries TCP by CONNECT.
    ///
    /// `HTTPS_PROXY` and `NO_PROXY` of the environment decide, as for other programs of the host.
    pub proxy: Option<ProxySetting>,
    /// File with a join token, for the first start. An edge that is enrolled ignores it, and the file may be
    /// gone then.
    ///
    /// A token is given by hand with `--join`; a service that has no command line to edit reads this file.
    pub join_file: Option<PathBuf>,
    /// File with the projected service-account token of this pod, by which the edge enrols as the gateway of its node
    /// (`docs/identity.md`). Needs `join-endpoints` and `join-ca`. A join token goes first where one is given, too.
    ///
    /// Edges outside of clusters have no service account.
    pub join_service_account: Option<PathBuf>,
    /// Endpoints of the cloud for the first contact, as `HOST:PORT`.
    ///
    /// Needed only with `join-service-account`; a join token names them.
    pub join_endpoints: Option<Vec<AdvertisedEndpoint>>,
    /// SHA-256 of the public key of the cloud's CA, in hexadecimal digits: the `id` in `GET /causeway/v1/ca`. Two during a
    /// change of CA.
    ///
    /// Needed only with `join-service-account`; a join token names it.
    pub join_ca: Option<Vec<CaHash>>,
}

/// Settings of the gateway, which both roles run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct GatewayLayer {
    /// Addresses where the gateway answers DNS, as `IP` or `IP:PORT`, or `off`.
    ///
    /// Port 53 of loopback and of the gateway's `ip`: the gateway's own host and the hosts of its site can
    /// ask.
    pub dns: Option<Vec<DnsListen>>,
    /// DNS servers for names that are not Causeway's, as `IP` or `IP:PORT`.
    ///
    /// The servers of `/etc/resolv.conf`, so that other names resolve as before.
    pub dns_upstream: Option<Vec<NameServer>>,
    /// The network in which presences listen: `namespace` (`room` before) is a network namespace of the
    /// process, `host` the addresses of the host, `off` none, and `auto` a network namespace where one can
    /// be made and the host otherwise (`docs/presences.md`).
    pub presence: Option<PresenceModeSetting>,
    /// More addresses where the presence of a service listens, as `SERVICE=IP:PORT`, for processes without
    /// the right to make a network namespace.
    ///
    /// A presence has an address of its own; ports of the host are for the operator to give away.
    pub ports: Option<Vec<PresencePort>>,
    /// Address that serves all HTTP services of the site, told apart by the host of the request.
    ///
    /// Each service has a presence of its own; a shared address is opened on request only.
    pub entry_http: Option<SocketAddr>,
    /// Address that serves all TLS services of the site, told apart by the server name of the TLS handshake,
    /// which is not decrypted.
    ///
    /// Each service has a presence of its own; a shared address is opened on request only.
    pub entry_tls: Option<SocketAddr>,
    /// Addresses, networks and ports that the gateway dials although they are link-local, unspecified or
    /// multicast, or inside a network of `backends-deny`. The most specific rule decides
    /// (`docs/backends.md`).
    ///
    /// The metadata service of clouds and the like are no backends, unless the site says so.
    pub backends_allow: Option<Vec<BackendRule>>,
    /// Addresses, networks and ports that the gateway does not dial, whatever the objects at the cloud say.
    ///
    /// Backends of a site are anywhere in its networks; the site narrows that down.
    pub backends_deny: Option<Vec<BackendRule>>,
    /// True if this gateway carries no connections: presences of proxied services do not listen, and services and nodes of its site
    /// are not reached through it. Layer 3, translated services and DNS are not affected.
    pub services_off: Option<bool>,
}

/// Settings of layer 3, which both roles run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TunnelLayer {
    /// True if this gateway exchanges no packets with other sites. Services are not affected.
    pub off: Option<bool>,
    /// UDP address of the tunnel. The port is opened when an ECommunity names the site (`docs/layer3.md`).
    pub listen: Option<SocketAddr>,
    /// Largest packet inside the tunnel, in bytes, 576 to 65535.
    ///
    /// The path is probed, and the largest packet that passes is used.
    pub mtu: Option<u16>,
    /// Rate at which this gateway forwards sealed packets as a relay, for all senders together, in Mbit/s. One sender gets 1000.
    pub relay_mbit_per_second: Option<NonZeroU32>,
    /// Name of the TUN or TAP device, at most 15 characters. The kernel replaces `%d` by a free number.
    pub device: Option<String>,
    /// Data path to the hosts of the site: `tun` (routes of the host and a TUN device) or `ovs` (flows of an Open vSwitch bridge and a
    /// TAP device as its port, `docs/layer3.md`).
    pub datapath: Option<DatapathSetting>,
    /// Open vSwitch bridge of the data path `ovs`. The bridge exists already; the gateway adds and removes a port and flows of its own.
    pub bridge: Option<String>,
}

/// Spans of connections and requests, for a collector.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct TracesLayer {
    /// URL of an OTLP/HTTP collector that takes traces in JSON, with its path, as in `https://otel.example.org:4318/v1/traces`.
    ///
    /// Spans leave the host on request only.
    pub url: Option<CollectorUrl>,
    /// File with a bearer token for the collector.
    ///
    /// Needed only for a collector that asks for one.
    pub token_file: Option<PathBuf>,
    /// CA certificate that the collector's certificate is checked against.
    ///
    /// The CAs that the host trusts count.
    pub ca: Option<PathBuf>,
    /// Share of traces that is exported, from 0 to 1. The trace id decides: gateways with equal ratios export the same traces.
    pub ratio: Option<f64>,
}

/// The Kubernetes API at an edge.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct KubernetesLayer {
    /// Address where the edge serves the Kubernetes API to components of its host, once its cloud has a cluster.
    pub listen: Option<SocketAddr>,
    /// Second address where the edge serves the Kubernetes API, for pods: one of the host that pods reach, such as the link-local
    /// 169.254.20.11:6444. It need not be an address of the host when the edge starts.
    ///
    /// Loopback is not reached from pods, and which other address is depends on their network.
    pub pod_listen: Option<SocketAddr>,
    /// File of the client certificate to which `DATA_DIR/kubernetes/component.kubeconfig` refers.
    pub client_certificate: Option<PathBuf>,
    /// File of the key of `client-certificate`.
    pub client_key: Option<PathBuf>,
    /// Time after which the copy of a resource that no client has used is dropped.
    pub unused: Option<HumanDuration>,
    /// Resources that the edge holds before any client asks for them, beside `cache` of its ESite:
    /// `GROUP/VERSION/PLURAL`, or `VERSION/PLURAL` for the core group, with selectors as in the API:
    /// `v1/configmaps?namespace=shop&labelSelector=tier=edge`. A comma inside a selector is `%2C`. Needs `pin-node`.
    ///
    /// Resources that clients of the site read are held anyway.
    pub pin: Option<Vec<PinSetting>>,
    /// Node of this site in whose name the resources of `pin` are read. Its rights decide.
    ///
    /// The edge has no rights of its own. Scopes that `cache` of the ESite names too need no node.
    pub pin_node: Option<String>,
    /// Bytes per day (UTC) that the Kubernetes API may move over the link, both directions. Beyond it, copies that no client watches and no
    /// pin names are not kept current until the next day; reads go on from them, and requests pass.
    ///
    /// Most links have no price per byte.
    pub bytes_per_day: Option<u64>,
    /// Bytes of disk that the copy may take. Beyond it, nothing new is held: a watch of a new resource gets 503, its lists and gets pass to the API
    /// server. Copies that are there stay, without what is larger. The last eighth is left to copies that are complete or pinned.
    pub bytes_max: Option<u64>,
    /// Resources that any caller may write while the cloud is away, as `VERSION/PLURAL` or `GROUP/VERSION/PLURAL`. Writes wait in the log of the
    /// edge and are sent on return with the caller's own identity (`docs/edge-api.md`).
    ///
    /// A write at the site may conflict with one in the cluster; the operator decides where that is acceptable.
    pub offline_writes: Option<Vec<ResourceSetting>>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct AuditLayer {
    pub export: ExportLayer,
}

/// Collectors that get a copy of all audit records of a cloud.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExportLayer {
    /// Bytes of records that may wait on disk for collectors that are away. Beyond it the oldest are dropped and
    /// counted.
    pub bytes_max: Option<u64>,
    pub files: ExportFilesLayer,
    pub webhook: ExportWebhookLayer,
    pub syslog: ExportSyslogLayer,
    pub otlp: ExportOtlpLayer,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExportFilesLayer {
    /// Folder for `causeway-audit.jsonl` and the older files `causeway-audit-1.jsonl`…, bounded by
    /// `audit-file-bytes-max` and `audit-files-max`.
    ///
    /// The journals are in the data dir; a copy elsewhere is made on request only.
    pub folder: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExportWebhookLayer {
    /// URL that batches of records are posted to as JSON.
    ///
    /// Records leave the host on request only.
    pub url: Option<CollectorUrl>,
    /// File with a bearer token for the webhook.
    ///
    /// Needed only for a webhook that asks for one.
    pub token_file: Option<PathBuf>,
    /// CA certificate that the webhook's certificate is checked against.
    ///
    /// The CAs that the host trusts count.
    pub ca: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExportSyslogLayer {
    /// Syslog server that takes RFC 5424 messages over TLS (RFC 5425), usually on port 6514.
    ///
    /// Records leave the host on request only.
    pub endpoint: Option<AdvertisedEndpoint>,
    /// CA certificate that the server's certificate is checked against.
    ///
    /// The CAs that the host trusts count.
    pub ca: Option<PathBuf>,
    /// Client certificate for the syslog server; needs `key`.
    ///
    /// Needed only for a server that asks for client certificates.
    pub certificate: Option<PathBuf>,
    /// Key of `certificate`.
    ///
    /// Needed only for a server that asks for client certificates.
    pub key: Option<PathBuf>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct ExportOtlpLayer {
    /// URL of an OTLP/HTTP collector that takes logs in JSON, with its path, as in `https://otel.example.org:4318/v1/logs`.
    ///
    /// Records leave the host on request only.
    pub url: Option<CollectorUrl>,
    /// File with a bearer token for the collector.
    ///
    /// Needed only for a collector that asks for one.
    pub token_file: Option<PathBuf>,
    /// CA certificate that the collector's certificate is checked against.
    ///
    /// The CAs that the host trusts count.
    pub ca: Option<PathBuf>,
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("environment variable {name}={value}: {why}")]
pub struct EnvironmentError {
    name: &'static str,
    value: String,
    why: String,
}

/// The layer of CAUSEWAY_* variables. An empty variable counts as not set.
pub fn environment(lookup: &dyn Fn(&str) -> Option<String>) -> Result<Layer, EnvironmentError> {
    let admin: Option<SocketAddr> = variable(lookup, "CAUSEWAY_ADMIN")?;
    let drain: Option<HumanDuration> = variable(lookup, "CAUSEWAY_DRAIN")?;
    Ok(Layer {
        data_dir: variable(lookup, "CAUSEWAY_DATA_DIR")?,
        log: LogLayer {
            format: variable(lookup, "CAUSEWAY_LOG_FORMAT")?,
            filter: variable(lookup, "CAUSEWAY_LOG")?,
        },
        cloud: CloudLayer {
            api: variable(lookup, "CAUSEWAY_API")?,
            channel: variable(lookup, "CAUSEWAY_CHANNEL")?,
            admin,
            connect: variable(lookup, "CAUSEWAY_CONNECT")?,
            connect_allow: list(lookup, "CAUSEWAY_CONNECT_ALLOW")?,
            advertise: list(lookup, "CAUSEWAY_ADVERTISE")?,
            peer_address: variable(lookup, "CAUSEWAY_PEER_ADDRESS")?,
            store: variable(lookup, "CAUSEWAY_STORE")?,
            etcd_ca: variable(lookup, "CAUSEWAY_ETCD_CA")?,
            etcd_certificate: variable(lookup, "CAUSEWAY_ETCD_CERTIFICATE")?,
            etcd_key: variable(lookup, "CAUSEWAY_ETCD_KEY")?,
            seal_key: variable(lookup, "CAUSEWAY_SEAL_KEY")?,
            api_names: list(lookup, "CAUSEWAY_API_NAMES")?,
            api_connections_per_address: variable(lookup, "CAUSEWAY_API_CONNECTIONS_PER_ADDRESS")?,
            expired_grace: variable(lookup, "CAUSEWAY_EXPIRED_GRACE")?,
            audit_file_bytes_max: variable(lookup, "CAUSEWAY_AUDIT_FILE_BYTES_MAX")?,
            audit_files_max: variable(lookup, "CAUSEWAY_AUDIT_FILES_MAX")?,
            handshakes_per_second: variable(lookup, "CAUSEWAY_HANDSHAKES_PER_SECOND")?,
            handshakes_per_address: variable(lookup, "CAUSEWAY_HANDSHAKES_PER_ADDRESS")?,
            half_open_max: variable(lookup, "CAUSEWAY_HALF_OPEN_MAX")?,
            links_max: variable(lookup, "CAUSEWAY_LINKS_MAX")?,
            streams_max: variable(lookup, "CAUSEWAY_STREAMS_MAX")?,
            stream_window_bytes: variable(lookup, "CAUSEWAY_STREAM_WINDOW_BYTES")?,
            kubernetes: variable(lookup, "CAUSEWAY_KUBERNETES")?,
            join_service_accounts: list(lookup, "CAUSEWAY_JOIN_SERVICE_ACCOUNTS")?,
            join_audience: variable(lookup, "CAUSEWAY_JOIN_AUDIENCE")?,
            join_default_site: variable(lookup, "CAUSEWAY_JOIN_DEFAULT_SITE")?,
            aggregated: variable(lookup, "CAUSEWAY_AGGREGATED")?,
            requestheader_ca: variable(lookup, "CAUSEWAY_REQUESTHEADER_CA")?,
            requestheader_names: list(lookup, "CAUSEWAY_REQUESTHEADER_NAMES")?,
            metrics_site_labels: list(lookup, "CAUSEWAY_METRICS_SITE_LABELS")?,
            community_peers_max: variable(lookup, "CAUSEWAY_COMMUNITY_PEERS_MAX")?,
            drain,
        },
        edge: EdgeLayer {
            admin,
            drain,
            transport: variable(lookup, "CAUSEWAY_TRANSPORT")?,
            proxy: variable(lookup, "CAUSEWAY_PROXY")?,
            join_file: variable(lookup, "CAUSEWAY_JOIN_FILE")?,
            join_service_account: variable(lookup, "CAUSEWAY_JOIN_SERVICE_ACCOUNT")?,
            join_endpoints: list(lookup, "CAUSEWAY_JOIN_ENDPOINTS")?,
            join_ca: list(lookup, "CAUSEWAY_JOIN_CA")?,
        },
        gateway: GatewayLayer {
            dns: list(lookup, "CAUSEWAY_DNS")?,
            dns_upstream: list(lookup, "CAUSEWAY_DNS_UPSTREAM")?,
            presence: variable(lookup, "CAUSEWAY_PRESENCE")?,
            ports: list(lookup, "CAUSEWAY_PORTS")?,
            entry_http: variable(lookup, "CAUSEWAY_ENTRY_HTTP")?,
            entry_tls: variable(lookup, "CAUSEWAY_ENTRY_TLS")?,
            backends_allow: list(lookup, "CAUSEWAY_BACKENDS_ALLOW")?,
            backends_deny: list(lookup, "CAUSEWAY_BACKENDS_DENY")?,
            services_off: variable(lookup, "CAUSEWAY_SERVICES_OFF")?,
        },
        traces: TracesLayer {
            url: variable(lookup, "CAUSEWAY_TRACES_URL")?,
            token_file: variable(lookup, "CAUSEWAY_TRACES_TOKEN_FILE")?,
            ca: variable(lookup, "CAUSEWAY_TRACES_CA")?,
            ratio: variable(lookup, "CAUSEWAY_TRACES_RATIO")?,
        },
        tunnel: TunnelLayer {
            off: variable(lookup, "CAUSEWAY_TUNNEL_OFF")?,
            listen: variable(lookup, "CAUSEWAY_TUNNEL")?,
            mtu: variable(lookup, "CAUSEWAY_TUNNEL_MTU")?,
            relay_mbit_per_second: variable(lookup, "CAUSEWAY_TUNNEL_RELAY_MBIT_PER_SECOND")?,
            device: variable(lookup, "CAUSEWAY_TUNNEL_DEVICE")?,
            datapath: variable(lookup, "CAUSEWAY_DATAPATH")?,
            bridge: variable(lookup, "CAUSEWAY_BRIDGE")?,
        },
        kubernetes: KubernetesLayer {
            listen: variable(lookup, "CAUSEWAY_KUBERNETES_LISTEN")?,
            pod_listen: variable(lookup, "CAUSEWAY_KUBERNETES_POD_LISTEN")?,
            client_certificate: variable(lookup, "CAUSEWAY_KUBERNETES_CLIENT_CERTIFICATE")?,
            client_key: variable(lookup, "CAUSEWAY_KUBERNETES_CLIENT_KEY")?,
            unused: variable(lookup, "CAUSEWAY_KUBERNETES_UNUSED")?,
            pin: list(lookup, "CAUSEWAY_KUBERNETES_PIN")?,
            pin_node: variable(lookup, "CAUSEWAY_KUBERNETES_PIN_NODE")?,
            bytes_per_day: variable(lookup, "CAUSEWAY_KUBERNETES_BYTES_PER_DAY")?,
            bytes_max: variable(lookup, "CAUSEWAY_KUBERNETES_BYTES_MAX")?,
            offline_writes: list(lookup, "CAUSEWAY_KUBERNETES_OFFLINE_WRITES")?,
        },
        audit: AuditLayer {
            export: ExportLayer {
                bytes_max: variable(lookup, "CAUSEWAY_AUDIT_EXPORT_BYTES_MAX")?,
                files: ExportFilesLayer { folder: variable(lookup, "CAUSEWAY_AUDIT_EXPORT_FILES_FOLDER")? },
                webhook: ExportWebhookLayer {
                    url: variable(lookup, "CAUSEWAY_AUDIT_EXPORT_WEBHOOK_URL")?,
                    token_file: variable(lookup, "CAUSEWAY_AUDIT_EXPORT_WEBHOOK_TOKEN_FILE")?,
                    ca: variable(lookup, "CAUSEWAY_AUDIT_EXPORT_WEBHOOK_CA")?,
                },
                syslog: ExportSyslogLayer {
                    endpoint: variable(lookup, "CAUSEWAY_AUDIT_EXPORT_SYSLOG_ENDPOINT")?,
                    ca: variable(lookup, "CAUSEWAY_AUDIT_EXPORT_SYSLOG_CA")?,
                    certificate: variable(lookup, "CAUSEWAY_AUDIT_EXPORT_SYSLOG_CERTIFICATE")?,
                    key: variable(lookup, "CAUSEWAY_AUDIT_EXPORT_SYSLOG_KEY")?,
                },
                otlp: ExportOtlpLayer {
                    url: variable(lookup, "CAUSEWAY_AUDIT_EXPORT_OTLP_URL")?,
                    token_file: variable(lookup, "CAUSEWAY_AUDIT_EXPORT_OTLP_TOKEN_FILE")?,
                    ca: variable(lookup, "CAUSEWAY_AUDIT_EXPORT_OTLP_CA")?,
                },
            },
        },
    })
}

fn variable<T>(
    lookup: &dyn Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<Option<T>, EnvironmentError>
where
    T: FromStr<Err: std::fmt::Display> + 'static,
{
    let Some(value) = lookup(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let parsed = value.parse().map_err(|error: T::Err| {
        let why = plain_form::<T>().map_or_else(|| error.to_string(), str::to_owned);
        EnvironmentError { name, why, value }
    });
    parsed.map(Some)
}

/// A list with commas, as an environment variable has no other way to say it.
fn list<T: FromStr<Err = String>>(
    lookup: &dyn Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<Option<Vec<T>>, EnvironmentError> {
    let Some(value) = lookup(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let parsed: Result<Vec<T>, String> = value.split(',').map(|part| part.trim().parse()).collect();
    parsed.map(Some).map_err(|why| EnvironmentError { name, value, why })
}
