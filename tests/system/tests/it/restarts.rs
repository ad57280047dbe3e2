//! Effects on clients when a process is restarted: an edge that is killed and returns, a cloud that is stopped.
//!
//! Times are printed. The deadlines asserted are generous, and clearly below what the faults took.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use testlab::causeway::{Process, wait_for};
use testlab::https;

use crate::crossing::Fleet;

/// The fault took 8 to 10 s; the goal is one second on a machine that has nothing else to do.
const REACHED: Duration = Duration::from_secs(4);
/// The fault took 17 s; the goal is two seconds.
const STOPPED: Duration = Duration::from_secs(8);
/// The goal is one second.
const BACK: Duration = Duration::from_secs(5);
/// The time that the backend takes for `/slow`.
const SLOW: Duration = Duration::from_secs(6);

/// Answers requests on a listener for as long as the process lives.
fn serve(listener: &TcpListener) {
    let listener = listener.try_clone().unwrap();
    listener.set_nonblocking(false).unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes away is no reason to panic.
            std::thread::spawn(move || drop(answer(stream)));
        }
    });
}

fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut write = stream.try_clone()?;
    let mut read = BufReader::new(stream);
    loop {
        let (mut first, mut line) = (String::new(), String::new());
        if read.read_line(&mut first)? == 0 {
            return Ok(());
        }
        while read.read_line(&mut line)? > 2 {
            line.clear();
        }
        if first.contains("/slow") {
            std::thread::sleep(SLOW);
        }
        write.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")?;
    }
}

/// A client's connection that is kept open.
struct Http(BufReader<TcpStream>);

impl Http {
    fn connect(to: SocketAddr) -> std::io::Result<Http> {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(5))?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        Ok(Http(BufReader::new(stream)))
    }

    /// The status of the answer.
    fn get(&mut self, path: &str) -> std::io::Result<u16> {
        write!(self.0.get_mut(), "GET {path} HTTP/1.1\r\nhost: lab.test\r\n\r\n")?;
        let (mut head, mut length) = (String::new(), 0);
        while self.0.read_line(&mut head)? > 2 {
            let last = head.lines().last().unwrap_or_default().to_lowercase();
            length =
                last.strip_prefix("content-length: ").and_then(|text| text.parse().ok()).unwrap_or(length);
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body)?;
        head.split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .ok_or(std::io::ErrorKind::InvalidData.into())
    }
}

impl Fleet {
    /// A connection on which a request was answered.
    fn reached(&self, from: &str, to: &str) -> Http {
        let ask = || {
            let mut client = Http::connect(self.at(from, to)).ok()?;
            (client.get("/").ok()? == 200).then_some(client)
        };
        wait_for(&format!("{from} reaches {to}"), ask)
            .unwrap_or_else(|error| panic!("{error}\n{}", self.logs()))
    }
}

/// Waits until an edge that was just started says so.
fn await_link(edge: &Process) {
    let is_connected = || edge.log().contains("connected to the cloud").then_some(());
    wait_for("the edge is connected", is_connected).unwrap_or_else(|error| panic!("{error}\n{}", edge.log()));
}

/// One question of a client on a connection of its own. `None`: no answer, or not the right one.
fn ask(protocol: &str, to: SocketAddr) -> Option<()> {
    if protocol == "HTTP" {
        return (Http::connect(to).ok()?.get("/").ok()? == 200).then_some(());
    }
    let mut stream = TcpStream::connect_timeout(&to, Duration::from_secs(5)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(30))).ok()?;
    let question = match protocol {
        // ApiVersions in its first form, without a client id.
        "KAFKA" => &[0, 0, 0, 10, 0, 18, 0, 0, 0, 0, 0, 1, 255, 255][..],
        _ => b"hello!",
    };
    stream.write_all(question).ok()?;
    let mut answer = [0; 6];
    stream.read_exact(&mut answer).ok()
}

/// Answers such questions, all but those of HTTP, with a fitting number of bytes.
fn serve_bytes(listener: &TcpListener, protocol: &'static str) {
    let listener = listener.try_clone().unwrap();
    listener.set_nonblocking(false).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let (question, answer) = match protocol {
                    "KAFKA" => (14, &[0, 0, 0, 10, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0][..]),
                    _ => (6, &b"to you"[..]),
                };
                while stream.read_exact(&mut vec![0; question]).is_ok() && stream.write_all(answer).is_ok() {}
            });
        }
    });
}

