//! The audit log: one JSON object per line in DATA_DIR/audit/, bounded in size and number of files.
//!
//! Callers hand over a line and go on; one thread writes. The queue is bounded: when the disk is
//! too slow, lines are dropped and counted, because no request may wait for its audit line. The count
//! is in `dropped`, and in a line of its own as soon as writing goes on. Lines that clients can cause at will
//! are handed over with a key and coalesced (`coalesce`): a flood of them becomes a few lines with a `count`.

use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use causeway_api::sync::MutexExt;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::coalesce::{Absorb, CoalesceLimits, Coalesced, Coalescer};
use crate::rotated::{RotatedFiles, RotationLimits};

/// Lines that may wait: a second of a busy server, a few hundred kilobytes.
const QUEUE_MAX: usize = 4096;
pub const NAME: &str = "audit";
/// The interval at which ended coalescing windows are written.
const WINDOW_CHECK_INTERVAL: Duration = Duration::from_secs(1);

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
    repeating: Arc<Repeating>,
}

/// Is given every line that a log has written, on the thread that writes. For a copy elsewhere.
pub trait LineTap: Send {
    /// Takes whole lines, each with its end.
    fn append(&self, lines: &[u8]);

    /// Everything taken so far is on the disk afterwards.
    fn sync(&self);
}

/// The cause of a line. Each source has a table of its own, so that a flood from one does not displace the
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// A part of Causeway, or a peer whose credential was accepted.
    Trusted,
    Untrusted,
}

/// Lines that are held back, by source.
#[derive(Debug)]
struct Repeating {
    trusted: Mutex<Coalescer<String, Fields>>,
    untrusted: Mutex<Coalescer<String, Fields>>,
}

/// A line before it is written. Of several, the last one is shown.
#[derive(Debug)]
struct Fields(Map<String, Value>);

impl Absorb for Fields {
    fn absorb(&mut self, later: Fields) {
        *self = later;
    }
}

impl Repeating {
    fn new(limits: CoalesceLimits) -> Repeating {
        let coalescer = || Mutex::new(Coalescer::new(limits));
        Repeating { trusted: coalescer(), untrusted: coalescer() }
    }

    fn of(&self, source: Source) -> &Mutex<Coalescer<String, Fields>> {
        match source {
            Source::Trusted => &self.trusted,
            Source::Untrusted => &self.untrusted,
        }
    }

    fn take(
        &self,
        take: impl Fn(&mut Coalescer<String, Fields>) -> Vec<Coalesced<Fields>>,
    ) -> Vec<Coalesced<Fields>> {
        let each = [&self.trusted, &self.untrusted];
        each.into_iter().flat_map(|held| take(&mut held.lock_ignoring_poison())).collect()
    }
}

enum Message {
    Line(Vec<u8>),
    Flush(SyncSender<()>),
}

impl AuditLog {
    /// Opens `folder`, which is made when missing, and starts the writer.
    pub fn open(folder: &Path, limits: AuditLimits) -> io::Result<AuditLog> {
        AuditLog::open_as(folder, NAME, limits, CoalesceLimits::default())
    }

    /// As `open`, into files of another name.
    pub fn open_as(
        folder: &Path,
        name: &'static str,
        limits: AuditLimits,
        coalesce: CoalesceLimits,
    ) -> io::Result<AuditLog> {
        AuditLog::open_tapped(folder, name, limits, coalesce, None)
    }

