//! A server on its own store and port, and a client for it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use causeway_apiserver::{
    ActionBody, ActionRefusal, ActionRequest, ActionResponse, Actions, AdminAudit, AdminRecord, ApiLimits,
    ApiServer, ApiServerParts, AuthFailure, Authenticator, Identity, NoGatewayStats, Registry, Role,
    SystemClock,
};
use causeway_daemon::{Metrics, Readiness};
use causeway_store::{Store, StoreSpec};
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The timeout of every wait in the tests.
pub const PATIENCE: Duration = Duration::from_secs(20);
pub const GROUP: &str = "/apis/causeway.io/v1";

pub struct Lab {
    pub addr: SocketAddr,
    pub store: Store,
    pub people: Arc<People>,
    pub acts: Arc<Acts>,
    pub readiness: Readiness,
    pub metrics: Metrics,
    pub stop: CancellationToken,
    server: JoinHandle<()>,
    folder: Arc<tempfile::TempDir>,
}

/// Authenticates users by their tokens.
#[derive(Default)]
pub struct People {
    /// The number of token lookups that may be expensive, and of those in memory alone.
    pub lookups: std::sync::atomic::AtomicUsize,
    pub lookups_in_memory: std::sync::atomic::AtomicUsize,
    revoked: Mutex<Vec<String>>,
}

impl People {
    pub fn revoke(&self, token: &str) {
        self.revoked.lock().unwrap().push(token.to_owned());
    }

    fn identity(&self, token: &str) -> Result<Identity, AuthFailure> {
        let role = match token.split(':').collect::<Vec<_>>().as_slice() {
            ["admin", ..] => Role::Admin,
            ["viewer", ..] => Role::Viewer,
            ["gateway", site, gateway] => Role::Gateway { site: (*site).into(), gateway: (*gateway).into() },
            ["away"] => return Err(AuthFailure::Unavailable("the store is away".into())),
            _ => return Err(AuthFailure::Unknown),
        };
        if self.revoked.lock().unwrap().iter().any(|revoked| revoked == token) {
            return Err(AuthFailure::Revoked);
        }
        let groups = vec!["system:authenticated".into()];
        Ok(Identity { user: token.into(), groups, role, credential: Some(token.into()), impersonation: None })
    }
}

impl Authenticator for People {
    /// The user is the text of the certificate's bytes.
    fn certificate(&self, chain: &[CertificateDer<'_>]) -> Result<Identity, AuthFailure> {
        let text = String::from_utf8_lossy(&chain[0]).into_owned();
        let name = ["admin:tls", "viewer:tls"].into_iter().find(|name| text.contains(name));
        self.identity(name.unwrap_or("stranger"))
    }

    fn bearer<'a>(&'a self, token: &'a str) -> BoxFuture<'a, Result<Identity, AuthFailure>> {
        self.lookups.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        Box::pin(async move { self.identity(token) })
    }

    fn bearer_in_memory(&self, token: &str) -> Option<Identity> {
        self.lookups_in_memory.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        self.identity(token).ok()
    }

    fn still_valid(&self, identity: &Identity) -> bool {
        self.identity(&identity.user).is_ok()
    }
}

/// Records the actions of administrators.
#[derive(Default)]
pub struct Acts(Mutex<Vec<AdminRecord>>);

impl Acts {
    /// Returns the records since the last call.
    pub fn take(&self) -> Vec<AdminRecord> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl AdminAudit for Acts {
    fn record(&self, record: AdminRecord) {
        self.0.lock().unwrap().push(record);
    }
}

/// Echoes its request.
struct Echo;

impl Actions for Echo {
    fn call<'a>(
        &'a self,
        identity: &'a Identity,
        request: ActionRequest,
    ) -> BoxFuture<'a, Result<ActionResponse, ActionRefusal>> {
        Box::pin(async move {
            if request.path == "missing" {
                return Err(ActionRefusal::not_found("there is no such action"));
            }
            if request.path == "writes" {
                let written = AdminRecord {
                    verb: "create".into(),
                    kind: "ESite".into(),
                    name: "made".into(),
                    changed: vec!["metadata.name".into()],
                    ..AdminRecord::default()
                };
                request.audit.record(StatusCode::CREATED, written);
            }
            // One line, and then nothing.
            let line = stream::once(async { Ok(Bytes::from_static(b"{\"line\":1}\n")) });
            let body = match request.path.as_str() {
                "audit" => Some(ActionBody::Endless(Box::pin(line.chain(stream::pending())))),
                "backup" => Some(ActionBody::Stream(Box::pin(line.chain(stream::pending())))),
                _ => None,
            };
            if let Some(body) = body {
                let (code, content_type) = (StatusCode::OK, "application/x-ndjson");
                return Ok(ActionResponse { code, content_type, body, made: None });
            }
            let said = json!({
                "user": identity.user, "method": request.method.as_str(), "path": request.path,
                "query": request.query, "bytes": request.body.len(),
            });
            Ok(ActionResponse::json(StatusCode::OK, said.to_string()))
        })
    }
}

