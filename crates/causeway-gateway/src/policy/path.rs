//! Normalizes the path of a request, so that rules judge the path that the backend receives.
//!
//! RFC 3986, 6.2.2: escapes of unreserved characters are decoded, other escapes are written in capitals, dot
//! segments are resolved; repeated slashes become one. Paths that backends are known to parse differently are
//! refused. Pure; the query is not handled here.

use std::borrow::Cow;

use super::MalformedPart;

/// Returns the normal form of a path. Idempotent. `*` (of OPTIONS) is unchanged.
pub fn normal(path: &str) -> Result<Cow<'_, str>, MalformedPart> {
    if path == "*" || is_plain(path) {
        return Ok(Cow::Borrowed(path));
    }
    if path.is_empty() {
        return Ok(Cow::Borrowed("/"));
    }
    if !path.starts_with('/') {
        return Err(MalformedPart::RelativePath);
    }
    resolve(&unescape(path.as_bytes())?).map(Cow::Owned)
}

/// Most paths are in normal form already, and are not copied.
fn is_plain(path: &str) -> bool {
    let bytes = path.as_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'/' | b'-' | b'_' | b'~' | b'=');
    bytes.first() == Some(&b'/') && bytes.iter().all(plain) && !path.contains("//")
}

/// Decodes unnecessary escapes, and writes necessary ones in capitals.
fn unescape(path: &[u8]) -> Result<String, MalformedPart> {
    let mut clean = String::with_capacity(path.len() + 8);
    let mut rest = path;
    while let Some((&first, after)) = rest.split_first() {
        let (byte, escaped) = match first {
            b'%' => {
                let (high, low) = match after {
                    [high, low, ..] => (hex(*high)?, hex(*low)?),
                    _ => return Err(MalformedPart::BadEscape),
                };
                rest = &after[2..];
                (high << 4 | low, true)
            }
            byte => {
                rest = after;
                (byte, false)
            }
        };
        match byte {
            0..=0x1f | 0x7f => return Err(MalformedPart::ControlCharacter),
            b'\\' => return Err(MalformedPart::HiddenSlash),
            b'/' if escaped => return Err(MalformedPart::HiddenSlash),
            _ if is_unreserved(byte) || (!escaped && is_reserved(byte)) => clean.push(char::from(byte)),
            _ => escape(byte, &mut clean),
        }
    }
    Ok(clean)
}

/// Resolves dot segments (RFC 3986, 5.2.4), but never above the root.
fn resolve(path: &str) -> Result<String, MalformedPart> {
    let mut kept: Vec<&str> = Vec::new();
    let mut ends_in_folder = false;
    for segment in path.split('/').skip(1) {
        ends_in_folder = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(kept.pop().ok_or(MalformedPart::AboveRoot)?),
            _ if segment.starts_with(".;") || segment.starts_with("..;") => {
                return Err(MalformedPart::DottedParameters);
            }
            _ => kept.push(segment),
        }
    }
    let mut resolved = String::with_capacity(path.len());
    for segment in &kept {
        resolved.push('/');
        resolved.push_str(segment);
    }
    if kept.is_empty() || ends_in_folder {
        resolved.push('/');
    }
    Ok(resolved)
}

fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~')
}

/// Characters that may be unescaped in a path beside the unreserved ones: slashes, sub-delims, `:` and `@`.
fn is_reserved(byte: u8) -> bool {
    matches!(
        byte,
        b'/' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'=' | b':' | b'@'
    )
}

fn hex(digit: u8) -> Result<u8, MalformedPart> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(MalformedPart::BadEscape),
    }
}

fn escape(byte: u8, text: &mut String) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    text.push('%');
    text.push(char::from(DIGITS[usize::from(byte >> 4)]));
    text.push(char::from(DIGITS[usize::from(byte & 15)]));
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(path: &str, expected: Result<&str, MalformedPart>) {
        let found = normal(path);
        assert_eq!(found.as_deref().map_err(|error| *error), expected, "{path}");
    }

    #[test]
    fn one_path_has_one_form() {
        check("/", Ok("/"));
        check("", Ok("/"));
        check("*", Ok("*"));
        check("/a/b-c_d~e=f", Ok("/a/b-c_d~e=f"));
        check("/%61dmin", Ok("/admin"));
        check("/a//b///c", Ok("/a/b/c"));
        check("//admin", Ok("/admin"));
        check("/public/../admin", Ok("/admin"));
        check("/public/%2e%2E/admin", Ok("/admin"));
        check("/a/./b/.", Ok("/a/b/"));
        check("/a/..", Ok("/"));
        check("/a/b/..", Ok("/a/"));
        check("/a/...", Ok("/a/..."));
        check("/x%3fy%c3%bc", Ok("/x%3Fy%C3%BC"));
        check("/ü", Ok("/%C3%BC"));
        check("/a;b=c/d@e:f!", Ok("/a;b=c/d@e:f!"));
        check("/a%3Bb", Ok("/a%3Bb"));
        check("/100%25", Ok("/100%25"));
        check("/a b", Ok("/a%20b"));
    }

    #[test]
    fn what_servers_read_in_different_ways_is_refused() {
        check("admin", Err(MalformedPart::RelativePath));
        check("/a%2fb", Err(MalformedPart::HiddenSlash));
        check("/a%5C..%5Cb", Err(MalformedPart::HiddenSlash));
        check("/a\\b", Err(MalformedPart::HiddenSlash));
        check("/a%00", Err(MalformedPart::ControlCharacter));
        check("/a%0d%0aX", Err(MalformedPart::ControlCharacter));
        check("/a\u{7f}", Err(MalformedPart::ControlCharacter));
        check("/a%", Err(MalformedPart::BadEscape));
        check("/a%4", Err(MalformedPart::BadEscape));
        check("/a%zz", Err(MalformedPart::BadEscape));
        check("/public/..;/admin", Err(MalformedPart::DottedParameters));
        check("/public/%2e%2e;x/admin", Err(MalformedPart::DottedParameters));
        check("/../etc", Err(MalformedPart::AboveRoot));
    }

    proptest! {
        #[test]
        fn done_twice_it_changes_nothing(path in "(/|\\.|%2e|%41|%2|;|a|ü|%c3|\\*|=){0,24}") {
            if let Ok(once) = normal(&path) {
                let twice = normal(&once).unwrap();
                prop_assert_eq!(&*twice, &*once);
                prop_assert!(*once == *"*" || (once.starts_with('/') && !once.contains("//")));
                prop_assert!(once.split('/').all(|segment| segment != "." && segment != ".."));
            }
        }
    }
}
