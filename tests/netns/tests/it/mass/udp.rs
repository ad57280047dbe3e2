//! A thousand UDP clients at once: each gets its own answers, and those of no other client.

use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use testlab::causeway::wait_for;
use testlab::net::{Echo, datagrams_dropped, reach_udp};

use super::{expose, open};
use crate::presences::Fleet;

const CLIENTS: usize = 1000;
const ROUNDS: usize = 5;
const PORT: u16 = 7003;
/// For all of them together. A datagram that is lost on the way is asked for again.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until each client has its answer. Returns the number of repeated questions.
fn ask_all(clients: &[UdpSocket], round: usize) -> usize {
    let (begin, mut again, mut asked) = (Instant::now(), 0, Instant::now());
    let mut missing: Vec<usize> = (0..clients.len()).collect();
    let word = |number: usize| format!("client {number} in round {round}");
    let ask = |missing: &[usize]| {
        missing.iter().for_each(|number| drop(clients[*number].send(word(*number).as_bytes())));
    };
    ask(&missing);
    let mut buffer = [0; 512];
    while !missing.is_empty() {
        missing.retain(|number| {
            while let Ok(count) = clients[*number].recv(&mut buffer) {
                // Behind the address under which the server saw the gateway.
                let text = std::str::from_utf8(&buffer[..count]).unwrap();
                let said = text.split_once('\n').unwrap().1;
                if said == word(*number) {
                    return false;
                }
                // A late answer to a question that was asked twice; an answer to another client is a fault.
                assert!(
                    said.starts_with(&format!("client {number} in round ")),
                    "client {number} got {said:?}"
                );
            }
            true
        });
        assert!(begin.elapsed() < PATIENCE, "{} clients have no answer", missing.len());
        if asked.elapsed() > Duration::from_secs(1) {
            again += missing.len();
            ask(&missing);
            asked = Instant::now();
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    again
}

#[test]
fn a_thousand_udp_clients_get_their_own_answers() {
    let test = "a_thousand_udp_clients_get_their_own_answers";
    for transport in ["quic", "tcp"] {
        let Some(fleet) = Fleet::start_with(test, transport, |_, cloud| cloud) else { return };
        let _server = Echo::start(&fleet.host("server-a"), SocketAddr::from(([0; 4], PORT))).unwrap();
        open(&fleet);
        let to = expose(&fleet, "UDP", PORT);
        let client = fleet.host("client-b");
        wait_for("UDP crosses", || reach_udp(&client, to, Duration::from_secs(2)).ok()).unwrap();
        let clients = client.inside(|| {
            let one = |_| {
                let socket = UdpSocket::bind("0.0.0.0:0")?;
                socket.connect(to)?;
                socket.set_nonblocking(true)?;
                Ok(socket)
            };
            (0..CLIENTS).map(one).collect::<anyhow::Result<Vec<_>>>()
        });
        let clients = clients.unwrap();
        let begin = Instant::now();
        let again: usize = (0..ROUNDS).map(|round| ask_all(&clients, round)).sum();
        println!(
            "{transport}: {CLIENTS} clients, {ROUNDS} questions each, all answered in {:.1?}; {again} were asked again",
            begin.elapsed()
        );
        for name in ["server-a", "client-b"] {
            let dropped = datagrams_dropped(&fleet.host(name)).unwrap();
            println!("{transport}: {dropped} datagrams found a socket of {name} full");
        }
    }
}
