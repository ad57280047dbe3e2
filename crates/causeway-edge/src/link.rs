//! Keeps the one link to the cloud: executes the actions of the supervisor and reports events to it.
//!
//! Input: identities as they change. Output: the link in use, through `CurrentLink`. An unreachable cloud is
//! no error here: this runs until told to stop. Decisions are in `causeway_channel::session`, a dial in
//! `handshake`, a session in `session_loop`, its users in `services`, changes of this host's network in
//! `network_changes`.

mod current_link;
mod handshake;
mod network_changes;
mod secondary;
mod services;
mod session_loop;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use causeway_api::error_chain;
use causeway_channel::clock::unix_seconds;
use causeway_channel::dial::{ConnectProxy, DialConfig, DialTransports, LinkDialer};
use causeway_channel::link::{CloseReason, Link, Transport};
use causeway_channel::session::{
    AllowedTransports, LinkId, SecondaryPolicy, Supervisor, SupervisorAction, SupervisorState,
    TransportPreference, WelcomedSession,
};
use causeway_channel::wire::control::{self, Goodbye, Hello, INSTANCE_BYTES, JoinSession, Ping, Welcome};
use causeway_channel::{ChannelEndpoint, Clock, TokenSecret, tls};
use tokio::sync::{mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::edge::random_fraction;
use crate::state::{EdgeIdentity, dial_order, read_endpoints};
use handshake::{EstablishedSession, HandshakeError, establish_session};
use network_changes::NetworkChanges;
use secondary::SecondaryControl;
use session_loop::{EdgeSessionLoop, LinkCommand, LinkEvent, SecondaryParts};

pub use current_link::{CurrentLink, LinkPublisher, LinkState};
pub use services::{
    CloudStreamHandler, LinkFuture, LinkServices, NeighbourAsker, NetmapHandler, SpoolFeed, SpoolQueue,
};

/// The configuration of the link.
#[derive(Debug, Clone, Default)]
pub struct LinkOptions {
    pub transports: AllowedTransports,
    /// `None`: direct.
    pub proxy: Option<ConnectProxy>,
}

/// Keeps the link.
pub struct LinkKeeper {
    options: LinkOptions,
    identity: watch::Receiver<Option<Arc<EdgeIdentity>>>,
    clock: Clock,
    services: LinkServices,
    publisher: LinkPublisher,
    /// Receives a signal when the cloud asks for a renewal of the certificate, or refuses it.
    renew: mpsc::Sender<CertificateSignal>,
    /// The endpoints of the cloud as it announces them, to be saved.
    endpoints: watch::Sender<Vec<ChannelEndpoint>>,
    /// Names this process to the cloud; see `Hello::instance`.
    instance: Bytes,
    /// `None` where the configuration allows one transport only.
    secondary: Option<SecondaryControl>,
}

/// A signal from a session about the certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CertificateSignal {
    /// The cloud asks for it.
    Renew,
    /// The cloud refused it: ask why.
    Check,
    /// The cloud has just taken it: nothing need be asked for a while.
    Nothing,
}

impl LinkKeeper {
    pub fn new(
        options: LinkOptions,
        publisher: LinkPublisher,
        identity: watch::Receiver<Option<Arc<EdgeIdentity>>>,
        clock: Clock,
        services: LinkServices,
        renew: mpsc::Sender<CertificateSignal>,
        endpoints: watch::Sender<Vec<ChannelEndpoint>>,
    ) -> LinkKeeper {
        let instance = Bytes::copy_from_slice(&TokenSecret::generate().expose()[..INSTANCE_BYTES]);
        // A site that prescribes a proxy gets no direct TCP connection.
        let secondary = (options.transports == AllowedTransports::Both && options.proxy.is_none())
            .then(|| SecondaryControl::new(SecondaryPolicy::new(TransportPreference::Auto)));
        LinkKeeper { options, identity, clock, services, publisher, renew, endpoints, instance, secondary }
    }