/// Kills the edge of rome, starts it again after some time, and asks it from two sites as soon as it is connected.
fn check_return(protocol: &'static str, transport: &str) {
    let mut fleet = Fleet::speaking(protocol, transport);
    match protocol {
        "HTTP" => fleet.backends.iter().for_each(serve),
        _ => fleet.backends.iter().for_each(|backend| serve_bytes(backend, protocol)),
    }
    let reached = |fleet: &Fleet, from: &str| {
        let asking = || ask(protocol, fleet.at(from, "rome"));
        wait_for(&format!("{from} reaches rome"), asking)
            .unwrap_or_else(|error| panic!("{protocol}: {error}\n{}", fleet.logs()));
    };
    // Over HTTP each of both keeps a connection to the gateway of rome for its next request.
    for from in ["oslo", "cloud"] {
        reached(&fleet, from);
    }
    for pause in [0, 1, 2] {
        fleet.edges[1].kill().unwrap();
        std::thread::sleep(Duration::from_secs(pause));
        fleet.edges[1] = fleet.lab.edge("rome", &["--transport", transport]);
        await_link(&fleet.edges[1]);
        let begun = Instant::now();
        let took = std::thread::scope(|scope| {
            let asking = ["oslo", "cloud"].map(|from| {
                let (fleet, reached) = (&fleet, &reached);
                scope.spawn(move || {
                    reached(fleet, from);
                    begun.elapsed()
                })
            });
            asking.map(|asked| asked.join().unwrap())
        });
        println!(
            "{protocol:<5} over {transport:<4}, killed and started after {pause} s: answered {:>5.0?} (edge to edge) and \
             {:>5.0?} (from the cloud) after it was connected",
            took[0], took[1]
        );
        assert!(took.iter().all(|took| *took < REACHED), "{protocol}: {took:?}\n{}", fleet.logs());
    }
}

#[test]
fn an_edge_that_is_killed_and_returns_is_reached_as_soon_as_it_is_connected() {
    for transport in ["quic", "tcp"] {
        for protocol in ["HTTP", "TCP", "KAFKA"] {
            check_return(protocol, transport);
        }
    }
}

#[test]
fn a_cloud_that_stops_waits_for_no_idle_connection_and_finds_its_edges_at_once() {
    for transport in ["quic", "tcp"] {
        let mut fleet = Fleet::speaking("HTTP", transport);
        fleet.backends.iter().for_each(serve);
        // Every gateway keeps connections to the other gateways, and every client its own.
        let directions = [("oslo", "rome"), ("cloud", "rome"), ("oslo", "cloud"), ("rome", "oslo")];
        let clients = directions.map(|(from, to)| fleet.reached(from, to));
        let api = https::Client::from_kubeconfig(&fleet.lab.cloud.kubeconfig()).unwrap();
        let held = api.hold("/apis/causeway.io/v1/esites").unwrap();
        let mut watch = api.watch("/apis/causeway.io/v1/esites?watch=true").unwrap();
        let admin =
            Http::connect(fleet.lab.cloud.admin).and_then(|mut client| client.get("/readyz").map(|_| client));
        let tunnel = UnixStream::connect(fleet.lab.cloud.data_dir.join("run/connect.sock")).unwrap();
        let idle = TcpStream::connect(fleet.at("cloud", "oslo")).unwrap();

        let begun = Instant::now();
        fleet.lab.cloud.process.terminate().unwrap();
        let took = begun.elapsed();
        while watch.next_event().unwrap().is_some() {}
        drop((clients, held, admin, tunnel, idle));
        let marks = fleet.edges.each_ref().map(|edge| edge.log().len());
        fleet.lab.restart();
        let ready = Instant::now();
        for (edge, mark) in fleet.edges.iter().zip(marks) {
            let is_back = || edge.log()[mark..].contains("connected to the cloud").then_some(());
            wait_for("the edge is back", is_back).unwrap();
        }
        let back = ready.elapsed();
        println!(
            "over {transport}: gone {took:.0?} after SIGTERM, edges back {back:.0?} after it was ready again"
        );
        assert!(took < STOPPED, "{took:?}\n{}", fleet.logs());
        assert!(back < BACK, "{back:?}\n{}", fleet.logs());
        for (from, to) in directions {
            fleet.reached(from, to);
        }
    }
}

