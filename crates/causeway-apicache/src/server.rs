//! The API of the edge: HTTPS for local callers, in front of the copy.
//!
//! `serving` makes certificates, `handle` decides for each request, `read` answers from the copy, `pass` goes to the cloud,
//! `offline` answers writes of nodes without it, `respond` makes responses. Callers are proved in `identity`.

pub mod handle;
pub mod offline;
pub mod pass;
pub mod read;
pub mod respond;
pub mod serving;
pub mod written;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use arc_swap::ArcSwap;
use causeway_api::error_chain;
use http::{Method, Response, StatusCode};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::connector::CloudConnector;
use crate::copy::collection::{Collection, unix_now};
use crate::copy::local::{LocalObject, unsent};
use crate::copy::{CopyDatabase, CopyError, tables};
use crate::endpoints::EndpointFollower;
use crate::identity::authenticate::{CallerAuthenticator, caller_of_certificate};
use crate::identity::authorize::Authorizer;
use crate::identity::tokens::ClusterFacts;
use crate::kube_object;
use crate::pending;
use crate::pending::log::{PendingKind, PendingLog, PendingWrite};
use crate::pending::replay::PendingReplay;
use crate::protobuf::{self, BodyEncoding};
use crate::readiness::OfflineReadiness;
use crate::resource::SubscriptionScope;
use crate::subscriptions::{SubscriptionCredential, Subscriptions};
use crate::upstream::passthrough::SITE_PATH;
use handle::RequestContext;
use pass::Passthrough;
use respond::ApiBody;
use serving::{ServingFilesError, ServingIdentity};
use written::WrittenRevisions;

