//! Reads the files of the journal from the oldest to the newest, and goes on where it grows.
//!
//! A file that is rotated away while it is read is read to its end: the open handle stays with it, and the next file is
//! the one that has its name now. Blocks; runs in a thread of its own until the files end or the reader is gone.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use causeway_daemon::rotated;
use tokio::sync::mpsc::Sender;

use super::query::AuditQuery;

/// Lines are handed on in pieces of about this size.
pub const CHUNK_BYTES: usize = 64 << 10;
/// Longer than any record an edge may send; longer lines are skipped.
pub const LINE_BYTES_MAX: usize = 1 << 20;
/// Interval at which a followed journal is checked for new records.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Interval of the empty lines that show whether the reader is still connected.
const ALIVE: Duration = Duration::from_secs(10);

/// Sends every wanted line, then, if the query follows, those that come. Ends when the receiver is gone.
pub fn run(folder: &Path, query: &AuditQuery, chunks: &Sender<Bytes>) -> io::Result<()> {
    let mut out = Out { chunks, chunk: Vec::new(), newest: VecDeque::new(), limit: query.limit };
    let name = query.journal.file_name();
    let current = folder.join(format!("{name}.jsonl"));
    let mut file = None;
    for path in older(folder, name)?.into_iter().chain([current.clone()]) {
        // Rotation may take a file away between listing and opening.
        let Some(mut opened) = open(&path)? else { continue };
        if !drain(&mut opened, query, &mut out)? {
            return Ok(());
        }
        file = Some(opened);
    }
    if !out.end_of_history() || !query.follow {
        return Ok(());
    }
    follow(&current, file, query, &mut out)
}

fn follow(current: &Path, mut file: Option<Opened>, query: &AuditQuery, out: &mut Out<'_>) -> io::Result<()> {
    let mut told = Instant::now();
    loop {
        std::thread::sleep(POLL_INTERVAL);
        // Looked at before the rest is read: lines from before the rotation are in the old file.
        let is_rotated = match (&file, fs::metadata(current)) {
            (Some(opened), Ok(now)) => now.ino() != opened.inode,
            (None, Ok(_)) => true,
            (_, Err(_)) => false,
        };
        if let Some(opened) = &mut file
            && !drain(opened, query, out)?
        {
            return Ok(());
        }
        if is_rotated {
            file = open(current)?.or(file);
            continue;
        }
        if told.elapsed() >= ALIVE {
            out.chunk.push(b'\n');
            told = Instant::now();
        }
        if !out.flush() {
            return Ok(());
        }
    }
}

/// The files before the current one, the oldest first.
fn older(folder: &Path, name: &str) -> io::Result<Vec<PathBuf>> {
    let mut numbers = rotated::older(folder, name)?;
    numbers.reverse();
    Ok(numbers.into_iter().map(|number| rotated::path_of_older(folder, name, number)).collect())
}

struct Opened {
    inode: u64,
    reader: BufReader<File>,
    /// A line whose end is not written yet.
    rest: Vec<u8>,
}

fn open(path: &Path) -> io::Result<Option<Opened>> {
    match File::open(path) {
        Ok(file) => {
            let inode = file.metadata()?.ino();
            Ok(Some(Opened { inode, reader: BufReader::with_capacity(CHUNK_BYTES, file), rest: Vec::new() }))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Hands on every whole line up to the end of the file. False: the reader is gone.
fn drain(opened: &mut Opened, query: &AuditQuery, out: &mut Out<'_>) -> io::Result<bool> {
    loop {
        let read = opened.reader.read_until(b'\n', &mut opened.rest)?;
        if read == 0 || !opened.rest.ends_with(b"\n") {
            return Ok(!out.chunks.is_closed());
        }
        let line = std::mem::take(&mut opened.rest);
        let said = query.journal.parse(&line).filter(|_| line.len() <= LINE_BYTES_MAX);
        let Some(said) = said else { continue };
        if query.wants(&said) && !out.push(line, said.is_event()) {
            return Ok(false);
        }
    }
}

/// Collects lines into chunks; with a limit, first only the newest.
struct Out<'a> {
    chunks: &'a Sender<Bytes>,
    chunk: Vec<u8>,
    newest: VecDeque<Vec<u8>>,
    limit: Option<usize>,
}

impl Out<'_> {
    /// Lines about losses are not among those that a limit counts.
    fn push(&mut self, line: Vec<u8>, is_event: bool) -> bool {
        if let Some(limit) = self.limit.filter(|_| !is_event) {
            self.newest.push_back(line);
            if self.newest.len() > limit {
                self.newest.pop_front();
            }
            return true;
        }
        self.chunk.extend_from_slice(&line);
        self.chunk.len() < CHUNK_BYTES || self.flush()
    }

    fn end_of_history(&mut self) -> bool {
        self.limit = None;
        std::mem::take(&mut self.newest).into_iter().all(|line| self.push(line, false)) && self.flush()
    }

    /// Waits until there is room. False: the reader is gone.
    fn flush(&mut self) -> bool {
        match self.chunk.is_empty() {
            true => !self.chunks.is_closed(),
            false => self.chunks.blocking_send(std::mem::take(&mut self.chunk).into()).is_ok(),
        }
    }
}
