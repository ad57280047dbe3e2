//! Parses DNS queries and encodes replies.
//!
//! `read` parses untrusted bytes; a `DnsQuery` encodes its own replies, truncated to the size the client
//! accepts. A message that cannot be parsed gets an error reply, and a message that must not be answered gets
//! none. Pure, and fuzzed.

use hickory_proto::op::{Edns, Message, MessageType, OpCode, ResponseCode};
use hickory_proto::rr::{DNSClass, Name, Record, RecordType};

use super::answer::DnsAnswer;

/// The largest datagram we send, and the size we advertise: it fits every path without fragments (DNS flag
/// day 2020).
pub const DATAGRAM_BYTES_MAX: u16 = 1232;
/// The largest datagram that a client without EDNS accepts (RFC 1035).
const PLAIN_BYTES_MAX: u16 = 512;
/// The largest message over TCP.
const MESSAGE_BYTES_MAX: usize = 65_535;
const HEADER_BYTES: usize = 12;
/// EDNS and a signature; a query needs no more additional records.
const ADDITIONALS_MAX: u16 = 8;

/// The transport of a query and its reply.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum DnsTransport {
    Udp,
    Tcp,
}

/// A parsed message.
#[derive(Debug)]
pub enum ParsedMessage {
    Query(Box<DnsQuery>),
    /// Not a query we can answer; holds the error reply.
    Reply(Vec<u8>),
    /// Noise, or a response: replying to responses could loop for ever.
    Nothing,
}

/// One query.
#[derive(Clone, Debug)]
pub struct DnsQuery {
    request: Message,
    name: Name,
    kind: RecordType,
}

pub fn read(bytes: &[u8]) -> ParsedMessage {
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else { return ParsedMessage::Nothing };
    let id = u16::from_be_bytes([header[0], header[1]]);
    let is_reply = header[2] & 0x80 != 0;
    let op_code = OpCode::from_u8((header[2] >> 3) & 0x0f);
    let count = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    // The counts are checked before parsing: a header of twelve bytes may announce 65,535 records of each
    // section.
    let is_plain = count(4) == 1 && count(6) == 0 && count(8) == 0 && count(10) <= ADDITIONALS_MAX;
    if is_reply {
        return ParsedMessage::Nothing;
    }
    if op_code != OpCode::Query {
        return ParsedMessage::Reply(error_reply(id, op_code, ResponseCode::NotImp));
    }
    match is_plain.then(|| Message::from_vec(bytes)) {
        Some(Ok(request)) => parse_query(request),
        // An IXFR query carries a record in its authority section; we have no zone to transfer.
        Some(Err(_)) | None => ParsedMessage::Reply(error_reply(id, op_code, ResponseCode::FormErr)),
    }
}

fn parse_query(mut request: Message) -> ParsedMessage {
    let Some(question) = request.queries.first() else {
        return ParsedMessage::Reply(error_reply(request.metadata.id, OpCode::Query, ResponseCode::FormErr));
    };
    let (mut name, kind, class) = (question.name().clone(), question.query_type(), question.query_class());
    name.set_fqdn(true);
    // Other additional records are not for this server.
    request.additionals.clear();
    request.signature = None;
    let version = request.edns.as_ref().map_or(0, Edns::version);
    let query = DnsQuery { request, name, kind };
    // RFC 6891, 6.1.3.
    if version > 0 {
        return ParsedMessage::Reply(query.failed(ResponseCode::BADVERS));
    }
    match class {
        DNSClass::IN => ParsedMessage::Query(Box::new(query)),
        _ => ParsedMessage::Reply(query.failed(ResponseCode::Refused)),
    }
}

fn error_reply(id: u16, op_code: OpCode, code: ResponseCode) -> Vec<u8> {
    encode(&Message::error_msg(id, op_code, code))
}

impl DnsQuery {
    pub fn name(&self) -> &Name {
        &self.name
    }

    pub fn kind(&self) -> RecordType {
        self.kind
    }

    /// Encodes the reply with an answer. `Forward` has no reply of its own: it is a server failure until
    /// upstream has answered.
    pub fn answered(&self, answer: DnsAnswer, over: DnsTransport) -> Vec<u8> {
        let mut reply = self.reply(ResponseCode::NoError);
        reply.metadata.authoritative = true;
        match answer {
            DnsAnswer::Records(records) => reply.answers = records,
            DnsAnswer::NoData { soa } => self.deny(&mut reply, ResponseCode::NoError, soa),
            DnsAnswer::NoName { soa } => self.deny(&mut reply, ResponseCode::NXDomain, soa),
            DnsAnswer::Refused => {
                reply.metadata.recursion_available = false;
                reply.metadata.authoritative = false;
                reply.metadata.response_code = ResponseCode::Refused;
            }
            DnsAnswer::NotYet | DnsAnswer::Forward => {
                reply.metadata.authoritative = false;
                reply.metadata.response_code = ResponseCode::ServFail;
            }
        }
        let bytes = encode(&reply);
        match bytes.len() > self.reply_bytes_max(over) {
            true => encode(&reply.truncate()),
            false => bytes,
        }
    }

