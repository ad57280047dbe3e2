//! The messages of the control stream, in both directions.
//!
//! Input: a stream of bytes, parsed as by an edge and as by the cloud; and the same bytes as one message
//! whose length is right. Invariants: a parsed message is written as bytes that parse as the same, the
//! messages do not depend on the chunk boundaries, and the text of a refusal is short and has no control
//! characters.
#![no_main]

use causeway_channel::wire::control::{CloudMessage, CloudMessageBody, EdgeMessage, ControlReader, encode_cloud, encode_edge};
use causeway_fuzz::{assert_short, now};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut frame = (data.len() as u32).to_be_bytes().to_vec();
    frame.extend_from_slice(data);
    for bytes in [data, &frame] {
        let mut reader = ControlReader::of_edge(bytes);
        while let Ok(Some(message)) = now(reader.next()) {
            check_edge(message);
        }
        let mut reader = ControlReader::of_cloud(bytes);
        while let Ok(Some(message)) = now(reader.next()) {
            check_cloud(message);
        }
    }
});

fn check_edge(message: EdgeMessage) {
    let _ = format!("{message:?}");
    let Ok(written) = encode_edge(message.clone()) else { return };
    let again = now(ControlReader::of_edge(&written[..]).next()).expect("what was written can be read");
    assert_eq!(again, Some(message));
}

fn check_cloud(message: CloudMessage) {
    let _ = format!("{message:?}");
    if let Some(CloudMessageBody::Refused(refused)) = &message.body {
        let shown = refused.to_string();
        assert_short(&shown, 4 * 810);
        assert!(!shown.chars().any(char::is_control), "{shown:?}");
        let _ = (refused.reason(), refused.reason().word());
    }
    let Ok(written) = encode_cloud(message.clone()) else { return };
    let again = now(ControlReader::of_cloud(&written[..]).next()).expect("what was written can be read");
    assert_eq!(again, Some(message));
}
