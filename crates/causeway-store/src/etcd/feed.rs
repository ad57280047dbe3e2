//! Watches all keys of the store and passes the events to the hub; resumes at the last revision when a member
//! is lost.
//!
//! Also receives the metadata that other replicas write: epoch, compaction, a restore in progress.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use etcd_client::{WatchOptions, WatchResponse, WatchStream};

use super::keys::{self, EtcdChange};
use super::outage::OutageLog;
use super::{EtcdShared, compaction};
use crate::{Revision, StoreError};

/// Pause after a failed attempt to watch; each attempt uses another member.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// A member that does not confirm a watch in this time is left.
const OPEN_WITHIN: Duration = Duration::from_secs(4);

/// Runs until the store is closed. `position`: all events up to this revision are known.
pub(super) async fn run(shared: Arc<EtcdShared>, mut position: Revision) {
    let stop = shared.stop.clone();
    let mut outages = OutageLog::default();
    loop {
        let ended = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            ended = follow(&shared, &mut position, &mut outages) => ended,
        };
        if let Err(error) = ended
            && let Some(line) = outages.handle_failure(Instant::now())
        {
            let (seconds, attempts) = (line.lasting.as_secs(), line.failures);
            tracing::warn!(error = %error, revision = %position, seconds, attempts, "cannot watch etcd; trying again");
        }
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(RETRY_DELAY) => {}
        }
    }
}

/// Opens a watch after `after` on the current member; moves to the next member when that fails.
pub(super) async fn open(
    shared: &EtcdShared,
    start: String,
    end: String,
    after: Revision,
) -> Result<(usize, WatchStream), StoreError> {
    let (place, mut client) = shared.members.watch_client();
    let options = WatchOptions::new()
        .with_range(end)
        .with_start_revision(after.next().0 as i64)
        .with_prev_key()
        .with_progress_notify();
    let source = match tokio::time::timeout(OPEN_WITHIN, client.watch(start, Some(options))).await {
        Ok(Ok(stream)) => return Ok((place, stream)),
        Ok(Err(error)) => Some(Arc::new(error) as _),
        Err(_) => None,
    };
    shared.members.switch_from(place);
    Err(StoreError::Unavailable { reason: "etcd does not open a watch".into(), source })
}

async fn follow(
    shared: &EtcdShared,
    position: &mut Revision,
    outages: &mut OutageLog,
) -> Result<(), StoreError> {
    let all = shared.keys.all().to_owned();
    let end = crate::model::prefix_end(&all).expect("our folder ends with a slash, which has a successor");
    let (place, mut stream) = open(shared, all, end, *position).await?;
    if let Some(line) = outages.handle_success(Instant::now()) {
        tracing::info!(revision = %position, seconds = line.lasting.as_secs(), attempts = line.failures, "watching etcd again");
    }
    loop {
        let broken = |source| {
            shared.members.switch_from(place);
            StoreError::Unavailable { reason: "the watch on etcd broke".into(), source }
        };
        match stream.message().await {
            Ok(Some(response)) => take(shared, position, &response)?,
            Ok(None) => return Err(broken(None)),
            Err(error) => return Err(broken(Some(Arc::new(error)))),
        }
    }
}

fn take(shared: &EtcdShared, position: &mut Revision, response: &WatchResponse) -> Result<(), StoreError> {
    let compacted = keys::revision(response.compact_revision());
    if compacted.0 > 0 {
        // This replica was disconnected for longer than history is kept, so the events in between cannot be
        // delivered to any watcher. The compacted revision itself is not complete either: etcd drops
        // deletions that happened in it.
        let requested = std::mem::replace(position, compacted);
        shared.hub.cut(compacted);
        return Err(StoreError::Compacted { requested, oldest: compacted });
    }
    if response.canceled() {
        return Err(StoreError::unavailable(format!("etcd ended the watch: {}", response.cancel_reason())));
    }
    let mut events = Vec::new();
    for event in response.events() {
        match shared.keys.change(event)? {
            EtcdChange::Object(event) => events.push(event),
            EtcdChange::Meta { revision, .. } if revision <= shared.opened => {}
            EtcdChange::Meta { name, value, revision } => notice(shared, &name, value.as_deref(), revision),
        }
    }
    // etcd never splits the events of one revision. Only in a response without events does the header mean
    // "up to here".
    let upto = match response.events().iter().filter_map(|event| event.kv()).map(|kv| kv.mod_revision()).max()
    {
        Some(last) => keys::revision(last),
        None if response.created() => return Ok(()),
        None => super::members::revision(response.header())?,
    };
    shared.hub.publish(&events, upto);
    *position = upto.max(*position);
    Ok(())
}

fn notice(shared: &EtcdShared, name: &str, value: Option<&[u8]>, revision: Revision) {
    match name {
        "epoch" => {
            if let Ok(epoch) = keys::number(value) {
                shared.epoch.fetch_max(epoch, Ordering::AcqRel);
            }
        }
        "compaction" => {
            let compacted = compaction::CompactionState::parse(value).compacted();
            shared.compacted.fetch_max(compacted.0, Ordering::AcqRel);
        }
        "importing" if value.is_some() => shared.import.begin(revision),
        "importing" => shared.import.end(revision),
        _ => {}
    }
}
