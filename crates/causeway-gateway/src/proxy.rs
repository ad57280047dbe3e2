//! Carries connections by name and by policy: from local clients to other sites, and from other sites to local backends.
//!
//! `outbound` and `inbound` are the two ends of a crossing; each looks at what is wanted and hands over to the protocol.
//! `pump` moves the bytes, `udp` carries datagrams, `kafka` tells clients where brokers are, `backends` finds who answers, `listeners` listen.

pub mod outbound;

pub mod inbound;

pub mod copy;

pub mod connect;

pub mod http;

pub mod entry;

pub mod sni;

pub mod backends;

pub mod listeners;

pub mod start_limit;

pub mod kafka;

pub mod udp;
