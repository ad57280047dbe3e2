//! The configuration: a TOML file, typed, with unknown fields refused.
//!
//! Four layers, each stronger than the one before: defaults, file, environment, flags. The result
//! remembers where each value came from. Nothing else in the workspace reads configuration.

mod defaults;
#[cfg(test)]
mod examples;
mod layer;
pub mod mistake;
#[cfg(test)]
mod reference;
mod reload;
mod values;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use causeway_api::CLOUD;
use causeway_channel::PeerId;
use causeway_gateway::dial::BackendRule;
use causeway_gateway::proxy::connect::AllowRule;
use serde_json::{Map, Value};

use crate::duration::HumanDuration;
use crate::output;
use crate::problem::ManifestProblem;
pub use causeway_daemon::ProcessRole;
pub use layer::{CloudLayer, EdgeLayer, GatewayLayer, Layer, LogLayer, TunnelLayer};
pub use reload::{Applies, Change, changes};
pub use values::{
    AdvertisedEndpoint, CaHash, CollectorUrl, CommonName, DatapathSetting, DnsListen, NameServer, PinSetting,
    PresenceModeSetting, PresencePort, ProxySetting, ResourceSetting, ServerName, ServiceAccountSetting,
    SiteLabelKey, StoreSetting, TransportSetting,
};

/// The origin of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettingOrigin {
    Default,
    File,
    Environment,
    Flag,
}

impl SettingOrigin {
    fn name(self) -> &'static str {
        match self {
            SettingOrigin::Default => "default",
            SettingOrigin::File => "file",
            SettingOrigin::Environment => "environment",
            SettingOrigin::Flag => "flag",
        }
    }
}

/// One value and its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting<T> {
    pub value: T,
    pub origin: SettingOrigin,
}

/// The effective configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    pub data_dir: Setting<PathBuf>,
    pub log: LogConfig,
    pub cloud: CloudSettings,
    pub edge: EdgeSettings,
    pub gateway: GatewaySettings,
    pub tunnel: TunnelSettings,
    pub kubernetes: KubernetesSettings,
    pub traces: TraceSettings,
    pub export: ExportSettings,
}

