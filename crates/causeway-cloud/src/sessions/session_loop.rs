//! One session of the cloud, from the welcome to the end of its link.
//!
//! Reads what the edge says and hands it to whom it concerns, writes what is to be said, accepts the edge's
//! streams, and calls the session dead after too long a silence. Only the edge asks for signs of life; here
//! they are only counted.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use causeway_channel::clock::UtcTimestamp;
use causeway_channel::link::{
    CloseCode, CloseReason, RecvStream, ResetCode, SendStream, StreamPurpose, Transport,
};
use causeway_channel::probe;
use causeway_channel::session::SILENCE_MAX;
use causeway_channel::wire::control::{
    CloudMessage, ControlError, ControlReader, ControlWriter, EdgeMessage, EdgeMessageBody,
    FEATURE_PINGS_ACKNOWLEDGED, Hello, Pong, SpoolAck, encode_cloud,
};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use super::services::{EdgeStreamHandler, NetmapSender, SessionFuture};
use super::{Session, Shared};

/// A command to a session.
#[derive(Debug)]
pub enum SessionCommand {
    Say(Bytes),
    /// Another session took over: end when the open streams have ended, or at that moment.
    Linger(Instant),
    /// The newer session has ended first.
    Stay,
    Close(CloseReason),
}

/// While it lingers, a link is looked at this often.
const LINGER_LOOK: Duration = Duration::from_millis(500);
/// The clock of the cloud is looked at this often.
const CLOCK_LOOK: Duration = Duration::from_secs(10);
/// An alarm that rings later than this was not late by chance.
const LATE: Duration = Duration::from_millis(500);
/// The control stream itself.
const OWN_STREAMS: u64 = 1;
/// Messages waiting to be written; beyond it the session stops reading until the edge has taken some.
const WAITING_MAX: usize = 16;
/// Streams of the peer that are accepted in one turn: each is a task, and the link is one of many, too.
const STREAMS_AT_ONCE: usize = 64;
/// The last words of a session that is closed have this long to leave.
const LAST_WORDS: Duration = Duration::from_millis(200);

pub struct CloudSessionLoop {
    shared: Arc<Shared>,
    session: Arc<Session>,
    reader: ControlReader<RecvStream, EdgeMessage>,
    writer: ControlWriter<SendStream>,
    netmaps: Box<dyn NetmapSender>,
    /// The edge hears from its transport that a ping has arrived.
    is_acknowledged: bool,
    /// A batch that is being kept. The edge sends one at a time.
    taking: Option<SessionFuture<'static, Option<SpoolAck>>>,
    lingers_until: Option<Instant>,
    /// Serves the streams that the edge opens.
    edge_streams: Arc<dyn EdgeStreamHandler>,
    streams: JoinSet<()>,
    probes: Arc<Semaphore>,
    /// Streams that were accepted so far.
    accepted: usize,
}

impl CloudSessionLoop {
    pub fn new(
        shared: Arc<Shared>,
        session: Arc<Session>,
        hello: &Hello,
        (reader, writer): (ControlReader<RecvStream, EdgeMessage>, ControlWriter<SendStream>),
        edge_streams: Arc<dyn EdgeStreamHandler>,
    ) -> CloudSessionLoop {
        let netmaps = shared.services.netmaps.open(&session.peer, hello);
        let understands = hello.features.iter().any(|feature| feature == FEATURE_PINGS_ACKNOWLEDGED);
        let is_acknowledged = understands && session.link.transport() == Transport::Quic;
        let (taking, lingers_until, streams) = (None, None, JoinSet::new());
        CloudSessionLoop {
            shared,
            session,
            reader,
            writer,
            netmaps,
            is_acknowledged,
            taking,
            lingers_until,
            edge_streams,
            streams,
            probes: Arc::new(Semaphore::new(probe::ANSWERED_MAX)),
            accepted: 0,
        }
    }

    /// Goes on until the link ends, then leaves the table.
    pub async fn run(mut self) {
        let _counted = self.shared.metrics.session(self.session.link.transport());
        let reason = self.talk().await;
        self.session.link.close(reason.clone());
        self.shared.metrics.count_ended(&reason.code.to_string());
        self.shared.handle_ended(&self.session, &reason);
    }

