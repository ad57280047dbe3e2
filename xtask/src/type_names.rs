//! Refuses a second public type of the same name in the workspace.
//!
//! Input: the tracked Rust files of `crates/*/src`. Output: one finding per name that stands for several types and is not
//! listed in `SHARED`.

use std::collections::BTreeMap;

use anyhow::Result;

use crate::Finding;
use crate::files::Tree;

/// The names that several public types may have, each with the reason.
const SHARED: &[(&str, &str)] = &[
    ("Args", "clap's convention: the arguments of one command, named by its module, as in `apply::Args`"),
    ("Options", "the options of one constructor, named by its module, as in `probe::Options`"),
    (
        "Error",
        "the standard library's convention: the error of one module, as in `io::Error` and `fmt::Error`",
    ),
    (
        "Metrics",
        "prometheus-client's convention: the metrics that one component registers, as in `dns::Metrics`",
    ),
    (
        "Builder",
        "hyper's convention: the builder of the one type that its module is about, as in `http1::Builder`",
    ),
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
    println!("tidy: type names: {} names without a reason stand for several public types", places.len());
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
    fn every_shared_name_has_a_reason_of_its_own() {
        let reasons: std::collections::BTreeSet<&str> = SHARED.iter().map(|(_, reason)| *reason).collect();
        assert_eq!(reasons.len(), SHARED.len());
        assert!(SHARED.iter().all(|(name, reason)| !name.is_empty() && reason.len() > 20));
    }

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
