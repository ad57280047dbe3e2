//! Says what to write in place of a value that a setting does not take. Pure.
//!
//! Input: the message of the TOML decoder, the text and the place, or the type that an environment variable or a flag is parsed
//! into. Output: a message that names the setting and its form, with an example. Values with a form of their own (`values`,
//! `duration`) bring their own messages; this module is for numbers, paths, lists, addresses and names of settings.

use std::any::TypeId;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::ops::Range;
use std::str::FromStr;

use causeway_api::decode::nearest;
use serde_json::Value;

use super::{Config, Layer, toml_text};

/// The form of a value, what to write for it, and an example where the setting has no default.
struct ValueForm {
    /// The decoder's name of the type.
    expected: &'static str,
    written: &'static str,
    example: &'static str,
}

const FORMS: [ValueForm; 9] = [
    form("u64", "a whole number without quotes and unit", "1000000"),
    form("u16", "a whole number up to 65535 without quotes", "1400"),
    form("a nonzero u32", "a whole number from 1 to 4294967295 without quotes", "100"),
    form("f64", "a number without quotes", "0.5"),
    form("a boolean", "true or false without quotes", "true"),
    form("socket address", "IP:PORT in quotes", "\"127.0.0.1:7443\""),
    form("path string", "a path in quotes", "\"/path/to/file\""),
    form("a string", "text in quotes", "\"…\""),
    form("a sequence", "a list in brackets, also for one value", "[\"…\"]"),
];

const fn form(expected: &'static str, written: &'static str, example: &'static str) -> ValueForm {
    ValueForm { expected, written, example }
}

/// Returns the decoder's message with the fix, where the message is about a name or a type.
pub fn explain(message: &str, text: &str, span: Range<usize>) -> String {
    if let Some(unknown) = between(message, "unknown field `", "`") {
        return unknown_setting(unknown, section(text, span.start), message);
    }
    let expected = match message.rsplit_once("expected ") {
        Some((_, expected)) => expected,
        None if message.starts_with("invalid socket address") => "socket address",
        None => return message.to_owned(),
    };
    let Some(key) = key(text, span.start) else { return message.to_owned() };
    if expected.starts_with("struct ") {
        return format!(
            "`{key}` is a section and no setting: write `[{key}]` in a line of its own, and its settings below"
        );
    }
    let Some(form) = FORMS.iter().find(|form| form.expected == expected) else { return message.to_owned() };
    let section = section(text, span.start);
    let found = text.get(span).unwrap_or_default();
    let example = example(form, section, key, found);
    format!("{} is no value of `{key}`: write {}, as in `{key} = {example}`", shown(found), form.written)
}

/// The form of a type that has no parser of its own, for environment variables and flags, which have no quotes.
pub fn plain_form<T: 'static>() -> Option<&'static str> {
    let forms = [
        (TypeId::of::<u64>(), "write a whole number without a unit"),
        (TypeId::of::<u16>(), "write a whole number up to 65535"),
        (TypeId::of::<NonZeroU32>(), "write a whole number from 1 to 4294967295"),
        (TypeId::of::<f64>(), "write a number, as in 0.5"),
        (TypeId::of::<bool>(), "write true or false"),
        (TypeId::of::<SocketAddr>(), "write IP:PORT, as in 0.0.0.0:7443 or [::]:7443"),
    ];
    forms.into_iter().find(|(id, _)| *id == TypeId::of::<T>()).map(|(_, form)| form)
}

/// Parses a flag of a type that has no parser of its own.
pub fn parse_flag<T: FromStr + 'static>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| plain_form::<T>().unwrap_or("the value cannot be read"))
}

/// A value of the setting: what was probably meant, or the default, or one of the form.
fn example(form: &ValueForm, section: &str, key: &str, found: &str) -> String {
    let is_text = found.starts_with('"') && found.len() > 1;
    match form.expected {
        "a sequence" if is_text => return format!("[{found}]"),
        "u64" if is_text => {
            if let Some(bytes) = size(found.trim_matches('"')) {
                return bytes.to_string();
            }
        }
        _ => {}
    }
    let default = defaults().into_iter().find(|(of, name, value)| {
        *of == section && *name == key && !value.is_null() && *value != Value::Array(Vec::new())
    });
    default.map_or_else(|| form.example.to_owned(), |(.., value)| toml_text(&value))
}

/// The bytes of a size with a unit, as in `256MiB`, `1.5 GB` or `10k`.
fn size(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|letter: char| !letter.is_ascii_digit() && letter != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim().to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (unit, base) = match unit.strip_suffix('i') {
        Some(unit) => (unit, 1024f64),
        None => (unit, 1000f64),
    };
    let power = ["", "k", "m", "g", "t"].iter().position(|known| *known == unit)?;
    let bytes = number.parse::<f64>().ok()? * base.powi(i32::try_from(power).ok()?);
    (bytes < u64::MAX as f64).then_some(bytes as u64)
}

