//! OpenAPI v2, also called swagger: one document for everything.

use serde_json::{Map, Value, json};

use super::definitions::{definitions, reference};
use super::operations::{ApiOperation, all_paths, path_parameters};
use super::reviews;
use crate::ApiVersion;
use crate::discovery::{REVIEWS, ReviewKind};

const PREFIX: &str = "#/definitions/";
const PRODUCES: [&str; 2] = ["application/json", "application/json;stream=watch"];

/// `/openapi/v2`.
pub fn v2() -> Value {
    let mut all = Map::new();
    for (path, operations) in ApiVersion::ALL.into_iter().flat_map(all_paths) {
        all.insert(path.clone(), path_item(&path, &operations));
    }
    for review in REVIEWS {
        all.insert(reviews::path(&review), json!({ "post": review_body(&review) }));
    }
    let mut definitions = definitions(PREFIX);
    definitions.extend(reviews::definitions(PREFIX, None));
    json!({
        "swagger": "2.0",
        "info": { "title": "Causeway", "version": env!("CARGO_PKG_VERSION") },
        "paths": all,
        "definitions": definitions,
    })
}

fn review_body(review: &ReviewKind) -> Value {
    let schema = reviews::reference(PREFIX, review);
    let answer = json!({ "description": "Created", "schema": schema });
    let mut body = reviews::operation(review);
    body["schemes"] = json!(["https"]);
    body["consumes"] = json!(["*/*"]);
    body["produces"] = json!(["application/json"]);
    body["parameters"] = json!([{ "name": "body", "in": "body", "required": true, "schema": schema }]);
    body["responses"] = json!({ "201": answer, "401": { "description": "Unauthorized" } });
    body
}

fn path_item(path: &str, operations: &[ApiOperation]) -> Value {
    let mut item: Map<String, Value> =
        operations.iter().map(|operation| (operation.method.to_string(), body(operation))).collect();
    let parameters: Vec<Value> = path_parameters(path)
        .map(|name| {
            json!({
                "name": name, "in": "path", "description": format!("{name} of the object"), "required": true,
                "type": "string", "uniqueItems": true,
            })
        })
        .collect();
    if !parameters.is_empty() {
        item.insert("parameters".into(), parameters.into());
    }
    item.into()
}

fn body(operation: &ApiOperation) -> Value {
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
