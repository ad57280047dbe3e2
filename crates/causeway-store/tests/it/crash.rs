//! `kill -9` at random moments while eight writers are busy, round after round on the same store.
//!
//! The writers run in a child: this test program started again with `writers` alone. It prints the
//! acknowledged writes; afterwards all of them must be present, in the records and in the history. The seed
//! is printed.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use causeway_store::{ListRange, Revision, Store, StoreError, StoreSpec, WatchSignal};
use testlab::etcd::Cluster;
use testlab::random::SeededRandom;

use crate::lab::{Lab, rounds, value};

const WRITERS: usize = 8;
/// Keys of each writer.
const KEYS: u64 = 12;
/// The environment variables with the child's store and the step from which its writers continue.
const SPEC: &str = "CAUSEWAY_CRASH_SPEC";
const STEPS: &str = "CAUSEWAY_CRASH_STEPS";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_keeps_what_it_acknowledged_through_kill_9() {
    let lab = Lab::sqlite();
    let StoreSpec::Sqlite { path } = &lab.spec else { unreachable!("a lab of files") };
    let mut story = Story::new(lab.spec.clone());
    let mut random = SeededRandom::for_test("sqlite crash");
    for round in 0..rounds() {
        let mut writers = Writers::start(&story);
        writers.wait_until_writing();
        std::thread::sleep(random.within(Duration::from_millis(250)));
        story.record_output(writers.kill());
        story.verify(round).await;
        let database = rusqlite::Connection::open(path).unwrap();
        let whole: String = database.query_row("PRAGMA integrity_check", [], |row| row.get(0)).unwrap();
        assert_eq!(whole, "ok", "round {round}");
    }
    story.summary();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_keeps_what_it_acknowledged_through_kill_9_of_writer_and_member() {
    let mut cluster = Cluster::start(3).unwrap();
    let mut story = Story::new(Lab::etcd(&cluster, "crash").spec);
    let mut random = SeededRandom::for_test("etcd crash");
    for round in 0..rounds() {
        let mut writers = Writers::start(&story);
        writers.wait_until_writing();
        std::thread::sleep(random.within(Duration::from_millis(200)));
        let member = round as usize % cluster.size();
        cluster.kill(member).unwrap();
        std::thread::sleep(random.within(Duration::from_millis(1500)));
        story.record_output(writers.kill());
        // Two of three members: every acknowledged write must be readable before the third returns.
        story.verify(round).await;
        cluster.restart(member).unwrap();
    }
    story.summary();
}

/// The action of one writer at one step. Steps can be repeated when their outcome is unknown.
enum Step {
    Put(String, bytes::Bytes),
    Delete(String),
}

fn step(writer: usize, number: u64) -> Step {
    let key = format!("crash/{writer}/{:02}", number % KEYS);
    if number % 7 == 6 { Step::Delete(key) } else { Step::Put(key, value(format_args!("{writer}-{number}"))) }
}

/// The child. Does nothing when it is run manually.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "started by the crash tests, with a store to write to"]
async fn writers() {
    let Ok(spec) = std::env::var(SPEC) else { return };
    let steps: Vec<u64> =
        std::env::var(STEPS).unwrap().split(',').map(|number| number.parse().unwrap()).collect();
    let store = Store::open(parse(&spec)).await.unwrap();
    print_line(format_args!("open {}", store.revision().await.unwrap()));
    let mut tasks = Vec::new();
    for (writer, first) in steps.into_iter().enumerate() {
        let store = store.clone();
        tasks.push(tokio::spawn(async move {
            for number in first.. {
                let revision = carry_out(&store, step(writer, number)).await;
                print_line(format_args!("ack {writer} {number} {revision}"));
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
}

async fn carry_out(store: &Store, step: Step) -> Revision {
    loop {
        let outcome = match &step {
            Step::Put(key, value) => store.put(key, value.clone()).await,
            Step::Delete(key) => store.delete(key, None).await,
        };
        match outcome {
            Ok(revision) => return revision,
            Err(StoreError::NotFound { .. }) => return Revision(0),
            Err(StoreError::Unavailable { .. }) => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn print_line(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{line}").unwrap();
}

fn describe(spec: &StoreSpec) -> String {
    match spec {
        StoreSpec::Sqlite { path } => format!("sqlite={}", path.display()),
        StoreSpec::Etcd { endpoints, prefix, .. } => format!("etcd={prefix}={}", endpoints.join(",")),
    }
}

fn parse(spec: &str) -> StoreSpec {
    match spec.split('=').collect::<Vec<_>>()[..] {
        ["sqlite", path] => StoreSpec::Sqlite { path: path.into() },
        ["etcd", prefix, endpoints] => StoreSpec::Etcd {
            endpoints: endpoints.split(',').map(str::to_owned).collect(),
            tls: None,
            prefix: prefix.into(),
        },
        _ => panic!("{spec}"),
    }
}

/// The child process, as the parent sees it.
struct Writers {
    child: Child,
    lines: std::sync::mpsc::Receiver<String>,
    heard: Vec<String>,
}

impl Writers {
    fn start(story: &Story) -> Writers {
        let steps: Vec<String> = story.done.iter().map(u64::to_string).collect();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["crash::writers", "--exact", "--ignored", "--nocapture"])
            .env(SPEC, describe(&story.spec))
            .env(STEPS, steps.join(","))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        Writers { child, lines, heard: Vec::new() }
    }

    fn wait_until_writing(&mut self) {
        while !self.heard.last().is_some_and(|line| line.starts_with("ack")) {
            self.heard.push(self.lines.recv_timeout(Duration::from_secs(60)).expect("the writers begin"));
        }
    }

    fn kill(mut self) -> Vec<String> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.heard.extend(self.lines);
        self.heard
    }
}

/// The acknowledged writes so far.
struct Story {
    spec: StoreSpec,
    /// Steps acknowledged, for each writer.
    done: Vec<u64>,
    /// Every acknowledged write since the last check, with its revision.
    acknowledged: Vec<(Revision, usize, u64)>,
    /// The newest acknowledged revision, and the revision at which the last check ended.
    newest: Revision,
    looked: Option<Revision>,
    total: usize,
}

impl Story {
    fn new(spec: StoreSpec) -> Story {
        Story {
            spec,
            done: vec![0; WRITERS],
            acknowledged: vec![],
            newest: Revision(0),
            looked: None,
            total: 0,
        }
    }

    fn record_output(&mut self, lines: Vec<String>) {
        for line in lines {
            let words: Vec<&str> = line.split(' ').collect();
            match words[..] {
                // The kill may have truncated the last line.
                ["ack", writer, number, revision] => {
                    let (writer, number): (usize, u64) = (writer.parse().unwrap(), number.parse().unwrap());
                    assert_eq!(number, self.done[writer], "steps are acknowledged in order");
                    self.done[writer] = number + 1;
                    let revision = Revision(revision.parse().unwrap());
                    self.newest = self.newest.max(revision);
                    self.acknowledged.push((revision, writer, number));
                }
                ["open", revision] => {
                    let revision = Revision(revision.parse().unwrap());
                    assert!(revision >= self.newest, "went back from {} to {revision}", self.newest);
                }
                _ => {}
            }
        }
    }

    async fn verify(&mut self, round: u64) {
        let store = Store::open(self.spec.clone()).await.expect("the store opens");
        let current = store.revision().await.unwrap();
        assert!(current >= self.newest, "round {round}: went back from {} to {current}", self.newest);
        self.newest = current;
        for writer in 0..WRITERS {
            self.verify_writer(&store, round, writer).await;
        }
        if let Some(looked) = self.looked {
            self.verify_history(&store, round, looked).await;
        }
        self.looked = Some(current);
        self.total += self.acknowledged.len();
        self.acknowledged.clear();
        store.close().await.unwrap();
    }

    /// The records are as the acknowledged steps left them, or one step further: that one was in flight.
    async fn verify_writer(&mut self, store: &Store, round: u64, writer: usize) {
        let listing = store.list(&format!("crash/{writer}/"), ListRange::default()).await.unwrap();
        let found: BTreeMap<String, bytes::Bytes> =
            listing.records.iter().map(|record| (record.key.to_string(), record.value.clone())).collect();
        let expected = after_steps(writer, self.done[writer]);
        let one_further = after_steps(writer, self.done[writer] + 1);
        assert!(
            found == expected || found == one_further,
            "round {round}, writer {writer} after step {}: {found:?} is neither {expected:?} nor {one_further:?}",
            self.done[writer]
        );
    }

    /// The history since the last check has every acknowledged write at its revision.
    async fn verify_history(&mut self, store: &Store, round: u64, looked: Revision) {
        let expected: BTreeMap<Revision, (usize, u64)> = self
            .acknowledged
            .iter()
            .filter(|(r, ..)| r.0 > 0)
            .map(|(r, writer, number)| (*r, (*writer, *number)))
            .collect();
        let mut missing = expected.clone();
        let mut watch = store.watch("crash/", looked).await.unwrap();
        while !missing.is_empty() {
            let next = tokio::time::timeout(Duration::from_secs(20), watch.next()).await;
            let WatchSignal::Event(event) =
                next.unwrap_or_else(|_| panic!("round {round}: missing {missing:?}")).unwrap()
            else {
                continue;
            };
            if let Some((writer, number)) = missing.remove(&event.revision) {
                let (key, value) = match step(writer, number) {
                    Step::Put(key, value) => (key, Some(value)),
                    Step::Delete(key) => (key, None),
                };
                assert_eq!(
                    (&*event.key, &event.value),
                    (&*key, &value),
                    "round {round} at {}",
                    event.revision
                );
            }
        }
    }

    fn summary(&self) {
        println!("{} acknowledged writes, all there; the store is at {}", self.total, self.newest);
        assert!(self.total > 0);
    }
}

fn after_steps(writer: usize, steps: u64) -> BTreeMap<String, bytes::Bytes> {
    let mut records = BTreeMap::new();
    // The last two hundred steps touch every key several times.
    for number in steps.saturating_sub(200)..steps {
        match step(writer, number) {
            Step::Put(key, value) => drop(records.insert(key, value)),
            Step::Delete(key) => drop(records.remove(&key)),
        }
    }
    records
}
