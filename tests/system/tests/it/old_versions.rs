//! Data dirs and peers of an earlier version: what it wrote is read, and it is understood on the channel.
//!
//! `data/data-dirs-61bfe63.tar.gz` holds the data dir of a cloud and of an edge, written by commit 61bfe63. Its keys belong to a CA
//! that exists nowhere else. The edge's certificate ends in December 2026 and its cloud is gone, so the tests assert what holds at
//! any date: files are read, objects are served, and the edge serves from its netmap without a cloud. In the long form
//! (CAUSEWAY_SOAK=1) a binary of an earlier commit is built, and a request crosses between it and this one.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use testlab::causeway::{Cloud, Process, binary, daemon, get, wait_for};
use testlab::free_port::free_port;

use crate::data;

/// The commit that wrote the data dirs, and the default of CAUSEWAY_OLD_COMMIT.
const OLD_COMMIT: &str = "61bfe63";
/// The digest of the netmap in the edge's data dir.
const DIGEST: &str = "7e0e324b4255fe2c1dc17f9b5c79f28793bc818537ff62bd62e9916eca08d13d";
/// The number of records in the edge's spool that the cloud has not acknowledged: a start, a status and three connections.
const SPOOLED: u64 = 5;

/// A folder with `cloud` and `edge` as the earlier version left them.
fn unpacked() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let archive = data(&format!("data-dirs-{OLD_COMMIT}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--no-same-owner", "-xzf", &archive, "-C"]).arg(folder.path());
    assert!(tar.status().unwrap().success());
    folder
}

#[test]
fn a_cloud_serves_the_data_dir_of_an_earlier_version() {
    let folder = unpacked();
    let quiet = ["--dns", "off", "--presence", "off"];
    let cloud = Cloud::start_with(&folder.path().join("cloud"), &quiet).unwrap();
    for (kind, name) in [
        ("esite", "cloud"),
        ("esite", "hamburg"),
        ("esite", "oslo"),
        ("egateway", "cloud"),
        ("egateway", "hamburg"),
        ("egateway", "oslo"),
        ("eservice", "stock"),
        ("eservice", "panel"),
        ("epolicy", "machines"),
        ("eserver", "node-1"),
        ("serviceexpose", "stock"),
        ("serviceexpose", "panel"),
        ("virtualpresence", "stock-hamburg-a66da537"),
        ("virtualpresence", "panel-cloud-01261f0a"),
    ] {
        let object = cloud.object(kind, name).unwrap_or_else(|| panic!("{kind}/{name} is missing"));
        assert_eq!(object["metadata"]["name"], name);
        assert!(object["metadata"]["uid"].as_str().is_some_and(|uid| !uid.is_empty()), "{object}");
    }
    let site = cloud.object("esite", "hamburg").unwrap();
    assert_eq!(site["metadata"]["labels"]["region"], "north");
    assert_eq!(site["metadata"]["annotations"]["note"], "written before the rename");
    let policy = cloud.object("epolicy", "machines").unwrap();
    assert_eq!(policy["allowedSites"], serde_json::json!(["hamburg", "cloud"]));
    let presence = cloud.object("virtualpresence", "stock-hamburg-a66da537").unwrap();
    assert_eq!(presence["virtualIp"], "198.18.0.1", "{presence}");
    // The administrative audit goes on in the same files.
    let said = cloud.run(&["audit", "--admin", "--json"]).unwrap().success().unwrap();
    assert!(said.contains("stock"), "{said}");
    // And it is written: the store is not only read.
    cloud.apply(&crate::site("bergen")).unwrap().success().unwrap();
    assert!(cloud.object("esite", "bergen").is_some());
}

