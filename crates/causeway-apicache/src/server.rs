//! The API of the edge: HTTPS for local callers, in front of the copy.
//!
//! `serving` makes certificates, `connections` bounds clients, `caller_limits` the memory of answers and the watches, `handle` decides for each request, `read` answers from the copy, `documents` gives discovery and OpenAPI, `pass` goes to the cloud,
//! `offline` answers writes of nodes without it, `offline_objects` those to listed resources, `respond` makes responses, `watch_rights` ends watches, `traffic_keeper` keeps the count of bytes on disk. Callers are proved in `identity`.
//! `pod_listener` listens for pods, on an address that may come later.

pub mod caller_limits;
pub mod connections;
pub mod documents;
mod facts;
pub mod handle;
pub mod offline;
pub mod offline_objects;
pub mod pass;
pub mod pod_listener;
pub mod read;
pub mod respond;
pub mod serving;
pub mod traffic_keeper;
pub mod watch_rights;
pub mod written;

#[cfg(test)]
mod answers;

use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use causeway_api::management::{EdgeCacheFacts, EdgeCacheSubscription};
use causeway_api::{Time, error_chain};
use http::{Method, Response, StatusCode};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
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
use crate::identity::access_stream::AccessStream;
use crate::identity::authenticate::{CallerAuthenticator, caller_of_certificate};
use crate::identity::authorize::Authorizer;
use crate::identity::tokens::ClusterFacts;
use crate::kube_object;
use crate::pending;
use crate::pending::log::{PendingKind, PendingLog, PendingWrite};
use crate::pending::replay::PendingReplay;
use crate::protobuf::{self, BodyEncoding};
use crate::readiness::OfflineReadiness;
use crate::request_counts::{CountedRequest, RequestCounts};
use crate::resource::{ResourceName, SubscriptionScope};
use crate::subscriptions::{SubscriptionCredential, Subscriptions};
use crate::traffic::{CountingConnector, DayUse, LinkTraffic};
use crate::upstream::passthrough::SITE_PATH;
use caller_limits::CallerLimits;
use connections::{ConnectionTable, OpenConnection, UNPROVED_TIME_MAX};
use facts::shortened;
use handle::RequestContext;
use pass::Passthrough;
use pod_listener::PodListener;
use respond::ApiBody;
use serving::{ComponentCertificate, ServingFilesError, ServingIdentity};
use written::WrittenRevisions;

