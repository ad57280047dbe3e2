//! Clients and the addresses they are given, against the rules that must hold whatever comes.

use proptest::prelude::*;

use super::*;
use crate::tun::packet::{SCTP, TCP, UDP};

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn client(number: u8) -> ClientId {
    ClientId { peer: 0, number: IpAddr::from([240, 0, 0, number]) }
}

fn addresses(range: &str) -> ClientAddresses {
    let mut addresses = ClientAddresses::default();
    addresses.follow(&[net(range)], &BTreeSet::new());
    addresses
}

#[test]
fn a_client_has_one_address_of_the_upper_half_for_all_its_flows() {
    let mut given = addresses("198.18.0.0/24");
    let first = given.assign(client(1), "rome", TCP, 5000).unwrap();
    assert!(net("198.18.0.128/25").contains(&first.address) && first.port == 5000, "{first:?}");
    assert_eq!(given.assign(client(1), "rome", UDP, 9).unwrap(), ClientEnd { port: 9, ..first });
    let second = given.assign(client(2), "rome", TCP, 5000).unwrap();
    assert_ne!(second.address, first.address);
    assert_eq!(
        addresses("198.18.0.0/24").assign(client(1), "rome", TCP, 5000),
        Some(first),
        "after a restart"
    );
    assert_eq!(given.find(client(3), TCP, 5000), None);
}

#[test]
fn clients_without_a_free_address_share_one_by_port() {
    // The upper half is .4 to .7, of which .7 is the broadcast address and .6 is shared.
    let mut given = addresses("198.18.0.0/29");
    let own: BTreeSet<IpAddr> =
        (1..3).map(|number| given.assign(client(number), "rome", TCP, 5000).unwrap().address).collect();
    assert_eq!(own, ["198.18.0.4", "198.18.0.5"].map(|text| text.parse().unwrap()).into());
    let shared: BTreeSet<u16> = (3..40)
        .map(|number| {
            let end = given.assign(client(number), "rome", TCP, 5000).unwrap();
            assert_eq!(end.address, "198.18.0.6".parse::<IpAddr>().unwrap());
            assert_eq!(given.find(client(number), TCP, 5000), Some(end));
            end.port
        })
        .collect();
    assert_eq!(shared.len(), 37, "every client has a port of its own");
    assert_eq!(given.assign(client(50), "rome", SCTP, 0), None, "without ports there is nothing to share");
    assert_eq!(given.assign(client(50), "rome", UDP, 5000).unwrap().port, 5000, "another protocol");
    let used = given.find(client(9), TCP, 5000).unwrap();
    given.retain(|_| false, |end, protocol| (end, protocol) == (used, TCP));
    assert_eq!(given.find(client(9), TCP, 5000), Some(used));
    assert_eq!(given.find(client(10), TCP, 5000), None);
    assert!(own.contains(&given.assign(client(50), "rome", SCTP, 0).unwrap().address));
    given.forget_peer(0);
    assert_eq!(given.find(client(9), TCP, 5000), None);
}

#[test]
fn the_clients_of_one_peer_leave_a_quarter_of_the_addresses_to_other_peers() {
    // The upper half has 31 usable addresses, of which one is shared: 30 for clients, 23 of them for one peer.
    let mut given = addresses("198.18.0.0/26");
    let own = |given: &mut ClientAddresses, peer: usize| {
        let clients = (0..200).map(|number| ClientId { peer, number: IpAddr::from([240, 0, 0, number]) });
        clients.filter(|client| given.assign(*client, "rome", SCTP, 0).is_some()).count()
    };
    assert_eq!(own(&mut given, 0), 23);
    assert_eq!(own(&mut given, 1), 7, "another peer has the rest");
    let end = given.assign(client(250), "rome", TCP, 5000).unwrap();
    assert_eq!(end.address, "198.18.0.62".parse::<IpAddr>().unwrap(), "over its part a peer shares by port");
    given.forget_peer(1);
    assert_eq!(own(&mut given, 0), 23, "its part does not grow with what other peers gave back");
    given.retain(|_| false, |_, _| false);
    assert_eq!(own(&mut given, 1), 23, "entries that no flow uses are not counted");
}

#[test]
fn a_client_with_many_ports_leaves_shared_ports_to_other_clients() {
    // The upper half has one address, which is shared.
    let mut given = addresses("198.18.0.0/30");
    let ports = |given: &mut ClientAddresses, number: u8| {
        (1..=u16::MAX).filter(|port| given.assign(client(number), "rome", TCP, *port).is_some()).count()
    };
    let greedy = ports(&mut given, 1);
    assert_eq!(greedy, part_of_one_peer(ADDRESSES_MAX) / 2, "half of what its peer may have");
    let second = ports(&mut given, 2);
    assert_eq!(second, part_of_one_peer(ADDRESSES_MAX) / 4, "half of what is left");
    assert!(given.assign(client(3), "rome", TCP, 5000).is_some(), "a client with one port");
    given.retain(|_| false, |_, _| false);
    assert!(given.shared_by_client.is_empty() && given.held.is_empty());
}

#[test]
fn addresses_that_are_taken_are_not_given() {
    let taken: BTreeSet<IpAddr> = ["198.18.0.4", "198.18.0.6"].map(|text| text.parse().unwrap()).into();
    let mut given = ClientAddresses::default();
    given.follow(&[net("198.18.0.0/29")], &taken);
    assert_eq!(given.assign(client(1), "", TCP, 1).unwrap().address, "198.18.0.5".parse::<IpAddr>().unwrap());
    assert_eq!(given.assign(client(2), "", TCP, 1), None, "the shared address is taken");
    given.follow(&[net("198.18.1.0/29")], &BTreeSet::new());
    assert_eq!(given.find(client(1), TCP, 1), None, "its address is in no range any more");
    assert_eq!(given.assign(ClientId { peer: 0, number: "100::1".parse().unwrap() }, "", TCP, 1), None);
}

#[test]
fn routes_leave_out_presences_in_the_upper_half() {
    let taken: BTreeSet<IpAddr> = ["198.18.0.3", "198.18.0.6"].map(|text| text.parse().unwrap()).into();
    let networks = client_networks(&[net("198.18.0.0/29"), net("fd00::/112")], &taken);
    assert_eq!(networks, ["198.18.0.4/31", "198.18.0.7/32", "fd00::8000/113"].map(net));
    assert_eq!(client_networks(&[net("198.18.0.1/32")], &taken), []);
}

proptest! {
    #[test]
    fn no_two_clients_have_the_same_end(
        length in 25_u8..32,
        steps in proptest::collection::vec((0_u8..200, 0_u16..3, prop_oneof![Just(TCP), Just(UDP)]), 0..300),
    ) {
        let range = IpNet::new("198.18.0.0".parse().unwrap(), length).unwrap();
        let mut given = addresses(&range.to_string());
        let mut ends: HashMap<(ClientEnd, u8), (u8, u16)> = HashMap::new();
        for (number, port, protocol) in steps {
            let Some(end) = given.assign(client(number), "rome", protocol, port + 1) else { continue };
            prop_assert!(upper_half(range).unwrap().contains(&end.address));
            let holder = *ends.entry((end, protocol)).or_insert((number, port));
            prop_assert_eq!(holder, (number, port));
            prop_assert_eq!(given.find(client(number), protocol, port + 1), Some(end));
        }
    }
}