fn unknown_setting(unknown: &str, section: &str, message: &str) -> String {
    let elsewhere: Vec<String> = defaults()
        .into_iter()
        .filter(|(of, name, _)| *name == unknown && *of != section)
        .map(
            |(of, ..)| {
                if of.is_empty() { "above the first section".to_owned() } else { format!("in `[{of}]`") }
            },
        )
        .collect();
    if !elsewhere.is_empty() {
        return format!("`{unknown}` is no setting of this section: it belongs {}", elsewhere.join(" or "));
    }
    // The decoder lists the names that it knows at this place.
    let known = message.split('`').skip(3).step_by(2);
    match nearest(known, unknown) {
        Some(near) => format!("unknown field `{unknown}`: did you mean `{near}`?"),
        None => message.to_owned(),
    }
}

/// Every setting with its default.
fn defaults() -> Vec<(&'static str, &'static str, Value)> {
    let none = Layer::default;
    let settings = Config::resolve(none(), none(), none()).settings();
    settings.into_iter().map(|(section, key, value, _)| (section, key, value)).collect()
}

/// The name in front of the equals sign, in the line of a value.
fn key(text: &str, start: usize) -> Option<&str> {
    let before = text.get(..start)?;
    let line = before.rsplit('\n').next().unwrap_or_default();
    let (name, _) = line.split_once('=')?;
    let name = name.rsplit('.').next().unwrap_or(name).trim().trim_matches('"');
    (!name.is_empty()).then_some(name)
}

/// The header above a place, without brackets; empty above the first one.
fn section(text: &str, start: usize) -> &str {
    let before = text.get(..start).unwrap_or_default();
    let mut headers = before.lines().filter_map(|line| line.trim().strip_prefix('[')?.split_once(']'));
    headers.next_back().map_or("", |(name, _)| name.trim())
}

fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    text.split_once(before)?.1.split_once(after).map(|(found, _)| found)
}

/// A value as it is quoted in a message: its first line, not too long.
fn shown(found: &str) -> String {
    const CHARACTERS_MAX: usize = 40;
    let line = found.lines().next().unwrap_or_default();
    match line.chars().count() > CHARACTERS_MAX {
        true => format!("`{}…`", line.chars().take(CHARACTERS_MAX).collect::<String>()),
        false => format!("`{line}`"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

    fn check(text: &str, expected: &str) {
        let problem = parse("c", text).unwrap_err().to_string();
        let (_, message) = problem.split_once(": ").unwrap();
        assert_eq!(message, expected, "{text}");
    }

    #[test]
    fn a_wrong_type_is_answered_with_the_form_and_an_example() {
        check(
            "[kubernetes]\nbytes-per-day = \"lots\"",
            "`\"lots\"` is no value of `bytes-per-day`: write a whole number without quotes and unit, as in `bytes-per-day = 1000000`",
        );
        check(
            "[edge]\njoin-service-account = 5",
            "`5` is no value of `join-service-account`: write a path in quotes, as in `join-service-account = \"/path/to/file\"`",
        );
        check(
            "[cloud]\ndrain = 30",
            "`30` is no value of `drain`: write text in quotes, as in `drain = \"20s\"`",
        );
        check(
            "[cloud]\nadvertise = \"a:1\"",
            "`\"a:1\"` is no value of `advertise`: write a list in brackets, also for one value, as in `advertise = [\"a:1\"]`",
        );
        check(
            "[audit.export]\nbytes-max = \"256MiB\"",
            "`\"256MiB\"` is no value of `bytes-max`: write a whole number without quotes and unit, as in `bytes-max = 268435456`",
        );
        check(
            "[cloud]\napi = \":7443\"",
            "`\":7443\"` is no value of `api`: write IP:PORT in quotes, as in `api = \"0.0.0.0:7443\"`",
        );
        check(
            "[cloud]\nlinks-max = 0",
            "`0` is no value of `links-max`: write a whole number from 1 to 4294967295 without quotes, as in `links-max = 50000`",
        );
        check(
            "cloud = 5",
            "`cloud` is a section and no setting: write `[cloud]` in a line of its own, and its settings below",
        );
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_one() {
        check("[cloud]\napy = \"x\"", "unknown field `apy`: did you mean `api`?");
        check("[clout]", "unknown field `clout`: did you mean `cloud`?");
        check("[edge]\ndns = [\"off\"]", "`dns` is no setting of this section: it belongs in `[gateway]`");
        check(
            "[log]\ndata-dir = \"/a\"",
            "`data-dir` is no setting of this section: it belongs above the first section",
        );
    }

    #[test]
    fn every_setting_says_what_to_write() {
        for (section, key, _) in defaults() {
            for wrong in ["5.5", "-7", "\"\\u0001 ;\"", "{}", "[{}]", "1979-05-27"] {
                let text = format!("[{section}]\n{key} = {wrong}\n").replace("[]\n", "");
                let Err(problem) = parse("c", &text) else { continue };
                let message = problem.to_string();
                let words = ["write ", "use ", "must begin", "it has", "is no "];
                assert!(words.iter().any(|word| message.contains(word)), "{text}{message}");
            }
        }
    }

    #[test]
    fn sizes_with_units_are_understood() {
        for (text, bytes) in [
            ("256MiB", 268_435_456),
            ("1.5 GB", 1_500_000_000),
            ("10k", 10_000),
            ("64 kib", 65_536),
            ("7", 7),
        ] {
            assert_eq!(size(text), Some(bytes), "{text}");
        }
        for text in ["lots", "", "MB", "5 parsecs", "1.2.3k"] {
            assert_eq!(size(text), None, "{text}");
        }
    }
}
