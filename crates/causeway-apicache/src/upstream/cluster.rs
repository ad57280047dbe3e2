//! The cluster's API server as the cloud reaches it: requests under the cloud's own credential, or under a caller's.
//!
//! A caller's bearer token replaces the cloud's credential; a node is impersonated with it. Nothing else is sent in
//! another name.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use causeway_api::Status;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};
use http_body_util::BodyExt;
use kube::client::Body;
use kube::config::{AuthInfo, KubeConfigOptions, Kubeconfig};
use serde_json::{Value, json};
use tokio::sync::Mutex;

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
    #[error("the API server of the cluster has not answered within {REVIEW_TIMEOUT:?}")]
    Timeout,
    /// The cloud's credential, not that of a caller.
    #[error(
        "the API server of the cluster does not accept the credential of the cloud: renew it in the kubeconfig of --kubernetes"
    )]
    OwnCredential,
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
    /// Bytes of one answer.
    answer_bytes_max: usize,
    /// True: requests as a node name its group. Believed until the time; concurrent requests wait for one review.
    names_group: Arc<Mutex<Option<(Instant, bool)>>>,
}

// A review is a decision in the memory of the API server. A review that hangs would delay the other reviews of the round.
const REVIEW_TIMEOUT: Duration = Duration::from_secs(10);
// A page of 500 objects of the largest kind; a single object has at most a few MiB.
const ANSWER_BYTES_MAX: usize = 256 << 20;
// The rights of the cloud change when an operator applies another manifest.
const GROUP_CHECK_INTERVAL: Duration = Duration::from_secs(300);
// While the API server does not answer.
const GROUP_RETRY_DELAY: Duration = Duration::from_secs(5);
const REVIEWS: &str = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
const IMPERSONATE_USER: HeaderName = HeaderName::from_static("impersonate-user");
const NODES: &str = "system:nodes";
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
        // A refusal belongs to the caller: kube would send the request 15 times again, writes too, whose first attempt may have had an effect (504).
        config.default_retry = false;
        let own = kube::Client::try_from(config.clone())?;
        config.auth_info = AuthInfo::default();
        let bare = kube::Client::try_from(config)?;
        Ok(ClusterClient { own, bare, answer_bytes_max: ANSWER_BYTES_MAX, names_group: Arc::default() })
    }

    #[cfg(test)]
    pub(crate) fn set_answer_bytes_max(&mut self, bytes_max: usize) {
        self.answer_bytes_max = bytes_max;
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
        let names_group = matches!(identity, UpstreamIdentity::Node(_)) && self.names_group().await;
        identify(identity, names_group, request.headers_mut())?;
        Ok(client.send(request).await?)
    }

    /// Returns true if requests as a node name the group of nodes. Constrained impersonation (KEP-5284, Kubernetes 1.36) counts for requests that
    /// name the user only, and the API server adds the group. Every other impersonation needs the group in the request, and the right to it: a
    /// cloud without that right has constrained impersonation, or none.
    async fn names_group(&self) -> bool {
        let mut known = self.names_group.lock().await;
        if let Some((_, names_group)) = known.filter(|(until, _)| Instant::now() < *until) {
            return names_group;
        }
        let review = json!({
            "kind": "SelfSubjectAccessReview", "apiVersion": "authorization.k8s.io/v1",
            "spec": {"resourceAttributes": {"verb": "impersonate", "resource": "groups", "name": NODES}},
        });
        let asked = async {
            let request = review_request(REVIEWS, &review)?;
            let reviewed = async { self.answer(&UpstreamIdentity::Own, self.own.send(request).await?).await };
            review_answer(reviewed).await
        };
        let (names_group, after) = match asked.await {
            Ok(answer) => (answer["status"]["allowed"] == Value::Bool(true), GROUP_CHECK_INTERVAL),
            Err(_) => (true, GROUP_RETRY_DELAY),
        };
        *known = Some((Instant::now() + after, names_group));
        names_group
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
        self.answer(identity, self.send(identity, request).await?).await
    }

    /// Creates a review and returns the answer.
    pub async fn review(
        &self,
        identity: &UpstreamIdentity,
        path: &str,
        review: &Value,
    ) -> Result<Value, ClusterError> {
        let request = review_request(path, review)?;
        let reviewed = async { self.answer(identity, self.send(identity, request).await?).await };
        review_answer(reviewed).await
    }

    async fn answer(
        &self,
        identity: &UpstreamIdentity,
        response: Response<Body>,
    ) -> Result<Bytes, ClusterError> {
        let code = response.status();
        let body = collect(response.into_body(), self.answer_bytes_max).await?;
        let is_own = !matches!(identity, UpstreamIdentity::Token(_));
        match code {
            _ if code.is_success() => Ok(body),
            // This says nothing about a node or a token: their rights do not end with the credential of the cloud.
            StatusCode::UNAUTHORIZED if is_own => Err(ClusterError::OwnCredential),
            _ => Err(refused(&status_of(code, &body))),
        }
    }
}

