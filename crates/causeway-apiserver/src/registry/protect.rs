//! Protects objects from deletion by mistake: those that the cloud needs, and those of a connected site.
//!
//! The decision is pure (`protection`); the driver asks `SessionLookup` which gateways have a session. The
//! stored condition Connected counts too: it covers a cloud that was just restarted, to which the edges have
//! not returned yet. It does not suffice, because a client may write a status. An object with the annotation
//! `causeway.io/allow-delete: "true"` is deleted.

use causeway_api::conditions::CONNECTED;
use causeway_api::status::StatusCause;
use causeway_api::{ALLOW_DELETE, ApiVersion, CLOUD, ConditionStatus, EGateway, Kind, Object, Status};

use super::{Registry, StoredObject};
use crate::errors::{self, ErrorSubject};
use crate::request::options::ListOptions;

// Objects read at once while a collection is looked at.
const PAGE: usize = 500;
// A longer list of names makes a message that is not read.
const NAMED_MAX: usize = 5;

/// Tells which gateways have a session now, at any replica of the cloud.
pub trait SessionLookup: Send + Sync {
    fn has_session(&self, gateway: &str) -> bool;
}

/// Returns the reason why an object is protected. None: it may be deleted. `gateways` are those of the site,
/// when the object is a site.
fn protection(object: &Object, gateways: &[EGateway], has_session: impl Fn(&str) -> bool) -> Option<String> {
    let is_connected = |gateway: &EGateway| {
        let condition = gateway.status.condition(CONNECTED);
        has_session(&gateway.metadata.name)
            || condition.is_some_and(|condition| condition.status == ConditionStatus::True)
    };
    let annotations = &object.metadata().annotations;
    if annotations.get(ALLOW_DELETE).is_some_and(|value| value == "true") {
        return None;
    }
    match object {
        Object::ESite(_) | Object::EGateway(_) if object.name() == CLOUD => {
            Some(format!("the cloud itself needs this {}", object.kind()))
        }
        Object::EGateway(gateway) if is_connected(gateway) => {
            Some("the gateway is connected, and its site would be cut off".to_owned())
        }
        Object::ESite(_) => {
            let connected: Vec<&str> = gateways
                .iter()
                .filter(|gateway| gateway.e_site_name == object.name() && is_connected(gateway))
                .map(|gateway| gateway.metadata.name.as_str())
                .collect();
            let named = connected.iter().take(NAMED_MAX).copied().collect::<Vec<_>>().join(", ");
            let more = if connected.len() > NAMED_MAX { ", ..." } else { "" };
            (!connected.is_empty())
                .then(|| format!("the site has a connected gateway ({named}{more}), and would be cut off"))
        }
        _ => None,
    }
}

/// Returns 403 with the fix, as Kubernetes does for namespaces that it needs.
fn refusal(about: ErrorSubject<'_>, why: &str) -> Status {
    let mut status = errors::not_deletable(about, why);
    status.message.push_str(&format!(
        ". To delete it all the same, set its annotation {ALLOW_DELETE} to \"true\" first, or use causeway delete --force"
    ));
    status.details.get_or_insert_default().causes.push(StatusCause {
        reason: "DeletionProtected".into(),
        message: why.into(),
        field: format!("metadata.annotations[{ALLOW_DELETE}]"),
    });
    status
}

impl Registry {
    fn has_session(&self, gateway: &str) -> bool {
        self.hooks.sessions.as_ref().is_some_and(|sessions| sessions.has_session(gateway))
    }

    /// Refuses the deletion of a protected object.
    pub(super) async fn check_deletable(
        &self,
        about: ErrorSubject<'_>,
        object: &Object,
    ) -> Result<(), Status> {
        let gateways = match object {
            Object::ESite(_) => self.gateways(about, object.name()).await?,
            _ => Vec::new(),
        };
        match protection(object, &gateways, |gateway| self.has_session(gateway)) {
            Some(why) => Err(refusal(about, &why)),
            None => Ok(()),
        }
    }

