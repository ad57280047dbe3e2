//! One watcher: the state it begins with, the history it missed, then the ring; as lines, until its time is over.
//!
//! `open_stage` decides the first event of a watch.
//! The connection polls it, so a client that does not read costs only its position in the ring. When that position has
//! been overwritten the stream ends, and the client resumes from the revision it saw.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use causeway_api::request::options::{WatchOptions, WatchStart};
use causeway_api::selector::Selector;
use causeway_api::watch_event;
use causeway_api::{Revision, Status};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use crate::catch_up::{CatchUp, CatchUpFuture, CatchUpNext};
use crate::dispatch::CollectionReaders;
use crate::frame::WatchFrame;
use crate::ring::{FollowResult, Follower};
use crate::source::{EventEncoder, WatchFormat, WatchSource};

/// The end of a watch, however quiet it is.
pub struct WatchEnds {
    pub after: Duration,
    pub stopped: WaitForCancellationFutureOwned,
}

/// Counts the work of watches, for metrics.
pub trait WatchObserver: Send + Sync {
    fn events_sent(&self, count: usize);
    fn cut_off(&self);
}

/// The lines of one watcher.
pub struct WatchStream<S: WatchSource, E> {
    collection: S::Collection,
    format: WatchFormat<S::Version>,
    /// None selects everything.
    selector: Option<Box<Selector>>,
    stage: Stage<S>,
    bookmarks: Option<Duration>,
    bookmark_at: Instant,
    ends_at: Instant,
    /// Wakes at the earlier of the two.
    timer: Pin<Box<Sleep>>,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    source: Arc<S>,
    shared: Arc<WatchContext<E>>,
    /// Tables carry their columns in the first event only.
    headers: bool,
}

/// The encoder and observer that all watches of a server share.
pub struct WatchContext<E> {
    pub encoder: E,
    pub observer: Arc<dyn WatchObserver>,
}

enum Stage<S: WatchSource> {
    State {
        objects: std::vec::IntoIter<(Revision, Bytes)>,
        revision: Revision,
        mark: bool,
        then: Follower<WatchFrame<S>>,
    },
    CatchUp(CatchUpFuture<S>),
    Live(Follower<WatchFrame<S>>),
    Failed(Box<Status>),
    Ended,
}

// A client names the time, and an `Instant` that is centuries away is an overflow.
const WATCH_TIME_MAX: Duration = Duration::from_secs(24 * 60 * 60);
// Kubernetes sends bookmarks about once a minute.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
// Bytes and frames handed to the connection at once; with more, other watchers would wait for the copy.
const CHUNK_BYTES: usize = 64 << 10;
const CHUNK_FRAMES: usize = 256;

impl<S: WatchSource, E: EventEncoder<S>> WatchStream<S, E> {
    pub async fn open(
        readers: &CollectionReaders<S>,
        (collection, format): (S::Collection, WatchFormat<S::Version>),
        options: WatchOptions,
        ends: WatchEnds,
        shared: Arc<WatchContext<E>>,
    ) -> WatchStream<S, E> {
        let source = readers.source().clone();
        let stage = match open_stage(readers, &collection, &options).await {
            Ok(stage) => stage,
            Err(error) => failed(source.failure(&collection, format.version, &error)),
        };
        // Watchers that started together receive bookmarks, and end, at different times.
        let spread = 0.9 + 0.2 * random_fraction();
        let period = BOOKMARK_PERIOD.mul_f64(spread);
        let now = Instant::now();
        let ends_at = now + ends.after.min(WATCH_TIME_MAX);
        let bookmark_at = if options.bookmarks { now + period } else { ends_at };
        WatchStream {
            collection,
            format,
            selector: (!options.selector.is_empty()).then(|| Box::new(options.selector)),
            stage,
            bookmarks: options.bookmarks.then_some(period),
            bookmark_at,
            ends_at,
            timer: Box::pin(tokio::time::sleep_until(bookmark_at.min(ends_at))),
            stopped: Box::pin(ends.stopped),
            source,
            shared,
            headers: true,
        }
    }

    /// Returns true while the state that the watch begins with is not sent: all of its objects are in memory.
    pub fn has_state(&self) -> bool {
        matches!(self.stage, Stage::State { .. })
    }

