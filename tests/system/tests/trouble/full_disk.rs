//! A full disk: writes are refused with words that name it, reads and watches go on, and it heals by itself.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use testlab::causeway::{Cloud, Process, wait_for};
use testlab::https::Client;

use crate::{GROUP, admin, path, site};

/// A small disk of its own; gone with the value.
pub struct Disk(PathBuf);

impl Disk {
    pub fn mount(path: &Path, size: &str) -> Option<Disk> {
        std::fs::create_dir_all(path).unwrap();
        let options = format!("size={size},mode=700");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "tmpfs"]).arg(path).output();
        mounted.is_ok_and(|output| output.status.success()).then(|| Disk(path.to_owned()))
    }

    /// Writes until there is no room left. Returns the file to remove.
    pub fn fill(&self) -> PathBuf {
        let path = self.0.join("ballast");
        let mut file = std::fs::File::create(&path).unwrap();
        let mut size = 64 << 10;
        while size > 0 {
            match file.write(&vec![0; size]) {
                Ok(count) if count > 0 => {}
                _ => size /= 2,
            }
        }
        path
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(&self.0).output();
    }
}

#[test]
fn a_full_disk_refuses_writes_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(&folder.path().join("disk"), "24m") else {
        println!("skipped: a_full_disk_refuses_writes_and_nothing_else needs root to mount a tmpfs");
        return;
    };
    let cloud = Cloud::start(&disk.0.join("cloud")).unwrap();
    let client = admin(&cloud);
    let create = |name: &str| client.post(&format!("{GROUP}/esites"), &big(name)).unwrap();
    create("before").success().unwrap();
    let revision = crate::revision(&client);
    let mut watch = client.watch(&format!("{GROUP}/esites?watch=1&resourceVersion={revision}")).unwrap();

    let mut ballast = disk.fill();
    let mut written = vec!["before".to_owned()];
    let refused = wait_for("a write is refused", || {
        // The space that the store has reserved for its log may still take a few.
        let name = format!("during-{}", written.len());
        let answer = create(&name);
        match answer.code {
            201 => {
                written.push(name);
                // Room that a checkpoint gave back is taken again.
                ballast = disk.fill();
                None
            }
            _ => Some(answer),
        }
    })
    .unwrap();
    let status = refused.json();
    println!("refused with {}", refused.text());
    assert_eq!((refused.code, &status["reason"]), (507, &json!("InsufficientStorage")));
    let message = status["message"].as_str().unwrap();
    assert!(message.contains("room") || message.contains("disk"), "{message}");

    // Reads go on, and tell the truth.
    assert_eq!(names(&client), written);
    assert_eq!(client.get(&path("esites", "before")).unwrap().code, 200);
    wait_for("readiness names the disk", || {
        let answer = client.nobody().unwrap().get("/readyz?verbose").unwrap();
        (answer.code == 503 && answer.text().contains("disk")).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}\n{}", client.get("/readyz?verbose").unwrap().text()));
    assert_eq!(client.get("/livez").unwrap().code, 200, "a restart would not help");

    std::fs::remove_file(&ballast).unwrap();
    wait_for("writes are taken again", || (create("after").code == 201).then_some(())).unwrap();
    wait_for("it is ready again", || (client.get("/readyz").unwrap().code == 200).then_some(())).unwrap();
    // The watch has lived through it all.
    watch.find("the object made afterwards", |event| event["object"]["metadata"]["name"] == "after").unwrap();
    written.push("after".to_owned());
    written.sort();
    assert_eq!(names(&client), written);
    let log = cloud.process.log();
    assert!(!log.contains("panicked"), "{log}");

    // And what it acknowledged in all this time is on the disk.
    drop(watch);
    drop(cloud);
    let cloud = Cloud::start(&disk.0.join("cloud")).unwrap();
    assert_eq!(names(&admin(&cloud)), written);
}

/// An object that needs pages of its own.
fn big(name: &str) -> Value {
    let mut object = site(name);
    object["metadata"]["annotations"] = json!({"note": "n".repeat(100 << 10)});
    object
}

fn names(client: &Client) -> Vec<String> {
    let list = client.get(&format!("{GROUP}/esites")).unwrap().success().unwrap();
    let name = |item: &Value| item["metadata"]["name"].as_str().unwrap().to_owned();
    let mut names: Vec<String> = list["items"].as_array().unwrap().iter().map(name).collect();
    names.retain(|name| name != "cloud");
    names.sort();
    names
}

#[test]
fn a_full_disk_does_not_keep_a_cloud_from_starting() {
    let folder = tempfile::tempdir().unwrap();
    let Some(disk) = Disk::mount(&folder.path().join("disk"), "16m") else {
        println!("skipped: a_full_disk_does_not_keep_a_cloud_from_starting needs root to mount a tmpfs");
        return;
    };
    let data_dir = disk.0.join("cloud");
    let mut cloud = Cloud::start(&data_dir).unwrap();
    let client = admin(&cloud);
    client.post(&format!("{GROUP}/esites"), &site("before")).unwrap().success().unwrap();
    // The same address again, as a cloud in service has: otherwise the kubeconfig would have to change.
    let api = cloud.api.to_string();
    disk.fill();
    cloud.process.kill().unwrap();
    let mut killed = Cloud::spawn(&data_dir, &["--api", &api]).unwrap();
    answers(&client, &mut killed, "after it was killed");
    killed.terminate().unwrap();
    disk.fill();
    let mut stopped = Cloud::spawn(&data_dir, &["--api", &api]).unwrap();
    answers(&client, &mut stopped, "after it was stopped in order");
}

fn answers(client: &Client, process: &mut Process, when: &str) {
    let answer = wait_for("reads are answered", || {
        let ended = process.ended().is_some();
        (ended || client.get(&path("esites", "before")).is_ok_and(|answer| answer.code == 200))
            .then_some(ended)
    });
    assert!(matches!(answer, Ok(false)), "{when}: {answer:?}\n{}", process.log());
}
