//! VirtualPresence: the local address of a remote service.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check;
use crate::field::{FieldError, FieldErrors};
use crate::meta::{ObjectMeta, ObjectStatus};

/// VirtualPresence is the local address of a remote service at one site. Causeway creates one for every site
/// of a ServiceExpose; create one yourself to choose the address.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("required" = ["eServiceName", "virtualIp"]))]
pub struct VirtualPresence {
    pub metadata: ObjectMeta,

    /// Address inside virtualPresenceIPcidr of the site's gateway, used by no other presence there. Required.
    /// Example: 192.168.0.10.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub virtual_ip: String,

    /// Name of the EService that is reached through the address. Required. Example: TykyoChibaNginx.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub e_service_name: String,

    /// Name of the ESite where the address is used. Default: the site whose gateway's range holds virtualIp.
    /// Example: TokyoChibaSite1.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub e_site_name: String,

    #[serde(skip_serializing_if = "ObjectStatus::is_empty")]
    pub status: ObjectStatus,
}

impl VirtualPresence {
    pub fn ip_addr(&self) -> Option<IpAddr> {
        self.virtual_ip.parse().ok()
    }

    pub(crate) fn check_fields(&self, errors: &mut FieldErrors) {
        match self.virtual_ip.as_str() {
            "" => {
                let fix = "an address inside virtualPresenceIPcidr of the site's gateway";
                errors.push(FieldError::required("virtualIp", fix));
            }
            ip => check::host_ip(errors, "virtualIp", ip),
        }
        let fix = "the name of the EService that is reached through the address";
        check::reference(errors, "eServiceName", &self.e_service_name, fix);
        check::optional(errors, "eSiteName", &self.e_site_name, check::object_name);
    }
}
