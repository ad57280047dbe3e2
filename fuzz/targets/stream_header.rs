//! The header of a stream, the text of a close reason, and that of a port that is busy, as a peer sends them.
//!
//! Invariants: a parsed header is written as bytes that parse as the same and keep the bound; a text is short
//! and has no control characters; a retry time is the same after it is written and parsed again.
#![no_main]

use bytes::Bytes;
use causeway_channel::link::{CloseReason, HEADER_BYTES_MAX, PREFIX_BYTES, StreamHeader};
use causeway_channel::quic::BusyRefusal;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    if let Some((prefix, _)) = data.split_first_chunk::<PREFIX_BYTES>() {
        assert!(StreamHeader::length(*prefix).is_ok_and(|length| length <= HEADER_BYTES_MAX) || prefix[0] >= 0x10);
    }
    if let Ok(header) = StreamHeader::decode_message(Bytes::copy_from_slice(data)) {
        let _ = (header.purpose(), format!("{header:?}"));
        // An unknown field is dropped when written, and a short form may become longer, so only the bound may
        // fail.
        if let Ok(bytes) = header.encode_prefixed() {
            let again = StreamHeader::decode_message(bytes.slice(PREFIX_BYTES..)).expect("what was written can be read");
            assert_eq!(again, header);
        }
    }
    let reason = CloseReason::from_wire(7, data);
    assert!(reason.text.len() <= CloseReason::TEXT_BYTES_MAX);
    assert!(!reason.text.chars().any(char::is_control), "{:?}", reason.text);
    if let Some(busy) = BusyRefusal::from_text(data) {
        assert_eq!(BusyRefusal::from_text(busy.to_text().as_bytes()), Some(busy));
    }
});
