//! The real programs of these tests: nginx, socat, iperf3, and gRPC and WebSocket of Debian's Python as servers; curl, socat,
//! openssl, dig and the same Python as clients.
//!
//! `PROTOCOLS` is the table: a new protocol is one more row. A row says what the service speaks, where it listens, and how a
//! client asks it once; the answer must name the server it came from.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use testlab::causeway::{Process, wait_for};
use testlab::net::Host;

use crate::sites::{SITES, gateway_address};

/// Debian's own: the packages are installed for it.
const PYTHON: &str = "/usr/bin/python3";
const PEER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/programs/peer.py");

/// A way of speaking to a service, and how one is asked.
pub struct Protocol {
    /// Of the row, and of its services.
    pub name: &'static str,
    /// The `protocol` of the EService.
    pub speaks: &'static str,
    pub port: u16,
    pub asks: Asks,
    /// The text behind the server's name in an answer.
    pub and: &'static str,
    /// The way to keep a connection open, and the log and the words in which the server tells that one has ended.
    pub holds: Option<(Asks, &'static str, &'static str)>,
    /// The refusal of the client that no policy names: the text that it prints then, of each one of the words between bars. Nothing: it
    /// hears nothing.
    pub refused: &'static [&'static str],
}

/// The action of a client.
pub enum Asks {
    /// A line of a shell. $1 is the name, $2 the port, $CA where the authority of the server is, $GATEWAY the client's own gateway
    /// and $SHARED a port there. A client that asks once prints the answer or the refusal; one that holds prints `open`, and ends with the connection.
    Shell(&'static str),
    /// `peer.py`, by this word.
    Python(&'static str),
}

/// The reset may be there before a program has looked whether it is connected.
const RESET: &str = "reset by peer|Couldn't connect|Connection refused";

pub const PROTOCOLS: [Protocol; 13] = [
    Protocol {
        name: "tcp",
        speaks: "TCP",
        port: 7000,
        asks: Asks::Shell("echo hello | socat -d -t5 - TCP:$1:$2,connect-timeout=5 2>&1"),
        and: "/hello",
        holds: Some((
            Asks::Shell(
                "socat TCP:$1:$2 SYSTEM:'echo hello; head -c1 >/dev/null; echo open >&2; exec cat >/dev/null' 2>&1",
            ),
            "tcp",
            "exiting with status",
        )),
        refused: &[RESET],
    },
    Protocol {
        name: "udp",
        speaks: "UDP",
        port: 7001,
        asks: Asks::Shell(
            "timeout 1 socat -t0 UDP:$1:$2 SYSTEM:'echo hello; read answer; echo $answer >&2' 2>&1",
        ),
        and: "/hello",
        holds: None,
        // Silence: a datagram has no way to be refused.
        refused: &[],
    },
    Protocol {
        name: "session",
        speaks: "UDP",
        port: 7002,
        asks: Asks::Python("udp"),
        and: "",
        holds: Some((Asks::Python("udp"), "peer", "the session ended")),
        refused: &["nobody answers"],
    },
    Protocol {
        name: "http",
        speaks: "HTTP",
        port: 8080,
        asks: Asks::Shell(
            "curl -sS -m5 --http1.1 -w ' over %{http_version} %{http_code}' http://$1:$2/ 2>&1",
        ),
        and: " over 1.1 200",
        holds: Some((
            Asks::Shell(
                "curl -sN --http1.1 http://$1:$2/slow | (head -c1 >/dev/null; echo open; exec cat >/dev/null)",
            ),
            "slow",
            "ended at 8080",
        )),
        refused: &["no policy of service", " over 1.1 403"],
    },
    Protocol {
        name: "http2",
        speaks: "HTTP",
        port: 8080,
        asks: Asks::Shell(
            "curl -sS -m5 --http2-prior-knowledge -w ' over %{http_version} %{http_code}' http://$1:$2/ 2>&1",
        ),
        and: " over 2 200",
        holds: Some((
            Asks::Shell(
                "curl -sN --http2-prior-knowledge http://$1:$2/slow | (head -c1 >/dev/null; echo open; exec cat >/dev/null)",
            ),
            "slow",
            "ended at 8080",
        )),
        refused: &["no policy of service", " over 2 403"],
    },
    Protocol {
        name: "grpc",
        speaks: "GRPC",
        port: 50051,
        asks: Asks::Python("grpc"),
        and: "",
        holds: Some((Asks::Python("grpc"), "peer", "the call ended")),
        refused: &["PERMISSION_DENIED: no policy of service"],
    },
    Protocol {
        name: "websocket",
        speaks: "HTTP",
        port: 8765,
        asks: Asks::Python("ws"),
        and: "",
        holds: Some((Asks::Python("ws"), "peer", "the socket ended")),
        refused: &["HTTP 403: not-allowed"],
    },
    Protocol {
        name: "https",
        speaks: "HTTPS",
        port: 8443,
        // The certificate is the server's own, so no gateway has opened it on the way.
        asks: Asks::Shell(
            "curl -sS -m5 --http1.1 --cacert $CA -w ' over %{http_version} %{http_code}' https://$1:$2/ 2>&1",
        ),
        and: " over 1.1 200",
        holds: Some((
            Asks::Shell(
                "curl -sN --http1.1 --cacert $CA https://$1:$2/slow | (head -c1 >/dev/null; echo open; exec cat >/dev/null)",
            ),
            "slow",
            "ended at 8443",
        )),
        refused: &[RESET],
    },
    Protocol {
        name: "https2",
        speaks: "HTTPS",
        port: 8443,
        asks: Asks::Shell(
            "curl -sS -m5 --http2 --cacert $CA -w ' over %{http_version} %{http_code}' https://$1:$2/ 2>&1",
        ),
        and: " over 2 200",
        holds: Some((
            Asks::Shell(
                "curl -sN --http2 --cacert $CA https://$1:$2/slow | (head -c1 >/dev/null; echo open; exec cat >/dev/null)",
            ),
            "slow",
            "ended at 8443",
        )),
        refused: &[RESET],
    },
    Protocol {
        name: "iperf3",
        speaks: "TCP",
        port: 5201,
        asks: Asks::Shell(
            "iperf3 -c $1 -p $2 -n 4M --connect-timeout 2000 2>&1 | sed -n \"s/.* receiver/$SERVER moved/p\"",
        ),
        and: " moved",
        holds: None,
        refused: &[],
    },
    Protocol {
        name: IPERF3_UDP,
        speaks: "UDP",
        port: 5201,
        // Its control connection is the service of the row before, at the same address and port: that of the client's gateway.
        asks: Asks::Shell(
            "timeout 3 iperf3 -u -c $GATEWAY -p $SHARED -l 1000 -b 40M -n 400K --connect-timeout 2000 2>&1 | \
             sed -n \"s/.* [1-9][0-9.]* .Bytes .* receiver/$SERVER moved/p\"",
        ),
        and: " moved",
        holds: None,
        refused: &[],
    },
    // The same entry for the names of all services, which are told apart by Host...
    Protocol {
        name: "entry",
        speaks: "HTTP",
        port: 8080,
        asks: Asks::Shell(
            "curl -sS -m5 --connect-to ::$GATEWAY:9080 -w ' over %{http_version} %{http_code}' http://$1/ 2>&1",
        ),
        and: " over 1.1 200",
        holds: Some((
            Asks::Shell(
                "curl -sN --connect-to ::$GATEWAY:9080 http://$1/slow | (head -c1 >/dev/null; echo open; exec cat >/dev/null)",
            ),
            "slow",
            "ended at 8080",
        )),
        refused: &["no policy of service", " over 1.1 403"],
    },
    // ...or by the name that TLS asks for, and opened by no gateway on the way.
    Protocol {
        name: "sni",
        speaks: "HTTPS",
        port: 8443,
        asks: Asks::Shell(
            "curl -sS -m5 --connect-to ::$GATEWAY:9443 --cacert $CA -w ' over %{http_version} %{http_code}' https://$1/ 2>&1",
        ),
        and: " over 2 200",
        holds: Some((
            Asks::Shell(
                "curl -sN --connect-to ::$GATEWAY:9443 --cacert $CA https://$1/slow | (head -c1 >/dev/null; echo open; exec cat >/dev/null)",
            ),
            "slow",
            "ended at 8443",
        )),
        refused: &[RESET],
    },
];

/// The row whose data are datagrams, and whose control connection is a service of its own.
pub const IPERF3_UDP: &str = "iperf3-udp";

/// Configuration of a site's gateway beside its objects: it lets in clients for many names, and both services of iperf3
/// share an address and a port there.
pub fn entries(site: &str) -> String {
    let own = gateway_address(site);
    let ports = SITES.iter().flat_map(|home| {
        let port = shared_port(home);
        ["iperf3", IPERF3_UDP].map(|kind| format!("\"{kind}-{home}={own}:{port}\""))
    });
    let ports: Vec<String> = ports.collect();
    format!(
        "[gateway]\nentry-http = \"{own}:9080\"\nentry-tls = \"{own}:9443\"\nports = [{}]\n",
        ports.join(", ")
    )
}

fn shared_port(home: &str) -> u16 {
    5301 + SITES.iter().position(|site| *site == home).unwrap() as u16
}

impl Protocol {
    pub fn named(name: &str) -> &'static Protocol {
        PROTOCOLS.iter().find(|protocol| protocol.name == name).unwrap()
    }

    pub fn answer(&self, server: &str) -> String {
        format!("{server}{}", self.and)
    }

    /// Asks once. `server` is who should answer.
    pub fn ask(&self, client: &Host, server: &Server<'_>) -> Run {
        run(self.once(client, server), Duration::from_secs(10))
    }

    fn once(&self, client: &Host, server: &Server<'_>) -> Command {
        match self.asks {
            Asks::Shell(line) => shell(client, line, server),
            Asks::Python(word) => python(client, &[word, &server.place()]),
        }
    }

    /// A client that is ready, and asks until it is answered once it is told to.
    pub fn wait(&self, client: &Host, server: &Server<'_>) -> Waiting {
        let mut command = match self.asks {
            Asks::Shell(line) => {
                let answer = self.answer(&server.host);
                let line = format!(
                    "echo ready; read go; until out=$( {line} ); [ \"$out\" = \"{answer}\" ]; do sleep 0.005; done; echo \"$out\""
                );
                shell(client, &line, server)
            }
            Asks::Python(word) => python(client, &[word, &server.place(), "until"]),
        };
        let child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit()).spawn();
        let mut child = child.unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut ready = String::new();
        lines.read_line(&mut ready).unwrap();
        assert_eq!(ready, "ready\n", "{}", self.name);
        Waiting { child, lines }
    }
}

