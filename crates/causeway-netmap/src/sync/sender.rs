//! The cloud's half, for one session of one gateway: decides the next update to send.
//!
//! At most one update is in flight. A target that changes meanwhile replaces the previous one: the next
//! update is the difference to the newest. A gateway is never offered a generation that is not above the one
//! it holds; a replica that lags behind waits.

use std::sync::Arc;
use std::time::Duration;

use crate::generation::{Generation, NetmapStamp};
use crate::netmap::Netmap;
use crate::update::NetmapUpdateData;

/// First pause before a gateway that cannot persist is asked again; doubles each time.
const PAUSE_FIRST: Duration = Duration::from_secs(5);
/// A disk that was cleared is noticed within a minute.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The netmap that a gateway should hold, as this replica sees it.
#[derive(Clone, Debug)]
pub struct TargetNetmap {
    pub netmap: Arc<Netmap>,
    /// Generation up to which this replica has followed the store. At least the netmap's generation, at which
    /// this content first appeared.
    pub seen: Generation,
}

/// State of sending in one session.
#[derive(Clone, Debug)]
pub struct NetmapSendState {
    held: Held,
    target: Option<TargetNetmap>,
    under_way: Option<UnderWay>,
    pause: Option<Pause>,
    refusals: u32,
}

#[derive(Clone, Debug)]
enum Held {
    Nothing,
    /// Only the stamp is known, not the content.
    Named(NetmapStamp),
    Known(Arc<Netmap>),
}

#[derive(Clone, Debug)]
struct UnderWay {
    netmap: Arc<Netmap>,
    is_whole: bool,
}

#[derive(Clone, Debug)]
struct Pause {
    until: Duration,
    reason: String,
}

/// Sync state, for status and people.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NetmapSyncState {
    /// No netmap has been compiled for this gateway yet.
    NoTarget,
    /// The gateway holds the target.
    InForce(NetmapStamp),
    /// An update is in flight, or about to be.
    Sending { held: Option<NetmapStamp> },
    /// The gateway refused it; it will be offered again.
    Refused { held: Option<NetmapStamp>, reason: String },
    /// The gateway holds a newer netmap than this replica has seen.
    Behind { held: NetmapStamp, seen: Generation },
}

impl NetmapSendState {
    /// Starts a session. `held` is the stamp that the gateway reported; `known` are netmaps that it may be,
    /// for example the last acknowledged one.
    pub fn new(held: Option<NetmapStamp>, known: impl IntoIterator<Item = Arc<Netmap>>) -> NetmapSendState {
        let known = known.into_iter().find(|netmap| held.is_some_and(|held| held.digest == netmap.digest()));
        let held = match (held, known) {
            (None, _) => Held::Nothing,
            (Some(stamp), None) => Held::Named(stamp),
            (Some(stamp), Some(netmap)) => Held::of(netmap, stamp),
        };
        NetmapSendState { held, target: None, under_way: None, pause: None, refusals: 0 }
    }

    /// There is a newer netmap, or the store has been followed further.
    pub fn handle_target(&mut self, target: TargetNetmap) {
        debug_assert!(target.seen >= target.netmap.generation(), "content appears when it is seen");
        if let Held::Named(stamp) = self.held
            && stamp.digest == target.netmap.digest()
        {
            self.held = Held::of(target.netmap.clone(), stamp);
        }
        self.target = Some(target);
    }

    /// The gateway has it on disk. Returns the netmap it holds now; `None` if no such update was in flight.
    pub fn handle_acknowledged(&mut self, stamp: NetmapStamp) -> Option<Arc<Netmap>> {
        let under_way = self.under_way.take_if(|under_way| under_way.netmap.stamp() == stamp)?;
        self.held = Held::Known(under_way.netmap.clone());
        self.pause = None;
        self.refusals = 0;
        Some(under_way.netmap)
    }

    /// The gateway refused the update in flight.
    pub fn handle_refused(&mut self, want_whole: bool, reason: &str, now: Duration) {
        let Some(under_way) = self.under_way.take() else { return };
        if let (true, Held::Known(netmap)) = (want_whole, &self.held) {
            self.held = Held::Named(netmap.stamp());
        }
        if want_whole && !under_way.is_whole {
            return;
        }
        let pause = PAUSE_FIRST.saturating_mul(1 << self.refusals.min(8)).min(PAUSE_MAX);
        self.refusals += 1;
        self.pause = Some(Pause { until: now + pause, reason: reason.to_owned() });
    }

    /// Returns the update to send now, if any. It counts as in flight.
    pub fn next_update(&mut self, now: Duration) -> Option<NetmapUpdateData> {
        if self.under_way.is_some() || self.pause.as_ref().is_some_and(|pause| now < pause.until) {
            return None;
        }
        let netmap = self.due()?;
        let base = match &self.held {
            Held::Known(base) => Some(&**base),
            Held::Named(_) | Held::Nothing => None,
        };
        let update = netmap.update_from(base);
        self.under_way = Some(UnderWay { netmap, is_whole: update.is_whole() });
        Some(update)
    }

    /// Returns when `next_update` may return an update without any event.
    pub fn wake_at(&self) -> Option<Duration> {
        self.pause.as_ref().filter(|_| self.under_way.is_none()).map(|pause| pause.until)
    }

    /// Returns the stamp that the gateway holds, as far as known.
    pub fn held(&self) -> Option<NetmapStamp> {
        match &self.held {
            Held::Nothing => None,
            Held::Named(stamp) => Some(*stamp),
            Held::Known(netmap) => Some(netmap.stamp()),
        }
    }

    pub fn standing(&self) -> NetmapSyncState {
        let held = self.held();
        match (&self.target, held, &self.pause) {
            (None, ..) => NetmapSyncState::NoTarget,
            (_, _, Some(pause)) => NetmapSyncState::Refused { held, reason: pause.reason.clone() },
            (Some(target), Some(stamp), None) if self.due().is_none() => {
                match stamp.digest == target.netmap.digest() {
                    true => NetmapSyncState::InForce(stamp),
                    false => NetmapSyncState::Behind { held: stamp, seen: target.seen },
                }
            }
            _ => NetmapSyncState::Sending { held },
        }
    }

    /// Returns the netmap that the gateway should hold and does not, under a generation above the one it
    /// holds.
    fn due(&self) -> Option<Arc<Netmap>> {
        let target = self.target.as_ref()?;
        let Some(held) = self.held() else { return Some(target.netmap.clone()) };
        let offered = target.netmap.stamp();
        // The same content under a new epoch is sent once more, so that the gateway refuses a cloud of the
        // old epoch from then on.
        if held.digest == target.netmap.digest() && held.generation.epoch >= target.seen.epoch {
            None
        } else if offered.order() > held.order() {
            Some(target.netmap.clone())
        } else if target.seen > held.generation {
            // This content is older than the one the gateway holds, and still the newer state: it has come
            // back since.
            Some(Arc::new(target.netmap.at(target.seen)))
        } else {
            None
        }
    }
}

impl Held {
    /// The same content may have been confirmed under another generation; the gateway's report counts.
    fn of(netmap: Arc<Netmap>, stamp: NetmapStamp) -> Held {
        match netmap.stamp() == stamp {
            true => Held::Known(netmap),
            false => Held::Known(Arc::new(netmap.at(stamp.generation).at_turn(stamp.turn))),
        }
    }
}
