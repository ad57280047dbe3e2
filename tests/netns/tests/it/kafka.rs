//! Kafka from another site by one name: kcat as the client, three brokers as librdkafka plays them, on the gateway's host.
//! With `CAUSEWAY_KAFKA=FOLDER` they are three of the Apache Kafka in that folder.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};
use std::time::Instant;

use serde_json::{Value, json};
use testlab::causeway::wait_for;
use testlab::net::Host;

use crate::presences::Fleet;

const TOPIC: &str = "orders";
const PARTITIONS: usize = 6;
const BOOTSTRAP: &str = "kafka.test:9092";
/// The folder of the real Kafka, if it is to be used.
const KAFKA: &str = "CAUSEWAY_KAFKA";
/// Lines of one stage.
const LINES: usize = 400;

/// A process that runs until it is dropped.
struct Running {
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(mut command: Command, log: PathBuf) -> Running {
        let file = std::fs::File::create(&log).unwrap();
        Running { child: command.stderr(file).spawn().unwrap(), log }
    }

    fn input(&mut self) -> ChildStdin {
        self.child.stdin.take().unwrap()
    }

    fn output(&mut self) -> BufReader<ChildStdout> {
        BufReader::new(self.child.stdout.take().unwrap())
    }

    fn await_end(&mut self, what: &str) -> ExitStatus {
        wait_for(what, || self.child.try_wait().unwrap()).unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!(
                "--- {} ---\n{}",
                self.log.display(),
                std::fs::read_to_string(&self.log).unwrap_or_default()
            );
        }
    }
}

/// Three brokers. Each can be taken down, and returns with what it had.
struct Brokers {
    _process: Running,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    addresses: Vec<(String, u16)>,
}

impl Brokers {
    fn start(host: &Host, folder: &Path) -> Brokers {
        let mut command = host.command("python3");
        let (script, real) = match std::env::var_os(KAFKA) {
            Some(folder) => ("data/real_brokers.py", Some(folder)),
            None => ("data/brokers.py", None),
        };
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join(script);
        command.arg(script).args([TOPIC, &PARTITIONS.to_string()]).args(real);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Running::start(command, folder.join("brokers.log"));
        let (commands, mut answers) = (process.input(), process.output());
        let mut line = String::new();
        answers.read_line(&mut line).unwrap();
        let address = |text: &str| {
            let (host, port) = text.split_once(':').unwrap();
            (host.to_owned(), port.parse().unwrap())
        };
        let addresses = line.trim().split(',').map(address).collect();
        Brokers { _process: process, commands, answers, addresses }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert_eq!(line, "ok\n", "{command}");
    }
}

/// kcat on a host whose resolver is the gateway's.
fn kcat(host: &Host, folder: &Path, arguments: &[&str]) -> Command {
    let resolver = folder.join("resolv.conf");
    std::fs::write(&resolver, "nameserver 10.0.0.1\n").unwrap();
    let mut command = host.command("unshare");
    let script = r#"mount --bind "$1" /etc/resolv.conf && shift && exec kcat "$@""#;
    command.args(["--mount", "sh", "-c", script, "sh"]).arg(resolver);
    // A refused client comes back soon; the rest is as kcat has it.
    command.args(["-b", BOOTSTRAP, "-X", "reconnect.backoff.max.ms=500"]);
    if std::env::var_os(KAFKA).is_some() {
        // Brokers of 0.9 cannot say what they understand, and do not answer when they are asked.
        command.args(["-X", "api.version.request=false", "-X", "broker.version.fallback=0.9.0"]);
    }
    command.args(arguments);
    command
}

/// The cluster as it looks from there: number and address of every broker. None: it does not answer.
fn listed(host: &Host, folder: &Path) -> Option<BTreeSet<(u64, String)>> {
    let output = kcat(host, folder, &["-L", "-J", "-m", "5"]).stderr(Stdio::null()).output().unwrap();
    let seen: Value = serde_json::from_slice(&output.stdout).ok()?;
    let broker = |broker: &Value| Some((broker["id"].as_u64()?, broker["name"].as_str()?.to_owned()));
    seen["brokers"].as_array()?.iter().map(broker).collect()
}

