//! The sessions of edges at this replica: the connected gateways and their links.
//!
//! Links come from the channel port; `greeting` admits them, `session_loop` exchanges messages with the edge for one `Session`,
//! and `services` are the parts of the cloud that those messages are for. The table keeps at most one live session per gateway. Revoked keys end their sessions
//! at once, and a replica that stops asks its edges to go elsewhere before it closes anything; `Cloud` knows
//! what is in flight.

mod greeting;
mod mailbox;
mod metrics;
mod pending_links;
mod report;
mod rivals;
mod secondary;
mod services;
mod session;
mod session_loop;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use causeway_api::sync::MutexExt;
use causeway_api::{GatewayStats, Time};
use causeway_apiserver::Registry;
use causeway_channel::CertificateFacts;
use causeway_channel::link::{CloseCode, CloseReason, Link, Transport};
use causeway_channel::port::{HandshakeSlot, spread};
use causeway_channel::session::{Instance, KEEPALIVE_QUICK, RemovedSession, SessionTable, is_other_process};
use causeway_channel::wire::control::{
    DrainNotice, EndpointUpdate, ReconnectHint, SessionRefusedCode, encode_cloud,
};
use rustls_pki_types::CertificateDer;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::channel::LinkHandler;
use crate::identity::Registrar;
use crate::replicas::SessionKey;
use metrics::SessionMetrics;
use pending_links::PendingLinks;
use rivals::Rivals;
use session_loop::SessionCommand;

pub(crate) use greeting::{enrol_anew, wrong_site_message};
pub use report::{CONNECTED, ConnectionChange, ConnectionWatch};
pub use services::{
    EdgeStreamHandler, IsElsewhere, NetmapSender, NetmapSource, SessionFuture, SessionServices, SpoolSink,
};
pub use session::Session;

/// Bounds on sessions.
#[derive(Debug, Clone)]
pub struct SessionLimits {
    pub sessions_max: usize,
    /// New sessions per second that this replica is glad to take; edges that lost theirs spread out
    /// accordingly.
    pub returns_per_second: u32,
}

impl Default for SessionLimits {
    /// Twenty thousand edges are the goal for one replica, and half as many again come when another one dies.
    /// A return costs 1.3 ms of a core, so 750 a second keep one busy; ten thousand are back within 20 s, of
    /// which five may pass before they notice.
    fn default() -> SessionLimits {
        SessionLimits { sessions_max: 30_000, returns_per_second: 750 }
    }
}

/// Gateways whose last departure is remembered. Beyond it, the memory begins anew: only `since` is lost.
const DEPARTED_MAX: usize = 100_000;
/// Number of sessions below which a fleet that comes back at once needs no spreading.
const HINT_FROM: usize = 500;
/// Interval at which a draining replica checks whether its sessions have ended.
const DRAIN_CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// Edges that can go elsewhere are given this long beyond the spread before their idle links are closed.
const DRAIN_DIAL: Duration = Duration::from_secs(3);
/// After the links were closed, their tasks have this long to end.
const DRAIN_END: Duration = Duration::from_secs(1);

/// The sessions of one replica. Clones are the same sessions.
#[derive(Clone)]
pub struct Sessions(Arc<Shared>);

struct Shared {
    replica: String,
    registrar: Arc<Registrar>,
    registry: Arc<Registry>,
    services: SessionServices,
    limits: SessionLimits,
    table: LiveSessions,
    departed: Mutex<HashMap<String, Departure>>,
    /// Processes that take sessions from each other.
    rivals: Mutex<Rivals>,
    /// Counts changes of the attached gateways.
    changed: watch::Sender<u64>,
    /// The number of sessions when edges were last told the time over which to reconnect.
    hinted: AtomicUsize,
    /// Newcomers a second that the port finishes when all its places are taken, as it was last seen.
    served: AtomicU32,
    /// Links that have not said hello, by key.
    pending_links: PendingLinks,
    /// Counts EGateways that were seen to stand at another site than before.
    moves: AtomicU64,
    metrics: SessionMetrics,
    tasks: TaskTracker,
    draining: AtomicBool,
    /// Endpoints of the other replicas. Empty: there are none.
    neighbours: Mutex<Vec<String>>,
}

