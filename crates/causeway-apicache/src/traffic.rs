//! Counts the bytes that the API at the edge moves over the link, by cause, and holds them against the budget of a day.
//!
//! `DayUse` decides from values; `LinkTraffic` is the shared handle, and `CountedStream` counts a stream. Bytes are those of streams,
//! both directions, without the overhead of the channel. When the budget is spent, copies that no client watches are not kept current
//! until the next day (UTC); reads go on from the copy, and requests pass.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll};
use std::time::Duration;

use causeway_daemon::sync::MutexExt;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::{Notify, watch};

use crate::connector::{BoxedStream, CloudAway, CloudConnector, ConnectorFuture};
use crate::copy::collection::unix_now;
use crate::upstream::{ACCESS_TARGET, SYNC_TARGET};

/// The cause of bytes on the link.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TrafficCause {
    /// Keeping copies current.
    Sync,
    /// Requests that pass to the API server, and questions of the edge.
    Request,
    /// Decisions about access.
    Access,
}

impl TrafficCause {
    pub fn as_str(self) -> &'static str {
        match self {
            TrafficCause::Sync => "sync",
            TrafficCause::Request => "request",
            TrafficCause::Access => "access",
        }
    }
}

/// The bytes of one day, by cause and resource.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
pub struct DayUse {
    /// Days since 1970.
    day: i64,
    bytes: BTreeMap<TrafficCause, BTreeMap<String, u64>>,
}

const DAY_SECONDS: i64 = 24 * 3_600;
// Resources of one cause; those beyond are counted together.
const RESOURCES_MAX: usize = 128;
const OTHER: &str = "other";

impl DayUse {
    /// Adds bytes; a new day begins at zero.
    pub fn add(&mut self, unix: i64, cause: TrafficCause, resource: &str, bytes: u64) {
        let day = unix.div_euclid(DAY_SECONDS);
        if day != self.day {
            *self = DayUse { day, bytes: BTreeMap::new() };
        }
        add(self.bytes.entry(cause).or_default(), resource, bytes);
    }

    pub fn total(&self) -> u64 {
        self.bytes.values().flat_map(BTreeMap::values).sum()
    }

    /// Returns true if the budget of the day of `unix` is spent.
    pub fn is_spent(&self, unix: i64, budget: u64) -> bool {
        unix.div_euclid(DAY_SECONDS) == self.day && self.total() >= budget
    }

    /// The largest part, as `sync of v1/pods`.
    fn largest(&self) -> Option<String> {
        let parts = self.bytes.iter().flat_map(|(cause, resources)| {
            resources.iter().map(move |(resource, bytes)| (bytes, cause, resource))
        });
        let (_, cause, resource) = parts.max()?;
        Some(if resource.is_empty() {
            cause.as_str().into()
        } else {
            format!("{} of {resource}", cause.as_str())
        })
    }

    fn date(&self) -> String {
        let at = jiff::Timestamp::from_second(self.day * DAY_SECONDS).unwrap_or_default();
        at.strftime("%Y-%m-%d").to_string()
    }
}

fn add(resources: &mut BTreeMap<String, u64>, resource: &str, bytes: u64) {
    let is_full = resources.len() >= RESOURCES_MAX && !resources.contains_key(resource);
    *resources.entry(if is_full { OTHER } else { resource }.to_owned()).or_default() += bytes;
}

/// Decides whether a subscription is kept current: always while the budget lasts, afterwards when a client needs it or it is pinned.
pub fn goes_on(is_spent: bool, is_pinned: bool, watchers: usize, is_complete: bool) -> bool {
    !is_spent || is_pinned || watchers > 0 || !is_complete
}

/// A handle; clones count together.
#[derive(Clone)]
pub struct LinkTraffic(Arc<SharedTraffic>);

struct SharedTraffic {
    budget: Option<u64>,
    today: Mutex<DayUse>,
    /// Since the start, by cause and resource.
    total: Mutex<BTreeMap<TrafficCause, BTreeMap<String, u64>>>,
    /// The message while the budget is spent.
    spent: watch::Sender<Option<String>>,
    /// Bytes since the last write to disk.
    unkept: AtomicU64,
    /// Notified when `unkept` reaches `keep_after`.
    due: Notify,
}

/// The count is written to disk at least this often while it changes.
pub const KEEP_PERIOD: Duration = Duration::from_secs(60);
// A hundredth of the budget, so that a kill costs no more of it. Less than the first would wear the disk, more than the second
// would lose much without a budget.
const KEEP_BYTES_MIN: u64 = 64 << 10;
const KEEP_BYTES_MAX: u64 = 1 << 20;

