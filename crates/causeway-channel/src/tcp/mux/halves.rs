//! Operations of stream handles: write, finish, reset, read, stop, drop.

use std::task::{Poll, Waker};
use std::time::Instant;

use bytes::Bytes;

use super::Mux;
use super::stream::{MuxStream, RecvState, SendState};
use crate::link::{LinkClosed, ResetCode};
use crate::tcp::queue::ByteQueue;

/// Reason for which a stream cannot be read or written any more.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StreamFailure {
    Reset(ResetCode),
    /// This end has reset, stopped or finished the half itself.
    Over,
    Link(LinkClosed),
}

impl Mux {
    /// Queues as much of `data` as there is space for, without copying large payloads. Removes it from `data`
    /// and returns the bytes taken.
    pub fn poll_write_chunk(
        &mut self,
        id: u32,
        data: &mut Bytes,
        waker: &Waker,
    ) -> Poll<Result<usize, StreamFailure>> {
        self.poll_write_with(id, data.len(), waker, |queue, room| queue.push(data.split_to(room)))
    }

    /// As `poll_write_chunk`, for several pieces at once. Removes what was taken from the front of `chunks`.
    pub fn poll_write_chunks(
        &mut self,
        id: u32,
        chunks: &mut Vec<Bytes>,
        waker: &Waker,
    ) -> Poll<Result<usize, StreamFailure>> {
        let length = chunks.iter().map(Bytes::len).sum();
        self.poll_write_with(id, length, waker, |queue, room| {
            let mut left = room;
            let is_whole = |chunk: &&Bytes| match left.checked_sub(chunk.len()) {
                Some(rest) => {
                    left = rest;
                    true
                }
                None => false,
            };
            let whole = chunks.iter().take_while(is_whole).count();
            chunks.drain(..whole).for_each(|chunk| queue.push(chunk));
            if let Some(first) = chunks.first_mut().filter(|_| left > 0) {
                queue.push(first.split_to(left));
            }
        })
    }

    /// Queues a copy of as much as there is space for. Returns the bytes taken.
    pub fn poll_write(&mut self, id: u32, data: &[u8], waker: &Waker) -> Poll<Result<usize, StreamFailure>> {
        self.poll_write_with(id, data.len(), waker, |queue, room| queue.push_slice(&data[..room]))
    }