#[test]
fn an_edge_serves_offline_from_the_data_dir_of_an_earlier_version() {
    let folder = unpacked();
    let data_dir = folder.path().join("edge");
    let names = free_port();
    let mut edge =
        start_edge(&binary().unwrap(), &data_dir, &["--dns", &names.to_string(), "--presence", "off"]);
    let admin = admin_of(&data_dir, &mut edge);
    wait_for("the edge is ready", || get(admin, "/readyz").ok().filter(|(code, _)| *code == 200))
        .unwrap_or_else(|error| panic!("{error}\n{}", edge.log()));
    let shown: Value = serde_json::from_str(&get(admin, "/debug").unwrap().1).unwrap();
    let (identity, netmap) = (&shown["edge"]["identity"], &shown["edge"]["netmap"]);
    assert_eq!((&identity["gateway"], &identity["site"]), (&"hamburg".into(), &"hamburg".into()), "{shown}");
    assert_eq!(identity["endpoints"], serde_json::json!(["127.0.0.1:17444"]));
    assert_eq!((&netmap["generation"], &netmap["digest"]), (&"1.61".into(), &DIGEST.into()), "{netmap}");
    assert_eq!((&netmap["damaged"], &netmap["notUnderstood"]), (&0.into(), &0.into()), "{netmap}");
    let address = wait_for("the name is answered", || resolve(names, "stock.hamburg.example"))
        .unwrap_or_else(|error| panic!("{error}\n{}", edge.log()));
    assert_eq!(address, Ipv4Addr::new(198, 18, 0, 1));
    let metric = |name: &str| -> Option<u64> {
        let (_, text) = get(admin, "/metrics").ok()?;
        text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
    };
    // The old records, and the start of this edge.
    wait_for("the spool goes on", || metric("causeway_spool_waiting ").filter(|waiting| *waiting > SPOOLED))
        .unwrap_or_else(|error| panic!("{error}\n{}", edge.log()));
    assert_eq!(metric("causeway_spool_dropped_total "), Some(0));
    edge.terminate().unwrap();
}

#[test]
fn a_request_crosses_between_this_version_and_an_earlier_one() {
    if std::env::var_os("CAUSEWAY_SOAK").is_none() {
        println!("skipped: builds a binary of an earlier commit; CAUSEWAY_SOAK=1 asks for it");
        return;
    }
    let (old, new) = (old_binary(), binary().unwrap());
    for transport in ["quic", "tcp"] {
        crosses(&new, &old, transport);
        crosses(&old, &new, transport);
    }
}

/// A service at an edge of one version is used at a cloud of another.
fn crosses(cloud_binary: &Path, edge_binary: &Path, transport: &str) {
    let row = format!("cloud {}, edge {}, {transport}", cloud_binary.display(), edge_binary.display());
    println!("{row}");
    let folder = tempfile::tempdir().unwrap();
    let (backend, entrance) = (serve_one_word(), free_port());
    let data_dir = folder.path().join("cloud");
    let free = "127.0.0.1:0";
    let mut command = with_binary(cloud_binary);
    command.args(["cloud", "--data-dir"]).arg(&data_dir);
    command.args(["--api", free, "--channel", free, "--admin", free, "--dns", "off", "--presence", "host"]);
    command.arg("--port").arg(format!("web={entrance}"));
    let process = Process::spawn(command, folder.path().join("cloud.log")).unwrap();
    let cloud = Cloud::await_ready(process, &data_dir).unwrap();
    let token = cloud.run(&["token", "create", "--site", "plant"]).unwrap().success().unwrap();
    let objects = format!(
        "{{apiVersion: causeway.io/v1, kind: EService, metadata: {{name: web}}, eSiteName: plant, protocol: HTTP, \
         ip: 127.0.0.1, port: {}}}\n---\n\
         {{apiVersion: causeway.io/v1, kind: EPolicy, metadata: {{name: all}}, allowedSites: [cloud]}}\n---\n\
         {{apiVersion: causeway.io/v1, kind: ServiceExpose, metadata: {{name: web}}, eServiceName: web, \
         eSites: [cloud], ePolicys: [all]}}\n",
        backend.port()
    );
    cloud.apply(&objects).unwrap().success().unwrap();
    let edge_dir = folder.path().join("edge");
    let quiet = ["--join", token.trim(), "--transport", transport, "--dns", "off", "--presence", "off"];
    let edge = start_edge(edge_binary, &edge_dir, &quiet);
    let answered =
        wait_for(&row, || get(entrance, "/").ok().filter(|(code, body)| *code == 200 && body == WORD));
    answered.unwrap_or_else(|error| panic!("{error}\n{}\n{}", cloud.process.log(), edge.log()));
}

