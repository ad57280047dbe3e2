//! Lines on disk, for sure: many callers, one thread, one sync for all that came together.
//!
//! The files are bounded by `compact`: when there are too many, the oldest lines of the gateways that have most give way.

use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use causeway_api::sync::MutexExt;
use causeway_daemon::audit::LineTap;
use causeway_daemon::rotated::{RotatedFiles, RotationLimits};
use tokio::sync::oneshot;

use super::compact;

const NAME: &str = "fleet";
/// Batches that may wait for the disk, at most 64 KiB each. A later batch is told to try again.
const QUEUE_MAX: usize = 256;

#[derive(Debug)]
pub struct JournalWriter {
    queue: Mutex<Option<SyncSender<Write>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Write {
    lines: Vec<u8>,
    done: oneshot::Sender<Result<(), Arc<io::Error>>>,
}

impl JournalWriter {
    /// `tap` has a copy of every line on its disk before `append` returns.
    pub fn open(
        folder: &Path,
        limits: RotationLimits,
        tap: Option<Box<dyn LineTap>>,
    ) -> io::Result<JournalWriter> {
        let files = RotatedFiles::open_unbounded(folder, NAME, limits.file_bytes_max)?;
        let (queue, writes) = sync_channel(QUEUE_MAX);
        let thread = std::thread::Builder::new()
            .name("spool-journal".to_owned())
            .spawn(move || run(files, limits, &writes, tap.as_deref()))?;
        Ok(JournalWriter { queue: Mutex::new(Some(queue)), thread: Mutex::new(Some(thread)) })
    }

    /// Returns when the lines are on the disk.
    pub async fn append(&self, lines: Vec<u8>) -> io::Result<()> {
        let (done, answer) = oneshot::channel();
        let sent = match &*self.queue.lock_ignoring_poison() {
            Some(queue) => queue.try_send(Write { lines, done }),
            None => Err(TrySendError::Disconnected(Write { lines, done })),
        };
        match sent {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => return Err(io::Error::other("too many batches wait for the disk")),
            Err(TrySendError::Disconnected(_)) => return Err(io::Error::other("the journal is closed")),
        }
        match answer.await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(io::Error::new(error.kind(), error)),
            Err(_) => Err(io::Error::other("the journal is closed")),
        }
    }
}

impl Drop for JournalWriter {
    fn drop(&mut self) {
        drop(self.queue.lock_ignoring_poison().take());
        if let Some(thread) = self.thread.lock_ignoring_poison().take() {
            let _ = thread.join();
        }
    }
}

fn run(mut files: RotatedFiles, limits: RotationLimits, writes: &Receiver<Write>, tap: Option<&dyn LineTap>) {
    // A bound that was made smaller holds at once.
    bound(&files, limits);
    while let Ok(first) = writes.recv() {
        let mut waiting = Vec::new();
        let mut is_rotated = false;
        for write in std::iter::once(first).chain(writes.try_iter()) {
            match files.append(&write.lines) {
                Ok(rotated) => {
                    is_rotated |= rotated;
                    if let Some(tap) = tap {
                        tap.append(&write.lines);
                    }
                    waiting.push(write.done);
                }
                Err(error) => {
                    // The disk may be full: then the bound must hold all the more.
                    is_rotated = true;
                    drop(write.done.send(Err(Arc::new(error))));
                }
            }
        }
        let synced = match waiting.is_empty() {
            true => Ok(()),
            false => {
                if let Some(tap) = tap {
                    tap.sync();
                }
                files.sync().map_err(Arc::new)
            }
        };
        waiting.into_iter().for_each(|done| drop(done.send(synced.clone())));
        if is_rotated {
            bound(&files, limits);
        }
    }
}

/// Compaction needs room for a file of its own. On a disk without that room the oldest files go, so that the bound holds.
fn bound(files: &RotatedFiles, limits: RotationLimits) {
    if let Err(error) = compact::run(files.folder(), NAME, limits) {
        let folder = files.folder();
        match compact::drop_oldest(folder, NAME, limits) {
            Ok(0) => {}
            Ok(bytes) => {
                tracing::error!(%error, folder = %folder.display(), bytes, "cannot compact the journal of records; its oldest files were deleted");
            }
            Err(error) => {
                tracing::error!(%error, folder = %folder.display(), "cannot keep the journal of records within its bound");
            }
        }
    }
}
