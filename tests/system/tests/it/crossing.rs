//! One TCP connection through all floors: a client at one site, a backend at another, in every direction.
//!
//! Presences stand at addresses inside 127.0.0.0/8, which are local on every host: so no root is needed. Each test has a range
//! of its own, told by its process. A client is the host it seems to be by its source address.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use serde_json::Value;
use socket2::{Domain, Socket, Type};
use testlab::causeway::{Process, finish, wait_for};

use crate::Lab;

const SITES: [&str; 3] = ["cloud", "oslo", "rome"];
/// The EServer that policies name, at every site. No policy names any other host.
const FRIEND: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 1);
pub const STRANGER: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// A cloud and two edges; at each of the three sites a backend, exposed to the other two.
pub struct Fleet {
    pub lab: Lab,
    /// Of oslo and rome.
    pub edges: [Process; 2],
    pub backends: Vec<TcpListener>,
    /// Site, service and where it is found there.
    presences: Vec<(String, String, Ipv4Addr)>,
    protocol: &'static str,
}

impl Fleet {
    pub fn start(transport: &str) -> Fleet {
        Fleet::speaking("TCP", transport)
    }

    /// With services of another protocol.
    pub fn speaking(protocol: &'static str, transport: &str) -> Fleet {
        let lab = Lab::start();
        let backends: Vec<TcpListener> = SITES.map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).into();
        let edges = ["oslo", "rome"].map(|site| {
            let token = lab.run(&["token", "create", "--site", site]);
            lab.edge(site, &["--join", token.trim(), "--transport", transport])
        });
        let mut fleet = Fleet { lab, edges, backends, presences: Vec::new(), protocol };
        // The ranges of gateways are the cloud's until another manager takes them.
        let apply = fleet.lab.cloud.client(&["apply", "-f", "-", "--force-conflicts"]).unwrap();
        finish(apply, Some(&fleet.objects())).unwrap().success().unwrap();
        let all = || Some(fleet.allocated()).filter(|found| found.len() == SITES.len() * 2);
        fleet.presences = wait_for("every presence has its address", all).unwrap();
        fleet
    }

    fn allocated(&self) -> Vec<(String, String, Ipv4Addr)> {
        let listed = self.lab.cloud.run(&["get", "virtualpresence", "-o", "json"]).unwrap().json().unwrap();
        let text = |object: &Value, field: &str| object[field].as_str().unwrap_or_default().to_owned();
        let items = listed["items"].as_array().cloned().unwrap_or_default();
        let presence = |object: &Value| {
            let address = text(object, "virtualIp").parse().ok()?;
            Some((text(object, "eSiteName"), text(object, "eServiceName"), address))
        };
        items.iter().filter_map(presence).collect()
    }

    fn objects(&self) -> String {
        let mut text = String::new();
        let mut add = |kind: &str, name: &str, fields: String| {
            text.push_str(&format!(
                "---\n{{apiVersion: causeway.io/v1, kind: {kind}, metadata: {{name: {name}}}, {fields}}}\n"
            ));
        };
        for (number, site) in SITES.iter().enumerate() {
            add("EGateway", site, format!("eSiteName: {site}, virtualPresenceIPcidr: {}/28", range(number)));
        }
        for site in SITES {
            let others: Vec<&str> = SITES.into_iter().filter(|other| *other != site).collect();
            let port = self.port(site);
            add("EServer", &format!("friend-{site}"), format!("eSiteName: {site}, ip: {FRIEND}"));
            let protocol = self.protocol;
            let service = format!("eSiteName: {site}, protocol: {protocol}, port: {port}, ip: 127.0.0.1");
            add("EService", &format!("echo-{site}"), service);
            let expose = format!("eServiceName: echo-{site}, eSites: {others:?}, ePolicys: [friends]");
            add("ServiceExpose", &format!("echo-{site}"), expose);
        }
        let friends = SITES.map(|site| format!("friend-{site}"));
        add("EPolicy", "friends", format!("allowedServers: {friends:?}"));
        text
    }

    fn port(&self, site: &str) -> u16 {
        self.backends[place(site)].local_addr().unwrap().port()
    }

    /// The address at which a client at `from` finds the service of `to`.
    pub fn at(&self, from: &str, to: &str) -> SocketAddr {
        SocketAddr::from((*self.at_ip(from, to), self.port(to)))
    }

    fn at_ip(&self, from: &str, to: &str) -> &Ipv4Addr {
        let service = format!("echo-{to}");
        let found = self.presences.iter().find(|(site, name, _)| site == from && *name == service);
        &found.unwrap().2
    }

    /// A connection from one site to the other, and the backend's end of it. Waits until the way is there.
    pub fn connect(&self, from: &str, to: &str) -> (TcpStream, TcpStream) {
        let backend = &self.backends[place(to)];
        wait_for(&format!("{from} reaches {to}"), || {
            let mut client = connect(FRIEND, self.at(from, to)).ok()?;
            // Refused ones are reset at the first look.
            client.write_all(b"?").ok()?;
            let accepted = accept(backend, Duration::from_secs(2))?;
            let mut seen = [0];
            (&accepted).read_exact(&mut seen).ok()?;
            Some((client, accepted))
        })
        .unwrap_or_else(|error| panic!("{error}\n{}", self.logs()))
    }

    pub fn logs(&self) -> String {
        let names = ["cloud.log", "oslo.log", "rome.log"];
        names.map(|name| std::fs::read_to_string(self.lab.path(name)).unwrap_or_default()).join("\n---\n")
    }

    /// Waits for a record in the cloud's journal.
    fn record(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let find = || {
            let text = std::fs::read_to_string(self.lab.path("cloud").join("audit/fleet.jsonl")).ok()?;
            text.lines().filter_map(|line| serde_json::from_str(line).ok()).find(|line| wanted(line))
        };
        wait_for(what, find).unwrap_or_else(|error| {
            let text = std::fs::read_to_string(self.lab.path("cloud").join("audit/fleet.jsonl"));
            panic!("{error}\n{}\n{}", text.unwrap_or_default(), self.logs())
        })
    }
}

