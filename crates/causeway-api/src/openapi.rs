//! OpenAPI documents: from them kubectl learns the fields and patchable types, and `kubectl explain` takes
//! its text.
//!
//! `operations` lists the operations once; `v2` and `v3` write them in their own form; `gnostic` encodes v2
//! as protobuf, which is the only form that kubectl up to 1.26 requests. The documents never change while the
//! program runs: create them once and keep the bytes.

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

/// The media types by which clients request `v2_protobuf` in `Accept`. Older ones write the first, newer ones
/// either.
pub const V2_PROTOBUF_ACCEPT: [&str; 2] =
    ["application/com.github.proto-openapi.spec.v2@v1.0+protobuf", V2_PROTOBUF_CONTENT_TYPE];

/// The `Content-Type` of the response. The '@' in the requested type is not valid in a media type, and
/// client-go refuses to read it.
pub const V2_PROTOBUF_CONTENT_TYPE: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

#[cfg(test)]
mod tests;
