//! Segment files: where they are, what is in them, and reading them a window at a time.
//!
//! Reading steps over damage and never holds more than a window. `survey` is what opening a queue begins with.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::frame::{
    self, FRAME_HEAD_BYTES, ParsedRecord, SEGMENT_HEAD_BYTES, SegmentHeader, SpoolRecordKind, next_mark,
};
use super::plan::SegmentInfo;

const EXTENSION: &str = "seg";
/// Files are read in such pieces: enough for the largest frame, little enough to be held at any time.
const WINDOW_BYTES: usize = 64 << 10;

pub fn path_of(folder: &Path, first: u64) -> PathBuf {
    folder.join(format!("{first:020}.{EXTENSION}"))
}

pub fn read_head(file: &File) -> io::Result<Option<SegmentHeader>> {
    let mut bytes = [0; SEGMENT_HEAD_BYTES];
    match file.read_exact_at(&mut bytes, 0) {
        Ok(()) => Ok(SegmentHeader::decode(&bytes)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
        Err(error) => Err(error),
    }
}

/// Looks at every segment, oldest first: how many records it has, and where it ends. The torn tail of the last one
/// is cut off. Files without a readable head hold nothing that can be verified, and are removed.
pub fn survey(folder: &Path, acknowledged: u64) -> io::Result<(Vec<SegmentInfo>, u64)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(folder)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<PathBuf>>>()?;
    paths.retain(|path| path.extension().is_some_and(|extension| extension == EXTENSION));
    // Names are numbers of equal length, so their order is the order of time.
    paths.sort();
    let (mut segments, mut last) = (Vec::new(), 0);
    for path in paths {
        match survey_segment(&path, acknowledged)? {
            Some((segment, newest)) => {
                last = last.max(newest).max(segment.first - 1);
                segments.push(segment);
            }
            None => {
                tracing::warn!(path = %path.display(), "a segment of the spool is damaged and is removed");
                fs::remove_file(&path)?;
            }
        }
    }
    Ok((segments, last))
}

fn survey_segment(path: &Path, acknowledged: u64) -> io::Result<Option<(SegmentInfo, u64)>> {
    let file = OpenOptions::new().read(true).write(true).open(path)?;
    let Some(head) = read_head(&file)?.filter(|head| head.first > 0) else { return Ok(None) };
    if path_of(path.parent().unwrap_or(Path::new("")), head.first) != path {
        return Ok(None);
    }
    let mut segment =
        SegmentInfo { first: head.first, bytes: SEGMENT_HEAD_BYTES as u64, written: 0, waiting: 0 };
    let mut newest = 0;
    let mut reader = SegmentReader::open(path, 0)?;
    while let Some((seq, _, _)) = reader.next()? {
        segment.written += 1;
        segment.waiting += u64::from(seq > acknowledged);
        segment.bytes = reader.offset();
        newest = seq;
    }
    let length = file.metadata()?.len();
    if length > segment.bytes {
        tracing::warn!(
            path = %path.display(), bytes = length - segment.bytes,
            "the end of the spool is incomplete and is truncated"
        );
        file.set_len(segment.bytes)?;
    }
    Ok(Some((segment, newest)))
}

pub fn count_above(path: &Path, seq: u64) -> io::Result<u64> {
    let mut reader = SegmentReader::open(path, 0)?;
    let mut count = 0;
    while let Some((found, _, _)) = reader.next()? {
        count += u64::from(found > seq);
    }
    Ok(count)
}

/// Reads the records of one segment, a window at a time, and steps over damage.
pub struct SegmentReader {
    file: File,
    salt: u32,
    window: Vec<u8>,
    /// The offset of the next frame in the window.
    start: usize,
    /// The offset of the window in the file.
    window_at: u64,
    newest: u64,
}

impl SegmentReader {
    pub fn open(path: &Path, offset: u64) -> io::Result<SegmentReader> {
        let file = File::open(path)?;
        let head = read_head(&file)?.ok_or_else(|| io::Error::other("the head of a segment is damaged"))?;
        let window_at = offset.max(SEGMENT_HEAD_BYTES as u64);
        Ok(SegmentReader {
            file,
            salt: head.salt,
            window: Vec::new(),
            start: 0,
            window_at,
            newest: head.first - 1,
        })
    }

    /// The offset of the next frame in the file.
    pub fn offset(&self) -> u64 {
        self.window_at + self.start as u64
    }

    pub fn next(&mut self) -> io::Result<Option<(u64, SpoolRecordKind, &[u8])>> {
        let (seq, kind, length) = loop {
            if self.start == self.window.len() && !self.read_more(1)? {
                return Ok(None);
            }
            let wanted = match frame::parse(self.salt, &self.window[self.start..]) {
                ParsedRecord::Record { seq, kind, record } if seq > self.newest => {
                    break (seq, kind, record.len());
                }
                ParsedRecord::NeedsMore(bytes) => Some(bytes),
                // One out of order is as damaged as any other.
                ParsedRecord::Record { .. } | ParsedRecord::Damaged => None,
            };
            // So is one that does not fit into the file.
            let is_damaged = match wanted {
                Some(bytes) => !self.read_more(bytes)?,
                None => true,
            };
            if is_damaged {
                self.start += next_mark(&self.window[self.start..]);
            }
        };
        self.newest = seq;
        let start = self.start + FRAME_HEAD_BYTES;
        self.start = start + length;
        Ok(Some((seq, kind, &self.window[start..start + length])))
    }

    /// Reads until `wanted` bytes are there from `start` on. False when the file ends before.
    fn read_more(&mut self, wanted: usize) -> io::Result<bool> {
        self.window.drain(..self.start);
        self.window_at += self.start as u64;
        self.start = 0;
        while self.window.len() < wanted {
            let have = self.window.len();
            self.window.resize(have + WINDOW_BYTES, 0);
            let read = self.file.read_at(&mut self.window[have..], self.window_at + have as u64);
            self.window.truncate(have + read.as_ref().copied().unwrap_or(0));
            if read? == 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }
}
