//! The edge's half: applies updates, and returns what to persist and what to reply.
//!
//! An update is in force as soon as it is applied, whatever the disk reports: a change that takes access away
//! must not wait for it. The acknowledgement tells whether it is also on disk.

use std::sync::Arc;

use crate::generation::NetmapStamp;
use crate::netmap::{ApplyError, Netmap};
use crate::update::NetmapUpdateData;

/// One per edge; lives across sessions.
#[derive(Clone, Default, Debug)]
pub struct NetmapReceiver {
    held: Option<Arc<Netmap>>,
    /// Reason for which the held netmap is not on disk.
    not_persisted: Option<String>,
}

/// Action after an update.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ReceiverStep {
    /// Put it in force, write it to disk, then call `handle_persisted`.
    Persist(Arc<Netmap>),
    Reply(NetmapReply),
}

/// Reply to the cloud.
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
    /// The refused netmap; `None` when it could not be decoded.
    pub offered: Option<NetmapStamp>,
    pub reason: String,
    /// The whole netmap would be accepted.
    pub want_whole: bool,
}

impl NetmapReceiver {
    /// `held` is the netmap found on disk.
    pub fn new(held: Option<Arc<Netmap>>) -> NetmapReceiver {
        NetmapReceiver { held, not_persisted: None }
    }

    pub fn held(&self) -> Option<&Arc<Netmap>> {
        self.held.as_ref()
    }

    /// Handles an encoded update.
    pub fn handle_bytes(&self, encoded: &[u8]) -> ReceiverStep {
        match NetmapUpdateData::decode(encoded) {
            Ok(update) => self.handle_update(&update),
            Err(error) => {
                // A delta may be malformed where the whole netmap is not; the sender stops when a whole one
                // is malformed.
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

    /// The netmap is in force, and the write has finished. Called again for the same netmap after another
    /// attempt.
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
