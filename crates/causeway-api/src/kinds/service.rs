//! EService: a service that runs at a site.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{self, PEM_BYTES_MAX};
use crate::field::{FieldError, FieldErrors};
use crate::meta::{ObjectMeta, ObjectStatus, is_zero};

/// EService is a service that runs at a site. Other sites see it only through a ServiceExpose.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["eSiteName"]))]
pub struct EService {
    pub metadata: ObjectMeta,

    /// Address of the service inside its site. One of ip, domainName and endpoints is needed; with ip and domainName, ip is
    /// dialled and domainName is its name. Example: 10.0.0.10.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,

    /// Name of the service inside its site, resolved by the site's gateway when ip is not set. Example: nginx.factory.local.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain_name: String,

    /// Port the service listens on, 1 to 65535. Presences of the service listen on the same port. Required, except with
    /// protocol IP. Example: 8080.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(extend("format" = "int32", "minimum" = 1, "maximum" = 65535))]
    pub port: i64,

    /// Protocol of the service: TCP, UDP, HTTP, HTTPS, GRPC, KAFKA or IP. HTTP and GRPC can be limited by method
    /// and path; HTTPS is passed through without decryption. Presences of KAFKA show every endpoint as a
    /// broker, on the ports after the service's own. IP is every protocol, and needs exposures with mode translate.
    /// Default: TCP.
    #[schemars(extend("x-causeway-default" = "TCP"))]
    pub protocol: Protocol,

    /// Name of the ESite the service runs at. Required. Example: TokyoChibaSite1.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub e_site_name: String,

    /// Backends when there are several; they replace ip, at most 1000. Example: [{"ip": "10.0.0.10"}, {"ip": "10.0.0.11", "port": 8081}].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = ENDPOINTS_MAX))]
    pub endpoints: Vec<Endpoint>,

    /// Health check of the backends by the gateway. Default: none, a backend counts as working until a
    /// connection fails.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub health_check: Option<HealthCheck>,

    /// TLS between the gateway and the backend, while clients speak plain HTTP. Default: none.
    #[serde(rename = "backendTLS", skip_serializing_if = "Option::is_none")]
    pub backend_tls: Option<BackendTls>,

    /// True if connections to the backend begin with a PROXY protocol version 2 header that carries the
    /// client's address. For TCP, HTTP, HTTPS and GRPC. Default: false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub proxy_protocol: bool,

    #[serde(skip_serializing_if = "ObjectStatus::is_empty")]
    pub status: ObjectStatus,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
pub enum Protocol {
    #[default]
    Tcp,
    Udp,
    Http,
    Https,
    Grpc,
    Kafka,
    Ip,
}

impl Protocol {
    pub fn as_str(self) -> &'static str {
        match self {
            Protocol::Tcp => "TCP",
            Protocol::Udp => "UDP",
            Protocol::Http => "HTTP",
            Protocol::Https => "HTTPS",
            Protocol::Grpc => "GRPC",
            Protocol::Kafka => "KAFKA",
            Protocol::Ip => "IP",
        }
    }
}

/// One backend of a service.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["ip"]))]
pub struct Endpoint {
    /// Address of the backend inside the site. Required. Example: 10.0.0.11.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,
    /// Port of the backend, 1 to 65535. Default: the service's port. Example: 8081.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(extend("format" = "int32", "minimum" = 1, "maximum" = 65535))]
    pub port: i64,
}

/// Health check of a backend by the gateway.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct HealthCheck {
    /// TCP: a connection opens. HTTP: GET of path answers 200 to 399. Default: TCP.
    #[serde(rename = "type")]
    #[schemars(extend("x-causeway-default" = "TCP"))]
    pub kind: HealthCheckType,
    /// Path of an HTTP check. Default: /. Example: /healthz.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub path: String,
    /// Seconds between two checks of one backend, 1 to 3600. Default: 10.
    #[schemars(extend("format" = "int32", "minimum" = 1, "maximum" = INTERVAL_SECONDS_MAX, "x-causeway-default" = 10))]
    pub interval_seconds: i64,
}

impl Default for HealthCheck {
    fn default() -> HealthCheck {
        HealthCheck { kind: HealthCheckType::Tcp, path: String::new(), interval_seconds: 10 }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
#[schemars(inline)]
pub enum HealthCheckType {
    #[default]
    Tcp,
    Http,
}

/// TLS between the gateway and the backend.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BackendTls {
    /// Verify: TLS, and the backend's certificate is checked. Insecure: TLS, but any certificate is accepted.
    /// Disabled: no TLS. Default: Verify.
    #[schemars(extend("x-causeway-default" = "Verify"))]
    pub mode: BackendTlsMode,
    /// Name the backend's certificate must carry, also sent as SNI. Default: the service's domainName, else its address.
    /// Example: nginx.factory.local.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server_name: String,
    /// Certificates of the authorities that may have signed the backend's, as PEM text, at most 64 KiB.
    /// Default: the authorities the gateway's host trusts.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("maxLength" = PEM_BYTES_MAX))]
    pub ca_bundle: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(inline)]
pub enum BackendTlsMode {
    #[default]
    Verify,
    Insecure,
    Disabled,
}

// More backends than this need a load balancer of their own.
const ENDPOINTS_MAX: usize = 1_000;
const INTERVAL_SECONDS_MAX: i64 = 3_600;
const PORT_MAX: i64 = 65_535;

impl EService {
    /// Returns the address to dial when there is only one.
    pub fn ip_addr(&self) -> Option<IpAddr> {
        self.ip.parse().ok()
    }

