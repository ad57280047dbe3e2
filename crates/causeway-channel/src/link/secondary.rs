//! The secondary link of a session: TLS over TCP beside a primary link over QUIC.
//!
//! The slot belongs to the primary link and is shared by all its handles. New streams take the attached link; a retired
//! link carries the streams it has until they end. Closing the primary link closes every link of the slot, and a link that
//! is attached afterwards is closed at once, so nothing outlives the session. `session::SecondaryPolicy` at the
//! edge decides when it is opened and which streams use it.

use std::sync::{Mutex, MutexGuard};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::{CloseCode, CloseReason, Link, LinkStats};
use causeway_api::sync::MutexExt;

/// Links that may still carry streams after another one has taken their place. One more closes the oldest.
const RETIRED_MAX: usize = 1;

/// A link as the slot sees it.
pub trait SlotLink: Clone {
    fn close(&self, reason: CloseReason);
    fn stats(&self) -> LinkStats;
    fn is_same(&self, other: &Self) -> bool;
}

impl SlotLink for Link {
    fn close(&self, reason: CloseReason) {
        Link::close(self, reason);
    }

    fn stats(&self) -> LinkStats {
        self.stats()
    }

    fn is_same(&self, other: &Link) -> bool {
        Link::is_same(self, other)
    }
}

#[derive(Default)]
pub(super) struct SecondarySlot {
    state: Mutex<SlotState<Link>>,
    /// Signalled when a stream begins that a secondary link could carry.
    activity: Notify,
}

impl SecondarySlot {
    /// See `SlotState`.
    pub fn attach(&self, link: Link) {
        self.state().attach(link);
    }

    pub fn retire(&self) {
        self.state().retire();
    }

    pub fn attached(&self) -> Option<Link> {
        self.state().attached().cloned()
    }

    pub fn remove(&self, ended: &Link) {
        self.state().remove(ended);
    }

    pub fn close(&self, reason: &CloseReason) {
        self.state().close(reason);
    }

    pub fn stats(&self) -> LinkStats {
        self.state().stats()
    }

    pub fn runtime(&self) -> Option<Handle> {
        self.state().attached().and_then(Link::runtime)
    }

    pub fn note_stream(&self) {
        self.activity.notify_one();
    }

    pub async fn activity(&self) {
        self.activity.notified().await;
    }

    fn state(&self) -> MutexGuard<'_, SlotState<Link>> {
        self.state.lock_ignoring_poison()
    }
}

/// The secondary links of one session at one end. Generic, so that the simulation runs it without sockets.
pub struct SlotState<L> {
    attached: Option<L>,
    retired: Vec<L>,
    /// The totals of links that have ended.
    ended: LinkStats,
    /// The reason with which the primary link was closed.
    closed: Option<CloseReason>,
}

impl<L> Default for SlotState<L> {
    fn default() -> SlotState<L> {
        SlotState { attached: None, retired: Vec::new(), ended: LinkStats::default(), closed: None }
    }
}

impl<L: SlotLink> SlotState<L> {
    /// Makes `link` the one that new streams take. The one before is retired.
    pub fn attach(&mut self, link: L) {
        if let Some(reason) = &self.closed {
            link.close(reason.clone());
            return;
        }
        self.retire();
        self.attached = Some(link);
    }

    /// The link that new streams take.
    pub fn attached(&self) -> Option<&L> {
        self.attached.as_ref()
    }

    /// All links that carry streams.
    pub fn links(&self) -> impl Iterator<Item = &L> {
        self.attached.iter().chain(&self.retired)
    }

    /// No new stream takes the attached link; those it carries go on. It closes when the last of them has ended.
    pub fn retire(&mut self) {
        let Some(link) = self.attached.take() else { return };
        self.retired.push(link);
        if self.retired.len() > RETIRED_MAX {
            let oldest = self.retired.remove(0);
            oldest.close(CloseReason::new(CloseCode::Superseded, "newer secondary links took over"));
            self.count_ended(&oldest);
        }
    }

    /// Forgets a link that has ended.
    pub fn remove(&mut self, ended: &L) {
        let is_attached = self.attached.as_ref().is_some_and(|link| link.is_same(ended));
        let removed = match is_attached {
            true => self.attached.take(),
            false => {
                let position = self.retired.iter().position(|link| link.is_same(ended));
                position.map(|position| self.retired.swap_remove(position))
            }
        };
        if let Some(link) = removed {
            self.count_ended(&link);
        }
    }

    /// The primary link was closed: every secondary link is closed for the same reason.
    pub fn close(&mut self, reason: &CloseReason) {
        self.closed.get_or_insert_with(|| reason.clone());
        let links: Vec<L> = self.attached.take().into_iter().chain(self.retired.drain(..)).collect();
        for link in links {
            link.close(reason.clone());
            self.count_ended(&link);
        }
    }

    /// The totals over all secondary links, past and present.
    pub fn stats(&self) -> LinkStats {
        self.links().fold(self.ended, |sum, link| sum.plus(&link.stats()))
    }

    fn count_ended(&mut self, link: &L) {
        let stats = LinkStats { streams_open: 0, ..link.stats() };
        self.ended = self.ended.plus(&stats);
    }
}