/// The sessions at this replica, by gateway. They exist before the registry does, which asks for them before an EGateway
/// is deleted.
#[derive(Clone)]
pub struct LiveSessions(Arc<Mutex<SessionTable<String, Arc<Session>>>>);

impl LiveSessions {
    pub fn new(limits: &SessionLimits) -> LiveSessions {
        LiveSessions(Arc::new(Mutex::new(SessionTable::new(limits.sessions_max))))
    }

    pub fn has_session(&self, gateway: &str) -> bool {
        self.0.lock_ignoring_poison().current(&gateway.to_owned()).is_some()
    }
}

/// The end of a gateway's last session at this replica.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Departure {
    pub at: Time,
    pub reason: &'static str,
}

/// Why a session ended, as `ObjectStatus::last_disconnect_reason` says it.
fn disconnect_reason(code: CloseCode) -> &'static str {
    match code {
        // The edge said goodbye.
        CloseCode::Done => "Stopped",
        CloseCode::Superseded => "Superseded",
        CloseCode::Revoked => "Revoked",
        CloseCode::CertificateExpired => "CertificateExpired",
        CloseCode::Draining => report::CLOUD_STOPPED,
        CloseCode::NotAdmitted | CloseCode::Limit | CloseCode::Malformed => "Refused",
        CloseCode::Dead | CloseCode::Internal | CloseCode::Other(_) => "LinkLost",
    }
}

impl Sessions {
    pub fn new(
        replica: String,
        registrar: Arc<Registrar>,
        registry: Arc<Registry>,
        table: LiveSessions,
        services: SessionServices,
        limits: SessionLimits,
    ) -> Sessions {
        let (changed, _) = watch::channel(0);
        let served = limits.returns_per_second;
        Sessions(Arc::new(Shared {
            replica,
            registrar,
            registry,
            services,
            table,
            limits,
            departed: Mutex::default(),
            rivals: Mutex::default(),
            changed,
            hinted: AtomicUsize::new(HINT_FROM),
            served: AtomicU32::new(served),
            pending_links: PendingLinks::default(),
            moves: AtomicU64::new(0),
            metrics: SessionMetrics::default(),
            tasks: TaskTracker::new(),
            draining: AtomicBool::new(false),
            neighbours: Mutex::default(),
        }))
    }

    pub fn register(&self, registry: &mut prometheus_client::registry::Registry) {
        self.0.metrics.register(registry);
    }

    /// Takes a link that came through the port. Judging and talking go on in a task that `drain` waits for.
    /// `streams` serves the streams that the edge opens.
    pub fn accept(&self, link: Link, turn: HandshakeSlot, streams: Arc<dyn EdgeStreamHandler>) {
        let runtime = link.runtime();
        let serving = self.0.clone().serve(link, turn, streams);
        match runtime {
            Some(runtime) => self.0.tasks.spawn_on(serving, &runtime),
            None => self.0.tasks.spawn(serving),
        };
    }

