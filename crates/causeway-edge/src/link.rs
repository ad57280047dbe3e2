//! Keeps the one link to the cloud: does what the supervisor says, and tells it what happened.
//!
//! Identities come in as they change; the link in use goes out through `CurrentLink`. A cloud that is away is no error
//! here: this runs until told to stop. The decisions are in `causeway_channel::session`, a dial in `greeting`, a
//! session in `conversation`, what rides on it in `passengers`, the news of this machine's network in `changes`.

mod handshake;
mod network_changes;
mod services;
mod session_loop;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use causeway_api::error_chain;
use causeway_channel::clock::unix_seconds;
use causeway_channel::dial::{ConnectProxy, DialConfig, DialTransports, Dialer};
use causeway_channel::link::{CloseReason, Link, Transport};
use causeway_channel::session::{
    AllowedTransports, LinkId, Supervisor, SupervisorAction, SupervisorState, WelcomedSession,
};
use causeway_channel::tls;
use causeway_channel::wire::control::{self, Goodbye, Hello, INSTANCE_BYTES, Ping, Welcome};
use causeway_channel::{ChannelEndpoint, Clock, TokenSecret};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::edge::dice;
use crate::state::{EdgeIdentity, dial_order, read_endpoints};
use handshake::{EstablishedSession, HandshakeError, greet};
use network_changes::NetworkChanges;
use session_loop::{EdgeSessionLoop, LinkCommand, LinkEvent};

pub use services::{CloudStreamHandler, LinkFuture, LinkServices, NetmapHandler, SpoolFeed, SpoolQueue};

/// What the configuration says about the link.
#[derive(Debug, Clone, Default)]
pub struct LinkOptions {
    pub transports: AllowedTransports,
    /// `None`: direct.
    pub proxy: Option<ConnectProxy>,
}

/// The link in use, for whoever opens streams on it. Clones look at the same.
#[derive(Clone, Debug)]
pub struct CurrentLink {
    current: watch::Receiver<Option<(LinkId, Link)>>,
    /// Counts links that were announced to end, or replaced by another one.
    retired: watch::Receiver<u64>,
    shown: watch::Receiver<LinkState>,
    doubts: Arc<Notify>,
}

impl CurrentLink {
    /// `None` while the cloud is away.
    pub fn link(&self) -> Option<Link> {
        self.current.borrow().as_ref().map(|(_, link)| link.clone())
    }

    /// Resolves when another link is in use, or none.
    pub async fn changed(&mut self) {
        if self.current.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// Resolves when streams that are kept open for later use should be given up: the cloud announced the end of the link
    /// they are on, or another link is in use.
    pub async fn retired(&mut self) {
        if self.retired.changed().await.is_err() {
            std::future::pending().await
        }
    }

    /// A request makes no progress: find out at once whether the link is alive.
    pub fn suspect(&self) {
        self.doubts.notify_one();
    }

    /// For the admin dump.
    pub fn shown(&self) -> LinkState {
        let shown = self.shown.borrow().clone();
        let link = self.link();
        let figures = link.as_ref().map(Link::figures).unwrap_or_default();
        LinkState {
            rtt_ms: link.and_then(|link| link.rtt()).map(|rtt| rtt.as_secs_f64() * 1000.0),
            sent_bytes: figures.sent_bytes,
            received_bytes: figures.received_bytes,
            ..shown
        }
    }
}

/// How the link is doing.
#[derive(Clone, Debug, Default, serde::Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LinkState {
    pub state: String,
    pub transport: Option<&'static str>,
    pub cloud: Option<String>,
    pub replica: Option<String>,
    pub session: Option<String>,
    pub rtt_ms: Option<f64>,
    pub sent_bytes: u64,
    pub received_bytes: u64,
    /// Since the start of the process.
    pub sessions: u64,
    pub attempts: u64,
    /// Why the last attempt or session ended.
    pub last_problem: Option<String>,
    /// What the configuration allows: `auto`, `quic` or `tcp`.
    pub allowed: &'static str,
    /// TCP goes through an HTTP proxy.
    pub proxied: bool,
    /// Why the link is on TCP although QUIC is allowed.
    pub quic_problem: Option<String>,
    /// How far this host's clock was ahead of the cloud's when the session began; negative: behind.
    pub clock_ahead_seconds: Option<i64>,
}

/// Publishes the link in use and its state to the `CurrentLink` that was made with it.
pub struct LinkPublisher {
    current: watch::Sender<Option<(LinkId, Link)>>,
    shown: watch::Sender<LinkState>,
    retired: watch::Sender<u64>,
    doubts: Arc<Notify>,
}

