//! Watches: one reader of the store per collection, any number of watchers behind it.
//!
//! `hub` reads a collection's changes and puts each into its `ring` as a `frame`, encoded once for everybody. A `stream` is
//! one watcher: the state it begins with, what it missed, and then the ring. Nobody waits for a watcher that is slow.

pub mod frame;

mod catch_up;
mod hub;
mod stream;

pub use frame::WatchFormat;
pub use hub::CollectionReaders;
pub use stream::{WatchContext, WatchEnds, WatchObserver, WatchStream, random_fraction};
