//! Queue of bytes on their way into a stream or out of it.
//!
//! Large pieces are kept without a copy. Small ones are copied together, so that a peer that sends single
//! bytes cannot make us hold a hundred bytes for each.

use std::collections::VecDeque;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::ReadBuf;

/// Pieces below this size are copied together: below half a kilobyte a copy costs less than the bookkeeping.
pub const SMALL_BYTES: usize = 512;

/// Allocation for small pieces when several are queued.
const BLOCK_BYTES: usize = 4 * 1024;

#[derive(Debug, Default)]
pub struct ByteQueue {
    chunks: VecDeque<Bytes>,
    tail: BytesMut,
    length: usize,
}

impl ByteQueue {
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    pub fn push(&mut self, bytes: Bytes) {
        if bytes.len() < SMALL_BYTES {
            return self.push_slice(&bytes);
        }
        self.close_tail();
        self.length += bytes.len();
        self.chunks.push_back(bytes);
    }

    pub fn push_slice(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        if self.tail.capacity() - self.tail.len() < bytes.len() {
            self.close_tail();
            // The first piece gets the size it needs: usually it is read before a second one arrives.
            let room = if self.is_empty() { bytes.len() } else { bytes.len().max(BLOCK_BYTES) };
            self.tail = BytesMut::with_capacity(room);
        }
        self.tail.extend_from_slice(bytes);
        self.length += bytes.len();
    }

    /// Returns the next piece, `max` bytes of it at most. `None` only when the queue is empty.
    pub fn pop(&mut self, max: usize) -> Option<Bytes> {
        if self.chunks.is_empty() {
            self.close_tail();
        }
        let front = self.chunks.front_mut()?;
        let piece = match front.len() > max {
            true => front.split_to(max),
            false => self.chunks.pop_front()?,
        };
        self.length -= piece.len();
        self.rest();
        Some(piece)
    }

    /// Copies as much as `out` takes.
    pub fn copy_into(&mut self, out: &mut ReadBuf<'_>) {
        let before = out.remaining();
        while out.remaining() > 0 {
            if self.chunks.is_empty() {
                self.close_tail();
            }
            let Some(front) = self.chunks.front_mut() else { break };
            let count = front.len().min(out.remaining());
            out.put_slice(&front[..count]);
            front.advance(count);
            if front.is_empty() {
                self.chunks.pop_front();
            }
        }
        self.length -= before - out.remaining();
        self.rest();
    }

    pub fn clear(&mut self) {
        *self = ByteQueue::default();
    }

    fn close_tail(&mut self) {
        if !self.tail.is_empty() {
            self.chunks.push_back(std::mem::take(&mut self.tail).freeze());
        }
    }

    // Releases memory: an idle stream holds only a few words.
    fn rest(&mut self) {
        if self.length == 0 && self.chunks.capacity() > 8 {
            self.chunks = VecDeque::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Debug, Clone)]
    enum Step {
        Push(usize),
        PushSlice(usize),
        Pop(usize),
        Copy(usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..2000usize).prop_map(Step::Push),
            (0..2000usize).prop_map(Step::PushSlice),
            (1..3000usize).prop_map(Step::Pop),
            (0..3000usize).prop_map(Step::Copy),
        ]
    }

    proptest! {
        #[test]
        fn what_goes_in_comes_out_in_order(steps in prop::collection::vec(step(), 0..60)) {
            let mut queue = ByteQueue::default();
            let (mut next, mut expected) = (0u8, VecDeque::new());
            let mut fresh = |count| -> Vec<u8> { (0..count).map(|_| { next = next.wrapping_add(1); next }).collect() };
            for step in steps {
                match step {
                    Step::Push(count) => {
                        let bytes = fresh(count);
                        expected.extend(&bytes);
                        queue.push(bytes.into());
                    }
                    Step::PushSlice(count) => {
                        let bytes = fresh(count);
                        expected.extend(&bytes);
                        queue.push_slice(&bytes);
                    }
                    Step::Pop(max) => {
                        let piece = queue.pop(max);
                        prop_assert_eq!(piece.is_none(), expected.is_empty());
                        let piece = piece.unwrap_or_default();
                        prop_assert!(piece.len() <= max);
                        let wanted: Vec<u8> = expected.drain(..piece.len()).collect();
                        prop_assert_eq!(&piece[..], &wanted[..]);
                    }
                    Step::Copy(max) => {
                        let mut out = vec![0; max];
                        let mut buffer = ReadBuf::new(&mut out);
                        queue.copy_into(&mut buffer);
                        let count = buffer.filled().len();
                        prop_assert_eq!(count, max.min(expected.len()));
                        let wanted: Vec<u8> = expected.drain(..count).collect();
                        prop_assert_eq!(&out[..count], &wanted[..]);
                    }
                }
                prop_assert_eq!(queue.len(), expected.len());
            }
        }
    }

    #[test]
    fn single_bytes_that_wait_are_put_together() {
        let mut queue = ByteQueue::default();
        for byte in 0..4000u32 {
            queue.push_slice(&[byte as u8]);
        }
        assert!(queue.chunks.len() <= 2, "{} chunks", queue.chunks.len());
    }
}
