//! Decodes a client's JSON into an object.
//!
//! Wrong types are refused with the path of the field. Unknown fields are removed and their paths reported;
//! the client chooses whether that is a warning or an error. The input may be nested to any depth: values
//! that are too deep are dropped without recursion.

use serde_json::{Map, Value};

use crate::field::{FieldError, FieldReason};
use crate::object::{Decoded, Object};
use crate::{Kind, schema};

// The depth that serde_json allows when it parses text; values built by patches must not get deeper either.
const DEPTH_MAX: usize = 128;
// A client that sends more unknown fields than this has sent another kind of document.
const UNKNOWN_MAX: usize = 100;

// A client that makes more mistakes of this sort has sent another kind of document; each costs a walk over
// the value.
const WRONG_MAX: usize = 16;

/// The result of reading a value. Without `wrong`, there is an object.
struct Reading {
    object: Option<Object>,
    document: Value,
    unknown: Vec<String>,
    /// Values of the wrong type. In `document` each is replaced by a neutral value.
    wrong: Vec<FieldError>,
}

impl Object {
    /// Reads an object of `kind`. The caller compares `kind` and `apiVersion` inside; null means absent, as
    /// in Kubernetes. Returns the errors of all fields with a wrong type.
    pub fn decode(kind: Kind, value: Value) -> Result<Decoded, Vec<FieldError>> {
        let Reading { object, document, unknown, wrong } = read(kind, value);
        match object {
            Some(object) if wrong.is_empty() => Ok(Decoded { object, document, unknown }),
            _ => Err(wrong),
        }
    }

    /// The same, with all other errors of the object beside its wrong types: no mistake hides another.
    pub fn decode_or_explain(kind: Kind, value: Value) -> Result<Decoded, Vec<FieldError>> {
        let Reading { object, document, unknown, mut wrong } = read(kind, value);
        match object {
            Some(object) if wrong.is_empty() => Ok(Decoded { object, document, unknown }),
            Some(object) => {
                let more = further_errors(kind, object, &document, &wrong);
                wrong.extend(more);
                Err(wrong)
            }
            None => Err(wrong),
        }
    }

    /// Reads the stored form, which `encode` wrote.
    pub fn from_stored(kind: Kind, stored: &[u8]) -> Result<Object, serde_json::Error> {
        Object::deserialize(kind, &mut serde_json::Deserializer::from_slice(stored))
    }
}

fn read(kind: Kind, value: Value) -> Reading {
    let unreadable = |error: FieldError| Reading {
        object: None,
        document: Value::Null,
        unknown: Vec::new(),
        wrong: vec![error],
    };
    if !is_shallow(&value) {
        dismantle(value);
        return unreadable(FieldError::invalid("", "{…}", format!("nested deeper than {DEPTH_MAX} levels")));
    }
    let Value::Object(mut fields) = value else {
        let what = format!("expected an object, found {}", type_name(&value));
        return unreadable(FieldError::wrong_type("", what));
    };
    fields.remove("kind");
    fields.remove("apiVersion");
    drop_nulls(&mut fields);
    let mut document = Value::Object(fields);

    let mut findings = Findings::default();
    findings.walk(schema::of(kind), &mut document, &mut String::new());
    let Findings { unknown, mut wrong } = findings;
    loop {
        let mut track = serde_path_to_error::Track::new();
        let deserializer = serde_path_to_error::Deserializer::new(&document, &mut track);
        let error = match Object::deserialize(kind, deserializer) {
            Ok(object) => return Reading { object: Some(object), document, unknown, wrong },
            Err(error) => refusal(track.path().to_string(), &error),
        };
        // A value of the right type in its place makes the next mistake visible. If that did not help, the
        // search ends.
        let is_new = !wrong.iter().any(|known| known.path == error.path);
        let path = error.path.clone();
        if is_new && wrong.len() < WRONG_MAX {
            wrong.push(error);
        }
        let replaced = is_new
            && wrong.len() < WRONG_MAX
            && !path.is_empty()
            && replace_by_neutral(schema::of(kind), &mut document, &path).is_some();
        if !replaced {
            return Reading { object: None, document, unknown, wrong };
        }
    }
}

