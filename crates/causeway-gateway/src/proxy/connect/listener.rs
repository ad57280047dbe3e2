//! Listeners for CONNECT: a Unix socket for clients on the same host, mutual TLS for clients on the network.
//!
//! kube-apiserver's egress selector sends `CONNECT node:port HTTP/1.1` with `Host: 127.0.0.1` and nothing
//! else, and treats any byte after the head of our response as an error; Go's HTTP client adds a User-Agent.
//! The 200 is sent when the node has been reached. A client of these listeners has the identity of this
//! gateway's site.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use causeway_channel::link::ResetCode;
use causeway_daemon::ACCEPT_PAUSE;
use causeway_daemon::sync::MutexExt;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::{Either, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls_pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::Semaphore;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::node::{NodeConnection, NodeUnreachable, note_unknown, open_direct, open_node};
use super::plain;
use super::target::{ConnectTarget, InvalidTarget, decide};
use crate::audit::ConnectionEnd;
use crate::dial::{Denied, prepare};
use crate::live::CutReason;
use crate::policy::{PolicyRefusal, Principal};
use crate::proxy::Proxy;

/// The timeout for the handshake and for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A CONNECT is a line and a few headers; hyper accepts no smaller bound than 8 KiB.
const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 64;

/// A Unix socket that only our own user may open.
pub struct ConnectUnixListener {
    listener: UnixListener,
    path: PathBuf,
}

impl ConnectUnixListener {
    /// Replaces a socket that a killed process has left. The caller must own the folder exclusively.
    pub fn bind(path: &Path) -> io::Result<ConnectUnixListener> {
        let fresh = path.with_extension("new");
        match std::fs::remove_file(&fresh) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(&fresh)?;
        std::fs::set_permissions(&fresh, std::fs::Permissions::from_mode(0o600))?;
        std::fs::rename(&fresh, path)?;
        Ok(ConnectUnixListener { listener, path: path.to_owned() })
    }
}

impl Drop for ConnectUnixListener {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// A TCP port for clients with a certificate that the authorizer accepts.
pub struct ConnectTlsListener {
    pub listener: TcpListener,
    pub authorizer: Arc<dyn ConnectAuthorizer>,
}

/// Decides which clients may use the listener on the network. Provided by the role.
pub trait ConnectAuthorizer: Send + Sync + 'static {
    /// Returns the current TLS configuration. It must request a client certificate; `admit` decides about it.
    fn tls(&self) -> Arc<rustls::ServerConfig>;

    /// Checks a client certificate. An error is the reason, as a text for the client.
    fn admit(&self, certificate: Option<&CertificateDer<'_>>) -> Result<(), String>;
}

/// The client of a CONNECT connection.
#[derive(Clone, Debug)]
pub struct ConnectCaller {
    /// None on a Unix socket.
    pub address: Option<SocketAddr>,
    /// The reason why this client is refused every target.
    pub denied: Option<String>,
}

/// The state that all CONNECT listeners of a gateway share.
#[derive(Clone)]
pub(crate) struct ConnectContext {
    pub proxy: Arc<Proxy>,
    pub tasks: TaskTracker,
    pub places: Arc<Semaphore>,
    pub stop: CancellationToken,
}

pub(crate) async fn run_unix(context: ConnectContext, listening: ConnectUnixListener) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = context.stop.cancelled() => return,
            accepted = listening.listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let caller = ConnectCaller { address: None, denied: context.switched_off() };
                context.take(|context| async move { serve(context, stream, caller).await });
            }
            Err(error) => pause(&error).await,
        }
    }
}

pub(crate) async fn run_tls(context: ConnectContext, listening: ConnectTlsListener) {
    loop {
        let accepted = tokio::select! {
            biased;
            () = context.stop.cancelled() => return,
            accepted = listening.listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => {
                let authorizer = listening.authorizer.clone();
                context
                    .take(|context| async move { handshake(context, &*authorizer, stream, address).await });
            }
            Err(error) => pause(&error).await,
        }
    }
}

async fn pause(error: &io::Error) {
    tracing::debug!(%error, "cannot accept a CONNECT connection");
    tokio::time::sleep(ACCEPT_PAUSE).await;
}

