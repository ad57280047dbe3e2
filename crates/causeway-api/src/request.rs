//! Parses Kubernetes API requests: query parameters, the options of each verb, and media types.
//!
//! Input: text of the request line and headers. Output: typed options, or a `Status` that refuses the request.
//! Connections, authorization and bodies are left to the servers that use this module.

pub mod media;
pub mod options;
pub mod query;
