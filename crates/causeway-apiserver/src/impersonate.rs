//! Impersonation: judges a request as another user, as the `Impersonate-*` headers of Kubernetes ask.
//!
//! Pure. Input: the headers and the authenticated caller. Output: the identity whose rights count, or a
//! refusal. Only an admin can impersonate, and the rights of the impersonated user follow from its groups by
//! the rule for certificates and tokens, so no caller gains a right this way. A header that is not supported
//! refuses the request.

use std::collections::BTreeMap;
use std::sync::Arc;

use causeway_api::Status;
use http::HeaderMap;

use crate::identity::{AUTHENTICATED_GROUP, Impersonation, UNAUTHENTICATED_GROUP};
use crate::request::query;
use crate::{Identity, Role, errors};

const PREFIX: &str = "impersonate-";
const EXTRA_PREFIX: &str = "impersonate-extra-";
const ANONYMOUS_USER: &str = "system:anonymous";

/// The user that the headers name.
#[derive(Debug, Default, PartialEq, Eq)]
struct Wanted {
    user: String,
    groups: Vec<String>,
    uid: Option<String>,
    extra: BTreeMap<String, Vec<String>>,
}

/// Returns true if a request has an impersonation header.
pub fn is_asked(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| name.as_str().starts_with(PREFIX))
}

/// Returns the identity as which a request of `caller` is judged.
pub fn effective(caller: &Arc<Identity>, headers: &HeaderMap) -> Result<Arc<Identity>, Status> {
    match wanted(headers)? {
        None => Ok(caller.clone()),
        Some(wanted) => act_as(caller, wanted).map(Arc::new),
    }
}

fn wanted(headers: &HeaderMap) -> Result<Option<Wanted>, Status> {
    let mut wanted = Wanted::default();
    let (mut found, mut has_user) = (false, false);
    for (name, value) in headers.iter().filter(|(name, _)| name.as_str().starts_with(PREFIX)) {
        found = true;
        let name = name.as_str();
        let value = std::str::from_utf8(value.as_bytes())
            .map_err(|_| Status::bad_request(format!("the header {name} is no UTF-8 text")))?;
        match name {
            // An empty name is refused, also when another one follows.
            "impersonate-user" if value.is_empty() => {
                return Err(Status::bad_request("the header impersonate-user is empty: it must name a user"));
            }
            "impersonate-user" if !has_user => {
                has_user = true;
                value.clone_into(&mut wanted.user);
            }
            "impersonate-group" => wanted.groups.push(value.to_owned()),
            "impersonate-uid" if wanted.uid.is_none() => wanted.uid = Some(value.to_owned()),
            "impersonate-user" | "impersonate-uid" => {
                return Err(Status::bad_request(format!("the header {name} may stand in a request once")));
            }
            name => match name.strip_prefix(EXTRA_PREFIX).filter(|key| !key.is_empty()) {
                // Keys are percent-encoded, and header names in lower case, as in Kubernetes.
                Some(key) => {
                    wanted.extra.entry(query::decode(key, false)).or_default().push(value.to_owned())
                }
                None => return Err(Status::bad_request(format!("the header {name} is not known"))),
            },
        }
    }
    if !found {
        return Ok(None);
    }
    if wanted.user.is_empty() {
        let Wanted { groups, uid, extra, .. } = &wanted;
        let asked: Vec<String> = (groups.iter().map(|group| format!("Group {group:?}")))
            .chain(extra.keys().map(|key| format!("UserExtra {key:?}")))
            .chain(uid.iter().map(|uid| format!("UID {uid:?}")))
            .collect();
        let asked: String = asked.join(" ").chars().take(400).collect();
        return Err(Status::bad_request(format!("requested [{asked}] without impersonating a user")));
    }
    Ok(Some(wanted))
}

