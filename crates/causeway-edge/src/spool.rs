//! The spool of status and audit records for the cloud, kept on disk until the cloud has acknowledged them.
//!
//! Records come in through `Spool::append`, which never waits; they leave in batches through a `SpoolSessionFeed`, one batch
//! at a time, and are forgotten when the cloud has acknowledged them. In between they are in segment files in
//! DATA_DIR/upstream, so neither a dead link nor kill -9 loses them. The queue is bounded: what does not fit is
//! dropped, oldest first, and their number is reported to the cloud.
//!
//! `frame` is the form on disk, `plan` decides, `queue` and `segment` touch the files, `feed` is the thread and its
//! handle.

mod feed;
mod frame;
mod plan;
mod queue;
mod segment;
mod state;

pub use feed::{Spool, SpoolSessionFeed, SpoolStats};
pub use frame::{RECORD_BYTES_MAX, SpoolRecordKind};
pub use plan::SpoolLimits;
pub use queue::{AppendError, QueueId, SpoolEntry, SpoolFile, SpoolReadBatch};

#[cfg(test)]
mod tests;
