//! Describes the resources of an API: names, scope, verbs and the fields that selectors may use.
//!
//! Request parsing, selectors and views are generic over `ApiResource`. The kinds of Causeway are one implementation
//! (`ServedKind`, and `Kind` under its preferred version). `ResourceDefinition` describes any other resource by values
//! that are known at run time only, for example from discovery.

use crate::kinds::{Kind, NAMESPACE};
use crate::selector::selectable_fields;
use crate::wire::ApiVersion;

/// One resource under one API version.
pub trait ApiResource {
    /// The API group; empty for the core group.
    fn group(&self) -> &str;
    /// The version without the group, for example `v1`.
    fn version(&self) -> &str;
    /// The name in paths, for example `pods`.
    fn plural(&self) -> &str;
    /// The name in `kind:`, for example `Pod`.
    fn kind(&self) -> &str;
    fn is_namespaced(&self) -> bool;
    /// Returns true if the resource has the subresource `status`.
    fn has_status(&self) -> bool;
    /// Returns true if clients can only get, list and watch.
    fn is_read_only(&self) -> bool {
        false
    }
    /// The namespace that holds every object of the resource, when the server has only one.
    fn only_namespace(&self) -> Option<&str> {
        None
    }
    /// The fields that field selectors may name.
    fn selectable_fields(&self) -> Vec<&str>;

    /// The value of `apiVersion:`.
    fn api_version(&self) -> String {
        match self.group() {
            "" => self.version().to_owned(),
            group => format!("{group}/{}", self.version()),
        }
    }
}

impl<R: ApiResource + ?Sized> ApiResource for &R {
    fn group(&self) -> &str {
        (**self).group()
    }

    fn version(&self) -> &str {
        (**self).version()
    }

    fn plural(&self) -> &str {
        (**self).plural()
    }

    fn kind(&self) -> &str {
        (**self).kind()
    }

    fn is_namespaced(&self) -> bool {
        (**self).is_namespaced()
    }

    fn has_status(&self) -> bool {
        (**self).has_status()
    }

    fn is_read_only(&self) -> bool {
        (**self).is_read_only()
    }

    fn only_namespace(&self) -> Option<&str> {
        (**self).only_namespace()
    }

    fn selectable_fields(&self) -> Vec<&str> {
        (**self).selectable_fields()
    }
}

/// A kind that Causeway serves, under the API version that the client named.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ServedKind {
    pub version: ApiVersion,
    pub kind: Kind,
}

impl ServedKind {
    /// Returns the kind of a path under an API version; `None` when the version does not serve it.
    pub fn find(version: ApiVersion, plural: &str) -> Option<ServedKind> {
        Kind::served(version, plural).map(|kind| ServedKind { version, kind })
    }
}

impl ApiResource for ServedKind {
    fn group(&self) -> &str {
        self.version.group()
    }

    fn version(&self) -> &str {
        self.version.version()
    }

    fn plural(&self) -> &str {
        self.kind.plural()
    }

    fn kind(&self) -> &str {
        self.kind.name()
    }

    fn is_namespaced(&self) -> bool {
        self.kind.is_namespaced()
    }

    fn has_status(&self) -> bool {
        self.kind.has_status()
    }

    fn is_read_only(&self) -> bool {
        self.kind.is_read_only()
    }

    fn only_namespace(&self) -> Option<&str> {
        Some(NAMESPACE)
    }

    fn selectable_fields(&self) -> Vec<&str> {
        selectable_fields(self.kind).to_vec()
    }
}

/// A kind under its preferred version.
impl ApiResource for Kind {
    fn group(&self) -> &str {
        self.versions().last().map_or("", |version| version.group())
    }

    fn version(&self) -> &str {
        self.versions().last().map_or(crate::VERSION, |version| version.version())
    }

    fn plural(&self) -> &str {
        (*self).plural()
    }

    fn kind(&self) -> &str {
        (*self).name()
    }

    fn is_namespaced(&self) -> bool {
        (*self).is_namespaced()
    }

    fn has_status(&self) -> bool {
        (*self).has_status()
    }

    fn is_read_only(&self) -> bool {
        (*self).is_read_only()
    }

    fn only_namespace(&self) -> Option<&str> {
        Some(NAMESPACE)
    }

    fn selectable_fields(&self) -> Vec<&str> {
        selectable_fields(*self).to_vec()
    }
}

/// A resource that is known at run time only.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ResourceDefinition {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub kind: String,
    pub is_namespaced: bool,
    pub has_status: bool,
    /// The fields that field selectors may name beside `metadata.name` and `metadata.namespace`.
    pub fields: Vec<String>,
}

impl ApiResource for ResourceDefinition {
    fn group(&self) -> &str {
        &self.group
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn plural(&self) -> &str {
        &self.plural
    }

    fn kind(&self) -> &str {
        &self.kind
    }

    fn is_namespaced(&self) -> bool {
        self.is_namespaced
    }

    fn has_status(&self) -> bool {
        self.has_status
    }

    fn selectable_fields(&self) -> Vec<&str> {
        let namespace = self.is_namespaced.then_some("metadata.namespace");
        let own = self.fields.iter().map(String::as_str);
        ["metadata.name"].into_iter().chain(namespace).chain(own).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_and_a_definition_describe_themselves_the_same_way() {
        let site = ServedKind::find(ApiVersion::Group, "esites").unwrap();
        assert_eq!((site.api_version().as_str(), site.kind()), ("causeway.io/v1", "ESite"));
        assert_eq!(ServedKind { version: ApiVersion::Core, ..site }.api_version(), "v1");
        assert_eq!(ApiResource::group(&Kind::Event), "events.k8s.io");
        assert_eq!(ServedKind::find(ApiVersion::Group, "pods"), None);
        let pods = ResourceDefinition {
            group: String::new(),
            version: "v1".into(),
            plural: "pods".into(),
            kind: "Pod".into(),
            is_namespaced: true,
            has_status: true,
            fields: vec!["spec.nodeName".into()],
        };
        assert_eq!(pods.selectable_fields(), ["metadata.name", "metadata.namespace", "spec.nodeName"]);
        assert_eq!(pods.api_version(), "v1");
        assert_eq!(pods.only_namespace(), None);
    }
}
