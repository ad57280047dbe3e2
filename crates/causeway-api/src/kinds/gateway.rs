//! EGateway: connects a site with the other sites.

use std::cmp::Reverse;

use ipnet::IpNet;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{self, CIDRS_MAX};
use crate::field::{FieldError, FieldErrors};
use crate::meta::{ObjectMeta, ObjectStatus, is_zero};

/// The name of the gateway inside the cloud, and of its site.
const CLOUD: &str = "cloud";

/// EGateway is a gateway at a site. It dials the cloud, and presents remote services at addresses of its own range.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["eSiteName"]))]
pub struct EGateway {
    pub metadata: ObjectMeta,

    /// Address of the gateway in its site; DNS listens on its port 53. Default: none, DNS then listens on loopback only.
    /// Example: 10.0.0.1.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,

    /// Range from which remote services get their local addresses at this site, as a CIDR. One IPv4 range, one IPv6 range, or
    /// one of each separated by a comma. Every site may use the same one. Default: 198.18.0.0/16.
    /// Example: 198.18.0.0/16,fd00:198:18::/112.
    #[serde(rename = "virtualPresenceIPcidr", skip_serializing_if = "String::is_empty")]
    #[schemars(extend("x-causeway-default" = PRESENCE_CIDR_DEFAULT))]
    pub virtual_presence_ip_cidr: String,

    /// Name of the ESite of the gateway. Required. Example: TokyoChibaSite1.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub e_site_name: String,

    /// Decides which gateway of a site is active: among those connected, the one with the highest priority,
    /// then the first by name; the remaining ones are standby. From -1000 to 1000. Default: 0.
    #[serde(skip_serializing_if = "is_zero")]
    #[schemars(extend("format" = "int32", "minimum" = PRIORITY_MIN, "maximum" = PRIORITY_MAX))]
    pub priority: i64,

    /// True while the gateway is taken out of service: it gets no new streams, another gateway of the site becomes the
    /// active one, and connections that are open go on until they end. Set by `causeway drain`. Default: false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub drain: bool,

    /// Networks behind this host alone, such as the pods of a node, as CIDRs. Members of the ECommunities of its site reach
    /// them through this gateway, whether it is active or not. Default: none. Example: ["10.244.3.0/24"].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = CIDRS_MAX))]
    pub subnets: Vec<String>,

    /// Public key of a plain WireGuard peer without Causeway, as base64; with endpoint. Default: none, the gateway runs
    /// Causeway and reports its own key. Example: TyRBlnPMmsCb4/xCXkJ1RKVXMYS3Ysap0mWs1eq4FSA=.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub public_key: String,

    /// Address and UDP port of a plain WireGuard peer; with publicKey. Default: none. Example: 203.0.113.7:51820.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub endpoint: String,

    /// True if other sites may reach each other through this gateway. Default: false.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub relay: bool,

    /// Transport of streams. auto: by TCP where the path is clean and stable, else by QUIC. speed: by TCP as soon as there is
    /// traffic. survival: always by QUIC, so that long-lived connections survive a new address of the site. Default: auto.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "GatewayPrefer")]
    pub prefer: Option<GatewayPrefer>,

    #[serde(skip_serializing_if = "ObjectStatus::is_empty")]
    pub status: ObjectStatus,
}

/// The transport that a gateway prefers for the streams of services and nodes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum GatewayPrefer {
    #[default]
    Auto,
    Speed,
    Survival,
}

/// RFC 2544 reserves this range for benchmarks between networks; it is not routed, so every site may reuse
/// it.
pub const PRESENCE_CIDR_DEFAULT: &str = "198.18.0.0/16";

// Leaves space before and after; small enough to read.
const PRIORITY_MIN: i64 = -1000;
const PRIORITY_MAX: i64 = 1000;

impl EGateway {
    /// Returns the ranges of `virtualPresenceIPcidr`, at most one per address family. Unreadable ones are
    /// left out: `validate` has refused them before they were stored.
    pub fn presence_cidrs(&self) -> Vec<IpNet> {
        self.cidr_texts().filter_map(|text| text.parse().ok()).collect()
    }