/// The bytes after which the count is written to disk before the period ends.
pub fn keep_after(budget: Option<u64>) -> u64 {
    budget.map_or(KEEP_BYTES_MAX, |budget| (budget / 100).clamp(KEEP_BYTES_MIN, KEEP_BYTES_MAX))
}

impl LinkTraffic {
    /// `today` is the use of an earlier start.
    pub fn new(budget: Option<u64>, today: DayUse) -> LinkTraffic {
        let shared = SharedTraffic {
            budget,
            today: Mutex::new(today),
            total: Mutex::default(),
            spent: watch::Sender::new(None),
            unkept: AtomicU64::new(0),
            due: Notify::new(),
        };
        let traffic = LinkTraffic(Arc::new(shared));
        traffic.check_budget(unix_now());
        traffic
    }

    pub fn count(&self, cause: TrafficCause, resource: &str, bytes: u64) {
        add(lock(&self.0.total).entry(cause).or_default(), resource, bytes);
        let now = unix_now();
        lock(&self.0.today).add(now, cause, resource, bytes);
        self.check_budget(now);
        let (before, after) = (self.0.unkept.fetch_add(bytes, Ordering::Relaxed), keep_after(self.0.budget));
        if before < after && before + bytes >= after {
            self.0.due.notify_one();
        }
    }

    /// Resolves when the count should be written to disk.
    pub async fn keeping_due(&self) {
        let _ = tokio::time::timeout(KEEP_PERIOD, self.0.due.notified()).await;
    }

    /// The count that is written now; bytes from here on count towards the next write.
    pub fn begin_keeping(&self) -> DayUse {
        self.0.unkept.store(0, Ordering::Relaxed);
        self.today()
    }

    /// Compares the use with the budget. A new day ends the pause.
    pub fn check_budget(&self, unix: i64) {
        let Some(budget) = self.0.budget else { return };
        let today = lock(&self.0.today);
        let is_spent = today.is_spent(unix, budget);
        self.0.spent.send_if_modified(|spent| {
            let is_other = is_spent != spent.is_some();
            if is_other {
                *spent = is_spent.then(|| {
                    let most = today.largest().unwrap_or_default();
                    let date = today.date();
                    format!(
                        "the budget of {budget} bytes for {date} (UTC) is spent, most of it by {most}; copies that no client watches are not \
                         kept current until the next day"
                    )
                });
            }
            is_other
        });
    }

    pub fn is_spent(&self) -> bool {
        self.0.spent.borrow().is_some()
    }

    /// Changes when the budget is spent, and when the next day begins.
    pub fn spending(&self) -> watch::Receiver<Option<String>> {
        self.0.spent.subscribe()
    }

    /// The message of the condition: empty while the budget lasts; `None` without a budget.
    pub fn budget_message(&self) -> Option<String> {
        self.0.budget.map(|_| self.0.spent.borrow().clone().unwrap_or_default())
    }

    pub fn today(&self) -> DayUse {
        lock(&self.0.today).clone()
    }

    /// Bytes since the start.
    pub fn totals(&self) -> BTreeMap<TrafficCause, BTreeMap<String, u64>> {
        lock(&self.0.total).clone()
    }

    pub fn summary(&self) -> Value {
        let today = self.today();
        json!({
            "day": today.date(), "budgetBytes": self.0.budget, "bytes": today.total(), "byCause": today.bytes,
            "spent": *self.0.spent.borrow(),
        })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock_ignoring_poison()
}

/// A stream whose bytes are counted.
pub struct CountedStream {
    stream: BoxedStream,
    traffic: LinkTraffic,
    cause: TrafficCause,
    resource: String,
}

impl CountedStream {
    pub fn wrap(
        stream: BoxedStream,
        traffic: &LinkTraffic,
        cause: TrafficCause,
        resource: String,
    ) -> BoxedStream {
        Box::new(CountedStream { stream, traffic: traffic.clone(), cause, resource })
    }

    fn count(&self, bytes: usize) {
        if bytes > 0 {
            self.traffic.count(self.cause, &self.resource, bytes as u64);
        }
    }
}

impl AsyncRead for CountedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.count(buffer.filled().len() - before);
        polled
    }
}

impl AsyncWrite for CountedStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        if let Poll::Ready(Ok(written)) = &polled {
            self.count(*written);
        }
        polled
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// Counts the streams of requests and of access decisions. Streams of subscriptions are counted by resource where they are opened.
pub struct CountingConnector {
    pub connector: Arc<dyn CloudConnector>,
    pub traffic: LinkTraffic,
}

