//! EServer: a host at a site.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{self, NAMES_MAX};
use crate::field::{FieldError, FieldErrors};
use crate::meta::{ObjectMeta, ObjectStatus};

/// EServer is a host at a site: the subject that policies allow and, with ports, a host that can be reached by its name.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["eSiteName", "ip"]))]
pub struct EServer {
    pub metadata: ObjectMeta,

    /// Name of the host. It and metadata.name default from each other; policies mean metadata.name. Example: Server1.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub e_server_name: String,

    /// Address of the host inside its site; a client with this source address is this server. Required.
    /// Example: 10.0.0.20.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ip: String,

    /// Name of the ESite of the host. Required. Example: TokyoChibaSite1.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub e_site_name: String,

    /// TCP ports at which the host can be reached by its name, under ePolicys. Default: none, the host is only a subject.
    /// Example: [10250].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "ports_schema", extend("x-kubernetes-list-type" = "atomic", "maxItems" = PORTS_MAX))]
    pub ports: Vec<i64>,

    /// Names of the EPolicys that allow subjects to reach ports. Default: none, and then no subject may.
    /// Example: ["Policy1"].
    #[serde(rename = "ePolicys", skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set", "maxItems" = NAMES_MAX))]
    pub e_policys: Vec<String>,

    #[serde(skip_serializing_if = "ObjectStatus::is_empty")]
    pub status: ObjectStatus,
}

// A host with more open ports than this should be several services.
const PORTS_MAX: usize = 1_000;

impl EServer {
    pub fn ip_addr(&self) -> Option<IpAddr> {
        self.ip.parse().ok()
    }

    pub fn port_numbers(&self) -> impl Iterator<Item = u16> {
        self.ports.iter().filter_map(|port| u16::try_from(*port).ok())
    }

    pub(crate) fn default_fields(&mut self) {
        if self.e_server_name.is_empty() {
            self.e_server_name = self.metadata.name.clone();
        } else if self.metadata.name.is_empty() && self.metadata.generate_name.is_empty() {
            self.metadata.name = self.e_server_name.clone();
        }
    }

    pub(crate) fn check_fields(&self, errors: &mut FieldErrors) {
        check::optional(errors, "eServerName", &self.e_server_name, check::object_name);
        match self.ip.as_str() {
            "" => errors.push(FieldError::required("ip", "the address of the host inside its site")),
            ip => check::host_ip(errors, "ip", ip),
        }
        check::reference(errors, "eSiteName", &self.e_site_name, "the name of the ESite of the host");
        check::set(errors, "ports", &self.ports, PORTS_MAX, |errors, path, port| {
            check::port(errors, path, *port)
        });
        check::names(errors, "ePolicys", &self.e_policys);
    }
}

fn ports_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": { "type": "integer", "format": "int32", "minimum": 1, "maximum": 65535 }
    })
}
