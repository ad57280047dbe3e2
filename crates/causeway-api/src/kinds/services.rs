//! Service: a kind of Kubernetes of which there are no objects here.
//!
//! `kubectl cluster-info` asks for the services of the cluster and fails where the kind does not exist. The list is empty and
//! read-only; what Causeway presents are EServices.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::field::FieldErrors;
use crate::meta::{ObjectMeta, ObjectStatus};

/// Service is served for the tools of Kubernetes; the list is always empty. See EService.
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