fn place(site: &str) -> usize {
    SITES.iter().position(|known| *known == site).unwrap()
}

/// The range of a site: sixteen addresses of the 256 that this process takes.
fn range(site: usize) -> Ipv4Addr {
    let process = std::process::id();
    Ipv4Addr::new(127, 64 + (process / 256 % 150) as u8, (process % 256) as u8, (site * 16) as u8)
}

pub fn connect(from: Ipv4Addr, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect_timeout(&to.into(), Duration::from_secs(5))?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    Ok(stream)
}

fn accept(listener: &TcpListener, within: Duration) -> Option<TcpStream> {
    listener.set_nonblocking(true).unwrap();
    let end = Instant::now() + within;
    while Instant::now() < end {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                return Some(stream);
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    None
}

/// The end of a connection as its reader sees it: `None` properly, else the error.
fn ending(stream: &TcpStream) -> Option<ErrorKind> {
    let mut rest = Vec::new();
    let mut stream = stream;
    stream.read_to_end(&mut rest).err().map(|error| error.kind())
}

fn reset(stream: TcpStream) {
    Socket::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
}

/// Moves a megabyte from the client to the backend.
fn move_a_megabyte(client: &mut TcpStream, backend: &mut TcpStream) {
    let (mut sender, data) = (client.try_clone().unwrap(), vec![7; 1 << 20]);
    let sending = std::thread::spawn(move || sender.write_all(&data));
    let mut received = vec![0; 1 << 20];
    backend.read_exact(&mut received).unwrap();
    sending.join().unwrap().unwrap();
}

#[test]
fn streams_take_tcp_on_a_clean_path_and_end_with_the_session() {
    let fleet = Fleet::start("auto");
    let carried = |gateway: &str| {
        let status = fleet.lab.cloud.run(&["status", "--json"]).ok()?.json().ok()?;
        let row = status["gateways"].as_array()?.iter().find(|row| row["name"] == gateway)?.clone();
        Some((row["carries"][1]["streams"].as_u64().unwrap_or_default(), row))
    };
    // Traffic begins over QUIC; the path is measured, and new connections take TCP.
    let (mut first, mut first_backend) = fleet.connect("cloud", "oslo");
    let (_, row) = carried("oslo").unwrap();
    assert_eq!(
        (&row["transport"], &row["carries"][0]["transport"]),
        (&"quic".into(), &"quic".into()),
        "{row}"
    );
    let (mut client, mut backend) = wait_for("a stream takes TCP", || {
        move_a_megabyte(&mut first, &mut first_backend);
        let opened = fleet.connect("cloud", "oslo");
        carried("oslo").filter(|(streams, _)| *streams > 0).map(|_| opened)
    })
    .unwrap_or_else(|error| panic!("{error}\n{:?}\n{}", carried("oslo"), fleet.logs()));
    move_a_megabyte(&mut client, &mut backend);
    let (_, row) = carried("oslo").unwrap();
    assert_eq!(row["transport"], "quic", "the control link stays: {row}");
    let reason = row["carriesReason"].as_str().unwrap_or_default();
    // A loaded machine answers later than a short path.
    let reasons = ["TCP: the path is short and has lost nothing", "TCP: the path is clean and stable"];
    assert!(reasons.contains(&reason), "{row}");
    assert!(row["carries"][1]["sentBytes"].as_u64() > Some(1 << 20), "{row}");
    // The other direction takes it too.
    let (mut back, mut back_backend) = fleet.connect("oslo", "cloud");
    move_a_megabyte(&mut back, &mut back_backend);
    assert!(carried("oslo").unwrap().1["carries"][1]["receivedBytes"].as_u64() > Some(1 << 20));
    // Both transports end with the session.
    fleet.lab.run(&["revoke", "oslo"]);
    let begun = Instant::now();
    for stream in [&first, &client, &back_backend] {
        let _ = ending(stream);
    }
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
}

#[test]
fn a_connection_crosses_in_every_direction_and_both_ends_are_recorded() {
    for transport in ["quic", "tcp"] {
        let fleet = Fleet::start(transport);
        for (from, to) in
            [("oslo", "cloud"), ("cloud", "oslo"), ("oslo", "rome"), ("rome", "oslo"), ("cloud", "rome")]
        {
            let (mut client, mut backend) = fleet.connect(from, to);
            client.write_all(b"there").unwrap();
            // Half-closed: the backend sees the end and may still answer.
            client.shutdown(Shutdown::Write).unwrap();
            let mut heard = String::new();
            backend.read_to_string(&mut heard).unwrap();
            assert_eq!(heard, "there", "{from} to {to} over {transport}");
            backend.write_all(b"and back").unwrap();
            drop(backend);
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert_eq!(answer, "and back", "{from} to {to} over {transport}");

            for gateway in [from, to] {
                let record = fleet.record(&format!("{gateway} records {from} to {to}"), |line| {
                    line["gateway"] == gateway
                        && line["service"] == format!("echo-{to}")
                        && line["clientSite"] == from
                        && line["end"] == "done"
                });
                assert_eq!(record["subject"], format!("friend-{from}"), "{record}");
                assert_eq!((&record["decision"], &record["rule"]), (&"allow".into(), &"friends".into()));
                assert_eq!((&record["sentBytes"], &record["receivedBytes"]), (&6.into(), &8.into()));
            }
        }
    }
}

#[test]
fn a_client_that_no_policy_names_is_reset_at_once() {
    let fleet = Fleet::start("quic");
    for (from, to) in [("oslo", "rome"), ("cloud", "rome"), ("rome", "cloud")] {
        drop(fleet.connect(from, to));
        let asked = Instant::now();
        // The reset may be faster than the connect.
        let ended = match connect(STRANGER, fleet.at(from, to)) {
            Ok(stranger) => ending(&stranger),
            Err(error) => Some(error.kind()),
        };
        assert_eq!(ended, Some(ErrorKind::ConnectionReset), "{from} to {to}");
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        let record = fleet.record("the refusal is recorded", |line| {
            line["gateway"] == from && line["service"] == format!("echo-{to}") && line["decision"] == "deny"
        });
        assert_eq!((&record["end"], &record["subject"]), (&"refused".into(), &Value::Null), "{record}");
        assert!(record["client"].as_str().unwrap().starts_with("127.0.0.2:"), "{record}");
    }
}

#[test]
fn a_policy_that_is_deleted_takes_its_connections_with_it() {
    let fleet = Fleet::start("tcp");
    let open =
        [("oslo", "rome"), ("cloud", "oslo"), ("rome", "cloud")].map(|(from, to)| fleet.connect(from, to));
    fleet.lab.run(&["delete", "epolicy", "friends"]);
    let deleted = Instant::now();
    for (client, backend) in &open {
        assert_eq!(ending(client), Some(ErrorKind::ConnectionReset));
        assert_eq!(ending(backend), Some(ErrorKind::ConnectionReset));
    }
    assert!(deleted.elapsed() < Duration::from_secs(1), "{:?}", deleted.elapsed());
    let record = fleet.record("the cut is recorded", |line| line["end"] == "revoked");
    assert_eq!(record["decision"], "allow", "it was, when it began: {record}");
}

#[test]
fn a_backend_that_does_not_answer_is_told_of_until_it_does() {
    let mut fleet = Fleet::start("quic");
    drop(fleet.connect("oslo", "rome"));
    let (address, presence) = (fleet.backends[place("rome")].local_addr().unwrap(), fleet.at("oslo", "rome"));
    let said = |fleet: &Fleet, kind: &str| {
        let object = fleet.lab.cloud.run(&["get", kind, "echo-rome", "-o", "json"]).unwrap().json().unwrap();
        let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
        let said = conditions.into_iter().find(|said| said["type"] == "BackendsAnswer")?;
        Some((said["status"].as_str()?.to_owned(), said["message"].as_str()?.to_owned()))
    };
    assert_eq!(said(&fleet, "eservice"), None);
    drop(fleet.backends.remove(place("rome")));
    let refused = connect(FRIEND, presence).ok().and_then(|client| ending(&client));
    assert_eq!(refused, Some(ErrorKind::ConnectionReset));
    for kind in ["eservice", "serviceexpose"] {
        let why = wait_for("the outage is told", || said(&fleet, kind).filter(|(is, _)| is == "False"));
        let (_, why) = why.unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));
        assert!(why.starts_with(&format!("gateway rome reaches no backend; {address}: ")), "{why}");
    }

    fleet.backends.push(TcpListener::bind(address).unwrap());
    for kind in ["eservice", "serviceexpose"] {
        let well = || said(&fleet, kind).filter(|said| *said == ("True".into(), String::new()));
        wait_for("its end is told", well).unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));
    }
}

