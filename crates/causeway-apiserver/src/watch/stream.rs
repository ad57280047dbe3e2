//! One watcher: the state it begins with, what it missed, then the ring; as lines, until its time is over.
//!
//! It is polled by the connection, so a client that does not read costs nothing but its place; when that place has been
//! overwritten the stream ends, and the client resumes from what it saw.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use causeway_api::selector::Selector;
use causeway_api::{Kind, Status};
use causeway_store::{ListRange, Revision, StoreError, StoreRecord};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;

use super::catch_up::{CatchUp, CatchUpFuture, CatchUpNext};
use super::frame::{self, WatchFormat, WatchFrame};
use crate::errors::{self, ErrorSubject};
use crate::registry::prefix;
use crate::render::Renderer;
use crate::request::options::{WatchOptions, WatchStart};
use crate::watch::CollectionReaders;
use causeway_watch::ring::{FollowResult, Follower};

/// When a watch is over, however quiet it is.
pub struct WatchEnds {
    pub after: Duration,
    pub stopped: WaitForCancellationFutureOwned,
}

/// Told what a watch did, for the metrics.
pub trait WatchObserver: Send + Sync {
    fn events_sent(&self, count: usize);
    fn cut_off(&self);
}

pub struct WatchStream {
    kind: Kind,
    form: WatchFormat,
    /// None selects everything.
    selector: Option<Box<Selector>>,
    stage: Stage,
    bookmarks: Option<Duration>,
    bookmark_at: Instant,
    ends_at: Instant,
    /// Wakes at the earlier of the two.
    timer: Pin<Box<Sleep>>,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
    shared: Arc<WatchContext>,
    /// Tables carry their columns in the first event only.
    headers: bool,
}

/// What all watches of a server have in common.
pub struct WatchContext {
    pub renderer: Arc<Renderer>,
    pub observer: Arc<dyn WatchObserver>,
}

enum Stage {
    State {
        records: std::vec::IntoIter<StoreRecord>,
        revision: Revision,
        mark: bool,
        then: Follower<WatchFrame>,
    },
    CatchUp(CatchUpFuture),
    Live(Follower<WatchFrame>),
    Failed(Box<Status>),
    Ended,
}

// Kubernetes sends bookmarks about once a minute.
const BOOKMARK_PERIOD: Duration = Duration::from_secs(60);
// What is handed to the connection at once; more than this and other watchers wait for the copy.
const CHUNK_BYTES: usize = 64 << 10;
const CHUNK_FRAMES: usize = 256;

impl WatchStream {
    pub async fn open(
        hubs: &CollectionReaders,
        (kind, form): (Kind, WatchFormat),
        options: WatchOptions,
        ends: WatchEnds,
        shared: Arc<WatchContext>,
    ) -> WatchStream {
        let about = ErrorSubject { version: form.version, kind, name: "" };
        let stage = match open_stage(hubs, kind, &options).await {
            Ok(stage) => stage,
            Err(error) => failed(&error, about),
        };
        // Watchers that started together shall not be told, or end, together.
        let spread = 0.9 + 0.2 * random_fraction();
        let period = BOOKMARK_PERIOD.mul_f64(spread);
        let now = Instant::now();
        let ends_at = now + ends.after;
        let bookmark_at = if options.bookmarks { now + period } else { ends_at };
        WatchStream {
            kind,
            form,
            selector: (!options.selector.is_empty()).then(|| Box::new(options.selector)),
            stage,
            bookmarks: options.bookmarks.then_some(period),
            bookmark_at,
            ends_at,
            timer: Box::pin(tokio::time::sleep_until(bookmark_at.min(ends_at))),
            stopped: Box::pin(ends.stopped),
            shared,
            headers: true,
        }
    }

