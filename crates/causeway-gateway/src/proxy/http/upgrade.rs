//! Upgrade requests (RFC 9110, section 7.8): which protocols a client may switch to. Pure.
//!
//! After `101 Switching Protocols` a gateway only copies bytes. A protocol that carries further HTTP requests would take them past
//! the rules, the limits of requests and the audit, so it is never offered to a backend. A request whose upgrade is not offered is
//! forwarded as an ordinary request, which RFC 9110 allows every server to do.
//!
//! WebSocket over HTTP/2 (RFC 8441): an extended CONNECT is translated to a GET with an upgrade, which every backend supports, and
//! the `101` to the `200` that opens the stream of the client. Everything else is as with HTTP/1.1, including the rules.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, Request, StatusCode, Version, response};
use hyper::ext::Protocol;

use super::headers;

/// Protocols that may be switched to where a policy has `http` rules. SPDY/3.1 is what `kubectl exec`, `attach` and `port-forward`
/// speak: its streams carry the input and output of the command whose request was allowed.
const UNDER_RULES: [&str; 2] = ["websocket", "SPDY/3.1"];

/// Names of protocols that carry HTTP requests, in any version: HTTP/2 in plain text (h2c) and TLS (RFC 2817), with HTTP inside.
const CARRIES_REQUESTS: [&str; 4] = ["h2c", "h2", "http", "tls"];

/// Protocols in one request. Clients need no more; each is compared with each name above.
const PROTOCOLS_MAX: usize = 8;

/// The value of the `Upgrade` header for the next hop. None: the request is forwarded without one.
///
/// Every protocol in the list must be allowed, because the backend chooses which one is used. `has_rules`: a policy judges the
/// requests of this service by method and path.
pub fn wanted(headers: &HeaderMap, has_rules: bool) -> Option<HeaderValue> {
    let is_asked = words(headers, &header::CONNECTION).any(|word| word.eq_ignore_ascii_case(b"upgrade"));
    if !is_asked {
        return None;
    }
    let protocols: Vec<&[u8]> = words(headers, &header::UPGRADE).take(PROTOCOLS_MAX + 1).collect();
    let is_allowed = |protocol: &&[u8]| is_protocol(protocol) && may_follow(protocol, has_rules);
    if protocols.is_empty() || protocols.len() > PROTOCOLS_MAX || !protocols.iter().all(is_allowed) {
        return None;
    }
    HeaderValue::from_bytes(&protocols.join(&b", "[..])).ok()
}

/// Returns true if a backend's `101` switches to one of the offered protocols, and to no other.
pub fn is_offered(offered: &HeaderValue, response: &HeaderMap) -> bool {
    let mut chosen = words(response, &header::UPGRADE).peekable();
    let offers = |chosen: &[u8]| list(offered).any(|protocol| protocol.eq_ignore_ascii_case(chosen));
    chosen.peek().is_some() && chosen.all(offers)
}

fn may_follow(protocol: &[u8], has_rules: bool) -> bool {
    let name = protocol.split(|byte| *byte == b'/').next().unwrap_or_default();
    let is = |known: &&str, found: &[u8]| known.as_bytes().eq_ignore_ascii_case(found);
    match has_rules {
        true => UNDER_RULES.iter().any(|known| is(known, protocol)),
        false => !CARRIES_REQUESTS.iter().any(|known| is(known, name)),
    }
}

/// `protocol = protocol-name ["/" protocol-version]`, both tokens (RFC 9110, 5.6.2).
fn is_protocol(text: &[u8]) -> bool {
    let is_token = |part: &[u8]| {
        !part.is_empty()
            && part.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
    };
    let mut parts = text.splitn(2, |byte| *byte == b'/');
    parts.all(is_token)
}

/// The elements of a list, over all lines of the header; empty ones count as nothing (RFC 9110, 5.6.1).
fn words<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> impl Iterator<Item = &'a [u8]> {
    headers.get_all(name).iter().flat_map(list)
}

