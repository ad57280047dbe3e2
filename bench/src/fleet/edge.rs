//! One simulated edge: the real dialer, the real supervisor and the real messages, without disk, renewal and traffic.
//!
//! Its events are recorded in `EdgeEvents`. It accepts netmaps as an edge does and reports them as persisted
//! at once.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use causeway_channel::clock::unix_seconds;
use causeway_channel::dial::{AttemptError, DialError, LinkDialer};
use causeway_channel::link::{CloseCode, CloseReason, Link, RecvStream, SendStream, StreamPurpose};
use causeway_channel::quic::ConnectError;
use causeway_channel::session::{
    AllowedTransports, AttemptFailure, AttemptedTransports, LinkId, Supervisor, SupervisorAction,
    WelcomedSession,
};
use causeway_channel::wire::control::{
    self, CloudMessage, CloudMessageBody, ControlReader, ControlWriter, EdgeMessage, HeldNetmap, Hello,
    NetmapAck, NetmapRefused, Ping, Welcome, encode_edge,
};
use causeway_channel::{StreamHeader, TokenSecret, probe};
use causeway_netmap::NetmapStamp;
use causeway_netmap::sync::{NetmapReceiver, NetmapReply, ReceiverStep};
use tokio_util::sync::CancellationToken;

use super::edge_events::EdgeEvents;

pub struct Edge {
    pub number: usize,
    pub dialer: LinkDialer,
    pub bundle_hash: bytes::Bytes,
    pub allowed: AllowedTransports,
    pub events: Arc<EdgeEvents>,
}

/// A session that the cloud has accepted.
struct Session {
    id: LinkId,
    link: Link,
    reader: ControlReader<RecvStream, CloudMessage>,
    writer: ControlWriter<SendStream>,
}

/// An attempt has two steps, and the supervisor is told of each.
enum Progress {
    Dialled(Link),
    Welcomed(Box<Session>, Welcome),
}

/// The reason why an attempt failed.
struct Failed {
    failure: AttemptFailure,
    /// The cloud was reachable and refused.
    is_refusal: bool,
    word: String,
}

type Attempt = Pin<Box<dyn Future<Output = Result<Progress, Failed>> + Send>>;

enum Event {
    Said(Box<CloudMessage>),
    Nothing,
    Closed(CloseCode),
}

