//! Counts two habits that make comments, documents and messages hard to search: sentences that begin with a free relative
//! ("What is sent" for "The sent bytes") or are a question, and pronouns without a referent ("somebody", "nobody").
//!
//! Input: the comments of the tracked Rust files of `crates/`, `tests/`, `bench/` and `fuzz/`, the string literals of product
//! code (`literals`), the Markdown files of `docs/`, `README.md` and `CONTRIBUTING.md`. Output: one finding per count that
//! differs from its ceiling, and the worst files on stdout. A ceiling is lowered in the commit that lowers the count, and is never raised.

mod literals;

use anyhow::Result;

use crate::Finding;
use crate::files::{SourceFile, Tree};

/// The counts that `tidy` accepts. CONTRIBUTING.md says how to write instead.
const CEILING: Ceiling = Ceiling { free_relatives: 0, vague_pronouns: 0 };

/// The folders whose comments are read.
const CODE: &[&str] = &["crates/", "tests/", "bench/", "fuzz/"];

/// The pages outside `docs/` that a newcomer reads first.
const PAGES: &[&str] = &["README.md", "CONTRIBUTING.md"];

/// The number of files that are named as the worst.
const WORST_MAX: usize = 5;

struct Ceiling {
    free_relatives: usize,
    vague_pronouns: usize,
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
        "tidy: language: {} free relatives and questions at the head, {:.2} per 1,000 lines (ceiling {}); {} vague pronouns, {:.2} per 1,000 words (ceiling {})",
        total.free_relatives,
        per_1000(total.free_relatives, total.lines),
        CEILING.free_relatives,
        total.vague_pronouns,
        per_1000(total.vague_pronouns, total.words),
        CEILING.vague_pronouns,
    );
    for (path, figures) in files
        .iter()
        .take(WORST_MAX)
        .filter(|(_, figures)| figures.free_relatives + figures.vague_pronouns > 0)
    {
        println!(
            "tidy: language: {path}: {} free relatives, {} vague pronouns",
            figures.free_relatives, figures.vague_pronouns
        );
    }
    Ok(judge(&total, &CEILING))
}

fn judge(total: &Figures, ceiling: &Ceiling) -> Vec<Finding> {
    let rows = [
        ("free relatives and questions at the head", total.free_relatives, ceiling.free_relatives),
        ("vague pronouns", total.vague_pronouns, ceiling.vague_pronouns),
    ];
    rows.iter()
        .filter(|(_, count, ceiling)| count != ceiling)
        .map(|(name, count, ceiling)| {
            let remedy = match count > ceiling {
                true => "rewrite with a noun as the subject",
                false => "lower the ceiling in xtask/src/language.rs in the same commit",
            };
            Finding::new(
                "crates/, tests/, bench/, fuzz/, docs/, README.md and CONTRIBUTING.md",
                format!("{count} {name}, the ceiling is {ceiling}: {remedy}"),
            )
        })
        .collect()
}

fn is_read(file: &SourceFile) -> bool {
    (CODE.iter().any(|folder| file.path.starts_with(folder)) && file.path.ends_with(".rs"))
        || (file.path.starts_with("docs/") && file.path.ends_with(".md"))
        || PAGES.contains(&file.path.as_str())
}

fn figures(file: &SourceFile) -> Figures {
    let mut figures = Figures::default();
    let mut before = Before::Nothing;
    let mut in_code = false;
    for line in file.text.lines() {
        let prose =
            if file.path.ends_with(".md") { markdown_prose(line, &mut in_code) } else { comment(line) };
        let Some(prose) = prose.filter(|prose| !prose.is_empty()) else {
            before = Before::Nothing;
            continue;
        };
        figures.lines += 1;
        figures.words += prose.split_whitespace().count();
        figures.vague_pronouns += vague_pronouns(prose);
        let begins = before != Before::Sentence && FREE_RELATIVES.contains(&first_word(prose));
        let asks = before == Before::Nothing && is_question(prose);
        figures.free_relatives += usize::from(begins || asks) + inner_free_relatives(prose);
        before = if prose.ends_with(['.', '?', '!']) { Before::End } else { Before::Sentence };
    }
    if is_product_code(file) {
        for literal in literals::of_code(&file.text).iter().filter(|literal| literal.contains(' ')) {
            figures.lines += 1;
            figures.words += literal.split_whitespace().count();
            figures.vague_pronouns += vague_pronouns(literal);
            figures.free_relatives +=
                usize::from(begins_with_free_relative(literal)) + inner_free_relatives(literal);
        }
    }
    figures
}

/// The text before a line of prose, as far as it matters to the line's first word.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    /// The line is the head of its comment or paragraph.
    Nothing,
    /// The line goes on with a sentence.
    Sentence,
    /// The line before ended with a sentence.
    End,
}

fn is_product_code(file: &SourceFile) -> bool {
    file.path.starts_with("crates/")
        && file.path.ends_with(".rs")
        && file.path.contains("/src/")
        && !file.path.contains("/tests/")
        && !file.path.ends_with("tests.rs")
}

