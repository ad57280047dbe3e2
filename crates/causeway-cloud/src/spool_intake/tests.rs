//! Batches taken on SQLite, by one replica and by two, with a crash at the worst moment.

use std::path::Path;

use bytes::Bytes;
use causeway_store::StoreSpec;
use serde_json::Value;

use super::*;

struct Lab {
    folder: tempfile::TempDir,
    store: Store,
}

impl Lab {
    async fn open() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(StoreSpec::Sqlite { path: folder.path().join("store.db") }).await.unwrap();
        Lab { folder, store }
    }

    fn replica(&self, name: &str) -> SpoolIntake {
        let folder = self.folder.path().join(name);
        SpoolIntake::open(&folder, RotationLimits::default(), self.store.clone(), Clock::system(), None)
            .unwrap()
    }

    /// The numbers a reader of these replicas' journals sees, and how many lines there really are.
    fn read(&self, replicas: &[&str]) -> (Vec<u64>, usize) {
        let (mut repeats, mut numbers, mut lines) = (LineDeduplicator::default(), Vec::new(), 0);
        for replica in replicas {
            for line in journal(&self.folder.path().join(replica)) {
                lines += 1;
                let (queue, seq) = (line["queue"].as_str().unwrap(), line["seq"].as_u64().unwrap());
                if repeats.is_new(queue, seq) {
                    numbers.push(seq);
                }
            }
        }
        numbers.sort_unstable();
        (numbers, lines)
    }
}

fn journal(folder: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(folder.join("fleet.jsonl")).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn peer() -> PeerId {
    PeerId::new("oslo", "oslo-1").unwrap()
}

fn audit(first: u64, records: usize) -> ReceivedBatch {
    ReceivedBatch::new(&[1; 16], first, vec![Bytes::from_static(b"\x02{\"site\":\"liar\"}"); records], 0)
        .unwrap()
}

#[tokio::test]
async fn records_are_on_disk_and_the_cursor_has_moved_when_the_edge_is_told() {
    let lab = Lab::open().await;
    let intake = lab.replica("one");
    let settled = intake.take(&peer(), &audit(1, 3)).await.unwrap();
    assert_eq!(settled, SettledRecords { queue: [1; 16], seq: 3 });
    assert_eq!(lab.read(&["one"]).0, [1, 2, 3]);
    assert!(journal(&lab.folder.path().join("one")).iter().all(|line| line["site"] == "oslo"));
    assert_eq!(intake.cursor("oslo-1").await.unwrap().unwrap().seq, 3);
    // Sent again, because the answer was lost.
    assert_eq!(intake.take(&peer(), &audit(1, 3)).await.unwrap().seq, 3);
    assert_eq!(intake.take(&peer(), &audit(3, 2)).await.unwrap().seq, 4);
    assert_eq!(lab.read(&["one"]), (vec![1, 2, 3, 4], 4));
    assert_eq!(intake.metrics().repeated_total(), 4);
}

#[tokio::test]
async fn a_crash_between_journal_and_cursor_repeats_lines_that_readers_drop() {
    let lab = Lab::open().await;
    let crashed = lab.replica("one");
    let lines = lines::render(&peer(), &audit(1, 5), 0, 0, std::time::SystemTime::now());
    crashed.journal.append(lines).await.unwrap();
    drop(crashed);
    let again = lab.replica("one");
    assert_eq!(again.take(&peer(), &audit(1, 5)).await.unwrap().seq, 5);
    assert_eq!(lab.read(&["one"]), ((1..=5).collect(), 10));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_replicas_share_one_cursor() {
    let lab = Lab::open().await;
    let (one, two) = (lab.replica("one"), lab.replica("two"));
    for first in (1..200).step_by(10) {
        // The edge was cut off and sent the same batch to the other replica while the first was still busy.
        let batch = audit(first, 10);
        let peer = peer();
        let (left, right) = tokio::join!(one.take(&peer, &batch), two.take(&peer, &batch));
        assert_eq!((left.unwrap().seq, right.unwrap().seq), (first + 9, first + 9));
    }
    let (numbers, lines) = lab.read(&["one", "two"]);
    assert_eq!(numbers, (1..=200).collect::<Vec<_>>());
    println!("{lines} lines were written for 200 records");
    assert_eq!(one.cursor("oslo-1").await.unwrap(), two.cursor("oslo-1").await.unwrap());
}

#[tokio::test]
async fn a_gateway_that_floods_the_journal_pushes_out_only_its_own_records() {
    let lab = Lab::open().await;
    let folder = lab.folder.path().join("one");
    let limits = RotationLimits { file_bytes_max: 30_000, files_max: 4 };
    let intake = SpoolIntake::open(&folder, limits, lab.store.clone(), Clock::system(), None).unwrap();
    let quiet = PeerId::new("rome", "rome-1").unwrap();
    intake.take(&quiet, &audit(1, 20)).await.unwrap();
    for first in (1..6000).step_by(100) {
        intake.take(&peer(), &audit(first, 100)).await.unwrap();
    }
    // Dropping it ends the thread that writes and compacts.
    drop(intake);
    let files =
        std::fs::read_dir(&folder).unwrap().map(|entry| std::fs::read_to_string(entry.unwrap().path()));
    let text: String = files.map(Result::unwrap).collect();
    let count = |gateway: &str| text.matches(&format!("\"gateway\":\"{gateway}\"")).count();
    assert_eq!(count("rome-1"), 20, "the other gateway's records are all there");
    assert!((50..600).contains(&count("oslo-1")), "{}", count("oslo-1"));
    assert!(text.len() <= 5 * 30_000, "{} bytes", text.len());
}

#[tokio::test]
async fn the_newest_status_and_the_losses_are_kept() {
    let lab = Lab::open().await;
    let intake = lab.replica("one");
    let status = |number: u8| Bytes::from(format!("\u{1}{{\"n\":{number}}}"));
    let batch = ReceivedBatch::new(&[1; 16], 8, vec![status(1), status(2)], 7).unwrap();
    intake.take(&peer(), &batch).await.unwrap();
    let cursor = intake.cursor("oslo-1").await.unwrap().unwrap();
    assert_eq!((cursor.lost, &cursor.status.as_ref().unwrap().record["n"]), (7, &Value::from(2)));
    let lines = journal(&lab.folder.path().join("one"));
    assert_eq!((&lines[0]["event"], &lines[0]["lost"]), (&"edge-records-lost".into(), &7.into()));
    // Audit records do not touch it, and another queue keeps it until it has a newer one.
    let other = ReceivedBatch::new(&[2; 16], 1, vec![Bytes::from_static(b"\x02{}")], 0).unwrap();
    intake.take(&peer(), &other).await.unwrap();
    assert_eq!(intake.cursor("oslo-1").await.unwrap().unwrap().status, cursor.status);
    assert_eq!(intake.cursor("nobody").await.unwrap(), None);
}

#[tokio::test]
async fn a_store_that_is_away_keeps_the_edge_waiting() {
    let lab = Lab::open().await;
    let intake = lab.replica("one");
    lab.store.clone().close().await.unwrap();
    let (peer, batch) = (peer(), audit(1, 1));
    let settling = tokio::time::timeout(Duration::from_millis(300), intake.store_batch(&peer, &batch));
    assert!(settling.await.is_err(), "nothing may be acknowledged");
    assert!(matches!(intake.take(&peer, &batch).await, Err(SpoolIntakeError::Store(_))));
}