/// The configuration of the API at an edge.
#[derive(Clone, Debug)]
pub struct EdgeApiOptions {
    /// The folder of the copy, the CA and the kubeconfig.
    pub folder: PathBuf,
    pub listen: SocketAddr,
    /// An address for pods, which need not be an address of the host yet.
    pub pod_listen: Option<SocketAddr>,
    /// The certificate and the key to which the kubeconfig of components refers.
    pub component: ComponentCertificate,
    /// Scopes that are held from the first start on, beside those that the cloud names.
    pub pins: Vec<SubscriptionScope>,
    /// The node in whose name those scopes are held. Without one, only scopes that the cloud names too are held.
    pub pin_node: Option<String>,
    /// A subscription that no client has used for this time is dropped.
    pub unused: Duration,
    /// Bytes on the link per day (UTC) beyond which copies that no client watches are not kept current.
    pub bytes_per_day: Option<u64>,
    /// Bytes of disk that the copy may take.
    pub bytes_max: u64,
    /// Resources that any caller may write without the cloud.
    pub offline_writes: Vec<ResourceName>,
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
    pods: Option<Arc<PodListener>>,
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
// Connections of pods, counted on their own: they take no place that a kubelet needs.
const POD_CONNECTIONS_MAX: usize = 2_048;
const HANDSHAKE_DEADLINE: Duration = Duration::from_secs(10);
// From the first byte of a request to the end of its head. Idle connections of client-go end after 90 s by themselves.
const HEAD_DEADLINE: Duration = Duration::from_secs(120);
// A peer of HTTP/2 that is gone is noticed by it.
const PING: Duration = Duration::from_secs(30);
// Tokens of Kubernetes have about a thousand bytes.
const HEAD_BYTES_MAX: u32 = 64 << 10;

impl EdgeApi {
    /// Opens the copy and binds the listener.
    pub async fn open(
        options: EdgeApiOptions,
        connector: Arc<dyn CloudConnector>,
    ) -> Result<EdgeApi, EdgeApiError> {
        causeway_daemon::data_dir::make_folder(&options.folder)?;
        let database = CopyDatabase::open(&options.folder.join(COPY_FILE))?;
        database.set_bytes_max(options.bytes_max);
        let listener = TcpListener::bind(options.listen)
            .await
            .map_err(|source| EdgeApiError::Bind { address: options.listen, source })?;
        let address = listener.local_addr()?;
        let addresses: Vec<IpAddr> =
            [Some(address), options.pod_listen].into_iter().flatten().map(|address| address.ip()).collect();
        let identity = ServingIdentity::open(&options.folder, &addresses)?;
        identity.write_kubeconfigs(&options.folder, address, &options.component)?;
        let facts = kept_facts(&database).await?;
        let facts_pins = facts.pins().to_vec();
        let tls = identity.tls(facts.client_ca.as_deref()).or_else(|_| identity.tls(None))?;
        let traffic = LinkTraffic::new(options.bytes_per_day, traffic_keeper::kept_use(&database).await?);
        let connector: Arc<dyn CloudConnector> =
            Arc::new(CountingConnector { connector, traffic: traffic.clone() });
        let pass = Passthrough(connector.clone());
        let authenticator =
            CallerAuthenticator::open(&options.folder, database.clone(), pass.clone(), facts)?;
        let subscriptions = Subscriptions::open(database.clone(), connector, traffic.clone()).await?;
        // Known before a task meets a full disk.
        subscriptions.set_pinned(&[facts_pins, options.pins.clone()].concat());
        let stop = subscriptions.stop().clone();
        let pending = PendingLog::open(&options.folder.join(PENDING_FILE))?;
        for write in pending.all() {
            restore(&subscriptions, &write).await?;
        }
        let context = RequestContext {
            authenticator: Arc::new(authenticator),
            authorizer: Authorizer {
                database: database.clone(),
                pass: pass.clone(),
                stream: AccessStream::default(),
            },
            subscriptions,
            database,
            pass,
            written: WrittenRevisions::default(),
            pending,
            replayed: Arc::default(),
            readiness: Arc::default(),
            traffic,
            requests: RequestCounts::default(),
            limits: CallerLimits::default(),
            offline_writes: options.offline_writes.clone(),
            tokens: Arc::default(),
            stop,
        };
        let tls = ArcSwap::new(tls);
        let pods = options.pod_listen.map(|address| Arc::new(PodListener::new(address)));
        Ok(EdgeApi { context: Arc::new(context), listener, pods, identity, tls, options })
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
        EdgeApiStatus {
            context: self.context.clone(),
            address: self.address().unwrap_or(self.options.listen),
            ca: self.identity.ca_pem().into(),
            pods: self.pods.clone(),
            pins: self.options.pins.clone().into(),
        }
    }

