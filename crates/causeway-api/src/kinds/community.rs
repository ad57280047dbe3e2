//! ECommunity: sites whose networks reach each other at layer 3.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{self, NAMES_MAX};
use crate::field::FieldErrors;
use crate::meta::{ObjectMeta, ObjectStatus};

/// ECommunity is a set of sites whose networks reach each other at layer 3: packets are routed between their gateways.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ECommunity {
    pub metadata: ObjectMeta,

    /// Names of the ESites that belong to it. Default: none. Example: ["TokyoChibaSite1", "OsakaSite1"].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set", "maxItems" = NAMES_MAX))]
    pub members: Vec<String>,

    /// Names of the EPolicys that allow hosts of members to begin a flow to other members. Default: none, and then everything
    /// between members is allowed. With a list, only what an existing policy of it allows. Example: ["Policy1"].
    #[serde(rename = "ePolicys", skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "names_schema", extend("x-kubernetes-list-type" = "set", "maxItems" = NAMES_MAX))]
    pub e_policys: Option<Vec<String>>,

    /// Range from which subnets of members that overlap get a mapped one, as a CIDR. The allocation is in the status of the
    /// ESite. Default: none, and then the older site of two that overlap keeps its route. Example: 100.64.0.0/10.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub map_from: String,

    #[serde(skip_serializing_if = "ObjectStatus::is_empty")]
    pub status: ObjectStatus,
}

impl ECommunity {
    pub(crate) fn check_fields(&self, errors: &mut FieldErrors) {
        check::names(errors, "members", &self.members);
        check::names(errors, "ePolicys", self.e_policys.as_deref().unwrap_or_default());
        check::optional(errors, "mapFrom", &self.map_from, check::mapped_range);
    }
}

fn names_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({ "type": "array", "items": { "type": "string" } })
}
