//! Field ownership: Kubernetes' field management and server-side apply, as functions of values.
//!
//! Input: the stored object and the request's object. Output: the object to store with its
//! `metadata.managedFields`, or the conflicts. The registry decodes and defaults the result, then calls
//! `keep_old_if_same` so that a write without changes makes no revision. The registry checks preconditions (`uid`,
//! `resourceVersion`): ownership takes neither from the client.

mod apply;
mod conflict;
mod element;
mod entries;
mod field_set;
mod last_applied;
mod scope;
mod shape;
mod update;
mod walk;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

pub use apply::{ServerSideApplyError, apply};
pub use conflict::Conflict;
pub use element::Element;
pub use entries::ManagedOperation;
pub use field_set::{DEPTH_MAX, ELEMENTS_MAX, FieldPath, FieldSet, FieldSetError};
pub use scope::{Subresource, confine};
pub use shape::{LISTS, ListType, list_type};
pub use update::{keep_old_if_same, update};
pub use walk::{FieldChange, compare, fields_of};

use crate::{ApiVersion, Time};

/// The writer of fields, its API version and subresource, and the time.
#[derive(Clone, Copy, Debug)]
pub struct FieldWriter<'a> {
    /// The field manager: `fieldManager` of the request, see `manager_name`.
    pub manager: &'a str,
    /// The version in the request's path. Both name the same fields.
    pub api_version: ApiVersion,
    pub subresource: Subresource,
    pub now: Time,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OwnershipError {
    #[error("metadata.managedFields: more than {ELEMENTS_MAX} fields to keep track of")]
    TooManyFields,
}

/// Longest name of a field manager, as in Kubernetes.
pub const MANAGER_BYTES_MAX: usize = 128;

/// Returns the manager of a request: its `fieldManager`, else the part of its user agent before the first
/// slash.
pub fn manager_name(field_manager: Option<&str>, user_agent: Option<&str>) -> String {
    if let Some(manager) = field_manager.filter(|manager| !manager.is_empty()) {
        return manager.to_owned();
    }
    let agent = user_agent.unwrap_or_default().split('/').next().unwrap_or_default();
    let mut name = String::new();
    for character in agent.chars().filter(|character| !character.is_control()) {
        if name.len() + character.len_utf8() > MANAGER_BYTES_MAX {
            break;
        }
        name.push(character);
    }
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// Returns the reason if `manager` cannot be a `fieldManager`.
pub fn check_manager(manager: &str) -> Result<(), &'static str> {
    if manager.len() > MANAGER_BYTES_MAX {
        return Err("may not be more than 128 bytes");
    }
    if manager.chars().any(char::is_control) {
        return Err("should only contain printable characters");
    }
    Ok(())
}
