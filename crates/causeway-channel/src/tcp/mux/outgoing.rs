//! Chooses the next frames to send: pongs first, then control frames of streams, then the data of streams in
//! turn.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;

use super::Mux;
use super::batch::WriteBatch;
use super::stream::{SendState, StreamPriority};
use crate::link::{CloseReason, ResetCode};
use crate::tcp::frame::{Frame, LinkSettings, PAYLOAD_BYTES_MAX};

/// All queued frames except the data of streams.
#[derive(Debug, Default)]
pub struct ControlQueue {
    settings_sent: bool,
    close: Option<(u32, String)>,
    pongs: VecDeque<u64>,
    control: VecDeque<Control>,
    /// Headers of the open frames in `control`, in their order: an entry of `control` takes 12 bytes, because
    /// a peer can cause many.
    headers: VecDeque<Bytes>,
    urgent: VecDeque<u32>,
    normal: VecDeque<u32>,
    bulk: VecDeque<u32>,
    turn: u8,
}

/// At most one of each kind per stream that the peer does not know to have ended. A peer that keeps its limit
/// of open streams cannot cause more than `Bounds::control_max`; a peer that causes more has its link closed.
/// They are sent in order, so no frame of a stream overtakes its open frame.
#[derive(Debug)]
enum Control {
    Open { id: u32, credit: u32 },
    Reset { id: u32, code: ResetCode },
    Stop { id: u32, code: ResetCode },
    Credit { id: u32 },
}

/// Bound of queued pongs: a peer that pings faster gets the newest responses.
const PONGS_MAX: usize = 8;

/// One turn in this many goes to bulk streams while other streams have data.
const BULK_TURN: u8 = 5;

impl ControlQueue {
    pub fn has_work(&self) -> bool {
        !self.settings_sent
            || self.close.is_some()
            || !self.pongs.is_empty()
            || !self.control.is_empty()
            || !self.urgent.is_empty()
            || !self.normal.is_empty()
            || !self.bulk.is_empty()
    }

    pub fn control_len(&self) -> usize {
        self.control.len()
    }

    pub fn push_open(&mut self, id: u32, credit: u32, header: Bytes) {
        self.control.push_back(Control::Open { id, credit });
        self.headers.push_back(header);
    }

    pub fn push_reset(&mut self, id: u32, code: ResetCode) {
        self.control.push_back(Control::Reset { id, code });
    }

    pub fn push_stop(&mut self, id: u32, code: ResetCode) {
        self.control.push_back(Control::Stop { id, code });
    }

    pub fn push_credit(&mut self, id: u32) {
        self.control.push_back(Control::Credit { id });
    }

    pub fn push_pong(&mut self, number: u64) {
        if self.pongs.len() >= PONGS_MAX {
            self.pongs.pop_front();
        }
        self.pongs.push_back(number);
    }

    pub fn push_ready(&mut self, id: u32, class: StreamPriority) {
        self.line(class).push_back(id);
    }

    fn line(&mut self, class: StreamPriority) -> &mut VecDeque<u32> {
        match class {
            StreamPriority::Urgent => &mut self.urgent,
            StreamPriority::Normal => &mut self.normal,
            StreamPriority::Bulk => &mut self.bulk,
        }
    }

    pub fn push_close(&mut self, reason: &CloseReason) {
        self.close = Some((reason.code.into(), reason.text_for_wire().to_owned()));
    }

    pub fn forget_all_but_close(&mut self) {
        *self = ControlQueue { close: self.close.take(), settings_sent: true, ..ControlQueue::default() };
    }

    // Releases memory: an idle link holds only a few words.
    fn rest(&mut self) {
        for line in [&mut self.urgent, &mut self.normal, &mut self.bulk] {
            if line.is_empty() && line.capacity() > 16 {
                *line = VecDeque::new();
            }
        }
        if self.control.is_empty() && self.control.capacity() > 16 {
            (self.control, self.headers) = (VecDeque::new(), VecDeque::new());
        }
    }