    /// As `open_as`, with a copy of every line for `tap`.
    pub fn open_tapped(
        folder: &Path,
        name: &'static str,
        limits: AuditLimits,
        coalesce: CoalesceLimits,
        tap: Option<Box<dyn LineTap>>,
    ) -> io::Result<AuditLog> {
        let dropped = Arc::new(AtomicU64::new(0));
        let files = RotatedFiles::open(folder, name, limits)?;
        let (queue, messages) = sync_channel(QUEUE_MAX);
        let repeating = Arc::new(Repeating::new(coalesce));
        let held = repeating.clone();
        let writer = Writer {
            files,
            dropped: dropped.clone(),
            repeating: held,
            reported: 0,
            failing: false,
            unsynced: false,
            tap,
        };
        let thread =
            std::thread::Builder::new().name("audit".to_owned()).spawn(move || writer.run(messages))?;
        let (queue, thread) = (Mutex::new(Some(queue)), Mutex::new(Some(thread)));
        Ok(AuditLog { inner: Arc::new(Inner { queue, thread, dropped, repeating }) })
    }

    /// Hands over one line; a `time` is put in front of its fields. Never waits.
    pub fn record(&self, event: &impl Serialize) {
        match encode(event) {
            Ok(line) => self.send(line),
            Err(error) => self.refuse(&error),
        }
    }

    /// Hands over a line that `source` can cause at will. The first of a `key` are written, repeats are coalesced into a line
    /// with `count`, `firstTime` and `lastTime`. Never waits.
    pub fn record_repeating(&self, source: Source, key: String, event: &impl Serialize) {
        let fields = match serde_json::to_value(event) {
            Ok(Value::Object(fields)) => Fields(fields),
            Ok(_) => return self.refuse(&serde::ser::Error::custom("a line is an object")),
            Err(error) => return self.refuse(&error),
        };
        let held = self.inner.repeating.of(source);
        let mut held = held.lock_ignoring_poison();
        let passes = held.handle(key, fields, SystemTime::now(), Instant::now());
        drop(held);
        if let Some(fields) = passes {
            self.record(&fields.0);
        }
    }

    fn refuse(&self, error: &serde_json::Error) {
        tracing::error!(%error, "an audit line cannot be encoded");
        self.inner.dropped.fetch_add(1, Ordering::Relaxed);
    }

    fn send(&self, line: Vec<u8>) {
        let queue = self.inner.queue.lock_ignoring_poison();
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
        let queue = self.inner.queue.lock_ignoring_poison().clone();
        let Some(queue) = queue else { return };
        let (done, wait) = sync_channel(1);
        if queue.send(Message::Flush(done)).is_ok() {
            let _ = wait.recv();
        }
    }

