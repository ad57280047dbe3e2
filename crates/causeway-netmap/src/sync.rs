//! The two halves that keep an edge's netmap equal to the cloud's.
//!
//! Level-triggered: the sender knows the newest netmap and what the gateway holds, and sends the difference, one at a time, so that
//! nothing queues. The receiver persists before it acknowledges. Both are pure; time is an argument. Sessions may break anywhere:
//! the next one begins with what the gateway holds, which is all the memory there is.

mod receiver;
mod sender;

pub use receiver::{NetmapReceiver, NetmapRefusal, NetmapReply, ReceiverStep};
pub use sender::{NetmapSendState, NetmapSyncState, TargetNetmap};

#[cfg(test)]
mod tests;
