//! Broken set-ups, and what `causeway doctor` says to each: one cloud and its edges, rows through one check.
//!
//! Set-ups that need a firewall, routes or blocked UDP are rows of `tests/netns` (`diagnosing.rs`).

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use causeway_channel::{Clock, JoinToken};
use causeway_edge::Edge;
use causeway_edge::link::LinkServices;
use serde_json::Value;
use testlab::causeway::{Cloud, Process, finish, wait_for};
use tokio_util::sync::CancellationToken;

use crate::Lab;

const NO_DNS: [&str; 2] = ["--dns", "off"];

/// A server that sends `greeting` to each client that connects, and `answer` to each that has said something.
struct Server {
    address: SocketAddr,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(address: SocketAddr, greeting: &'static [u8], answer: &'static [u8]) -> Server {
        let listener = TcpListener::bind(address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (address, stop) = (listener.local_addr().unwrap(), Arc::new(AtomicBool::new(false)));
        let stopped = stop.clone();
        let serving = move || {
            let mut held = Vec::new();
            while !stopped.load(Ordering::Relaxed) {
                let Ok((mut stream, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(5));
                    continue;
                };
                let mut talking = || {
                    stream.set_nonblocking(false)?;
                    stream.set_read_timeout(Some(Duration::from_secs(2)))?;
                    stream.write_all(greeting)?;
                    if !answer.is_empty() && stream.read(&mut [0; 1024])? > 0 {
                        stream.write_all(answer)?;
                    }
                    Ok::<(), std::io::Error>(())
                };
                let _ = talking();
                if greeting.is_empty() && answer.is_empty() {
                    held.push(stream);
                }
            }
        };
        Server { address, stop, thread: Some(std::thread::spawn(serving)) }
    }

    fn http(address: &str) -> Server {
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok";
        Server::start(address.parse().unwrap(), b"", answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The addresses of presences at one site, of this test alone.
fn range(number: u8) -> Ipv4Addr {
    let [_, _, high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 + high % 64, low, number * 16)
}

struct Fleet {
    lab: Lab,
    oslo: Process,
    _rome: Process,
    web: Option<Server>,
    web_address: SocketAddr,
    _servers: Vec<Server>,
}

impl Fleet {
    fn start() -> Fleet {
        let folder = tempfile::tempdir().unwrap();
        let cloud = Cloud::start_with(&folder.path().join("cloud"), &NO_DNS).unwrap();
        let lab = Lab { cloud, folder };
        let any = "127.0.0.1:0".parse().unwrap();
        let web = Server::http("127.0.0.1:0");
        let servers = [
            ("shell", "HTTP", Server::start(any, b"SSH-2.0-OpenSSH_9.2\r\n", b"")),
            ("mute", "HTTP", Server::start(any, b"", b"")),
            ("plain", "HTTPS", Server::http("127.0.0.1:0")),
            ("sick", "HTTP", Server::start(any, b"", b"HTTP/1.1 500 no\r\ncontent-length: 0\r\n\r\n")),
            ("queue", "KAFKA", Server::http("127.0.0.1:0")),
            ("calls", "GRPC", Server::http("127.0.0.1:0")),
        ];
        let edges = ["oslo", "rome"].map(|site| lab.start_edge(site, site, &[]));
        let mut text = String::new();
        let mut add = |kind: &str, name: &str, fields: String| {
            text.push_str(&format!(
                "---\n{{apiVersion: causeway.io/v1, kind: {kind}, metadata: {{name: {name}}}, {fields}}}\n"
            ));
        };
        for (number, site) in ["cloud", "oslo", "rome"].iter().enumerate() {
            add(
                "EGateway",
                site,
                format!("eSiteName: {site}, virtualPresenceIPcidr: {}/28", range(number as u8 + 1)),
            );
        }
        add("EPolicy", "open", "allowedSites: [rome]".to_owned());
        add("EPolicy", "elsewhere", "allowedSites: [cloud]".to_owned());
        let mut service = |name: &str, protocol: &str, port: u16, policy: &str, more: &str| {
            add(
                "EService",
                name,
                format!("eSiteName: oslo, ip: 127.0.0.1, port: {port}, protocol: {protocol}{more}"),
            );
            let expose = format!(
                "eServiceName: {name}, dnsName: {name}.plant.example, eSites: [rome], ePolicys: [{policy}]"
            );
            add("ServiceExpose", name, expose);
        };
        let port = web.address.port();
        service("web", "HTTP", port, "open", "");
        service("forbidden", "HTTP", port, "elsewhere", "");
        service("ghostly", "HTTP", port, "ghost", "");
        for (name, protocol, server) in &servers {
            let check = if *name == "sick" {
                ", healthCheck: {type: HTTP, path: /healthz, intervalSeconds: 60}"
            } else {
                ""
            };
            service(name, protocol, server.address.port(), "open", check);
        }
        // Another process has taken the address that this presence was given by hand.
        let taken = Server::start(SocketAddr::from((own(3, 14), port)), b"", b"");
        service("taken", "HTTP", port, "open", "");
        add("EService", "hidden", format!("eSiteName: oslo, ip: 127.0.0.1, port: {port}"));
        add("ESite", "bare", "subnets: []".to_owned());
        add(
            "VirtualPresence",
            "taken-rome",
            format!("eServiceName: taken, eSiteName: rome, virtualIp: {}", own(3, 14)),
        );
        let apply = lab.cloud.client(&["apply", "-f", "-", "--force-conflicts"]).unwrap();
        finish(apply, Some(&text)).unwrap().success().unwrap();
        let [oslo, rome] = edges;
        let web_address = web.address;
        let mut kept: Vec<Server> = servers.into_iter().map(|(_, _, server)| server).collect();
        kept.push(taken);
        Fleet { lab, oslo, _rome: rome, web: Some(web), web_address, _servers: kept }
    }

    /// `doctor` with these arguments ends with this code and says all of these parts. Objects settle and links come up by
    /// themselves, so it is asked again until it does.
    #[track_caller]
    fn check(&self, set_up: &str, arguments: &[&str], code: i32, parts: &[&str]) {
        let arguments = [&["doctor"], arguments].concat();
        self.check_with(set_up, || self.lab.cloud.client(&arguments).unwrap(), code, parts);
    }

    #[track_caller]
    fn check_with(&self, set_up: &str, command: impl Fn() -> Command, code: i32, parts: &[&str]) {
        let mut last = None;
        let said = wait_for(set_up, || {
            let ran = finish(command(), None).ok()?;
            let is_said = ran.code == code && parts.iter().all(|part| ran.stdout.contains(part));
            last = Some(ran);
            is_said.then_some(())
        });
        match (said, last) {
            (Ok(()), Some(ran)) => {
                let first = ran.stdout.lines().find(|line| line.contains(parts[0])).unwrap_or_default();
                println!("{set_up}\n    {first}");
            }
            (error, last) => panic!("{set_up}: {error:?}\nwanted {code} {parts:?}, got {last:#?}"),
        }
    }
}

/// An address in the range of a site.
fn own(site: u8, number: u8) -> Ipv4Addr {
    let [a, b, c, d] = range(site).octets();
    Ipv4Addr::new(a, b, c, d + number)
}

impl Lab {
    /// An edge in its own folder, with a new token; names are not answered, since port 53 is not for tests.
    fn start_edge(&self, site: &str, gateway: &str, more: &[&str]) -> Process {
        let token = self.run(&["token", "create", "--site", site, "--gateway", gateway]);
        self.edge(gateway, &[&["--join", token.trim()], &NO_DNS[..], more].concat())
    }

    /// A kubeconfig for the same cloud, with another credential.
    fn viewer(&self) -> String {
        let token = self.run(&["token", "create", "--role", "viewer"]);
        let admin = std::fs::read_to_string(self.cloud.kubeconfig()).unwrap();
        let line = |key: &str| {
            admin.lines().map(str::trim).find(|line| line.contains(key)).unwrap().trim_start_matches("- ")
        };
        let (server, authority) = (line("server:"), line("certificate-authority-data:"));
        let path = self.path("viewer.kubeconfig");
        let text = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{{server}, {authority}}}}}]\n\
             users: [{{name: u, user: {{token: {}}}}}]\ncontexts: [{{name: c, context: {{cluster: c, user: u}}}}]\n",
            token.trim()
        );
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    }
}

