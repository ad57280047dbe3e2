//! Hosts of a LAN that answer, do not answer, fall silent, or are too many.

use super::*;

const OWN: HardwareAddress = [2, 0xca, 5, 0, 0, 1];
const HOST: HardwareAddress = [2, 0, 0, 0, 0, 9];

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn after(begin: Instant, seconds: u64) -> Instant {
    begin + Duration::from_secs(seconds)
}

#[test]
fn packets_wait_for_the_answer_of_their_host_in_order() {
    for address in ["10.0.0.9", "fd00::9"].map(ip) {
        let (mut hosts, now) = (LanNeighbours::new(OWN), Instant::now());
        let first = hosts.deliver(address, b"1", now);
        assert!(first.to.is_none());
        let question = first.question.unwrap();
        let family = message::NeighbourFamily::of(address);
        let read = message::read(family, OWN, &question.payload).unwrap().question.unwrap();
        assert_eq!((read.target, read.hardware), (address, OWN));
        for packet in [b"2", b"3", b"4", b"5"] {
            assert_eq!(hosts.deliver(address, packet, now), Delivery::default(), "one question");
        }
        assert_eq!(hosts.take_dropped(), 1, "four packets wait");
        let waiting = hosts.learn(address, HOST, now);
        assert_eq!(waiting, [b"1", b"2", b"3", b"4"]);
        assert_eq!(hosts.deliver(address, b"6", now), Delivery { to: Some(HOST), question: None });
    }
}

#[test]
fn a_host_that_does_not_answer_is_asked_three_times() {
    let (mut hosts, begin, address) = (LanNeighbours::new(OWN), Instant::now(), ip("10.0.0.9"));
    hosts.deliver(address, b"1", begin);
    let asked: Vec<usize> = (0..5).map(|second| hosts.handle_time(after(begin, second)).len()).collect();
    assert_eq!(asked, [0, 1, 1, 0, 0]);
    assert_eq!(hosts.take_dropped(), 1);
    assert!(hosts.deliver(address, b"2", after(begin, 5)).question.is_some(), "it is asked for again");
}

#[test]
fn a_silent_host_is_asked_while_packets_still_go_to_it_and_forgotten_later() {
    let (mut hosts, begin, address) = (LanNeighbours::new(OWN), Instant::now(), ip("10.0.0.9"));
    hosts.learn(address, HOST, begin);
    let check = |hosts: &mut LanNeighbours, second: u64, to: bool, asks: bool| {
        let delivery = hosts.deliver(address, b"p", after(begin, second));
        assert_eq!((delivery.to.is_some(), delivery.question.is_some()), (to, asks), "after {second} s");
    };
    check(&mut hosts, 29, true, false);
    check(&mut hosts, 30, true, true);
    check(&mut hosts, 30, true, false);
    check(&mut hosts, 31, true, true);
    check(&mut hosts, 120, false, true);
    hosts.learn(address, HOST, after(begin, 121));
    check(&mut hosts, 122, true, false);
}

#[test]
fn addresses_that_no_host_has_are_not_remembered_and_the_memory_is_bounded() {
    let (mut hosts, now) = (LanNeighbours::new(OWN), Instant::now());
    for (address, hardware) in [
        ("10.0.0.9", OWN),
        ("10.0.0.9", [0; 6]),
        ("10.0.0.9", [0xff; 6]),
        ("0.0.0.0", HOST),
        ("224.0.0.1", HOST),
    ] {
        hosts.learn(ip(address), hardware, now);
        assert!(hosts.known.is_empty(), "{address} {hardware:?}");
    }
    for number in 0..KNOWN_MAX as u32 + 10 {
        hosts.learn(IpAddr::from((0x0a00_0000 + number).to_be_bytes()), HOST, now);
    }
    assert_eq!(hosts.known.len(), KNOWN_MAX);
    for number in 0..ASKED_MAX as u32 + 10 {
        hosts.deliver(IpAddr::from((0x0b00_0000 + number).to_be_bytes()), b"p", now);
    }
    assert_eq!((hosts.asked.len(), hosts.take_dropped()), (ASKED_MAX, 10));
}
