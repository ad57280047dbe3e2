//! A mistake in a manifest or configuration file: file, line, column, the line itself, and the fix.
//!
//! Manifests and configuration use the same form. Rendering is miette's.

use std::fmt;
use std::ops::Range;

use miette::{Diagnostic, LabeledSpan, NamedSource, SourceCode};

use crate::output;

/// One mistake at one place.
#[derive(Debug)]
pub struct ManifestProblem {
    name: Box<str>,
    line: usize,
    column: usize,
    span: Range<usize>,
    message: Box<str>,
    help: Option<Box<str>>,
    source: Box<NamedSource<String>>,
}

impl ManifestProblem {
    /// A problem at a range of bytes.
    pub fn at(name: &str, text: &str, span: Range<usize>, message: String) -> ManifestProblem {
        let span = inside(text, span);
        let before = &text[..span.start];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or_default().chars().count() + 1;
        let (name, message) = (output::plain(name), output::plain_lines(&message));
        let source = Box::new(NamedSource::new(&name, output::plain_source(text)));
        ManifestProblem { name: name.into(), line, column, span, message: message.into(), help: None, source }
    }

    /// A problem at a line and a column, both counted from 1, the column in characters.
    pub fn at_line(name: &str, text: &str, line: usize, column: usize, message: String) -> ManifestProblem {
        let start: usize = text.split_inclusive('\n').take(line.saturating_sub(1)).map(str::len).sum();
        let rest = text[start..].split('\n').next().unwrap_or_default();
        let within: usize = rest.chars().take(column.saturating_sub(1)).map(char::len_utf8).sum();
        ManifestProblem::at(name, text, start + within..start + within, message)
    }

    pub fn with_help(mut self, help: impl Into<Box<str>>) -> ManifestProblem {
        self.help = Some(help.into());
        self
    }

    /// The problem with the line it is about and a mark under it.
    pub fn render(&self, colours: bool) -> String {
        let theme = match colours {
            true => miette::GraphicalTheme::unicode(),
            false => miette::GraphicalTheme::unicode_nocolor(),
        };
        let handler = miette::GraphicalReportHandler::new_themed(theme).with_width(110).with_context_lines(1);
        let mut text = String::new();
        match handler.render_report(&mut text, self) {
            Ok(()) => text,
            // The source cannot be quoted; the message still says file, line and column.
            Err(fmt::Error) => format!("{self}\n"),
        }
    }
}

/// Moves a range into the text and onto character boundaries, so that quoting cannot fail.
fn inside(text: &str, span: Range<usize>) -> Range<usize> {
    let floor = |mut index: usize| {
        index = index.min(text.len());
        while !text.is_char_boundary(index) {
            index -= 1;
        }
        index
    };
    let start = floor(span.start);
    start..floor(span.end).max(start)
}

impl fmt::Display for ManifestProblem {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}:{}: {}", self.name, self.line, self.column, self.message)
    }
}

impl std::error::Error for ManifestProblem {}

impl Diagnostic for ManifestProblem {
    fn source_code(&self) -> Option<&dyn SourceCode> {
        Some(&*self.source)
    }

    fn labels(&self) -> Option<Box<dyn Iterator<Item = LabeledSpan> + '_>> {
        let label = LabeledSpan::new_with_span(Some("here".to_owned()), self.span.clone());
        Some(Box::new(std::iter::once(label)))
    }

    fn help(&self) -> Option<Box<dyn fmt::Display + '_>> {
        self.help.as_ref().map(|help| Box::new(help) as Box<dyn fmt::Display>)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_counted_in_lines_and_characters() {
        let text = "one\nzwei äö x\nlast";
        for (start, place) in [(0, "f:1:1"), (4, "f:2:1"), (14, "f:2:9"), (999, "f:3:5")] {
            let problem = ManifestProblem::at("f", text, start..start, "wrong".to_owned());
            assert_eq!(problem.to_string(), format!("{place}: wrong"));
        }
        let problem = ManifestProblem::at_line("f", text, 2, 9, "wrong".to_owned());
        assert_eq!(problem.to_string(), "f:2:9: wrong");
        assert!(problem.render(false).contains("zwei äö x"));
    }

    #[test]
    fn a_file_cannot_control_the_terminal() {
        let text = "key\u{202e}: \x1b[2J\n";
        let problem = ManifestProblem::at("a\u{202e}lmay.exe", text, 0..3, "wrong `\x1b[1m`".to_owned());
        for shown in [problem.to_string(), problem.render(false)] {
            assert!(!shown.contains(['\u{202e}', '\x1b']), "{shown:?}");
            assert!(shown.contains("a\\u{202e}lmay.exe:1:1"), "{shown:?}");
        }
    }

    #[test]
    fn places_outside_the_text_do_not_panic() {
        for (line, column) in [(0, 0), (1, 99), (99, 1)] {
            ManifestProblem::at_line("f", "ä", line, column, "wrong".to_owned()).render(false);
        }
        ManifestProblem::at("f", "", 0..0, "wrong".to_owned()).render(true);
        ManifestProblem::at("f", "ä", 1..1, "wrong".to_owned()).render(false);
    }
}