impl Protocol {
    /// A client that keeps its connection open, once it has one. None: this one has nothing to keep.
    pub fn hold(&self, client: &Host, server: &Server<'_>) -> Option<Held> {
        let mut command = match &self.holds.as_ref()?.0 {
            Asks::Shell(line) => shell(client, line, server),
            Asks::Python(word) => python(client, &[word, &server.place(), "hold"]),
        };
        let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut child = child.unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut said = Vec::new();
        while said.last().is_none_or(|line| line != "open") {
            match lines.next() {
                Some(line) => said.push(line.unwrap()),
                None => panic!("{}: not open: {said:?}", server.name),
            }
        }
        // It ends with the program, whose output it reads.
        let end = std::thread::spawn(move || {
            // Some say how it ended before they end themselves.
            let last = lines.map_while(Result::ok).map(|line| (Instant::now(), line)).last();
            last.unwrap_or_else(|| (Instant::now(), String::new()))
        });
        Some(Held { child, end })
    }
}

/// A client with an open connection.
pub struct Held {
    child: Child,
    end: std::thread::JoinHandle<(Instant, String)>,
}

impl Held {
    pub fn is_open(&self) -> bool {
        !self.end.is_finished()
    }

    /// Waits until the program has ended with its connection. Returns when that was, and its last words.
    pub fn end(mut self, within: Duration) -> Option<(Instant, String)> {
        let begin = Instant::now();
        while self.is_open() && begin.elapsed() < within {
            std::thread::sleep(Duration::from_millis(2));
        }
        let ended = !self.is_open();
        let _ = self.child.kill();
        let _ = self.child.wait();
        let end = self.end.join().unwrap();
        ended.then_some(end)
    }
}

