//! Writes to standard output: aligned tables, colours only on a terminal, a closed pipe.
//!
//! Values from the server are shown with control characters and invisible direction marks escaped: a name must neither move
//! the cursor nor change how the rest of the line reads.

use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde_json::Value;

/// Writes to standard output. A closed pipe is returned as an error that `main` handles.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

pub fn print_line(text: &str) -> anyhow::Result<()> {
    print(&format!("{text}\n"))
}

/// Writes one line to standard error. A failure is ignored, because there is no other place to report it.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Returns true if standard output may be coloured.
pub fn colours() -> bool {
    wanted(io::stdout().is_terminal())
}

/// Returns true if standard error may be coloured.
pub fn error_colours() -> bool {
    wanted(io::stderr().is_terminal())
}

/// https://no-color.org: any value that is not empty switches colours off.
fn wanted(terminal: bool) -> bool {
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// The width of the terminal in characters. None: standard output is no terminal, or has no known width.
pub fn terminal_width() -> Option<usize> {
    let size = rustix::termios::tcgetwinsize(io::stdout()).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// Between two columns.
const GAP: usize = 3;
/// A column that is cut further than this says nothing any more.
const CELL_MIN: usize = 6;

/// Rows under headings; columns are as wide as their widest cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TextTable {
    pub head: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

impl TextTable {
    pub fn new(head: &[&str]) -> TextTable {
        TextTable { head: head.iter().map(|cell| (*cell).to_owned()).collect(), rows: Vec::new() }
    }

    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    pub fn widths(&self) -> Vec<usize> {
        let columns = self.rows.iter().map(Vec::len).chain([self.head.len()]).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&self.head]).filter_map(|row| row.get(column));
            cells.map(|cell| plain(cell).chars().count()).max().unwrap_or(0)
        };
        (0..columns).map(width).collect()
    }

    /// Cuts cells until a row fits into `width`: always in the widest column, which loses least by it.
    pub fn fit(&mut self, width: usize) {
        let mut widths = self.widths();
        let gaps = GAP * widths.len().saturating_sub(1);
        while widths.iter().sum::<usize>() + gaps > width {
            match widths.iter_mut().max() {
                Some(widest) if *widest > CELL_MIN => *widest -= 1,
                _ => break,
            }
        }
        for cells in self.rows.iter_mut().chain([&mut self.head]) {
            for (cell, width) in cells.iter_mut().zip(&widths) {
                *cell = cut(&plain(cell), *width);
            }
        }
    }

    pub fn render(&self, colours: bool) -> String {
        let widths = self.widths();
        let mut text = String::new();
        if !self.head.is_empty() {
            let head = line(&self.head, &widths, |_| "");
            text.push_str(&if colours { format!("\x1b[1m{head}\x1b[0m\n") } else { format!("{head}\n") });
        }
        for row in &self.rows {
            text.push_str(&line(row, &widths, |cell| if colours { colour(cell) } else { "" }));
            text.push('\n');
        }
        text
    }
}

/// One row, cells padded to `widths`, the last one not.
pub fn line(cells: &[String], widths: &[usize], colour: impl Fn(&str) -> &'static str) -> String {
    let mut text = String::new();
    for (column, cell) in cells.iter().enumerate() {
        let cell = plain(cell);
        let padding = widths.get(column).copied().unwrap_or(0).saturating_sub(cell.chars().count());
        match colour(&cell) {
            "" => text.push_str(&cell),
            code => text.push_str(&format!("{code}{cell}\x1b[0m")),
        }
        if column + 1 < cells.len() {
            text.extend(std::iter::repeat_n(' ', padding + GAP));
        }
    }
    text.truncate(text.trim_end_matches(' ').len());
    text
}

/// Words that mean good or bad in every table.
pub fn colour(cell: &str) -> &'static str {
    match cell {
        "True" | "Ready" | "Connected" | "yes" | "created" | "allow" => "\x1b[32m",
        "False" | "NotReady" | "Disconnected" | "no" | "deny" => "\x1b[31m",
        "Unknown" | "configured" => "\x1b[33m",
        _ => "",
    }
}

/// Text with everything escaped that a terminal does not simply show, as `\n` or `\u{202e}`.
pub fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match is_unprintable(character) {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown
}

/// Text of several lines with everything escaped that a terminal does not simply show. Line ends stay.
pub fn plain_lines(text: &str) -> String {
    text.split('\n').map(plain).collect::<Vec<_>>().join("\n")
}

/// The path of a file with everything escaped that a terminal does not simply show: a file name may hold any character.
pub fn path(path: impl AsRef<Path>) -> String {
    plain(&path.as_ref().display().to_string())
}

/// Source text with the same number of bytes, in which everything is replaced that a terminal does not simply show. Line
/// ends and tabs stay. Byte offsets of a problem are the same in both.
pub fn plain_source(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character.len_utf8() {
            _ if matches!(character, '\n' | '\t') || !is_unprintable(character) => shown.push(character),
            1 => shown.push('?'),
            2 => shown.push_str("??"),
            3 => shown.push(char::REPLACEMENT_CHARACTER),
            _ => shown.extend([char::REPLACEMENT_CHARACTER, '?']),
        }
    }
    shown
}