#[derive(Clone, Debug, PartialEq)]
pub struct LogConfig {
    pub format: Setting<String>,
    pub filter: Setting<String>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct CloudSettings {
    pub api: Setting<std::net::SocketAddr>,
    pub channel: Setting<std::net::SocketAddr>,
    pub admin: Setting<std::net::SocketAddr>,
    /// The CONNECT listener for clients with a certificate, and the destinations it may dial that are no
    /// nodes.
    pub connect: Setting<Option<std::net::SocketAddr>>,
    pub connect_allow: Setting<Vec<AllowRule>>,
    pub advertise: Setting<Vec<AdvertisedEndpoint>>,
    pub peer_address: Setting<Option<AdvertisedEndpoint>>,
    pub store: Setting<StoreSetting>,
    pub etcd_ca: Setting<Option<PathBuf>>,
    pub etcd_certificate: Setting<Option<PathBuf>>,
    pub etcd_key: Setting<Option<PathBuf>>,
    pub seal_key: Setting<Option<PathBuf>>,
    /// Further names in the certificate of the API, and how many connections one address may have open there.
    pub api_names: Setting<Vec<ServerName>>,
    pub api_connections_per_address: Setting<NonZeroU32>,
    pub expired_grace: Setting<HumanDuration>,
    pub audit_file_bytes_max: Setting<u64>,
    pub audit_files_max: Setting<u64>,
    /// Handshakes on the channel port, begun per second, by all and by one address.
    pub handshakes_per_second: Setting<NonZeroU32>,
    pub handshakes_per_address: Setting<NonZeroU32>,
    pub half_open_max: Setting<NonZeroU32>,
    /// Links of edges and replicas, open at the same time.
    pub links_max: Setting<NonZeroU32>,
    /// Streams that a peer may have open on one link, and the bytes it may send on each before they are read.
    pub streams_max: Setting<NonZeroU32>,
    pub stream_window_bytes: Setting<NonZeroU32>,
    /// The kubeconfig of the cluster whose API edges have a copy of.
    pub kubernetes: Setting<Option<PathBuf>>,
    /// The service accounts whose pods enrol their node, the audience of their tokens, and the site of nodes without an EServer.
    pub join_service_accounts: Setting<Vec<ServiceAccountSetting>>,
    pub join_audience: Setting<String>,
    pub join_default_site: Setting<Option<String>>,
    /// The listener for kube-apiserver, and the certificate by which it is known.
    pub aggregated: Setting<Option<std::net::SocketAddr>>,
    pub requestheader_ca: Setting<Option<PathBuf>>,
    pub requestheader_names: Setting<Vec<CommonName>>,
    /// Labels of sites in metrics.
    pub metrics_site_labels: Setting<Vec<SiteLabelKey>>,
    /// Members of a community that are all peers.
    pub community_peers_max: Setting<NonZeroU32>,
    pub drain: Setting<HumanDuration>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct EdgeSettings {
    pub admin: Setting<std::net::SocketAddr>,
    pub drain: Setting<HumanDuration>,
    pub transport: Setting<TransportSetting>,
    /// None: as HTTPS_PROXY and NO_PROXY say.
    pub proxy: Setting<Option<ProxySetting>>,
    /// The join token of the first start.
    pub join_file: Setting<Option<PathBuf>>,
    /// The service-account token of the pod, the endpoints of the cloud and the hashes of its CAs.
    pub join_service_account: Setting<Option<PathBuf>>,
    pub join_endpoints: Setting<Vec<AdvertisedEndpoint>>,
    pub join_ca: Setting<Vec<CaHash>>,
}

/// Settings of the gateway, which both roles run.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewaySettings {
    /// DNS listen addresses. None: port 53 of loopback and of the gateway's `ip`.
    pub dns: Setting<Option<Vec<DnsListen>>>,
    /// DNS servers for other names. None: those of this host.
    pub dns_upstream: Setting<Option<Vec<NameServer>>>,
    /// The network in which presences listen.
    pub presence: Setting<PresenceModeSetting>,
    /// More listen addresses for presences, for users without privileges on this host.
    pub ports: Setting<Vec<PresencePort>>,
    /// One address for many names: by the host of requests, and by the name that TLS asks for.
    pub entry_http: Setting<Option<std::net::SocketAddr>>,
    pub entry_tls: Setting<Option<std::net::SocketAddr>>,
    /// Addresses of backends: those that are dialled although they are link-local, unspecified or multicast, or inside a network
    /// that is denied; and those that are not dialled. The most specific rule decides.
    pub backends_allow: Setting<Vec<BackendRule>>,
    pub backends_deny: Setting<Vec<BackendRule>>,
    pub services_off: Setting<bool>,
}

/// Settings of layer 3, which both roles run.
#[derive(Clone, Debug, PartialEq)]
pub struct TunnelSettings {
    pub off: Setting<bool>,
    pub listen: Setting<std::net::SocketAddr>,
    pub mtu: Setting<Option<u16>>,
    pub relay_mbit_per_second: Setting<NonZeroU32>,
    pub device: Setting<String>,
    pub datapath: Setting<DatapathSetting>,
    pub bridge: Setting<String>,
}

/// The Kubernetes API at an edge.
#[derive(Clone, Debug, PartialEq)]
pub struct KubernetesSettings {
    pub listen: Setting<std::net::SocketAddr>,
    pub pod_listen: Setting<Option<std::net::SocketAddr>>,
    pub client_certificate: Setting<PathBuf>,
    pub client_key: Setting<PathBuf>,
    pub unused: Setting<HumanDuration>,
    pub pin: Setting<Vec<PinSetting>>,
    pub pin_node: Setting<Option<String>>,
    pub bytes_per_day: Setting<Option<u64>>,
    pub bytes_max: Setting<u64>,
    pub offline_writes: Setting<Vec<ResourceSetting>>,
}

/// A collector of traces.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceSettings {
    pub url: Setting<Option<CollectorUrl>>,
    pub token_file: Setting<Option<PathBuf>>,
    pub ca: Setting<Option<PathBuf>>,
    pub ratio: Setting<f64>,
}

