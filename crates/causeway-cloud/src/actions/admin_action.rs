//! Describes a call for the administrative audit: verb, kind, name, and details that are no secrets. Pure.

use causeway_apiserver::AdminAction;
use http::Method;
use serde_json::Value;

use super::{Action, route};

/// `Some(None)`: it changes nothing and gives nothing away. `None`: not known here, recorded by its path.
pub(super) fn describe(method: &Method, path: &str, body: &[u8]) -> Option<Option<AdminAction>> {
    let said: Value = serde_json::from_slice(body).unwrap_or_default();
    let text = |key: &str| cut(said[key].as_str().unwrap_or_default());
    let action = |verb: &str, kind: &str, name: String, detail: Vec<String>| {
        let detail = (!detail.is_empty()).then(|| detail.join(", "));
        Some(Some(AdminAction { verb: verb.to_owned(), kind: kind.to_owned(), name, detail }))
    };
    match route(method, path).ok()? {
        Action::CreateToken => {
            let words = ["site", "gateway", "role"].into_iter().filter(|key| !text(key).is_empty());
            let numbers = ["uses", "ttlSeconds"].into_iter().filter(|key| said[*key].is_u64());
            let mut detail: Vec<String> = words.map(|key| format!("{key} {}", text(key))).collect();
            detail.extend(numbers.map(|key| format!("{key} {}", said[key])));
            let kind = if said["role"].is_string() { "ApiToken" } else { "JoinToken" };
            action("create", kind, String::new(), detail)
        }
        Action::DeleteToken(id) => action("delete", "Token", cut(id), Vec::new()),
        Action::CreateCertificate => {
            let said = ["user", "role"].into_iter().filter(|key| !text(key).is_empty());
            let detail = said.map(|key| format!("{key} {}", text(key))).collect();
            action("create", "Certificate", String::new(), detail)
        }
        Action::Revoke if said["certificate"].is_string() => {
            action("revoke", "Certificate", text("certificate"), Vec::new())
        }
        Action::Revoke => {
            let kept = (said["keepTokens"] == true).then(|| "tokens kept".to_owned());
            action("revoke", "EGateway", text("gateway"), kept.into_iter().collect())
        }
        Action::Backup => action("backup", "Store", String::new(), Vec::new()),
        Action::RotateAuthority => {
            let forced = (said["force"] == true).then(|| "forced".to_owned());
            let verb = format!("rotate-{}", text("step"));
            action(
                verb.trim_end_matches('-'),
                "CertificateAuthority",
                String::new(),
                forced.into_iter().collect(),
            )
        }
        Action::ListTokens
        | Action::ListCertificates
        | Action::Status
        | Action::Access
        | Action::Paths
        | Action::Caches
        | Action::Audit
        | Action::AdminAudit
        | Action::ShowAuthorities
        | Action::Probe
        | Action::Diagnose => Some(None),
    }
}

/// As much as the name of an object may have.
fn cut(text: &str) -> String {
    text.chars().take(253).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_described_by_what_it_changes() {
        let check = |method: Method, path: &str, body: &str, expected: Option<(&str, &str, &str, &str)>| {
            let found = describe(&method, path, body.as_bytes()).expect("an action of ours");
            let found = found
                .map(|action| (action.verb, action.kind, action.name, action.detail.unwrap_or_default()));
            let expected =
                expected.map(|(a, b, c, d)| (a.to_owned(), b.to_owned(), c.to_owned(), d.to_owned()));
            assert_eq!(found, expected, "{method} {path}");
        };
        let join = r#"{"site": "oslo", "gateway": "gw", "uses": 2, "token": "secret"}"#;
        check(
            Method::POST,
            "tokens",
            join,
            Some(("create", "JoinToken", "", "site oslo, gateway gw, uses 2")),
        );
        check(
            Method::POST,
            "tokens",
            r#"{"role": "viewer"}"#,
            Some(("create", "ApiToken", "", "role viewer")),
        );
        check(Method::DELETE, "tokens/abc", "", Some(("delete", "Token", "abc", "")));
        check(Method::POST, "revoke", r#"{"gateway": "gw"}"#, Some(("revoke", "EGateway", "gw", "")));
        let certificate = r#"{"role": "viewer", "user": "bob", "csr": "AAAA"}"#;
        check(
            Method::POST,
            "certificates",
            certificate,
            Some(("create", "Certificate", "", "user bob, role viewer")),
        );
        check(Method::POST, "revoke", r#"{"certificate": "7f"}"#, Some(("revoke", "Certificate", "7f", "")));
        check(Method::GET, "backup", "", Some(("backup", "Store", "", "")));
        let finish = r#"{"step": "finish", "force": true}"#;
        check(
            Method::POST,
            "ca/rotate",
            finish,
            Some(("rotate-finish", "CertificateAuthority", "", "forced")),
        );
        check(Method::POST, "ca/rotate", "no json", Some(("rotate", "CertificateAuthority", "", "")));
        check(Method::GET, "status", "", None);
        check(Method::POST, "probe", "{}", None);
        assert_eq!(describe(&Method::POST, "something/new", b""), None, "recorded by its path");
    }
}