fn act_as(caller: &Arc<Identity>, wanted: Wanted) -> Result<Identity, Status> {
    if caller.role != Role::Admin {
        return Err(errors::cannot_impersonate(caller, "users", "", &wanted.user));
    }
    let Wanted { user, mut groups, uid, extra } = wanted;
    let standing = [AUTHENTICATED_GROUP, UNAUTHENTICATED_GROUP];
    if !groups.iter().any(|group| standing.contains(&group.as_str())) {
        let implied = if user == ANONYMOUS_USER { UNAUTHENTICATED_GROUP } else { AUTHENTICATED_GROUP };
        groups.push(implied.to_owned());
    }
    let role = match user.as_str() {
        ANONYMOUS_USER => Role::Anonymous,
        _ => Role::of_groups(&groups).unwrap_or(Role::Unprivileged),
    };
    let impersonation = Impersonation { by: caller.clone(), uid, extra };
    Ok(Identity { user, groups, role, credential: None, impersonation: Some(Arc::new(impersonation)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(rows: &[(&str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in rows {
            headers.append(http::HeaderName::from_bytes(name.as_bytes()).unwrap(), value.parse().unwrap());
        }
        headers
    }

    fn caller(role: Role) -> Arc<Identity> {
        let groups = vec!["causeway:admin".into()];
        Arc::new(Identity { user: "ann".into(), groups, role, credential: None, impersonation: None })
    }

    /// Compares the role of the request, or the code of its refusal.
    fn check(role: Role, rows: &[(&str, &str)], expected: Result<Role, u16>) {
        let found = effective(&caller(role), &headers(rows));
        let found = found.map(|identity| identity.role.clone()).map_err(|status| status.code);
        assert_eq!(found, expected, "{rows:?}");
    }

    #[test]
    fn rights_follow_from_groups_and_from_nothing_else() {
        let user = ("impersonate-user", "nobody");
        check(Role::Admin, &[], Ok(Role::Admin));
        check(Role::Admin, &[("accept", "*/*")], Ok(Role::Admin));
        check(Role::Admin, &[user], Ok(Role::Unprivileged));
        check(Role::Admin, &[("impersonate-user", "admin")], Ok(Role::Unprivileged));
        check(Role::Admin, &[("impersonate-user", "causeway:gateway:gw1")], Ok(Role::Unprivileged));
        check(Role::Admin, &[user, ("impersonate-group", "system:masters")], Ok(Role::Unprivileged));
        check(Role::Admin, &[user, ("impersonate-group", "causeway:gateway")], Ok(Role::Unprivileged));
        check(Role::Admin, &[user, ("impersonate-group", "causeway:viewer")], Ok(Role::Viewer));
        let both = [user, ("impersonate-group", "x"), ("impersonate-group", "causeway:admin")];
        check(Role::Admin, &both, Ok(Role::Admin));
        check(Role::Admin, &[("impersonate-user", "system:anonymous")], Ok(Role::Anonymous));
        let anonymous = [("impersonate-user", "system:anonymous"), ("impersonate-group", "causeway:admin")];
        check(Role::Admin, &anonymous, Ok(Role::Anonymous));
    }

    #[test]
    fn a_header_is_honoured_or_refused() {
        let user = ("impersonate-user", "nobody");
        for role in [Role::Viewer, Role::Anonymous, Role::Unprivileged] {
            check(role.clone(), &[user], Err(403));
            check(role, &[user, ("impersonate-group", "causeway:admin")], Err(403));
        }
        check(Role::Admin, &[("impersonate-group", "causeway:admin")], Err(400));
        check(Role::Admin, &[("impersonate-uid", "1")], Err(400));
        check(Role::Admin, &[("impersonate-extra-scopes", "a")], Err(400));
        check(Role::Admin, &[("impersonate-user", "")], Err(400));
        check(Role::Admin, &[user, ("impersonate-user", "other")], Err(400));
        check(Role::Admin, &[("impersonate-user", ""), user], Err(400));
        check(Role::Viewer, &[("impersonate-user", "")], Err(400));
        check(Role::Admin, &[user, ("impersonate-node", "a")], Err(400));
        check(Role::Admin, &[user, ("impersonate-extra-", "a")], Err(400));
    }

    #[test]
    fn the_caller_stays_known() {
        let rows = [
            ("impersonate-user", "nobody"),
            ("impersonate-uid", "7"),
            ("impersonate-extra-example.com%2Fscopes", "a"),
            ("impersonate-extra-example.com%2Fscopes", "b"),
        ];
        let found = effective(&caller(Role::Admin), &headers(&rows)).unwrap();
        assert_eq!(
            (found.user.as_str(), found.groups.as_slice()),
            ("nobody", &["system:authenticated".to_owned()][..])
        );
        assert_eq!(found.caller().user, "ann");
        let impersonation = found.impersonation.as_ref().unwrap();
        assert_eq!(impersonation.uid.as_deref(), Some("7"));
        assert_eq!(impersonation.extra["example.com/scopes"], ["a", "b"]);
    }
}
