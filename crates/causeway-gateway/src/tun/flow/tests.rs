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

/// A flow whose first packet came from `host`.
fn new_flow(key: FlowKey, peer: usize, sender: (Option<usize>, u8), direction: Direction) -> NewFlow {
    let start = FlowStart { direction, ..start(&key) };
    let sender = FlowSender { peer: sender.0, host: IpAddr::from([192, 0, 2, sender.1]) };
    NewFlow { key, peer, sender, start, right: right() }
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
    table.fragments.note(None, FragmentKey::new(Direction::Outbound, &key, 9), key, now);
    let mut later = udp([10, 1, 0, 5], [10, 2, 0, 6], (0, 0));
    (later[5], later[7]) = (9, 4);
    let of = |direction| match lookup(&later, &parse(&later).unwrap(), direction, &PrefixTable::default()) {
        Lookup::Fragment(fragment) => fragment,
        other => panic!("{other:?}"),
    };
    assert_eq!(table.fragments.find(None, &of(Direction::Outbound)), Some(key));
    assert_eq!(table.fragments.find(None, &of(Direction::Inbound)), None);
    table.expire(now + Duration::from_secs(60), |_, _| {});
    assert_eq!(table.fragments.find(None, &of(Direction::Outbound)), None);
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
    let begin = |table: &mut FlowTable, key: FlowKey| {
        let new = new_flow(key, 0, (None, key.remote_port as u8), Direction::Outbound);
        table.begin(new, now, SystemTime::now()).map(drop)
    };
    for key in [key(packet::UDP, 1), key(packet::TCP, 2), key(packet::TCP, 3)] {
        begin(&mut table, key).unwrap();
    }
    assert_eq!(begin(&mut table, key(packet::UDP, 9)), Err(FlowRefusal::Full));
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
    let from = (direction == Direction::Inbound).then_some(peer);
    let new = new_flow(tcp_key(port), peer, (from, port as u8), direction);
    table.begin(new, Instant::now(), SystemTime::UNIX_EPOCH).map(drop)
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
    assert!(table.is_empty() && table.begun_by_peers.is_empty() && table.begun_by_hosts.is_empty());
}

#[test]
fn a_flow_is_charged_to_the_peer_that_sent_its_first_packet() {
    let begin = |table: &mut FlowTable, port: u16, from: Option<usize>, direction: Direction| {
        let new = new_flow(tcp_key(port), 1, (from, port as u8), direction);
        table.begin(new, Instant::now(), SystemTime::UNIX_EPOCH).map(drop)
    };
    let mut table = FlowTable::new(8);
    // Segments of peer 1 that look like replies: the flows are taken to have begun here.
    for port in 0..4 {
        begin(&mut table, port, Some(1), Direction::Outbound).unwrap();
    }
    assert_eq!(begin(&mut table, 4, Some(1), Direction::Outbound), Err(FlowRefusal::Full));
    // A reply of a host of this site, after a restart, is not charged to the peer.
    assert_eq!(begin(&mut table, 5, None, Direction::Inbound), Ok(()));
    assert_eq!((table.begun_by_peers.get(&1), table.len()), (Some(&4), 5));
    // The hosts move behind another gateway: so does the charge.
    let moved = |flow: &mut Flow| {
        flow.peer = if flow.key.remote_port < 3 { 2 } else { 1 };
        Ok(right())
    };
    table.judge(moved, |_, _| {});
    assert_eq!((table.begun_by_peers.get(&1), table.begun_by_peers.get(&2)), (Some(&1), Some(&3)));
    table.judge(|_| Err(FlowRefusal::NotAllowed), |_, _| {});
    assert!(table.begun_by_peers.is_empty() && table.begun_by_hosts.is_empty());
}

#[test]
fn a_host_holds_no_more_flows_than_are_free() {
    let begin = |table: &mut FlowTable, port: u16, host: u8| {
        let new = new_flow(tcp_key(port), 1, (None, host), Direction::Outbound);
        table.begin(new, Instant::now(), SystemTime::UNIX_EPOCH).is_ok()
    };
    let mut table = FlowTable::new(120);
    let mut ports = 0..;
    let mut begun = |table: &mut FlowTable, host: u8| {
        ports.by_ref().take(200).filter(|port| begin(table, *port, host)).count()
    };
    assert_eq!(begun(&mut table, 1), 60, "a host that scans leaves half of the table");
    assert_eq!(begun(&mut table, 2), 30);
    assert_eq!(begun(&mut table, 3), 15);
    let modest =
        (10..20).map(|host| ports.by_ref().take(1).filter(|port| begin(&mut table, *port, host)).count());
    assert_eq!(modest.sum::<usize>(), 10, "hosts with one flow each find a place");
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
