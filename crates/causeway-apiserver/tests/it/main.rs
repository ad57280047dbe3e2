//! The server over loopback, with a plain HTTP client.
#![allow(clippy::unwrap_used, clippy::panic)]

mod access;
mod acts;
mod conformance;
mod console;
mod foreign;
mod lab;
mod limits;
mod lists;
mod tls;
mod verbs;
mod views;
mod watches;
mod writes;
mod written;
