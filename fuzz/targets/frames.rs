//! The messages of enrolment, as they are sent on the link.
//!
//! Bytes are tried as a frame, and also as the body of a frame whose length is right. Invariants: a parsed
//! message is written as bytes that parse as the same; the text of a refusal is short and has no control
//! characters.
#![no_main]

use causeway_channel::wire::{EnrolmentResponseBody, EnrolmentHello, EnrolmentRequest, EnrolmentResponse, read, write};
use causeway_fuzz::{assert_short, now};
use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|data: &[u8]| {
    let mut frame = (data.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(data);
    for bytes in [data, &frame] {
        check::<EnrolmentHello>(bytes);
        check::<EnrolmentRequest>(bytes);
        if let Some(EnrolmentResponse { answer: Some(EnrolmentResponseBody::Refused(refusal)) }) = check::<EnrolmentResponse>(bytes) {
            let shown = refusal.to_string();
            assert_short(&shown, 4 * 810);
            assert!(!shown.chars().any(char::is_control), "{shown:?}");
            let _ = (refusal.reason(), refusal.is_temporary(), refusal.needs_new_token());
        }
    }
});

fn check<M: Message + Default + PartialEq + std::fmt::Debug>(mut bytes: &[u8]) -> Option<M> {
    let message = now(read::<M>(&mut bytes)).ok()?;
    let mut written = Vec::new();
    now(write(&mut written, &message)).ok()?;
    let again = now(read::<M>(&mut &written[..])).expect("what was written can be read");
    assert_eq!(again, message);
    let _ = format!("{message:?}");
    Some(message)
}
