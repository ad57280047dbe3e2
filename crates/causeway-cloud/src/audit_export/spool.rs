//! Keeps the records that wait for collectors, numbered, in files of bounded total size.
//!
//! `records-FIRST.jsonl` holds the records from number FIRST up to the next file, one JSON object per line: the line of the journal
//! with `source`, `sequence` and `journal` in front of its fields. Writers are the threads of the journals; readers read files
//! without the lock. Files that every destination has passed are deleted, and so are the oldest when the bound is reached.

use std::collections::{BTreeMap, VecDeque};
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use causeway_api::sync::MutexExt;
use causeway_channel::TokenSecret;
use causeway_daemon::audit::LineTap;
use causeway_daemon::data_dir::{make_folder, write_atomic};
use tokio::sync::watch;

/// Records and bytes of one batch. Collectors take bodies of a megabyte by default.
pub const RECORDS_MAX: usize = 1000;
const BATCH_BYTES_MAX: usize = 768 << 10;
/// A file holds this part of the bound; whole files are dropped.
const FILES: u64 = 64;
const FILE_BYTES_MIN: u64 = 64 << 10;
/// A batch of usual records is read in about ten steps.
const READ_BYTES: usize = 64 << 10;
const SOURCE_FILE: &str = "source";

/// Records in the order of their numbers; `first` is the number of the first one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportBatch {
    pub first: u64,
    /// JSON objects, without the end of the line.
    pub lines: Vec<Bytes>,
}

impl ExportBatch {
    /// As JSON lines, each with its end.
    pub fn to_json_lines(&self) -> Vec<u8> {
        let mut text = Vec::with_capacity(self.lines.iter().map(|line| line.len() + 1).sum());
        for line in &self.lines {
            text.extend_from_slice(line);
            text.push(b'\n');
        }
        text
    }
}

/// The place behind the last record that was read: a file, the number of the next record and the byte where it begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpoolPosition {
    file: u64,
    sequence: u64,
    offset: u64,
}

#[derive(Debug)]
pub struct ExportSpool {
    folder: PathBuf,
    source: String,
    bytes_max: u64,
    state: Mutex<State>,
    appended: watch::Sender<u64>,
    /// Records that could not be written.
    unwritten: AtomicU64,
}

#[derive(Debug)]
struct State {
    /// Oldest first; the last one is written.
    files: VecDeque<SpoolFile>,
    current: File,
    next: u64,
    /// The next record of each destination.
    cursors: BTreeMap<&'static str, u64>,
    is_failing: bool,
}

#[derive(Debug, Clone)]
struct SpoolFile {
    first: u64,
    bytes: u64,
    /// When its first record was written.
    begun: SystemTime,
}

impl ExportSpool {
    pub fn open(folder: &Path, bytes_max: u64) -> io::Result<ExportSpool> {
        make_folder(folder)?;
        let source = open_source(folder)?;
        let mut files = VecDeque::new();
        for first in numbers(folder)? {
            let found = fs::metadata(path(folder, first))?;
            files.push_back(SpoolFile { first, bytes: found.len(), begun: found.modified()? });
        }
        if files.is_empty() {
            files.push_back(SpoolFile { first: 1, bytes: 0, begun: SystemTime::now() });
        }
        let last = files.back_mut().expect("at least one file is in the list");
        let (current, next) = open_last(&path(folder, last.first), last)?;
        let cursors = BTreeMap::new();
        let state = State { files, current, next, cursors, is_failing: false };
        Ok(ExportSpool {
            folder: folder.to_owned(),
            source,
            bytes_max,
            state: Mutex::new(state),
            appended: watch::Sender::new(next),
            unwritten: AtomicU64::new(0),
        })
    }

    /// The random name of this spool. Numbers are unique under it.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// The number of the oldest record that is kept.
    pub fn first(&self) -> u64 {
        self.state.lock_ignoring_poison().files.front().map_or(1, |file| file.first)
    }

    /// The number of the next record, as it changes.
    pub fn appended(&self) -> watch::Receiver<u64> {
        self.appended.subscribe()
    }

