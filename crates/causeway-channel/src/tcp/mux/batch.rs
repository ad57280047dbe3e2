//! A batch of frames to be written to the connection: small payloads are copied together, large ones are
//! referenced.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes};

use crate::tcp::frame::{Frame, data_head};
use crate::tcp::queue::{ByteQueue, SMALL_BYTES};

/// Space for the small requests of two dozen connections: one allocation for all of them, not ten.
const SCRATCH_BYTES: usize = 4 * 1024;

#[derive(Debug, Default)]
pub struct WriteBatch {
    /// Heads and small payloads, in the order of `parts`.
    scratch: Vec<u8>,
    scratch_done: usize,
    parts: VecDeque<Part>,
    length: usize,
    /// Frames of streams; link-level frames do not count.
    messages: usize,
}

#[derive(Debug)]
enum Part {
    Scratch(usize),
    Payload(Bytes),
}

impl WriteBatch {
    pub fn len(&self) -> usize {
        self.length
    }

    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// Returns the number of messages added since the last call.
    pub fn take_messages(&mut self) -> usize {
        std::mem::take(&mut self.messages)
    }

    pub fn push_frame(&mut self, frame: Frame<'_>) {
        self.push_small(|scratch| frame.write(scratch));
    }

    /// Adds a data frame with the next `length` bytes of `queue`.
    pub fn push_data(&mut self, stream: u32, queue: &mut ByteQueue, length: usize, fin: bool) {
        self.messages += 1;
        self.push_small(|scratch| data_head(scratch, stream, length, fin));
        let mut left = length;
        while left > 0 {
            let Some(piece) = queue.pop(left) else { break };
            left -= piece.len();
            self.push_payload(piece);
        }
    }

    fn push_payload(&mut self, piece: Bytes) {
        if piece.len() < SMALL_BYTES {
            return self.push_small(|scratch| scratch.extend_from_slice(&piece));
        }
        self.length += piece.len();
        self.parts.push_back(Part::Payload(piece));
    }

    fn push_small(&mut self, write: impl FnOnce(&mut Vec<u8>)) {
        if self.scratch.capacity() == 0 {
            self.scratch.reserve(SCRATCH_BYTES);
        }
        let before = self.scratch.len();
        write(&mut self.scratch);
        let added = self.scratch.len() - before;
        self.length += added;
        match self.parts.back_mut() {
            Some(Part::Scratch(length)) => *length += added,
            _ => self.parts.push_back(Part::Scratch(added)),
        }
    }

    /// Fills in slices from the front of the batch. Returns their number.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut scratch = &self.scratch[self.scratch_done..];
        let mut count = 0;
        for (slot, part) in slices.iter_mut().zip(&self.parts) {
            *slot = IoSlice::new(match part {
                Part::Scratch(length) => {
                    let (piece, rest) = scratch.split_at(*length);
                    scratch = rest;
                    piece
                }
                Part::Payload(bytes) => bytes,
            });
            count += 1;
        }
        count
    }

    /// Removes `count` bytes that were written.
    pub fn advance(&mut self, mut count: usize) {
        self.length -= count;
        while let Some(part) = self.parts.front_mut() {
            let done = match part {
                Part::Scratch(length) => {
                    let done = count.min(*length);
                    self.scratch_done += done;
                    *length -= done;
                    (done, *length == 0)
                }
                Part::Payload(bytes) => {
                    let done = count.min(bytes.len());
                    bytes.advance(done);
                    (done, bytes.is_empty())
                }
            };
            count -= done.0;
            if !done.1 {
                return;
            }
            self.parts.pop_front();
        }
        self.scratch.clear();
        self.scratch_done = 0;
    }

    /// Releases the memory of an empty batch.
    pub fn rest(&mut self) {
        if self.is_empty() {
            *self = WriteBatch::default();
        }
    }
}
