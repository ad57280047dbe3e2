//! JSON schemas of the kinds, made from the Rust types.
//!
//! Everything that describes the kinds to a client starts here: OpenAPI, CRDs, `kubectl explain`, and the search for
//! unknown fields. The schemas are structural in Kubernetes' sense: no references, no nulls, no unions.

use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

use crate::kinds::{
    ECommunity, EGateway, EPolicy, EServer, EService, ESite, Kind, ServiceExpose, VirtualPresence,
};

/// The schema of a kind's fields, without `kind` and `apiVersion`.
pub fn of(kind: Kind) -> &'static Value {
    static SCHEMAS: OnceLock<Vec<Value>> = OnceLock::new();
    let schemas = SCHEMAS.get_or_init(|| Kind::ALL.into_iter().map(make).collect());
    &schemas[kind as usize]
}

fn make(kind: Kind) -> Value {
    match kind {
        Kind::ESite => schema::<ESite>(),
        Kind::EGateway => schema::<EGateway>(),
        Kind::EService => schema::<EService>(),
        Kind::EServer => schema::<EServer>(),
        Kind::EPolicy => schema::<EPolicy>(),
        Kind::ServiceExpose => schema::<ServiceExpose>(),
        Kind::VirtualPresence => schema::<VirtualPresence>(),
        Kind::ECommunity => schema::<ECommunity>(),
    }
}

/// The structural schema of any type.
pub fn schema<T: JsonSchema>() -> Value {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = true;
    });
    let mut schema = SchemaGenerator::new(settings).into_root_schema_for::<T>().to_value();
    make_structural(&mut schema);
    schema
}

/// Rewrites what schemars says into what Kubernetes understands.
fn make_structural(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    fields.remove("title");
    fields.remove("default");
    drop_null_type(fields);
    flatten_description(fields);
    flatten_reference(fields);
    if let Some(default) = fields.remove(DEFAULT) {
        fields.insert("default".into(), default);
    }
    if let Some(properties) = fields.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(make_structural);
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = fields.get_mut(key) {
            make_structural(inner);
        }
    }
}

/// How a field says its default in the schema. Rust's own default of a string is "", which nobody means.
pub(crate) const DEFAULT: &str = "x-causeway-default";

/// Null means absent and is dropped before decoding, so the schema need not speak of it.
fn drop_null_type(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|name| name != "null");
        if types.len() == 1 {
            let only = types.remove(0);
            fields.insert("type".into(), only);
        }
    }
    if let Some(Value::Array(values)) = fields.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
}

/// A doc comment is wrapped for the reader of the source; a description is one line per paragraph.
fn flatten_description(fields: &mut Map<String, Value>) {
    if let Some(Value::String(text)) = fields.get_mut("description") {
        let paragraphs = text
            .split("\n\n")
            .map(|paragraph| paragraph.lines().map(str::trim).collect::<Vec<_>>().join(" "));
        *text = paragraphs.collect::<Vec<_>>().join("\n\n");
    }
}

/// An optional struct comes as `anyOf: [struct, null]`, a described one as `allOf: [struct]`; both mean the struct.
fn flatten_reference(fields: &mut Map<String, Value>) {
    for union in ["anyOf", "allOf"] {
        let Some(Value::Array(choices)) = fields.remove(union) else { continue };
        let described = fields.get("description").cloned();
        for choice in choices {
            if let Value::Object(choice) = choice
                && choice.get("type").is_none_or(|name| name != "null")
            {
                fields.extend(choice);
            }
        }
        if let Some(description) = described {
            fields.insert("description".into(), description);
        }
        flatten_description(fields);
        fields.remove("title");
        fields.remove("default");
    }
}

#[cfg(test)]
mod tests;
