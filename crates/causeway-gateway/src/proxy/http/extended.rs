//! WebSocket over HTTP/2 (RFC 8441): translates an extended CONNECT to a GET with an upgrade, which every
//! backend supports, and the `101` to the `200` that opens the stream of the client. Pure. Everything else is
//! as with HTTP/1.1, including the rules of policies.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{self, HeaderValue};
use http::{Method, Request, StatusCode, Version, response};
use hyper::ext::Protocol;

use super::headers;

/// Marks a request that was an extended CONNECT, as an extension.
#[derive(Clone, Copy)]
pub struct ExtendedConnect;

const WEBSOCKET: &str = "websocket";
/// RFC 6455, 4.1: the only version.
const VERSION: HeaderValue = HeaderValue::from_static("13");

/// Translates an extended CONNECT for WebSocket. Other requests and protocols are unchanged.
pub fn translate<B>(request: &mut Request<B>) {
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
    lines.insert(header::SEC_WEBSOCKET_KEY, key(headers::random(), headers::random()));
    lines.entry(header::SEC_WEBSOCKET_VERSION).or_insert(VERSION);
}

/// Turns the head of a `101` into the one that opens the stream.
pub fn open(parts: &mut response::Parts) {
    parts.status = StatusCode::OK;
    parts.headers.remove(header::SEC_WEBSOCKET_ACCEPT);
    parts.headers.remove(header::CONTENT_LENGTH);
}

/// Encodes sixteen bytes in base64.
fn key(high: u64, low: u64) -> HeaderValue {
    let bits = u128::from(high) << 64 | u128::from(low);
    let text = STANDARD.encode(bits.to_be_bytes());
    HeaderValue::try_from(text).expect("base64 has only letters that a header may have")
}

#[cfg(test)]
mod tests {
    use super::super::upgrade;
    use super::*;

    #[test]
    fn only_an_extended_connect_for_websocket_is_one() {
        let check = |method: Method, version: Version, protocol: Option<&'static str>, expected: &str| {
            let mut request =
                Request::builder().method(method).version(version).uri("http://a/b").body(()).unwrap();
            if let Some(protocol) = protocol {
                request.extensions_mut().insert(Protocol::from_static(protocol));
            }
            translate(&mut request);
            let is_one = request.extensions().get::<ExtendedConnect>().is_some();
            assert_eq!(format!("{} {is_one}", request.method()), expected);
            let asked = upgrade::wanted(request.headers(), true);
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
        assert_eq!(key(0, 0), "AAAAAAAAAAAAAAAAAAAAAA==");
        assert_eq!(key(u64::MAX, u64::MAX), "/////////////////////w==");
        // RFC 6455, 1.3: the bytes 1 to 16.
        assert_eq!(key(0x0102_0304_0506_0708, 0x090a_0b0c_0d0e_0f10), "AQIDBAUGBwgJCgsMDQ4PEA==");
    }
}