#[test]
fn doctor_says_where_it_breaks_and_what_to_do() {
    let mut fleet = Fleet::start();
    let port = fleet.web_address.port();

    fleet.check(
        "all is well",
        &["web"],
        0,
        &["ok  path rome -> oslo: a question went", "it answers HTTP with 200", "all ok"],
    );
    fleet.check("a DNS name", &["web.plant.example"], 0, &["EService web runs at the site oslo"]);
    let listed = fleet.lab.cloud.run(&["get", "vp", "-o", "json"]).unwrap().json().unwrap();
    let items = listed["items"].as_array().unwrap();
    let presence = items.iter().find(|item| item["eServiceName"] == "web").unwrap();
    let address = presence["virtualIp"].as_str().unwrap();
    fleet.check("the address of a presence", &[address], 0, &[&format!("its address at rome is {address}")]);
    fleet.check("a typo", &["wev"], 1, &["did you mean web?"]);
    fleet.check(
        "nothing of that name",
        &["something-else"],
        1,
        &["there is no EService", "causeway get all"],
    );
    fleet.check("not exposed to that site", &["web@cloud"], 1, &["no ServiceExpose presents it at cloud"]);
    fleet.check("not exposed anywhere", &["hidden"], 1, &["no ServiceExpose presents it anywhere"]);
    fleet.check(
        "no client at the site is allowed",
        &["forbidden"],
        1,
        &["no policy allows a client at rome"],
    );
    fleet.check("the policy does not exist", &["ghostly"], 1, &["EPolicy ghost does not exist"]);
    fleet.check(
        "a site without a gateway",
        &["bare"],
        1,
        &["no EGateway exists at bare", "causeway token create --site bare"],
    );

    let speaks_ssh = ["does not speak HTTP: it answers with SSH", "set it to what the backend speaks"];
    fleet.check("the backend speaks SSH", &["shell"], 1, &speaks_ssh);
    fleet.check(
        "the backend takes connections and is silent",
        &["mute"],
        1,
        &["does not answer HTTP within 2 s"],
    );
    fleet.check(
        "the backend of an HTTPS service speaks HTTP",
        &["plain"],
        1,
        &["does not speak TLS: it answers with HTTP"],
    );
    fleet.check("the broker is a web server", &["queue"], 1, &["does not speak Kafka"]);
    fleet.check("the gRPC server speaks HTTP/1.1", &["calls"], 1, &["does not speak HTTP/2"]);
    let own = std::fs::read(fleet.lab.path("oslo").join("run/edge.json")).unwrap();
    let own: Value = serde_json::from_slice(&own).unwrap();
    let admin: SocketAddr = own["admin"].as_str().unwrap().parse().unwrap();
    fleet.lab.apply(&format!(
        "---\n{{apiVersion: causeway.io/v1, kind: EService, metadata: {{name: selfish}}, eSiteName: oslo, ip: 127.0.0.1, port: {}, protocol: TCP}}\n\
         ---\n{{apiVersion: causeway.io/v1, kind: ServiceExpose, metadata: {{name: selfish}}, eServiceName: selfish, dnsName: selfish.plant.example, eSites: [rome], ePolicys: [open]}}\n",
        admin.port()
    ));
    let denied = ["its gateway does not dial it: it is a listener of the gateway itself", "backends-allow"];
    fleet.check("the backend is the gateway's own admin port", &["selfish"], 1, &denied);
    fleet.check("the health check fails", &["sick"], 1, &["its health check is answered with 500"]);
    fleet.check("the presence's address is taken", &["taken"], 1, &["is taken by another program"]);

    let backend = format!("!!  backend 127.0.0.1:{port} of web: it does not take connections");
    drop(fleet.web.take());
    fleet.check(
        "the backend is down and nobody has used it",
        &["web"],
        1,
        &[&backend, "does it run at the site oslo"],
    );
    fleet.web = Some(Server::http(&fleet.web_address.to_string()));
    fleet.check("the backend is back", &["web"], 0, &["it answers HTTP with 200"]);

    let viewer = fleet.lab.viewer();
    let with_viewer = || {
        let mut command = fleet.lab.cloud.client(&["doctor", "web"]).unwrap();
        command.env("CAUSEWAY_KUBECONFIG", &viewer);
        command
    };
    let told = ["not probed, because this credential may not", "connected over", "nothing fails"];
    fleet.check_with("a viewer asks", with_viewer, 0, &told);

    let json = fleet.lab.cloud.run(&["doctor", "--json", "shell"]).unwrap();
    let value: Value = serde_json::from_str(&json.stdout).unwrap();
    let failed =
        value["findings"].as_array().unwrap().iter().find(|finding| finding["state"] == "failed").unwrap();
    assert!(json.code == 1 && value["ok"] == false && value["summary"]["failed"] == 1, "{value:#}");
    for key in ["hop", "reason", "fix"] {
        assert!(failed[key].as_str().is_some_and(|text| !text.is_empty()), "{key} of {failed:#}");
    }
    let told = [
        "of 11 exposures are well",
        "!!  backend 127.0.0.1",
        "exposure ghostly",
        "presence of taken at rome",
    ];
    fleet.check("the fleet", &[], 1, &told);
}

