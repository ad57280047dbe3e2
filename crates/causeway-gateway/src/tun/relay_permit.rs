//! Decides what a relay forwards: only between peers whose sites share a group of the netmap, and at a bounded rate. Pure.
//!
//! Both ends of a frame are known by their sessions with the relay, so that no gateway can name another sender, and no
//! stranger can send at all. A frame leaves as long as it came, so that nothing is amplified.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use causeway_netmap::{NetmapView, SiteName};

use super::counters::DropReason;

/// Bytes per second that a relay forwards for one sender: 1 Gb/s.
pub const SENDER_BYTES_PER_SECOND: u64 = 125_000_000;
/// The time for which a rate may be exceeded.
const BURST: Duration = Duration::from_millis(100);

/// The groups of sites between which a gateway relays, by site.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct RelayGroups(BTreeMap<SiteName, Vec<u32>>);

impl RelayGroups {
    pub fn new(view: &NetmapView) -> RelayGroups {
        let mut groups: BTreeMap<SiteName, Vec<u32>> = BTreeMap::new();
        for (number, group) in (0..).zip(view.relay_groups.values()) {
            for site in &group.sites {
                groups.entry(site.clone()).or_default().push(number);
            }
        }
        RelayGroups(groups)
    }

    /// Returns the numbers of a site's groups, in order.
    pub fn of(&self, site: &SiteName) -> &[u32] {
        self.0.get(site).map(Vec::as_slice).unwrap_or_default()
    }
}

/// A peer of a relay, as one end of a frame.
#[derive(Clone, Copy, Debug)]
pub struct RelayEnd<'peer> {
    pub slot: usize,
    /// Numbers of groups, in order.
    pub groups: &'peer [u32],
    /// Packets reach the peer over UDP, inside a session.
    pub is_reachable: bool,
}

/// Decides whether a frame of one peer goes on to another.
pub fn check_relay(from: RelayEnd<'_>, to: Option<RelayEnd<'_>>) -> Result<(), DropReason> {
    let to = to.filter(|to| to.slot != from.slot && share(from.groups, to.groups));
    match to {
        None => Err(DropReason::RelayRefused),
        Some(to) if !to.is_reachable => Err(DropReason::RelayNoPath),
        Some(_) => Ok(()),
    }
}

/// Tells whether two lists in order have a number in common.
fn share(one: &[u32], other: &[u32]) -> bool {
    let (short, long) = if one.len() <= other.len() { (one, other) } else { (other, one) };
    short.iter().any(|number| long.binary_search(number).is_ok())
}

/// The rate of one sender, or of all together (GCRA).
#[derive(Clone, Copy, Debug)]
pub struct RelayBudget {
    bytes_per_second: u64,
    /// The time at which the whole burst is available again.
    full_at: Option<Instant>,
}

impl RelayBudget {
    pub fn new(bytes_per_second: u64) -> RelayBudget {
        RelayBudget { bytes_per_second: bytes_per_second.max(1), full_at: None }
    }

    /// False: the rate is exceeded, and nothing is taken.
    pub fn take(&mut self, bytes: usize, now: Instant) -> bool {
        let is_free = self.is_free(now);
        if is_free {
            let time = Duration::from_nanos(bytes as u64 * 1_000_000_000 / self.bytes_per_second);
            self.full_at = Some(self.full_at.unwrap_or(now).max(now) + time);
        }
        is_free
    }

    fn is_free(&self, now: Instant) -> bool {
        self.full_at.is_none_or(|full_at| full_at.saturating_duration_since(now) < BURST)
    }
}

/// Takes a frame from the rate of its sender and from that of all senders. A frame over one of them costs none of the other.
pub fn take_rates(sender: &mut RelayBudget, total: &mut RelayBudget, bytes: usize, now: Instant) -> bool {
    total.is_free(now) && sender.take(bytes, now) && total.take(bytes, now)
}

#[cfg(test)]
mod tests {
    use causeway_netmap::RelayGroupEntry;

    use super::*;

    #[test]
    fn a_frame_goes_on_between_members_of_a_group_only() {
        let mut view = NetmapView::default();
        for (name, sites) in [("north", ["oslo", "berlin"]), ("south", ["rome", "berlin"])] {
            let sites = sites.iter().map(|site| (*site).into()).collect();
            view.relay_groups.insert(name.into(), RelayGroupEntry { name: name.into(), sites });
        }
        let groups = RelayGroups::new(&view);
        let end = |slot: usize, site: &str, is_reachable: bool| RelayEnd {
            slot,
            groups: groups.of(&site.into()),
            is_reachable,
        };
        let check = |from: &str, to: Option<(usize, &str, bool)>, expected: Result<(), DropReason>| {
            let to = to.map(|(slot, site, is_reachable)| end(slot, site, is_reachable));
            assert_eq!(check_relay(end(1, from, true), to), expected, "{from} {to:?}");
        };
        check("oslo", Some((2, "berlin", true)), Ok(()));
        check("berlin", Some((2, "rome", true)), Ok(()));
        check("oslo", Some((2, "rome", true)), Err(DropReason::RelayRefused));
        check("oslo", Some((2, "paris", true)), Err(DropReason::RelayRefused));
        check("paris", Some((2, "paris", true)), Err(DropReason::RelayRefused));
        check("oslo", Some((1, "oslo", true)), Err(DropReason::RelayRefused));
        check("oslo", None, Err(DropReason::RelayRefused));
        check("oslo", Some((2, "berlin", false)), Err(DropReason::RelayNoPath));
        let none = RelayGroups::new(&NetmapView::default());
        let end = |slot| RelayEnd { slot, groups: none.of(&"oslo".into()), is_reachable: true };
        assert_eq!(
            check_relay(end(1), Some(end(2))),
            Err(DropReason::RelayRefused),
            "this gateway is no relay"
        );
    }

    #[test]
    fn a_sender_over_its_rate_waits_and_goes_on() {
        let (mut budget, now) = (RelayBudget::new(SENDER_BYTES_PER_SECOND), Instant::now());
        let taken = (0..100_000).filter(|_| budget.take(1400, now)).count();
        let burst = 12_500_000 / 1400;
        assert!((burst..=burst + 1).contains(&taken), "{taken}");
        assert!(budget.take(1400, now + Duration::from_millis(1)));
        let full = RelayBudget { full_at: Some(now + BURST), ..budget };
        assert!(!full.clone().take(1, now));
    }

    #[test]
    fn all_senders_together_have_a_rate_that_no_one_of_them_exceeds_alone() {
        let now = Instant::now();
        let mut total = RelayBudget::new(2 * SENDER_BYTES_PER_SECOND);
        let mut senders = [RelayBudget::new(SENDER_BYTES_PER_SECOND); 4];
        let mut taken = [0_usize; 4];
        for _ in 0..20_000 {
            for (sender, taken) in senders.iter_mut().zip(&mut taken) {
                *taken += usize::from(take_rates(sender, &mut total, 1400, now));
            }
        }
        let burst = 12_500_000 / 1400;
        let all: usize = taken.iter().sum();
        assert!((2 * burst..=2 * burst + 2).contains(&all), "{taken:?}");
        // Senders in turns share the rate, and what the total refused is not counted against them.
        assert!(taken.iter().all(|taken| (burst / 2 - 1..=burst / 2 + 2).contains(taken)), "{taken:?}");
        let (mut alone, later) = (senders[0], now + BURST);
        assert!(take_rates(&mut alone, &mut total, 1400, later), "the rest of its burst is left");
    }
}