impl ConnectContext {
    /// The reason for which every target is refused while services are switched off.
    fn switched_off(&self) -> Option<String> {
        self.proxy.options.services_off.then(|| Denied::SwitchedOff.to_string())
    }

    /// Serves one client, if a slot is free. Otherwise the connection is closed and counted.
    fn take<F>(&self, serve: impl FnOnce(ConnectContext) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let Ok(place) = self.places.clone().try_acquire_owned() else {
            self.proxy.context.metrics.refused(PolicyRefusal::Full { what: "CONNECTs" }.word());
            return;
        };
        let serving = serve(self.clone());
        self.tasks.spawn(Box::pin(async move {
            serving.await;
            drop(place);
        }));
    }
}

async fn handshake(
    context: ConnectContext,
    authorizer: &dyn ConnectAuthorizer,
    stream: TcpStream,
    address: SocketAddr,
) {
    if prepare(&stream).is_err() {
        return;
    }
    let accepting = TlsAcceptor::from(authorizer.tls()).accept(stream);
    let stream = match tokio::time::timeout(HEAD_TIMEOUT, accepting).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            return tracing::debug!(client = %address, %error, "TLS handshake at the CONNECT listener failed");
        }
        Err(_) => {
            return tracing::debug!(client = %address, "TLS handshake at the CONNECT listener timed out");
        }
    };
    let certificate =
        stream.get_ref().1.peer_certificates().and_then(<[_]>::first).map(|shown| shown.clone().into_owned());
    let denied = authorizer.admit(certificate.as_ref()).err().or_else(|| context.switched_off());
    let is_admitted = denied.is_none();
    let revoked = async {
        let mut is_valid = is_admitted;
        while is_valid {
            tokio::time::sleep(RECHECK).await;
            is_valid = authorizer.admit(certificate.as_ref()).is_ok();
        }
        if !is_admitted {
            // Its refusals are answered.
            std::future::pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        () = revoked => tracing::info!(client = %address, "the certificate of a CONNECT client is not valid any more: its connections end"),
        () = serve(context, stream, ConnectCaller { address: Some(address), denied }) => {}
    }
}

/// Interval at which the certificate of a client is checked again. A connection to a node may last for days.
const RECHECK: Duration = Duration::from_secs(2);

/// An opened connection waits here until the 200 is sent.
type Pending = Arc<Mutex<Option<(OnUpgrade, NodeConnection)>>>;

/// Serves one connection: any number of refusals, and then one tunnel.
async fn serve<T>(context: ConnectContext, stream: T, caller: ConnectCaller)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let pending = Pending::default();
    let service = service_fn(|request| {
        let (context, caller, pending) = (context.clone(), caller.clone(), pending.clone());
        async move { Ok::<_, std::convert::Infallible>(answer(&context, &caller, &pending, request).await) }
    });
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .max_buf_size(HEAD_BYTES_MAX)
        .max_headers(HEADERS_MAX)
        // A client may send everything at once and close its half.
        .half_close(true)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let served = tokio::select! {
        biased;
        () = context.stop.cancelled() => return,
        served = serving => served,
    };
    if let Err(error) = served {
        tracing::debug!(client = ?caller.address, %error, "CONNECT connection failed");
    }
    let opened = pending.lock_ignoring_poison().take();
    let Some((upgrade, opened)) = opened else { return };
    match upgrade.await {
        Ok(client) => opened.carry(&context.proxy, TokioIo::new(client)).await,
        Err(error) => opened.record.end(ConnectionEnd::ClientReset, Some(error.to_string())),
    }
}

/// The body of our own error, or of a node's response.
type Body = Either<Full<Bytes>, Incoming>;

async fn answer(
    context: &ConnectContext,
    caller: &ConnectCaller,
    pending: &Pending,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let proxy = &context.proxy;
    if let Some(why) = &caller.denied {
        proxy.context.metrics.refused("not-allowed");
        tracing::debug!(client = ?caller.address, why, "a caller of CONNECT is not known");
        return plain_response(StatusCode::FORBIDDEN, why);
    }
    if request.method() != Method::CONNECT {
        return match plain::authority(request.uri()) {
            Some(authority) => forward(context, caller, &authority, request).await,
            None => only_connect(),
        };
    }
    let authority = request.uri().authority().map(ToString::to_string).unwrap_or_default();
    match open(proxy, caller, &authority).await {
        Ok(opened) => {
            let upgrade = hyper::upgrade::on(&mut request);
            *pending.lock_ignoring_poison() = Some((upgrade, opened));
            Response::new(Either::Left(Full::default()))
        }
        Err((status, text)) => plain_response(status, &text),
    }
}