/// The server that a client asks.
pub struct Server<'a> {
    /// `server-SITE`, as it calls itself.
    pub host: String,
    pub name: String,
    pub port: u16,
    pub folder: &'a Path,
}

impl Server<'_> {
    fn place(&self) -> String {
        format!("{}:{}", self.name, self.port)
    }
}

/// A client that was started before it has anything to ask.
pub struct Waiting {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Waiting {
    /// Tells it to begin, and waits for the answer. Returns how long after `since` that came.
    pub fn answer(mut self, since: Instant, within: Duration) -> Option<(String, Duration)> {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let (told, answer) = std::sync::mpsc::channel();
        let mut lines = self.lines;
        // It ends with the program, whose output it reads.
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = lines.read_line(&mut line);
            let _ = told.send((line.trim_end().to_owned(), since.elapsed()));
        });
        let answered = answer.recv_timeout(within).ok();
        let _ = self.child.kill();
        let _ = self.child.wait();
        answered
    }
}

/// A program that has ended, or was ended because it took too long.
#[derive(Debug)]
pub struct Run {
    pub said: String,
    pub took: Duration,
    pub ended: bool,
}

/// Runs a client to its end.
pub fn run(mut command: Command, within: Duration) -> Run {
    let begin = Instant::now();
    let mut child =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut output = child.stdout.take().unwrap();
    let reader = std::thread::spawn(move || {
        let mut said = String::new();
        let _ = output.read_to_string(&mut said);
        said
    });
    let mut ended = false;
    while !ended && begin.elapsed() < within {
        ended = child.try_wait().unwrap().is_some();
        std::thread::sleep(Duration::from_millis(2));
    }
    let took = begin.elapsed();
    let _ = child.kill();
    let _ = child.wait();
    Run { said: reader.join().unwrap().trim_end().to_owned(), took, ended }
}