    /// Keeps the link until told to stop, and sends goodbye.
    pub async fn run(mut self, stop: CancellationToken) {
        let Some(identity) = self.first_identity(&stop).await else { return };
        let mut changes = NetworkChanges::watch();
        let (events, mut heard) = mpsc::channel(EVENTS_MAX);
        let mut running = RunningKeeper::new(&self, identity, events);
        let (mut identity, check_requests) = (self.identity.clone(), self.publisher.check_requests.clone());
        loop {
            running.act();
            let due = running.supervisor.next_timeout();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some((link, event)) = heard.recv() => running.take(link, event),
                Some(established) = running.dials.join_next() => running.finish_dial(established),
                Some(ended) = running.sessions.join_next() => running.finish_session(ended),
                Ok(()) = identity.changed() => {
                    let changed = identity.borrow_and_update().clone();
                    running.take_identity(changed);
                }
                () = changes.next() => running.take_change(),
                () = check_requests.notified() => running.suspect(),
                () = sleep_until(due) => running.take_timeout(),
            }
        }
        running.end().await;
    }

    async fn first_identity(&mut self, stop: &CancellationToken) -> Option<Arc<EdgeIdentity>> {
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            known = self.identity.wait_for(Option::is_some) => known.ok()?.clone(),
        }
    }
}

/// Sessions send few events: drains and endpoint updates.
const EVENTS_MAX: usize = 16;
const COMMANDS_MAX: usize = 16;
/// The time within which a goodbye must be sent.
const GOODBYE: Duration = Duration::from_secs(1);

/// An established link and the task that serves it.
struct ActiveLink {
    link: Link,
    commands: mpsc::Sender<LinkCommand>,
}

type DialResult = (LinkId, Result<EstablishedSession, HandshakeError>);

/// The state of a running keeper.
struct RunningKeeper<'a> {
    keeper: &'a LinkKeeper,
    supervisor: Supervisor,
    identity: Arc<EdgeIdentity>,
    dialer: LinkDialer,
    /// Endpoints that the cloud announced in a session; they are tried before those on disk.
    told: Vec<ChannelEndpoint>,
    dials: JoinSet<DialResult>,
    attempts: HashMap<LinkId, AbortHandle>,
    sessions: JoinSet<(LinkId, CloseReason)>,
    links: HashMap<LinkId, ActiveLink>,
    events: mpsc::Sender<(LinkId, LinkEvent)>,
    /// A ping that its session has not handed to the link yet, and when it was requested.
    pending_ping: Option<(LinkId, Instant)>,
    /// Frames of the cloud that had arrived when the last ping was requested.
    frames_at_ping: Option<(LinkId, u64)>,
    /// A cloud that is unreachable for days is logged once, not every five seconds.
    is_problem_logged: bool,
}

