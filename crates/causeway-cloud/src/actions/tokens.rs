//! `token create`: the objects first, then the token.
//!
//! A crash in between leaves objects without a token, which the next attempt finds and uses: nothing is lost.

use std::net::IpAddr;
use std::time::Duration;

use causeway_api::management::{ApiRole, CreateTokenRequest, CreatedToken, ReplacedHost};
use causeway_api::{EGateway, ESite, Kind, Object, ObjectMeta};
use causeway_apiserver::{ActionRefusal, CallerAudit, RegistryError};
use http::StatusCode;

use super::{CloudActions, object_refusal, token_refusal};
use crate::bootstrap::CLOUD;
use crate::identity::{EnrolledGateway, OnEnrolled, TokenProblem};
use crate::reconcile::MANAGER;

/// A day: long enough to carry a token to a site.
const TTL_DEFAULT_SECONDS: u64 = 24 * 3600;

/// The token that a well-formed request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Wanted {
    Join { site: String, gateway: String, uses: u32, ip: Option<String> },
    Api { role: ApiRole },
}

fn wanted(asked: &CreateTokenRequest) -> Result<Wanted, String> {
    match (&asked.site, asked.role) {
        (Some(_), Some(_)) | (None, None) => {
            Err("say `site` for a join token or `role` for an API token, not both and not neither"
                .to_owned())
        }
        (None, Some(_)) if has_join_fields(asked) => {
            Err("`gateway`, `uses`, `ip` and `replace` belong to a join token: say `site` as well, or leave them out"
                .to_owned())
        }
        (None, Some(role)) => Ok(Wanted::Api { role }),
        (Some(site), None) => {
            let gateway = asked.gateway.clone().unwrap_or_else(|| site.clone());
            // A peer with such a certificate would be taken for the cloud itself.
            if site == CLOUD || gateway == CLOUD {
                return Err(
                    "`cloud` is this cloud itself: choose another site and another gateway".to_owned()
                );
            }
            let (uses, ip) = (asked.uses.unwrap_or(1), asked.ip.clone());
            Ok(Wanted::Join { site: site.clone(), gateway, uses, ip })
        }
    }
}

fn has_join_fields(asked: &CreateTokenRequest) -> bool {
    asked.gateway.is_some() || asked.uses.is_some() || asked.ip.is_some() || asked.replace
}

impl CloudActions {
    pub(super) async fn create_token(
        &self,
        asked: CreateTokenRequest,
        audit: &CallerAudit,
    ) -> Result<CreatedToken, ActionRefusal> {
        let ttl = Duration::from_secs(asked.ttl_seconds.unwrap_or(TTL_DEFAULT_SECONDS));
        match wanted(&asked).map_err(ActionRefusal::bad_request)? {
            Wanted::Api { role } => {
                let token = self.registrar.create_api_token(role, ttl).await.map_err(token_refusal)?;
                Ok(CreatedToken {
                    id: token.id,
                    token: token.text,
                    expires: time(token.expires),
                    role: Some(role),
                    ..CreatedToken::default()
                })
            }
            Wanted::Join { site, gateway, uses, ip } => {
                self.registrar.validate_new_join_token(&site, &gateway, ttl, uses).map_err(token_refusal)?;
                let on_enrolled = if asked.replace { OnEnrolled::Replace } else { OnEnrolled::Refuse };
                let ip = self.ensure_gateway((&site, &gateway), ip.as_deref(), on_enrolled, audit).await?;
                let made = self.registrar.create_join_token(&site, &gateway, ttl, on_enrolled).await;
                let token = made.map_err(|problem| self.refuse_token(&site, problem))?;
                let replaces = token.replaces.as_ref().map(|enrolled| ReplacedHost {
                    until: enrolled.until.clone(),
                    connected: self.is_connected(&gateway),
                });
                Ok(CreatedToken {
                    id: token.id,
                    token: token.token.to_text(),
                    expires: time(token.expires),
                    role: None,
                    site: Some(site),
                    gateway: Some(gateway),
                    uses: Some(token.uses),
                    ip: Some(ip),
                    replaces,
                })
            }
        }
    }

