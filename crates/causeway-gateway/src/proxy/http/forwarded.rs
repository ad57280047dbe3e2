//! Header fields with which a client, or a proxy in front of it, describes itself and its request. Pure.
//!
//! The outbound gateway knows the client: it sets these fields and removes those of the client, so that a
//! backend need not know which of them it can trust. Fields that name another path or method than the one
//! that was judged are removed at both ends. The table for users is in `docs/http.md`.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use http::header::{HeaderMap, HeaderName, HeaderValue};

use super::headers;

/// The address and port of the client, from gateway to gateway. Removed before the backend, and never
/// accepted from a client.
pub const CLIENT: HeaderName = HeaderName::from_static("causeway-client");

const FORWARDED: HeaderName = HeaderName::from_static("forwarded");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");

/// Fields that only the gateway sets.
const FORWARDED_PREFIX: &str = "x-forwarded-";
/// The address of the client, or the scheme, as other proxies write them.
const ABOUT_CLIENT: [&str; 9] = [
    "forwarded",
    "x-real-ip",
    "x-client-ip",
    "true-client-ip",
    "x-cluster-client-ip",
    "x-original-forwarded-for",
    "x-original-host",
    "x-scheme",
    "front-end-https",
];
/// Fields that name another path than that of the request. Some frameworks route by them.
const ANOTHER_PATH: [&str; 4] = ["x-original-url", "x-original-uri", "x-rewrite-url", "x-override-url"];
/// Fields that name another method than that of the request.
const ANOTHER_METHOD: [&str; 4] =
    ["x-http-method-override", "x-http-method", "x-method-override", "x-original-method"];

/// Removes fields that name another path and, where policies judge requests (`has_rules`), another method.
/// Both ends do it: the other gateway may have an older version.
pub fn strip_overrides(headers: &mut HeaderMap, has_rules: bool) {
    remove(headers, |name| ANOTHER_PATH.contains(&name) || (has_rules && ANOTHER_METHOD.contains(&name)));
}

