//! Checks that the types, functions and short file names in `docs/ARCHITECTURE.md` exist.
//!
//! A code span `Type` or `Type::function` must consist of words of the Rust files of `crates/`. A code span that ends in `.rs` must be
//! the end of the path of a tracked file. So a rename that forgets the page is a finding. Full paths are checked by `paths`.

use std::collections::BTreeSet;

use anyhow::Result;

use crate::Finding;
use crate::files::Tree;

const DOCUMENT: &str = "docs/ARCHITECTURE.md";

pub fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let Some(document) = tree.files.iter().find(|file| file.path == DOCUMENT) else { return Ok(Vec::new()) };
    let sources: Vec<_> = tree
        .files
        .iter()
        .filter(|file| file.path.starts_with("crates/") && file.path.ends_with(".rs"))
        .collect();
    let words: BTreeSet<&str> = sources.iter().flat_map(|file| words(&file.text)).collect();
    let is_file = |name: &str| sources.iter().any(|file| file.path.ends_with(&format!("/{name}")));
    let mut findings = Vec::new();
    for (number, line) in document.text.lines().enumerate() {
        for span in line.split('`').skip(1).step_by(2) {
            let is_known = match () {
                () if span.ends_with(".rs") => span.starts_with("crates/") || is_file(span),
                () if names_a_type(span) => span.split("::").all(|word| words.contains(word)),
                () => true,
            };
            if !is_known {
                let place = format!("{DOCUMENT}:{}", number + 1);
                findings.push(Finding::new(place, format!("`{span}` is in no Rust file of crates/")));
            }
        }
    }
    Ok(findings)
}

/// `Type` or `Type::function`, in the forms of Rust. Words in capitals and words of one syllable like `Registry` count, too.
fn names_a_type(span: &str) -> bool {
    let is_word =
        |word: &str| !word.is_empty() && word.chars().all(|letter| letter.is_alphanumeric() || letter == '_');
    span.starts_with(|letter: char| letter.is_ascii_uppercase())
        && span.contains(|letter: char| letter.is_ascii_lowercase())
        && span.split("::").all(is_word)
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|letter: char| !letter.is_alphanumeric() && letter != '_').filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::SourceFile;

    #[test]
    fn a_name_that_is_gone_is_a_finding() {
        let check = |text: &str, expected: usize| {
            let file = |path: &str, text: &str| SourceFile { path: path.to_owned(), text: text.to_owned() };
            let source = "//! A.\npub struct Fleet;\nimpl Fleet { fn carry() {} }\n";
            let files = vec![file("crates/x/src/proxy/http.rs", source), file(DOCUMENT, text)];
            let found = super::check(&Tree { root: "/".into(), files }).map(|findings| findings.len());
            assert_eq!(found.ok(), Some(expected), "{text}");
        };
        check("`Fleet` and `Fleet::carry` in `proxy/http.rs`", 0);
        check("`Yard`", 1);
        check("`Fleet::relay`", 1);
        check("`proxy/yard.rs`", 1);
        check("`HTTP`, `DATA_DIR/run`, `kubectl apply`, `Cargo.toml`", 0);
    }
}
