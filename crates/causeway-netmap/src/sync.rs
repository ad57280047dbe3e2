//! The two halves that keep an edge's netmap equal to the cloud's.
//!
//! Level-triggered: the sender knows the newest netmap and the one that the gateway holds, and sends the
//! difference, one at a time, so that no updates queue. The receiver acknowledges after the write to disk.
//! Both are pure; time is an argument. A session may break at any point: the next one begins with the netmap
//! that the gateway holds, which is the only state.

mod receiver;
mod sender;

pub use receiver::{NetmapReceiver, NetmapRefusal, NetmapReply, ReceiverStep};
pub use sender::{NetmapSendState, NetmapSyncState, TargetNetmap};

#[cfg(test)]
mod tests;