impl Lab {
    pub async fn new() -> Lab {
        Lab::with(ApiLimits::default()).await
    }

    pub async fn with(limits: ApiLimits) -> Lab {
        Lab::open(limits, Arc::new(tempfile::tempdir().unwrap()), None).await
    }

    pub async fn open(
        limits: ApiLimits,
        folder: Arc<tempfile::TempDir>,
        tls: Option<Arc<arc_swap::ArcSwap<rustls::ServerConfig>>>,
    ) -> Lab {
        let store = Store::open(StoreSpec::Sqlite { path: folder.path().join("store.db") }).await.unwrap();
        let registry = Arc::new(Registry::new(store.clone(), Arc::new(SystemClock)));
        let people = Arc::new(People::default());
        let acts = Arc::new(Acts::default());
        let (readiness, metrics) = (Readiness::new(), Metrics::new("test"));
        let parts = ApiServerParts {
            registry: registry.clone(),
            authenticator: people.clone(),
            actions: Arc::new(Echo),
            admin_audit: acts.clone(),
            stats: Arc::new(NoGatewayStats),
            readiness: readiness.clone(),
            metrics: metrics.clone(),
            tls,
            limits,
            delegate: None,
        };
        let server = ApiServer::bind("127.0.0.1:0".parse().unwrap(), parts).await.unwrap();
        let (addr, stop) = (server.local_addr(), CancellationToken::new());
        let server = tokio::spawn(server.run(stop.clone()));
        Lab { addr, store, people, acts, readiness, metrics, stop, server, folder }
    }

    /// Stops the server and starts another on the same store.
    pub async fn restart(self) -> Lab {
        let folder = self.folder.clone();
        self.shut_down().await;
        Lab::open(ApiLimits::default(), folder, None).await
    }

    pub async fn shut_down(self) {
        self.stop.cancel();
        tokio::time::timeout(PATIENCE, self.server).await.expect("the server stops").unwrap();
        self.store.close().await.unwrap();
    }

    /// Sends a request as admin.
    pub async fn ask(&self, method: &str, path: &str, body: impl Into<Content>) -> Answer {
        self.ask_as("admin:ann", method, path, body, &[]).await
    }

    pub async fn ask_with(
        &self,
        method: &str,
        path: &str,
        body: impl Into<Content>,
        headers: &[(&str, &str)],
    ) -> Answer {
        self.ask_as("admin:ann", method, path, body, headers).await
    }

    pub async fn ask_as(
        &self,
        token: &str,
        method: &str,
        path: &str,
        body: impl Into<Content>,
        headers: &[(&str, &str)],
    ) -> Answer {
        let response = self.send(token, method, path, body.into(), headers).await;
        let (head, body) = response.into_parts();
        let body =
            tokio::time::timeout(PATIENCE, body.collect()).await.expect("the body ends").unwrap().to_bytes();
        let json = serde_json::from_slice(&body).unwrap_or(Value::Null);
        Answer { code: head.status.as_u16(), headers: head.headers, body, json }
    }

