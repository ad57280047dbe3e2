//! The queue on real files: killed at every byte, damaged at every byte, on a disk that is full, bounded, and after
//! an hour without a link.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::frame::FRAME_HEAD_BYTES;
use super::*;

fn small() -> SpoolLimits {
    SpoolLimits { bytes_max: 16 << 10, records_max: 10_000, batch_bytes_max: 1000 }
}

fn text(number: u64) -> Vec<u8> {
    format!("record {number}").into_bytes()
}

fn fill(queue: &mut SpoolFile, numbers: std::ops::RangeInclusive<u64>) {
    for number in numbers {
        queue.append(SpoolRecordKind::Audit, &text(number)).unwrap();
    }
}

/// Sends and acknowledges everything; what came, by number. A record twice or out of order is a failure.
fn drain(queue: &mut SpoolFile) -> Vec<(u64, Vec<u8>)> {
    let mut all: Vec<(u64, Vec<u8>)> = Vec::new();
    while let Some(batch) = queue.next_batch().unwrap() {
        assert!(queue.next_batch().unwrap().is_none(), "one batch is in flight at a time");
        for (seq, entry) in (batch.first..).zip(&batch.entries) {
            assert!(all.last().is_none_or(|(last, _)| *last < seq));
            all.push((seq, entry.record.clone()));
        }
        queue.acknowledged(batch.queue, batch.last()).unwrap();
    }
    all
}

