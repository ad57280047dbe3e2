//! Messages of DNS clients and upstream resolvers.
//!
//! The bytes are a query, and also the upstream's answer to one. Invariants: every reply can be parsed, is a
//! reply, has the id of its query and fits its transport; a forwarded query parses as the same question; an
//! answer to another question is never forwarded.
#![no_main]

use causeway_gateway::dns::answer::{DnsClient, answer};
use causeway_gateway::dns::message::{DnsQuery, ParsedMessage, DnsTransport, read};
use causeway_netmap::NetmapView;
use hickory_proto::op::{Message, MessageType, ResponseCode};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    match read(data) {
        ParsedMessage::Nothing => {}
        ParsedMessage::Reply(reply) => drop(reply_to(data, &reply)),
        ParsedMessage::Query(query) => check(data, &query),
    }
    // As upstream's answer to a plain query.
    if let ParsedMessage::Query(query) = read(PLAIN) {
        let asked = query.onward();
        let mut answer = data.to_vec();
        if answer.len() > 2 {
            answer[..2].copy_from_slice(&asked.bytes()[..2]);
        }
        if let Some(returned) = query.returned(&asked, answer) {
            assert_eq!(returned.bytes[..2], PLAIN[..2]);
            let question = 12..PLAIN.len();
            assert!(returned.bytes[question.clone()].eq_ignore_ascii_case(&PLAIN[question]));
        }
    }
});

/// `cam.oslo. A`, id 7.
const PLAIN: &[u8] = b"\0\x07\x01\0\0\x01\0\0\0\0\0\0\x03cam\x04oslo\0\0\x01\0\x01";

fn check(data: &[u8], query: &DnsQuery) {
    let view = NetmapView::default();
    for over in [DnsTransport::Udp, DnsTransport::Tcp] {
        let said = answer(&view, DnsClient::Near, query.name(), query.kind());
        let reply = query.answered(said, over);
        assert!(reply.len() <= query.reply_bytes_max(over));
        reply_to(data, &reply);
        let refused = query.answered(answer(&view, DnsClient::Far, query.name(), query.kind()), over);
        assert_eq!(reply_to(data, &refused).metadata.response_code, ResponseCode::Refused);
    }
    assert!(reply_to(data, &query.truncated()).metadata.truncation);
    let asked = query.onward();
    let ParsedMessage::Query(passed) = read(asked.bytes()) else { panic!("what is passed on is a question") };
    assert_eq!((passed.name(), passed.kind()), (query.name(), query.kind()));
    assert!(query.returned(&asked, asked.bytes().to_vec()).is_none(), "a question is no answer");
}

fn reply_to(data: &[u8], reply: &[u8]) -> Message {
    let read = Message::from_vec(reply).expect("our replies can be read");
    assert_eq!(read.metadata.message_type, MessageType::Response);
    assert_eq!(read.metadata.id.to_be_bytes(), data[..2]);
    read
}
