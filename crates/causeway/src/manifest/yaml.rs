//! YAML documents as values, with bounded aliases and depth, keys only once, mistakes with line and column.

use serde_json::Value;
use serde_saphyr::budget::Budget;
use serde_saphyr::options::{AliasLimits, DuplicateKeyPolicy};

use crate::problem::ManifestProblem;

/// Deeper than any object of ours, and what the server takes.
const DEPTH_MAX: usize = 64;
/// Ten thousand objects of a few dozen nodes each.
const NODES_MAX: usize = 4_000_000;
const DOCUMENTS_MAX: usize = 100_000;
/// Enough to share a block between objects, too little to blow one up.
const ALIASES_MAX: usize = 10_000;
const REPLAYED_MAX: usize = 100_000;

pub fn documents(name: &str, text: &str) -> Result<Vec<Value>, ManifestProblem> {
    serde_saphyr::from_multiple_with_options(text, options()).map_err(|error| problem(name, text, &error))
}

fn options() -> serde_saphyr::Options {
    let mut budget = Budget::default();
    budget.max_depth = DEPTH_MAX;
    budget.max_nodes = NODES_MAX;
    budget.max_events = 2 * NODES_MAX;
    budget.max_documents = DOCUMENTS_MAX;
    budget.max_aliases = ALIASES_MAX;
    let mut aliases = AliasLimits::default();
    aliases.max_total_replayed_events = REPLAYED_MAX;
    serde_saphyr::options! {
        budget: Some(budget),
        alias_limits: aliases,
        duplicate_keys: DuplicateKeyPolicy::Error,
        // YAML 1.2: `no` is the word no, as a Norwegian site would hope.
        strict_booleans: true,
        with_snippet: false,
    }
}

fn problem(name: &str, text: &str, error: &serde_saphyr::Error) -> ManifestProblem {
    let location = error.location();
    let (line, column) =
        location.map_or((1, 1), |location| (location.line() as usize, location.column() as usize));
    let whole = error.without_snippet().to_string();
    // The place is said once, in front.
    let message = whole.split(" at line ").next().unwrap_or(&whole).trim().to_owned();
    ManifestProblem::at_line(name, text, line, column, message)
}
