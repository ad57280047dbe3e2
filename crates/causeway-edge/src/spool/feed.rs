//! The thread that owns the queue, the handle that fills it, and the feed that a session sends from.
//!
//! `append` never waits: between it and the thread is a short queue in memory, and what does not fit is counted
//! as lost. The thread gathers what comes within a moment, writes it, syncs once, and shows the next batch. A batch
//! is shown until it is acknowledged, so a new session simply begins with it, and a sender may be dropped at any await.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use causeway_api::sync::MutexExt;
use causeway_channel::wire::control::{self, SpoolAck};
use causeway_gateway::problems::Problems;
use tokio::sync::watch;

use super::frame::{FRAME_HEAD_BYTES, SpoolRecordKind};
use super::plan::SpoolLimits;
use super::queue::{QueueId, SpoolFile, SpoolReadBatch};
use crate::link::{LinkFuture, SpoolFeed, SpoolQueue};

/// Records and bytes that may wait for the thread: a burst of a second, while the disk is busy.
const COMMANDS_MAX: usize = 4096;
const MEMORY_BYTES_MAX: usize = 4 << 20;
/// Records of this period share one sync. No caller waits for them, and syncs wear out flash.
const SYNC_BATCH_DELAY: Duration = Duration::from_millis(200);

/// The numbers of waiting and of lost records, for status and metrics.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpoolStats {
    pub waiting: u64,
    pub bytes: u64,
    pub lost: u64,
}

/// The queue of records for the cloud. Clones share it.
#[derive(Clone, Debug)]
pub struct Spool {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    commands: Mutex<Option<SyncSender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    memory: Arc<Memory>,
    shown: watch::Receiver<Option<Arc<SpoolReadBatch>>>,
    stats: watch::Receiver<SpoolStats>,
}

#[derive(Debug, Default)]
struct Memory {
    bytes: AtomicUsize,
    refused: AtomicU64,
    /// More than a quarter of the queue is used.
    is_pressed: AtomicBool,
}

enum Command {
    Append(SpoolRecordKind, Vec<u8>),
    Acknowledged(QueueId, u64),
}

impl Spool {
    /// Opens the queue in `folder` and starts its thread.
    pub fn open(folder: &Path, limits: SpoolLimits) -> std::io::Result<Spool> {
        let queue = SpoolFile::open(folder, limits)?;
        let (commands, received) = sync_channel(COMMANDS_MAX);
        let memory = Arc::new(Memory::default());
        let (show, shown) = watch::channel(None);
        let (tell, stats) = watch::channel(SpoolStats::default());
        let worker = Worker { queue, limits, memory: memory.clone(), show, tell, failing: false };
        let thread =
            std::thread::Builder::new().name("spool".to_owned()).spawn(move || worker.run(&received))?;
        let inner = Inner {
            commands: Mutex::new(Some(commands)),
            thread: Mutex::new(Some(thread)),
            memory,
            shown,
            stats,
        };
        Ok(Spool { inner: Arc::new(inner) })
    }

