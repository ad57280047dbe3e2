//! Service: a kind of Kubernetes without objects here.
//!
//! `kubectl cluster-info` lists the services of the cluster and fails where the kind does not exist. The list
//! is empty and read-only; Causeway presents EServices.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field::FieldErrors;
use crate::meta::{ObjectMeta, ObjectStatus};

/// Service is served for Kubernetes tools; the list is always empty. See EService.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Service {
    pub metadata: ObjectMeta,

    #[serde(skip)]
    pub status: ObjectStatus,
}

impl Service {
    pub(crate) fn check_fields(&self, _: &mut FieldErrors) {}
}