/// Returns the errors of an object beside the values of a wrong type, which were replaced by neutral ones.
fn further_errors(kind: Kind, mut object: Object, document: &Value, wrong: &[FieldError]) -> Vec<FieldError> {
    object.default_fields();
    let required = schema::of(kind).get("required").and_then(Value::as_array);
    let is_needed = |path: &str| {
        required.is_some_and(|names| names.iter().any(|name| name == path)) && document.get(path).is_none()
    };
    let is_own = |error: &FieldError| {
        let replaced = wrong.iter().any(|wrong| is_within(&error.path, &wrong.path));
        !replaced && (error.reason != FieldReason::Required || is_needed(&error.path))
    };
    let mut errors = object.validate(None);
    let zeros = crate::document::refused_zeros(kind, document);
    errors.extend(zeros.into_iter().filter(|zero| !wrong.iter().any(|wrong| wrong.path == zero.path)));
    errors.retain(is_own);
    errors
}

fn is_within(path: &str, place: &str) -> bool {
    path.strip_prefix(place).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Replaces the value at `path`, such as `endpoints[1].port`, by a neutral value of the type in the schema.
fn replace_by_neutral(schema: &Value, value: &mut Value, path: &str) -> Option<()> {
    if path.is_empty() {
        *value = neutral(schema)?;
        return Some(());
    }
    if let Some(rest) = path.strip_prefix('[') {
        let (index, rest) = rest.split_once(']')?;
        let item = value.get_mut(index.parse::<usize>().ok()?)?;
        return replace_by_neutral(schema.get("items")?, item, rest.strip_prefix('.').unwrap_or(rest));
    }
    // Keys of a map may contain dots and brackets; names of fields do not.
    if let Some(schema) = schema.get("additionalProperties") {
        return replace_by_neutral(schema, value.get_mut(path)?, "");
    }
    let end = path.find(['.', '[']).unwrap_or(path.len());
    let (name, rest) = path.split_at(end);
    let schema = schema.get("properties")?.get(name)?;
    replace_by_neutral(schema, value.get_mut(name)?, rest.strip_prefix('.').unwrap_or(rest))
}

fn neutral(schema: &Value) -> Option<Value> {
    if let Some(first) = schema.get("enum").and_then(|values| values.get(0)) {
        return Some(first.clone());
    }
    match schema.get("type")?.as_str()? {
        "string" if schema.get("format").is_some_and(|format| format == "date-time") => {
            Some("1970-01-01T00:00:00Z".into())
        }
        "string" => Some("".into()),
        "integer" => Some(0.into()),
        "boolean" => Some(false.into()),
        "array" => Some(Value::Array(Vec::new())),
        "object" => Some(Value::Object(Map::new())),
        _ => None,
    }
}

/// Returns the field that the author of an unknown field may have meant: the nearest by spelling at the same
/// level.
pub fn nearest_field(kind: Kind, unknown: &str) -> Option<String> {
    let (place, name) = unknown.rsplit_once('.').unwrap_or(("", unknown));
    let mut schema = schema::of(kind);
    for step in place.split('.').filter(|step| !step.is_empty()) {
        let (field, index) = step.split_once('[').map_or((step, None), |(field, rest)| (field, Some(rest)));
        schema = schema.get("properties")?.get(field)?;
        if index.is_some() {
            schema = schema.get("items")?;
        }
    }
    let names = schema.get("properties")?.as_object()?.keys();
    nearest(names.map(String::as_str), name).map(str::to_owned)
}

/// Returns the word with the fewest edits to `written`, unless the distance is too large.
pub fn nearest<'a>(words: impl Iterator<Item = &'a str>, written: &str) -> Option<&'a str> {
    // Longer than every existing name; also keeps the table small.
    const LENGTH_MAX: usize = 64;
    if written.chars().count() > LENGTH_MAX {
        return None;
    }
    let edits_max = 1 + written.chars().count() / 4;
    let counted = words.map(|word| (edits(&word.to_lowercase(), &written.to_lowercase()), word));
    counted.filter(|(edits, _)| *edits <= edits_max).min_by_key(|(edits, _)| *edits).map(|(_, word)| word)
}

/// The Levenshtein distance: insertions, deletions and substitutions.
fn edits(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (above, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = above + 1;
        for (index, other) in to.iter().enumerate() {
            let changed = diagonal + usize::from(letter != *other);
            diagonal = row[index + 1];
            row[index + 1] = changed.min(diagonal + 1).min(row[index] + 1);
        }
    }
    row[to.len()]
}

