//! Rows on the command line that need no server: usage, help, mistakes in files, a reader that leaves.

#![allow(clippy::unwrap_used)]

use std::io::{Read, Write};
use std::process::{Command, Stdio};

struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn causeway(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_causeway"));
    command.args(arguments).env_clear().env("NO_COLOR", "1").env("CAUSEWAY_DATA_DIR", "/nonexistent");
    command
}

fn run(arguments: &[&str], input: &str) -> Ran {
    let mut command = causeway(arguments);
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
    }
}

#[test]
fn a_file_name_cannot_control_the_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a\u{202e}lmay.\u{1b}[2J\n.yaml");
    let missing = run(&["apply", "-f", path.to_str().unwrap()], "");
    std::fs::write(&path, "kind: ESite\nkind: ESite\n").unwrap();
    let wrong = run(&["apply", "-f", path.to_str().unwrap()], "");
    let config = run(&["check-config", path.to_str().unwrap()], "");
    for ran in [missing, wrong, config] {
        assert_eq!(ran.code, 1, "{}", ran.stderr);
        assert!(ran.stderr.contains("a\\u{202e}lmay.\\u{1b}[2J\\n.yaml"), "{:?}", ran.stderr);
        assert!(!ran.stderr.contains(['\u{202e}', '\u{1b}']), "{:?}", ran.stderr);
    }
}

#[test]
fn exit_codes_mean_something() {
    let check = |arguments: &[&str], input: &str, code: i32, part: &str| {
        let ran = run(arguments, input);
        assert_eq!(ran.code, code, "{arguments:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(part), "{arguments:?}: {part} is missing in {}", ran.stderr);
        assert!(code == 0 || ran.stdout.is_empty(), "{arguments:?}: data although it failed: {}", ran.stdout);
    };
    check(&[], "", 2, "Usage: causeway");
    check(&["unknown"], "", 2, "unrecognized subcommand");
    check(&["get"], "", 2, "<KIND>");
    check(&["get", "pods"], "", 2, "invalid value 'pods'");
    check(&["get", "esites", "-o", "xml"], "", 2, "invalid value 'xml'");
    check(&["apply"], "", 2, "--filename");
    check(&["delete", "esites"], "", 2, "say which");
    check(&["delete", "-f", "x.yaml", "--all"], "", 2, "cannot be used with");
    check(&["token", "create"], "", 2, "--site");
    check(&["token", "create", "--site", "a", "--ttl", "soon"], "", 2, "is no duration");
    check(&["token", "create", "--site", "a", "--uses", "0"], "", 2, "--uses");
    check(&["token", "create", "--site", "a", "--role", "admin"], "", 2, "cannot be used with");
    check(&["cloud", "--api", "7443"], "", 2, "write IP:PORT");
    check(&["cloud", "--store", "redis"], "", 2, "use `sqlite` or `etcd=");
    check(&["cloud", "--advertise", "nowhere"], "", 2, "no endpoint");
    check(&["cloud", "--advertise", "http://cloud.example.org:7444"], "", 2, "without a scheme");
    check(&["cloud", "--api-name", "https://cloud.example.org"], "", 2, "without scheme and port");
    check(&["kubeconfig", "--server", "http://a"], "", 2, "TLS only");
    check(&["kubeconfig", "--list", "--ttl", "1h"], "", 2, "cannot be used with");
    check(&["revoke"], "", 2, "<GATEWAY");
    check(&["revoke", "a", "--certificate", "b"], "", 2, "cannot be used with");
    check(&["drain"], "", 2, "<GATEWAY");
    check(&["drain", "a", "--undo", "--wait", "1m"], "", 2, "cannot be used with");
    check(&["restore", "x"], "", 2, "--data-dir");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().to_str().unwrap();
    check(
        &["restore", "/dev/null", "--data-dir", folder, "--revocations", "/nonexistent"],
        "",
        1,
        "/nonexistent does not exist",
    );
    check(&["get", "esites"], "", 1, "Use --kubeconfig FILE");
    check(&["get", "esites", "--kubeconfig", "/nonexistent"], "", 1, "--kubeconfig names /nonexistent");
    check(&["apply", "-f", "/nonexistent.yaml"], "", 1, "/nonexistent.yaml cannot be read");
    check(&["apply", "-f", "-"], "{\"a\": \"x\" \"b\"}", 1, "stdin:1:11");
    check(&["apply", "-f", "-"], "kind: ESite\nkind: ESite\n", 1, "stdin:2:1");
    check(
        &["apply", "-f", "-"],
        "kind: Pod\napiVersion: v1\n",
        1,
        "stdin, document 1: kind `Pod` is unknown",
    );
    check(&["check-config", "/nonexistent.toml"], "", 1, "/nonexistent.toml cannot be read");
    check(&["kubeconfig"], "", 1, "/nonexistent/admin.kubeconfig cannot be read");
}

#[test]
fn a_mistake_in_the_configuration_is_explained() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cloud.toml");
    let file = file.to_str().unwrap();
    std::fs::write(file, "[cloud]\napi = \"127.0.0.1:1\"\nchanel = \"x\"\n").unwrap();
    let ran = run(&["check-config", file], "");
    assert_eq!(ran.code, 1);
    assert!(ran.stderr.contains("cloud.toml:3:1") && ran.stderr.contains("chanel"), "{}", ran.stderr);

    std::fs::write(file, "[cloud]\napi = \"127.0.0.1:1\"\n").unwrap();
    let ran = run(&["check-config", file], "");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let origin = |key: &str| {
        let line = ran.stdout.lines().find(|line| line.starts_with(key)).unwrap();
        line.rsplit("# ").next().unwrap().to_owned()
    };
    assert_eq!(
        (origin("api"), origin("channel"), origin("data-dir")),
        ("file".into(), "default".into(), "environment".into())
    );

    let mut wrong = causeway(&["check-config"]);
    let output = wrong.env("CAUSEWAY_API", "nonsense").output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("CAUSEWAY_API=nonsense"));
}