impl<'a> RunningKeeper<'a> {
    fn new(
        keeper: &'a LinkKeeper,
        identity: Arc<EdgeIdentity>,
        events: mpsc::Sender<(LinkId, LinkEvent)>,
    ) -> RunningKeeper<'a> {
        let since_1970 = keeper.clock.now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let epoch = since_1970.as_millis().min(u64::MAX.into()) as u64;
        RunningKeeper {
            supervisor: Supervisor::new(epoch, keeper.options.transports, Instant::now()),
            dialer: LinkDialer::new(dial_config(keeper, &identity, &[])),
            keeper,
            identity,
            told: Vec::new(),
            dials: JoinSet::new(),
            attempts: HashMap::new(),
            sessions: JoinSet::new(),
            links: HashMap::new(),
            events,
            pending_ping: None,
            frames_at_ping: None,
            is_problem_logged: false,
        }
    }

    /// Executes the actions of the supervisor and publishes its state.
    fn act(&mut self) {
        while let Some(action) = self.supervisor.next_action() {
            match action {
                SupervisorAction::Dial { link, epoch, transports, patience } => {
                    let hello = self.hello(epoch);
                    let (dialer, events) = (self.dialer.clone(), self.events.clone());
                    let dialed = move || drop(events.try_send((link, LinkEvent::Dialed)));
                    let greeting = establish_session(dialer, transports, patience, hello, dialed);
                    let task = self.dials.spawn(async move { (link, Box::pin(greeting).await) });
                    self.attempts.insert(link, task);
                    self.keeper.publisher.shown.send_modify(|shown| shown.attempts += 1);
                }
                SupervisorAction::Abandon { link } => {
                    if let Some(task) = self.attempts.remove(&link) {
                        task.abort();
                        self.report_problem("the cloud did not answer in time");
                    }
                }
                SupervisorAction::Ping { link } => {
                    self.pending_ping.get_or_insert((link, Instant::now()));
                    self.frames_at_ping =
                        self.links.get(&link).map(|active| (link, active.link.frames_received()));
                    self.command(link, LinkCommand::Ping(Ping::default().into()));
                }
                SupervisorAction::Rebind { .. } => {
                    if let Err(error) = self.dialer.rebind() {
                        tracing::debug!(%error, "the link cannot move to a new socket");
                    }
                }
                SupervisorAction::Linger { link, until } => self.command(link, LinkCommand::Linger(until)),
                SupervisorAction::Close { link, code } => self.command(link, LinkCommand::Close(code)),
                SupervisorAction::Renew => self.signal_certificate(CertificateSignal::Check),
            }
        }
        self.show();
    }

    fn command(&mut self, link: LinkId, command: LinkCommand) {
        let Some(active) = self.links.get(&link) else { return };
        // A session that does not take its commands is stuck behind its own link; closing that frees it.
        if let Err(mpsc::error::TrySendError::Full(LinkCommand::Close(code))) =
            active.commands.try_send(command)
        {
            active.link.close(CloseReason::new(code, ""));
        }
    }

    fn take(&mut self, link: LinkId, event: LinkEvent) {
        let now = Instant::now();
        match event {
            LinkEvent::Dialed => self.supervisor.handle_dialed(now, link),
            LinkEvent::PingSent => {
                self.count_delay(now);
                self.pending_ping = None;
            }
            LinkEvent::Drain(drain) => {
                let (deadline, hint) = (ms(drain.deadline_ms), ms(drain.retry_hint_ms));
                tracing::info!(
                    ?deadline,
                    "the cloud drains this session; the edge connects to another replica"
                );
                self.supervisor.handle_drain(now, link, deadline, hint, random_fraction());
                self.keeper.publisher.retired.send_modify(|count| *count += 1);
            }
            LinkEvent::Hint(hint) => self.supervisor.handle_hint(link, ms(hint.retry_hint_ms)),
            LinkEvent::Endpoints(update) => {
                self.take_endpoints(&update.endpoints);
                if let Some(keepalive_ms) = update.keepalive_ms {
                    tracing::info!(keepalive_ms, "the cloud asks for another keepalive interval");
                    self.supervisor.handle_keepalive(link, ms(keepalive_ms));
                }
                if update.renew {
                    self.signal_certificate(CertificateSignal::Renew);
                }
            }
        }
    }

    fn finish_dial(&mut self, dial: Result<DialResult, tokio::task::JoinError>) {
        // An abandoned dial was aborted and has no result.
        let Ok((id, result)) = dial else { return };
        self.attempts.remove(&id);
        let now = Instant::now();
        match result {
            Ok(established) => self.begin(id, established, now),
            Err(error) => {
                self.report_problem(&error_chain(&error));
                self.supervisor.handle_failed(now, id, error.failure(), random_fraction());
            }
        }
    }

    fn begin(&mut self, id: LinkId, established: EstablishedSession, now: Instant) {
        let welcome = established.welcome.clone();
        let link = established.link.clone();
        let welcomed = WelcomedSession {
            transport: link.transport(),
            keepalive: ms(welcome.keepalive_ms),
            retry_hint: ms(welcome.retry_hint_ms),
        };
        self.supervisor.handle_welcome(now, id, welcomed);
        if self.supervisor.current() != Some(id) {
            // The attempt was abandoned; the link ends with its last handle.
            return;
        }
        tracing::info!(
            transport = link.transport().as_str(), cloud = %link.remote_address(), replica = welcome.replica,
            session = welcome.session_id, keepalive_ms = welcome.keepalive_ms, "connected to the cloud"
        );
        self.is_problem_logged = false;
        let (commands, taken) = mpsc::channel(COMMANDS_MAX);
        let secondary = self.secondary_of(&established);
        let services = self.keeper.services.clone();
        let session_loop = EdgeSessionLoop::new(id, established, services, self.events.clone(), secondary);
        let session = async move { (id, Box::pin(session_loop.run(taken)).await) };
        match link.runtime() {
            Some(runtime) => self.sessions.spawn_on(session, &runtime),
            None => self.sessions.spawn(session),
        };
        self.links.insert(id, ActiveLink { link, commands });
        let (clock, transport) = (unix_seconds(self.keeper.clock.now()), welcomed.transport);
        self.keeper.publisher.shown.send_modify(|shown| {
            shown.clock_ahead_seconds = (welcome.time > 0).then(|| clock.saturating_sub(welcome.time));
            match transport {
                Transport::Quic => shown.quic_problem = None,
                Transport::Tcp if shown.allowed == "auto" && shown.quic_problem.is_none() => {
                    let why = "QUIC had not connected when TCP did";
                    shown.quic_problem = Some(why.to_owned());
                }
                Transport::Tcp => {}
            }
            shown.sessions += 1;
            shown.replica = Some(welcome.replica.clone());
            shown.session = Some(welcome.session_id.clone());
        });
        self.take_welcome(&welcome);
    }

    /// The parts of a secondary link, where the session is over QUIC and the cloud knows such links.
    fn secondary_of(&self, greeted: &EstablishedSession) -> Option<SecondaryParts> {
        let features = &greeted.welcome.features;
        let is_known = features.iter().any(|feature| feature == control::FEATURE_SECONDARY_LINK);
        let is_quic = greeted.link.transport() == Transport::Quic;
        let control = self.keeper.secondary.clone().filter(|_| is_known && is_quic)?;
        let session_id = greeted.welcome.session_id.clone();
        let join = JoinSession { session_id, instance: self.keeper.instance.clone() };
        Some(SecondaryParts { control, dialer: self.dialer.clone(), join })
    }

    fn take_welcome(&mut self, welcome: &Welcome) {
        self.take_endpoints(&welcome.endpoints);
        self.signal_certificate(if welcome.renew {
            CertificateSignal::Renew
        } else {
            CertificateSignal::Nothing
        });
    }

    fn finish_session(&mut self, ended: Result<(LinkId, CloseReason), tokio::task::JoinError>) {
        let (id, reason) = match ended {
            Ok(ended) => ended,
            Err(error) => return tracing::error!(%error, "the task of the session with the cloud failed"),
        };
        self.links.remove(&id);
        self.pending_ping = self.pending_ping.filter(|(link, _)| *link != id);
        if self.supervisor.current() == Some(id) {
            tracing::warn!(%reason, "the link to the cloud is lost");
            self.keeper.publisher.shown.send_modify(|shown| shown.last_problem = Some(reason.to_string()));
        }
        self.supervisor.handle_closed(Instant::now(), id, reason.code, random_fraction());
    }

    fn take_identity(&mut self, identity: Option<Arc<EdgeIdentity>>) {
        let Some(identity) = identity else { return };
        self.identity = identity;
        self.dialer = self.dialer.with_config(dial_config(self.keeper, &self.identity, &self.told));
        self.supervisor.handle_identity(Instant::now(), random_fraction());
    }

    fn take_endpoints(&mut self, texts: &[String]) {
        let told = read_endpoints(texts);
        if told.is_empty() || told == self.told {
            return;
        }
        self.keeper.endpoints.send_replace(told.clone());
        self.told = told;
        self.dialer = self.dialer.with_config(dial_config(self.keeper, &self.identity, &self.told));
    }

    fn take_change(&mut self) {
        tracing::debug!("the network of this host has changed");
        let current = self.supervisor.current().and_then(|id| self.links.get(&id));
        if let (Some(secondary), Some(established)) = (&self.keeper.secondary, current) {
            secondary.handle_network_change(established.link.remote_address());
        }
        self.supervisor.handle_link_change(Instant::now());
    }

    fn suspect(&mut self) {
        if let Some(link) = self.supervisor.current() {
            self.supervisor.handle_suspect(Instant::now(), link);
        }
    }

    /// The time that a ping waits in this process before it is sent does not count as silence of the cloud.
    fn count_delay(&mut self, now: Instant) {
        if let Some((link, since)) = &mut self.pending_ping {
            self.supervisor.handle_late(*link, now.saturating_duration_since(*since));
            *since = now;
        }
    }

    fn take_timeout(&mut self) {
        self.count_delay(Instant::now());
        if let Some((id, active)) = self.supervisor.current().and_then(|id| Some((id, self.links.get(&id)?)))
        {
            // Bytes behind a gap in a stream cannot be read, and yet the cloud is there.
            let is_probing = self.supervisor.state() == SupervisorState::Ready { probing: true };
            let has_frames = |(link, frames)| link == id && active.link.frames_received() > frames;
            let heard = match is_probing && self.frames_at_ping.is_some_and(has_frames) {
                true => Instant::now(),
                false => active.link.last_heard(),
            };
            self.supervisor.handle_heard(id, heard, active.link.rtt());
        }
        self.supervisor.handle_timeout(Instant::now(), random_fraction());
    }

    fn signal_certificate(&self, signal_certificate: CertificateSignal) {
        // If the queue is full, a signal is pending already, and the next session repeats it.
        let _ = self.keeper.renew.try_send(signal_certificate);
    }

    fn hello(&self, epoch: u64) -> Hello {
        Hello {
            version: control::VERSION,
            epoch,
            held: self.keeper.services.netmaps.held(),
            software: concat!("causeway ", env!("CARGO_PKG_VERSION")).to_owned(),
            bundle_hash: tls::bundle_hash(&self.identity.authorities).to_vec().into(),
            time: unix_seconds(self.keeper.clock.now()),
            features: [control::FEATURE_PINGS_ACKNOWLEDGED, control::FEATURE_NEIGHBOURS]
                .map(str::to_owned)
                .to_vec(),
            instance: self.keeper.instance.clone(),
            tunnel: self.keeper.services.tunnel.clone(),
            switched_off: self.keeper.services.switched_off.clone(),
            neighbours: self.keeper.services.neighbours.neighbours(),
        }
    }

    fn report_problem(&mut self, problem: &str) {
        match self.supervisor.current() {
            Some(_) => tracing::debug!(problem, "no better link"),
            None if self.is_problem_logged => tracing::debug!(problem, "still no link to the cloud"),
            None => tracing::warn!(problem, "no link to the cloud; the edge keeps trying"),
        }
        self.is_problem_logged |= self.supervisor.current().is_none();
        self.keeper.publisher.shown.send_modify(|shown| {
            shown.last_problem = Some(problem.to_owned());
            // Beside a session over TCP only QUIC is tried.
            if shown.transport == Some(Transport::Tcp.as_str()) {
                shown.quic_problem = Some(problem.to_owned());
            }
        });
    }

    fn show(&self) {
        let id = self.supervisor.current();
        let link = id.and_then(|id| self.links.get(&id)).map(|active| active.link.clone());
        let state = state_word(self.supervisor.state());
        let transport = link.as_ref().map(|link| link.transport().as_str());
        let cloud = link.as_ref().map(|link| link.remote_address().to_string());
        self.keeper.publisher.shown.send_if_modified(|shown| {
            let differs = shown.state != state || shown.transport != transport || shown.cloud != cloud;
            if differs {
                shown.state = state.to_owned();
                (shown.transport, shown.cloud) = (transport, cloud);
            }
            differs
        });
        self.keeper.publisher.current.send_if_modified(|current| {
            let differs = current.as_ref().map(|(id, _)| *id) != id;
            if differs {
                self.keeper.publisher.retired.send_modify(|count| *count += 1);
                *current = id.zip(link);
            }
            differs
        });
    }

    async fn end(mut self) {
        if let Some(link) = self.supervisor.current() {
            let goodbye = Goodbye { reason: "the edge stops".to_owned() };
            self.command(link, LinkCommand::Send(goodbye.into()));
        }
        self.supervisor.handle_stop();
        self.act();
        self.links.clear();
        let goodbyes = async { while self.sessions.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(GOODBYE, goodbyes).await;
    }
}

