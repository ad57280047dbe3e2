//! HTTP client of the commands: finds the kubeconfig, sends requests, describes failures.
//!
//! Commands build paths and bodies; responses are JSON; warnings of the server are printed here.

mod failure;
mod find;

use std::path::PathBuf;
use std::time::Duration;

use causeway_api::{ApiVersion, Kind, error_chain};
use futures_util::StreamExt;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt;
use kube::client::Body;
use serde::Serialize;
use serde_json::Value;

use crate::output;
pub use failure::{CallError, RefusalKind};

/// Time limit to connect to the API server.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit of a response body that is held in memory. Streams are not limited by it.
const ANSWER_BYTES_MAX: usize = 1 << 30;
/// Limit of one line of a stream: a watch event with its object, or an audit record.
const LINE_BYTES_MAX: usize = 16 << 20;

pub const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
pub const JSON: &str = "application/json";
pub const APPLY_PATCH: &str = "application/apply-patch+yaml";
const MERGE_PATCH: &str = "application/merge-patch+json";

/// Flags that select the API server of a client command.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ApiConnectionArgs {
    /// Kubeconfig to use [default: $CAUSEWAY_KUBECONFIG, $KUBECONFIG, then admin.kubeconfig in the data dir]
    #[arg(long, value_name = "FILE", global = true, value_hint = clap::ValueHint::FilePath, help_heading = "API server")]
    pub kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use
    #[arg(long, value_name = "NAME", global = true, help_heading = "API server")]
    pub context: Option<String>,
    /// Data dir of a cloud on this host [default: $CAUSEWAY_DATA_DIR, then /var/lib/causeway]
    #[arg(long, value_name = "DIR", global = true, value_hint = clap::ValueHint::DirPath, help_heading = "API server")]
    pub data_dir: Option<PathBuf>,
}

/// A connection to one server.
#[derive(Clone)]
pub struct ApiClient {
    client: kube::Client,
    server: String,
    kubeconfig_source: String,
}

/// A response of the API.
#[derive(Debug)]
pub struct ApiResponse {
    pub code: StatusCode,
    pub value: Value,
}

impl ApiConnectionArgs {
    pub async fn connect(&self) -> anyhow::Result<ApiClient> {
        let found = find::kubeconfig(self, &|name| std::env::var_os(name))?;
        let options = kube::config::KubeConfigOptions { context: self.context.clone(), ..Default::default() };
        let unusable_kubeconfig = |error: &dyn std::error::Error| {
            anyhow::anyhow!("kubeconfig {} cannot be used: {}", found.origin, error_chain(error))
        };
        let kubeconfig = found.read().map_err(|error| unusable_kubeconfig(&error))?;
        let names_proxy = |cluster: &kube::config::NamedCluster| {
            cluster.cluster.as_ref().is_some_and(|cluster| cluster.proxy_url.is_some())
        };
        let proxy_named = kubeconfig.clusters.iter().any(names_proxy);
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .map_err(|error| unusable_kubeconfig(&error))?;
        config.connect_timeout = Some(CONNECT_TIMEOUT);
        if !proxy_named {
            // HTTPS_PROXY is for the web: our servers are on this host or in its network.
            config.proxy_url = None;
        }
        // The user decides whether to retry.
        config.default_retry = false;
        let server = config.cluster_url.to_string().trim_end_matches('/').to_owned();
        let client = kube::Client::try_from(config).map_err(|error| unusable_kubeconfig(&error))?;
        Ok(ApiClient { client, server, kubeconfig_source: found.origin })
    }
}

impl ApiClient {
    /// The URL of the API server.
    pub fn server(&self) -> &str {
        &self.server
    }

    pub async fn get(&self, path: &str) -> Result<Value, CallError> {
        Ok(self.call(Method::GET, path, JSON, None).await?.value)
    }

