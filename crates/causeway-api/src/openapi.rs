//! OpenAPI documents: how kubectl learns the fields, what it may patch, and what `kubectl explain` says.
//!
//! `operations` lists what can be done once; `v2` and `v3` word it in their own way; `gnostic` encodes v2 as protobuf, which
//! is the only form kubectl up to 1.26 asks for. The documents never change while the program runs: make them once, keep the bytes.

mod definitions;
pub mod gnostic;
mod operations;
mod reviews;
mod v2;
mod v3;

pub use v2::v2;
pub use v3::{v3, v3_index, v3_reviews};

/// `/openapi/v2` as protobuf, for `application/com.github.proto-openapi.spec.v2@v1.0+protobuf`.
pub fn v2_protobuf() -> Vec<u8> {
    gnostic::encode(&v2())
}

/// How clients ask for `v2_protobuf` in `Accept`. Older ones write the first, newer ones either.
pub const V2_PROTOBUF_ACCEPT: [&str; 2] =
    ["application/com.github.proto-openapi.spec.v2@v1.0+protobuf", V2_PROTOBUF_CONTENT_TYPE];

/// What the answer's `Content-Type` must be. The '@' clients ask with is no media type, and client-go refuses to read it.
pub const V2_PROTOBUF_CONTENT_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

#[cfg(test)]
mod tests;
