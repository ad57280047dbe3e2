//! Chooses the credential with which a pending write is sent: one of the same caller, or none.
//!
//! A node is named by its certificate. Other callers have tokens: the newest one that the caller has shown since the start, or the one of the
//! write, which is on disk (mode 0600) until its `exp`. A write without such a token is refused, never sent under another identity.

use std::collections::HashMap;
use std::sync::Mutex;

use causeway_daemon::sync::MutexExt;

use super::log::PendingWrite;
use crate::identity::{LocalCaller, UserInfo, username_of_key};
use crate::subscriptions::SubscriptionCredential;
use crate::upstream::access::rbac::expiry_of;

/// The newest token of each caller. In memory only, and bounded.
#[derive(Default)]
pub struct CallerTokens(Mutex<HashMap<String, String>>);

const CALLERS_MAX: usize = 1_024;
/// The time for which a token without `exp` is used.
const OPAQUE_SECONDS: i64 = 24 * 3_600;

impl CallerTokens {
    pub fn note(&self, caller: &LocalCaller) {
        let Some(SubscriptionCredential::Token(token)) = &caller.credential else { return };
        let mut tokens = self.0.lock_ignoring_poison();
        let key = caller.key();
        if tokens.len() < CALLERS_MAX || tokens.contains_key(&key) {
            tokens.insert(key, token.clone());
        }
    }

    pub fn newest(&self, caller: &str) -> Option<String> {
        self.0.lock_ignoring_poison().get(caller).cloned()
    }
}

/// Returns true if a token of a write from `at` may be used at `now`.
pub fn is_usable(token: &str, at: i64, now: i64) -> bool {
    !token.is_empty() && expiry_of(token).unwrap_or(at + OPAQUE_SECONDS) > now
}

/// The caller in whose name a write is sent; otherwise the reason for which it is refused.
pub fn sender(write: &PendingWrite, newest: Option<String>, now: i64) -> Result<LocalCaller, &'static str> {
    if !write.node.is_empty() {
        return Ok(LocalCaller::node(&write.node));
    }
    let newest = newest.filter(|token| is_usable(token, now, now));
    let own = Some(write.token.clone()).filter(|token| is_usable(token, write.at, now));
    let token = newest.or(own).ok_or("the caller's token has expired, and it has shown no newer one")?;
    let username = username_of_key(&write.caller);
    Ok(LocalCaller::from_token(UserInfo { username, ..UserInfo::default() }, &token))
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;
    use crate::pending::log::PendingKind;
    use crate::resource::ResourceName;

    fn token(name: &str, exp: i64) -> String {
        let claims = serde_json::json!({"sub": name, "exp": exp}).to_string();
        format!("e30.{}.x", URL_SAFE_NO_PAD.encode(claims))
    }

    fn write(node: &str, token: &str) -> PendingWrite {
        PendingWrite {
            sequence: 1,
            kind: PendingKind::Object,
            node: node.into(),
            resource: ResourceName::new("", "v1", "configmaps"),
            key: "shop/a".into(),
            path: "/api/v1/namespaces/shop/configmaps/a".into(),
            content_type: String::new(),
            body: bytes::Bytes::new(),
            base: bytes::Bytes::new(),
            at: 100,
            caller: r#"["till","",[],{}]"#.into(),
            token: token.into(),
        }
    }

    #[test]
    fn a_write_is_sent_under_its_own_caller_or_refused() {
        let sent = |write: &PendingWrite, newest: Option<&str>, now: i64| {
            sender(write, newest.map(str::to_owned), now).map(|caller| match caller.credential {
                Some(SubscriptionCredential::Token(token)) => token,
                Some(SubscriptionCredential::Node(node)) => node,
                _ => String::new(),
            })
        };
        let (old, new) = (token("till", 200), token("till", 900));
        let waiting = write("", &old);
        assert_eq!(sent(&waiting, None, 199), Ok(old.clone()));
        assert_eq!(sent(&waiting, Some(&new), 199), Ok(new.clone()));
        assert_eq!(sent(&waiting, Some(&new), 300), Ok(new.clone()), "the caller has come back");
        assert!(sent(&waiting, None, 200).is_err(), "its token has expired");
        assert!(sent(&waiting, Some(&new), 900).is_err(), "both have");
        assert!(sent(&write("", ""), None, 100).is_err(), "its token was erased");
        assert_eq!(sent(&write("", "opaque"), None, 101), Ok("opaque".into()));
        assert!(sent(&write("", "opaque"), None, 100 + OPAQUE_SECONDS).is_err());
        assert_eq!(sent(&write("n1", ""), None, 9_999), Ok("n1".into()));
    }

    #[test]
    fn the_newest_token_of_a_caller_is_known_by_its_whole_identity() {
        let tokens = CallerTokens::default();
        let caller = |groups: &[&str], token: &str| {
            let groups = groups.iter().map(|group| (*group).to_owned()).collect();
            let user = UserInfo { username: "till".into(), groups, ..UserInfo::default() };
            LocalCaller::from_token(user, token)
        };
        tokens.note(&caller(&["a"], "1"));
        tokens.note(&caller(&["a"], "2"));
        tokens.note(&LocalCaller::node("n1"));
        assert_eq!(tokens.newest(&caller(&["a"], "").key()).as_deref(), Some("2"));
        assert_eq!(tokens.newest(&caller(&["b"], "").key()), None, "other groups are another identity");
    }
}