    fn poll_write_with(
        &mut self,
        id: u32,
        length: usize,
        waker: &Waker,
        push: impl FnOnce(&mut ByteQueue, usize),
    ) -> Poll<Result<usize, StreamFailure>> {
        let link_room = self.link_room();
        let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(Err(StreamFailure::Over)) };
        let send = &mut stream.send;
        match (send.stopped, send.state) {
            (Some(code), _) => return Poll::Ready(Err(StreamFailure::Reset(code))),
            (None, SendState::Open) => {}
            (None, _) => return Poll::Ready(Err(StreamFailure::Over)),
        }
        if let Some(closed) = &self.ended {
            return Poll::Ready(Err(StreamFailure::Link(closed.clone())));
        }
        let room = send.room(link_room).min(length);
        if room == 0 && length > 0 {
            send.writer = Some(waker.clone());
            return Poll::Pending;
        }
        push(&mut send.queue, room);
        self.waiting += room;
        self.list(id);
        Poll::Ready(Ok(room))
    }

    pub(super) fn link_room(&self) -> usize {
        self.bounds.send_max.saturating_sub(self.waiting)
    }

    /// Ends this direction after the queued bytes.
    pub fn finish(&mut self, id: u32) -> Result<(), StreamFailure> {
        let Some(stream) = self.streams.get_mut(&id) else { return Err(StreamFailure::Over) };
        match (stream.send.stopped, stream.send.state) {
            (Some(code), _) => return Err(StreamFailure::Reset(code)),
            (None, SendState::Open) => {}
            // A second call has no effect.
            (None, SendState::Finishing | SendState::Finished) => return Ok(()),
            (None, SendState::Reset(_)) => return Err(StreamFailure::Over),
        }
        if let Some(closed) = &self.ended {
            return Err(StreamFailure::Link(closed.clone()));
        }
        stream.send.state = SendState::Finishing;
        self.list(id);
        Ok(())
    }

    /// Adds the stream to the send queue if it has data to send.
    pub(super) fn list(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.send.is_ready() && !stream.send.listed {
            stream.send.listed = true;
            self.outgoing.push_ready(id, stream.class);
        }
    }

    /// Resets the sending direction and drops its queued bytes.
    pub fn reset(&mut self, id: u32, code: ResetCode) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.send.state.is_over() {
            return;
        }
        stream.send.state = SendState::Reset(code);
        self.waiting -= stream.send.queue.len();
        stream.send.queue.clear();
        if self.ended.is_none() {
            self.outgoing.push_reset(id, code);
        }
        self.release_if_over(id);
    }

    /// Stops the receiving direction.
    pub fn stop(&mut self, id: u32, code: ResetCode) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        if stream.recv.stopped.is_some() || matches!(stream.recv.state, RecvState::Reset(_)) {
            return;
        }
        self.committed -= stream.recv.committed();
        stream.recv.stopped = Some(code);
        let unread = stream.recv.queue.len();
        stream.recv.queue.clear();
        if stream.recv.state == RecvState::Open && self.ended.is_none() {
            self.outgoing.push_stop(id, code);
        }
        self.give_back(unread);
    }

    /// Ready with the code once the peer has stopped the direction, or when the link ends.
    pub fn poll_stopped(&mut self, id: u32, waker: &Waker) -> Poll<ResetCode> {
        let is_ended = self.ended.is_some();
        let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(ResetCode::Abandoned) };
        match stream.send.stopped {
            Some(code) => Poll::Ready(code),
            // All bytes were sent before the link ended; this transport does not know whether they arrived.
            None if is_ended => Poll::Ready(ResetCode::Abandoned),
            None => {
                stream.send.watcher = Some(waker.clone());
                Poll::Pending
            }
        }
    }

    /// Passes the received bytes to `take`; returns `None` at the end. The clock is read only where it is
    /// needed.
    pub fn poll_read<T>(
        &mut self,
        id: u32,
        waker: &Waker,
        now: impl FnOnce() -> Instant,
        take: impl FnOnce(&mut ByteQueue) -> T,
    ) -> Poll<Result<Option<T>, StreamFailure>> {
        let Some(stream) = self.streams.get_mut(&id) else { return Poll::Ready(Err(StreamFailure::Over)) };
        let recv = &mut stream.recv;
        match recv.stopped {
            Some(code) if recv.is_cut => return Poll::Ready(Err(StreamFailure::Reset(code))),
            Some(_) => return Poll::Ready(Err(StreamFailure::Over)),
            None => {}
        }
        if recv.queue.is_empty() {
            return match (recv.state, &self.ended) {
                (RecvState::Reset(code), _) => Poll::Ready(Err(StreamFailure::Reset(code))),
                (RecvState::Finished, _) => Poll::Ready(Ok(None)),
                (RecvState::Open, Some(closed)) => Poll::Ready(Err(StreamFailure::Link(closed.clone()))),
                (RecvState::Open, None) => {
                    recv.reader = Some(waker.clone());
                    Poll::Pending
                }
            };
        }
        let before = recv.queue.len();
        let taken = take(&mut recv.queue);
        let read = before - recv.queue.len();
        self.committed -= read as u64;
        self.give_back(read);
        self.grant(id, now);
        Poll::Ready(Ok(Some(taken)))
    }

    fn grant(&mut self, id: u32, now: impl FnOnce() -> Instant) {
        let Some(MuxStream { recv, .. }) = self.streams.get_mut(&id).map(|stream| &mut **stream) else {
            return;
        };
        let left = self.bounds.receive_max.saturating_sub(self.committed);
        let was_owed = recv.owed > 0;
        let floor = u64::from(self.bounds.initial_credit);
        let granted = recv.grant(now, floor, self.bounds.window_max, left);
        self.committed += u64::from(granted);
        if granted > 0 && !was_owed && self.ended.is_none() {
            self.outgoing.push_credit(id);
        }
    }

    /// The sending handle was dropped. An unfinished direction is reset.
    pub fn drop_send(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.send.held = false;
        (stream.send.writer, stream.send.watcher) = (None, None);
        if stream.send.state == SendState::Open {
            self.reset(id, ResetCode::Abandoned);
        }
        self.release_if_over(id);
    }

    /// The receiving handle was dropped. Unread bytes are discarded.
    pub fn drop_recv(&mut self, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.recv.held = false;
        stream.recv.reader = None;
        self.stop(id, ResetCode::Abandoned);
        self.release_if_over(id);
    }
}