    /// Returns the next lines, as many as are ready; `None` when the watch is over.
    pub fn poll_lines(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.stopped.as_mut().poll(context).is_ready() {
            self.stage = Stage::Ended;
        }
        loop {
            let lines = match &mut self.stage {
                Stage::Ended => return Poll::Ready(None),
                Stage::Failed(status) => {
                    let line = watch_event::error(status);
                    self.stage = Stage::Ended;
                    return Poll::Ready(Some(line));
                }
                Stage::State { .. } => self.state_lines(),
                Stage::CatchUp(_) => match self.poll_catch_up(context) {
                    Poll::Ready(lines) => lines,
                    Poll::Pending => return self.poll_timer(context),
                },
                Stage::Live(_) => match self.poll_live(context) {
                    Poll::Ready(lines) => lines,
                    Poll::Pending => return self.poll_timer(context),
                },
            };
            if !lines.is_empty() {
                return Poll::Ready(Some(lines));
            }
        }
    }

    /// Returns the next part of the initial state as ADDED events.
    fn state_lines(&mut self) -> Bytes {
        let mut out = Vec::new();
        let Stage::State { objects, revision, .. } = &mut self.stage else { return Bytes::new() };
        let revision = *revision;
        let mut count = 0;
        let mut done = true;
        for (written, stored) in objects.by_ref() {
            let selector = self.selector.as_deref();
            if !selector
                .is_none_or(|selector| self.source.selects_stored(&self.collection, selector, &stored))
            {
                continue;
            }
            count += 1;
            watch_event::open(&mut out, "ADDED");
            let (encoder, headers) = (&self.shared.encoder, self.headers);
            encoder.append_object(&mut out, &self.format, &self.collection, written, &stored, headers);
            watch_event::close(&mut out);
            self.headers = false;
            if out.len() >= CHUNK_BYTES {
                done = false;
                break;
            }
        }
        self.shared.observer.events_sent(count);
        if done && let Stage::State { mark, then, .. } = std::mem::replace(&mut self.stage, Stage::Ended) {
            if mark && self.bookmarks.is_some() {
                let encoder = &self.shared.encoder;
                out.extend_from_slice(&encoder.bookmark(&self.format, &self.collection, revision, true));
            }
            self.stage = Stage::Live(then);
        }
        out.into()
    }

    fn poll_catch_up(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let Stage::CatchUp(history) = &mut self.stage else { return Poll::Ready(Bytes::new()) };
        let step = ready!(history.as_mut().poll(context));
        self.stage = match step.next {
            CatchUpNext::More(catch_up) => Stage::CatchUp(catch_up.step()),
            CatchUpNext::Ring(ring, revision) => match ring.follow(revision) {
                Some(follower) => Stage::Live(follower),
                // The ring moved on in the meantime; the client resumes from the revision it saw.
                None => Stage::Ended,
            },
            CatchUpNext::Failed(error) => {
                failed(self.source.failure(&self.collection, self.format.version, &error))
            }
        };
        Poll::Ready(self.lines_of(&step.frames))
    }

    fn poll_live(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let Stage::Live(follower) = &mut self.stage else { return Poll::Ready(Bytes::new()) };
        let mut frames = Vec::new();
        match ready!(follower.poll_entries(context, CHUNK_FRAMES, CHUNK_BYTES, &mut frames)) {
            FollowResult::Some => {}
            FollowResult::Closed => self.stage = Stage::Ended,
            FollowResult::Lagged => {
                self.shared.observer.cut_off();
                self.stage = Stage::Ended;
            }
        }
        Poll::Ready(self.lines_of(&frames))
    }

    /// Passes one line on as it is, and joins several, so that they leave in one write.
    fn lines_of(&mut self, frames: &[Arc<WatchFrame<S>>]) -> Bytes {
        let mut lines: Vec<Bytes> = Vec::new();
        for frame in frames {
            if let Some(event_type) = frame.event_type(self.selector.as_deref(), &self.source) {
                lines.push(frame.line(&self.format, event_type, self.headers, &self.shared.encoder));
                self.headers = false;
            }
        }
        self.shared.observer.events_sent(lines.len());
        match lines.len() {
            0 => Bytes::new(),
            1 => lines.swap_remove(0),
            _ => lines.concat().into(),
        }
    }