/// Collectors of audit records, in the sections `audit.export` and below.
#[derive(Clone, Debug, PartialEq)]
pub struct ExportSettings {
    pub bytes_max: Setting<u64>,
    pub files_folder: Setting<Option<PathBuf>>,
    pub webhook_url: Setting<Option<CollectorUrl>>,
    pub webhook_token_file: Setting<Option<PathBuf>>,
    pub webhook_ca: Setting<Option<PathBuf>>,
    pub syslog_endpoint: Setting<Option<AdvertisedEndpoint>>,
    pub syslog_ca: Setting<Option<PathBuf>>,
    pub syslog_certificate: Setting<Option<PathBuf>>,
    pub syslog_key: Setting<Option<PathBuf>>,
    pub otlp_url: Setting<Option<CollectorUrl>>,
    pub otlp_token_file: Setting<Option<PathBuf>>,
    pub otlp_ca: Setting<Option<PathBuf>>,
}

impl Config {
    /// Reads the file, if one is named by flag or environment, and puts the layers together.
    pub fn load(flags: Layer, file: Option<&Path>) -> anyhow::Result<Config> {
        let environment = layer::environment(&|name| std::env::var(name).ok())?;
        let named =
            file.map(Path::to_owned).or_else(|| std::env::var_os("CAUSEWAY_CONFIG").map(PathBuf::from));
        let file = match &named {
            Some(path) => read(path)?,
            None => Layer::default(),
        };
        let config = Config::resolve(file, environment, flags);
        config.check()?;
        anyhow::ensure!(
            causeway_gateway::trace::IS_BUILT_IN || config.traces.url.value.is_none(),
            "`url` of `traces` is set, and this build exports no traces: remove it, or build with `--features traces`"
        );
        Ok(config)
    }

