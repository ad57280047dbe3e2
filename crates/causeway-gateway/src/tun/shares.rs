//! The limits of policies on flows: how many a subject may have and begin, and how many bytes may cross.
//!
//! Like `limits`, with a share per policy and subject. Enforced at both gateways: the one of the host that begins may have been
//! taken over. Packets over the rate are dropped, so that TCP slows down. The worker owns the table: no lock per packet.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use causeway_netmap::{PolicyLimits, ServerName, SiteName};

use super::admission::FlowRight;
use crate::limits::bucket::{BucketRate, TokenBucket};

/// Bytes and flows of this time may cross at once after a pause.
const BURST: Duration = Duration::from_secs(1);

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ShareKey {
    rule: Arc<str>,
    site: SiteName,
    subject: Option<ServerName>,
}

#[derive(Debug)]
struct FlowShare {
    key: ShareKey,
    limits: PolicyLimits,
    flows: u64,
    begun: TokenBucket,
    sent: TokenBucket,
    received: TokenBucket,
}

/// The share of a flow under limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShareId(usize);

/// A share lives as long as a flow has it: the table is bounded by the flows.
#[derive(Default, Debug)]
pub struct FlowShares {
    by_key: HashMap<ShareKey, usize>,
    slots: Vec<Option<FlowShare>>,
}

