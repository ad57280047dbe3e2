//! Bounds the decisions that the sites make the cloud hold, in total and of one site.
//!
//! A site may hold a part of what is free (the dynamic threshold of shared buffers): a site alone gets many, greedy sites leave something to the
//! next one, and no site needs a number of its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use causeway_daemon::sync::MutexExt;

// A site with a few dozen pods that use the API has about a hundred decisions.
const DECISIONS_MAX: usize = 100_000;
// One site alone holds 11,111: three for each of 3,700 subscriptions. Thirty sites that take all they get leave 2,900, of which the next one gets 320.
const PART_OF_FREE: usize = 8;

/// A handle; clones share the counts.
#[derive(Clone, Default)]
pub struct DecisionShares(Arc<Mutex<HeldBySites>>);

#[derive(Default)]
struct HeldBySites {
    total: usize,
    sites: HashMap<Arc<str>, usize>,
}

/// The place of one decision; dropping it frees it.
pub struct DecisionShare {
    shares: DecisionShares,
    site: Arc<str>,
}

/// Returns true if a site that holds `own` of `total` decisions may hold one more.
fn has_room(own: usize, total: usize) -> bool {
    own < DECISIONS_MAX.saturating_sub(total) / PART_OF_FREE
}

impl DecisionShares {
    /// `None`: the site holds its share.
    pub fn take(&self, site: &str) -> Option<DecisionShare> {
        let mut held = self.0.lock_ignoring_poison();
        let own = held.sites.get(site).copied().unwrap_or(0);
        if !has_room(own, held.total) {
            return None;
        }
        held.total += 1;
        let site: Arc<str> =
            held.sites.get_key_value(site).map_or_else(|| site.into(), |(site, _)| site.clone());
        held.sites.insert(site.clone(), own + 1);
        Some(DecisionShare { shares: self.clone(), site })
    }
}

impl DecisionShare {
    pub fn site(&self) -> &Arc<str> {
        &self.site
    }
}

impl Drop for DecisionShare {
    fn drop(&mut self) {
        let mut held = self.shares.0.lock_ignoring_poison();
        held.total -= 1;
        let left = held.sites.get_mut(&self.site).map(|count| {
            *count -= 1;
            *count
        });
        if left == Some(0) {
            held.sites.remove(&self.site);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_sites_leave_decisions_to_others() {
        let shares = DecisionShares::default();
        let all = |site: &str| std::iter::from_fn(|| shares.take(site)).collect::<Vec<_>>();
        let greedy: Vec<_> = ["a", "b", "c", "d"].map(all).into();
        assert_eq!(greedy[0].len(), 11_111);
        let honest: Vec<_> = (0..1_000).filter_map(|_| shares.take("oslo")).collect();
        assert_eq!(honest.len(), 1_000, "four sites that take all they get");
        let more: Vec<_> = (0..20).map(|number| all(&format!("site{number}"))).collect();
        let bergen = all("bergen");
        assert!(bergen.len() > 500, "two dozen of them: {}", bergen.len());
        drop((greedy, honest, more, bergen));
        let held = shares.0.lock().unwrap();
        assert!(held.total == 0 && held.sites.is_empty());
    }
}
