//! Selectors: choose objects by labels and by fields.
//!
//! A selector is parsed once per request. `SelectableFields` is the part of an object that selectors read, so
//! the dispatcher of a watch evaluates a thousand selectors on an event without decoding it again.

mod fields;
mod json;
mod labels;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;

use serde::Deserialize;

pub use fields::{FieldSelector, selectable_fields};
pub use json::JsonObject;
pub use labels::{LabelSelector, Requirement};

use crate::ApiVersion;
use crate::api_resource::ApiResource;
use crate::kinds::{Event, Kind};
use crate::object::Object;

/// Both selectors of a request.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Selector {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
}

impl Selector {
    pub fn parse(resource: impl ApiResource, labels: &str, fields: &str) -> Result<Selector, SelectorError> {
        Ok(Selector {
            labels: LabelSelector::parse(labels)?,
            fields: FieldSelector::parse(resource, fields)?,
        })
    }

    /// Tells whether it selects everything.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty() && self.fields.is_empty()
    }

    pub fn matches(&self, object: &impl Selectable) -> bool {
        self.labels.matches(object) && self.fields.matches(object)
    }

    pub fn matches_object(&self, object: &Object) -> bool {
        self.is_empty() || self.matches(&SelectableFields::of(object))
    }
}

/// An object, or the part of it that selectors look at.
pub trait Selectable {
    /// Returns the value of a label.
    fn label(&self, key: &str) -> Option<&str>;
    /// Returns true if the field, or one of its entries when it is a list, equals `value`. A missing field
    /// equals the empty text.
    fn field_equals(&self, field: &str, value: &str) -> bool;
}

/// A selector that cannot be read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SelectorError {
    /// The error, the allowed form, and the position.
    pub message: String,
}

impl fmt::Display for SelectorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for SelectorError {}

/// The part of an object that selectors read: labels, name, and the fields that refer to other objects.
#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SelectableFields<'a> {
    #[serde(borrow)]
    metadata: SelectableMetadata<'a>,
    #[serde(borrow)]
    e_site_name: Text<'a>,
    e_service_name: Text<'a>,
    virtual_ip: Text<'a>,
    e_sites: Vec<Text<'a>>,
    e_policys: Vec<Text<'a>>,
    allowed_servers: Vec<Text<'a>>,
    allowed_sites: Vec<Text<'a>>,
    members: Vec<Text<'a>>,
    involved_object: SelectableReference<'a>,
    reason: Text<'a>,
    #[serde(rename = "type")]
    event_type: Text<'a>,
    reporting_component: Text<'a>,
    source: SelectableSource<'a>,
}

/// The object that an event is about.
#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SelectableReference<'a> {
    #[serde(borrow)]
    kind: Text<'a>,
    namespace: Text<'a>,
    name: Text<'a>,
    uid: Text<'a>,
    api_version: Text<'a>,
    resource_version: Text<'a>,
    field_path: Text<'a>,
}

/// Our kinds have the same objects under both versions.
static OUR_VERSIONS: [Text<'static>; 2] =
    [Text(Cow::Borrowed(ApiVersion::Core.as_str())), Text(Cow::Borrowed(ApiVersion::Group.as_str()))];

impl SelectableReference<'_> {
    fn is_ours(&self) -> bool {
        Kind::from_name(&self.kind.0).is_some() && OUR_VERSIONS.contains(&self.api_version)
    }
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(default)]
struct SelectableSource<'a> {
    #[serde(borrow)]
    component: Text<'a>,
}

#[derive(Clone, PartialEq, Eq, Default, Debug, Deserialize)]
#[serde(default)]
struct SelectableMetadata<'a> {
    #[serde(borrow)]
    name: Text<'a>,
    namespace: Text<'a>,
    labels: BTreeMap<Text<'a>, Text<'a>>,
}

/// Text that stays in the stored bytes unless it had to be unescaped.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Default, Debug, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

