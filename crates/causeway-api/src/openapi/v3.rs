//! OpenAPI v3: one document per group and version, and an index with their hashes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hasher};

use serde_json::{Map, Value, json};

use super::definitions::{definitions, reference};
use super::operations::{Operation, paths, root};
use crate::{ApiVersion, Kind};

const PREFIX: &str = "#/components/schemas/";

/// `/openapi/v3`: where the documents are. The hash changes with the document, so a client may keep what it has.
pub fn v3_index() -> Value {
    let entry = |version: ApiVersion| {
        let path = root(version).trim_start_matches('/');
        let mut hasher = DefaultHasher::new();
        hasher.write(v3(version).to_string().as_bytes());
        let url = format!("/openapi/v3/{path}?hash={:016X}", hasher.finish());
        (path.to_string(), json!({ "serverRelativeURL": url }))
    };
    let paths: Map<String, Value> = [ApiVersion::Core, ApiVersion::Group].into_iter().map(entry).collect();
    json!({ "paths": paths })
}

/// `/openapi/v3/api/v1` or `/openapi/v3/apis/causeway.io/v1`.
pub fn v3(version: ApiVersion) -> Value {
    let mut all = Map::new();
    for kind in Kind::ALL {
        for (path, operations) in paths(version, kind) {
            all.insert(path.clone(), path_item(&path, &operations));
        }
    }
    let mut schemas: BTreeMap<String, Value> = definitions(PREFIX);
    schemas.values_mut().for_each(wrap_references);
    json!({
        "openapi": "3.0.0",
        "info": { "title": "Causeway", "version": env!("CARGO_PKG_VERSION") },
        "paths": all,
        "components": { "schemas": schemas },
    })
}

fn path_item(path: &str, operations: &[Operation]) -> Value {
    let mut item: Map<String, Value> =
        operations.iter().map(|operation| (operation.method.to_string(), body(operation))).collect();
    if path.contains("{name}") {
        let name = json!({
            "name": "name", "in": "path", "description": "name of the object", "required": true,
            "schema": { "type": "string", "uniqueItems": true },
        });
        item.insert("parameters".into(), json!([name]));
    }
    item.into()
}

fn body(operation: &Operation) -> Value {
    let query = operation.query.iter().map(|query| {
        let mut parameter = query.head();
        parameter["schema"] = json!({ "type": query.cell, "uniqueItems": true });
        parameter
    });
    let content = |types: &[&str], name: &str| -> Value {
        let one = |media: &&str| (media.to_string(), json!({ "schema": reference(PREFIX, name) }));
        Value::Object(types.iter().map(one).collect())
    };
    let answer = json!({ "description": "OK", "content": content(&["application/json"], operation.answer) });
    let mut responses: Map<String, Value> =
        operation.codes.iter().map(|code| (code.to_string(), answer.clone())).collect();
    responses.insert("401".into(), json!({ "description": "Unauthorized" }));
    let mut document = json!({
        "description": operation.description,
        "operationId": operation.id,
        "tags": [operation.tag()],
        "parameters": query.collect::<Vec<_>>(),
        "responses": responses,
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": operation.gvk(),
    });
    if let Some(body) = operation.body {
        document["requestBody"] = json!({ "content": content(operation.consumes, body) });
    }
    document
}

/// Version 3.0 ignores what stands beside `$ref`, so a described reference is wrapped.
fn wrap_references(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.values_mut().for_each(wrap_references);
            if fields.len() > 1
                && let Some(reference) = fields.remove("$ref")
            {
                fields.insert("allOf".into(), json!([{ "$ref": reference }]));
            }
        }
        Value::Array(items) => items.iter_mut().for_each(wrap_references),
        _ => {}
    }
}
