//! Parses the body of a request into a JSON value.
//!
//! Reads JSON and YAML, limits their depth, and reports duplicate keys, of which a JSON library silently
//! keeps one. The size is limited earlier, when the bytes are read.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::request::media::BodyFormat;

#[derive(Debug, PartialEq)]
pub struct ParsedBody {
    pub value: Value,
    /// Paths of duplicate keys in one object; the last value is kept, as in Kubernetes.
    pub duplicates: Vec<String>,
}

/// The body is neither JSON nor YAML, or is nested too deeply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct UnreadableBody(String);

// The limit of serde_json, applied to YAML as well.
const DEPTH_MAX: usize = 128;
// Enough to find the mistake; a body made of duplicates must not cause a response of megabytes.
const DUPLICATES_MAX: usize = 32;

pub fn parse(format: BodyFormat, bytes: &[u8]) -> Result<ParsedBody, UnreadableBody> {
    match format {
        BodyFormat::Json => parse_json(bytes),
        // kubectl sends JSON under the YAML type of server-side apply; the JSON parser is ten times as fast.
        BodyFormat::Yaml if bytes.trim_ascii_start().starts_with(b"{") => {
            parse_json(bytes).or_else(|_| parse_yaml(bytes))
        }
        BodyFormat::Yaml => parse_yaml(bytes),
    }
}

fn parse_json(bytes: &[u8]) -> Result<ParsedBody, UnreadableBody> {
    let mut findings = Findings::default();
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = findings.deserialize(&mut deserializer).and_then(|value| deserializer.end().map(|()| value));
    let value = value.map_err(|error| UnreadableBody(bounded(error.to_string())))?;
    Ok(ParsedBody { value, duplicates: findings.duplicates })
}

fn parse_yaml(bytes: &[u8]) -> Result<ParsedBody, UnreadableBody> {
    let mut options = serde_saphyr::Options::default();
    options.duplicate_keys = serde_saphyr::DuplicateKeyPolicy::LastWins;
    // `NO` in `country: NO` is a text, not a boolean.
    options.strict_booleans = true;
    let wrapped: Wrapped = serde_saphyr::from_slice_with_options(bytes, options)
        .map_err(|error| UnreadableBody(bounded(error.to_string())))?;
    Ok(wrapped.0)
}

// Error texts quote the input, which can be large.
fn bounded(text: String) -> String {
    text.chars().take(400).collect()
}

/// Runs a seed in a parser that needs a type.
struct Wrapped(ParsedBody);

impl<'de> serde::Deserialize<'de> for Wrapped {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Wrapped, D::Error> {
        let mut findings = Findings::default();
        let value = findings.deserialize(deserializer)?;
        Ok(Wrapped(ParsedBody { value, duplicates: findings.duplicates }))
    }
}

/// The current path in the document, and the duplicate keys found so far.
#[derive(Default)]
struct Findings {
    path: String,
    depth: usize,
    duplicates: Vec<String>,
}

impl Findings {
    fn descend<T, E: Error>(&mut self, walk: impl FnOnce(&mut Findings) -> Result<T, E>) -> Result<T, E> {
        if self.depth >= DEPTH_MAX {
            return Err(E::custom(format!("nested deeper than {DEPTH_MAX} levels")));
        }
        self.depth += 1;
        let result = walk(self);
        self.depth -= 1;
        result
    }

    /// Runs `walk` with one more step on the path.
    fn step<T>(&mut self, step: fmt::Arguments<'_>, walk: impl FnOnce(&mut Findings) -> T) -> T {
        let length = self.path.len();
        // The path of deeply nested long keys must not grow without bound; the part that is cut off is only
        // part of a message.
        if length < 512 {
            let _ = fmt::write(&mut self.path, step);
        }
        let result = walk(self);
        self.path.truncate(length);
        result
    }

    fn report_duplicate(&mut self) {
        if self.duplicates.len() < DUPLICATES_MAX {
            self.duplicates.push(self.path.chars().take(256).collect());
        }
    }
}

