//! Keeps the copy of one subscription at a site equal to the cluster.
//!
//! One stream of the channel carries one subscription. `wire` has its messages, `frames` puts them on a stream, `digest`
//! compares two sets without sending them, `deletions` gives revisions to deletions that were found by comparison, `delta` makes changes small, `sender` decides at the cloud and `receiver` at the edge. Both are pure: messages
//! go in through `handle`, messages and work come out. Sockets, disk and time are left to their drivers.

pub mod deletions;
pub mod delta;
pub mod digest;
pub mod frames;
pub mod receiver;
pub mod sender;
pub mod wire;

#[cfg(test)]
mod tests;
