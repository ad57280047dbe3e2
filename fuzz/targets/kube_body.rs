//! Bodies of kubelets at the edge: Kubernetes' protobuf with its envelope, and JSON.
//!
//! The bytes are tried as they are, behind the magic number, and as the content of an envelope. Invariants: a body that is read becomes
//! JSON that is written and read as the same; a body in the wrong envelope is refused.
#![no_main]

use causeway_apicache::protobuf::{self, BodyEncoding};
use libfuzzer_sys::fuzz_target;
use prost::Message;

/// `runtime.Unknown` of Kubernetes.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

fuzz_target!(|data: &[u8]| {
    let enveloped = Unknown { raw: data.to_vec() }.encode_to_vec();
    for body in [data.to_vec(), [b"k8s\0", data].concat(), [b"k8s\0", &enveloped[..]].concat()] {
        for encoding in [BodyEncoding::Json, BodyEncoding::Protobuf] {
            let read =
                [protobuf::lease(encoding, &body), protobuf::event(encoding, &body), protobuf::metadata(encoding, &body)];
            for value in read.into_iter().flatten() {
                let text = value.to_string();
                assert_eq!(serde_json::from_str::<serde_json::Value>(&text).map(|value| value.to_string()).ok(), Some(text));
            }
            if let Ok(token) = protobuf::token_request(encoding, &body) {
                assert!(token.audiences.is_sorted());
            }
            assert!(encoding == BodyEncoding::Json || body.starts_with(b"k8s\0") || protobuf::lease(encoding, &body).is_err());
        }
    }
});
