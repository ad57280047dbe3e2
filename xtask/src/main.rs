//! Chores of the repository, run as `cargo xtask COMMAND`.
//!
//! `tidy` checks the conventions that a machine can check; it changes nothing.

mod dependencies;
mod doc_names;
mod files;
mod language;
mod paths;
mod type_names;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => tidy(),
        _ => {
            eprintln!("usage: cargo xtask tidy");
            ExitCode::from(2)
        }
    }
}

/// One violation of a convention, with its place.
pub struct Finding {
    pub place: String,
    pub text: String,
}

impl Finding {
    pub fn new(place: impl ToString, text: impl ToString) -> Finding {
        Finding { place: place.to_string(), text: text.to_string() }
    }
}

type Check = fn(&files::Tree) -> anyhow::Result<Vec<Finding>>;

fn tidy() -> ExitCode {
    let checks: [(&str, Check); 6] = [
        ("headers and names", files::check),
        ("paths in documents", paths::check),
        ("names in ARCHITECTURE.md", doc_names::check),
        ("crate dependencies", dependencies::check),
        ("language", language::check),
        ("type names", type_names::check),
    ];
    let tree = match files::Tree::read(&root()) {
        Ok(tree) => tree,
        Err(error) => {
            eprintln!("tidy: {error:#}");
            return ExitCode::FAILURE;
        }
    };
    let mut failed = false;
    for (name, check) in checks {
        match check(&tree) {
            Ok(findings) => {
                failed |= !findings.is_empty();
                for finding in &findings {
                    eprintln!("{}: {}", finding.place, finding.text);
                }
                println!("tidy: {name}: {}", if findings.is_empty() { "ok" } else { "not ok" });
            }
            Err(error) => {
                failed = true;
                eprintln!("tidy: {name}: {error:#}");
            }
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// The repository is the folder above this crate.
fn root() -> PathBuf {
    let mut root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.pop();
    root
}