    /// Writes what waits and ends the writer. Later lines are dropped and counted.
    pub fn close(&self) {
        drop(self.inner.queue.lock_ignoring_poison().take());
        if let Some(thread) = self.inner.thread.lock_ignoring_poison().take() {
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
    let mut line = serde_json::to_vec(&Line { time: text(SystemTime::now()), event })?;
    line.push(b'\n');
    Ok(line)
}

fn text(time: SystemTime) -> String {
    let time = jiff::Timestamp::try_from(time).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    time.strftime("%Y-%m-%dT%H:%M:%S.%3fZ").to_string()
}

struct Writer {
    files: RotatedFiles,
    dropped: Arc<AtomicU64>,
    repeating: Arc<Repeating>,
    reported: u64,
    failing: bool,
    unsynced: bool,
    tap: Option<Box<dyn LineTap>>,
}

impl Writer {
    fn run(mut self, messages: Receiver<Message>) {
        let mut last_check = Instant::now();
        loop {
            match messages.recv_timeout(WINDOW_CHECK_INTERVAL) {
                Ok(Message::Line(line)) => {
                    self.report_dropped();
                    self.write(&line);
                }
                Ok(Message::Flush(done)) => {
                    let _ = done.send(());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            // Under load no wait times out.
            let now = Instant::now();
            if now.duration_since(last_check) >= WINDOW_CHECK_INTERVAL {
                last_check = now;
                let due = self.repeating.take(|held| held.due(now));
                self.write_coalesced(due);
                // A power failure costs the lines of a second at most; a failed sync shows at the next write.
                if std::mem::take(&mut self.unsynced) {
                    self.sync();
                }
            }
        }
        let rest = self.repeating.take(Coalescer::drain);
        self.write_coalesced(rest);
        self.sync();
    }

    fn sync(&mut self) {
        let _ = self.files.sync();
        if let Some(tap) = &self.tap {
            tap.sync();
        }
    }

    fn write_coalesced(&mut self, held: Vec<Coalesced<Fields>>) {
        for Coalesced { record: Fields(mut fields), count, first, last, is_mixed } in held {
            fields.insert("count".to_owned(), count.into());
            fields.insert("firstTime".to_owned(), text(first).into());
            fields.insert("lastTime".to_owned(), text(last).into());
            if is_mixed {
                // The fields are those of the last line, and say little about the lines before it.
                fields.insert("mixed".to_owned(), true.into());
            }
            match encode(&fields) {
                Ok(line) => self.write(&line),
                Err(error) => tracing::error!(%error, "an audit line cannot be encoded"),
            }
        }
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
            Ok(_) => {
                self.unsynced = true;
                if let Some(tap) = &self.tap {
                    tap.append(line);
                }
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
    fn a_tap_has_every_line() {
        struct Copy(Arc<Mutex<Vec<u8>>>, Arc<AtomicU64>);
        impl LineTap for Copy {
            fn append(&self, lines: &[u8]) {
                self.0.lock_ignoring_poison().extend_from_slice(lines);
            }
            fn sync(&self) {
                self.1.fetch_add(1, Ordering::Relaxed);
            }
        }
        let dir = tempfile::tempdir().unwrap();
        let (copied, synced) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicU64::new(0)));
        let tap = Box::new(Copy(copied.clone(), synced.clone()));
        let (limits, coalesce) = (AuditLimits::default(), CoalesceLimits::default());
        let audit = AuditLog::open_tapped(dir.path(), "tapped", limits, coalesce, Some(tap)).unwrap();
        audit.record(&json!({"number": 1}));
        audit.record(&json!({"number": 2}));
        audit.close();
        assert_eq!(copied.lock_ignoring_poison()[..], fs::read(dir.path().join("tapped.jsonl")).unwrap()[..]);
        assert!(synced.load(Ordering::Relaxed) > 0);
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
    fn a_flood_of_refusals_becomes_a_few_lines_with_a_count_and_pushes_nothing_out() {
        let dir = tempfile::tempdir().unwrap();
        let limits = AuditLimits { file_bytes_max: 4000, files_max: 2 };
        let coalesce = CoalesceLimits { singles_burst: 10, keys_max: 8, ..CoalesceLimits::default() };
        let audit = AuditLog::open_as(dir.path(), "journal", limits, coalesce).unwrap();
        audit.record(&json!({"event": "ca-change-started"}));
        for number in 0..10_000 {
            // From invented addresses, and from one that repeats itself.
            let client = format!("10.0.{}.{}", number / 250, number % 250);
            audit.record_repeating(
                Source::Untrusted,
                client.clone(),
                &json!({"event": "enrol", "client": client}),
            );
        }
        audit.record_repeating(
            Source::Trusted,
            "gw".to_owned(),
            &json!({"event": "session", "gateway": "gw"}),
        );
        audit.close();
        let path = dir.path().join("journal.jsonl");
        let lines = lines(&path);
        assert_eq!(lines[0]["event"], "ca-change-started", "what happened before is still there");
        let sessions = lines.iter().filter(|line| line["gateway"] == "gw" && line["count"].is_null());
        assert_eq!(sessions.count(), 1, "strangers do not crowd out those who are known");
        let refused: u64 = lines
            .iter()
            .filter(|line| line["event"] == "enrol")
            .map(|line| line["count"].as_u64().unwrap_or(1))
            .sum();
        assert_eq!((refused, audit.dropped()), (10_000, 0), "every one is counted");
        assert!(lines.len() < 30, "{} lines", lines.len());
        let mixed = lines.iter().find(|line| line["mixed"] == true).unwrap();
        assert!(mixed["firstTime"].as_str() <= mixed["lastTime"].as_str());
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
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
