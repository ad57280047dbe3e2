//! Conflicts of an apply, in Kubernetes' wording: clients show them to users and parse them.

use std::collections::BTreeMap;
use std::fmt;

use super::entries::{FieldOwner, ManagedFields, ManagedOperation};
use super::field_set::{FieldPath, FieldSet};
use crate::status::StatusCause;

/// One field that `owner` holds and an apply would change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    pub manager: String,
    pub operation: ManagedOperation,
    /// Of the owner's last write.
    pub api_version: String,
    /// `status`, or empty.
    pub subresource: String,
    pub path: FieldPath,
}

impl Conflict {
    /// As it stands in `Status.details.causes`.
    pub fn cause(&self) -> StatusCause {
        StatusCause {
            reason: "FieldManagerConflict".to_owned(),
            message: format!("conflict with {}", self.owner()),
            field: self.path.to_string(),
        }
    }

    fn owner(&self) -> String {
        let mut text = format!("{:?}", self.manager);
        if !self.subresource.is_empty() {
            text += &format!(" with subresource {:?}", self.subresource);
        }
        if self.operation == ManagedOperation::Update {
            text += &format!(" using {}", self.api_version);
        }
        text
    }
}

/// Returns the fields of `written` that managers other than `owner` hold.
pub(super) fn find(entries: &ManagedFields, owner: &FieldOwner, written: &FieldSet) -> Vec<Conflict> {
    let others = entries.0.iter().filter(|(other, _)| *other != owner);
    let conflicts = others.flat_map(|(other, claim)| {
        claim.fields.intersection(written).paths().into_iter().map(|path| Conflict {
            manager: other.manager.clone(),
            operation: other.operation,
            api_version: claim.api_version.clone(),
            subresource: other.subresource.clone(),
            path,
        })
    });
    conflicts.collect()
}

/// `conflicts` without those at fields of `allowed`.
pub(super) fn except(conflicts: Vec<Conflict>, allowed: &FieldSet) -> Vec<Conflict> {
    conflicts.into_iter().filter(|conflict| !allowed.contains(&conflict.path.0)).collect()
}

/// The message of an apply that met `conflicts`.
pub(super) fn describe(conflicts: &[Conflict], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if let [only] = conflicts {
        return write!(f, "Apply failed with 1 conflict: conflict with {}: {}", only.owner(), only.path);
    }
    let mut by_owner: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for conflict in conflicts {
        by_owner.entry(conflict.owner()).or_default().push(format!("\n- {}", conflict.path));
    }
    let texts: Vec<String> =
        by_owner.iter().map(|(owner, paths)| format!("conflicts with {owner}:{}", paths.concat())).collect();
    write!(f, "Apply failed with {} conflicts: {}", conflicts.len(), texts.join("\n"))
}
