//! Nodes by name: kube-apiserver, Prometheus and the like say `CONNECT node:port` at a door of the cloud, and get the bytes of
//! a connection that the node's own gateway makes. TLS is never opened on the way.
//!
//! `door` listens and speaks HTTP, `target` decides what is meant, `allow` what may be dialled that is no node, `node` opens
//! the way at this end and makes the connection at the other, `plain` asks in plain HTTP for those who do not say CONNECT. Whoever routes to nodes in another way uses `node` too.

pub mod target;

pub mod allow;

pub mod node;

pub mod listener;

mod plain;

pub use allow::{AllowList, AllowRule};
pub use listener::{ConnectAuthorizer, ConnectCaller, ConnectTlsListener, ConnectUnixListener};
pub use node::{NodeConnection, NodeTransport, NodeUnreachable, open_node};
