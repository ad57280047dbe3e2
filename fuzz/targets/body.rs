//! Bodies of requests in JSON and YAML, and the objects in them.
//!
//! Invariants: our JSON parser accepts exactly the input that serde_json accepts, with the same result; every
//! YAML value can be written as JSON; warnings and refusals are bounded.
#![no_main]

use causeway_api::ApiVersion;
use causeway_apiserver::body::{self, ParsedBody};
use causeway_apiserver::registry::admit;
use causeway_apiserver::request::media::BodyFormat;
use causeway_apiserver::request::options::{DeleteOptions, FieldValidation};
use causeway_fuzz::{assert_short, json};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|data: &[u8]| {
    let plain = serde_json::from_slice::<Value>(data);
    match (body::parse(BodyFormat::Json, data), plain) {
        (Ok(parsed), Ok(plain)) => {
            assert_eq!(parsed.value, plain);
            check(parsed);
        }
        (Err(error), Err(_)) => assert_short(&error.to_string(), 2048),
        (ours, plain) => panic!("we and serde_json disagree: {ours:?} {plain:?}"),
    }
    match body::parse(BodyFormat::Yaml, data) {
        Ok(parsed) => {
            let again =
                body::parse(BodyFormat::Json, parsed.value.to_string().as_bytes()).map(|again| again.value);
            assert_eq!(again.as_ref(), Ok(&parsed.value), "what YAML says can be said in JSON");
            check(parsed);
        }
        Err(error) => assert_short(&error.to_string(), 2048),
    }
});

fn check(parsed: ParsedBody) {
    assert!(parsed.duplicates.len() <= 32);
    parsed.duplicates.iter().for_each(|path| assert_short(path, 1024));
    let _ = DeleteOptions::default()
        .with_body(&parsed.value)
        .map_err(|status| assert_short(&status.message, 4096));
    let kind = json::kind_of(&parsed.value);
    let duplicates = parsed.duplicates.len();
    match admit::read(kind, ApiVersion::Group, parsed, FieldValidation::Warn) {
        Ok(read) => assert!(read.warnings.len() >= duplicates && read.warnings.len() <= 132),
        Err(status) => {
            assert!((400..500).contains(&status.code));
            assert_short(&status.message, 64 * 1024);
        }
    }
}