    /// Puts the layers together; pure.
    pub fn resolve(file: Layer, environment: Layer, flags: Layer) -> Config {
        let layers = [file, environment, flags];
        macro_rules! pick {
            ($default:expr, $($field:tt)+) => {
                pick($default, [&layers[0], &layers[1], &layers[2]].map(|layer| layer.$($field)+.clone()))
            };
        }
        macro_rules! pick_optional {
            ($($field:tt)+) => {
                pick(None, [&layers[0], &layers[1], &layers[2]].map(|layer| layer.$($field)+.clone().map(Some)))
            };
        }
        Config {
            data_dir: pick!(PathBuf::from(defaults::DATA_DIR), data_dir),
            log: LogConfig {
                format: pick!(defaults::LOG_FORMAT.to_owned(), log.format),
                filter: pick!(defaults::LOG_FILTER.to_owned(), log.filter),
            },
            cloud: CloudSettings {
                api: pick!(defaults::API, cloud.api),
                channel: pick!(defaults::CHANNEL, cloud.channel),
                admin: pick!(defaults::ADMIN, cloud.admin),
                connect: pick_optional!(cloud.connect),
                connect_allow: pick!(Vec::new(), cloud.connect_allow),
                advertise: pick!(Vec::new(), cloud.advertise),
                peer_address: pick_optional!(cloud.peer_address),
                store: pick!(defaults::STORE, cloud.store),
                etcd_ca: pick_optional!(cloud.etcd_ca),
                etcd_certificate: pick_optional!(cloud.etcd_certificate),
                etcd_key: pick_optional!(cloud.etcd_key),
                seal_key: pick_optional!(cloud.seal_key),
                api_names: pick!(Vec::new(), cloud.api_names),
                api_connections_per_address: pick!(
                    defaults::API_CONNECTIONS_PER_ADDRESS,
                    cloud.api_connections_per_address
                ),
                expired_grace: pick!(defaults::EXPIRED_GRACE, cloud.expired_grace),
                audit_file_bytes_max: pick!(defaults::AUDIT_FILE_BYTES_MAX, cloud.audit_file_bytes_max),
                audit_files_max: pick!(defaults::AUDIT_FILES_MAX, cloud.audit_files_max),
                handshakes_per_second: pick!(defaults::HANDSHAKES_PER_SECOND, cloud.handshakes_per_second),
                handshakes_per_address: pick!(defaults::HANDSHAKES_PER_ADDRESS, cloud.handshakes_per_address),
                half_open_max: pick!(defaults::HALF_OPEN_MAX, cloud.half_open_max),
                links_max: pick!(defaults::LINKS_MAX, cloud.links_max),
                streams_max: pick!(defaults::STREAMS_MAX, cloud.streams_max),
                stream_window_bytes: pick!(defaults::STREAM_WINDOW_BYTES, cloud.stream_window_bytes),
                kubernetes: pick_optional!(cloud.kubernetes),
                join_service_accounts: pick!(Vec::new(), cloud.join_service_accounts),
                join_audience: pick!(defaults::JOIN_AUDIENCE.to_owned(), cloud.join_audience),
                join_default_site: pick_optional!(cloud.join_default_site),
                aggregated: pick_optional!(cloud.aggregated),
                requestheader_ca: pick_optional!(cloud.requestheader_ca),
                requestheader_names: pick!(Vec::new(), cloud.requestheader_names),
                metrics_site_labels: pick!(Vec::new(), cloud.metrics_site_labels),
                community_peers_max: pick!(defaults::COMMUNITY_PEERS_MAX, cloud.community_peers_max),
                drain: pick!(defaults::DRAIN, cloud.drain),
            },
            edge: EdgeSettings {
                admin: pick!(defaults::ADMIN, edge.admin),
                drain: pick!(defaults::DRAIN, edge.drain),
                transport: pick!(defaults::TRANSPORT, edge.transport),
                proxy: pick_optional!(edge.proxy),
                join_file: pick_optional!(edge.join_file),
                join_service_account: pick_optional!(edge.join_service_account),
                join_endpoints: pick!(Vec::new(), edge.join_endpoints),
                join_ca: pick!(Vec::new(), edge.join_ca),
            },
            gateway: GatewaySettings {
                dns: pick_optional!(gateway.dns),
                dns_upstream: pick_optional!(gateway.dns_upstream),
                presence: pick!(defaults::PRESENCE, gateway.presence),
                ports: pick!(Vec::new(), gateway.ports),
                entry_http: pick_optional!(gateway.entry_http),
                entry_tls: pick_optional!(gateway.entry_tls),
                backends_allow: pick!(Vec::new(), gateway.backends_allow),
                backends_deny: pick!(Vec::new(), gateway.backends_deny),
                services_off: pick!(defaults::SERVICES_OFF, gateway.services_off),
            },
            tunnel: TunnelSettings {
                off: pick!(defaults::TUNNEL_OFF, tunnel.off),
                listen: pick!(defaults::TUNNEL_LISTEN, tunnel.listen),
                mtu: pick_optional!(tunnel.mtu),
                relay_mbit_per_second: pick!(defaults::RELAY_MBIT_PER_SECOND, tunnel.relay_mbit_per_second),
                device: pick!(defaults::TUNNEL_DEVICE.to_owned(), tunnel.device),
                datapath: pick!(defaults::DATAPATH, tunnel.datapath),
                bridge: pick!(defaults::BRIDGE.to_owned(), tunnel.bridge),
            },
            kubernetes: KubernetesSettings {
                listen: pick!(defaults::KUBERNETES_LISTEN, kubernetes.listen),
                pod_listen: pick_optional!(kubernetes.pod_listen),
                client_certificate: pick!(
                    defaults::KUBERNETES_CLIENT_CERTIFICATE.into(),
                    kubernetes.client_certificate
                ),
                client_key: pick!(defaults::KUBERNETES_CLIENT_KEY.into(), kubernetes.client_key),
                unused: pick!(defaults::KUBERNETES_UNUSED, kubernetes.unused),
                pin: pick!(Vec::new(), kubernetes.pin),
                pin_node: pick_optional!(kubernetes.pin_node),
                bytes_per_day: pick_optional!(kubernetes.bytes_per_day),
                bytes_max: pick!(defaults::KUBERNETES_BYTES_MAX, kubernetes.bytes_max),
                offline_writes: pick!(Vec::new(), kubernetes.offline_writes),
            },
            traces: TraceSettings {
                url: pick_optional!(traces.url),
                token_file: pick_optional!(traces.token_file),
                ca: pick_optional!(traces.ca),
                ratio: pick!(defaults::TRACES_RATIO, traces.ratio),
            },
            export: ExportSettings {
                bytes_max: pick!(defaults::AUDIT_EXPORT_BYTES_MAX, audit.export.bytes_max),
                files_folder: pick_optional!(audit.export.files.folder),
                webhook_url: pick_optional!(audit.export.webhook.url),
                webhook_token_file: pick_optional!(audit.export.webhook.token_file),
                webhook_ca: pick_optional!(audit.export.webhook.ca),
                syslog_endpoint: pick_optional!(audit.export.syslog.endpoint),
                syslog_ca: pick_optional!(audit.export.syslog.ca),
                syslog_certificate: pick_optional!(audit.export.syslog.certificate),
                syslog_key: pick_optional!(audit.export.syslog.key),
                otlp_url: pick_optional!(audit.export.otlp.url),
                otlp_token_file: pick_optional!(audit.export.otlp.token_file),
                otlp_ca: pick_optional!(audit.export.otlp.ca),
            },
        }
    }

