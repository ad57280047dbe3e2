//! The schemas of all objects under the names Kubernetes clients expect.
//!
//! Types come from `schema`; here they get their long names, `kind` and `apiVersion`, their lists, and the
//! few types of Kubernetes that have no Rust type here.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::kinds::event::rename;
use crate::{ApiVersion, Kind, VERSION, schema};

const OURS: &str = "io.causeway.v1.";
const CORE: &str = "io.k8s.api.core.v1.";
const EVENTS: &str = "io.k8s.api.events.v1.";
const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.";

/// Every definition, with references of the form `{prefix}NAME`.
pub(super) fn definitions(prefix: &str) -> BTreeMap<String, Value> {
    let mut all = BTreeMap::new();
    for (name, mut schema) in schema::definitions() {
        rename_references(&mut schema, prefix);
        if let Some(kind) = Kind::SERVED.into_iter().find(|kind| kind.name() == name) {
            if kind == Kind::Event {
                let mut event = schema.clone();
                rename(&mut event["properties"], ApiVersion::Events);
                let version = ApiVersion::Events;
                add_type_meta(&mut event, json!([gvk(version.group(), kind.name())]));
                all.insert(long_name(type_name(kind, version)), event);
                all.insert(long_name(list_type_name(kind, version)), list(kind, version, prefix));
            }
            add_type_meta(&mut schema, gvks(kind, kind.name()));
            all.insert(long_name(kind.list_name()), list(kind, ApiVersion::Core, prefix));
        }
        if name == "Status" {
            schema["x-kubernetes-group-version-kind"] = json!([gvk("", "Status")]);
        }
        all.insert(long_name(&name), schema);
    }
    all.extend(kubernetes_types(prefix));
    all
}

/// The long name of a type of ours or of Kubernetes' metadata.
pub(super) fn long_name(name: &str) -> String {
    let is_meta = [
        "Condition",
        "DeleteOptions",
        "ListMeta",
        "ManagedFieldsEntry",
        "ObjectMeta",
        "OwnerReference",
        "Patch",
        "Preconditions",
        "Status",
        "StatusCause",
        "StatusDetails",
        "WatchEvent",
    ];
    let is_core = [
        "Event",
        "EventList",
        "EventSeries",
        "EventSource",
        "Namespace",
        "NamespaceList",
        "NamespaceSpec",
        "NamespaceStatus",
        "ObjectReference",
        "Service",
        "ServiceList",
    ];
    match name.strip_prefix(EVENTS_MARK) {
        Some(name) => format!("{EVENTS}{name}"),
        None if is_meta.contains(&name) => format!("{META}{name}"),
        None if is_core.contains(&name) => format!("{CORE}{name}"),
        None => format!("{OURS}{name}"),
    }
}

// Distinguishes the short names of the two forms of an event.
const EVENTS_MARK: &str = "events/";

/// Short name of the type of a kind under a version.
pub(super) fn type_name(kind: Kind, version: ApiVersion) -> &'static str {
    if version == ApiVersion::Events { "events/Event" } else { kind.name() }
}

pub(super) fn list_type_name(kind: Kind, version: ApiVersion) -> &'static str {
    if version == ApiVersion::Events { "events/EventList" } else { kind.list_name() }
}

pub(super) fn reference(prefix: &str, name: &str) -> Value {
    json!({ "$ref": format!("{prefix}{}", long_name(name)) })
}

pub(super) fn gvk(group: &str, kind: &str) -> Value {
    json!({ "group": group, "kind": kind, "version": VERSION })
}

/// An object is served under both API versions, so both are listed.
fn both_versions(kind: &str) -> Value {
    json!([gvk(ApiVersion::Core.group(), kind), gvk(ApiVersion::Group.group(), kind)])
}

/// Returns the versions under which a kind has the same form, for the kind or its list.
fn gvks(kind: Kind, name: &str) -> Value {
    let versions = kind.versions().iter().filter(|version| **version != ApiVersion::Events);
    versions.map(|version| gvk(version.group(), name)).collect()
}

fn add_type_meta(schema: &mut Value, gvks: Value) {
    if let Some(properties) = schema["properties"].as_object_mut() {
        properties.extend(type_meta());
        let descriptions = [
            ("metadata", "Standard object's metadata."),
            ("status", "The observed state of the object. Written by Causeway, never by users."),
        ];
        for (name, description) in descriptions {
            if let Some(schema) = properties.get_mut(name) {
                schema["description"] = description.into();
            }
        }
    }
    schema["x-kubernetes-group-version-kind"] = gvks;
}

