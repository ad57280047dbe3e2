//! Rules that hold at every moment of every history, and ways to break them on purpose.
//!
//! A rule that was never seen to fail proves nothing: with one of `Broken`, the simulation must find a violation.

use std::fmt;

use causeway_netmap::{Generation, Netmap, NetmapStamp};

/// A rule that did not hold.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Violation {
    GenerationWentBack {
        edge: usize,
        from: Generation,
        to: Generation,
    },
    AcknowledgedButNotOnDisk {
        edge: usize,
        acknowledged: NetmapStamp,
    },
    LiveSessionLost {
        edge: usize,
    },
    SeveralLiveSessions {
        edge: usize,
    },
    SeveralUpdatesUnderWay {
        edge: usize,
    },
    NotConverged {
        edge: usize,
        why: String,
    },
    /// The history does not end: one end sends messages for ever.
    Endless,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::GenerationWentBack { edge, from, to } => {
                write!(f, "edge {edge}: the generation went back from {from} to {to}")
            }
            Violation::AcknowledgedButNotOnDisk { edge, acknowledged } => {
                write!(f, "edge {edge}: {} was acknowledged and is not on disk", acknowledged.generation)
            }
            Violation::LiveSessionLost { edge } => {
                write!(f, "edge {edge}: its live session was forgotten by the cloud that took it")
            }
            Violation::SeveralLiveSessions { edge } => write!(f, "edge {edge}: has several live sessions"),
            Violation::SeveralUpdatesUnderWay { edge } => {
                write!(f, "edge {edge}: several updates are under way")
            }
            Violation::NotConverged { edge, why } => write!(f, "edge {edge}: did not come to rest: {why}"),
            Violation::Endless => write!(f, "the history does not end"),
        }
    }
}

/// Mistakes that drivers could make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Broken {
    Nothing,
    /// The edge acknowledges first and writes afterwards.
    AcknowledgeBeforeDisk,
    /// The cloud does not ask what the edge holds, and the edge takes whatever it is offered. Either alone does no harm.
    TakeAnyGeneration,
    /// The cloud ends a session by the name of its gateway.
    RemoveByName,
    /// The cloud does not send what changed while an update was under way.
    ForgetNewest,
}

/// Compares the netmap that was on disk with the one that is there now.
pub fn check_disk(edge: usize, before: Option<&Netmap>, after: &Netmap) -> Result<(), Violation> {
    match before {
        Some(before) if before.generation() > after.generation() => {
            Err(Violation::GenerationWentBack { edge, from: before.generation(), to: after.generation() })
        }
        _ => Ok(()),
    }
}
