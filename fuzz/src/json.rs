//! Mutates inputs made of JSON documents as trees, so that most of what a target sees gets past the JSON parser.
//!
//! An input is one or more documents, one after another. Every change is small: a field renamed, a value replaced, a
//! branch copied from elsewhere. Words come from the schemas of our kinds and from the forms that servers give a meaning.

use std::sync::LazyLock;

use causeway_api::{Kind, schema};
use serde_json::{Map, Value, json};

/// All documents of an input, or nothing when it is not made of JSON.
pub fn documents(data: &[u8]) -> Option<Vec<Value>> {
    serde_json::Deserializer::from_slice(data).into_iter::<Value>().collect::<Result<_, _>>().ok()
}

/// The kind a document says it is; ESite when it says nothing we know.
pub fn kind_of(document: &Value) -> Kind {
    document.get("kind").and_then(Value::as_str).and_then(Kind::from_name).unwrap_or(Kind::ESite)
}

/// A mutator for `fuzz_mutator!`. One time in eight bytes are changed instead, so that the JSON parser is tried as well.
pub fn mutate(data: &mut [u8], size: usize, size_max: usize, seed: u32) -> usize {
    let mut dice = Dice(u64::from(seed) << 1 | 1);
    let documents = if dice.below(8) == 0 { None } else { documents(&data[..size]) };
    let Some(mut documents) = documents.filter(|documents| !documents.is_empty()) else {
        return libfuzzer_sys::fuzzer_mutate(data, size, size_max);
    };
    for _ in 0..=dice.below(3) {
        change(&mut documents, &mut dice);
    }
    let text = documents.iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    if text.len() > size_max {
        return libfuzzer_sys::fuzzer_mutate(data, size, size_max);
    }
    data[..text.len()].copy_from_slice(text.as_bytes());
    text.len()
}

/// Numbers that follow from a seed, as libFuzzer wants it: the same seed, the same mutation.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        // xorshift64*: short, and even enough to choose branches.
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % bound.max(1)
    }

    fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len())]
    }
}

fn change(documents: &mut [Value], dice: &mut Dice) {
    let donor = dice.below(documents.len());
    let donor = branch(&mut documents[donor], dice).clone();
    let chosen = dice.below(documents.len());
    let target = branch(&mut documents[chosen], dice);
    match (dice.below(8), target) {
        (0 | 1, Value::Object(fields)) => drop(fields.insert(name(dice), donor)),
        (2, Value::Object(fields)) => drop(fields.insert(name(dice), scalar(dice))),
        (3, Value::Object(fields)) => rename(fields, dice),
        (4, Value::Object(fields)) => {
            if let Some(gone) = fields.keys().nth(dice.below(fields.len())).cloned() {
                fields.remove(&gone);
            }
        }
        (0 | 1, Value::Array(items)) => items.push(donor),
        (2, Value::Array(items)) => items.push(scalar(dice)),
        (3, Value::Array(items)) if !items.is_empty() => items.push(dice.pick(items).clone()),
        (4, Value::Array(items)) if !items.is_empty() => drop(items.remove(dice.below(items.len()))),
        (0 | 1, Value::String(text)) => edit(text, dice),
        (5, target) => *target = donor,
        (6, target) => *target = wrap(target.take(), dice),
        (_, target) => *target = scalar(dice),
    }
}

/// A random node: walks down and stops with a chance of one in four at each level.
fn branch<'a>(value: &'a mut Value, dice: &mut Dice) -> &'a mut Value {
    let count = match &*value {
        Value::Object(fields) => fields.len(),
        Value::Array(items) => items.len(),
        _ => 0,
    };
    if count == 0 || dice.below(4) == 0 {
        return value;
    }
    let place = dice.below(count);
    match value {
        Value::Object(fields) => {
            branch(fields.values_mut().nth(place).expect("place is below the count"), dice)
        }
        Value::Array(items) => branch(&mut items[place], dice),
        _ => unreachable!("only maps and lists have a count"),
    }
}

fn rename(fields: &mut Map<String, Value>, dice: &mut Dice) {
    let Some(old) = fields.keys().nth(dice.below(fields.len())).cloned() else { return };
    if let Some(value) = fields.remove(&old) {
        fields.insert(name(dice), value);
    }
}