/// A line of a shell, with the name, the port, and the server's authority in its words.
pub fn shell(client: &Host, line: &str, server: &Server<'_>) -> Command {
    let mut command = client.command("sh");
    command.args(["-c", line, "sh", &server.name, &server.port.to_string()]);
    command.env("CA", server.folder.join(format!("{}.pem", server.host))).env("SERVER", &server.host);
    if let Some((site, home)) = client.name().split_once('-').zip(server.host.split_once('-')) {
        command.env("GATEWAY", gateway_address(site.1)).env("SHARED", shared_port(home.1).to_string());
    }
    command
}

pub fn python(client: &Host, arguments: &[&str]) -> Command {
    let mut command = client.command(PYTHON);
    command.arg(PEER).args(arguments);
    command
}

/// Starts every server of a site on its host. All answers begin with the host's name.
pub fn serve(host: &Host, folder: &Path) -> Vec<Process> {
    let name = host.name();
    certify(name, folder);
    let nginx = nginx(name, folder);
    let start = |what: &str, program: &str, arguments: &[&str]| {
        let mut command = host.command(program);
        command.args(arguments);
        Process::spawn(command, folder.join(format!("{name}-{what}.log"))).unwrap()
    };
    let echo = format!("SYSTEM:echo -n {name}/; exec cat");
    let word = format!("SYSTEM:read word; echo {name}/$word");
    let servers = vec![
        start("nginx", "nginx", &["-e", "stderr", "-c", &nginx]),
        start("tcp", "socat", &["-d", "-d", "TCP-LISTEN:7000,fork,reuseaddr,backlog=128", &echo]),
        start("udp", "socat", &["UDP-RECVFROM:7001,fork,reuseaddr", &word]),
        start("iperf3", "iperf3", &["-s", "-p", "5201"]),
        start("peer", PYTHON, &[PEER, "serve", name]),
    ];
    for protocol in PROTOCOLS.iter().filter(|protocol| protocol.speaks != "UDP") {
        let own = SocketAddr::from(([127, 0, 0, 1], protocol.port));
        wait_for(&format!("{name} serves {}", protocol.name), || {
            host.connects(own, Duration::from_secs(1)).then_some(())
        })
        .unwrap();
    }
    servers
}

/// A certificate of its own, which it has signed itself.
fn certify(name: &str, folder: &Path) {
    let mut command = Command::new("openssl");
    let words = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=lab -addext";
    command.args(words.split(' ')).arg("subjectAltName=DNS:*.lab.test");
    command.arg("-keyout").arg(folder.join(format!("{name}.key")));
    command.arg("-out").arg(folder.join(format!("{name}.pem")));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The configuration of a site's nginx. `/slow` goes on for minutes.
fn nginx(name: &str, folder: &Path) -> String {
    let place = folder.display();
    std::fs::write(folder.join("slow"), vec![b'x'; 1 << 20]).unwrap();
    let both = format!(
        "default_type text/plain; location / {{ return 200 \"{name}\"; }}\n\
         location /slow {{ root {place}; limit_rate 4k; sendfile off; access_log {place}/{name}-slow.log ended; }}\n"
    );
    let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|what| format!("{what}_temp_path {place}/{name}-{what};\n"))
        .concat();
    let text = format!(
        "daemon off; user root; worker_processes 1; pid {place}/{name}.pid;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; log_format ended \"ended at $server_port\"; {temporary}\n\
         server {{ listen 8080; {both} }}\n\
         server {{ listen 8443 ssl http2; ssl_certificate {place}/{name}.pem;\n\
         ssl_certificate_key {place}/{name}.key; {both} }} }}\n"
    );
    let path = folder.join(format!("{name}.conf"));
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

/// Programs that are not here; none when all are.
pub fn missing() -> Option<String> {
    let absent = |program: &&str| {
        let mut found = Command::new("sh");
        found.args(["-c", "command -v \"$1\"", "sh", program]).stdout(Stdio::null());
        !found.status().is_ok_and(|status| status.success())
    };
    let programs = ["nginx", "curl", "socat", "iperf3", "dig", "openssl", PYTHON];
    let mut lacking: Vec<String> =
        programs.iter().filter(|name| absent(name)).map(|name| (*name).to_owned()).collect();
    let mut modules = Command::new(PYTHON);
    modules.args(["-c", "import grpc, websockets"]).stderr(Stdio::null());
    if !modules.status().is_ok_and(|status| status.success()) {
        lacking.push("python3-grpcio and python3-websockets".to_owned());
    }
    (!lacking.is_empty()).then(|| lacking.join(", "))
}
