//! ESite: a network domain.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{self, CIDRS_MAX};
use crate::field::FieldErrors;
use crate::meta::{ObjectMeta, ObjectStatus};

/// ESite is a network domain: a factory, a shop, a machine room, or the central cloud, which is the site "cloud".
/// Address plans of different sites may overlap.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ESite {
    pub metadata: ObjectMeta,

    /// Networks inside the site, as CIDRs, IPv4 and IPv6. The site's gateway answers recursive DNS queries of
    /// hosts in these networks, and layer 3 routes them. Default: none. Example: ["10.0.0.0/24",
    /// "fd00:10::/64"].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "atomic", "maxItems" = CIDRS_MAX))]
    pub subnets: Vec<String>,

    #[serde(skip_serializing_if = "ObjectStatus::is_empty")]
    pub status: ObjectStatus,
}

impl ESite {
    pub(crate) fn check_fields(&self, errors: &mut FieldErrors) {
        check::set(errors, "subnets", &self.subnets, CIDRS_MAX, check::cidr);
    }
}
