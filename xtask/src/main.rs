//! Chores of the repository, run as `cargo xtask COMMAND`.
//!
//! `tidy` checks the conventions that a machine can check; it changes nothing. `benchmarks FILE` writes the figures of a run into
//! `docs/benchmarks.md`. `sbom` prints the bill of materials of the binary.

#![cfg_attr(test, allow(clippy::unwrap_used))]

mod benchmarks;
mod dependencies;
mod doc_names;
mod files;
mod language;
mod paths;
mod sbom;
mod type_names;

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        ["tidy"] => tidy(),
        ["benchmarks", results] => match benchmarks::write(&root(), results) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("benchmarks: {error:#}");
                ExitCode::FAILURE
            }
        },
        ["sbom"] => match sbom::write(&root()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("sbom: {error:#}");
                ExitCode::FAILURE
            }
        },
        _ => {
            eprintln!("usage: cargo xtask tidy, cargo xtask sbom, or cargo xtask benchmarks FILE");
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
