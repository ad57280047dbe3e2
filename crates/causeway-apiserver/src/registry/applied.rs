//! Reads the configuration of a server-side apply.
//!
//! Pure. Fields that no kind has are removed before ownership is computed, or a manager would own fields that
//! do not exist.

use causeway_api::{ApiVersion, Kind, Object, Status, ownership};
use serde_json::Value;

use super::admit;
use super::write::keep_name;
use crate::body::ParsedBody;
use crate::errors::ErrorSubject;
use crate::request::options::FieldValidation;

/// Parses an applied configuration: the value without unknown fields, the object it makes, and the warnings.
pub fn read_applied(
    about: ErrorSubject<'_>,
    parsed: ParsedBody,
    validation: FieldValidation,
) -> Result<(Value, Object, Vec<String>), Status> {
    let ErrorSubject { version, kind, name } = about;
    admit::check_type(kind, version, &parsed.value)?;
    check_type_given(kind, version, &parsed.value)?;
    let decoded = Object::decode_or_explain(kind, admit::stored_names(version, parsed.value))
        .map_err(|errors| Status::invalid(version, kind, name, &errors))?;
    let warnings = admit::judge_fields(kind, version, &decoded.unknown, &parsed.duplicates, validation)?;
    let mut value = decoded.document;
    // Both versions name the same fields; ownership compares with the one of the path.
    value["apiVersion"] = version.as_str().into();
    value["kind"] = kind.name().into();
    let mut object = decoded.object;
    keep_name(about, &mut object)?;
    Ok((value, object, warnings))
}

/// Checks that an applied configuration states its kind and version. Uses the texts of Kubernetes where there
/// are some.
fn check_type_given(kind: Kind, version: ApiVersion, value: &Value) -> Result<(), Status> {
    let text = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    if text("apiVersion").is_empty() {
        let message = ownership::ServerSideApplyError::WrongVersion {
            found: String::new(),
            expected: version.as_str().to_owned(),
        };
        return Err(Status::bad_request(message));
    }
    if text("kind").is_empty() {
        let message = format!("kind must be set in an apply patch, expected: {kind}");
        return Err(Status::bad_request(message));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_configuration_says_what_it_is_and_keeps_only_what_is_known() {
        let about = ErrorSubject { version: ApiVersion::Group, kind: Kind::EService, name: "a" };
        let check = |value: Value, expected: Result<Value, u16>| {
            let parsed = ParsedBody { value: value.clone(), duplicates: Vec::new() };
            let found = read_applied(about, parsed, FieldValidation::Ignore);
            assert_eq!(found.map(|(value, ..)| value).map_err(|status| status.code), expected, "{value}");
        };
        check(json!({"kind": "EService"}), Err(400));
        check(json!({"apiVersion": "v1"}), Err(400));
        check(json!({"kind": "EService", "apiVersion": ""}), Err(400));
        check(
            json!({"kind": "EService", "apiVersion": "v1", "port": 80, "colour": 1, "endpoints": [{"ip": "x", "f": 3, "port": null}]}),
            Ok(
                json!({"kind": "EService", "apiVersion": "causeway.io/v1", "port": 80, "endpoints": [{"ip": "x"}]}),
            ),
        );
        let many: serde_json::Map<String, Value> = (0..500).map(|n| (format!("x{n}"), json!(1))).collect();
        let mut many = Value::Object(many);
        many["kind"] = "EService".into();
        many["apiVersion"] = "v1".into();
        check(many, Ok(json!({"kind": "EService", "apiVersion": "causeway.io/v1"})));
    }
}
