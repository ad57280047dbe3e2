//! Services whose requests are parsed: HTTP and gRPC, from the connection of a client to that of a backend
//! and back.
//!
//! A request is judged at both ends by method and path. Between gateways, requests of one subject share
//! streams as HTTP/2; a request that may be upgraded (WebSocket) has a stream of its own. The modules are in
//! the order in which a request passes them.

mod server;

mod exchange;

mod connection;

mod client_socket;

pub(crate) mod headers;

mod forwarded;

mod upgrade;

mod error_response;

mod body;

mod channel;

mod backend;

pub(crate) mod tls;

mod pool;

mod tunnel;

pub use exchange::ClientEntry;
pub use server::{HttpConnections, serve_client, serve_stream};