fn dial_config(keeper: &LinkKeeper, identity: &EdgeIdentity, told: &[ChannelEndpoint]) -> DialConfig {
    let endpoints = match told.is_empty() {
        true => identity.dial(),
        false => dial_order(told, &identity.joined_at),
    };
    DialConfig {
        proxy: keeper.options.proxy.clone(),
        transports: match keeper.options.transports {
            AllowedTransports::Both => DialTransports::Both,
            AllowedTransports::QuicOnly => DialTransports::QuicOnly,
            AllowedTransports::TcpOnly => DialTransports::TcpOnly,
        },
        clock: keeper.clock.clone(),
        ..DialConfig::new(endpoints, identity.trust(), identity.credentials())
    }
}

fn state_word(state: SupervisorState) -> &'static str {
    match state {
        SupervisorState::BackingOff { .. } => "backing off",
        SupervisorState::Enrolling => "enrolling",
        SupervisorState::Connecting => "connecting",
        SupervisorState::Ready { probing: false } => "ready",
        SupervisorState::Ready { probing: true } => "probing",
        SupervisorState::Draining => "draining",
        SupervisorState::Stopped => "stopped",
    }
}

fn ms(milliseconds: u32) -> Duration {
    Duration::from_millis(milliseconds.into())
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due.into()).await,
        None => std::future::pending().await,
    }
}
