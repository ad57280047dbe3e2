//! One session of the cloud, from the welcome to the end of its link.
//!
//! Reads messages of the edge and passes them to the services, writes messages of the cloud, accepts the
//! streams of the edge, and closes the session when the edge was silent for too long. Only the edge sends
//! pings; the cloud counts them.

use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use causeway_channel::clock::UtcTimestamp;
use causeway_channel::link::{
    CloseCode, CloseReason, RecvStream, ResetCode, SendStream, StreamPurpose, Transport,
};
use causeway_channel::probe;
use causeway_channel::session::{SilenceVerdict, SilenceWatch};
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
    Send(Bytes),
    /// Another session took over: end when the open streams have ended, or at that moment.
    Linger(Instant),
    /// The newer session has ended first.
    Stay,
    Close(CloseReason),
}

/// The interval at which a lingering link is checked for open streams.
const LINGER_CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// The longest time between two checks of the certificate against the clock of the cloud.
const CLOCK_CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// A timer that fires later than this means that this replica is overloaded.
const LATE: Duration = Duration::from_millis(500);
/// The control stream itself.
const OWN_STREAMS: u64 = 1;
/// Messages waiting to be written; beyond it the session stops reading until the edge has taken some.
const WAITING_MAX: usize = 16;
/// After accepting this many streams in a row the session yields: each stream is a task, and other tasks
/// share the thread.
const STREAMS_AT_ONCE: usize = 64;
/// The time within which the last messages of a closing session must be sent.
const CLOSE_FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

