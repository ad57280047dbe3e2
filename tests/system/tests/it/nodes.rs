//! Nodes by name: CONNECT at the cloud, and what comes of it at the sites.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use testlab::causeway::{Cloud, Process, wait_for};

use crate::Lab;

/// A server on loopback that says its name: to `GET` as HTTP does, to `FLOOD n` with n bytes, and otherwise at the end of
/// what it was sent, with the length of that.
struct Server {
    port: u16,
    /// Bytes that a flood has sent so far.
    flooded: Arc<AtomicU64>,
}

impl Server {
    fn start(name: &'static str) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let flooded = Arc::new(AtomicU64::new(0));
        let counter = flooded.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counter = counter.clone();
                // A client that goes away is no reason to panic.
                std::thread::spawn(move || drop(answer(stream, name, &counter)));
            }
        });
        Server { port, flooded }
    }
}

fn answer(stream: TcpStream, name: &str, flooded: &AtomicU64) -> std::io::Result<()> {
    let mut write = stream.try_clone()?;
    let mut read = BufReader::new(stream);
    let mut line = String::new();
    read.read_line(&mut line)?;
    if line.starts_with("GET ") {
        return write!(
            write,
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{name}",
            name.len()
        );
    }
    if let Some(count) = line.strip_prefix("FLOOD ") {
        let chunk = [7; 64 << 10];
        let mut left: usize = count.trim().parse().unwrap_or_default();
        while left > 0 {
            let bytes = left.min(chunk.len());
            write.write_all(&chunk[..bytes])?;
            flooded.fetch_add(bytes as u64, Ordering::Relaxed);
            left -= bytes;
        }
        return Ok(());
    }
    let rest = std::io::copy(&mut read, &mut std::io::sink())?;
    write!(write, "{name} {}", line.len() as u64 + rest)
}

/// The head of the answer to a CONNECT, its body if it is a refusal, and the connection.
struct Answer {
    status: u16,
    body: String,
    stream: UnixStream,
}

fn connect(lab: &Lab, target: &str) -> Answer {
    // As kube-apiserver's egress selector writes it.
    ask(lab, &format!("CONNECT {target} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"))
}