impl LinkPublisher {
    /// Makes both ends. There is no link until a `LinkKeeper` runs with the publisher.
    pub fn new(options: &LinkOptions) -> (LinkPublisher, CurrentLink) {
        let allowed = match options.transports {
            AllowedTransports::Both => "auto",
            AllowedTransports::QuicOnly => "quic",
            AllowedTransports::TcpOnly => "tcp",
        };
        let proxied = options.proxy.is_some();
        let (current, current_seen) = watch::channel(None);
        let (shown, shown_seen) = watch::channel(LinkState { allowed, proxied, ..LinkState::default() });
        let (retired, retired_seen) = watch::channel(0);
        let doubts = Arc::new(Notify::new());
        let link = CurrentLink {
            current: current_seen,
            retired: retired_seen,
            shown: shown_seen,
            doubts: doubts.clone(),
        };
        (LinkPublisher { current, shown, retired, doubts }, link)
    }
}

/// Keeps the link.
pub struct LinkKeeper {
    options: LinkOptions,
    identity: watch::Receiver<Option<Arc<EdgeIdentity>>>,
    clock: Clock,
    passengers: LinkServices,
    publisher: LinkPublisher,
    /// Told when the cloud wants the certificate renewed, or doubts it.
    renew: mpsc::Sender<CertificateSignal>,
    /// Where the cloud says that it is, for the disk.
    endpoints: watch::Sender<Vec<ChannelEndpoint>>,
    /// Names this process to the cloud; see `Hello::instance`.
    instance: Bytes,
}

/// What a session learned about the certificate.
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
        passengers: LinkServices,
        renew: mpsc::Sender<CertificateSignal>,
        endpoints: watch::Sender<Vec<ChannelEndpoint>>,
    ) -> LinkKeeper {
        let instance = Bytes::copy_from_slice(&TokenSecret::generate().expose()[..INSTANCE_BYTES]);
        LinkKeeper { options, identity, clock, passengers, publisher, renew, endpoints, instance }
    }

    /// Keeps the link until told to stop, and says goodbye.
    pub async fn run(mut self, stop: CancellationToken) {
        let Some(identity) = self.first_identity(&stop).await else { return };
        let mut changes = NetworkChanges::watch();
        let (events, mut heard) = mpsc::channel(EVENTS_MAX);
        let mut round = Round::new(&self, identity, events);
        let (mut identity, doubts) = (self.identity.clone(), self.publisher.doubts.clone());
        loop {
            round.act();
            let due = round.machine.next_timeout();
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some((link, event)) = heard.recv() => round.take(link, event),
                Some(greeted) = round.dials.join_next() => round.finish_dial(greeted),
                Some(ended) = round.sessions.join_next() => round.finish_session(ended),
                Ok(()) = identity.changed() => {
                    let news = identity.borrow_and_update().clone();
                    round.take_identity(news);
                }
                () = changes.next() => round.take_change(),
                () = doubts.notified() => round.suspect(),
                () = sleep_until(due) => round.take_timeout(),
            }
        }
        round.end().await;
    }

    async fn first_identity(&mut self, stop: &CancellationToken) -> Option<Arc<EdgeIdentity>> {
        tokio::select! {
            biased;
            () = stop.cancelled() => None,
            known = self.identity.wait_for(Option::is_some) => known.ok()?.clone(),
        }
    }
}

/// Sessions tell little: drains and news.
const EVENTS_MAX: usize = 16;
const COMMANDS_MAX: usize = 16;
/// A goodbye has this long to leave.
const GOODBYE: Duration = Duration::from_secs(1);

/// A link that stands, with the task that talks on it.
struct Standing {
    link: Link,
    commands: mpsc::Sender<LinkCommand>,
}

type Dialled = (LinkId, Result<EstablishedSession, HandshakeError>);

/// Everything that lives while the keeper runs.
struct Round<'a> {
    keeper: &'a LinkKeeper,
    machine: Supervisor,
    identity: Arc<EdgeIdentity>,
    dialer: Dialer,
    /// Endpoints as the cloud told them in a session; they go before those on disk.
    told: Vec<ChannelEndpoint>,
    dials: JoinSet<Dialled>,
    attempts: HashMap<LinkId, AbortHandle>,
    sessions: JoinSet<(LinkId, CloseReason)>,
    links: HashMap<LinkId, Standing>,
    events: mpsc::Sender<(LinkId, LinkEvent)>,
    /// A ping that its session has not handed to the link yet, and since when.
    asking: Option<(LinkId, Instant)>,
    /// A cloud that is away for days is worth one line, not one every five seconds.
    complained: bool,
}

