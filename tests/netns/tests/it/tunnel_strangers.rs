//! Strangers at the port of the tunnel: they get no answer, no cookie and no ICMP, however much they send.

use std::net::{SocketAddr, UdpSocket};
use std::time::SystemTime;

use causeway_gateway::tun::noise::{self, MacKeys, StaticKeys};
use testlab::causeway::wait_for;
use testlab::net::Net;

use crate::tunnel_crossing::{dropped, routed};
use crate::tunnel_lab::{PORT, run, start, wait_ping};

/// Above this number per second a gateway asks for cookies.
const FLOOD: usize = 400;

/// Counts every packet that the gateway of site b sends to the stranger, of whatever protocol.
fn count_answers(net: &Net) {
    let gateway = net.ipv4("gw-b").unwrap();
    let script = format!(
        "table inet lab_strangers {{ counter answers {{ }}; chain in {{ type filter hook input priority 0; \
         ip saddr {gateway} counter name answers; }}; }}"
    );
    assert!(run(net, "internet", "nft", &[script.as_str()]).status.success());
}

/// Returns packets and bytes to the stranger.
fn answers(net: &Net) -> (u64, u64) {
    let said = run(net, "internet", "nft", &["list", "counter", "inet", "lab_strangers", "answers"]);
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    let after = |word: &str| {
        let number = text.split_whitespace().skip_while(|found| *found != word).nth(1);
        number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{said:?}"))
    };
    (after("packets"), after("bytes"))
}

/// Sends messages from an address of the internet that is no gateway's.
fn send(net: &Net, messages: &[Vec<u8>]) {
    let to = SocketAddr::new(net.ipv4("gw-b").unwrap().into(), PORT);
    net.host("internet")
        .unwrap()
        .inside(|| {
            let socket = UdpSocket::bind("0.0.0.0:0")?;
            messages.iter().try_for_each(|message| socket.send_to(message, to).map(drop))?;
            Ok(())
        })
        .unwrap();
}

/// An initiation of a stranger to the owner of a key.
fn initiation(stranger: &StaticKeys, receiver: &[u8; 32], index: u32) -> Vec<u8> {
    let stamp = noise::timestamp(SystemTime::now());
    let (_, mut message) = noise::initiate(stranger, receiver, &stamp, index).unwrap();
    MacKeys::of(receiver).sign(&mut message, None);
    message.to_vec()
}

#[test]
fn strangers_get_no_answer_and_no_cookie_from_the_port_of_the_tunnel() {
    let test = "strangers_get_no_answer_and_no_cookie_from_the_port_of_the_tunnel";
    let Some((net, mut a, mut b)) = routed(test) else { return };
    let hosts = start(&net, &mut a, &mut b);
    wait_ping(&net, "client-a", "10.2.0.2");
    count_answers(&net);
    let (stranger, foreign) = (StaticKeys::generate().unwrap(), StaticKeys::generate().unwrap());

    // Without the key of the gateway: messages of every kind and length, and handshakes that are meant for another gateway, many
    // more than those above which cookies are asked for.
    let mut messages: Vec<Vec<u8>> = Vec::new();
    for kind in 0..=5_u8 {
        for length in [1, 4, 16, 31, 32, 64, 92, 148, 1400] {
            let mut message = vec![0xa5; length];
            message[0] = kind;
            message.iter_mut().take(4).skip(1).for_each(|zero| *zero = 0);
            messages.push(message);
        }
    }
    messages.extend((0..FLOOD).map(|index| initiation(&stranger, foreign.public(), index as u32)));
    let before = dropped(&hosts[1], "not-authentic");
    wait_for("a flood of strangers is counted", || {
        send(&net, &messages);
        (dropped(&hosts[1], "not-authentic") > before + 2 * FLOOD as u64).then_some(())
    })
    .unwrap();
    assert_eq!(answers(&net), (0, 0), "packets and bytes to strangers");

    // A stranger that has learnt the key of the gateway, and is no peer, a few times.
    let before = dropped(&hosts[1], "not-authentic");
    let few: Vec<Vec<u8>> = (0..5).map(|index| initiation(&stranger, &b.key.0, index)).collect();
    send(&net, &few);
    wait_for("its handshakes are counted", || {
        (dropped(&hosts[1], "not-authentic") >= before + few.len() as u64).then_some(())
    })
    .unwrap();
    assert_eq!(answers(&net), (0, 0), "packets and bytes to a stranger that knows the key");
    assert_eq!(hosts[1].state().peers.len(), 1);
    wait_ping(&net, "client-a", "10.2.0.2");
}
