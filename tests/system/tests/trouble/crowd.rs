//! Too much of something: one address with wrong credentials.
//!
//! One identity with too many requests is shown where the limits can be set small, in the API server's own tests.

use serde_json::json;
use testlab::causeway::wait_for;

use crate::{GROUP, Lab, call};

#[test]
fn guessing_is_slowed_down_and_written_down() {
    let lab = Lab::start();
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
    // Tokens from this address wait as well; who has a certificate does not.
    let token = lab.admin.with_bearer(viewer_token["token"].as_str().unwrap()).unwrap();
    assert_eq!(token.get(&format!("{GROUP}/esites")).unwrap().code, 429);
    assert_eq!(lab.admin.get(&format!("{GROUP}/esites")).unwrap().code, 200);
    wait_for("the failures are in the audit log", || {
        // Those that were slowed down were not looked at, so they are not written down either.
        (audit(&lab).matches("authentication-failed").count() >= slowed).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\naudit: {}\nlog: {}", audit(&lab), lab.cloud.process.log()));
    assert!(!audit(&lab).contains("cwa1.guess"), "a wrong token may be a right one with a typing error");
}

fn audit(lab: &Lab) -> String {
    let folder = std::fs::read_dir(lab.path("cloud/audit")).unwrap();
    folder.map(|file| std::fs::read_to_string(file.unwrap().path()).unwrap_or_default()).collect()
}
