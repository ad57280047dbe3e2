//! One link of the simulation: two queues of messages, and what each end thinks of it.
//!
//! Within a link messages keep their order, as streams do; what loss and reordering of packets leave of that is delay.
//! A link never tells an end that the other is gone, unless a close gets through.

use std::collections::VecDeque;
use std::time::Instant;

use causeway_channel::link::{CloseCode, Transport};
use causeway_channel::session::LinkId;
use causeway_channel::wire::control::SessionRefusedCode;
use causeway_netmap::{NetmapStamp, NetmapUpdateData};

/// A message on a link.
#[derive(Debug, Clone)]
pub enum Word {
    Hello { epoch: u64, held: Option<NetmapStamp> },
    Welcome,
    Refused { code: SessionRefusedCode, current_epoch: u64 },
    Ping,
    Pong,
    Netmap(NetmapUpdateData),
    Taken(NetmapStamp),
    NotTaken { want_whole: bool, reason: String },
    Drain,
    Close(CloseCode),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    Edge,
    Cloud,
}

#[derive(Debug)]
pub struct Link {
    pub edge: usize,
    /// The edge's own number for it.
    pub id: LinkId,
    /// The life of the edge that dialled it; a restarted one knows nothing of it.
    pub edge_life: u64,
    pub cloud_life: u64,
    pub transport: Transport,
    pub to_edge: VecDeque<Word>,
    pub to_cloud: VecDeque<Word>,
    pub is_open_at_edge: bool,
    pub is_open_at_cloud: bool,
    /// When each end last heard the other.
    pub heard_at_edge: Instant,
    pub heard_at_cloud: Instant,
}

impl Link {
    pub fn queue(&mut self, to: End) -> &mut VecDeque<Word> {
        match to {
            End::Edge => &mut self.to_edge,
            End::Cloud => &mut self.to_cloud,
        }
    }
}
