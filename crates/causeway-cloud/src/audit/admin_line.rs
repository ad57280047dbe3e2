//! A line of the administrative journal. It is shown as it is stored: only this cloud writes it, and without secrets.

use serde_json::{Map, Value};

#[derive(Debug, Clone, PartialEq)]
pub struct AdminLine {
    fields: Map<String, Value>,
}

impl AdminLine {
    pub fn parse(text: &[u8]) -> Option<AdminLine> {
        match serde_json::from_slice(text) {
            Ok(Value::Object(fields)) => Some(AdminLine { fields }),
            _ => None,
        }
    }

    pub fn text(&self, field: &str) -> &str {
        self.fields.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    pub fn time(&self) -> &str {
        self.text("time")
    }

    /// Set on lines that are no records but tell of lost ones.
    pub fn event(&self) -> Option<&str> {
        self.fields.get("event").and_then(Value::as_str)
    }

    pub fn lost(&self) -> u64 {
        self.fields.get("lost").and_then(Value::as_u64).unwrap_or_default()
    }

    /// With its end of line.
    pub fn told(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(&self.fields).expect("a JSON object is always written to memory");
        text.push(b'\n');
        text
    }
}
