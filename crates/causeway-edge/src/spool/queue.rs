//! The queue on disk: segment files in one folder, written by one owner.
//!
//! Does what `plan` decides. A record is safe after `sync`; only safe records are sent, because a number that the
//! cloud has seen must never be given to another record. A write that fails is refused and counted and leaves no
//! trace; a tail torn by a crash is cut off when the queue is opened; damage in the middle is stepped over.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use causeway_channel::TokenSecret;
use causeway_channel::wire::control;
use causeway_daemon::data_dir::{make_folder, write_atomic};

use super::frame::{
    self, FRAME_HEAD_BYTES, RECORD_BYTES_MAX, SEGMENT_HEAD_BYTES, SegmentHeader, SpoolRecordKind,
};
use super::plan::{SendDecision, SpoolLimits, SpoolPlan};
use super::segment::{SegmentReader, count_above, path_of, read_head, survey};
use super::state::SpoolStateFile;

const ID: &str = "id";
const STATE: &str = "state";

/// Identifies one instance of a queue. Chosen at random; the cloud counts sequence numbers per queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueId(pub [u8; 16]);

impl QueueId {
    pub fn from_bytes(bytes: &[u8]) -> Option<QueueId> {
        Some(QueueId(bytes.try_into().ok()?))
    }

    fn generate() -> QueueId {
        let secret = TokenSecret::generate();
        QueueId(secret.expose()[..16].try_into().expect("a secret has 32 bytes"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolEntry {
    pub kind: SpoolRecordKind,
    pub record: Vec<u8>,
}

/// The records that are sent in one message. They have the numbers from `first` on, without a gap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SpoolReadBatch {
    pub queue: QueueId,
    pub first: u64,
    pub entries: Vec<SpoolEntry>,
    /// Records lost since the queue began, as far as is known now.
    pub lost: u64,
}

impl SpoolReadBatch {
    /// As it is said on the control stream: every record behind the number of its kind.
    pub fn to_message(&self) -> control::SpoolBatch {
        let record = |entry: &SpoolEntry| [&[entry.kind as u8][..], &entry.record].concat().into();
        control::SpoolBatch {
            queue_id: self.queue.0.to_vec().into(),
            first_seq: self.first,
            records: self.entries.iter().map(record).collect(),
            dropped: self.lost,
        }
    }

    /// The number of its last record; of the one before it when there are none.
    pub fn last(&self) -> u64 {
        self.first + self.entries.len() as u64 - 1
    }
}

#[derive(Debug, thiserror::Error)]
pub enum AppendError {
    #[error("the record has {bytes} bytes, at most {RECORD_BYTES_MAX} are kept")]
    TooLarge { bytes: usize },
    #[error("the record cannot be written")]
    Disk(#[source] io::Error),
}

/// The position of the next unsent record, so that reading continues where it stopped.
#[derive(Debug, Clone, Copy)]
struct SpoolPosition {
    segment: u64,
    offset: u64,
}

/// The newest segment.
#[derive(Debug)]
struct Current {
    file: File,
    salt: u32,
    end: u64,
}

#[derive(Debug)]
pub struct SpoolFile {
    folder: PathBuf,
    id: QueueId,
    id_is_saved: bool,
    limits: SpoolLimits,
    plan: SpoolPlan,
    state: Option<SpoolStateFile>,
    current: Option<Current>,
    unsynced: bool,
    position: Option<SpoolPosition>,
    sent_up_to: Option<SpoolPosition>,
}

impl SpoolFile {
    /// Opens the queue in `folder`, which is made when missing. Fails only when the folder cannot be read: a disk
    /// that is full shows when something is appended.
    pub fn open(folder: &Path, limits: SpoolLimits) -> io::Result<SpoolFile> {
        make_folder(folder)?;
        let saved_id = read_id(&folder.join(ID));
        let (state, saved) = match SpoolStateFile::open(&folder.join(STATE)) {
            Ok((state, saved)) => (Some(state), saved),
            Err(error) => {
                tracing::warn!(%error, "the state of the spool cannot be written; the cloud will receive repeated records");
                (None, None)
            }
        };
        // A new id would count from anew, so acknowledgements under another id do not apply.
        let saved = saved.filter(|_| saved_id.is_some());
        let acknowledged = saved.map_or(0, |saved| saved.acknowledged);
        let (segments, last) = survey(folder, acknowledged)?;
        let mut queue = SpoolFile {
            folder: folder.to_owned(),
            id: saved_id.unwrap_or_else(QueueId::generate),
            id_is_saved: saved_id.is_some(),
            limits,
            plan: SpoolPlan::new(limits, segments, last, saved),
            state,
            current: None,
            unsynced: false,
            position: None,
            sent_up_to: None,
        };
        queue.current = queue.open_newest()?;
        queue.remove_finished();
        // Records that were read above may not be synced yet; they are sent as soon as a session asks.
        queue.unsynced = queue.current.is_some();
        Ok(queue)
    }

    pub fn id(&self) -> QueueId {
        self.id
    }

    /// Records that wait for the cloud.
    pub fn waiting(&self) -> u64 {
        self.plan.waiting()
    }

    /// Bytes on disk.
    pub fn bytes(&self) -> u64 {
        self.plan.bytes()
    }

    /// Records lost since the queue began.
    pub fn lost(&self) -> u64 {
        self.plan.lost()
    }

    /// Returns true if a batch waits for its acknowledgement.
    pub fn is_in_flight(&self) -> bool {
        self.plan.is_in_flight()
    }

    /// Writes one record; it is safe after the next `sync`. A record that is refused is counted as lost.
    pub fn append(&mut self, kind: SpoolRecordKind, record: &[u8]) -> Result<u64, AppendError> {
        if record.len() > RECORD_BYTES_MAX {
            self.plan.handle_refused(1);
            return Err(AppendError::TooLarge { bytes: record.len() });
        }
        self.write(kind, record).map_err(|error| {
            self.plan.handle_refused(1);
            AppendError::Disk(error)
        })
    }

    /// Counts records that never reached the queue, because the channel to the writer was full.
    pub fn refuse(&mut self, records: u64) {
        self.plan.handle_refused(records);
    }

    fn write(&mut self, kind: SpoolRecordKind, record: &[u8]) -> io::Result<u64> {
        self.save_id()?;
        let frame_bytes = (FRAME_HEAD_BYTES + record.len()) as u64;
        let room = self.plan.room_for(frame_bytes);
        for _ in 0..room.drop {
            self.drop_oldest();
        }
        if room.new_segment {
            self.begin_segment()?;
        }
        let current = self.current.as_mut().expect("a segment was begun when there was none");
        let mut frame = Vec::with_capacity(FRAME_HEAD_BYTES + record.len());
        frame::encode(current.salt, self.plan.next_number(), kind, record, &mut frame);
        // At a place of our own choosing: what a full disk left half written is overwritten by the next record.
        if let Err(error) = current.file.write_all_at(&frame, current.end) {
            let _ = current.file.set_len(current.end);
            return Err(error);
        }
        current.end += frame_bytes;
        self.unsynced = true;
        Ok(self.plan.handle_appended(frame_bytes))
    }

    /// Makes everything appended so far safe. Many records share one sync.
    pub fn sync(&mut self) -> io::Result<()> {
        if let Some(current) = self.current.as_ref().filter(|_| self.unsynced) {
            current.file.sync_data()?;
        }
        self.unsynced = false;
        Ok(())
    }

    /// The next batch, read from the disk; `None` while one is in flight or when there is nothing to send.
    pub fn next_batch(&mut self) -> io::Result<Option<SpoolReadBatch>> {
        while let Some(next) = self.plan.next_send() {
            self.sync()?;
            let batch = match next {
                SendDecision::Report => Some(self.batch(self.plan.acknowledged() + 1, Vec::new())),
                SendDecision::RecordsAfter(acknowledged) => self.read_batch(acknowledged)?,
            };
            let Some(batch) = batch else { continue };
            self.plan.handle_sent(batch.last(), batch.entries.len() as u64);
            self.save_state();
            return Ok(Some(batch));
        }
        Ok(None)
    }

    /// The cloud has everything up to `seq` of the queue `id`.
    pub fn acknowledged(&mut self, id: QueueId, seq: u64) -> io::Result<()> {
        if id != self.id {
            return Ok(());
        }
        if self.plan.is_set_back(seq) {
            return self.start_over(seq);
        }
        let expected = self.plan.is_expected(seq);
        let folder = &self.folder;
        self.plan.handle_acknowledged(seq, |first| count_above(&path_of(folder, first), seq).unwrap_or(0));
        self.position = if expected { self.sent_up_to } else { None };
        self.save_state();
        self.remove_finished();
        Ok(())
    }

    fn read_batch(&mut self, acknowledged: u64) -> io::Result<Option<SpoolReadBatch>> {
        let Some(segment) = self.plan.oldest_waiting() else { return Ok(None) };
        let offset = match self.position {
            Some(position) if position.segment == segment.first => position.offset,
            _ => 0,
        };
        let mut reader = SegmentReader::open(&path_of(&self.folder, segment.first), offset)?;
        let (mut first, mut bytes) = (0, 0);
        let mut entries = Vec::new();
        let mut offset = reader.offset();
        let mut is_at_end = true;
        while let Some((seq, kind, record)) = reader.next()? {
            if seq > acknowledged {
                let follows = entries.is_empty() || seq == first + entries.len() as u64;
                let fits = entries.is_empty()
                    || bytes + FRAME_HEAD_BYTES + record.len() <= self.limits.batch_bytes_max;
                if !follows || !fits {
                    is_at_end = false;
                    break;
                }
                if entries.is_empty() {
                    first = seq;
                }
                bytes += record.len() + FRAME_HEAD_BYTES;
                entries.push(SpoolEntry { kind, record: record.to_vec() });
            }
            offset = reader.offset();
        }
        if is_at_end {
            self.plan.handle_damaged(segment.first, entries.len() as u64);
        }
        self.sent_up_to = Some(SpoolPosition { segment: segment.first, offset });
        if entries.is_empty() {
            self.remove_finished();
            return Ok(None);
        }
        Ok(Some(self.batch(first, entries)))
    }

    fn batch(&self, first: u64, entries: Vec<SpoolEntry>) -> SpoolReadBatch {
        SpoolReadBatch { queue: self.id, first, entries, lost: self.plan.lost() }
    }

    // A disk restored from an older copy: the cloud has seen our numbers with other records. Under a new name
    // everything is sent once more, and nothing is taken for a repeat.
    fn start_over(&mut self, seq: u64) -> io::Result<()> {
        tracing::warn!(
            seq,
            next = self.plan.next_number(),
            "the spool is older than its state; it starts again under a new id"
        );
        let id = QueueId::generate();
        write_atomic(&self.folder.join(ID), &id.0)?;
        self.id = id;
        self.plan.handle_set_back();
        Ok(())
    }

    fn save_id(&mut self) -> io::Result<()> {
        if !self.id_is_saved {
            write_atomic(&self.folder.join(ID), &self.id.0)?;
            self.id_is_saved = true;
        }
        Ok(())
    }

    fn save_state(&mut self) {
        let saved = self.plan.saved();
        if let Some(Err(error)) = self.state.as_mut().map(|state| state.write(saved)) {
            tracing::debug!(%error, "the state of the spool cannot be written");
        }
    }

    fn begin_segment(&mut self) -> io::Result<()> {
        self.sync()?;
        let salt = u32::from_le_bytes(TokenSecret::generate().expose()[..4].try_into().expect("four bytes"));
        let head = SegmentHeader { salt, first: self.plan.next_number() };
        let path = path_of(&self.folder, head.first);
        let made = (|| {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create(true)
                .truncate(true)
                .mode(0o600)
                .open(&path)?;
            file.write_all_at(&head.encode(), 0)?;
            file.sync_data()?;
            File::open(&self.folder)?.sync_all()?;
            Ok(file)
        })();
        match made {
            Ok(file) => {
                self.current = Some(Current { file, salt, end: SEGMENT_HEAD_BYTES as u64 });
                self.plan.handle_new_segment();
                // Without it, segments that are dropped before anything was sent would not be missed.
                self.save_state();
                Ok(())
            }
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error)
            }
        }
    }

    fn open_newest(&self) -> io::Result<Option<Current>> {
        let Some(newest) = self.plan.newest() else { return Ok(None) };
        let file = OpenOptions::new().read(true).write(true).open(path_of(&self.folder, newest.first))?;
        let head = read_head(&file)?.expect("segments without a head were left out");
        Ok(Some(Current { file, salt: head.salt, end: newest.bytes }))
    }

    fn drop_oldest(&mut self) {
        if let Some(first) = self.plan.oldest() {
            self.plan.handle_dropped();
            self.remove(first);
        }
    }

    fn remove_finished(&mut self) {
        while let Some(first) = self.plan.next_finished() {
            self.plan.handle_finished();
            self.remove(first);
        }
    }

    fn remove(&mut self, first: u64) {
        if self.plan.newest().is_none() {
            self.current = None;
        }
        if let Err(error) = fs::remove_file(path_of(&self.folder, first)) {
            tracing::warn!(%error, first, "a segment of the spool cannot be removed");
        }
    }
}

fn read_id(path: &Path) -> Option<QueueId> {
    QueueId::from_bytes(&fs::read(path).ok()?)
}