fn ask(lab: &Lab, request: &str) -> Answer {
    let mut stream = UnixStream::connect(lab.cloud.data_dir.join("run/connect.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        // Byte by byte: what follows belongs to the connection.
        match stream.read(&mut byte).unwrap() {
            0 => panic!("the answer ends early: {}", String::from_utf8_lossy(&head)),
            _ => head.push(byte[0]),
        }
    }
    let head = String::from_utf8(head).unwrap().to_lowercase();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    let length =
        head.lines().find_map(|line| line.strip_prefix("content-length: ")?.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    if status != 200 {
        stream.read_exact(&mut body).unwrap();
    }
    Answer { status, body: String::from_utf8_lossy(&body).into_owned(), stream }
}

impl Answer {
    /// Sends something, closes this half, and returns what comes back.
    fn talk(mut self, text: &str) -> String {
        self.stream.write_all(text.as_bytes()).unwrap();
        self.stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        self.stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

fn node(name: &str, site: &str, port: u16, policy: &str) -> String {
    format!(
        "---\n{{kind: EServer, apiVersion: causeway.io/v1, metadata: {{name: {name}}}, ip: 127.0.0.1, eSiteName: {site}, \
         ports: [{port}], ePolicys: [{policy}]}}\n"
    )
}

fn policy(name: &str, site: &str) -> String {
    format!(
        "---\n{{kind: EPolicy, apiVersion: causeway.io/v1, metadata: {{name: {name}}}, allowedSites: [{site}]}}\n"
    )
}

/// A cloud with two sites; at both a node with the same address.
struct Fleet {
    lab: Lab,
    edges: [Process; 2],
    oslo: Server,
    bergen: Server,
}

impl Fleet {
    fn start(flags: &[&str]) -> Fleet {
        let folder = tempfile::tempdir().unwrap();
        let cloud = Cloud::start_with(&folder.path().join("cloud"), flags).unwrap();
        let lab = Lab { cloud, folder };
        let edges = ["Oslo", "Bergen"].map(|site| {
            let token = lab.run(&["token", "create", "--site", site]);
            lab.join(&site.to_lowercase(), token.trim())
        });
        let (oslo, bergen) = (Server::start("oslo"), Server::start("bergen"));
        lab.apply(&format!(
            "{}{}{}{}{}",
            policy("ops", "cloud"),
            policy("others", "Bergen"),
            node("Node-O", "Oslo", oslo.port, "ops"),
            node("node-b", "Bergen", bergen.port, "ops"),
            node("node-c", "Oslo", oslo.port, "others"),
        ));
        let fleet = Fleet { lab, edges, oslo, bergen };
        for target in [format!("node-o:{}", fleet.oslo.port), format!("node-b:{}", fleet.bergen.port)] {
            let reached = || (connect(&fleet.lab, &target).status == 200).then_some(());
            wait_for("the node is reached", reached).unwrap_or_else(|error| {
                panic!("{error}: {}\n{}", connect(&fleet.lab, &target).body, fleet.lab.cloud.process.log())
            });
        }
        fleet
    }
}

#[test]
fn a_node_is_reached_by_its_name_and_nothing_else_is() {
    let (hook, hidden) = (Server::start("hook"), Server::start("hidden"));
    let fleet = Fleet::start(&["--connect-allow", &format!("localhost:{}", hook.port)]);
    let (lab, oslo, bergen) = (&fleet.lab, fleet.oslo.port, fleet.bergen.port);
    let socket = std::fs::metadata(lab.cloud.data_dir.join("run/connect.sock")).unwrap();
    assert_eq!(socket.permissions().mode() & 0o777, 0o600);

    let reaches = |target: String, name: &str| {
        let answer = connect(lab, &target);
        assert_eq!(answer.status, 200, "{target}: {}", answer.body);
        // The half that is closed closes there, too; the other one still answers.
        assert_eq!(answer.talk("hello\nworld"), format!("{name} 11"), "{target}");
    };
    reaches(format!("Node-O:{oslo}"), "oslo");
    reaches(format!("NODE-o.:{oslo}"), "oslo");
    reaches(format!("node-o.oslo.causeway.internal:{oslo}"), "oslo");
    reaches(format!("node-b:{bergen}"), "bergen");
    reaches(format!("localhost:{}", hook.port), "hook");

    let refused = |target: String, status: u16, reason: &str| {
        let answer = connect(lab, &target);
        assert_eq!((answer.status, answer.body.lines().count()), (status, 1), "{target}: {}", answer.body);
        assert!(answer.body.contains(reason), "{target}: {}", answer.body);
    };
    refused(format!("node-o:{bergen}"), 403, "does not offer port");
    refused(format!("node-c:{oslo}"), 403, "no node that this site may reach");
    refused("node-x:10250".to_owned(), 403, "no node that this site may reach");
    refused(format!("127.0.0.1:{oslo}"), 403, "kubelet-preferred-address-types");
    refused(format!("localhost:{}", hidden.port), 403, "allow-list");
    refused("node-o".to_owned(), 400, "HOST:PORT");
    assert_eq!(ask(lab, "GET / HTTP/1.1\r\nhost: a\r\n\r\n").status, 405);

    // In plain HTTP, as Prometheus asks for a target with `scheme: http` behind a proxy.
    let plain = |target: String| {
        let head =
            format!("GET http://{target}/metrics HTTP/1.1\r\nhost: {target}\r\nconnection: close\r\n\r\n");
        let mut answer = ask(lab, &head);
        let mut rest = String::new();
        answer.stream.read_to_string(&mut rest).unwrap();
        (answer.status, rest)
    };
    assert_eq!(plain(format!("node-o:{oslo}")), (200, "oslo".to_owned()));
    assert_eq!(plain(format!("node-b:{bergen}")), (200, "bergen".to_owned()));
    for (target, status) in
        [(format!("node-o:{bergen}"), 403), (format!("node-c:{oslo}"), 403), ("node-x".into(), 403)]
    {
        assert_eq!(plain(target.clone()).0, status, "{target}");
    }

    let records = wait_for("everything is in the audit", || {
        let text = journal(&lab.cloud.data_dir);
        let has = |words: &[&str]| text.lines().any(|line| words.iter().all(|word| line.contains(word)));
        let target = format!("node/Node-O:{oslo}");
        let both = ["\"gateway\":\"cloud\"", "\"gateway\":\"Oslo\""]
            .iter()
            .all(|gateway| has(&[&target, gateway, "ops"]));
        (both
            && has(&["node/node-x:10250", "deny"])
            && has(&[&format!("direct/localhost:{}", hook.port), "allow"]))
        .then_some(())
    });
    records.unwrap_or_else(|error| panic!("{error}\n{}", journal(&lab.cloud.data_dir)));
}

/// All that the cloud has written into its journals.
fn journal(data_dir: &Path) -> String {
    let files = std::fs::read_dir(data_dir.join("audit")).unwrap().flatten();
    files.filter_map(|file| std::fs::read_to_string(file.path()).ok()).collect()
}

#[test]
fn a_node_that_is_down_and_a_site_that_is_away_are_told_apart() {
    let mut fleet = Fleet::start(&[]);
    let lab = &fleet.lab;
    let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    lab.apply(&node("node-d", "Oslo", closed, "ops"));
    let target = format!("node-d:{closed}");
    wait_for("nothing listens there", || (connect(lab, &target).status == 502).then_some(())).unwrap();
    fleet.edges[1].terminate().unwrap();
    let target = format!("node-b:{}", fleet.bergen.port);
    wait_for("the site is away", || (connect(lab, &target).status == 503).then_some(())).unwrap();
    let target = format!("node-o:{}", fleet.oslo.port);
    assert_eq!(connect(lab, &target).talk("x"), "oslo 1");
}

#[test]
fn who_does_not_read_holds_up_nobody_else_and_little_memory() {
    const FLOOD: u64 = 96 << 20;
    let fleet = Fleet::start(&[]);
    let target = format!("node-o:{}", fleet.oslo.port);
    let mut slow = connect(&fleet.lab, &target).stream;
    writeln!(slow, "FLOOD {FLOOD}").unwrap();
    // It goes on until every buffer on the way is full.
    let mut before = u64::MAX;
    wait_for("the flood stands still", || {
        let now = fleet.oslo.flooded.load(Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(200));
        let still = now > 0 && now == std::mem::replace(&mut before, now);
        still.then_some(())
    })
    .unwrap();
    println!("a reader that does not read is sent {} KiB", before >> 10);
    assert!(before < FLOOD / 2, "{before}");
    assert_eq!(connect(&fleet.lab, &target).talk("quick"), "oslo 5");
    let read = std::io::copy(&mut slow, &mut std::io::sink()).unwrap();
    assert_eq!(read, FLOOD);
}

#[test]
fn what_is_no_longer_allowed_is_cut() {
    let fleet = Fleet::start(&[]);
    let target = format!("node-o:{}", fleet.oslo.port);
    let mut open = connect(&fleet.lab, &target).stream;
    open.write_all(b"begun").unwrap();
    fleet.lab.apply(&policy("ops", "nowhere"));
    let applied = Instant::now();
    let mut rest = Vec::new();
    // The cut of a Unix socket is not told apart from an end; it matters only that nothing of the server came.
    let _ = open.read_to_end(&mut rest);
    println!("cut {:?} after the policy was changed", applied.elapsed());
    assert!(rest.is_empty(), "{rest:?}");
    wait_for("it is refused now", || (connect(&fleet.lab, &target).status == 403).then_some(())).unwrap();
}

#[test]
fn on_the_network_a_certificate_is_needed() {
    let fleet = Fleet::start(&["--connect", "127.0.0.1:0"]);
    let data_dir = &fleet.lab.cloud.data_dir;
    let addresses = std::fs::read_to_string(data_dir.join("run/addresses.json")).unwrap();
    let addresses: serde_json::Value = serde_json::from_str(&addresses).unwrap();
    let proxy = format!("https://{}", addresses["connect"].as_str().unwrap());
    let folder = data_dir.join("connect");
    let (authority, client) = (folder.join("ca.pem"), folder.join("client.pem"));
    assert_eq!(std::fs::metadata(&client).unwrap().permissions().mode() & 0o777, 0o600);
    let curl = |more: &[&str]| {
        let mut command = Command::new("curl");
        command.args([
            "--silent",
            "--show-error",
            "--max-time",
            "30",
            "--proxytunnel",
            "--noproxy",
            "",
            "--proxy",
            &proxy,
        ]);
        command.arg("--proxy-cacert").arg(&authority).args(more);
        let output = command.arg(format!("http://node-b:{}/", fleet.bergen.port)).output().unwrap();
        (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let client = client.to_str().unwrap();
    let (body, error) = curl(&["--proxy-cert", client, "--proxy-key", client]);
    assert_eq!(body, "bergen", "{error}");
    let (body, error) = curl(&[]);
    assert!(body.is_empty() && error.contains("403"), "{body} {error}");

    // It opens this listener and no other: the API knows no user of that name.
    let api = format!("https://{}/apis/causeway.io/v1/esites", fleet.lab.cloud.api);
    let mut command = Command::new("curl");
    command.args([
        "--silent",
        "--noproxy",
        "*",
        "--output",
        "/dev/null",
        "--write-out",
        "%{http_code}",
        "--cert",
        client,
    ]);
    let output = command.args(["--key", client, "--cacert"]).arg(&authority).arg(api).output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "401");
}

#[test]
fn a_connection_to_a_node_ends_with_the_certificate_of_its_client() {
    let fleet = Fleet::start(&["--connect", "127.0.0.1:0"]);
    let lab = &fleet.lab;
    let addresses = std::fs::read_to_string(lab.cloud.data_dir.join("run/addresses.json")).unwrap();
    let addresses: serde_json::Value = serde_json::from_str(&addresses).unwrap();
    let proxy = format!("https://{}", addresses["connect"].as_str().unwrap());
    let made = lab.run(&["kubeconfig", "--role", "admin", "--user", "bob", "--ttl", "1h"]);
    let (kubeconfig, client) = (lab.path("bob.kubeconfig"), lab.path("bob.pem"));
    std::fs::write(&kubeconfig, made).unwrap();
    let decode = "sed -n 's/.*client-\\(certificate\\|key\\)-data: //p' \"$0\" | while read -r line; do echo \"$line\" | base64 -d; done > \"$1\"";
    let decoded = Command::new("bash").args(["-c", decode]).arg(&kubeconfig).arg(&client).status().unwrap();
    assert!(decoded.success());
    let said = lab.path("curl.log");
    // An upload that never ends.
    let mut upload = Command::new("curl")
        .args([
            "--silent",
            "--verbose",
            "--proxytunnel",
            "--noproxy",
            "",
            "--proxy",
            &proxy,
            "--proxy-cacert",
        ])
        .arg(lab.cloud.data_dir.join("connect/ca.pem"))
        .arg("--proxy-cert")
        .arg(&client)
        .arg("--proxy-key")
        .arg(&client)
        .args(["--upload-file", "-", &format!("http://node-b:{}/", fleet.bergen.port)])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .stderr(std::fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let log = || std::fs::read_to_string(&said).unwrap_or_default();
    let is_sending = || log().contains("PUT / HTTP/1.1").then_some(());
    wait_for("the upload goes on", is_sending).unwrap_or_else(|error| panic!("{error}\n{}", log()));
    let listed = lab.run(&["kubeconfig", "--list"]);
    let row = listed.lines().find(|line| line.contains("bob")).unwrap();
    assert!(upload.try_wait().unwrap().is_none(), "{}", log());
    lab.run(&["revoke", "--certificate", row.split_whitespace().next().unwrap()]);
    // The cloud says so: curl, which waits for its input, does not look at the connection.
    let is_cut =
        || lab.cloud.process.log().contains("certificate of a CONNECT client is not valid").then_some(());
    let ended = wait_for("the connection ends", is_cut);
    let _ = upload.kill();
    let _ = upload.wait();
    ended.unwrap_or_else(|error| panic!("{error}\n{}", log()));
}

#[test]
fn a_node_is_reached_as_soon_as_its_edge_has_returned() {
    for transport in ["quic", "tcp"] {
        let mut fleet = Fleet::start(&[]);
        let target = format!("node-o:{}", fleet.oslo.port);
        for pause in [0, 1, 2] {
            // A client holds a connection to the node, as an API server does.
            let held = connect(&fleet.lab, &target);
            fleet.edges[0].kill().unwrap();
            std::thread::sleep(Duration::from_secs(pause));
            fleet.edges[0] = fleet.lab.edge("oslo", &["--transport", transport]);
            let edge = &fleet.edges[0];
            wait_for("the edge is back", || edge.log().contains("connected to the cloud").then_some(()))
                .unwrap_or_else(|error| panic!("{error}\n{}", edge.log()));
            let begun = Instant::now();
            let reached = || (connect(&fleet.lab, &target).status == 200).then_some(());
            wait_for("the node is reached", reached).unwrap();
            let reached = begun.elapsed();
            // A client that held one hears that it is gone: it would wait for ever.
            let (mut stream, mut rest) = (held.stream, Vec::new());
            let _ = stream.read_to_end(&mut rest);
            let told = begun.elapsed();
            println!(
                "over {transport:<4}, killed and started after {pause} s: the node was reached {reached:.0?} and the old \
                 connection ended {told:.0?} after it was connected"
            );
            // An old session that is waited for takes eight seconds and more.
            assert!(told < Duration::from_secs(4), "{told:?}\n{}", fleet.lab.cloud.process.log());
        }
    }
}

#[test]
fn a_node_is_reached_as_soon_as_its_edge_has_returned_at_another_replica() {
    let cluster = testlab::etcd::Cluster::start(1).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = format!("etcd={}", cluster.endpoints().join(","));
    let seal = folder.path().join("seal.key");
    let flags = ["--store", &store, "--seal-key", seal.to_str().unwrap()];
    let cloud = Cloud::start_with(&folder.path().join("cloud"), &flags).unwrap();
    let other = Cloud::start_with(&folder.path().join("other"), &flags).unwrap();
    let lab = Lab { cloud, folder };
    let is_connected = |edge: &Process, cloud: &Cloud| {
        let log = edge.log();
        let mut lines = log.lines().filter(|line| line.contains("connected to the cloud"));
        lines.any(|line| line.contains(&cloud.channel.to_string())).then_some(())
    };
    let token = lab.run(&["token", "create", "--site", "Oslo"]);
    let mut edge = lab.join("oslo", token.trim());
    wait_for("the edge is at the first replica", || is_connected(&edge, &lab.cloud)).unwrap();
    let server = Server::start("oslo");
    lab.apply(&format!("{}{}", policy("ops", "cloud"), node("node-o", "Oslo", server.port, "ops")));
    let target = format!("node-o:{}", server.port);
    let reached = || (connect(&lab, &target).status == 200).then_some(());
    wait_for("the node is reached", reached).unwrap();
    let held = connect(&lab, &target);

    // Killed, and back at the other replica.
    edge.kill().unwrap();
    let path = lab.path("oslo").join("edge.json");
    let mut settings: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    for field in ["endpoints", "joinedAt"] {
        settings[field] = serde_json::json!([other.channel.to_string()]);
    }
    std::fs::write(&path, settings.to_string()).unwrap();
    let edge = lab.edge("oslo", &[]);
    wait_for("the edge is at the other replica", || is_connected(&edge, &other)).unwrap();
    let begun = Instant::now();
    let (mut stream, mut rest) = (held.stream, Vec::new());
    let _ = stream.read_to_end(&mut rest);
    let told = begun.elapsed();
    wait_for("the node is reached", reached).unwrap();
    println!("the old connection ended {told:.0?} after, the node was reached {:.0?} after", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(5), "{told:?}\n{}", lab.cloud.process.log());
}