/// Messages begin in lower case, so the case does not matter.
fn begins_with_free_relative(literal: &str) -> bool {
    FREE_RELATIVES.iter().any(|relative| relative.eq_ignore_ascii_case(first_word(literal)))
}

/// The sentences after the first one of a line that begin with a free relative.
fn inner_free_relatives(prose: &str) -> usize {
    let ends = prose.match_indices(". ").chain(prose.match_indices("? ")).chain(prose.match_indices("! "));
    ends.filter(|(at, end)| FREE_RELATIVES.contains(&first_word(&prose[at + end.len()..]))).count()
}

/// The first sentence of the line ends with a question mark. A `?` inside a word is that of a URL.
fn is_question(prose: &str) -> bool {
    let end = prose.find(". ").unwrap_or(prose.len());
    prose[..end].ends_with('?') || prose[..end].contains("? ")
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
    let lower = unquoted(&unquoted(prose, '"'), '`').to_lowercase();
    let single = lower
        .split(|letter: char| !letter.is_alphabetic())
        .filter(|word| VAGUE_PRONOUNS.contains(word))
        .count();
    single + lower.matches("so many").count()
}

/// The text without its quotations: words that are named, not used. A quotation that goes on in the next line stays.
fn unquoted(prose: &str, quote: char) -> String {
    if prose.matches(quote).count() % 2 == 1 {
        return prose.to_owned();
    }
    prose.split(quote).step_by(2).collect::<Vec<_>>().join(" ")
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
        check("/// The bytes of a peer\n/// who asks, by\n/// Who of RFC 1, are not a head.\n", (0, 0));
        check("let what = 1; // What it is.\n", (0, 0));
        check("/// Is it open?\n", (1, 0));
        check("/// The query `?watch=1` of a client.\n", (0, 0));
    }

    #[test]
    fn a_sentence_inside_a_comment_has_a_noun_too() {
        let check = |text: &str, expected: usize| {
            assert_eq!(counted("crates/x/src/a.rs", text).0, expected, "{text}")
        };
        check("/// Sends it. What is left stays.\n", 1);
        check("/// Sends it.\n/// What is left stays.\n", 1);
        check("/// Sends the bytes, and says\n/// What is a name here.\n", 0);
    }

    #[test]
    fn messages_of_product_code_are_read() {
        let check = |path: &str, text: &str, expected: (usize, usize)| {
            assert_eq!(counted(path, text), expected, "{path}: {text}")
        };
        let text = "fn f() {\n    warn(\"nobody is here\");\n}\n";
        check("crates/x/src/a.rs", text, (0, 1));
        check("crates/x/src/a/tests.rs", text, (0, 0));
        check("crates/x/tests/it/a.rs", text, (0, 0));
        check("tests/testlab/src/a.rs", text, (0, 0));
        check("crates/x/src/a.rs", "warn(\"what answers is no server\");\n", (1, 0));
        check("crates/x/src/a.rs", "let kind = \"others\";\n", (0, 0));
        check("crates/x/src/a.rs", "#[cfg(test)]\nmod tests {\n    check(\"nobody is here\");\n}\n", (0, 0));
    }

    #[test]
    fn a_pronoun_needs_a_referent() {
        let check =
            |text: &str, expected: usize| assert_eq!(counted("docs/a.md", text).1, expected, "{text}");
        check("Nobody may use it; others are refused after so many bytes.\n", 3);
        check("```\nnobody 1 0.0\n```\nA client is refused.\n", 0);
        check("The user `nobodyelse` exists.\n", 0);
        check("Write \"the peer\", not \"somebody\"; the user `nobody` exists.\n", 0);
        check("A quotation \"that others\n", 1);
    }

    #[test]
    fn code_and_the_pages_of_newcomers_are_read() {
        let check = |path: &str, expected: bool| {
            let file = SourceFile { path: path.to_owned(), text: String::new() };
            assert_eq!(is_read(&file), expected, "{path}");
        };
        check("README.md", true);
        check("CONTRIBUTING.md", true);
        check("docs/security.md", true);
        check("crates/causeway/src/main.rs", true);
        check("tests/netns/tests/it/main.rs", true);
        check("bench/src/main.rs", true);
        check("fuzz/targets/mux.rs", true);
        check("CHANGELOG.md", false);
        check("tests/netns/README.md", false);
        check("crates/causeway/Cargo.toml", false);
    }

    #[test]
    fn a_count_that_differs_from_its_ceiling_is_a_finding() {
        let ceiling = Ceiling { free_relatives: 10, vague_pronouns: 10 };
        let total = Figures { lines: 1000, words: 10_000, free_relatives: 10, vague_pronouns: 10 };
        assert_eq!(judge(&total, &ceiling).len(), 0);
        assert_eq!(judge(&Figures { free_relatives: 11, ..total }, &ceiling).len(), 1);
        assert_eq!(judge(&Figures { vague_pronouns: 11, ..total }, &ceiling).len(), 1);
        assert_eq!(
            judge(&Figures { vague_pronouns: 9, ..total }, &ceiling).len(),
            1,
            "the ceiling goes down"
        );
    }
}
