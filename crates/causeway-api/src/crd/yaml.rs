//! Writes a JSON value as block YAML.
//!
//! The input is always our own. Strings that YAML could read as another type are quoted as JSON, which is
//! YAML too.

use serde_json::Value;

/// The value as a YAML document.
pub(super) fn write(value: &Value) -> String {
    let mut out = String::new();
    block(&mut out, value, 0);
    out
}

fn block(out: &mut String, value: &Value, indent: usize) {
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (key, value) in fields {
                out.push_str(&" ".repeat(indent));
                out.push_str(&scalar(&Value::from(key.as_str())));
                out.push(':');
                entry(out, value, indent + 2);
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                out.push_str(&" ".repeat(indent));
                out.push('-');
                item_entry(out, item, indent + 2);
            }
        }
        other => {
            out.push_str(&scalar(other));
            out.push('\n');
        }
    }
}

/// Writes the value after "key:": on the same line when it is a scalar, on the next lines otherwise.
fn entry(out: &mut String, value: &Value, indent: usize) {
    if is_nested(value) {
        out.push('\n');
        block(out, value, indent);
    } else {
        out.push(' ');
        block(out, value, indent);
    }
}

/// Writes the value after "-": a nested value begins on the same line, as is usual.
fn item_entry(out: &mut String, value: &Value, indent: usize) {
    out.push(' ');
    let start = out.len();
    block(out, value, indent);
    if is_nested(value) {
        out.replace_range(start..start + indent, "");
    }
}

fn is_nested(value: &Value) -> bool {
    match value {
        Value::Object(fields) => !fields.is_empty(),
        Value::Array(items) => !items.is_empty(),
        _ => false,
    }
}

fn scalar(value: &Value) -> String {
    match value {
        Value::String(text) if is_plain(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Tells whether the text needs no quotes. True only for words that no YAML reader takes for another type.
fn is_plain(text: &str) -> bool {
    let reserved = ["true", "false", "yes", "no", "on", "off", "null", "y", "n"];
    text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-./_ ,;()".contains(&byte))
        && !text.ends_with(' ')
        && !reserved.contains(&text.to_ascii_lowercase().as_str())
}
