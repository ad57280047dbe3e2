//! Serves the actions under `/causeway/v1/...`: requests of the command line that are not about an object.
//!
//! `route` decides which action is meant; identity and the store do the work. The API server has authenticated
//! and authorized the caller before.

mod access;
mod admin_action;
mod audit;
mod caches;
mod certificates;
mod diagnose;
mod gateway_answers;
mod packet_paths;
mod probe;
mod revoked;
mod status;
mod tokens;

use std::sync::Arc;

use bytes::Bytes;
use causeway_api::error_chain;
use causeway_api::management::{
    CertificateList, DeletedToken, RotateRequest, RotationStep, TokenList, paths,
};
use causeway_apiserver::{
    ActionBody, ActionRefusal, ActionRequest, ActionResponse, Actions, AdminAction, GatewayStatsSource,
    Identity, Registry, RegistryError,
};
use causeway_gateway::Gateway;
use causeway_store::StoreError;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::audit::{AuditJournal, JournalKind};
use crate::identity::{Registrar, RotationError, TokenProblem};
use crate::netmaps::NetmapPublisher;
use crate::replicas::Fleet;

pub use gateway_answers::GatewayAnswers;

/// Serves the actions of one cloud.
pub struct CloudActions {
    pub registry: Arc<Registry>,
    pub registrar: Arc<Registrar>,
    pub stats: Arc<dyn GatewayStatsSource>,
    pub fleet: Arc<Fleet>,
    pub journals: AuditJournal,
    /// The cloud's own gateway, which doctor asks as it asks those of edges.
    pub gateway: Gateway,
    pub netmaps: NetmapPublisher,
    /// The last answers of gateways about their paths and copies.
    pub answers: GatewayAnswers,
}

/// The action of a call.
#[derive(Debug, PartialEq, Eq)]
enum Action<'a> {
    CreateToken,
    ListTokens,
    DeleteToken(&'a str),
    CreateCertificate,
    ListCertificates,
    Revoke,
    Status,
    Access,
    Paths,
    Caches,
    Audit,
    AdminAudit,
    Backup,
    ShowAuthorities,
    RotateAuthority,
    Probe,
    Diagnose,
}

