//! Label selectors, in the grammar of Kubernetes: `a=b`, `a==b`, `a!=b`, `a in (b,c)`, `a notin (b,c)`, `a`, `!a`, `a>5`, `a<5`,
//! joined by commas.

use std::collections::BTreeSet;

use super::{Selectable, SelectorError};
use crate::field::show;
use crate::name;

/// Requirements that must all hold; none selects everything.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct LabelSelector {
    requirements: Vec<Requirement>,
}

/// One requirement on one label.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Requirement {
    Exists(String),
    Missing(String),
    In(String, BTreeSet<String>),
    /// Also holds when the label is missing, as in Kubernetes.
    NotIn(String, BTreeSet<String>),
    /// The value is an integer greater than this one. A missing or non-numeric label does not match.
    GreaterThan(String, i64),
    LessThan(String, i64),
}

// More than any user writes; prevents a request from costing a million comparisons per event.
const REQUIREMENTS_MAX: usize = 100;
const VALUES_MAX: usize = 1_000;

impl LabelSelector {
    pub fn parse(text: &str) -> Result<LabelSelector, SelectorError> {
        let mut parser = Parser { text, rest: text };
        let mut requirements = Vec::new();
        if parser.peek() == Token::End {
            return Ok(LabelSelector::default());
        }
        loop {
            requirements.push(parser.requirement()?);
            match parser.next() {
                Token::End => break,
                Token::Comma if requirements.len() < REQUIREMENTS_MAX => {}
                Token::Comma => {
                    return Err(parser.error(&format!("more than {REQUIREMENTS_MAX} requirements")));
                }
                token => {
                    return Err(parser.error(&format!("found {}, expected ',' or the end", token.show())));
                }
            }
        }
        Ok(LabelSelector { requirements })
    }

    pub fn is_empty(&self) -> bool {
        self.requirements.is_empty()
    }

    pub fn matches(&self, object: &impl Selectable) -> bool {
        self.matches_by(|key| object.label(key))
    }

    /// Matches labels that are kept in another form.
    pub fn matches_by<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements.iter().all(|requirement| match requirement {
            Requirement::Exists(key) => label(key).is_some(),
            Requirement::Missing(key) => label(key).is_none(),
            Requirement::In(key, values) => label(key).is_some_and(|value| values.contains(value)),
            Requirement::NotIn(key, values) => label(key).is_none_or(|value| !values.contains(value)),
            Requirement::GreaterThan(key, bound) => number(label(key)).is_some_and(|value| value > *bound),
            Requirement::LessThan(key, bound) => number(label(key)).is_some_and(|value| value < *bound),
        })
    }
}

fn number(label: Option<&str>) -> Option<i64> {
    label?.parse().ok()
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Token<'a> {
    Word(&'a str),
    Comma,
    Open,
    Close,
    Not,
    Equals,
    NotEquals,
    Greater,
    Less,
    End,
}

impl Token<'_> {
    fn show(self) -> String {
        match self {
            Token::Word(word) => show(&word.into()),
            Token::Comma => "','".into(),
            Token::Open => "'('".into(),
            Token::Close => "')'".into(),
            Token::Not => "'!'".into(),
            Token::Equals => "'='".into(),
            Token::NotEquals => "'!='".into(),
            Token::Greater => "'>'".into(),
            Token::Less => "'<'".into(),
            Token::End => "the end".into(),
        }
    }
}

