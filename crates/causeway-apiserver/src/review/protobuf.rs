//! Reviews in Kubernetes' protobuf: since 1.32 `kubectl auth` sends reviews in no other form.
//!
//! Pure. Input: bytes. Output: the same review as JSON. Only the fields that decide the result are read.

use prost::Message;
use serde_json::{Map, Value, json};

use crate::request::ReviewRequest;

pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
/// The prefix of every message, before the envelope.
const MAGIC: &[u8] = b"k8s\0";

/// Decodes a review. None: the bytes are not a review.
pub fn decode(review: ReviewRequest, bytes: &[u8]) -> Option<Value> {
    let envelope = Envelope::decode(bytes.strip_prefix(MAGIC)?).ok()?;
    Some(match review {
        ReviewRequest::SelfSubject => json!({}),
        ReviewRequest::SelfAccess => {
            access(Access::decode(envelope.raw.as_slice()).ok()?.spec.unwrap_or_default())
        }
        ReviewRequest::SelfRules => {
            let spec = Rules::decode(envelope.raw.as_slice()).ok()?.spec.unwrap_or_default();
            json!({ "spec": { "namespace": spec.namespace } })
        }
    })
}

fn access(spec: AccessSpec) -> Value {
    let mut fields = Map::new();
    if let Some(wanted) = spec.resource {
        let attributes = json!({
            "namespace": wanted.namespace, "verb": wanted.verb, "group": wanted.group, "version": wanted.version,
            "resource": wanted.resource, "subresource": wanted.subresource, "name": wanted.name,
        });
        fields.insert("resourceAttributes".into(), attributes);
    }
    if let Some(wanted) = spec.path {
        fields.insert("nonResourceAttributes".into(), json!({ "path": wanted.path, "verb": wanted.verb }));
    }
    json!({ "spec": fields })
}

// The numbers are those of Kubernetes' generated.proto: runtime.Unknown and authorization/v1.

#[derive(Clone, PartialEq, Message)]
struct Envelope {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Access {
    #[prost(message, optional, tag = "2")]
    spec: Option<AccessSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct AccessSpec {
    #[prost(message, optional, tag = "1")]
    resource: Option<ResourceAttributes>,
    #[prost(message, optional, tag = "2")]
    path: Option<PathAttributes>,
}

#[derive(Clone, PartialEq, Message)]
struct ResourceAttributes {
    #[prost(string, tag = "1")]
    namespace: String,
    #[prost(string, tag = "2")]
    verb: String,
    #[prost(string, tag = "3")]
    group: String,
    #[prost(string, tag = "4")]
    version: String,
    #[prost(string, tag = "5")]
    resource: String,
    #[prost(string, tag = "6")]
    subresource: String,
    #[prost(string, tag = "7")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct PathAttributes {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(string, tag = "2")]
    verb: String,
}

#[derive(Clone, PartialEq, Message)]
struct Rules {
    #[prost(message, optional, tag = "2")]
    spec: Option<RulesSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct RulesSpec {
    #[prost(string, tag = "1")]
    namespace: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrapped(raw: Vec<u8>) -> Vec<u8> {
        [MAGIC, &Envelope { raw }.encode_to_vec()].concat()
    }

    #[test]
    fn a_question_of_kubectl_reads_like_its_json() {
        let resource = ResourceAttributes {
            verb: "create".into(),
            group: "causeway.io".into(),
            resource: "esites".into(),
            ..Default::default()
        };
        let spec = AccessSpec { resource: Some(resource), path: None };
        let bytes = wrapped(Access { spec: Some(spec) }.encode_to_vec());
        let review = decode(ReviewRequest::SelfAccess, &bytes).unwrap();
        assert_eq!(review["spec"]["resourceAttributes"]["resource"], "esites");
        assert!(review["spec"].get("nonResourceAttributes").is_none());
        assert_eq!(decode(ReviewRequest::SelfSubject, &wrapped(Vec::new())), Some(json!({})));
    }

    #[test]
    fn what_is_no_review_is_none() {
        for bytes in [&b""[..], b"{}", b"k8s", b"k8s\0\xff\xff", &wrapped(vec![0xff, 0xff])] {
            assert_eq!(decode(ReviewRequest::SelfAccess, bytes), None, "{bytes:?}");
        }
    }
}