/// Translates an error of serde: the found and the expected value.
fn refusal(path: String, error: &serde_json::Error) -> FieldError {
    let path = if path == "." { String::new() } else { path };
    let text = error.to_string();
    if let Some(rest) = text.strip_prefix("unknown variant ") {
        let (found, supported) = rest.split_once(", expected ").unwrap_or((rest, ""));
        let supported = supported.trim_start_matches("one of ").replace('`', "\"");
        let shown = crate::field::show(&found.trim_matches('`').into());
        return FieldError {
            path,
            reason: FieldReason::NotSupported,
            message: format!("Unsupported value: {shown}: supported values: {supported}"),
        };
    }
    let (found, expected) = text.split_once(", expected ").unwrap_or((&text, ""));
    let found = found.trim_start_matches("invalid type: ").trim_start_matches("invalid value: ");
    let found: String = found.chars().take(120).collect();
    match expected {
        "" => FieldError::wrong_type(path, found),
        expected => FieldError::wrong_type(path, format!("expected {}, found {found}", plain(expected))),
    }
}

fn plain(expected: &str) -> &str {
    match expected {
        "i64" => "an integer",
        "a sequence" => "a list",
        "a map" => "an object",
        "a boolean" => "true or false",
        other if other.starts_with("struct ") => "an object",
        other => other,
    }
}

fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// Tells whether the value is shallow enough to be walked by recursion. Does not recurse itself.
pub fn is_shallow(value: &Value) -> bool {
    let mut open = vec![(value, 1)];
    while let Some((value, depth)) = open.pop() {
        let children: &mut dyn Iterator<Item = &Value> = match value {
            Value::Array(items) => &mut items.iter(),
            Value::Object(fields) => &mut fields.values(),
            _ => continue,
        };
        if depth > DEPTH_MAX {
            return false;
        }
        open.extend(
            children.filter(|child| child.is_array() || child.is_object()).map(|child| (child, depth + 1)),
        );
    }
    true
}

/// Drops a value of any depth. Its own drop recurses and could overflow the stack.
pub fn dismantle(value: Value) {
    let mut open = vec![value];
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => open.extend(fields.into_iter().map(|(_, value)| value)),
            _ => {}
        }
    }
}

fn drop_nulls(fields: &mut Map<String, Value>) {
    fields.retain(|_, value| !value.is_null());
    for value in fields.values_mut() {
        drop_nulls_in(value);
    }
}

fn drop_nulls_in(value: &mut Value) {
    match value {
        Value::Object(fields) => drop_nulls(fields),
        Value::Array(items) => items.iter_mut().for_each(drop_nulls_in),
        _ => {}
    }
}

/// Findings of the schema that serde would not report.
#[derive(Default)]
struct Findings {
    unknown: Vec<String>,
    /// Positions of a list in place of an object. Serde would read its items as the fields, in the order of
    /// their declaration.
    wrong: Vec<FieldError>,
}

impl Findings {
    /// Walks value and schema side by side, and removes fields that the schema does not know. Recursion is as
    /// deep as the schema, not as the value.
    fn walk(&mut self, schema: &Value, value: &mut Value, path: &mut String) {
        let length = path.len();
        let properties = schema.get("properties").and_then(Value::as_object);
        match (value, properties) {
            (Value::Object(fields), Some(properties)) => fields.retain(|key, value| {
                if !path.is_empty() {
                    path.push('.');
                }
                path.push_str(key);
                let known = properties.get(key);
                match known {
                    Some(schema) => self.walk(schema, value, path),
                    None if self.unknown.len() < UNKNOWN_MAX => {
                        self.unknown.push(path.chars().take(256).collect());
                    }
                    None => {}
                }
                path.truncate(length);
                known.is_some()
            }),
            (value @ Value::Array(_), Some(_)) => {
                if self.wrong.len() < WRONG_MAX {
                    let what = "expected an object, found a list";
                    self.wrong.push(FieldError::wrong_type(path.clone(), what));
                }
                *value = Value::Object(Map::new());
            }
            (Value::Array(items), None) => {
                let Some(schema) = schema.get("items") else { return };
                for (index, value) in items.iter_mut().enumerate() {
                    path.push_str(&format!("[{index}]"));
                    self.walk(schema, value, path);
                    path.truncate(length);
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
