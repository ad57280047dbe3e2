//! The edge's half: takes updates in, says what to persist and what to answer.
//!
//! An update is in force as soon as it is applied, whatever the disk says: a change that takes access away must not wait for it. The
//! acknowledgement says whether it is also on disk.

use std::sync::Arc;

use crate::generation::NetmapStamp;
use crate::netmap::{ApplyError, Netmap};
use crate::update::NetmapUpdateData;

/// One per edge; lives across sessions.
#[derive(Clone, Default, Debug)]
pub struct NetmapReceiver {
    held: Option<Arc<Netmap>>,
    /// Why what is held is not on disk.
    not_persisted: Option<String>,
}

/// What to do about an update.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReceiverStep {
    /// Put it in force, write it to the disk, then call `handle_persisted`.
    Persist(Arc<Netmap>),
    Reply(NetmapReply),
}

/// What the cloud is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NetmapReply {
    /// On disk and in force.
    Acknowledged(NetmapStamp),
    /// In force, and not on disk for this reason. `Acknowledged` follows when it is.
    InForce {
        stamp: NetmapStamp,
        not_persisted: String,
    },
    Refused(NetmapRefusal),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetmapRefusal {
    /// What was refused; none when it could not be read.
    pub offered: Option<NetmapStamp>,
    pub reason: String,
    /// The whole netmap would do.
    pub want_whole: bool,
}

impl NetmapReceiver {
    /// `held`: what was found on the disk.
    pub fn new(held: Option<Arc<Netmap>>) -> NetmapReceiver {
        NetmapReceiver { held, not_persisted: None }
    }

    pub fn held(&self) -> Option<&Arc<Netmap>> {
        self.held.as_ref()
    }

    /// Takes an update as it came over the link.
    pub fn handle_bytes(&self, encoded: &[u8]) -> ReceiverStep {
        match NetmapUpdateData::decode(encoded) {
            Ok(update) => self.handle_update(&update),
            Err(error) => {
                // A change may be malformed where the whole is not; the sender gives up on a whole that is.
                let refusal = NetmapRefusal { offered: None, reason: error.to_string(), want_whole: true };
                ReceiverStep::Reply(NetmapReply::Refused(refusal))
            }
        }
    }

    pub fn handle_update(&self, update: &NetmapUpdateData) -> ReceiverStep {
        let held = self.held.as_deref();
        if held.is_some_and(|held| held.stamp() == update.target) {
            return ReceiverStep::Reply(self.acknowledge(update.target));
        }
        match Netmap::apply(held, update) {
            Ok(netmap) => ReceiverStep::Persist(Arc::new(netmap)),
            Err(error) => {
                let want_whole = matches!(error, ApplyError::WrongBase | ApplyError::DigestMismatch);
                ReceiverStep::Reply(refuse(update.target, error.to_string(), want_whole))
            }
        }
    }

    /// The netmap is in force, and the disk has answered. Called again for the same netmap when it has been tried again.
    pub fn handle_persisted(&mut self, netmap: Arc<Netmap>, written: Result<(), String>) -> NetmapReply {
        let stamp = netmap.stamp();
        self.held = Some(netmap);
        self.not_persisted = written.err();
        self.acknowledge(stamp)
    }

    fn acknowledge(&self, stamp: NetmapStamp) -> NetmapReply {
        match self.not_persisted.clone() {
            None => NetmapReply::Acknowledged(stamp),
            Some(not_persisted) => NetmapReply::InForce { stamp, not_persisted },
        }
    }
}

fn refuse(offered: NetmapStamp, reason: String, want_whole: bool) -> NetmapReply {
    NetmapReply::Refused(NetmapRefusal { offered: Some(offered), reason, want_whole })
}
