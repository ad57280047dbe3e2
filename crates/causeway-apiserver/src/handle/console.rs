//! Serves the console: its files, and the exchange of an API token for a session.
//!
//! A sign-in passes the same checks and limits as a bearer token. Files need no credential: they hold no facts of the fleet.

use std::time::Instant;

use causeway_api::Status;
use http::{Method, Response, StatusCode, header};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::authenticate::TOKEN_BYTES_MAX;
use super::{Handler, RequestPeer};
use crate::console;
use crate::request::ConsoleRequest;
use crate::respond::Body;
use crate::{Identity, Role};

impl Handler {
    pub(super) async fn console(
        &self,
        caller: &RequestPeer,
        head: &http::request::Parts,
        what: &ConsoleRequest,
        body: &mut Incoming,
    ) -> Result<Response<Body>, Status> {
        match what {
            ConsoleRequest::File(name) => console::file(name, &head.headers),
            ConsoleRequest::Session if !console::is_call_of_console(&head.headers) => {
                Err(Status::bad_request(
                    "only the console's own page signs in here, with the header causeway-console",
                ))
            }
            ConsoleRequest::Session => match head.method {
                Method::POST => self.sign_in(caller, head, body).await,
                Method::DELETE => Ok(self.sign_out(head)),
                // Not an error: the page asks at its start whether it has to show the sign-in.
                _ => match self.identify(caller, head).await {
                    Ok(found) => Ok(console::session(StatusCode::OK, describe(&found.identity).to_string())),
                    Err(status) if status.code == 401 => {
                        Ok(console::session(StatusCode::OK, describe(&Identity::anonymous()).to_string()))
                    }
                    Err(status) => Err(status),
                },
            },
        }
    }

    async fn sign_in(
        &self,
        caller: &RequestPeer,
        head: &http::request::Parts,
        body: &mut Incoming,
    ) -> Result<Response<Body>, Status> {
        let body = self.read_body(head, body, 2 * TOKEN_BYTES_MAX).await?;
        let body: Value = serde_json::from_slice(&body)
            .map_err(|_| Status::bad_request("the body must be a JSON object with the key token"))?;
        let token = body["token"].as_str().map(str::trim).filter(|token| token.len() <= TOKEN_BYTES_MAX);
        let identity = self.by_token(caller, token.filter(|token| !token.is_empty())).await?;
        let secret = self.sessions.begin(identity.clone(), Instant::now(), &self.stop).map_err(|error| {
            tracing::error!(%error, "the API server cannot sign in a user of the console");
            Status::unavailable("the sign-in failed; try again", 1)
        })?;
        tracing::info!(target: "audit", user = identity.user, client = %caller.address.ip(), "signed in at the console");
        let mut response = console::session(StatusCode::OK, describe(&identity).to_string());
        response
            .headers_mut()
            .extend(console::set_cookie(Some(&secret)).map(|set| (header::SET_COOKIE, set)));
        Ok(response)
    }

    fn sign_out(&self, head: &http::request::Parts) -> Response<Body> {
        let ended = console::session_cookie(&head.headers).and_then(|secret| self.sessions.end(secret));
        if let Some(identity) = ended {
            tracing::info!(target: "audit", user = identity.user, "signed out at the console");
        }
        let mut response = console::session(StatusCode::OK, "{}".to_owned());
        response.headers_mut().extend(console::set_cookie(None).map(|set| (header::SET_COOKIE, set)));
        response
    }
}

/// The user and the role; null for a caller that is not signed in.
fn describe(identity: &Identity) -> Value {
    let role = match identity.role {
        Role::Admin => "admin",
        Role::Viewer => "viewer",
        Role::Gateway { .. } | Role::Delegated | Role::Unprivileged => "none",
        Role::Anonymous => return json!({"user": null, "role": null}),
    };
    json!({"user": identity.user, "role": role})
}