#[test]
fn a_gateway_gives_nobody_its_own_listeners() {
    let fleet = Fleet::start("quic");
    drop(fleet.connect("oslo", "cloud"));
    let admin = fleet.lab.cloud.admin;
    let object = format!(
        "{{apiVersion: causeway.io/v1, kind: EService, metadata: {{name: echo-cloud}}, eSiteName: cloud, protocol: TCP, \
         port: {}, ip: {}}}\n",
        admin.port(),
        admin.ip()
    );
    let apply = fleet.lab.cloud.client(&["apply", "-f", "-", "--force-conflicts"]).unwrap();
    finish(apply, Some(&object)).unwrap().success().unwrap();
    // Reported before any client has tried.
    for kind in ["eservice", "serviceexpose"] {
        let denied = wait_for("the denial is told", || {
            let object = fleet.lab.cloud.run(&["get", kind, "echo-cloud", "-o", "json"]).ok()?.json().ok()?;
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            conditions.into_iter().find(|said| said["type"] == "BackendsAnswer" && said["status"] == "False")
        });
        let denied = denied.unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));
        assert_eq!(denied["reason"], "BackendDenied", "{denied}");
        let message = denied["message"].as_str().unwrap();
        assert!(
            message.contains(&format!("{admin}: it is a listener of the gateway itself (admin)")),
            "{message}"
        );
    }
    let presence = SocketAddr::from((*fleet.at_ip("oslo", "cloud"), admin.port()));
    let client = wait_for("the presence listens", || connect(FRIEND, presence).ok()).unwrap();
    assert_eq!(ending(&client), Some(ErrorKind::ConnectionReset));
    let record = fleet.record("the refusal is recorded", |line| {
        line["service"] == "echo-cloud" && line["reason"].as_str().is_some_and(|why| why.contains("(admin)"))
    });
    assert_eq!(record["end"], "backend-down", "{record}");
}