/// The configuration of the API at an edge.
#[derive(Clone, Debug)]
pub struct EdgeApiOptions {
    /// The folder of the copy, the CA and the kubeconfig.
    pub folder: PathBuf,
    pub listen: SocketAddr,
    /// Scopes that are held from the first start on, beside those that the cloud names.
    pub pins: Vec<SubscriptionScope>,
    /// A subscription that no client has used for this time is dropped.
    pub unused: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum EdgeApiError {
    #[error(transparent)]
    Serving(#[from] ServingFilesError),
    #[error("the copy of the API cannot be opened")]
    Copy(#[from] CopyError),
    #[error("cannot listen on {address} for the API at the edge")]
    Bind { address: SocketAddr, source: std::io::Error },
    #[error("a file of the API at the edge cannot be made")]
    File(#[from] std::io::Error),
}

/// The API of an edge, bound and not yet running.
pub struct EdgeApi {
    context: Arc<RequestContext>,
    listener: TcpListener,
    identity: ServingIdentity,
    tls: ArcSwap<ServerConfig>,
    options: EdgeApiOptions,
}

const FACTS_KEY: &str = "causeway/site";
const COPY_FILE: &str = "copy.db";
const PENDING_FILE: &str = "pending.db";
// The facts of the cluster change with its keys, at most daily.
const FACTS_PERIOD: Duration = Duration::from_secs(300);
const WANTED_PERIOD: Duration = Duration::from_secs(600);
// Connections of local callers. A kubelet and a kube-proxy have a few; every pod may have one.
const CONNECTIONS_MAX: usize = 4_096;
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);

impl EdgeApi {
    /// Opens the copy and binds the listener.
    pub async fn open(
        options: EdgeApiOptions,
        connector: Arc<dyn CloudConnector>,
    ) -> Result<EdgeApi, EdgeApiError> {
        causeway_daemon::data_dir::make_folder(&options.folder)?;
        let database = CopyDatabase::open(&options.folder.join(COPY_FILE))?;
        let listener = TcpListener::bind(options.listen)
            .await
            .map_err(|source| EdgeApiError::Bind { address: options.listen, source })?;
        let address = listener.local_addr()?;
        let identity = ServingIdentity::open(&options.folder, &[address.ip()])?;
        identity.write_kubeconfig(&options.folder, address)?;
        let facts = kept_facts(&database).await?;
        let tls = identity.tls(facts.client_ca.as_deref()).or_else(|_| identity.tls(None))?;
        let pass = Passthrough(connector.clone());
        let authenticator =
            CallerAuthenticator::open(&options.folder, database.clone(), pass.clone(), facts)?;
        let subscriptions = Subscriptions::open(database.clone(), connector).await?;
        let pending = PendingLog::open(&options.folder.join(PENDING_FILE))?;
        for write in pending.all() {
            restore(&subscriptions, &write).await?;
        }
        let context = RequestContext {
            authenticator: Arc::new(authenticator),
            authorizer: Authorizer { database: database.clone(), pass: pass.clone() },
            subscriptions,
            database,
            pass,
            written: WrittenRevisions::default(),
            pending,
            replayed: Arc::default(),
            readiness: Arc::default(),
            stop: CancellationToken::new(),
        };
        Ok(EdgeApi { context: Arc::new(context), listener, identity, tls: ArcSwap::new(tls), options })
    }

    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Waits until an API is wanted here: a copy is on disk, or the cloud has a cluster for this site.
    pub async fn wanted(options: &EdgeApiOptions, connector: &Arc<dyn CloudConnector>) {
        if options.folder.join(COPY_FILE).exists() {
            return;
        }
        let pass = Passthrough(connector.clone());
        loop {
            connector.connected().await;
            if let Ok((StatusCode::OK, _)) = pass.ask(Method::GET, SITE_PATH, None, bytes::Bytes::new()).await
            {
                return;
            }
            // A cloud without a cluster is asked again seldom, and by the next link.
            let _ = tokio::time::timeout(WANTED_PERIOD, connector.disconnected()).await;
        }
    }

    /// Returns the function that describes the copy, for the admin dump and `causeway cache`.
    pub fn status(&self) -> EdgeApiStatus {
        EdgeApiStatus(self.context.clone())
    }

    /// Serves until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let connections = TaskTracker::new();
        let slots = Arc::new(Semaphore::new(CONNECTIONS_MAX));
        let (replay, endpoints, readiness) = (self.replay(), self.endpoints(), self.readiness());
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.accept(&connections, &slots) => {}
            () = self.follow_facts() => {}
            () = self.drop_unused() => {}
            () = replay.run() => {}
            () = endpoints.run() => {}
            () = readiness.run() => {}
        }
        self.context.stop.cancel();
        connections.close();
        let _ = tokio::time::timeout(Duration::from_secs(1), connections.wait()).await;
    }

    async fn accept(&self, connections: &TaskTracker, slots: &Arc<Semaphore>) {
        loop {
            // A full table makes new clients wait in the listener's queue.
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            match self.listener.accept().await {
                Ok((stream, _)) => {
                    let (context, tls) = (self.context.clone(), self.tls.load_full());
                    connections.spawn(async move {
                        serve(context, tls, stream).await;
                        drop(slot);
                    });
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the API at the edge");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            }
        }
    }

    /// Reads the facts of the cluster from the cloud, now and then.
    async fn follow_facts(&self) {
        loop {
            self.context.pass.0.connected().await;
            match self.context.pass.ask(Method::GET, SITE_PATH, None, bytes::Bytes::new()).await {
                Ok((StatusCode::OK, body)) => self.take_facts(&body).await,
                Ok((code, _)) => tracing::debug!(%code, "the cloud has no cluster for this site"),
                Err(pass::PassError(status)) => {
                    tracing::debug!(%status, "cannot read the facts of the cluster")
                }
            }
            // A new link may lead to a cloud that knows more.
            let _ = tokio::time::timeout(FACTS_PERIOD, self.context.pass.0.disconnected()).await;
        }
    }

    async fn take_facts(&self, body: &[u8]) {
        let Ok(facts) = serde_json::from_slice::<ClusterFacts>(body) else { return };
        if **self.context.authenticator.facts.load() != facts {
            match self.identity.tls(facts.client_ca.as_deref()) {
                Ok(tls) => self.tls.store(tls),
                Err(error) => {
                    tracing::warn!(error = error_chain(&error), "client certificates are not accepted")
                }
            }
            let text = body.to_vec();
            let kept = self.context.database.write(move |connection| {
                tables::keep_document(connection, FACTS_KEY, "application/json", unix_now(), &text)
            });
            if let Err(error) = kept.await {
                tracing::warn!(error = error_chain(&error), "cannot keep the facts of the cluster");
            }
        }
        let pins = facts.pins.clone();
        self.context.authenticator.facts.store(Arc::new(facts));
        for pin in pins.iter().chain(&self.options.pins) {
            if let Err(error) = self.context.subscriptions.ensure(pin, SubscriptionCredential::Pin).await {
                tracing::warn!(error = error_chain(&error), scope = %pin, "cannot hold a pinned resource");
            }
        }
    }

    fn replay(&self) -> PendingReplay {
        let context = &self.context;
        PendingReplay {
            log: context.pending.clone(),
            pass: context.pass.clone(),
            subscriptions: context.subscriptions.clone(),
            report: context.replayed.clone(),
        }
    }

    fn readiness(&self) -> OfflineReadiness {
        let context = &self.context;
        OfflineReadiness {
            database: context.database.clone(),
            subscriptions: context.subscriptions.clone(),
            found: context.readiness.clone(),
        }
    }

    fn endpoints(&self) -> EndpointFollower {
        let context = &self.context;
        EndpointFollower::new(context.pending.clone(), context.subscriptions.clone())
    }

    async fn drop_unused(&self) {
        loop {
            tokio::time::sleep(self.options.unused.min(FACTS_PERIOD)).await;
            let mut pins = self.context.authenticator.facts.load().pins.clone();
            pins.extend(self.options.pins.iter().cloned());
            if let Err(error) = self.context.subscriptions.drop_unused(self.options.unused, &pins).await {
                tracing::warn!(error = error_chain(&error), "cannot drop resources that are not used");
            }
        }
    }
}

/// Shows a write of an earlier start again.
async fn restore(subscriptions: &Subscriptions, write: &PendingWrite) -> Result<(), CopyError> {
    let local = match write.kind {
        PendingKind::Status => match subscriptions.copied(&write.resource, &write.key).await {
            Ok(Some(copied)) => {
                let now: Value = serde_json::from_slice(&write.body).unwrap_or_default();
                pending::changed(&copied, &pending::mark(now, write.at))
            }
            _ => return Ok(()),
        },
        PendingKind::Event => {
            let encoding = BodyEncoding::of(&write.content_type);
            let Ok(event) = encoding.and_then(|encoding| protobuf::event(encoding, &write.body)) else {
                return Ok(());
            };
            let body = kube_object::kept_text(&pending::mark(event, write.at)).into();
            LocalObject { stands_on: None, object: Some(unsent(&write.key, body, bytes::Bytes::new())) }
        }
        PendingKind::EventPatch => return Ok(()),
    };
    subscriptions.restore_local(&write.resource, &write.key, local).await
}

async fn kept_facts(database: &CopyDatabase) -> Result<ClusterFacts, CopyError> {
    let kept = database.read(|connection| tables::document(connection, FACTS_KEY)).await?;
    Ok(kept.and_then(|(_, _, body)| serde_json::from_slice(&body).ok()).unwrap_or_default())
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<ApiBody>, Infallible>> + Send>>;

async fn serve(context: Arc<RequestContext>, tls: Arc<ServerConfig>, stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let handshake = TlsAcceptor::from(tls).accept(stream);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_DEADLINE, handshake).await else { return };
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let certified = certificate.and_then(|certificate| caller_of_certificate(certificate));
    let stop = context.stop.clone();
    let service = service_fn(move |request| {
        let (context, certified) = (context.clone(), certified.clone());
        let answering: Answering =
            Box::pin(async move { Ok(handle::handle(context, certified, request).await) });
        answering
    });
    let builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        _ = connection.as_mut() => {}
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = connection.await;
        }
    }
}

/// Describes the copy.
#[derive(Clone)]
pub struct EdgeApiStatus(Arc<RequestContext>);

impl EdgeApiStatus {
    pub fn collections(&self) -> Vec<Arc<Collection>> {
        self.0.subscriptions.all()
    }

