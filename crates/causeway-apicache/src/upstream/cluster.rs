//! The cluster's API server as the cloud reaches it: requests under the cloud's own credential, or under a caller's.
//!
//! A caller's bearer token replaces the cloud's credential; a node is impersonated with it. Nothing else is sent in
//! another name.

use std::path::Path;

use bytes::Bytes;
use causeway_api::Status;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use serde_json::Value;

/// The identity under which a request reaches the API server.
#[derive(Clone, PartialEq, Eq, Hash)]
pub enum UpstreamIdentity {
    /// The cloud's own credential, from its kubeconfig.
    Own,
    /// A caller's bearer token.
    Token(String),
    /// A node of the caller's site, impersonated.
    Node(String),
}

#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    #[error("the kubeconfig {path} cannot be used")]
    Kubeconfig { path: String, source: kube::config::KubeconfigError },
    #[error("the API server of the cluster cannot be reached")]
    Unreachable(#[from] kube::Error),
    #[error("the API server of the cluster sent an answer of more than {0} bytes")]
    TooLong(usize),
    #[error("the API server of the cluster sent an answer that cannot be read")]
    Malformed(#[from] serde_json::Error),
    #[error("{}", .0.message)]
    Refused(Box<Status>),
}

impl ClusterError {
    /// The answer for the client at the edge.
    pub fn status(&self) -> Status {
        match self {
            ClusterError::Refused(status) => (**status).clone(),
            other => Status::unavailable(causeway_api::error_chain(other), 1),
        }
    }
}

/// A handle; clones share connections.
#[derive(Clone)]
pub struct ClusterClient {
    own: kube::Client,
    /// Presents no credential of its own.
    bare: kube::Client,
}

// A page of 500 objects of the largest kind; a single object has at most a few MiB.
const ANSWER_BYTES_MAX: usize = 256 << 20;
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const IMPERSONATE_GROUP: HeaderName = HeaderName::from_static("impersonate-group");

impl ClusterClient {
    /// Reads the kubeconfig; connects with the first request.
    pub async fn open(kubeconfig: &Path) -> Result<ClusterClient, ClusterError> {
        let failed = |source| ClusterError::Kubeconfig { path: kubeconfig.display().to_string(), source };
        let file = Kubeconfig::read_from(kubeconfig).map_err(failed)?;
        let mut config = kube::Config::from_custom_kubeconfig(file, &KubeConfigOptions::default())
            .await
            .map_err(failed)?;
        // Watches are silent for longer than any timeout of a connection; each request has its own deadline.
        config.read_timeout = None;
        let own = kube::Client::try_from(config.clone())?;
        config.auth_info = AuthInfo::default();
        Ok(ClusterClient { own, bare: kube::Client::try_from(config)? })
    }

    /// Sends a request. The answer may be any status.
    pub async fn send(
        &self,
        identity: &UpstreamIdentity,
        mut request: Request<Body>,
    ) -> Result<Response<Body>, ClusterError> {
        let client = match identity {
            UpstreamIdentity::Token(_) => &self.bare,
            UpstreamIdentity::Own | UpstreamIdentity::Node(_) => &self.own,
        };
        identify(identity, request.headers_mut())?;
        Ok(client.send(request).await?)
    }

    /// Reads a JSON document; a refusal is an error.
    pub async fn get(
        &self,
        identity: &UpstreamIdentity,
        path: &str,
        accept: &str,
    ) -> Result<Bytes, ClusterError> {
        let request = Request::get(path).header(header::ACCEPT, accept).body(Body::empty());
        let request = request.map_err(|error| refused(&Status::bad_request(error)))?;
        self.answer(self.send(identity, request).await?).await
    }

    /// Creates a review and returns the answer.
    pub async fn review(
        &self,
        identity: &UpstreamIdentity,
        path: &str,
        review: &Value,
    ) -> Result<Value, ClusterError> {
        let request = Request::builder()
            .method(Method::POST)
            .uri(path)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "application/json")
            .body(Body::from(review.to_string().into_bytes()));
        let request = request.map_err(|error| refused(&Status::bad_request(error)))?;
        let answer = self.answer(self.send(identity, request).await?).await?;
        Ok(serde_json::from_slice(&answer)?)
    }

    async fn answer(&self, response: Response<Body>) -> Result<Bytes, ClusterError> {
        let code = response.status();
        let body = collect(response.into_body()).await?;
        match code.is_success() {
            true => Ok(body),
            false => Err(refused(&status_of(code, &body))),
        }
    }
}

fn refused(status: &Status) -> ClusterError {
    ClusterError::Refused(Box::new(status.clone()))
}

/// The Status in the body of a refusal, or one made from its code.
pub fn status_of(code: StatusCode, body: &[u8]) -> Status {
    serde_json::from_slice::<Status>(body).unwrap_or_else(|_| {
        let text: String = String::from_utf8_lossy(body).chars().take(200).collect();
        Status { code: code.as_u16(), ..Status::internal(format!("the API server answered {code}: {text}")) }
    })
}

async fn collect(body: Body) -> Result<Bytes, ClusterError> {
    let limited = http_body_util::Limited::new(body, ANSWER_BYTES_MAX);
    match limited.collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => Err(match error.downcast::<kube::Error>() {
            Ok(error) => ClusterError::Unreachable(*error),
            Err(_) => ClusterError::TooLong(ANSWER_BYTES_MAX),
        }),
    }
}

fn identify(identity: &UpstreamIdentity, headers: &mut HeaderMap) -> Result<(), ClusterError> {
    let value = |text: String| {
        HeaderValue::try_from(text).map_err(|_| refused(&Status::unauthorized("the credential is malformed")))
    };
    match identity {
        UpstreamIdentity::Own => {}
        UpstreamIdentity::Token(token) => {
            let mut bearer = value(format!("Bearer {token}"))?;
            bearer.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, bearer);
        }
        UpstreamIdentity::Node(node) => {
            headers.insert(IMPERSONATE_USER, value(format!("system:node:{node}"))?);
            // The API server adds system:authenticated itself.
            headers.insert(IMPERSONATE_GROUP, HeaderValue::from_static("system:nodes"));
        }
    }
    Ok(())
}
