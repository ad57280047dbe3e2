//! Bounds the streams of each site and the memory that they hold, so that one site cannot take that of another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use causeway_daemon::sync::MutexExt;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Memory for bodies of requests, or for long messages and described copies, of one site: four bodies of the largest size.
const MEMORY_KIB: usize = 64 << 10;
/// The largest snapshot, alone.
pub const SNAPSHOT_BYTES_MAX: usize = MEMORY_KIB << 10;

/// The open streams by site. Sites without one have no entry. Clones are the same streams.
#[derive(Clone)]
pub struct SiteStreams {
    sites: Arc<Mutex<HashMap<String, SiteUse>>>,
    per_site_max: usize,
}

struct SiteUse {
    streams: usize,
    /// Those of callers with tokens.
    of_tokens: usize,
    memory: SiteMemory,
    snapshots: SiteMemory,
}

/// One open stream; dropping it frees its place.
pub struct SiteStream {
    streams: SiteStreams,
    site: String,
    memory: SiteMemory,
    snapshots: SiteMemory,
    is_of_token: AtomicBool,
}

/// The memory that the streams of one site share. Clones are the same memory.
#[derive(Clone)]
pub struct SiteMemory(Arc<Semaphore>);

impl SiteMemory {
    pub(crate) fn new(kib: usize) -> SiteMemory {
        SiteMemory(Arc::new(Semaphore::new(kib)))
    }

    /// Waits until there is room for `bytes`.
    pub async fn take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.0.clone().acquire_many_owned(kib(bytes)).await.ok()
    }

    /// `None`: there is no room for `bytes` now.
    pub fn try_take(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        self.0.clone().try_acquire_many_owned(kib(bytes)).ok()
    }
}

fn kib(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX)
}

impl SiteStreams {
    pub fn new(per_site_max: usize) -> SiteStreams {
        SiteStreams { sites: Arc::default(), per_site_max }
    }

    /// Counts a stream; `None` when the site has too many.
    pub fn begin(&self, site: &str) -> Option<SiteStream> {
        let mut open = self.sites.lock_ignoring_poison();
        let new = || SiteUse {
            streams: 0,
            of_tokens: 0,
            memory: SiteMemory::new(MEMORY_KIB),
            snapshots: SiteMemory::new(MEMORY_KIB),
        };
        let used = open.entry(site.to_owned()).or_insert_with(new);
        if used.streams >= self.per_site_max {
            return None;
        }
        used.streams += 1;
        let (memory, snapshots) = (used.memory.clone(), used.snapshots.clone());
        let is_of_token = AtomicBool::new(false);
        Some(SiteStream { streams: self.clone(), site: site.to_owned(), memory, snapshots, is_of_token })
    }
}

impl SiteStream {
    pub fn memory(&self) -> &SiteMemory {
        &self.memory
    }

    /// The memory of the snapshots with which copies are compared. It is another one than that of messages: a snapshot is held until messages have
    /// come.
    pub fn snapshots(&self) -> &SiteMemory {
        &self.snapshots
    }

    /// Counts the stream as one of a caller with a token; false when the site has too many of them. A part is left to nodes and to requests of
    /// the edge itself, also when the site has several gateways.
    pub fn count_token(&self) -> bool {
        let mut open = self.streams.sites.lock_ignoring_poison();
        let Some(used) = open.get_mut(&self.site) else { return false };
        if self.is_of_token.load(Ordering::Relaxed) {
            return true;
        }
        if used.of_tokens >= self.streams.per_site_max / 4 * 3 {
            return false;
        }
        used.of_tokens += 1;
        self.is_of_token.store(true, Ordering::Relaxed);
        true
    }
}

impl Drop for SiteStream {
    fn drop(&mut self) {
        let mut open = self.streams.sites.lock_ignoring_poison();
        let left = open.get_mut(&self.site).map(|used| {
            used.streams -= 1;
            used.of_tokens -= usize::from(self.is_of_token.load(Ordering::Relaxed));
            used.streams
        });
        if left == Some(0) {
            open.remove(&self.site);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_with_tokens_leave_streams_to_nodes() {
        let streams = SiteStreams::new(100);
        let mut held: Vec<SiteStream> = (0..80).map(|_| streams.begin("oslo").unwrap()).collect();
        assert_eq!(held.iter().filter(|stream| stream.count_token()).count(), 75);
        assert!(held[0].count_token(), "the next request of a stream");
        assert!(streams.begin("oslo").is_some());
        held.remove(0);
        assert!(held.last().unwrap().count_token());
    }

    #[test]
    fn a_site_cannot_take_the_streams_of_another() {
        let streams = SiteStreams::new(100);
        let mut held: Vec<SiteStream> = (0..100).map(|_| streams.begin("oslo").unwrap()).collect();
        assert!(streams.begin("oslo").is_none());
        assert!(streams.begin("berlin").is_some());
        held.pop();
        assert!(streams.begin("oslo").is_some());
        held.clear();
        assert!(streams.sites.lock().unwrap().is_empty());
    }
}
