//! Names of resources, the part of a resource that a site subscribes to, and its description for clients.
//!
//! Values only. Paths are those of the Kubernetes API; nothing is guessed from plurals: kind, list kind and scope come
//! from the API server.

use std::fmt;

use causeway_api::ResourceDefinition;
use serde::{Deserialize, Serialize};

/// A resource under one version, as in `/apis/GROUP/VERSION/PLURAL`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct ResourceName {
    /// Empty for the core group.
    pub group: String,
    pub version: String,
    pub plural: String,
}

impl ResourceName {
    pub fn new(group: &str, version: &str, plural: &str) -> ResourceName {
        ResourceName { group: group.into(), version: version.into(), plural: plural.into() }
    }

    /// Parses `VERSION/PLURAL` or `GROUP/VERSION/PLURAL`.
    pub fn parse(text: &str) -> Option<ResourceName> {
        let parts: Vec<&str> = text.split('/').collect();
        let name = match parts[..] {
            [version, plural] => ResourceName::new("", version, plural),
            [group, version, plural] => ResourceName::new(group, version, plural),
            _ => return None,
        };
        name.is_valid().then_some(name)
    }

    /// Returns true if the name fits into a path: letters, digits, `-` and `.` only.
    pub fn is_valid(&self) -> bool {
        is_segment(&self.version)
            && is_segment(&self.plural)
            && (self.group.is_empty() || is_segment(&self.group))
    }

    pub fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }

    /// The path of the version, under which discovery lists its resources.
    pub fn version_path(&self) -> String {
        match self.group.as_str() {
            "" => format!("/api/{}", self.version),
            group => format!("/apis/{group}/{}", self.version),
        }
    }

    /// The path of the collection over all namespaces.
    pub fn path(&self) -> String {
        format!("{}/{}", self.version_path(), self.plural)
    }
}

impl fmt::Display for ResourceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.api_version(), self.plural)
    }
}

// The longest DNS name; selectors are bounded by the request line.
const SEGMENT_BYTES_MAX: usize = 253;
const SELECTOR_BYTES_MAX: usize = 8 << 10;

fn is_segment(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
    !text.is_empty()
        && text.len() <= SEGMENT_BYTES_MAX
        && text.bytes().all(is_allowed)
        && !text.starts_with('.')
}

/// The part of a resource that a site holds.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubscriptionScope {
    pub resource: ResourceName,
    /// Empty: all namespaces, or a resource without namespaces.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Empty: all objects.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label_selector: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub field_selector: String,
}

impl SubscriptionScope {
    pub fn all(resource: ResourceName) -> SubscriptionScope {
        SubscriptionScope {
            resource,
            namespace: String::new(),
            label_selector: String::new(),
            field_selector: String::new(),
        }
    }

    /// One object; `namespace` is empty for a resource without namespaces.
    pub fn one(resource: ResourceName, namespace: &str, name: &str) -> SubscriptionScope {
        SubscriptionScope {
            namespace: namespace.to_owned(),
            field_selector: format!("metadata.name={name}"),
            ..SubscriptionScope::all(resource)
        }
    }

    /// Returns true if the scope names a resource and a namespace that can exist, and its selectors are bounded.
    pub fn is_valid(&self) -> bool {
        self.resource.is_valid()
            && (self.namespace.is_empty() || is_segment(&self.namespace))
            && self.label_selector.len() <= SELECTOR_BYTES_MAX
            && self.field_selector.len() <= SELECTOR_BYTES_MAX
    }

    /// Returns true if every object of `wanted` is in this scope. Selectors are compared as text: a selector covers
    /// itself, and no selector covers every selector.
    pub fn covers(&self, wanted: &SubscriptionScope) -> bool {
        let covers_text = |own: &str, other: &str| own.is_empty() || own == other;
        self.resource == wanted.resource
            && covers_text(&self.namespace, &wanted.namespace)
            && covers_text(&self.label_selector, &wanted.label_selector)
            && covers_text(&self.field_selector, &wanted.field_selector)
    }

    /// Returns true if a site may hold the scope only when the operator names it in `ESite.cache`: Secrets and ConfigMaps of more than one
    /// name. Labels and other fields do not bound such a scope, because a selector can match every object.
    pub fn requires_pin(&self) -> bool {
        let is_bounded = self.only_name().is_some() && !self.namespace.is_empty();
        self.resource.group.is_empty()
            && matches!(self.resource.plural.as_str(), "secrets" | "configmaps")
            && !is_bounded
    }

    /// Returns true if a site may hold the scope, with the scopes that the operator named for it.
    pub fn is_allowed(&self, pins: &[SubscriptionScope]) -> bool {
        !self.requires_pin() || pins.iter().any(|pin| pin.covers(self))
    }