fn wrap(value: Value, dice: &mut Dice) -> Value {
    if dice.below(2) == 0 {
        json!([value])
    } else {
        Value::Object([(name(dice), value)].into_iter().collect())
    }
}

fn edit(text: &mut String, dice: &mut Dice) {
    match dice.below(6) {
        0 => text.push_str(dice.pick::<&str>(TEXTS)),
        1 => *text = text.chars().rev().collect(),
        2 => drop(text.pop()),
        3 => *text = text.repeat(1 + dice.below(40)),
        4 => text.push(*dice.pick(&[
            'a',
            'Z',
            '0',
            '.',
            '-',
            '/',
            ':',
            ' ',
            '\0',
            '\u{7f}',
            'ä',
            '\u{10ffff}',
        ])),
        _ => {
            let mut bytes = text.clone().into_bytes();
            let length = bytes.len();
            bytes.resize(length + 16, 0);
            let length = libfuzzer_sys::fuzzer_mutate(&mut bytes, length, length + 16);
            *text = String::from_utf8_lossy(&bytes[..length]).into_owned();
        }
    }
}

fn name(dice: &mut Dice) -> String {
    let name = dice.pick(&NAMES);
    // In FieldsV1 a field's name has a prefix.
    if dice.below(4) == 0 { format!("f:{name}") } else { name.clone() }
}

fn scalar(dice: &mut Dice) -> Value {
    match dice.below(8) {
        0 => Value::Null,
        1 => json!(dice.below(2) == 0),
        2 => json!({}),
        3 => json!([]),
        4 => dice.pick(&NUMBERS).clone(),
        _ => Value::from(*dice.pick(TEXTS)),
    }
}

/// Every name of a field in our schemas, and the names with a meaning in patches and field sets.
static NAMES: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut names: Vec<String> = [
        ".",
        "f:",
        "v:\"a\"",
        "v:1",
        "i:0",
        "i:-1",
        "k:{\"type\":\"Ready\"}",
        "k:{\"uid\":\"1\"}",
        "k:{\"type\":null}",
        "$patch",
        "$retainKeys",
        "$setElementOrder/finalizers",
        "$deleteFromPrimitiveList/finalizers",
        "kind",
        "apiVersion",
        "manager",
        "force",
        "subresource",
        "a",
        "",
        "kubectl.kubernetes.io/last-applied-configuration",
    ]
    .map(str::to_owned)
    .to_vec();
    for kind in Kind::ALL {
        collect(schema::of(kind), &mut names);
    }
    names.sort();
    names.dedup();
    names
});

fn collect(schema: &Value, names: &mut Vec<String>) {
    for (name, below) in schema.get("properties").and_then(Value::as_object).into_iter().flatten() {
        names.push(name.clone());
        collect(below, names);
    }
    if let Some(items) = schema.get("items") {
        collect(items, names);
    }
}

static NUMBERS: LazyLock<Vec<Value>> = LazyLock::new(|| {
    vec![
        json!(0),
        json!(1),
        json!(-1),
        json!(443),
        json!(65535),
        json!(65536),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(u64::MAX),
        json!(0.5),
        json!(-0.0),
        json!(1e300),
        json!(1.0),
    ]
});

const TEXTS: &[&str] = &[
    "",
    "a",
    "Tokyo",
    "cloud",
    "Service1",
    "10.0.0.1",
    "10.0.0.0/8",
    "10.0.0.1/8",
    "::1",
    "2001:db8::/32",
    "::ffff:10.0.0.1",
    "198.18.0.0/16",
    "0.0.0.0/0",
    "TCP",
    "UDP",
    "HTTP",
    "HTTPS",
    "GRPC",
    "KAFKA",
    "True",
    "False",
    "Unknown",
    "Ready",
    "2026-11-15T19:17:31Z",
    "9999-12-31T23:59:59Z",
    "-009999-01-01T00:00:00Z",
    "Apply",
    "Update",
    "FieldsV1",
    "status",
    "v1",
    "causeway.io/v1",
    "merge",
    "replace",
    "delete",
    "kubectl",
    "example.com/a",
    "www.example.com",
    "/health",
    "42",
    "null",
    "{}",
    "{\"eSites\":[\"a\"]}",
];
