//! Reviews in JSON and in Kubernetes' protobuf, and their answers.
//!
//! The first byte chooses the review, the role and the form; the rest is the body. A body in protobuf is also
//! wrapped in the envelope that every message has. Invariants: a protobuf body has a JSON equivalent; a role
//! never gets more permissions than the admin; an unknown caller has no permission on any object.
#![no_main]

use causeway_api::Time;
use causeway_apiserver::request::ReviewRequest;
use causeway_apiserver::review::{answer, parse};
use causeway_apiserver::{Identity, Role};
use causeway_fuzz::assert_short;
use libfuzzer_sys::fuzz_target;
use prost::encoding::encode_varint;
use serde_json::Value;

const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

fuzz_target!(|data: &[u8]| {
    let Some((choice, body)) = data.split_first() else { return };
    let review = match choice & 3 {
        0 => ReviewRequest::SelfSubject,
        1 => ReviewRequest::SelfRules,
        _ => ReviewRequest::SelfAccess,
    };
    let role = match choice >> 2 & 3 {
        0 => Role::Viewer,
        1 => Role::Gateway { site: "s".into(), gateway: "gw".into() },
        2 => Role::Anonymous,
        _ => Role::Admin,
    };
    let question = match choice >> 4 & 3 {
        0 => parse(review, Some("application/json"), body),
        1 => parse(review, Some(PROTOBUF), body),
        _ => parse(review, Some(PROTOBUF), &wrap(body)),
    };
    let question = match question {
        Ok(question) => question,
        Err(status) => {
            assert_eq!(status.code, 400);
            return assert_short(&status.message, 1024);
        }
    };
    // Only there: numbers with a fraction, which protobuf reviews do not have, may change in their last
    // digit.
    if choice >> 4 & 3 != 0 {
        let again = parse(review, None, question.to_string().as_bytes());
        assert_eq!(again.expect("a question can be said in JSON"), question);
    }
    let Some(theirs) = ask(review, &role, &question) else { return };
    let admins =
        ask(review, &Role::Admin, &question).expect("who asks does not decide whether it is a question");
    let allowed = |answer: &Value| answer["status"]["allowed"] == true;
    assert!(!allowed(&theirs) || allowed(&admins), "{question}");
    if role == Role::Anonymous && question["spec"].get("resourceAttributes").is_some() {
        assert!(!allowed(&theirs), "{question}");
    }
});

fn ask(review: ReviewRequest, role: &Role, question: &Value) -> Option<Value> {
    let identity = Identity { user: "ann".into(), groups: Vec::new(), role: role.clone(), credential: None };
    answer(review, &identity, question, Time::from_second(0))
        .map_err(|status| assert_eq!(status.code, 400, "{question}"))
        .ok()
}

/// `k8s`, a zero, and a message whose field 2 is the body.
fn wrap(body: &[u8]) -> Vec<u8> {
    let mut bytes = b"k8s\0\x12".to_vec();
    encode_varint(body.len() as u64, &mut bytes);
    bytes.extend_from_slice(body);
    bytes
}
