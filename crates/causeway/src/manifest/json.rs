//! JSON documents as values: one after another in a text, keys only once, mistakes with line and column.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use crate::problem::ManifestProblem;

pub fn documents(name: &str, text: &str) -> Result<Vec<Value>, ManifestProblem> {
    let mut documents = Vec::new();
    for document in serde_json::Deserializer::from_str(text).into_iter::<Once>() {
        match document {
            Ok(Once(value)) => documents.push(value),
            Err(error) => return Err(problem(name, text, &error)),
        }
    }
    Ok(documents)
}

fn problem(name: &str, text: &str, error: &serde_json::Error) -> ManifestProblem {
    let whole = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let message = whole.strip_suffix(&place).unwrap_or(&whole).to_owned();
    // serde_json counts bytes; people count characters.
    let line = text.split('\n').nth(error.line().saturating_sub(1)).unwrap_or_default();
    let bytes = error.column().saturating_sub(1).min(line.len());
    let column = line.char_indices().take_while(|(index, _)| *index < bytes).count() + 1;
    ManifestProblem::at_line(name, text, error.line(), column, message)
}

/// A value in which no key occurs twice. The last one would win silently otherwise.
struct Once(Value);

impl<'de> Deserialize<'de> for Once {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Once, D::Error> {
        deserializer.deserialize_any(OnceVisitor).map(Once)
    }
}

struct OnceVisitor;

impl<'de> Visitor<'de> for OnceVisitor {
    type Value = Value;

    fn expecting(&self, out: &mut fmt::Formatter) -> fmt::Result {
        out.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("this number is not finite"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut all = Vec::new();
        while let Some(Once(item)) = items.next_element()? {
            all.push(item);
        }
        Ok(Value::Array(all))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut all = Map::new();
        while let Some(key) = fields.next_key::<String>()? {
            if all.contains_key(&key) {
                return Err(A::Error::custom(format!("key `{key}` occurs twice")));
            }
            let Once(value) = fields.next_value()?;
            all.insert(key, value);
        }
        Ok(Value::Object(all))
    }
}
