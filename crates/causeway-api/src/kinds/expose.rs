//! ServiceExpose: present a service at other sites.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{self, NAMES_MAX};
use crate::field::FieldErrors;
use crate::meta::{ObjectMeta, ObjectStatus};

/// ServiceExpose presents a service at other sites, under policies. Each of those sites gets a local address and a DNS name for it.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["eServiceName"]))]
pub struct ServiceExpose {
    pub metadata: ObjectMeta,

    /// Name of the EService to present; metadata.name defaults to it. Required. Example: TykyoChibaNginx.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub e_service_name: String,

    /// DNS name the sites know the service by, beside SERVICE.SITE.causeway.internal. Default: none. Example: url1.test.com.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dns_name: String,

    /// Names of the ESites to present it at. Default: none, and then it is presented nowhere. Example: ["TokyoChibaSite1"].
    #[serde(rename = "eSites", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set", "maxItems" = NAMES_MAX))]
    pub e_sites: Vec<String>,

    /// Names of the EPolicys that allow subjects to use it. Default: none, and then no subject may. Example:
    /// ["Policy1"].
    #[serde(rename = "ePolicys", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set", "maxItems" = NAMES_MAX))]
    pub e_policys: Vec<String>,

    /// proxy: the gateways terminate connections. translate: packets cross end to end, and both gateways translate addresses.
    /// The service then has one address and neither healthCheck, backendTLS nor proxyProtocol. Default: proxy.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ExposeMode")]
    pub mode: Option<ExposeMode>,

    #[serde(skip_serializing_if = "ObjectStatus::is_empty")]
    pub status: ObjectStatus,
}

/// The way in which a service is carried to the sites of an exposure.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub enum ExposeMode {
    #[default]
    Proxy,
    Translate,
}

impl ServiceExpose {
    pub fn is_translated(&self) -> bool {
        self.mode == Some(ExposeMode::Translate)
    }

    pub(crate) fn default_fields(&mut self) {
        if self.metadata.name.is_empty() && self.metadata.generate_name.is_empty() {
            self.metadata.name = self.e_service_name.clone();
        }
    }

    pub(crate) fn check_fields(&self, errors: &mut FieldErrors) {
        check::reference(errors, "eServiceName", &self.e_service_name, "the name of the EService to present");
        check::optional(errors, "dnsName", &self.dns_name, check::dns_name);
        check::names(errors, "eSites", &self.e_sites);
        check::names(errors, "ePolicys", &self.e_policys);
    }
}
