//! Nothing but tests: edges with a disk against a cloud's identity, in one process over loopback.