fn type_meta() -> Map<String, Value> {
    let api_version = "APIVersion defines the versioned schema of this representation of an object: causeway.io/v1, or v1 for \
                       the same objects under the core path.";
    let kind = "Kind is a string value representing the REST resource this object represents.";
    Map::from_iter([
        ("apiVersion".into(), json!({ "type": "string", "description": api_version })),
        ("kind".into(), json!({ "type": "string", "description": kind })),
    ])
}

fn list(kind: Kind, version: ApiVersion, prefix: &str) -> Value {
    let (name, item) = (kind.list_name(), type_name(kind, version));
    let gvks = match version {
        ApiVersion::Events => json!([gvk(version.group(), name)]),
        _ => gvks(kind, name),
    };
    let mut properties = type_meta();
    properties.insert("metadata".into(), described(reference(prefix, "ListMeta"), "Standard list metadata."));
    properties.insert(
        "items".into(),
        json!({ "type": "array", "description": "The objects.", "items": reference(prefix, item) }),
    );
    json!({
        "type": "object",
        "description": format!("{} is a list of {}.", kind.list_name(), kind.name()),
        "required": ["items"],
        "properties": properties,
        "x-kubernetes-group-version-kind": gvks,
    })
}

fn described(mut schema: Value, description: &str) -> Value {
    schema["description"] = description.into();
    schema
}

/// Types that clients look up but that have no Rust type here.
fn kubernetes_types(prefix: &str) -> [(String, Value); 4] {
    let string = |description: &str| json!({ "type": "string", "description": description });
    let boolean = |description: &str| json!({ "type": "boolean", "description": description });
    let mut delete = type_meta();
    let options = [
        (
            "dryRun",
            json!({
                "type": "array", "items": { "type": "string" }, "x-kubernetes-list-type": "atomic",
                "description": "All: everything is checked, nothing is deleted.",
            }),
        ),
        (
            "gracePeriodSeconds",
            json!({
                "type": "integer", "format": "int64",
                "description": "Accepted and not used: objects of this group are deleted at once.",
            }),
        ),
        ("orphanDependents", boolean("Deprecated: please use propagationPolicy.")),
        (
            "preconditions",
            described(
                reference(prefix, "Preconditions"),
                "Must be fulfilled before the deletion is carried out; else it is refused with 409.",
            ),
        ),
        ("propagationPolicy", string("Treatment of dependents: Orphan, Background or Foreground.")),
    ];
    delete.extend(options.map(|(name, schema)| (name.to_string(), schema)));
    [
        (
            long_name("DeleteOptions"),
            json!({
                "type": "object",
                "description": "DeleteOptions may be provided when deleting an API object.",
                "properties": delete,
                "x-kubernetes-group-version-kind": both_versions("DeleteOptions"),
            }),
        ),
        (
            long_name("Preconditions"),
            json!({
                "type": "object",
                "description": "Preconditions must be fulfilled before an operation (update, delete, etc.) is carried out.",
                "properties": {
                    "resourceVersion": string("The revision the object must have."),
                    "uid": string("The UID the object must have."),
                },
            }),
        ),
        (
            long_name("Patch"),
            json!({
                "type": "object",
                "description": "Patch is a JSON patch, a merge patch, or an object to apply.",
            }),
        ),
        (
            long_name("WatchEvent"),
            json!({
                "type": "object",
                "description": "Event represents a single event to a watched resource.",
                "required": ["type", "object"],
                "properties": {
                    "object": { "type": "object", "description": "The object as it is after the event." },
                    "type": string("ADDED, MODIFIED, DELETED, BOOKMARK or ERROR."),
                },
                "x-kubernetes-group-version-kind": both_versions("WatchEvent"),
            }),
        ),
    ]
}

fn rename_references(schema: &mut Value, prefix: &str) {
    match schema {
        Value::Object(fields) => {
            if let Some(Value::String(reference)) = fields.get_mut("$ref")
                && let Some(name) = reference.strip_prefix("#/definitions/")
            {
                *reference = format!("{prefix}{}", long_name(name));
            }
            fields.values_mut().for_each(|inner| rename_references(inner, prefix));
        }
        Value::Array(items) => items.iter_mut().for_each(|inner| rename_references(inner, prefix)),
        _ => {}
    }
}