    /// Checks combinations of values.
    fn check(&self) -> anyhow::Result<()> {
        let cloud = &self.cloud;
        causeway_daemon::log::check_filter(&self.log.filter.value)?;
        self.log.format.value.parse::<causeway_daemon::log::LogFormat>().map_err(anyhow::Error::msg)?;
        let mut listeners =
            vec![("api", cloud.api.value), ("channel", cloud.channel.value), ("admin", cloud.admin.value)];
        listeners.extend(cloud.connect.value.map(|address| ("connect", address)));
        listeners.extend(cloud.aggregated.value.map(|address| ("aggregated", address)));
        anyhow::ensure!(
            cloud.aggregated.value.is_none()
                || cloud.requestheader_ca.value.is_some() && cloud.kubernetes.value.is_some(),
            "`aggregated` needs `requestheader-ca`, by which kube-apiserver is known, and `kubernetes`, the cluster that decides"
        );
        anyhow::ensure!(
            cloud.join_service_accounts.value.is_empty() || cloud.kubernetes.value.is_some(),
            "`join-service-accounts` needs `kubernetes`, the cluster that vouches for pods"
        );
        anyhow::ensure!(
            !cloud.join_audience.value.is_empty(),
            "`join-audience` is empty: leave it out, or name an audience"
        );
        if let Some(site) = &cloud.join_default_site.value {
            let is_name = PeerId::new(site, "node").is_ok();
            anyhow::ensure!(
                is_name && site != CLOUD,
                "`join-default-site` is {site:?}: name a site as an ESite is named, and not `{CLOUD}`, which is this cloud itself"
            );
        }
        anyhow::ensure!(
            self.kubernetes.pin.value.is_empty() || self.kubernetes.pin_node.value.is_some(),
            "`pin` needs `pin-node`: the edge has no rights in the cluster, and reads in the name of a node of its site"
        );
        if let Some(pods) = self.kubernetes.pod_listen.value {
            anyhow::ensure!(
                !pods.ip().is_unspecified() && !pods.ip().is_multicast(),
                "`pod-listen` is {pods}: name one address of the host; the serving certificate names it, and every other network stays out"
            );
            anyhow::ensure!(
                pods != self.kubernetes.listen.value,
                "`listen` and `pod-listen` are both {pods}: leave `pod-listen` out, or name another address"
            );
        }
        let edge = &self.edge;
        anyhow::ensure!(
            edge.join_service_account.value.is_none()
                || !edge.join_endpoints.value.is_empty() && !edge.join_ca.value.is_empty(),
            "`join-service-account` needs `join-endpoints` and `join-ca`: a service-account token names no cloud"
        );
        for (number, (name, address)) in listeners.iter().enumerate() {
            for (other_name, other) in &listeners[number + 1..] {
                let same = address.port() != 0 && address == other;
                anyhow::ensure!(
                    !same,
                    "`{name}` and `{other_name}` are both {address}: give each its own port"
                );
            }
        }
        let pair = (&cloud.etcd_certificate.value, &cloud.etcd_key.value);
        anyhow::ensure!(
            pair.0.is_some() == pair.1.is_some(),
            "`etcd-certificate` and `etcd-key` belong together: set both or neither"
        );
        let ratio = self.traces.ratio.value;
        anyhow::ensure!(
            (0.0..=1.0).contains(&ratio),
            "`ratio` of `traces` is {ratio}: use a number from 0 to 1"
        );
        let export = &self.export;
        anyhow::ensure!(
            export.syslog_certificate.value.is_some() == export.syslog_key.value.is_some(),
            "`certificate` and `key` of `audit.export.syslog` belong together: set both or neither"
        );
        let dns = self.gateway.dns.value.as_deref().unwrap_or_default();
        anyhow::ensure!(
            dns.len() < 2 || !dns.contains(&DnsListen::Off),
            "`dns` is off and has addresses: write one or the other"
        );
        let mtu = self.tunnel.mtu.value.unwrap_or(MTU_MIN);
        anyhow::ensure!(mtu >= MTU_MIN, "`mtu` of the tunnel is {mtu}: at least {MTU_MIN} bytes are needed");
        let device = &self.tunnel.device.value;
        let is_letter = |letter: char| letter.is_ascii_alphanumeric() || ['-', '_', '.'].contains(&letter);
        anyhow::ensure!(
            (1..=DEVICE_NAME_MAX).contains(&device.len())
                && device.replacen("%d", "0", 1).chars().all(is_letter),
            "`device` of the tunnel is {device:?}: use 1 to {DEVICE_NAME_MAX} letters, digits, '-', '_' or '.', and `%d` for a number"
        );
        let bridge = &self.tunnel.bridge.value;
        anyhow::ensure!(
            (1..=DEVICE_NAME_MAX).contains(&bridge.len())
                && bridge.starts_with(|letter: char| letter.is_ascii_alphanumeric())
                && bridge.chars().all(is_letter),
            "`bridge` of the tunnel is {bridge:?}: use 1 to {DEVICE_NAME_MAX} letters, digits, '-', '_' or '.', and begin with a letter or digit"
        );
        Ok(())
    }

