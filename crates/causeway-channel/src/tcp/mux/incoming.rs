//! Handles the frames of the peer. Every protocol rule is checked here, and a violation closes the link.

use std::time::Instant;

use bytes::Bytes;

use super::stream::{RecvState, SendState};
use super::{ACCEPTED_BYTES_MAX, Mux, StreamPriority};
use crate::link::{CloseCode, CloseReason, ClosedBy, LinkClosed, LinkSide, ResetCode};
use crate::tcp::frame::{DataHead, Frame, HEAD_BYTES, LinkSettings, parse};
use crate::tcp::queue::ByteQueue;

/// More credit than any stream will ever use.
const CREDIT_MAX: u64 = 1 << 48;

impl Mux {
    /// Handles complete frames at the front of `bytes`. Returns the number of bytes consumed.
    pub fn handle_bytes(&mut self, bytes: &[u8], now: Instant) -> usize {
        self.last_heard = now;
        let mut used = 0;
        while self.ended.is_none() {
            match parse(&bytes[used..]) {
                Ok(None) => {
                    self.stats.received_bytes += used as u64;
                    return used;
                }
                Ok(Some((frame, length))) => {
                    used += length;
                    if let Err(fault) = self.handle_frame(frame, now) {
                        self.close(CloseReason::new(CloseCode::Malformed, fault));
                    } else if self.outgoing.control_len() > self.bounds.control_max() {
                        let text = "more answers wait than this peer may cause: it does not read them";
                        self.close(CloseReason::new(CloseCode::Limit, text));
                    }
                }
                Err(error) => self.close(CloseReason::new(CloseCode::Malformed, error.to_string())),
            }
        }
        // Bytes after the end of the link are ignored.
        bytes.len()
    }

    /// Handles a data frame whose payload was read separately.
    pub fn handle_payload(&mut self, head: DataHead, payload: Bytes, now: Instant) {
        self.last_heard = now;
        if self.ended.is_some() {
            return;
        }
        self.stats.received_bytes += (HEAD_BYTES + payload.len()) as u64;
        let handled = self.handle_data(head.stream, payload.len(), head.fin, |queue| queue.push(payload));
        if let Err(fault) = handled {
            self.close(CloseReason::new(CloseCode::Malformed, fault));
        }
    }

    fn handle_frame(&mut self, frame: Frame<'_>, now: Instant) -> Result<(), &'static str> {
        match frame {
            Frame::Settings(settings) => self.handle_settings(settings),
            Frame::Open { stream, credit, header } => self.handle_open(stream, credit, header),
            Frame::Data { stream, bytes, fin } => {
                self.handle_data(stream, bytes.len(), fin, |queue| queue.push_slice(bytes))
            }
            Frame::Reset { stream, code } => self.handle_reset(stream, code.into()),
            Frame::Stop { stream, code } => self.handle_stop(stream, code.into()),
            Frame::Credit { stream, bytes } => self.handle_credit(stream, bytes),
            Frame::Datagram(_) => {
                self.stats.datagrams_dropped += 1;
                Ok(())
            }
            Frame::Ping(number) => {
                self.outgoing.push_pong(number);
                Ok(())
            }
            Frame::Pong(number) => {
                self.signals.pong |= self.ping.handle_pong(number, now);
                Ok(())
            }
            Frame::Close { code, text } => {
                // The text goes into logs, so control characters are removed.
                let text =
                    String::from_utf8_lossy(text).chars().filter(|c| !c.is_control()).collect::<String>();
                self.end(LinkClosed::new(ClosedBy::Peer, code.into(), text));
                Ok(())
            }
            Frame::Unknown => Ok(()),
        }
    }

    fn handle_settings(&mut self, settings: LinkSettings) -> Result<(), &'static str> {
        if self.settings_heard {
            return Err("settings for the second time");
        }
        self.settings_heard = true;
        let floor = LinkSettings::FLOOR;
        self.peer = LinkSettings {
            streams_max: settings.streams_max.max(floor.streams_max),
            initial_credit: settings.initial_credit.max(floor.initial_credit),
        };
        let more = u64::from(self.peer.initial_credit - floor.initial_credit);
        let own: Vec<u32> = self.streams.iter().filter(|(_, stream)| stream.own).map(|(id, _)| *id).collect();
        for id in own {
            self.add_credit(id, more);
        }
        self.signals.stream_credit = true;
        Ok(())
    }

