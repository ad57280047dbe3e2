//! Values with a form of their own: endpoints, store specifications, transports, proxies and addresses of DNS.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use causeway_api::request::query::decode;
use causeway_apicache::resource::{ResourceName, SubscriptionScope};
use causeway_channel::KeyHash;
use causeway_cloud::identity::ServiceAccountName;
use serde::{Deserialize, Serialize};

/// HOST:PORT as edges are to dial it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AdvertisedEndpoint(pub causeway_channel::ChannelEndpoint);

impl FromStr for AdvertisedEndpoint {
    type Err = String;

    fn from_str(text: &str) -> Result<AdvertisedEndpoint, String> {
        text.parse()
            .map(AdvertisedEndpoint)
            .map_err(|error: causeway_channel::token::EndpointError| error.to_string())
    }
}

/// The URL of a collector, http or https.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CollectorUrl(pub http::Uri);

impl FromStr for CollectorUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<CollectorUrl, String> {
        let wrong = |why: &str| format!("`{text}` is no URL of a collector: {why}");
        let url: http::Uri =
            text.parse().map_err(|error: http::uri::InvalidUri| wrong(&error.to_string()))?;
        if !matches!(url.scheme_str(), Some("http" | "https")) || url.host().is_none_or(str::is_empty) {
            return Err(wrong("write http:// or https://, a host and a path"));
        }
        // It would be shown in logs and dumps.
        if url.authority().is_some_and(|authority| authority.as_str().contains('@')) {
            return Err(wrong("put the secret into a `token-file`"));
        }
        Ok(CollectorUrl(url))
    }
}

impl fmt::Display for CollectorUrl {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// The common name of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CommonName(pub String);

impl FromStr for CommonName {
    type Err = String;

    fn from_str(text: &str) -> Result<CommonName, String> {
        match text.is_empty() || text.len() > 64 || text.chars().any(char::is_control) {
            true => Err(format!("`{text}` is no common name: it has 1 to 64 characters")),
            false => Ok(CommonName(text.to_owned())),
        }
    }
}

impl fmt::Display for CommonName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// The key of a label of ESites.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SiteLabelKey(pub String);

impl FromStr for SiteLabelKey {
    type Err = String;

    fn from_str(text: &str) -> Result<SiteLabelKey, String> {
        let checked = causeway_api::name::check_label_key(text);
        checked.map_err(|allowed| format!("`{text}` is no key of a label: {allowed}"))?;
        Ok(SiteLabelKey(text.to_owned()))
    }
}

impl fmt::Display for SiteLabelKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A name or an address for the server certificate of the API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServerName(pub String);

impl FromStr for ServerName {
    type Err = String;

    fn from_str(text: &str) -> Result<ServerName, String> {
        let usable = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = !text.is_empty() && text.len() <= 253 && text.bytes().all(usable);
        match is_name || text.parse::<IpAddr>().is_ok() {
            true => Ok(ServerName(text.to_owned())),
            false => Err(format!(
                "`{text}` is neither a DNS name nor an IP address: write it without scheme and port, as in api.example.org"
            )),
        }
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A service account, as `NAMESPACE/NAME`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ServiceAccountSetting(pub ServiceAccountName);

impl FromStr for ServiceAccountSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<ServiceAccountSetting, String> {
        text.parse().map(ServiceAccountSetting)
    }
}

impl fmt::Display for ServiceAccountSetting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A resource of the Kubernetes API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ResourceSetting(pub ResourceName);

impl FromStr for ResourceSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<ResourceSetting, String> {
        ResourceName::parse(text).map(ResourceSetting).ok_or_else(|| {
            format!("`{text}` names no resource: write VERSION/PLURAL or GROUP/VERSION/PLURAL, as in apps/v1/deployments")
        })
    }
}

impl fmt::Display for ResourceSetting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A part of a resource of the Kubernetes API, as `RESOURCE?namespace=…&labelSelector=…&fieldSelector=…`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PinSetting(pub SubscriptionScope);

const PIN_PARAMETERS: [&str; 3] = ["namespace", "labelSelector", "fieldSelector"];

impl FromStr for PinSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<PinSetting, String> {
        let (resource, query) = text.split_once('?').unwrap_or((text, ""));
        let resource = resource.parse::<ResourceSetting>()?.0;
        let mut values = PIN_PARAMETERS.map(|_| String::new());
        for parameter in query.split('&').filter(|parameter| !parameter.is_empty()) {
            let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
            let place = PIN_PARAMETERS.iter().position(|known| *known == name).ok_or_else(|| {
                format!("`{name}` in `{text}` is unknown: a pin has {}", PIN_PARAMETERS.join(", "))
            })?;
            values[place] = decode(value, false);
        }
        let [namespace, label_selector, field_selector] = values;
        let scope = SubscriptionScope { resource, namespace, label_selector, field_selector };
        match scope.is_valid() {
            true => Ok(PinSetting(scope)),
            false => {
                Err(format!("`{text}` has a namespace that cannot exist, or a selector that is too long"))
            }
        }
    }
}

