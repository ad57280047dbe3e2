//! Effects on clients when parts fail and return: a backend, one of three, the gateway, the cloud.
//!
//! DNS answers all the time: at every site whose own gateway runs, whatever else is away. A gateway that is itself restarted
//! answers from the netmap on its disk as soon as it is back, with the cloud or without it.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use testlab::causeway::{Process, wait_for};
use testlab::net::Host;

use crate::programs::{Asks, Protocol, Server, run, shell};
use crate::sites::{PATIENCE, Sites, address, expose, object, service};

/// After the gateway's return clients can connect again.
const BACK: Duration = Duration::from_secs(3);
/// The number of requests that are under way at a time.
const CONNECTIONS: usize = 8;

const PAGE: &str = "curl -sS -m2 -w '%{http_code}' http://$1:$2/ 2>&1";

/// An nginx of its own that can be killed, and answers with its port.
fn nginx(host: &Host, folder: &Path, port: u16) -> Process {
    let place = folder.display();
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {place}/{port}-{what};\n"))
        .concat();
    // One process, so that all of it is killed.
    let text = format!(
        "daemon off; master_process off; user root; pid {place}/{port}.pid;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 1000000; {temporary}\n\
         server {{ listen {port}; location / {{ return 200 \"at {port} \"; }} }} }}\n"
    );
    let path = folder.join(format!("{port}.conf"));
    std::fs::write(&path, text).unwrap();
    let mut command = host.command("nginx");
    command.args(["-e", "stderr", "-c"]).arg(&path);
    let process = Process::spawn(command, folder.join(format!("{port}.log"))).unwrap();
    let own = ([127, 0, 0, 1], port).into();
    wait_for("nginx serves", || host.connects(own, Duration::from_secs(1)).then_some(())).unwrap();
    process
}

impl Sites {
    fn place(&self, name: &str, port: u16) -> Server<'_> {
        let name = format!("{name}-oslo.lab.test");
        Server { host: "server-oslo".to_owned(), name, port, folder: self.folder.path() }
    }

    /// Asks until the answer holds a word. Returns how long it took.
    fn await_said(&self, line: &str, server: &Server<'_>, word: &str) -> Duration {
        let begin = Instant::now();
        let client = self.host("client-berlin");
        loop {
            let asked = run(shell(&client, line, server), Duration::from_secs(5));
            if asked.said.contains(word) {
                return begin.elapsed();
            }
            assert!(begin.elapsed() < PATIENCE, "{} says {:?}, not {word}", server.name, asked.said);
        }
    }
}

#[test]
fn backends_that_die_cost_the_requests_under_way_and_no_more() {
    let test = "backends_that_die_cost_the_requests_under_way_and_no_more";
    if !run(std::process::Command::new("wrk"), PATIENCE).ended {
        println!("skipped: {test} needs wrk");
        return;
    }
    let Some(sites) = Sites::start(test) else { return };
    let home = sites.host("server-oslo");
    let mut web = vec![nginx(&home, sites.folder.path(), 8201)];
    web.extend([8202, 8203].map(|port| nginx(&home, sites.folder.path(), port)));
    let ends: Vec<_> = [8201, 8202, 8203]
        .iter()
        .map(|port| json!({"ip": address("server", "oslo"), "port": port}))
        .collect();
    let three = json!({"eSiteName": "oslo", "port": 8200, "protocol": "HTTP", "endpoints": ends});
    sites.apply(&[
        object("EService", "three-oslo", three),
        expose("three-oslo", "berlin"),
        service("one", "oslo", "HTTP", 8201),
        expose("one-oslo", "berlin"),
        service("raw", "oslo", "TCP", 8201),
        expose("raw-oslo", "berlin"),
    ]);
    let [three, one, raw] =
        [("three", 8200), ("one", 8201), ("raw", 8201)].map(|(name, port)| sites.place(name, port));
    for server in [&three, &one, &raw] {
        sites.await_said(PAGE, server, "200");
    }

    // One of three dies under a stream of requests.
    let mut command = sites.host("client-berlin").command("wrk");
    let seconds = 5;
    command.args(["-t1", &format!("-c{CONNECTIONS}"), &format!("-d{seconds}s"), "--timeout", "4s"]);
    command.arg(format!("http://{}:8200/", three.name));
    let load = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    web[0].kill().unwrap();
    let report = String::from_utf8(load.wait_with_output().unwrap().stdout).unwrap();
    println!("{report}");
    let failed = failures(&report);
    println!("one of three was killed under {CONNECTIONS} connections: {failed} requests failed");
    assert!(failed <= CONNECTIONS, "{report}");
    assert!(report.contains("requests in"), "{report}");

    // Clients of its only backend hear of it at once, each in its own way, until it is back.
    let begin = Instant::now();
    sites.await_said(PAGE, &one, "502");
    let asked = run(shell(&sites.host("client-berlin"), PAGE, &raw), Duration::from_secs(5));
    assert!(asked.said.contains("reset by peer") || asked.said.contains("Empty reply"), "{asked:?}");
    assert!(asked.took < Duration::from_secs(2), "{asked:?}");
    println!("the only backend was killed: HTTP 502 and a reset, {:?} after it was asked", begin.elapsed());
    web[0] = nginx(&home, sites.folder.path(), 8201);
    for server in [&one, &raw] {
        let took = sites.await_said(PAGE, server, "200");
        println!("it is back: {} answers after {took:?}", server.name);
        assert!(took < Duration::from_secs(15), "{took:?}");
    }
}