    async fn talk(&mut self) -> CloseReason {
        let session = self.session.clone();
        let link = &session.link;
        // Looked at when it rings, not with every word: an idle session is woken for pings alone.
        let mut alarm = pin!(sleep_until(self.next_look()));
        loop {
            let lingers = self.lingers_until.is_some();
            tokio::select! {
                biased;
                command = session.commands.next() => match command {
                    SessionCommand::Say(frame) => self.writer.push(frame),
                    SessionCommand::Linger(until) => {
                        self.lingers_until = Some(until);
                        alarm.as_mut().reset(self.next_look());
                    }
                    SessionCommand::Stay => {
                        self.lingers_until = None;
                        alarm.as_mut().reset(self.next_look());
                    }
                    SessionCommand::Close(reason) => return self.last_words(reason).await,
                },
                closed = link.closed() => return closed.reason,
                written = self.writer.drain(), if !self.writer.is_empty() => if let Err(error) = written {
                    return self.broken(&error).await;
                },
                heard = self.reader.next(), if self.writer.len() < WAITING_MAX => match heard {
                    Ok(Some(message)) => if let Some(reason) = self.hear(message) {
                        return reason;
                    },
                    Ok(None) => return self.gone().await,
                    Err(error) => return self.broken(&error).await,
                },
                ack = taken(&mut self.taking) => {
                    self.taking = None;
                    if let Some(ack) = ack {
                        self.say(ack);
                    }
                }
                update = self.netmaps.next(), if !lingers && self.writer.is_empty() => self.say(update),
                Some(_) = self.streams.join_next() => {}
                accepted = link.accept_stream() => if let Ok((header, stream)) = accepted {
                    self.accepted = self.accepted.wrapping_add(1);
                    if self.accepted.is_multiple_of(STREAMS_AT_ONCE) {
                        // Those that were begun get their first turn, and the link its own, before more are.
                        tokio::task::yield_now().await;
                    }
                    match header.purpose() {
                        Some(StreamPurpose::Control) => stream.refuse(ResetCode::Malformed),
                        Some(StreamPurpose::Probe) => match self.probes.clone().try_acquire_owned() {
                            Ok(place) => drop(self.streams.spawn(async move {
                                probe::answer(&header, stream).await;
                                drop(place);
                            })),
                            Err(_) => stream.refuse(ResetCode::Limit),
                        },
                        _ => {
                            self.streams.spawn(self.edge_streams.serve(&session.peer, header, stream));
                        }
                    }
                },
                () = alarm.as_mut() => match self.look() {
                    // This replica was too busy to read the messages of the edge: the link gets its turn
                    // first.
                    Some(reason) if reason.code == CloseCode::Dead && alarm.deadline().elapsed() > LATE => {
                        alarm.as_mut().reset(Instant::now() + LATE);
                    }
                    Some(reason) => return reason,
                    None => alarm.as_mut().reset(self.next_look()),
                },
            }
        }
    }

    /// Is it over by the clock?
    fn look(&self) -> Option<CloseReason> {
        if self.lingers_until.is_none() {
            self.session.link.raise_receive_window();
        }
        if let Some(expired) = self.expired() {
            return Some(expired);
        }
        if self.session.link.last_heard().elapsed() >= SILENCE_MAX {
            return Some(CloseReason::new(CloseCode::Dead, "nothing was heard for ten seconds"));
        }
        let is_over = self.lingers_until.is_some() && self.is_over();
        is_over.then(|| CloseReason::new(CloseCode::Superseded, "a newer session took over"))
    }

    fn next_look(&self) -> Instant {
        let silent = Instant::from_std(self.session.link.last_heard() + SILENCE_MAX);
        let lingers = self.lingers_until.map(|until| until.min(Instant::now() + LINGER_LOOK));
        let expires = Instant::now() + valid_for(self.shared.registrar.time(), self.session.not_after);
        lingers.map_or(silent, |look| look.min(silent)).min(expires)
    }