fn list(value: &HeaderValue) -> impl Iterator<Item = &[u8]> {
    let words = value.as_bytes().split(|byte| *byte == b',');
    words.map(<[u8]>::trim_ascii).filter(|word| !word.is_empty())
}

/// Marks a request that was an extended CONNECT, as an extension.
#[derive(Clone, Copy)]
pub struct ExtendedConnect;

const WEBSOCKET: &str = "websocket";
/// RFC 6455, 4.1: the only version.
const WEBSOCKET_VERSION: HeaderValue = HeaderValue::from_static("13");

/// Translates an extended CONNECT for WebSocket. Other requests and protocols are unchanged.
pub fn translate_extended<B>(request: &mut Request<B>) {
    if request.version() != Version::HTTP_2 || request.method() != Method::CONNECT {
        return;
    }
    let protocol = request.extensions_mut().remove::<Protocol>();
    if !protocol.is_some_and(|protocol| protocol.as_str().eq_ignore_ascii_case(WEBSOCKET)) {
        return;
    }
    *request.method_mut() = Method::GET;
    request.extensions_mut().insert(ExtendedConnect);
    let lines = request.headers_mut();
    headers::put_upgrade(lines, HeaderValue::from_static(WEBSOCKET));
    // HTTP/2 clients send no key, but HTTP/1.1 servers require one.
    lines.insert(header::SEC_WEBSOCKET_KEY, websocket_key(headers::random(), headers::random()));
    lines.entry(header::SEC_WEBSOCKET_VERSION).or_insert(WEBSOCKET_VERSION);
}

/// Turns the head of a `101` into the one that opens the stream.
pub fn open_extended(parts: &mut response::Parts) {
    parts.status = StatusCode::OK;
    parts.headers.remove(header::SEC_WEBSOCKET_ACCEPT);
    parts.headers.remove(header::CONTENT_LENGTH);
}

