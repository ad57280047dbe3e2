//! The binary: arguments in, a role or a client command out.

fn main() {}
