//! Parsing of queries, and the replies to messages that cannot be parsed.

use std::str::FromStr;

use hickory_proto::op;
use hickory_proto::rr::RData;
use hickory_proto::rr::rdata::A;

use super::*;

fn request(edns: Option<u16>) -> Message {
    let mut message = Message::query();
    message.metadata.recursion_desired = true;
    message.add_query(op::Query::query(Name::from_str("Camera.Oslo.").unwrap(), RecordType::A));
    if let Some(payload) = edns {
        let mut edns = Edns::new();
        edns.set_max_payload(payload).set_dnssec_ok(true);
        message.set_edns(edns);
    }
    message
}

fn query(request: &Message) -> Box<DnsQuery> {
    match read(&request.to_vec().unwrap()) {
        ParsedMessage::Query(query) => query,
        other => panic!("{other:?}"),
    }
}

fn code(bytes: &[u8]) -> ResponseCode {
    match read(bytes) {
        ParsedMessage::Reply(reply) => Message::from_vec(&reply).unwrap().metadata.response_code,
        other => panic!("{other:?}"),
    }
}

fn addresses(count: u8) -> DnsAnswer {
    let name = Name::from_str("Camera.Oslo.").unwrap();
    let record = |last| Record::from_rdata(name.clone(), 5, RData::A(A([10, 0, 0, last].into())));
    DnsAnswer::Records((0..count).map(record).collect())
}

#[test]
fn what_is_no_question_is_answered_so_or_not_at_all() {
    let plain = request(None);
    let mut answer = plain.clone();
    answer.metadata.message_type = MessageType::Response;
    assert!(matches!(read(&answer.to_vec().unwrap()), ParsedMessage::Nothing));
    assert!(matches!(read(b"short"), ParsedMessage::Nothing));
    let mut update = plain.clone();
    update.metadata.op_code = OpCode::Update;
    assert_eq!(code(&update.to_vec().unwrap()), ResponseCode::NotImp);
    let mut two = plain.clone();
    two.add_query(plain.queries[0].clone());
    assert_eq!(code(&two.to_vec().unwrap()), ResponseCode::FormErr);
    let mut chaos = plain.clone();
    chaos.queries[0].set_query_class(DNSClass::CH);
    assert_eq!(code(&chaos.to_vec().unwrap()), ResponseCode::Refused);
    let mut bytes = plain.to_vec().unwrap();
    bytes.truncate(bytes.len() - 1);
    assert_eq!(code(&bytes), ResponseCode::FormErr);
    // A header that announces more records than any client sends.
    assert_eq!(code(&[0, 1, 1, 0, 0xff, 0xff, 0, 0, 0, 0, 0, 0]), ResponseCode::FormErr);
    let mut later = request(Some(1232));
    later.edns.as_mut().unwrap().set_version(1);
    // The code has two names.
    assert_eq!(u16::from(code(&later.to_vec().unwrap())), u16::from(ResponseCode::BADVERS));
}

#[test]
fn a_reply_is_to_its_question_and_fits() {
    for (edns, over, count, fits) in [
        (None, DnsTransport::Udp, 2, true),
        (None, DnsTransport::Udp, 60, false),
        (Some(1232), DnsTransport::Udp, 60, true),
        (Some(1232), DnsTransport::Udp, 100, false),
        // A client that accepts more than a path carries still gets no fragments.
        (Some(65_535), DnsTransport::Udp, 100, false),
        // Less than the minimum that every client must accept.
        (Some(1), DnsTransport::Udp, 2, true),
        (None, DnsTransport::Tcp, 200, true),
    ] {
        let request = request(edns);
        let query = query(&request);
        let bytes = query.answered(addresses(count), over);
        assert!(bytes.len() <= query.reply_bytes_max(over));
        let reply = Message::from_vec(&bytes).unwrap();
        let row = format!("{edns:?} {over:?} {count}");
        assert_eq!((reply.metadata.id, &reply.queries), (request.metadata.id, &request.queries), "{row}");
        assert_eq!(reply.metadata.truncation, !fits, "{row}");
        assert_eq!(reply.answers.len(), if fits { count.into() } else { 0 }, "{row}");
        assert_eq!(reply.edns.is_some(), edns.is_some(), "{row}");
        assert!(reply.metadata.authoritative && reply.metadata.recursion_available, "{row}");
    }
}

#[test]
fn a_question_is_passed_on_and_its_answer_comes_back_under_the_clients_number() {
    let request = request(Some(4096));
    let query = query(&request);
    let asked = query.onward();
    let passed = Message::from_vec(asked.bytes()).unwrap();
    assert_eq!(passed.queries, request.queries);
    let edns = passed.edns.as_ref().unwrap();
    assert_eq!((edns.max_payload(), edns.flags().dnssec_ok), (DATAGRAM_BYTES_MAX, true));

    let mut answer = passed.clone();
    answer.metadata.message_type = MessageType::Response;
    // Upstream may change the case of the name.
    answer.queries[0].set_name(Name::from_str("camera.oslo.").unwrap());
    let returned = query.returned(&asked, answer.to_vec().unwrap()).unwrap();
    assert_eq!(Message::from_vec(&returned.bytes).unwrap().metadata.id, request.metadata.id);
    assert!(!returned.is_failure());

    let refused = |change: &dyn Fn(&mut Message)| {
        let mut answer = answer.clone();
        change(&mut answer);
        assert_eq!(query.returned(&asked, answer.to_vec().unwrap()), None);
    };
    refused(&|answer| answer.metadata.id ^= 1);
    refused(&|answer| answer.metadata.message_type = MessageType::Query);
    refused(&|answer| {
        answer.queries[0].set_name(Name::from_str("camera.oslx.").unwrap());
    });
    refused(&|answer| {
        answer.queries[0].set_query_type(RecordType::AAAA);
    });
    refused(&|answer| answer.queries.clear());
    assert_eq!(query.returned(&asked, vec![]), None);
}
