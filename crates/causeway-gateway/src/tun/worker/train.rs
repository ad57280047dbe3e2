//! Collects sealed packets of equal length for one peer, so that one system call sends them.

use crate::tun::socket::{TRAIN_BYTES_MAX, TRAIN_SEGMENTS_MAX};

pub struct Train {
    bytes: Vec<u8>,
    length: usize,
    peer: usize,
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
            peer: 0,
            segment: 0,
            segments: 0,
            is_closed: false,
            segments_max,
        }
    }

    /// Tells whether a sealed packet can be appended without sending first.
    pub fn takes(&self, peer: usize, length: usize) -> bool {
        if self.segments == 0 {
            return length <= TRAIN_BYTES_MAX;
        }
        self.peer == peer
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
    pub fn push(&mut self, peer: usize, length: usize) {
        if self.segments == 0 {
            (self.peer, self.segment) = (peer, length);
        }
        self.is_closed = length < self.segment;
        self.length += length;
        self.segments += 1;
    }

    /// Returns peer, bytes, segment length and number of the collected packets, and begins anew.
    pub fn take(&mut self) -> Option<(usize, &[u8], usize, usize)> {
        if self.segments == 0 {
            return None;
        }
        let (length, segments) = (self.length, self.segments);
        (self.length, self.segments, self.is_closed) = (0, 0, false);
        Some((self.peer, &self.bytes[..length], self.segment, segments))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(train: &mut Train, peer: usize, length: usize) -> usize {
        let mut count = 0;
        while train.takes(peer, length) {
            train.push(peer, length);
            count += 1;
        }
        count
    }

    #[test]
    fn a_train_has_as_many_packets_as_the_kernel_takes() {
        let mut train = Train::new(true);
        assert_eq!(fill(&mut train, 1, 1452), 45, "65,507 bytes");
        assert_eq!(
            train.take().map(|(peer, bytes, segment, count)| (peer, bytes.len(), segment, count)),
            Some((1, 65_340, 1452, 45))
        );
        assert_eq!(fill(&mut train, 1, 100), 128);
        assert!(train.take().is_some() && train.take().is_none());
    }

    #[test]
    fn a_shorter_packet_ends_a_train_and_a_longer_one_or_another_peer_begins_one() {
        let mut train = Train::new(true);
        train.push(1, 100);
        assert!(train.takes(1, 100) && train.takes(1, 50) && !train.takes(1, 101) && !train.takes(2, 100));
        train.push(1, 50);
        assert!(!train.takes(1, 50));
    }

    #[test]
    fn without_the_kernel_each_packet_is_sent_alone() {
        assert_eq!(fill(&mut Train::new(false), 1, 100), 1);
    }
}
