//! Rows for the state of addresses: probes, announcements, conflicts and the limit of answers.

use super::super::message::{NeighbourFamily, read};
use super::*;

const OWN: HardwareAddress = [2, 0, 0, 0, 0, 1];
const HOST: HardwareAddress = [2, 0, 0, 0, 0, 7];
const OTHER_GATEWAY: HardwareAddress = [2, 0, 0, 0, 0, 9];
const PRESENCE: &str = "10.0.0.129";

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn answered(addresses: &[&str], networks: &[&str]) -> AnsweredAddresses {
    AnsweredAddresses {
        addresses: addresses.iter().map(|address| ip(address)).collect(),
        networks: networks.iter().map(|network| network.parse().unwrap()).collect(),
        ..AnsweredAddresses::default()
    }
}

fn question(target: &str) -> NeighbourMessage {
    let question = NeighbourQuestion {
        target: ip(target),
        sender: Some(ip("10.0.0.2")),
        hardware: HOST,
        is_takeover: false,
    };
    NeighbourMessage { question: Some(question), claim: Some((ip("10.0.0.2"), HOST)) }
}

/// Runs the clock until an address is held or `until` has passed, and returns the frames that were sent.
fn run(claims: &mut NeighbourClaims, now: &mut Instant, until: Duration) -> Vec<NeighbourFrame> {
    let (mut frames, end) = (Vec::new(), *now + until);
    while let Some(next) = claims.next_due().filter(|next| *next <= end) {
        *now = next.max(*now);
        frames.extend(claims.due(*now));
    }
    *now = end;
    frames
}

fn started(addresses: &[&str], networks: &[&str]) -> (NeighbourClaims, Instant, Vec<NeighbourFrame>) {
    let (mut claims, mut now) = (NeighbourClaims::new(OWN), Instant::now());
    claims.follow(answered(addresses, networks), now);
    let frames = run(&mut claims, &mut now, Duration::from_secs(5));
    (claims, now, frames)
}

fn message(frame: &NeighbourFrame) -> NeighbourMessage {
    read(NeighbourFamily::V4, OWN, &frame.payload).unwrap()
}

#[test]
fn an_address_is_probed_then_announced_then_answered() {
    let (mut claims, mut now) = (NeighbourClaims::new(OWN), Instant::now());
    claims.follow(answered(&[PRESENCE], &[]), now);
    assert_eq!(claims.due(now).len(), 1);
    assert_eq!(claims.handle(&question(PRESENCE), now), None, "not before the probes are over");
    let frames = run(&mut claims, &mut now, Duration::from_secs(5));
    let messages: Vec<NeighbourMessage> = frames.iter().map(message).collect();
    let is_probe = |message: &NeighbourMessage| message.question.is_some_and(|question| question.is_takeover);
    assert!(messages[..2].iter().all(is_probe), "{messages:?}");
    assert!(messages[2..].iter().all(|message| message.claim == Some((ip(PRESENCE), OWN))), "{messages:?}");
    assert_eq!((messages.len(), claims.held()), (4, (1, 0)));
    assert!(claims.handle(&question(PRESENCE), now).is_some());
    assert_eq!(claims.handle(&question("10.0.0.130"), now), None, "an address that no presence has");
    assert_eq!(claims.next_due(), None, "nothing more is sent");
    claims.follow(AnsweredAddresses::default(), now);
    assert_eq!(claims.handle(&question(PRESENCE), now), None, "the presence is gone");
}

