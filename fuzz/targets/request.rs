//! A request before its body: method, path, query and headers, and the caller's permissions.
//!
//! Input: `METHOD URI` in the first line, headers in the following ones. Invariants: refusals are short and
//! are client errors; a caller without a credential gets only the probes, viewers only read, gateways only
//! reach themselves.
#![no_main]

use causeway_api::Kind;
use causeway_apiserver::authorize::{Verb, RequestedAccess, authorize};
use causeway_apiserver::registry::token::ContinueToken;
use causeway_apiserver::request::{self, ApiRequest, ObjectVerb, media};
use causeway_apiserver::{Identity, Role};
use causeway_fuzz::assert_short;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((method, uri, headers)) = read(data) else { return };
    let ranges = request::accept(&headers);
    assert!(ranges.len() <= 32);
    let _ = media::choose(&ranges);
    match request::parse(&method, &uri, &headers) {
        Ok(ask) => check(&ask, &method),
        Err(status) => {
            assert!((400..500).contains(&status.code), "{status:?}");
            assert_short(&status.message, 4 * data.len() + 4096);
            assert!(serde_json::from_slice::<serde_json::Value>(&status.to_json()).is_ok());
        }
    }
});

/// Returns the request as hyper would pass it, if it would.
fn read(data: &[u8]) -> Option<(Method, Uri, HeaderMap)> {
    let mut lines = data.split(|byte| *byte == b'\n');
    let first = lines.next()?;
    let space = first.iter().position(|byte| *byte == b' ')?;
    let method = Method::from_bytes(&first[..space]).ok()?;
    let uri = Uri::try_from(&first[space + 1..]).ok()?;
    let mut headers = HeaderMap::new();
    for line in lines.take(64) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(line[colon + 1..].trim_ascii()))
        else {
            continue;
        };
        headers.append(name, value);
    }
    Some((method, uri, headers))
}

fn check(ask: &ApiRequest, method: &Method) {
    let wish = ask.wish(method);
    let caller = |role| Identity { user: "x".to_owned(), groups: Vec::new(), role, credential: None };
    let gateway = Role::Gateway { site: "Tokyo".to_owned(), gateway: "Gateway1".to_owned() };
    let may = |role| authorize(&caller(role), &wish).is_ok();
    assert!(may(Role::Admin));
    assert_eq!(may(Role::Anonymous), matches!(wish, RequestedAccess::Probe));
    if may(Role::Viewer) {
        match &wish {
            RequestedAccess::Object { verb, .. } => assert!(matches!(verb, Verb::Get | Verb::List | Verb::Watch)),
            RequestedAccess::Action { method, path } => assert!(**method == Method::GET && *path == "status"),
            _ => {}
        }
    }
    if let (true, RequestedAccess::Object { kind, name, .. }) = (may(gateway), &wish) {
        assert_eq!((*kind, *name), (Kind::EGateway, Some("Gateway1")), "{ask:?}");
    }
    let ApiRequest::Object(object) = ask else { return };
    if let ObjectVerb::List(options) = &object.deed {
        assert!(options.limit.is_none_or(|limit| limit > 0));
        if let Some(text) = &options.continue_token
            && let Ok(token) = ContinueToken::parse(object.kind, text)
        {
            assert_eq!(ContinueToken::parse(object.kind, &token.print(object.kind)), Ok(token));
        }
    }
}
