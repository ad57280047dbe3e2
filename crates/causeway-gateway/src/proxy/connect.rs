//! Connects to nodes by name: kube-apiserver, Prometheus and other clients send `CONNECT node:port` to a
//! listener of the cloud and get the bytes of a connection that the node's own gateway opens. TLS is never
//! terminated on the way.
//!
//! `listener` accepts and speaks HTTP, `target` interprets the target, `allow` lists targets other than nodes
//! that may be dialled, `node` opens the stream at this end and the connection at the other, `plain` sends
//! plain HTTP requests for clients that do not use CONNECT. Other modules that route to nodes use `node` too.

pub mod target;

pub mod allow;

pub mod node;

pub mod listener;

mod plain;

pub use allow::{AllowList, AllowRule};
pub use listener::{ConnectAuthorizer, ConnectCaller, ConnectTlsListener, ConnectUnixListener};
pub use node::{NodeConnection, NodeTransport, NodeUnreachable, open_node};
