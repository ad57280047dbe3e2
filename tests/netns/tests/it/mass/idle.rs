//! Thousands of connections that say nothing: each of them is there, and what it costs is known.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use testlab::causeway::wait_for;
use testlab::net::reach_tcp;

use super::{expose, open, resident_kib};
use crate::nat_fleet::soak;
use crate::presences::Fleet;

const PORT: u16 = 7002;
/// Well above what is reached: to notice when a connection suddenly holds a buffer.
const KIB_PER_CONNECTION_MAX: f64 = 48.0;
/// For one connection among thousands.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that accepts only when it is told to. Until then the kernel holds the connections, and they take no files of this
/// process, which has one for every client.
struct Backlog {
    listener: TcpListener,
}

impl Backlog {
    fn start(fleet: &Fleet, most: usize) -> Backlog {
        let host = fleet.host("server-a");
        let setting = format!("net.core.somaxconn={most}");
        assert!(host.command("sysctl").args(["-q", "-w", &setting]).status().unwrap().success());
        let listener = host.inside(|| {
            let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
            socket.bind(&SocketAddr::from(([0; 4], PORT)).into())?;
            socket.listen(i32::try_from(most)?)?;
            Ok(TcpListener::from(socket))
        });
        Backlog { listener: listener.unwrap() }
    }

    /// Connections that were made and not accepted.
    fn waiting(&self, fleet: &Fleet) -> usize {
        let filter = format!("sport = :{PORT}");
        let output = fleet.host("server-a").command("ss").args(["-Hltn", &filter]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        text.split_whitespace().nth(1).and_then(|number| number.parse().ok()).unwrap_or(0)
    }

    /// Says to each of this number of clients what it said, and ends it.
    fn answer(&self, count: usize) {
        for _ in 0..count {
            let (mut stream, _) = self.listener.accept().unwrap();
            stream.set_read_timeout(Some(PATIENCE)).unwrap();
            let mut word = [0; 4];
            stream.read_exact(&mut word).unwrap();
            stream.write_all(&word).unwrap();
        }
    }
}

/// Connections from the client of site b, made one after the other.
fn connect(fleet: &Fleet, to: SocketAddr, count: usize) -> anyhow::Result<Vec<TcpStream>> {
    fleet.host("client-b").inside(|| {
        let one = |_| Ok(TcpStream::connect_timeout(&to, PATIENCE)?);
        (0..count).map(one).collect()
    })
}

/// One connection from its beginning to its end, if there is a way.
fn try_one(fleet: &Fleet, server: &Backlog, to: SocketAddr) -> Option<()> {
    let mut client = connect(fleet, to, 1).ok()?.pop()?;
    client.write_all(b"ping").ok()?;
    let begin = Instant::now();
    while server.waiting(fleet) == 0 {
        if begin.elapsed() > Duration::from_secs(2) {
            return None;
        }
    }
    server.answer(1);
    client.read_exact(&mut [0; 4]).ok()
}

fn units(fleet: &mut Fleet) -> [u64; 3] {
    let Fleet { edges, cloud, .. } = fleet;
    [resident_kib(&mut edges[1].unit), resident_kib(&mut cloud.unit), resident_kib(&mut edges[0].unit)]
}

/// The memory of the three processes, when it does not change any more.
fn settled(fleet: &mut Fleet) -> [u64; 3] {
    let begin = Instant::now();
    let mut last = units(fleet);
    loop {
        std::thread::sleep(Duration::from_secs(1));
        let now = units(fleet);
        if begin.elapsed() > Duration::from_secs(15)
            || last.iter().zip(&now).all(|(a, b)| a.abs_diff(*b) < 256)
        {
            return now;
        }
        last = now;
    }
}

/// The number of times that each edge has connected to the cloud.
fn sessions(fleet: &Fleet) -> Vec<usize> {
    fleet.edges.iter().map(|edge| edge.unit.log().matches("connected to the cloud").count()).collect()
}

fn check(mut fleet: Fleet, transport: &str, count: usize) {
    causeway_daemon::files::raise();
    let server = Backlog::start(&fleet, count + 100);
    open(&fleet);
    let to = expose(&fleet, "TCP", PORT);
    wait_for("the service can be used", || try_one(&fleet, &server, to)).unwrap();
    let (before, sessions_before) = (settled(&mut fleet), sessions(&fleet));
    let begin = Instant::now();
    let mut clients = connect(&fleet, to, count).unwrap();
    wait_for("every connection has come through", || (server.waiting(&fleet) == count).then_some(()))
        .unwrap_or_else(|error| panic!("{error}: {} of {count}", server.waiting(&fleet)));
    let took = begin.elapsed();
    let after = settled(&mut fleet);
    println!(
        "{transport}: {count} connections made in {took:.1?}, {:.0} a second",
        count as f64 / took.as_secs_f64()
    );
    let names = ["the client's edge", "the cloud", "the service's edge"];
    for ((name, before), after) in names.iter().zip(before).zip(after) {
        let each = after.saturating_sub(before) as f64 / count as f64;
        println!(
            "{transport}, {name}: {before} KiB before, {after} KiB with {count} idle connections: {each:.2} KiB each"
        );
        assert!(each < KIB_PER_CONNECTION_MAX, "{name}: {each} KiB for a connection");
    }
    // The links carry them and further ones: none was called dead.
    let echo = SocketAddr::new(fleet.presence_ip("tcp-7000", "edge-b"), 7000);
    let reached = || reach_tcp(&fleet.host("client-b"), echo, Duration::from_secs(2)).ok();
    wait_for("another service is reached", reached).unwrap();
    let logs = || fleet.edges.iter().map(|edge| edge.unit.log()).collect::<Vec<_>>().join("\n----\n");
    assert_eq!(sessions(&fleet), sessions_before, "a link broke\n{}", logs());
    // They are all alive, each is its own.
    for (number, client) in clients.iter_mut().enumerate() {
        client.write_all(&(number as u32).to_be_bytes()).unwrap();
    }
    server.answer(count);
    for (number, client) in clients.iter_mut().enumerate() {
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut word = [0; 4];
        client.read_exact(&mut word).unwrap();
        assert_eq!(u32::from_be_bytes(word) as usize, number);
    }
}

#[test]
fn thousands_of_idle_connections_cross_one_edge() {
    let test = "thousands_of_idle_connections_cross_one_edge";
    for transport in if soak() { &["quic", "tcp"][..] } else { &["quic"] } {
        let Some(fleet) = Fleet::start_with(test, transport, |_, cloud| cloud) else { return };
        check(fleet, transport, if soak() { 11_000 } else { 2_000 });
    }
}
