//! Retention of history: revisions younger than ten minutes, and the newest 10,000 revisions.
//!
//! Pure: engines note the revision at points in time, keep these pairs, and ask which history can be
//! compacted.

use serde::{Deserialize, Serialize};

use crate::Revision;

/// History younger than this is kept.
const YOUNG_SECONDS: u64 = 600;
/// This many of the newest revisions are kept, whatever their age.
const NEWEST_REVISIONS: u64 = 10_000;
/// Interval at which engines note the current revision and look for history to compact.
pub(crate) const TICK: std::time::Duration = std::time::Duration::from_secs(60);

/// The revision of the store at a point in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RevisionTime {
    pub revision: u64,
    pub unix_seconds: u64,
}

/// Returns the pairs to keep, with `now` among them. Pairs from the future (the clock was set back) are
/// dropped: they would keep history longer than needed. A revision keeps its first time.
pub(crate) fn note(moments: &[RevisionTime], now: RevisionTime) -> Vec<RevisionTime> {
    let mut kept: Vec<RevisionTime> = moments
        .iter()
        .copied()
        .filter(|m| m.unix_seconds <= now.unix_seconds && m.revision <= now.revision)
        .collect();
    if kept.last().is_none_or(|last| last.revision < now.revision) {
        kept.push(now);
    }
    // Of the pairs that are old enough only the newest matters.
    let old = kept.iter().filter(|m| is_old(m, now.unix_seconds)).count();
    kept.drain(..old.saturating_sub(1));
    kept
}

/// Returns the revision up to which history may be compacted now.
pub(crate) fn due(moments: &[RevisionTime], now_unix_seconds: u64, current: Revision) -> Option<Revision> {
    let by_age = moments.iter().filter(|m| is_old(m, now_unix_seconds)).map(|m| m.revision).max()?;
    let by_count = current.0.checked_sub(NEWEST_REVISIONS)?;
    Some(Revision(by_age.min(by_count))).filter(|upto| upto.0 > 0)
}

pub(crate) fn unix_seconds() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

fn is_old(moment: &RevisionTime, now_unix_seconds: u64) -> bool {
    moment.unix_seconds + YOUNG_SECONDS <= now_unix_seconds
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(unix_seconds: u64, revision: u64) -> RevisionTime {
        RevisionTime { revision, unix_seconds }
    }

    #[test]
    fn history_goes_only_when_it_is_both_old_and_beyond_the_newest_revisions() {
        let moments = [at(0, 50), at(60, 15_000), at(500, 30_000)];
        assert_eq!(due(&moments, 599, Revision(90_000)), None, "nothing is ten minutes old");
        assert_eq!(due(&moments, 600, Revision(90_000)), Some(Revision(50)));
        assert_eq!(due(&moments, 660, Revision(90_000)), Some(Revision(15_000)));
        assert_eq!(due(&moments, 660, Revision(20_000)), Some(Revision(10_000)), "10,000 are left");
        assert_eq!(due(&moments, 9_999, Revision(9_000)), None, "few revisions are kept for ever");
    }

    #[test]
    fn moments_stay_few_and_never_lie_in_the_future() {
        let mut moments = Vec::new();
        for minute in 0..100 {
            moments = note(&moments, at(minute * 60, minute * 10 + 1));
        }
        assert_eq!(moments.len(), 11);
        assert_eq!(note(&moments, at(60, 5_000)), [at(60, 5_000)], "the clock was set back");
        assert_eq!(note(&[at(0, 7)], at(60, 7)), [at(0, 7)], "nothing was written");
    }
}
