//! Keeps bytes under keys, with one revision counter: list at a revision, watch from a revision.
//!
//! Two engines behind one face: SQLite inside the data dir, and etcd. Knows nothing of kinds.