/// The requests that wrk counts as not answered as they should be.
fn failures(report: &str) -> usize {
    let number =
        |text: &str| text.chars().filter(char::is_ascii_digit).collect::<String>().parse::<usize>().unwrap();
    let errors = report.lines().find_map(|line| line.trim().strip_prefix("Socket errors:"));
    let errors: usize = errors.map_or(0, |line| line.split(',').map(number).sum());
    let statuses = report.lines().find_map(|line| line.trim().strip_prefix("Non-2xx or 3xx responses:"));
    errors + statuses.map_or(0, number)
}

/// Asks for a name again and again, until it is stopped. Returns how often, and the slowest answer; every one must be right.
fn ask_all_the_time(
    host: Host,
    name: String,
    stop: Arc<AtomicBool>,
) -> std::thread::JoinHandle<(usize, Duration)> {
    std::thread::spawn(move || {
        let (mut count, mut slowest) = (0, Duration::ZERO);
        while !stop.load(Ordering::Relaxed) {
            let mut command = host.command("dig");
            command.args(["+tries=1", "+timeout=2", "+short", &name]);
            let asked = run(command, Duration::from_secs(5));
            assert!(asked.said.starts_with("198.18."), "{name} at {}: {asked:?}", host.name());
            (count, slowest) = (count + 1, slowest.max(asked.took));
        }
        (count, slowest)
    })
}

#[test]
fn gateways_that_return_are_there_within_three_seconds_and_names_are_answered_all_the_time() {
    let test = "gateways_that_return_are_there_within_three_seconds_and_names_are_answered_all_the_time";
    let Some(mut sites) = Sites::start(test) else { return };
    sites.apply(&[
        service("tcp", "oslo", "TCP", 7000),
        service("tcp", "berlin", "TCP", 7000),
        expose("tcp-oslo", "berlin"),
        expose("tcp-berlin", "oslo"),
    ]);
    let Asks::Shell(line) = Protocol::named("tcp").asks else { panic!("a line of a shell") };
    // A connection that waits for a peer that is gone is of no use here.
    let line = line.replace("-t5", "-t1");
    let server = |sites: &Sites| (sites.place("tcp", 7000).name, 7000);
    let back = |sites: &Sites, since: Instant| {
        let (name, port) = server(sites);
        let server = Server { host: "server-oslo".to_owned(), name, port, folder: sites.folder.path() };
        sites.await_said(&line, &server, "server-oslo/hello");
        since.elapsed()
    };
    back(&sites, Instant::now());

    // The gateways of the client and of the server, in order and by force.
    for site in ["berlin", "oslo"] {
        let elsewhere = if site == "berlin" { "oslo" } else { "berlin" };
        let stop = Arc::new(AtomicBool::new(false));
        let asking = ask_all_the_time(
            sites.host(&format!("client-{elsewhere}")),
            format!("tcp-{site}.lab.test"),
            stop.clone(),
        );
        for forced in [false, true] {
            match forced {
                true => sites.edge(site).unit.kill().unwrap(),
                false => drop(sites.edge(site).unit.process().unwrap().terminate().unwrap()),
            }
            sites.edge(site).restart().unwrap();
            let took = back(&sites, Instant::now());
            let how = if forced { "kill -9" } else { "a normal stop" };
            println!("the gateway of {site} after {how}: connections {took:.1?} after its return");
            assert!(took < BACK, "{site} after {how}: {took:?}");
        }
        stop.store(true, Ordering::Relaxed);
        let (count, slowest) = asking.join().unwrap();
        println!(
            "meanwhile {elsewhere} answered {count} of {count} questions, the slowest after {slowest:.1?}"
        );
    }

    // The cloud is away: every gateway goes on answering, and one that is restarted answers again from its disk.
    sites.cloud.unit.kill().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let asking = ask_all_the_time(sites.host("client-berlin"), "tcp-oslo.lab.test".to_owned(), stop.clone());
    sites.edge("oslo").unit.kill().unwrap();
    sites.edge("oslo").restart().unwrap();
    let begin = Instant::now();
    let known = || sites.dig(&sites.host("client-oslo"), "tcp-berlin.lab.test").contains("status: NOERROR");
    wait_for("names are answered again", || known().then_some(())).unwrap();
    println!("without the cloud: a killed gateway answers names {:.1?} after its return", begin.elapsed());
    assert!(begin.elapsed() < BACK, "{:?}", begin.elapsed());
    sites.cloud.restart().unwrap();
    let took = back(&sites, Instant::now());
    println!("the cloud is back: connections cross {took:.1?} after it was ready");
    stop.store(true, Ordering::Relaxed);
    let (count, slowest) = asking.join().unwrap();
    println!("meanwhile berlin answered {count} of {count} questions, the slowest after {slowest:.1?}");
}

