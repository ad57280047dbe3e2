//! Admits, stores and lists objects; the one way to them, for HTTP and for the cloud's reconcilers alike.

/// Objects in front of the store.
pub struct Registry {}
