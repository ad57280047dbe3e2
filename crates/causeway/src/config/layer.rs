//! One layer of configuration: every value may be missing. File, environment and flags fill the same form.

use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::path::PathBuf;
use std::str::FromStr;

use causeway_gateway::dial::BackendRule;
use causeway_gateway::proxy::connect::AllowRule;
use serde::Deserialize;

use super::{
    AdvertisedEndpoint, DnsListen, NameServer, PresenceModeSetting, PresencePort, ProxySetting, ServerName,
    StoreSetting, TransportSetting,
};
use crate::duration::HumanDuration;

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Layer {
    pub data_dir: Option<PathBuf>,
    pub log: LogLayer,
    pub cloud: CloudLayer,
    pub edge: EdgeLayer,
    pub gateway: GatewayLayer,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct LogLayer {
    pub format: Option<String>,
    pub filter: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct CloudLayer {
    pub api: Option<SocketAddr>,
    pub channel: Option<SocketAddr>,
    pub admin: Option<SocketAddr>,
    pub connect: Option<SocketAddr>,
    pub connect_allow: Option<Vec<AllowRule>>,
    pub advertise: Option<Vec<AdvertisedEndpoint>>,
    pub peer_address: Option<AdvertisedEndpoint>,
    pub store: Option<StoreSetting>,
    pub etcd_ca: Option<PathBuf>,
    pub etcd_certificate: Option<PathBuf>,
    pub etcd_key: Option<PathBuf>,
    pub seal_key: Option<PathBuf>,
    pub api_names: Option<Vec<ServerName>>,
    pub api_connections_per_address: Option<NonZeroU32>,
    pub expired_grace: Option<HumanDuration>,
    pub audit_file_bytes_max: Option<u64>,
    pub audit_files_max: Option<u64>,
    pub handshakes_per_second: Option<NonZeroU32>,
    pub handshakes_per_address: Option<NonZeroU32>,
    pub half_open_max: Option<NonZeroU32>,
    pub links_max: Option<NonZeroU32>,
    pub streams_max: Option<NonZeroU32>,
    pub stream_window_bytes: Option<NonZeroU32>,
    pub drain: Option<HumanDuration>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EdgeLayer {
    pub admin: Option<SocketAddr>,
    pub drain: Option<HumanDuration>,
    pub transport: Option<TransportSetting>,
    pub proxy: Option<ProxySetting>,
}

/// Settings of the gateway, which both roles run.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct GatewayLayer {
    pub dns: Option<Vec<DnsListen>>,
    pub dns_upstream: Option<Vec<NameServer>>,
    pub presence: Option<PresenceModeSetting>,
    pub ports: Option<Vec<PresencePort>>,
    pub entry_http: Option<SocketAddr>,
    pub entry_tls: Option<SocketAddr>,
    pub backends_allow: Option<Vec<BackendRule>>,
    pub backends_deny: Option<Vec<BackendRule>>,
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
            drain,
        },
        edge: EdgeLayer {
            admin,
            drain,
            transport: variable(lookup, "CAUSEWAY_TRANSPORT")?,
            proxy: variable(lookup, "CAUSEWAY_PROXY")?,
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
        },
    })
}

fn variable<T>(
    lookup: &dyn Fn(&str) -> Option<String>,
    name: &'static str,
) -> Result<Option<T>, EnvironmentError>
where
    T: FromStr<Err: std::fmt::Display>,
{
    let Some(value) = lookup(name).filter(|value| !value.is_empty()) else { return Ok(None) };
    let parsed =
        value.parse().map_err(|error: T::Err| EnvironmentError { name, why: error.to_string(), value });
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