#[test]
fn help_has_examples() {
    for command in [
        "demo",
        "cloud",
        "edge",
        "apply",
        "get",
        "describe",
        "delete",
        "status",
        "kubeconfig",
        "revoke",
        "drain",
        "backup",
        "restore",
        "check-config",
        "completions",
    ] {
        let ran = run(&[command, "--help"], "");
        assert_eq!(ran.code, 0);
        assert!(
            ran.stdout.contains("Examples:\n  ") && ran.stdout.contains("causeway "),
            "{command}: {}",
            ran.stdout
        );
    }
    assert!(run(&["--version"], "").stdout.starts_with("causeway "));
}

#[test]
fn shells_complete_kinds_and_files() {
    for shell in ["bash", "zsh", "fish"] {
        let ran = run(&["completions", shell], "");
        assert_eq!(ran.code, 0);
        for word in ["esites", "serviceexposes", "check-config", "wide"] {
            assert!(ran.stdout.contains(word), "{shell} does not know {word}");
        }
    }
    assert!(run(&["completions", "zsh"], "").stdout.contains("_files"));
}

#[test]
fn a_reader_that_leaves_early_is_no_failure() {
    let mut child = causeway(&["completions", "bash"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // Closing the pipe before anything is read.
    drop(child.stdout.take());
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""));
}

#[test]
fn the_version_names_the_commit_and_help_is_a_command() {
    let flag = run(&["--version"], "");
    let command = run(&["version"], "");
    assert_eq!((flag.code, command.code, &flag.stdout), (0, 0, &command.stdout));
    let commit = flag.stdout.trim().strip_suffix(')').and_then(|text| text.rsplit_once(" (")).unwrap().1;
    assert!(
        commit == "unknown" || commit.chars().all(|letter| letter.is_ascii_hexdigit()),
        "{}",
        flag.stdout
    );
    let json: serde_json::Value = serde_json::from_str(&run(&["version", "--json"], "").stdout).unwrap();
    assert_eq!(json["commit"], commit);
    let help = run(&["help", "token"], "");
    assert_eq!(help.code, 0, "{}", help.stderr);
    assert!(help.stdout.contains("Usage: causeway token"), "{}", help.stdout);
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    let pages = folder.path().join("man");
    assert_eq!(run(&["manual", pages.to_str().unwrap()], "").code, 0);
    for (name, parts) in [
        ("causeway.1", &["causeway\\-cloud", "Examples:"][..]),
        ("causeway-cloud.1", &[".TH causeway", "\\-\\-advertise", "Examples:"]),
        ("causeway-token-create.1", &["\\-\\-site"]),
    ] {
        let text = std::fs::read_to_string(pages.join(name)).unwrap();
        for part in parts {
            assert!(text.contains(part), "{part} is missing in {name}:\n{text}");
        }
    }
}
