//! Decides whether a caller may access a resource.
//!
//! Pure. Input: an identity and the requested access. Output: permission, or the reason of a denial. Admins
//! may do everything, viewers may read, a gateway may read its own EGateway, and callers without a credential
//! may use only the probes. A gateway writes nothing here: it reports over its channel, and the cloud writes
//! the resulting conditions.

use causeway_api::Kind;
use causeway_api::request::resource::Verb;
use http::Method;

use crate::{Identity, Role};

/// The access that a request needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RequestedAccess<'a> {
    Object {
        verb: Verb,
        kind: Kind,
        name: Option<&'a str>,
        status: bool,
    },
    /// A call under `/causeway/v1/`.
    Action {
        method: &'a Method,
        path: &'a str,
    },
    /// Discovery, OpenAPI, and reviews of the caller's own rights.
    Description,
    /// `/healthz` and the other probes, and `/version`.
    Probe,
    /// A resource that is not served here. Occurs in access reviews only.
    Foreign,
}

/// The reason of a denial, worded as the second half of the refusal's sentence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AccessDenied(pub &'static str);

pub fn authorize(identity: &Identity, wish: &RequestedAccess<'_>) -> Result<(), AccessDenied> {
    match (&identity.role, wish) {
        (_, RequestedAccess::Probe) => Ok(()),
        (Role::Anonymous, _) => Err(AccessDenied("a credential is needed")),
        (Role::Admin, _) | (_, RequestedAccess::Description) => Ok(()),
        (Role::Viewer, RequestedAccess::Object { verb, .. }) if verb.is_read() => Ok(()),
        (Role::Viewer, RequestedAccess::Object { .. }) => Err(AccessDenied("a viewer only reads")),
        // Tokens, certificates and backups are secrets, also for callers that may read every object.
        (Role::Viewer, RequestedAccess::Action { method, path })
            if **method == Method::GET
                && matches!(*path, "status" | "paths" | "caches" | "access" | "audit") =>
        {
            Ok(())
        }
        (Role::Viewer, RequestedAccess::Action { .. }) => Err(AccessDenied("this needs the role admin")),
        (Role::Gateway { gateway, .. }, RequestedAccess::Object { verb, kind: Kind::EGateway, name, .. }) => {
            match (*name == Some(gateway.as_str()), *verb) {
                (false, _) => Err(AccessDenied("a gateway only has access to itself")),
                (true, Verb::Get) => Ok(()),
                (true, _) => Err(AccessDenied("a gateway only reads itself; the cloud writes its status")),
            }
        }
        (Role::Delegated, _) => Err(AccessDenied("the cluster decides on objects of the API group alone")),
        (Role::Unprivileged, _) => Err(AccessDenied("the user is in no group that gives rights here")),
        (Role::Gateway { .. }, _) => Err(AccessDenied("a gateway only has access to itself")),
        (Role::Viewer, RequestedAccess::Foreign) => Err(AccessDenied("there is no such resource here")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(role: Role) -> Identity {
        Identity { user: "someone".into(), groups: Vec::new(), role, credential: None, impersonation: None }
    }

    fn object(verb: Verb, kind: Kind, name: Option<&str>, status: bool) -> RequestedAccess<'_> {
        RequestedAccess::Object { verb, kind, name, status }
    }

    #[test]
    fn everyone_gets_what_the_role_says_and_no_more() {
        let (get, post) = (Method::GET, Method::POST);
        let action = |method, path| RequestedAccess::Action { method, path };
        let gateway = Role::Gateway { site: "berlin".into(), gateway: "gw1".into() };
        let own = Some("gw1");
        let other = Some("gw2");
        let check = |role: &Role, wish: RequestedAccess<'_>, allowed: bool| {
            assert_eq!(authorize(&identity(role.clone()), &wish).is_ok(), allowed, "{role:?} {wish:?}");
        };
        for verb in Verb::ALL {
            check(&Role::Admin, object(verb, Kind::ESite, None, false), true);
            check(&Role::Viewer, object(verb, Kind::ESite, None, false), verb.is_read());
            check(&Role::Anonymous, object(verb, Kind::ESite, None, false), false);
            check(&gateway, object(verb, Kind::ESite, own, false), false);
            check(&gateway, object(verb, Kind::EGateway, None, false), false);
            check(&gateway, object(verb, Kind::EGateway, other, true), false);
            check(&gateway, object(verb, Kind::EGateway, own, false), verb == Verb::Get);
            check(&gateway, object(verb, Kind::EGateway, own, true), verb == Verb::Get);
            check(&Role::Unprivileged, object(verb, Kind::ESite, None, false), false);
        }
        check(&Role::Admin, action(&post, "tokens"), true);
        check(&Role::Viewer, action(&get, "status"), true);
        check(&Role::Viewer, action(&get, "audit"), true);
        check(&Role::Viewer, action(&get, "access"), true);
        check(&Role::Viewer, action(&get, "paths"), true);
        check(&Role::Viewer, action(&get, "caches"), true);
        check(&gateway, action(&get, "paths"), false);
        check(&gateway, action(&get, "caches"), false);
        check(&Role::Unprivileged, action(&get, "paths"), false);
        check(&gateway, action(&get, "access"), false);
        check(&gateway, action(&get, "audit"), false);
        check(&Role::Anonymous, action(&get, "audit"), false);
        check(&Role::Viewer, action(&post, "status"), false);
        check(&Role::Viewer, action(&get, "tokens"), false);
        check(&Role::Viewer, action(&get, "backup"), false);
        check(&gateway, action(&get, "status"), false);
        check(&Role::Anonymous, action(&get, "status"), false);
        check(&Role::Unprivileged, action(&get, "status"), false);
        for role in [&Role::Admin, &Role::Viewer, &gateway, &Role::Unprivileged, &Role::Anonymous] {
            check(role, RequestedAccess::Probe, true);
            check(role, RequestedAccess::Description, *role != Role::Anonymous);
        }
    }
}
