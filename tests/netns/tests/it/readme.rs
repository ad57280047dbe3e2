//! The README, typed word for word: its fenced blocks in order, each with bash on the host that the fence names.
//!
//! The hosts are network namespaces: a cloud, an edge behind NAT, another host of the site, and a web server there. Each host has a
//! `/var/lib`, a home folder, a hosts file and a resolv.conf of its own. `TYPED` says what each block must show, `NOT_TYPED` names
//! the blocks that are marked `example` and why they are not typed. The debug binary on PATH takes the place of the install step.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use testlab::causeway::{Process, Ran, binary, finish, get, wait_for};
use testlab::net::{Host, Net, Plan};

use crate::build;

const README: &str = include_str!("../../../../README.md");
const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples");

/// The words that a block must show, on standard output or error, with runs of spaces as one.
struct Row {
    /// The first line of the block begins so.
    begins: &'static str,
    typing: Typing,
    shows: &'static [&'static str],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Typing {
    /// Must succeed and show its words.
    Once,
    /// Only looks: typed again until it succeeds and shows its words, as a user does who waits for them.
    UntilShown,
}

const fn once(begins: &'static str, shows: &'static [&'static str]) -> Row {
    Row { begins, typing: Typing::Once, shows }
}

const fn until(begins: &'static str, shows: &'static [&'static str]) -> Row {
    Row { begins, typing: Typing::UntilShown, shows }
}

/// Every block that is typed, in the order of the README. Blocks in the background show nothing; their process must become ready.
const TYPED: [Row; 22] = [
    once("causeway cloud", &[]),
    once("export KUBECONFIG", &["serviceexposes", "ePolicys", "SITE SUBNETS", "no exposures"]),
    once("causeway token create", &[]),
    once("sysctl", &["net.ipv4.ip_forward = 1"]),
    once("causeway edge", &[]),
    until("causeway status", &["hamburg hamburg yes", "ok"]),
    once("kubectl apply", &["eservice.causeway.io/panel created", "serviceexpose.causeway.io/panel created"]),
    until("causeway get virtualpresences", &["panel cloud", "\n198.18.0."]),
    once("printf 'nameserver 127.0.0.1", &[]),
    until("curl http://panel", &[PANEL]),
    until("causeway doctor panel@cloud", &["ok", "panel", "office"]),
    once("kubectl apply", &["serviceexpose.causeway.io/stock created"]),
    once("ip route add", &[]),
    until("curl http://stock", &[STOCK]),
    once("causeway apply -f examples/ --dry-run", &["plant-dashboard created"]),
    once("causeway kubeconfig --server", &["hamburg"]),
    once("causeway backup", &["objects", "Copy /var/lib/causeway/seal.key"]),
    once("causeway revoke hamburg", &["egateway/hamburg revoked (1 keys)"]),
    until("causeway status", &["hamburg hamburg no"]),
    once("causeway restore", &["restored", "the store is as it was at", "1 gateways revoked: hamburg"]),
    once("causeway cloud", &[]),
    until("export KUBECONFIG", &["hamburg hamburg no", "panel panel panel.hamburg.example"]),
];

/// Every block that is marked `example`, and why.
const NOT_TYPED: [(&str, &str); 5] = [
    ("make demo", "builds and runs everything; the demo and the tests have tests of their own"),
    (".ci/needs build", "a release build; the binary of this test run is put on PATH instead"),
    ("scp token", "no SSH server in the namespaces; the test copies the file"),
    ("mkdir -p /etc/systemd", "no systemd in the namespaces; the form with resolv.conf is typed"),
    ("causeway cloud --data-dir", "needs an etcd cluster with TLS; the tests of replicas have one"),
];

const PANEL: &str = "the panel of the machine in Hamburg";
const STOCK: &str = "the stock of the warehouse";
/// Marks the resolv.conf of a host, so that no block is typed where it would change the machine's own.
const MARK: &str = "# a host of the README";

/// A fenced block.
#[derive(Debug)]
struct Block {
    language: String,
    /// The rest of the info string: the host, then perhaps `background`; or `example`.
    words: Vec<String>,
    text: String,
    /// Of its fence, from 1.
    line: usize,
}

impl Block {
    fn is_typed(&self) -> bool {
        self.language == "sh" && self.words != ["example"]
    }

    fn first_line(&self) -> &str {
        self.text.lines().next().unwrap_or_default()
    }
}

fn blocks(markdown: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut open: Option<Block> = None;
    for (number, line) in markdown.lines().enumerate() {
        match (line.strip_prefix("```"), &mut open) {
            (Some(_), Some(_)) => blocks.extend(open.take()),
            (Some(info), None) => {
                let mut words = info.split_whitespace().map(str::to_owned);
                let language = words.next().unwrap_or_default();
                let (words, text) = (words.collect(), String::new());
                open = Some(Block { language, words, text, line: number + 1 });
            }
            (None, Some(block)) => block.text.push_str(&format!("{line}\n")),
            (None, None) => {}
        }
    }
    assert!(open.is_none(), "a fence is not closed");
    blocks
}

#[test]
fn every_block_of_the_readme_is_typed_or_named_with_a_reason() {
    let blocks = blocks(README);
    let plain: Vec<_> = blocks.iter().filter(|block| block.language != "sh").collect();
    assert!(plain.len() == 1 && plain[0].text.contains("causeway cloud │"), "the picture alone: {plain:?}");
    let examples: Vec<_> = blocks.iter().filter(|block| block.words == ["example"]).collect();
    assert_eq!(examples.len(), NOT_TYPED.len(), "{examples:?}");
    for (block, (begins, reason)) in examples.iter().zip(NOT_TYPED) {
        assert!(block.first_line().starts_with(begins), "line {}: {begins} ({reason})", block.line);
    }
    let typed: Vec<_> = blocks.iter().filter(|block| block.is_typed()).collect();
    for (block, row) in typed.iter().zip(&TYPED) {
        assert!(block.first_line().starts_with(row.begins), "line {}: not {}", block.line, row.begins);
        let words: Vec<&str> = block.words.iter().map(String::as_str).collect();
        let known = matches!(words[..], ["cloud" | "edge"] | ["cloud" | "edge", "background"] | ["host"]);
        assert!(known, "line {}: {words:?}", block.line);
    }
    assert_eq!(typed.len(), TYPED.len());
}

#[test]
fn the_readme_and_the_examples_name_nothing_alike() {
    let names = |text: &str| -> BTreeSet<String> {
        let values = text.lines().filter_map(|line| {
            let line = line.trim().trim_start_matches("metadata: {").trim_end_matches('}');
            line.strip_prefix("name: ").or_else(|| line.strip_prefix("dnsName: "))
        });
        values.map(|value| value.trim().to_owned()).collect()
    };
    let mut examples = String::new();
    for entry in std::fs::read_dir(EXAMPLES).unwrap() {
        examples.push_str(&std::fs::read_to_string(entry.unwrap().path()).unwrap());
    }
    let (ours, theirs) = (names(README), names(&examples));
    assert!(ours.contains("panel") && ours.contains("stock.hamburg.example"), "{ours:?}");
    assert!(theirs.contains("plant-dashboard") && theirs.contains("orders.example"), "{theirs:?}");
    let both: Vec<_> = ours.intersection(&theirs).collect();
    assert!(both.is_empty() && !theirs.contains("hamburg"), "{both:?}");
}

#[test]
fn the_readme_works_as_it_is_typed() {
    let test = "the_readme_works_as_it_is_typed";
    if let Some(program) = missing() {
        println!("skipped: {test} needs {program} (.ci/needs test installs it)");
        return;
    }
    let Some(net) = build(test, &plan()) else { return };
    let folder = tempfile::tempdir().unwrap();
    let mut hosts = ["cloud", "edge", "host"].map(|name| Terminal::open(&net, name, folder.path()));
    let pages = [("server", "10.0.0.10:8080", PANEL), ("cloud", "127.0.0.1:9000", STOCK)];
    let _servers = pages.map(|(host, address, page)| serve(&net, host, address, page, folder.path()));
    let typed = blocks(README);
    for (block, row) in typed.iter().filter(|block| block.is_typed()).zip(&TYPED) {
        let terminal = hosts.iter_mut().find(|terminal| terminal.host.name() == block.words[0]).unwrap();
        println!("{} $ {}", terminal.host.name(), block.first_line());
        if block.words.get(1).is_some_and(|word| word == "background") {
            terminal.run_in_background(block);
        } else {
            terminal.type_and_look(block, row);
        }
        if row.begins == "causeway token create" {
            // The block with scp.
            std::fs::copy(hosts[0].root.join("home/token"), hosts[1].root.join("home/token")).unwrap();
        }
        if block.text.starts_with("causeway status") && row.shows[0].ends_with("no") {
            revoked_gateway_is_out(&hosts);
        }
    }
}

/// What the README promises of a revoked gateway beside its line in `status`.
fn revoked_gateway_is_out(hosts: &[Terminal]) {
    let asked = hosts[0].type_text("asked", "curl -sS --max-time 5 http://panel.hamburg.example:8080/");
    assert!(!asked.stdout.contains(PANEL), "{asked:?}");
    let edge = &hosts[1];
    let log = || edge.running.as_ref().map(Process::log).unwrap_or_default();
    wait_for("the edge says that it is revoked", || log().to_lowercase().contains("revoked").then_some(()))
        .unwrap();
}

fn missing() -> Option<&'static str> {
    let absent = |program: &&str| {
        let found = Command::new("sh").args(["-c", &format!("command -v {program}")]).output();
        !found.is_ok_and(|output| output.status.success())
    };
    ["kubectl", "dig", "curl", "/usr/bin/python3", "mount"].into_iter().find(absent)
}

/// The addresses of the README: the gateway's host is 10.0.0.1, the web server 10.0.0.10.
fn plan() -> Plan {
    Plan::new()
        .router("internet")
        .host("cloud")
        .link("cloud", "internet", &["203.0.113.0/24"])
        .nat("nat")
        .link("nat", "internet", &["198.51.100.0/24"])
        .host("edge")
        .link("edge", "nat", &["192.168.1.0/24"])
        .host("host")
        .link("host", "edge", &["10.0.0.0/29"])
        .host("server")
        .link("server", "edge", &["10.0.0.8/29"])
}

/// A web server with one page.
fn serve(net: &Net, host: &str, address: &str, page: &str, folder: &Path) -> Process {
    let address: SocketAddr = address.parse().unwrap();
    let root = folder.join(format!("pages-{host}"));
    std::fs::create_dir(&root).unwrap();
    std::fs::write(root.join("index.html"), format!("{page}\n")).unwrap();
    let host = net.host(host).unwrap();
    let mut command = host.command("/usr/bin/python3");
    command.args(["-m", "http.server", &address.port().to_string(), "--bind", &address.ip().to_string()]);
    command.arg("--directory").arg(&root);
    let log = folder.join(format!("server-{}.log", host.name()));
    let server = Process::spawn(command, log).unwrap();
    wait_for("the web server listens", || host.inside(|| get(address, "/")).ok()).unwrap();
    server
}

/// A host with what its user has typed so far: exported variables stay, and so does what runs in another terminal.
struct Terminal {
    host: Host,
    root: PathBuf,
    path: String,
    running: Option<Process>,
    starts: usize,
}

/// Gives the shell a `/var/lib` of its host's own and the variables of earlier blocks, then types the block. `ip netns exec` has
/// made a mount namespace, so that the machine does not see the mount. `set -e`: every line must succeed.
const PREPARE: &str = r#"
set -e
grep -q "^$3" /etc/resolv.conf
mount --bind "$1/var-lib" /var/lib
cd "$1/home"
if [ -e "$1/exports" ]; then . "$1/exports"; fi
. "$2"
export -p > "$1/exports"
"#;

impl Terminal {
    fn open(net: &Net, name: &str, folder: &Path) -> Terminal {
        let host = net.host(name).unwrap();
        let root = folder.join(name);
        for part in ["var-lib", "home", "bin"] {
            std::fs::create_dir_all(root.join(part)).unwrap();
        }
        std::os::unix::fs::symlink(binary().unwrap(), root.join("bin/causeway")).unwrap();
        // The user of the cloud's host has the repository there.
        std::os::unix::fs::symlink(EXAMPLES, root.join("home/examples")).unwrap();
        let cloud = net.ipv4("cloud").unwrap();
        host.write_etc("hosts", &format!("127.0.0.1 localhost\n{cloud} cloud.example.com\n")).unwrap();
        let resolver = net.gateway_ipv4("cloud").unwrap();
        host.write_etc("resolv.conf", &format!("{MARK}\nnameserver {resolver}\n")).unwrap();
        let path = format!("{}:{}", root.join("bin").display(), std::env::var("PATH").unwrap());
        Terminal { host, root, path, running: None, starts: 0 }
    }

    fn command(&self, name: &str, text: &str) -> Command {
        let file = self.root.join(format!("{name}.sh"));
        std::fs::write(&file, text).unwrap();
        let mut command = self.host.command("bash");
        command.args(["-c", PREPARE, "bash"]).args([&self.root, &file]).arg(MARK);
        // Nothing of the environment of this test run that could lead a command elsewhere.
        command.env_clear().env("PATH", &self.path).env("HOME", self.root.join("home")).env("NO_COLOR", "1");
        command.stdin(std::process::Stdio::null());
        command
    }

    fn type_text(&self, name: &str, text: &str) -> Ran {
        finish(self.command(name, text), None).unwrap()
    }

    fn type_and_look(&self, block: &Block, row: &Row) {
        let mut last = None;
        let mut shown = || {
            let ran = self.type_text(&format!("line-{}", block.line), &block.text);
            let is_shown = ran.code == 0 && shows(&ran, row.shows);
            last = Some(ran);
            is_shown.then_some(())
        };
        let is_shown = match row.typing {
            Typing::Once => shown().is_some(),
            Typing::UntilShown => wait_for(row.begins, shown).is_ok(),
        };
        let words = row.shows;
        assert!(is_shown, "line {}:\n{}{words:?}\n{}", block.line, block.text, told(last));
    }

    /// In another terminal. One that runs there is stopped with Ctrl-C first.
    fn run_in_background(&mut self, block: &Block) {
        if let Some(mut running) = self.running.take() {
            interrupt(&running);
            wait_for("the program ends after Ctrl-C", || running.ended()).unwrap();
        }
        self.starts += 1;
        let log = self.root.join(format!("background-{}.log", self.starts));
        let command = self.command(&format!("line-{}", block.line), &block.text);
        let process = self.running.insert(Process::spawn(command, log).unwrap());
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, 7445));
        let ready = wait_for(&block.text, || {
            if let Some(status) = process.ended() {
                return Some(Err(status));
            }
            let answer = self.host.inside(|| get(admin, "/readyz")).ok()?;
            (answer.0 == 200).then_some(Ok(()))
        });
        assert!(matches!(ready, Ok(Ok(()))), "line {}: {ready:?}", block.line);
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for start in 1..=self.starts {
                let log = std::fs::read_to_string(self.root.join(format!("background-{start}.log")));
                eprintln!("--- {} {start} ---\n{}", self.host.name(), log.unwrap_or_default());
            }
        }
    }
}

/// Sends SIGINT to the program that the shell of a terminal runs.
fn interrupt(shell: &Process) {
    let pid = shell.pid();
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let child = children.split_whitespace().next().unwrap();
    assert!(Command::new("kill").args(["-INT", child]).status().unwrap().success());
}

fn shows(ran: &Ran, words: &[&str]) -> bool {
    let squeeze = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let text: String =
        format!("{}\n{}", ran.stdout, ran.stderr).lines().map(|line| squeeze(line) + "\n").collect();
    words.iter().all(|word| text.contains(word))
}

fn told(ran: Option<Ran>) -> String {
    ran.map(|ran| format!("exit code {}\n{}\n{}", ran.code, ran.stdout, ran.stderr)).unwrap_or_default()
}