/// Sets the fields that tell the backend and the other gateway who the client is. Fields from the client are
/// replaced; its list in `X-Forwarded-For` is continued, so the last address in it is the one that this
/// gateway saw.
pub fn set_client(headers: &mut HeaderMap, client: SocketAddr, host: Option<&str>) {
    let ip = client.ip().to_canonical();
    let mut list = Vec::new();
    for value in headers.get_all(FORWARDED_FOR) {
        list.extend_from_slice(value.as_bytes());
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(ip.to_string().as_bytes());
    remove(headers, |name| name.starts_with(FORWARDED_PREFIX) || ABOUT_CLIENT.contains(&name));
    let mut set = |name: HeaderName, value: &[u8]| {
        if let Ok(value) = HeaderValue::from_bytes(value) {
            headers.insert(name, value);
        }
    };
    set(FORWARDED_FOR, &list);
    set(FORWARDED_PROTO, b"http");
    set(REAL_IP, ip.to_string().as_bytes());
    set(FORWARDED, forwarded(ip, host).as_bytes());
    if let Some(host) = host {
        set(FORWARDED_HOST, host.as_bytes());
    }
    set(CLIENT, SocketAddr::new(ip, client.port()).to_string().as_bytes());
    if !headers.contains_key(TRACEPARENT) {
        headers.insert(TRACEPARENT, new_trace());
    }
}

/// Returns the client that the other gateway names, and removes the field.
pub fn take_client(headers: &mut HeaderMap) -> Option<SocketAddr> {
    headers.remove(CLIENT)?.to_str().ok()?.parse().ok()
}

/// RFC 7239, section 4: addresses of IPv6 and hosts with a port are quoted.
fn forwarded(ip: IpAddr, host: Option<&str>) -> String {
    let mut text = match ip {
        IpAddr::V4(ip) => format!("for={ip}"),
        IpAddr::V6(ip) => format!("for=\"[{ip}]\""),
    };
    // A host that needs escapes is not valid; `X-Forwarded-Host` contains it unchanged.
    if let Some(host) = host.filter(|host| !host.contains(['"', '\\'])) {
        let _ = write!(text, ";host=\"{host}\"");
    }
    text.push_str(";proto=http");
    text
}

/// Removes fields by their names in lower case. An underscore counts as a hyphen: CGI and WSGI make one variable of both.
fn remove(headers: &mut HeaderMap, is_removed: impl Fn(&str) -> bool) {
    let removed: Vec<HeaderName> = headers
        .keys()
        .filter(|name| match name.as_str().contains('_') {
            true => is_removed(&name.as_str().replace('_', "-")),
            false => is_removed(name.as_str()),
        })
        .cloned()
        .collect();
    for name in removed {
        headers.remove(name);
    }
}

/// `00`, a new trace, a new span, sampled: not sampled would tell every backend to drop its own traces.
fn new_trace() -> HeaderValue {
    let random = headers::random;
    let text = format!("00-{:016x}{:016x}-{:016x}-01", random(), random(), random());
    HeaderValue::from_str(&text).unwrap_or_else(|_| HeaderValue::from_static(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &'static str)]) -> HeaderMap {
        let line = |(name, value): &(&'static str, &'static str)| {
            (HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_static(value))
        };
        lines.iter().map(line).collect()
    }

    fn shown(headers: &HeaderMap) -> Vec<String> {
        let line =
            |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
        let mut lines: Vec<String> = headers.iter().map(line).collect();
        lines.sort();
        lines
    }

    #[test]
    fn what_is_said_about_the_client_is_what_the_gateway_knows() {
        let trace = ("traceparent", "00-aa-bb-01");
        let check =
            |says: (&'static str, &'static str), client: &str, host: Option<&str>, expected: &[&str]| {
                let mut found = headers(&[says, trace]);
                set_client(&mut found, client.parse().unwrap(), host);
                assert_eq!(shown(&found), expected, "{says:?}");
                assert_eq!(take_client(&mut found), client.parse().ok());
                assert_eq!(take_client(&mut found), None);
            };
        let alone = [
            "causeway-client: 10.0.0.7:4321",
            "forwarded: for=10.0.0.7;host=\"web.example:81\";proto=http",
            "traceparent: 00-aa-bb-01",
            "x-forwarded-for: 10.0.0.7",
            "x-forwarded-host: web.example:81",
            "x-forwarded-proto: http",
            "x-real-ip: 10.0.0.7",
        ];
        for says in [
            ("forwarded", "for=1.2.3.4;proto=https"),
            ("Forwarded", "for=\"unfinished"),
            ("x-real-ip", "1.2.3.4"),
            ("x_real_ip", "1.2.3.4"),
            ("x-client-ip", "1.2.3.4"),
            ("true-client-ip", "1.2.3.4"),
            ("x_forwarded_for", "1.2.3.4"),
            ("x-forwarded-proto", "https"),
            ("x-forwarded-host", "elsewhere"),
            ("x-forwarded-uri", "/admin"),
            ("x-forwarded-method", "DELETE"),
            ("x-forwarded-port", "443"),
            ("causeway-client", "9.9.9.9:9"),
        ] {
            check(says, "10.0.0.7:4321", Some("web.example:81"), &alone);
        }
        let continued = alone.map(|line| match line {
            "x-forwarded-for: 10.0.0.7" => "x-forwarded-for: 1.2.3.4, 10.0.0.7",
            line => line,
        });
        check(("x-forwarded-for", "1.2.3.4"), "10.0.0.7:4321", Some("web.example:81"), &continued);
        let six = [
            "accept: */*",
            "causeway-client: [fd00::7]:4321",
            "forwarded: for=\"[fd00::7]\";proto=http",
            "traceparent: 00-aa-bb-01",
            "x-forwarded-for: fd00::7",
            "x-forwarded-proto: http",
            "x-real-ip: fd00::7",
        ];
        check(("accept", "*/*"), "[fd00::7]:4321", None, &six);
    }

    #[test]
    fn lines_of_addresses_are_continued_in_their_order() {
        let mut found = headers(&[("x-forwarded-for", "1.1.1.1"), ("x-forwarded-for", "2.2.2.2")]);
        set_client(&mut found, "[::ffff:10.0.0.7]:4321".parse().unwrap(), None);
        assert_eq!(found["x-forwarded-for"], "1.1.1.1, 2.2.2.2, 10.0.0.7");
        assert_eq!(found["x-real-ip"], "10.0.0.7");
    }

    #[test]
    fn no_other_path_passes_and_no_other_method_where_methods_are_judged() {
        let check = |name: &'static str, passes_with_rules: bool, passes_without: bool| {
            for (has_rules, passes) in [(true, passes_with_rules), (false, passes_without)] {
                let mut found = headers(&[(name, "x"), ("accept", "*/*")]);
                strip_overrides(&mut found, has_rules);
                assert_eq!(found.len(), 1 + usize::from(passes), "{name} {has_rules}");
            }
        };
        check("x-original-url", false, false);
        check("X-Original-URL", false, false);
        check("x_original_url", false, false);
        check("x-rewrite-url", false, false);
        check("x-http-method-override", false, true);
        check("X_HTTP_Method_Override", false, true);
        check("x-http-method", false, true);
        check("x-method-override", false, true);
        check("x-method", true, true);
    }

    #[test]
    fn a_trace_is_made_when_there_is_none() {
        let trace = || {
            let mut found = HeaderMap::new();
            set_client(&mut found, "10.0.0.7:4321".parse().unwrap(), None);
            found["traceparent"].to_str().unwrap().to_owned()
        };
        let (one, other) = (trace(), trace());
        assert_ne!(one, other);
        let parts: Vec<usize> = one.split('-').map(str::len).collect();
        assert_eq!(parts, [2, 32, 16, 2]);
    }
}
