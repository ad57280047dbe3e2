//! Links as a transport gives them: each direction in order, nothing twice; but late, cut, or silent for as long as the path is.
//!
//! An end that is closed tells the other, if the path lets it. A process that dies sends nothing, or the path answers for it.

use std::collections::VecDeque;
use std::time::Instant;

use bytes::Bytes;
use causeway_channel::link::CloseCode;
use causeway_channel::session::LinkId;
use causeway_netmap::NetmapStamp;

/// A link, over all of the history.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Line(pub u64);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Edge,
    Cloud,
}

impl End {
    pub fn other(self) -> End {
        match self {
            End::Edge => End::Cloud,
            End::Cloud => End::Edge,
        }
    }
}

/// A message on a link.
#[derive(Clone, PartialEq, Debug)]
pub enum Word {
    Hello {
        epoch: u64,
        held: Option<NetmapStamp>,
    },
    Welcome,
    Refused {
        current_epoch: u64,
    },
    Ping,
    Pong,
    Netmap(Bytes),
    Acknowledged(NetmapStamp),
    /// In force, and not on disk.
    InForce(NetmapStamp),
    NotTaken {
        want_whole: bool,
    },
    Close(CloseCode),
}

pub struct Link {
    pub edge: usize,
    /// The process of the edge that dialled it.
    pub edge_life: u64,
    pub id: LinkId,
    pub cloud: usize,
    pub cloud_life: u64,
    /// False: that end has closed it, or knows that it is gone.
    pub edge_open: bool,
    pub cloud_open: bool,
    /// The number of the session at the cloud, once there is one.
    pub session: Option<u64>,
    /// On the way to each end, with the earliest moment of arrival. In order.
    pub to_edge: VecDeque<(Instant, Word)>,
    pub to_cloud: VecDeque<(Instant, Word)>,
    pub cloud_heard: Instant,
}

impl Link {
    pub fn is_open_at(&self, end: End) -> bool {
        match end {
            End::Edge => self.edge_open,
            End::Cloud => self.cloud_open,
        }
    }

    pub fn shut(&mut self, end: End) {
        match end {
            End::Edge => self.edge_open = false,
            End::Cloud => self.cloud_open = false,
        }
    }

    pub fn queue(&mut self, to: End) -> &mut VecDeque<(Instant, Word)> {
        match to {
            End::Edge => &mut self.to_edge,
            End::Cloud => &mut self.to_cloud,
        }
    }
}