impl<'de> DeserializeSeed<'de> for &mut Findings {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for &mut Findings {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("a number must be finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.descend(|findings| {
            let mut items = Vec::new();
            loop {
                let index = items.len();
                match findings
                    .step(format_args!("[{index}]"), |findings| access.next_element_seed(findings))?
                {
                    Some(item) => items.push(item),
                    None => return Ok(Value::Array(items)),
                }
            }
        })
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.descend(|findings| {
            let mut fields = Map::new();
            while let Some(key) = access.next_key::<String>()? {
                let dot = if findings.path.is_empty() { "" } else { "." };
                let value = findings.step(format_args!("{dot}{key}"), |findings| {
                    if fields.contains_key(&key) {
                        findings.report_duplicate();
                    }
                    access.next_value_seed(findings)
                })?;
                fields.insert(key, value);
            }
            Ok(Value::Object(fields))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_that_stand_twice_are_reported_and_the_last_counts() {
        let text = br#"{"a":1,"b":{"c":1,"c":2},"d":[{"e":1},{"e":1,"e":2}],"a":3}"#;
        let parsed = parse(BodyFormat::Json, text).unwrap();
        assert_eq!(parsed.value, json!({"a":3,"b":{"c":2},"d":[{"e":1},{"e":2}]}));
        assert_eq!(parsed.duplicates, ["b.c", "d[1].e", "a"]);
        let parsed = parse(BodyFormat::Yaml, b"a: 1\nb:\n  c: 1\n  c: 2\na: 3\n").unwrap();
        assert_eq!(parsed.value, json!({"a":3,"b":{"c":2}}));
        assert_eq!(parsed.duplicates, ["b.c", "a"]);
    }

    #[test]
    fn yaml_reads_as_kubernetes_users_write_it() {
        let text = b"# a site\nkind: ESite\nmetadata:\n  name: \"42\"\n  labels: {a: b, c: 'true'}\nn: 0\nt: true\nno: NO\nx: ~\nl:\n- 1\n- 2.5\n";
        let parsed = parse(BodyFormat::Yaml, text).unwrap();
        assert_eq!(
            parsed.value,
            json!({"kind":"ESite","metadata":{"name":"42","labels":{"a":"b","c":"true"}},"n":0,"t":true,"no":"NO","x":null,"l":[1,2.5]})
        );
    }

    #[test]
    fn depth_is_bounded_and_garbage_is_refused() {
        let deep = |open: &str, close: &str, n: usize| format!("{}{}", open.repeat(n), close.repeat(n));
        assert!(parse(BodyFormat::Json, deep("[", "]", 100).as_bytes()).is_ok());
        for (format, bytes) in [
            (BodyFormat::Json, deep("[", "]", 100_000)),
            (BodyFormat::Json, deep(r#"{"a":"#, "", 100_000)),
            (BodyFormat::Yaml, deep("[", "]", 100_000)),
            (BodyFormat::Yaml, deep("{a: ", "}", 500)),
            (BodyFormat::Yaml, "- ".repeat(100_000)),
            (BodyFormat::Yaml, "a: &a [x,x,x]\nb: &b [*a,*a,*a]\n".to_owned() + &"c: *b\nd: [*b".repeat(2)),
            (BodyFormat::Yaml, "a: .inf".to_owned()),
            (BodyFormat::Json, "{}{}".to_owned()),
            (BodyFormat::Json, String::new()),
            (BodyFormat::Json, "{\"a\":1e999}".to_owned()),
        ] {
            let refused = parse(format, bytes.as_bytes());
            assert!(refused.is_err(), "{:.40}", bytes);
            assert!(refused.unwrap_err().0.len() < 2_000);
        }
        assert!(parse(BodyFormat::Yaml, &[0xff, 0xfe, 0x00]).is_err());
        assert!(parse(BodyFormat::Json, b"\xff").is_err());
    }
}