/// Lines that a consumer has printed so far.
fn received(file: &Path) -> BTreeSet<String> {
    std::fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn stage(name: &str) -> BTreeSet<String> {
    (0..LINES).map(|number| format!("{name}-{number}")).collect()
}

fn say(producer: &mut ChildStdin, lines: &BTreeSet<String>) {
    // The key chooses the partition, and so the broker.
    lines.iter().for_each(|line| writeln!(producer, "{line}:{line}").unwrap());
    producer.flush().unwrap();
}

fn expose(fleet: &Fleet, brokers: &Brokers) {
    let gateway = json!({"apiVersion": "causeway.io/v1", "kind": "EGateway", "metadata": {"name": "edge-b"},
        "eSiteName": "edge-b", "ip": "10.0.0.1", "virtualPresenceIPcidr": "198.18.0.0/16"});
    fleet.cloud.apply(&gateway.to_string()).unwrap();
    fleet.post("eservers", "EServer", "client-b", json!({"ip": "10.0.0.2", "eSiteName": "edge-b"}));
    fleet.post("epolicies", "EPolicy", "client-b", json!({"allowedServers": ["client-b"]}));
    let endpoints: Vec<Value> =
        brokers.addresses.iter().map(|(ip, port)| json!({"ip": ip, "port": port})).collect();
    let service = json!({"port": 9092, "protocol": "KAFKA", "eSiteName": "edge-a", "endpoints": endpoints});
    fleet.post("eservices", "EService", "orders", service);
    let expose = json!({"eServiceName": "orders", "dnsName": "kafka.test", "eSites": ["edge-b"], "ePolicys": ["client-b"]});
    fleet.post("serviceexposes", "ServiceExpose", "orders", expose);
}

fn missing() -> Option<&'static str> {
    let runs = |program: &str, argument: &str| {
        let mut command = Command::new(program);
        command.arg(argument).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    if !runs("kcat", "-V") {
        return Some("needs kcat (.ci/needs test installs it)");
    }
    (!runs("python3", "--version")).then_some("needs python3 (.ci/needs test installs it)")
}

#[test]
fn kcat_finds_three_brokers_by_one_name_and_loses_nothing_when_one_restarts() {
    let test = "kcat_finds_three_brokers_by_one_name_and_loses_nothing_when_one_restarts";
    if let Some(reason) = missing() {
        return println!("skipped: {test} {reason}");
    }
    let Some(fleet) = Fleet::start(test) else { return };
    let folder = fleet.folder.path();
    let mut brokers = Brokers::start(&fleet.host("edge-a"), folder);
    expose(&fleet, &brokers);
    let presence: IpAddr = fleet.presence("orders", "edge-b").ip();
    let client = fleet.host("client-b");

    let begin = Instant::now();
    let seen = wait_for("kcat lists the cluster", || listed(&client, folder)).unwrap();
    println!("kcat lists {seen:?} {:?} after the service was exposed", begin.elapsed());
    let expected = (1..=3).map(|node| (node, format!("{presence}:{}", 9092 + node))).collect();
    assert_eq!(seen, expected, "every broker at the presence, and no real address");
    // No policy names this client.
    assert_eq!(listed(&fleet.host("server-b"), folder), None);

    let printed = folder.join("consumed");
    let group = ["-u", "-q", "-f", "%s\\n", "-X", "auto.offset.reset=earliest", "-G", "readers", TOPIC];
    let mut consumer = kcat(&client, folder, &group);
    consumer.stdin(Stdio::null()).stdout(std::fs::File::create(&printed).unwrap());
    let _consumer = Running::start(consumer, folder.join("consumer.log"));
    let mut producer = kcat(&client, folder, &["-P", "-t", TOPIC, "-K", ":"]);
    producer.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut producer = Running::start(producer, folder.join("producer.log"));
    let mut lines = producer.input();

    let begin = Instant::now();
    let (before, during, after) = (stage("before"), stage("during"), stage("after"));
    say(&mut lines, &before);
    // kcat reads in blocks, and keeps the last one until it is full.
    let heard = |stage: &BTreeSet<String>, count: usize| {
        (received(&printed).intersection(stage).count() >= count).then_some(())
    };
    wait_for("most of what was said before is heard", || heard(&before, LINES / 2)).unwrap();
    println!("heard half of the first {LINES} after {:?}", begin.elapsed());

    brokers.tell("down 2");
    say(&mut lines, &during);
    wait_for("the two others go on", || heard(&during, LINES / 4)).unwrap();
    assert!(!received(&printed).is_superset(&during), "some of it belongs to the broker that is down");
    brokers.tell("up 2");
    let begin = Instant::now();
    say(&mut lines, &after);
    drop(lines);
    let ended = producer.await_end("the producer has all of its lines acknowledged");
    assert!(ended.success(), "{ended}");
    let all: BTreeSet<String> = [before, during, after].into_iter().flatten().collect();
    wait_for("everything is heard", || (received(&printed) == all).then_some(())).unwrap();
    println!("heard all {} after {:?} with the broker back", all.len(), begin.elapsed());

    let audit = fleet.cloud.run(&["audit", "--json", "--since", "10m"]).unwrap().success().unwrap();
    let records = audit.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let kafka: Vec<Value> = records.filter(|record| record["protocol"] == "kafka").collect();
    let decided = |decision: &str| kafka.iter().any(|record| record["decision"] == decision);
    assert!(decided("allow") && decided("deny"), "{kafka:?}");
    // As librdkafka calls itself; read where the brokers are.
    let named = |gateway: &str| {
        let records =
            kafka.iter().filter(|record| record["gateway"] == gateway && record["decision"] == "allow");
        records.map(|record| &record["clientId"]).any(|name| name == "rdkafka")
    };
    assert!(named("edge-a"), "{kafka:?}");
}