/// Control characters (C0, DEL, C1), and characters that are not seen but change what is: directions and their overrides,
/// joiners, line and paragraph separators, tags.
fn is_unprintable(character: char) -> bool {
    character.is_control()
        || matches!(character,
            '\u{00ad}' | '\u{061c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A value as one line of JSON that a terminal shows as it is. It is the same value: JSON has escapes for every character.
pub fn json_line(value: &Value) -> String {
    escape_json(&value.to_string())
}

/// Such characters are only inside strings: `serde_json` has escaped control characters.
fn escape_json(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character == '\n' || !is_unprintable(character) {
            shown.push(character);
            continue;
        }
        let mut units = [0; 2];
        for unit in character.encode_utf16(&mut units) {
            shown.push_str(&format!("\\u{unit:04x}"));
        }
    }
    shown
}

/// The first `width` characters, with a sign when more was there.
fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).collect()
}

/// A cell of a server's Table as text.
pub fn cell(value: &Value) -> String {
    match value {
        Value::Null => "<none>".to_owned(),
        Value::String(text) if text.is_empty() => "<none>".to_owned(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Keys in alphabetical order, two spaces: the same object is the same text.
pub fn json(value: &Value) -> String {
    escape_json(&format!("{value:#}\n"))
}

pub fn yaml(value: &Value) -> anyhow::Result<String> {
    let mut text = serde_saphyr::to_string(value)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_the_last_is_not_padded() {
        let mut table = TextTable::new(&["NAME", "SITE", "AGE"]);
        table.row(["a".to_owned(), "Zürich".to_owned(), "5s".to_owned()]);
        table.row(["longer-name".to_owned(), "b".to_owned(), "5d".to_owned()]);
        assert_eq!(
            table.render(false),
            "NAME          SITE     AGE\na             Zürich   5s\nlonger-name   b        5d\n"
        );
        assert!(table.render(true).starts_with("\x1b[1mNAME"));
    }

    #[test]
    fn a_table_is_cut_where_it_is_widest() {
        let mut table = TextTable::new(&["NAME", "WHY", "OK"]);
        table.row(["short".to_owned(), "no policy allows an unknown host".to_owned(), "yes".to_owned()]);
        table.fit(26);
        assert_eq!(table.render(false), "NAME    WHY            OK\nshort   no policy a…   yes\n");
        let before = table.clone();
        table.fit(200);
        assert_eq!(table, before);
        table.fit(1);
        assert_eq!(table.widths(), [5, 6, 3], "what is left can still be recognised");
    }

    #[test]
    fn a_value_cannot_control_the_terminal() {
        let mut table = TextTable::new(&["NAME"]);
        table.row(["\x1b[2Jgone\n".to_owned()]);
        assert_eq!(table.render(false), "NAME\n\\u{1b}[2Jgone\\n\n");
    }

    #[test]
    fn what_is_not_seen_is_escaped() {
        let check = |text: &str, expected: &str| assert_eq!(plain(text), expected);
        check("Zürich 東京 👍", "Zürich 東京 👍");
        check("a\u{202e}b\u{2066}c", "a\\u{202e}b\\u{2066}c");
        check("\u{200b}\u{feff}\u{e0041}\u{85}\u{7f}\t", "\\u{200b}\\u{feff}\\u{e0041}\\u{85}\\u{7f}\\t");
        let value = serde_json::json!({"subject": "a\u{202e}b\u{9b}2J\u{e0041}\u{7f}\n"});
        for text in [json_line(&value), json(&value)] {
            assert!(
                text.trim_end().chars().all(|character| character == '\n' || !is_unprintable(character)),
                "{text:?}"
            );
            assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), value, "the same value");
        }
    }

    #[test]
    fn paths_errors_and_quoted_sources_are_escaped_too() {
        assert_eq!(path(Path::new("a\u{202e}lmay.exe\n\x1b[2J")), "a\\u{202e}lmay.exe\\n\\u{1b}[2J");
        assert_eq!(plain_lines("one\u{2066}\n  two\x07"), "one\\u{2066}\n  two\\u{7}");
        let source = "a\u{202e}: \u{85}\x1b[2J\r\n\tb\u{e0041}ü";
        let shown = plain_source(source);
        assert_eq!((shown.as_str(), shown.len()), ("a\u{fffd}: ???[2J?\n\tb\u{fffd}?ü", source.len()));
    }

    #[test]
    fn yaml_keeps_what_looks_like_something_else() {
        let value = serde_json::json!({"a": "1", "b": "no", "c": "", "d": "x: y", "e": null, "f": "1e3", "g": "line\nline", "h": [], "i": {}, "j": "0x10", "k": "~", "l": " x", "m": "#"});
        let text = yaml(&value).unwrap();
        let again: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(again, value, "{text}");
    }
}