struct Parser<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Parser<'a> {
    fn requirement(&mut self) -> Result<Requirement, SelectorError> {
        if self.peek() == Token::Not {
            self.next();
            return Ok(Requirement::Missing(self.key()?));
        }
        let key = self.key()?;
        match self.peek() {
            Token::End | Token::Comma => Ok(Requirement::Exists(key)),
            Token::Equals => {
                self.next();
                Ok(Requirement::In(key, self.value()?))
            }
            Token::NotEquals => {
                self.next();
                Ok(Requirement::NotIn(key, self.value()?))
            }
            Token::Greater => {
                self.next();
                Ok(Requirement::GreaterThan(key.clone(), self.bound(&key)?))
            }
            Token::Less => {
                self.next();
                Ok(Requirement::LessThan(key.clone(), self.bound(&key)?))
            }
            Token::Word("in") => {
                self.next();
                Ok(Requirement::In(key, self.values()?))
            }
            Token::Word("notin") => {
                self.next();
                Ok(Requirement::NotIn(key, self.values()?))
            }
            token => Err(self.error(&format!(
                "found {} after the key, expected '=', '==', '!=', '>', '<', 'in', 'notin' or ','",
                token.show()
            ))),
        }
    }

    fn key(&mut self) -> Result<String, SelectorError> {
        match self.next() {
            Token::Word(key) => match name::check_label_key(key) {
                Ok(()) => Ok(key.into()),
                Err(allowed) => Err(self.error(&format!("{} is no key: {allowed}", show(&key.into())))),
            },
            token => Err(self.error(&format!("found {}, expected the key of a label", token.show()))),
        }
    }

    /// Parses the value after '=' or '!='; an absent one is the empty value.
    fn value(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        match self.peek() {
            Token::End | Token::Comma => Ok(BTreeSet::from([String::new()])),
            Token::Word(word) => {
                self.next();
                Ok(BTreeSet::from([self.check_value(word)?]))
            }
            token => Err(self.error(&format!("found {}, expected a value", token.show()))),
        }
    }

    /// Parses the number after '>' or '<'. The error has Kubernetes' wording.
    fn bound(&mut self, key: &str) -> Result<i64, SelectorError> {
        let word = match self.next() {
            Token::Word(word) => word,
            token => return Err(self.error(&format!("found {}, expected a value", token.show()))),
        };
        let bound = word.parse().map_err(|_| {
            let shown = show(&word.into());
            let why = "for 'Gt', 'Lt' operators, the value must be an integer";
            self.error(&format!("values[0][{key}]: Invalid value: {shown}: {why}"))
        })?;
        self.check_value(word)?;
        Ok(bound)
    }

    /// The values of `in` and `notin`, in parentheses.
    fn values(&mut self) -> Result<BTreeSet<String>, SelectorError> {
        match self.next() {
            Token::Open => {}
            token => return Err(self.error(&format!("found {}, expected '('", token.show()))),
        }
        let mut values = BTreeSet::new();
        loop {
            let value = match self.peek() {
                Token::Word(word) => {
                    self.next();
                    self.check_value(word)?
                }
                _ => String::new(),
            };
            values.insert(value);
            match self.next() {
                Token::Close => return Ok(values),
                Token::Comma if values.len() < VALUES_MAX => {}
                Token::Comma => return Err(self.error(&format!("more than {VALUES_MAX} values"))),
                token => return Err(self.error(&format!("found {}, expected ',' or ')'", token.show()))),
            }
        }
    }

    fn check_value(&self, word: &str) -> Result<String, SelectorError> {
        match name::check_label_value(word) {
            Ok(()) => Ok(word.into()),
            Err(allowed) => Err(self.error(&format!("{} is no value: {allowed}", show(&word.into())))),
        }
    }

    fn peek(&self) -> Token<'a> {
        self.scan().0
    }

    fn next(&mut self) -> Token<'a> {
        let (token, rest) = self.scan();
        self.rest = rest;
        token
    }

    fn scan(&self) -> (Token<'a>, &'a str) {
        let rest = self.rest.trim_start_matches([' ', '\t', '\r', '\n']);
        let symbols = [
            ("!=", Token::NotEquals),
            ("==", Token::Equals),
            ("=", Token::Equals),
            ("!", Token::Not),
            (",", Token::Comma),
            ("(", Token::Open),
            (")", Token::Close),
            ("<", Token::Less),
            (">", Token::Greater),
        ];
        for (symbol, token) in symbols {
            if let Some(rest) = rest.strip_prefix(symbol) {
                return (token, rest);
            }
        }
        if rest.is_empty() {
            return (Token::End, rest);
        }
        let end = rest.find([' ', '\t', '\r', '\n', '=', '!', ',', '(', ')', '<', '>']).unwrap_or(rest.len());
        (Token::Word(&rest[..end]), &rest[end..])
    }

    fn error(&self, message: &str) -> SelectorError {
        let position = self.text.len() - self.rest.len();
        SelectorError {
            message: format!(
                "label selector {}: at character {position}: {message}",
                show(&self.text.into())
            ),
        }
    }
}
