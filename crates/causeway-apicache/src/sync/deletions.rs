//! Revisions for deletions that were found by comparing two states.
//!
//! Such a deletion happened somewhere between the two. A client that resumes a watch names the revision of the last event that it has seen, so
//! two events of one revision can be torn apart: the second one would never reach it. Every deletion therefore gets a revision of its own. In
//! etcd each deletion has taken one, so between the two states there are as many revisions that no other event carries.

use std::collections::BTreeSet;

use causeway_api::Revision;

/// Returns `count` revisions in ascending order, later than `after`, not later than `until` and none of `used`: the newest ones. If there are
/// too few, which no API server causes, the rest is `until`.
pub fn deletion_revisions(
    (after, until): (Revision, Revision),
    used: &BTreeSet<Revision>,
    count: usize,
) -> Vec<Revision> {
    let free = (after.0.saturating_add(1)..=until.0).rev().map(Revision).filter(|it| !used.contains(it));
    let mut found: Vec<Revision> = free.take(count).collect();
    found.reverse();
    found.resize(count, until);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_deletion_has_a_revision_of_its_own() {
        let used: BTreeSet<Revision> = [7, 9, 10].map(Revision).into();
        let check = |(after, until), count, expected: &[u64]| {
            let found = deletion_revisions((Revision(after), Revision(until)), &used, count);
            assert_eq!(found.into_iter().map(|it| it.0).collect::<Vec<_>>(), expected);
        };
        check((4, 10), 0, &[]);
        check((4, 10), 2, &[6, 8]);
        check((4, 10), 3, &[5, 6, 8]);
        check((4, 10), 4, &[5, 6, 8, 10]);
        check((4, 11), 1, &[11]);
        // The state leads back, after a restore of etcd.
        check((20, 10), 2, &[10, 10]);
        check((0, u64::MAX), 1, &[u64::MAX]);
    }
}