    /// Every setting as (section, key, value, origin), without secrets.
    pub fn settings(&self) -> Vec<(&'static str, &'static str, Value, SettingOrigin)> {
        let mut all = Vec::new();
        macro_rules! show {
            ($section:literal, $($key:literal => $setting:expr),+ $(,)?) => {
                $(all.push(($section, $key, serde_json::to_value(&$setting.value).unwrap_or_default(), $setting.origin));)+
            };
        }
        show!("", "data-dir" => self.data_dir);
        show!("log", "format" => self.log.format, "filter" => self.log.filter);
        let cloud = &self.cloud;
        show!("cloud",
            "api" => cloud.api, "channel" => cloud.channel, "admin" => cloud.admin,
            "connect" => cloud.connect, "connect-allow" => cloud.connect_allow,
            "advertise" => cloud.advertise, "peer-address" => cloud.peer_address, "store" => cloud.store,
            "etcd-ca" => cloud.etcd_ca, "etcd-certificate" => cloud.etcd_certificate, "etcd-key" => cloud.etcd_key,
            "seal-key" => cloud.seal_key, "api-names" => cloud.api_names,
            "api-connections-per-address" => cloud.api_connections_per_address,
            "expired-grace" => cloud.expired_grace,
            "audit-file-bytes-max" => cloud.audit_file_bytes_max, "audit-files-max" => cloud.audit_files_max,
            "handshakes-per-second" => cloud.handshakes_per_second,
            "handshakes-per-address" => cloud.handshakes_per_address,
            "half-open-max" => cloud.half_open_max, "links-max" => cloud.links_max,
            "streams-max" => cloud.streams_max, "stream-window-bytes" => cloud.stream_window_bytes,
            "kubernetes" => cloud.kubernetes, "join-service-accounts" => cloud.join_service_accounts,
            "join-audience" => cloud.join_audience, "join-default-site" => cloud.join_default_site,
            "aggregated" => cloud.aggregated,
            "requestheader-ca" => cloud.requestheader_ca, "requestheader-names" => cloud.requestheader_names,
            "metrics-site-labels" => cloud.metrics_site_labels,
            "community-peers-max" => cloud.community_peers_max,
            "drain" => cloud.drain,
        );
        let edge = &self.edge;
        show!("edge",
            "admin" => edge.admin, "drain" => edge.drain, "transport" => edge.transport, "proxy" => edge.proxy,
            "join-file" => edge.join_file, "join-service-account" => edge.join_service_account,
            "join-endpoints" => edge.join_endpoints, "join-ca" => edge.join_ca,
        );
        let gateway = &self.gateway;
        show!("gateway",
            "dns" => gateway.dns, "dns-upstream" => gateway.dns_upstream,
            "presence" => gateway.presence, "ports" => gateway.ports,
            "entry-http" => gateway.entry_http, "entry-tls" => gateway.entry_tls,
            "backends-allow" => gateway.backends_allow, "backends-deny" => gateway.backends_deny,
            "services-off" => gateway.services_off,
        );
        let tunnel = &self.tunnel;
        show!("tunnel",
            "off" => tunnel.off, "listen" => tunnel.listen, "mtu" => tunnel.mtu,
            "relay-mbit-per-second" => tunnel.relay_mbit_per_second, "device" => tunnel.device,
            "datapath" => tunnel.datapath, "bridge" => tunnel.bridge,
        );
        let kubernetes = &self.kubernetes;
        show!("kubernetes",
            "listen" => kubernetes.listen, "pod-listen" => kubernetes.pod_listen,
            "client-certificate" => kubernetes.client_certificate, "client-key" => kubernetes.client_key,
            "unused" => kubernetes.unused,
            "pin" => kubernetes.pin, "pin-node" => kubernetes.pin_node,
            "bytes-per-day" => kubernetes.bytes_per_day, "bytes-max" => kubernetes.bytes_max,
            "offline-writes" => kubernetes.offline_writes,
        );
        let traces = &self.traces;
        show!("traces",
            "url" => traces.url, "token-file" => traces.token_file, "ca" => traces.ca, "ratio" => traces.ratio,
        );
        let export = &self.export;
        show!("audit.export", "bytes-max" => export.bytes_max);
        show!("audit.export.files", "folder" => export.files_folder);
        show!("audit.export.webhook",
            "url" => export.webhook_url, "token-file" => export.webhook_token_file, "ca" => export.webhook_ca,
        );
        show!("audit.export.syslog",
            "endpoint" => export.syslog_endpoint, "ca" => export.syslog_ca,
            "certificate" => export.syslog_certificate, "key" => export.syslog_key,
        );
        show!("audit.export.otlp",
            "url" => export.otlp_url, "token-file" => export.otlp_token_file, "ca" => export.otlp_ca,
        );
        all
    }

