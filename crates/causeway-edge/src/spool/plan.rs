//! Decides for the queue: which segments to remove for space, what to send next, what an acknowledgement completes.
//!
//! Knows numbers only; `queue` does what is decided and reports back through `handle_*`. Every record has a sequence
//! number, also one that was refused, so what is lost is simply what was numbered and is neither held nor
//! acknowledged. That is why no path can forget to count.

use std::collections::VecDeque;

use super::frame::{FRAME_HEAD_BYTES, RECORD_BYTES_MAX, SEGMENT_HEAD_BYTES};
use super::state::SpoolState;

/// Bounds on the records that wait for the cloud.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpoolLimits {
    pub bytes_max: u64,
    pub records_max: u64,
    /// One batch is in flight at a time, and it is no larger than this.
    pub batch_bytes_max: usize,
}

impl Default for SpoolLimits {
    /// 64 MiB are days of audit lines of a quiet site and hours of a busy one, and small against any disk.
    /// A batch is one message of the control stream, which is bounded at 64 KiB.
    fn default() -> SpoolLimits {
        SpoolLimits { bytes_max: 64 << 20, records_max: 500_000, batch_bytes_max: 60 << 10 }
    }
}

/// The queue is dropped in such parts of its size: coarse enough to be cheap, fine enough to keep most.
const SEGMENTS: u64 = 16;

impl SpoolLimits {
    /// Returns true if more than a quarter is used: a client may then fill only its share of the rest.
    pub fn is_pressed(&self, waiting: u64, bytes: u64) -> bool {
        waiting > self.records_max / 4 || bytes > self.bytes_max / 4
    }

    fn segment_bytes_max(&self) -> u64 {
        let largest = (SEGMENT_HEAD_BYTES + FRAME_HEAD_BYTES + RECORD_BYTES_MAX) as u64;
        // A limit too small for sixteen parts is cut in fewer; one record always fits.
        (self.bytes_max / SEGMENTS).max(largest.min(self.bytes_max / 4))
    }

    fn segment_records_max(&self) -> u64 {
        (self.records_max / SEGMENTS).max(1)
    }
}

/// A segment file as the plan sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SegmentInfo {
    /// Its name: no record in it has a lower number.
    pub first: u64,
    pub bytes: u64,
    /// Records in it, acknowledged or not.
    pub written: u64,
    /// Records in it that are not acknowledged yet.
    pub waiting: u64,
}

/// The steps before a record can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpaceDecision {
    pub new_segment: bool,
    /// The number of oldest segments to remove.
    pub drop: usize,
}

/// The contents of the next batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SendDecision {
    /// Records from the oldest segment that has any, with numbers above this one.
    RecordsAfter(u64),
    /// No records, but losses that were not reported to the cloud yet.
    Report,
}

#[derive(Debug, Clone, Copy)]
struct InFlight {
    last: u64,
    records: u64,
    lost: u64,
    /// Its segment was dropped meanwhile. The batch itself is in memory and may still arrive.
    orphaned: bool,
}

#[derive(Debug)]
pub struct SpoolPlan {
    limits: SpoolLimits,
    /// Oldest first; the last one is written to.
    segments: VecDeque<SegmentInfo>,
    acknowledged: u64,
    /// Lost among the numbers up to `acknowledged`.
    lost_before: u64,
    next: u64,
    in_flight: Option<InFlight>,
    lost_reported: u64,
}

impl SpoolPlan {
    /// `segments` as they were found, oldest first, with `waiting` counted above what `saved` acknowledges.
    pub fn new(
        limits: SpoolLimits,
        segments: Vec<SegmentInfo>,
        last: u64,
        saved: Option<SpoolState>,
    ) -> SpoolPlan {
        // Without the state file nothing is known of what came before the oldest segment.
        let oldest = segments.first().map_or(1, |segment| segment.first);
        let saved = saved.unwrap_or(SpoolState { acknowledged: oldest - 1, lost: 0, next: oldest });
        let next = saved.next.max(last + 1).max(saved.acknowledged + 1);
        SpoolPlan {
            limits,
            segments: segments.into(),
            acknowledged: saved.acknowledged,
            lost_before: saved.lost,
            next,
            in_flight: None,
            lost_reported: saved.lost,
        }
    }

