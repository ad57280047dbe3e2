//! Who did what: one JSON object per line in DATA_DIR/audit/, bounded in size and number of files.
//!
//! Callers hand over a line and go on; one thread writes. The queue is bounded: when the disk is
//! too slow, lines are dropped and counted, because no request may wait for its audit line. The count
//! stands in `dropped`, and in a line of its own as soon as writing goes on.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use serde::Serialize;

use crate::rotated::{RotatedFiles, RotationLimits};

/// Lines that may wait: a second of a busy server, a few hundred kilobytes.
const QUEUE_MAX: usize = 4096;
const NAME: &str = "audit";

pub type AuditLimits = RotationLimits;

/// The audit log of a process. Clones write to the same files.
#[derive(Clone, Debug)]
pub struct AuditLog {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    queue: Mutex<Option<SyncSender<Message>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    dropped: Arc<AtomicU64>,
}

enum Message {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

impl AuditLog {
    /// Opens `folder`, which is made when missing, and starts the writer.
    pub fn open(folder: &Path, limits: AuditLimits) -> io::Result<AuditLog> {
        let dropped = Arc::new(AtomicU64::new(0));
        let files = RotatedFiles::open(folder, NAME, limits)?;
        let (queue, messages) = sync_channel(QUEUE_MAX);
        let writer = Writer { files, dropped: dropped.clone(), reported: 0, failing: false };
        let thread =
            std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(messages))?;
        let inner = Inner { queue: Mutex::new(Some(queue)), thread: Mutex::new(Some(thread)), dropped };
        Ok(AuditLog { inner: Arc::new(inner) })
    }

    /// Hands over one line; a `time` is put in front of its fields. Never waits.
    pub fn record(&self, event: &impl Serialize) {
        let line = match encode(event) {
            Ok(line) => line,
            Err(error) => {
                tracing::error!(%error, "an audit line cannot be encoded");
                self.inner.dropped.fetch_add(1, Ordering::Relaxed);
                return;
            }
        };
        let queue = self.inner.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let sent = match queue.as_ref() {
            Some(queue) => queue.try_send(Message::Line(line)),
            None => Err(TrySendError::Disconnected(Message::Line(line))),
        };
        if sent.is_err() {
            self.inner.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Lines that were lost since the start.
    pub fn dropped(&self) -> u64 {
        self.inner.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything handed over so far is in the file. Blocks: for the end and for tests.
    pub fn flush(&self) {
        let queue = self.inner.queue.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(queue) = queue else { return };
        let (done, wait) = sync_channel(1);
        if queue.send(Message::Flush(done)).is_ok() {
            let _ = wait.recv();
        }
    }

    /// Writes what waits and ends the writer. Later lines are dropped and counted.
    pub fn close(&self) {
        drop(self.inner.queue.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.inner.thread.lock().unwrap_or_else(PoisonError::into_inner).take() {
            let _ = thread.join();
        }
    }
}

fn encode(event: &impl Serialize) -> serde_json::Result<Vec<u8>> {
    #[derive(Serialize)]
    struct Line<'a, T> {
        time: String,
        #[serde(flatten)]
        event: &'a T,
    }
    let time = jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string();
    let mut line = serde_json::to_vec(&Line { time, event })?;
    line.push(b'\n');
    Ok(line)
}

struct Writer {
    files: RotatedFiles,
    dropped: Arc<AtomicU64>,
    reported: u64,
    failing: bool,
}

impl Writer {
    fn run(mut self, messages: Receiver<Message>) {
        while let Ok(message) = messages.recv() {
            match message {
                Message::Line(line) => {
                    self.report_dropped();
                    self.write(&line);
                }
                Message::Flush(done) => {
                    let _ = done.send(());
                }
            }
        }
        let _ = self.files.sync();
    }

    fn report_dropped(&mut self) {
        let dropped = self.dropped.load(Ordering::Relaxed);
        if dropped == self.reported || self.failing {
            return;
        }
        let lost = dropped - self.reported;
        self.reported = dropped;
        tracing::warn!(lost, "audit lines were lost");
        if let Ok(line) = encode(&serde_json::json!({"event": "audit-lines-lost", "lost": lost})) {
            self.write(&line);
        }
    }

    fn write(&mut self, line: &[u8]) {
        match self.files.append(line) {
            Ok(()) => {
                if std::mem::take(&mut self.failing) {
                    tracing::info!("the audit log is written again");
                }
            }
            Err(error) => {
                self.dropped.fetch_add(1, Ordering::Relaxed);
                // Once, not per line: a full disk must not fill the log as well.
                if !std::mem::replace(&mut self.failing, true) {
                    tracing::error!(%error, folder = %self.files.folder().display(), "the audit log cannot be written");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use serde_json::{Value, json};

    use super::*;

    const CURRENT: &str = "audit.jsonl";

    fn lines(path: &Path) -> Vec<Value> {
        fs::read_to_string(path).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[test]
    fn a_line_has_its_time_and_its_fields() {
        let dir = tempfile::tempdir().unwrap();
        let audit = AuditLog::open(dir.path(), AuditLimits::default()).unwrap();
        audit.record(&json!({"subject": "admin", "decision": "allow"}));
        audit.flush();
        let lines = lines(&dir.path().join(CURRENT));
        assert_eq!(lines[0]["subject"], "admin");
        assert!(lines[0]["time"].as_str().unwrap().ends_with('Z'));
    }

    #[test]
    fn old_files_go_and_the_newest_lines_stay() {
        let dir = tempfile::tempdir().unwrap();
        let audit = AuditLog::open(dir.path(), AuditLimits { file_bytes_max: 200, files_max: 3 }).unwrap();
        for number in 0..100 {
            audit.record(&json!({"number": number}));
        }
        audit.close();
        let mut names: Vec<_> =
            fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["audit-1.jsonl", "audit-2.jsonl", "audit.jsonl"]);
        assert_eq!(lines(&dir.path().join(CURRENT)).last().unwrap()["number"], 99);
        assert!(fs::metadata(dir.path().join("audit-1.jsonl")).unwrap().len() <= 200);
        assert_eq!(audit.dropped(), 0);
        audit.record(&json!({}));
        assert_eq!(audit.dropped(), 1);
    }

    #[test]
    fn a_line_cut_by_a_crash_does_not_swallow_the_next() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join(CURRENT), "{\"cut").unwrap();
        let audit = AuditLog::open(dir.path(), AuditLimits::default()).unwrap();
        audit.record(&json!({"whole": true}));
        audit.close();
        let text = fs::read_to_string(dir.path().join(CURRENT)).unwrap();
        let whole: Value = serde_json::from_str(text.lines().nth(1).unwrap()).unwrap();
        assert_eq!(whole["whole"], true);
    }
}
