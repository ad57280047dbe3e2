//! Questions about access on the stream of an edge, as the cloud reads them.
//!
//! The bytes are a frame. Invariants: a message is encoded as bytes that decode as the same; a question names a verb that reads, and names
//! that change no path; its review is JSON; nothing that is logged shows the token.
#![no_main]

use bytes::Bytes;
use causeway_apicache::sync::frames::{decode, encode};
use causeway_apicache::upstream::access::question::AccessQuestion;
use causeway_apicache::upstream::access::session::question;
use causeway_apicache::upstream::access::wire::AccessAsk;
use libfuzzer_sys::fuzz_target;

const CONTENT_MAX: usize = 32 << 10;

fuzz_target!(|data: &[u8]| {
    let Ok(ask) = decode::<AccessAsk>(Bytes::copy_from_slice(data), CONTENT_MAX) else { return };
    let frame = encode(&ask).expect("it was decoded from a frame");
    assert_eq!(decode::<AccessAsk>(frame.slice(4..), CONTENT_MAX).ok().as_ref(), Some(&ask));
    let silent = AccessAsk { token: String::new(), ..ask.clone() };
    assert_eq!(format!("{ask:?}"), format!("{silent:?}"));
    match question(&ask) {
        Ok(question) => {
            assert!(AccessQuestion::reading_verb(question.verb).is_some());
            assert!(![&question.group, &question.plural, &question.namespace].iter().any(|name| name.contains('/')));
            let text = question.review().to_string();
            assert!(serde_json::from_str::<serde_json::Value>(&text).is_ok());
        }
        Err(status) => assert!(status.code == 400 && status.message.len() < 200),
    }
});
