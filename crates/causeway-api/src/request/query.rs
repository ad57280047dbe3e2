//! The part of a URL behind the question mark, as names and values.
//!
//! Bounded by hyper's limit on the request line; knows nothing of what the names mean.

/// Decoded pairs in the order they were written. A name may stand more than once; the first counts, as in Go.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct QueryParameters(Vec<(String, String)>);

impl QueryParameters {
    pub fn parse(query: Option<&str>) -> QueryParameters {
        let pairs = query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty());
        QueryParameters(
            pairs
                .map(|pair| {
                    let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                    (decode(name, true), decode(value, true))
                })
                .collect(),
        )
    }

    /// The first value of `name`, unless it is empty: Kubernetes takes an empty value for an absent one.
    pub fn one(&self, name: &str) -> Option<&str> {
        self.0
            .iter()
            .find(|(key, _)| key == name)
            .map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Set at all, even without a value, as in `?verbose`.
    pub fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(key, _)| key == name)
    }

    /// A boolean as Kubernetes reads it: everything that is there is true, except `false` and `0`.
    pub fn flag(&self, name: &str) -> Option<bool> {
        let (_, value) = self.0.iter().find(|(key, _)| key == name)?;
        Some(!(value == "0" || value.eq_ignore_ascii_case("false")))
    }
}

/// Undoes percent encoding; bytes that are no UTF-8 become replacement characters and then match nothing.
pub fn decode(text: &str, plus_is_space: bool) -> String {
    if !text.contains(['%', '+']) {
        return text.to_owned();
    }
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escaped = (bytes[at] == b'%').then(|| bytes.get(at + 1..at + 3)).flatten().and_then(hex_byte);
        match escaped {
            Some(byte) => {
                out.push(byte);
                at += 3;
            }
            None => {
                out.push(if plus_is_space && bytes[at] == b'+' { b' ' } else { bytes[at] });
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn hex_byte(pair: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    u8::try_from(digit(pair[0])? * 16 + digit(pair[1])?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn escapes_are_undone_and_broken_ones_stay() {
        let query = QueryParameters::parse(Some("labelSelector=a%3Db%2Cc&x=1+2&bad=%zz%4&flag&x=3"));
        assert_eq!(query.one("labelSelector"), Some("a=b,c"));
        assert_eq!(query.one("x"), Some("1 2"));
        assert_eq!(query.all("x").collect::<Vec<_>>(), ["1 2", "3"]);
        assert_eq!(query.one("bad"), Some("%zz%4"));
        assert_eq!((query.one("flag"), query.has("flag"), query.flag("flag")), (None, true, Some(true)));
        assert_eq!(QueryParameters::parse(Some("watch=0")).flag("watch"), Some(false));
        assert_eq!(QueryParameters::parse(None), QueryParameters::default());
        assert_eq!(decode("%ff", false), "\u{fffd}");
    }
}