    /// Returns the networks behind this host alone.
    pub fn networks(&self) -> impl Iterator<Item = IpNet> {
        self.subnets.iter().filter_map(|subnet| subnet.parse().ok())
    }

    /// Returns the order of the gateways of a site: those that drain last, then by the highest priority, then by name. The
    /// first one that is connected is the active one.
    pub fn rank(&self) -> impl Ord {
        (self.drain, Reverse(self.priority), self.metadata.name.as_str())
    }

    /// Tells whether the gateway is a WireGuard peer without Causeway.
    pub fn is_plain_wireguard(&self) -> bool {
        !self.public_key.is_empty()
    }

    pub(crate) fn default_fields(&mut self) {
        if self.virtual_presence_ip_cidr.is_empty() {
            self.virtual_presence_ip_cidr = PRESENCE_CIDR_DEFAULT.into();
        }
    }

    pub(crate) fn check_fields(&self, errors: &mut FieldErrors) {
        check::optional(errors, "ip", &self.ip, check::host_ip);
        check::reference(errors, "eSiteName", &self.e_site_name, "the name of the ESite of the gateway");
        // The gateway inside the cloud is not enrolled, so it could not be moved either.
        if self.metadata.name == CLOUD && !self.e_site_name.is_empty() && self.e_site_name != CLOUD {
            let site = self.e_site_name.as_str();
            let allowed = "EGateway cloud is the gateway inside the cloud, so its site is cloud: set eSiteName to cloud";
            errors.push(FieldError::invalid("eSiteName", site, allowed));
        }
        // No other gateway could take the place of the one inside the cloud.
        if self.metadata.name == CLOUD && self.drain {
            errors.push(FieldError::forbidden("drain", "EGateway cloud is the gateway inside the cloud"));
        }
        check::range(errors, "priority", self.priority, PRIORITY_MIN, PRIORITY_MAX, "a priority");
        self.check_cidrs(errors);
        check::set(errors, "subnets", &self.subnets, CIDRS_MAX, check::cidr);
        self.check_plain_peer(errors);
    }

    fn check_plain_peer(&self, errors: &mut FieldErrors) {
        check::optional(errors, "publicKey", &self.public_key, check::tunnel_key);
        check::optional(errors, "endpoint", &self.endpoint, check::udp_endpoint);
        match (self.public_key.is_empty(), self.endpoint.is_empty()) {
            (true, false) => errors.push(FieldError::required(
                "publicKey",
                "a plain WireGuard peer has an endpoint and a public key; a Causeway gateway has neither",
            )),
            (false, true) => errors.push(FieldError::required(
                "endpoint",
                "a plain WireGuard peer has a public key and an endpoint, for example 203.0.113.7:51820",
            )),
            _ => {}
        }
        if self.metadata.name == CLOUD && !self.public_key.is_empty() {
            errors.push(FieldError::forbidden("publicKey", "EGateway cloud is the gateway inside the cloud"));
        }
    }

    fn check_cidrs(&self, errors: &mut FieldErrors) {
        const PATH: &str = "virtualPresenceIPcidr";
        let before = errors.len();
        self.cidr_texts().for_each(|text| check::presence_cidr(errors, PATH, text));
        if errors.len() > before {
            return;
        }
        let cidrs = self.presence_cidrs();
        let count = |v4: bool| cidrs.iter().filter(|cidr| cidr.addr().is_ipv4() == v4).count();
        if count(true) > 1 || count(false) > 1 {
            errors.push(FieldError::invalid(
                PATH,
                self.virtual_presence_ip_cidr.as_str(),
                "write one IPv4 range, one IPv6 range, or one of each separated by a comma",
            ));
        }
    }

    fn cidr_texts(&self) -> impl Iterator<Item = &str> {
        let text = self.virtual_presence_ip_cidr.as_str();
        text.split(',').map(str::trim).filter(move |_| !text.is_empty())
    }
}