    fn handle_open(&mut self, id: u32, credit: u32, header: &[u8]) -> Result<(), &'static str> {
        let parity = if self.side == LinkSide::Dialled { 0 } else { 1 };
        if id == 0 || id % 2 != parity {
            return Err("a stream with a number of the other end");
        }
        if self.streams.contains_key(&id) {
            return Err("a stream opened twice");
        }
        if self.peer_open >= self.bounds.streams_max {
            return Err("more streams than allowed");
        }
        if let Some(left) = &mut self.before_admission {
            *left = left.checked_sub(1).ok_or("a second stream before the welcome")?;
        }
        // A stream counts until it is dropped here, whatever the peer does with it: opening and resetting
        // does not evade the limit.
        if self.peer_held >= self.bounds.held_max() || self.accepted_bytes + header.len() > ACCEPTED_BYTES_MAX
        {
            // No state is kept for it. Later frames for it are ignored.
            self.stats.streams_refused += 1;
            self.outgoing.push_reset(id, ResetCode::Limit);
            self.outgoing.push_stop(id, ResetCode::Limit);
            return Ok(());
        }
        self.peer_open += 1;
        self.accepted_bytes += header.len();
        self.insert(id, false, StreamPriority::Normal, credit, self.bounds.initial_credit);
        self.accepted.push_back((id, Bytes::copy_from_slice(header)));
        self.signals.accepted = true;
        Ok(())
    }

    // Frames for unknown streams are ignored: they were in flight when this end dropped the stream.

    fn handle_data(
        &mut self,
        id: u32,
        length: usize,
        fin: bool,
        push: impl FnOnce(&mut ByteQueue),
    ) -> Result<(), &'static str> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let recv = &mut stream.recv;
        if recv.state != RecvState::Open {
            return Err("data after the end of a stream");
        }
        let before = recv.committed();
        recv.outstanding =
            recv.outstanding.checked_sub(length as u64).ok_or("more data than credit was given")?;
        let has_room = match &mut self.share {
            Some(_) if recv.stopped.is_some() => true,
            // The control stream is always read, and must not end because of other streams.
            Some(share) if stream.class == StreamPriority::Urgent => {
                share.take_always(length as u64);
                true
            }
            Some(share) => share.take(length as u64),
            None => true,
        };
        if recv.stopped.is_none() && has_room {
            push(&mut recv.queue);
            self.wakes.extend(recv.reader.take());
        }
        if fin {
            recv.state = RecvState::Finished;
        }
        self.committed = self.committed - before + recv.committed();
        if !has_room {
            self.cut(id);
        }
        if fin {
            self.release_if_over(id);
        }
        Ok(())
    }

    /// Ends a stream for whose bytes the budget of the peer has no room, at both ends. Its unread bytes are dropped.
    fn cut(&mut self, id: u32) {
        self.stats.streams_refused += 1;
        self.stop(id, ResetCode::Limit);
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.recv.is_cut = true;
            self.wakes.extend(stream.recv.reader.take());
        }
        self.reset(id, ResetCode::Limit);
    }

    fn handle_reset(&mut self, id: u32, code: ResetCode) -> Result<(), &'static str> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let recv = &mut stream.recv;
        if recv.state != RecvState::Open {
            return Err("a reset after the end of a stream");
        }
        self.committed -= recv.committed();
        recv.state = RecvState::Reset(code);
        let unread = recv.queue.len();
        recv.queue.clear();
        self.wakes.extend(recv.reader.take());
        self.give_back(unread);
        self.release_if_over(id);
        Ok(())
    }

    fn handle_stop(&mut self, id: u32, code: ResetCode) -> Result<(), &'static str> {
        let Some(stream) = self.streams.get_mut(&id) else { return Ok(()) };
        let send = &mut stream.send;
        // A stop for a direction that has already ended has no effect.
        if send.state.is_over() {
            return Ok(());
        }
        send.stopped = Some(code);
        self.wakes.extend(send.writer.take());
        self.wakes.extend(send.watcher.take());
        debug_assert!(matches!(send.state, SendState::Open | SendState::Finishing));
        self.reset(id, code);
        Ok(())
    }

    fn handle_credit(&mut self, id: u32, bytes: u32) -> Result<(), &'static str> {
        self.add_credit(id, u64::from(bytes));
        Ok(())
    }

    fn add_credit(&mut self, id: u32, bytes: u64) {
        let Some(stream) = self.streams.get_mut(&id) else { return };
        stream.send.credit = (stream.send.credit + bytes).min(CREDIT_MAX);
        self.wake_writer(id);
        self.list(id);
    }
}
