//! Short texts with a syntax: names, prefixes, labels, times, field managers, kinds.
//!
//! Invariants: a name fits into a path and a prefix makes names; a time prints in 20 characters and parses as
//! itself; a manager's name is always usable.
#![no_main]

use causeway_api::{ApiVersion, Kind, Time, name, ownership};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    if name::check(text).is_ok() {
        assert!(text.len() <= 253 && text.is_ascii() && !text.contains(['/', '%', '?', '#', ' ']));
        assert!(text != "." && text != "..");
    }
    if name::check_prefix(text).is_ok() {
        assert_eq!(name::check(&format!("{text}{}", "x".repeat(name::SUFFIX_LENGTH))), Ok(()));
    }
    if name::check_label_value(text).is_ok() && !text.is_empty() {
        assert_eq!(name::check_label_key(text), Ok(()), "every value that is not empty could be a key");
    }
    let _ = name::check_label_key(text);

    if let Ok(time) = text.parse::<Time>() {
        let printed = time.to_string();
        assert_eq!(printed.len(), "2026-11-15T19:17:31Z".len(), "{printed}");
        assert_eq!(printed.parse::<Time>().ok(), Some(time));
        assert_eq!(Time::from_second(time.as_second()), time);
        assert_eq!(time.since(time), 0);
        let _ = (time.since(Time::from_second(i64::MIN)), Time::from_second(i64::MIN).since(time));
    }

    let manager = ownership::manager_name(None, Some(text));
    assert_eq!(ownership::check_manager(&manager), Ok(()));
    assert!(!manager.is_empty());
    if let Some(kind) = Kind::from_word(text) {
        assert!(Kind::ALL.contains(&kind));
    }
    if let Some(version) = ApiVersion::parse(text) {
        assert_eq!(version.as_str(), text);
    }
});