impl Edge {
    /// Keeps a session until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let mut machine = Supervisor::new(epoch, self.allowed, Instant::now());
        let mut attempt: Option<(LinkId, Attempt)> = None;
        let mut session: Option<Box<Session>> = None;
        let mut netmap = NetmapReceiver::default();
        loop {
            while let Some(action) = machine.next_action() {
                match action {
                    SupervisorAction::Dial { link, transports, patience, .. } => {
                        self.events.note_attempt(self.number);
                        attempt = Some((link, Box::pin(dial(self.dialer.clone(), transports, patience))));
                    }
                    SupervisorAction::Abandon { .. } => {
                        self.events.note_failed(self.number, "abandoned: no answer in time", false);
                        attempt = None;
                    }
                    SupervisorAction::Ping { .. } => {
                        self.events.idle.note_ping();
                        say(&mut session, Ping::default());
                    }
                    // It has no streams of other peers that could continue.
                    SupervisorAction::Linger { link, .. } | SupervisorAction::Close { link, .. } => {
                        if let Some(old) = session.take_if(|session| session.id == link) {
                            old.link.close(CloseReason::new(CloseCode::Done, ""));
                            self.events.note_left(self.number);
                        }
                    }
                    SupervisorAction::Rebind { .. } | SupervisorAction::Renew => {}
                }
            }
            let due = machine.next_timeout().unwrap_or_else(|| Instant::now() + Duration::from_secs(3600));
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                event = next_event(&mut session) => match (event, &session) {
                    (Event::Said(message), Some(hears)) => {
                        self.events.idle.note_heard();
                        if let Some(CloudMessageBody::Hint(hint)) = &message.body {
                            machine.handle_hint(hears.id, Duration::from_millis(hint.retry_hint_ms.into()));
                        }
                        self.hear(*message, &mut session, &mut netmap);
                    }
                    (Event::Closed(code), Some(closed)) => {
                        let id = closed.id;
                        session = None;
                        self.events.idle.note_lost();
                        self.events.note_left(self.number);
                        machine.handle_closed(Instant::now(), id, code, jitter());
                    }
                    _ => {}
                },
                (link, progress) = next_progress(&mut attempt) => match progress {
                    Ok(Progress::Dialled(stands)) => {
                        machine.handle_dialed(Instant::now(), link);
                        let greeting = greet(link, stands, self.hello(machine.epoch(), &netmap));
                        attempt = Some((link, Box::pin(greeting)));
                    }
                    Ok(Progress::Welcomed(welcomed, welcome)) => {
                        attempt = None;
                        let transport = welcomed.link.transport();
                        let ms = |number: u32| Duration::from_millis(number.into());
                        let (keepalive, retry_hint) = (ms(welcome.keepalive_ms), ms(welcome.retry_hint_ms));
                        machine.handle_welcome(Instant::now(), link, WelcomedSession { transport, keepalive, retry_hint });
                        self.events.note_attached(self.number, &welcomed.link);
                        session = Some(welcomed);
                    }
                    Err(failed) => {
                        attempt = None;
                        self.events.note_failed(self.number, &failed.word, failed.is_refusal);
                        machine.handle_failed(Instant::now(), link, failed.failure, jitter());
                        self.events.note_plan(self.number, failed.failure, machine.next_timeout());
                    }
                },
                () = tokio::time::sleep_until(due.into()) => {
                    if let Some(session) = &session {
                        machine.handle_heard(session.id, session.link.last_heard(), session.link.rtt());
                    }
                    machine.handle_timeout(Instant::now(), jitter());
                }
            }
        }
        self.events.note_left(self.number);
    }

    fn hello(&self, epoch: u64, netmap: &NetmapReceiver) -> Hello {
        Hello {
            version: control::VERSION,
            epoch,
            held: netmap.held().map(|netmap| held(netmap.stamp())),
            software: "causeway bench".to_owned(),
            bundle_hash: self.bundle_hash.clone(),
            time: unix_seconds(SystemTime::now()),
            features: vec![control::FEATURE_PINGS_ACKNOWLEDGED.to_owned()],
            instance: bytes::Bytes::new(),
            tunnel: None,
            switched_off: Vec::new(),
            neighbours: Vec::new(),
        }
    }

    fn hear(&self, message: CloudMessage, session: &mut Option<Box<Session>>, netmap: &mut NetmapReceiver) {
        let Some(CloudMessageBody::Netmap(update)) = message.body else { return };
        let reply = match netmap.handle_bytes(&update.update) {
            ReceiverStep::Persist(next) => netmap.handle_persisted(next, Ok(())),
            ReceiverStep::Reply(reply) => reply,
        };
        self.events.note_netmap(matches!(reply, NetmapReply::Acknowledged(_)));
        match reply {
            NetmapReply::Acknowledged(stamp) => {
                say(session, NetmapAck { held: Some(held(stamp)), ..NetmapAck::default() });
            }
            NetmapReply::InForce { stamp, not_persisted } => {
                say(session, NetmapAck { held: Some(held(stamp)), not_persisted });
            }
            NetmapReply::Refused(refusal) => say(
                session,
                NetmapRefused {
                    target: refusal.offered.map(held),
                    reason: refusal.reason,
                    want_whole: refusal.want_whole,
                    held: netmap.held().map(|netmap| held(netmap.stamp())),
                },
            ),
        }
    }
}

impl Session {
    async fn next(&mut self) -> Event {
        tokio::select! {
            biased;
            closed = self.link.closed() => Event::Closed(closed.reason.code),
            written = self.writer.drain(), if !self.writer.is_empty() => match written {
                Ok(()) => Event::Nothing,
                Err(_) => Event::Closed(self.link.closed().await.reason.code),
            },
            heard = self.reader.next() => match heard {
                Ok(Some(message)) => Event::Said(Box::new(message)),
                _ => Event::Closed(self.link.closed().await.reason.code),
            },
            accepted = self.link.accept_stream() => {
                if let Ok((header, stream)) = accepted {
                    tokio::spawn(async move { probe::answer(&header, stream).await });
                }
                Event::Nothing
            }
        }
    }
}

