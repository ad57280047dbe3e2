//! Counts two habits that make comments and documents hard to search: free relatives at the head of a comment
//! ("What is sent" for "The sent bytes") and pronouns without a referent ("somebody", "nobody").
//!
//! Input: the tracked Rust files of `crates/`, the Markdown files of `docs/`, `README.md` and `CONTRIBUTING.md`. Output: one
//! finding per figure above its ceiling, and the worst files on stdout. A ceiling is lowered when the figure has gone down, and
//! is never raised.

use anyhow::Result;

use crate::Finding;
use crate::files::{SourceFile, Tree};

/// The most that `tidy` accepts. CONTRIBUTING.md says how to write instead.
const CEILING: Ceiling = Ceiling { free_relatives_per_1000_lines: 0.1, vague_pronouns_per_1000_words: 0.06 };

/// The pages outside `docs/` that a newcomer reads first.
const PAGES: &[&str] = &["README.md", "CONTRIBUTING.md"];

/// The number of files that are named as the worst.
const WORST_MAX: usize = 5;

struct Ceiling {
    free_relatives_per_1000_lines: f64,
    vague_pronouns_per_1000_words: f64,
}

/// The figures of one file, or of all files added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Figures {
    lines: usize,
    words: usize,
    free_relatives: usize,
    vague_pronouns: usize,
}

impl Figures {
    fn add(&mut self, other: &Figures) {
        self.lines += other.lines;
        self.words += other.words;
        self.free_relatives += other.free_relatives;
        self.vague_pronouns += other.vague_pronouns;
    }

    fn free_relatives_per_1000_lines(&self) -> f64 {
        per_1000(self.free_relatives, self.lines)
    }

    fn vague_pronouns_per_1000_words(&self) -> f64 {
        per_1000(self.vague_pronouns, self.words)
    }
}

pub fn check(tree: &Tree) -> Result<Vec<Finding>> {
    let mut total = Figures::default();
    let mut files: Vec<(&str, Figures)> = Vec::new();
    for file in tree.files.iter().filter(|file| is_read(file)) {
        let figures = figures(file);
        total.add(&figures);
        files.push((&file.path, figures));
    }
    files.sort_by_key(|(path, figures)| {
        (std::cmp::Reverse(figures.free_relatives + figures.vague_pronouns), *path)
    });
    println!(
        "tidy: language: {:.2} free relatives per 1,000 comment lines (ceiling {}), {:.2} vague pronouns per 1,000 words (ceiling {})",
        total.free_relatives_per_1000_lines(),
        CEILING.free_relatives_per_1000_lines,
        total.vague_pronouns_per_1000_words(),
        CEILING.vague_pronouns_per_1000_words,
    );
    for (path, figures) in files.iter().take(WORST_MAX) {
        println!(
            "tidy: language: {path}: {} free relatives, {} vague pronouns",
            figures.free_relatives, figures.vague_pronouns
        );
    }
    Ok(judge(&total, &CEILING))
}

fn judge(total: &Figures, ceiling: &Ceiling) -> Vec<Finding> {
    let rows = [
        (
            "free relatives per 1,000 comment lines",
            total.free_relatives_per_1000_lines(),
            ceiling.free_relatives_per_1000_lines,
        ),
        (
            "vague pronouns per 1,000 words",
            total.vague_pronouns_per_1000_words(),
            ceiling.vague_pronouns_per_1000_words,
        ),
    ];
    rows.iter()
        .filter(|(_, figure, ceiling)| figure > ceiling)
        .map(|(name, figure, ceiling)| {
            Finding::new(
                "crates/, docs/, README.md and CONTRIBUTING.md",
                format!("{figure:.2} {name}, the ceiling is {ceiling}: rewrite with a noun as the subject"),
            )
        })
        .collect()
}

fn is_read(file: &SourceFile) -> bool {
    (file.path.starts_with("crates/") && file.path.ends_with(".rs"))
        || (file.path.starts_with("docs/") && file.path.ends_with(".md"))
        || PAGES.contains(&file.path.as_str())
}