#[test]
fn doctor_says_why_a_gateway_is_away() {
    let mut fleet = Fleet::start();
    fleet.check(
        "connected",
        &["gateway/oslo"],
        0,
        &["connected over quic", "1000 bytes went there and back"],
    );

    fleet.lab.run(&["token", "create", "--site", "lima"]);
    fleet.check(
        "nobody has enrolled",
        &["gateway/lima"],
        1,
        &["never connected to this cloud", "causeway edge --join TOKEN"],
    );
    fleet.check("there is no such gateway", &["gateway/nobody"], 1, &["there is no EGateway nobody"]);

    let mut stopped = fleet.lab.start_edge("bergen", "bergen", &[]);
    fleet.check("connected too", &["gateway/bergen"], 0, &["connected over"]);
    stopped.terminate().unwrap();
    fleet.check(
        "an edge was stopped in order",
        &["gateway/bergen"],
        1,
        &["stopped in order", "start causeway edge"],
    );
    let status = || fleet.lab.run(&["status"]);
    wait_for("status shows that it is not ready, and since when", || {
        let shown = status();
        let row = shown.lines().find(|line| line.starts_with("bergen") && line.contains(" no "))?.to_owned();
        (row.ends_with("False") && shown.contains("Stopped")).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", status()));

    // Over TCP the kernel tells at once that a process is no more.
    let mut killed = fleet.lab.start_edge("tromso", "tromso", &["--transport", "tcp"]);
    let by_choice = "its configuration says transport tcp";
    fleet.check("TCP because the configuration says so", &["gateway/tromso"], 0, &[by_choice]);
    killed.kill().unwrap();
    fleet.check(
        "an edge was killed",
        &["gateway/tromso"],
        1,
        &["the link was lost", "causeway doctor there says more"],
    );

    let mut revoked = fleet.lab.start_edge("turin", "turin", &[]);
    fleet.check("connected as well", &["gateway/turin"], 0, &["connected over"]);
    fleet.lab.run(&["revoke", "turin"]);
    fleet.check(
        "a revoked gateway",
        &["gateway/turin"],
        1,
        &["!!  gateway turin: revoked at", "fix: causeway token create"],
    );
    wait_for("the edge gives up", || revoked.ended()).unwrap();
    let on_its_host = |name: &str| {
        let folder = fleet.lab.path(name).display().to_string();
        move || testlab::causeway::command(&["doctor", "--data-dir", &folder]).unwrap()
    };
    let _well = fleet.lab.start_edge("narvik", "narvik", &[]);
    let gone = ["the cloud gave this edge up", "no edge answers at the admin port"];
    fleet.check_with("on the host of a revoked edge", on_its_host("turin"), 1, &gone);
    fleet.check_with(
        "on the host of an edge that is well",
        on_its_host("narvik"),
        0,
        &["ok  link: connected over quic", "ok  netmap: netmap"],
    );
    let down = ["no edge answers at the admin port", "start causeway edge on"];
    fleet.check_with("on the host of an edge that does not run", on_its_host("bergen"), 1, &down);

    let stop = CancellationToken::new();
    let clock = run_with_wrong_clock(&fleet.lab, "cuzco", Duration::from_secs(7200), stop.clone());
    fleet.check(
        "the clock of an edge is wrong",
        &["gateway/cuzco"],
        1,
        &["s ahead of the cloud's", "run NTP there"],
    );
    stop.cancel();
    clock.join().unwrap();

    // Its machine was copied, and both run.
    copy(&fleet.lab.path("oslo"), &fleet.lab.path("double"));
    let mut double = fleet.lab.edge("double", &NO_DNS);
    let rivals =
        ["two processes use its identity", "one runs on a copy of the data dir", "fix: stop one of them"];
    fleet.check("a data dir was copied, and both run", &["gateway/oslo"], 1, &rivals);
    double.kill().unwrap();

    fleet.oslo.terminate().unwrap();
    fleet.check("stopped before the cloud restarts", &["gateway/oslo"], 1, &["not connected since"]);
    fleet.lab.cloud.wait_condition("egateway", "oslo", "Connected", "False").unwrap();
    let (api, channel) = (fleet.lab.cloud.api.to_string(), fleet.lab.cloud.channel.to_string());
    fleet.lab.cloud.process.terminate().unwrap();
    fleet.check_with(
        "the cloud is away, on the host of an edge",
        {
            let folder = fleet.lab.path("rome").display().to_string();
            move || testlab::causeway::command(&["doctor", "--data-dir", &folder]).unwrap()
        },
        1,
        &["!!  link: not connected to the cloud"],
    );
    let flags = [&["--api", &api, "--channel", &channel], &NO_DNS[..]].concat();
    fleet.lab.cloud = Cloud::start_with(&fleet.lab.path("cloud"), &flags).unwrap();
    let since = ["not connected since", "fix: "];
    fleet.check("away since before the cloud's restart", &["gateway/oslo"], 1, &since);
    fleet.check(
        "a service whose gateway is away",
        &["web"],
        1,
        &["not connected since", "??  backends of web: they were not tried now"],
    );
    fleet.check(
        "a fleet with gateways that are away",
        &[],
        1,
        &["gateways and", "gateway oslo: not connected since"],
    );
}

fn copy(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-r").arg(from).arg(to).status().unwrap();
    assert!(copied.success());
}

/// An edge in this process, whose clock is ahead.
fn run_with_wrong_clock(
    lab: &Lab,
    gateway: &str,
    ahead: Duration,
    stop: CancellationToken,
) -> JoinHandle<()> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let token: JoinToken = lab.run(&["token", "create", "--site", gateway]).trim().parse().unwrap();
    let folder = lab.path(gateway);
    std::thread::spawn(move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let edge = Edge::open_with(folder, Clock::from_fn(move || SystemTime::now() + ahead)).unwrap();
            edge.enrol(&token, &stop).await.unwrap();
            let (keeper, _uplink, wishes) = edge.link(Default::default(), LinkServices::none());
            edge.run_linked(keeper, wishes, stop).await.unwrap();
        });
    })
}
