//! `token create`: the objects first, then the token.
//!
//! A crash in between leaves objects without a token, which the next attempt finds and uses: nothing is lost.

use std::time::Duration;

use causeway_api::{EGateway, ESite, Kind, Object, ObjectMeta};
use causeway_apiserver::ActionRefusal;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{CloudActions, object_refusal, token_refusal};
use crate::first::CLOUD;
use crate::identity::ApiRole;
use crate::reconcile::MANAGER;

/// A day: long enough to carry a token to a site.
const TTL_DEFAULT_SECONDS: u64 = 24 * 3600;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct CreateToken {
    site: Option<String>,
    gateway: Option<String>,
    role: Option<Role>,
    ttl_seconds: Option<u64>,
    uses: Option<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Role {
    Viewer,
    Admin,
}

/// What a well-formed request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Join { site: String, gateway: String, uses: u32 },
    Api { role: Role },
}

impl CreateToken {
    fn wanted(&self) -> Result<Wanted, String> {
        match (&self.site, self.role) {
            (Some(_), Some(_)) | (None, None) => {
                Err("say `site` for a join token or `role` for an API token, not both and not neither"
                    .to_owned())
            }
            (None, Some(_)) if self.gateway.is_some() || self.uses.is_some() => {
                Err("`gateway` and `uses` belong to a join token: say `site` as well, or leave them out"
                    .to_owned())
            }
            (None, Some(role)) => Ok(Wanted::Api { role }),
            (Some(site), None) => {
                let gateway = self.gateway.clone().unwrap_or_else(|| site.clone());
                // Whoever holds such a certificate would be believed to be the cloud itself.
                if site == CLOUD || gateway == CLOUD {
                    return Err(
                        "`cloud` is this cloud itself: choose another site and another gateway".to_owned()
                    );
                }
                Ok(Wanted::Join { site: site.clone(), gateway, uses: self.uses.unwrap_or(1) })
            }
        }
    }
}

impl CloudActions {
    pub(super) async fn create_token(&self, asked: CreateToken) -> Result<Value, ActionRefusal> {
        let ttl = Duration::from_secs(asked.ttl_seconds.unwrap_or(TTL_DEFAULT_SECONDS));
        match asked.wanted().map_err(ActionRefusal::bad_request)? {
            Wanted::Api { role } => {
                let (role, name) = match role {
                    Role::Viewer => (ApiRole::Viewer, "viewer"),
                    Role::Admin => (ApiRole::Admin, "admin"),
                };
                let token = self.registrar.create_api_token(role, ttl).await.map_err(token_refusal)?;
                Ok(json!({"id": token.id, "token": token.text, "role": name, "expires": time(token.expires)}))
            }
            Wanted::Join { site, gateway, uses } => {
                self.registrar.check_join_token(&site, &gateway, ttl, uses).map_err(token_refusal)?;
                self.ensure_gateway(&site, &gateway).await?;
                let token = self
                    .registrar
                    .create_join_token(&site, &gateway, ttl, uses)
                    .await
                    .map_err(token_refusal)?;
                Ok(json!({
                    "id": token.id, "token": token.token.to_text(), "site": site, "gateway": gateway,
                    "uses": token.uses, "expires": time(token.expires),
                }))
            }
        }
    }

    /// Makes the gateway and the site when they are missing; refuses a gateway that stands elsewhere, and then has
    /// made nothing.
    async fn ensure_gateway(&self, site: &str, gateway: &str) -> Result<(), ActionRefusal> {
        let new_gateway = EGateway {
            metadata: ObjectMeta::named(gateway),
            e_site_name: site.to_owned(),
            ..EGateway::default()
        };
        self.ensure(new_gateway.into()).await?;
        let found =
            self.registry.object(Kind::EGateway, gateway).await.map_err(|status| object_refusal(&status))?;
        match found.map(|found| found.object) {
            Some(Object::EGateway(found)) if found.e_site_name != site => {
                return Err(ActionRefusal::conflict(format!(
                    "EGateway {gateway} stands at the site {}, not at {site}: choose another --gateway",
                    found.e_site_name
                )));
            }
            _ => {}
        }
        let new_site = ESite { metadata: ObjectMeta::named(site), ..ESite::default() };
        self.ensure(new_site.into()).await
    }

    async fn ensure(&self, object: Object) -> Result<(), ActionRefusal> {
        match self.registry.create_with_defaults(MANAGER, object).await {
            Ok(_) => Ok(()),
            Err(status) if status.code == 409 => Ok(()),
            Err(status) => Err(object_refusal(&status)),
        }
    }
}

fn time(moment: std::time::SystemTime) -> String {
    jiff::Timestamp::try_from(moment)
        .map(|moment| moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_for_a_gateway_or_for_a_role() {
        let check = |body: Value, expected: Result<Wanted, &str>| {
            let asked: CreateToken = serde_json::from_value(body.clone()).unwrap();
            match (asked.wanted(), expected) {
                (Ok(wanted), Ok(expected)) => assert_eq!(wanted, expected),
                (Err(why), Err(part)) => assert!(why.contains(part), "{body}: {why}"),
                (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{body}"),
            }
        };
        let join = |site: &str, gateway: &str, uses| Wanted::Join {
            site: site.into(),
            gateway: gateway.into(),
            uses,
        };
        check(json!({"site": "Tokyo"}), Ok(join("Tokyo", "Tokyo", 1)));
        check(json!({"site": "Tokyo", "gateway": "t2", "uses": 3}), Ok(join("Tokyo", "t2", 3)));
        check(json!({"role": "viewer", "ttlSeconds": 5}), Ok(Wanted::Api { role: Role::Viewer }));
        check(json!({}), Err("not neither"));
        check(json!({"site": "a", "role": "admin"}), Err("not both"));
        check(json!({"role": "admin", "uses": 2}), Err("belong to a join token"));
        check(json!({"site": "cloud"}), Err("this cloud itself"));
        check(json!({"site": "a", "gateway": "cloud"}), Err("this cloud itself"));
        assert!(serde_json::from_value::<CreateToken>(json!({"sight": "a"})).is_err());
    }
}
