//! Heads of requests and responses that are forwarded: removes hop-by-hop fields, rejects heads that two
//! readers could parse differently, and writes the request target for the next hop. Pure. Fields about the
//! client are in `forwarded`, changes of protocol in `upgrade`.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Method, Request, Uri, Version};

use super::error_response::ProxyError;
use crate::policy::MalformedPart;

/// On a response of a gateway itself: the word of its refusal.
pub const REFUSAL: HeaderName = HeaderName::from_static("causeway-refusal");

// RFC 9110, 7.6.1, and fields of older programs. `Trailer` is kept: it announces the trailers, hop after hop.
// `HTTP2-Settings` belongs to an upgrade to h2c, which is not forwarded.
const OF_ONE_HOP: [HeaderName; 8] = [
    header::CONNECTION,
    HeaderName::from_static("http2-settings"),
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::TE,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Removes hop-by-hop fields. `TE: trailers` is kept: gRPC requires it.
pub fn strip(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = connection_words(headers)
        .filter(|word| !word.eq_ignore_ascii_case("close") && !word.eq_ignore_ascii_case("keep-alive"))
        // A client cannot have these removed by naming them in `Connection`: they tell where the request
        // goes, or who sent it.
        .filter_map(|word| HeaderName::from_bytes(word.as_bytes()).ok())
        .filter(|name| *name != header::HOST && *name != header::CONTENT_LENGTH && *name != header::TE)
        .collect();
    let wants_trailers = has_word(headers, &header::TE, "trailers");
    for name in named.iter().chain(&OF_ONE_HOP) {
        headers.remove(name);
    }
    headers.remove(REFUSAL);
    if wants_trailers {
        headers.insert(header::TE, HeaderValue::from_static("trailers"));
    }
}

/// Adds the fields for an upgrade to the head for the next hop.
pub fn put_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(header::CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(header::UPGRADE, protocol);
}

pub fn expects_continue(headers: &HeaderMap) -> bool {
    headers.get(header::EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Returns whether it is gRPC. gRPC-Web is not: its errors are those of HTTP.
pub fn is_grpc(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return false };
    let value = value.as_bytes();
    const GRPC: &[u8] = b"application/grpc";
    value.len() >= GRPC.len()
        && value[..GRPC.len()].eq_ignore_ascii_case(GRPC)
        && matches!(value.get(GRPC.len()), None | Some(b'+' | b';' | b' '))
}

/// Joins cookie fields: HTTP/2 may split them, HTTP/1.1 must not (RFC 9113, 8.2.3).
pub fn join_cookies(headers: &mut HeaderMap) {
    let mut pieces = headers.get_all(header::COOKIE).iter();
    if pieces.next().is_none() || pieces.next().is_none() {
        return;
    }
    let pieces: Vec<&[u8]> = headers.get_all(header::COOKIE).iter().map(HeaderValue::as_bytes).collect();
    if let Ok(joined) = HeaderValue::from_bytes(&pieces.join(&b"; "[..])) {
        headers.insert(header::COOKIE, joined);
    }
}

/// Rejects ambiguous heads that the parser accepts. It already rejects odd white space, folded lines and
/// unequal lengths.
pub fn inspect<B>(request: &Request<B>) -> Result<(), MalformedPart> {
    let headers = request.headers();
    if headers.contains_key(header::TRANSFER_ENCODING) {
        if headers.contains_key(header::CONTENT_LENGTH) {
            return Err(MalformedPart::TwoLengths);
        }
        let mut encodings = headers.get_all(header::TRANSFER_ENCODING).iter();
        let first = encodings.next().map(HeaderValue::as_bytes).unwrap_or_default();
        if encodings.next().is_some() || !first.eq_ignore_ascii_case(b"chunked") {
            return Err(MalformedPart::TransferEncoding);
        }
    }
    if request.method() == Method::CONNECT {
        return Err(MalformedPart::Connect);
    }
    let mut hosts = headers.get_all(header::HOST).iter();
    let (host, another) = (hosts.next(), hosts.next());
    let named = host.is_some() || request.uri().authority().is_some();
    if another.is_some() || (!named && request.version() == Version::HTTP_11) {
        return Err(MalformedPart::Host);
    }
    // HTTP/2 allows both, and they must agree (RFC 9113, 8.3.1); in HTTP/1.1 the request line takes
    // precedence over the field.
    match (request.uri().authority(), host) {
        (Some(authority), Some(host)) if request.version() == Version::HTTP_2 => {
            match authority.as_str().as_bytes().eq_ignore_ascii_case(host.as_bytes()) {
                true => Ok(()),
                false => Err(MalformedPart::Host),
            }
        }
        _ => Ok(()),
    }
}

/// Returns the host of a request, with its port if there is one.
pub fn host<B>(request: &Request<B>) -> Option<&str> {
    host_in(request.uri(), request.headers())
}

pub fn host_of(parts: &Parts) -> Option<&str> {
    host_in(&parts.uri, &parts.headers)
}

fn host_in<'a>(uri: &'a Uri, headers: &'a HeaderMap) -> Option<&'a str> {
    match uri.authority() {
        Some(authority) => Some(authority.as_str()),
        None => headers.get(header::HOST)?.to_str().ok(),
    }
}

/// Returns the name of a host, without its port.
pub fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

/// Returns a cheap unique number: the hasher of the standard library with its next key. Not for secrets.
/// Never zero.
pub fn random() -> u64 {
    RandomState::new().build_hasher().finish() | 1
}

fn connection_words(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let values = headers.get_all(header::CONNECTION).iter();
    values.filter_map(|value| value.to_str().ok()).flat_map(|value| value.split(',')).map(str::trim)
}

fn has_word(headers: &HeaderMap, name: &HeaderName, wanted: &str) -> bool {
    let values = headers.get_all(name).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|word| word.trim().eq_ignore_ascii_case(wanted))
}

/// Writes the path alone, with the host in a field.
pub fn over_http1(parts: &mut Parts, host: &str, path: &str) -> Result<(), ProxyError> {
    let host_value = HeaderValue::from_str(host).map_err(|_| odd_host())?;
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(target(&parts.uri, path)?);
    parts.uri = Uri::from_parts(uri).map_err(|_| odd_path())?;
    parts.version = Version::HTTP_11;
    parts.headers.insert(header::HOST, host_value);
    join_cookies(&mut parts.headers);
    Ok(())
}

/// Writes scheme, authority and path.
pub fn over_http2(parts: &mut Parts, host: &str, path: &str, tls: bool) -> Result<(), ProxyError> {
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(target(&parts.uri, path)?);
    uri.authority = Some(Authority::try_from(host).map_err(|_| odd_host())?);
    uri.scheme = Some(if tls { Scheme::HTTPS } else { Scheme::HTTP });
    parts.uri = Uri::from_parts(uri).map_err(|_| odd_path())?;
    parts.version = Version::HTTP_2;
    parts.headers.remove(header::HOST);
    Ok(())
}

/// Returns the path that was judged, with the original query.
fn target(uri: &Uri, path: &str) -> Result<PathAndQuery, ProxyError> {
    match uri.path_and_query() {
        Some(same) if same.path() == path => Ok(same.clone()),
        other => {
            let query = other.and_then(PathAndQuery::query);
            let text = match query {
                Some(query) => format!("{path}?{query}"),
                None => path.to_owned(),
            };
            PathAndQuery::try_from(text).map_err(|_| odd_path())
        }
    }
}

fn odd_host() -> ProxyError {
    ProxyError::bad_request("the Host of the request is not a valid host")
}

fn odd_path() -> ProxyError {
    ProxyError::bad_request("the path of the request is not a valid path")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_static(name), HeaderValue::from_static(value))
        };
        lines.iter().map(line).collect()
    }

    #[test]
    fn what_belongs_to_one_hop_stays_there() {
        let mut found = headers(&[
            ("connection", "close, X-Mine"),
            ("connection", "host, content-length"),
            ("x-mine", "1"),
            ("keep-alive", "5"),
            ("te", "gzip, trailers"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("upgrade", "h2c"),
            ("http2-settings", "AAMAAABkAAQAAP__"),
            ("causeway-refusal", "limit"),
            ("host", "a"),
            ("content-length", "5"),
            ("trailer", "grpc-status"),
            ("forwarded", "for=1.2.3.4"),
        ]);
        strip(&mut found);
        let mut names: Vec<&str> = found.keys().map(HeaderName::as_str).collect();
        names.sort_unstable();
        assert_eq!(names, ["content-length", "forwarded", "host", "te", "trailer"]);
        assert_eq!(found["te"], "trailers");
    }

    #[test]
    fn grpc_is_told_from_its_relatives() {
        let of = |value: &'static str| is_grpc(&headers(&[("content-type", value)]));
        assert!(of("application/grpc") && of("application/grpc+proto") && of("Application/gRPC; x=y"));
        assert!(!of("application/grpc-web") && !of("application/grpcish") && !of("text/plain"));
    }

    #[test]
    fn cookies_are_one_line_again() {
        let mut found = headers(&[("cookie", "a=1"), ("cookie", "b=2")]);
        join_cookies(&mut found);
        assert_eq!(found.get_all("cookie").iter().collect::<Vec<_>>(), ["a=1; b=2"]);
    }

    #[test]
    fn a_head_with_two_meanings_is_found() {
        let check = |request: http::request::Builder, expected: Result<(), MalformedPart>| {
            assert_eq!(inspect(&request.body(()).unwrap()), expected);
        };
        let get = || Request::get("/").version(Version::HTTP_11);
        check(get().header("host", "a"), Ok(()));
        check(get(), Err(MalformedPart::Host));
        check(get().header("host", "a").header("host", "a"), Err(MalformedPart::Host));
        check(Request::get("http://b/").header("host", "a"), Ok(()));
        check(Request::get("/").version(Version::HTTP_10), Ok(()));
        let two = Request::get("http://b/").version(Version::HTTP_2);
        check(two.header("host", "a"), Err(MalformedPart::Host));
        let host = || get().header("host", "a");
        let both = host().header("transfer-encoding", "chunked").header("content-length", "5");
        check(both, Err(MalformedPart::TwoLengths));
        check(host().header("transfer-encoding", "gzip, chunked"), Err(MalformedPart::TransferEncoding));
        check(host().method("CONNECT"), Err(MalformedPart::Connect));
    }

    #[test]
    fn what_was_judged_is_what_is_asked_for() {
        let parts = |uri: &str| Request::get(uri).header("host", "a").body(()).unwrap().into_parts().0;
        let mut one = parts("http://b/x/../y?q=/../1");
        over_http1(&mut one, "b", "/y").unwrap();
        assert_eq!(one.uri.to_string(), "/y?q=/../1");
        assert_eq!(one.headers["host"], "b");
        let mut two = parts("/y?q");
        over_http2(&mut two, "a:81", "/y", false).unwrap();
        assert_eq!(two.uri.to_string(), "http://a:81/y?q");
        assert!(!two.headers.contains_key("host"));
        let mut any = parts("*");
        over_http1(&mut any, "a", "*").unwrap();
        assert_eq!(any.uri.to_string(), "*");
        assert!(over_http2(&mut parts("/"), "a b", "/", false).is_err());
    }
}
