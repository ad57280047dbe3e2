//! Compares the dependencies between our crates with the table in `docs/ARCHITECTURE.md`.
//!
//! A crate may use only what its row allows, and every crate has a row. Test-only dependencies are free.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};

use crate::Finding;
use crate::files::Tree;

const DOCUMENT: &str = "docs/ARCHITECTURE.md";
/// The head of the table of crates.
const HEAD: &str = "| layer | crate |";

pub fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let document =
        tree.files.iter().find(|file| file.path == DOCUMENT).context("docs/ARCHITECTURE.md is missing")?;
    let allowed = table(&document.text);
    if allowed.is_empty() {
        return Ok(vec![Finding::new(DOCUMENT, format!("no table begins with `{HEAD}`"))]);
    }
    let mut findings = Vec::new();
    let mut seen = BTreeSet::new();
    for file in &tree.files {
        let Some(name) = file.path.strip_prefix("crates/").and_then(|path| path.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        seen.insert(name.to_owned());
        let Some(row) = allowed.get(name) else {
            findings.push(Finding::new(DOCUMENT, format!("`{name}` has no row in the table of crates")));
            continue;
        };
        for used in dependencies(&file.text) {
            if !row.permits(&used) {
                findings.push(Finding::new(
                    &file.path,
                    format!("uses `{used}`, which its row in {DOCUMENT} does not allow"),
                ));
            }
        }
    }
    for name in allowed.keys().filter(|name| !seen.contains(*name)) {
        findings
            .push(Finding::new(DOCUMENT, format!("the table names `{name}`, but there is no such crate")));
    }
    Ok(findings)
}

enum Row {
    Everything,
    Only(BTreeSet<String>),
}

impl Row {
    fn permits(&self, name: &str) -> bool {
        match self {
            Row::Everything => true,
            Row::Only(names) => names.contains(name),
        }
    }
}

/// Rows of the form `| layer | `crate` | purpose | `may` `use` |`, from the table whose head begins with `HEAD`.
fn table(document: &str) -> BTreeMap<String, Row> {
    let mut rows = BTreeMap::new();
    let lines = document.lines().skip_while(|line| !line.starts_with(HEAD));
    for line in lines.take_while(|line| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let [_, name, _, uses] = cells.as_slice() else { continue };
        let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else { continue };
        let row = if *uses == "everything below" {
            Row::Everything
        } else {
            Row::Only(uses.split('`').skip(1).step_by(2).map(str::to_owned).collect())
        };
        rows.insert(name.to_owned(), row);
    }
    rows
}

/// Our own crates under `[dependencies]`.
fn dependencies(manifest: &str) -> Vec<String> {
    let mut inside = false;
    let mut names = Vec::new();
    for line in manifest.lines() {
        if line.starts_with('[') {
            inside = line.trim() == "[dependencies]";
        } else if inside && line.starts_with("causeway") {
            names.push(line.split(['.', ' ', '=']).next().unwrap_or(line).to_owned());
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_lists_the_allowed_dependencies() {
        let rows = table(
            "| a | `other` | table | |\n\n| layer | crate | purpose | may use |\n\
             | roles | `causeway-edge` | enrols | `causeway-channel` `causeway-api` |\n\
             | words | `causeway-api` | kinds | |\n\n| a | `later` | table | |\n",
        );
        assert_eq!(rows.len(), 2);
        assert!(rows["causeway-edge"].permits("causeway-api"));
        assert!(!rows["causeway-edge"].permits("causeway-store"));
        assert!(!rows["causeway-api"].permits("causeway-edge"));
    }

    #[test]
    fn dev_dependencies_are_free() {
        let manifest = "[dependencies]\ncauseway-api.workspace = true\nserde = \"1\"\n[dev-dependencies]\ncauseway-store.workspace = true\n";
        assert_eq!(dependencies(manifest), ["causeway-api"]);
    }
}