    /// As TOML that could be a file again, each line with its origin.
    pub fn to_toml(&self) -> String {
        let (mut text, mut current) = (String::new(), "");
        for (section, key, value, origin) in self.settings() {
            if section != current {
                text.push_str(&format!("\n[{section}]\n"));
                current = section;
            }
            // TOML has no null: what is not set is a comment.
            let line = match &value {
                Value::Null => format!("# {key} is not set"),
                value => format!("{key} = {}", toml_text(value)),
            };
            text.push_str(&format!("{line:<48} # {}\n", origin.name()));
        }
        text
    }

    /// For the admin dump and the log line at the start.
    pub fn to_json(&self) -> Value {
        let mut sections = Map::new();
        for (section, key, value, _) in self.settings() {
            if section.is_empty() {
                sections.insert(key.to_owned(), value);
            } else if let Value::Object(fields) =
                sections.entry(section.to_owned()).or_insert_with(|| Value::Object(Map::new()))
            {
                fields.insert(key.to_owned(), value);
            }
        }
        Value::Object(sections)
    }
}

/// Every IPv4 host accepts packets of this size (RFC 791, section 3.1).
const MTU_MIN: u16 = 576;
/// The kernel's IFNAMSIZ, without the final zero.
const DEVICE_NAME_MAX: usize = 15;

/// Reads one file; a mistake is shown at its place.
pub fn read(path: &Path) -> anyhow::Result<Layer> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| anyhow::anyhow!("configuration {} cannot be read: {error}", output::path(path)))?;
    Ok(parse(&output::path(path), &text)?)
}

fn parse(name: &str, text: &str) -> Result<Layer, ManifestProblem> {
    toml::from_str(text).map_err(|error| {
        let span = error.span().unwrap_or(0..0);
        let help = "`causeway check-config` without a file prints every setting with its default";
        let message = mistake::explain(error.message().trim_end(), text, span.clone());
        ManifestProblem::at(name, text, span, message).with_help(help)
    })
}

/// A setting as TOML, which escapes more than JSON does.
fn toml_text(value: &Value) -> String {
    toml::Value::try_from(value).map_or_else(|_| value.to_string(), |value| value.to_string())
}

fn pick<T>(default: T, layers: [Option<T>; 3]) -> Setting<T> {
    let [file, environment, flag] = layers;
    let found =
        [(flag, SettingOrigin::Flag), (environment, SettingOrigin::Environment), (file, SettingOrigin::File)]
            .into_iter()
            .find_map(|(value, origin)| value.map(|value| Setting { value, origin }));
    found.unwrap_or(Setting { value: default, origin: SettingOrigin::Default })
}

#[cfg(test)]
mod tests;