impl std::borrow::Borrow<str> for Text<'_> {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<'a> SelectableFields<'a> {
    /// Reads them from the stored form; parses once, copies only escaped text.
    pub fn from_stored(stored: &'a [u8]) -> Result<SelectableFields<'a>, serde_json::Error> {
        serde_json::from_slice(stored)
    }

    pub fn of(object: &'a Object) -> SelectableFields<'a> {
        let mut fields = match object {
            Object::ESite(_) => SelectableFields::default(),
            Object::EGateway(gateway) => {
                SelectableFields { e_site_name: text(&gateway.e_site_name), ..SelectableFields::default() }
            }
            Object::EService(service) => {
                SelectableFields { e_site_name: text(&service.e_site_name), ..SelectableFields::default() }
            }
            Object::EServer(server) => SelectableFields {
                e_site_name: text(&server.e_site_name),
                e_policys: texts(&server.e_policys),
                ..SelectableFields::default()
            },
            Object::EPolicy(policy) => SelectableFields {
                allowed_servers: texts(&policy.allowed_servers),
                allowed_sites: texts(&policy.allowed_sites),
                ..SelectableFields::default()
            },
            Object::ServiceExpose(expose) => SelectableFields {
                e_service_name: text(&expose.e_service_name),
                e_sites: texts(&expose.e_sites),
                e_policys: texts(&expose.e_policys),
                ..SelectableFields::default()
            },
            Object::VirtualPresence(presence) => SelectableFields {
                e_service_name: text(&presence.e_service_name),
                e_site_name: text(&presence.e_site_name),
                virtual_ip: text(&presence.virtual_ip),
                ..SelectableFields::default()
            },
            Object::ECommunity(community) => SelectableFields {
                members: texts(&community.members),
                e_policys: texts(community.e_policys.as_deref().unwrap_or_default()),
                ..SelectableFields::default()
            },
            Object::Namespace(_) | Object::Service(_) => SelectableFields::default(),
            Object::Event(event) => event_fields(event),
        };
        let metadata = object.metadata();
        fields.metadata.name = text(&metadata.name);
        fields.metadata.namespace = text(&metadata.namespace);
        fields.metadata.labels =
            metadata.labels.iter().map(|(key, value)| (text(key), text(value))).collect();
        fields
    }

    pub fn name(&self) -> &str {
        &self.metadata.name.0
    }

    /// The values of a field: one for a plain field, all entries for a list.
    fn field(&self, field: &str) -> &[Text<'a>] {
        use std::slice::from_ref;
        let involved = &self.involved_object;
        match field {
            "metadata.name" => from_ref(&self.metadata.name),
            "metadata.namespace" => from_ref(&self.metadata.namespace),
            "involvedObject.kind" | "regarding.kind" => from_ref(&involved.kind),
            "involvedObject.namespace" | "regarding.namespace" => from_ref(&involved.namespace),
            "involvedObject.name" | "regarding.name" => from_ref(&involved.name),
            "involvedObject.uid" | "regarding.uid" => from_ref(&involved.uid),
            // kubectl may send one of the two API versions while the event holds the other: both match.
            "involvedObject.apiVersion" | "regarding.apiVersion" if involved.is_ours() => &OUR_VERSIONS,
            "involvedObject.apiVersion" | "regarding.apiVersion" => from_ref(&involved.api_version),
            "involvedObject.resourceVersion" | "regarding.resourceVersion" => {
                from_ref(&involved.resource_version)
            }
            "involvedObject.fieldPath" | "regarding.fieldPath" => from_ref(&involved.field_path),
            "reason" => from_ref(&self.reason),
            "type" => from_ref(&self.event_type),
            "reportingComponent" | "reportingController" => from_ref(&self.reporting_component),
            // As in Kubernetes: the reporting component replaces a missing source.
            "source" if self.source.component.0.is_empty() => from_ref(&self.reporting_component),
            "source" => from_ref(&self.source.component),
            "eSiteName" => from_ref(&self.e_site_name),
            "eServiceName" => from_ref(&self.e_service_name),
            "virtualIp" => from_ref(&self.virtual_ip),
            "eSites" => &self.e_sites,
            "ePolicys" => &self.e_policys,
            "allowedServers" => &self.allowed_servers,
            "allowedSites" => &self.allowed_sites,
            "members" => &self.members,
            _ => &[],
        }
    }
}

impl Selectable for SelectableFields<'_> {
    fn label(&self, key: &str) -> Option<&str> {
        self.metadata.labels.get(key).map(|value| value.0.as_ref())
    }

    fn field_equals(&self, field: &str, value: &str) -> bool {
        self.field(field).iter().any(|found| found.0 == value)
    }
}

fn event_fields(event: &Event) -> SelectableFields<'_> {
    let involved = &event.involved_object;
    SelectableFields {
        involved_object: SelectableReference {
            kind: text(&involved.kind),
            namespace: text(&involved.namespace),
            name: text(&involved.name),
            uid: text(&involved.uid),
            api_version: text(&involved.api_version),
            resource_version: text(&involved.resource_version),
            field_path: text(&involved.field_path),
        },
        reason: text(&event.reason),
        event_type: text(&event.kind),
        reporting_component: text(&event.reporting_component),
        source: SelectableSource { component: text(&event.source.component) },
        ..SelectableFields::default()
    }
}

fn text(text: &str) -> Text<'_> {
    Text(Cow::Borrowed(text))
}

fn texts(list: &[String]) -> Vec<Text<'_>> {
    list.iter().map(|item| text(item)).collect()
}

#[cfg(test)]
mod tests;
