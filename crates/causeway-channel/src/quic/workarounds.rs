//! Workarounds for behaviour of quinn 0.11, one module each.
//!
//! Every module names the upstream behaviour, the issue where there is one, and the change in quinn that lets
//! us delete it:
//!
//! - `adaptive_gso`: a connection keeps the buffer of its largest GSO batch (quinn-rs/quinn#2189).
//! - `bounded_socket`: the queue from the endpoint to a connection has no bound (quinn-rs/quinn#1131).
//! - `connection_ids`: connection IDs have 24 random bits (quinn-rs/quinn#2883).
//! - `datagram_gate`: all datagrams are sent before all streams (quinn-rs/quinn#1773).
//! - `observed_controller`: the time of the last acknowledgement is not readable, and BBR falls to four
//!   packets.
//! - `receive_thread`: the endpoint reads for 50 µs per poll (quinn-rs/quinn#1133).
//! - `refusing_handshake`: a refusal carries no text (quinn-rs/quinn#2235).
//!
//! Smaller ones stay at their call: `QuicSend::drop` resets a stream that quinn would finish, and
//! `raise_stream_limit` takes steps that quinn announces.

pub(super) mod adaptive_gso;
pub(super) mod bounded_socket;
pub(super) mod connection_ids;
pub(super) mod datagram_gate;
pub(super) mod observed_controller;
pub(super) mod receive_thread;
pub(super) mod refusing_handshake;
