//! Prints an error with its causes on one line.

use std::error::Error;

/// Returns the error and all its causes, separated by colons. A cause whose text an earlier part contains already is
/// left out.
pub fn error_chain(error: &dyn Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    let mut next = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        if !parts.iter().any(|part| part.contains(&text)) {
            parts.push(text);
        }
        next = error.source();
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layer {
        text: &'static str,
        source: Option<Box<Layer>>,
    }

    #[test]
    fn each_cause_is_printed_once() {
        let layer = |text, source: Option<Layer>| Layer { text, source: source.map(Box::new) };
        let check = |error: Layer, expected: &str| assert_eq!(error_chain(&error), expected);
        check(layer("cannot connect", None), "cannot connect");
        check(
            layer("cannot connect", Some(layer("refused", Some(layer("refused", None))))),
            "cannot connect: refused",
        );
        check(layer("cannot connect: refused", Some(layer("refused", None))), "cannot connect: refused");
    }
}