    /// Hands over one record. Never waits; a record that does not fit is counted as lost.
    pub fn append(&self, kind: SpoolRecordKind, record: Vec<u8>) {
        let memory = &self.inner.memory;
        let bytes = record.len() + FRAME_HEAD_BYTES;
        let taken = memory.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if taken > MEMORY_BYTES_MAX || !self.command(Command::Append(kind, record)) {
            memory.bytes.fetch_sub(bytes, Ordering::Relaxed);
            memory.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// As `acknowledged`, from the message of the cloud.
    pub fn handle_ack(&self, ack: &SpoolAck) {
        if let Some(queue) = QueueId::from_bytes(&ack.queue_id) {
            self.acknowledged(queue, ack.seq);
        }
    }

    /// The cloud has everything up to `seq` of that queue. Lost when the thread is behind: the batch is then sent
    /// again with the next session, and the cloud recognises it.
    pub fn acknowledged(&self, queue: QueueId, seq: u64) {
        self.command(Command::Acknowledged(queue, seq));
    }

    /// Reports that the process has started, once for the audit and once as its status.
    pub fn report_start(&self, software: &str) {
        let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string();
        let audit = serde_json::json!({"time": time, "event": "edge-started", "software": software});
        let status = serde_json::json!({"started": time, "software": software});
        self.append(SpoolRecordKind::Audit, audit.to_string().into_bytes());
        self.append(SpoolRecordKind::Status, status.to_string().into_bytes());
    }

    /// Reports the problems of this edge. The cloud shows them in the conditions of the EGateway and the
    /// EServices.
    pub fn report_problems(&self, software: &str, told: &Problems) {
        let status = serde_json::json!({
            "software": software, "regrets": told.gateway, "backends": told.backends, "tunnel": told.tunnel, "offline": told.offline,
            "budget": told.budget,
        });
        self.append(SpoolRecordKind::Status, status.to_string().into_bytes());
    }

    /// Returns whether clients must share the remaining space. That happens when the cloud is unreachable for long.
    pub fn is_pressed(&self) -> bool {
        self.inner.memory.is_pressed.load(Ordering::Relaxed)
    }

    /// The batches of one session. Every session has its own feed.
    pub fn feed(&self) -> SpoolSessionFeed {
        let mut shown = self.inner.shown.clone();
        shown.mark_changed();
        SpoolSessionFeed { shown }
    }

    pub fn stats(&self) -> SpoolStats {
        *self.inner.stats.borrow()
    }

    /// Writes what waits in memory and ends the thread. Blocks for as long as the disk takes.
    pub fn close(&self) {
        drop(self.inner.commands.lock_ignoring_poison().take());
        if let Some(thread) = self.inner.thread.lock_ignoring_poison().take() {
            let _ = thread.join();
        }
    }

    fn command(&self, command: Command) -> bool {
        let commands = self.inner.commands.lock_ignoring_poison();
        commands.as_ref().is_some_and(|commands| commands.try_send(command).is_ok())
    }
}

/// The batches for one session, each once.
#[derive(Debug)]
pub struct SpoolSessionFeed {
    shown: watch::Receiver<Option<Arc<SpoolReadBatch>>>,
}

impl SpoolSessionFeed {
    /// The next batch to send; `None` when the queue was closed. May be dropped while it waits without losing
    /// anything. Another one comes after the one before was acknowledged.
    pub async fn next(&mut self) -> Option<Arc<SpoolReadBatch>> {
        loop {
            self.shown.changed().await.ok()?;
            if let Some(batch) = self.shown.borrow_and_update().clone() {
                return Some(batch);
            }
        }
    }
}

impl SpoolQueue for Spool {
    fn feed(&self) -> Box<dyn SpoolFeed> {
        Box::new(Spool::feed(self))
    }

    fn handle_ack(&self, ack: SpoolAck) {
        Spool::handle_ack(self, &ack);
    }
}

impl SpoolFeed for SpoolSessionFeed {
    fn next(&mut self) -> LinkFuture<'_, control::SpoolBatch> {
        Box::pin(async {
            match SpoolSessionFeed::next(self).await {
                Some(batch) => batch.to_message(),
                // Closed: nothing comes any more.
                None => std::future::pending().await,
            }
        })
    }
}

/// The thread's side.
struct Worker {
    queue: SpoolFile,
    limits: SpoolLimits,
    memory: Arc<Memory>,
    show: watch::Sender<Option<Arc<SpoolReadBatch>>>,
    tell: watch::Sender<SpoolStats>,
    /// Trouble is logged when it begins and when it ends, not per record: a full disk must not fill the log as well.
    failing: bool,
}

impl Worker {
    fn run(mut self, commands: &Receiver<Command>) {
        self.publish();
        while let Ok(command) = commands.recv() {
            let acknowledged = self.handle(command);
            // An acknowledgement means that the link has time for more: what is written goes out at once.
            if !acknowledged {
                self.gather(commands);
            }
            self.take_refused();
            self.publish();
        }
        self.take_refused();
        if let Err(error) = self.queue.sync() {
            tracing::warn!(%error, "the spool was not closed cleanly");
        }
    }

    fn gather(&mut self, commands: &Receiver<Command>) {
        let end = Instant::now() + SYNC_BATCH_DELAY;
        loop {
            match commands.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(command) => {
                    if self.handle(command) {
                        return;
                    }
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// True when it was an acknowledgement.
    fn handle(&mut self, command: Command) -> bool {
        match command {
            Command::Append(kind, record) => {
                self.memory.bytes.fetch_sub(record.len() + FRAME_HEAD_BYTES, Ordering::Relaxed);
                let appended = self.queue.append(kind, &record).map(|_| ());
                self.note(appended);
                false
            }
            Command::Acknowledged(queue, seq) => {
                let acknowledged = self.queue.acknowledged(queue, seq);
                self.note(acknowledged);
                true
            }
        }
    }

    fn take_refused(&mut self) {
        let refused = self.memory.refused.swap(0, Ordering::Relaxed);
        if refused > 0 {
            tracing::warn!(refused, "records for the cloud came faster than they could be written");
            self.queue.refuse(refused);
        }
    }

    fn publish(&mut self) {
        let synced = self.queue.sync();
        self.note(synced);
        match self.queue.next_batch() {
            Ok(Some(batch)) => drop(self.show.send_replace(Some(Arc::new(batch)))),
            // The batch that was shown is settled: its memory is given back.
            Ok(None) if !self.queue.is_in_flight() => drop(self.show.send_replace(None)),
            Ok(None) => {}
            Err(error) => self.note(Err::<(), _>(error)),
        }
        let (waiting, bytes, lost) = (self.queue.waiting(), self.queue.bytes(), self.queue.lost());
        self.memory.is_pressed.store(self.limits.is_pressed(waiting, bytes), Ordering::Relaxed);
        self.tell.send_replace(SpoolStats { waiting, bytes, lost });
    }

    fn note<E: std::error::Error + 'static>(&mut self, result: Result<(), E>) {
        match result {
            Ok(()) if std::mem::take(&mut self.failing) => {
                tracing::info!("the spool is written again");
            }
            Ok(()) => {}
            Err(error) => {
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(error = &error as &dyn std::error::Error, "the spool cannot be written");
                }
            }
        }
    }
}
