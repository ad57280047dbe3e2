//! Writes the request target for the next hop, for HTTP/1.1 and for HTTP/2. Pure.

use http::header::{self, HeaderValue};
use http::request::Parts;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Uri, Version};

use super::error_response::ProxyError;
use super::headers;

/// Writes the path alone, with the host in a field.
pub fn over_http1(parts: &mut Parts, host: &str, path: &str) -> Result<(), ProxyError> {
    let host_value = HeaderValue::from_str(host).map_err(|_| odd_host())?;
    let mut uri = http::uri::Parts::default();
    uri.path_and_query = Some(target(&parts.uri, path)?);
    parts.uri = Uri::from_parts(uri).map_err(|_| odd_path())?;
    parts.version = Version::HTTP_11;
    parts.headers.insert(header::HOST, host_value);
    headers::join_cookies(&mut parts.headers);
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
    use http::Request;

    use super::*;

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