impl CloudConnector for CountingConnector {
    fn open(&self, target: &'static str) -> ConnectorFuture<'_, Result<BoxedStream, CloudAway>> {
        Box::pin(async move {
            let stream = self.connector.open(target).await?;
            let cause = match target {
                SYNC_TARGET => return Ok(stream),
                ACCESS_TARGET => TrafficCause::Access,
                _ => TrafficCause::Request,
            };
            Ok(CountedStream::wrap(stream, &self.traffic, cause, String::new()))
        })
    }

    fn is_connected(&self) -> bool {
        self.connector.is_connected()
    }

    fn connected(&self) -> ConnectorFuture<'_, ()> {
        self.connector.connected()
    }

    fn disconnected(&self) -> ConnectorFuture<'_, ()> {
        self.connector.disconnected()
    }

    fn suspect(&self) {
        self.connector.suspect();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_spent_until_the_next_day() {
        let mut today = DayUse::default();
        let noon = DAY_SECONDS * 20_000 + DAY_SECONDS / 2;
        today.add(noon, TrafficCause::Sync, "v1/pods", 600);
        today.add(noon, TrafficCause::Request, "", 300);
        assert_eq!((today.total(), today.is_spent(noon, 1_000)), (900, false));
        today.add(noon, TrafficCause::Sync, "v1/pods", 100);
        assert!(today.is_spent(noon, 1_000));
        assert_eq!(today.largest().as_deref(), Some("sync of v1/pods"));
        assert!(!today.is_spent(noon + DAY_SECONDS, 1_000), "a new day");
        today.add(noon + DAY_SECONDS, TrafficCause::Access, "", 5);
        assert_eq!((today.total(), today.date().as_str()), (5, "2024-10-05"));
        let text = serde_json::to_string(&today).unwrap();
        assert_eq!(serde_json::from_str::<DayUse>(&text).unwrap(), today);
    }

    #[test]
    fn a_spent_budget_stops_what_no_client_needs() {
        let check = |case: (bool, bool, usize, bool), expected| {
            assert_eq!(goes_on(case.0, case.1, case.2, case.3), expected, "{case:?}");
        };
        check((false, false, 0, true), true);
        check((true, false, 0, true), false);
        check((true, true, 0, true), true);
        check((true, false, 1, true), true);
        // A client waits for the first copy.
        check((true, false, 0, false), true);
    }

    #[test]
    fn the_handle_tells_when_the_budget_is_spent() {
        let traffic = LinkTraffic::new(Some(100), DayUse::default());
        assert_eq!(traffic.budget_message().as_deref(), Some(""));
        traffic.count(TrafficCause::Sync, "v1/nodes", 100);
        assert!(traffic.is_spent());
        let message = traffic.budget_message().unwrap();
        assert!(message.contains("100 bytes") && message.contains("sync of v1/nodes"), "{message}");
        traffic.count(TrafficCause::Request, "", 9_000);
        assert_eq!(traffic.budget_message().unwrap(), message, "the message does not change with every byte");
        traffic.check_budget(unix_now() + 2 * DAY_SECONDS);
        assert_eq!(traffic.budget_message().as_deref(), Some(""));
        // A restart goes on from the use of the day.
        assert!(LinkTraffic::new(Some(100), traffic.today()).is_spent());
        let free = LinkTraffic::new(None, traffic.today());
        assert!(!free.is_spent() && free.budget_message().is_none());
    }

    #[test]
    fn the_loss_of_a_kill_is_a_part_of_the_budget() {
        for (budget, expected) in [
            (None, KEEP_BYTES_MAX),
            (Some(50_000_000), 500_000),
            (Some(1_000), KEEP_BYTES_MIN),
            (Some(10 << 30), KEEP_BYTES_MAX),
        ] {
            assert_eq!(keep_after(budget), expected, "{budget:?}");
        }
    }

    #[test]
    fn resources_of_a_day_are_bounded() {
        let mut today = DayUse::default();
        for number in 0..2 * RESOURCES_MAX {
            today.add(0, TrafficCause::Sync, &number.to_string(), 1);
        }
        assert_eq!(today.bytes[&TrafficCause::Sync].len(), RESOURCES_MAX + 1);
        assert_eq!(today.total(), 2 * RESOURCES_MAX as u64);
    }

    #[tokio::test]
    async fn both_directions_of_a_stream_are_counted() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let traffic = LinkTraffic::new(None, DayUse::default());
        let (near, mut far) = tokio::io::duplex(100);
        let mut counted = CountedStream::wrap(Box::new(near), &traffic, TrafficCause::Sync, "v1/pods".into());
        counted.write_all(b"hello").await.unwrap();
        far.write_all(b"you").await.unwrap();
        counted.read_exact(&mut [0; 3]).await.unwrap();
        assert_eq!(traffic.totals()[&TrafficCause::Sync]["v1/pods"], 8);
    }
}
