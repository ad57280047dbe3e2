//! The network namespace in which presences listen, and the veth that joins it to the host.