fn figures(file: &SourceFile) -> Figures {
    let mut figures = Figures::default();
    let mut follows_text = false;
    let mut in_code = false;
    for line in file.text.lines() {
        let prose =
            if file.path.ends_with(".md") { markdown_prose(line, &mut in_code) } else { comment(line) };
        let Some(prose) = prose.filter(|prose| !prose.is_empty()) else {
            follows_text = false;
            continue;
        };
        figures.lines += 1;
        figures.words += prose.split_whitespace().count();
        figures.vague_pronouns += vague_pronouns(prose);
        figures.free_relatives += usize::from(!follows_text && FREE_RELATIVES.contains(&first_word(prose)));
        follows_text = true;
    }
    figures
}

/// The text of a comment line, without its slashes. A comment behind code does not count.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']).trim())
}

/// A line of a Markdown document outside fenced code, without the marks of lists and quotes. Table rows do not count.
fn markdown_prose<'a>(line: &'a str, in_code: &mut bool) -> Option<&'a str> {
    let line = line.trim();
    if line.starts_with("```") {
        *in_code = !*in_code;
        return None;
    }
    if *in_code || line.starts_with(['#', '|']) {
        return None;
    }
    Some(line.trim_start_matches(['-', '*', '>', ' ']))
}

fn first_word(prose: &str) -> &str {
    prose.split(|letter: char| !letter.is_alphabetic()).next().unwrap_or(prose)
}

fn vague_pronouns(prose: &str) -> usize {
    let lower = prose.to_lowercase();
    let single = lower
        .split(|letter: char| !letter.is_alphabetic())
        .filter(|word| VAGUE_PRONOUNS.contains(word))
        .count();
    single + lower.matches("so many").count()
}

fn per_1000(count: usize, of: usize) -> f64 {
    if of == 0 { 0.0 } else { count as f64 * 1000.0 / of as f64 }
}

const FREE_RELATIVES: &[&str] = &[
    "Who",
    "Whoever",
    "Whom",
    "Whose",
    "What",
    "Whatever",
    "Where",
    "Wherever",
    "Which",
    "Whichever",
    "Whether",
    "How",
];

const VAGUE_PRONOUNS: &[&str] = &[
    "somebody",
    "nobody",
    "someone",
    "anybody",
    "anyone",
    "everybody",
    "everyone",
    "whoever",
    "whomever",
    "others",
];

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(path: &str, text: &str) -> (usize, usize) {
        let figures = figures(&SourceFile { path: path.to_owned(), text: text.to_owned() });
        (figures.free_relatives, figures.vague_pronouns)
    }

    #[test]
    fn the_head_of_a_comment_has_a_noun() {
        let check = |text: &str, expected: (usize, usize)| {
            assert_eq!(counted("crates/x/src/a.rs", text), expected, "{text}")
        };
        check("/// What is sent.\n", (1, 0));
        check("    // Whoever asks is told.\n", (1, 1));
        check("/// The bytes on the way.\n", (0, 0));
        check("/// The bytes of a peer\n/// who asks.\n/// What follows a line is not a head.\n", (0, 0));
        check("let what = 1; // What it is.\n", (0, 0));
    }

    #[test]
    fn a_pronoun_needs_a_referent() {
        let check =
            |text: &str, expected: usize| assert_eq!(counted("docs/a.md", text).1, expected, "{text}");
        check("Nobody may use it; others are refused after so many bytes.\n", 3);
        check("```\nnobody 1 0.0\n```\nA client is refused.\n", 0);
        check("The user `nobodyelse` exists.\n", 0);
    }

    #[test]
    fn the_pages_of_newcomers_are_read() {
        let check = |path: &str, expected: bool| {
            let file = SourceFile { path: path.to_owned(), text: String::new() };
            assert_eq!(is_read(&file), expected, "{path}");
        };
        check("README.md", true);
        check("CONTRIBUTING.md", true);
        check("docs/security.md", true);
        check("crates/causeway/src/main.rs", true);
        check("CHANGELOG.md", false);
        check("tests/netns/README.md", false);
        check("crates/causeway/Cargo.toml", false);
    }

    #[test]
    fn a_figure_above_its_ceiling_is_a_finding() {
        let ceiling = Ceiling { free_relatives_per_1000_lines: 10.0, vague_pronouns_per_1000_words: 1.0 };
        let total = Figures { lines: 1000, words: 10_000, free_relatives: 10, vague_pronouns: 10 };
        assert_eq!(judge(&total, &ceiling).len(), 0);
        assert_eq!(judge(&Figures { free_relatives: 11, ..total }, &ceiling).len(), 1);
        assert_eq!(judge(&Figures { vague_pronouns: 11, ..total }, &ceiling).len(), 1);
    }
}
