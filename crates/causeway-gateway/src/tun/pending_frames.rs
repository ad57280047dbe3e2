//! Frames of hosts that wait until the gateway behind which their destination is has become a peer.
//!
//! Pure: the time is an argument. Bounded by number, size and time; a frame that is not taken is answered as unreachable. A host
//! that sends to many absent members does not take the room of other hosts.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::fair_share::crowded_place;

const FRAMES_MAX: usize = 64;
/// First packets are short: a SYN, a question, a ping.
const FRAME_BYTES_MAX: usize = 2048;
/// A question to the cloud takes a round trip; a host repeats its packet after a second or more.
const WAIT_MAX: Duration = Duration::from_secs(3);

#[derive(Default, Debug)]
pub struct PendingFrames {
    frames: VecDeque<PendingFrame>,
}

#[derive(Debug)]
pub struct PendingFrame {
    /// The host that sent it.
    pub source: IpAddr,
    pub destination: IpAddr,
    pub bytes: Vec<u8>,
    since: Instant,
}

impl PendingFrames {
    /// Keeps a frame. False: a frame is dropped, this one or the newest one of the host that has most.
    pub fn push(&mut self, source: IpAddr, destination: IpAddr, frame: &[u8], now: Instant) -> bool {
        if frame.len() > FRAME_BYTES_MAX {
            return false;
        }
        let is_full = self.frames.len() >= FRAMES_MAX;
        if is_full {
            match crowded_place(self.frames.iter().map(|frame| frame.source), source) {
                Some(place) => drop(self.frames.remove(place)),
                None => return false,
            }
        }
        self.frames.push_back(PendingFrame { source, destination, bytes: frame.to_vec(), since: now });
        !is_full
    }

    /// Takes the frames whose destination is behind a peer now.
    pub fn take_reachable(&mut self, is_reachable: impl Fn(IpAddr) -> bool) -> Vec<PendingFrame> {
        let (ready, waiting) = std::mem::take(&mut self.frames)
            .into_iter()
            .partition::<VecDeque<_>, _>(|frame| is_reachable(frame.destination));
        self.frames = waiting;
        ready.into()
    }

    /// Takes the frames that have waited too long.
    pub fn take_expired(&mut self, now: Instant) -> Vec<PendingFrame> {
        let is_late = |frame: &PendingFrame| now.saturating_duration_since(frame.since) >= WAIT_MAX;
        let late = self.frames.iter().take_while(|frame| is_late(frame)).count();
        self.frames.drain(..late).collect()
    }

    /// Returns hosts and the destinations for which their frames wait.
    pub fn destinations(&self) -> impl Iterator<Item = (IpAddr, IpAddr)> {
        self.frames.iter().map(|frame| (frame.source, frame.destination))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_wait_for_their_peer_and_no_longer_than_the_limit() {
        let [host, near, far]: [IpAddr; 3] = [1, 2, 3].map(|last| [10, 0, 0, last].into());
        let (mut frames, begin) = (PendingFrames::default(), Instant::now());
        assert!(frames.push(host, near, &[1; 60], begin));
        assert!(frames.push(host, far, &[2; 60], begin + WAIT_MAX / 2));
        assert!(!frames.push(host, far, &[0; FRAME_BYTES_MAX + 1], begin), "a long frame is no first packet");
        assert_eq!(frames.take_reachable(|address| address == near)[0].bytes, [1; 60]);
        assert_eq!(frames.destinations().collect::<Vec<_>>(), [(host, far)]);
        assert!(frames.take_expired(begin + WAIT_MAX).is_empty());
        assert_eq!(frames.take_expired(begin + WAIT_MAX * 2).len(), 1);
        let kept = (0..1000).filter(|_| frames.push(host, far, &[0; 60], begin)).count();
        assert_eq!(kept, FRAMES_MAX);
    }

    #[test]
    fn a_host_with_many_frames_gives_up_room_for_one_with_few() {
        let [greedy, modest, there]: [IpAddr; 3] = [1, 2, 3].map(|last| [10, 0, 0, last].into());
        let (mut frames, now) = (PendingFrames::default(), Instant::now());
        for host in [greedy, modest] {
            for _ in 0..200 {
                frames.push(host, there, &[0; 60], now);
            }
        }
        let of = |host| frames.destinations().filter(|(source, _)| *source == host).count();
        assert_eq!((of(greedy), of(modest)), (FRAMES_MAX / 2, FRAMES_MAX / 2));
    }
}