    /// Records that were lost before they had a number, because the disk refused them.
    pub fn unwritten(&self) -> u64 {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Notes that a destination needs no record before `next`, and deletes files that all have passed.
    pub fn keep_from(&self, destination: &'static str, next: u64) {
        let mut state = self.state.lock_ignoring_poison();
        state.cursors.insert(destination, next);
        let passed = state.cursors.values().copied().min().unwrap_or(0);
        while state.files.get(1).is_some_and(|second| second.first <= passed) {
            self.delete_oldest(&mut state);
        }
    }

    /// Of each destination: the records that wait, and the age of the oldest of them, to the precision of one file.
    pub fn waiting(&self) -> Vec<(&'static str, u64, Duration)> {
        let state = self.state.lock_ignoring_poison();
        let now = SystemTime::now();
        let age = |next: u64| {
            let file = state.files.iter().rev().find(|file| file.first <= next).or(state.files.front());
            let is_waiting = next < state.next;
            file.filter(|_| is_waiting)
                .and_then(|file| now.duration_since(file.begun).ok())
                .unwrap_or_default()
        };
        let rows = state.cursors.iter();
        rows.map(|(name, next)| (*name, state.next.saturating_sub(*next), age(*next))).collect()
    }

    /// Numbers lines of a journal and writes them. A disk that refuses them does not stop the journal: they are counted.
    pub fn append(&self, journal: &str, lines: &[u8]) {
        let mut state = self.state.lock_ignoring_poison();
        let (text, count) = self.number(&state, journal, lines);
        if count == 0 {
            return;
        }
        match self.write(&mut state, &text) {
            Ok(()) => {
                state.next += count;
                state.is_failing = false;
                self.appended.send_replace(state.next);
            }
            Err(error) => {
                self.unwritten.fetch_add(count, Ordering::Relaxed);
                if !std::mem::replace(&mut state.is_failing, true) {
                    tracing::error!(%error, folder = %self.folder.display(), "audit records cannot be kept for export");
                }
            }
        }
    }

    /// Everything appended so far is on the disk afterwards.
    pub fn sync(&self) {
        let file = self.state.lock_ignoring_poison().current.try_clone();
        if let Err(error) = file.and_then(|file| file.sync_data()) {
            tracing::warn!(%error, "audit records for export may not survive a power failure");
        }
    }

    /// Reads the records from number `from`, or from the oldest that is kept, up to the size of a batch. `at` is the position that the
    /// read before returned, so that a file is read once and not from its start for each batch.
    pub fn read(&self, from: u64, at: Option<SpoolPosition>) -> io::Result<(ExportBatch, SpoolPosition)> {
        let (files, next) = {
            let state = self.state.lock_ignoring_poison();
            (state.files.iter().map(|file| file.first).collect::<Vec<_>>(), state.next)
        };
        let first = from.max(files.first().copied().unwrap_or(from));
        let mut batch = ExportBatch { first, lines: Vec::new() };
        let mut bytes = 0;
        let mut position = SpoolPosition { file: first, sequence: first, offset: 0 };
        let start = files.iter().rposition(|file| *file <= first).unwrap_or(0);
        for number in &files[start..] {
            let known = at.filter(|at| at.file == *number && at.sequence <= first);
            position = known.unwrap_or(SpoolPosition { file: *number, sequence: *number, offset: 0 });
            let mut file = File::open(path(&self.folder, *number))?;
            file.seek(SeekFrom::Start(position.offset))?;
            let mut reader = BufReader::with_capacity(READ_BYTES, file);
            // A line behind `next` may still be half written; it is not read.
            while position.sequence < next {
                if batch.lines.len() >= RECORDS_MAX || bytes >= BATCH_BYTES_MAX {
                    return Ok((batch, position));
                }
                let mut line = Vec::new();
                let read = reader.read_until(b'\n', &mut line)?;
                if read == 0 {
                    break;
                }
                if position.sequence >= first {
                    line.truncate(read - usize::from(line.ends_with(b"\n")));
                    bytes += line.len();
                    batch.lines.push(line.into());
                }
                position.sequence += 1;
                position.offset += read as u64;
            }
        }
        Ok((batch, position))
    }

    fn number(&self, state: &State, journal: &str, lines: &[u8]) -> (Vec<u8>, u64) {
        let (mut text, mut count) = (Vec::with_capacity(lines.len() * 2), 0);
        for line in lines.split_inclusive(|byte| *byte == b'\n') {
            // Journals hold whole lines, and objects with at least one field.
            let Some(line) = line.strip_suffix(b"\n") else { continue };
            let Some(fields) = line.strip_prefix(b"{").filter(|fields| fields.starts_with(b"\"")) else {
                continue;
            };
            let sequence = state.next + count;
            let head = format!(
                "{{\"source\":\"{}\",\"sequence\":{sequence},\"journal\":\"{journal}\",",
                self.source
            );
            text.extend_from_slice(head.as_bytes());
            text.extend_from_slice(fields);
            text.push(b'\n');
            count += 1;
        }
        (text, count)
    }

    fn write(&self, state: &mut State, text: &[u8]) -> io::Result<()> {
        let file_bytes_max = (self.bytes_max / FILES).max(FILE_BYTES_MIN);
        let last = state.files.back().expect("at least one file is in the list");
        if last.bytes > 0 && last.bytes + text.len() as u64 > file_bytes_max {
            state.current.sync_data()?;
            state.current = create(&path(&self.folder, state.next))?;
            state.files.push_back(SpoolFile { first: state.next, bytes: 0, begun: SystemTime::now() });
        }
        while state.files.len() > 1 && total(state) + text.len() as u64 > self.bytes_max {
            self.delete_oldest(state);
        }
        let last = state.files.back_mut().expect("at least one file is in the list");
        if last.bytes == 0 {
            last.begun = SystemTime::now();
        }
        if let Err(error) = state.current.write_all(text) {
            // Take back the half line of a full disk.
            let _ = state.current.set_len(last.bytes);
            return Err(error);
        }
        last.bytes += text.len() as u64;
        Ok(())
    }

    fn delete_oldest(&self, state: &mut State) {
        if let Some(oldest) = state.files.pop_front()
            && let Err(error) = fs::remove_file(path(&self.folder, oldest.first))
        {
            tracing::warn!(%error, "a file of the audit export cannot be deleted");
        }
    }
}

/// Hands the lines of one journal to the spool.
pub struct SpoolTap {
    pub spool: std::sync::Arc<ExportSpool>,
    pub journal: &'static str,
}

impl LineTap for SpoolTap {
    fn append(&self, lines: &[u8]) {
        self.spool.append(self.journal, lines);
    }