#[test]
fn an_address_that_a_host_of_the_lan_has_is_left_to_it_and_probed_later() {
    let (mut claims, mut now) = (NeighbourClaims::new(OWN), Instant::now());
    claims.follow(answered(&[PRESENCE], &[]), now);
    claims.due(now);
    let claim = NeighbourMessage { question: None, claim: Some((ip(PRESENCE), HOST)) };
    assert_eq!(claims.handle(&claim, now), None);
    assert!(run(&mut claims, &mut now, Duration::from_secs(20)).is_empty());
    assert_eq!(claims.handle(&question(PRESENCE), now), None);
    assert_eq!(claims.conflicts().collect::<Vec<_>>(), [(ip(PRESENCE), HOST)]);
    // The host is gone: its address is answered after the next probes, which another active gateway would answer.
    let frames = run(&mut claims, &mut now, Duration::from_secs(20));
    let first = message(&frames[0]).question.unwrap();
    assert!(!first.is_takeover);
    assert!(claims.handle(&question(PRESENCE), now).is_some());
    assert_eq!(claims.conflicts().count(), 0);
}

#[test]
fn a_gateway_that_becomes_active_replaces_the_former_one() {
    let (mut former, now, _) = started(&[PRESENCE], &[]);
    let probe = message::probe(ip(PRESENCE), OTHER_GATEWAY, true).unwrap();
    assert_eq!(former.handle(&message(&probe), now), None, "it does not defend the address");
    let announcement = message::announcement(ip(PRESENCE), OTHER_GATEWAY).unwrap();
    assert_eq!(former.handle(&message(&announcement), now), None);
    assert_eq!(
        former.handle(&question(PRESENCE), now),
        None,
        "it has heard that another one has the address"
    );
    // A host that wants the address itself learns that it is taken.
    let (mut active, now, _) = started(&[PRESENCE], &[]);
    let probe = message::probe(ip(PRESENCE), HOST, false).unwrap();
    assert!(active.handle(&message(&probe), now).is_some());
}

#[test]
fn a_network_of_another_site_is_answered_as_a_whole_and_its_known_hosts_are_announced() {
    let (mut claims, mut now) = (NeighbourClaims::new(OWN), Instant::now());
    let hosts = (0..=199).map(|last| IpAddr::from([10, 0, 1, last])).collect();
    claims.follow(AnsweredAddresses { hosts, ..answered(&[], &["10.0.1.0/24"]) }, now);
    let mut frames = claims.due(now);
    assert_eq!(frames.len(), BATCH_MAX, "no more at once");
    frames.extend(run(&mut claims, &mut now, Duration::from_secs(1)));
    assert_eq!(frames.len(), 200);
    assert!(claims.handle(&question("10.0.1.77"), now).is_some());
    assert_eq!(claims.handle(&question("10.0.2.77"), now), None);
}

#[test]
fn answers_are_limited_and_questions_add_no_state() {
    let (mut claims, now, _) = started(&[], &["10.0.0.0/8"]);
    let asked = (0..5000_u32).filter(|number| {
        let target = std::net::Ipv4Addr::from(0x0a00_0000 + number).to_string();
        claims.handle(&question(&target), now).is_some()
    });
    assert_eq!(asked.count(), ANSWERS_PER_SECOND as usize);
    assert_eq!((claims.claims.len(), claims.announced.len()), (0, 0));
    assert!(claims.handle(&question("10.0.0.1"), now + Duration::from_secs(1)).is_some());
}

#[test]
fn only_an_address_that_is_won_or_lost_is_a_change() {
    let (mut claims, mut now, _) = started(&[PRESENCE], &[]);
    assert!(claims.take_change() && !claims.take_change());
    // Questions, answered or not, change nothing, whatever their number.
    for target in [PRESENCE, "10.0.0.130"] {
        claims.handle(&question(target), now);
        assert!(claims.due(now).is_empty() && !claims.take_change(), "{target}");
    }
    let claim = NeighbourMessage { question: None, claim: Some((ip(PRESENCE), HOST)) };
    claims.handle(&claim, now);
    assert!(claims.take_change(), "a host has taken the address");
    claims.handle(&claim, now);
    assert!(!claims.take_change(), "the same host is heard again");
    run(&mut claims, &mut now, Duration::from_secs(40));
    assert!(claims.take_change() && claims.held() == (1, 0), "the address is free again");
    claims.follow(AnsweredAddresses::default(), now);
    assert!(claims.take_change());
}
