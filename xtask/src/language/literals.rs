//! Reads the string literals of a Rust file, without those of comments and of its test module.
//!
//! Input: the text of a file. Output: the text between the quotes, escapes as they are written. Strings, byte strings and raw
//! strings are recognised, and characters, because one of them is a quote. Literals of macros are literals as any other.

/// Returns the literals in front of the file's test module.
pub fn of_code(text: &str) -> Vec<&str> {
    let mut rest = &text[..test_module(text).unwrap_or(text.len())];
    let mut found = Vec::new();
    while let Some(at) = rest.find(['"', '\'', '/', 'r']) {
        let here = &rest[at..];
        let word_before =
            rest[..at].chars().next_back().is_some_and(|letter| letter.is_alphanumeric() || letter == '_');
        let length = match here.as_bytes()[0] {
            b'/' if here.starts_with("//") => here.find('\n').unwrap_or(here.len()),
            b'/' if here.starts_with("/*") => here.find("*/").map_or(here.len(), |end| end + 2),
            b'"' => {
                let end = closing_quote(&here[1..]);
                found.push(&here[1..=end]);
                (end + 2).min(here.len())
            }
            b'r' if !word_before || rest[..at].ends_with('b') => match raw(here) {
                Some((literal, length)) => {
                    found.push(literal);
                    length
                }
                None => 1,
            },
            b'\'' => character(here).unwrap_or(1),
            _ => 1,
        };
        rest = &here[length..];
    }
    found
}

/// The position of a test module that is written in the file itself; a declaration (`mod tests;`) is none.
fn test_module(text: &str) -> Option<usize> {
    text.match_indices("#[cfg(test)]\nmod ")
        .find(|(at, mark)| text[at + mark.len()..].lines().next().is_some_and(|line| line.ends_with('{')))
        .map(|(at, _)| at)
}

/// The position of the quote that ends a string, which begins with `text`.
fn closing_quote(text: &str) -> usize {
    let mut is_escaped = false;
    for (at, letter) in text.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => return at,
            _ => {}
        }
    }
    text.len()
}

/// The text of a raw string and the length of the literal.
fn raw(here: &str) -> Option<(&str, usize)> {
    let hashes = here[1..].len() - here[1..].trim_start_matches('#').len();
    let text = here[1 + hashes..].strip_prefix('"')?;
    let mark = format!("\"{}", "#".repeat(hashes));
    let end = text.find(&mark)?;
    Some((&text[..end], 2 + hashes + end + mark.len()))
}

/// The length of a character literal; `None` for a lifetime.
fn character(here: &str) -> Option<usize> {
    let mut letters = here[1..].char_indices();
    let (_, first) = letters.next()?;
    if first == '\\' {
        letters.next()?;
        return here[3..].find('\'').map(|end| end + 4);
    }
    let (at, quote) = letters.next()?;
    (quote == '\'').then_some(at + 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_literals_of_code_are_read() {
        let check = |text: &str, expected: &[&str]| assert_eq!(of_code(text), expected, "{text}");
        check(r#"say("a b", 'c', "d \" e");"#, &["a b", r#"d \" e"#]);
        check("// \"a\"\n/* \"b\" */ say(\"c\")", &["c"]);
        check("let quote = '\"'; say(\"a\")", &["a"]);
        check("let quote = '\\''; say(\"a\")", &["a"]);
        check("fn f<'a>(x: &'a str) { say(\"a\") }", &["a"]);
        check("let x = r##\"a \"# b\"##; let for_r = br\"c\"; say(\"d\")", &["a \"# b", "c", "d"]);
        check("say(\"http://a\"); a / b; say(\"c\")", &["http://a", "c"]);
        check("say(\"a\");\n#[cfg(test)]\nmod tests;\nsay(\"b\");", &["a", "b"]);
        check("say(\"a\");\n#[cfg(test)]\nmod tests {\n    say(\"b\");\n}", &["a"]);
        check("say(\"no end", &["no end"]);
    }
}
