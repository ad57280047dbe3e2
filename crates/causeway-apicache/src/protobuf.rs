//! Kubernetes' protobuf, as far as the edge must understand bodies: leases, events, token requests, and the names of objects.
//!
//! Input: a body with the envelope `k8s\0` and `runtime.Unknown`. Output: JSON, or the few fields that a decision needs. Field numbers are
//! those of the `generated.proto` files of Kubernetes. Bodies that go on to the API server are never rebuilt from these messages, so
//! fields that they do not know are not lost.

use std::collections::BTreeMap;

use bytes::Bytes;
use prost::Message;
use serde_json::{Map, Value, json};

/// The media type of these bodies.
pub const MEDIA_TYPE: &str = "application/vnd.kubernetes.protobuf";
const MAGIC: &[u8] = b"k8s\0";

/// A body that cannot be understood.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    #[error("the body does not begin with the envelope of Kubernetes' protobuf")]
    Envelope,
    #[error("the body is no protobuf of its kind")]
    Malformed(#[from] prost::DecodeError),
    #[error("the body is no JSON")]
    Json(#[from] serde_json::Error),
    #[error("bodies of the type {0:?} are not understood here")]
    MediaType(String),
}

/// The form of a body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BodyEncoding {
    Json,
    Protobuf,
}

impl BodyEncoding {
    /// The form that a `Content-Type` names. A body without one is JSON, as at the API server.
    pub fn of(content_type: &str) -> Result<BodyEncoding, BodyError> {
        let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
        match media.as_str() {
            MEDIA_TYPE => Ok(BodyEncoding::Protobuf),
            "" | "application/json" => Ok(BodyEncoding::Json),
            media if media.ends_with("+json") => Ok(BodyEncoding::Json),
            _ => Err(BodyError::MediaType(media.chars().take(100).collect())),
        }
    }
}

/// A lease (`coordination.k8s.io/v1`) as JSON.
pub fn lease(encoding: BodyEncoding, body: &[u8]) -> Result<Value, BodyError> {
    match encoding {
        BodyEncoding::Json => Ok(serde_json::from_slice(body)?),
        BodyEncoding::Protobuf => Ok(decode::<Lease>(body)?.into_json()),
    }
}

/// An event (`v1`) as JSON.
pub fn event(encoding: BodyEncoding, body: &[u8]) -> Result<Value, BodyError> {
    match encoding {
        BodyEncoding::Json => Ok(serde_json::from_slice(body)?),
        BodyEncoding::Protobuf => Ok(decode::<Event>(body)?.into_json()),
    }
}

/// The metadata of any object: name, namespace, UID and resourceVersion.
pub fn metadata(encoding: BodyEncoding, body: &[u8]) -> Result<Value, BodyError> {
    match encoding {
        BodyEncoding::Json => {
            let mut object: Value = serde_json::from_slice(body)?;
            // Indexing for a change would panic where the body is no object.
            Ok(object.get_mut("metadata").map(Value::take).unwrap_or_default())
        }
        BodyEncoding::Protobuf => {
            Ok(decode::<AnyObject>(body)?.metadata.unwrap_or_default().into_json().into())
        }
    }
}

/// The part of a TokenRequest that tells one token from another, and the token of an answer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct TokenRequestBody {
    /// Sorted.
    pub audiences: Vec<String>,
    pub bound_kind: String,
    pub bound_name: String,
    pub bound_uid: String,
    pub token: String,
}

/// Reads a TokenRequest (`authentication.k8s.io/v1`), a request or an answer.
pub fn token_request(encoding: BodyEncoding, body: &[u8]) -> Result<TokenRequestBody, BodyError> {
    let mut found = match encoding {
        BodyEncoding::Json => {
            let request: Value = serde_json::from_slice(body)?;
            let spec = &request["spec"];
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            TokenRequestBody {
                audiences: spec["audiences"].as_array().into_iter().flatten().map(text).collect(),
                bound_kind: text(&spec["boundObjectRef"]["kind"]),
                bound_name: text(&spec["boundObjectRef"]["name"]),
                bound_uid: text(&spec["boundObjectRef"]["uid"]),
                token: text(&request["status"]["token"]),
            }
        }
        BodyEncoding::Protobuf => {
            let request: TokenRequest = decode(body)?;
            let spec = request.spec.unwrap_or_default();
            let bound = spec.bound_object_ref.unwrap_or_default();
            TokenRequestBody {
                audiences: spec.audiences,
                bound_kind: bound.kind,
                bound_name: bound.name,
                bound_uid: bound.uid,
                token: request.status.unwrap_or_default().token,
            }
        }
    };
    found.audiences.sort();
    Ok(found)
}

