//! Makes responses: bodies, headers, compression.
//!
//! A body is whole, a watch, or a stream of an action. All refusals have the same form.

use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use causeway_api::Status;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::Stream;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Response, StatusCode};
use http_body::{Frame, SizeHint};

use crate::limits::watches::WatchPermit;
use crate::watch::KindWatchStream;

pub enum Body {
    Whole(Bytes),
    Watch(Box<WatchBody>),
    Stream(Pin<Box<dyn Stream<Item = std::io::Result<Bytes>> + Send>>),
}

/// A running watch and the permits that it holds.
pub struct WatchBody {
    stream: KindWatchStream,
    _pass: WatchPermit,
    _count: WatchCount,
}

impl WatchBody {
    pub fn new(stream: KindWatchStream, pass: WatchPermit, count: WatchCount) -> WatchBody {
        WatchBody { stream, _pass: pass, _count: count }
    }
}

/// Counts one watcher in the metrics.
pub struct WatchCount(prometheus_client::metrics::gauge::Gauge);

impl WatchCount {
    pub fn new(gauge: &prometheus_client::metrics::gauge::Gauge) -> WatchCount {
        gauge.inc();
        WatchCount(gauge.clone())
    }
}

impl Drop for WatchCount {
    fn drop(&mut self) {
        self.0.dec();
    }
}

impl http_body::Body for Body {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        match &mut *self {
            Body::Whole(bytes) if bytes.is_empty() => Poll::Ready(None),
            Body::Whole(bytes) => Poll::Ready(Some(Ok(Frame::data(std::mem::take(bytes))))),
            Body::Watch(watch) => {
                watch.stream.poll_lines(context).map(|lines| lines.map(|lines| Ok(Frame::data(lines))))
            }
            Body::Stream(stream) => {
                stream.as_mut().poll_next(context).map(|piece| piece.map(|piece| piece.map(Frame::data)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Body::Whole(bytes) if bytes.is_empty())
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Body::Whole(bytes) => SizeHint::with_exact(bytes.len() as u64),
            Body::Watch(_) | Body::Stream(_) => SizeHint::default(),
        }
    }
}

pub const JSON: HeaderValue = HeaderValue::from_static("application/json");

pub fn whole(code: StatusCode, content_type: HeaderValue, body: impl Into<Bytes>) -> Response<Body> {
    let mut response = Response::new(Body::Whole(body.into()));
    *response.status_mut() = code;
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, content_type);
    // Objects change under the same address, so responses are not cached unless a header allows it, as in
    // Kubernetes.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    response
}

pub fn json(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    whole(code, JSON, body)
}

pub fn text(code: StatusCode, body: impl Into<Bytes>) -> Response<Body> {
    whole(code, HeaderValue::from_static("text/plain; charset=utf-8"), body)
}

pub fn refusal(status: &Status) -> Response<Body> {
    let code = StatusCode::from_u16(status.code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json(code, status.to_json());
    let retry = status.details.as_ref().and_then(|details| details.retry_after_seconds);
    // Only for 429: client-go sleeps and retries on this header, which does not help while the store is
    // unavailable.
    if let (StatusCode::TOO_MANY_REQUESTS, Some(seconds)) = (code, retry) {
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    if code == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

// Kubernetes' limits on the number and on the total length of warnings.
const WARNINGS_MAX: usize = 32;
const WARNING_BYTES_MAX: usize = 256;

/// Adds `Warning` headers in the form of RFC 7234, which kubectl prints.
pub fn warn(response: &mut Response<Body>, warnings: &[String]) {
    for warning in warnings.iter().take(WARNINGS_MAX) {
        let mut text = String::with_capacity(warning.len() + 12);
        for letter in warning.chars().take(WARNING_BYTES_MAX) {
            match letter {
                '"' | '\\' => text.extend(['\\', letter]),
                ' '..='~' => text.push(letter),
                _ => text.push('?'),
            }
        }
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{text}\"")) {
            response.headers_mut().append(header::WARNING, value);
        }
    }
}

/// Makes the response to HEAD: the head of the response to GET, with the length of its body where that is
/// known.
pub fn without_body(response: Response<Body>) -> Response<Body> {
    let (mut head, body) = response.into_parts();
    if let Body::Whole(bytes) = &body {
        head.headers.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes.len()));
    }
    Response::from_parts(head, Body::Whole(Bytes::new()))
}

/// Indents a whole JSON body for people. Other bodies stay as they are: a watch has one event per line.
pub fn indent(response: Response<Body>) -> Response<Body> {
    let is_json = response.headers().get(header::CONTENT_TYPE).is_some_and(|value| {
        value
            .to_str()
            .is_ok_and(|value| value == "application/json" || value.starts_with("application/json;"))
    });
    let (head, body) = response.into_parts();
    let body = match body {
        Body::Whole(bytes) if is_json && !bytes.is_empty() => Body::Whole(indented(&bytes).into()),
        body => body,
    };
    Response::from_parts(head, body)
}