    /// The certificate of the session's link has ended. An edge that has renewed it has had another session
    /// since.
    fn expired(&self) -> Option<CloseReason> {
        (self.shared.registrar.time() > self.session.not_after).then(|| {
            let end = UtcTimestamp(self.session.not_after);
            let text = format!("the certificate of this session expired at {end}; renew it and come again");
            CloseReason::new(CloseCode::CertificateExpired, text)
        })
    }

    /// The reason to end the session, if the message is one.
    fn hear(&mut self, message: EdgeMessage) -> Option<CloseReason> {
        match message.says {
            Some(EdgeMessageBody::Ping(ping)) => {
                if !self.is_acknowledged {
                    self.say(Pong { nonce: ping.nonce });
                }
                return self.expired();
            }
            Some(EdgeMessageBody::NetmapAck(ack)) => {
                self.session.set_held(ack.held.as_ref());
                self.netmaps.handle_ack(ack);
            }
            Some(EdgeMessageBody::NetmapRefused(refused)) => {
                self.session.set_held(refused.held.as_ref());
                self.netmaps.handle_refused(refused);
            }
            Some(EdgeMessageBody::Spool(batch)) if self.taking.is_none() => {
                self.taking = Some(self.shared.services.spool.take(&self.session.peer, batch));
            }
            Some(EdgeMessageBody::Path(query)) => {
                let report = self.session.handle_path_query(&query);
                self.say(report);
            }
            Some(EdgeMessageBody::Goodbye(goodbye)) => {
                let text: String = goodbye.reason.chars().take(200).collect();
                return Some(CloseReason::new(CloseCode::Done, text));
            }
            // A second hello, a batch before the last one is answered, or words of a newer edge.
            other => tracing::debug!(peer = %self.session.peer, ?other, "the edge says something unexpected"),
        }
        None
    }

    fn say(&mut self, message: impl Into<CloudMessage>) {
        match encode_cloud(message) {
            Ok(frame) => self.writer.push(frame),
            Err(error) => {
                tracing::error!(peer = %self.session.peer, %error, "a message to the edge was dropped")
            }
        }
    }

    fn is_over(&self) -> bool {
        let due = self.lingers_until.is_some_and(|until| Instant::now() >= until);
        due || self.session.link.stats().streams_open <= OWN_STREAMS
    }

    async fn last_words(&mut self, reason: CloseReason) -> CloseReason {
        let _ = timeout(LAST_WORDS, self.writer.drain()).await;
        reason
    }

    // The stream says less than the link, which may be a moment late.
    async fn gone(&mut self) -> CloseReason {
        match timeout(LAST_WORDS, self.session.link.closed()).await {
            Ok(closed) => closed.reason,
            Err(_) => CloseReason::new(CloseCode::Malformed, "the control stream ended"),
        }
    }

    async fn broken(&mut self, error: &ControlError) -> CloseReason {
        match error {
            ControlError::TooLong { .. } | ControlError::Malformed(_) => {
                CloseReason::new(CloseCode::Malformed, error.to_string())
            }
            _ => self.gone().await,
        }
    }
}

/// Returns the remaining validity of a certificate by the clock of the cloud, plus a millisecond, and never
/// more than `CLOCK_LOOK`: the clock may be set meanwhile.
fn valid_for(now: SystemTime, not_after: SystemTime) -> Duration {
    let rest = not_after.duration_since(now).unwrap_or_default();
    (rest + Duration::from_millis(1)).min(CLOCK_LOOK)
}

async fn taken(taking: &mut Option<SessionFuture<'static, Option<SpoolAck>>>) -> Option<SpoolAck> {
    match taking {
        Some(taking) => taking.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use causeway_channel::clock::from_unix_seconds;

    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_looked_for_when_it_is_due_and_at_least_every_ten_seconds() {
        let now = from_unix_seconds(1_800_000_000);
        let check = |rest: Duration, expected: Duration| assert_eq!(valid_for(now, now + rest), expected);
        let ms = Duration::from_millis;
        check(Duration::ZERO, ms(1));
        check(ms(300), ms(301));
        check(Duration::from_secs(86_400), CLOCK_LOOK);
        // The clock was set forward beyond the end.
        assert_eq!(valid_for(now + CLOCK_LOOK, now), ms(1));
    }
}