/// The binary of CAUSEWAY_OLD_COMMIT, built in a worktree; or CAUSEWAY_OLD_BIN, which is there already.
fn old_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("CAUSEWAY_OLD_BIN") {
        return path.into();
    }
    let commit = std::env::var("CAUSEWAY_OLD_COMMIT").unwrap_or_else(|_| OLD_COMMIT.to_owned());
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = tempfile::tempdir().unwrap();
    let worktree = folder.path().join("causeway");
    let git = |arguments: &[&str]| {
        let mut git = Command::new("git");
        git.current_dir(&repository).args(arguments);
        assert!(git.status().unwrap().success(), "git {arguments:?}");
    };
    let path = worktree.to_str().unwrap();
    git(&["worktree", "add", "--detach", path, &commit]);
    // Beside the other output of cargo, so that a second run builds little.
    let target = binary().unwrap().parent().and_then(Path::parent).unwrap().join(format!("old-{commit}"));
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut build = Command::new(cargo);
    build
        .current_dir(&worktree)
        .args(["build", "--locked", "--package", "causeway", "--target-dir"])
        .arg(&target);
    let built = build.status();
    git(&["worktree", "remove", "--force", path]);
    assert!(built.unwrap().success(), "cargo build of {commit}");
    target.join("debug/causeway")
}

const WORD: &str = "from the plant";

/// A web server that answers every request with one word.
fn serve_one_word() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // A client that goes away is no reason to panic.
            std::thread::spawn(move || drop(answer(stream)));
        }
    });
    address
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte)?;
        head.extend(byte);
    }
    let length = WORD.len();
    write!(stream, "HTTP/1.1 200 OK\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n{WORD}")
}

/// `testlab`'s way to start a process that stays, with another binary.
fn with_binary(binary: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(binary);
    let model = daemon(&[]).unwrap();
    for (name, value) in model.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

fn start_edge(binary: &Path, data_dir: &Path, more: &[&str]) -> Process {
    let mut command = with_binary(binary);
    command.args(["edge", "--data-dir"]).arg(data_dir).args(["--admin", "127.0.0.1:0"]).args(more);
    Process::spawn(command, data_dir.with_extension("log")).unwrap()
}

fn admin_of(data_dir: &Path, edge: &mut Process) -> SocketAddr {
    let found = wait_for("the edge says where its admin port is", || {
        assert!(edge.ended().is_none(), "{}", edge.log());
        let text = std::fs::read(data_dir.join("run/edge.json")).ok()?;
        serde_json::from_slice::<Value>(&text).ok()?["admin"].as_str()?.parse().ok()
    });
    found.unwrap_or_else(|error| panic!("{error}\n{}", edge.log()))
}

/// Asks for the address of a name (RFC 1035, sections 4.1 and 3.4.1).
fn resolve(server: SocketAddr, name: &str) -> Option<Ipv4Addr> {
    let mut question = vec![0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        question.push(u8::try_from(label.len()).ok()?);
        question.extend(label.as_bytes());
    }
    question.extend([0, 0, 1, 0, 1]);
    let socket = UdpSocket::bind("127.0.0.1:0").ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    socket.send_to(&question, server).ok()?;
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).ok()?;
    // One question comes back, then the answer: a name of two bytes, type, class, TTL, length, address.
    let record = answer.get(question.len()..length)?;
    let address: [u8; 4] = record.get(12..16)?.try_into().ok()?;
    (answer[..2] == question[..2] && record[10..12] == [0, 4]).then_some(Ipv4Addr::from(address))
}
