//! The limits of policies over ten seconds, for a client at one site and a service at another: each holds within a tenth, and a subject
//! that wants much more than it may takes nothing from one that is content with less.
//!
//! A row is a protocol and a limit. All rows run at the same time, each on a service of its own; services that share a policy do not
//! share its limits. Presences stand inside 127.0.0.0/8, and a subject is known by its source address, as in `crossing`.

mod backend;
mod load;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use serde_json::Value;
use testlab::causeway::{Process, finish, wait_for};

use crate::Lab;
use backend::Backend;
use load::{Load, Subject};

/// The value of each limit, and the time of each look. Small, so that a machine with other work can keep up.
const BYTES_PER_SECOND: u64 = 60_000;
const CONNECTIONS_PER_SECOND: u64 = 10;
const CONNECTIONS: u64 = 10;
const REQUESTS_PER_SECOND: u64 = 10;
const TIME: Duration = Duration::from_secs(10);

/// The services: name, protocol, policy.
const SERVICES: [(&str, &str, &str); 9] = [
    ("tcp-bytes", "TCP", "bytes"),
    ("udp-bytes", "UDP", "bytes"),
    ("http-bytes", "HTTP", "bytes"),
    ("upgrade-bytes", "HTTP", "bytes"),
    ("tcp-new", "TCP", "new"),
    ("http-new", "HTTP", "new"),
    ("tcp-open", "TCP", "open"),
    ("http-open", "HTTP", "open"),
    ("http-asked", "HTTP", "asked"),
];

/// The object of a limit: the service, the action of its clients, and the amount that may pass in `TIME`.
const ROWS: [(&str, &str, Load, u64); 13] = [
    ("bytes of TCP to the service", "tcp-bytes", Load::TcpDrain, BYTES_PER_SECOND * 10),
    ("bytes of TCP from the service", "tcp-bytes", Load::TcpPour, BYTES_PER_SECOND * 10),
    ("bytes of UDP to the service", "udp-bytes", Load::UdpDrain, BYTES_PER_SECOND * 10),
    ("bytes of UDP from the service", "udp-bytes", Load::UdpPour, BYTES_PER_SECOND * 10),
    ("bodies of requests", "http-bytes", Load::HttpDrain, BYTES_PER_SECOND * 10),
    ("bodies of responses", "http-bytes", Load::HttpPour, BYTES_PER_SECOND * 10),
    (
        "bytes of an upgraded connection to the service",
        "upgrade-bytes",
        Load::UpgradeDrain,
        BYTES_PER_SECOND * 10,
    ),
    (
        "bytes of an upgraded connection from the service",
        "upgrade-bytes",
        Load::UpgradePour,
        BYTES_PER_SECOND * 10,
    ),
    ("new connections over TCP", "tcp-new", Load::TcpNew, CONNECTIONS_PER_SECOND * 10),
    ("new connections over HTTP", "http-new", Load::HttpNew, CONNECTIONS_PER_SECOND * 10),
    ("open connections over TCP", "tcp-open", Load::TcpOpen, CONNECTIONS),
    ("open connections over HTTP", "http-open", Load::HttpOpen, CONNECTIONS),
    ("requests", "http-asked", Load::HttpAsk, REQUESTS_PER_SECOND * 10),
];

struct Fleet {
    lab: Lab,
    _edges: [Process; 2],
    backend: Backend,
}

impl Fleet {
    fn start(transport: &str) -> Fleet {
        let lab = Lab::start();
        let backend = Backend::start(ROWS.len());
        let edges = ["oslo", "rome"].map(|site| {
            let token = lab.run(&["token", "create", "--site", site]);
            lab.edge(site, &["--join", token.trim(), "--transport", transport])
        });
        let fleet = Fleet { lab, _edges: edges, backend };
        let apply = fleet.lab.cloud.client(&["apply", "-f", "-", "--force-conflicts"]).unwrap();
        finish(apply, Some(&fleet.objects())).unwrap().success().unwrap();
        fleet
    }