    async fn send(
        &self,
        token: &str,
        method: &str,
        path: &str,
        content: Content,
        headers: &[(&str, &str)],
    ) -> http::Response<Incoming> {
        let socket = TcpStream::connect(self.addr).await.unwrap();
        let (mut sender, connection) = http1::handshake(TokioIo::new(socket)).await.unwrap();
        tokio::spawn(connection);
        let mut request = Request::builder().method(Method::from_bytes(method.as_bytes()).unwrap()).uri(path);
        request = request.header("host", "localhost");
        if !token.is_empty() {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let typed = headers.iter().any(|(name, _)| *name == "content-type");
        if let (Some(content_type), false) = (content.content_type, typed) {
            request = request.header("content-type", content_type);
        }
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(content.bytes)).unwrap();
        tokio::time::timeout(PATIENCE, sender.send_request(request)).await.expect("an answer comes").unwrap()
    }

    pub async fn watch(&self, path: &str) -> Watch {
        self.watch_as("admin:ann", path, &[]).await
    }

    pub async fn watch_as(&self, token: &str, path: &str, headers: &[(&str, &str)]) -> Watch {
        let response = self.send(token, "GET", path, Content::default(), headers).await;
        assert_eq!(response.status(), 200, "{path}");
        Watch { body: response.into_body(), buffer: BytesMut::new() }
    }

    /// Creates a site with one label.
    pub async fn site(&self, name: &str, tier: &str) -> Value {
        let created = self.ask("POST", &format!("{GROUP}/esites"), site(name, tier)).await;
        assert_eq!(created.code, 201, "{}", created.json);
        created.json
    }
}

pub fn site(name: &str, tier: &str) -> Value {
    json!({"kind": "ESite", "apiVersion": "causeway.io/v1", "metadata": {"name": name, "labels": {"tier": tier}}})
}

pub fn gateway(name: &str, site: &str, cidr: &str) -> Value {
    json!({
        "kind": "EGateway", "apiVersion": "v1", "metadata": {"name": name},
        "eSiteName": site, "virtualPresenceIPcidr": cidr,
    })
}

pub fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// A body and its declared content type.
#[derive(Default)]
pub struct Content {
    bytes: Bytes,
    content_type: Option<&'static str>,
}

impl From<()> for Content {
    fn from((): ()) -> Content {
        Content::default()
    }
}

impl From<Value> for Content {
    fn from(value: Value) -> Content {
        Content { bytes: value.to_string().into(), content_type: Some("application/json") }
    }
}

impl From<Bytes> for Content {
    fn from(bytes: Bytes) -> Content {
        Content { bytes, content_type: None }
    }
}

impl From<&str> for Content {
    fn from(text: &str) -> Content {
        Bytes::copy_from_slice(text.as_bytes()).into()
    }
}

pub struct Answer {
    pub code: u16,
    pub headers: HeaderMap,
    pub body: Bytes,
    pub json: Value,
}

impl Answer {
    #[track_caller]
    pub fn expect(self, code: u16) -> Value {
        assert_eq!(self.code, code, "{}", String::from_utf8_lossy(&self.body[..self.body.len().min(2_000)]));
        self.json
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map(|value| value.to_str().unwrap()).unwrap_or_default()
    }
}

pub struct Watch {
    body: Incoming,
    buffer: BytesMut,
}

impl Watch {
    /// The next event; `None` when the watch ends.
    pub async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line = self.buffer.split_to(end);
                self.buffer.advance(1);
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let frame =
                tokio::time::timeout(PATIENCE, self.body.frame()).await.expect("the watch says something");
            match frame {
                Some(Ok(frame)) => self.buffer.extend_from_slice(&frame.into_data().unwrap()),
                _ => return None,
            }
        }
    }

    /// The response ended as a whole one does, not with a broken connection.
    pub async fn ends_whole(mut self) -> bool {
        loop {
            let frame = tokio::time::timeout(PATIENCE, self.body.frame())
                .await
                .expect("the response goes on or ends");
            match frame {
                Some(Ok(_)) => {}
                Some(Err(_)) => return false,
                None => return true,
            }
        }
    }

    /// The next events as "TYPE name", for reading in a row.
    pub async fn take(&mut self, count: usize) -> Vec<String> {
        let mut seen = Vec::new();
        for _ in 0..count {
            let event = self.next().await.expect("an event");
            let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
            seen.push(format!("{} {name}", event["type"].as_str().unwrap()).trim_end().to_owned());
        }
        seen
    }
}
