//! HTTP and gRPC through two gateways and a real link between them, over loopback.

#![allow(clippy::unwrap_used, clippy::panic)]

mod lab;

mod backend;

mod client;

mod requests;

mod refusals;

mod fields;

mod streams;

mod diagnose;