fn decode<M: Message + Default>(body: &[u8]) -> Result<M, BodyError> {
    let envelope = body.strip_prefix(MAGIC).ok_or(BodyError::Envelope)?;
    let unknown = Unknown::decode(envelope)?;
    Ok(M::decode(unknown.raw)?)
}

/// `k8s.io/apimachinery/pkg/runtime.Unknown`.
#[derive(Clone, PartialEq, Message)]
struct Unknown {
    #[prost(bytes = "bytes", tag = "2")]
    raw: Bytes,
}

/// The beginning of every object.
#[derive(Clone, PartialEq, Message)]
struct AnyObject {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
}

#[derive(Clone, PartialEq, Message)]
struct ObjectMeta {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    generate_name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(message, optional, tag = "8")]
    creation_timestamp: Option<Time>,
    #[prost(btree_map = "string, string", tag = "11")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "12")]
    annotations: BTreeMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    owner_references: Vec<OwnerReference>,
}

#[derive(Clone, PartialEq, Message)]
struct OwnerReference {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
    #[prost(string, tag = "5")]
    api_version: String,
    #[prost(bool, optional, tag = "6")]
    controller: Option<bool>,
    #[prost(bool, optional, tag = "7")]
    block_owner_deletion: Option<bool>,
}

/// `Time` and `MicroTime` have the same fields.
#[derive(Clone, Copy, PartialEq, Message)]
struct Time {
    #[prost(int64, tag = "1")]
    seconds: i64,
    #[prost(int32, tag = "2")]
    nanos: i32,
}

#[derive(Clone, PartialEq, Message)]
struct Lease {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    spec: Option<LeaseSpec>,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseSpec {
    #[prost(string, optional, tag = "1")]
    holder_identity: Option<String>,
    #[prost(int32, optional, tag = "2")]
    lease_duration_seconds: Option<i32>,
    #[prost(message, optional, tag = "3")]
    acquire_time: Option<Time>,
    #[prost(message, optional, tag = "4")]
    renew_time: Option<Time>,
    #[prost(int32, optional, tag = "5")]
    lease_transitions: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct ObjectReference {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
    #[prost(string, tag = "5")]
    api_version: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(string, tag = "7")]
    field_path: String,
}

#[derive(Clone, PartialEq, Message)]
struct EventSource {
    #[prost(string, tag = "1")]
    component: String,
    #[prost(string, tag = "2")]
    host: String,
}

#[derive(Clone, PartialEq, Message)]
struct EventSeries {
    #[prost(int32, tag = "1")]
    count: i32,
    #[prost(message, optional, tag = "2")]
    last_observed_time: Option<Time>,
}

#[derive(Clone, PartialEq, Message)]
struct Event {
    #[prost(message, optional, tag = "1")]
    metadata: Option<ObjectMeta>,
    #[prost(message, optional, tag = "2")]
    involved_object: Option<ObjectReference>,
    #[prost(string, tag = "3")]
    reason: String,
    #[prost(string, tag = "4")]
    message: String,
    #[prost(message, optional, tag = "5")]
    source: Option<EventSource>,
    #[prost(message, optional, tag = "6")]
    first_timestamp: Option<Time>,
    #[prost(message, optional, tag = "7")]
    last_timestamp: Option<Time>,
    #[prost(int32, tag = "8")]
    count: i32,
    #[prost(string, tag = "9")]
    r#type: String,
    #[prost(message, optional, tag = "10")]
    event_time: Option<Time>,
    #[prost(message, optional, tag = "11")]
    series: Option<EventSeries>,
    #[prost(string, tag = "12")]
    action: String,
    #[prost(message, optional, tag = "13")]
    related: Option<ObjectReference>,
    #[prost(string, tag = "14")]
    reporting_component: String,
    #[prost(string, tag = "15")]
    reporting_instance: String,
}

#[derive(Clone, PartialEq, Message)]
struct TokenRequest {
    #[prost(message, optional, tag = "2")]
    spec: Option<TokenRequestSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<TokenRequestStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct TokenRequestSpec {
    #[prost(string, repeated, tag = "1")]
    audiences: Vec<String>,
    #[prost(message, optional, tag = "3")]
    bound_object_ref: Option<BoundObjectReference>,
}

#[derive(Clone, PartialEq, Message)]
struct BoundObjectReference {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(string, tag = "4")]
    uid: String,
}

#[derive(Clone, PartialEq, Message)]
struct TokenRequestStatus {
    #[prost(string, tag = "1")]
    token: String,
}

/// Collects the fields of a JSON object; empty ones are left out, as Kubernetes does.
#[derive(Default)]
struct Fields(Map<String, Value>);

impl Fields {
    fn text(mut self, name: &str, value: String) -> Fields {
        if !value.is_empty() {
            self.0.insert(name.into(), value.into());
        }
        self
    }