impl fmt::Display for PinSetting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let SubscriptionScope { resource, namespace, label_selector, field_selector } = &self.0;
        write!(out, "{resource}")?;
        let values = [namespace, label_selector, field_selector];
        let given = PIN_PARAMETERS.iter().zip(values).filter(|(_, value)| !value.is_empty());
        for (number, (name, value)) in given.enumerate() {
            let value = value.replace('%', "%25").replace('&', "%26").replace(',', "%2C");
            write!(out, "{}{name}={value}", if number == 0 { '?' } else { '&' })?;
        }
        Ok(())
    }
}

/// The SHA-256 of the public key of a CA, in hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct CaHash(pub KeyHash);

impl FromStr for CaHash {
    type Err = String;

    fn from_str(text: &str) -> Result<CaHash, String> {
        KeyHash::from_hex(text).map(CaHash).ok_or_else(|| {
            format!(
                "`{text}` is no hash of a CA: write the 64 hexadecimal digits of `id` in GET /causeway/v1/ca"
            )
        })
    }
}

impl fmt::Display for CaHash {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// The store of the objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum StoreSetting {
    /// store.db inside the data dir.
    Sqlite,
    Etcd {
        endpoints: Vec<String>,
    },
}

impl FromStr for StoreSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<StoreSetting, String> {
        if text == "sqlite" {
            return Ok(StoreSetting::Sqlite);
        }
        let Some(list) = text.strip_prefix("etcd=") else {
            return Err(format!("store `{text}` is unknown: use `sqlite` or `etcd=http://HOST:2379,...`"));
        };
        let endpoints: Vec<String> = list.split(',').map(|endpoint| endpoint.trim().to_owned()).collect();
        for endpoint in &endpoints {
            let rest = endpoint.strip_prefix("http://").or_else(|| endpoint.strip_prefix("https://"));
            if rest.is_none_or(str::is_empty) {
                return Err(format!(
                    "etcd endpoint `{endpoint}` must begin with http:// or https:// and name a host"
                ));
            }
        }
        Ok(StoreSetting::Etcd { endpoints })
    }
}

impl fmt::Display for StoreSetting {
    /// Without passwords of the URLs: this is written to logs and dumps.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreSetting::Sqlite => write!(out, "sqlite"),
            StoreSetting::Etcd { endpoints } => {
                let shown: Vec<String> =
                    endpoints.iter().map(|endpoint| without_password(endpoint)).collect();
                write!(out, "etcd={}", shown.join(","))
            }
        }
    }
}

fn without_password(endpoint: &str) -> String {
    match endpoint.split_once("://") {
        Some((scheme, rest)) => match rest.rsplit_once('@') {
            Some((_, host)) => format!("{scheme}://***@{host}"),
            None => endpoint.to_owned(),
        },
        None => endpoint.to_owned(),
    }
}

/// The transport of an edge to the cloud.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum TransportSetting {
    Auto,
    Quic,
    Tcp,
}

impl FromStr for TransportSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<TransportSetting, String> {
        match text {
            "auto" => Ok(TransportSetting::Auto),
            "quic" => Ok(TransportSetting::Quic),
            "tcp" => Ok(TransportSetting::Tcp),
            _ => Err(format!("transport `{text}` is unknown: use `auto`, `quic` or `tcp`")),
        }
    }
}

impl fmt::Display for TransportSetting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            TransportSetting::Auto => "auto",
            TransportSetting::Quic => "quic",
            TransportSetting::Tcp => "tcp",
        })
    }
}

/// An HTTP proxy that lets connections through by CONNECT, as `http://[USER:PASSWORD@]HOST:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProxySetting(String);

impl ProxySetting {
    /// With its password.
    pub fn url(&self) -> &str {
        &self.0
    }
}

impl FromStr for ProxySetting {
    type Err = String;

