//! A Kafka connection: requests of a client, responses of a broker, and rewritten responses.
//!
//! Invariants: the output does not depend on the chunk boundaries, nothing is lost, and requests keep their
//! length; the client id is the same and printable; a rewritten response can be parsed again, names the
//! reachable brokers at their new addresses and no other, and keeps the remaining bytes.
#![no_main]

use std::net::SocketAddr;

use bytes::Bytes;
use causeway_gateway::proxy::kafka::frames::{ResponseScanner, KafkaFrameError, FramePiece, RequestScanner, KafkaConversation};
use causeway_gateway::proxy::kafka::client_id::ClientIdReader;
use causeway_gateway::proxy::kafka::rewrite::{limit, read};
use causeway_gateway::proxy::kafka::versions::{RewrittenApi, PendingRequest};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let [what, step, version, data @ ..] = data else { return };
    match what % 5 {
        0 => talk(data, usize::from(*step) + 1, usize::from(*version)),
        1 => change(PendingRequest { api: RewrittenApi::Metadata, version: i16::from(version % 14) }, data, *step),
        2 => change(PendingRequest { api: RewrittenApi::FindCoordinator, version: i16::from(version % 7) }, data, *step),
        3 => change(PendingRequest { api: RewrittenApi::DescribeCluster, version: i16::from(version % 3) }, data, *step),
        _ => versions(i16::from(version % 5), data),
    }
});

fn talk(data: &[u8], step: usize, at: usize) {
    let (said, heard) = data.split_at(at.min(data.len()));
    let whole = converse(said, heard, usize::MAX);
    let pieces = converse(said, heard, step);
    // A connection that ends with an error may have passed more or fewer bytes before.
    if let (Ok(whole), Ok(pieces)) = (&whole, &pieces) {
        assert_eq!(whole, pieces);
    }
    assert_eq!(whole.is_ok(), pieces.is_ok());
    let name = called(said, usize::MAX);
    assert_eq!(name, called(said, step));
    assert!(name.iter().all(|name| name.len() <= 1024 && !name.contains(char::is_control)));
}

/// Returns the client id: once at most, in any chunks.
fn called(said: &[u8], step: usize) -> Vec<String> {
    let mut naming = ClientIdReader::default();
    let names =
        said.chunks(step.min(said.len().max(1))).filter_map(|chunk| naming.take(chunk)).collect::<Vec<_>>();
    assert!(names.len() < 2);
    names
}

type Talked = (Vec<u8>, Vec<u8>, Vec<(PendingRequest, Bytes)>);

fn converse(said: &[u8], heard: &[u8], step: usize) -> Result<Talked, KafkaFrameError> {
    let (mut talk, mut requests, mut answers) = (KafkaConversation::default(), RequestScanner::default(), ResponseScanner::default());
    let (mut passed, mut back, mut held) = (Vec::new(), Vec::new(), Vec::new());
    for chunk in said.chunks(step.min(said.len().max(1))) {
        requests.take(Bytes::copy_from_slice(chunk), &mut talk, |piece| passed.extend_from_slice(&piece))?;
    }
    assert!(passed.len() <= said.len() && said.len() - passed.len() < 12);
    for chunk in heard.chunks(step.min(heard.len().max(1))) {
        answers.take(Bytes::copy_from_slice(chunk), &mut talk, |piece| match piece {
            FramePiece::Pass(bytes) => back.extend_from_slice(&bytes),
            FramePiece::Held(asked, frame) => {
                back.extend_from_slice(&frame);
                held.push((asked, frame));
            }
        })?;
    }
    assert!(heard.starts_with(&back));
    Ok((passed, back, held))
}

fn change(asked: PendingRequest, data: &[u8], reached: u8) {
    let frame = Bytes::from([&[0; 8], data].concat());
    let Ok(Some(reading)) = read(asked, &frame) else { return };
    let addresses: Vec<Option<SocketAddr>> = reading
        .named()
        .iter()
        .enumerate()
        .map(|(at, named)| {
            let is_reached = named.names_broker() && reached >> (at % 8) & 1 == 1;
            is_reached.then(|| SocketAddr::new("198.18.0.9".parse().unwrap(), at as u16))
        })
        .collect();
    let is_coordinator = asked.api == RewrittenApi::FindCoordinator;
    let count = reading.named().len();
    let left = addresses.iter().flatten().count();
    let written = reading.write(&addresses);
    assert!(frame.ends_with(&written[1]));
    let written = written.concat();
    assert_eq!(written[..4], (written.len() as i32 - 4).to_be_bytes());
    let again = read(asked, &Bytes::from(written)).unwrap().unwrap();
    assert_eq!(again.named().len(), if is_coordinator { count } else { left });
    let named = again.named().iter().filter(|named| named.names_broker());
    let ports: Vec<i32> =
        named.inspect(|named| assert_eq!(named.host, "198.18.0.9")).map(|named| named.port).collect();
    let expected: Vec<i32> = addresses.iter().flatten().map(|address| address.port().into()).collect();
    assert_eq!(ports, expected);
}

fn versions(version: i16, data: &[u8]) {
    let frame = Bytes::from([&[0; 8], data].concat());
    let Ok(limited) = limit(version, &frame) else { return };
    // Limiting the offered versions twice changes nothing.
    assert_eq!(limit(version, &limited), Ok(limited.clone()));
}
