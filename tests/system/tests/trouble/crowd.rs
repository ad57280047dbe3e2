//! Too much of something: one identity with a thousand requests, one address with wrong credentials.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use serde_json::json;
use testlab::causeway::wait_for;

use crate::{GROUP, Lab, call, site, viewer};

#[test]
fn one_identity_does_not_starve_another() {
    let lab = Lab::start();
    for number in 0..30 {
        lab.admin.post(&format!("{GROUP}/esites"), &site(&format!("s{number}"))).unwrap().success().unwrap();
    }
    let greedy = viewer(&lab.admin);
    let (stop, codes) = (AtomicBool::new(false), [const { AtomicUsize::new(0) }; 3]);
    std::thread::scope(|scope| {
        for _ in 0..48 {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst) {
                    let place = match greedy.get(&format!("{GROUP}/esites")).map(|answer| answer.code) {
                        Ok(200) => 0,
                        Ok(429) => 1,
                        _ => 2,
                    };
                    codes[place].fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        // Only when the crowd is really there does the other's success say something.
        wait_for("the crowd is there", || (codes[0].load(Ordering::SeqCst) > 48).then_some(())).unwrap();
        for number in 0..20 {
            let name = format!("beside-{number}");
            lab.admin.post(&format!("{GROUP}/esites"), &site(&name)).unwrap().success().unwrap();
        }
        stop.store(true, Ordering::SeqCst);
    });
    let [fine, asked_to_wait, odd] = codes.map(AtomicUsize::into_inner);
    println!("the crowd: {fine} answered, {asked_to_wait} asked to wait, {odd} otherwise");
    assert_eq!(odd, 0, "waiting or 429, nothing else");
}

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
