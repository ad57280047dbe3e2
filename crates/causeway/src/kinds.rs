//! Parses kinds on the command line: any of their names, several with commas, `all`, or KIND/NAME.

use std::ffi::OsStr;

use causeway_api::Kind;
use clap::builder::{PossibleValue, TypedValueParser};
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The first word after `get`, `describe` and `delete`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KindWord {
    pub kinds: Vec<Kind>,
    /// From KIND/NAME.
    pub name: Option<String>,
}

impl KindWord {
    pub fn parse(word: &str) -> Result<KindWord, String> {
        let (kinds, name) = match word.split_once('/') {
            Some((kind, name)) => (kind, Some(name.to_owned()).filter(|name| !name.is_empty())),
            None => (word, None),
        };
        if kinds.eq_ignore_ascii_case("all") {
            return Ok(KindWord { kinds: Kind::ALL.to_vec(), name });
        }
        let mut found = Vec::new();
        for part in kinds.split(',') {
            let short =
                part.strip_suffix(".v1.causeway.io").or(part.strip_suffix(".causeway.io")).unwrap_or(part);
            let kind = Kind::from_word(short).ok_or_else(|| part.to_owned())?;
            if !found.contains(&kind) {
                found.push(kind);
            }
        }
        Ok(KindWord { kinds: found, name })
    }
}

/// Lets clap complete and explain kinds.
#[derive(Clone, Debug)]
pub struct KindParser;

impl TypedValueParser for KindParser {
    type Value = KindWord;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<KindWord, clap::Error> {
        KindWord::parse(&value.to_string_lossy()).map_err(|wrong| {
            let mut error = clap::Error::new(ErrorKind::InvalidValue).with_cmd(command);
            if let Some(argument) = argument {
                error.insert(ContextKind::InvalidArg, ContextValue::String(argument.to_string()));
            }
            error.insert(ContextKind::InvalidValue, ContextValue::String(wrong));
            let names = Kind::ALL.iter().map(|kind| kind.plural().to_owned());
            let names = names.chain(["all".to_owned()]).collect();
            error.insert(ContextKind::ValidValue, ContextValue::Strings(names));
            error
        })
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let kinds = Kind::ALL.into_iter().map(|kind| {
            PossibleValue::new(kind.plural()).aliases([kind.singular(), kind.short(), kind.name()])
        });
        Some(Box::new(kinds.chain([PossibleValue::new("all")])))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_known_by_all_their_names() {
        let check = |word: &str, kinds: &[Kind], name: Option<&str>| {
            let parsed = KindWord::parse(word).unwrap();
            assert_eq!((parsed.kinds.as_slice(), parsed.name.as_deref()), (kinds, name), "{word}");
        };
        check("esites", &[Kind::ESite], None);
        check("EST", &[Kind::ESite], None);
        check("esite/Tokyo", &[Kind::ESite], Some("Tokyo"));
        check("egw,esites,egateways", &[Kind::EGateway, Kind::ESite], None);
        check("esites.causeway.io", &[Kind::ESite], None);
        check("all", &Kind::ALL, None);
        assert_eq!(KindWord::parse("esites,pods"), Err("pods".to_owned()));
    }
}
