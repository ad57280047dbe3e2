//! ARP and neighbour discovery messages of a LAN.
//!
//! The first byte chooses the family. Invariants: the answer to a question is read as a claim of the address that was asked
//! for, with the hardware address of the gateway; a message adds no state.
#![no_main]

use std::time::Instant;

use causeway_gateway::neighbour_proxy::claims::NeighbourClaims;
use causeway_gateway::neighbour_proxy::message::{NeighbourFamily, answer, read};
use causeway_gateway::neighbour_proxy::plan::AnsweredAddresses;
use libfuzzer_sys::fuzz_target;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 1];
const HOST: [u8; 6] = [2, 0, 0, 0, 0, 7];

fuzz_target!(|data: &[u8]| {
    let Some((first, payload)) = data.split_first() else { return };
    let family = if first & 1 == 0 { NeighbourFamily::V4 } else { NeighbourFamily::V6 };
    let Some(message) = read(family, HOST, payload) else { return };
    if let Some(question) = &message.question {
        let frame = answer(question, OWN).unwrap();
        assert_eq!(read(family, OWN, &frame.payload).unwrap().claim, Some((question.target, OWN)));
    }
    let networks = ["0.0.0.0/0", "::/0"].map(|network| network.parse().unwrap()).to_vec();
    let (mut claims, now) = (NeighbourClaims::new(OWN), Instant::now());
    claims.follow(AnsweredAddresses { networks, ..AnsweredAddresses::default() }, now);
    let answered = claims.handle(&message, now).is_some();
    assert!(!answered || message.question.is_some());
    assert_eq!((claims.held(), claims.conflicts().count()), ((0, 2), 0));
});