    fn from_str(text: &str) -> Result<ProxySetting, String> {
        let parsed = causeway_channel::dial::ConnectProxy::parse(text);
        parsed.map(|_| ProxySetting(text.to_owned())).map_err(|error| format!("proxy: {error}"))
    }
}

impl fmt::Display for ProxySetting {
    /// Without its password: this is written to logs and dumps.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&without_password(&self.0))
    }
}

/// A server of names, as IP or IP:PORT; on port 53 if none is named.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NameServer(pub SocketAddr);

impl FromStr for NameServer {
    type Err = String;

    fn from_str(text: &str) -> Result<NameServer, String> {
        let alone = text.parse::<IpAddr>().map(|ip| SocketAddr::new(ip, 53));
        let address = alone.or_else(|_| text.parse());
        address.map(NameServer).map_err(|_| format!("`{text}` is no address: write IP or IP:PORT"))
    }
}

impl fmt::Display for NameServer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// A DNS listen address of a gateway, or `off`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DnsListen {
    Off,
    At(NameServer),
}

impl FromStr for DnsListen {
    type Err = String;

    fn from_str(text: &str) -> Result<DnsListen, String> {
        match text {
            "off" => Ok(DnsListen::Off),
            _ => text.parse().map(DnsListen::At).map_err(|error: String| format!("{error}, or `off`")),
        }
    }
}

impl fmt::Display for DnsListen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DnsListen::Off => out.write_str("off"),
            DnsListen::At(address) => address.fmt(out),
        }
    }
}

/// The network in which presences listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum PresenceModeSetting {
    Auto,
    Namespace,
    Host,
    Off,
}

impl FromStr for PresenceModeSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<PresenceModeSetting, String> {
        match text {
            "auto" => Ok(PresenceModeSetting::Auto),
            // `room` is the earlier name.
            "namespace" | "room" => Ok(PresenceModeSetting::Namespace),
            "host" => Ok(PresenceModeSetting::Host),
            "off" => Ok(PresenceModeSetting::Off),
            _ => Err(format!("presence `{text}` is unknown: use `auto`, `namespace`, `host` or `off`")),
        }
    }
}

impl fmt::Display for PresenceModeSetting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            PresenceModeSetting::Auto => "auto",
            PresenceModeSetting::Namespace => "namespace",
            PresenceModeSetting::Host => "host",
            PresenceModeSetting::Off => "off",
        })
    }
}

/// The data path between the tunnel and the hosts of the site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum DatapathSetting {
    Tun,
    Ovs,
}

impl FromStr for DatapathSetting {
    type Err = String;

    fn from_str(text: &str) -> Result<DatapathSetting, String> {
        match text {
            "tun" => Ok(DatapathSetting::Tun),
            "ovs" => Ok(DatapathSetting::Ovs),
            _ => Err(format!("datapath `{text}` is unknown: use `tun` or `ovs`")),
        }
    }
}

impl fmt::Display for DatapathSetting {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            DatapathSetting::Tun => "tun",
            DatapathSetting::Ovs => "ovs",
        })
    }
}

/// One more address for the presence of a service, as `SERVICE=IP:PORT`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct PresencePort {
    pub service: String,
    pub address: SocketAddr,
}

impl FromStr for PresencePort {
    type Err = String;

    fn from_str(text: &str) -> Result<PresencePort, String> {
        let wrong = || format!("`{text}` names no port of a service: write SERVICE=IP:PORT");
        let (service, address) =
            text.split_once('=').filter(|(service, _)| !service.is_empty()).ok_or_else(wrong)?;
        Ok(PresencePort { service: service.to_owned(), address: address.parse().map_err(|_| wrong())? })
    }
}

impl fmt::Display for PresencePort {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}={}", self.service, self.address)
    }
}

macro_rules! text_form {
    ($($kind:ident),+) => {
        $(impl TryFrom<String> for $kind {
            type Error = String;

            fn try_from(text: String) -> Result<$kind, String> {
                text.parse()
            }
        }

        impl From<$kind> for String {
            fn from(value: $kind) -> String {
                value.to_string()
            }
        })+
    };
}

impl fmt::Display for AdvertisedEndpoint {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

text_form!(
    DnsListen,
    AdvertisedEndpoint,
    CaHash,
    CollectorUrl,
    CommonName,
    DatapathSetting,
    NameServer,
    PinSetting,
    PresenceModeSetting,
    PresencePort,
    ProxySetting,
    ResourceSetting,
    ServerName,
    ServiceAccountSetting,
    SiteLabelKey,
    StoreSetting,
    TransportSetting
);