fn route<'a>(method: &Method, path: &'a str) -> Result<Action<'a>, ActionRefusal> {
    let full = format!("{}{path}", paths::PREFIX);
    let (allowed, action) = match full.as_str() {
        paths::TOKENS if method == Method::GET => (Method::GET, Action::ListTokens),
        paths::TOKENS => (Method::POST, Action::CreateToken),
        paths::CERTIFICATES if method == Method::GET => (Method::GET, Action::ListCertificates),
        paths::CERTIFICATES => (Method::POST, Action::CreateCertificate),
        paths::REVOKE => (Method::POST, Action::Revoke),
        paths::STATUS => (Method::GET, Action::Status),
        paths::ACCESS => (Method::GET, Action::Access),
        paths::PATHS => (Method::GET, Action::Paths),
        paths::CACHES => (Method::GET, Action::Caches),
        paths::AUDIT => (Method::GET, Action::Audit),
        paths::ADMIN_AUDIT => (Method::GET, Action::AdminAudit),
        paths::BACKUP => (Method::GET, Action::Backup),
        paths::CA => (Method::GET, Action::ShowAuthorities),
        paths::CA_ROTATE => (Method::POST, Action::RotateAuthority),
        paths::PROBE => (Method::POST, Action::Probe),
        paths::DIAGNOSE => (Method::POST, Action::Diagnose),
        _ => match token_id(path) {
            Some(id) => (Method::DELETE, Action::DeleteToken(id)),
            None => return Err(ActionRefusal::not_found(format!("there is no action {full}"))),
        },
    };
    if method != allowed {
        let message = format!("{full} takes {allowed}, not {method}");
        return Err(ActionRefusal::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    Ok(action)
}

/// The ID in the path of one token, `TOKENS/ID`.
fn token_id(path: &str) -> Option<&str> {
    let (collection, id) = path.rsplit_once('/')?;
    let is_token = paths::TOKENS.strip_prefix(paths::PREFIX) == Some(collection);
    (is_token && !id.is_empty()).then_some(id)
}

impl Actions for CloudActions {
    fn call<'a>(
        &'a self,
        identity: &'a Identity,
        request: ActionRequest,
    ) -> BoxFuture<'a, Result<ActionResponse, ActionRefusal>> {
        async move {
            match route(&request.method, &request.path)? {
                Action::CreateToken => {
                    let token = self.create_token(body(&request.body)?, &request.audit).await?;
                    Ok(json(StatusCode::CREATED, &token)?.made(token.id.as_str()))
                }
                Action::ListTokens => {
                    let tokens = self.registrar.tokens().await.map_err(|error| refusal(&error))?;
                    json(StatusCode::OK, &TokenList { tokens })
                }
                Action::DeleteToken(id) => {
                    self.registrar.delete_token(id).await.map_err(token_refusal)?;
                    json(StatusCode::OK, &DeletedToken { id: id.to_owned() })
                }
                Action::CreateCertificate => {
                    let issued = self.create_certificate(body(&request.body)?).await?;
                    Ok(json(StatusCode::CREATED, &issued)?.made(issued.serial.as_str()))
                }
                Action::ListCertificates => {
                    let certificates =
                        self.registrar.certificates().await.map_err(|error| refusal(&error))?;
                    json(StatusCode::OK, &CertificateList { certificates })
                }
                Action::Revoke => self.revoke(identity, body(&request.body)?).await,
                Action::Status => json(StatusCode::OK, &self.status(request.query.as_deref()).await?),
                Action::Access => json(StatusCode::OK, &self.access(request.query.as_deref())?),
                Action::Paths => json(StatusCode::OK, &self.paths(request.query.as_deref()).await?),
                Action::Caches => json(StatusCode::OK, &self.caches(request.query.as_deref()).await?),
                Action::Audit => self.audit(JournalKind::Traffic, request.query.as_deref()).await,
                Action::AdminAudit => self.audit(JournalKind::Admin, request.query.as_deref()).await,
                Action::Backup => Ok(self.backup()),
                Action::ShowAuthorities => {
                    json(StatusCode::OK, &self.registrar.authorities().await.map_err(rotation_refusal)?)
                }
                Action::Probe => json(StatusCode::OK, &self.probe(body(&request.body)?).await?),
                Action::Diagnose => json(StatusCode::OK, &self.diagnose(body(&request.body)?).await?),
                Action::RotateAuthority => {
                    let asked: RotateRequest = body(&request.body)?;
                    let view = match asked.step {
                        RotationStep::Start => self.registrar.start_rotation().await,
                        RotationStep::Finish => self.registrar.finish_rotation(asked.force).await,
                    };
                    json(StatusCode::OK, &view.map_err(rotation_refusal)?)
                }
            }
        }
        .boxed()
    }

    fn administrative(&self, method: &Method, path: &str, body: &[u8]) -> Option<Option<AdminAction>> {
        admin_action::describe(method, path, body)
    }
}

impl CloudActions {
    /// Everything in the store as one stream. An error on the way cuts the connection: the trailer is then missing.
    fn backup(&self) -> ActionResponse {
        let export = self.registry.store().export();
        let chunks = stream::unfold(Some(export), |export| async move {
            let mut export = export?;
            match export.next().await {
                Ok(Some(chunk)) => Some((Ok(chunk), Some(export))),
                Ok(None) => None,
                Err(error) => {
                    tracing::error!(
                        error = &error as &dyn std::error::Error,
                        "cannot finish a backup; the client's connection is cut"
                    );
                    Some((Err(std::io::Error::other(error)), None))
                }
            }
        });
        ActionResponse {
            code: StatusCode::OK,
            content_type: "application/x-ndjson",
            body: ActionBody::Stream(Box::pin(chunks)),
            made: None,
        }
    }
}

fn body<T: DeserializeOwned>(bytes: &Bytes) -> Result<T, ActionRefusal> {
    serde_json::from_slice(bytes)
        .map_err(|error| ActionRefusal::bad_request(format!("the body cannot be read: {error}")))
}

