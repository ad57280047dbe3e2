//! Workarounds for quinn, one module each.

pub(super) mod adaptive_gso;
pub(super) mod bounded_socket;
pub(super) mod connection_ids;
pub(super) mod datagram_gate;
pub(super) mod observed_controller;
pub(super) mod receive_thread;
pub(super) mod refusing_handshake;