    /// Sends bookmarks, and ends the watch. Called when there is no event to send.
    fn poll_timer(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        ready!(self.timer.as_mut().poll(context));
        let bookmark = self.bookmark();
        let now = Instant::now();
        if now >= self.ends_at {
            self.stage = Stage::Ended;
        } else {
            self.bookmark_at = now + self.bookmarks.unwrap_or(BOOKMARK_PERIOD);
            let next = self.bookmark_at.min(self.ends_at);
            self.timer.as_mut().reset(next);
        }
        // No line yet: the timer is polled again, or it would not wake this task.
        match bookmark {
            Some(line) => Poll::Ready(Some(line)),
            None if matches!(self.stage, Stage::Ended) => Poll::Ready(None),
            None => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    }

    fn bookmark(&self) -> Option<Bytes> {
        self.bookmarks?;
        let Stage::Live(follower) = &self.stage else { return None };
        let encoder = &self.shared.encoder;
        Some(encoder.bookmark(&self.format, &self.collection, follower.seen()?, false))
    }
}

/// Decides the first event of a watch (`sendInitialEvents`, `resourceVersion`): an object of a list, a change in the history since
/// a revision, or the next change.
async fn open_stage<S: WatchSource>(
    readers: &CollectionReaders<S>,
    collection: &S::Collection,
    options: &WatchOptions,
) -> Result<Stage<S>, S::Error> {
    // First the ring, then the list: every change after the list is in the ring.
    let source = readers.source();
    let ring = readers.ring(collection).await?;
    match options.from {
        WatchStart::Now => {
            let now = source.revision().await?;
            Ok(ring.follow(now).map_or(Stage::Ended, Stage::Live))
        }
        WatchStart::State { not_older_than, marked } => {
            let listing = source.list(collection).await?;
            if not_older_than > listing.revision {
                return Ok(failed(Some(too_large(not_older_than, listing.revision))));
            }
            let Some(then) = ring.follow(listing.revision) else { return Ok(Stage::Ended) };
            Ok(Stage::State {
                objects: listing.objects.into_iter(),
                revision: listing.revision,
                mark: marked,
                then,
            })
        }
        WatchStart::After(after) => {
            let current = source.revision().await?;
            if after > current && !source.allows_future_revision() {
                return Ok(failed(Some(too_large(after, current))));
            }
            if let Some(follower) = ring.follow(after) {
                return Ok(Stage::Live(follower));
            }
            let catch_up = CatchUp::begin(&**source, collection.clone(), ring, after).await?;
            Ok(Stage::CatchUp(catch_up.step()))
        }
    }
}

/// A watch that fails sends its error as an event: clients that watch look for it there.
fn failed<S: WatchSource>(status: Option<Status>) -> Stage<S> {
    status.map_or(Stage::Ended, |status| Stage::Failed(Box::new(status)))
}

/// A revision that does not exist yet is 410, on which every client lists anew; some clients repeat a watch that fails in
/// another way for ever.
fn too_large(requested: Revision, current: Revision) -> Status {
    Status::expired(format!("Too large resource version: {requested}, current: {current}"))
}

/// Returns a number between 0 and 1, to spread clients over time. Not for secrets.
pub fn random_fraction() -> f64 {
    f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use causeway_api::request::media::ObjectView;
    use causeway_api::request::options::IncludeObject;
    use causeway_api::{ApiVersion, Kind};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::memory_source::{MemorySource, SpliceEncoder};

    struct Unobserved;

    impl WatchObserver for Unobserved {
        fn events_sent(&self, _: usize) {}
        fn cut_off(&self) {}
    }

    #[tokio::test]
    async fn a_watch_of_any_length_is_opened_and_ends() {
        for seconds in [1, i64::MAX as u64, u64::MAX] {
            let readers = CollectionReaders::new(MemorySource);
            let format = WatchFormat {
                version: ApiVersion::Core,
                view: ObjectView::Object,
                include: IncludeObject::Metadata,
            };
            let options = WatchOptions {
                selector: Selector::parse(Kind::ESite, "", "").unwrap(),
                from: WatchStart::Now,
                bookmarks: false,
                timeout_seconds: Some(seconds),
                include: IncludeObject::Metadata,
            };
            let stopped = CancellationToken::new().cancelled_owned();
            let ends = WatchEnds { after: Duration::from_secs(seconds), stopped };
            let shared = Arc::new(WatchContext { encoder: SpliceEncoder, observer: Arc::new(Unobserved) });
            let opened = Instant::now();
            let stream = WatchStream::open(&readers, (Kind::ESite, format), options, ends, shared).await;
            let time = stream.ends_at.duration_since(opened);
            assert!(time <= WATCH_TIME_MAX + Duration::from_secs(60), "{seconds}: {time:?}");
        }
    }
}