/// Encodes sixteen bytes in base64.
fn websocket_key(high: u64, low: u64) -> HeaderValue {
    let bits = u128::from(high) << 64 | u128::from(low);
    let text = STANDARD.encode(bits.to_be_bytes());
    HeaderValue::try_from(text).expect("base64 has only letters that a header may have")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (header::HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(line).collect()
    }

    /// Checks the result with rules and without.
    fn check(lines: &[(&'static str, &'static str)], with_rules: Option<&str>, without: Option<&str>) {
        for (has_rules, expected) in [(true, with_rules), (false, without)] {
            let found = wanted(&headers(lines), has_rules);
            assert_eq!(
                found.as_ref().map(|value| value.to_str().unwrap()),
                expected,
                "{lines:?} {has_rules}"
            );
        }
    }

    #[test]
    fn an_upgrade_is_one_only_when_both_headers_say_so() {
        let websocket = ("upgrade", "websocket");
        check(&[("connection", "keep-alive, Upgrade"), websocket], Some("websocket"), Some("websocket"));
        check(
            &[("connection", "keep-alive"), ("connection", "upgrade"), websocket],
            Some("websocket"),
            Some("websocket"),
        );
        check(&[websocket], None, None);
        check(&[("connection", "upgrade")], None, None);
        check(&[("connection", "upgrade"), ("upgrade", " , ,")], None, None);
    }

    #[test]
    fn every_protocol_of_the_list_must_be_allowed() {
        let of = |value: &'static str, with_rules: Option<&str>, without: Option<&str>| {
            check(&[("connection", "upgrade"), ("upgrade", value)], with_rules, without);
        };
        of("WebSocket", Some("WebSocket"), Some("WebSocket"));
        of("SPDY/3.1", Some("SPDY/3.1"), Some("SPDY/3.1"));
        of("SPDY/3.1,websocket", Some("SPDY/3.1, websocket"), Some("SPDY/3.1, websocket"));
        of("SPDY/2", None, Some("SPDY/2"));
        of("vnc", None, Some("vnc"));
        of("websocket, vnc", None, Some("websocket, vnc"));
        for carries_requests in [
            "h2c",
            "H2C",
            "h2c, x",
            "x, h2c",
            "h2c,websocket",
            "websocket,\th2c",
            "h2c/1",
            "h2",
            "HTTP/2.0",
            "TLS/1.0, HTTP/1.1",
        ] {
            of(carries_requests, None, None);
        }
        for odd in ["h2c;q=1", "web socket", "\"websocket\"", "websocket/", "/13", "a/b/c"] {
            of(odd, None, None);
        }
        let mut accented = headers(&[("connection", "upgrade")]);
        accented.insert("upgrade", HeaderValue::from_bytes("wéb".as_bytes()).unwrap());
        assert_eq!(wanted(&accented, false), None);
        of("a,b,c,d,e,f,g,h", None, Some("a, b, c, d, e, f, g, h"));
        of("a,b,c,d,e,f,g,h,i", None, None);
    }

    #[test]
    fn lines_of_the_header_are_one_list() {
        let upgrade = ("connection", "Upgrade, HTTP2-Settings");
        check(&[upgrade, ("upgrade", "websocket"), ("upgrade", "h2c")], None, None);
        check(&[upgrade, ("upgrade", "websocket"), ("upgrade", "vnc")], None, Some("websocket, vnc"));
    }

    #[test]
    fn a_backend_switches_to_what_it_was_offered() {
        let check = |offered: &'static str, chosen: &[&'static str], expected: bool| {
            let lines: Vec<_> = chosen.iter().map(|chosen| ("upgrade", *chosen)).collect();
            let found = is_offered(&HeaderValue::from_static(offered), &headers(&lines));
            assert_eq!(found, expected, "{offered}: {chosen:?}");
        };
        check("websocket", &["WebSocket"], true);
        check("a, b", &["b"], true);
        check("a, b", &["a, b"], true);
        check("websocket", &["h2c"], false);
        check("websocket", &["websocket", "h2c"], false);
        check("websocket", &[], false);
    }

    #[test]
    fn only_an_extended_connect_for_websocket_is_one() {
        let check = |method: Method, version: Version, protocol: Option<&'static str>, expected: &str| {
            let mut request =
                Request::builder().method(method).version(version).uri("http://a/b").body(()).unwrap();
            if let Some(protocol) = protocol {
                request.extensions_mut().insert(Protocol::from_static(protocol));
            }
            translate_extended(&mut request);
            let is_one = request.extensions().get::<ExtendedConnect>().is_some();
            assert_eq!(format!("{} {is_one}", request.method()), expected);
            let asked = wanted(request.headers(), true);
            assert_eq!(asked.is_some_and(|asked| asked == WEBSOCKET), is_one);
            assert_eq!(request.headers().contains_key("sec-websocket-key"), is_one);
        };
        check(Method::CONNECT, Version::HTTP_2, Some("websocket"), "GET true");
        check(Method::CONNECT, Version::HTTP_2, Some("connect-udp"), "CONNECT false");
        check(Method::CONNECT, Version::HTTP_2, None, "CONNECT false");
        check(Method::CONNECT, Version::HTTP_11, None, "CONNECT false");
        check(Method::GET, Version::HTTP_2, None, "GET false");
    }

    #[test]
    fn a_key_is_sixteen_bytes_in_base64() {
        assert_eq!(websocket_key(0, 0), "AAAAAAAAAAAAAAAAAAAAAA==");
        assert_eq!(websocket_key(u64::MAX, u64::MAX), "/////////////////////w==");
        // RFC 6455, 1.3: the bytes 1 to 16.
        assert_eq!(websocket_key(0x0102_0304_0506_0708, 0x090a_0b0c_0d0e_0f10), "AQIDBAUGBwgJCgsMDQ4PEA==");
    }
}
