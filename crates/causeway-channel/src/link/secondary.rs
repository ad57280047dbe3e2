//! The secondary link of a session: TLS over TCP beside a primary link over QUIC.
//!
//! The slot belongs to the primary link and is shared by all its handles. New streams take the attached link; a retired
//! link carries the streams it has until they end. Closing the primary link closes every link of the slot, and a link that
//! is attached afterwards is closed at once, so nothing outlives the session. Which streams should use it, and when it is
//! opened, is decided by `session::SecondaryPolicy` at the edge.

use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::{CloseCode, CloseReason, Link, LinkStats};

/// Links that may still carry streams after another one has taken their place. One more closes the oldest.
const RETIRED_MAX: usize = 1;

#[derive(Default)]
pub(super) struct SecondarySlot {
    state: Mutex<SlotState>,
    /// Signalled when a stream begins that a secondary link could carry.
    activity: Notify,
}

#[derive(Default)]
struct SlotState {
    attached: Option<Link>,
    retired: Vec<Link>,
    /// The totals of links that have ended.
    ended: LinkStats,
    /// The reason with which the primary link was closed.
    closed: Option<CloseReason>,
}

impl SecondarySlot {
    /// Makes `link` the one that new streams take. The one before is retired.
    pub fn attach(&self, link: Link) {
        let mut state = self.state();
        if let Some(reason) = &state.closed {
            link.close(reason.clone());
            return;
        }
        state.retire();
        state.attached = Some(link);
    }

    /// No new stream takes the attached link; those it carries go on. It closes when the last of them has ended.
    pub fn retire(&self) {
        self.state().retire();
    }

    pub fn attached(&self) -> Option<Link> {
        self.state().attached.clone()
    }

    /// Forgets a link that has ended.
    pub fn remove(&self, ended: &Link) {
        let mut state = self.state();
        let is_attached = state.attached.as_ref().is_some_and(|link| link.is_same(ended));
        let removed = match is_attached {
            true => state.attached.take(),
            false => {
                let position = state.retired.iter().position(|link| link.is_same(ended));
                position.map(|position| state.retired.swap_remove(position))
            }
        };
        if let Some(link) = removed {
            state.count_ended(&link);
        }
    }

    pub fn close(&self, reason: &CloseReason) {
        let mut state = self.state();
        state.closed.get_or_insert_with(|| reason.clone());
        let links: Vec<Link> = state.attached.take().into_iter().chain(state.retired.drain(..)).collect();
        for link in links {
            link.close(reason.clone());
            state.count_ended(&link);
        }
    }

    /// The totals over all secondary links, past and present.
    pub fn stats(&self) -> LinkStats {
        let state = self.state();
        state.attached.iter().chain(&state.retired).fold(state.ended, |sum, link| sum.plus(&link.figures()))
    }

    pub fn home(&self) -> Option<Handle> {
        self.state().attached.as_ref().and_then(Link::home)
    }

    pub fn note_stream(&self) {
        self.activity.notify_one();
    }

    pub async fn activity(&self) {
        self.activity.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotState {
    fn retire(&mut self) {
        let Some(link) = self.attached.take() else { return };
        self.retired.push(link);
        if self.retired.len() > RETIRED_MAX {
            let oldest = self.retired.remove(0);
            oldest.close(CloseReason::new(CloseCode::Superseded, "newer secondary links took over"));
            self.count_ended(&oldest);
        }
    }

    fn count_ended(&mut self, link: &Link) {
        let stats = LinkStats { streams_open: 0, ..link.figures() };
        self.ended = self.ended.plus(&stats);
    }
}