fn copy(from: &Path, to: &Path) {
    let _ = fs::remove_dir_all(to);
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn segments(folder: &Path) -> Vec<std::path::PathBuf> {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut segments: Vec<_> = paths.filter(|path| path.extension().is_some()).collect();
    segments.sort();
    segments
}

#[test]
fn killed_at_any_byte_of_a_write_all_earlier_records_are_there() {
    let place = tempfile::tempdir().unwrap();
    let (folder, torn) = (place.path().join("queue"), place.path().join("torn"));
    let mut queue = SpoolFile::open(&folder, small()).unwrap();
    fill(&mut queue, 1..=3);
    queue.sync().unwrap();
    let segment = segments(&folder)[0].clone();
    let before = fs::metadata(&segment).unwrap().len() as usize;
    queue.append(SpoolRecordKind::Status, &text(4)).unwrap();
    drop(queue);
    let whole = fs::read(&segment).unwrap();
    for length in 0..=whole.len() {
        copy(&folder, &torn);
        fs::write(torn.join(segment.file_name().unwrap()), &whole[..length]).unwrap();
        let mut queue = SpoolFile::open(&torn, small()).unwrap();
        queue.append(SpoolRecordKind::Audit, b"after the crash").unwrap();
        let records = drain(&mut queue);
        let whole_records = match length {
            _ if length == whole.len() => 4,
            _ if length >= before => 3,
            // Cut within what was synced, which no crash does: the records before the cut are there all the same.
            _ => length.saturating_sub(24) as u64 / (FRAME_HEAD_BYTES + text(1).len()) as u64,
        };
        let expected: Vec<_> = (1..=whole_records).map(text).chain([b"after the crash".to_vec()]).collect();
        assert_eq!(records.into_iter().map(|(_, record)| record).collect::<Vec<_>>(), expected, "{length}");
    }
}

#[test]
fn a_damaged_byte_costs_the_record_it_is_in_and_is_counted() {
    let place = tempfile::tempdir().unwrap();
    let (folder, damaged) = (place.path().join("queue"), place.path().join("damaged"));
    let mut queue = SpoolFile::open(&folder, small()).unwrap();
    fill(&mut queue, 1..=5);
    queue.sync().unwrap();
    let segment = segments(&folder)[0].clone();
    let whole = fs::read(&segment).unwrap();
    let frame_bytes = FRAME_HEAD_BYTES + text(1).len();
    for byte in 24 + frame_bytes..24 + 4 * frame_bytes {
        copy(&folder, &damaged);
        let mut bytes = whole.clone();
        bytes[byte] ^= 0x55;
        fs::write(damaged.join(segment.file_name().unwrap()), &bytes).unwrap();
        let mut queue = SpoolFile::open(&damaged, small()).unwrap();
        let hit = 1 + ((byte - 24) / frame_bytes) as u64;
        assert_eq!(queue.lost(), 1, "byte {byte}");
        let numbers: Vec<u64> = drain(&mut queue).into_iter().map(|(seq, _)| seq).collect();
        assert_eq!(numbers, (1..=5).filter(|seq| *seq != hit).collect::<Vec<_>>(), "byte {byte}");
        assert_eq!(queue.lost(), 1, "byte {byte}");
    }
    // Damage that comes while the queue is open, before it is read.
    let mut bytes = whole.clone();
    bytes[24 + frame_bytes] ^= 1;
    fs::write(&segment, &bytes).unwrap();
    assert_eq!(drain(&mut queue).len(), 4);
    assert_eq!(queue.lost(), 1);
}

#[test]
fn a_record_that_looks_like_a_frame_is_never_taken_for_one() {
    let place = tempfile::tempdir().unwrap();
    let mut queue = SpoolFile::open(place.path(), small()).unwrap();
    let mut fake = Vec::new();
    frame::encode(0, 2, SpoolRecordKind::Audit, b"never happened", &mut fake);
    queue.append(SpoolRecordKind::Audit, &fake).unwrap();
    queue.append(SpoolRecordKind::Audit, b"real").unwrap();
    queue.sync().unwrap();
    let segment = &segments(place.path())[0];
    let mut bytes = fs::read(segment).unwrap();
    bytes[24] ^= 1;
    fs::write(segment, bytes).unwrap();
    assert_eq!(drain(&mut queue), [(2, b"real".to_vec())]);
}

#[test]
fn the_bound_keeps_the_newest_and_says_how_many_are_gone() {
    let place = tempfile::tempdir().unwrap();
    let mut queue = SpoolFile::open(place.path(), small()).unwrap();
    for number in 1..=5000 {
        queue.append(SpoolRecordKind::Audit, &text(number)).unwrap();
        let on_disk: u64 = segments(place.path()).iter().map(|path| fs::metadata(path).unwrap().len()).sum();
        assert!(on_disk <= small().bytes_max, "{on_disk}");
    }
    drop(queue);
    let mut queue = SpoolFile::open(place.path(), small()).unwrap();
    let (waiting, lost) = (queue.waiting(), queue.lost());
    assert_eq!(waiting + lost, 5000);
    assert!(waiting > 200, "{waiting} are kept");
    let batch = queue.next_batch().unwrap().unwrap();
    assert_eq!((batch.first, batch.lost), (lost + 1, lost), "the count goes with the first batch");
    queue.acknowledged(batch.queue, batch.last()).unwrap();
    let rest = drain(&mut queue);
    assert_eq!((rest.len() + batch.entries.len()) as u64, waiting);
    assert_eq!(rest.last().unwrap(), &(5000, text(5000)));
    assert!(segments(place.path()).len() == 1 && queue.bytes() < 2000 + small().bytes_max / 4);
    let too_large = queue.append(SpoolRecordKind::Audit, &vec![0; RECORD_BYTES_MAX + 1]);
    assert!(matches!(too_large, Err(AppendError::TooLarge { .. })));
    let report = queue.next_batch().unwrap().unwrap();
    assert_eq!((report.entries.len(), report.lost), (0, lost + 1), "a loss is told without a record");
}

#[test]
fn an_hour_without_a_link_and_many_restarts_lose_and_repeat_nothing() {
    let place = tempfile::tempdir().unwrap();
    let limits = SpoolLimits::default();
    // Ten records a second, and a restart every six minutes; in one of them the state file is lost.
    let mut number = 0;
    for restart in 0..10 {
        let mut queue = SpoolFile::open(place.path(), limits).unwrap();
        for _ in 0..3600 {
            number += 1;
            let kind = if number % 60 == 0 { SpoolRecordKind::Status } else { SpoolRecordKind::Audit };
            queue.append(kind, &[&text(number)[..], &[b'x'; 180]].concat()).unwrap();
        }
        if restart == 4 {
            fs::remove_file(place.path().join("state")).unwrap();
        }
    }
    let mut queue = SpoolFile::open(place.path(), limits).unwrap();
    assert_eq!((queue.waiting(), queue.lost()), (36_000, 0));
    let half = queue.next_batch().unwrap().unwrap();
    queue.acknowledged(half.queue, half.last()).unwrap();
    drop(queue);
    let mut queue = SpoolFile::open(place.path(), limits).unwrap();
    let records = drain(&mut queue);
    assert_eq!(records.len() + half.entries.len(), 36_000);
    assert_eq!(records[0].0, half.last() + 1);
    assert!(records.iter().all(|(seq, record)| record.starts_with(&text(*seq))));
    assert_eq!((queue.waiting(), queue.lost()), (0, 0));
}

#[test]
fn an_edge_that_forgot_what_was_acknowledged_is_told_by_the_cloud() {
    let place = tempfile::tempdir().unwrap();
    let mut queue = SpoolFile::open(place.path(), small()).unwrap();
    fill(&mut queue, 1..=100);
    let batch = queue.next_batch().unwrap().unwrap();
    queue.acknowledged(batch.queue, 70).unwrap();
    assert_eq!((queue.waiting(), queue.lost()), (30, 0));
    queue.acknowledged(batch.queue, 50).unwrap();
    let numbers: Vec<u64> = drain(&mut queue).into_iter().map(|(seq, _)| seq).collect();
    assert_eq!(numbers, (71..=100).collect::<Vec<_>>());
}

#[test]
fn a_restored_disk_starts_over_under_a_new_name() {
    let place = tempfile::tempdir().unwrap();
    let (folder, older) = (place.path().join("queue"), place.path().join("older"));
    let mut queue = SpoolFile::open(&folder, small()).unwrap();
    queue.append(SpoolRecordKind::Audit, &text(1)).unwrap();
    queue.sync().unwrap();
    copy(&folder, &older);
    fill(&mut queue, 2..=9);
    assert_eq!(drain(&mut queue).len(), 9);

    let mut restored = SpoolFile::open(&older, small()).unwrap();
    restored.append(SpoolRecordKind::Audit, b"another second record").unwrap();
    let batch = restored.next_batch().unwrap().unwrap();
    assert_eq!(batch.queue, queue.id());
    restored.acknowledged(batch.queue, 9).unwrap();
    assert_ne!(restored.id(), batch.queue);
    assert_eq!(drain(&mut restored).len(), 2);
    let id = restored.id();
    drop(restored);
    assert_eq!(SpoolFile::open(&older, small()).unwrap().id(), id);
}

/// A small file system of its own; gone with the value.
struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    fn mount(size: &str) -> Option<Tmpfs> {
        let folder = tempfile::tempdir().unwrap();
        let mut command = Command::new("mount");
        command.args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(folder.path());
        command.status().is_ok_and(|status| status.success()).then_some(Tmpfs(folder))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk_refuses_and_counts_and_goes_on_when_there_is_room() {
    let Some(disk) = Tmpfs::mount("256k") else {
        println!("skipped: a_full_disk_refuses_and_counts: cannot mount a tmpfs (needs root)");
        return;
    };
    let (folder, ballast) = (disk.0.path().join("queue"), disk.0.path().join("ballast"));
    let take_all = || drop(fs::write(&ballast, vec![0; 1 << 20]).expect_err("the ballast takes all"));
    // Full before it begins: nothing crashes, and what was refused is known.
    take_all();
    let mut queue = SpoolFile::open(&folder, SpoolLimits::default()).unwrap();
    assert!(matches!(queue.append(SpoolRecordKind::Audit, b"refused"), Err(AppendError::Disk(_))));
    assert_eq!(queue.lost(), 1);
    fs::remove_file(&ballast).unwrap();
    queue.append(SpoolRecordKind::Audit, &text(2)).unwrap();
    queue.sync().unwrap();

    // Full in the middle, at whatever byte that is.
    take_all();
    let (mut kept, mut refused) = (1, 1);
    for number in 3..2000 {
        match queue.append(SpoolRecordKind::Audit, &[text(number), vec![b'x'; 100]].concat()) {
            Ok(_) => kept += 1,
            Err(_) => refused += 1,
        }
    }
    assert!(refused > 100, "the disk never became full");
    assert_eq!((queue.waiting(), queue.lost()), (kept, refused));
    let mut again = SpoolFile::open(&folder, SpoolLimits::default()).unwrap();
    assert_eq!(again.waiting(), kept, "what was written is whole");
    fs::remove_file(&ballast).unwrap();
    let last = again.append(SpoolRecordKind::Audit, b"room again").unwrap();
    let records = drain(&mut again);
    assert_eq!(records.len() as u64, kept + 1);
    assert_eq!(records.last().unwrap(), &(last, b"room again".to_vec()));
}

#[tokio::test]
async fn a_feed_shows_each_batch_once_and_a_new_session_begins_with_what_is_not_acknowledged() {
    let place = tempfile::tempdir().unwrap();
    let spool = Spool::open(place.path(), SpoolLimits::default()).unwrap();
    let mut feed = spool.feed();
    assert!(tokio::time::timeout(Duration::from_millis(1), feed.next()).await.is_err());
    spool.append(SpoolRecordKind::Audit, text(1));
    let first = feed.next().await.unwrap();
    spool.append(SpoolRecordKind::Audit, text(2));
    assert_eq!(first.entries, [SpoolEntry { kind: SpoolRecordKind::Audit, record: text(1) }]);
    // The link breaks here; the next session has a feed of its own.
    let mut feed = spool.feed();
    assert_eq!(feed.next().await.unwrap(), first);
    spool.acknowledged(first.queue, first.last());
    let second = feed.next().await.unwrap();
    assert_eq!((second.first, second.entries.len()), (2, 1));
    spool.acknowledged(second.queue, second.last());
    spool.close();
    assert_eq!(feed.next().await, None);
    assert_eq!(spool.stats().waiting, 0);
    spool.append(SpoolRecordKind::Audit, text(3));

    let again = Spool::open(place.path(), SpoolLimits::default()).unwrap();
    again.append(SpoolRecordKind::Audit, text(4));
    let batch = again.feed().next().await.unwrap();
    assert_eq!((batch.first, batch.lost), (3, 0), "numbers go on; what came after the end is nobody's");
    again.close();
}

#[test]
fn the_largest_batch_fits_into_one_message() {
    let place = tempfile::tempdir().unwrap();
    let mut queue = SpoolFile::open(place.path(), SpoolLimits::default()).unwrap();
    for length in [0, 1, 500, RECORD_BYTES_MAX] {
        (0..40).for_each(|_| assert!(queue.append(SpoolRecordKind::Audit, &vec![b'x'; length]).is_ok()));
    }
    let mut records = 0;
    while let Some(batch) = queue.next_batch().unwrap() {
        let message = batch.to_message();
        assert!(message.records.iter().all(|record| record[0] == 2));
        causeway_channel::wire::control::encode_edge(message).unwrap();
        records += batch.entries.len();
        queue.acknowledged(batch.queue, batch.last()).unwrap();
    }
    assert_eq!(records, 160);
}