    pub fn next_number(&self) -> u64 {
        self.next
    }

    pub fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    pub fn saved(&self) -> SpoolState {
        SpoolState { acknowledged: self.acknowledged, lost: self.lost_before, next: self.next }
    }

    /// Records that wait, in flight or not.
    pub fn waiting(&self) -> u64 {
        self.segments.iter().map(|segment| segment.waiting).sum::<u64>() + self.orphans()
    }

    pub fn bytes(&self) -> u64 {
        self.segments.iter().map(|segment| segment.bytes).sum()
    }

    /// Records that were numbered and will never be sent, since the queue began.
    pub fn lost(&self) -> u64 {
        self.lost_before + (self.next - 1 - self.acknowledged) - self.waiting()
    }

    fn orphans(&self) -> u64 {
        self.in_flight.filter(|batch| batch.orphaned).map_or(0, |batch| batch.records)
    }

    /// The oldest segment that has something to send.
    pub fn oldest_waiting(&self) -> Option<SegmentInfo> {
        self.segments.iter().find(|segment| segment.waiting > 0).copied()
    }

    pub fn oldest(&self) -> Option<u64> {
        self.segments.front().map(|segment| segment.first)
    }

    pub fn newest(&self) -> Option<SegmentInfo> {
        self.segments.back().copied()
    }

    /// Returns the steps before a frame of this size can be written.
    pub fn room_for(&self, frame_bytes: u64) -> SpaceDecision {
        let new_segment = self.segments.back().is_none_or(|newest| {
            newest.written > 0
                && (newest.bytes + frame_bytes > self.limits.segment_bytes_max()
                    || newest.written >= self.limits.segment_records_max())
        });
        let head = if new_segment { SEGMENT_HEAD_BYTES as u64 } else { 0 };
        let mut bytes = self.bytes() + head + frame_bytes;
        let mut waiting = self.waiting() + 1;
        let mut drop = 0;
        let droppable = self.segments.len() - usize::from(!new_segment);
        for segment in self.segments.iter().take(droppable) {
            if bytes <= self.limits.bytes_max && waiting <= self.limits.records_max {
                break;
            }
            bytes -= segment.bytes;
            waiting -= segment.waiting;
            drop += 1;
        }
        SpaceDecision { new_segment, drop }
    }

    pub fn handle_new_segment(&mut self) {
        self.segments.push_back(SegmentInfo {
            first: self.next,
            bytes: SEGMENT_HEAD_BYTES as u64,
            written: 0,
            waiting: 0,
        });
    }

    /// The oldest segment is removed.
    pub fn handle_dropped(&mut self) {
        let Some(gone) = self.segments.pop_front() else { return };
        if let Some(batch) = &mut self.in_flight
            && batch.records > 0
            && gone.first <= batch.last
        {
            batch.orphaned = true;
        }
    }

    /// A record was written into the newest segment. Returns its number.
    pub fn handle_appended(&mut self, frame_bytes: u64) -> u64 {
        if let Some(newest) = self.segments.back_mut() {
            newest.bytes += frame_bytes;
            newest.written += 1;
            newest.waiting += 1;
        }
        self.next += 1;
        self.next - 1
    }

    /// Notes records that could not be written. They get numbers all the same: the gap is how losses are
    /// counted.
    pub fn handle_refused(&mut self, records: u64) {
        self.next += records;
    }

    /// Returns what to send now; `None` while a batch is in flight or when there is nothing to report.
    pub fn next_send(&self) -> Option<SendDecision> {
        if self.in_flight.is_some() {
            return None;
        }
        if self.oldest_waiting().is_some() {
            return Some(SendDecision::RecordsAfter(self.acknowledged));
        }
        (self.lost() > self.lost_reported).then_some(SendDecision::Report)
    }

    pub fn handle_sent(&mut self, last: u64, records: u64) {
        self.in_flight = Some(InFlight { last, records, lost: self.lost(), orphaned: false });
    }