    /// Ends the sessions of keys as they are revoked, until told to stop.
    pub async fn run(&self, stop: CancellationToken) {
        let mut revoked = self.0.registrar.revoked_keys();
        let mut bundle = self.0.registrar.bundle_changes();
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                key = revoked.recv() => match key {
                    Ok(key) => self.0.end_revoked(|session| session.key == key),
                    Err(RecvError::Lagged(_)) => {
                        self.0.end_revoked(|session| self.0.registrar.is_revoked(&session.key));
                    }
                    Err(RecvError::Closed) => return stop.cancelled().await,
                },
                Ok(()) = bundle.changed() => self.0.broadcast_renewal(),
            }
        }
    }

    /// The link to a gateway that is attached here.
    pub fn link(&self, gateway: &str) -> Option<Link> {
        self.session(gateway).map(|session| session.link.clone())
    }

    pub fn session(&self, gateway: &str) -> Option<Arc<Session>> {
        self.0.table().current(&gateway.to_owned()).map(|entry| entry.session.clone())
    }

    /// Returns the current session of every gateway that is attached here.
    pub fn attached(&self) -> Vec<Arc<Session>> {
        self.0.table().all_current().map(|(_, entry)| entry.session.clone()).collect()
    }

    /// Changes when a gateway is attached or detached; look at `attached` then.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changed.subscribe()
    }

    /// Sets the endpoints of the other replicas. Edges are told, so that they know where to dial when this
    /// one is gone; and when there are any, a drain waits for edges to leave.
    pub fn set_neighbours(&self, endpoints: Vec<String>) {
        if *self.0.neighbours() == endpoints {
            return;
        }
        self.0.registrar.set_other_endpoints(&endpoints);
        *self.0.neighbours() = endpoints;
        // The first other replica shortens the interval, and the last one that goes lengthens it.
        let keepalive_ms = Some(milliseconds(self.0.keepalive(Transport::Quic)));
        self.0.broadcast_endpoints(EndpointUpdate {
            renew: false,
            endpoints: self.0.endpoints(),
            keepalive_ms,
        });
    }

    /// A newer session of that gateway is at another replica: those here end with their streams, or at once
    /// when another process of the gateway holds the new one.
    pub fn handle_replaced(&self, gateway: &str, by: SessionKey) {
        let gateway = gateway.to_owned();
        let older: Vec<Arc<Session>> = {
            let table = self.0.table();
            let entries = table.all_of(&gateway).filter(|entry| entry.epoch < by.epoch);
            entries.map(|entry| entry.session.clone()).collect()
        };
        let current = self.session(&gateway).map(|session| session.number);
        for session in older {
            match is_other_process(session.instance, by.instance) {
                true => session.orphan(),
                false if current == Some(session.number) => session.linger(),
                false => {}
            }
        }
    }

    /// EGateways have moved. Ends every session whose certificate names another site than `site_of` says for
    /// its gateway.
    pub fn handle_moved<'a>(&self, site_of: impl Fn(&str) -> Option<&'a str>) {
        // In this order: a session that is being judged is either found here or looks again.
        self.0.moves.fetch_add(1, Ordering::AcqRel);
        for session in self.all_sessions() {
            let (gateway, enrolled) = (session.peer.gateway(), session.peer.site());
            let Some(site) = site_of(gateway).filter(|site| *site != enrolled) else { continue };
            tracing::info!(peer = %session.peer, session = session.number, site, "the EGateway was moved: its session ends");
            let message = wrong_site_message(gateway, enrolled, site);
            let text = format!("{message} ({})", enrol_anew(gateway, site));
            session.link.close(CloseReason::new(CloseCode::NotAdmitted, text));
        }
    }

    /// Checks that this certificate may have a link, before one is made, so that a revoked key costs a handshake
    /// and no more.
    pub fn check_certificate(&self, shown: &CertificateDer<'_>, client: IpAddr) -> Result<(), CloseReason> {
        let Ok(facts) = CertificateFacts::read(shown) else {
            return Err(CloseReason::new(CloseCode::NotAdmitted, "the certificate cannot be read"));
        };
        if !self.0.registrar.is_revoked(&facts.key) {
            return Ok(());
        }
        let message = "this key was revoked";
        self.0.metrics.count_refused(SessionRefusedCode::Revoked.word());
        let client = client.to_string();
        self.0.registrar.audit_session("session", facts.peer.as_ref(), &client, Some(message));
        Err(CloseReason::new(CloseCode::Revoked, format!("{message} ({})", crate::identity::NEW_TOKEN)))
    }

    /// Returns the metrics of a gateway's channel here. `None`: it was never attached here.
    pub fn gateway_stats(&self, gateway: &str) -> Option<GatewayStats> {
        match self.session(gateway) {
            Some(session) => {
                let rivalry = self.0.rivals().of(gateway, std::time::Instant::now());
                Some(GatewayStats {
                    takeovers: rivalry.as_ref().map(|rivalry| rivalry.takeovers),
                    rival_addresses: rivalry.map(|rivalry| rivalry.addresses).unwrap_or_default(),
                    ..session.stats()
                })
            }
            None => {
                let Departure { at, reason } = *self.0.departed().get(gateway)?;
                let reason = Some(reason.to_owned());
                let away = GatewayStats { since: Some(at), ..GatewayStats::default() };
                Some(GatewayStats { last_disconnect_reason: reason, ..away })
            }
        }
    }

    /// Tells every edge that this replica stops. If there are other replicas, waits until the edges have
    /// gone there, at most for `time`. Sessions go on; links that still come are told to try another replica.
    pub async fn announce_stop(&self, time: Duration) {
        self.0.draining.store(true, Ordering::Relaxed);
        let (hint, end) = (self.0.retry_hint(), Instant::now() + time);
        let drain = DrainNotice { deadline_ms: milliseconds(time), retry_hint_ms: milliseconds(hint) };
        let neighbours = self.0.neighbours().clone();
        let has_neighbours = !neighbours.is_empty();
        if has_neighbours {
            // From here on this replica would only refuse them.
            self.0.broadcast_endpoints(EndpointUpdate {
                renew: false,
                endpoints: neighbours,
                keepalive_ms: None,
            });
        }
        if let Ok(frame) = encode_cloud(drain) {
            self.all_sessions()
                .iter()
                .for_each(|session| session.command(SessionCommand::Send(frame.clone())));
        }
        let patience = (Instant::now() + hint + DRAIN_DIAL).min(end);
        while has_neighbours && Instant::now() < patience && !self.0.table().is_empty() {
            sleep(DRAIN_CHECK_INTERVAL).await;
        }
    }

    /// Ends every session, and refuses those that still come.
    pub async fn close_all(&self) {
        self.0.draining.store(true, Ordering::Relaxed);
        for session in self.all_sessions() {
            session.close(CloseReason::new(CloseCode::Draining, "this replica stops"));
        }
        self.0.tasks.close();
        let _ = tokio::time::timeout(DRAIN_END, self.0.tasks.wait()).await;
    }

    fn all_sessions(&self) -> Vec<Arc<Session>> {
        self.0.table().all().map(|(_, entry)| entry.session.clone()).collect()
    }
}

