//! The edge's half: takes updates in, says what to persist and what to answer.
//!
//! What is held is what is on disk: `handle_persisted` makes it so, and only then is it acknowledged.

use std::sync::Arc;

use crate::generation::Stamp;
use crate::netmap::{ApplyError, Netmap};
use crate::update::Update;

/// One per edge; lives across sessions.
#[derive(Clone, Default, Debug)]
pub struct Receiver {
    held: Option<Arc<Netmap>>,
}

/// What to do about an update.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Write it to the disk, then call `handle_persisted`.
    Persist(Arc<Netmap>),
    Reply(Reply),
}

/// What the cloud is told.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// On disk and in force.
    Acknowledged(Stamp),
    Refused(Refusal),
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What was refused; none when it could not be read.
    pub offered: Option<Stamp>,
    pub reason: String,
    /// The whole netmap would do.
    pub want_whole: bool,
}

impl Receiver {
    /// `held`: what was found on the disk.
    pub fn new(held: Option<Arc<Netmap>>) -> Receiver {
        Receiver { held }
    }

    pub fn held(&self) -> Option<&Arc<Netmap>> {
        self.held.as_ref()
    }

    /// Takes an update as it came over the link.
    pub fn handle_bytes(&self, encoded: &[u8]) -> Step {
        match Update::decode(encoded) {
            Ok(update) => self.handle_update(&update),
            Err(error) => {
                // A change may be malformed where the whole is not; the sender gives up on a whole that is.
                let refusal = Refusal { offered: None, reason: error.to_string(), want_whole: true };
                Step::Reply(Reply::Refused(refusal))
            }
        }
    }

    pub fn handle_update(&self, update: &Update) -> Step {
        let held = self.held.as_deref();
        if held.is_some_and(|held| held.stamp() == update.target) {
            return Step::Reply(Reply::Acknowledged(update.target));
        }
        match Netmap::apply(held, update) {
            Ok(netmap) => Step::Persist(Arc::new(netmap)),
            Err(error) => {
                let want_whole = matches!(error, ApplyError::WrongBase | ApplyError::DigestMismatch);
                Step::Reply(refuse(update.target, error.to_string(), want_whole))
            }
        }
    }

    /// The disk has answered. On failure the old netmap goes on.
    pub fn handle_persisted(&mut self, netmap: Arc<Netmap>, written: Result<(), String>) -> Reply {
        let stamp = netmap.stamp();
        match written {
            Ok(()) => {
                self.held = Some(netmap);
                Reply::Acknowledged(stamp)
            }
            Err(reason) => refuse(stamp, reason, false),
        }
    }
}

fn refuse(offered: Stamp, reason: String, want_whole: bool) -> Reply {
    Reply::Refused(Refusal { offered: Some(offered), reason, want_whole })
}