    /// Reading a segment to its end gave fewer records than were counted: the rest is damaged.
    pub fn handle_damaged(&mut self, first: u64, really_waiting: u64) {
        if let Some(segment) = self.segments.iter_mut().find(|segment| segment.first == first) {
            segment.waiting = segment.waiting.min(really_waiting);
        }
    }

    pub fn is_in_flight(&self) -> bool {
        self.in_flight.is_some()
    }

    /// Returns true if this is the answer to exactly the batch in flight.
    pub fn is_expected(&self, seq: u64) -> bool {
        self.in_flight.is_some_and(|batch| batch.last == seq)
    }

    /// Everything up to `seq` is acknowledged. `waiting_above` says, for the segment that holds `seq`, how many of its
    /// records have higher numbers; it is asked only when the acknowledgement is not the expected one.
    pub fn handle_acknowledged(&mut self, seq: u64, waiting_above: impl FnOnce(u64) -> u64) {
        if seq >= self.next || seq < self.acknowledged {
            return;
        }
        let total = self.lost();
        let batch = self.in_flight.take_if(|batch| batch.last <= seq);
        if batch.is_none() && seq == self.acknowledged {
            return;
        }
        if let Some(batch) = &mut self.in_flight {
            batch.records = batch.records.min(batch.last - seq);
        }
        let expected = batch.as_ref().filter(|batch| batch.last == seq && !batch.orphaned);
        if let Some(batch) = &batch {
            self.lost_reported = self.lost_reported.max(batch.lost);
        }
        let holder = self.segments.iter().rposition(|segment| segment.first <= seq);
        if let Some(holder) = holder {
            self.segments.iter_mut().take(holder).for_each(|segment| segment.waiting = 0);
            let segment = &mut self.segments[holder];
            segment.waiting = match expected {
                Some(batch) => segment.waiting.saturating_sub(batch.records),
                None if segment.waiting == 0 => 0,
                None => waiting_above(segment.first).min(segment.waiting),
            };
        }
        self.acknowledged = seq;
        // The sum of what was lost is the same before and after.
        self.lost_before = (total + self.waiting()).saturating_sub(self.next - 1 - seq);
    }

    /// The oldest segment, if nothing in it is needed any more and it is not the one being written.
    pub fn next_finished(&self) -> Option<u64> {
        let oldest = self.segments.front().filter(|_| self.segments.len() > 1)?;
        (oldest.waiting == 0).then_some(oldest.first)
    }

    pub fn handle_finished(&mut self) {
        self.segments.pop_front();
    }

    /// The cloud acknowledges records that were never sent: this queue is an older copy (a restored disk). Nothing in
    /// flight can be believed.
    pub fn is_set_back(&self, seq: u64) -> bool {
        seq >= self.next
    }