    fn value(mut self, name: &str, value: Option<Value>) -> Fields {
        if let Some(value) = value {
            self.0.insert(name.into(), value);
        }
        self
    }
}

impl Time {
    /// `Time` in whole seconds; `None` for the zero time, which stands for no time.
    fn seconds(self) -> Option<Value> {
        self.text("%Y-%m-%dT%H:%M:%SZ")
    }

    fn micros(self) -> Option<Value> {
        self.text("%Y-%m-%dT%H:%M:%S.%6fZ")
    }

    fn text(self, format: &str) -> Option<Value> {
        // Go writes the year 1 for a time that is not set.
        let time = jiff::Timestamp::new(self.seconds, self.nanos.clamp(0, 999_999_999)).ok()?;
        (self.seconds > 0).then(|| time.strftime(format).to_string().into())
    }
}

impl ObjectMeta {
    fn into_json(self) -> Map<String, Value> {
        let owners = self.owner_references.into_iter().map(|owner| {
            let fields = Fields::default()
                .text("apiVersion", owner.api_version)
                .text("kind", owner.kind)
                .text("name", owner.name)
                .text("uid", owner.uid)
                .value("controller", owner.controller.map(Value::from))
                .value("blockOwnerDeletion", owner.block_owner_deletion.map(Value::from));
            Value::Object(fields.0)
        });
        let owners: Vec<Value> = owners.collect();
        Fields::default()
            .text("name", self.name)
            .text("generateName", self.generate_name)
            .text("namespace", self.namespace)
            .text("uid", self.uid)
            .text("resourceVersion", self.resource_version)
            .value("creationTimestamp", self.creation_timestamp.and_then(Time::seconds))
            .value("labels", (!self.labels.is_empty()).then(|| json!(self.labels)))
            .value("annotations", (!self.annotations.is_empty()).then(|| json!(self.annotations)))
            .value("ownerReferences", (!owners.is_empty()).then(|| owners.into()))
            .0
    }
}

impl Lease {
    fn into_json(self) -> Value {
        let spec = self.spec.unwrap_or_default();
        let spec = Fields::default()
            .value("holderIdentity", spec.holder_identity.map(Value::from))
            .value("leaseDurationSeconds", spec.lease_duration_seconds.map(Value::from))
            .value("acquireTime", spec.acquire_time.and_then(Time::micros))
            .value("renewTime", spec.renew_time.and_then(Time::micros))
            .value("leaseTransitions", spec.lease_transitions.map(Value::from));
        json!({"metadata": self.metadata.unwrap_or_default().into_json(), "spec": spec.0})
    }
}

impl ObjectReference {
    fn into_json(self) -> Value {
        let fields = Fields::default()
            .text("kind", self.kind)
            .text("namespace", self.namespace)
            .text("name", self.name)
            .text("uid", self.uid)
            .text("apiVersion", self.api_version)
            .text("resourceVersion", self.resource_version)
            .text("fieldPath", self.field_path);
        Value::Object(fields.0)
    }
}

impl Event {
    fn into_json(self) -> Value {
        let source = self.source.unwrap_or_default();
        let source = Fields::default().text("component", source.component).text("host", source.host).0;
        let series = self.series.map(|series| {
            let seen = series.last_observed_time.and_then(Time::micros);
            json!({"count": series.count, "lastObservedTime": seen})
        });
        let fields = Fields::default()
            .value("metadata", Some(self.metadata.unwrap_or_default().into_json().into()))
            .value("involvedObject", Some(self.involved_object.unwrap_or_default().into_json()))
            .text("reason", self.reason)
            .text("message", self.message)
            .value("source", Some(source.into()))
            .value("firstTimestamp", self.first_timestamp.and_then(Time::seconds))
            .value("lastTimestamp", self.last_timestamp.and_then(Time::seconds))
            .value("count", (self.count != 0).then(|| self.count.into()))
            .text("type", self.r#type)
            .value("eventTime", self.event_time.and_then(Time::micros))
            .value("series", series)
            .text("action", self.action)
            .value("related", self.related.map(ObjectReference::into_json))
            .value("reportingComponent", Some(self.reporting_component.into()))
            .value("reportingInstance", Some(self.reporting_instance.into()));
        Value::Object(fields.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enveloped(message: &impl Message) -> Vec<u8> {
        let unknown = Unknown { raw: message.encode_to_vec().into() };
        [MAGIC, &unknown.encode_to_vec()].concat()
    }

    #[test]
    fn a_lease_and_an_event_become_the_json_of_the_api_server() {
        let metadata =
            Some(ObjectMeta { name: "n1".into(), resource_version: "7".into(), ..ObjectMeta::default() });
        let spec = LeaseSpec {
            holder_identity: Some("n1".into()),
            lease_duration_seconds: Some(40),
            renew_time: Some(Time { seconds: 1_700_000_000, nanos: 5_000 }),
            ..LeaseSpec::default()
        };
        let body = enveloped(&Lease { metadata: metadata.clone(), spec: Some(spec) });
        let expected = json!({"metadata": {"name": "n1", "resourceVersion": "7"}, "spec": {"holderIdentity": "n1",
            "leaseDurationSeconds": 40, "renewTime": "2023-11-14T22:13:20.000005Z"}});
        assert_eq!(lease(BodyEncoding::Protobuf, &body).unwrap(), expected);
        let body = enveloped(&Event {
            metadata,
            reason: "Started".into(),
            count: 2,
            // The zero time of Go.
            event_time: Some(Time { seconds: -62_135_596_800, nanos: 0 }),
            ..Event::default()
        });
        let event = event(BodyEncoding::Protobuf, &body).unwrap();
        assert_eq!(
            (&event["reason"], &event["count"], &event["eventTime"]),
            (&json!("Started"), &json!(2), &Value::Null)
        );
        assert_eq!(metadata_name(&body), "n1");
    }

    fn metadata_name(body: &[u8]) -> String {
        metadata(BodyEncoding::Protobuf, body).unwrap()["name"].as_str().unwrap().to_owned()
    }

    #[test]
    fn a_token_request_reads_the_same_in_both_forms() {
        let bound = BoundObjectReference { kind: "Pod".into(), name: "p".into(), uid: "u".into() };
        let spec =
            TokenRequestSpec { audiences: vec!["b".into(), "a".into()], bound_object_ref: Some(bound) };
        let status = TokenRequestStatus { token: "t".into() };
        let body = enveloped(&TokenRequest { spec: Some(spec), status: Some(status) });
        let text = json!({"spec": {"audiences": ["a", "b"], "boundObjectRef": {"kind": "Pod", "name": "p", "uid": "u"}},
            "status": {"token": "t"}});
        let read = token_request(BodyEncoding::Protobuf, &body).unwrap();
        assert_eq!(read, token_request(BodyEncoding::Json, text.to_string().as_bytes()).unwrap());
        assert_eq!((read.bound_uid.as_str(), read.token.as_str()), ("u", "t"));
    }

    #[test]
    fn foreign_bytes_are_refused() {
        for body in
            [&b""[..], b"k8s", b"{}", b"k8s\0\xff\xff\xff\xff", b"k8s\0\x12\x7fx", b"k8s\0\x12\x02\xff\xff"]
        {
            assert!(lease(BodyEncoding::Protobuf, body).is_err(), "{body:?}");
            assert!(token_request(BodyEncoding::Protobuf, body).is_err(), "{body:?}");
        }
        assert!(event(BodyEncoding::Json, b"no").is_err());
        for body in [&b"[]"[..], b"7", b"\"x\"", b"null", b"{}"] {
            assert_eq!(metadata(BodyEncoding::Json, body).unwrap(), Value::Null);
            assert_eq!(token_request(BodyEncoding::Json, body).unwrap(), TokenRequestBody::default());
        }
        assert!(BodyEncoding::of("application/cbor").is_err());
        let of = |text| BodyEncoding::of(text).unwrap();
        assert_eq!(of("application/strategic-merge-patch+json"), BodyEncoding::Json);
        assert_eq!(of("application/vnd.kubernetes.protobuf; x=y"), BodyEncoding::Protobuf);
    }

    /// A body whose envelope is right, with anything inside: a field of `runtime.Unknown` with the length that it needs.
    fn in_envelope(content: &[u8]) -> Vec<u8> {
        let mut body = MAGIC.to_vec();
        body.extend(Unknown { raw: Bytes::copy_from_slice(content) }.encode_to_vec());
        body
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_cause_a_panic(content in proptest::collection::vec(proptest::prelude::any::<u8>(), 0..300)) {
            for body in [content.clone(), [MAGIC, &content].concat(), in_envelope(&content)] {
                for encoding in [BodyEncoding::Json, BodyEncoding::Protobuf] {
                    let _ = (lease(encoding, &body), event(encoding, &body));
                    let _ = (metadata(encoding, &body), token_request(encoding, &body));
                }
            }
        }

        #[test]
        fn any_time_and_any_text_in_a_lease_become_json(
            seconds in proptest::prelude::any::<i64>(),
            nanos in proptest::prelude::any::<i32>(),
            holder in ".*",
        ) {
            let spec = LeaseSpec {
                holder_identity: Some(holder.clone()),
                renew_time: Some(Time { seconds, nanos }),
                ..LeaseSpec::default()
            };
            let read = lease(BodyEncoding::Protobuf, &enveloped(&Lease { metadata: None, spec: Some(spec) }));
            proptest::prop_assert_eq!(&read.unwrap()["spec"]["holderIdentity"], &json!(holder));
        }
    }
}
