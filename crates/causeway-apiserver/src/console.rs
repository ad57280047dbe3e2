//! The web console: its files, which are part of the binary, and the headers that protect its sign-in.
//!
//! Pure. `sessions` keeps the people who are signed in, `handle::console` signs them in and out. The page itself is in
//! `console/files`: HTML, CSS and modules as browsers read them, without a build step. It calls the same API as every other
//! client, with the rights of the token of the sign-in.

pub mod sessions;

use std::collections::HashMap;
use std::sync::OnceLock;

use causeway_api::Status;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};

use crate::documents::StaticDocument;
use crate::respond::{self, Body};
use sessions::SESSION_TIME_MAX;

/// A prefix that browsers enforce: set by this host over TLS, and for no other host.
const COOKIE: &str = "__Host-causeway-console";
/// The header of every call of the console. The page of another origin cannot add it: a browser asks the server before, and
/// this server gives no such permission.
const CALL_HEADER: &str = "causeway-console";

/// The name, the media type and the content of a file.
type ConsoleFile = (&'static str, &'static str, &'static [u8]);

macro_rules! file {
    ($name:literal, $media:literal) => {
        ($name, $media, include_bytes!(concat!("console/files/", $name)))
    };
}

const JAVASCRIPT_FILES: &[ConsoleFile] = &[
    file!("main.js", "text/javascript; charset=utf-8"),
    file!("api.js", "text/javascript; charset=utf-8"),
    file!("store.js", "text/javascript; charset=utf-8"),
    file!("figures.js", "text/javascript; charset=utf-8"),
    file!("dom.js", "text/javascript; charset=utf-8"),
    file!("format.js", "text/javascript; charset=utf-8"),
    file!("state.js", "text/javascript; charset=utf-8"),
    file!("plot.js", "text/javascript; charset=utf-8"),
    file!("sign-in.js", "text/javascript; charset=utf-8"),
    file!("map.js", "text/javascript; charset=utf-8"),
    file!("site.js", "text/javascript; charset=utf-8"),
    file!("gateway.js", "text/javascript; charset=utf-8"),
    file!("services.js", "text/javascript; charset=utf-8"),
    file!("access.js", "text/javascript; charset=utf-8"),
    file!("audit.js", "text/javascript; charset=utf-8"),
    file!("caches.js", "text/javascript; charset=utf-8"),
    file!("path-table.js", "text/javascript; charset=utf-8"),
    file!("paths.js", "text/javascript; charset=utf-8"),
    file!("records.js", "text/javascript; charset=utf-8"),
    file!("traffic.js", "text/javascript; charset=utf-8"),
];

const OTHER_FILES: &[ConsoleFile] = &[
    ("", "text/html; charset=utf-8", include_bytes!("console/files/index.html")),
    file!("style.css", "text/css; charset=utf-8"),
    file!("icon.svg", "image/svg+xml"),
];

/// Everything from this server, nothing inline, no HTML from texts, in no frame.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
     require-trusted-types-for 'script'; trusted-types 'none'";

const PROTECTIONS: [(HeaderName, &str); 6] = [
    (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
];

/// Returns a file of the console, or 304 when the browser has it.
pub fn file(name: &str, request: &HeaderMap) -> Result<Response<Body>, Status> {
    static FILES: OnceLock<HashMap<&str, (StaticDocument, &str)>> = OnceLock::new();
    let files = FILES.get_or_init(|| {
        let all = JAVASCRIPT_FILES.iter().chain(OTHER_FILES);
        all.map(|(name, media, bytes)| (*name, (StaticDocument::new(*bytes), *media))).collect()
    });
    let (document, media) =
        files.get(name).ok_or_else(|| Status::no_such_path(&format!("/console/{name}")))?;
    let mut response = document.answer(request, HeaderValue::from_static(media));
    protect(response.headers_mut());
    Ok(response)
}

/// Returns a JSON response about a session. No cache keeps it.
pub fn session(code: StatusCode, body: String) -> Response<Body> {
    let mut response = respond::json(code, body);
    protect(response.headers_mut());
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn protect(headers: &mut HeaderMap) {
    headers.extend(PROTECTIONS.map(|(name, value)| (name, HeaderValue::from_static(value))));
}

/// Returns the header that gives the browser the secret of a session; without a secret it removes the cookie.
pub fn set_cookie(secret: Option<&str>) -> Option<HeaderValue> {
    let (value, seconds) = secret.map_or(("", 0), |secret| (secret, SESSION_TIME_MAX.as_secs()));
    let text = format!("{COOKIE}={value}; Path=/; Max-Age={seconds}; Secure; HttpOnly; SameSite=Strict");
    HeaderValue::from_str(&text).ok()
}

/// Returns the secret of the session in the cookies of a request.
pub fn session_cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).iter().filter_map(|value| value.to_str().ok());
    let mut pairs = all.flat_map(|value| value.split(';')).filter_map(|pair| pair.trim().split_once('='));
    pairs.find(|(name, _)| *name == COOKIE).map(|(_, value)| value)
}

/// Returns true for a call that the console's own page makes; only such a call may use the cookie.
pub fn is_call_of_console(headers: &HeaderMap) -> bool {
    headers.contains_key(CALL_HEADER) && !is_from_another_origin(headers)
}

/// Returns true if a browser says that the page of another origin makes the request. Other clients do not send the header.
/// Another port of this host is another origin too, although its pages get the same cookies.
pub fn is_from_another_origin(headers: &HeaderMap) -> bool {
    headers.get("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(rows: &[(&'static str, &str)]) -> HeaderMap {
        rows.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn every_file_in_the_folder_is_served_and_no_other() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/console/files");
        let mut on_disk: Vec<String> = std::fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap().replace("index.html", ""))
            .collect();
        let mut served: Vec<&str> =
            JAVASCRIPT_FILES.iter().chain(OTHER_FILES).map(|(name, ..)| *name).collect();
        on_disk.sort();
        served.sort_unstable();
        assert_eq!(on_disk, served);
        assert!(file("../console.rs", &HeaderMap::new()).is_err());
    }

    #[test]
    fn files_have_their_type_a_tag_and_the_headers_that_protect_them() {
        for (name, media, _) in JAVASCRIPT_FILES.iter().chain(OTHER_FILES) {
            let response = file(name, &HeaderMap::new()).unwrap();
            assert_eq!(response.headers()[header::CONTENT_TYPE], *media);
            for (protection, value) in PROTECTIONS {
                assert_eq!(response.headers()[&protection], value);
            }
            let tag = response.headers()[header::ETAG].to_str().unwrap();
            let again = file(name, &headers(&[("if-none-match", tag)])).unwrap();
            assert_eq!(again.status(), StatusCode::NOT_MODIFIED);
        }
    }

    /// The policy forbids inline code; a browser would report each piece, but only on the page that has it.
    #[test]
    fn no_file_has_inline_code_or_refers_to_another_server() {
        for (name, _, bytes) in JAVASCRIPT_FILES.iter().chain(OTHER_FILES) {
            let text = std::str::from_utf8(bytes).unwrap();
            let svg = "http://www.w3.org/2000/svg";
            for forbidden in ["http://", "https://", "<style", " style=", " onclick=", "innerHTML", "eval("] {
                assert!(!text.replace(svg, "").contains(forbidden), "{forbidden} in {name}");
            }
        }
    }

    #[test]
    fn a_cookie_counts_for_calls_of_the_console_alone() {
        let check = |rows: &[(&'static str, &str)], expected: bool| {
            assert_eq!(is_call_of_console(&headers(rows)), expected, "{rows:?}");
        };
        check(&[("causeway-console", "1")], true);
        check(&[("causeway-console", "1"), ("sec-fetch-site", "same-origin")], true);
        check(&[("causeway-console", "1"), ("sec-fetch-site", "same-site")], false);
        check(&[("causeway-console", "1"), ("sec-fetch-site", "cross-site")], false);
        check(&[], false);
    }

    #[test]
    fn the_cookie_is_found_among_others() {
        let check = |cookie: &str, expected: Option<&str>| {
            assert_eq!(session_cookie(&headers(&[("cookie", cookie)])), expected, "{cookie}");
        };
        check("__Host-causeway-console=abc", Some("abc"));
        check("a=b; __Host-causeway-console=abc; c=d", Some("abc"));
        check("causeway-console=abc; x__Host-causeway-console=abc", None);
        check("__Host-causeway-console", None);
        let set = set_cookie(Some("abc")).unwrap();
        for part in ["__Host-causeway-console=abc;", "Path=/;", "Secure;", "HttpOnly;", "SameSite=Strict"] {
            assert!(set.to_str().unwrap().contains(part), "{part}");
        }
        assert!(set_cookie(None).unwrap().to_str().unwrap().contains("Max-Age=0"));
    }
}