impl<'a> Round<'a> {
    fn new(
        keeper: &'a LinkKeeper,
        identity: Arc<EdgeIdentity>,
        events: mpsc::Sender<(LinkId, LinkEvent)>,
    ) -> Round<'a> {
        let since_1970 = keeper.clock.now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let epoch = since_1970.as_millis().min(u64::MAX.into()) as u64;
        Round {
            machine: Supervisor::new(epoch, keeper.options.transports, Instant::now()),
            dialer: Dialer::new(dial_config(keeper, &identity, &[])),
            keeper,
            identity,
            told: Vec::new(),
            dials: JoinSet::new(),
            attempts: HashMap::new(),
            sessions: JoinSet::new(),
            links: HashMap::new(),
            events,
            asking: None,
            complained: false,
        }
    }

    /// Does what the machine says, and shows where it stands.
    fn act(&mut self) {
        while let Some(action) = self.machine.next_action() {
            match action {
                SupervisorAction::Dial { link, epoch, transports, patience } => {
                    let hello = self.hello(epoch);
                    let (dialer, events) = (self.dialer.clone(), self.events.clone());
                    let dialed = move || drop(events.try_send((link, LinkEvent::Dialed)));
                    let greeting = greet(dialer, transports, patience, hello, dialed);
                    let task = self.dials.spawn(async move { (link, Box::pin(greeting).await) });
                    self.attempts.insert(link, task);
                    self.keeper.publisher.shown.send_modify(|shown| shown.attempts += 1);
                }
                SupervisorAction::Abandon { link } => {
                    if let Some(task) = self.attempts.remove(&link) {
                        task.abort();
                        self.complain("nobody answered in time");
                    }
                }
                SupervisorAction::Ping { link, nonce } => {
                    self.asking.get_or_insert((link, Instant::now()));
                    self.command(link, LinkCommand::Ask(Ping { nonce }.into()));
                }
                SupervisorAction::Rebind { .. } => {
                    if let Err(error) = self.dialer.rebind() {
                        tracing::debug!(%error, "the link cannot move to a new socket");
                    }
                }
                SupervisorAction::Linger { link, until } => self.command(link, LinkCommand::Linger(until)),
                SupervisorAction::Close { link, code } => self.command(link, LinkCommand::Close(code)),
                SupervisorAction::Renew => self.wish(CertificateSignal::Check),
            }
        }
        self.show();
    }

    fn command(&mut self, link: LinkId, command: LinkCommand) {
        let Some(standing) = self.links.get(&link) else { return };
        // A session that does not take its commands is stuck behind its own link; closing that frees it.
        if let Err(mpsc::error::TrySendError::Full(LinkCommand::Close(code))) =
            standing.commands.try_send(command)
        {
            standing.link.close(CloseReason::new(code, ""));
        }
    }

    fn take(&mut self, link: LinkId, event: LinkEvent) {
        let now = Instant::now();
        match event {
            LinkEvent::Dialed => self.machine.handle_dialed(now, link),
            LinkEvent::Asked => {
                self.count_delay(now);
                self.asking = None;
            }
            LinkEvent::Drain(drain) => {
                let (deadline, hint) = (ms(drain.deadline_ms), ms(drain.retry_hint_ms));
                tracing::info!(?deadline, "the cloud asks this edge to attach elsewhere");
                self.machine.handle_drain(now, link, deadline, hint, dice());
                self.keeper.publisher.retired.send_modify(|count| *count += 1);
            }
            LinkEvent::Hint(hint) => self.machine.handle_hint(link, ms(hint.retry_hint_ms)),
            LinkEvent::News(news) => {
                self.take_endpoints(&news.endpoints);
                if news.renew {
                    self.wish(CertificateSignal::Renew);
                }
            }
        }
    }

    fn finish_dial(&mut self, dialled: Result<Dialled, tokio::task::JoinError>) {
        // One that was abandoned is not missed by anybody.
        let Ok((id, result)) = dialled else { return };
        self.attempts.remove(&id);
        let now = Instant::now();
        match result {
            Ok(greeted) => self.begin(id, greeted, now),
            Err(error) => {
                self.complain(&error_chain(&error));
                self.machine.handle_failed(now, id, error.failure(), dice());
            }
        }
    }

    fn begin(&mut self, id: LinkId, greeted: EstablishedSession, now: Instant) {
        let welcome = greeted.welcome.clone();
        let link = greeted.link.clone();
        let welcomed = WelcomedSession {
            transport: link.transport(),
            keepalive: ms(welcome.keepalive_ms),
            retry_hint: ms(welcome.retry_hint_ms),
        };
        self.machine.handle_welcome(now, id, welcomed);
        if self.machine.current() != Some(id) {
            // The attempt had been given up; the link ends with its last handle.
            return;
        }
        tracing::info!(
            transport = link.transport().as_str(), cloud = %link.remote_address(), replica = welcome.replica,
            session = welcome.session_id, "connected to the cloud"
        );
        self.complained = false;
        let (commands, taken) = mpsc::channel(COMMANDS_MAX);
        let talk = EdgeSessionLoop::new(id, greeted, self.keeper.passengers.clone(), self.events.clone());
        let talking = async move { (id, Box::pin(talk.run(taken)).await) };
        match link.home() {
            Some(home) => self.sessions.spawn_on(talking, home),
            None => self.sessions.spawn(talking),
        };
        self.links.insert(id, Standing { link, commands });
        let (clock, transport) = (unix_seconds(self.keeper.clock.now()), welcomed.transport);
        self.keeper.publisher.shown.send_modify(|shown| {
            shown.clock_ahead_seconds = (welcome.time > 0).then(|| clock.saturating_sub(welcome.time));
            match transport {
                Transport::Quic => shown.quic_problem = None,
                Transport::Tcp if shown.allowed == "auto" && shown.quic_problem.is_none() => {
                    let why = "QUIC had given no answer when TCP was connected";
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

    fn take_welcome(&mut self, welcome: &Welcome) {
        self.take_endpoints(&welcome.endpoints);
        self.wish(if welcome.renew { CertificateSignal::Renew } else { CertificateSignal::Nothing });
    }

    fn finish_session(&mut self, ended: Result<(LinkId, CloseReason), tokio::task::JoinError>) {
        let (id, reason) = match ended {
            Ok(ended) => ended,
            Err(error) => return tracing::error!(%error, "a session failed"),
        };
        self.links.remove(&id);
        self.asking = self.asking.filter(|(link, _)| *link != id);
        if self.machine.current() == Some(id) {
            tracing::warn!(%reason, "the link to the cloud is lost");
            self.keeper.publisher.shown.send_modify(|shown| shown.last_problem = Some(reason.to_string()));
        }
        self.machine.handle_closed(Instant::now(), id, reason.code, dice());
    }

    fn take_identity(&mut self, identity: Option<Arc<EdgeIdentity>>) {
        let Some(identity) = identity else { return };
        self.identity = identity;
        self.dialer = self.dialer.with_config(dial_config(self.keeper, &self.identity, &self.told));
        self.machine.handle_identity(Instant::now(), dice());
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
        tracing::debug!("the network of this machine has changed");
        self.machine.handle_link_change(Instant::now());
    }

    fn suspect(&mut self) {
        if let Some(link) = self.machine.current() {
            self.machine.handle_suspect(Instant::now(), link);
        }
    }

    /// A ping that waits for its turn in this process has not been asked yet: that time is no silence of the cloud.
    fn count_delay(&mut self, now: Instant) {
        if let Some((link, since)) = &mut self.asking {
            self.machine.handle_late(*link, now.saturating_duration_since(*since));
            *since = now;
        }
    }

    fn take_timeout(&mut self) {
        self.count_delay(Instant::now());
        if let Some((id, standing)) = self.machine.current().and_then(|id| Some((id, self.links.get(&id)?))) {
            self.machine.handle_heard(id, standing.link.last_heard(), standing.link.rtt());
        }
        self.machine.handle_timeout(Instant::now(), dice());
    }

    fn wish(&self, wish: CertificateSignal) {
        // Full: one is on its way already, and the next session will say it again.
        let _ = self.keeper.renew.try_send(wish);
    }

    fn hello(&self, epoch: u64) -> Hello {
        Hello {
            version: control::VERSION,
            epoch,
            held: self.keeper.passengers.netmaps.held(),
            software: concat!("causeway ", env!("CARGO_PKG_VERSION")).to_owned(),
            bundle_hash: tls::bundle_hash(&self.identity.authorities).to_vec().into(),
            time: unix_seconds(self.keeper.clock.now()),
            features: vec![control::FEATURE_PINGS_ACKNOWLEDGED.to_owned()],
            instance: self.keeper.instance.clone(),
        }
    }

    fn complain(&mut self, problem: &str) {
        match self.machine.current() {
            Some(_) => tracing::debug!(problem, "no better link"),
            None if self.complained => tracing::debug!(problem, "still no link to the cloud"),
            None => tracing::warn!(problem, "no link to the cloud; trying on"),
        }
        self.complained |= self.machine.current().is_none();
        self.keeper.publisher.shown.send_modify(|shown| {
            shown.last_problem = Some(problem.to_owned());
            // Beside a session over TCP only QUIC is tried.
            if shown.transport == Some(Transport::Tcp.as_str()) {
                shown.quic_problem = Some(problem.to_owned());
            }
        });
    }

    fn show(&self) {
        let id = self.machine.current();
        let link = id.and_then(|id| self.links.get(&id)).map(|standing| standing.link.clone());
        let state = state_word(self.machine.state());
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
        if let Some(link) = self.machine.current() {
            let goodbye = Goodbye { reason: "the edge stops".to_owned() };
            self.command(link, LinkCommand::Say(goodbye.into()));
        }
        self.machine.handle_stop();
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
