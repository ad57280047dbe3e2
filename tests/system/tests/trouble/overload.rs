//! Too much of something: one address with wrong credentials.
//!
//! One identity with too many requests is shown where the limits can be set small, in the API server's own tests.

use serde_json::{Value, json};

use crate::{GROUP, Lab, call};

#[test]
fn guessing_is_slowed_down_and_written_down() {
    let mut lab = Lab::start();
    let viewer_token = call(&lab.admin, "tokens", &json!({"role": "viewer", "ttlSeconds": 600}));
    let wrong = lab.admin.with_bearer("cwa1.guess").unwrap();
    let codes: Vec<u16> = (0..80).map(|_| wrong.get(&format!("{GROUP}/esites")).unwrap().code).collect();
    assert_eq!(codes[0], 401);
    let slowed = codes.iter().position(|code| *code == 429).expect("guessing is slowed down");
    println!("429 after {slowed} wrong credentials");
    assert!(codes.iter().all(|code| matches!(code, 401 | 429)), "{codes:?}");
    let answer = wrong.get(&format!("{GROUP}/esites")).unwrap();
    assert_eq!(answer.code, 429);
    assert!(!answer.headers_named("retry-after").is_empty());
    // A right token from the same address does not wait, nor does a certificate.
    let token = lab.admin.with_bearer(viewer_token["token"].as_str().unwrap()).unwrap();
    assert_eq!(token.get(&format!("{GROUP}/esites")).unwrap().code, 200);
    assert_eq!(lab.admin.get(&format!("{GROUP}/esites")).unwrap().code, 200);
    // Repeated ones are coalesced: the first have a line each, the rest are told as a count, at the latest at the end. Those
    // that were slowed down were not looked at, so they are not written down either.
    lab.cloud.process.terminate().unwrap();
    let text = audit(&lab);
    let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let lines: Vec<Value> = lines.filter(|line| line["event"] == "authentication-failed").collect();
    let told: u64 = lines.iter().map(|line| line["count"].as_u64().unwrap_or(1)).sum();
    assert!(told >= slowed as u64 && lines.len() < 12, "{told} in {} lines: {text}", lines.len());
    assert!(!audit(&lab).contains("cwa1.guess"), "a wrong token may be a right one with a typing error");
}

fn audit(lab: &Lab) -> String {
    let folder = std::fs::read_dir(lab.path("cloud/audit")).unwrap();
    folder.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap_or_default()).collect()
}