impl LinkHandler for Sessions {
    fn handle_channel(&self, link: Link, turn: HandshakeSlot) {
        self.accept(link, turn, services::no_streams());
    }

    fn handle_replica(&self, link: Link) {
        link.close(CloseReason::new(CloseCode::NotAdmitted, "this replica stands alone"));
    }

    fn drain(&self) -> SessionFuture<'_, ()> {
        Box::pin(self.close_all())
    }
}

impl Shared {
    fn table(&self) -> MutexGuard<'_, SessionTable<String, Arc<Session>>> {
        self.table.0.lock_ignoring_poison()
    }

    fn departed(&self) -> MutexGuard<'_, HashMap<String, Departure>> {
        self.departed.lock_ignoring_poison()
    }

    fn rivals(&self) -> MutexGuard<'_, Rivals> {
        self.rivals.lock_ignoring_poison()
    }

    fn now(&self) -> Time {
        self.registry.now()
    }

    fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Over which time the sessions of this replica should come back when they are all lost at once.
    fn retry_hint(&self) -> Duration {
        let sessions = self.table().len();
        self.spread(sessions)
    }

    fn spread(&self, sessions: usize) -> Duration {
        spread(sessions, self.limits.returns_per_second, self.served.load(Ordering::Relaxed))
    }

    fn handle_attached(&self, session: &Session) {
        let client = session.link.remote_address().ip().to_string();
        self.registrar.audit_session("session", Some(&session.peer), &client, None);
        self.departed().remove(session.peer.gateway());
        if let Some(process) = session.instance {
            self.note_process(session, process, client);
        }
        self.changed.send_modify(|count| *count += 1);
        self.tell_hint();
    }

    /// Two processes that use one identity are told of once, and counted.
    fn note_process(&self, session: &Session, process: Instance, address: String) {
        let (gateway, now) = (session.peer.gateway(), std::time::Instant::now());
        let mut rivals = self.rivals();
        let was_known = rivals.of(gateway, now).is_some();
        rivals.handle_session(gateway, process, address, now);
        if let Some(rivalry) = rivals.of(gateway, now).filter(|_| !was_known) {
            tracing::warn!(
                gateway,
                addresses = rivalry.addresses.join(", "),
                "two processes use the identity of this gateway and take the session from each other: one runs on a copy of the data dir"
            );
        }
    }

    // The first edges were told a hint for the small fleet of then; at every doubling all edges get a new
    // one.
    fn tell_hint(&self) {
        let table = self.table();
        let sessions = table.len();
        if sessions < 2 * self.hinted.load(Ordering::Relaxed) {
            return;
        }
        self.hinted.store(sessions, Ordering::Relaxed);
        let hint = ReconnectHint { retry_hint_ms: milliseconds(self.spread(sessions)) };
        let Ok(frame) = encode_cloud(hint) else { return };
        table.all_current().for_each(|(_, entry)| entry.session.command(SessionCommand::Send(frame.clone())));
    }

    fn handle_ended(&self, session: &Session, reason: &CloseReason) {
        let gateway = session.peer.gateway().to_owned();
        let removed = self.table().remove(&gateway, session.number);
        tracing::info!(
            peer = %session.peer, session = session.number, transport = session.link.transport().as_str(), %reason,
            lingered = matches!(removed, RemovedSession::Lingering(_)), "session ended"
        );
        if let RemovedSession::Current { heir: Some(heir), .. } = &removed {
            heir.session.stay();
            self.changed.send_modify(|count| *count += 1);
        }
        if matches!(removed, RemovedSession::Current { heir: None, .. }) {
            let mut departed = self.departed();
            if departed.len() >= DEPARTED_MAX {
                departed.clear();
            }
            departed.insert(gateway, Departure { at: self.now(), reason: disconnect_reason(reason.code) });
            drop(departed);
            self.changed.send_modify(|count| *count += 1);
        }
    }

    fn end_revoked(&self, is_meant: impl Fn(&Session) -> bool) {
        let meant: Vec<_> = {
            let table = self.table();
            table.all().map(|(_, entry)| entry.session.clone()).filter(|session| is_meant(session)).collect()
        };
        for session in meant {
            tracing::info!(peer = %session.peer, session = session.number, "revoked: the session ends");
            // Not through the session's own task: it may be waiting for a slow edge.
            session.link.close(CloseReason::new(CloseCode::Revoked, "this gateway was revoked"));
        }
    }

    fn neighbours(&self) -> MutexGuard<'_, Vec<String>> {
        self.neighbours.lock_ignoring_poison()
    }

    /// Returns the endpoints for edges, this replica first.
    fn endpoints(&self) -> Vec<String> {
        self.registrar.all_endpoints().iter().map(ToString::to_string).collect()
    }

    /// Returns the keepalive interval for edges; zero: the edge chooses. With other replicas to go to, an
    /// edge must leave a dead one within five seconds: see `causeway_channel::session::KEEPALIVE_QUICK`. Over
    /// TCP the kernel reports at once that a process has ended.
    fn keepalive(&self, transport: Transport) -> Duration {
        match transport {
            Transport::Quic if !self.neighbours().is_empty() => KEEPALIVE_QUICK,
            _ => Duration::ZERO,
        }
    }

    fn broadcast_renewal(&self) {
        self.broadcast_endpoints(EndpointUpdate { renew: true, endpoints: Vec::new(), keepalive_ms: None });
    }

    fn broadcast_endpoints(&self, update: EndpointUpdate) {
        let Ok(frame) = encode_cloud(update) else { return };
        let table = self.table();
        table.all_current().for_each(|(_, entry)| entry.session.command(SessionCommand::Send(frame.clone())));
    }
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