/// The old session was waited for 8 to 10 s; the goal is one second.
const REACHED: Duration = Duration::from_secs(4);
/// Those that keep something open between gateways, and those that do not.
const ROWS: [&str; 6] = ["http", "http2", "grpc", "tcp", "udp", "session"];

#[test]
fn every_protocol_is_answered_as_soon_as_a_killed_gateway_is_connected_again() {
    let test = "every_protocol_is_answered_as_soon_as_a_killed_gateway_is_connected_again";
    let Some(mut sites) = Sites::start(test) else { return };
    let protocols = ROWS.map(Protocol::named);
    let services = protocols.map(|protocol| service(protocol.name, "oslo", protocol.speaks, protocol.port));
    let exposes = protocols.map(|protocol| expose(&format!("{}-oslo", protocol.name), "berlin"));
    sites.apply(&services.into_iter().chain(exposes).collect::<Vec<_>>());
    let settings = sites.folder.path().join("oslo.toml");
    let before = std::fs::read_to_string(&settings).unwrap();
    for transport in ["quic", "tcp"] {
        std::fs::write(&settings, format!("{before}\n[edge]\ntransport = \"{transport}\"\n")).unwrap();
        for pause in [0, 1, 2] {
            // A client that is ready for each, whose gateway has been asked before.
            let clients = protocols.map(|protocol| {
                let (client, server) = (sites.host("client-berlin"), sites.server(protocol, "oslo"));
                let asked = protocol.wait(&client, &server).answer(Instant::now(), PATIENCE);
                assert!(asked.is_some(), "{} is not answered before", protocol.name);
                (protocol, protocol.wait(&client, &server))
            });
            sites.edge("oslo").unit.kill().unwrap();
            std::thread::sleep(Duration::from_secs(pause));
            sites.edge("oslo").restart().unwrap();
            let lives = sites.edge("oslo").unit.log().matches("--- started again ---").count();
            let edge = sites.edge("oslo");
            let is_back = || {
                let log = edge.unit.log();
                let life = log.split("--- started again ---").nth(lives)?;
                life.contains("connected to the cloud").then_some(())
            };
            wait_for("the edge is back", is_back).unwrap();
            let connected = Instant::now();
            let answers = std::thread::scope(|scope| {
                let asking = clients.map(|(protocol, client)| {
                    scope.spawn(move || (protocol, client.answer(connected, PATIENCE)))
                });
                asking.map(|asked| asked.join().unwrap())
            });
            for (protocol, answered) in answers {
                let name = protocol.name;
                let (_, took) = answered.unwrap_or_else(|| panic!("{name} over {transport}: no answer"));
                println!(
                    "{name:<8} over {transport:<4}, started after {pause} s: answered after {took:>6.0?}"
                );
                assert!(took < REACHED, "{name} over {transport}, started after {pause} s: {took:?}");
            }
        }
    }
}
