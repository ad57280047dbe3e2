//! Watch history and fan-out for any resource.
//!
//! `dispatch` reads the changes of a collection from a `source` once and puts each into the collection's `ring` as a
//! `frame`, which is encoded once for all watchers. A `stream` is one watcher: the state it begins with, the history it
//! missed (`catch_up`), then the ring. No part waits for a slow watcher.
//! Storage, the form of objects and HTTP are left to the server that implements `WatchSource` and `EventEncoder`.
#![cfg_attr(test, allow(clippy::unwrap_used, clippy::panic))]

pub mod frame;
pub mod ring;
pub mod source;

mod catch_up;
mod dispatch;
mod stream;

#[cfg(test)]
mod memory_source;

pub use dispatch::CollectionReaders;
pub use frame::WatchFrame;
pub use source::{ChangeFeed, ChangeSignal, EventEncoder, ObjectChange, Snapshot, WatchFormat, WatchSource};
pub use stream::{WatchContext, WatchEnds, WatchObserver, WatchStream, random_fraction};