#[test]
fn a_reset_goes_through_to_the_other_end() {
    for transport in ["quic", "tcp"] {
        let fleet = Fleet::start(transport);
        let (client, backend) = fleet.connect("oslo", "rome");
        reset(client);
        assert_eq!(ending(&backend), Some(ErrorKind::ConnectionReset), "client to backend over {transport}");
        fleet.record("the client's reset is recorded", |line| line["end"] == "client-reset");

        let (client, backend) = fleet.connect("oslo", "rome");
        reset(backend);
        assert_eq!(ending(&client), Some(ErrorKind::ConnectionReset), "backend to client over {transport}");
        fleet.record("the backend's reset is recorded", |line| line["end"] == "backend-reset");

        // Also from a client that had closed its half before, and is only waited for.
        let (client, backend) = fleet.connect("oslo", "rome");
        client.shutdown(Shutdown::Write).unwrap();
        assert_eq!(ending(&backend), None);
        reset(client);
        wait_for("the backend hears of it", || {
            (&backend).write_all(&[0; 1000]).err().map(|error| error.kind())
        })
        .unwrap();
    }
}

#[test]
fn megabytes_arrive_whole_and_a_reader_that_sleeps_holds_the_writer_up() {
    for transport in ["quic", "tcp"] {
        let fleet = Fleet::start(transport);
        let (mut client, mut backend) = fleet.connect("oslo", "rome");
        client.set_nonblocking(true).unwrap();
        let pattern: Vec<u8> =
            (0..1 << 20).map(|number: u32| (number.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        // No client reads: bytes that fit into windows and kernels are taken, then no more.
        let (mut sent, mut last) = (0usize, Instant::now());
        while last.elapsed() < Duration::from_millis(700) {
            match client.write(&pattern[sent % pattern.len()..]) {
                Ok(bytes) => (sent, last) = (sent + bytes, Instant::now()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Err(error) => panic!("{error}\n{}", fleet.logs()),
            }
            assert!(sent < 64 << 20, "nothing holds the writer up");
        }
        client.set_nonblocking(false).unwrap();
        let rest = std::thread::spawn(move || {
            while sent < 80 << 20 {
                sent += client.write(&pattern[sent % pattern.len()..]).unwrap();
            }
            client.shutdown(Shutdown::Write).unwrap();
            (sent, pattern, client)
        });
        let mut received = Vec::new();
        backend.read_to_end(&mut received).unwrap();
        let (sent, pattern, _client) = rest.join().unwrap();
        assert_eq!(received.len(), sent);
        assert!(received.chunks(pattern.len()).all(|chunk| chunk == &pattern[..chunk.len()]), "{transport}");
    }
}

#[test]
fn a_gateway_that_drains_keeps_its_connections_and_gets_no_new_ones() {
    let fleet = Fleet::start("auto");
    let lab = &fleet.lab;
    let token = lab.run(&["token", "create", "--site", "rome", "--gateway", "rome-2"]);
    let second = lab.edge("rome-2", &["--join", token.trim(), "--presence", "off"]);
    lab.connected("rome-2", &second);
    let drain = |arguments: &[&str]| lab.cloud.run(&[&["drain"], arguments].concat()).unwrap();
    let through = |gateway: &str| {
        let journal = std::fs::read_to_string(lab.path("cloud").join("audit/fleet.jsonl")).ok()?;
        let lines = journal.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let is_ours = |line: &Value| line["gateway"] == gateway && line["service"] == "echo-rome";
        Some(lines.filter(is_ours).count())
    };
    let (mut kept, mut kept_backend) = fleet.connect("cloud", "rome");
    assert_eq!(through("rome-2"), Some(0), "rome has the first name of its site");
    assert_eq!(drain(&["rome"]).success().unwrap(), "egateway/rome draining\n");
    let row = lab
        .run(&["status"])
        .lines()
        .find(|row| row.starts_with("rome ") && row.contains("draining"))
        .is_some();
    assert!(row, "{}", lab.run(&["status"]));
    wait_for("new connections take the other gateway", || {
        drop(fleet.connect("cloud", "rome"));
        through("rome-2").filter(|records| *records > 0)
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));
    // An open connection stays open, and is counted.
    move_a_megabyte(&mut kept, &mut kept_backend);
    let waited = drain(&["rome", "--wait", "1s"]);
    assert_eq!(waited.code, 1, "{}", waited.stdout);
    assert!(waited.stderr.contains("connections are still open"), "{}", waited.stderr);
    drop((kept, kept_backend));
    let waited = drain(&["rome", "--wait", "10m"]).success().unwrap();
    assert!(waited.ends_with("egateway/rome has no connections left\n"), "{waited}");

    // The last one is drained on demand alone; then the site gets no connections.
    let refused = drain(&["rome-2"]);
    assert_eq!(refused.code, 1, "{}", refused.stdout);
    assert!(refused.stderr.contains("has no other gateway that is connected"), "{}", refused.stderr);
    drain(&["rome-2", "--force"]).success().unwrap();
    wait_for("rome gets no new connections", || {
        let client = connect(FRIEND, fleet.at("cloud", "rome")).ok()?;
        // One from before the cloud knew of the drain is served, and says nothing.
        client.set_read_timeout(Some(Duration::from_millis(500))).ok()?;
        (ending(&client) == Some(ErrorKind::ConnectionReset)).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", fleet.logs()));
    assert_eq!(drain(&["rome", "--undo"]).success().unwrap(), "egateway/rome in service\n");
    drop(fleet.connect("cloud", "rome"));
    assert_eq!(lab.cloud.object("egateway", "rome").unwrap()["drain"], Value::Null);

    let deeds = lab.run(&["audit", "--admin", "--json"]);
    let is_drain = |line: &&str| line.contains("\"patch\"") && line.contains("rome-2");
    assert!(deeds.lines().any(|line| is_drain(&line)), "{deeds}");
}