    /// As `get`, with `None` for an object that is not there.
    pub async fn find(&self, path: &str) -> Result<Option<Value>, CallError> {
        match self.get(path).await {
            Ok(value) => Ok(Some(value)),
            Err(CallError::Refused { status, .. }) if status.kind == RefusalKind::MissingObject => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub async fn post(&self, path: &str, body: &impl Serialize) -> Result<Value, CallError> {
        let body = serde_json::to_vec(body)
            .map_err(|source| CallError::RequestBody { path: path.to_owned(), source })?;
        Ok(self.call(Method::POST, path, JSON, Some((JSON, body))).await?.value)
    }

    /// Changes the fields in `change` by a merge patch.
    pub async fn merge(&self, path: &str, change: &Value) -> Result<Value, CallError> {
        let body = Some((MERGE_PATCH, change.to_string().into_bytes()));
        Ok(self.call(Method::PATCH, path, JSON, body).await?.value)
    }

    pub async fn delete(&self, path: &str) -> Result<Value, CallError> {
        Ok(self.call(Method::DELETE, path, JSON, None).await?.value)
    }

    /// Sends a request and reads the whole response as JSON. Warnings of the server go to standard error.
    pub async fn call(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> Result<ApiResponse, CallError> {
        let response = self.send(method, path, accept, body).await?;
        let code = response.status();
        let body = self.collect(response).await?;
        let value = serde_json::from_slice(&body)
            .map_err(|source| CallError::InvalidJson { server: self.server.clone(), source })?;
        Ok(ApiResponse { code, value })
    }

    /// Sends a request. Returns the response with its body unread; a status code other than 2xx is an error.
    pub async fn send(
        &self,
        method: Method,
        path: &str,
        accept: &str,
        body: Option<(&str, Vec<u8>)>,
    ) -> Result<Response<Body>, CallError> {
        let mut request = Request::builder().method(method).uri(path).header(header::ACCEPT, accept);
        let mut content = Vec::new();
        if let Some((content_type, bytes)) = body {
            request = request.header(header::CONTENT_TYPE, content_type);
            content = bytes;
        }
        let request = request
            .body(Body::from(content))
            .map_err(|source| CallError::Path { path: path.to_owned(), source })?;
        let response = self.client.send(request).await.map_err(|source| self.unreachable(source.into()))?;
        for warning in warnings(response.headers()) {
            output::note(&format!("Warning: {}", output::plain(&warning)));
        }
        if response.status().is_success() {
            return Ok(response);
        }
        let code = response.status();
        let body = self.collect(response).await?;
        Err(CallError::refused(&self.server, code, &body))
    }

    /// Passes each line of a streamed response to `line` as JSON, until the server ends the stream or `line` returns false.
    pub async fn stream_lines(
        &self,
        path: &str,
        accept: &str,
        mut line: impl FnMut(Value) -> anyhow::Result<bool>,
    ) -> anyhow::Result<()> {
        let response = self.send(Method::GET, path, accept, None).await?;
        let mut stream = response.into_body().into_data_stream();
        let mut rest = Vec::new();
        while let Some(chunk) = stream.next().await {
            // A broken stream is treated as an ended one: the caller starts a watch again in both cases.
            let Ok(chunk) = chunk else { return Ok(()) };
            rest.extend_from_slice(&chunk);
            while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
                let whole: Vec<u8> = rest.drain(..=end).collect();
                if whole.trim_ascii().is_empty() {
                    continue;
                }
                let value = serde_json::from_slice(&whole)
                    .map_err(|source| CallError::InvalidJson { server: self.server.clone(), source })?;
                if !line(value)? {
                    return Ok(());
                }
            }
            anyhow::ensure!(rest.len() <= LINE_BYTES_MAX, "{} sends a line without end", self.server);
        }
        Ok(())
    }

    async fn collect(&self, response: Response<Body>) -> Result<Vec<u8>, CallError> {
        let mut stream = response.into_body().into_data_stream();
        let mut bytes = Vec::new();
        while let Some(chunk) = stream.next().await {
            let chunk = chunk.map_err(|source| self.unreachable(source.into()))?;
            if bytes.len() + chunk.len() > ANSWER_BYTES_MAX {
                return Err(CallError::TooLong { server: self.server.clone() });
            }
            bytes.extend_from_slice(&chunk);
        }
        Ok(bytes)
    }

    fn unreachable(&self, source: Box<dyn std::error::Error + Send + Sync>) -> CallError {
        CallError::Unreachable { server: self.server.clone(), origin: self.kubeconfig_source.clone(), source }
    }
}

/// The path of a collection.
pub fn collection(version: ApiVersion, kind: Kind) -> String {
    match version {
        ApiVersion::Core => format!("/api/v1/{}", kind.plural()),
        ApiVersion::Group => format!("/apis/causeway.io/v1/{}", kind.plural()),
        ApiVersion::Events => format!("/apis/events.k8s.io/v1/{}", kind.plural()),
    }
}

/// The path of an object; its name may contain what a path may not.
pub fn object(version: ApiVersion, kind: Kind, name: &str) -> String {
    format!("{}/{}", collection(version, kind), encode(name))
}

/// A query string from pairs; pairs without a value are left out.
pub fn query(pairs: &[(&str, Option<&str>)]) -> String {
    let mut text = String::new();
    for (key, value) in pairs {
        if let Some(value) = value {
            text.push(if text.is_empty() { '?' } else { '&' });
            text.push_str(&format!("{key}={}", encode(value)));
        }
    }
    text
}

/// Percent-encodes everything that RFC 3986 does not leave free.
pub fn encode(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(byte as char),
            other => encoded.push_str(&format!("%{other:02X}")),
        }
    }
    encoded
}

/// The texts of `Warning: 299 - "text"` headers.
fn warnings(headers: &http::HeaderMap) -> Vec<String> {
    let texts = headers.get_all(header::WARNING).iter().filter_map(|value| value.to_str().ok());
    texts
        .map(|text| match (text.find('"'), text.rfind('"')) {
            (Some(start), Some(end)) if start < end => {
                text[start + 1..end].replace("\\\"", "\"").replace("\\\\", "\\")
            }
            _ => text.to_owned(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_queries_are_encoded() {
        assert_eq!(object(ApiVersion::Group, Kind::ESite, "a/b c"), "/apis/causeway.io/v1/esites/a%2Fb%20c");
        assert_eq!(collection(ApiVersion::Core, Kind::EPolicy), "/api/v1/epolicies");
        assert_eq!(query(&[("a", None), ("b", Some("x=y")), ("c", Some("1"))]), "?b=x%3Dy&c=1");
        assert_eq!(query(&[]), "");
    }

    #[test]
    fn warnings_lose_their_code() {
        let mut headers = http::HeaderMap::new();
        headers.append(header::WARNING, "299 - \"unknown field \\\"x\\\"\"".parse().unwrap());
        headers.append(header::WARNING, "odd".parse().unwrap());
        assert_eq!(warnings(&headers), ["unknown field \"x\"", "odd"]);
    }
}