pub struct CloudSessionLoop {
    shared: Arc<Shared>,
    session: Arc<Session>,
    reader: ControlReader<RecvStream, EdgeMessage>,
    writer: ControlWriter<SendStream>,
    netmaps: Box<dyn NetmapSender>,
    /// The transport of the edge reports that a ping has arrived; no pong is needed.
    is_acknowledged: bool,
    /// The answer to a spool batch that is being stored. The edge sends one batch at a time.
    storing_batch: Option<SessionFuture<'static, Option<SpoolAck>>>,
    lingers_until: Option<Instant>,
    /// Serves the streams that the edge opens.
    edge_streams: Arc<dyn EdgeStreamHandler>,
    streams: JoinSet<()>,
    probes: Arc<Semaphore>,
    /// Streams that were accepted so far.
    accepted: usize,
    silence: SilenceWatch,
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
        let (storing_batch, lingers_until, streams) = (None, None, JoinSet::new());
        CloudSessionLoop {
            shared,
            session,
            reader,
            writer,
            netmaps,
            is_acknowledged,
            storing_batch,
            lingers_until,
            edge_streams,
            streams,
            probes: Arc::new(Semaphore::new(probe::ANSWERED_MAX)),
            accepted: 0,
            silence: SilenceWatch::default(),
        }
    }

    /// Runs until the link ends, then removes the session from the table.
    pub async fn run(mut self) {
        let _counted = self.shared.metrics.session(self.session.link.transport());
        let reason = self.run_loop().await;
        self.session.link.close(reason.clone());
        self.shared.metrics.count_ended(&reason.code.to_string());
        self.shared.handle_ended(&self.session, &reason);
    }

    async fn run_loop(&mut self) -> CloseReason {
        let session = self.session.clone();
        let link = &session.link;
        // Reset when it fires, not with every message: an idle session is woken for pings alone.
        let mut alarm = pin!(sleep_until(self.next_check()));
        loop {
            let lingers = self.lingers_until.is_some();
            tokio::select! {
                biased;
                command = session.commands.next() => match command {
                    SessionCommand::Send(frame) => self.writer.push(frame),
                    SessionCommand::Linger(until) => {
                        self.lingers_until = Some(until);
                        alarm.as_mut().reset(self.next_check());
                    }
                    SessionCommand::Stay => {
                        self.lingers_until = None;
                        alarm.as_mut().reset(self.next_check());
                    }
                    SessionCommand::Close(reason) => return self.flush_and_close(reason).await,
                },
                closed = link.closed() => return closed.reason,
                written = self.writer.drain(), if !self.writer.is_empty() => if let Err(error) = written {
                    return self.close_reason_of_error(&error).await;
                },
                received = self.reader.next(), if self.writer.len() < WAITING_MAX => match received {
                    Ok(Some(message)) => if let Some(reason) = self.handle_message(message) {
                        return reason;
                    },
                    Ok(None) => return self.close_reason_of_link().await,
                    Err(error) => return self.close_reason_of_error(&error).await,
                },
                ack = spool_answer(&mut self.storing_batch) => {
                    self.storing_batch = None;
                    if let Some(ack) = ack {
                        self.send(ack);
                    }
                }
                update = self.netmaps.next(), if !lingers && self.writer.is_empty() => self.send(update),
                Some(_) = self.streams.join_next() => {}
                accepted = link.accept_stream() => if let Ok((header, stream)) = accepted {
                    self.accepted = self.accepted.wrapping_add(1);
                    if self.accepted.is_multiple_of(STREAMS_AT_ONCE) {
                        // Lets the spawned streams and the link run before more streams are accepted.
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
                () = alarm.as_mut() => match self.close_reason_by_time() {
                    // This replica was too busy to read the messages of the edge: they are read first.
                    Some(reason) if reason.code == CloseCode::Dead && alarm.deadline().elapsed() > LATE => {
                        alarm.as_mut().reset(Instant::now() + LATE);
                    }
                    Some(reason) => return reason,
                    None => alarm.as_mut().reset(self.next_check()),
                },
            }
        }
    }

    /// Returns the reason to end the session now: an expired certificate, a silent peer, or an elapsed linger.
    fn close_reason_by_time(&mut self) -> Option<CloseReason> {
        if self.lingers_until.is_none() {
            self.session.link.raise_receive_window();
        }
        if let Some(expired) = self.expired() {
            return Some(expired);
        }
        if self.silence(Instant::now()) == SilenceVerdict::Dead {
            return Some(CloseReason::new(CloseCode::Dead, "nothing was heard for ten seconds"));
        }
        let is_over = self.lingers_until.is_some() && self.is_over();
        is_over.then(|| CloseReason::new(CloseCode::Superseded, "a newer session took over"))
    }

    fn silence(&mut self, now: Instant) -> SilenceVerdict {
        let link = &self.session.link;
        self.silence.check(now.into_std(), link.last_heard(), link.frames_received())
    }

    fn next_check(&mut self) -> Instant {
        let now = Instant::now();
        let silent = match self.silence(now) {
            SilenceVerdict::Wait(until) => Instant::from_std(until),
            SilenceVerdict::Dead => now,
        };
        let lingers = self.lingers_until.map(|until| until.min(Instant::now() + LINGER_CHECK_INTERVAL));
        let expires = Instant::now() + valid_for(self.shared.registrar.time(), self.session.not_after);
        lingers.map_or(silent, |check| check.min(silent)).min(expires)
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
    fn handle_message(&mut self, message: EdgeMessage) -> Option<CloseReason> {
        match message.body {
            Some(EdgeMessageBody::Ping(ping)) => {
                if !self.is_acknowledged {
                    self.send(Pong { nonce: ping.nonce });
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
            Some(EdgeMessageBody::Spool(batch)) if self.storing_batch.is_none() => {
                self.storing_batch = Some(self.shared.services.spool.take(&self.session.peer, batch));
            }
            Some(EdgeMessageBody::Neighbours(query)) => self.netmaps.handle_neighbours(query),
            Some(EdgeMessageBody::Path(query)) => {
                let report = self.session.handle_path_query(&query);
                self.send(report);
            }
            Some(EdgeMessageBody::Goodbye(goodbye)) => {
                let text: String = goodbye.reason.chars().take(200).collect();
                return Some(CloseReason::new(CloseCode::Done, text));
            }
            // A second hello, a batch before the last one is answered, or a message of a newer edge.
            other => tracing::debug!(peer = %self.session.peer, ?other, "unexpected message from the edge"),
        }
        None
    }

    fn send(&mut self, message: impl Into<CloudMessage>) {
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

    async fn flush_and_close(&mut self, reason: CloseReason) -> CloseReason {
        let _ = timeout(CLOSE_FLUSH_TIMEOUT, self.writer.drain()).await;
        reason
    }

    // The close reason of the link is more precise than that of the stream, but may arrive a moment later.
    async fn close_reason_of_link(&mut self) -> CloseReason {
        match timeout(CLOSE_FLUSH_TIMEOUT, self.session.link.closed()).await {
            Ok(closed) => closed.reason,
            Err(_) => CloseReason::new(CloseCode::Malformed, "the control stream ended"),
        }
    }

    async fn close_reason_of_error(&mut self, error: &ControlError) -> CloseReason {
        match error {
            ControlError::TooLong { .. } | ControlError::Malformed(_) => {
                CloseReason::new(CloseCode::Malformed, error.to_string())
            }
            _ => self.close_reason_of_link().await,
        }
    }
}

/// Returns the remaining validity of a certificate by the clock of the cloud, plus a millisecond, and never
/// more than `CLOCK_CHECK_INTERVAL`: the clock may be set meanwhile.
fn valid_for(now: SystemTime, not_after: SystemTime) -> Duration {
    let rest = not_after.duration_since(now).unwrap_or_default();
    (rest + Duration::from_millis(1)).min(CLOCK_CHECK_INTERVAL)
}

async fn spool_answer(
    storing_batch: &mut Option<SessionFuture<'static, Option<SpoolAck>>>,
) -> Option<SpoolAck> {
    match storing_batch {
        Some(storing_batch) => storing_batch.await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use causeway_channel::clock::from_unix_seconds;

    use super::*;

    #[test]
    fn the_end_of_a_certificate_is_checked_when_it_is_due_and_at_least_every_ten_seconds() {
        let now = from_unix_seconds(1_800_000_000);
        let check = |rest: Duration, expected: Duration| assert_eq!(valid_for(now, now + rest), expected);
        let ms = Duration::from_millis;
        check(Duration::ZERO, ms(1));
        check(ms(300), ms(301));
        check(Duration::from_secs(86_400), CLOCK_CHECK_INTERVAL);
        // The clock was set forward beyond the end.
        assert_eq!(valid_for(now + CLOCK_CHECK_INTERVAL, now), ms(1));
    }
}
