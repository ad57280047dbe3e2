//! Parses Kubernetes API requests: paths, query parameters, the options of each verb, and media types.
//!
//! Input: text of the request line and headers. Output: a typed request, or a `Status` that refuses the request.
//! Connections, authorization and bodies are left to the servers that use this module.

// A `Status` is a large value, but a request is refused once; boxing it would save nothing.
#![allow(clippy::result_large_err)]

pub mod media;
pub mod options;
pub mod query;
pub mod resource;