    /// Checks all objects that a list would show, before the first of them is deleted.
    pub(super) async fn check_all_deletable(
        &self,
        version: ApiVersion,
        kind: Kind,
        list: &ListOptions,
    ) -> Result<(), Status> {
        if !matches!(kind, Kind::ESite | Kind::EGateway) {
            return Ok(());
        }
        let all = match kind {
            Kind::ESite => self.gateways(ErrorSubject { version, kind, name: "" }, "").await?,
            _ => Vec::new(),
        };
        let mut options = ListOptions { limit: Some(list.limit.unwrap_or(PAGE).min(PAGE)), ..list.clone() };
        let mut seen = 0;
        loop {
            let page = self.list(version, kind, &options).await?;
            seen += page.records.len();
            for record in page.records {
                let object = StoredObject::of(kind, record).object()?;
                // An object that is marked already has passed the check.
                if object.metadata().deletion_timestamp.is_some() {
                    continue;
                }
                if let Some(why) = protection(&object, &all, |gateway| self.has_session(gateway)) {
                    return Err(refusal(ErrorSubject { version, kind, name: object.name() }, &why));
                }
            }
            match page.next {
                Some(token) if list.limit.is_none_or(|limit| seen < limit) => {
                    options.continue_token = Some(token);
                }
                _ => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use causeway_api::meta::set_condition;
    use causeway_api::{Time, conditions};

    use super::*;
    use crate::registry::RegistryHooks;

    fn gateway(name: &str, site: &str, connected: bool) -> EGateway {
        let mut gateway = EGateway::default();
        gateway.metadata.name = name.into();
        gateway.e_site_name = site.into();
        let all = &mut gateway.status.conditions;
        set_condition(all, conditions::CONNECTED, connected.into(), "X", "", Time::from_second(0), 1);
        gateway
    }

    fn site(name: &str) -> Object {
        let mut site = Object::empty(Kind::ESite);
        site.metadata_mut().name = name.into();
        site
    }

    #[test]
    fn only_what_somebody_would_miss_is_protected() {
        let gateways =
            [gateway("g1", "oslo", true), gateway("g2", "bergen", false), gateway("g3", "tromso", false)];
        // A client has overwritten the condition of g3.
        let protection = |object: &Object, gateways: &[EGateway]| {
            super::protection(object, gateways, |gateway| gateway == "g3")
        };
        let check = |object: &Object, expected: Option<&str>| {
            let found = protection(object, &gateways);
            assert_eq!(found.is_some(), expected.is_some(), "{}: {found:?}", object.name());
            assert!(found.unwrap_or_default().contains(expected.unwrap_or_default()));
            let mut allowed = object.clone();
            allowed.metadata_mut().annotations.insert(ALLOW_DELETE.into(), "true".into());
            assert_eq!(protection(&allowed, &gateways), None);
            allowed.metadata_mut().annotations.insert(ALLOW_DELETE.into(), "yes".into());
            assert_eq!(protection(&allowed, &gateways).is_some(), expected.is_some());
        };
        check(&site("cloud"), Some("needs"));
        check(&site("oslo"), Some("g1"));
        check(&site("bergen"), None);
        check(&site("tromso"), Some("g3"));
        check(&gateway("g3", "tromso", false).into(), Some("connected"));
        check(&site("elsewhere"), None);
        check(&gateway("cloud", "cloud", false).into(), Some("needs"));
        check(&gateway("g1", "oslo", true).into(), Some("connected"));
        check(&gateway("g2", "bergen", false).into(), None);
        let mut policy = Object::empty(Kind::EPolicy);
        policy.metadata_mut().name = "cloud".into();
        check(&policy, None);
    }

    struct OneSession;

    impl SessionLookup for OneSession {
        fn has_session(&self, gateway: &str) -> bool {
            gateway == "g1"
        }
    }

    #[tokio::test]
    async fn a_status_that_a_client_wrote_does_not_lift_the_protection() {
        let folder = tempfile::tempdir().unwrap();
        let spec = causeway_store::StoreSpec::Sqlite { path: folder.path().join("store.db") };
        let store = causeway_store::Store::open(spec).await.unwrap();
        let hooks =
            RegistryHooks { sessions: Some(std::sync::Arc::new(OneSession)), ..RegistryHooks::default() };
        let registry = Registry::with_hooks(store, std::sync::Arc::new(crate::SystemClock), hooks);
        let objects = [
            site("oslo"),
            gateway("g1", "oslo", false).into(),
            site("bergen"),
            gateway("g2", "bergen", false).into(),
        ];
        for object in objects {
            registry.create_with_defaults("test", object).await.unwrap();
        }
        for (kind, name) in [(Kind::ESite, "oslo"), (Kind::EGateway, "g1")] {
            let overwrite = |object: &mut Object| {
                let all = &mut object.status_mut().conditions;
                set_condition(all, conditions::CONNECTED, false.into(), "X", "", Time::from_second(0), 1);
            };
            registry.edit_status("admin", Kind::EGateway, "g1", overwrite).await.unwrap();
            let refused = registry.delete_object("test", kind, name).await.unwrap_err();
            assert_eq!(refused.status().code, 403, "{kind} {name}: {refused}");
        }
        for (kind, name) in [(Kind::ESite, "bergen"), (Kind::EGateway, "g2")] {
            registry.delete_object("test", kind, name).await.unwrap();
        }
    }
}
