//! JSON schemas of the kinds, generated from the Rust types.
//!
//! Everything that describes the kinds to a client starts here: OpenAPI, CRDs, `kubectl explain`, and the
//! search for unknown fields. `of` is structural in Kubernetes' sense: no references, no nulls, no unions.
//! `definitions` has the same schemas with references between them.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value};

use crate::kinds::{
    ECommunity, EGateway, EPolicy, EServer, EService, ESite, Event, Kind, Namespace, Service, ServiceExpose,
    VirtualPresence,
};
use crate::meta::ListMeta;
use crate::status::Status;

/// The key under which a field declares its default in the schema. Rust's own default of a string is "",
/// which is never the documented default.
const DEFAULT: &str = "x-causeway-default";

/// The schema of a kind's fields, without `kind` and `apiVersion`.
pub fn of(kind: Kind) -> &'static Value {
    static SCHEMAS: OnceLock<Vec<Value>> = OnceLock::new();
    let schemas = SCHEMAS.get_or_init(|| Kind::SERVED.into_iter().map(inlined).collect());
    &schemas[kind as usize]
}

/// The schema of every type, by the type's name, with `$ref: #/definitions/NAME` for nested types.
pub fn definitions() -> BTreeMap<String, Value> {
    let mut generator = generator(false);
    for kind in Kind::SERVED {
        for_kind(kind, &mut generator);
    }
    generator.subschema_for::<ListMeta>();
    generator.subschema_for::<Status>();
    let definitions = generator.take_definitions(true);
    let structural = |(name, mut schema): (String, Value)| {
        make_structural(&mut schema);
        (name, schema)
    };
    definitions.into_iter().map(structural).collect()
}

fn inlined(kind: Kind) -> Value {
    let mut schema = for_kind(kind, &mut generator(true));
    make_structural(&mut schema);
    schema
}

fn generator(inline: bool) -> SchemaGenerator {
    let settings = SchemaSettings::draft07().with(|settings| {
        settings.meta_schema = None;
        settings.inline_subschemas = inline;
    });
    SchemaGenerator::new(settings)
}

fn for_kind(kind: Kind, generator: &mut SchemaGenerator) -> Value {
    fn schema<T: JsonSchema>(generator: &mut SchemaGenerator) -> Value {
        generator.subschema_for::<T>().to_value()
    }
    match kind {
        Kind::ESite => schema::<ESite>(generator),
        Kind::EGateway => schema::<EGateway>(generator),
        Kind::EService => schema::<EService>(generator),
        Kind::EServer => schema::<EServer>(generator),
        Kind::EPolicy => schema::<EPolicy>(generator),
        Kind::ServiceExpose => schema::<ServiceExpose>(generator),
        Kind::VirtualPresence => schema::<VirtualPresence>(generator),
        Kind::ECommunity => schema::<ECommunity>(generator),
        Kind::Namespace => schema::<Namespace>(generator),
        Kind::Event => schema::<Event>(generator),
        Kind::Service => schema::<Service>(generator),
    }
}

/// Rewrites the output of schemars into the form that Kubernetes understands.
fn make_structural(schema: &mut Value) {
    let Some(fields) = schema.as_object_mut() else { return };
    flatten_union(fields);
    for foreign in ["title", "default", "writeOnly"] {
        fields.remove(foreign);
    }
    if let Some(default) = fields.remove(DEFAULT) {
        fields.insert("default".into(), default);
    }
    drop_null_type(fields);
    flatten_description(fields);
    if fields.get("format").is_some_and(|format| format == "uint16" || format == "uint32") {
        fields.insert("format".into(), "int32".into());
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

/// Null means absent and is dropped before decoding, so the schema does not mention it.
fn drop_null_type(fields: &mut Map<String, Value>) {
    if let Some(Value::Array(types)) = fields.get_mut("type") {
        types.retain(|name| name != "null");
        if types.len() == 1 {
            let only = types.remove(0);
            fields.insert("type".into(), only);
        }
    }
}

/// A doc comment is wrapped for the reader of the source; a description is one line per paragraph.
fn flatten_description(fields: &mut Map<String, Value>) {
    if let Some(Value::String(text)) = fields.get_mut("description") {
        let unwrap = |paragraph: &str| paragraph.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        *text = text.split("\n\n").map(unwrap).collect::<Vec<_>>().join("\n\n");
    }
}

/// An optional struct has the form `anyOf: [struct, null]`, a described one `allOf: [struct]`; both mean the
/// struct.
fn flatten_union(fields: &mut Map<String, Value>) {
    for union in ["anyOf", "allOf"] {
        let Some(Value::Array(choices)) = fields.remove(union) else { continue };
        for choice in choices {
            if let Value::Object(choice) = choice
                && choice.get("type").is_none_or(|name| name != "null")
            {
                // Keywords beside the union are about this field, so they take precedence over those of the
                // struct.
                for (key, value) in choice {
                    fields.entry(key).or_insert(value);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