async fn next_event(session: &mut Option<Box<Session>>) -> Event {
    match session {
        Some(session) => session.next().await,
        None => std::future::pending().await,
    }
}

async fn next_progress(attempt: &mut Option<(LinkId, Attempt)>) -> (LinkId, Result<Progress, Failed>) {
    match attempt {
        Some((link, attempt)) => (*link, attempt.await),
        None => std::future::pending().await,
    }
}

async fn dial(
    dialer: LinkDialer,
    transports: AttemptedTransports,
    patience: Duration,
) -> Result<Progress, Failed> {
    let dialled = dialer.dial_with(transports.transport(), patience).await;
    dialled.map(Progress::Dialled).map_err(|error| Failed {
        failure: AttemptFailure::of_dial(&error),
        is_refusal: is_refusal(&error),
        word: word(&error),
    })
}

async fn greet(id: LinkId, link: Link, hello: Hello) -> Result<Progress, Failed> {
    let broken = |is_refusal, word: String| Failed { failure: AttemptFailure::Unreachable, is_refusal, word };
    let opened = link.open_stream(StreamHeader::new(StreamPurpose::Control)).await;
    let (send, recv) = opened.map_err(|error| broken(true, format!("after the handshake: {error}")))?.split();
    let (mut reader, mut writer) = (ControlReader::of_cloud(recv), ControlWriter::new(send));
    if let Ok(frame) = encode_edge(hello) {
        writer.push(frame);
    }
    writer.drain().await.map_err(|error| broken(true, format!("saying hello: {error}")))?;
    let answer = tokio::select! {
        biased;
        answer = reader.next() => answer,
        closed = link.closed() => return Err(broken(true, format!("before the welcome: {closed}"))),
    };
    match answer.ok().flatten().and_then(|message| message.body) {
        Some(CloudMessageBody::Welcome(welcome)) => {
            Ok(Progress::Welcomed(Box::new(Session { id, link, reader, writer }), welcome))
        }
        Some(CloudMessageBody::Refused(refused)) => Err(Failed {
            failure: AttemptFailure::Refused {
                code: refused.reason(),
                retry_after: Duration::from_millis(refused.retry_after_ms.into()),
                current_epoch: refused.current_epoch,
            },
            is_refusal: true,
            word: format!("refused: {}", refused.reason().word()),
        }),
        _ => Err(broken(true, "no welcome".to_owned())),
    }
}

/// Tells whether a peer was reachable and refused. A cloud that is starting is not reachable.
fn is_refusal(error: &DialError) -> bool {
    error.failed().iter().any(|failed| match &failed.error {
        AttemptError::Quic(ConnectError::Failed(closed)) => closed.reason.code != CloseCode::Dead,
        AttemptError::Quic(ConnectError::Busy(_)) => true,
        AttemptError::Handshake(_) | AttemptError::NotChannel | AttemptError::WrongAuthority => true,
        _ => false,
    })
}

/// The kind of a failure, without addresses: for counting.
fn word(error: &DialError) -> String {
    let Some(first) = error.failed().first() else { return error.to_string() };
    match &first.error {
        AttemptError::Connect(cause) | AttemptError::Socket(cause) | AttemptError::Handshake(cause) => {
            format!("{}: {}", first.error, cause.kind())
        }
        AttemptError::Quic(ConnectError::Busy(_)) => "told to come again later".to_owned(),
        AttemptError::Quic(ConnectError::Failed(closed)) => format!("{}: {closed}", first.error),
        other => other.to_string(),
    }
}

fn say(session: &mut Option<Box<Session>>, message: impl Into<EdgeMessage>) {
    if let (Some(session), Ok(frame)) = (session, encode_edge(message)) {
        session.writer.push(frame);
    }
}

fn held(stamp: NetmapStamp) -> HeldNetmap {
    let NetmapStamp { generation, digest, turn } = stamp;
    HeldNetmap {
        epoch: generation.epoch,
        revision: generation.revision,
        digest: digest.0.to_vec().into(),
        turn,
    }
}

fn jitter() -> f64 {
    let secret = TokenSecret::generate();
    let [high, low, ..] = *secret.expose();
    f64::from(u16::from_be_bytes([high, low])) / f64::from(u16::MAX)
}
