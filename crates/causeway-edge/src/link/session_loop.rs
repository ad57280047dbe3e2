//! One session of the edge, from the cloud's welcome to the end of its link.
//! Reads messages of the cloud and passes them to the services, writes messages of the edge, and accepts the
//! streams of the cloud. The supervisor decides what a session means for the edge; it is informed through
//! events.

use std::sync::Arc;
use std::time::Duration;

use causeway_channel::dial::LinkDialer;
use causeway_channel::link::{
    CloseCode, CloseReason, Link, PathStats, RecvStream, ResetCode, SendStream, StreamPurpose,
};
use causeway_channel::probe;
use causeway_channel::session::LinkId;
use causeway_channel::wire::control::{
    CloudMessage, CloudMessageBody, ControlError, ControlReader, ControlWriter, DrainNotice, EdgeMessage,
    EdgeMessageBody, EndpointUpdate, JoinSession, NetmapAck, PathReport, ReconnectHint, encode_edge,
};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::handshake::EstablishedSession;
use super::secondary::{SecondaryControl, SecondaryDriver};
use super::services::{LinkFuture, LinkServices, SpoolFeed};

/// A command to a session.
#[derive(Debug)]
pub enum LinkCommand {
    Send(EdgeMessage),
    /// A ping. `LinkEvent::PingSent` reports that it was handed to the link.
    Ping(EdgeMessage),
    /// Another session took over: end when the open streams have ended, or at that moment.
    Linger(std::time::Instant),
    Close(CloseCode),
}

/// An event of a session.
#[derive(Debug)]
pub enum LinkEvent {
    /// The link is established; sent by the handshake.
    Dialed,
    /// A ping was handed to the link, and the link was polled since.
    PingSent,
    Drain(DrainNotice),
    Endpoints(EndpointUpdate),
    Hint(ReconnectHint),
}

/// The interval at which a lingering link is checked for open streams.
const LINGER_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The control stream itself.
const OWN_STREAMS: u64 = 1;
/// Messages waiting to be written; beyond it the session stops reading until the link has taken some.
const WAITING_MAX: usize = 64;
/// After accepting this many streams in a row the session yields: each stream is a task, and other tasks
/// share the thread.
const STREAMS_AT_ONCE: usize = 64;
/// Messages of the driver of the secondary link that wait for their turn.
const PATH_MESSAGES_MAX: usize = 4;
/// The time within which the last messages of a closing session must be sent.
const CLOSE_FLUSH_TIMEOUT: Duration = Duration::from_millis(200);

pub struct EdgeSessionLoop {
    id: LinkId,
    link: Link,
    reader: ControlReader<RecvStream, CloudMessage>,
    writer: ControlWriter<SendStream>,
    services: LinkServices,
    events: mpsc::Sender<(LinkId, LinkEvent)>,
    lingers_until: Option<Instant>,
    /// The answer to a netmap that is being written to disk. The cloud sends one at a time.
    storing_netmap: Option<LinkFuture<'static, EdgeMessage>>,
    later_acks: watch::Receiver<Option<NetmapAck>>,
    feed: Box<dyn SpoolFeed>,
    streams: JoinSet<()>,
    probes: Arc<Semaphore>,
    /// Streams that were accepted so far.
    accepted: usize,
    /// The channels to the driver of the secondary link.
    secondary: SecondaryChannels,
}

/// The parts from which the driver of a secondary link is made.
pub struct SecondaryParts {
    pub control: SecondaryControl,
    pub dialer: LinkDialer,
    pub join: JoinSession,
}

struct SecondaryChannels {
    /// Messages for the cloud. A session without a driver holds the sender itself, so that the channel stays open.
    messages: mpsc::Receiver<EdgeMessage>,
    _sender: mpsc::Sender<EdgeMessage>,
    reports: watch::Sender<PathStats>,
    lingers: CancellationToken,
}

