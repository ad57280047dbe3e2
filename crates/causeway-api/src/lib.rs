//! The words of Causeway: kinds, metadata, selectors, watch events and Status.
//!
//! Values in, values out. No clock, no socket, no file, no async runtime.