    /// Serves until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let connections = TaskTracker::new();
        let (replay, endpoints, readiness) = (self.replay(), self.endpoints(), self.readiness());
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.accept(&self.listener, CONNECTIONS_MAX, &connections) => {}
            () = self.serve_pods(&connections) => {}
            () = self.follow_facts() => {}
            () = self.drop_unused() => {}
            () = traffic_keeper::run(&self.context.database, &self.context.traffic) => {}
            () = self.context.authorizer.run_decision_stream() => {}
            () = replay.run() => {}
            () = endpoints.run() => {}
            () = readiness.run() => {}
        }
        self.context.stop.cancel();
        traffic_keeper::keep(&self.context.database, &self.context.traffic, &mut DayUse::default()).await;
        connections.close();
        let _ = tokio::time::timeout(Duration::from_secs(1), connections.wait()).await;
    }

    /// Serves pods while their address is one of this host.
    async fn serve_pods(&self, connections: &TaskTracker) {
        let Some(pods) = &self.pods else { return std::future::pending().await };
        loop {
            let listener = pods.bind().await;
            tokio::select! {
                () = self.accept(&listener, POD_CONNECTIONS_MAX, connections) => {}
                () = pods.lost() => {}
            }
        }
    }

    /// Accepts connections of one listener, which have bounds of their own.
    async fn accept(&self, listener: &TcpListener, connections_max: usize, connections: &TaskTracker) {
        let (slots, table) = (Arc::new(Semaphore::new(connections_max)), ConnectionTable::default());
        loop {
            // A full table makes new clients wait in the listener's queue.
            let Ok(slot) = slots.clone().acquire_owned().await else { return };
            match listener.accept().await {
                Ok((stream, _)) => {
                    let context = self.context.clone();
                    // Before the TLS configuration: a handshake with a newer CA is repeated, and none counts under a CA that did not verify it.
                    let client_ca = context.authenticator.facts.load().client_ca.as_deref().map(Arc::from);
                    let tls = (self.tls.load_full(), client_ca);
                    let open = table.admit();
                    connections.spawn(async move {
                        tokio::select! {
                            () = serve(context, tls, stream, open.clone()) => {}
                            () = must_close(&open) => {}
                        }
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
        let Ok(told) = serde_json::from_slice::<ClusterFacts>(body) else { return };
        let known = self.context.authenticator.facts.load_full();
        let mut facts = told.or_known(&known);
        if facts.client_ca != known.client_ca {
            match self.identity.tls(facts.client_ca.as_deref()) {
                Ok(tls) => self.tls.store(tls),
                Err(error) => {
                    tracing::warn!(
                        error = error_chain(&error),
                        "the new client CA of the cluster is not used"
                    );
                    // Certificates go on to be verified with the one before.
                    facts.client_ca = known.client_ca.clone();
                }
            }
        }
        if *known != facts {
            let text = serde_json::to_vec(&facts).unwrap_or_default();
            let kept = self.context.database.write(move |connection| {
                tables::keep_document(connection, FACTS_KEY, "application/json", unix_now(), &text)
            });
            if let Err(error) = kept.await {
                tracing::warn!(error = error_chain(&error), "cannot keep the facts of the cluster");
            }
        }
        let (is_told, pins) = (facts.pins.is_some(), facts.pins().to_vec());
        self.context.authenticator.facts.store(Arc::new(facts));
        if is_told && let Err(error) = self.context.subscriptions.withdraw(&pins).await {
            tracing::warn!(error = error_chain(&error), "cannot drop resources that are not pinned any more");
        }
        let mut all = pins.clone();
        all.extend(self.options.pins.iter().cloned());
        for (pin, credential) in pinned(&pins, &self.options) {
            if let Err(error) = self.context.subscriptions.ensure(pin, credential, ("", true)).await {
                tracing::warn!(error = error_chain(&error), scope = %pin, "cannot hold a pinned resource");
            }
        }
        self.context.subscriptions.set_pinned(&all);
    }

    fn replay(&self) -> PendingReplay {
        let context = &self.context;
        PendingReplay {
            log: context.pending.clone(),
            pass: context.pass.clone(),
            subscriptions: context.subscriptions.clone(),
            report: context.replayed.clone(),
            tokens: context.tokens.clone(),
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
            let mut pins = self.context.authenticator.facts.load().pins().to_vec();
            pins.extend(self.options.pins.iter().cloned());
            let unused = (self.options.unused, Instant::now());
            if let Err(error) = self.context.subscriptions.drop_unused(unused, &pins).await {
                tracing::warn!(error = error_chain(&error), "cannot drop resources that are not used");
            }
        }
    }
}

/// The pinned scopes with the credential that holds each: the cloud trusts its own pins, those of the edge are read by its node.
fn pinned<'a>(
    of_cloud: &'a [SubscriptionScope],
    options: &'a EdgeApiOptions,
) -> Vec<(&'a SubscriptionScope, SubscriptionCredential)> {
    let own = options.pins.iter().filter(|pin| !of_cloud.contains(pin));
    let node = options.pin_node.clone().map(SubscriptionCredential::Node);
    let own = own.filter_map(|pin| Some((pin, node.clone()?)));
    of_cloud.iter().map(|pin| (pin, SubscriptionCredential::Pin)).chain(own).collect()
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
        PendingKind::Object => match restored_object(subscriptions, write).await {
            Some(local) => local,
            None => return Ok(()),
        },
        PendingKind::EventPatch => return Ok(()),
    };
    subscriptions.restore_local(&write.resource, &write.key, local).await
}

/// The local object of a write to a listed resource.
async fn restored_object(subscriptions: &Subscriptions, write: &PendingWrite) -> Option<LocalObject> {
    let copied = subscriptions.copied(&write.resource, &write.key).await.ok()?;
    if write.body.is_empty() {
        let copied = copied?;
        return Some(LocalObject { stands_on: Some((copied.key, copied.revision)), object: None });
    }
    let mut now: Value = serde_json::from_slice(&write.body).ok()?;
    Some(match copied {
        Some(copied) => {
            if let Some(fields) = now.as_object_mut() {
                fields.remove("kind");
                fields.remove("apiVersion");
            }
            pending::changed(&copied, &pending::mark(now, write.at))
        }
        // As when it was written: the body of a client may leave the namespace to the path.
        None => {
            let namespace = write.key.split_once('/').map_or("", |(namespace, _)| namespace);
            let (_, shown) = offline_objects::checked_new(now, namespace).ok()?;
            let body = kube_object::kept_text(&pending::mark(shown, write.at)).into();
            LocalObject { stands_on: None, object: Some(unsent(&write.key, body, bytes::Bytes::new())) }
        }
    })
}

async fn kept_facts(database: &CopyDatabase) -> Result<ClusterFacts, CopyError> {
    let kept = database.read(|connection| tables::document(connection, FACTS_KEY)).await?;
    Ok(kept.and_then(|(_, _, body)| serde_json::from_slice(&body).ok()).unwrap_or_default())
}

type Answering = Pin<Box<dyn Future<Output = Result<Response<ApiBody>, Infallible>> + Send>>;

/// Resolves when a connection gives way to another, or has proved no caller in time.
async fn must_close(open: &OpenConnection) {
    let silent = async {
        tokio::time::sleep(UNPROVED_TIME_MAX).await;
        if open.is_proved() {
            std::future::pending().await
        }
    };
    tokio::select! {
        () = open.closed.cancelled() => {}
        () = silent => {}
    }
}

async fn serve(
    context: Arc<RequestContext>,
    (tls, client_ca): (Arc<ServerConfig>, Option<Arc<str>>),
    stream: TcpStream,
    open: Arc<OpenConnection>,
) {
    let _ = stream.set_nodelay(true);
    let handshake = TlsAcceptor::from(tls).accept(stream);
    let Ok(Ok(stream)) = tokio::time::timeout(HANDSHAKE_DEADLINE, handshake).await else { return };
    let certificate = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let certified = certificate.and_then(|certificate| caller_of_certificate(certificate, client_ca));
    let stop = context.stop.clone();
    let service = service_fn(move |request| {
        let (context, certified, open) = (context.clone(), certified.clone(), open.clone());
        let answering: Answering =
            Box::pin(async move { Ok(handle::handle(context, (certified, &open), request).await) });
        answering
    });
    let mut builder = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEAD_DEADLINE);
    builder.http2().timer(TokioTimer::new()).keep_alive_interval(PING).max_header_list_size(HEAD_BYTES_MAX);
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
pub struct EdgeApiStatus {
    context: Arc<RequestContext>,
    address: SocketAddr,
    /// The CA of the serving certificate.
    ca: Arc<str>,
    pods: Option<Arc<PodListener>>,
    /// The scopes that the edge's configuration names.
    pins: Arc<[SubscriptionScope]>,
}

impl EdgeApiStatus {
    pub fn collections(&self) -> Vec<Arc<Collection>> {
        self.context.subscriptions.all()
    }

    /// Writes that wait for the API server, and those that it refused since the start.
    pub fn writes(&self) -> (u64, u64) {
        (self.context.pending.len() as u64, self.context.replayed.dropped.load(Ordering::Relaxed))
    }

    /// The pods that would not survive a restart of their node without the cloud, each with the reason; `None` before the first look.
    pub fn pods_at_risk(&self) -> Option<Vec<String>> {
        let found = self.context.readiness.load();
        let pods = found["pods"].as_object()?;
        let lines = pods.iter().map(|(pod, reasons)| {
            let reasons: Vec<&str> =
                reasons.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            format!("{pod}: {}", reasons.join(", "))
        });
        Some(lines.collect())
    }

    /// The reason for which pods cannot be served; `None`: they are, or no address is configured for them.
    pub fn pods_problem(&self) -> Option<String> {
        self.pods.as_ref()?.problem()
    }

    /// The bytes on the link.
    pub fn traffic(&self) -> &LinkTraffic {
        &self.context.traffic
    }

    /// Requests of local callers since the start.
    pub fn requests(&self) -> Vec<(CountedRequest, u64)> {
        self.context.requests.all()
    }

    /// The message about the byte budget: empty while it lasts; `None` without a budget.
    pub fn budget(&self) -> Option<String> {
        self.context.traffic.budget_message()
    }

    /// The side that pinned a scope; empty: clients use it.
    fn pinned_by(&self, scope: &SubscriptionScope) -> &'static str {
        match self.context.authenticator.facts.load().pins().contains(scope) {
            true => "cloud",
            false if self.pins.contains(scope) => "edge",
            false => "",
        }
    }

    /// Describes the copy to the cloud: totals, and the subscriptions that fit into an answer.
    pub fn facts(&self) -> EdgeCacheFacts {
        let subscriptions = self.context.subscriptions.all().into_iter().map(|collection| {
            let (scope, stats) = (&collection.scope, collection.stats());
            let refusal = self.context.subscriptions.refusal(scope);
            let selectors = [scope.label_selector.as_str(), scope.field_selector.as_str()];
            let selectors: Vec<&str> = selectors.into_iter().filter(|part| !part.is_empty()).collect();
            EdgeCacheSubscription {
                resource: scope.resource.to_string(),
                namespace: scope.namespace.clone(),
                selector: shortened(&selectors.join(" ")),
                objects: stats.objects,
                bytes: stats.bytes,
                watchers: collection.watchers.load(Ordering::Relaxed),
                complete: collection.is_complete(),
                live: collection.is_live(),
                last_sync: (stats.synced > 0).then(|| Time::from_second(stats.synced)),
                pinned_by: self.pinned_by(scope).to_owned(),
                refused: refusal.map(|status| shortened(&status.message)),
            }
        });
        let totals = EdgeCacheFacts {
            listen: self.address.to_string(),
            connected: self.context.pass.is_connected(),
            pending_writes: self.writes().0,
            refused_writes: self.writes().1,
            pods_at_risk: self.pods_at_risk().map_or(0, |pods| pods.len()),
            budget: self.budget().unwrap_or_default(),
            link_bytes: self.traffic().today().total(),
            ..EdgeCacheFacts::default()
        };
        facts::summarize(totals, subscriptions.collect())
    }

    /// One entry per subscription.
    pub fn summary(&self) -> Value {
        let entries = self.context.subscriptions.all().into_iter().map(|collection| {
            let stats = collection.stats();
            json!({
                "objects": stats.objects,
                "bytes": stats.bytes,
                "lastSync": stats.synced,
                "scope": collection.scope,
                "pinnedBy": self.pinned_by(&collection.scope),
                "refused": self.context.subscriptions.refusal(&collection.scope).map(|status| status.message),
                "revision": collection.revision().to_string(),
                "complete": collection.is_complete(),
                "live": collection.is_live(),
                "watchers": collection.watchers.load(Ordering::Relaxed),
                "lastUsed": collection.used.load(Ordering::Relaxed),
            })
        });
        json!({
            "connected": self.context.pass.is_connected(),
            "listen": self.address,
            "ca": *self.ca,
            "pods": self.pods.as_ref().map(|pods| pods.summary()),
            "writes": self.context.replayed.summary(&self.context.pending),
            "traffic": self.context.traffic.summary(),
            "readyForOffline": **self.context.readiness.load(),
            "resources": entries.collect::<Vec<_>>(),
        })
    }
}

/// The folder of the API cache inside a data dir.
pub fn folder(data_dir: &Path) -> PathBuf {
    data_dir.join("kubernetes")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_of_the_edge_is_read_by_its_node_unless_the_cloud_pins_it_too() {
        let scope = |plural: &str| SubscriptionScope::all(ResourceName::new("", "v1", plural));
        let options = |node: Option<&str>| EdgeApiOptions {
            folder: PathBuf::new(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            pod_listen: None,
            component: ComponentCertificate::default(),
            pins: vec![scope("configmaps"), scope("nodes")],
            pin_node: node.map(str::to_owned),
            unused: Duration::from_secs(1),
            bytes_per_day: None,
            bytes_max: u64::MAX,
            offline_writes: Vec::new(),
        };
        let found = |node: Option<&str>| {
            let (of_cloud, options) = ([scope("nodes")], options(node));
            let shown = pinned(&of_cloud, &options).into_iter().map(|(pin, credential)| {
                let by = match credential {
                    SubscriptionCredential::Pin => "cloud",
                    SubscriptionCredential::Node(node) if node == "n1" => "n1",
                    _ => "another",
                };
                format!("{} {by}", pin.resource.plural)
            });
            shown.collect::<Vec<_>>()
        };
        assert_eq!(found(Some("n1")), ["nodes cloud", "configmaps n1"]);
        assert_eq!(found(None), ["nodes cloud"], "the edge has no rights of its own");
    }
}
