//! Rows for messages of ARP and neighbour discovery; no bytes cause a panic.

use proptest::prelude::*;

use super::*;

const HOST: HardwareAddress = [2, 0, 0, 0, 0, 7];
const OWN: HardwareAddress = [2, 0, 0, 0, 0, 1];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// A question as a host writes it.
fn asked(target: &str, sender: Option<&str>) -> (NeighbourFamily, Vec<u8>) {
    match (ip(target), sender.map(ip)) {
        (IpAddr::V4(target), sender) => {
            let sender = match sender {
                Some(IpAddr::V4(sender)) => sender,
                _ => Ipv4Addr::UNSPECIFIED,
            };
            (NeighbourFamily::V4, arp(ARP_REQUEST, (HOST, sender), ([0; 6], target)))
        }
        (IpAddr::V6(target), sender) => {
            let (sender, option) = match sender {
                Some(IpAddr::V6(sender)) => (sender, Some((SOURCE_HARDWARE, HOST))),
                _ => (Ipv6Addr::UNSPECIFIED, None),
            };
            let ends = (sender, solicited_node(target));
            (NeighbourFamily::V6, nd(SOLICITATION, 0, target, ends, option).unwrap())
        }
    }
}

#[test]
fn a_question_is_read_and_its_answer_names_this_gateway() {
    let check = |target: &str, sender: Option<&str>, to: HardwareAddress| {
        let (family, payload) = asked(target, sender);
        let question = read(family, HOST, &payload).unwrap().question.unwrap();
        let expected = NeighbourQuestion {
            target: ip(target),
            sender: sender.map(ip),
            hardware: HOST,
            is_takeover: false,
        };
        assert_eq!(question, expected);
        let answer = answer(&question, OWN).unwrap();
        assert_eq!(answer.to, to, "{target}");
        let said = read(family, OWN, &answer.payload).unwrap();
        assert_eq!(said, NeighbourMessage { question: None, claim: Some((ip(target), OWN)) }, "{target}");
    };
    check("10.0.0.130", Some("10.0.0.2"), HOST);
    check("10.0.0.130", None, HOST);
    check("fd00:10::82", Some("fd00:10::2"), HOST);
    check("fd00:10::82", None, multicast(ALL_NODES));
}

#[test]
fn messages_are_those_of_the_rfcs() {
    let frame = announcement(ip("10.0.0.130"), OWN).unwrap();
    let expected = [[0, 1, 8, 0, 6, 4, 0, 1].as_slice(), &OWN, &[10, 0, 0, 130], &[0; 6], &[10, 0, 0, 130]];
    assert_eq!((frame.to, frame.payload), (BROADCAST, expected.concat()));
    let frame = announcement(ip("fd00:10::82"), OWN).unwrap();
    // An oracle reads the headers and computes the checksum again.
    let parsed = etherparse::SlicedPacket::from_ip(&frame.payload).unwrap();
    let Some(etherparse::TransportSlice::Icmpv6(icmp)) = parsed.transport else { panic!("{parsed:?}") };
    let (source, destination) = (ip("fd00:10::82"), ip("ff02::1"));
    let (IpAddr::V6(source), IpAddr::V6(destination)) = (source, destination) else { panic!() };
    assert!(icmp.is_checksum_valid(source.octets(), destination.octets()));
    assert_eq!((icmp.type_u8(), frame.to), (ADVERTISEMENT, [0x33, 0x33, 0, 0, 0, 1]));
    assert_eq!(solicited_node("fd00::aa:bbcc".parse().unwrap()).to_string(), "ff02::1:ffaa:bbcc");
}

#[test]
fn the_probe_of_a_gateway_that_becomes_active_is_known_by_its_mark() {
    for target in [ip("10.0.0.130"), ip("fd00:10::82")] {
        for is_takeover in [true, false] {
            let frame = probe(target, OWN, is_takeover).unwrap();
            let message = read(NeighbourFamily::of(target), OWN, &frame.payload).unwrap();
            let question = message.question.unwrap();
            assert_eq!((question.target, question.sender), (target, None));
            assert_eq!((question.is_takeover, message.claim), (is_takeover, None), "{target}");
        }
    }
}

#[test]
fn a_message_that_no_host_of_the_link_sends_is_not_read() {
    let (_, v4) = asked("10.0.0.130", Some("10.0.0.2"));
    let (_, v6) = asked("fd00:10::82", Some("fd00:10::2"));
    let check = |family: NeighbourFamily, bytes: &[u8], at: usize, value: u8| {
        let mut bytes = bytes.to_vec();
        bytes[at] = value;
        assert_eq!(read(family, HOST, &bytes), None, "byte {at}");
    };
    // Hardware type, protocol, lengths, operation, a group as the sender.
    for (at, value) in [(1, 6), (2, 9), (4, 8), (5, 16), (6, 1), (7, 3), (8, 3)] {
        check(NeighbourFamily::V4, &v4, at, value);
    }
    // Version, length, next header, hop limit, source, type, code, checksum, option without a length.
    for (at, value) in
        [(0, 0x40), (5, 200), (6, 17), (7, 64), (9, 9), (40, 133), (41, 1), (42, 9), (65, 0), (65, 2)]
    {
        check(NeighbourFamily::V6, &v6, at, value);
    }
    for length in 0..v6.len() {
        assert_eq!(read(NeighbourFamily::V6, HOST, &v6[..length]), None);
    }
    for length in 0..ARP_BYTES {
        assert_eq!(read(NeighbourFamily::V4, HOST, &v4[..length]), None);
    }
}

proptest! {
    #[test]
    fn no_bytes_cause_a_panic(mut bytes in prop::collection::vec(any::<u8>(), 0..120), plausible in any::<bool>()) {
        for family in [NeighbourFamily::V4, NeighbourFamily::V6] {
            if plausible {
                let start: &[u8] = if family == NeighbourFamily::V4 { &[0, 1, 8, 0, 6, 4, 0, 1] } else { &[0x60, 0, 0, 0, 0, 32, 58, 255] };
                for (byte, value) in bytes.iter_mut().zip(start) {
                    *byte = *value;
                }
            }
            if let Some(question) = read(family, HOST, &bytes).and_then(|message| message.question) {
                let answer = answer(&question, OWN).unwrap();
                let said = read(family, OWN, &answer.payload).unwrap();
                prop_assert_eq!(said.claim, Some((question.target, OWN)));
            }
        }
    }
}