/// A killed cloud says nothing to its edges. Their connections to each other rode on its sessions, and pools must not hand
/// them out again.
#[test]
fn a_cloud_that_is_killed_and_returns_leaves_no_request_on_a_connection_across_it() {
    for transport in ["quic", "tcp"] {
        let mut fleet = Fleet::speaking("HTTP", transport);
        fleet.backends.iter().for_each(serve);
        let directions = [("oslo", "rome"), ("rome", "oslo"), ("oslo", "cloud"), ("cloud", "rome")];
        for round in 0..3 {
            // Every gateway has connections to the other gateways in its pools, and clients keep theirs to the gateways.
            let held = directions.map(|(from, to)| (from, to, fleet.reached(from, to)));
            let marks = fleet.edges.each_ref().map(|edge| edge.log().len());
            fleet.lab.cloud.process.kill().unwrap();
            fleet.lab.restart();
            for (edge, mark) in fleet.edges.iter().zip(marks) {
                let is_back = || edge.log()[mark..].contains("connected to the cloud").then_some(());
                wait_for("the edge is back", is_back)
                    .unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));
            }
            let begun = Instant::now();
            let took = std::thread::scope(|scope| {
                let asking = held.map(|(from, to, mut client)| {
                    let fleet = &fleet;
                    scope.spawn(move || {
                        // A client of the cloud has lost its connection; those of the edges go on to use theirs.
                        let is_answered =
                            from != "cloud" && client.get("/").is_ok_and(|status| status == 200);
                        if !is_answered {
                            fleet.reached(from, to);
                        }
                        (from, to, begun.elapsed())
                    })
                });
                asking.map(|asked| asked.join().unwrap())
            });
            println!(
                "over {transport:<4}, round {round}, answered after the edges were connected: {took:.0?}"
            );
            assert!(took.iter().all(|(_, _, took)| *took < REACHED), "{took:?}\n{}", fleet.logs());
        }
    }
}

#[test]
fn what_is_in_flight_when_the_cloud_stops_is_finished_and_listeners_stay_until_then() {
    let mut fleet = Fleet::speaking("HTTP", "quic");
    fleet.backends.iter().for_each(serve);
    let directions = [("oslo", "rome"), ("cloud", "rome"), ("rome", "cloud")];
    let slow = directions.map(|(from, to)| (from, to, fleet.reached(from, to)));
    let gone = std::thread::scope(|scope| {
        let asked = slow.map(|(from, to, mut client)| (from, to, scope.spawn(move || client.get("/slow"))));
        // Until all of them are at their backends: those are asked for nothing else.
        std::thread::sleep(SLOW / 4);
        let pid = fleet.lab.cloud.process.pid().to_string();
        assert!(std::process::Command::new("kill").arg(pid).status().unwrap().success());
        let begun = Instant::now();
        wait_for("it drains", || fleet.lab.cloud.process.log().contains("stopping").then_some(())).unwrap();
        // New clients are served meanwhile, at the presences and at the API.
        for (from, to) in [("cloud", "rome"), ("oslo", "rome")] {
            let answered = Http::connect(fleet.at(from, to)).and_then(|mut client| client.get("/"));
            assert_eq!(answered.ok(), Some(200), "{from} to {to} while the cloud drains\n{}", fleet.logs());
        }
        fleet.lab.run(&["get", "esites"]);
        for (from, to, answered) in asked {
            assert_eq!(answered.join().unwrap().ok(), Some(200), "{from} to {to}\n{}", fleet.logs());
        }
        begun
    });
    wait_for("the cloud ends", || fleet.lab.cloud.process.ended()).unwrap();
    println!("gone {:.1?} after SIGTERM, with requests of {SLOW:?} in flight", gone.elapsed());
    assert!(gone.elapsed() < SLOW + STOPPED, "{:?}", gone.elapsed());
}
