//! The systemd units of `deploy/systemd`, examined without a running systemd.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The exposure that `systemd-analyze security` may find, in tenths: below 3.0 is "OK". The capabilities for the network namespace of
/// presences and for the tunnel cost most of it.
const EXPOSURE_MAX: &str = "25";

fn unit(role: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../deploy/systemd/causeway-{role}.service"))
}

#[test]
fn systemd_finds_the_units_hardened() {
    for role in ["cloud", "edge"] {
        let mut command = Command::new("systemd-analyze");
        command
            .args(["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX])
            .arg(unit(role));
        let output = command.output().expect("systemd-analyze is installed by .ci/needs");
        let said =
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{role}: {said}");
    }
}

#[test]
fn the_units_notify_are_watched_and_stop_later_than_the_drain() {
    for role in ["cloud", "edge"] {
        let text = std::fs::read_to_string(unit(role)).unwrap();
        let value = |key: &str| text.lines().find_map(|line| line.strip_prefix(key)).unwrap_or_default();
        assert_eq!(value("Type="), "notify");
        let seconds = |key: &str| value(key).trim_end_matches('s').parse::<u32>().unwrap();
        assert!(seconds("WatchdogSec=") >= 10, "a loaded machine misses no beat of half the time");
        // `drain` is 20 seconds by default.
        assert!(seconds("TimeoutStopSec=") > 20);
        let start = format!("/usr/bin/causeway {role} --config /etc/causeway/{role}.toml");
        assert_eq!(value("ExecStart="), start);
    }
}