impl EdgeSessionLoop {
    pub fn new(
        id: LinkId,
        greeted: EstablishedSession,
        services: LinkServices,
        events: mpsc::Sender<(LinkId, LinkEvent)>,
        secondary: Option<SecondaryParts>,
    ) -> EdgeSessionLoop {
        let feed = services.spool.feed();
        let mut later_acks = services.netmaps.later_acks();
        // Every session reports a netmap that is not on disk; one that is on disk needs no report.
        let is_persisted = |ack: &NetmapAck| ack.not_persisted.is_empty();
        let is_well = later_acks.borrow().as_ref().is_none_or(is_persisted);
        match is_well {
            true => later_acks.mark_unchanged(),
            false => later_acks.mark_changed(),
        }
        let EstablishedSession { link, reader, writer, .. } = greeted;
        let (lingers_until, storing_netmap, mut streams) = (None, None, JoinSet::new());
        let (sender, messages) = mpsc::channel(PATH_MESSAGES_MAX);
        let (reports, lingers) = (watch::Sender::new(PathStats::default()), CancellationToken::new());
        if let Some(SecondaryParts { control, dialer, join }) = secondary {
            let driver = SecondaryDriver {
                primary: link.clone(),
                dialer,
                join,
                control,
                streams: services.streams.clone(),
                netmaps: services.netmaps.clone(),
                messages: sender.clone(),
                reports: reports.subscribe(),
                lingers: lingers.clone(),
                must_retire: Default::default(),
            };
            streams.spawn(Box::pin(driver.run()));
        }
        let secondary = SecondaryChannels { messages, _sender: sender, reports, lingers };
        let probes = Arc::new(Semaphore::new(probe::ANSWERED_MAX));
        EdgeSessionLoop {
            id,
            link,
            reader,
            writer,
            services,
            events,
            lingers_until,
            storing_netmap,
            later_acks,
            feed,
            streams,
            probes,
            accepted: 0,
            secondary,
        }
    }

    /// Runs until the link ends; returns the reason.
    pub async fn run(mut self, mut commands: mpsc::Receiver<LinkCommand>) -> CloseReason {
        let ended = self.run_loop(&mut commands).await;
        if let Some(storing_netmap) = self.storing_netmap.take() {
            // A netmap that is being written is written to the end; the next session reports the result.
            storing_netmap.await;
        }
        self.link.close(ended.clone());
        ended
    }

