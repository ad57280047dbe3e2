//! Reads the configuration of a server-side apply.
//!
//! Pure. Fields that no kind has are taken out before ownership sees them, or somebody would own what is not there.

use causeway_api::{Object, Status};
use serde_json::Value;

use super::admit;
use super::write::keep_name;
use crate::body::Parsed;
use crate::errors::About;
use crate::request::options::FieldValidation;

/// An applied configuration: the value without what no kind has, the object it makes, and the warnings.
pub fn read_applied(
    about: About<'_>,
    parsed: Parsed,
    validation: FieldValidation,
) -> Result<(Value, Object, Vec<String>), Status> {
    let About { version, kind, name } = about;
    let mut value = parsed.value;
    admit::check_type(kind, version, &value)?;
    // Both versions name the same fields; ownership compares with the one of the path.
    value["apiVersion"] = version.as_str().into();
    value["kind"] = kind.name().into();
    let decoded = Object::decode(kind, value.clone())
        .map_err(|errors| Status::invalid(version, kind, name, &errors))?;
    let warnings = admit::judge_fields(kind, version, &decoded.unknown, &parsed.duplicates, validation)?;
    for path in &decoded.unknown {
        remove_path(&mut value, path);
    }
    let mut object = decoded.object;
    keep_name(about, &mut object)?;
    Ok((value, object, warnings))
}

/// Takes out the field at a path such as `endpoints[1].colour`.
fn remove_path(value: &mut Value, path: &str) {
    match value {
        Value::Object(fields) => {
            if fields.remove(path).is_some() {
                return;
            }
            for (key, child) in fields.iter_mut() {
                match path.strip_prefix(key.as_str()) {
                    Some(rest) if rest.starts_with('[') => remove_path(child, rest),
                    Some(rest) if rest.starts_with('.') => remove_path(child, &rest[1..]),
                    _ => {}
                }
            }
        }
        Value::Array(items) => {
            let Some((index, rest)) = path.strip_prefix('[').and_then(|path| path.split_once(']')) else {
                return;
            };
            let child = index.parse::<usize>().ok().and_then(|index| items.get_mut(index));
            if let Some(child) = child {
                remove_path(child, rest.strip_prefix('.').unwrap_or(rest));
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_path_leads_to_its_field_even_when_names_have_dots() {
        let check = |path: &str, expected: Value| {
            let mut value = json!({"a": {"b.c": 1, "d": [{"e": 1}, {"e": 2, "f": 3}]}, "a.x": 4});
            remove_path(&mut value, path);
            assert_eq!(value, expected, "{path}");
        };
        check("a.b.c", json!({"a": {"d": [{"e": 1}, {"e": 2, "f": 3}]}, "a.x": 4}));
        check("a.d[1].f", json!({"a": {"b.c": 1, "d": [{"e": 1}, {"e": 2}]}, "a.x": 4}));
        check("a.x", json!({"a": {"b.c": 1, "d": [{"e": 1}, {"e": 2, "f": 3}]}}));
        check("a.d[7].f", json!({"a": {"b.c": 1, "d": [{"e": 1}, {"e": 2, "f": 3}]}, "a.x": 4}));
    }
}