/// Serves a plain HTTP request for a node.
async fn forward(
    context: &ConnectContext,
    caller: &ConnectCaller,
    authority: &str,
    request: Request<Incoming>,
) -> Response<Body> {
    let opened = match open(&context.proxy, caller, authority).await {
        Ok(opened) => opened,
        Err((status, text)) => return plain_response(status, &text),
    };
    match plain::exchange(context, opened, request).await {
        Ok(response) => response.map(Either::Right),
        Err(error) => {
            plain_response(StatusCode::BAD_GATEWAY, &format!("{authority} does not answer: {error}"))
        }
    }
}

fn only_connect() -> Response<Body> {
    let words = "send CONNECT NODE:PORT, or a request for http://NODE:PORT/PATH";
    let mut response = plain_response(StatusCode::METHOD_NOT_ALLOWED, words);
    response.headers_mut().insert(header::ALLOW, header::HeaderValue::from_static("CONNECT"));
    response
}

async fn open(
    proxy: &Arc<Proxy>,
    caller: &ConnectCaller,
    authority: &str,
) -> Result<NodeConnection, (StatusCode, String)> {
    let view = proxy.context.view();
    let Some(gateway) = &view.gateway else {
        return Err((StatusCode::SERVICE_UNAVAILABLE, PolicyRefusal::NoNetmap.to_string()));
    };
    let who = Principal { site: gateway.site.clone(), server: None };
    let opened = match decide(&view, &proxy.options.connect_allow, authority) {
        Ok(ConnectTarget::Node { node, port }) => open_node(proxy, &node, port, who, caller.address).await,
        Ok(ConnectTarget::Direct { host, port }) => {
            open_direct(proxy, &host, port, who, caller.address).await
        }
        Err(nowhere) => {
            if let InvalidTarget::Address { host, port } | InvalidTarget::Unknown { host, port } = &nowhere {
                note_unknown(proxy, host, *port, who, caller.address);
            }
            let status = match nowhere {
                InvalidTarget::Malformed => StatusCode::BAD_REQUEST,
                InvalidTarget::Address { .. } | InvalidTarget::Unknown { .. } => StatusCode::FORBIDDEN,
            };
            return Err((status, nowhere.to_string()));
        }
    };
    opened.map_err(|why| (status(&why), why.to_string()))
}

/// Returns the HTTP status for a failure.
fn status(why: &NodeUnreachable) -> StatusCode {
    let of_code = |code: &ResetCode| match code {
        ResetCode::NotAllowed | ResetCode::Revoked => StatusCode::FORBIDDEN,
        ResetCode::Timeout => StatusCode::GATEWAY_TIMEOUT,
        // The gateway there does not know the node yet, or there is no gateway.
        ResetCode::NoRoute | ResetCode::Limit | ResetCode::Draining => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_GATEWAY,
    };
    match why {
        NodeUnreachable::Refused(PolicyRefusal::NoNode { .. }) => StatusCode::NOT_FOUND,
        NodeUnreachable::Refused(refusal) => of_code(&refusal.code()),
        NodeUnreachable::Far { code, .. } => of_code(code),
        NodeUnreachable::Lost { .. } | NodeUnreachable::Cut(CutReason::Stopped | CutReason::Limit(_)) => {
            StatusCode::SERVICE_UNAVAILABLE
        }
        NodeUnreachable::Late { .. } => StatusCode::GATEWAY_TIMEOUT,
        NodeUnreachable::Down { .. } => StatusCode::BAD_GATEWAY,
        NodeUnreachable::Cut(CutReason::Revoked(_)) => StatusCode::FORBIDDEN,
    }
}

fn plain_response(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Either::Left(Full::from(format!("{text}\n"))));
    *response.status_mut() = status;
    let plain = header::HeaderValue::from_static("text/plain; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, plain);
    response
}