    /// The next lines, as many as are there; `None` when the watch is over.
    pub fn poll_lines(&mut self, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        if self.stopped.as_mut().poll(context).is_ready() {
            self.stage = Stage::Ended;
        }
        loop {
            let lines = match &mut self.stage {
                Stage::Ended => return Poll::Ready(None),
                Stage::Failed(status) => {
                    let line = frame::error(status);
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

    /// The next piece of the initial state as ADDED events.
    fn state_lines(&mut self) -> Bytes {
        let mut out = BytesMut::new();
        let Stage::State { records, revision, .. } = &mut self.stage else { return Bytes::new() };
        let revision = *revision;
        let mut count = 0;
        let mut done = true;
        for record in records.by_ref() {
            if !selects(self.selector.as_deref(), &record) {
                continue;
            }
            count += 1;
            self.shared.renderer.added_line(&self.form, self.kind, &record, self.headers, &mut out);
            self.headers = false;
            if out.len() >= CHUNK_BYTES {
                done = false;
                break;
            }
        }
        self.shared.observer.events_sent(count);
        if done && let Stage::State { mark, then, .. } = std::mem::replace(&mut self.stage, Stage::Ended) {
            if mark && self.bookmarks.is_some() {
                out.extend_from_slice(&frame::bookmark(self.kind, &self.form, revision, true));
            }
            self.stage = Stage::Live(then);
        }
        out.freeze()
    }

    fn poll_catch_up(&mut self, context: &mut Context<'_>) -> Poll<Bytes> {
        let Stage::CatchUp(walk) = &mut self.stage else { return Poll::Ready(Bytes::new()) };
        let step = ready!(walk.as_mut().poll(context));
        let about = ErrorSubject { version: self.form.version, kind: self.kind, name: "" };
        self.stage = match step.next {
            CatchUpNext::More(catch_up) => Stage::CatchUp(catch_up.walk()),
            CatchUpNext::Ring(ring, revision) => match ring.follow(revision) {
                Some(follower) => Stage::Live(follower),
                // The ring moved on while we looked; the client resumes from what it saw.
                None => Stage::Ended,
            },
            CatchUpNext::Failed(error) => failed(&error, about),
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

    /// One line is passed on as it is; several are joined, so that they leave in one write.
    fn lines_of(&mut self, frames: &[Arc<WatchFrame>]) -> Bytes {
        let mut lines: Vec<Bytes> = Vec::new();
        for frame in frames {
            if let Some(kind) = frame.event_type(self.selector.as_deref()) {
                lines.push(frame.line(&self.form, kind, self.headers, &self.shared.renderer));
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

    /// Bookmarks, and the end. Called when there is nothing else to say.
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
        // Nothing to say yet: the timer has to be asked again, or it would not wake us.
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
        Some(frame::bookmark(self.kind, &self.form, follower.seen()?, false))
    }
}

async fn open_stage(
    hubs: &CollectionReaders,
    kind: Kind,
    options: &WatchOptions,
) -> Result<Stage, StoreError> {
    // First the ring, then the list: everything behind the list is in the ring.
    let ring = hubs.ring(kind).await?;
    match options.from {
        WatchStart::Now => {
            let now = hubs.store().revision().await?;
            Ok(ring.follow(now).map_or(Stage::Ended, Stage::Live))
        }
        WatchStart::State { not_older_than, marked } => {
            let listing = hubs.store().list(&prefix(kind), ListRange::default()).await?;
            if not_older_than > listing.revision {
                return Err(StoreError::Future { requested: not_older_than, current: listing.revision });
            }
            let Some(then) = ring.follow(listing.revision) else { return Ok(Stage::Ended) };
            Ok(Stage::State {
                records: listing.records.into_iter(),
                revision: listing.revision,
                mark: marked,
                then,
            })
        }
        WatchStart::After(after) => {
            let current = hubs.store().revision().await?;
            if after > current {
                return Err(StoreError::Future { requested: after, current });
            }
            if let Some(follower) = ring.follow(after) {
                return Ok(Stage::Live(follower));
            }
            let catch_up = CatchUp::begin(hubs, kind, ring, after).await?;
            Ok(Stage::CatchUp(catch_up.walk()))
        }
    }
}

/// An error inside the stream: clients that watch look for it there. A revision that is gone, or was never ours, is 410, on
/// which every client lists anew; some would repeat a watch that fails in another way for ever.
fn failed(error: &StoreError, about: ErrorSubject<'_>) -> Stage {
    let status = match error {
        StoreError::Compacted { requested, oldest } => {
            Status::expired(format!("too old resource version: {requested} ({oldest})"))
        }
        StoreError::Future { requested, current } => {
            Status::expired(format!("Too large resource version: {requested}, current: {current}"))
        }
        // The client resumes from what it saw.
        StoreError::Lagged | StoreError::Closed => return Stage::Ended,
        other => errors::from_store(other, about),
    };
    Stage::Failed(Box::new(status))
}

fn selects(selector: Option<&Selector>, record: &StoreRecord) -> bool {
    let Some(selector) = selector else { return true };
    causeway_api::selector::SelectableFields::from_stored(&record.value)
        .is_ok_and(|facets| selector.matches(&facets))
}

/// Between 0 and 1; to spread clients, not to keep secrets.
pub fn random_fraction() -> f64 {
    f64::from(uuid::Uuid::new_v4().as_fields().0) / f64::from(u32::MAX)
}