    /// Translates a refusal. For an enrolled gateway it says whether the gateway is connected, which the caller may not know.
    fn refuse_token(&self, site: &str, problem: TokenProblem) -> ActionRefusal {
        let TokenProblem::Enrolled { gateway, until } = problem else { return token_refusal(problem) };
        let standing = if self.is_connected(&gateway) { "enrolled and connected" } else { "enrolled" };
        ActionRefusal::conflict(format!(
            "EGateway {gateway} is {standing} (its certificate lasts until {until}): a host that joins under its name revokes its key and puts it out for good. \
             For a second host at {site}: `causeway token create --site {site} --gateway {gateway}-2`; \
             to replace the host that is enrolled: --replace"
        ))
    }

    fn is_connected(&self, gateway: &str) -> bool {
        self.stats.gateway(gateway).is_some_and(|stats| stats.connected)
    }

    /// Makes the gateway and the site when they are missing and returns the `ip` of the gateway. Refuses a gateway that
    /// stands elsewhere or has another `ip`, and then has made nothing.
    async fn ensure_gateway(
        &self,
        (site, gateway): (&str, &str),
        ip: Option<&str>,
        on_enrolled: OnEnrolled,
        audit: &CallerAudit,
    ) -> Result<String, ActionRefusal> {
        let new_gateway = EGateway {
            metadata: ObjectMeta::named(gateway),
            e_site_name: site.to_owned(),
            ip: ip.unwrap_or_default().to_owned(),
            ..EGateway::default()
        };
        self.ensure(new_gateway.into(), audit).await?;
        let found =
            self.registry.object(Kind::EGateway, gateway).await.map_err(|status| object_refusal(&status))?;
        let mut final_ip = ip.unwrap_or_default().to_owned();
        if let Some(Object::EGateway(found)) = found.map(|found| found.object) {
            if found.e_site_name != site {
                return Err(ActionRefusal::conflict(format!(
                    "EGateway {gateway} stands at the site {}, not at {site}: choose another --gateway",
                    found.e_site_name
                )));
            }
            match missing_ip(&found, ip).map_err(ActionRefusal::conflict)? {
                Some(missing) => {
                    // The token will be refused: the gateway is not changed either.
                    let enrolled = self.registrar.enrolled(gateway).await.map_err(token_refusal)?;
                    if let (Some(EnrolledGateway { gateway, until }), OnEnrolled::Refuse) =
                        (enrolled, on_enrolled)
                    {
                        return Err(self.refuse_token(site, TokenProblem::Enrolled { gateway, until }));
                    }
                    self.set_ip(gateway, missing, audit).await?;
                }
                None => final_ip = found.ip,
            }
        }
        let new_site = ESite { metadata: ObjectMeta::named(site), ..ESite::default() };
        self.ensure(new_site.into(), audit).await?;
        Ok(final_ip)
    }

    /// Gives an address to a gateway that has none. The registry validates it.
    async fn set_ip(&self, gateway: &str, ip: &str, audit: &CallerAudit) -> Result<(), ActionRefusal> {
        let edited = self.registry.edit_for_action(MANAGER, Kind::EGateway, gateway, |object| {
            if let Object::EGateway(gateway) = object
                && gateway.ip.is_empty()
            {
                gateway.ip = ip.to_owned();
            }
        });
        if let Some(written) = edited.await.map_err(|status| object_refusal(&status))? {
            audit.record(StatusCode::OK, written);
        }
        Ok(())
    }

    async fn ensure(&self, object: Object, audit: &CallerAudit) -> Result<(), ActionRefusal> {
        match self.registry.create_for_action(MANAGER, object).await {
            Ok(written) => {
                audit.record(StatusCode::CREATED, written);
                Ok(())
            }
            Err(RegistryError::AlreadyExists(_) | RegistryError::Conflict(_)) => Ok(()),
            Err(status) => Err(object_refusal(&status)),
        }
    }
}

