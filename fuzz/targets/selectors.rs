//! Label and field selectors: three lines of input are a label selector, a field selector, and an object to try them on.
//!
//! Invariants: two selectors joined by a comma select the objects that both select; the fields read from
//! stored bytes and those of the object agree; messages stay short.
#![no_main]

use causeway_api::Object;
use causeway_api::selector::{SelectableFields, FieldSelector, LabelSelector, Selector};
use causeway_fuzz::{assert_short, json};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut lines = text.splitn(3, '\n');
    let (labels, fields) = (lines.next().unwrap_or_default(), lines.next().unwrap_or_default());
    let document = serde_json::from_str(lines.next().unwrap_or_default()).unwrap_or_default();
    let kind = json::kind_of(&document);
    let object =
        Object::decode(kind, document).map_or_else(|_| Object::empty(kind), |decoded| decoded.object);
    let stored = object.encode();
    let fields = SelectableFields::of(&object);
    let stored_fields = SelectableFields::from_stored(&stored).expect("the stored form has selectable fields");

    let by_label = LabelSelector::parse(labels);
    match &by_label {
        Ok(selector) => {
            let matches = selector.matches(&fields);
            assert_eq!(matches, selector.matches(&stored_fields));
            assert!(matches || !selector.is_empty(), "an empty selector selects everything");
            let spaced = LabelSelector::parse(&format!(" {labels}\t"));
            assert_eq!(spaced.as_ref(), Ok(selector), "white space around a selector has no meaning");
            if !selector.is_empty()
                && let Ok(joined) = LabelSelector::parse(&format!("{labels},!never,{labels}"))
            {
                assert_eq!(joined.matches(&fields), matches && fields.label("never").is_none());
            }
        }
        Err(error) => assert_short(&error.message, 2048),
    }

    let by_field = FieldSelector::parse(kind, fields);
    match &by_field {
        Ok(selector) => {
            let matches = selector.matches(&fields);
            assert_eq!(matches, selector.matches(&stored_fields));
            assert!(matches || !selector.is_empty(), "an empty selector selects everything");
            if let (true, Some(name)) = (matches, selector.exact_name()) {
                assert_eq!(name, object.name(), "the exact name is the only one that can match");
            }
            if let Ok(joined) = FieldSelector::parse(kind, &format!("{fields},metadata.name!=never,{fields}"))
            {
                assert_eq!(joined.matches(&fields), matches && object.name() != "never");
            }
        }
        Err(error) => assert_short(&error.message, 2048),
    }

    let both = Selector::parse(kind, labels, fields);
    assert_eq!(both.is_ok(), by_label.is_ok() && by_field.is_ok());
    if let (Ok(both), Ok(by_label), Ok(by_field)) = (both, by_label, by_field) {
        assert_eq!(both.matches_object(&object), by_label.matches(&fields) && by_field.matches(&fields));
    }
});