    fn objects(&self) -> String {
        let mut text = String::new();
        let mut add = |kind: &str, name: &str, fields: String| {
            text.push_str(&format!(
                "---\n{{apiVersion: causeway.io/v1, kind: {kind}, metadata: {{name: {name}}}, {fields}}}\n"
            ));
        };
        add("EGateway", "oslo", format!("eSiteName: oslo, virtualPresenceIPcidr: {}/27", range()));
        for subject in Subject::BOTH {
            add("EServer", subject.name(), format!("eSiteName: oslo, ip: {}", subject.address()));
        }
        for (policy, limits) in [
            ("bytes", format!("bytesPerSecondIn: {BYTES_PER_SECOND}, bytesPerSecondOut: {BYTES_PER_SECOND}")),
            ("new", format!("connectionsPerSecond: {CONNECTIONS_PER_SECOND}")),
            ("open", format!("connections: {CONNECTIONS}")),
            ("asked", format!("requestsPerSecond: {REQUESTS_PER_SECOND}")),
        ] {
            let servers = Subject::BOTH.map(Subject::name);
            add("EPolicy", policy, format!("allowedServers: {servers:?}, limits: {{{limits}}}"));
        }
        for (name, protocol, policy) in SERVICES {
            let port = self.backend.port(protocol);
            add(
                "EService",
                name,
                format!("eSiteName: rome, protocol: {protocol}, port: {port}, ip: 127.0.0.1"),
            );
            add("ServiceExpose", name, format!("eServiceName: {name}, eSites: [oslo], ePolicys: [{policy}]"));
        }
        text
    }

    /// The address at which the clients find a service, once it answers.
    fn at(&self, service: &str) -> SocketAddr {
        let protocol = SERVICES.iter().find(|(name, ..)| *name == service).unwrap().1;
        let address = wait_for("the presence has its address", || {
            let listed = self.lab.cloud.run(&["get", "virtualpresence", "-o", "json"]).ok()?.json().ok()?;
            let found =
                listed["items"].as_array()?.iter().find(|item| item["eServiceName"] == service)?.clone();
            let address: Ipv4Addr = Value::as_str(&found["virtualIp"])?.parse().ok()?;
            Some(SocketAddr::from((address, self.backend.port(protocol))))
        });
        let address = address.unwrap();
        wait_for(&format!("{service} answers"), || load::answers(protocol, address)).unwrap();
        address
    }
}

/// Addresses of this process alone.
fn range() -> Ipv4Addr {
    let process = std::process::id();
    Ipv4Addr::new(127, 230 + (process / 256 % 20) as u8, (process % 256) as u8, 0)
}

/// The faults that one look found.
#[derive(Default)]
struct Faults {
    /// More passed than may: never to be excused.
    above: Vec<String>,
    /// Less passed than may. A machine that is busy with other things can do that, too.
    below: Vec<String>,
}

fn look(fleet: &Fleet, transport: &str, places: &[SocketAddr]) -> Faults {
    let passed = std::thread::scope(|scope| {
        let run = |row: usize, subject: Subject| {
            let (load, at, most, backend) = (ROWS[row].2, places[row], ROWS[row].3, &fleet.backend);
            scope.spawn(move || load.run(at, backend.counter(row, subject), row, subject, most, TIME))
        };
        let running: Vec<_> =
            (0..ROWS.len()).map(|row| Subject::BOTH.map(|subject| run(row, subject))).collect();
        running.into_iter().map(|both| both.map(|load| load.join().unwrap())).collect::<Vec<_>>()
    });
    let mut faults = Faults::default();
    for ((name, _, _, most), [greedy, polite]) in ROWS.iter().zip(passed) {
        let part = |passed: u64, of: u64| passed as f64 / of as f64 * 100.0;
        println!(
            "{transport}, {name}: of {most} a greedy subject got {} ({:.1} %) of {} wanted; a polite one {} of {} wanted",
            greedy.passed,
            part(greedy.passed, *most),
            greedy.wanted,
            polite.passed,
            polite.wanted
        );
        match part(greedy.passed, *most) {
            part if part > 110.0 => faults.above.push(format!("{name}: {part:.1} % of the limit passed")),
            part if part < 90.0 => faults.below.push(format!("{name}: {part:.1} % of the limit passed")),
            _ => {}
        }
        if part(polite.passed, polite.wanted) < 90.0 {
            faults.below.push(format!("{name}: the polite one got {} of {}", polite.passed, polite.wanted));
        }
    }
    faults
}

fn check(transport: &str) {
    let fleet = Fleet::start(transport);
    let places: Vec<SocketAddr> = ROWS.iter().map(|(_, service, ..)| fleet.at(service)).collect();
    let mut faults = Faults::default();
    for _ in 0..LOOKS_MAX {
        // The amount that was taken before is given back meanwhile.
        std::thread::sleep(Duration::from_secs(1));
        faults = look(&fleet, transport, &places);
        assert!(faults.above.is_empty(), "{}", faults.above.join("\n"));
        if faults.below.is_empty() {
            return;
        }
    }
    panic!("{} looks, and in the last: {}", LOOKS_MAX, faults.below.join("\n"));
}

const LOOKS_MAX: usize = 3;

#[test]
fn limits_hold_within_a_tenth_over_ten_seconds_and_the_greedy_do_not_starve_the_polite() {
    check("quic");
    check("tcp");
}
