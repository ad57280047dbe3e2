//! The kinds as CustomResourceDefinitions, for a Kubernetes cluster that stores them.
//!
//! Generated from the same schemas as everything else; the files in `deploy/crds/` are this text, and a test
//! compares them. Fields are at the top level, as in our own API. Kubernetes accepts lower-case names only,
//! which no schema can change.

mod yaml;

use serde_json::{Map, Value, json};

use crate::discovery::CATEGORY;
use crate::{GROUP, Kind, VERSION, schema};

/// The name of the file in `deploy/crds/`.
pub fn file_name(kind: Kind) -> String {
    format!("{}.yaml", kind.plural())
}

/// The text of the file.
pub fn yaml(kind: Kind) -> String {
    let header = "# Made from the Rust types by causeway-api; do not edit. UPDATE=1 cargo nextest run -p causeway-api crd writes it anew.\n\
                  # Kubernetes holds objects with lower-case names only; Causeway's own API also takes names with capitals.\n";
    format!("{header}{}", yaml::write(&definition(kind)))
}

/// The CustomResourceDefinition.
pub fn definition(kind: Kind) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{}.{GROUP}", kind.plural()) },
        "spec": {
            "group": GROUP,
            "scope": "Cluster",
            "names": {
                "kind": kind.name(),
                "listKind": kind.list_name(),
                "plural": kind.plural(),
                "singular": kind.singular(),
                "shortNames": [kind.short()],
                "categories": [CATEGORY],
            },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": { "status": {} },
                "additionalPrinterColumns": printer_columns(kind),
                "schema": { "openAPIV3Schema": open_api_schema(kind) },
            }],
        },
    })
}

fn open_api_schema(kind: Kind) -> Value {
    let mut schema = schema::of(kind).clone();
    drop_patch_hints(&mut schema);
    if let Some(properties) = schema["properties"].as_object_mut() {
        let text = |description: &str| json!({ "type": "string", "description": description });
        properties.insert("apiVersion".into(), text("Always causeway.io/v1."));
        properties.insert("kind".into(), text(&format!("Always {kind}.")));
        // Kubernetes checks metadata itself and allows only this schema here.
        properties.insert("metadata".into(), json!({ "type": "object" }));
    }
    schema
}

/// Strategic merge patches do not exist for custom resources, and their hints are refused in a definition.
fn drop_patch_hints(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|key, _| !key.starts_with("x-kubernetes-patch-"));
            fields.values_mut().for_each(drop_patch_hints);
        }
        Value::Array(items) => items.iter_mut().for_each(drop_patch_hints),
        _ => {}
    }
}

fn printer_columns(kind: Kind) -> Vec<Value> {
    let own: &[(&str, &str, &str)] = match kind {
        Kind::ESite => &[("Subnets", "string", ".subnets")],
        Kind::EGateway => &[
            ("Site", "string", ".eSiteName"),
            ("IP", "string", ".ip"),
            ("CIDR", "string", ".virtualPresenceIPcidr"),
            ("Version", "string", ".status.software"),
        ],
        Kind::EService => &[
            ("Site", "string", ".eSiteName"),
            ("Protocol", "string", ".protocol"),
            ("Address", "string", ".ip"),
            ("Port", "integer", ".port"),
        ],
        Kind::EServer => {
            &[("Site", "string", ".eSiteName"), ("IP", "string", ".ip"), ("Ports", "string", ".ports")]
        }
        Kind::EPolicy => &[("Servers", "string", ".allowedServers"), ("Sites", "string", ".allowedSites")],
        Kind::ServiceExpose => &[
            ("Service", "string", ".eServiceName"),
            ("DNS", "string", ".dnsName"),
            ("Sites", "string", ".eSites"),
            ("Policies", "string", ".ePolicys"),
        ],
        Kind::VirtualPresence => &[
            ("IP", "string", ".virtualIp"),
            ("Service", "string", ".eServiceName"),
            ("Site", "string", ".eSiteName"),
        ],
        Kind::ECommunity => &[("Members", "string", ".members"), ("Policies", "string", ".ePolicys")],
        // Kubernetes has these kinds itself.
        Kind::Namespace | Kind::Event | Kind::Service => &[],
    };
    let common = [
        ("Ready", "string", ".status.conditions[?(@.type==\"Ready\")].status"),
        ("Age", "date", ".metadata.creationTimestamp"),
    ];
    let column = |(name, cell, path): &(&str, &str, &str)| {
        Value::Object(Map::from_iter([
            ("name".to_string(), Value::from(*name)),
            ("type".to_string(), Value::from(*cell)),
            ("jsonPath".to_string(), Value::from(*path)),
        ]))
    };
    own.iter().chain(&common).map(column).collect()
}

#[cfg(test)]
mod pages;
#[cfg(test)]
mod tests;
