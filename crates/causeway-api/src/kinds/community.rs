//! ECommunity: sites that talk directly.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::check::{self, NAMES_MAX};
use crate::field::FieldErrors;
use crate::meta::{ObjectMeta, ObjectStatus};

/// ECommunity is a set of sites that may talk directly to each other at layer 3.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ECommunity {
    pub metadata: ObjectMeta,

    /// Names of the ESites that belong to it. Default: none. Example: ["TokyoChibaSite1", "OsakaSite1"].
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "set", "maxItems" = NAMES_MAX))]
    pub members: Vec<String>,

    #[serde(skip_serializing_if = "ObjectStatus::is_empty")]
    pub status: ObjectStatus,
}

impl ECommunity {
    pub(crate) fn check_fields(&self, errors: &mut FieldErrors) {
        check::names(errors, "members", &self.members);
    }
}
