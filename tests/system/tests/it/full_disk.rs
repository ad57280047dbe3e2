//! A full disk as the operator sees it: said in /readyz, said once in the log, over when space returns.

use std::path::PathBuf;
use std::process::Command;

use testlab::causeway::{Cloud, get, wait_for};

use crate::site;

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
        // Another process on this machine may have port 53; that has nothing to do with the disk.
        .filter(|line| !line.contains("names are not answered"))
        .count();
    assert!(told <= 4, "a flood:\n{}", cloud.process.log());

    std::fs::remove_file(fill).unwrap();
    wait_for("it is ready again", || get(cloud.admin, "/readyz").ok().filter(|(code, _)| *code == 200))
        .unwrap();
    cloud.apply(&site("after")).unwrap().success().unwrap();
    cloud.wait_condition("esite", "after", "Ready", "False").unwrap();
    assert!(cloud.object("esite", "refused-0").is_none());
}
