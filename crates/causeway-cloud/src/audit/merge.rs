//! Joins the lines of all replicas into one answer: by the time of receipt, each record once, and a last line that counts.
//!
//! A journal is in the order of that time, so joining them by their first lines is enough. When they are followed, lines are
//! told as they come: waiting for the slowest replica would delay all lines.

use std::collections::VecDeque;

use bytes::Bytes;
use futures_util::stream::{self, SelectAll, StreamExt};
use serde_json::json;

use super::admin_line::AdminLine;
use super::line::AuditJournalLine;
use super::query::{AuditQuery, Entry};
use super::{JournalChunks, REPLICA_SILENT};
use crate::spool_intake::LineDeduplicator;

/// One answer in the making.
pub struct JournalMerge {
    sources: Vec<Source>,
    live: SelectAll<stream::BoxStream<'static, Bytes>>,
    query: AuditQuery,
    newest: VecDeque<Vec<u8>>,
    counts: Counts,
    repeats: LineDeduplicator,
    is_over: bool,
}

struct Source {
    chunks: JournalChunks,
    lines: VecDeque<Entry>,
}

#[derive(Debug, Default)]
struct Counts {
    records: u64,
    repeats: u64,
    lost: u64,
    unreadable: u64,
    lag_ms: Option<u64>,
    lag_ms_max: Option<u64>,
    from_the_future: u64,
    silent: Vec<String>,
}

// The bytes of one piece; one chunk of a journal.
const TOLD_BYTES: usize = 64 << 10;

impl JournalMerge {
    /// `silent` are replicas that could not be asked.
    pub fn new(query: AuditQuery, journals: Vec<JournalChunks>, silent: Vec<String>) -> JournalMerge {
        let mut merge = JournalMerge {
            sources: Vec::new(),
            live: SelectAll::new(),
            newest: VecDeque::new(),
            counts: Counts { silent, ..Counts::default() },
            repeats: LineDeduplicator::default(),
            is_over: false,
            query,
        };
        for mut chunks in journals {
            match merge.query.follow {
                true => merge.live.push(stream::poll_fn(move |context| chunks.poll_recv(context)).boxed()),
                false => merge.sources.push(Source { chunks, lines: VecDeque::new() }),
            }
        }
        merge
    }

    /// The next piece of the answer; the last one ends with the summary.
    pub async fn next(&mut self) -> Option<Bytes> {
        if self.is_over {
            return None;
        }
        match self.query.follow {
            true => self.next_live().await,
            false => self.next_in_order().await,
        }
    }

    async fn next_live(&mut self) -> Option<Bytes> {
        let Some(chunk) = self.live.next().await else {
            self.is_over = true;
            return Some(self.summary());
        };
        let mut told = Vec::new();
        for line in chunk.split_inclusive(|byte| *byte == b'\n') {
            match self.query.journal.parse(line) {
                Some(line) => told.extend(self.format_entry(&line).into_iter().flatten()),
                // The reader may leave at any time, so the counts are sent at intervals.
                None => told.extend(self.summary()),
            }
        }
        Some(told.into())
    }

    async fn next_in_order(&mut self) -> Option<Bytes> {
        let mut told = Vec::new();
        while let Some(line) = self.first_line().await {
            let Some(text) = self.format_entry(&line) else { continue };
            match self.query.limit {
                Some(limit) => {
                    self.newest.push_back(text);
                    if self.newest.len() > limit {
                        self.newest.pop_front();
                    }
                }
                None => told.extend(text),
            }
            if told.len() >= TOLD_BYTES {
                return Some(told.into());
            }
        }
        self.counts.records = self.query.limit.map_or(self.counts.records, |_| self.newest.len() as u64);
        told.extend(std::mem::take(&mut self.newest).into_iter().flatten());
        told.extend(self.summary());
        self.is_over = true;
        Some(told.into())
    }

    /// The line with the smallest time among the first of every source.
    async fn first_line(&mut self) -> Option<Entry> {
        let journal = self.query.journal;
        for source in &mut self.sources {
            while source.lines.is_empty() {
                let Some(chunk) = source.chunks.recv().await else { break };
                source
                    .lines
                    .extend(chunk.split(|byte| *byte == b'\n').filter_map(|line| journal.parse(line)));
            }
        }
        let fronts = self.sources.iter().enumerate();
        let fronts = fronts.filter_map(|(place, source)| Some((source.lines.front()?.order(), place)));
        let place = fronts.min().map(|(_, place)| place)?;
        self.sources[place].lines.pop_front()
    }

    /// Counts a line; returns its shown form, if it has one.
    fn format_entry(&mut self, entry: &Entry) -> Option<Vec<u8>> {
        match entry {
            Entry::Traffic(line) => self.format_traffic(line),
            Entry::Admin(line) => self.format_admin(line),
        }
    }

    fn format_admin(&mut self, line: &AdminLine) -> Option<Vec<u8>> {
        let counts = &mut self.counts;
        match line.event() {
            Some(REPLICA_SILENT) => counts.silent.push(line.text("gateway").to_owned()),
            Some(_) => counts.lost = counts.lost.saturating_add(line.lost()),
            None => counts.records += 1,
        }
        line.event().is_none().then(|| line.told())
    }

    fn format_traffic(&mut self, line: &AuditJournalLine) -> Option<Vec<u8>> {
        let counts = &mut self.counts;
        if let (Some(queue), Some(seq)) = (&line.queue, line.seq)
            && !self.repeats.is_new(queue, seq)
        {
            counts.repeats += 1;
            return None;
        }
        match line.event.as_deref() {
            Some("edge-records-lost") => counts.lost = counts.lost.saturating_add(line.lost),
            Some("edge-record-unreadable") => counts.unreadable += 1,
            Some(REPLICA_SILENT) => counts.silent.push(line.gateway.clone()),
            // An edge also tells that it started; that is not a connection.
            Some(_) | None => {}
        }
        if line.event.is_some() {
            return None;
        }
        counts.records += 1;
        counts.from_the_future += u64::from(line.is_from_the_future());
        if let Some(lag) = line.lag_ms() {
            counts.lag_ms = Some(lag);
            counts.lag_ms_max = counts.lag_ms_max.max(Some(lag));
        }
        Some(line.told())
    }

    fn summary(&self) -> Bytes {
        let Counts { records, repeats, lost, unreadable, lag_ms, lag_ms_max, from_the_future, silent } =
            &self.counts;
        let summary = json!({"summary": {
            "records": records,
            "repeats": repeats,
            "lost": lost,
            "unreadable": unreadable,
            "lagMs": lag_ms,
            "lagMsMax": lag_ms_max,
            "fromTheFuture": from_the_future,
            "silentReplicas": silent,
        }});
        format!("{summary}\n").into()
    }
}