fn json(code: StatusCode, value: &impl Serialize) -> Result<ActionResponse, ActionRefusal> {
    let bytes = serde_json::to_vec(value).map_err(|error| ActionRefusal::internal(error.to_string()))?;
    Ok(ActionResponse::json(code, bytes))
}

fn refusal(error: &StoreError) -> ActionRefusal {
    let code = match error {
        StoreError::Full { .. } => StatusCode::INSUFFICIENT_STORAGE,
        StoreError::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
        StoreError::Conflict { .. } | StoreError::AlreadyExists { .. } => StatusCode::CONFLICT,
        StoreError::Corrupt { .. } | StoreError::TooNew { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    };
    ActionRefusal::new(code, error.to_string())
}

fn token_refusal(problem: TokenProblem) -> ActionRefusal {
    match problem {
        TokenProblem::Invalid { .. } => {
            ActionRefusal::new(StatusCode::UNPROCESSABLE_ENTITY, problem.to_string())
        }
        TokenProblem::NotFound { .. } | TokenProblem::NoCertificate { .. } => {
            ActionRefusal::not_found(problem.to_string())
        }
        TokenProblem::Enrolled { .. } => ActionRefusal::conflict(problem.to_string()),
        TokenProblem::NotLogged { .. } => {
            ActionRefusal::new(StatusCode::INSUFFICIENT_STORAGE, error_chain(&problem))
        }
        TokenProblem::Store(error) => refusal(&error),
    }
}

fn rotation_refusal(error: RotationError) -> ActionRefusal {
    match error {
        RotationError::CaStore(_) => ActionRefusal::unavailable(error_chain(&error)),
        _ => ActionRefusal::conflict(error.to_string()),
    }
}

/// A refusal of the registry, which speaks in the words of the API.
fn object_refusal(error: &RegistryError) -> ActionRefusal {
    let status = error.status();
    let code = StatusCode::from_u16(status.code);
    ActionRefusal::new(code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), status.message.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_means_one_thing_or_is_refused() {
        let check = |method: Method, path: &str, expected: Result<Action<'_>, u16>| {
            assert_eq!(
                route(&method, path).map_err(|refusal| refusal.code.as_u16()),
                expected,
                "{method} {path}"
            );
        };
        check(Method::POST, "tokens", Ok(Action::CreateToken));
        check(Method::GET, "tokens", Ok(Action::ListTokens));
        check(Method::PUT, "tokens", Err(405));
        check(Method::DELETE, "tokens/abc", Ok(Action::DeleteToken("abc")));
        check(Method::GET, "tokens/abc", Err(405));
        check(Method::DELETE, "tokens/", Err(404));
        check(Method::DELETE, "tokens/a/b", Err(404));
        check(Method::POST, "revoke", Ok(Action::Revoke));
        check(Method::POST, "certificates", Ok(Action::CreateCertificate));
        check(Method::GET, "certificates", Ok(Action::ListCertificates));
        check(Method::DELETE, "certificates", Err(405));
        check(Method::GET, "status", Ok(Action::Status));
        check(Method::POST, "status", Err(405));
        check(Method::GET, "access", Ok(Action::Access));
        check(Method::POST, "access", Err(405));
        check(Method::GET, "paths", Ok(Action::Paths));
        check(Method::POST, "paths", Err(405));
        check(Method::GET, "caches", Ok(Action::Caches));
        check(Method::POST, "caches", Err(405));
        check(Method::GET, "audit", Ok(Action::Audit));
        check(Method::GET, "audit/admin", Ok(Action::AdminAudit));
        check(Method::DELETE, "audit/admin", Err(405));
        check(Method::GET, "backup", Ok(Action::Backup));
        check(Method::GET, "ca", Ok(Action::ShowAuthorities));
        check(Method::POST, "ca/rotate", Ok(Action::RotateAuthority));
        check(Method::POST, "probe", Ok(Action::Probe));
        check(Method::GET, "probe", Err(405));
        check(Method::POST, "diagnose", Ok(Action::Diagnose));
        check(Method::GET, "diagnose", Err(405));
        check(Method::GET, "", Err(404));
        check(Method::GET, "../esites", Err(404));
    }
}