    pub fn handle_set_back(&mut self) {
        self.in_flight = None;
        self.lost_reported = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: u64 = 100;

    fn plan(bytes_max: u64, records_max: u64) -> SpoolPlan {
        let limits = SpoolLimits { bytes_max, records_max, batch_bytes_max: 1000 };
        SpoolPlan::new(limits, Vec::new(), 0, None)
    }

    fn append(plan: &mut SpoolPlan) {
        let room = plan.room_for(FRAME);
        (0..room.drop).for_each(|_| plan.handle_dropped());
        if room.new_segment {
            plan.handle_new_segment();
        }
        plan.handle_appended(FRAME);
    }

    fn acknowledge(plan: &mut SpoolPlan, seq: u64) {
        plan.handle_acknowledged(seq, |_| unreachable!("the acknowledgement is the expected one"));
        while plan.next_finished().is_some() {
            plan.handle_finished();
        }
    }

    #[test]
    fn one_batch_is_in_flight_and_the_next_follows_its_acknowledgement() {
        let mut plan = plan(100_000, 1000);
        assert_eq!(plan.next_send(), None);
        (0..5).for_each(|_| append(&mut plan));
        assert_eq!(plan.next_send(), Some(SendDecision::RecordsAfter(0)));
        plan.handle_sent(3, 3);
        assert_eq!(plan.next_send(), None);
        acknowledge(&mut plan, 3);
        assert_eq!((plan.next_send(), plan.waiting()), (Some(SendDecision::RecordsAfter(3)), 2));
        plan.handle_sent(5, 2);
        acknowledge(&mut plan, 5);
        assert_eq!((plan.next_send(), plan.waiting(), plan.lost()), (None, 0, 0));
    }

    #[test]
    fn the_bound_drops_the_oldest_and_counts_them() {
        for (bytes_max, records_max) in [(16 * 1000, u64::MAX), (u64::MAX >> 8, 160)] {
            let mut plan = plan(bytes_max, records_max);
            for _ in 0..1000 {
                append(&mut plan);
                assert!(plan.bytes() <= bytes_max && plan.waiting() <= records_max);
                assert_eq!(plan.waiting() + plan.lost(), plan.next_number() - 1);
            }
            assert!(plan.lost() > 800 && plan.waiting() > 100, "{} lost", plan.lost());
        }
    }

    #[test]
    fn a_queue_is_pressed_when_a_quarter_is_used() {
        let limits = SpoolLimits { bytes_max: 1000, records_max: 100, batch_bytes_max: 10 };
        let check = |waiting, bytes, expected| assert_eq!(limits.is_pressed(waiting, bytes), expected);
        check(25, 250, false);
        check(26, 0, true);
        check(0, 251, true);
    }

    #[test]
    fn refused_records_are_reported_even_when_nothing_else_is_sent() {
        let mut plan = plan(100_000, 1000);
        plan.handle_refused(7);
        assert_eq!((plan.next_send(), plan.lost()), (Some(SendDecision::Report), 7));
        plan.handle_sent(plan.acknowledged(), 0);
        acknowledge(&mut plan, 0);
        assert_eq!((plan.next_send(), plan.lost(), plan.acknowledged()), (None, 7, 0));
        append(&mut plan);
        plan.handle_sent(8, 1);
        acknowledge(&mut plan, 8);
        assert_eq!((plan.next_send(), plan.lost(), plan.saved().lost), (None, 7, 7));
    }

    #[test]
    fn what_is_in_flight_is_not_lost_when_its_segment_is_dropped() {
        let mut plan = plan(16 * 1000, u64::MAX);
        append(&mut plan);
        plan.handle_sent(1, 1);
        while plan.lost() == 0 {
            append(&mut plan);
        }
        let lost = plan.lost();
        acknowledge(&mut plan, 1);
        assert_eq!(plan.lost(), lost, "the first was delivered, those behind it in its segment were not");
        assert_eq!(plan.waiting() + plan.lost(), plan.next_number() - 2);
    }

    #[test]
    fn a_cloud_that_knows_more_than_we_remember_is_followed() {
        let mut plan = plan(100_000, 1000);
        (0..10).for_each(|_| append(&mut plan));
        plan.handle_sent(4, 4);
        plan.handle_acknowledged(7, |_| 3);
        assert_eq!((plan.waiting(), plan.lost(), plan.acknowledged()), (3, 0, 7));
        // An old answer changes nothing, and neither does one from the future.
        plan.handle_acknowledged(2, |_| 9);
        plan.handle_acknowledged(99, |_| 0);
        assert_eq!((plan.waiting(), plan.acknowledged()), (3, 7));
        assert!(plan.is_set_back(99) && !plan.is_set_back(7));
    }

    #[test]
    fn a_queue_that_is_opened_again_goes_on_where_it_was() {
        let limits = SpoolLimits::default();
        let found = vec![
            SegmentInfo { first: 11, bytes: 500, written: 10, waiting: 4 },
            SegmentInfo { first: 21, bytes: 500, written: 8, waiting: 8 },
        ];
        let saved = SpoolState { acknowledged: 16, lost: 3, next: 12 };
        let plan = SpoolPlan::new(limits, found, 30, Some(saved));
        // 17 to 30 are fourteen numbers, twelve of which are held.
        assert_eq!((plan.next_number(), plan.waiting(), plan.lost()), (31, 12, 5));
        assert_eq!(SpoolPlan::new(limits, Vec::new(), 0, Some(saved)).next_number(), 17);
    }
}
