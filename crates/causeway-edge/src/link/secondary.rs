//! Opens, serves and retires the secondary TCP link of a session over QUIC.
//!
//! `causeway_channel::session::SecondaryPolicy` decides from samples; this file takes the samples, dials, joins the session
//! and accepts the cloud's streams on the new link. It sleeps while no stream is open. Everything it starts ends with it.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use causeway_api::sync::MutexExt;
use causeway_channel::dial::{DialConfig, DialTransports, LinkDialer};
use causeway_channel::link::{
    CloseCode, CloseReason, Link, PathStats, ResetCode, StreamHeader, StreamPurpose,
};
use causeway_channel::session::{PathSample, SecondaryAction, SecondaryPolicy};
use causeway_channel::wire::control::{
    CloudMessageBody, ControlReader, ControlWriter, EdgeMessage, JoinSession, PathQuery, encode_edge,
};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::handshake::HandshakeError;
use super::services::{CloudStreamHandler, NetmapHandler};

/// While bytes move, the path is looked at this often.
const SAMPLE_EVERY: Duration = Duration::from_millis(200);
/// Streams may be open for days without a byte: the links are looked at less often then, and nothing is sent.
const QUIET_SAMPLE_EVERY: Duration = Duration::from_secs(1);
/// Bytes between two samples that count as traffic. Keepalives and the messages of this file stay below it.
const TRAFFIC_BYTES_MIN: u64 = 4096;
/// A TCP link that carries silent streams is measured this often, because its path may die in silence.
const QUIET_PING_EVERY: Duration = Duration::from_secs(20);
/// Pings without an answer after which a retired link is closed with its streams.
const RETIRED_PINGS_MAX: u32 = 5;
/// A TCP link is measured until this long after its last traffic, so that a transfer that has come to a stop is noticed.
const PING_AFTER_TRAFFIC: Duration = Duration::from_secs(5);
/// The round trip of a TCP link in use is measured this often, with this patience.
const PING_EVERY: Duration = Duration::from_secs(1);
const PING_MAX: Duration = Duration::from_secs(2);
/// From the dial to the answer of the cloud.
const JOIN_MAX: Duration = Duration::from_secs(4);
/// A retired link stays open for at least this long: the cloud may have opened a stream before it heard of it.
const RETIRED_MIN: Duration = Duration::from_secs(2);
/// The control stream of the primary link.
const OWN_STREAMS: u64 = 1;
/// After this many streams the link gets its turn: each stream is a task.
const STREAMS_AT_ONCE: usize = 64;

/// The policy of this edge and the signal that its address has changed. Sessions share what was learned about the path; the
/// newest one alone drives the policy.
#[derive(Clone)]
pub struct SecondaryControl {
    policy: Arc<Mutex<SharedPolicy>>,
    /// Counts the moves that retire a link.
    moves: watch::Sender<u64>,
    /// The address of the cloud, and the one from which this host last reached it.
    source: Arc<Mutex<Option<(IpAddr, IpAddr)>>>,
}

struct SharedPolicy {
    policy: SecondaryPolicy,
    /// The number of the session that drives it.
    session: u64,
}

impl SecondaryControl {
    pub fn new(policy: SecondaryPolicy) -> SecondaryControl {
        let (policy, source) = (Arc::new(Mutex::new(SharedPolicy { policy, session: 0 })), Arc::default());
        SecondaryControl { policy, moves: watch::Sender::new(0), source }
    }

    /// A session begins to drive the policy; the one before has no effect on it any more. Returns its number.
    fn begin_session(&self) -> u64 {
        let mut shared = self.lock();
        shared.session += 1;
        shared.policy.handle_session();
        shared.session
    }

    /// Applies `act` to the policy. None: a newer session drives it.
    fn with<R>(&self, session: u64, act: impl FnOnce(&mut SecondaryPolicy) -> R) -> Option<R> {
        let mut shared = self.lock();
        (shared.session == session).then(|| act(&mut shared.policy))
    }

    /// The network of this host has changed. It has moved if it reaches the cloud from another address now.
    pub fn handle_network_change(&self, cloud: SocketAddr) {
        let Some(source) = source_address(cloud) else { return };
        let mut known = self.source.lock_ignoring_poison();
        // Another replica may be reached from another address without a move.
        let before = known.replace((cloud.ip(), source)).filter(|(before, _)| *before == cloud.ip());
        drop(known);
        if before.is_some_and(|(_, before)| before != source)
            && self.lock().policy.handle_moved(Instant::now()) == SecondaryAction::Retire
        {
            self.moves.send_modify(|count| *count += 1);
        }
    }