    /// Returns the address and port of the server to which packets are translated: the only endpoint, else `ip`. None: the
    /// service has several servers, or only a name.
    pub fn translated_server(&self) -> Option<(IpAddr, u16)> {
        let port = self.port_number();
        match self.endpoints.as_slice() {
            [] => Some((self.ip_addr()?, port)),
            [only] => {
                let own = u16::try_from(only.port).ok().filter(|port| *port != 0);
                Some((only.ip.parse().ok()?, own.unwrap_or(port)))
            }
            _ => None,
        }
    }

    /// Returns the port on which presences listen. 0 for an object that was not validated.
    pub fn port_number(&self) -> u16 {
        u16::try_from(self.port).unwrap_or(0)
    }

    pub(crate) fn default_fields(&mut self) {
        if let Some(check) = &mut self.health_check
            && check.kind == HealthCheckType::Http
            && check.path.is_empty()
        {
            check.path = "/".into();
        }
    }

    pub(crate) fn check_fields(&self, errors: &mut FieldErrors) {
        if self.ip.is_empty() && self.domain_name.is_empty() && self.endpoints.is_empty() {
            errors.push(FieldError::required(
                "ip",
                "say where the service runs: set ip, or domainName, or endpoints",
            ));
        }
        check::optional(errors, "ip", &self.ip, check::host_ip);
        check::optional(errors, "domainName", &self.domain_name, check::host_name);
        match self.port {
            0 if self.protocol == Protocol::Ip => {}
            0 => errors.push(FieldError::required("port", "the port the service listens on, 1 to 65535")),
            port => check::port(errors, "port", port),
        }
        check::reference(errors, "eSiteName", &self.e_site_name, "the name of the ESite the service runs at");
        self.check_endpoints(errors);
        self.check_brokers(errors);
        if let Some(check) = &self.health_check {
            check.check_fields(errors);
        }
        if let Some(tls) = &self.backend_tls {
            tls.check_fields(errors);
        }
        self.check_ip(errors);
        if self.proxy_protocol && matches!(self.protocol, Protocol::Udp | Protocol::Kafka | Protocol::Ip) {
            let why = format!("a {} backend cannot read a PROXY protocol header", self.protocol.as_str());
            errors.push(FieldError::forbidden("proxyProtocol", why));
        }
    }

    /// A translated address stands for one server end to end.
    fn check_ip(&self, errors: &mut FieldErrors) {
        if self.protocol != Protocol::Ip {
            return;
        }
        let rows = [
            ("endpoints", self.endpoints.len() > 1, "packets go to one server: keep one endpoint"),
            ("healthCheck", self.health_check.is_some(), "the gateway opens no connection to check"),
            ("backendTLS", self.backend_tls.is_some(), "the gateway opens no connection to encrypt"),
        ];
        for (path, is_set, why) in rows {
            if is_set {
                errors.push(FieldError::forbidden(path, format!("a service of protocol IP: {why}")));
            }
        }
    }

    /// Every Kafka broker has a port of its own at presences, after the service's.
    fn check_brokers(&self, errors: &mut FieldErrors) {
        let brokers = self.endpoints.len().clamp(1, ENDPOINTS_MAX) as i64;
        if self.protocol == Protocol::Kafka && self.port <= PORT_MAX && self.port + brokers > PORT_MAX {
            let why = format!(
                "presences need a port behind it for each broker, {brokers} here, and the last port is {PORT_MAX}"
            );
            errors.push(FieldError::invalid("port", self.port, why));
        }
    }

    fn check_endpoints(&self, errors: &mut FieldErrors) {
        check::count(errors, "endpoints", self.endpoints.len(), ENDPOINTS_MAX);
        let mut seen = std::collections::HashSet::new();
        for (index, endpoint) in self.endpoints.iter().take(ENDPOINTS_MAX).enumerate() {
            if endpoint.ip.is_empty() {
                errors.push(FieldError::required(
                    format!("endpoints[{index}].ip"),
                    "the address of this backend",
                ));
            } else {
                check::host_ip(errors, &format!("endpoints[{index}].ip"), &endpoint.ip);
            }
            if endpoint.port != 0 {
                check::port(errors, &format!("endpoints[{index}].port"), endpoint.port);
            }
            let port = if endpoint.port == 0 { self.port } else { endpoint.port };
            if !seen.insert((endpoint.ip.as_str(), port)) {
                let shown = format!("{} port {port}", endpoint.ip);
                errors.push(FieldError::duplicate(format!("endpoints[{index}]"), shown));
            }
        }
    }
}

impl HealthCheck {
    fn check_fields(&self, errors: &mut FieldErrors) {
        check::optional(errors, "healthCheck.path", &self.path, check::url_path);
        let (path, seconds) = ("healthCheck.intervalSeconds", self.interval_seconds);
        check::range(errors, path, seconds, 1, INTERVAL_SECONDS_MAX, "an interval in seconds");
    }
}

impl BackendTls {
    fn check_fields(&self, errors: &mut FieldErrors) {
        check::optional(errors, "backendTLS.serverName", &self.server_name, check::host_name);
        check::optional(errors, "backendTLS.caBundle", &self.ca_bundle, check::pem_certificates);
    }
}
