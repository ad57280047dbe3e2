//! Keys of both directions, ends, bounds and fragments.

use etherparse::PacketBuilder;

use super::*;
use crate::tun::packet::parse;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn right() -> FlowRight {
    FlowRight { site: "oslo".into(), subject: None, rule: "north".into(), limits: None }
}

fn udp(source: [u8; 4], destination: [u8; 4], ports: (u16, u16)) -> Vec<u8> {
    let mut bytes = Vec::new();
    PacketBuilder::ipv4(source, destination, 64).udp(ports.0, ports.1).write(&mut bytes, b"x").unwrap();
    bytes
}

fn start(key: &FlowKey) -> FlowStart {
    let port = target_port(key, Direction::Outbound);
    FlowStart {
        direction: Direction::Outbound,
        local: key.local,
        remote: key.remote,
        protocol: key.protocol,
        port,
    }
}

fn key_of(bytes: &[u8], direction: Direction) -> FlowKey {
    match lookup(bytes, &parse(bytes).unwrap(), direction, &PrefixTable::default()) {
        Lookup::Flow(key) => key,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_reply_and_an_error_have_the_key_of_their_flow() {
    let (request, reply) =
        (udp([10, 1, 0, 5], [10, 2, 0, 6], (7, 53)), udp([10, 2, 0, 6], [10, 1, 0, 5], (53, 7)));
    let key = key_of(&request, Direction::Outbound);
    assert_eq!(key_of(&reply, Direction::Inbound), key);
    assert_eq!((target_port(&key, Direction::Outbound), target_port(&key, Direction::Inbound)), (53, 7));
    let mut error = Vec::new();
    let builder = PacketBuilder::ipv4([10, 2, 0, 6], [10, 1, 0, 5], 64);
    builder.icmpv4_raw(3, 3, [0; 4]).write(&mut error, &request).unwrap();
    let found = lookup(&error, &parse(&error).unwrap(), Direction::Inbound, &PrefixTable::default());
    assert_eq!(found, Lookup::Related(key));
    let mut error = Vec::new();
    let builder = PacketBuilder::ipv4([10, 1, 0, 5], [10, 2, 0, 6], 64);
    builder.icmpv4_raw(3, 3, [0; 4]).write(&mut error, &reply).unwrap();
    let found = lookup(&error, &parse(&error).unwrap(), Direction::Outbound, &PrefixTable::default());
    assert_eq!(found, Lookup::Related(key));
}

fn echo(source: [u8; 4], destination: [u8; 4], is_request: bool) -> Vec<u8> {
    let (mut bytes, builder) = (Vec::new(), PacketBuilder::ipv4(source, destination, 64));
    match is_request {
        true => builder.icmpv4_echo_request(9, 1).write(&mut bytes, b"x").unwrap(),
        false => builder.icmpv4_echo_reply(9, 1).write(&mut bytes, b"x").unwrap(),
    }
    bytes
}

#[test]
fn an_echo_request_of_the_other_end_is_no_reply() {
    let (here, there) = ([10, 1, 0, 5], [10, 2, 0, 6]);
    let key = key_of(&echo(here, there, true), Direction::Outbound);
    assert_eq!(key_of(&echo(there, here, false), Direction::Inbound), key);
    let theirs = key_of(&echo(there, here, true), Direction::Inbound);
    assert_ne!(theirs, key, "the same identifier, begun at the other end");
    assert_eq!(key_of(&echo(here, there, false), Direction::Outbound), theirs);
    let mut error = Vec::new();
    let builder = PacketBuilder::ipv4(there, here, 64);
    builder.icmpv4_raw(3, 1, [0; 4]).write(&mut error, &echo(here, there, true)).unwrap();
    let found = lookup(&error, &parse(&error).unwrap(), Direction::Inbound, &PrefixTable::default());
    assert_eq!(found, Lookup::Related(key));
}

#[test]
fn later_fragments_follow_the_first_in_their_direction() {
    let (mut table, now) = (FlowTable::new(10), Instant::now());
    let key = key_of(&udp([10, 1, 0, 5], [10, 2, 0, 6], (7, 53)), Direction::Outbound);
    table.note_fragment(FragmentKey::new(Direction::Outbound, &key, 9), key, now);
    let mut later = udp([10, 1, 0, 5], [10, 2, 0, 6], (0, 0));
    (later[5], later[7]) = (9, 4);
    let of = |direction| match lookup(&later, &parse(&later).unwrap(), direction, &PrefixTable::default()) {
        Lookup::Fragment(fragment) => fragment,
        other => panic!("{other:?}"),
    };
    assert_eq!(table.of_fragment(&of(Direction::Outbound)), Some(key));
    assert_eq!(table.of_fragment(&of(Direction::Inbound)), None);
    table.expire(now + FRAGMENT_LIFETIME, |_, _| {});
    assert_eq!(table.of_fragment(&of(Direction::Outbound)), None);
}

#[test]
fn flows_end_when_idle_when_closed_and_when_revoked() {
    let (mut table, now) = (FlowTable::new(3), Instant::now());
    let key = |protocol, port| FlowKey {
        protocol,
        local: ip("10.1.0.5"),
        remote: ip("10.2.0.6"),
        local_port: 9,
        remote_port: port,
    };
    for key in [key(packet::UDP, 1), key(packet::TCP, 2), key(packet::TCP, 3)] {
        table.begin(key, 0, start(&key), right(), now, SystemTime::now()).unwrap();
    }
    let one_more = key(packet::UDP, 9);
    assert_eq!(
        table.begin(one_more, 0, start(&one_more), right(), now, SystemTime::now()).err(),
        Some(FlowRefusal::Full)
    );
    let fin = |flags| {
        TransportHeader::Tcp(TcpHeader { source: 0, destination: 0, sequence: 0, header_bytes: 20, flags })
    };
    let flow = table.get_mut(&key(packet::TCP, 2)).unwrap();
    flow.count(Direction::Outbound, 100, 1, &fin(TcpHeader::FIN), now);
    flow.count(Direction::Inbound, 50, 2, &fin(TcpHeader::FIN), now);
    assert_eq!((flow.outbound, flow.inbound.packets), (Traffic { packets: 1, bytes: 100 }, 2));
    let ends = |table: &mut FlowTable, seconds| {
        let mut ends = Vec::new();
        table.expire(now + Duration::from_secs(seconds), |flow, end| ends.push((flow.key.remote_port, end)));
        ends
    };
    assert_eq!(ends(&mut table, 9), []);
    assert_eq!(ends(&mut table, 10), [(2, FlowEnd::Done)]);
    assert_eq!(ends(&mut table, 180), [(1, FlowEnd::Idle)]);
    let mut ended = Vec::new();
    table.judge(|_| Ok(right()), |flow, end| ended.push((flow.key.remote_port, end)));
    assert_eq!(ended, []);
    table.judge(|_| Err(FlowRefusal::NotAllowed), |flow, end| ended.push((flow.key.remote_port, end)));
    assert_eq!((ended, table.len()), (vec![(3, FlowEnd::Revoked)], 0));
}

fn tcp_key(port: u16) -> FlowKey {
    let (local, remote) = (ip("10.1.0.5"), ip("10.2.0.6"));
    FlowKey { protocol: packet::TCP, local, remote, local_port: 443, remote_port: port }
}

fn begin_at(table: &mut FlowTable, port: u16, peer: usize, direction: Direction) -> Result<(), FlowRefusal> {
    let key = tcp_key(port);
    let start = FlowStart { direction, ..start(&key) };
    table.begin(key, peer, start, right(), Instant::now(), SystemTime::UNIX_EPOCH).map(drop)
}

#[test]
fn one_peer_begins_no_more_than_half_of_all_flows() {
    let (mut table, now) = (FlowTable::new(8), Instant::now());
    for port in 0..4 {
        begin_at(&mut table, port, 1, Direction::Inbound).unwrap();
    }
    assert_eq!(begin_at(&mut table, 4, 1, Direction::Inbound), Err(FlowRefusal::Full));
    assert_eq!(begin_at(&mut table, 3, 1, Direction::Inbound), Ok(()), "a known flow is not counted again");
    assert_eq!(begin_at(&mut table, 5, 2, Direction::Inbound), Ok(()), "another peer");
    assert_eq!(begin_at(&mut table, 6, 1, Direction::Outbound), Ok(()), "a host of this site, to that peer");
    // Flows that ended make room.
    table.judge(
        |flow| if flow.key.remote_port < 2 { Err(FlowRefusal::NotAllowed) } else { Ok(right()) },
        |_, _| {},
    );
    for port in [7, 8] {
        begin_at(&mut table, port, 1, Direction::Inbound).unwrap();
    }
    assert_eq!(begin_at(&mut table, 9, 1, Direction::Inbound), Err(FlowRefusal::Full));
    table.expire(now + Duration::from_secs(8000), |_, _| {});
    assert!(table.is_empty() && table.begun_by_peers.is_empty());
}

#[test]
fn a_connection_that_was_not_answered_is_forgotten_after_four_minutes() {
    let (mut table, now) = (FlowTable::new(8), Instant::now());
    for port in [1, 2] {
        begin_at(&mut table, port, 1, Direction::Inbound).unwrap();
        let flow = table.get_mut(&tcp_key(port)).unwrap();
        flow.count(Direction::Inbound, 40, 1, &TransportHeader::Opaque, now);
    }
    let answered = table.get_mut(&tcp_key(2)).unwrap();
    answered.count(Direction::Outbound, 40, 1, &TransportHeader::Opaque, now);
    let mut ended = Vec::new();
    table.expire(now + Duration::from_secs(239), |flow, _| ended.push(flow.key.remote_port));
    assert_eq!(ended, [0; 0]);
    table.expire(now + Duration::from_secs(241), |flow, _| ended.push(flow.key.remote_port));
    assert_eq!(ended, [1]);
    assert_eq!(table.len(), 1);
}