    async fn run_loop(&mut self, commands: &mut mpsc::Receiver<LinkCommand>) -> CloseReason {
        loop {
            let lingers = self.lingers_until;
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(LinkCommand::Send(message)) => self.send(message),
                    Some(LinkCommand::Ping(message)) => {
                        self.send(message);
                        // Written now if the link accepts it; an error is returned again by the next write.
                        tokio::select! {
                            biased;
                            _ = self.writer.drain() => {}
                            () = std::future::ready(()) => {}
                        }
                        tokio::task::yield_now().await;
                        self.emit_event(LinkEvent::PingSent).await;
                    }
                    Some(LinkCommand::Linger(until)) => {
                        self.lingers_until = Some(until.into());
                        self.secondary.lingers.cancel();
                    }
                    Some(LinkCommand::Close(code)) => return self.flush_and_close(code).await,
                    None => return self.flush_and_close(CloseCode::Done).await,
                },
                closed = self.link.closed() => return closed.reason,
                written = self.writer.drain(), if !self.writer.is_empty() => if let Err(error) = written {
                    return self.close_reason_of_error(&error).await;
                },
                received = self.reader.next(), if self.writer.len() < WAITING_MAX => match received {
                    Ok(Some(message)) => self.handle_message(message).await,
                    Ok(None) => return self.close_reason_of_link().await,
                    Err(error) => return self.close_reason_of_error(&error).await,
                },
                answer = netmap_answer(&mut self.storing_netmap) => {
                    self.storing_netmap = None;
                    self.send(answer);
                }
                ack = next_ack(&mut self.later_acks), if lingers.is_none() => {
                    self.send(EdgeMessage { body: Some(EdgeMessageBody::NetmapAck(ack)) });
                }
                batch = self.feed.next(), if lingers.is_none() => self.send(batch.into()),
                Some(message) = self.secondary.messages.recv(), if self.writer.len() < WAITING_MAX => self.send(message),
                query = self.services.neighbours.next(), if lingers.is_none() && self.writer.len() < WAITING_MAX => {
                    self.send(query.into());
                }
                Some(_) = self.streams.join_next() => {}
                accepted = self.link.accept_stream() => if let Ok((header, stream)) = accepted {
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
                        _ => self.services.streams.serve(header, stream),
                    }
                },
                () = linger_timer(lingers) => if self.is_over() {
                    return CloseReason::new(CloseCode::Done, "another session took over");
                },
            }
        }
    }

    async fn handle_message(&mut self, message: CloudMessage) {
        match message.body {
            Some(CloudMessageBody::Netmap(update))
                if self.storing_netmap.is_none() && self.lingers_until.is_none() =>
            {
                self.storing_netmap = Some(self.services.netmaps.take(update.update));
            }
            Some(CloudMessageBody::SpoolAck(ack)) => self.services.spool.handle_ack(ack),
            Some(CloudMessageBody::Drain(drain)) => self.emit_event(LinkEvent::Drain(drain)).await,
            Some(CloudMessageBody::Endpoints(update)) => self.emit_event(LinkEvent::Endpoints(update)).await,
            Some(CloudMessageBody::Hint(hint)) => self.emit_event(LinkEvent::Hint(hint)).await,
            Some(CloudMessageBody::Path(PathReport { acknowledged_bytes, lost_bytes })) => {
                self.secondary.reports.send_replace(PathStats { acknowledged_bytes, lost_bytes });
            }
            // A pong has done its work by arriving.
            Some(CloudMessageBody::Pong(_)) => {}
            // A second welcome, a second netmap before the first is answered, or a message of a newer cloud.
            other => tracing::debug!(?other, "unexpected message from the cloud"),
        }
    }

    fn send(&mut self, message: EdgeMessage) {
        match encode_edge(message) {
            Ok(frame) => self.writer.push(frame),
            Err(error) => tracing::error!(%error, "a message to the cloud is too long and was dropped"),
        }
    }

    // The supervisor always receives the events, and aborts this task when it ends.
    async fn emit_event(&mut self, event: LinkEvent) {
        let _ = self.events.send((self.id, event)).await;
    }

    fn is_over(&self) -> bool {
        let due = self.lingers_until.is_some_and(|until| Instant::now() >= until);
        due || self.link.stats().streams_open <= OWN_STREAMS
    }

    async fn flush_and_close(&mut self, code: CloseCode) -> CloseReason {
        let _ = tokio::time::timeout(CLOSE_FLUSH_TIMEOUT, self.writer.drain()).await;
        CloseReason::new(code, "")
    }

    // The close reason of the link is more precise than that of the stream, but may arrive a moment later.
    async fn close_reason_of_link(&mut self) -> CloseReason {
        match tokio::time::timeout(CLOSE_FLUSH_TIMEOUT, self.link.closed()).await {
            Ok(closed) => closed.reason,
            Err(_) => CloseReason::new(CloseCode::Malformed, "the control stream ended"),
        }
    }

    async fn close_reason_of_error(&mut self, error: &ControlError) -> CloseReason {
        tracing::debug!(error = error as &dyn std::error::Error, "the control stream broke");
        match error {
            ControlError::TooLong { .. } | ControlError::Malformed(_) => {
                CloseReason::new(CloseCode::Malformed, error.to_string())
            }
            _ => self.close_reason_of_link().await,
        }
    }
}

async fn netmap_answer(storing_netmap: &mut Option<LinkFuture<'static, EdgeMessage>>) -> EdgeMessage {
    match storing_netmap {
        Some(storing_netmap) => storing_netmap.await,
        None => std::future::pending().await,
    }
}

/// The next acknowledgement that is no answer. May be dropped and called again.
async fn next_ack(acks: &mut watch::Receiver<Option<NetmapAck>>) -> NetmapAck {
    while acks.changed().await.is_ok() {
        if let Some(ack) = acks.borrow_and_update().clone() {
            return ack;
        }
    }
    std::future::pending().await
}

async fn linger_timer(lingers_until: Option<Instant>) {
    match lingers_until {
        Some(until) => tokio::select! {
            () = sleep_until(until) => {}
            () = sleep(LINGER_CHECK_INTERVAL) => {}
        },
        None => std::future::pending().await,
    }
}
