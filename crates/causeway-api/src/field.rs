//! Errors about single fields, in the format that Kubernetes clients know.
//!
//! A `FieldError` names the field by its path and shows the value, bounded, beside the allowed form.
//! `FieldErrors` collects them up to a maximum number.

use std::fmt;

use serde_json::Value;

/// One refused field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FieldError {
    /// Path of the field, for example `endpoints[1].port`.
    pub path: String,
    pub reason: FieldReason,
    /// The text after the path, for example `Invalid value: 0: a port is 1 to 65535`.
    pub message: String,
}

/// The reason why a field was refused; each becomes the `reason` of a cause in a `Status`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FieldReason {
    Required,
    Invalid,
    NotSupported,
    Duplicate,
    Forbidden,
    TooLong,
    TooMany,
    TypeInvalid,
}

impl FieldReason {
    /// The word in `details.causes[].reason`.
    pub fn cause(self) -> &'static str {
        match self {
            FieldReason::Required => "FieldValueRequired",
            FieldReason::Invalid => "FieldValueInvalid",
            FieldReason::NotSupported => "FieldValueNotSupported",
            FieldReason::Duplicate => "FieldValueDuplicate",
            FieldReason::Forbidden => "FieldValueForbidden",
            FieldReason::TooLong => "FieldValueTooLong",
            FieldReason::TooMany => "FieldValueTooMany",
            FieldReason::TypeInvalid => "FieldValueTypeInvalid",
        }
    }
}

impl FieldError {
    /// The field is missing; `fix` says what to write there.
    pub fn required(path: impl Into<String>, fix: impl fmt::Display) -> FieldError {
        FieldError::build(path, FieldReason::Required, format!("Required value: {fix}"))
    }

    /// The value cannot be used; `allowed` says what can.
    pub fn invalid(
        path: impl Into<String>,
        value: impl Into<Value>,
        allowed: impl fmt::Display,
    ) -> FieldError {
        let shown = show(&value.into());
        FieldError::build(path, FieldReason::Invalid, format!("Invalid value: {shown}: {allowed}"))
    }

    /// The value is not one of a fixed set.
    pub fn not_supported(path: impl Into<String>, value: impl Into<Value>, supported: &[&str]) -> FieldError {
        let shown = show(&value.into());
        let list = supported.iter().map(|s| format!("\"{s}\"")).collect::<Vec<_>>().join(", ");
        FieldError::build(
            path,
            FieldReason::NotSupported,
            format!("Unsupported value: {shown}: supported values: {list}"),
        )
    }

    pub fn duplicate(path: impl Into<String>, value: impl Into<Value>) -> FieldError {
        let shown = show(&value.into());
        let message = format!("Duplicate value: {shown}: the entries of this list must be unique");
        FieldError::build(path, FieldReason::Duplicate, message)
    }

    pub fn forbidden(path: impl Into<String>, why: impl fmt::Display) -> FieldError {
        FieldError::build(path, FieldReason::Forbidden, format!("Forbidden: {why}"))
    }

    pub fn too_long(path: impl Into<String>, value: &str, bytes_max: usize) -> FieldError {
        let (shown, length) = (show(&value.into()), value.len());
        let message = format!("Too long: {shown}: it has {length} bytes, at most {bytes_max} are allowed");
        FieldError::build(path, FieldReason::TooLong, message)
    }

    pub fn too_many(path: impl Into<String>, count: usize, count_max: usize) -> FieldError {
        let message = format!("Too many: {count}: must have at most {count_max} items");
        FieldError::build(path, FieldReason::TooMany, message)
    }

    /// The JSON type is wrong; `what` says which was found and which is expected.
    pub fn wrong_type(path: impl Into<String>, what: impl fmt::Display) -> FieldError {
        FieldError::build(path, FieldReason::TypeInvalid, format!("Invalid type: {what}"))
    }

    fn build(path: impl Into<String>, reason: FieldReason, message: String) -> FieldError {
        FieldError { path: path.into(), reason, message }
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

impl std::error::Error for FieldError {}

/// Collects the errors of one object.
#[derive(Default, Debug)]
pub struct FieldErrors(Vec<FieldError>);

// More errors than an author repairs at a time; a list of 10,000 bad names must not become a response of
// megabytes.
const ERRORS_MAX: usize = 64;

impl FieldErrors {
    pub fn push(&mut self, error: FieldError) {
        if self.0.len() < ERRORS_MAX {
            self.0.push(error);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn into_vec(self) -> Vec<FieldError> {
        self.0
    }
}

/// A value as it is shown in a message: quoted, control characters escaped, cut when long.
pub fn show(value: &Value) -> String {
    match value {
        Value::String(text) => match text.char_indices().nth(SHOWN_MAX) {
            Some((end, _)) => format!("{}…", quote(&text[..end])),
            None => quote(text),
        },
        Value::Array(_) => "[…]".into(),
        Value::Object(_) => "{…}".into(),
        scalar => scalar.to_string(),
    }
}

// Long enough for every legal address and for the distinctive part of a name.
const SHOWN_MAX: usize = 80;

fn quote(text: &str) -> String {
    Value::from(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_shows_the_value_and_what_is_allowed() {
        let error = FieldError::invalid("endpoints[1].port", 0, "a port is 1 to 65535");
        assert_eq!(error.to_string(), "endpoints[1].port: Invalid value: 0: a port is 1 to 65535");
        let error = FieldError::not_supported("protocol", "tcp", &["TCP", "UDP"]);
        assert_eq!(
            error.to_string(),
            "protocol: Unsupported value: \"tcp\": supported values: \"TCP\", \"UDP\""
        );
    }

    #[test]
    fn a_long_or_strange_value_stays_short_and_printable() {
        let error = FieldError::invalid("ip", "ä".repeat(1_000_000), "no");
        assert!(error.message.len() < 300);
        assert_eq!(show(&"a\n\u{1b}[31m\"".into()), r#""a\n\u001b[31m\"""#);
    }

    #[test]
    fn the_collection_is_bounded() {
        let mut errors = FieldErrors::default();
        (0..10_000).for_each(|_| errors.push(FieldError::required("a", "b")));
        assert_eq!(errors.into_vec().len(), ERRORS_MAX);
    }
}
