//! One session of the edge, from the cloud's welcome to the end of its link.
//!
//! Reads what the cloud says and hands it to whom it concerns, writes what is to be said, and accepts the cloud's
//! streams. What the session means for the edge as a whole is decided by the supervisor, which is told through events.

use std::time::Duration;

use causeway_channel::link::{CloseCode, CloseReason, Link, Purpose, RecvStream, ResetCode, SendStream};
use causeway_channel::probe;
use causeway_channel::session::LinkId;
use causeway_channel::wire::control::{
    CloudMessage, CloudSays, ControlError, Drain, EdgeMessage, Hint, News, Reader, Writer, encode_edge,
};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::greeting::Greeted;
use super::passengers::{Later, Passengers, UpstreamFeed};

/// What a session is told.
#[derive(Debug)]
pub enum Command {
    Say(EdgeMessage),
    /// Another session took over: end when the open streams have ended, or at that moment.
    Linger(std::time::Instant),
    Close(CloseCode),
}

/// What a session tells.
#[derive(Debug)]
pub enum Event {
    /// The link stands; comes from the greeting.
    Dialed,
    Drain(Drain),
    News(News),
    Hint(Hint),
}

/// While it lingers, a link is looked at this often.
const LINGER_LOOK: Duration = Duration::from_millis(200);
/// The control stream itself.
const OWN_STREAMS: u64 = 1;
/// Messages waiting to be written; beyond it the session stops reading until the link has taken some.
const WAITING_MAX: usize = 64;
/// The last words of a session that is closed have this long to leave.
const LAST_WORDS: Duration = Duration::from_millis(200);

pub struct Conversation {
    id: LinkId,
    link: Link,
    reader: Reader<RecvStream, CloudMessage>,
    writer: Writer<SendStream>,
    passengers: Passengers,
    events: mpsc::Sender<(LinkId, Event)>,
    lingers_until: Option<Instant>,
    /// The answer to a netmap that is being written to disk. The cloud sends one at a time.
    taking: Option<Later<'static, EdgeMessage>>,
    feed: Box<dyn UpstreamFeed>,
    streams: JoinSet<()>,
}

impl Conversation {
    pub fn new(
        id: LinkId,
        greeted: Greeted,
        passengers: Passengers,
        events: mpsc::Sender<(LinkId, Event)>,
    ) -> Conversation {
        let feed = passengers.upstream.feed();
        let Greeted { link, reader, writer, .. } = greeted;
        let (lingers_until, taking, streams) = (None, None, JoinSet::new());
        Conversation { id, link, reader, writer, passengers, events, lingers_until, taking, feed, streams }
    }

    /// Goes on until the link ends; says why.
    pub async fn run(mut self, mut commands: mpsc::Receiver<Command>) -> CloseReason {
        let ended = self.talk(&mut commands).await;
        if let Some(taking) = self.taking.take() {
            // What is half on disk is brought to its end; the next session will say what came of it.
            taking.await;
        }
        self.link.close(ended.clone());
        ended
    }

    async fn talk(&mut self, commands: &mut mpsc::Receiver<Command>) -> CloseReason {
        loop {
            let lingers = self.lingers_until;
            tokio::select! {
                biased;
                command = commands.recv() => match command {
                    Some(Command::Say(message)) => self.say(message),
                    Some(Command::Linger(until)) => self.lingers_until = Some(until.into()),
                    Some(Command::Close(code)) => return self.last_words(code).await,
                    None => return self.last_words(CloseCode::Done).await,
                },
                closed = self.link.closed() => return closed.reason,
                written = self.writer.drain(), if !self.writer.is_empty() => if let Err(error) = written {
                    return self.broken(&error).await;
                },
                heard = self.reader.next(), if self.writer.len() < WAITING_MAX => match heard {
                    Ok(Some(message)) => self.hear(message).await,
                    Ok(None) => return self.gone().await,
                    Err(error) => return self.broken(&error).await,
                },
                answer = taken(&mut self.taking) => {
                    self.taking = None;
                    self.say(answer);
                }
                batch = self.feed.next(), if lingers.is_none() => self.say(batch.into()),
                Some(_) = self.streams.join_next() => {}
                accepted = self.link.accept_stream() => if let Ok((header, stream)) = accepted {
                    match header.purpose() {
                        Some(Purpose::Control) => stream.refuse(ResetCode::Malformed),
                        Some(Purpose::Probe) => {
                            self.streams.spawn(async move { probe::answer(&header, stream).await });
                        }
                        _ => {
                            self.streams.spawn(self.passengers.streams.serve(header, stream));
                        }
                    }
                },
                () = look(lingers) => if self.is_over() {
                    return CloseReason::new(CloseCode::Done, "another session took over");
                },
            }
        }
    }

    async fn hear(&mut self, message: CloudMessage) {
        match message.says {
            Some(CloudSays::Netmap(update)) if self.taking.is_none() && self.lingers_until.is_none() => {
                self.taking = Some(self.passengers.netmaps.take(update.update));
            }
            Some(CloudSays::UpstreamAck(ack)) => self.passengers.upstream.handle_ack(ack),
            Some(CloudSays::Drain(drain)) => self.tell(Event::Drain(drain)).await,
            Some(CloudSays::News(news)) => self.tell(Event::News(news)).await,
            Some(CloudSays::Hint(hint)) => self.tell(Event::Hint(hint)).await,
            // A pong has done its work by arriving.
            Some(CloudSays::Pong(_)) => {}
            // A second welcome, a second netmap before the first is answered, or words of a newer cloud.
            other => tracing::debug!(?other, "the cloud says something that is not expected now"),
        }
    }

    fn say(&mut self, message: EdgeMessage) {
        match encode_edge(message) {
            Ok(frame) => self.writer.push(frame),
            Err(error) => tracing::error!(%error, "a message to the cloud is too long and was dropped"),
        }
    }

    // The supervisor always takes its events, and ends this task when it ends itself.
    async fn tell(&mut self, event: Event) {
        let _ = self.events.send((self.id, event)).await;
    }

    fn is_over(&self) -> bool {
        let due = self.lingers_until.is_some_and(|until| Instant::now() >= until);
        due || self.link.figures().streams_open <= OWN_STREAMS
    }

    async fn last_words(&mut self, code: CloseCode) -> CloseReason {
        let _ = tokio::time::timeout(LAST_WORDS, self.writer.drain()).await;
        CloseReason::new(code, "")
    }

    // The stream says less than the link, which may be a moment late.
    async fn gone(&mut self) -> CloseReason {
        match tokio::time::timeout(LAST_WORDS, self.link.closed()).await {
            Ok(closed) => closed.reason,
            Err(_) => CloseReason::new(CloseCode::Malformed, "the control stream ended"),
        }
    }

    async fn broken(&mut self, error: &ControlError) -> CloseReason {
        tracing::debug!(error = error as &dyn std::error::Error, "the control stream broke");
        match error {
            ControlError::TooLong { .. } | ControlError::Malformed(_) => {
                CloseReason::new(CloseCode::Malformed, error.to_string())
            }
            _ => self.gone().await,
        }
    }
}

async fn taken(taking: &mut Option<Later<'static, EdgeMessage>>) -> EdgeMessage {
    match taking {
        Some(taking) => taking.await,
        None => std::future::pending().await,
    }
}

async fn look(lingers_until: Option<Instant>) {
    match lingers_until {
        Some(until) => tokio::select! {
            () = sleep_until(until) => {}
            () = sleep(LINGER_LOOK) => {}
        },
        None => std::future::pending().await,
    }
}