    /// The name that the field selector requires, when it requires nothing else.
    pub fn only_name(&self) -> Option<&str> {
        self.field_selector.strip_prefix("metadata.name=").filter(|name| !name.contains(['=', ',', '\\']))
    }
}

impl fmt::Display for SubscriptionScope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}", self.resource)?;
        for (name, value) in [
            ("namespace", &self.namespace),
            ("labels", &self.label_selector),
            ("fields", &self.field_selector),
        ] {
            if !value.is_empty() {
                write!(formatter, " {name} {value}")?;
            }
        }
        Ok(())
    }
}

/// A resource as the API server describes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResourceDescription {
    pub name: ResourceName,
    pub kind: String,
    pub list_kind: String,
    pub is_namespaced: bool,
    /// The `columnDefinitions` of its tables, as JSON text; `[]` when the server has no tables for it.
    pub columns: String,
}

impl ResourceDescription {
    /// The description that request parsing and selectors use.
    pub fn definition(&self) -> ResourceDefinition {
        ResourceDefinition {
            group: self.name.group.clone(),
            version: self.name.version.clone(),
            plural: self.name.plural.clone(),
            kind: self.kind.clone(),
            is_namespaced: self.is_namespaced,
            has_status: true,
            fields: crate::facets::selectable_fields(&self.name)
                .iter()
                .map(|field| (*field).to_owned())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(namespace: &str, labels: &str, fields: &str) -> SubscriptionScope {
        SubscriptionScope {
            resource: ResourceName::new("", "v1", "pods"),
            namespace: namespace.into(),
            label_selector: labels.into(),
            field_selector: fields.into(),
        }
    }

    #[test]
    fn a_scope_covers_itself_and_every_narrower_one() {
        let check = |held: &SubscriptionScope, wanted: &SubscriptionScope, expected: bool| {
            assert_eq!(held.covers(wanted), expected, "{held} covers {wanted}");
        };
        let all = scope("", "", "");
        check(&all, &scope("shop", "a=b", "spec.nodeName=n1"), true);
        check(&scope("shop", "", ""), &scope("shop", "a=b", ""), true);
        check(&scope("shop", "", ""), &all, false);
        check(&scope("", "a=b", ""), &scope("", "a=c", ""), false);
        check(&all, &SubscriptionScope::all(ResourceName::new("apps", "v1", "pods")), false);
    }

    #[test]
    fn names_that_would_change_the_path_are_invalid() {
        for text in ["v1/pods", "apps/v1/deployments", "example.org/v1/widgets"] {
            assert_eq!(ResourceName::parse(text).unwrap().to_string(), text);
        }
        for text in ["pods", "v1/", "a/b/c/d", "v1/po%2fds", "../v1/pods", "v1/.."] {
            assert_eq!(ResourceName::parse(text), None, "{text}");
        }
        assert!(!scope("a/b", "", "").is_valid());
    }

    #[test]
    fn secrets_and_config_maps_are_held_by_name_unless_a_pin_covers_them() {
        let of = |plural: &str, namespace: &str, labels: &str, fields: &str| SubscriptionScope {
            resource: ResourceName::new("", "v1", plural),
            ..scope(namespace, labels, fields)
        };
        let check = |scope: SubscriptionScope, pins: &[SubscriptionScope], expected: bool| {
            assert_eq!(scope.is_allowed(pins), expected, "{scope}");
        };
        for plural in ["secrets", "configmaps"] {
            check(of(plural, "shop", "", "metadata.name=a"), &[], true);
            check(of(plural, "shop", "a=b", "metadata.name=a"), &[], true);
            check(of(plural, "", "", ""), &[], false);
            check(of(plural, "shop", "", ""), &[], false);
            check(of(plural, "shop", "!none", ""), &[], false);
            check(of(plural, "shop", "", "type=Opaque"), &[], false);
            check(of(plural, "shop", "", "metadata.name!=a"), &[], false);
            check(of(plural, "", "", "metadata.name=a"), &[], false);
            let pins = [of(plural, "shop", "", "")];
            check(of(plural, "shop", "", ""), &pins, true);
            check(of(plural, "shop", "a=b", ""), &pins, true);
            check(of(plural, "", "", ""), &pins, false);
            check(of(plural, "other", "", ""), &pins, false);
        }
        check(of("secrets", "shop", "", ""), &[of("configmaps", "shop", "", "")], false);
        check(scope("", "", ""), &[], true);
        // A custom resource of the same name.
        check(SubscriptionScope::all(ResourceName::new("example.org", "v1", "secrets")), &[], true);
    }

    #[test]
    fn a_scope_of_one_name_is_recognised() {
        assert_eq!(scope("", "", "metadata.name=a").only_name(), Some("a"));
        assert_eq!(scope("", "", "metadata.name=a,type=b").only_name(), None);
        assert_eq!(scope("", "", "metadata.name!=a").only_name(), None);
    }
}
