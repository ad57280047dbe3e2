//! Patches that are wrong: JSON patch, merge patch, server-side apply.

use serde_json::{Value, json};
use testlab::https::Request;

use super::{Row, refused, wrong};
use crate::path;

const JSON: &str = "application/json-patch+json";
const MERGE: &str = "application/merge-patch+json";
const APPLY: &str = "application/apply-patch+yaml";

fn patch(kind: &str, query: &str, body: &Value) -> Request {
    Request::new("PATCH", &format!("{}{query}", path("esites", "oslo"))).body(kind, body.to_string())
}

pub(super) fn rows() -> Vec<Row> {
    [json_patches(), merges(), applies()].into_iter().flatten().collect()
}

fn json_patches() -> Vec<Row> {
    let row =
        |says, code, reason, body: Value, words| refused(says, patch(JSON, "", &body), code, reason, words);
    let many = vec![json!({"op": "test", "path": "/metadata/name", "value": "oslo"}); 20_000];
    let double: Vec<Value> =
        (0..64).map(|n| json!({"op": "copy", "from": "", "path": format!("/c{n}")})).collect();
    let deeper: Vec<Value> = (0..500)
        .map(|n| json!({"op": "add", "path": format!("/a{}", "/a".repeat(n)), "value": {}}))
        .collect();
    vec![
        row("an operation is one of six", 400, "BadRequest", json!([{"op": "fly", "path": "/x"}]), ""),
        row(
            "a path begins with a slash in patches",
            400,
            "BadRequest",
            json!([{"op": "add", "path": "x", "value": 1}]),
            "",
        ),
        row("an operation has a path", 400, "BadRequest", json!([{"op": "add", "value": 1}]), ""),
        row("a JSON patch is a list", 400, "BadRequest", json!({"subnets": []}), ""),
        row(
            "a test that fails stops the patch",
            422,
            "Invalid",
            json!([{"op": "add", "path": "/subnets", "value": ["10.0.0.0/8"]}, {"op": "test", "path": "/metadata/name", "value": "bergen"}]),
            "operation 1",
        ),
        row(
            "what is not there is not removed",
            422,
            "Invalid",
            json!([{"op": "remove", "path": "/nothing/here"}]),
            "operation 0",
        ),
        row(
            "an index lies inside its list",
            422,
            "Invalid",
            json!([{"op": "add", "path": "/metadata/managedFields/99", "value": {}}]),
            "operation 0",
        ),
        row(
            "nothing moves into itself",
            422,
            "Invalid",
            json!([{"op": "move", "from": "/metadata", "path": "/metadata/labels"}]),
            "operation 0",
        ),
        row(
            "thousands of operations are too many",
            413,
            "RequestEntityTooLarge",
            Value::Array(many),
            "operations",
        ),
        row(
            "a patch does not double an object without end",
            422,
            "Invalid",
            Value::Array(double),
            "too large",
        ),
        row("a patch does not dig without end", 422, "Invalid", Value::Array(deeper), "too large"),
        wrong(
            "a patched object is checked",
            patch(JSON, "", &json!([{"op": "add", "path": "/subnets", "value": ["x"]}])),
            "subnets[0]",
        ),
        row(
            "a patch does not rename",
            400,
            "BadRequest",
            json!([{"op": "replace", "path": "/metadata/name", "value": "bergen"}]),
            "name",
        ),
        row(
            "a patch to another kind is refused",
            400,
            "BadRequest",
            json!([{"op": "replace", "path": "/kind", "value": "EServer"}]),
            "EServer",
        ),
        row(
            "a patch of an older revision is a conflict",
            409,
            "Conflict",
            json!([{"op": "replace", "path": "/metadata/resourceVersion", "value": "1"}]),
            "modified",
        ),
        wrong("force is for apply alone", patch(MERGE, "?force=true", &json!({})), "force"),
    ]
}

fn merges() -> Vec<Row> {
    vec![
        refused("a merge patch is an object", patch(MERGE, "", &json!([1])), 400, "BadRequest", ""),
        wrong(
            "a merged object is checked",
            patch(MERGE, "", &json!({"subnets": ["10.0.0.1/8"]})),
            "subnets[0]",
        ),
        wrong("a merge does not change types", patch(MERGE, "", &json!({"subnets": {"a": 1}})), "subnets"),
        refused(
            "a merge patch of another uid is a conflict",
            patch(MERGE, "", &json!({"metadata": {"uid": "x"}})),
            409,
            "Conflict",
            "UID",
        ),
        refused(
            "what is not there is not patched",
            Request::new("PATCH", &path("esites", "nowhere")).body(MERGE, "{}"),
            404,
            "NotFound",
            "nowhere",
        ),
        refused(
            "a strategic merge follows its directives or refuses them",
            patch("application/strategic-merge-patch+json", "", &json!({"$patch": "explode"})),
            400,
            "BadRequest",
            "",
        ),
    ]
}

fn applies() -> Vec<Row> {
    let object = |more: Value| {
        let mut object =
            json!({"kind": "ESite", "apiVersion": "causeway.io/v1", "metadata": {"name": "oslo"}});
        object.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        object
    };
    let apply = |body: Value| patch(APPLY, "?fieldManager=test", &body);
    let owned =
        json!({"metadata": {"name": "oslo", "managedFields": [{"manager": "x", "operation": "Apply"}]}});
    vec![
        wrong("an apply names its manager", patch(APPLY, "", &object(json!({}))), "fieldManager"),
        refused("an apply brings no managedFields", apply(object(owned)), 400, "BadRequest", "managedFields"),
        refused(
            "an apply's kind is the path's",
            apply(object(json!({"kind": "EServer"}))),
            400,
            "BadRequest",
            "EServer",
        ),
        refused(
            "an apply's name is the path's",
            apply(object(json!({"metadata": {"name": "bergen"}}))),
            400,
            "BadRequest",
            "bergen",
        ),
        wrong(
            "an applied object is checked",
            apply(object(json!({"subnets": ["10.0.0.0/33"]}))),
            "subnets[0]",
        ),
        refused(
            "an apply with a foreign uid is a conflict",
            apply(object(json!({"metadata": {"name": "oslo", "uid": "x"}}))),
            409,
            "Conflict",
            "UID",
        ),
        refused(
            "an apply of broken YAML is refused",
            Request::new("PATCH", &format!("{}?fieldManager=test", path("esites", "oslo")))
                .body(APPLY, "a: [b"),
            400,
            "BadRequest",
            "the body",
        ),
        wrong(
            "an apply of a new object is checked",
            Request::new("PATCH", &format!("{}?fieldManager=test", path("esites", "a%20b")))
                .body(APPLY, object(json!({"metadata": {"name": "a b"}})).to_string()),
            "metadata.name",
        ),
    ]
}