impl FlowShares {
    /// Counts a flow that begins. None: it has no limits. An error: it is over one.
    pub fn enter(&mut self, right: &FlowRight, now: Instant) -> Result<Option<ShareId>, OverLimit> {
        let Some(limits) = right.limits else { return Ok(None) };
        let slot = self.slot_of(right, limits);
        let Some(share) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return Err(OverLimit) };
        let too_many = limits.connections.is_some_and(|max| share.flows >= max);
        let too_fast = limits
            .connections_per_second
            .is_some_and(|rate| share.begun.try_take(1, BucketRate::new(rate, BURST), now).is_err());
        let nothing_may_cross = [limits.bytes_per_second_in, limits.bytes_per_second_out].contains(&Some(0));
        if too_many || too_fast || nothing_may_cross {
            self.remove_unused(slot);
            return Err(OverLimit);
        }
        share.flows += 1;
        Ok(Some(ShareId(slot)))
    }

    /// Brings an open flow in step with a right that was judged again. It is counted and not refused: packets over the rate are
    /// dropped, and further flows are refused until there are fewer than the limit.
    pub fn follow(&mut self, share: Option<ShareId>, right: &FlowRight) -> Option<ShareId> {
        let followed = right.limits.map(|limits| ShareId(self.slot_of(right, limits)));
        if followed == share {
            return share;
        }
        if let Some(ShareId(slot)) = followed
            && let Some(share) = self.slots.get_mut(slot).and_then(Option::as_mut)
        {
            share.flows += 1;
        }
        self.release(share);
        followed
    }

    /// Returns the place of a share, which has these limits from now on.
    fn slot_of(&mut self, right: &FlowRight, limits: PolicyLimits) -> usize {
        let key =
            ShareKey { rule: right.rule.clone(), site: right.site.clone(), subject: right.subject.clone() };
        let slot = self.by_key.get(&key).copied();
        let slot = slot.unwrap_or_else(|| {
            let free = self.slots.iter().position(Option::is_none).unwrap_or(self.slots.len());
            if free == self.slots.len() {
                self.slots.push(None);
            }
            self.by_key.insert(key.clone(), free);
            let (begun, sent, received) = Default::default();
            self.slots[free] = Some(FlowShare { key, limits, flows: 0, begun, sent, received });
            free
        });
        if let Some(share) = self.slots.get_mut(slot).and_then(Option::as_mut) {
            share.limits = limits;
        }
        slot
    }

    pub fn release(&mut self, share: Option<ShareId>) {
        let Some(ShareId(slot)) = share else { return };
        if let Some(share) = self.slots.get_mut(slot).and_then(Option::as_mut) {
            share.flows = share.flows.saturating_sub(1);
        }
        self.remove_unused(slot);
    }

    /// Takes bytes of a packet or frame. False: it is over the rate. `sent`: from the host that began.
    pub fn take(&mut self, share: Option<ShareId>, sent: bool, bytes: usize, now: Instant) -> bool {
        let Some(ShareId(slot)) = share else { return true };
        let Some(share) = self.slots.get_mut(slot).and_then(Option::as_mut) else { return true };
        let (rate, bucket) = match sent {
            true => (share.limits.bytes_per_second_in, &mut share.sent),
            false => (share.limits.bytes_per_second_out, &mut share.received),
        };
        let Some(rate) = rate.map(|rate| BucketRate::new(rate, BURST)) else { return true };
        // A frame may be longer than the burst: it passes when there is anything left, and the debt is paid first.
        bucket.try_take(1, rate, now).is_ok()
            && bucket.reserve(bytes.saturating_sub(1) as u64, rate, now).is_some()
    }

    fn remove_unused(&mut self, slot: usize) {
        // A share without flows is kept only while its rate of new flows counts.
        let unused = |share: &FlowShare| share.flows == 0 && share.limits.connections_per_second.is_none();
        if let Some(share) = self.slots.get_mut(slot).and_then(|slot| slot.take_if(|share| unused(share))) {
            self.by_key.remove(&share.key);
        }
    }

    /// Forgets shares without flows. Called about once a minute: their buckets are full again by then.
    pub fn sweep(&mut self) {
        for slot in &mut self.slots {
            if let Some(share) = slot.take_if(|share| share.flows == 0) {
                self.by_key.remove(&share.key);
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverLimit;

#[cfg(test)]
mod tests {
    use super::*;

    fn right(limits: PolicyLimits) -> FlowRight {
        FlowRight { site: "oslo".into(), subject: None, rule: "p".into(), limits: Some(limits) }
    }

    #[test]
    fn flows_are_counted_until_they_leave() {
        let (mut shares, now) = (FlowShares::default(), Instant::now());
        let right = right(PolicyLimits { connections: Some(2), ..Default::default() });
        let one = shares.enter(&right, now).unwrap();
        let _two = shares.enter(&right, now).unwrap();
        assert_eq!(shares.enter(&right, now), Err(OverLimit));
        shares.release(one);
        assert!(shares.enter(&right, now).is_ok());
        let other = FlowRight { subject: Some("shop".into()), ..right };
        assert!(shares.enter(&other, now).is_ok(), "another subject has a share of its own");
        assert_eq!(shares.enter(&FlowRight { limits: None, ..other }, now), Ok(None));
    }

    #[test]
    fn bytes_over_the_rate_are_dropped_in_their_direction() {
        let (mut shares, now) = (FlowShares::default(), Instant::now());
        let right = right(PolicyLimits { bytes_per_second_in: Some(1000), ..Default::default() });
        let share = shares.enter(&right, now).unwrap();
        assert!(shares.take(share, true, 60_000, now), "a frame longer than the burst passes once");
        assert!(!shares.take(share, true, 1, now + Duration::from_secs(58)));
        assert!(shares.take(share, true, 1, now + Duration::from_secs(61)));
        assert!(shares.take(share, false, 1_000_000, now));
    }

    #[test]
    fn limits_that_come_change_and_go_count_for_open_flows() {
        let (mut shares, now) = (FlowShares::default(), Instant::now());
        let none = FlowRight { limits: None, ..right(PolicyLimits::default()) };
        let slow = |rate| right(PolicyLimits { bytes_per_second_in: Some(rate), ..Default::default() });
        let share = shares.enter(&none, now).unwrap();
        assert!(share.is_none() && shares.take(share, true, 60_000, now));
        let share = shares.follow(share, &slow(1000));
        assert!(shares.take(share, true, 60_000, now) && !shares.take(share, true, 1, now), "a limit came");
        assert_eq!(shares.follow(share, &slow(0)), share);
        assert!(!shares.take(share, true, 1, now + Duration::from_secs(1000)), "nothing may cross");
        let few = right(PolicyLimits { connections: Some(1), ..Default::default() });
        assert_eq!(shares.follow(share, &few), share);
        assert_eq!(shares.enter(&few, now), Err(OverLimit), "the open flow counts");
        assert_eq!(shares.follow(share, &none), None);
        assert!(shares.by_key.is_empty() && shares.slots.iter().all(Option::is_none));
    }

    #[test]
    fn new_flows_have_a_rate() {
        let (mut shares, now) = (FlowShares::default(), Instant::now());
        let right = right(PolicyLimits { connections_per_second: Some(2), ..Default::default() });
        for _ in 0..2 {
            let share = shares.enter(&right, now).unwrap();
            shares.release(share);
        }
        assert_eq!(shares.enter(&right, now), Err(OverLimit));
        assert!(shares.enter(&right, now + Duration::from_secs(1)).is_ok());
        shares.sweep();
    }
}
