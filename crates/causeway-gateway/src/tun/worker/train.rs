//! Collects sealed packets of equal length for one peer, so that one system call sends them.

use crate::tun::socket::{TRAIN_BYTES_MAX, TRAIN_SEGMENTS_MAX};

/// The peer to which a train goes. Frames of a relay go by UDP alone.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Lane {
    pub slot: usize,
    pub is_relayed: bool,
    /// DSCP and ECN of the datagrams.
    pub traffic_class: u8,
}

pub struct Train {
    bytes: Vec<u8>,
    length: usize,
    lane: Lane,
    segment: usize,
    segments: usize,
    /// A shorter packet is the last one.
    is_closed: bool,
    segments_max: usize,
}

impl Train {
    /// `cuts`: the kernel cuts trains into datagrams. Otherwise each packet is a train.
    pub fn new(cuts: bool) -> Train {
        let segments_max = if cuts { TRAIN_SEGMENTS_MAX } else { 1 };
        Train {
            bytes: vec![0; TRAIN_BYTES_MAX],
            length: 0,
            lane: Lane::default(),
            segment: 0,
            segments: 0,
            is_closed: false,
            segments_max,
        }
    }

    /// Tells whether a sealed packet can be appended without sending first.
    pub fn takes(&self, lane: Lane, length: usize) -> bool {
        if self.segments == 0 {
            return length <= TRAIN_BYTES_MAX;
        }
        self.lane == lane
            && !self.is_closed
            && length <= self.segment
            && self.segments < self.segments_max
            && self.length + length <= TRAIN_BYTES_MAX
    }

    /// Returns the room for the next packet.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.bytes[self.length..]
    }

    /// Appends the packet that was written into `room`.
    pub fn push(&mut self, lane: Lane, length: usize) {
        if self.segments == 0 {
            (self.lane, self.segment) = (lane, length);
        }
        self.is_closed = length < self.segment;
        self.length += length;
        self.segments += 1;
    }

    /// Returns lane, bytes, segment length and number of the collected packets, and begins anew.
    pub fn take(&mut self) -> Option<(Lane, &[u8], usize, usize)> {
        if self.segments == 0 {
            return None;
        }
        let (length, segments) = (self.length, self.segments);
        (self.length, self.segments, self.is_closed) = (0, 0, false);
        Some((self.lane, &self.bytes[..length], self.segment, segments))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(slot: usize) -> Lane {
        Lane { slot, is_relayed: false, traffic_class: 0 }
    }

    fn fill(train: &mut Train, slot: usize, length: usize) -> usize {
        let mut count = 0;
        while train.takes(lane(slot), length) {
            train.push(lane(slot), length);
            count += 1;
        }
        count
    }

    #[test]
    fn a_train_has_as_many_packets_as_the_kernel_takes() {
        let mut train = Train::new(true);
        assert_eq!(fill(&mut train, 1, 1452), 45, "65,507 bytes");
        assert_eq!(
            train.take().map(|(lane, bytes, segment, count)| (lane, bytes.len(), segment, count)),
            Some((lane(1), 65_340, 1452, 45))
        );
        assert_eq!(fill(&mut train, 1, 100), 128);
        assert!(train.take().is_some() && train.take().is_none());
    }

    #[test]
    fn a_shorter_packet_ends_a_train_and_a_longer_one_or_another_peer_begins_one() {
        let mut train = Train::new(true);
        train.push(lane(1), 100);
        let relayed = Lane { is_relayed: true, ..lane(1) };
        let marked = Lane { traffic_class: 2, ..lane(1) };
        assert!(train.takes(lane(1), 100) && train.takes(lane(1), 50));
        assert!(!train.takes(lane(1), 101) && !train.takes(lane(2), 100) && !train.takes(relayed, 100));
        assert!(!train.takes(marked, 100), "one system call has one traffic class");
        train.push(lane(1), 50);
        assert!(!train.takes(lane(1), 50));
    }

    #[test]
    fn without_the_kernel_each_packet_is_sent_alone() {
        assert_eq!(fill(&mut Train::new(false), 1, 100), 1);
    }
}