    /// Encodes a reply with an error code only.
    pub fn failed(&self, code: ResponseCode) -> Vec<u8> {
        encode(&self.reply(code))
    }

    /// Encodes a truncated reply, which makes the client ask again over TCP.
    pub fn truncated(&self) -> Vec<u8> {
        encode(&self.reply(ResponseCode::NoError).truncate())
    }

    /// The maximum size of a reply. A reply of upstream is forwarded up to the size the client advertised.
    pub fn reply_bytes_max(&self, over: DnsTransport) -> usize {
        match over {
            DnsTransport::Tcp => MESSAGE_BYTES_MAX,
            DnsTransport::Udp => {
                let wished = self.request.edns.as_ref().map_or(PLAIN_BYTES_MAX, Edns::max_payload);
                wished.clamp(PLAIN_BYTES_MAX, DATAGRAM_BYTES_MAX).into()
            }
        }
    }

    /// Encodes the same question for upstream: with an unpredictable id, and with only those parts of the
    /// client's query that change the answer. EDNS is hop-by-hop (RFC 6891), so the OPT record is our own.
    pub fn onward(&self) -> ForwardedQuery {
        let mut message = Message::query();
        message.metadata.recursion_desired = self.request.metadata.recursion_desired;
        message.metadata.checking_disabled = self.request.metadata.checking_disabled;
        message.metadata.authentic_data = self.request.metadata.authentic_data;
        message.queries = self.request.queries.clone();
        if let Some(theirs) = &self.request.edns {
            let mut edns = Edns::new();
            let payload = theirs.max_payload().clamp(PLAIN_BYTES_MAX, DATAGRAM_BYTES_MAX);
            edns.set_max_payload(payload).set_dnssec_ok(theirs.flags().dnssec_ok);
            message.set_edns(edns);
        }
        ForwardedQuery { id: message.metadata.id, bytes: encode(&message) }
    }

    /// Checks that `bytes` answer the question in `asked`, and returns them with the client's own id.
    pub fn returned(&self, asked: &ForwardedQuery, mut bytes: Vec<u8>) -> Option<ForwardedAnswer> {
        let header = bytes.first_chunk::<HEADER_BYTES>()?;
        let (code, is_reply) = (ResponseCode::from(0, header[3] & 0x0f), header[2] & 0x80 != 0);
        let questions = u16::from_be_bytes([header[4], header[5]]);
        if u16::from_be_bytes([header[0], header[1]]) != asked.id || !is_reply || questions != 1 {
            return None;
        }
        // Servers may change the case of the name but never compress it: it is the first in the message.
        let question = &asked.bytes[HEADER_BYTES..asked.question_end()];
        let theirs = bytes.get(HEADER_BYTES..HEADER_BYTES + question.len())?;
        if !theirs.eq_ignore_ascii_case(question) {
            return None;
        }
        bytes[..2].copy_from_slice(&self.request.metadata.id.to_be_bytes());
        Some(ForwardedAnswer { code, bytes })
    }

    fn deny(&self, reply: &mut Message, code: ResponseCode, soa: Record) {
        reply.metadata.response_code = code;
        reply.authorities = vec![soa];
    }

    fn reply(&self, code: ResponseCode) -> Message {
        let asked = &self.request.metadata;
        let mut reply = Message::new(asked.id, MessageType::Response, OpCode::Query);
        reply.metadata.recursion_desired = asked.recursion_desired;
        reply.metadata.checking_disabled = asked.checking_disabled;
        reply.metadata.recursion_available = true;
        reply.metadata.response_code = code;
        reply.queries = self.request.queries.clone();
        if self.request.edns.is_some() {
            let mut edns = Edns::new();
            edns.set_max_payload(DATAGRAM_BYTES_MAX);
            reply.set_edns(edns);
        }
        reply
    }
}

/// A query on its way to upstream.
#[derive(Clone, Debug)]
pub struct ForwardedQuery {
    id: u16,
    bytes: Vec<u8>,
}

impl ForwardedQuery {
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The name is followed by its type and class.
    fn question_end(&self) -> usize {
        let mut at = HEADER_BYTES;
        while let Some(length) = self.bytes.get(at).filter(|length| **length != 0) {
            at += 1 + usize::from(*length);
        }
        (at + 5).min(self.bytes.len())
    }
}

/// The reply of upstream.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ForwardedAnswer {
    pub code: ResponseCode,
    pub bytes: Vec<u8>,
}

impl ForwardedAnswer {
    /// Tells whether another server may give a better answer.
    pub fn is_failure(&self) -> bool {
        matches!(self.code, ResponseCode::ServFail | ResponseCode::Refused | ResponseCode::NotImp)
    }
}

/// Encoding fails only if a message is too long, which `answered` prevents. In that case nothing is sent, and
/// the client asks again.
fn encode(message: &Message) -> Vec<u8> {
    message.to_vec().unwrap_or_default()
}

#[cfg(test)]
mod tests;