    fn sync(&self) {
        self.spool.sync();
    }
}

fn total(state: &State) -> u64 {
    state.files.iter().map(|file| file.bytes).sum()
}

fn path(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("records-{first:020}.jsonl"))
}

/// The first numbers of the files in the folder, in order.
fn numbers(folder: &Path) -> io::Result<Vec<u64>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name();
        let middle = name.to_str().and_then(|name| name.strip_prefix("records-")?.strip_suffix(".jsonl"));
        found.extend(middle.and_then(|number| number.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).append(true).create(true).mode(0o600).open(path)
}

/// Opens the last file, cuts a half line off its end, and returns the number of the next record.
fn open_last(path: &Path, last: &mut SpoolFile) -> io::Result<(File, u64)> {
    let mut file = create(path)?;
    let (mut whole, mut count) = (0, 0);
    file.seek(SeekFrom::Start(0))?;
    let mut reader = BufReader::new(&file);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)?;
        if read == 0 || !line.ends_with(b"\n") {
            break;
        }
        whole += read as u64;
        count += 1;
    }
    drop(reader);
    file.set_len(whole)?;
    last.bytes = whole;
    Ok((file, last.first + count))
}

fn open_source(folder: &Path) -> io::Result<String> {
    let path = folder.join(SOURCE_FILE);
    match fs::read_to_string(&path) {
        Ok(text) if !text.trim().is_empty() => return Ok(text.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let source: String =
        TokenSecret::generate().expose()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    write_atomic(&path, format!("{source}\n").as_bytes())?;
    Ok(source)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn lines(batch: &ExportBatch) -> Vec<Value> {
        batch.lines.iter().map(|line| serde_json::from_slice(line).unwrap()).collect()
    }

    #[test]
    fn records_are_numbered_and_survive_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let spool = ExportSpool::open(dir.path(), 1 << 20).unwrap();
        let source = spool.source().to_owned();
        spool.append("traffic", b"{\"service\":\"web\"}\n{\"service\":\"db\"}\n");
        spool.append("admin", b"{\"verb\":\"create\"}\n{\"cut");
        drop(spool);
        // A crash in the middle of a line.
        let mut file = OpenOptions::new().append(true).open(path(dir.path(), 1)).unwrap();
        file.write_all(b"{\"half").unwrap();
        let spool = ExportSpool::open(dir.path(), 1 << 20).unwrap();
        spool.append("traffic", b"{\"service\":\"mail\"}\n");
        let read = lines(&spool.read(1, None).unwrap().0);
        let shown: Vec<_> =
            read.iter().map(|line| (line["sequence"].as_u64(), line["journal"].as_str())).collect();
        let (traffic, admin) = (Some("traffic"), Some("admin"));
        assert_eq!(shown, [(Some(1), traffic), (Some(2), traffic), (Some(3), admin), (Some(4), traffic)]);
        assert!(read.iter().all(|line| line["source"] == source.as_str()));
        assert_eq!(read[3]["service"], "mail");
        assert_eq!(*spool.appended().borrow(), 5);
        assert_eq!(lines(&spool.read(4, None).unwrap().0).len(), 1);
        assert!(spool.read(5, None).unwrap().0.lines.is_empty());
    }

    #[test]
    fn the_bound_holds_and_the_oldest_give_way() {
        let dir = tempfile::tempdir().unwrap();
        let bytes_max = 16 * FILE_BYTES_MIN;
        let spool = ExportSpool::open(dir.path(), bytes_max).unwrap();
        spool.keep_from("webhook", 1);
        let line = format!("{{\"text\":\"{}\"}}\n", "x".repeat(1000));
        for _ in 0..2000 {
            spool.append("traffic", line.as_bytes());
        }
        let on_disk: u64 = numbers(dir.path())
            .unwrap()
            .iter()
            .map(|first| fs::metadata(path(dir.path(), *first)).unwrap().len())
            .sum();
        assert!(on_disk <= bytes_max, "{on_disk}");
        let batch = spool.read(1, None).unwrap().0;
        assert!(batch.first > 1 && batch.first == spool.first(), "{}", batch.first);
        assert_eq!(lines(&batch)[0]["sequence"], batch.first);
        let (name, waiting, age) = spool.waiting()[0];
        assert_eq!((name, waiting), ("webhook", 2000));
        assert!(age < Duration::from_secs(600));
    }

    #[test]
    fn files_that_every_destination_has_passed_go() {
        let dir = tempfile::tempdir().unwrap();
        let spool = ExportSpool::open(dir.path(), 16 * FILE_BYTES_MIN).unwrap();
        let line = format!("{{\"text\":\"{}\"}}\n", "x".repeat(1000));
        spool.keep_from("webhook", 1);
        spool.keep_from("syslog", 1);
        for _ in 0..300 {
            spool.append("traffic", line.as_bytes());
        }
        let files = || numbers(dir.path()).unwrap().len();
        assert!(files() > 3);
        spool.keep_from("webhook", 301);
        assert!(files() > 3, "syslog needs them");
        spool.keep_from("syslog", 301);
        assert_eq!(files(), 1);
        // Batches follow each other over the borders of files.
        let (mut next, mut at) = (spool.first(), None);
        while next < 301 {
            let (batch, position) = spool.read(next, at).unwrap();
            assert_eq!(batch.first, next);
            next += batch.lines.len() as u64;
            at = Some(position);
        }
    }

    #[test]
    fn a_read_goes_on_where_the_one_before_ended() {
        let dir = tempfile::tempdir().unwrap();
        let spool = ExportSpool::open(dir.path(), 64 * FILE_BYTES_MIN).unwrap();
        for number in 0..3 * RECORDS_MAX {
            spool.append("traffic", format!("{{\"number\":{number}}}\n").as_bytes());
        }
        let (mut next, mut at, mut files) = (1, None, BTreeMap::new());
        while next <= 3 * RECORDS_MAX as u64 {
            let (batch, position) = spool.read(next, at).unwrap();
            assert_eq!(batch, spool.read(next, None).unwrap().0, "{next}");
            let numbers: Vec<_> = lines(&batch).iter().map(|line| line["sequence"].as_u64()).collect();
            assert_eq!(numbers, (next..next + batch.lines.len() as u64).map(Some).collect::<Vec<_>>());
            next += batch.lines.len() as u64;
            files.insert(position.file, position.offset);
            at = Some(position);
        }
        // The bytes in front of the position are not read again: no end of a line is among them any more.
        spool.append("traffic", b"{\"number\":\"last\"}\n");
        let position = at.unwrap();
        let file = OpenOptions::new().write(true).open(path(dir.path(), position.file)).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, &vec![b'x'; position.offset as usize], 0).unwrap();
        let (batch, _) = spool.read(next, at).unwrap();
        assert_eq!(lines(&batch)[0]["number"], "last");
        assert!(files.len() > 1, "{files:?}");
        // A position in a file that was dropped, or behind the cursor, is not used.
        let gone = SpoolPosition { file: 999_999, sequence: 1, offset: 7 };
        assert_eq!(spool.read(1, Some(gone)).unwrap(), spool.read(1, None).unwrap());
    }
}
