//! When things go wrong around a cloud: a full disk, kill -9 in the middle of writes.

use std::path::{Path, PathBuf};
use std::process::Command;

use testlab::causeway::{Cloud, get, wait_for};

use crate::{Lab, site};

/// A tiny disk that goes away with the test.
struct TinyDisk {
    path: PathBuf,
    _folder: tempfile::TempDir,
}

impl TinyDisk {
    fn mount(size: &str) -> Option<TinyDisk> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("disk");
        std::fs::create_dir(&path).unwrap();
        let option = format!("size={size}");
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", &option, "tmpfs"]).arg(&path).output().ok()?;
        mounted.status.success().then_some(TinyDisk { path, _folder: folder })
    }

    /// Takes all the room there is.
    fn fill(&self) -> PathBuf {
        let path = self.path.join("fill");
        let mut file = std::fs::File::create(&path).unwrap();
        for size in [64 << 10, 4 << 10] {
            while std::io::Write::write_all(&mut file, &vec![1; size]).is_ok() {}
        }
        path
    }
}

impl Drop for TinyDisk {
    fn drop(&mut self) {
        // Lazily: the cloud on it may still be ending.
        let _ = Command::new("umount").arg("-l").arg(&self.path).status();
    }
}

#[test]
fn a_full_disk_refuses_writes_serves_reads_and_is_told_once() {
    let Some(disk) = TinyDisk::mount("8m") else {
        eprintln!("skipped: cannot mount a tmpfs (needs root)");
        return;
    };
    let cloud = Cloud::start(&disk.path.join("cloud")).unwrap();
    cloud.apply(&site("before")).unwrap().success().unwrap();
    let fill = disk.fill();
    for number in 0..20 {
        let refused = cloud.apply(&site(&format!("refused-{number}"))).unwrap();
        assert_eq!(refused.code, 1, "{}", refused.stdout);
        assert!(refused.stderr.contains("full"), "{}", refused.stderr);
    }
    let unready =
        wait_for("/readyz says so", || get(cloud.admin, "/readyz").ok().filter(|(code, _)| *code == 503));
    let (_, text) = unready.unwrap();
    assert!(text.contains("[-]store failed: the disk is full"), "{text}");
    assert_eq!(get(cloud.admin, "/healthz").unwrap().0, 200);
    assert!(cloud.object("esite", "before").is_some());
    let told = cloud
        .process
        .log()
        .lines()
        .filter(|line| line.contains(" ERROR ") || line.contains(" WARN "))
        .count();
    assert!(told <= 4, "a flood:\n{}", cloud.process.log());

    std::fs::remove_file(fill).unwrap();
    wait_for("it is ready again", || get(cloud.admin, "/readyz").ok().filter(|(code, _)| *code == 200))
        .unwrap();
    cloud.apply(&site("after")).unwrap().success().unwrap();
    cloud.wait_condition("esite", "after", "Ready", "False").unwrap();
    assert!(cloud.object("esite", "refused-0").is_none());
}

#[test]
fn what_was_acknowledged_survives_kill_nine_in_the_middle_of_writes() {
    // The long form takes fifty rounds.
    let rounds = if std::env::var_os("CAUSEWAY_SOAK").is_some() { 50 } else { 4 };
    let mut lab = Lab::start();
    let mut acknowledged: Vec<String> = Vec::new();
    let mut revision = 0;
    for round in 0..rounds {
        let folder = lab.path(&format!("round-{round}"));
        write_many(&folder, round);
        let mut writer = lab.cloud.client(&["apply", "-f", folder.to_str().unwrap()]).unwrap();
        let mut child =
            writer.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
        let lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
        // Some are through, more are on their way.
        let mut killed = false;
        for (count, line) in lines.map(Result::unwrap).enumerate() {
            acknowledged.push(line.strip_suffix(" created").unwrap().to_owned());
            if count == 10 + 7 * round % 40 && !std::mem::replace(&mut killed, true) {
                lab.cloud.process.kill().unwrap();
            }
        }
        assert!(killed && !child.wait().unwrap().success());
        lab.cloud = Cloud::start(&lab.path("cloud")).unwrap();
        let found = lab.run(&["get", "esites", "-o", "name"]);
        let found: std::collections::HashSet<&str> = found.lines().collect();
        for name in &acknowledged {
            assert!(found.contains(name.as_str()), "round {round}: {name} was acknowledged and is gone");
        }
        let list: serde_json::Value =
            serde_json::from_str(&lab.run(&["get", "esite", "cloud", "-o", "json"])).unwrap();
        assert_eq!(list["kind"], "ESite");
        let newest = newest_revision(&lab);
        assert!(newest >= revision, "round {round}: the revision went back from {revision} to {newest}");
        revision = newest;
    }
}

/// More objects than can be written before the kill.
fn write_many(folder: &Path, round: usize) {
    std::fs::create_dir(folder).unwrap();
    let documents: String =
        (0..400).map(|number| format!("---\n{}\n", site(&format!("r{round}-{number}")))).collect();
    std::fs::write(folder.join("sites.yaml"), documents).unwrap();
}

fn newest_revision(lab: &Lab) -> u64 {
    let list: serde_json::Value = serde_json::from_str(&lab.run(&["get", "all", "-o", "json"])).unwrap();
    let revisions = list["items"].as_array().unwrap().iter();
    revisions
        .map(|item| item["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap())
        .max()
        .unwrap()
}
