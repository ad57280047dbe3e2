//! Every path that a document names must exist.
//!
//! A path is a code span that begins with one of our top-level folders, or the target of a relative link. Logs of measurements keep
//! the paths of their day and are not checked.

use anyhow::Result;

use crate::Finding;
use crate::files::Tree;

pub fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let tops = top_level_folders(tree);
    let mut findings = Vec::new();
    for file in tree.files.iter().filter(|file| is_checked(&file.path)) {
        let folder = file.path.rsplit_once('/').map_or("", |(folder, _)| folder);
        for (number, line) in file.text.lines().enumerate() {
            let spans = code_spans(line)
                .filter(|span| names_a_path(span, &tops))
                .map(|span| (span.to_owned(), String::new()));
            let links = link_targets(line).filter(|target| !target.contains(':') && !target.starts_with('#'));
            let links = links
                .map(|target| (target.split('#').next().unwrap_or(target).to_owned(), folder.to_owned()));
            for (path, base) in spans.chain(links) {
                if !tree.root.join(&base).join(&path).exists() {
                    findings.push(Finding::new(
                        format!("{}:{}", file.path, number + 1),
                        format!("`{path}` does not exist"),
                    ));
                }
            }
        }
    }
    Ok(findings)
}

fn is_checked(path: &str) -> bool {
    path.ends_with(".md") && !path.starts_with("bench/log/")
}

fn top_level_folders(tree: &Tree) -> Vec<&str> {
    let mut tops: Vec<&str> =
        tree.files.iter().filter_map(|file| file.path.split_once('/')).map(|(top, _)| top).collect();
    tops.sort_unstable();
    tops.dedup();
    tops
}

/// Placeholders (`crates/NAME`, `tests/*`) are no paths.
fn names_a_path(span: &str, tops: &[&str]) -> bool {
    let Some((top, rest)) = span.split_once('/') else { return false };
    tops.contains(&top) && !rest.chars().any(|c| c.is_whitespace() || "*{}<>$".contains(c))
}

fn code_spans(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

fn link_targets(line: &str) -> impl Iterator<Item = &str> {
    line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_of_measurements_are_history() {
        assert!(is_checked("docs/glossary.md") && is_checked("bench/RESULTS.md"));
        assert!(!is_checked("bench/log/2026-11-15-to-16.md") && !is_checked("bench/run"));
    }

    #[test]
    fn only_our_own_folders_count_as_paths() {
        let tops = ["crates", "docs"];
        assert!(names_a_path("docs/glossary.md", &tops));
        assert!(!names_a_path("addresses/SITE/IP", &tops));
        assert!(!names_a_path("crates/* and more", &tops));
    }

    #[test]
    fn spans_and_links_are_found() {
        assert_eq!(code_spans("see `a/b` and `c`").collect::<Vec<_>>(), ["a/b", "c"]);
        assert_eq!(link_targets("see [x](docs/x.md) and [y](y#z)").collect::<Vec<_>>(), ["docs/x.md", "y#z"]);
    }
}