fn review_request(path: &str, review: &Value) -> Result<Request<Body>, ClusterError> {
    let request = Request::builder()
        .method(Method::POST)
        .uri(path)
        .header(header::CONTENT_TYPE, "application/json")
        .header(header::ACCEPT, "application/json")
        .body(Body::from(review.to_string().into_bytes()));
    request.map_err(|error| refused(&Status::bad_request(error)))
}

async fn review_answer(
    reviewed: impl Future<Output = Result<Bytes, ClusterError>>,
) -> Result<Value, ClusterError> {
    let answer =
        tokio::time::timeout(REVIEW_TIMEOUT, reviewed).await.map_err(|_| ClusterError::Timeout)??;
    Ok(serde_json::from_slice(&answer)?)
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

async fn collect(body: Body, bytes_max: usize) -> Result<Bytes, ClusterError> {
    let limited = http_body_util::Limited::new(body, bytes_max);
    match limited.collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => Err(match error.downcast::<kube::Error>() {
            Ok(error) => ClusterError::Unreachable(*error),
            Err(_) => ClusterError::TooLong(bytes_max),
        }),
    }
}

fn identify(
    identity: &UpstreamIdentity,
    names_group: bool,
    headers: &mut HeaderMap,
) -> Result<(), ClusterError> {
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
            if names_group {
                headers.insert(IMPERSONATE_GROUP, HeaderValue::from_static(NODES));
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use http_body_util::Full;
    use hyper::service::service_fn;
    use hyper_util::rt::TokioIo;

    use super::*;

    /// Starts an API server that answers the review of the cloud's own rights with `allowed`, and every other request with its impersonation.
    async fn api_server(allowed: bool) -> std::net::SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                    let header =
                        |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
                    let answer = match request.uri().path() == REVIEWS {
                        true => json!({"status": {"allowed": allowed}}),
                        false => json!([header("impersonate-user"), header("impersonate-group")]),
                    };
                    let response = Response::new(Full::new(Bytes::from(answer.to_string())));
                    std::future::ready(Ok::<_, std::convert::Infallible>(response))
                });
                tokio::spawn(async move {
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        address
    }

    async fn client_of(server: std::net::SocketAddr) -> ClusterClient {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": format!("http://{server}")}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        std::fs::write(&path, text.to_string()).unwrap();
        ClusterClient::open(&path).await.unwrap()
    }

    #[tokio::test]
    async fn a_request_is_sent_once_whatever_the_api_server_answers() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, received) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
        let count = received.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let count = count.clone();
                let service = service_fn(move |request: Request<hyper::body::Incoming>| {
                    count.fetch_add(1, Ordering::SeqCst);
                    let code = request.uri().path().trim_start_matches('/').to_owned();
                    let response = Response::builder().status(code.as_str());
                    std::future::ready(response.body(Full::new(Bytes::from("{}"))))
                });
                tokio::spawn(async move {
                    let connection = hyper::server::conn::http1::Builder::new();
                    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        let cluster = client_of(address).await;
        for code in ["429", "503", "504"] {
            for identity in [UpstreamIdentity::Own, UpstreamIdentity::Token("t".into())] {
                received.store(0, Ordering::SeqCst);
                let request = Request::post(format!("/{code}")).body(Body::from(b"{}".to_vec())).unwrap();
                let response = cluster.send(&identity, request).await.unwrap();
                assert_eq!(response.status().as_str(), code);
                assert_eq!(received.load(Ordering::SeqCst), 1, "{code}");
            }
        }
    }

    #[tokio::test]
    async fn a_cloud_without_the_right_to_the_group_of_nodes_names_the_node_only() {
        let check = async |allowed: bool, expected: Value| {
            let cluster = client_of(api_server(allowed).await).await;
            for (identity, expected) in [
                (UpstreamIdentity::Node("n1".into()), expected),
                (UpstreamIdentity::Own, json!([null, null])),
                (UpstreamIdentity::Token("t".into()), json!([null, null])),
            ] {
                let found = cluster.get(&identity, "/api/v1/nodes", "application/json").await.unwrap();
                assert_eq!(serde_json::from_slice::<Value>(&found).unwrap(), expected, "{allowed}");
            }
        };
        check(true, json!(["system:node:n1", "system:nodes"])).await;
        check(false, json!(["system:node:n1", null])).await;
    }
}