    /// Why new streams go where they go.
    pub fn reason(&self) -> &'static str {
        self.lock().policy.reason()
    }

    fn lock(&self) -> MutexGuard<'_, SharedPolicy> {
        self.policy.lock_ignoring_poison()
    }
}

/// The address that the kernel would use towards `cloud`. Sends nothing.
fn source_address(cloud: SocketAddr) -> Option<IpAddr> {
    let any: IpAddr = match cloud.is_ipv4() {
        true => std::net::Ipv4Addr::UNSPECIFIED.into(),
        false => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    socket.connect(cloud).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// The connections of the driver with its session.
pub struct SecondaryDriver {
    pub primary: Link,
    pub dialer: LinkDialer,
    pub join: JoinSession,
    pub control: SecondaryControl,
    pub streams: Arc<dyn CloudStreamHandler>,
    /// Knows the preference of this gateway.
    pub netmaps: Arc<dyn NetmapHandler>,
    /// Messages to the cloud, on the control stream of the primary link.
    pub messages: mpsc::Sender<EdgeMessage>,
    /// The loss that the cloud measured.
    pub reports: watch::Receiver<PathStats>,
    /// Another session has taken over: nothing is opened or retired any more.
    pub lingers: CancellationToken,
    /// The cloud has not been told yet that the link is retired.
    pub must_retire: AtomicBool,
}

impl SecondaryDriver {
    /// Goes on until it is dropped.
    pub async fn run(self) {
        let mut links = JoinSet::new();
        let lingers = self.lingers.clone();
        tokio::select! {
            biased;
            () = lingers.cancelled() => {}
            _superseded = self.drive(&mut links) => {}
        }
        // The links that are open serve their streams until the session ends.
        while links.join_next().await.is_some() {}
        std::future::pending().await
    }

    /// Goes on until a newer session drives the policy; returns None then.
    async fn drive(&self, links: &mut JoinSet<()>) -> Option<()> {
        let session = self.control.begin_session();
        self.control.handle_network_change(self.primary.remote_address());
        let mut moves = self.control.moves.subscribe();
        let (mut open, mut pinged, mut is_answered): (Option<Link>, Instant, bool) =
            (None, Instant::now(), true);
        let mut traffic = TrafficMeter::new(self.bytes(), Instant::now());
        loop {
            if open.is_none() && self.primary.stats_by_transport().0.streams_open <= OWN_STREAMS {
                self.primary.stream_activity().await;
                traffic.last_seen = Instant::now();
            }
            while links.try_join_next().is_some() {}
            let sample = self.sample(open.as_ref());
            let is_busy = traffic.handle_sample(self.bytes(), Instant::now());
            // Nothing is opened before the netmap says what the operator prefers: no stream shall begin on a link that is
            // not to be used.
            let mut action = self.control.with(session, |policy| match self.netmaps.preference() {
                Some(preference) => {
                    policy.set_preference(preference);
                    policy.handle_sample(Instant::now(), &sample)
                }
                None => SecondaryAction::Wait,
            })?;
            if let Some(link) = open.as_ref().filter(|_| sample.secondary_streams > 0)
                && action == SecondaryAction::Wait
                && pinged.elapsed() >= traffic.ping_interval(is_answered, Instant::now())
            {
                let took = timeout(PING_MAX, link.ping()).await.ok().and_then(Result::ok);
                (pinged, is_answered) = (Instant::now(), took.is_some());
                action = self.control.with(session, |policy| policy.handle_ping(pinged, took, sample.rtt))?;
            }
            match action {
                SecondaryAction::Wait if self.must_retire.load(Ordering::Relaxed) => {
                    self.send_path_query(true)
                }
                SecondaryAction::Wait if open.is_none() && is_busy => self.send_path_query(false),
                SecondaryAction::Wait => {}
                SecondaryAction::Open => open = self.open(session, links).await?,
                SecondaryAction::Retire => self.retire(open.take(), links),
            }
            tokio::select! {
                biased;
                Ok(()) = moves.changed() => self.retire(open.take(), links),
                () = closed(open.as_ref()) => {
                    tracing::debug!("the secondary TCP link to the cloud broke; new streams take QUIC");
                    if let Some(link) = open.take() {
                        self.primary.remove_secondary(&link);
                    }
                    self.send_path_query(true);
                    self.control.with(session, |policy| policy.handle_failed(Instant::now()))?;
                }
                () = sleep(traffic.sample_interval(Instant::now())) => {}
            }
        }
    }

    /// The bytes of the session so far, over both links and in both directions.
    fn bytes(&self) -> u64 {
        let stats = self.primary.stats();
        stats.sent_bytes + stats.received_bytes
    }

    fn sample(&self, open: Option<&Link>) -> PathSample {
        PathSample {
            ours: self.primary.path_stats().unwrap_or_default(),
            theirs: *self.reports.borrow(),
            rtt: self.primary.rtt().unwrap_or_default(),
            secondary_streams: open.map(|link| link.stats().streams_open).unwrap_or_default(),
        }
    }

    /// Opens a link. `Some(None)`: it cannot be opened now. None: a newer session drives the policy.
    async fn open(&self, session: u64, links: &mut JoinSet<()>) -> Option<Option<Link>> {
        let joined = timeout(JOIN_MAX, self.dial()).await;
        let now = Instant::now();
        match joined {
            Ok(Ok(link)) => {
                let action = self.control.with(session, |policy| policy.handle_opened(now));
                if action != Some(SecondaryAction::Wait) {
                    link.close(CloseReason::new(CloseCode::Done, "the address or the session changed"));
                    // The close may never arrive from the old address: the cloud is told over QUIC.
                    self.send_path_query(true);
                    return action.map(|_| None);
                }
                tracing::debug!(cloud = %link.remote_address(), "opened the secondary TCP link to the cloud");
                let accepting = accept_streams(self.primary.clone(), link.clone(), self.streams.clone());
                match link.runtime() {
                    Some(runtime) => links.spawn_on(accepting, &runtime),
                    None => links.spawn(accepting),
                };
                self.primary.attach_secondary(link.clone());
                self.send_path_query(false);
                Some(Some(link))
            }
            failed => {
                self.control.with(session, |policy| policy.handle_failed(now))?;
                let error = match failed {
                    Ok(Err(error)) => causeway_api::error_chain(&error),
                    _ => format!("no answer within {} s", JOIN_MAX.as_secs()),
                };
                tracing::debug!(error, "cannot open a secondary TCP link to the cloud; streams stay on QUIC");
                Some(None)
            }
        }
    }

    /// Dials the replica that holds the session, at the address where QUIC reaches it.
    async fn dial(&self) -> Result<Link, HandshakeError> {
        let endpoint = self.primary.remote_address().to_string().parse();
        let endpoints = endpoint.into_iter().collect();
        let config = self.dialer.config().clone();
        let config = DialConfig { endpoints, transports: DialTransports::TcpOnly, proxy: None, ..config };
        let link = self.dialer.with_config(config).dial().await?;
        let header = StreamHeader::new(StreamPurpose::Control);
        let (send, recv) = link.open_stream(header).await?.split();
        let (mut reader, mut writer) = (ControlReader::of_cloud(recv), ControlWriter::new(send));
        writer.push(encode_edge(self.join.clone())?);
        writer.drain().await?;
        match reader.next().await?.ok_or(HandshakeError::Ended)?.body {
            Some(CloudMessageBody::Joined(_)) => Ok(link),
            Some(CloudMessageBody::Refused(refused)) => Err(HandshakeError::Refused(refused)),
            _ => Err(HandshakeError::Answer),
        }
    }

    fn retire(&self, open: Option<Link>, links: &mut JoinSet<()>) {
        let Some(link) = open else { return };
        self.primary.retire_secondary();
        self.send_path_query(true);
        let primary = self.primary.clone();
        links.spawn(async move {
            sleep(RETIRED_MIN).await;
            let mut unanswered = 0;
            // A path that is dead leaves its streams without an end: they are reset with the link.
            while link.stats().streams_open > 0 && unanswered < RETIRED_PINGS_MAX {
                tokio::select! {
                    _ = link.closed() => break,
                    () = sleep(PING_EVERY) => {}
                }
                match timeout(PING_MAX, link.ping()).await {
                    Ok(_) => unanswered = 0,
                    Err(_) => unanswered += 1,
                }
            }
            link.close(CloseReason::new(CloseCode::Done, "the secondary link is not needed"));
            primary.remove_secondary(&link);
        });
    }

    /// Asks for the cloud's measurements and tells how new streams are carried. A full queue drops it: the next sample asks again.
    fn send_path_query(&self, retire: bool) {
        // A retirement that found the queue full is sent with the next message.
        let retire = self.must_retire.swap(false, Ordering::Relaxed) || retire;
        let query = PathQuery { reason: self.control.reason().to_owned(), retire };
        if self.messages.try_send(query.into()).is_err() {
            self.must_retire.store(retire, Ordering::Relaxed);
        }
    }
}

/// Tells traffic from the few bytes of keepalives and measurements.
struct TrafficMeter {
    bytes: u64,
    last_seen: Instant,
}

impl TrafficMeter {
    fn new(bytes: u64, now: Instant) -> TrafficMeter {
        TrafficMeter { bytes, last_seen: now }
    }

    /// Returns whether there was traffic since the last sample.
    fn handle_sample(&mut self, bytes: u64, now: Instant) -> bool {
        let is_busy = bytes.saturating_sub(self.bytes) >= TRAFFIC_BYTES_MIN;
        self.bytes = bytes;
        if is_busy {
            self.last_seen = now;
        }
        is_busy
    }

    /// A stream that has just begun counts as traffic.
    fn sample_interval(&self, now: Instant) -> Duration {
        match self.was_seen_within(QUIET_SAMPLE_EVERY, now) {
            true => SAMPLE_EVERY,
            false => QUIET_SAMPLE_EVERY,
        }
    }

    /// A ping without an answer is repeated soon.
    fn ping_interval(&self, is_answered: bool, now: Instant) -> Duration {
        match is_answered && !self.was_seen_within(PING_AFTER_TRAFFIC, now) {
            true => QUIET_PING_EVERY,
            false => PING_EVERY,
        }
    }

    fn was_seen_within(&self, time: Duration, now: Instant) -> bool {
        now.saturating_duration_since(self.last_seen) < time
    }
}

/// Serves the streams of the cloud on a secondary link until the link ends.
async fn accept_streams(primary: Link, link: Link, handler: Arc<dyn CloudStreamHandler>) {
    let mut accepted = 0_usize;
    while let Ok((header, stream)) = link.accept_stream().await {
        match header.purpose() {
            Some(StreamPurpose::Service | StreamPurpose::Node) => {
                handler.serve(header, stream);
                accepted = accepted.wrapping_add(1);
                if accepted.is_multiple_of(STREAMS_AT_ONCE) {
                    tokio::task::yield_now().await;
                }
            }
            _ => stream.refuse(ResetCode::Malformed),
        }
    }
    primary.remove_secondary(&link);
}

async fn closed(link: Option<&Link>) {
    match link {
        Some(link) => drop(link.closed().await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_that_was_superseded_has_no_effect_on_the_policy() {
        let control = SecondaryControl::new(SecondaryPolicy::new(Default::default()));
        let (old, now) = (control.begin_session(), Instant::now());
        let new = control.begin_session();
        assert_eq!(control.with(new, |policy| policy.handle_opened(now)), Some(SecondaryAction::Wait));
        let before = control.reason();
        assert_eq!(control.with(old, |policy| policy.handle_failed(now)), None);
        assert_eq!(control.with(old, SecondaryPolicy::handle_session), None);
        assert_eq!(control.reason(), before);
        let moved = control.with(new, |policy| policy.handle_moved(now));
        assert_eq!(moved, Some(SecondaryAction::Retire), "the link of the new session is still known");
    }

    #[test]
    fn keepalives_are_no_traffic() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut traffic = TrafficMeter::new(1_000, start);
        // Five seconds of pings and queries on streams that are open and silent.
        for second in 1..=5 {
            assert!(!traffic.handle_sample(1_000 + second * 500, at(second)));
        }
        assert!(!traffic.was_seen_within(PING_AFTER_TRAFFIC, at(5)));
        assert!(traffic.handle_sample(3_500 + TRAFFIC_BYTES_MIN, at(6)));
        assert!(!traffic.handle_sample(3_500 + TRAFFIC_BYTES_MIN, at(7)));
        assert!(traffic.was_seen_within(PING_AFTER_TRAFFIC, at(10)));
        assert!(!traffic.was_seen_within(PING_AFTER_TRAFFIC, at(11)));
    }
}
