//! Messages of a subscription of the API cache, at both ends: frames as the bytes are, and sessions of several messages.
//!
//! The first byte chooses the end; the rest is cut into messages by a length byte in front of each. Invariants: a decoded message is
//! encoded as bytes that decode as the same; a live copy is never led back; no message is larger than a frame may be.
#![no_main]

use bytes::Bytes;
use causeway_api::Revision;
use causeway_apicache::sync::frames::{MESSAGE_BYTES_MAX, decode, encode};
use causeway_apicache::sync::receiver::{SyncReceiver, SyncStep, digest_answer, key_answers};
use causeway_apicache::sync::sender::{SyncSender, SyncTarget};
use causeway_apicache::sync::wire::{CloudSyncMessage, EdgeSyncMessage, Subscribe};
use libfuzzer_sys::fuzz_target;

const CONTENT_MAX: usize = 1 << 20;

fuzz_target!(|data: &[u8]| {
    let Some((end, mut rest)) = data.split_first() else { return };
    let mut messages = Vec::new();
    while let Some((length, after)) = rest.split_first() {
        let (message, after) = after.split_at(after.len().min(usize::from(*length)));
        messages.push(Bytes::copy_from_slice(message));
        rest = after;
    }
    match end % 2 {
        0 => at_the_edge(messages),
        _ => at_the_cloud(u64::from(end / 2), messages),
    }
});

fn at_the_edge(messages: Vec<Bytes>) {
    let entries = [("shop/a".to_owned(), "u".to_owned(), Revision(3))];
    let (mut receiver, mut live_at) = (SyncReceiver::new(Revision(3)), None);
    for message in messages {
        let Ok(message) = decode::<CloudSyncMessage>(message, CONTENT_MAX) else { return };
        assert_same(&message);
        let Some(body) = message.body else { continue };
        match receiver.handle(body) {
            Err(_) => return,
            Ok(SyncStep::SendDigests { buckets }) => drop(digest_answer(&entries, buckets)),
            Ok(SyncStep::SendKeys { wanted, of }) => drop(key_answers(&entries, &wanted, of)),
            Ok(SyncStep::Complete { revision, .. } | SyncStep::Advance(revision)) => {
                assert!(live_at.is_none_or(|live_at| revision >= live_at));
                live_at = Some(revision);
            }
            Ok(_) => {}
        }
    }
}

fn at_the_cloud(objects: u64, messages: Vec<Bytes>) {
    let subscribe = Subscribe { objects, revision: 3, ..Subscribe::default() };
    let target = SyncTarget { revision: Revision(9), ..SyncTarget::default() };
    let mut sender = SyncSender::compare(Bytes::new(), &subscribe, target);
    for message in messages {
        while let Some(message) = sender.next_message() {
            let frame = encode(&CloudSyncMessage::from(message)).expect("a message fits into a frame");
            assert!(frame.len() <= MESSAGE_BYTES_MAX + 5);
        }
        let Ok(message) = decode::<EdgeSyncMessage>(message, CONTENT_MAX) else { return };
        assert_same(&message);
        let Some(body) = message.body else { continue };
        if sender.handle(body).is_err() {
            return;
        }
    }
}

fn assert_same<M: prost::Message + Default + PartialEq + std::fmt::Debug>(message: &M) {
    let frame = encode(message).expect("it was decoded from a frame");
    assert_eq!(decode::<M>(frame.slice(4..), MESSAGE_BYTES_MAX).ok().as_ref(), Some(message));
}
