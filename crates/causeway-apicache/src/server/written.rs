//! Remembers the revisions that callers wrote, so that a caller's reads from the copy wait for its own writes.
//!
//! Pure but for its lock; the time is an argument. Bounded: an entry that is lost costs one read its order, no more.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use causeway_api::Revision;
use causeway_daemon::sync::MutexExt;

use crate::resource::ResourceName;

#[derive(Default)]
pub struct WrittenRevisions(Mutex<HashMap<(String, ResourceName), (Revision, Instant)>>);

// The copy is behind by the time of the link; after this time a write is in it, or the link is lost.
const REMEMBERED: Duration = Duration::from_secs(30);
const ENTRIES_MAX: usize = 10_000;

impl WrittenRevisions {
    /// Notes that a caller wrote an object of a resource at `revision`.
    pub fn note(&self, caller: String, resource: ResourceName, revision: Revision, now: Instant) {
        let mut entries = self.0.lock_ignoring_poison();
        if entries.len() >= ENTRIES_MAX {
            entries.retain(|_, (_, at)| now.duration_since(*at) < REMEMBERED);
        }
        if entries.len() >= ENTRIES_MAX {
            entries.clear();
        }
        let entry = entries.entry((caller, resource)).or_insert((revision, now));
        *entry = (entry.0.max(revision), now);
    }

    /// The revision that the caller's next read of the resource must not be older than.
    pub fn wanted(&self, caller: String, resource: &ResourceName, now: Instant) -> Option<Revision> {
        let entries = self.0.lock_ignoring_poison();
        let (revision, at) = entries.get(&(caller, resource.clone()))?;
        (now.duration_since(*at) < REMEMBERED).then_some(*revision)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_caller_waits_for_its_own_newest_write_for_a_while() {
        let (written, now) = (WrittenRevisions::default(), Instant::now());
        let pods = ResourceName::new("", "v1", "pods");
        written.note("a".into(), pods.clone(), Revision(7), now);
        written.note("a".into(), pods.clone(), Revision(5), now);
        assert_eq!(written.wanted("a".into(), &pods, now), Some(Revision(7)));
        assert_eq!(written.wanted("b".into(), &pods, now), None);
        assert_eq!(written.wanted("a".into(), &ResourceName::new("", "v1", "nodes"), now), None);
        assert_eq!(written.wanted("a".into(), &pods, now + REMEMBERED), None);
    }
}
