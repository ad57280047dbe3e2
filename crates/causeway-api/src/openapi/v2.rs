//! OpenAPI v2, also called swagger: one document for everything.

use serde_json::{Map, Value, json};

use super::definitions::{definitions, reference};
use super::operations::{Operation, paths};
use crate::{ApiVersion, Kind};

const PREFIX: &str = "#/definitions/";
const PRODUCES: [&str; 2] = ["application/json", "application/json;stream=watch"];

/// `/openapi/v2`.
pub fn v2() -> Value {
    let mut all = Map::new();
    for version in [ApiVersion::Core, ApiVersion::Group] {
        for kind in Kind::ALL {
            for (path, operations) in paths(version, kind) {
                all.insert(path.clone(), path_item(&path, &operations));
            }
        }
    }
    json!({
        "swagger": "2.0",
        "info": { "title": "Causeway", "version": env!("CARGO_PKG_VERSION") },
        "paths": all,
        "definitions": definitions(PREFIX),
    })
}

fn path_item(path: &str, operations: &[Operation]) -> Value {
    let mut item: Map<String, Value> =
        operations.iter().map(|operation| (operation.method.to_string(), body(operation))).collect();
    if path.contains("{name}") {
        let name = json!({
            "name": "name", "in": "path", "description": "name of the object", "required": true, "type": "string",
            "uniqueItems": true,
        });
        item.insert("parameters".into(), json!([name]));
    }
    item.into()
}

fn body(operation: &Operation) -> Value {
    let mut parameters: Vec<Value> = Vec::new();
    if let Some(body) = operation.body {
        let optional = body == "DeleteOptions";
        let mut parameter = json!({ "name": "body", "in": "body", "schema": reference(PREFIX, body) });
        if !optional {
            parameter["required"] = true.into();
        }
        parameters.push(parameter);
    }
    parameters.extend(operation.query.iter().map(|query| {
        let mut parameter = query.head();
        parameter["type"] = query.cell.into();
        parameter["uniqueItems"] = true.into();
        parameter
    }));
    let answer = json!({ "description": "OK", "schema": reference(PREFIX, operation.answer) });
    let mut responses: Map<String, Value> =
        operation.codes.iter().map(|code| (code.to_string(), answer.clone())).collect();
    responses.insert("401".into(), json!({ "description": "Unauthorized" }));
    json!({
        "description": operation.description,
        "operationId": operation.id,
        "tags": [operation.tag()],
        "schemes": ["https"],
        "consumes": operation.consumes,
        "produces": PRODUCES,
        "parameters": parameters,
        "responses": responses,
        "x-kubernetes-action": operation.action,
        "x-kubernetes-group-version-kind": operation.gvk(),
    })
}
