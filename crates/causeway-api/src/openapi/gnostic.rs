//! OpenAPI v2 as protobuf, in the message format of google/gnostic that kubectl reads.
//!
//! Only the messages and fields that our document uses are defined; a reader treats the rest as absent. The
//! field numbers are those of gnostic's OpenAPIv2.proto. `encode` takes the JSON document, so that both forms
//! have the same content.

use prost::{Message, Oneof};
use serde_json::{Map, Value};

#[derive(Clone, PartialEq, Message)]
pub struct Document {
    #[prost(string, tag = "1")]
    pub swagger: String,
    #[prost(message, optional, tag = "2")]
    pub info: Option<Info>,
    #[prost(message, optional, tag = "8")]
    pub paths: Option<Paths>,
    #[prost(message, optional, tag = "9")]
    pub definitions: Option<NamedSchemas>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Info {
    #[prost(string, tag = "1")]
    pub title: String,
    #[prost(string, tag = "2")]
    pub version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Paths {
    #[prost(message, repeated, tag = "2")]
    pub path: Vec<NamedPathItem>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NamedPathItem {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<PathItem>,
}

#[derive(Clone, PartialEq, Message)]
pub struct PathItem {
    #[prost(message, optional, tag = "2")]
    pub get: Option<Operation>,
    #[prost(message, optional, tag = "3")]
    pub put: Option<Operation>,
    #[prost(message, optional, tag = "4")]
    pub post: Option<Operation>,
    #[prost(message, optional, tag = "5")]
    pub delete: Option<Operation>,
    #[prost(message, optional, tag = "8")]
    pub patch: Option<Operation>,
    #[prost(message, repeated, tag = "9")]
    pub parameters: Vec<ParametersItem>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Operation {
    #[prost(string, repeated, tag = "1")]
    pub tags: Vec<String>,
    #[prost(string, tag = "3")]
    pub description: String,
    #[prost(string, tag = "5")]
    pub operation_id: String,
    #[prost(string, repeated, tag = "6")]
    pub produces: Vec<String>,
    #[prost(string, repeated, tag = "7")]
    pub consumes: Vec<String>,
    #[prost(message, repeated, tag = "8")]
    pub parameters: Vec<ParametersItem>,
    #[prost(message, optional, tag = "9")]
    pub responses: Option<Responses>,
    #[prost(string, repeated, tag = "10")]
    pub schemes: Vec<String>,
    #[prost(message, repeated, tag = "13")]
    pub vendor_extension: Vec<NamedAny>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ParametersItem {
    #[prost(message, optional, tag = "1")]
    pub parameter: Option<Parameter>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Parameter {
    #[prost(oneof = "ParameterKind", tags = "1, 2")]
    pub kind: Option<ParameterKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum ParameterKind {
    #[prost(message, tag = "1")]
    Body(Box<BodyParameter>),
    #[prost(message, tag = "2")]
    NonBody(NonBodyParameter),
}

#[derive(Clone, PartialEq, Message)]
pub struct BodyParameter {
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub place: String,
    #[prost(bool, tag = "4")]
    pub required: bool,
    #[prost(message, optional, tag = "5")]
    pub schema: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NonBodyParameter {
    #[prost(oneof = "NonBodyKind", tags = "3, 4")]
    pub kind: Option<NonBodyKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum NonBodyKind {
    #[prost(message, tag = "3")]
    Query(QueryParameter),
    #[prost(message, tag = "4")]
    Path(PathParameter),
}

#[derive(Clone, PartialEq, Message)]
pub struct QueryParameter {
    #[prost(bool, tag = "1")]
    pub required: bool,
    #[prost(string, tag = "2")]
    pub place: String,
    #[prost(string, tag = "3")]
    pub description: String,
    #[prost(string, tag = "4")]
    pub name: String,
    #[prost(string, tag = "6")]
    pub cell: String,
    #[prost(bool, tag = "20")]
    pub unique_items: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct PathParameter {
    #[prost(bool, tag = "1")]
    pub required: bool,
    #[prost(string, tag = "2")]
    pub place: String,
    #[prost(string, tag = "3")]
    pub description: String,
    #[prost(string, tag = "4")]
    pub name: String,
    #[prost(string, tag = "5")]
    pub cell: String,
    #[prost(bool, tag = "19")]
    pub unique_items: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Responses {
    #[prost(message, repeated, tag = "1")]
    pub response_code: Vec<NamedResponse>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NamedResponse {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<ResponseValue>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ResponseValue {
    #[prost(message, optional, tag = "1")]
    pub response: Option<Response>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Response {
    #[prost(string, tag = "1")]
    pub description: String,
    #[prost(message, optional, tag = "2")]
    pub schema: Option<SchemaItem>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SchemaItem {
    #[prost(message, optional, tag = "1")]
    pub schema: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Schema {
    #[prost(string, tag = "1")]
    pub reference: String,
    #[prost(string, tag = "2")]
    pub format: String,
    #[prost(string, tag = "4")]
    pub description: String,
    #[prost(message, optional, tag = "5")]
    pub default: Option<Any>,
    #[prost(double, tag = "7")]
    pub maximum: f64,
    #[prost(double, tag = "9")]
    pub minimum: f64,
    #[prost(int64, tag = "11")]
    pub max_length: i64,
    #[prost(int64, tag = "14")]
    pub max_items: i64,
    #[prost(string, repeated, tag = "19")]
    pub required: Vec<String>,
    #[prost(message, repeated, tag = "20")]
    pub enumeration: Vec<Any>,
    #[prost(message, optional, boxed, tag = "21")]
    pub additional_properties: Option<Box<AdditionalProperties>>,
    #[prost(message, optional, tag = "22")]
    pub types: Option<Strings>,
    #[prost(message, optional, tag = "23")]
    pub items: Option<Items>,
    #[prost(message, optional, tag = "25")]
    pub properties: Option<NamedSchemas>,
    #[prost(message, repeated, tag = "31")]
    pub vendor_extension: Vec<NamedAny>,
}

#[derive(Clone, PartialEq, Message)]
pub struct AdditionalProperties {
    #[prost(oneof = "AdditionalKind", tags = "1, 2")]
    pub kind: Option<AdditionalKind>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum AdditionalKind {
    #[prost(message, tag = "1")]
    Schema(Box<Schema>),
    #[prost(bool, tag = "2")]
    Boolean(bool),
}

#[derive(Clone, PartialEq, Message)]
pub struct Items {
    #[prost(message, repeated, tag = "1")]
    pub schema: Vec<Schema>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NamedSchemas {
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<NamedSchema>,
}

#[derive(Clone, PartialEq, Message)]
pub struct NamedSchema {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<Schema>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Strings {
    #[prost(string, repeated, tag = "1")]
    pub value: Vec<String>,
}

/// Any value, as YAML text. JSON is YAML, so JSON is written.
#[derive(Clone, PartialEq, Message)]
pub struct Any {
    #[prost(string, tag = "2")]
    pub yaml: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct NamedAny {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(message, optional, tag = "2")]
    pub value: Option<Any>,
}

/// Encodes an OpenAPI v2 document.
pub fn encode(document: &Value) -> Vec<u8> {
    convert::document(document).encode_to_vec()
}

/// Converts the JSON document to the messages. Missing values become empty, which protobuf does not
/// distinguish.
mod convert {
    use super::*;

    pub(super) fn document(document: &Value) -> Document {
        let info =
            Info { title: text(&document["info"]["title"]), version: text(&document["info"]["version"]) };
        let path = |(name, item): (&String, &Value)| NamedPathItem {
            name: name.clone(),
            value: Some(path_item(item)),
        };
        Document {
            swagger: text(&document["swagger"]),
            info: Some(info),
            paths: Some(Paths { path: fields(&document["paths"]).map(path).collect() }),
            definitions: Some(named_schemas(&document["definitions"])),
        }
    }

    fn path_item(item: &Value) -> PathItem {
        let of = |method: &str| item.get(method).map(operation);
        PathItem {
            get: of("get"),
            put: of("put"),
            post: of("post"),
            delete: of("delete"),
            patch: of("patch"),
            parameters: parameters(&item["parameters"]),
        }
    }

    fn operation(operation: &Value) -> Operation {
        let response = |(code, response): (&String, &Value)| {
            let schema = response.get("schema").map(|inner| SchemaItem { schema: Some(schema(inner)) });
            let response = Response { description: text(&response["description"]), schema };
            NamedResponse { name: code.clone(), value: Some(ResponseValue { response: Some(response) }) }
        };
        Operation {
            tags: texts(&operation["tags"]),
            description: text(&operation["description"]),
            operation_id: text(&operation["operationId"]),
            produces: texts(&operation["produces"]),
            consumes: texts(&operation["consumes"]),
            parameters: parameters(&operation["parameters"]),
            responses: Some(Responses {
                response_code: fields(&operation["responses"]).map(response).collect(),
            }),
            schemes: texts(&operation["schemes"]),
            vendor_extension: extensions(operation),
        }
    }

    fn parameters(parameters: &Value) -> Vec<ParametersItem> {
        let item = |value| ParametersItem { parameter: Some(Parameter { kind: Some(parameter(value)) }) };
        parameters.as_array().into_iter().flatten().map(item).collect()
    }

    fn parameter(value: &Value) -> ParameterKind {
        let (name, place) = (text(&value["name"]), text(&value["in"]));
        let description = text(&value["description"]);
        let required = value["required"] == true;
        let (cell, unique_items) = (text(&value["type"]), value["uniqueItems"] == true);
        let kind = match place.as_str() {
            "body" => {
                let schema = value.get("schema").map(schema);
                return ParameterKind::Body(Box::new(BodyParameter { name, place, required, schema }));
            }
            "path" => {
                NonBodyKind::Path(PathParameter { required, place, description, name, cell, unique_items })
            }
            _ => {
                NonBodyKind::Query(QueryParameter { required, place, description, name, cell, unique_items })
            }
        };
        ParameterKind::NonBody(NonBodyParameter { kind: Some(kind) })
    }

    fn named_schemas(schemas: &Value) -> NamedSchemas {
        let named =
            |(name, value): (&String, &Value)| NamedSchema { name: name.clone(), value: Some(schema(value)) };
        NamedSchemas { entries: fields(schemas).map(named).collect() }
    }

    fn schema(value: &Value) -> Schema {
        let additional = value.get("additionalProperties").map(|inner| match inner {
            Value::Bool(allowed) => AdditionalKind::Boolean(*allowed),
            inner => AdditionalKind::Schema(Box::new(schema(inner))),
        });
        Schema {
            reference: text(&value["$ref"]),
            format: text(&value["format"]),
            description: text(&value["description"]),
            default: value.get("default").map(any),
            maximum: value["maximum"].as_f64().unwrap_or_default(),
            minimum: value["minimum"].as_f64().unwrap_or_default(),
            max_length: value["maxLength"].as_i64().unwrap_or_default(),
            max_items: value["maxItems"].as_i64().unwrap_or_default(),
            required: texts(&value["required"]),
            enumeration: value["enum"].as_array().into_iter().flatten().map(any).collect(),
            additional_properties: additional.map(|kind| Box::new(AdditionalProperties { kind: Some(kind) })),
            types: value["type"].as_str().map(|name| Strings { value: vec![name.into()] }),
            items: value.get("items").map(|inner| Items { schema: vec![schema(inner)] }),
            properties: value.get("properties").map(named_schemas),
            vendor_extension: extensions(value),
        }
    }

    fn extensions(value: &Value) -> Vec<NamedAny> {
        let extensions = fields(value).filter(|(name, _)| name.starts_with("x-"));
        extensions.map(|(name, value)| NamedAny { name: name.clone(), value: Some(any(value)) }).collect()
    }

    fn any(value: &Value) -> Any {
        Any { yaml: format!("{value}\n") }
    }

    fn fields(value: &Value) -> impl Iterator<Item = (&String, &Value)> {
        value.as_object().into_iter().flat_map(Map::iter)
    }

    fn text(value: &Value) -> String {
        value.as_str().unwrap_or_default().into()
    }

    fn texts(value: &Value) -> Vec<String> {
        value.as_array().into_iter().flatten().map(text).collect()
    }
}
