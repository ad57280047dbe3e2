//! The journal is read whole, filtered, once each, across rotations, and goes on where it grows.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;

fn line(number: u64, more: Value) -> String {
    let mut line = json!({
        "time": format!("2026-11-16T00:00:{:02}.000Z", number % 60), "gateway": "gw", "site": "oslo",
        "subject": null, "client": "10.0.0.9:1", "service": "web", "protocol": "tcp", "decision": "allow", "rule": "p1",
        "sentBytes": 1, "receivedBytes": 2, "durationMs": 3, "end": "done", "queue": "aa", "seq": number,
        "received": "2026-11-16T00:01:00Z",
    });
    for (key, value) in more.as_object().unwrap() {
        line[key] = value.clone();
    }
    format!("{line}\n")
}

fn write(folder: &Path, name: &str, lines: &[String]) {
    fs::write(folder.join(name), lines.concat()).unwrap();
}

async fn ask(folder: &Path, query: &str) -> (Vec<Value>, Value) {
    let query = AuditQuery::parse(JournalKind::Traffic, Some(query)).unwrap();
    let lines = AuditJournal::new(folder).read(query.clone()).unwrap();
    told(JournalMerge::new(query, vec![lines], Vec::new())).await
}

#[tokio::test]
async fn the_packets_of_a_flow_are_told() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), "fleet.jsonl", &[line(1, json!({"packets": 9})), line(2, json!({}))]);
    let (records, _) = ask(folder.path(), "").await;
    let told: Vec<&Value> = records.iter().map(|record| &record["packets"]).collect();
    assert_eq!(told, [&json!(9), &Value::Null]);
}

#[tokio::test]
async fn all_files_are_read_in_order_and_every_record_once() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    assert_eq!(ask(folder, "").await.0.len(), 0, "no journal yet");
    write(
        folder,
        "fleet-2.jsonl",
        &[line(1, json!({})), line(2, json!({"decision": "deny", "reason": "no-policy"}))],
    );
    write(
        folder,
        "fleet-1.jsonl",
        &[line(2, json!({})), line(3, json!({"service": "mail", "subject": "s1"}))],
    );
    let lost = json!({"event": "edge-records-lost", "lost": 7, "queue": null, "seq": null});
    write(folder, "fleet.jsonl", &[line(4, json!({"gateway": "other"})), line(5, lost), "{half".to_owned()]);
    let (records, summary) = ask(folder, "").await;
    let times: Vec<&str> = records.iter().map(|record| &record["time"].as_str().unwrap()[17..19]).collect();
    assert_eq!(times, ["01", "02", "03", "04"]);
    assert_eq!(
        (&summary["records"], &summary["repeats"], &summary["lost"], &summary["lagMs"]),
        (&json!(4), &json!(1), &json!(7), &json!(55_997))
    );
    let fields = [
        "time",
        "receivedTime",
        "gateway",
        "site",
        "clientSite",
        "subject",
        "client",
        "service",
        "protocol",
        "decision",
        "rule",
        "reason",
        "method",
        "path",
        "status",
        "clientId",
        "sentBytes",
        "receivedBytes",
        "durationMs",
        "end",
    ];
    for record in &records {
        let mut found: Vec<&String> = record.as_object().unwrap().keys().collect();
        let mut expected = fields.to_vec();
        found.sort();
        expected.sort_unstable();
        assert_eq!(found, expected);
    }
    let count = async |query: &str| ask(folder, query).await.0.len();
    assert_eq!(count("decision=deny").await, 1);
    assert_eq!(count("service=mail&subject=s1").await, 1);
    assert_eq!(count("gateway=other").await, 1);
    assert_eq!(count("site=nowhere").await, 0);
    assert_eq!(count("since=2026-11-16T00:01:00Z").await, 4, "by the time of receipt");
    assert_eq!(count("since=2026-11-16T00:01:01Z").await, 0);
    let (newest, summary) = ask(folder, "limit=2").await;
    assert_eq!((newest.len(), &summary["records"]), (2, &json!(2)));
    assert!(newest[0]["time"].as_str().unwrap().contains(":03."), "{newest:?}");
    for wrong in ["since=yesterday", "limit=0", "limit=x", "decision=maybe"] {
        assert!(AuditQuery::parse(JournalKind::Traffic, Some(wrong)).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn a_record_that_is_dated_back_is_shown_and_one_of_the_future_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let old = json!({"time": "1999-01-01T00:00:00.000Z", "received": "2026-11-16T00:00:09Z"});
    let ahead = json!({"time": "2042-01-01T00:00:00.000Z", "received": "2026-11-16T00:00:05Z"});
    write(folder, "fleet.jsonl", &[line(1, ahead), line(2, old)]);
    let (records, summary) = ask(folder, "since=2026-11-16T00:00:05Z").await;
    let received: Vec<&Value> = records.iter().map(|record| &record["receivedTime"]).collect();
    assert_eq!(received, ["2026-11-16T00:00:05Z", "2026-11-16T00:00:09Z"]);
    assert_eq!(
        (&records[1]["time"], &summary["fromTheFuture"]),
        (&json!("1999-01-01T00:00:00.000Z"), &json!(1))
    );
    assert_eq!(
        ask(folder, "since=2026-11-16T00:00:06Z").await.0.len(),
        1,
        "a date in the future does not help"
    );
    // A moment that no clock can hold is no reason to fail.
    let far = json!({"time": "9999-12-30T00:00:00Z", "durationMs": u64::MAX, "lost": u64::MAX, "event": "edge-records-lost"});
    write(folder, "fleet.jsonl", &[line(1, far.clone()), line(2, far)]);
    assert_eq!(ask(folder, "").await.1["lost"], json!(u64::MAX));
}

#[tokio::test]
async fn what_administrators_did_is_a_journal_of_its_own_with_filters_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let act = |second: u32, user: &str, verb: &str, kind: &str, name: &str| {
        let time = format!("2026-11-16T00:00:{second:02}.000Z");
        let line = json!({"time": time, "replica": "a:1", "user": user, "verb": verb, "kind": kind, "name": name,
            "dryRun": false, "code": 200});
        format!("{line}\n")
    };
    write(folder, "fleet.jsonl", &[line(1, json!({}))]);
    write(
        folder,
        "admin-1.jsonl",
        &[act(1, "ann", "create", "ESite", "oslo"), act(2, "bob", "delete", "ESite", "oslo")],
    );
    let lost = json!({"time": "2026-11-16T00:00:03.000Z", "event": "audit-lines-lost", "lost": 2});
    write(folder, "admin.jsonl", &[format!("{lost}\n"), act(4, "ann", "revoke", "EGateway", "gw")]);
    let check = async |query: &str, expected: &[&str]| {
        let query = AuditQuery::parse(JournalKind::Admin, Some(query)).unwrap();
        let lines = AuditJournal::new(folder).read(query.clone()).unwrap();
        let (records, summary) = told(JournalMerge::new(query.clone(), vec![lines], Vec::new())).await;
        let found: Vec<String> = records
            .iter()
            .map(|record| {
                format!("{} {}", record["user"].as_str().unwrap(), record["verb"].as_str().unwrap())
            })
            .collect();
        assert_eq!(found, expected, "{query:?}");
        assert_eq!(summary["records"], json!(expected.len()));
        summary
    };
    let summary = check("", &["ann create", "bob delete", "ann revoke"]).await;
    assert_eq!(summary["lost"], 2);
    check("user=ann", &["ann create", "ann revoke"]).await;
    check("kind=esite", &["ann create", "bob delete"]).await;
    check("verb=delete&name=oslo", &["bob delete"]).await;
    check("since=2026-11-16T00:00:02Z&limit=1", &["ann revoke"]).await;
}

