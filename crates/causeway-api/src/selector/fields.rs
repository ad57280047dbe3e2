//! Field selectors: `field=value`, `field==value`, `field!=value`, joined by commas; `\` escapes `,`, `=` and
//! `\`.
//!
//! On a list such as `ePolicys`, `=` tests whether the list contains the value.

use super::{Selectable, SelectorError};
use crate::Kind;
use crate::api_resource::ApiResource;
use crate::field::show;

/// Requirements that must all hold; none selects everything.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct FieldSelector {
    requirements: Vec<Requirement>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Requirement {
    field: String,
    equal: bool,
    value: String,
}

// See the bound on label requirements.
const REQUIREMENTS_MAX: usize = 100;

/// The fields of a kind that can be selected by: its name and references to other objects.
pub fn selectable_fields(kind: Kind) -> &'static [&'static str] {
    match kind {
        Kind::ESite => &["metadata.name"],
        Kind::EGateway => &["metadata.name", "eSiteName"],
        Kind::EService => &["metadata.name", "eSiteName"],
        Kind::EServer => &["metadata.name", "eSiteName", "ePolicys"],
        Kind::EPolicy => &["metadata.name", "allowedServers", "allowedSites"],
        Kind::ServiceExpose => &["metadata.name", "eServiceName", "eSites", "ePolicys"],
        Kind::VirtualPresence => &["metadata.name", "eServiceName", "eSiteName", "virtualIp"],
        Kind::ECommunity => &["metadata.name", "members", "ePolicys"],
        Kind::Namespace => &["metadata.name"],
        Kind::Event => &EVENT_FIELDS,
        Kind::Service => &["metadata.name", "metadata.namespace"],
    }
}

/// The event fields that Kubernetes can select by, followed by the same fields under the names of
/// events.k8s.io/v1.
const EVENT_FIELDS: [&str; 21] = [
    "metadata.name",
    "metadata.namespace",
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "source",
    "type",
    "regarding.kind",
    "regarding.namespace",
    "regarding.name",
    "regarding.uid",
    "regarding.apiVersion",
    "regarding.resourceVersion",
    "regarding.fieldPath",
    "reportingController",
];

impl FieldSelector {
    pub fn parse(resource: impl ApiResource, text: &str) -> Result<FieldSelector, SelectorError> {
        let mut requirements = Vec::new();
        for term in split_terms(text).filter(|term| !term.is_empty()) {
            if requirements.len() == REQUIREMENTS_MAX {
                return Err(error(text, format!("more than {REQUIREMENTS_MAX} requirements")));
            }
            requirements.push(requirement(&resource, text, term)?);
        }
        Ok(FieldSelector { requirements })
    }

    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    /// Returns the only object name that can match, if the selector requires a name: then a get replaces a
    /// list.
    pub fn exact_name(&self) -> Option<&str> {
        let by_name = |requirement: &&Requirement| requirement.equal && requirement.field == "metadata.name";
        self.requirements.iter().find(by_name).map(|requirement| requirement.value.as_str())
    }

    pub fn matches(&self, object: &impl Selectable) -> bool {
        self.requirements.iter().all(|requirement| {
            object.field_equals(&requirement.field, &requirement.value) == requirement.equal
        })
    }
}

fn requirement(resource: &impl ApiResource, text: &str, term: &str) -> Result<Requirement, SelectorError> {
    let (field, equal, value) = split_operator(term).ok_or_else(|| {
        error(text, format!("{} has no operator; write field=value or field!=value", show(&term.into())))
    })?;
    let supported = resource.selectable_fields();
    let Some(field) = supported.iter().find(|supported| **supported == field) else {
        let kind = resource.kind();
        let list = supported.join(", ");
        return Err(error(
            text,
            format!("the field {} of {kind} cannot be selected by; supported: {list}", show(&field.into())),
        ));
    };
    let value = unescape(value).ok_or_else(|| {
        error(text, "'\\' may stand only before ',', '=' and '\\'; '=' needs one before it".into())
    })?;
    Ok(Requirement { field: (*field).to_owned(), equal, value })
}

/// Splits at commas that no backslash precedes.
fn split_terms(text: &str) -> impl Iterator<Item = &str> {
    let mut escaped = false;
    text.split(move |character| {
        let splits = character == ',' && !escaped;
        escaped = character == '\\' && !escaped;
        splits
    })
}

/// Splits at the first operator that no backslash precedes.
fn split_operator(term: &str) -> Option<(&str, bool, &str)> {
    let mut escaped = false;
    for (start, character) in term.char_indices() {
        if escaped || character == '\\' {
            escaped = !escaped;
            continue;
        }
        for (operator, equal) in [("!=", false), ("==", true), ("=", true)] {
            if let Some(value) = term[start..].strip_prefix(operator) {
                return Some((&term[..start], equal, value));
            }
        }
    }
    None
}

fn unescape(value: &str) -> Option<String> {
    let mut plain = String::with_capacity(value.len());
    let mut characters = value.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => plain.push(characters.next().filter(|next| matches!(next, ',' | '=' | '\\'))?),
            '=' => return None,
            other => plain.push(other),
        }
    }
    Some(plain)
}

fn error(text: &str, message: String) -> SelectorError {
    SelectorError { message: format!("field selector {}: {message}", show(&text.into())) }
}