    /// Writes that wait for the API server, and those that it refused since the start.
    pub fn writes(&self) -> (u64, u64) {
        (self.0.pending.len() as u64, self.0.replayed.dropped.load(Ordering::Relaxed))
    }

    /// The pods that would not survive a restart of their node without the cloud, each with the reason; `None` before the first look.
    pub fn pods_at_risk(&self) -> Option<Vec<String>> {
        let found = self.0.readiness.load();
        let pods = found["pods"].as_object()?;
        let lines = pods.iter().map(|(pod, reasons)| {
            let reasons: Vec<&str> =
                reasons.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            format!("{pod}: {}", reasons.join(", "))
        });
        Some(lines.collect())
    }

    /// One entry per subscription.
    pub fn summary(&self) -> Value {
        let entries = self.0.subscriptions.all().into_iter().map(|collection| {
            let figures = collection.figures();
            json!({
                "objects": figures.objects,
                "bytes": figures.bytes,
                "lastSync": figures.synced,
                "scope": collection.scope,
                "revision": collection.revision().to_string(),
                "complete": collection.is_complete(),
                "live": collection.is_live(),
                "watchers": collection.watchers.load(Ordering::Relaxed),
                "lastUsed": collection.used.load(Ordering::Relaxed),
            })
        });
        json!({
            "connected": self.0.pass.is_connected(),
            "writes": self.0.replayed.summary(&self.0.pending),
            "readyForOffline": **self.0.readiness.load(),
            "resources": entries.collect::<Vec<_>>(),
        })
    }
}

/// The folder of the API cache inside a data dir.
pub fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join("kubernetes")
}
