//! OpenAPI v3: one document per group and version, and an index with their hashes.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hasher};

use serde_json::{Map, Value, json};

use super::definitions::{definitions, reference};
use super::operations::{ApiOperation, all_paths, path_parameters, root};
use super::reviews;
use crate::ApiVersion;
use crate::discovery::REVIEWS;

const PREFIX: &str = "#/components/schemas/";

/// `/openapi/v3`: the URLs of the documents. The hash changes with the document, so a client may cache it.
pub fn v3_index() -> Value {
    let entry = |path: &str, document: &Value| {
        let mut hasher = DefaultHasher::new();
        hasher.write(document.to_string().as_bytes());
        let url = format!("/openapi/v3/{path}?hash={:016X}", hasher.finish());
        (path.to_string(), json!({ "serverRelativeURL": url }))
    };
    let versions = ApiVersion::ALL.into_iter();
    let kinds = versions.map(|version| entry(root(version).trim_start_matches('/'), &v3(version)));
    let groups: BTreeSet<&str> = REVIEWS.into_iter().map(|review| review.group).collect();
    let questions =
        groups.into_iter().filter_map(|group| Some(entry(&format!("apis/{group}/v1"), &v3_reviews(group)?)));
    let paths: Map<String, Value> = kinds.chain(questions).collect();
    json!({ "paths": paths })
}

/// `/openapi/v3/apis/GROUP/v1` of a group of reviews; none for other groups.
pub fn v3_reviews(group: &str) -> Option<Value> {
    let mut all = Map::new();
    for review in REVIEWS.into_iter().filter(|review| review.group == group) {
        let schema = reviews::reference(PREFIX, &review);
        let content = |media: &str| json!({ media: { "schema": schema } });
        let mut body = reviews::operation(&review);
        body["requestBody"] = json!({ "content": content("*/*"), "required": true });
        body["responses"] = json!({
            "201": { "description": "Created", "content": content("application/json") },
            "401": { "description": "Unauthorized" },
        });
        all.insert(reviews::path(&review), json!({ "post": body }));
    }
    let mut schemas = reviews::definitions(PREFIX, Some(group));
    schemas.extend(definitions(PREFIX).into_iter().filter(|(name, _)| name.contains(".meta.v1.")));
    schemas.values_mut().for_each(wrap_references);
    (!all.is_empty()).then(|| document(all, json!(schemas)))
}

/// `/openapi/v3/api/v1`, `/openapi/v3/apis/causeway.io/v1` or `/openapi/v3/apis/events.k8s.io/v1`.
pub fn v3(version: ApiVersion) -> Value {
    let mut all = Map::new();
    for (path, operations) in all_paths(version) {
        all.insert(path.clone(), path_item(&path, &operations));
    }
    let mut schemas: BTreeMap<String, Value> = definitions(PREFIX);
    schemas.values_mut().for_each(wrap_references);
    document(all, json!(schemas))
}

fn document(paths: Map<String, Value>, schemas: Value) -> Value {
    json!({
        "openapi": "3.0.0",
        "info": { "title": "Causeway", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": { "schemas": schemas },
    })
}

fn path_item(path: &str, operations: &[ApiOperation]) -> Value {
    let mut item: Map<String, Value> =
        operations.iter().map(|operation| (operation.method.to_string(), body(operation))).collect();
    let parameters: Vec<Value> = path_parameters(path)
        .map(|name| {
            json!({
                "name": name, "in": "path", "description": format!("{name} of the object"), "required": true,
                "schema": { "type": "string", "uniqueItems": true },
            })
        })
        .collect();
    if !parameters.is_empty() {
        item.insert("parameters".into(), parameters.into());
    }
    item.into()
}

fn body(operation: &ApiOperation) -> Value {
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

/// Version 3.0 ignores siblings of `$ref`, so a described reference is wrapped.
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