async fn told(mut merge: JournalMerge) -> (Vec<Value>, Value) {
    let mut text = Vec::new();
    while let Some(piece) = merge.next().await {
        text.extend_from_slice(&piece);
    }
    let mut lines: Vec<Value> =
        String::from_utf8(text).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let summary = lines.pop().unwrap()["summary"].take();
    (lines, summary)
}

#[tokio::test]
async fn a_journal_that_is_followed_goes_on_over_a_rotation() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    write(folder, "fleet.jsonl", &[line(1, json!({}))]);
    let query = AuditQuery::parse(JournalKind::Traffic, Some("follow=true")).unwrap();
    let journals = AuditJournal::new(folder);
    let mut merge = JournalMerge::new(query.clone(), vec![journals.read(query).unwrap()], Vec::new());
    assert!(next_record(&mut merge).await.contains("00:00:01"));
    let more = [line(1, json!({})), line(2, json!({}))].concat();
    let (whole, half) = more.split_at(more.len() - 10);
    fs::write(folder.join("fleet.jsonl"), whole).unwrap();
    fs::write(folder.join("fleet.jsonl"), format!("{whole}{half}")).unwrap();
    assert!(next_record(&mut merge).await.contains("00:00:02"));
    fs::rename(folder.join("fleet.jsonl"), folder.join("fleet-1.jsonl")).unwrap();
    write(folder, "fleet.jsonl", &[line(3, json!({}))]);
    assert!(next_record(&mut merge).await.contains("00:00:03"));
    drop(merge);
    // The thread notices that its reader is gone, and ends.
    while journals.readers.available_permits() < READERS_MAX {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn next_record(merge: &mut JournalMerge) -> String {
    loop {
        let piece = String::from_utf8(merge.next().await.unwrap().to_vec()).unwrap();
        if piece.contains("decision") {
            return piece;
        }
    }
}

#[tokio::test]
async fn replicas_are_joined_by_time_and_repeats_are_dropped() {
    let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    write(folders[0].path(), "fleet.jsonl", &[line(1, json!({})), line(3, json!({}))]);
    write(folders[1].path(), "fleet.jsonl", &[line(2, json!({})), line(3, json!({}))]);
    let query = AuditQuery::default();
    let sources =
        folders.iter().map(|folder| AuditJournal::new(folder.path()).read(query.clone()).unwrap()).collect();
    let mut merge = JournalMerge::new(query, sources, vec!["third".to_owned()]);
    let mut text = String::new();
    while let Some(piece) = merge.next().await {
        text.push_str(std::str::from_utf8(&piece).unwrap());
    }
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 4, "{text}");
    for (line, part) in
        lines.iter().zip(["00:00:01", "00:00:02", "00:00:03", "\"silentReplicas\":[\"third\"]"])
    {
        assert!(line.contains(part), "{line}");
    }
}