    /// Returns the class of streams that sends next, when no control frame is queued.
    fn next_turn(&mut self) -> Option<StreamPriority> {
        self.turn = (self.turn + 1) % BULK_TURN;
        match (self.normal.is_empty(), self.bulk.is_empty()) {
            (true, true) => None,
            (true, false) => Some(StreamPriority::Bulk),
            (false, false) if self.turn == 0 => Some(StreamPriority::Bulk),
            (false, _) => Some(StreamPriority::Normal),
        }
    }
}

impl Mux {
    /// Adds frames to `batch` until it holds about `bytes_max` or nothing is left to send.
    pub fn fill(&mut self, batch: &mut WriteBatch, bytes_max: usize, now: Instant) {
        let before = batch.len();
        if let Some((code, text)) = self.outgoing.close.take() {
            batch.push_frame(Frame::Close { code, text: text.as_bytes() });
        }
        if self.ended.is_none() && (self.outgoing.has_work() || self.ping.wanted) {
            self.fill_small(batch, bytes_max, now);
            self.fill_streams(batch, bytes_max);
            self.outgoing.rest();
        }
        self.stats.sent_bytes += (batch.len() - before) as u64;
    }

    fn fill_small(&mut self, batch: &mut WriteBatch, bytes_max: usize, now: Instant) {
        if !self.outgoing.settings_sent {
            self.outgoing.settings_sent = true;
            batch.push_frame(Frame::Settings(LinkSettings {
                streams_max: self.bounds.streams_max,
                initial_credit: self.bounds.initial_credit,
            }));
        }
        while let Some(number) = self.outgoing.pongs.pop_front() {
            batch.push_frame(Frame::Pong(number));
        }
        if let Some(number) = self.ping.next_due(now) {
            batch.push_frame(Frame::Ping(number));
        }
        while batch.len() < bytes_max {
            let Some(control) = self.outgoing.control.pop_front() else { break };
            self.push_control(batch, control);
        }
    }

    fn push_control(&mut self, batch: &mut WriteBatch, control: Control) {
        batch.push_frame(match control {
            Control::Open { id, credit } => {
                let header = self.outgoing.headers.pop_front().unwrap_or_default();
                return batch.push_frame(Frame::Open { stream: id, credit, header: &header });
            }
            Control::Reset { id, code } => Frame::Reset { stream: id, code: code.into() },
            Control::Stop { id, code } => Frame::Stop { stream: id, code: code.into() },
            Control::Credit { id } => {
                let Some(stream) = self.streams.get_mut(&id) else { return };
                let bytes = std::mem::take(&mut stream.recv.owed);
                Frame::Credit { stream: id, bytes }
            }
        });
    }

    fn fill_streams(&mut self, batch: &mut WriteBatch, bytes_max: usize) {
        while batch.len() < bytes_max {
            if let Some(id) = self.outgoing.urgent.pop_front() {
                self.push_stream(batch, id);
                continue;
            }
            let Some(class) = self.outgoing.next_turn() else { return };
            if let Some(id) = self.outgoing.line(class).pop_front() {
                self.push_stream(batch, id);
            }
        }
    }

    /// Adds one frame of a stream. If the stream has more data, it goes to the end of the queue.
    fn push_stream(&mut self, batch: &mut WriteBatch, id: u32) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let send = &mut stream.send;
        send.listed = false;
        if !send.is_ready() {
            return;
        }
        let length =
            send.queue.len().min(PAYLOAD_BYTES_MAX).min(usize::try_from(send.credit).unwrap_or(usize::MAX));
        let fin = send.state == SendState::Finishing && length == send.queue.len();
        batch.push_data(id, &mut send.queue, length, fin);
        send.credit -= length as u64;
        self.waiting -= length;
        if fin {
            send.state = SendState::Finished;
            return self.release_if_over(id);
        }
        self.wake_writer(id);
        self.list(id);
    }

    /// Wakes a waiting writer once enough space is free.
    pub(super) fn wake_writer(&mut self, id: u32) {
        let link_room = self.link_room();
        let Some(stream) = self.streams.get_mut(&id) else { return };
        let send = &mut stream.send;
        if send.writer.is_some() && send.room(link_room) >= send.queue.len().min(PAYLOAD_BYTES_MAX) {
            self.wakes.extend(send.writer.take());
        }
    }
}
