//! What the command line asks for that is no object: `/causeway/v1/...`.
//!
//! `route` decides what is meant; the doing is identity's and the store's. The API server has authenticated
//! and authorized the caller before.

mod audit;
mod probe;
mod status;
mod tokens;

use std::sync::Arc;

use bytes::Bytes;
use causeway_api::Status;
use causeway_apiserver::{
    ActionBody, ActionRefusal, ActionRequest, ActionResponse, Actions, Identity, LiveFigures, Registry,
};
use causeway_store::StoreError;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::{Method, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::audit::Journals;
use crate::identity::{Registrar, RotationError, TokenProblem};
use crate::replicas::Fleet;

/// Serves the actions of one cloud.
pub struct CloudActions {
    pub registry: Arc<Registry>,
    pub registrar: Arc<Registrar>,
    pub figures: Arc<dyn LiveFigures>,
    pub fleet: Arc<Fleet>,
    pub journals: Journals,
}

/// What a call means.
#[derive(Debug, PartialEq, Eq)]
enum Action<'a> {
    CreateToken,
    ListTokens,
    DeleteToken(&'a str),
    Revoke,
    Status,
    Audit,
    Backup,
    ShowAuthorities,
    RotateAuthority,
    Probe,
}

fn route<'a>(method: &Method, path: &'a str) -> Result<Action<'a>, ActionRefusal> {
    let parts: Vec<&str> = path.split('/').collect();
    let (allowed, action) = match parts.as_slice() {
        ["tokens"] if method == Method::GET => (Method::GET, Action::ListTokens),
        ["tokens"] => (Method::POST, Action::CreateToken),
        ["tokens", id] if !id.is_empty() => (Method::DELETE, Action::DeleteToken(id)),
        ["revoke"] => (Method::POST, Action::Revoke),
        ["status"] => (Method::GET, Action::Status),
        ["audit"] => (Method::GET, Action::Audit),
        ["backup"] => (Method::GET, Action::Backup),
        ["ca"] => (Method::GET, Action::ShowAuthorities),
        ["ca", "rotate"] => (Method::POST, Action::RotateAuthority),
        ["probe"] => (Method::POST, Action::Probe),
        _ => return Err(ActionRefusal::not_found(format!("there is no action /causeway/v1/{path}"))),
    };
    if method != allowed {
        let message = format!("/causeway/v1/{path} takes {allowed}, not {method}");
        return Err(ActionRefusal::new(StatusCode::METHOD_NOT_ALLOWED, message));
    }
    Ok(action)
}

impl Actions for CloudActions {
    fn call<'a>(
        &'a self,
        _identity: &'a Identity,
        request: ActionRequest,
    ) -> BoxFuture<'a, Result<ActionResponse, ActionRefusal>> {
        async move {
            match route(&request.method, &request.path)? {
                Action::CreateToken => {
                    json(StatusCode::CREATED, &self.create_token(body(&request.body)?).await?)
                }
                Action::ListTokens => {
                    let tokens = self.registrar.tokens().await.map_err(|error| refusal(&error))?;
                    json(StatusCode::OK, &serde_json::json!({ "tokens": tokens }))
                }
                Action::DeleteToken(id) => {
                    self.registrar.delete_token(id).await.map_err(token_refusal)?;
                    json(StatusCode::OK, &serde_json::json!({ "id": id }))
                }
                Action::Revoke => {
                    let asked: Revoke = body(&request.body)?;
                    json(
                        StatusCode::OK,
                        &self.registrar.revoke_gateway(&asked.gateway).await.map_err(token_refusal)?,
                    )
                }
                Action::Status => json(StatusCode::OK, &self.status().await?),
                Action::Audit => self.audit(request.query.as_deref()).await,
                Action::Backup => Ok(self.backup()),
                Action::ShowAuthorities => {
                    json(StatusCode::OK, &self.registrar.authorities().await.map_err(rotation_refusal)?)
                }
                Action::Probe => json(StatusCode::OK, &self.probe(body(&request.body)?).await?),
                Action::RotateAuthority => {
                    let asked: Rotate = body(&request.body)?;
                    let view = match asked.step {
                        Step::Start => self.registrar.start_rotation().await,
                        Step::Finish => self.registrar.finish_rotation(asked.force).await,
                    };
                    json(StatusCode::OK, &view.map_err(rotation_refusal)?)
                }
            }
        }
        .boxed()
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Revoke {
    gateway: String,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Rotate {
    step: Step,
    #[serde(default)]
    force: bool,
}

#[derive(serde::Deserialize)]
#[serde(rename_all = "lowercase")]
enum Step {
    Start,
    Finish,
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
                    tracing::error!(error = &error as &dyn std::error::Error, "a backup broke off");
                    Some((Err(std::io::Error::other(error)), None))
                }
            }
        });
        ActionResponse {
            code: StatusCode::OK,
            content_type: "application/x-ndjson",
            body: ActionBody::Stream(Box::pin(chunks)),
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
        TokenProblem::NotFound { .. } => ActionRefusal::not_found(problem.to_string()),
        TokenProblem::Store(error) => refusal(&error),
    }
}

fn rotation_refusal(error: RotationError) -> ActionRefusal {
    match error {
        RotationError::Roll(_) => ActionRefusal::unavailable(chain(&error)),
        _ => ActionRefusal::conflict(error.to_string()),
    }
}

/// A refusal of the registry, which speaks in the words of the API.
fn object_refusal(status: &Status) -> ActionRefusal {
    let code = StatusCode::from_u16(status.code);
    ActionRefusal::new(code.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR), status.message.clone())
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(&format!(": {error}"));
        source = error.source();
    }
    text
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
        check(Method::GET, "status", Ok(Action::Status));
        check(Method::POST, "status", Err(405));
        check(Method::GET, "audit", Ok(Action::Audit));
        check(Method::GET, "backup", Ok(Action::Backup));
        check(Method::GET, "ca", Ok(Action::ShowAuthorities));
        check(Method::POST, "ca/rotate", Ok(Action::RotateAuthority));
        check(Method::POST, "probe", Ok(Action::Probe));
        check(Method::GET, "probe", Err(405));
        check(Method::GET, "", Err(404));
        check(Method::GET, "../esites", Err(404));
    }
}
