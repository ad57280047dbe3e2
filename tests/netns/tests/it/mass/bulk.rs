//! Many bytes on one connection arrive as they were, and a client that has closed its half gets its answer.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use testlab::causeway::{Process, finish, wait_for};
use testlab::random::SeededRandom;
use testlab::relay::{Faults, Relay};

use super::{expose, open};
use crate::nat_fleet::soak;
use crate::presences::Fleet;

const MB: u64 = 1_000_000;
const PORT: u16 = 7001;

/// Numbers that look random and are the same every time, at the speed of the line.
fn stream(bytes: u64) -> String {
    format!(
        "head -c {bytes} /dev/zero | openssl enc -aes-128-ctr -K 00112233445566778899aabbccddeeff -iv 0 2>/dev/null"
    )
}

/// Answers with the sum of what was said, when all was said.
fn summing_server(fleet: &Fleet) -> Process {
    let host = fleet.host("server-a");
    let mut command = host.command("socat");
    // It would give the answer half a second after the end of the question; a gigabyte is summed longer.
    command.args(["-t", "600", &format!("TCP-LISTEN:{PORT},fork,reuseaddr"), "SYSTEM:sha256sum"]);
    let server = Process::spawn(command, fleet.folder.path().join("socat.log")).unwrap();
    let listening =
        || host.connects(SocketAddr::from(([127, 0, 0, 1], PORT)), Duration::from_secs(1)).then_some(());
    wait_for("socat listens", listening).unwrap();
    server
}

/// Sends so much from site b to site a. Returns the answer and the time until it was there.
fn send(fleet: &Fleet, to: SocketAddr, bytes: u64) -> anyhow::Result<(String, Duration)> {
    let begin = Instant::now();
    // -N closes this half at the end of the input; the sum comes back over the other.
    let script = format!("{} | nc -N {} {}", stream(bytes), to.ip(), to.port());
    let answer = finish(shell(fleet.host("client-b").command("bash"), &script), None)?.success()?;
    Ok((answer, begin.elapsed()))
}

fn sum(bytes: u64) -> String {
    let script = format!("{} | sha256sum", stream(bytes));
    finish(shell(Command::new("bash"), &script), None).unwrap().success().unwrap()
}

fn shell(mut bash: Command, script: &str) -> Command {
    bash.args(["-o", "pipefail", "-c", script]);
    bash
}

fn check(fleet: &Fleet, what: &str, bytes: u64) {
    let _server = summing_server(fleet);
    open(fleet);
    let to = expose(fleet, "TCP", PORT);
    // Until the other gateway knows the service too.
    wait_for("the service can be used", || send(fleet, to, 7).ok().filter(|(answer, _)| *answer == sum(7)))
        .unwrap();
    let (answer, took) = send(fleet, to, bytes).unwrap();
    assert_eq!(answer, sum(bytes), "{bytes} bytes");
    let rate = bytes as f64 / MB as f64 / took.as_secs_f64();
    println!("{what}: {} MB with the right checksum in {took:.1?}, {rate:.1} MB/s", bytes / MB);
}

#[test]
fn a_large_transfer_arrives_whole_and_is_answered_after_the_half_close() {
    let test = "a_large_transfer_arrives_whole_and_is_answered_after_the_half_close";
    for transport in ["quic", "tcp"] {
        let Some(fleet) = Fleet::start_with(test, transport, |_, cloud| cloud) else { return };
        check(&fleet, &format!("{transport}, no loss"), if soak() { 10_000 * MB } else { 200 * MB });
    }
}

#[test]
fn a_large_transfer_arrives_whole_over_a_bad_line() {
    let test = "a_large_transfer_arrives_whole_over_a_bad_line";
    for transport in if soak() { &["quic", "tcp"][..] } else { &["quic"] } {
        let mut line = None;
        let fleet = Fleet::start_with(test, transport, |net, cloud| {
            let listen = SocketAddr::new(net.gateway_ipv4("nat-a").unwrap().into(), 0);
            let internet = net.host("internet").unwrap();
            let relay =
                line.insert(Relay::start_in(&internet, listen, cloud, SeededRandom::seed(test)).unwrap());
            relay.set_both(&Faults { delay: Duration::from_millis(20), loss: 0.02, ..Faults::default() });
            relay.address()
        });
        let Some(fleet) = fleet else { return };
        // Both sites are behind the line: every byte crosses it twice.
        check(
            &fleet,
            &format!("{transport}, 2 % loss and 20 ms each way, twice"),
            if soak() { 1000 * MB } else { 20 * MB },
        );
    }
}
