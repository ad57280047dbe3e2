//! Refuses a second public type of the same name in the workspace.
//!
//! Input: the tracked Rust files of `crates/*/src`. Output: one finding per name that stands for several types and is not
//! listed in `SHARED`. The number of such names has a ceiling that is lowered until it is 0.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::Finding;
use crate::files::Tree;

/// Names that may still stand for several types. Lowered with each rename, never raised.
const CEILING: usize = 10;

/// The names of several public types, with the reason why they may share it.
const SHARED: &[(&str, &str)] = &[
    ("Args", "one per command, qualified by its module"),
    ("Options", "one per constructor, qualified by its module"),
    ("Error", "one per operation, qualified by its module"),
    ("Metrics", "one per component, qualified by its module"),
    ("Builder", "one per built type, qualified by its module"),
];

pub fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for file in tree.files.iter().filter(|file| {
        file.path.starts_with("crates/") && file.path.contains("/src/") && file.path.ends_with(".rs")
    }) {
        for (number, line) in file.text.lines().enumerate() {
            if let Some(name) = public_type(line) {
                places.entry(name).or_default().push(format!("{}:{}", file.path, number + 1));
            }
        }
    }
    places.retain(|name, places| places.len() > 1 && !SHARED.iter().any(|(shared, _)| shared == name));
    println!("tidy: type names: {} names stand for several public types (ceiling {CEILING})", places.len());
    if places.len() <= CEILING {
        return Ok(Vec::new());
    }
    Ok(places
        .iter()
        .map(|(name, places)| {
            Finding::new(name, format!("several public types have this name: {}", places.join(", ")))
        })
        .collect())
}

/// The name of the type that a line declares as public, in the crate or beyond it.
fn public_type(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let rest = line
        .strip_prefix("pub ")
        .or_else(|| line.strip_prefix("pub(crate) "))
        .or_else(|| line.strip_prefix("pub(super) "))?;
    let rest =
        ["struct ", "enum ", "trait ", "type "].iter().find_map(|keyword| rest.strip_prefix(keyword))?;
    let end = rest.find(|letter: char| !letter.is_alphanumeric() && letter != '_').unwrap_or(rest.len());
    (end > 0).then(|| &rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_declaration_is_found_by_its_line() {
        let check = |line: &str, expected: Option<&str>| assert_eq!(public_type(line), expected, "{line}");
        check("pub struct Netmap {", Some("Netmap"));
        check("    pub(crate) enum Step<'a> {", Some("Step"));
        check("pub trait Store: Send {", Some("Store"));
        check("pub type Shared = Arc<Inner>;", Some("Shared"));
        check("struct Private;", None);
        check("pub fn structure() {", None);
        check("// pub struct Example", None);
    }
}