/// The address that an existing gateway lacks, or the reason why the asked one cannot be taken.
fn missing_ip<'a>(found: &EGateway, asked: Option<&'a str>) -> Result<Option<&'a str>, String> {
    let Some(asked) = asked else { return Ok(None) };
    if found.ip.is_empty() {
        return Ok(Some(asked));
    }
    // Addresses of IPv6 can be written in several forms. Text that is no address equals only itself.
    let parsed = |text: &str| text.parse::<IpAddr>().map_err(|_| text.to_owned());
    if parsed(&found.ip) == parsed(asked) {
        return Ok(None);
    }
    let name = &found.metadata.name;
    Err(format!(
        "EGateway {name} has the ip {}, not {asked}: leave out --ip, or change the gateway first: \
         kubectl patch egateway {name} --type merge -p '{{\"ip\": \"{asked}\"}}'",
        found.ip
    ))
}

fn time(moment: std::time::SystemTime) -> String {
    jiff::Timestamp::try_from(moment)
        .map(|moment| moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_token_is_for_a_gateway_or_for_a_role() {
        let check = |body: Value, expected: Result<Wanted, &str>| {
            let asked: CreateTokenRequest = serde_json::from_value(body.clone()).unwrap();
            match (wanted(&asked), expected) {
                (Ok(wanted), Ok(expected)) => assert_eq!(wanted, expected),
                (Err(why), Err(part)) => assert!(why.contains(part), "{body}: {why}"),
                (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{body}"),
            }
        };
        let join = |site: &str, gateway: &str, uses| Wanted::Join {
            site: site.into(),
            gateway: gateway.into(),
            uses,
            ip: None,
        };
        check(json!({"site": "Tokyo"}), Ok(join("Tokyo", "Tokyo", 1)));
        check(json!({"site": "Tokyo", "gateway": "t2", "uses": 3}), Ok(join("Tokyo", "t2", 3)));
        check(json!({"role": "viewer", "ttlSeconds": 5}), Ok(Wanted::Api { role: ApiRole::Viewer }));
        check(json!({}), Err("not neither"));
        check(json!({"site": "a", "role": "admin"}), Err("not both"));
        check(
            json!({"site": "a", "ip": "10.0.0.1"}),
            Ok(Wanted::Join { site: "a".into(), gateway: "a".into(), uses: 1, ip: Some("10.0.0.1".into()) }),
        );
        check(json!({"role": "admin", "uses": 2}), Err("belong to a join token"));
        check(json!({"role": "admin", "ip": "10.0.0.1"}), Err("belong to a join token"));
        check(json!({"site": "cloud"}), Err("this cloud itself"));
        check(json!({"site": "a", "gateway": "cloud"}), Err("this cloud itself"));
        assert!(serde_json::from_value::<CreateTokenRequest>(json!({"sight": "a"})).is_err());
    }

    #[test]
    fn a_gateway_gets_the_address_it_lacks_and_keeps_the_one_it_has() {
        let check = |has: &str, asked: Option<&str>, expected: Result<Option<&str>, &str>| {
            let gateway =
                EGateway { metadata: ObjectMeta::named("oslo"), ip: has.to_owned(), ..EGateway::default() };
            match (missing_ip(&gateway, asked), expected) {
                (Err(why), Err(part)) => assert!(why.contains(part), "{why}"),
                (found, expected) => assert_eq!(found, expected.map_err(str::to_owned), "{has} {asked:?}"),
            }
        };
        check("", None, Ok(None));
        check("", Some("10.0.0.1"), Ok(Some("10.0.0.1")));
        check("10.0.0.1", None, Ok(None));
        check("10.0.0.1", Some("10.0.0.1"), Ok(None));
        check("fd00::1", Some("fd00:0::1"), Ok(None));
        check("10.0.0.1", Some("10.0.0.2"), Err("EGateway oslo has the ip 10.0.0.1, not 10.0.0.2"));
        check("10.0.0.1", Some("10.0.0.2"), Err("kubectl patch egateway oslo"));
        check("10.0.0.1", Some("junk"), Err("not junk"));
    }
}
