//! The normalised path of a request, which rules are matched against.
//!
//! Invariants: no panic; normalising twice changes nothing; the output has no dot segments, no empty
//! segments, no escaped separators, and is itself a path.
#![no_main]

use causeway_gateway::policy::path::normal;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &str| {
    let Ok(once) = normal(data) else { return };
    assert_eq!(normal(&once).as_deref(), Ok(&*once), "twice is once");
    if once == "*" {
        return;
    }
    assert!(once.starts_with('/') && !once.contains("//") && once.is_ascii(), "{once}");
    assert!(once.split('/').all(|segment| segment != "." && segment != ".."), "{once}");
    let lower = once.to_ascii_lowercase();
    assert!(["%2f", "%5c", "%2e", "%00", "\\"].iter().all(|hidden| !lower.contains(hidden)), "{once}");
    assert!(http::uri::PathAndQuery::try_from(&*once).is_ok(), "{once}");
});