/// Formats JSON with line breaks and two spaces per level. Keys keep their order and texts their escapes.
fn indented(json: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(json.len() + json.len() / 2);
    let (mut depth, mut in_text, mut escaped) = (0usize, false, false);
    let line = |out: &mut Vec<u8>, depth: usize| {
        out.push(b'\n');
        out.extend(std::iter::repeat_n(b' ', 2 * depth));
    };
    let mut bytes = json.iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        if in_text {
            out.push(byte);
            in_text = escaped || byte != b'"';
            escaped = !escaped && byte == b'\\';
            continue;
        }
        match byte {
            b' ' | b'\n' | b'\r' | b'\t' => {}
            b'"' => {
                in_text = true;
                out.push(byte);
            }
            b'{' | b'[' => {
                out.push(byte);
                let close = if byte == b'{' { b'}' } else { b']' };
                if bytes.peek() != Some(&close) {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            b'}' | b']' => {
                let open = if byte == b'}' { b'{' } else { b'[' };
                if out.last() != Some(&open) {
                    depth = depth.saturating_sub(1);
                    line(&mut out, depth);
                }
                out.push(byte);
            }
            b',' => {
                out.push(byte);
                line(&mut out, depth);
            }
            b':' => out.extend_from_slice(b": "),
            other => out.push(other),
        }
    }
    out
}

// As in Kubernetes: below this, compressing costs more than it saves.
const GZIP_BYTES_MIN: usize = 128 << 10;

/// Compresses a large body if the client accepts it. Runs outside the async threads: a list of 10,000 objects
/// takes tens of milliseconds of one core, which would delay watchers.
pub async fn compress(request: &HeaderMap, response: Response<Body>) -> Response<Body> {
    let Body::Whole(bytes) = response.body() else { return response };
    if bytes.len() < GZIP_BYTES_MIN
        || !takes_gzip(request)
        || response.headers().contains_key(header::CONTENT_ENCODING)
    {
        return response;
    }
    let plain = bytes.clone();
    let packed = tokio::task::spawn_blocking(move || gzip(&plain)).await;
    let (mut head, body) = response.into_parts();
    let body = match packed {
        Ok(Ok(packed)) => {
            head.headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            head.headers.append(header::VARY, HeaderValue::from_static("Accept-Encoding"));
            Body::Whole(packed)
        }
        _ => body,
    };
    Response::from_parts(head, body)
}

fn gzip(plain: &[u8]) -> std::io::Result<Bytes> {
    // JSON of many similar objects shrinks to about a tenth even at the fastest level.
    let mut encoder = GzEncoder::new(Vec::with_capacity(plain.len() / 8), Compression::fast());
    encoder.write_all(plain)?;
    Ok(encoder.finish()?.into())
}

fn takes_gzip(request: &HeaderMap) -> bool {
    let all = request.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(',')).any(|coding| {
        let (name, rest) = coding.split_once(';').unwrap_or((coding, ""));
        let refused = matches!(rest.replace(' ', "").as_str(), "q=0" | "q=0.0" | "q=0.00" | "q=0.000");
        name.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[tokio::test]
    async fn large_bodies_are_packed_for_those_who_take_it() {
        let large = Bytes::from(vec![b'x'; GZIP_BYTES_MIN]);
        let check = async |accept: Option<&str>, body: Bytes, packed: bool| {
            let mut headers = HeaderMap::new();
            if let Some(accept) = accept {
                headers.insert(header::ACCEPT_ENCODING, accept.parse().unwrap());
            }
            let response = compress(&headers, json(StatusCode::OK, body.clone())).await;
            assert_eq!(response.headers().contains_key(header::CONTENT_ENCODING), packed, "{accept:?}");
            let Body::Whole(found) = response.body() else { panic!() };
            let mut plain = Vec::new();
            match packed {
                true => drop(flate2::read::GzDecoder::new(&found[..]).read_to_end(&mut plain).unwrap()),
                false => plain = found.to_vec(),
            }
            assert_eq!(plain, body);
        };
        check(Some("gzip"), large.clone(), true).await;
        check(Some("deflate, gzip;q=0.5"), large.clone(), true).await;
        check(Some("gzip;q=0"), large.clone(), false).await;
        check(Some("br"), large.clone(), false).await;
        check(None, large.clone(), false).await;
        check(Some("gzip"), large.slice(1..), false).await;
    }

    #[test]
    fn pretty_json_says_the_same_and_reads_as_go_prints_it() {
        let text = r#"{"a":[1,{"b":"x,{\"\\"}],"e":{},"f":[],"g":null}"#;
        let pretty = indented(text.as_bytes());
        let value: serde_json::Value = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&pretty).unwrap(), value);
        assert_eq!(String::from_utf8(pretty).unwrap(), serde_json::to_string_pretty(&value).unwrap());
    }

    #[test]
    fn warnings_cannot_break_out_of_their_header() {
        let mut response = json(StatusCode::OK, "");
        warn(&mut response, &["unknown field \"a\\b\"".into(), "x\r\nSet-Cookie: y\u{1F600}".into()]);
        let found: Vec<_> = response.headers().get_all(header::WARNING).iter().collect();
        assert_eq!(found[0], r#"299 - "unknown field \"a\\b\"""#);
        assert_eq!(found[1], r#"299 - "x??Set-Cookie: y?""#);
    }

    #[test]
    fn only_a_429_sends_clients_to_sleep() {
        let header = |status: Status| refusal(&status).headers().get(header::RETRY_AFTER).cloned();
        assert_eq!(header(Status::too_many_requests("slowly", 1)), Some(HeaderValue::from(1)));
        assert_eq!(header(Status::unavailable("not now", 1)), None);
    }
}
